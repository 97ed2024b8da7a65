"""The closing question around real backends and files: who is asked what, what a kill or a failure leaves of it."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from dialogd.backends import Backend, Options, Request, load_backend
from dialogd.backends.coding_agent import ASKED_BACK, GOES_ON, INTRO, AgentCLI
from dialogd.errors import BackendError
from dialogd.protocol.model import Entry
from dialogd.protocol.state import Dialog
from tests.backends.apis import FORMS, make
from tests.backends.toy_cli import Bench, Thread, Toy, bench, install
from tests.faults.replies import locked
from tests.logfile.files import log_of
from tests.protocol.test_closing import TEXT
from tests.support.pair import PATIENCE, a_second, stretched
from tests.support.standin import Say, Seen, StandIn
from tests.turns.minds import DEAR, SAID, WRONG, Line, Mind, account, agent_with, dialog_in, step
from tests.turns.test_counts import counted

YES, NO = "[AGREE: P1]", "[OBJECTION: see above]"
SAYINGS = [("Ich wüsste nicht, warum ich es nicht unterschreiben sollte.", True), ("In principle.", False)]
PERSON = "Postgres or Redis?"  # what turn 1 asks
REPLY = f"Fine, and here is why.\n\n{YES}"
AMONG = f"Yes, I mean it: {YES}"
WAIT = 600.0  # seconds of an answer that nobody waits for


def question_in(prompt: str) -> bool:
    """True for a prompt that asks about a reply."""
    return "# One question about your reply" in prompt


def answer_to(is_meant: bool) -> str:
    """What an agent says to it."""
    return YES if is_meant else NO


async def on_the_table(folder: Path, *keys: str) -> Path:
    """A dialog in which A has written a text, P1, and B is asked."""
    path = dialog_in(folder, *keys)
    dialog = await step(path, Mind((TEXT,)))
    assert [p.ref for p in dialog.state.table.proposals] == ["P1"]
    assert dialog.state.owing == ("B",)
    return path


async def taken(path: Path, backend: Backend) -> Dialog:
    """The dialog after B's turn."""
    async with agent_with(path, backend, "B") as agent:
        await agent.step()
    return log_of(path).read()


def said_by(dialog: Dialog) -> Entry:
    """B's turn, which is the last one."""
    turn = dialog.turns[-1]
    assert (turn.by, dialog.state.debts.missed) == ("B", {})
    return turn


def is_signed(dialog: Dialog, words: str) -> bool:
    """True where B's turn signs; its words stand in it either way, and its frame accounts for both calls."""
    turn = said_by(dialog)
    assert words in turn.body
    assert turn.frame.calls == "2"
    signed = turn.mark("AGREE") is not None
    assert signed == (dialog.state.outcome is not None)
    assert signed == (turn.mark("OBJECTION") is None)
    return signed


def is_refused(dialog: Dialog) -> bool:
    """True where B's yes stands as what did not count: its turn is there, and no error."""
    turn = said_by(dialog)
    assert dialog.state.outcome is None or dialog.state.outcome.name == "STOPPED"
    assert all(entry.mark("AGENT_ERROR") is None for entry in dialog.entries)
    assert "Fine, and here is why." in turn.body
    refused = turn.mark("REFUSED")
    return turn.mark("AGREE") is None and refused is not None and refused.value.startswith("AGREE P1")


# -- a command -------------------------------------------------------------------------------------------------------

SCRIPT = """#!/bin/sh
cat > "$1/prompt$(test -n "$DIALOGD_QUESTION" && echo .question)"
printf %s "$DIALOGD_QUESTION" >> "$1/questions"
if [ -n "$DIALOGD_QUESTION" ]; then cat "$1/answer"; else cat "$1/reply"; fi
"""


@pytest.mark.parametrize(("words", "is_meant"), SAYINGS)
async def test_a_command_answers_the_question(tmp_path: Path, words: str, is_meant: bool) -> None:
    path = await on_the_table(tmp_path)
    program = tmp_path / "program"
    program.write_text(SCRIPT)
    program.chmod(0o700)
    (tmp_path / "reply").write_text(f"{words}\n\n{YES}\n")
    (tmp_path / "answer").write_text(f"{answer_to(is_meant)}\n")
    backend = load_backend("command", Options(command=shlex.join([str(program), str(tmp_path)])))
    assert is_signed(await taken(path, backend), words) == is_meant
    asked = (tmp_path / "questions").read_text()
    assert asked.startswith("Your reply signs P1 as it stands")
    prompt = (tmp_path / "prompt.question").read_text()
    assert prompt.endswith(asked)
    assert words in prompt
    assert not question_in((tmp_path / "prompt").read_text())


