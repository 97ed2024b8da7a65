"""The base of coding agents: what they are given, when they are trusted, how their sessions go on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dialogd.backends import Backend, Usage
from dialogd.backends.coding_agent import GOES_ON, INTRO, AgentCLI, failed
from dialogd.backends.readonly_proof import prove
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.text import redact
from dialogd.store.disk import StateDir
from dialogd.store.leftovers import Leftover, find_leftovers, reap
from dialogd.store.registry import Registry
from tests.backends.toy_cli import Bench, Thread, Toy, Unguarded, bench, install
from tests.clis.rig import ask, counting, prompt, request, turn
from tests.support.backend_contract import BackendContract
from tests.support.pair import PATIENCE
from tests.support.standin import Hang, Say, Seen, StandIn


@pytest.fixture
def own(tmp_path: Path) -> Bench:
    """A toy of one's own, which nobody proved."""
    return bench(install(tmp_path / "bin"), tmp_path)


@pytest.mark.slow
class TestToy(BackendContract):
    deterministic = False

    @pytest.fixture(autouse=True)
    def _stage(self, toy: Bench) -> Iterator[None]:
        """A toy and two stand-ins: one answers, one never does."""
        self.toy = toy
        with StandIn(lambda seen: Say(f"About {seen.number}.")) as quick, StandIn(lambda _: Hang()) as slow:
            self.quick, self.slow = quick, slow
            yield

    def make(self) -> Backend:
        return Toy(self.toy.options(self.quick.url))

    def make_slow(self) -> Backend:
        return Toy(self.toy.options(self.slow.url))

    def make_failing(self) -> Backend:
        return Toy(self.toy.options("http://127.0.0.1:9"))


class TestProof:
    @pytest.mark.slow
    async def test_it_is_asked_once_per_version_and_flags(self, own: Bench) -> None:
        with StandIn(counting()) as server:
            for _ in range(2):
                await Toy(own.options(server.url)).prepare()
                assert own.runs.count("\n") == 2
            await Toy(own.options(server.url, effort="high")).prepare()
            assert own.runs.count("\n") == 4
            (own.bin / "version").write_text("1.2.4")
            await Toy(own.options(server.url)).prepare()
            assert own.runs.count("\n") == 6
            assert not server.seen

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("manners", "why"),
        [
            ("obey", "it wrote 'made'"),
            ("hooks", "it wrote 'made'"),
            ("lies", "did not refuse 'write'"),
            ("deaf", "were not all called"),
            ("blind", "could not read"),
            ("leaky", "read a file outside"),
            ("attach", "attached a file"),
        ],
    )
    async def test_bad_manners_are_seen(self, own: Bench, manners: str, why: str) -> None:
        with StandIn(counting()) as server:
            backend = (Unguarded if manners == "attach" else Toy)(own.options(server.url, manners))
            with pytest.raises(BackendError, match=why) as caught:
                await ask(backend, prompt())
            assert not server.calls
        assert (caught.value.kind, caught.value.retryable) == ("unsafe", False)
        assert "toy 1.2.3" in caught.value.cause
        assert caught.value.fix
        assert not (own.state.parent / "readonly-proofs.json").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "manners",
        ["flood", "flood in one line"],
    )
    async def test_output_without_end_is_named(self, own: Bench, manners: str) -> None:
        with StandIn(counting()) as server:
            tame, wild = Toy(own.options(server.url)), Toy(own.options(server.url, manners))
            await tame.prepare()
            began = time.monotonic()
            with pytest.raises(BackendError, match="toy floods its output") as caught:
                await ask(wild, prompt())
            assert time.monotonic() - began < 60
            assert (caught.value.kind, caught.value.retryable) == ("garbled", False)
            unproved = Toy(own.options(server.url, manners, effort="high"))
            with pytest.raises(BackendError, match="is not used: the trial failed: toy floods its output") as caught:
                await unproved.prepare()
            await asyncio.gather(*(backend.close() for backend in (tame, wild, unproved)))

    async def test_a_program_without_a_version_is_refused(self, own: Bench) -> None:
        (own.bin / "version").write_text("none")
        verdict = await prove(Toy(own.options("http://127.0.0.1:9")))
        assert not verdict.safe


