"""A key never gets further than the call that said it: not into file, journal, events, logs or another prompt."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from dialogd import person
from dialogd.agent import events
from dialogd.agent.turn import Behavior
from dialogd.backends import Request, Tool, Usage
from dialogd.errors import BackendError
from dialogd.store.logfile import LogFile
from tests.logfile.files import log_of
from tests.turns.minds import Mind, agent_with, dialog_in, interrupted

OWN = "correct-horse-battery-staple"
SHAPED = "sk-ant-api03-" + "Ab1" * 12
TOKEN = "ghp_" + "Zq7Lm2Rt9Vx4Bn6Kc8Wd1Fg3Hj5Ps0YaTe4X"  # forty characters; of one less nobody knows what it is
TOLD = Behavior(pace=0.0, poll=0.05, retry_wait=0.001, secrets=(OWN,))


def everything_under(folder: Path) -> str:
    """All that stands in the files below a folder."""
    return "\n".join(path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file())


async def said_by(path: Path, mind: Mind, options: Behavior = TOLD) -> tuple[str, int]:
    """One step of an agent; all that its events said, and how many secrets were counted."""
    async with agent_with(path, mind, options=options) as agent:
        with agent.hub.join() as events:
            await agent.step()
            await agent.hub.close()
            told = [json.dumps(event.data) async for event in events]
        return "\n".join(told), agent.tally.secrets


async def test_a_key_in_a_reply_is_taken_out_and_counted(tmp_path: Path) -> None:
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
    path, mind = dialog_in(tmp_path), Mind((f"I was given {OWN}.",))
    mind.secrets = (OWN,)
    await said_by(path, mind, Behavior(pace=0.0, poll=0.05))
    assert "I was given [redacted: own key]." in path.read_text()


@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_key_in_an_error_or_a_broken_reply_is_taken_out(tmp_path: Path, is_whole: bool) -> None:
    path = dialog_in(tmp_path)
    error = BackendError(f"401 for {OWN}", fix=f"replace {SHAPED}", partial=f"It begins with {OWN}", is_whole=is_whole)
    told, _ = await said_by(path, Mind((f"It begins with {OWN}", error)))
    kept = told + everything_under(tmp_path) + everything_under(log_of(path).journals.folder)
    assert "[AGENT_ERROR: A | 401 for [redacted: own key] | replace [redacted: anthropic key]]" in path.read_text()
    assert OWN not in kept
    assert SHAPED not in kept


async def test_a_key_in_an_interrupted_reply_is_taken_out(tmp_path: Path) -> None:
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
    events.set_up_logging("A", path, json_lines=False, debug=True, secrets=(OWN,))
    yield path
    for handler in logging.getLogger().handlers:
        handler.close()
    logging.getLogger().handlers[:] = before
    logging.getLogger().setLevel(level)


def test_a_log_holds_no_key_not_even_in_a_traceback(log_lines: Path) -> None:
    events.say(f"began with {OWN}")
    try:
        raise ValueError(f"no such key: {SHAPED} {OWN}")
    except ValueError:
        events.log.exception("it broke")
    text = log_lines.read_text()
    assert "it broke" in text
    assert "ValueError: no such key: [redacted: anthropic key] [redacted: own key]" in text
    assert OWN not in text


def traces(text: str) -> list[str]:
    """The pieces of either secret, as long as a third of it, that stand in a text."""
    thirds = [secret[at : at + len(secret) // 3] for secret in (OWN, TOKEN) for at in range(0, len(secret), 4)]
    return sorted({third for third in thirds if len(third) > 8 and third in text})


REASONS: dict[str, Callable[[LogFile, str], object]] = {
    "say": lambda log, text: person.say(log, text, secrets=(OWN,)),
    "note": lambda log, text: person.say(log, text, note=True, secrets=(OWN,)),
    "proposal": lambda log, text: person.say(log, text, proposal=True, secrets=(OWN,)),
    "veto": lambda log, text: person.veto(log, "P1", text, secrets=(OWN,)),
    "strike": lambda log, text: person.strike(log, "1", text, secrets=(OWN,)),
    "leave": lambda log, text: person.leave(log, "A", text, secrets=(OWN,)),
    "stop": lambda log, text: person.stop(log, text, secrets=(OWN,)),
    "reject": lambda log, text: (person.stop(log), person.reject(log, text, secrets=(OWN,))),
    "invite": lambda log, text: person.invite(log, f"C = {text}", secrets=(OWN,)),
}


@pytest.mark.parametrize("act", REASONS)
def test_no_secret_stands_in_what_the_person_does(tmp_path: Path, act: str) -> None:
    path = dialog_in(tmp_path)
    person.say(log_of(path), "Use Redis", proposal=True)
    for secret in (OWN, TOKEN):
        for before in ("", *(f"{'x' * (length - 1)} " for length in (180, 470, 485))):
            again = path.read_bytes()
            REASONS[act](log_of(path), f"{before}{secret}")
            assert traces(path.read_text()) == []
            assert act == "invite" or "[redacted" in path.read_text() or before
            path.write_bytes(again)


async def test_no_part_of_a_key_stands_where_a_message_is_cut(tmp_path: Path) -> None:
    for number, length in enumerate((9_970, 9_985, 9_999)):
        (folder := tmp_path / str(number)).mkdir()
        path = dialog_in(folder)
        text = f"{'x' * (length - 1)} {TOKEN} and {OWN}.\n\n[VOTE: P1 approve {'y' * 20} {TOKEN}]\n"
        told, counted = await said_by(path, Mind((text,)))
        assert counted == 3
        assert "more characters" in path.read_text()
        assert traces(told + everything_under(folder) + everything_under(log_of(path).journals.folder)) == []


async def test_no_part_of_a_key_stands_in_a_reply_that_was_broken_off(tmp_path: Path) -> None:
    told, failed = await said_by(
        dialog_in(tmp_path), Mind((f"It is {OWN[:-1]}", BackendError("gone", fix="go", partial=f"It is {TOKEN[:-1]}")))
    )
    path = tmp_path / "dialog.md"
    late = dialog_in(tmp_path, "**Timeout:** 1 second")
    assert failed == 0
    await said_by(late, Mind((f"It is {TOKEN[:-1]}", 20.0)))
    for secret in (OWN, TOKEN):
        path, mind = dialog_in(tmp_path), Mind((f"So far: it is {secret[:-1]}", 20.0))
        async with agent_with(path, mind, options=TOLD) as agent:
            with agent.hub.join() as events:
                await interrupted(
                    agent, lambda mind=mind, agent=agent: bool(agent.call and agent.call.parts), person.say, path
                )
                await agent.hub.close()
                told += "\n".join([json.dumps(event.data) async for event in events])
    kept = everything_under(log_of(path).journals.folder)
    assert "So far: it is" in kept
    assert traces(told + kept + everything_under(tmp_path)) == []


async def test_no_part_of_a_key_stands_in_a_tools_name_or_an_error(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    bug = ValueError(f"{'x' * 180} {TOKEN}")

    class Broken(Mind):
        async def reply(self, request: Request) -> AsyncIterator[str | Usage | Tool]:
            """A tool, then what no backend should raise."""
            yield Tool(f"{'run ' * 12}{OWN}")
            yield Tool(f"{'run ' * 12}{TOKEN}")
            raise bug

    told, _ = await said_by(path, Broken())
    assert "run run" in told
    assert "the backend broke" in path.read_text()
    assert traces(told + everything_under(tmp_path)) == []