# -- a service -------------------------------------------------------------------------------------------------------


def mind_of(words: str, is_meant: bool) -> Callable[[Seen], Say]:
    """A model that signs with those words, answers the question so, and in later turns says something else."""
    turns: list[str] = []

    def mind(seen: Seen) -> Say:
        if question_in(seen.last):
            return Say(answer_to(is_meant))
        turns.append(seen.last)
        return Say(f"{words}\n\n{YES}" if len(turns) == 1 else "Let us measure it.")

    return mind


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("words", "is_meant"), SAYINGS)
async def test_a_model_is_asked_about_its_reply_and_nothing_else(
    tmp_path: Path, form: str, words: str, is_meant: bool
) -> None:
    path = await on_the_table(tmp_path)
    with StandIn(mind_of(words, is_meant)) as server:
        backend = make(form, server)
        dialog = await taken(path, backend)
        turn, question = server.calls
    assert is_signed(dialog, words) == is_meant
    assert "# How it ends" in turn.system
    assert question.system.startswith("You are B, in a written dialog. Between fences of tildes stand quotations")
    assert len(question.system) < 140
    assert "## P1\n\n" in question.prompt
    assert "Sessions live in Postgres." in question.prompt
    assert f"# Your reply\n\n~~~text\n{words}\n\n{YES}" in question.prompt
    assert "Your reply signs P1 as it stands" in question.last
    for other in (PERSON, "We keep them there.", "Where should user sessions live?"):
        assert other in turn.prompt
        assert other not in question.prompt
    assert [role for role, _ in question.said.messages] == ["user"]


# -- a session -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy, installed once: it is proved once, too."""
    return install(tmp_path_factory.mktemp("toy") / "bin")


@pytest.fixture
def toy(installed: Path, tmp_path: Path) -> Bench:
    """A home and a state for the toy."""
    return bench(installed, tmp_path)


async def asked_and_going_on(path: Path, backend: Backend, words: str, is_meant: bool) -> None:
    """B's turn; where it does not sign, A's and B's next, for which only one call is paid."""
    async with agent_with(path, backend, "B") as agent:
        await agent.step()
        dialog = log_of(path).read()
        assert is_signed(dialog, words) == is_meant
        if is_meant:
            return
        assert dialog.state.owing == ("A",)
        await step(path, Mind(("We could test it first.",)))
        agent.wake()
        await agent.step()
    turn = said_by(log_of(path).read())
    assert turn.body == "Let us measure it."
    assert turn.frame.calls == "1"


@pytest.mark.parametrize("kind", [Toy, Thread])
@pytest.mark.parametrize(("words", "is_meant"), [SAYINGS[0], pytest.param(*SAYINGS[1], marks=pytest.mark.slow)])
async def test_a_coding_agent_is_sent_the_question_alone(
    tmp_path: Path, toy: Bench, kind: type[AgentCLI], words: str, is_meant: bool
) -> None:
    path = await on_the_table(tmp_path)
    with StandIn(mind_of(words, is_meant)) as server:
        backend = kind(toy.options(server.url, "one thread" if kind is Thread else ""))
        await asked_and_going_on(path, backend, words, is_meant)
        turn, question, *later = server.calls
    assert INTRO in turn.last
    assert question.last.startswith(f"{ASKED_BACK}\n\n# One question about your reply")
    assert [word for word in (PERSON, words, "Sessions live in Postgres.") if word in question.last] == []
    assert question.said.messages[:-1][0] == turn.said.messages[0]
    assert words in question.said.messages[1][1]
    if later:
        assert later[0].last.startswith(GOES_ON)
        assert "We could test it first." in later[0].last
        assert PERSON not in later[0].last
        assert later[0].prompt.count(PERSON) == 1
        assert question_in(later[0].prompt) == (kind is Thread)


