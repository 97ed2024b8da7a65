"""What is sent again from turn to turn is sent unchanged, from its beginning: caches hit."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dialogd.agent import prompt
from dialogd.agent.turn import Behavior
from dialogd.backends import Usage
from dialogd.backends.coding_agent import Checkpoint, checkpoint, plan, whole
from tests.backends.apis import make
from tests.support.room import Room, opening
from tests.support.standin import Say, Seen, StandIn
from tests.turns.minds import agent_with, dialog_in

QUICK = Behavior(pace=0.0, poll=0.05, notes="Use tabs. Keep it simple. " * 2_000)
TURN = "The sessions should stay where they are, because moving them costs more than it brings. " * 18  # 270 words


async def talk(path: Path, form: str, turns: int, options: Behavior = QUICK) -> dict[str, list[Seen]]:
    """A dialog of so many turns between two agents; what the service saw, by agent."""
    seen: dict[str, list[Seen]] = {"A": [], "B": []}
    with StandIn(lambda request: Say(f"{TURN}\n\nThis was request {request.number}.")) as server:
        backend = {me: make(form, server) for me in "AB"}
        for number in range(turns):
            me = "AB"[number % 2]
            async with agent_with(path, backend[me], me, options) as agent:
                await agent.step()
            seen[me].append(server.seen[-1])
        for one in backend.values():
            await one.close()
    return seen


@pytest.mark.parametrize(
    "form", ["messages", *(pytest.param(form, marks=pytest.mark.slow) for form in ("responses", "chat"))]
)
async def test_nine_tenths_of_a_request_are_the_beginning_of_the_one_before(tmp_path: Path, form: str) -> None:
    seen = await talk(dialog_in(tmp_path), form, 20)
    for requests in seen.values():
        assert len(requests) == 10
        for before, after in pairwise(requests):
            same = shared(before.prompt, after.prompt)
            assert same >= 0.9 * len(after.prompt)
            assert same >= 0.98 * len(before.prompt)


async def test_without_notes_all_but_the_last_instructions_comes_again(tmp_path: Path) -> None:
    seen = await talk(dialog_in(tmp_path), "messages", 12, replace(QUICK, notes=""))
    for requests in seen.values():
        for before, after in pairwise(requests):
            assert shared(before.prompt, after.prompt) >= 0.85 * len(before.prompt)


async def test_what_was_marked_for_the_cache_comes_again_as_it_was(tmp_path: Path) -> None:
    seen = await talk(dialog_in(tmp_path), "messages", 12)
    for requests in seen.values():
        blocks = [_blocks(request) for request in requests]
        for before, after in pairwise(blocks):
            end = _breakpoint(before) + 1
            assert [text for text, _ in after[:end]] == [text for text, _ in before[:end]]
            assert 0 < _breakpoint(after) - _breakpoint(before) <= 20


def shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    ends = range(1, min(len(one), len(other)) + 1)
    return bisect_left(ends, True, key=lambda end: one[:end] != other[:end])


def _blocks(request: Seen) -> list[tuple[str, bool]]:
    """The text blocks of a request, and whether each is a breakpoint of the cache."""
    assert isinstance(request.body, dict)
    content = request.body["messages"][0]["content"]
    return [(block["text"], "cache_control" in block) for block in content]


def _breakpoint(blocks: list[tuple[str, bool]]) -> int:
    return max(index for index, (_, marked) in enumerate(blocks) if marked)


@pytest.mark.slow
def test_what_a_continued_session_is_sent_grows_with_the_dialog_and_not_with_its_square() -> None:
    room = Room(opening("A", "B", keys=["Max Turns: 500"]))
    points: list[Checkpoint] = []
    sent, resent = [], []
    for number in range(80):
        me = "AB"[number % 2]
        room.thinks(me)
        if me == "A":
            dialog = room.dialog
            debt = dialog.state.debt("A")
            assert debt is not None
            asked = prompt.Prompts().turn(dialog, dialog.header.agents[0])
            sent.append(len(plan(asked, "A", "s", points).text))
            resent.append(len(whole(asked)))
            said = f"{TURN} Number {number}."
            points.append(checkpoint(asked, debt.re, "s", session=f"s{number}", reply=said, usage=Usage()))
        room.answers(me, f"{TURN} Number {number}.")
    assert max(sent[1:]) < 2 * len(TURN)
    assert sum(sent) < 2.1 * sum(sent[:20])
    assert sum(resent) > 3.5 * sum(resent[:20])
