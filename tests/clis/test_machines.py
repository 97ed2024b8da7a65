"""Real coding agents on two machines in one dialog: Claude Code on one, Codex on the other, the log between them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dialogd.cli.options import ask
from tests.cli.command import Commands, Done, until
from tests.cli.test_share import machine, ok, shared
from tests.clis.rig import KEY, PATH, SERVICES
from tests.support.gitdaemon import GitDaemon, Repository
from tests.support.minds import consensus, look
from tests.support.postgres import Cluster
from tests.support.standin import StandIn

OWED, QUESTION = "# Your turn\n", "# One question about your reply\n"
PROGRAMS = {"claude-code": "claude", "codex": "codex"}


@dataclass(frozen=True)
class Side:
    """A machine with one agent: its commands, its project, and the service that the agent calls."""

    commands: Commands
    seat: str
    backend: str
    project: Path
    server: StandIn

    def start(self) -> None:
        words = ["--backend", self.backend, "--project", str(self.project), "--port", "0", "--pace", "0"]
        ok(self.commands("start", self.seat, "--detach", *words))

    @property
    def asked(self) -> list[int]:
        """The turn that each call of the service was for; that about a signature in a reply (`QUESTION`) is no turn."""
        calls = [seen for seen in self.server.calls if seen.prompt.rfind(QUESTION) < seen.prompt.rfind(OWED)]
        return [scene.turn for seen in calls if (scene := look(seen)) is not None]

    def __call__(self, *words: str) -> Done:
        return self.commands(*words)

    @property
    def note(self) -> str:
        """What only this machine's project says."""
        return f"Only the machine of {self.seat} has this project."

    @property
    def bytes(self) -> bytes:
        return self.commands.file.read_bytes() if self.commands.file.exists() else b""


def side(folder: Path, name: str, seat: str, backend: str, server: StandIn) -> Side:
    if shutil.which(PROGRAMS[backend], path=PATH) is None:
        pytest.skip(f"{PROGRAMS[backend]} is not installed: `make test-clis` brings it")
    commands = machine(folder, name)
    key, address, base = SERVICES[backend]
    commands.environment |= {key: KEY, address: server.url + base, "PATH": PATH, "DIALOGD_PLAN": "0"}
    project = folder / f"project-{name}"
    project.mkdir()
    one = Side(commands, seat, backend, project, server)
    (project / "AGENTS.md").write_text(f"{one.note}\n")
    return one


@pytest.fixture
def ada(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with StandIn(consensus) as server:
        one = side(tmp_path, "ada", "A", "claude-code", server)
        yield one
        one.commands.end_daemons()


@pytest.fixture
def bob(tmp_path: Path) -> Iterator[Side]:
    with StandIn(consensus) as server:
        one = side(tmp_path, "bob", "B", "codex", server)
        yield one
        one.commands.end_daemons()


@dataclass(frozen=True)
class Engine:
    """Where the log is, and how to take it away for good."""

    url: str
    end: Callable[[], object]


@pytest.fixture(params=["file", "daemon", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "file":
        repository = Repository(tmp_path / "repository")
        yield Engine(repository.url, lambda: repository.path.rename(tmp_path / "gone"))
    elif request.param == "daemon":
        daemon = GitDaemon(tmp_path / "served")
        yield Engine(daemon.url, daemon.kill)
        daemon.kill()
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster.new_database("machines")
        yield Engine(cluster.url("ada", "machines"), cluster.kill)
        cluster.start()


def agreed(ada: Side, bob: Side) -> None:
    """Both files say so, with the same bytes, and every call became a turn."""
    until(
        lambda: ada.bytes.count(b"[CONSENSUS_REACHED]\n") and ada.bytes == bob.bytes,
        "the end on both machines",
        lambda: f"{ada('status').out}\n{bob('status').out}\n{ada.bytes.decode()[-2000:]}",
    )
    dialog = ada.commands.log.read()
    assert dialog.state.outcome is not None
    assert dialog.state.outcome.name == "CONSENSUS_REACHED"
    for one in (ada, bob):
        turns = [entry.number for entry in dialog.turns if entry.by == one.seat]
        assert one.asked == turns
        assert len(turns) > 1


def proved(ada: Side, bob: Side) -> None:
    """Each machine says by its own files who signed what."""
    spoken = set()
    for one in (ada, bob):
        facts = ok(one("verify", "--json")).json
        signed = {row["who"]: row["entries"] for row in facts["signed"]["by"]}
        people = {"ada": ["1"], "Guest B": ["1.1"]}
        turns = {who: [str(entry.number) for entry in ada.commands.log.read().turns if entry.by == who] for who in "AB"}
        assert (facts["sound"], facts["signed"]["problem"], signed) == (True, "", people | turns)
        assert {each["agent"] for each in facts["certificate"]["signers"]} == {"A", "B"}
        spoken.add(facts["signed"]["words"])
    assert len(spoken) == 1


def shared_dialog(ada: Side, url: str) -> str:
    """A new dialog on Ada's machine, with her agent at work; the line for Bob."""
    ok(ada("new", "Where should user sessions live?", "--first", "A"))
    line = shared(ada.commands, url)
    ada.start()
    return line


def go(ada: Side) -> None:
    ask(ada.commands.daemons()[0].port, "POST", "/notify", {}, seconds=5)


def test_two_agents_on_two_machines_agree_and_each_can_prove_it_alone(ada: Side, bob: Side, engine: Engine) -> None:
    line = shared_dialog(ada, engine.url)
    ok(bob("join", line))
    bob.start()
    go(ada)
    agreed(ada, bob)
    for one in (ada, bob):
        one.commands.end_daemons()
    engine.end()
    proved(ada, bob)
    for one, other in ((ada, bob), (bob, ada)):
        said = " ".join(seen.prompt for seen in one.server.calls)
        assert one.note in said
        assert other.note not in said


def test_one_command_joins_with_an_agent_to_the_end(ada: Side, bob: Side, tmp_path: Path) -> None:
    line = shared_dialog(ada, Repository(tmp_path / "repository").url)
    go(ada)
    ok(bob("run", "--agent", f"B=codex@{bob.project}", "--with", line))
    agreed(ada, bob)
    proved(ada, bob)
