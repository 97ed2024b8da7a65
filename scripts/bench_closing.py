"""What the closing question costs: calls and tokens of the same dialogs with it and without (`confirm = false`).

A plain pair that signs a text, the same after eight turns more, a council of three that seals its first answers, writes
texts and votes, and two sides of three rounds before a judge. Every yes has words beside it, so each is asked about.
The pair and the council seal their first answers. No model is asked; tokens are estimated from the prompts as an API
gets them, with the tools of its dialog that each turn is offered, and nothing is taken off for a cache.

    python scripts/bench_closing.py [--words 250]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import own_python  # noqa: F401 - another Python is told which one to use

from dialogd.agent import prompt
from dialogd.backends.parts import tokens_of
from dialogd.backends.tools import Desk, Toolbox
from dialogd.protocol import admit, compose
from dialogd.protocol.decide import Reply
from dialogd.protocol.model import Participant
from dialogd.protocol.state import Dialog
from tests.support.room import Room, confirmed, opening

SENTENCE = "Sessions stay where they are, because moving them costs more than it brings to anybody. "
PAIR = "sealed = true\n"
COUNCIL = 'order = "parallel"\nverdict = "vote"\nsealed = true\nobjections = true\n'
JUDGED = 'verdict = "judge"\njudge = "C"\n'


@dataclass
class Cost:
    """Of one dialog: what was asked, and the tokens of it."""

    calls: int = 0
    read: int = 0
    written: int = 0

    def add(self, asked: str, said: str, beside: int = 0) -> None:
        """One more call; `beside` are the tokens of the tools that it is offered."""
        self.calls += 1
        self.read += tokens_of(asked) + beside
        self.written += tokens_of(said)

    def more(self, than: Cost) -> list[str]:
        """How much more it is than another."""
        pairs = ((self.calls, than.calls), (self.read, than.read), (self.written, than.written))
        return [f"+{mine - other:,} ({mine / other - 1:.0%})" for mine, other in pairs]

    def row(self) -> list[str]:
        """As a table has it."""
        return [f"{figure:,}" for figure in (self.calls, self.read, self.written)]


def pair(words: str, before: int = 0) -> tuple[Sequence[str], Sequence[str]]:
    """Propose, object, a text, a signature; before that each says something so many times."""
    text = f"{words}\n\n## Consensus Summary\n\n{words}\n\n[CONSENSUS_REACHED]"
    return [*[words] * before, f"{words}\n\n[PROPOSAL: keep them in Postgres]", text], [
        *[words] * before,
        f"{words}\n\n[OBJECTION: nobody has tested a failure]",
        f"{words}\n\n[AGREE: P2 | it says what we measure first]",
    ]


def council(words: str) -> list[Sequence[str]]:
    """Sealed plans, texts, votes: each of three."""
    reserve = "[RESERVATION: nobody has tested it]"
    plan = f"{words}\n\n[PROPOSAL: keep them in {{}}]\n{reserve}"
    text = f"{words}\n\n## Consensus Summary\n\n{words}{{}}.\n\n[CONSENSUS_REACHED]\n{reserve}"
    vote = f"{words}\n\n[VOTE: P4 approve | it can be undone]\n{reserve}"
    return [[plan.format(place), text.format(place), vote] for place in ("Postgres", "Redis", "SQLite")]


def trial(words: str) -> list[Sequence[str]]:
    """Three turns of each side, and what the judge says to both orders."""
    return [[words] * 3, [words] * 3, [f"{words}\n\n[DECIDE: A | it names its figures]"] * 2]


def held(setup: str, scripts: Sequence[Sequence[str]], *, confirm: bool) -> tuple[Room, Cost]:
    """A dialog of these lines, to its end, and what it cost."""
    ids = "ABC"[: len(scripts)]
    toml = f"{setup}confirm = {str(confirm).lower()}"
    first = ", ".join(ids) if "sealed" in setup else "A"
    start = opening(
        *ids, turn=first, keys=["Max Rounds: 3"] if setup == JUDGED else (), more=f"## Setup\n\n```toml\n{toml}\n```"
    )
    room, cost = Room(start, **dict(zip(ids, scripts, strict=True))), Cost()
    before = b""
    while room.paper.data != before:
        before = room.paper.data
        for who in ids:
            take(room, who, cost)
    outcome = room.dialog.state.outcome
    assert outcome is not None, room.text
    assert outcome.name in ("CONSENSUS_REACHED", "DECIDED"), room.text
    assert cost.calls == len(room.prompts) + len(room.asked)
    assert not room.questions
    return room, cost


def take(room: Room, who: str, cost: Cost) -> None:
    """Let an agent do what it has to, and count what it is asked for that."""
    action, lines = room.look(who), room.scripts[who]
    line = lines[0] if lines else ""
    if not isinstance(action, Reply) or not isinstance(line, str) or not line:
        room.step(who)
        return
    dialog, turns, asked = room.dialog, len(room.prompts), len(room.asked)
    room.step(who)
    if len(room.prompts) > turns:
        cost.add(room.prompts[-1][1], line, tools(dialog, who))
    if len(room.asked) > asked:
        found = admit.admit(dialog, who, compose.received(line, dialog.header.rules.kinds)[0]).asked
        me = dialog.header.agent(who) or Participant(who, who, "")
        question = prompt.Prompts().confirmation(dialog, me, action.debt.re, line, found)
        cost.add(question.text, confirmed(found))


def _unheard(*_: object, **__: object) -> None:
    """Nobody follows what is told."""


async def _unkept(*_: object, **__: object) -> None:
    """No call is made, and none kept."""


def tools(dialog: Dialog, who: str) -> int:
    """Tokens of the tools that a turn of that agent is offered."""
    me = dialog.header.agent(who) or Participant(who, who, "")
    box = Toolbox((), dialog, me, 1, Desk(who, _unheard), _unkept, _unheard)
    asyncio.run(box.open(time.monotonic() + 1))
    return sum(tokens_of(str(one)) for one in box.offered)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=250, help="words of a turn, and of a text that is agreed on")
    given = parser.parse_args()
    words = (SENTENCE * (given.words // len(SENTENCE.split()) + 1)).strip()
    rows = []
    dialogs = (
        ("a pair", PAIR, pair(words)),
        ("a pair", PAIR, pair(words, 4)),
        ("a council", COUNCIL, council(words)),
        ("a judge", JUDGED, trial(words)),
    )
    for name, setup, scripts in dialogs:
        (one, without), (other, with_it) = (held(setup, scripts, confirm=confirm) for confirm in (False, True))
        turns = f"{name}, {len(other.dialog.turns) - 1} turns"
        assert len(one.dialog.turns) == len(other.dialog.turns)
        rows += [
            [turns, "off", *without.row()],
            [turns, "on", *with_it.row()],
            [turns, "more", *with_it.more(without)],
        ]
    print("| dialog | closing question | calls | tokens read | tokens written |\n|---|---|---|---|---|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
