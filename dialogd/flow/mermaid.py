"""Messages as a Mermaid sequence diagram, as code hosts render it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from dialogd.flow.messages import Message

# Letters of all scripts and these stand for themselves; everything else is written by its number, because Mermaid
# ends a label at some signs, and reads others as markup, formulas, directives or references.
_UNSAFE = re.compile(r"[^\w .,/()!?+=*-]|_{2,}")
_KEYWORD = re.compile(r"\b(e)(nd)\b", re.I)


def participants(messages: Iterable[Message]) -> tuple[str, ...]:
    """Everybody who spoke or was spoken to, by first appearance: the person first, the system last."""
    found: dict[str, None] = {}
    for message in messages:
        found.update(dict.fromkeys([message.from_agent, *others(message)]))
    agents = [who for who in found if who not in ("User", "System")]
    return (*(w for w in ("User",) if w in found), *agents, *(w for w in ("System",) if w in found))


def names(messages: Iterable[Message]) -> dict[str, str]:
    """What everybody is called who spoke or was spoken to, by id."""
    found: dict[str, str] = {}
    for message in messages:
        found |= {message.from_agent: message.from_name, **dict(zip(others(message), message.to_names, strict=True))}
    return found


def others(message: Message) -> list[str]:
    """Whom a message names as addressees."""
    return [who for who in message.to_agent.split(", ") if who]


def as_mermaid(messages: Sequence[Message]) -> str:
    """A `sequenceDiagram`; ends with a newline. Participants have names of their own making, so that any name works."""
    lanes = {who: f"p{number}" for number, who in enumerate(participants(messages), 1)}
    called = names(messages)
    lines = ["sequenceDiagram", *(f"    participant {alias} as {label(called[who])}" for who, alias in lanes.items())]
    for message in messages:
        lines += _arrows(message, lanes)
    return "\n".join(lines) + "\n"


def _arrows(message: Message, lanes: dict[str, str]) -> Iterator[str]:
    speaker = lanes[message.from_agent]
    text = label(title(message))
    targets = [lanes[who] for who in others(message) if who != message.from_agent]
    for target in targets:
        yield f"    {speaker}{'-->>' if message.payload['is_withdrawn'] else '->>'}{target}: {text}"
    if not targets:
        ends = list(dict.fromkeys([next(iter(lanes.values())), list(lanes.values())[-1]]))
        yield f"    Note over {','.join(ends)}: {label(message.from_name)}: {text}"


def title(message: Message) -> str:
    """A message in one line: its type, reference and summary."""
    said = message.payload
    parts = [message.message_type, said["reference"], said["summary"]]
    suffix = " (withdrawn)" if said["is_withdrawn"] else " (open)" if said["is_open"] else ""
    return " ".join(part for part in parts if part) + suffix


def label(text: str) -> str:
    """A text that Mermaid shows as it is: on one line, without anything it would read as syntax."""
    flat = " ".join(text.split())
    coded = _UNSAFE.sub(lambda match: "".join(f"#{ord(char)};" for char in match[0]), flat)
    return _KEYWORD.sub(lambda match: f"{match[1]}#{ord(match[2][0])};{match[2][1]}", coded) or " "
