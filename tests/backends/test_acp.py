"""The acp backend against a real agent process: what is sent, what is refused, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
    """The command line of an agent with that habit."""
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
    """How a reply fails."""
    async with talking_to(command) as backend:
        with pytest.raises(BackendError) as caught:
            await answer(backend, request)
    for line in (caught.value.cause, caught.value.fix):
        assert line.strip()
        assert "\n" not in line
    assert caught.value.kind in BackendError.KINDS
    return caught.value


async def text_after(pieces: AsyncIterator[str | Usage]) -> str:
    """What a reply still says."""
    return text_of([piece async for piece in pieces])


HEADER = Part("header", "# The header")
QUESTION = Part("1", "## Turn 1: Postgres or Redis?", "USER")
MINE = Part("2", f"## Turn 2\n\n{INTRO}\n{ASKED_BACK}", "A", re="1", marks="[PROPOSAL P1: Postgres]")
THEIRS = Part("3", "## Turn 3: theirs", "B", re="2")


def turn(request: Request, re: str, *parts: Part, system: str = "You are A.", now: str = "") -> Request:
    """A request for an answer to the debt `re`, with those parts."""
    prompt = Prompt(system, parts, now or f"Now answer {re}.")
    return replace(request, prompt=lambda: prompt, re=re)


@pytest.mark.slow
class TestContract(BackendContract):
    """The acp backend keeps what every backend must."""

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


class TestSettingUp:
    """What is wrong with the options is said when the daemon starts."""

    @cases("command", ["", "  ", "''", "a 'b"])
    def test_a_command_that_names_nothing_is_refused_with_a_fix(self, command: str) -> None:
        with pytest.raises(BadInput) as caught:
            load_backend("acp", Options(command=command))
        assert caught.value.fix

    def test_an_agent_that_is_not_there_is_named(self) -> None:
        with pytest.raises(BadInput, match="no-such-agent"):
            load_backend("acp:no-such-agent --acp", Options())

    @pytest.mark.slow
    async def test_the_agent_follows_the_colon_or_is_the_command(self, request_: Request) -> None:
        for name, options in ((f"acp:{agent('echo')}", TRUSTS), ("acp", replace(TRUSTS, command=agent("echo")))):
            backend = load_backend(name, options)
            assert await answer(backend, request_) == whole(request_)
            await backend.close()

    def test_without_the_projects_code_being_trusted_no_agent_is_started(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="hooks, MCP servers, scripts") as caught:
            load_backend(f"acp:{agent('echo')}", Options(project=tmp_path))
        assert "--trust-project" in caught.value.fix

    def test_a_project_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="not a directory"):
            ACP(Options(variant="cat", project=tmp_path / "missing"))

    def test_probing_looks_for_the_program(self) -> None:
        path = {"PATH": str(Path(sys.executable).parent)}
        assert not probe("acp", path).here
        missing = probe("acp:no-such-agent", path)
        assert not missing.here
        assert "no-such-agent" in missing.why
        assert missing.fix
        assert probe(f"acp:{Path(sys.executable).name} -m x", path).here


class TestTalking:
    """Prompt in, text out, one session per dialog."""

    @pytest.mark.slow
    async def test_text_arrives_in_pieces_while_the_agent_works(self, request_: Request) -> None:
        async with talking_to(agent("wait")) as backend:
            pieces = backend.reply(request_)
            heard = [await anext(pieces), await anext(pieces)]
            assert isinstance(heard[0], Usage)
            assert heard[1] == "Working."
            await pieces.aclose()

    async def test_the_second_turn_sends_only_what_is_new(self, request_: Request) -> None:
        async with talking_to(agent("echo")) as backend:
            first = await answer(backend, turn(request_, "1", HEADER, QUESTION))
            second = await answer(backend, turn(request_, "3", HEADER, QUESTION, MINE, THEIRS))
        assert first == whole(turn(request_, "1", HEADER, QUESTION))
        assert "You are A." not in second
        assert "Turn 1" not in second
        assert "Turn 2" not in second
        assert "[PROPOSAL P1: Postgres]" in second
        assert "Turn 3: theirs" in second
        assert second.endswith("Now answer 3.")

    @pytest.mark.slow
    async def test_the_question_back_sends_only_itself(self, request_: Request) -> None:
        first = turn(request_, "1", HEADER, QUESTION)
        back = repair(first.prompt(), first.agent, "1", f"{INTRO} Perhaps.", "Do you sign P1?")
        async with talking_to(agent("echo")) as backend:
            await answer(backend, first)
            again = await answer(backend, replace(first, prompt=lambda: back))
            later = await answer(backend, turn(request_, "3", HEADER, QUESTION, MINE, THEIRS))
        assert "Do you sign P1?" in again
        assert "Perhaps" not in again
        assert "Turn 1" not in later

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("parts", "system"),
        [
            ((HEADER, QUESTION, THEIRS), "You are A."),
            ((HEADER, replace(QUESTION, text="Edited"), MINE, THEIRS), "You are A."),
            ((HEADER, QUESTION, replace(MINE, sound=False), THEIRS), "You are A."),
            ((HEADER, QUESTION, replace(MINE, re="0"), THEIRS), "You are A."),
            ((HEADER, QUESTION, replace(MINE, text="## Turn 2\n\nSomething else"), THEIRS), "You are A."),
            ((HEADER, MINE, THEIRS), "You are A."),
            ((HEADER, QUESTION, MINE, THEIRS), "You are A, the critic."),
        ],
        ids=[
            "not appended",
            "edited before",
            "own turn edited",
            "another debt",
            "another text",
            "struck",
            "another role",
        ],
    )
    async def test_any_mismatch_sends_the_whole_dialog_in_a_new_session(
        self, request_: Request, parts: tuple[Part, ...], system: str
    ) -> None:
        second = turn(request_, "3", *parts, system=system)
        async with talking_to(agent("echo")) as backend:
            await answer(backend, turn(request_, "1", HEADER, QUESTION))
            assert await answer(backend, second) == whole(second)

    @pytest.mark.slow
    async def test_an_agent_that_died_between_turns_is_started_again(self, request_: Request) -> None:
        second = turn(request_, "3", HEADER, QUESTION, MINE, THEIRS)
        before = children()
        async with talking_to(agent("echo")) as backend:
            await answer(backend, turn(request_, "1", HEADER, QUESTION))
            for pid in children() - before:
                psutil.Process(pid).kill()
            await until(lambda: backend._warm is None or backend._warm.is_over, 5)
            assert await answer(backend, second) == whole(second)

    @pytest.mark.slow
    async def test_every_text_goes_through_unharmed(self, request_: Request) -> None:
        text = "Grüße, 世界 \U0001f600 \u2028 \x85 \r\n \x00 \x1b[31m end"
        async with talking_to(agent("echo")) as backend:
            assert text in await answer(backend, turn(request_, "1", HEADER, now=text * 1_000))

    @pytest.mark.slow
    async def test_half_a_character_is_replaced(self, request_: Request) -> None:
        async with talking_to(agent("half")) as backend:
            assert (await answer(backend, request_)).startswith("\ufffd! You are")

    @pytest.mark.slow
    async def test_what_is_said_after_a_tool_is_a_paragraph_of_its_own(self, request_: Request) -> None:
        async with talking_to(agent("tools")) as backend:
            assert await answer(backend, request_) == "Let me look.\n\nIt is so."

    @pytest.mark.slow
    async def test_a_banner_on_stdout_does_no_harm(self, request_: Request) -> None:
        async with talking_to(agent("noise", 100)) as backend:
            assert await answer(backend, request_) == whole(request_)

    @pytest.mark.slow
    async def test_ten_megabytes_are_sent(self, request_: Request) -> None:
        size = 10_000_000
        async with talking_to(agent("modes")) as backend:
            text = await answer(backend, turn(request_, "1", HEADER, now="x" * size))
        assert text.startswith("read_only")


class TestSafety:
    """What the agent may not."""

    async def test_every_permission_is_refused(self, request_: Request, tmp_path: Path) -> None:
        file = tmp_path / "file"
        async with talking_to(agent("ask", file)) as backend:
            assert await answer(backend, request_) == "I was told 'no'."
        assert not file.exists()

    @pytest.mark.slow
    async def test_the_strictest_mode_is_chosen_where_there_are_modes(self, request_: Request, tmp_path: Path) -> None:
        async with talking_to(agent("modes"), tmp_path) as backend:
            assert await answer(backend, request_) == f"read_only in 1@{tmp_path}"

    @pytest.mark.slow
    async def test_the_environment_is_clean(
        self, request_: Request, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-0123456789")
        seen = tmp_path / "seen"
        script = shlex.join(["sh", "-c", f"env > {seen}; exec {agent('echo')}"])
        backend = ACP(Options(variant=script, trust_project=True, environment={"MY_TOKEN": "mine-0123456789"}))
        await answer(backend, request_)
        await backend.close()
        assert "sk-ant-test" not in seen.read_text()
        assert "MY_TOKEN=mine-0123456789" in seen.read_text()
        assert backend.secrets == ("mine-0123456789",)

    @pytest.mark.slow
    async def test_a_model_that_is_not_offered_is_refused(self, request_: Request) -> None:
        async with talking_to(agent("echo"), model="gpt-9") as backend:
            with pytest.raises(BackendError, match="gpt-9"):
                await answer(backend, request_)


class TestAccounts:
    """What a turn used."""

    @pytest.mark.slow
    async def test_tokens_and_dollars_are_this_turns(self, request_: Request) -> None:
        async with talking_to(agent("echo")) as backend:
            one = [piece async for piece in backend.reply(turn(request_, "1", HEADER, QUESTION))]
            two = [piece async for piece in backend.reply(turn(request_, "3", HEADER, QUESTION, MINE, THEIRS))]
        for pieces in (one, two):
            usage = [piece for piece in pieces if isinstance(piece, Usage)]
            assert usage[0].estimated
            size = len(text_of(pieces))
            assert usage[-1] == Usage("", size + 5, 7, cached=5, usd=0.25)

    @pytest.mark.slow
    async def test_a_failed_turn_has_its_estimate(self, request_: Request) -> None:
        async with talking_to(agent("error", 500)) as backend:
            pieces = backend.reply(request_)
            usage = await anext(pieces)
            with pytest.raises(BackendError):
                await text_after(pieces)
        assert isinstance(usage, Usage)
        assert usage.estimated
        assert (usage.tokens_in or 0) > 10


@pytest.mark.slow  # an agent takes a second to start
class TestFailing:
    """Every way to fail is a BackendError with a kind; the agent is ended with it."""

    @pytest.mark.parametrize(
        ("reason", "kind"),
        [("max_tokens", "cut"), ("max_turn_requests", "cut"), ("refusal", "refusal"), ("cancelled", "network")],
    )
    async def test_an_unfinished_turn_is_no_reply(self, request_: Request, reason: str, kind: str) -> None:
        error = await failure(agent("stop", reason), request_)
        assert (error.kind, error.partial) == (kind, "This far.")

    async def test_silence_is_no_reply(self, request_: Request) -> None:
        assert (await failure(agent("stop", "empty"), request_)).kind == "empty"

    @pytest.mark.parametrize(
        ("code", "kind", "again"),
        [(401, "auth", False), (402, "limit", False), (429, "busy", True), (529, "busy", True), (400, "request", False),
         (-32603, "failed", True), (-32000, "auth", False)],
    )  # fmt: skip
    async def test_the_agents_own_errors_are_sorted(self, request_: Request, code: int, kind: str, again: bool) -> None:
        error = await failure(agent("error", code), request_)
        assert (error.kind, error.retryable) == (kind, again)
        assert "the service said something" in error.cause

    async def test_a_missing_login_says_so_with_the_ways_there_are(self, request_: Request) -> None:
        error = await failure(agent("login"), request_)
        assert error.kind == "auth"
        assert "A key" in error.fix

    async def test_an_agent_that_dies_leaves_its_last_words(self, request_: Request) -> None:
        error = await failure(agent("crash"), request_)
        assert "exit 3" in error.cause
        assert "out of memory" in error.cause
        assert error.partial == "This far."
        assert error.retryable

    @pytest.mark.parametrize("command", ["echo Hello, I am no agent", "true", "sh -c 'exec cat /no/such/file'"])
    async def test_a_program_that_is_no_agent_is_an_error(self, request_: Request, command: str) -> None:
        assert "exit" in (await failure(command, request_)).cause

    @pytest.mark.parametrize("command", ["yes", "cat /dev/zero"])
    async def test_a_flood_on_stdout_is_an_error(self, request_: Request, command: str) -> None:
        started = time.monotonic()
        assert (await failure(command, request_)).kind == "garbled"
        assert time.monotonic() - started < 5 * a_second()

    async def test_a_last_message_counts_without_an_end_of_its_line(self, tmp_path: Path) -> None:
        said = """printf '{"id": 1, "method": "first"}\\n{"id": 2, "method": "last"}'"""
        wire = Wire(["/bin/sh", "-c", said], dict(os.environ), tmp_path)
        try:
            messages = [await wire.receive() for _ in range(3)]
        finally:
            await wire.end()
        assert [message and message["method"] for message in messages] == ["first", "last", None]

    async def test_another_version_of_the_protocol_is_an_error(self, request_: Request) -> None:
        assert "version 99" in (await failure(agent("other", 99), request_)).cause

    async def test_ten_megabytes_are_no_reply(self, request_: Request) -> None:
        error = await failure(agent("big", 10_000_000), request_)
        assert "4,194,304" in error.cause

    async def test_a_message_over_the_limit_is_an_error(self, request_: Request) -> None:
        assert (await failure(agent("big", 20_000_000), request_)).kind == "garbled"

    async def test_the_next_reply_begins_anew(self, request_: Request) -> None:
        async with talking_to(agent("crash")) as backend:
            for _ in range(2):
                with pytest.raises(BackendError, match="out of memory"):
                    await answer(backend, request_)

    async def test_a_program_that_cannot_run_is_told_from_one_that_ends(
        self, request_: Request, tmp_path: Path
    ) -> None:
        script = tmp_path / "agent"
        script.write_bytes(b"\x00\x01")
        script.chmod(0o755)
        assert "cannot run" in (await failure(str(script), request_)).cause


@pytest.mark.slow  # an agent takes a second to start
class TestEnding:
    """Whatever way a call ends, nothing is left."""

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

    async def test_thirty_calls_leave_no_descriptor(self, request_: Request) -> None:
        process = psutil.Process()
        async with talking_to(agent("echo")) as warm:
            await answer(warm, request_)
        before = process.num_fds()
        for habit in ("echo", "crash", "wait"):
            async with talking_to(agent(habit)) as backend:
                for _ in range(3):
                    async for piece in backend.reply(request_) if habit != "crash" else _failing(backend, request_):
                        if piece == "Working.":
                            break
        assert process.num_fds() == before


async def _failing(backend: Backend, request: Request) -> AsyncIterator[str | Usage]:
    with pytest.raises(BackendError):
        await answer(backend, request)
    yield ""
