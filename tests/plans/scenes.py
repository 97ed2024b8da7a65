"""Scripted dialogs from which plans are made, played through the real core."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dialogd.protocol.grammar import parse, render
from dialogd.protocol.model import SYSTEM, USER, Draft, Entry
from dialogd.protocol.state import Dialog
from tests.support.room import Room, opening


def priced(dialog: Dialog, data: bytes) -> Dialog:
    """The same dialog with frames that say what each agent's turn took: the longer the dialog, the more."""
    return parse(with_costs(dialog, data))


def with_costs(dialog: Dialog, data: bytes, model: str = "m-1") -> bytes:
    """The file of a dialog, its frames with costs, and the model that answered; what was typed stays as it is."""
    first, *rest = dialog.entries
    whole, prev, end = data[: first.end], first.chain, first.end
    for entry in rest:
        if entry.frame is None:
            whole += data[end : entry.end]
        else:
            whole += b"\n---\n\n" + render(_costing(entry, model), prev)
        prev, end = parse(whole).entries[-1].chain, entry.end
    return whole


def _costing(entry: Entry, model: str) -> Draft:
    attributes = [("re", entry.re), ("at", entry.frame.at), ("nonce", entry.frame.nonce)]
    if entry.is_turn and entry.by not in (USER, SYSTEM):
        n = entry.number
        attributes += [("ms", str(4000 + 500 * n)), ("calls", "1"), ("model", model), ("in", str(800 * n))]
        attributes += [("out", "300"), ("usd", f"0.00{n}")]
    return Draft(entry.by, entry.name, entry.number, entry.body, entry.marks, entry.turn, tuple(attributes))


def played(room: Room) -> Dialog:
    """The dialog that the room comes to, a minute per step, priced."""
    play(room)
    return priced(room.dialog, room.paper.data)


def play(room: Room) -> Room:
    """The room, once nobody has anything to do any more: a minute per step."""
    for _ in range(40):
        before = room.paper.data
        for agent in room.dialog.header.agents:
            room.advance(20)
            room.step(agent.id)
        if room.paper.data == before:
            break
    return room


def setup(text: str) -> str:
    """A Setup section."""
    return f"## Setup\n\n```toml\n{text}\n```"


POSTGRES = """We run Postgres already, with backups and somebody who knows it. A session is one row, read by its key; \
that is what Postgres does in its sleep. One system less is one system less to wake up for.

[PROPOSAL: keep sessions in Postgres]
[EVIDENCE: the users table answers 1,900 reads a second on the smallest instance]
[CONFIDENCE: 0.7]"""

CLEANUP = """A row per session is fine; rows that nobody deletes are not. Without a job that removes what has expired \
the table grows by 40,000 rows a day, and the first to notice is whoever restores a backup.

[OBJECTION: nobody removes expired sessions]
[RE: 2, P1]
[QUESTION: how long may a session live?]
[CONFIDENCE: 0.6]"""

AGREED = """B is right: I had counted the reads and not the leftovers. Thirty days, as the login page says today.

[CONCEDE: P1 needs a cleanup job]
[RE: 3, P1]
[RESERVATION: thirty days is a guess]

## Consensus Summary

Sessions live in Postgres, in a table of their own, for 30 days at most.
A job removes expired rows every night.

### Next steps

1. Write the migration for the table `sessions`.
2. Add the nightly job,
   and an alarm for the day it does not run.

[CONSENSUS_REACHED]"""

SIGNED = """I read P2 as if nobody were here to explain it. It holds.

[AGREE: P2 | the job and its alarm are in it]
[RE: 4, P2]
[RESERVATION: backups still carry expired sessions for a week]
[CONFIDENCE: 0.9]"""


QUESTION = "We have two web servers and one Postgres, and nobody for nights. Where do sessions go?"


def consensus() -> Dialog:
    """Two agents, an objection that is met, signatures with reservations."""
    keys, more = ["Topic: Where should user sessions live?"], setup("objections = true")
    return played(
        Room(opening("A", "B", keys=keys, more=more, question=QUESTION), A=[POSTGRES, AGREED], B=[CLEANUP, SIGNED])
    )


def unfinished() -> Dialog:
    """A proposal, an objection, a question to the person: the dialog waits."""
    asks = CLEANUP.replace("[CONFIDENCE", "[QUESTION_FOR_USER: may people be logged out every night?]\n[CONFIDENCE")
    keys = ["Topic: Where should user sessions live?"]
    return played(Room(opening("A", "B", keys=keys, question=QUESTION), A=[POSTGRES], B=[asks]))