class TestKeys:
    async def test_a_run_sees_what_is_its_own(self, toy: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTHER_SECRET", "x")
        with StandIn(counting()) as server:
            variables = {"TOY_KEY": "sk-ant-test-1", "TOY_URL": server.url, "TOY_CONFIG": "c", "OPENAI_API_KEY": "x"}
            backend = Toy(toy.options("", variables=variables))
            await ask(backend, prompt())
        run = json.loads(toy.runs.splitlines()[-1])
        assert backend.secrets == ("sk-ant-test-1",)
        assert {name: run["env"][name] for name in ("TOY_KEY", "TOY_CONFIG")} == {
            "TOY_KEY": "sk-ant-test-1",
            "TOY_CONFIG": "c",
        }
        assert not {"OTHER_SECRET", "OPENAI_API_KEY"} & set(run["env"])
        assert "sk-ant-test-1" not in " ".join(run["argv"])
        assert run["cwd"] == str((toy.state / "empty").resolve())

    async def test_who_is_logged_in_pays_with_no_key(self, toy: Bench) -> None:
        (toy.home / "login").touch()
        backend = Toy(toy.options("http://127.0.0.1:9"))
        assert backend.secrets == ()
        assert not {"TOY_KEY", "TOY_URL"} & set(backend.environment)

    def test_an_address_needs_a_key(self, toy: Bench) -> None:
        with pytest.raises(BadInput, match="base-url"):
            Toy(toy.options("", variables={}, base_url="http://127.0.0.1:9"))

    def test_what_is_not_there_is_said_at_once(self, toy: Bench) -> None:
        with pytest.raises(BadInput, match="not on PATH"):
            Toy(toy.options("", environment={"PATH": str(toy.home), "HOME": str(toy.home)}))

    def test_a_look_names_version_and_payer(self, toy: Bench) -> None:
        there = {"PATH": f"{toy.bin}:/usr/bin:/bin", "HOME": str(toy.home)}
        assert not Toy.probe({"PATH": "/nowhere"}).here
        assert Toy.probe(there).fix == "run `toy login`"
        keyed = Toy.probe({**there, "TOY_KEY": "k"})
        assert (keyed.here, keyed.version, keyed.pays) == (True, "1.2.3", "the key in TOY_KEY")
        (toy.home / "login").touch()
        assert Toy.probe({**there, "TOY_KEY": "k"}).pays == "your Anthropic login"

    def test_a_login_of_nobody_knows_whom_is_told_without_a_vendor(self, toy: Bench) -> None:
        class Anybodys(Toy):
            vendor = ""

        (toy.home / "login").touch()
        assert Anybodys.probe({"PATH": f"{toy.bin}:/usr/bin:/bin", "HOME": str(toy.home)}).pays == "your login"


class TestTurns:
    @pytest.mark.parametrize("kind", [Toy, Thread])
    async def test_a_session_goes_on(self, toy: Bench, kind: type[AgentCLI]) -> None:
        with StandIn(counting()) as server:
            backend = kind(toy.options(server.url, "one thread" if kind is Thread else ""))
            await ask(backend, prompt())
            await ask(backend, prompt(turn(2, "A", "Reply of request 1.", re="1"), turn(3, "B", "No.")), re="3")
            assert GOES_ON in server.calls[1].last
            assert server.calls[1].prompt.count("Postgres or Redis?") == 1

    @pytest.mark.parametrize(
        "length", [180, *(pytest.param(more, marks=pytest.mark.slow) for more in (0, 150, 1_960, 1_980))]
    )
    async def test_what_is_kept_of_a_session_holds_no_secret(self, toy: Bench, length: int) -> None:
        own, token = "correct-horse-battery-staple", "ghp_" + "Zq7Lm2Rt9Vx4Bn6Kc8Wd1Fg3Hj5Ps0YaTe4X"
        said = f"{'x' * length} {own} y\n\nAnd {'y' * length} {token} too.\n\nThat is all there is to it."
        with StandIn(lambda _: Say(said)) as server:
            backend = Toy(toy.options(server.url, secrets=(own,)))
            await ask(backend, prompt())
            kept = (toy.state / "toy-sessions.json").read_text()
            assert '"said"' in kept
            assert [part for part in (own[:12], own[-12:], token[:12], token[-12:]) if part in kept] == []
            await ask(backend, prompt(turn(2, "A", redact(said, (own,))[0], re="1"), turn(3, "B", "No.")), re="3")
            assert GOES_ON in server.calls[1].last

    async def test_a_thread_that_heard_what_it_did_not_answer_is_left(self, toy: Bench) -> None:
        answers: list[Any] = [Say("Reply of request 1."), Hang(), Say("New.")]
        with StandIn(lambda _: answers.pop(0)) as server:
            backend = Thread(toy.options(server.url, "one thread"))
            await ask(backend, prompt())
            second = prompt(turn(2, "A", "Reply of request 1.", re="1"), turn(3, "B", "No."))
            before = set(psutil.Process().children(recursive=True))
            call = asyncio.create_task(ask(backend, second, re="3"))
            async with asyncio.timeout(PATIENCE):
                while len(server.calls) < 2:
                    await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.wait((call,))
            assert set(psutil.Process().children(recursive=True)) <= before
            await ask(backend, second, re="3")
            assert INTRO in server.calls[2].last

    @pytest.mark.slow
    async def test_sessions_that_a_dialog_made_are_found_and_no_others(self, own: Bench, tmp_path: Path) -> None:
        state, file, home = StateDir(tmp_path / "state"), tmp_path / "dialog.md", own.home
        with StandIn(counting()) as server:
            toy = Toy(own.options(server.url, state=state.agent(file, "A")))
            for number in (1, 2, 3):
                await ask(toy, prompt(), re=str(number))
        mine = home / "mine.session"
        mine.write_text("the person's own")
        sessions = sorted(path for path in home.glob("*.session") if path != mine)
        assert len(sessions) == 3

        def found() -> list[Leftover]:
            return [left for left in find_leftovers(state, tmp_path / "none") if left.kind == "session"]

        assert sorted(left.path for left in found() if left.path) == sessions
        with sessions[0].open("a") as out:
            out.write("the person went on here")
        kept = found()
        assert sorted(left.path for left in kept if left.path) == sessions[1:]
        with Registry(state).entry("A", 3001, file, tmp_path / "log"):
            assert found() == []
        sessions[1].write_text("grown since it was looked at")
        assert sorted(reap(left) for left in kept) == [False, True]
        assert sorted(home.glob("*.session")) == sorted([*sessions[:2], mine])

    @pytest.mark.slow
    async def test_a_lost_session_is_no_failure(self, toy: Bench) -> None:
        with StandIn(counting()) as server:
            backend = Toy(toy.options(server.url))
            await ask(backend, prompt())
            for path in (toy.home).glob("*.session"):
                path.unlink()
            text, _ = await ask(backend, prompt(turn(2, "A", "Reply of request 1.", re="1")), re="3")
            assert text == "Reply of request 2."
            assert INTRO in server.calls[1].last

    async def test_usage_is_known_before_and_after(self, toy: Bench) -> None:
        with StandIn(counting()) as server:
            backend = Toy(toy.options(server.url))
            used = [piece async for piece in backend.reply(request(prompt())) if isinstance(piece, Usage)]
        assert used[0].estimated
        assert used[0].tokens_in
        assert (used[-1].tokens_in, used[-1].estimated) == (100, False)

    async def test_too_long_a_prompt_is_refused_before(self, toy: Bench) -> None:
        with StandIn(counting()) as server:
            with pytest.raises(BackendError) as caught:
                await ask(Toy(toy.options(server.url)), prompt(turn(2, "B", "x" * 100_001)))
            assert (caught.value.kind, server.calls) == ("request", [])

    async def test_mentions_of_files_go_and_come_back_as_text(self, toy: Bench) -> None:
        def echo(seen: Seen) -> Say:
            return Say(next(line for line in seen.last.split("\n") if "secret" in line))

        with StandIn(echo) as server:
            text, _ = await ask(Toy(toy.options(server.url, "attach")), prompt(turn(2, "B", "see @secret.txt, a@b.c")))
        assert text == "see @secret.txt, a@b.c"


@pytest.mark.parametrize(
    ("message", "status", "kind", "again"),
    [
        ("input exceeds the context window", 400, "request", False),
        ("There's an issue with the selected model", 404, "request", False),
        ("Not logged in · Please run /login", None, "auth", False),
        ("Invalid API key", 401, "auth", False),
        ("You've hit your weekly limit · resets Monday", 429, "limit", False),
        ("exceeded retry limit, last status: 429 Too Many Requests", None, "busy", True),
        ("unexpected status 401 Unauthorized", None, "auth", False),
        ("The model `x` does not exist or you do not have access to it.", None, "request", False),
        ("Prompt is too long", None, "request", False),
        ("API Error: 500", 500, "failed", True),
        ("API Error: Repeated 529 Overloaded errors", None, "busy", True),
        ("Incomplete response returned, reason: max_output_tokens", None, "cut", False),
        ("API Error: JSON Parse error", None, "garbled", True),
        ("stream disconnected before completion", None, "network", True),
        ("Something else", None, "failed", True),
        ("Something else", 418, "failed", False),
    ],
)
def test_words_of_a_failure_are_understood(message: str, status: int | None, kind: str, again: bool) -> None:
    error = failed("toy", message, status, log_in="log in")
    assert (error.kind, error.retryable) == (kind, again)
    assert error.cause.startswith("toy failed: ")
    assert error.fix
    assert ("dialogd strike N" in error.fix) == ("too long" in message or "exceeds" in message)
