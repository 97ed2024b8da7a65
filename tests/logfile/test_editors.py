"""What a person does to the file while an entry is being appended: nothing of theirs is cut, no turn is lost unseen."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dialogd import person
from dialogd.errors import DialogdError
from dialogd.store.logfile import LogFile
from tests.logfile.agents import agent_at
from tests.logfile.files import dialog_file, log_of, restore, times, turn
from tests.logfile.moments import at, moments
from tests.support.pair import PATIENCE

Save = Callable[[Path, bytes], None]


def edited(loaded: bytes) -> bytes:
    """What the person made of the text that their editor had loaded."""
    return loaded.replace(b"Postgres or Redis?", b"Postgres, Redis or SQLite?")


def rename_over(path: Path, loaded: bytes) -> None:
    """Save as vim, VS Code and most editors do: a new file takes the name."""
    new = path.with_name(".saving")
    restore(new, edited(loaded))
    new.replace(path)


def in_place(path: Path, loaded: bytes) -> None:
    """Save as nano and `cat >` do: truncate, write."""
    restore(path, edited(loaded))


def sed(path: Path, _: bytes) -> None:
    script = "s/Postgres or Redis?/Postgres, Redis or SQLite?/"
    subprocess.run(
        ["perl", "-i", "-pe", script] if os.uname().sysname == "Darwin" else ["sed", "-i", script, path], check=True
    )


def shell(text: str) -> Save:

    def save(path: Path, _: bytes) -> None:
        with path.open("ab") as file:
            file.write(text.encode())

    return save


SAVES: Mapping[str, Save] = {"rename over": rename_over, "in place": in_place, "sed -i": sed}
TYPED: Mapping[str, str] = {
    "a headed turn": "\n## Turn 9 - user\n\nSQLite? Consider\n\nturn: b.\n",
    "a turn without heading": "SQLite? Consider\nTURN: B\n",
    "a line": "SQLite? Consider\n",
    "an unfinished line": "SQLite? Consider",
    "a blank line": "\n",
}


def deliver(log: LogFile, token: str) -> int:
    """Append a turn as a daemon does, again after an error that passes; how many tries it took."""
    for attempt in range(1, 5):
        try:
            log.append(turn(token), log.journals.of("A"))
        except DialogdError:
            continue
        return attempt
    raise AssertionError("was never appended")


def is_told(log: LogFile, token: str) -> bool:
    """True when what is gone from the file is known, with its text."""
    present = {entry.chain for entry in log.read(full=True).entries}
    return token in "".join(text for _, chain, text in log.journals.turns() if chain not in present)


def around(folder: Path, save: Save) -> list[tuple[str, Path, LogFile, int, bool]]:
    """The same save at every moment of an append: before each of its system calls, and after the last.

    Gives the moment, the file, its log, the tries that the append took, and whether the read-back was yet to come.
    """
    rehearsal = log_of(dialog_file(folder))
    rehearsal.append(turn("first"), rehearsal.journals.of("A"))
    names = [*moments(lambda: rehearsal.append(turn("second"), rehearsal.journals.of("A"))), "the end"]
    assert len(names) > 12
    flushed = max(index for index, name in enumerate(names) if name == "fsync")
    read_back = names.index("stat", flushed)
    done = []
    for moment, name in enumerate(names):
        place = folder / str(moment)
        place.mkdir()
        log = log_of(dialog_file(place))
        log.append(turn("first"), log.journals.of("A"))
        loaded, path, tries = log.path.read_bytes(), log.path, 0

        def work(log: LogFile = log) -> None:
            nonlocal tries
            tries = deliver(log, "second")

        at({moment: lambda path=path, loaded=loaded: save(path, loaded)}, work)  # type: ignore[misc]
        if moment == len(names) - 1:
            save(path, loaded)
        done.append((f"before {moment} {name}", path, log, tries, moment <= read_back))
    return done


@pytest.mark.parametrize("save", SAVES)
def test_an_editors_save_loses_no_turn_unseen(tmp_path: Path, save: str) -> None:
    for moment, path, log, tries, in_time in around(tmp_path, SAVES[save]):
        assert b"Postgres, Redis or SQLite?" in path.read_bytes(), moment
        assert times(path, "first") == 1, moment
        assert tries <= 2, moment
        found = times(path, "second")
        assert found == 1 or (found == 0 and not in_time and is_told(log, "second")), moment


@pytest.mark.parametrize("typed", TYPED)
def test_a_persons_typing_is_kept_and_loses_no_turn(tmp_path: Path, typed: str) -> None:
    text = TYPED[typed]
    for moment, path, _, tries, _ in around(tmp_path, shell(text)):
        data = path.read_bytes()
        assert text.encode() in data, moment
        assert times(path, "first") == 1, moment
        assert times(path, "second") == 1, moment
        assert tries == 1, moment


@pytest.mark.parametrize("later", [1, pytest.param(3, marks=pytest.mark.slow), 100])
def test_a_save_that_takes_its_time_loses_no_turn_unseen(tmp_path: Path, later: int) -> None:
    rehearsal = log_of(dialog_file(tmp_path))
    rehearsal.append(turn("first"), rehearsal.journals.of("A"))
    count = len(moments(lambda: rehearsal.append(turn("second"), rehearsal.journals.of("A"))))
    for moment in range(count):
        place = tmp_path / str(moment)
        place.mkdir()
        log = log_of(dialog_file(place))
        log.append(turn("first"), log.journals.of("A"))
        fd = os.open(log.path, os.O_WRONLY)
        saved = [edited(log.path.read_bytes())]

        def truncate(fd: int = fd) -> None:
            os.ftruncate(fd, 0)

        def write(fd: int = fd, saved: list[bytes] = saved) -> None:
            while saved:
                os.write(fd, saved.pop())

        def once(log: LogFile = log) -> None:
            try:
                log.append(turn("second"), log.journals.of("A"))
            except DialogdError:
                return

        at({moment: truncate, moment + later: write}, once)
        write()
        os.close(fd)
        deliver(log, "second")
        assert b"Postgres, Redis or SQLite?" in log.path.read_bytes(), moment
        assert times(log.path, "first") == 1, moment
        found = times(log.path, "second")
        assert found == 1 or (found == 0 and is_told(log, "second")), moment


@pytest.mark.parametrize("typed", ["\nConsider Re", "\nConsider Redis.\n", "\nConsider Redis.\n\nTURN: B\n"])
def test_a_newline_is_added_to_nothing_but_a_last_turn_line(tmp_path: Path, typed: str) -> None:
    path = dialog_file(tmp_path)
    with path.open("a") as file:
        file.write(typed)
    before = path.read_bytes()
    log_of(path).newline()
    assert path.read_bytes() == before


async def test_whoever_hears_of_dropped_turns_and_asks_is_told_the_same(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    async with agent_at(path) as agent:
        await agent.look()
        old = path.read_bytes()
        person.say(log_of(path), "Also think of the cost.", to="A")
        await agent.look()

        async def hear() -> str:
            with agent.hub.join() as events:
                async for event in events:
                    if event.kind == "dropped":
                        assert agent.dialog is not None
                        return agent.missing(agent.dialog)
            return ""

        heard = asyncio.ensure_future(hear())
        await asyncio.sleep(0)
        path.write_bytes(old)
        await agent.look()
        async with asyncio.timeout(PATIENCE):
            assert "taken out of the file by a save" in await heard
