"""The acp backend against a real agent process: what is sent, what is refused, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from dialogd.agent.prompt import repair
from dialogd.backends import Backend, Options, Request, Usage, load_backend, probe
from dialogd.backends.acp import ACP, Wire
from dialogd.backends.coding_agent import ASKED_BACK, INTRO
from dialogd.backends.parts import Part, Prompt
from dialogd.errors import BackendError, BadInput
from tests.support.backend_contract import BackendContract, answer, children, text_of, until
from tests.support.cases import cases
from tests.support.pair import a_second

# Importing it takes a second, in each worker.
pytestmark = pytest.mark.skipif(find_spec("acp") is None, reason="needs the package agent-client-protocol")


def agent(habit: str, value: object = "") -> str:
    words = [sys.executable, "-m", "tests.support.acp_agent", habit, str(value)]
    return shlex.join(words[: 5 if value != "" else 4])


def whole(request: Request) -> str:
    """What an agent is sent that knows nothing yet."""
    prompt = request.prompt()
    return f"{prompt.system}\n\n{INTRO}\n\n{prompt.body}"


TRUSTS = Options(trust_project=True)


@asynccontextmanager
async def talking_to(command: str, project: Path | None = None, model: str = "") -> AsyncIterator[ACP]:
    """A backend with that agent; nothing is left of it afterwards."""
    before = children()
    backend = ACP(Options(variant=command, project=project, model=model, trust_project=True))
    try:
        yield backend
    finally:
        await backend.close()
    assert children() <= before


async def failure(command: str, request: Request) -> BackendError:
    async with talking_to(command) as backend:
        with pytest.raises(BackendError) as caught:
            await answer(backend, request)
    for line in (caught.value.cause, caught.value.fix):
        assert line.strip()
        assert "\n" not in line
    assert caught.value.kind in BackendError.KINDS
    return caught.value


HEADER = Part("header", "# The header")
QUESTION = Part("1", "## Turn 1: Postgres or Redis?", "USER")
MINE = Part("2", f"## Turn 2\n\n{INTRO}\n{ASKED_BACK}", "A", re="1", marks="[PROPOSAL P1: Postgres]")
THEIRS = Part("3", "## Turn 3: theirs", "B", re="2")


def turn(request: Request, re: str, *parts: Part, system: str = "You are A.", now: str = "") -> Request:
    prompt = Prompt(system, parts, now or f"Now answer {re}.")
    return replace(request, prompt=lambda: prompt, re=re)


@pytest.mark.slow
class TestContract(BackendContract):
    def make(self) -> Backend:
        return ACP(Options(variant=agent("echo"), trust_project=True))

    def make_slow(self) -> Backend:
        return ACP(Options(variant=agent("deaf"), trust_project=True))

    def make_failing(self) -> Backend:
        return ACP(Options(variant=agent("crash"), trust_project=True))

    async def test_a_finished_reply_leaves_no_process(self) -> None:
        backend, before = self.make(), children()
        await answer(backend, self.request())
        after_one = children() - before
        await answer(backend, self.request())
        assert children() - before == after_one
        assert len(after_one) == 2, "the guard and the agent"
        await backend.close()
        assert children() <= before


@cases(
    ("name", "options", "says", "fix"),
    [
        *(("acp", Options(command=command), "", "") for command in ("", "  ", "''", "a 'b")),
        ("acp:no-such-agent --acp", Options(), "no-such-agent", ""),
        (f"acp:{agent('echo')}", Options(), "hooks, MCP servers, scripts", "--trust-project"),
        ("acp:cat", Options(project=Path("/no/such/folder")), "not a directory", ""),
    ],
)
def test_what_is_wrong_with_the_options_is_said_at_once(name: str, options: Options, says: str, fix: str) -> None:
    with pytest.raises(BadInput, match=says or ".") as caught:
        load_backend(name, options)
    assert caught.value.fix
    assert fix in caught.value.fix


def test_probing_looks_for_the_program() -> None:
    path, python = {"PATH": str(Path(sys.executable).parent)}, Path(sys.executable).name
    found = [probe(name, path) for name in ("acp", "acp:no-such-agent", f"acp:{python} -m x")]
    assert [one.here for one in found] == [False, False, True]
    assert "no-such-agent" in found[1].why
    assert found[1].fix


SLOW = pytest.mark.slow  # an agent takes a second to start


@SLOW
async def test_the_agent_follows_the_colon_or_is_the_command(request_: Request) -> None:
    for name, options in ((f"acp:{agent('echo')}", TRUSTS), ("acp", replace(TRUSTS, command=agent("echo")))):
        backend = load_backend(name, options)
        assert await answer(backend, request_) == whole(request_)
        await backend.close()


async def test_the_second_turn_sends_only_what_is_new(request_: Request) -> None:
    async with talking_to(agent("echo")) as backend:
        first = await answer(backend, turn(request_, "1", HEADER, QUESTION))
        second = await answer(backend, turn(request_, "3", HEADER, QUESTION, MINE, THEIRS))
    assert first == whole(turn(request_, "1", HEADER, QUESTION))
    assert not [old for old in ("You are A.", "Turn 1", "Turn 2") if old in second]
    assert "[PROPOSAL P1: Postgres]" in second
    assert "Turn 3: theirs" in second
    assert second.endswith("Now answer 3.")


@SLOW
async def test_the_question_back_sends_only_itself(request_: Request) -> None:
    first = turn(request_, "1", HEADER, QUESTION)
    back = repair(first.prompt(), first.agent, "1", f"{INTRO} Perhaps.", "Do you sign P1?")
    async with talking_to(agent("echo")) as backend:
        await answer(backend, first)
        again = await answer(backend, replace(first, prompt=lambda: back))
        later = await answer(backend, turn(request_, "3", HEADER, QUESTION, MINE, THEIRS))
    assert "Do you sign P1?" in again
    assert "Perhaps" not in again
    assert "Turn 1" not in later


@SLOW
@cases(
    ("parts", "system"),  # the rules of what fits are in test_session.py
    [((HEADER, QUESTION, THEIRS), "You are A."), ((HEADER, QUESTION, MINE, THEIRS), "You are A, the critic.")],
)
async def test_any_mismatch_sends_the_whole_dialog_in_a_new_session(
    request_: Request, parts: tuple[Part, ...], system: str
) -> None:
    second = turn(request_, "3", *parts, system=system)
    async with talking_to(agent("echo")) as backend:
        await answer(backend, turn(request_, "1", HEADER, QUESTION))
        assert await answer(backend, second) == whole(second)


@SLOW
async def test_an_agent_that_died_between_turns_is_started_again(request_: Request) -> None:
    second = turn(request_, "3", HEADER, QUESTION, MINE, THEIRS)
    before = children()
    async with talking_to(agent("echo")) as backend:
        await answer(backend, turn(request_, "1", HEADER, QUESTION))
        for pid in children() - before:
            psutil.Process(pid).kill()
        await until(lambda: backend._warm is None or backend._warm.wire.over, 5)
        assert await answer(backend, second) == whole(second)


@SLOW
async def test_every_text_goes_through_unharmed(request_: Request) -> None:
    text = "Grüße, 世界 \U0001f600 \u2028 \x85 \r\n \x00 \x1b[31m end"
    async with talking_to(agent("echo")) as backend:
        assert text in await answer(backend, turn(request_, "1", HEADER, now=text * 1_000))


@SLOW
@cases(
    ("habit", "value", "said"),
    [
        ("half", "", r"\ufffd! You are.*"),
        ("tools", "", "Let me look.\n\nIt is so."),  # what is said after a tool is a paragraph of its own
        ("noise", 100, "You are.*"),  # a banner on stdout does no harm
        ("modes", "", "read_only in 1@.*"),  # the strictest mode, where there are modes
        ("ask", "/tmp/no-such-folder/file", "I was told 'no'."),  # every permission is refused
    ],
)
async def test_what_an_agent_may_do_is_little(request_: Request, habit: str, value: object, said: str) -> None:
    async with talking_to(agent(habit, value)) as backend:
        assert re.fullmatch(said, await answer(backend, request_), re.DOTALL)


async def test_a_permission_that_is_refused_leaves_no_file(request_: Request, tmp_path: Path) -> None:
    async with talking_to(agent("ask", tmp_path / "file")) as backend:
        assert await answer(backend, request_) == "I was told 'no'."
    assert not (tmp_path / "file").exists()


@SLOW
async def test_the_environment_is_clean(request_: Request, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-0123456789")
    seen = tmp_path / "seen"
    script = shlex.join(["sh", "-c", f"env > {seen}; exec {agent('echo')}"])
    backend = ACP(replace(TRUSTS, variant=script, environment={"MY_TOKEN": "mine-0123456789"}))
    await answer(backend, request_)
    await backend.close()
    assert "sk-ant-test" not in seen.read_text()
    assert "MY_TOKEN=mine-0123456789" in seen.read_text()
    assert backend.secrets == ("mine-0123456789",)


@SLOW
async def test_tokens_and_dollars_are_this_turns(request_: Request) -> None:
    async with talking_to(agent("echo")) as backend:
        one = [piece async for piece in backend.reply(turn(request_, "1", HEADER, QUESTION))]
        two = [piece async for piece in backend.reply(turn(request_, "3", HEADER, QUESTION, MINE, THEIRS))]
    for pieces in (one, two):
        usage = [piece for piece in pieces if isinstance(piece, Usage)]
        assert usage[0].estimated
        assert usage[-1] == Usage("", len(text_of(pieces)) + 5, 7, cached=5, usd=0.25)


@SLOW
async def test_a_failed_turn_has_its_estimate(request_: Request) -> None:
    async with talking_to(agent("error", 500)) as backend:
        pieces = backend.reply(request_)
        usage = await anext(pieces)
        with pytest.raises(BackendError):
            [piece async for piece in pieces]
    assert isinstance(usage, Usage)
    assert usage.estimated
    assert (usage.tokens_in or 0) > 10


SAID = "the service said something"


@SLOW
@cases(
    ("command", "kind", "again", "says"),
    [
        (agent("stop", "max_tokens"), "cut", False, ""),
        (agent("stop", "max_turn_requests"), "cut", False, ""),
        (agent("stop", "refusal"), "refusal", False, ""),
        (agent("stop", "cancelled"), "network", True, ""),
        (agent("stop", "empty"), "empty", True, ""),
        (agent("error", 401), "auth", False, SAID),
        (agent("error", 402), "limit", False, SAID),
        (agent("error", 429), "busy", True, SAID),
        (agent("error", 529), "busy", True, SAID),
        (agent("error", 400), "request", False, SAID),
        (agent("error", -32603), "failed", True, SAID),
        (agent("error", -32000), "auth", False, SAID),
        (agent("login"), "auth", False, ""),
        (agent("crash"), "failed", True, "exit 3: .*out of memory"),
        ("echo Hello, I am no agent", "failed", True, "exit"),
        ("true", "failed", True, "exit"),
        ("sh -c 'exec cat /no/such/file'", "failed", True, "exit"),
        ("yes", "garbled", False, ""),
        ("cat /dev/zero", "garbled", False, ""),
        (agent("other", 99), "request", False, "version 99"),
        (agent("big", 10_000_000), "failed", False, "4,194,304"),
        (agent("big", 20_000_000), "garbled", False, ""),
    ],
)  # fmt: skip
async def test_every_way_to_fail_has_its_kind(
    request_: Request, command: str, kind: str, again: bool, says: str
) -> None:
    started = time.monotonic()
    error = await failure(command, request_)
    assert (error.kind, error.retryable) == (kind, again)
    assert re.search(says, error.cause)
    assert time.monotonic() - started < 20 * a_second()
    if command in (agent("crash"), *(agent("stop", why) for why in ("max_tokens", "refusal", "cancelled"))):
        assert error.partial == "This far."
    assert command != agent("login") or "A key" in error.fix


@SLOW
async def test_a_model_that_is_not_offered_is_refused(request_: Request) -> None:
    async with talking_to(agent("echo"), model="gpt-9") as backend:
        with pytest.raises(BackendError, match="gpt-9"):
            await answer(backend, request_)


async def test_a_last_message_counts_without_an_end_of_its_line(tmp_path: Path) -> None:
    said = """printf '{"id": 1, "method": "first"}\\n{"id": 2, "method": "last"}'"""
    wire = Wire(["/bin/sh", "-c", said], None, dict(os.environ), tmp_path)
    try:
        messages = [await wire.receive() for _ in range(3)]
    finally:
        await wire.end()
    assert [message and message["method"] for message in messages] == ["first", "last", None]


@SLOW
async def test_the_next_reply_begins_anew(request_: Request) -> None:
    async with talking_to(agent("crash")) as backend:
        for _ in range(2):
            with pytest.raises(BackendError, match="out of memory"):
                await answer(backend, request_)


@SLOW
async def test_a_program_that_cannot_run_is_told_from_one_that_ends(request_: Request, tmp_path: Path) -> None:
    script = tmp_path / "agent"
    script.write_bytes(b"\x00\x01")
    script.chmod(0o755)
    assert "cannot run" in (await failure(str(script), request_)).cause


@pytest.mark.slow  # an agent takes a second to start
class TestEnding:
    @pytest.mark.parametrize("habit", ["wait", "deaf"])
    async def test_a_cancelled_call_is_gone_in_a_second(self, request_: Request, habit: str) -> None:
        before = children()
        backend = ACP(Options(variant=agent(habit), trust_project=True))
        pieces = backend.reply(request_)
        await anext(pieces), await anext(pieces)
        call = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)
        started = time.monotonic()
        call.cancel()
        await asyncio.wait((call,))
        assert time.monotonic() - started < a_second()
        assert children() <= before
        await pieces.aclose()

    async def test_closing_during_a_reply_ends_it(self, request_: Request) -> None:
        before = children()
        backend = ACP(Options(variant=agent("deaf"), trust_project=True))
        call = asyncio.ensure_future(answer(backend, request_))
        await until(lambda: len(children() - before) >= 3, 10)
        await backend.close()
        with pytest.raises(BackendError):
            await call
        assert children() <= before

    async def test_the_daemons_death_ends_the_agent(self, tmp_path: Path) -> None:
        program = (
            "import asyncio\n"
            "from dialogd.backends import Options\n"
            "from dialogd.backends.acp import ACP\n"
            "from tests.support.backend_contract import BackendContract, answer\n"
            f"backend = ACP(Options(variant={agent('deaf')!r}, trust_project=True))\n"
            "asyncio.run(answer(backend, BackendContract().request()))\n"
        )
        daemon = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        process = psutil.Process(daemon.pid)
        await until(lambda: len(process.children(recursive=True)) >= 3, 20)
        family = process.children(recursive=True)
        daemon.kill()
        await daemon.wait()
        await until(lambda: not any(p.is_running() and p.status() != "zombie" for p in family), 5)

    async def test_calls_leave_no_descriptor_whatever_their_end(self, request_: Request) -> None:
        process = psutil.Process()
        async with talking_to(agent("echo")) as warm:
            await answer(warm, request_)
        before = process.num_fds()
        for habit in ("echo", "crash", "wait"):
            async with talking_to(agent(habit)) as backend:
                for _ in range(3):
                    with suppress(BackendError):
                        async for piece in backend.reply(request_):
                            if piece == "Working.":
                                break
        assert process.num_fds() == before
