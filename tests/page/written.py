"""Long and hostile dialogs, written as daemons write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dialogd.protocol.grammar import joint, parse, render
from dialogd.protocol.model import Draft, Mark
from tests.server.daemon_process import Room

_SHA = re.compile(rb" sha=([0-9a-f]+) -->")


def fill(room: Room, bodies: Iterable[str], marks: Sequence[Sequence[Mark]] = (), **keys: object) -> None:
    """Begin a dialog in which A and B have said `bodies` in turn already, and B or A owes the next.

    `marks` are those of the first turns; `keys` are header lines.
    """
    data = room.opening("Where should user sessions live?", "A", **keys).encode()
    dialog = parse(data)
    parts, chain = [data, joint(dialog)], dialog.entries[-1].chain
    for index, body in enumerate(bodies):
        me, other = "AB"[index % 2], "BA"[index % 2]
        said = tuple(marks[index]) if index < len(marks) else ()
        entry = render(Draft(me, f"Claude {me}", index + 2, body, said, (other,), _frame(index)), chain)
        chain = _SHA.search(entry)[1].decode()  # type: ignore[index]
        parts += [entry, b"\n---\n\n"]
    room.file.write_bytes(b"".join(parts[:-1]))
    assert parse(room.file.read_bytes()).state.number == len(parts) // 2


def _frame(index: int) -> tuple[tuple[str, str], ...]:
    figures = {"re": index + 1, "at": _at(index), "ms": 1000 + index % 7000, "in": 812, "out": 240, "usd": "0.0061"}
    return tuple((name, str(value)) for name, value in figures.items())


def _at(index: int) -> str:
    hours, seconds = divmod(index * 20, 3600)
    return f"2026-11-21T{hours % 24:02}:{seconds // 60:02}:{seconds % 60:02}Z"


def prose(index: int) -> str:
    """A turn of some length: a heading, a list, code, a table now and then."""
    parts = [f"Point {index}: a session store has to survive a restart, and **two weeks** of data make a choice last."]
    if index % 3 == 0:
        parts.append("- one reason\n- another reason\n  - and what follows from it")
    if index % 5 == 0:
        parts.append("```python\ndef ttl(days: int) -> int:\n    return days * 86_400\n```")
    if index % 11 == 0:
        parts.append("| store | cost |\n|---|---|\n| Redis | 3 |\n| Postgres | 1 |")
    return "\n\n".join(parts)
