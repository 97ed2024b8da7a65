"""Dialogs of every kind of end, as files: agreed, decided, stuck, at a limit, stopped, failed, rehearsed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dialogd.errors import BackendError
from tests.plans.scenes import (
    AGREED,
    CLEANUP,
    FILES,
    FOR_POSTGRES,
    LAST,
    NO_WAY,
    POSTGRES,
    QUESTION,
    REDIS,
    SIGNED,
    play,
    setup,
    with_costs,
)
from tests.support.room import Line, Room, opening

TOPIC = "Topic: Where should user sessions live?"
REFUSED = BackendError("the key was refused", fix="set ANTHROPIC_API_KEY", kind="auth")
SOONER = "## Consensus Summary\n\nSessions live in Postgres; backups leave their table out.\n\n[CONSENSUS_REACHED]"


def _pair(a: list[Line], b: list[Line], *keys: str, more: str = "") -> Room:
    return play(Room(opening("A", "B", keys=[TOPIC, *keys], more=more, question=QUESTION), A=a, B=b))


def _three(more: str, a: list[Line], b: list[Line], c: list[Line], *keys: str) -> Room:
    header = opening("A", "B", "C", keys=[TOPIC, *keys], more=more, question=QUESTION)
    return play(Room(header, A=a, B=b, C=c))


def _consensus() -> Room:
    return _pair([POSTGRES, AGREED], [CLEANUP, SIGNED], more=setup("objections = true"))


def _approved() -> Room:
    room = _consensus()
    room.advance(60)
    room.approve()
    return room


def _rejected() -> Room:
    room = _consensus()
    room.reject("Nobody looked at the backups.")
    last = "[RESERVATION: thirty days is a guess]"
    room.scripts = {"A": [f"Backups, then.\n\n{last}\n\n{SOONER}"], "B": [f"[AGREE: P3]\n{last}"]}
    return play(room)


def _judge() -> Room:
    lines = ["Postgres, which is there already.\n\n[PROPOSAL: Postgres]"], ["Redis is fast.\n\n[PROPOSAL: Redis]"]
    judge: list[Line] = ["[DECIDE: A | nothing new to run]"] * 2
    return _three(setup('verdict = "judge"\njudge = "C"'), [*lines[0]], [*lines[1]], judge, "Max Rounds: 1")


def _vote() -> Room:
    more = setup('verdict = "vote"\norder = "round-robin"\nquorum = 1.0')
    return _three(more, [POSTGRES, LAST], [FILES], [FOR_POSTGRES])


def _deadlock() -> Room:
    test = "log the session reads of one real page for an hour"
    never = NO_WAY.format(why="Twelve reads would be a bug.", test=test)
    return _pair([POSTGRES, never], [REDIS, NO_WAY.format(why="The page is as it is.", test=test)])


def _stopped() -> Room:
    room = _pair([POSTGRES], [])
    room.stop("we look at it again in spring")
    return room


def _typed(mark: str) -> Callable[[], Room]:
    def typed() -> Room:
        room = _pair([POSTGRES], [CLEANUP])
        room.types(f"\n## Note — User\n\n[{mark}]\n")
        return room

    return typed


ALONE = setup('person = "absent"')
ROOMS: Mapping[str, Callable[[], Room]] = {
    "consensus": _consensus,
    "approved": _approved,
    "rejected": _rejected,
    "judge": _judge,
    "vote": _vote,
    "deadlock": _deadlock,
    "turns": lambda: _pair([POSTGRES, AGREED], [CLEANUP], "Max Turns: 4"),
    "time": _typed("STOPPED: time: the limit of 10 minutes"),
    "budget": _typed("STOPPED: budget: the budget of $2.00"),
    "stopped": _stopped,
    "error": lambda: _pair([POSTGRES, "More."], [REFUSED] * 3, more=ALONE),
    "unattended": lambda: _pair([POSTGRES, "Nobody is here.", AGREED], [CLEANUP, "So be it.", SIGNED], more=ALONE),
    "rehearsal": _consensus,
}


def file_of(kind: str, **ports: Any) -> bytes:
    """The file of such a dialog; `ports` are those of its agents' daemons, by id."""
    room = ROOMS[kind]()
    data = with_costs(room.dialog, room.paper.data, "rehearsal" if kind == "rehearsal" else "m-1")
    for seat, port in enumerate(ports.values()):
        data = data.replace(f"http://localhost:{3001 + seat}".encode(), f"http://localhost:{port}".encode())
    return data
