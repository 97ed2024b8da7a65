"""A key never gets further than the call that said it: not into file, journal, events, logs or another prompt."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from dialogd import logs, person
from dialogd.asking import Options
from dialogd.errors import BackendError
from tests.logfile.files import log_of
from tests.turns.minds import Mind, agent_with, interrupted
from tests.turns.test_spending import dialog_in

OWN = "correct-horse-battery-staple"
SHAPED = "sk-ant-api03-" + "Ab1" * 12
TOLD = Options(pace=0.0, poll=0.05, retry_wait=0.001, secrets=(OWN,))


def everything_under(folder: Path) -> str:
    """All that stands in the files below a folder."""
    return "\n".join(path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file())


async def said_by(path: Path, mind: Mind, options: Options = TOLD) -> tuple[str, int]:
    """One step of an agent; all that its events said, and how many secrets were counted."""
    async with agent_with(path, mind, options=options) as agent:
        with agent.hub.join() as events:
            await agent.step()
            await agent.hub.close()
            told = [json.dumps(event.data) async for event in events]
        return "\n".join(told), agent.turns.tally.secrets


async def test_a_key_in_a_reply_is_taken_out_and_counted(tmp_path: Path) -> None:
    """Known shapes and keys of one's own, in the middle of a line or cut by a stream."""
    path = dialog_in(tmp_path)
    mind = Mind(("The key is ", SHAPED[:10], SHAPED[10:], f" and {OWN[:9]}", f"{OWN[9:]}.\nMore.\n"))
    told, counted = await said_by(path, mind)
    assert counted == 2
    assert "The key is [redacted: anthropic key] and [redacted: own key]." in path.read_text()
    for secret in (OWN, SHAPED):
        assert secret not in told
        assert secret not in everything_under(log_of(path).journals.folder)
        assert secret not in everything_under(tmp_path)


async def test_a_key_of_the_backends_is_the_daemons_own(tmp_path: Path) -> None:
    """What a backend holds is taken out without anybody naming it a second time."""
    path, mind = dialog_in(tmp_path), Mind((f"I was given {OWN}.",))
    mind.secrets = (OWN,)
    await said_by(path, mind, Options(pace=0.0, poll=0.05))
    assert "I was given [redacted: own key]." in path.read_text()


async def test_a_key_in_an_error_or_a_broken_reply_is_taken_out(tmp_path: Path) -> None:
    """Cause, fix and the draft that is kept of a partial answer."""
    path = dialog_in(tmp_path)
    error = BackendError(f"401 for {OWN}", fix=f"replace {SHAPED}", partial=f"It begins with {OWN}")
    told, _ = await said_by(path, Mind((f"It begins with {OWN}", error)))
    kept = told + everything_under(tmp_path) + everything_under(log_of(path).journals.folder)
    assert "[AGENT_ERROR: A | 401 for [redacted: own key] | replace [redacted: anthropic key]]" in path.read_text()
    assert OWN not in kept
    assert SHAPED not in kept


async def test_a_key_in_an_interrupted_reply_is_taken_out(tmp_path: Path) -> None:
    """What had come by then is kept as a draft, without it."""
    path, mind = dialog_in(tmp_path), Mind((f"The key is {OWN} and {SHAPED}.\nSo", 20.0))
    async with agent_with(path, mind, options=TOLD) as agent:
        await interrupted(agent, lambda: bool(agent.call and agent.call.parts), person.say, path)
    kept = everything_under(log_of(path).journals.folder)
    assert "The key is [redacted: own key] and [redacted: anthropic key]." in kept
    assert OWN not in kept
    assert SHAPED not in kept


@pytest.fixture
def log_lines(tmp_path: Path) -> Iterator[Path]:
    """The daemon's log as a file; the handlers are put back afterwards."""
    before, level = list(logging.getLogger().handlers), logging.getLogger().level
    path = tmp_path / "a.log"
    logs.set_up_logging("A", path, json_lines=False, debug=True, secrets=(OWN,))
    yield path
    for handler in logging.getLogger().handlers:
        handler.close()
    logging.getLogger().handlers[:] = before
    logging.getLogger().setLevel(level)


def test_a_log_holds_no_key_not_even_in_a_traceback(log_lines: Path) -> None:
    """Whatever failed may quote one."""
    logs.say(f"began with {OWN}")
    try:
        raise ValueError(f"no such key: {SHAPED} {OWN}")
    except ValueError:
        logs.log.exception("it broke")
    text = log_lines.read_text()
    assert "it broke" in text
    assert "ValueError: no such key: [redacted: anthropic key] [redacted: own key]" in text
    assert OWN not in text
