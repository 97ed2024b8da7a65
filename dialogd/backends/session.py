"""Continuing a CLI's own session: which one still fits the dialog, and what it has not seen yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dialogd.backends import Usage
from dialogd.backends.parts import Part, Prompt
from dialogd.protocol.model import digest
from dialogd.store.disk import read_json, write_json

KEPT = 50  # checkpoints
QUOTED = 2000  # characters at a reply's beginning among which the line is sought that identifies it

INTRO = "Here is a written dialog, from its beginning to now."
GOES_ON = "The dialog goes on."
ADDED = "Your last turn was added to it."
ASKED_BACK = "One thing about your last reply."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A session after an answered turn.

    It has seen the first `count` parts, whose shas together make `seen`, under what `system` stands for, and answered
    the debt `re` with a text in which the line `said` stands. `usage` is what the CLI has counted in it so far.
    """

    session: str
    count: int
    seen: str
    re: str
    system: str
    said: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Continuation:
    """What to send: `text` to a fork of `after`'s session, or to a new session where there is none."""

    text: str
    after: Checkpoint | None = None


def plan(prompt: Prompt, me: str, system: str, checkpoints: Sequence[Checkpoint]) -> Continuation:
    """The shortest way to ask `prompt` of the agent `me`: after the newest checkpoint that fits, or from nothing.

    A checkpoint fits when everything it saw is unchanged, and the agent's next turn after that is its reply; what
    others wrote in between, in a round, it has not seen.
    """
    parts, reply = split(prompt)
    for point in reversed(checkpoints):
        if point.system == system and reply is not None and point.said and _is_of(point, reply, me):
            return Continuation(f"{ASKED_BACK}\n\n{prompt.now}", point)
        saw = 0 < point.count <= len(parts) and _sha(parts[: point.count]) == point.seen
        if reply is not None or point.system != system or not saw:
            continue
        mine = next((index for index in range(point.count, len(parts)) if parts[index].by == me), None)
        if mine is not None and _is_of(point, parts[mine], me):
            new = (*parts[point.count : mine], *parts[mine + 1 :])
            marks = " ".join(parts[mine].marks.split())
            added = f"{ADDED} Marked by the daemon: {marks}" if marks else ADDED
            return Continuation("\n\n".join([f"{GOES_ON} {added}", *(part.text for part in new), prompt.now]), point)
    return Continuation(whole(prompt))


def whole(prompt: Prompt) -> str:
    """The whole prompt, for a new session."""
    return f"{INTRO}\n\n{prompt.body}" if split(prompt)[1] is None else prompt.body


def checkpoint(prompt: Prompt, re: str, system: str, *, session: str, reply: str, usage: Usage) -> Checkpoint:
    """What to remember of a turn that was answered. A question back is one turn with what it asks about."""
    parts, asked = split(prompt)
    return Checkpoint(session, len(parts), _sha(parts), asked.re if asked else re, system, _line(reply), usage)


def split(prompt: Prompt) -> tuple[tuple[Part, ...], Part | None]:
    """The parts of a dialog, and apart from them the reply that a question back is about."""
    last = prompt.parts[-1] if prompt.parts else None
    return (prompt.parts[:-1], last) if last is not None and last.id == "reply" else (prompt.parts, None)


def since(now: Usage, before: Usage | None) -> Usage:
    """`now` minus `before`; a figure smaller than before was reset, and is kept."""
    values = asdict(now)
    for name in ("tokens_in", "tokens_out", "cached", "cache_write", "usd"):
        new, old = values[name], getattr(before, name) if before else None
        if new is not None and old is not None and new >= old:
            values[name] = new - old
    return Usage(**values)


class Sessions:
    """The checkpoints of one agent, the newest last, at most `KEPT`, in a file; without a path as long as it lives."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.points = _load(path)

    def add(self, point: Checkpoint) -> None:
        """Add a checkpoint, the only one of its session. If it cannot be written, it lasts as long as the process."""
        others = (known for known in self.points if known.session != point.session)
        self._keep((*others, point)[-KEPT:])

    def drop(self, session: str) -> None:
        """Forget a session that is gone."""
        self._keep(tuple(point for point in self.points if point.session != session))

    def _keep(self, points: tuple[Checkpoint, ...]) -> None:
        self.points = points
        if self._path is not None:
            write_json(self._path, [asdict(point) for point in points])


def _load(path: Path | None) -> tuple[Checkpoint, ...]:
    """The checkpoints in the file; none where it is missing or unreadable."""
    try:
        rows = (read_json(path) if path else None) or ()
        return tuple(Checkpoint(**{**row, "usage": Usage(**row["usage"])}) for row in rows)[-KEPT:]
    except (KeyError, TypeError):
        return ()


def _is_of(point: Checkpoint, part: Part, me: str) -> bool:
    """True when `part` is the reply that the session gave, as it gave it."""
    return part.by == me and part.re == point.re and part.sound and point.said in part.text


def _sha(parts: Iterable[Part]) -> str:
    return digest("\n".join(part.sha for part in parts))


def _line(reply: str) -> str:
    """A line of the reply that the dialog keeps as it is: the longest near its beginning without brackets."""
    lines = (line.strip() for line in reply[:QUOTED].split("\n")[: -1 if len(reply) > QUOTED else None])
    return max((line for line in lines if "[" not in line), key=len, default="")[:200]