AGENT = r"""
import json, sys

log, words, answer = sys.argv[1:]
for line in sys.stdin:
    asked = json.loads(line)
    result = {}
    if asked.get("method") == "initialize":
        result = {"protocolVersion": 1}
    if asked.get("method") == "session/new":
        with open(log) as file:
            result = {"sessionId": "s%d" % len(file.readlines())}
    if asked.get("method") == "session/prompt":
        given = asked["params"]
        text = given["prompt"][0]["text"]
        with open(log, "a") as file:
            file.write(json.dumps([given["sessionId"], text]) + "\n")
        with open(log) as file:
            number = len(file.readlines())
        said = answer if "# One question about your reply" in text else words if number == 1 else "Let us measure it."
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": said}}
        told = {"sessionId": given["sessionId"], "update": update}
        print(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": told}), flush=True)
        result = {"stopReason": "end_turn"}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.skipif(find_spec("acp") is None, reason="needs the package agent-client-protocol")
@pytest.mark.parametrize(("words", "is_meant"), [SAYINGS[0], pytest.param(*SAYINGS[1], marks=pytest.mark.slow)])
async def test_an_acp_agent_is_sent_the_question_into_its_session(tmp_path: Path, words: str, is_meant: bool) -> None:
    path, log, program = await on_the_table(tmp_path), tmp_path / "log", tmp_path / "agent.py"
    log.touch()
    program.write_text(AGENT)
    command = shlex.join([sys.executable, "-IS", str(program), str(log), f"{words}\n\n{YES}", answer_to(is_meant)])
    backend = load_backend("acp", Options(command=command, project=tmp_path, trust_project=True))
    await asked_and_going_on(path, backend, words, is_meant)
    calls: list[tuple[str, str]] = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
    assert {session for session, _ in calls} == {"s0"}
    first, question, *later = [text for _, text in calls]
    assert PERSON in first
    assert question.startswith(f"{ASKED_BACK}\n\n# One question about your reply")
    assert [word for word in (PERSON, words, "Sessions live in Postgres.") if word in question] == []
    assert [text.startswith(GOES_ON) for text in later] == ([] if is_meant else [True])


# -- a kill ----------------------------------------------------------------------------------------------------------


async def until(is_time: Callable[[], bool]) -> None:
    """Wait for what must happen soon."""
    deadline = time.monotonic() + PATIENCE
    while not is_time():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


def as_it_lies(path: Path) -> Path:
    """The files as they are this moment, elsewhere: what a daemon that is killed now leaves to the next one."""
    folder = path.parent / "afterwards"
    shutil.copytree(path.parent / "state", folder / "state")
    shutil.copy2(path, folder / path.name)
    return folder / path.name


def kinds(path: Path) -> list[str]:
    """What B's journal has, in order, apart from what was booked."""
    records = log_of(path).journals.of("B").records()
    return [record["kind"] for record in records if record["kind"] not in ("calling", "spent")]


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_a_kill_while_the_question_is_out_asks_only_that_again(tmp_path: Path, end: str) -> None:
    path = await on_the_table(tmp_path)
    mind = Mind((REPLY, SAID), answers=[(SAID, WAIT)], price=DEAR)
    async with agent_with(path, mind, "B") as agent:
        turn = asyncio.ensure_future(agent.step())
        await until(lambda: len(mind.requests) == 2)
        left = as_it_lies(path) if end == "killed" else path
        assert kinds(left) == ["reply"]
        turn.cancel()
        await asyncio.wait({turn})
    assert mind.requests[1].question
    again = Mind(answers=[(YES, SAID)], price=DEAR)
    dialog = await step(left, again, "B")
    assert [bool(request.question) for request in again.requests] == [True]
    assert again.requests[0].question == mind.requests[1].question
    assert again.asked[0].text == mind.asked[1].text
    assert said_by(dialog).mark("AGREE") is not None
    assert dialog.state.outcome is not None
    assert account(dialog)[0] == "3"
    assert kinds(left) == ["reply", "answer", "intent", "done"]


