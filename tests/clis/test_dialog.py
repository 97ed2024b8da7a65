"""Whole dialogs of real coding agents through real daemons, to the end; killed in the middle, and gone on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests.clis.rig import KEY, PATH
from tests.support.minds import consensus
from tests.support.pair import Pair, a_second
from tests.support.standin import Hang, Seen, StandIn

TOPIC = "Where should user sessions live?"
AGENTS = {"A": "claude-code", "B": "codex"}
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")


@pytest.fixture
def needed() -> None:
    """Both agents; without them the tests are skipped, with the reason."""
    for program in ("claude", "codex"):
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"{program} is not installed: `make test-clis` brings it")


@pytest.fixture
def projects(tmp_path: Path) -> Mapping[str, Path]:
    found = {who: tmp_path / f"project-{who}" for who in "ABC"}
    for who, folder in found.items():
        folder.mkdir()
        (folder / "AGENTS.md").write_text(f"The project of {who} keeps its sessions in table s_{who}.\n")
    (tmp_path / "home").mkdir()
    return found


def table(tmp_path: Path, projects: Mapping[str, Path], server: StandIn, backend: Mapping[str, str]) -> Pair:
    """Daemons of these backends, each in its project, with the stand-in as every service."""
    environment = {
        **dict.fromkeys(KEYS, KEY),
        "ANTHROPIC_BASE_URL": server.url,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "HOME": str(tmp_path / "home"),
        "PATH": PATH,
    }
    flags = {who: ["--project", str(projects[who])] for who in backend}
    return Pair(tmp_path, backend, backend=backend, flags=flags, environment=environment)


def children(pair: Pair) -> Iterator[psutil.Process]:
    for daemon in pair.daemons.values():
        if daemon.running:
            yield from psutil.Process(daemon.pid).children(recursive=True)


def ready(pair: Pair) -> None:
    for daemon in pair.daemons.values():
        daemon.start()
    for daemon in pair.daemons.values():
        daemon.until_ready()


@pytest.mark.usefixtures("needed")
def test_two_coding_agents_agree_also_after_a_kill(tmp_path: Path, projects: Mapping[str, Path]) -> None:
    with StandIn(consensus) as server, table(tmp_path, projects, server, AGENTS) as pair:
        ready(pair)
        pair.begin(TOPIC)
        pair.notify()
        pair.until(lambda: pair.outcome, "the end")
        assert pair.outcome == "CONSENSUS_REACHED"
        first = pair.dialog()
        notes = " ".join(seen.prompt for seen in server.calls)
        assert "keeps its sessions in table s_A" in notes
        assert "keeps its sessions in table s_B" in notes
        for has in (
            "search it; you can neither change it nor run anything",
            "search it, by commands that change nothing",
        ):
            assert f"You have the project in the current folder: read and {has}." in notes

        pair.begin(f"{TOPIC} Again.", max_turns=30)
        pair.notify()
        pair.until(lambda: pair.number >= 3, "some turns")
        for daemon in pair.daemons.values():
            daemon.kill()
        pair.until(lambda: not list(children(pair)), "an end of what they started")
        before = pair.file.read_bytes()
        ready(pair)
        pair.notify()
        pair.until(lambda: pair.outcome, "the end")
        assert pair.outcome == "CONSENSUS_REACHED"
        assert pair.file.read_bytes().startswith(before.rstrip(b"\n"))
        numbers = [entry.number for entry in pair.dialog().turns]  # type: ignore[union-attr]
        assert numbers == list(range(1, len(numbers) + 1))
    assert set(first.state.spent) == {"A", "B"}
    assert all(spent.tokens_in for spent in first.state.spent.values())
    assert sorted(path.name for folder in projects.values() for path in folder.iterdir()) == ["AGENTS.md"] * 3


@pytest.mark.usefixtures("needed")
@pytest.mark.parametrize("backend", ["claude-code", "codex"])
def test_a_stop_ends_a_coding_agent_within_a_second(tmp_path: Path, projects: Mapping[str, Path], backend: str) -> None:
    busy = False

    def mind(seen: Seen) -> object:
        return Hang() if busy else consensus(seen)

    with StandIn(mind) as server, table(tmp_path, projects, server, {"A": backend}) as pair:  # type: ignore[arg-type]
        ready(pair)
        busy = True
        known = len(server.calls)
        pair.begin(TOPIC)
        pair.notify()
        pair.until(lambda: len(server.calls) > known, "the call")
        family = list(children(pair))
        assert family
        began = time.monotonic()
        pair["A"].ask("POST", "/stop", {})
        pair["A"].wait()
        gone = time.monotonic() - began
        assert not [process for process in family if process.is_running()]
        assert gone < a_second()
        assert (pair.outcome, pair.number) == ("STOPPED", 1)
