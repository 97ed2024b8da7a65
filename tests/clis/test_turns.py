"""Turn after turn with real coding agents: what is sent, what comes back, what it costs."""

from __future__ import annotations

import json

import pytest

from dialogd.agent.prompt import repair
from dialogd.backends import Tool
from dialogd.backends.coding_agent import ADDED, GOES_ON, INTRO
from dialogd.backends.parts import Part
from dialogd.errors import BackendError
from dialogd.protocol.model import Participant
from tests.clis.rig import KEY, SYSTEM, World, ask, counting, numbered, prompt, request, turn
from tests.support.standin import Say, StandIn, Use, in_order

MINE = turn(2, "A", "Reply of request 1.", re="1", marks="[PROPOSAL P1: Postgres]\n[CONFIDENCE: 0.8]")
THEIRS = turn(3, "B", "I object.")


async def test_a_plain_answer(every: World) -> None:
    """One request, with the system prompt, the whole dialog and the key; the reply and its tokens come back."""
    more = {"model": "some/big"} if every.name == "opencode" else {}
    with StandIn(numbered) as server:
        text, usage = await ask(every.make(server.url, **more), prompt())
        (seen,) = server.calls
    assert text == "Reply of request 1."
    assert (usage.tokens_in, usage.tokens_out, usage.estimated) == (100, 20, False)
    assert usage.model
    assert SYSTEM in f"{seen.system}{seen.prompt}"
    assert INTRO in seen.last
    assert "Postgres or Redis?" in seen.last
    assert seen.last.rstrip().endswith("It is your turn now.")
    assert seen.key == KEY
    assert not every.files()
    assert not list(every.state.glob("run-*"))
    own = {"gemini": ".gemini", "opencode": ".local/share/opencode/opencode.db"}.get(every.name)
    assert own is None or not (every.home / own).exists(), "its sessions lie with dialogd's own files"


async def test_a_tool_that_runs_is_named_until_it_has_ended(world: World) -> None:
    (world.project / "x.txt").write_text("hello")
    tools = {
        "claude-code": ("Read", Use("Read", {"file_path": str(world.project / "x.txt")})),
        "codex": ("command_execution", Use("exec_command", {"cmd": "cat x.txt"})),
    }
    name, use = tools[world.name]
    with StandIn(in_order(use, Say("Done."))) as server:
        replied = world.make(server.url).reply(request(prompt()))
        pieces = [piece async for piece in replied if isinstance(piece, Tool | str)]
    assert pieces == [Tool(name), Tool(), "Done."]


async def test_a_second_turn_sends_only_what_is_new(every: World) -> None:
    with StandIn(numbered) as server:
        await ask(every.make(server.url), prompt())
        text, usage = await ask(every.make(server.url), prompt(MINE, THEIRS), re="3")  # it outlives the daemon
        _, second = server.calls
    assert text == "Reply of request 2."
    assert f"{GOES_ON} {ADDED}" in second.last
    assert "[PROPOSAL P1: Postgres] [CONFIDENCE: 0.8]" in second.last
    assert "I object." in second.last
    assert "Postgres or Redis?" not in second.last
    assert second.prompt.count("Postgres or Redis?") == 1
    assert "Reply of request 1." in second.prompt
    assert (usage.tokens_in, usage.tokens_out) == (100, 20)


async def test_a_question_back_goes_to_the_same_session(world: World) -> None:
    agent = Participant(id="A", name="Claude A", url="")
    with StandIn(counting()) as server:
        backend = world.make(server.url)
        said, _ = await ask(backend, prompt())
        await ask(backend, repair(prompt(), agent, "1", said, "Which proposal do you mean?"))
        landed = turn(2, "A", "Reply of request 2.", re="1")
        await ask(backend, prompt(landed, THEIRS), re="3")
        _, second, third = server.calls
    assert "Which proposal do you mean?" in second.last
    assert "Postgres or Redis?" not in second.last
    assert "Which proposal do you mean?" in third.prompt
    assert GOES_ON in third.last


async def test_a_session_that_is_gone_is_no_failure(every: World) -> None:
    with StandIn(numbered) as server:
        backend = every.make(server.url)
        await ask(backend, prompt())
        for path in (*every.home.rglob("*.jsonl"), *every.state.rglob("chats/*.jsonl"), *every.state.rglob("*.db*")):
            path.unlink()
        text, _ = await ask(backend, prompt(MINE, THEIRS), re="3")
        await ask(backend, prompt(MINE, THEIRS, turn(4, "A", text, re="3"), turn(5, "B", "So be it.")), re="5")
        _, second, third = server.calls
    assert text == "Reply of request 2."
    assert INTRO in second.last
    assert GOES_ON in third.last


async def test_a_turn_costs_what_it_costs(claude: World) -> None:
    parts: list[Part] = []
    costs = []
    with StandIn(counting()) as server:
        backend = claude.make(server.url, model="claude-opus-5-5")
        for number in range(3):
            text, usage = await ask(backend, prompt(*parts), re=str(2 * number + 1))
            parts += [turn(2 * number + 2, "A", text, re=str(2 * number + 1)), turn(2 * number + 3, "B", "Go on.")]
            costs.append(usage.usd)
        assert all(GOES_ON in seen.last for seen in server.calls[1:])
    assert costs[0]
    assert costs == [pytest.approx(costs[0])] * 3


async def test_a_priced_model_has_a_price(codex: World) -> None:
    with StandIn(counting()) as server:
        backend = codex.make(server.url)
        await backend.prepare()
        assert backend.model == server.calls[0].model if server.calls else backend.model.startswith("gpt-")
        assert backend.price is not None


async def test_the_allowance_ends_a_turn(claude: World) -> None:
    dear = Say("Dear.", tokens_in=1_000_000, tokens_out=10)
    with StandIn(lambda _: dear) as server, pytest.raises(BackendError) as caught:
        await ask(claude.make(server.url), prompt(), allowance=0.01)
    assert caught.value.kind == "limit"
    assert not caught.value.retryable


async def test_a_file_named_in_the_dialog_is_not_attached(every: World) -> None:
    (every.project / "secret.txt").write_text("INSIDE-SECRET")
    (every.project / "my dir").mkdir()
    (every.project / "my dir" / "q.txt").write_text("QUOTED-SECRET")
    (every.home / "home.txt").write_text("HOME-SECRET")
    said = (
        '@secret.txt\n\n(@secret.txt), see @"my dir/q.txt" and @~/home.txt, @./secret.txt: '
        f"@{every.project}/secret.txt @/etc/hostname a@secret.txt"
    )
    with StandIn(
        lambda seen: Say("It says @\u2060secret.txt." if "@\u2060" in seen.last else "It says @secret.txt.")
    ) as server:
        text, _ = await ask(every.make(server.url), prompt(turn(2, "B", said)))
        (seen,) = server.calls
    assert text == "It says @secret.txt."
    assert "SECRET" not in json.dumps(seen.body)


async def test_narration_before_a_tool_is_no_part_of_the_reply(claude: World) -> None:
    (claude.project / "a.txt").write_text("A")
    read = Use("Read", {"file_path": str(claude.project / "a.txt")}, say="Let me look.")
    with StandIn(in_order(read, Say("Redis."))) as server:
        text, usage = await ask(claude.make(server.url), prompt())
    assert text == "Redis."
    assert usage.tokens_out