BY_HAND = """# Tabs or spaces

## Turn 1 — User

Tabs or spaces in the new repository? Decide it once.

TURN: A

## Turn 2 — Claude A

Tabs: everybody sets the width that suits their eyes, and a diff shows one character.

[PROPOSAL: tabs]

TURN: B

## Turn 3 — Claude B

Alignment breaks with tabs as soon as somebody else opens the file. Every formatter we use writes spaces by default.

[OBJECTION: tabs break alignment]
[RE: 2]

TURN: A

## Turn 4 — Claude A

I give in: the formatter decides what people see anyway.

[CONCEDE: P1 what people see is the formatter's matter]

## Consensus Summary

Spaces, four of them, written by the formatter.

[CONSENSUS_REACHED]

TURN: B

## Turn 5 — Claude B

[AGREE: P2]
[CONSENSUS_REACHED]
"""


def by_hand() -> Dialog:
    """A file that somebody typed: no frames, no agents line, no times."""
    return parse(BY_HAND.encode())


REDIS = """Every request reads its session, and Postgres already answers in 4 ms where Redis needs 0.3. The page has a \
budget of 100 ms and 12 such reads.

[PROPOSAL: keep sessions in Redis]
[OBJECTION: Postgres costs 44 ms of a page's 100]
[RE: 2, P1]
[CONFIDENCE: 0.8]"""
NO_WAY = """{why} Neither of us has a measurement of the real page, and arguing does not make one.

[DEADLOCK: whether a page really reads its session twelve times | {test}]"""


def deadlock() -> Dialog:
    """Two positions that nobody leaves, the crux, an experiment."""
    test = "log the session reads of one real page for an hour"
    lines = [POSTGRES, NO_WAY.format(why="Twelve reads would be a bug in the page, not in Postgres.", test=test)]
    keys = ["Topic: Redis or Postgres for sessions?"]
    others = [REDIS, NO_WAY.format(why="The page is as it is.", test=f"{test}.")]
    return played(Room(opening("A", "B", keys=keys, question=QUESTION), A=lines, B=others))


FILES = """Files on the web server cost nothing, and each server keeps its own users by the balancer's cookie.

[PROPOSAL: keep sessions in files]
[VOTE: P1 reject | a second reader on the only database]
[VOTE: P2 approve | nothing to run]
[RE: 2]"""
FOR_POSTGRES = """Files die with the server they lie on; we replaced one in March. Measured: P1 costs 1 ms a request.

[EVIDENCE: 1 ms at the median, 3 ms at p99, over one hour]
[VOTE: P1 approve | it outlives a server]
[VOTE: P2 reject | a lost server logs half of the people out]
[RE: 2, 3]"""
LAST = """I stand by it: what C measured is what I had hoped for.

[VOTE: P1 approve | one system less]
[VOTE: P2 reject | see C]"""


def vote() -> Dialog:
    """Three voters and two proposals; one voter is outvoted."""
    more = setup('verdict = "vote"\norder = "round-robin"\nquorum = 1.0\n[roles.C]\nspecialization = "operations"')
    header = opening("A", "B", "C", keys=["Topic: Where should user sessions live?"], question=QUESTION, more=more)
    return played(Room(header, A=[POSTGRES, LAST], B=[FILES], C=[FOR_POSTGRES]))


REVIEW = """Two things, one of them a hole.

[FINDING: blocking | security | login.py | 41 | the token is compared with == | compare_digest]
[FINDING: minor | style | login.py | 7 | unused import |]
[SCORE: code quality 80 | test coverage 70 | security 30 | documentation 60 | acceptance criteria 80]"""


def review() -> Dialog:
    """A reviewer's findings, one of them resolved, and a score."""
    kinds = '[messages]\nFINDING = "a finding"\nRESOLVED = "it is mended"\nSCORE = "the score"'
    header = opening("A", "B", keys=["Topic: Review of the login"], more=setup(f"review = true\n{kinds}"))
    mended = "Mended in the last commit: compare_digest it is, with a test that takes the time of both branches."
    return played(Room(header, A=[REVIEW, "Good, I saw it.\n\n[RESOLVED: 1 | compare_digest is there]"], B=[mended]))


SCENES: Mapping[str, Callable[[], Dialog]] = {
    "consensus": consensus,
    "unfinished": unfinished,
    "by_hand": by_hand,
    "deadlock": deadlock,
    "vote": vote,
}