@pytest.mark.parametrize("answer", [YES, NO, ""])
async def test_a_kill_after_the_answer_asks_nothing_again(tmp_path: Path, answer: str) -> None:
    path = await on_the_table(tmp_path)
    mind = Mind((REPLY, SAID), answers=[(answer, SAID) if answer else (SAID, WRONG)], price=DEAR)
    async with agent_with(path, mind, "B") as agent:
        await agent.look()
        with locked(path):
            turn = asyncio.ensure_future(agent.step())
            await until(lambda: "answer" in kinds(path))
            left = as_it_lies(path)
        await turn
    assert kinds(left) == ["reply", "answer"]
    silent = Mind(price=DEAR)
    dialog = await step(left, silent, "B")
    assert silent.requests == []
    assert account(dialog)[:2] == account(log_of(path).read())[:2] == ("2", "2000")
    seconds = re.compile(
        r"[\d.]+ (?:second|minute)s?"
    )  # how long the dialog took: both looked at the clock by themselves
    assert seconds.sub("", said_by(dialog).body) == seconds.sub("", said_by(log_of(path).read()).body)
    assert said_by(dialog).marks == said_by(log_of(path).read()).marks
    assert (said_by(dialog).mark("AGREE") is not None) == (answer == YES)


# -- what fails ------------------------------------------------------------------------------------------------------

EMPTY = BackendError("no text came", fix="ask again", kind="empty")


async def test_a_kill_between_the_two_questions_asks_only_the_second_again(tmp_path: Path) -> None:
    path = await on_the_table(tmp_path)
    mind = Mind((REPLY, SAID), answers=[(AMONG, SAID), (SAID, WAIT)], price=DEAR)
    async with agent_with(path, mind, "B") as agent:
        turn = asyncio.ensure_future(agent.step())
        await until(lambda: len(mind.requests) == 3)
        left = as_it_lies(path)
        turn.cancel()
        await asyncio.wait({turn})
    assert kinds(left) == ["reply", "answer"]
    again = Mind(answers=[(YES, SAID)], price=DEAR)
    dialog = await step(left, again, "B")
    assert [request.question for request in again.requests] == [mind.requests[2].question]
    assert again.asked[0].text == mind.asked[2].text
    assert said_by(dialog).mark("AGREE") is not None
    assert account(dialog)[0] == "4"


async def test_what_was_answered_is_durable_before_it_is_asked_once_more(tmp_path: Path) -> None:
    path = await on_the_table(tmp_path)
    flushes: Counter[str] = Counter()
    before: list[int] = []

    class Watched(Mind):
        """Notes before each call how many flushes there were."""

        def _next(self, request: Request) -> Sequence[Line]:
            before.append(flushes["flushes"])
            return super()._next(request)

    with counted(flushes):
        await step(path, Watched((REPLY, SAID), answers=[(AMONG, SAID), (YES, SAID)], price=DEAR), "B")
    turn, first, again = before
    assert turn < first < again


async def test_a_kill_after_the_second_answer_asks_nothing_again(tmp_path: Path) -> None:
    path = await on_the_table(tmp_path)
    mind = Mind((REPLY, SAID), answers=[(AMONG, SAID), (YES, SAID)], price=DEAR)
    async with agent_with(path, mind, "B") as agent:
        await agent.look()
        with locked(path):
            turn = asyncio.ensure_future(agent.step())
            await until(lambda: kinds(path).count("answer") == 2)
            left = as_it_lies(path)
        await turn
    silent = Mind(price=DEAR)
    dialog = await step(left, silent, "B")
    assert silent.requests == []
    assert said_by(dialog).mark("AGREE") is not None
    assert account(dialog)[:2] == ("3", "3000")


@pytest.mark.slow
async def test_a_question_that_takes_too_long_does(tmp_path: Path) -> None:
    seconds = math.ceil(stretched(1.0))
    path = await on_the_table(tmp_path, f"**Timeout:** {seconds} seconds")
    mind = Mind((0.3, REPLY, SAID), answers=[(SAID, WAIT)], price=DEAR)
    began = time.monotonic()
    dialog = await step(path, mind, "B")
    assert 0.9 < time.monotonic() - began < seconds + a_second()
    assert is_refused(dialog)
    assert account(dialog)[0] == "2"


# -- who speaks meanwhile --------------------------------------------------------------------------------------------
