"""dialogd from Python: a file opened, whole dialogs run by real daemons, and nothing left of them but the file."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import FrozenInstanceError, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

import dialogd
from dialogd.errors import BadInput, DialogdError, NotADialog, NotRunning, Refused
from dialogd.protocol.state import Dialog
from tests.cli.command import Commands

PAIR = ("rehearsal", "rehearsal")


@dataclass(frozen=True)
class Stage:
    """A folder for one dialog, its file, and what runs there."""

    file: Path

    @property
    def dialog(self) -> Dialog:
        """The dialog as it stands."""
        return dialogd.open(self.file)

    @property
    def processes(self) -> list[psutil.Process]:
        """The daemons of this file among the processes of this machine, zombies too."""
        found = []
        for process in psutil.process_iter(["cmdline", "ppid"]):
            words = process.info["cmdline"] or []
            if str(self.file) in words or (process.info["ppid"] == os.getpid() and not words):
                found.append(process)
        return found


@pytest.fixture
def stage(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """An empty folder to play in; processes that a failed test left there are ended."""
    monkeypatch.setenv("DIALOGD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    stage = Stage(tmp_path / "dialog.md")
    yield stage
    for process in stage.processes:
        process.kill()


async def test_agents_have_the_roles_that_a_program_gives_them(stage: Stage) -> None:
    roles = {"a": "observer", "B": {"role": "critic", "weight": 2}}
    events = dialogd.run("Tabs?", agents=["rehearsal"] * 3, roles=roles, file=stage.file)
    async with aclosing(events):
        assert (await anext(events)).kind == "begun"
        rules = stage.dialog.header.rules
        assert [(one.name, one.weight) for one in map(rules.role, "ABC")] == [("observer", 1), ("critic", 2), ("", 1)]


# -- a file ----------------------------------------------------------------------------------------------------------


def test_an_open_file_is_the_dialog_folded_and_what_is_none_an_error_of_the_tree(stage: Stage) -> None:
    with pytest.raises(NotRunning, match="there is no dialog at") as missing:
        dialogd.open(stage.file)
    stage.file.write_text("To be done:\n- milk\n", encoding="utf-8")
    stage.file.chmod(0o600)
    with pytest.raises(NotADialog) as other:
        dialogd.open(stage.file)
    assert missing.value.fix
    assert other.value.fix
    stage.file.unlink()
    Commands(stage.file.parent).begin("Tabs?")
    for file in (stage.file, str(stage.file)):
        dialog = dialogd.open(file)
        assert (dialog.header.topic, len(dialog.entries), dialog.state.owing) == ("Tabs?", 1, ("A",))


def test_the_person_speaks_from_python(stage: Stage) -> None:
    with pytest.raises(NotRunning):
        dialogd.say(stage.file, "Spaces.")
    assert not stage.file.exists()
    Commands(stage.file.parent).begin("Tabs?")
    assert dialogd.say(stage.file, "Spaces.", to="B").state.owing == ("B",)
    assert dialogd.say(stage.file, "By the way.", note=True).state.number == 2


def test_importing_is_light_and_names_are_known(repository: Path) -> None:
    program = (
        "import sys, dialogd; print(*sorted({'asyncio', 'dialogd.api', 'typer'} & set(sys.modules)));"
        "print(dialogd.Event.__name__, hasattr(dialogd, 'nonsense'))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], cwd=repository, text=True) == "\nEvent False\n"


# -- a whole dialog --------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_dialog_is_told_from_its_beginning_to_consensus(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIALOGD_PLAN", "1")
    events = [event async for event in dialogd.run("Tabs?", agents=PAIR, file=stage.file, pace=0)]
    state = stage.dialog.state
    assert state.outcome is not None
    begun, ended = events[0], events[-1]
    assert (begun.kind, begun.data["file"], begun.data["dialog"]) == ("begun", str(stage.file), stage.dialog.id)
    assert [(a["id"], a["backend"]) for a in begun.data["agents"]] == [("A", "rehearsal"), ("B", "rehearsal")]
    assert [e.data["number"] for e in events if e.kind == "turn"] == list(range(1, state.number + 1))
    assert [e.data["text"] for e in events if e.kind == "turn"] == [entry.body for entry in stage.dialog.turns]
    assert {e.data["by"] for e in events if e.kind == "text"} == {"A", "B"}
    assert "[CONSENSUS_REACHED]" in "".join(e.data["text"] for e in events if e.kind == "text")
    stood = [e for e in events if e.kind == "state"][-1].data
    assert (stood["phase"], stood["lifecycle"], stood["turn_of"]) == ("ended", "collapsed", [])
    assert 0 <= stood["convergence"] <= 1
    assert (ended.kind, ended.data["outcome"], ended.data["turn"]) == ("ended", "CONSENSUS_REACHED", state.number)
    assert ended.data["reason"] == state.outcome.reason
    plan, facts = Path(ended.data["plan"]), Path(ended.data["plan_json"])
    assert plan.read_text(encoding="utf-8").startswith("# ")
    assert json.loads(facts.read_bytes())
    assert plan.parent == stage.file.parent
    assert timedelta() <= datetime.now(UTC) - begun.at < timedelta(hours=1)
    assert begun.at <= ended.at
    with pytest.raises(FrozenInstanceError):
        ended.kind = "begun"  # type: ignore[misc]
    assert stage.processes == []


async def closed(stage: Stage, heard: Callable[[], None]) -> None:
    """The body of the loop breaks off, inside `aclosing`."""
    async with aclosing(dialogd.run("Tabs?", agents=SLOW, file=stage.file, pace=0)) as events:
        async for event in events:
            if event.kind == "state" and event.data["phase"] == "thinking":
                heard()
                raise KeyError("mine")


async def cancelled(stage: Stage, heard: Callable[[], None]) -> None:
    """The task is cancelled, and once more while it ends."""
    thinking = asyncio.Event()

    async def listen() -> None:
        async for event in dialogd.run("Tabs?", agents=SLOW, file=stage.file, pace=0):
            if event.kind == "state" and event.data["phase"] == "thinking":
                heard()
                thinking.set()

    task = asyncio.create_task(listen())
    await thinking.wait()
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


SLOW = ("A=rehearsal:slow=600", "rehearsal")


@pytest.mark.slow
@pytest.mark.parametrize("how", [closed, cancelled])
async def test_who_leaves_in_the_middle_leaves_no_process(
    stage: Stage, how: Callable[[Stage, Callable[[], None]], Awaitable[None]]
) -> None:
    alive: list[int] = []
    with suppress(KeyError):
        await how(stage, lambda: alive.extend(process.pid for process in stage.processes))
    assert len(alive) == 2
    assert stage.processes == []
    assert not any(psutil.pid_exists(pid) for pid in alive)
    outcome = stage.dialog.state.outcome
    assert (outcome.name, outcome.reason) == ("STOPPED", "the program that ran it closed it")


@pytest.mark.slow
def test_a_program_that_breaks_off_and_ends_leaves_no_process(stage: Stage, repository: Path) -> None:
    program = (
        "import asyncio, dialogd\n"
        "async def main():\n"
        f"    async for event in dialogd.run('Tabs?', agents={SLOW!r}, file={str(stage.file)!r}, pace=0):\n"
        "        if event.kind == 'turn':\n"
        "            break\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert stage.processes == []
    outcome = stage.dialog.state.outcome
    assert outcome.name == "STOPPED"


@pytest.mark.slow
async def test_the_program_answers_when_it_is_asked(stage: Stage) -> None:
    asked = ""
    async for event in dialogd.run("Tabs?", agents=("rehearsal:ask", "rehearsal"), file=stage.file, pace=0):
        if event.kind == "state" and event.data["needs_person"] and not asked:
            asked = event.data["needs_person"]
            dialogd.say(stage.file, "Soft ones.")
    assert asked.startswith("A asks you: ")
    assert event.kind == "ended"
    assert [turn.body for turn in stage.dialog.turns if turn.by == "USER"][1:] == ["Soft ones."]


@pytest.mark.slow
async def test_a_daemon_that_dies_is_started_again_and_told(stage: Stage) -> None:
    killed = []

    async def listen() -> None:
        async for event in dialogd.run("Tabs?", agents=SLOW, file=stage.file, pace=0):
            thinks = event.kind == "state" and event.data["phase"] == "thinking"
            if event.kind == "warning" or (thinks and not killed):
                killed.append(event.kind)
                next(process for process in stage.processes if "A" in process.cmdline()).kill()

    with pytest.raises(DialogdError, match="ended unexpectedly"):
        await listen()
    assert killed == ["state", "warning"]
    assert stage.processes == []
    outcome = stage.dialog.state.outcome
    assert outcome.reason == "error: a daemon could not be started, or ended twice"


async def test_what_cannot_begin_is_refused_before_anything_is_written(stage: Stage) -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        ({"agents": ()}, "0 agents are named"),
        ({"agents": ["rehearsal:nonsense"]}, "unknown rehearsal"),
        ({"agents": "nonsense"}, "unknown backend"),
        ({"agents": PAIR, "budget": "a lot"}, "--budget"),
        ({"agents": ["A=rehearsal", "a=rehearsal"]}, "given to two agents"),
        ({"agents": "command:cat,auto"}, "nobody is there for B"),
        ({"agents": PAIR, "roles": {"Z": "critic"}}, "roles.Z: no agent of this dialog"),
        ({"agents": PAIR, "roles": {"A": {"weight": "heavy"}}}, "roles.A.weight"),
        ({"agents": PAIR, "roles": {"A": {"name": "critic"}}}, "roles.A.name is no part of a role"),
    ]
    for options, why in wrong:
        with pytest.raises(BadInput, match=why):
            await anext(dialogd.run("Tabs?", file=stage.file, **options))  # type: ignore[arg-type]
    assert not stage.file.exists()
    Commands(stage.file.parent).begin("Spaces?")
    with pytest.raises(Refused, match="has not ended"):
        await anext(dialogd.run("Tabs?", agents=PAIR, file=stage.file))
    assert stage.dialog.header.topic == "Spaces?"
