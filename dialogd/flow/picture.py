"""Messages as an SVG sequence diagram for a page: colours and fonts are the page's, nothing in it runs or loads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from dialogd.flow.mermaid import names, others, participants, title
from dialogd.flow.messages import Message
from dialogd.protocol.text import one_line, visible

LANE, ROW, HEAD, MARGIN = 180, 36, 40, 90  # units of the viewBox
LETTER = 4  # half of a letter's width, rounded up
_WORD = re.compile(r"\W+")
LABEL = 56  # characters over an arrow; the whole stands in its title


def as_svg(messages: Sequence[Message], limit: int | None = 200) -> str:
    """The last `limit` messages (None: all) as one `<svg>`, to be put into HTML.

    Classes say what is what: `lane`, `message`, `is-open`, `is-withdrawn`, `kind-PROPOSAL`. Each message is a link to
    its turn, `#t7`. "" without messages.
    """
    shown = messages[-limit:] if limit else messages
    if not shown:
        return ""
    lanes = {who: MARGIN + place * LANE for place, who in enumerate(participants(shown))}
    width, height = 2 * MARGIN + (len(lanes) - 1) * LANE, HEAD + ROW * len(shown) + ROW // 2
    width = max(width, 2 * LABEL * LETTER)
    called = names(shown)
    about = f"Message flow: {len(shown)} of {len(messages)} messages between {', '.join(called[who] for who in lanes)}"
    rows = (_message(message, HEAD + ROW * (row + 1), lanes, width) for row, message in enumerate(shown))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flow" viewBox="0 0 {width} {height}" width="{width}"'
        f' role="group" aria-label="{_text(about)}" font-size="12" fill="currentColor">',
        *(_lane(called[who], x, height) for who, x in lanes.items()),
        *rows,
        "</svg>",
    ]
    return "\n".join(parts)


def _lane(who: str, x: int, height: int) -> str:
    line = f'<line x1="{x}" y1="{HEAD - 12}" x2="{x}" y2="{height}" stroke="currentColor" stroke-opacity="0.3"/>'
    name = _text(one_line(who, 24))
    return f'<g class="lane">{line}<text x="{x}" y="18" text-anchor="middle" font-weight="bold">{name}</text></g>'


def _message(message: Message, y: int, lanes: dict[str, int], width: int) -> str:
    said = message.payload
    at = lanes[message.from_agent]
    named = [lanes[who] for who in others(message)]
    ends = [x for x in (named or lanes.values()) if x != at]
    middle = (min([at, *ends]) + max([at, *ends])) // 2
    states = (" is-open" if said["is_open"] else "") + (" is-withdrawn" if said["is_withdrawn"] else "")
    to = f" to {', '.join(message.to_names) or 'all'}"
    words = f"{message.from_name}{to}: {title(message)}"
    text = one_line(title(message), LABEL)
    half = min(len(text) * LETTER, width // 2)
    middle = min(max(middle, half), width - half)
    return (
        f'<a href="#t{said["turn"]}" class="message kind-{_WORD.sub("-", message.message_type)}{states}">'
        f"<title>{_text(words)}</title>{''.join(_arrows(at, ends, y, dashed=said['is_withdrawn']))}"
        f'<text x="{middle}" y="{y - 6}" text-anchor="middle">{_text(text)}</text></a>'
    )


def _arrows(at: int, ends: Sequence[int], y: int, *, dashed: bool) -> Iterator[str]:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    yield f'<circle cx="{at}" cy="{y}" r="3"/>'
    for x in sorted({min(ends, default=at), max(ends, default=at)} - {at}):
        yield f'<line x1="{at}" y1="{y}" x2="{x}" y2="{y}" stroke="currentColor"{dash}/>'
    for x in ends:
        tip = -7 if x > at else 7
        yield f'<path d="M{x} {y}l{tip} -4v8z"/>'


def _text(text: str) -> str:
    return escape(visible(text))
