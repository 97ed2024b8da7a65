"""How much of a dialog is sent again, and how much of that a cache or a session saves.

Three ways to take part in one dialog, measured side by side against a stand-in for the service:

    API       the whole dialog with every request; the share that begins as the agent's request before it did is what
              a cache of prefixes can serve
    session   a coding agent whose own session goes on: what dialogd writes to its standard input
    resent    the same agent without a session: the whole dialog every turn

    python scripts/bench_prompt.py [--turns 20] [--words 250] [--notes 20000] [--sizes 5,10,20,40]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path

import own_python  # noqa: F401 - another Python is told which one to use

from dialogd.agent import prompt
from dialogd.agent.events import Hub
from dialogd.agent.loop import Agent
from dialogd.agent.peers import Peers
from dialogd.agent.turn import Behavior
from dialogd.backends import Options, Usage
from dialogd.backends.apis import Anthropic
from dialogd.backends.coding_agent import Checkpoint, checkpoint, plan, whole
from dialogd.protocol.grammar import parse
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from tests.support.standin import Say, Seen, StandIn

OPENING = """# Claude Autonomous Dialog

**Topic:** Where should user sessions live?
**Max Turns:** 100000
**Max Size:** 50 MB
**Agents:** A = Claude A @ http://localhost:1, B = Claude B @ http://localhost:2

## Turn 1 — User

Postgres or Redis? Agree on one.

TURN: A
"""
SENTENCE = "Sessions stay where they are, because moving them costs more than it brings to anybody. "
WORDS = len(SENTENCE.split())


async def talk(folder: Path, turns: int, words: int, notes: str) -> tuple[bytes, list[Seen]]:
    """A dialog of so many turns between two agents of one service; the file, and what A sent."""
    path = folder / "dialog.md"
    path.write_text(OPENING, encoding="utf-8")
    path.chmod(0o600)
    text = SENTENCE * (words // WORDS)
    sent: list[Seen] = []
    with StandIn(lambda seen: Say(f"{text}\n\nThis was request {seen.number}.")) as server:
        setup = Options(
            model="claude-opus-5-5", base_url=server.url, variables={"ANTHROPIC_API_KEY": "sk-ant-test-000000000000"}
        )
        backend = Anthropic(setup)
        agents = {}
        for me in "AB":
            log = LogFile(path, Journals(folder))
            agents[me] = Agent(me, log, backend, Peers(me, {}), Hub(), Behavior(pace=0.0, notes=notes))
            agents[me].seen.nudge()
        for number in range(turns):
            agent = agents["AB"[number % 2]]
            agent.wake()
            await agent.step()
            if number % 2 == 0:
                sent.append(server.seen[-1])
        for agent in agents.values():
            await agent.close()
        await backend.close()
    return path.read_bytes(), sent


def written(file: bytes, me: str, notes: str) -> Iterator[tuple[int, int]]:
    """Bytes that each turn of `me` writes to a CLI with its session going on, and without one."""
    dialog = parse(file)
    points: list[Checkpoint] = []
    for entry in dialog.turns:
        if entry.by != me or entry.frame is None:
            continue
        asked_at = dialog.entry(entry.re)
        assert asked_at is not None
        before = parse(file[: asked_at.end])
        agent = before.header.agent(me)
        assert agent is not None
        asked = prompt.Prompts(notes=notes).turn(before, agent)
        yield len(plan(asked, me, "s", points).text.encode()), len(whole(asked).encode())
        points.append(checkpoint(asked, entry.re, "s", session=f"s{len(points)}", reply=entry.body, usage=Usage()))


def shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def main() -> int:
    """Print what one dialog sends, and how that grows with its turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="turns of the dialog that is shown in detail")
    parser.add_argument("--words", type=int, default=250, help="words of a turn")
    parser.add_argument("--notes", type=int, default=20_000, help="bytes of the project's notes")
    parser.add_argument("--sizes", default="5,10,20,40", help="lengths, in turns, at which the bytes are summed up")
    given = parser.parse_args()
    notes = ("Use tabs. Keep it simple. " * (given.notes // 26 + 1))[: given.notes]
    most = max(given.turns, *map(int, given.sizes.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        file, sent = asyncio.run(talk(Path(folder), most, given.words, notes))
    report(file, sent, notes, given)
    return 0


def report(file: bytes, sent: list[Seen], notes: str, given: argparse.Namespace) -> None:
    """The two tables."""
    print(f"API: what agent A sends in {given.turns} turns of {given.words} words, with {given.notes} bytes of notes")
    print("  turn   characters   same as the request before   of that request")
    shown = sent[: (given.turns + 1) // 2]
    for number, (before, after) in enumerate(pairwise(shown), 1):
        same = shared(before.prompt, after.prompt)
        print(
            f"  {2 * number + 2:4}   {len(after.prompt):10,}   {same / len(after.prompt):26.1%}"
            f"   {same / len(before.prompt):15.1%}"
        )
    sizes = list(written(file, "A", notes))
    print("\nCLI: bytes written to agent A's standard input, summed up")
    print("  turns   with its session   per turn   resending everything   per turn   ratio")
    for turns in map(int, given.sizes.split(",")):
        mine = sizes[: (turns + 1) // 2]
        new, all_ = sum(size for size, _ in mine), sum(size for _, size in mine)
        print(
            f"  {turns:5}   {new:16,}   {new // len(mine):8,}   {all_:20,}   {all_ // len(mine):8,}   {all_ / new:5.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
