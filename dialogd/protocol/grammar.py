"""The file format, read: bytes -> Dialog; `render.py` writes it. The normative text is docs/protocol.md.

    file     = header *( separator entry )
    entry    = framed / by-hand
    framed   = "## " ( "Turn " N / "Note" ) " — " NAME LF
               "<!-- dialogd by=" ID *( SP key "=" value ) " bytes=" N " prev=" HASH " sha=" HASH " -->" LF
               N bytes: LF [ body LF LF ] [ marks LF ] [ "TURN: " ID *( ", " ID ) LF ]
    by-hand  = everything else: headed, or with no heading at all

`sha` covers the heading, the frame up to " sha=" and the N bytes. The inside of a sound frame is opaque: structure
is read only where the frame says it is. Bytes are split on LF and on nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dialogd.errors import NotADialog
from dialogd.protocol.byhand import hand_entries
from dialogd.protocol.fold import ending, fold
from dialogd.protocol.hashing import digest
from dialogd.protocol.header import read_header
from dialogd.protocol.marks import canonical, outside_fences
from dialogd.protocol.model import Condition, Dialog, Entry, Frame, Header, Mark, State
from dialogd.protocol.text import unescape

_SEPARATORS = re.compile(rb"(?:[ \t\r]*\n|-{3,}[ \t\r]*\n)*")
_FRAMED = re.compile(
    rb"## (?:Turn (\d{1,9})|Note) \xe2\x80\x94 ([^\n]*)\n"
    rb"(<!-- dialogd (by=[^\n]* bytes=\d{1,9} prev=[0-9a-f]*) sha=([0-9a-f]{16}) -->)\n"
)
_FRAME_LINE = b"\n<!-- dialogd by="
_ANY_HEADING = re.compile(
    rb"^##[ \t]+(?:Turn[ \t]+\d|Note[ \t]+(?:\xe2\x80[\x93\x94]|[:-])|User[ \t\r]*$)", re.M | re.I
)
_TRAILING = re.compile(r"(?:\n[ \t]*-{3,}[ \t]*|\n)+$")
_TURN_LINE = re.compile(r"TURN: ([A-Za-z][A-Za-z0-9_-]*(?:, [A-Za-z][A-Za-z0-9_-]*)*)")


def parse(data: bytes) -> Dialog:
    """Read a whole dialog file.

    Total: any bytes give a Dialog or raise `NotADialog` with a line and a fix. Linear in the file.
    """
    start = _first_entry(data)
    header = read_header(data[:start].decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n"))
    state = State(limits=header.limits)
    return _read(Dialog(header, (), state, 0), data, start)


def read_on(dialog: Dialog, more: bytes) -> Dialog:
    """The dialog after `more` was appended to its file; reads only what is not settled yet."""
    if not more:
        return dialog
    if not dialog.settled_entries:
        return parse(dialog.tail + more)
    return _read(dialog, dialog.tail + more, 0)


def _first_entry(data: bytes) -> int:
    """Where the header ends: at the first entry heading, else after the last rule before a bare TURN line."""
    if not data.strip():
        raise NotADialog("the file is empty", fix="write a header and a question, or run `dialogd new TOPIC`")
    if b"\x00" in data[:4096]:
        raise NotADialog("the file is binary, not Markdown text", fix="name another file with --file")
    for match in _ANY_HEADING.finditer(data):
        if not _in_fence(data, match.start()):
            return match.start()
    rule = max(data.rfind(b"\n---\n"), data.rfind(b"\n---\r\n"))
    start = rule + 1 if rule >= 0 else 0
    if any(e.turn for e in hand_entries(Header("", "", (), State().limits), data[start:], 1, State(), at_end=True)):
        return start
    if re.search(rb"^\*{0,2}(?:Topic|Max Turns|Agents|Dialog):", data, re.M | re.I):
        return len(data)
    line = data.count(b"\n") + 1
    raise NotADialog(
        "no turn was found: neither a `## Turn 1 — User` heading nor a `TURN: A` line",
        fix="add `## Turn 1 — User`, your question and a last line `TURN: A`, or run `dialogd new TOPIC`",
        line=line,
    )


def _in_fence(data: bytes, at: int) -> bool:
    """True when a code fence that is closed later stands open at `at`."""
    if b"```" not in data[:at] and b"~~~" not in data[:at]:
        return False
    lines = data.decode("utf-8", "replace").split("\n")
    index = data.count(b"\n", 0, at)
    return all(i != index for i, _ in outside_fences(lines, forgiving=True))


@dataclass
class _Cursor:
    """Where reading stands; `base` is the file offset of the first byte at hand, `known` the entries before it."""

    pos: int
    line: int
    base: int
    known: int
    entries: list[Entry]
    state: State
    settled: tuple[int, int, int, State]


def _read(dialog: Dialog, data: bytes, start: int) -> Dialog:
    """Read entries from `data[start:]`, which begins where `dialog` is settled."""
    known = dialog.settled_entries
    header, base = dialog.header, dialog.settled
    line = dialog.settled_line + data.count(b"\n", 0, start)
    state = dialog.settled_state if known else dialog.state
    settled = (base, dialog.settled_line, known, dialog.settled_state)
    cursor = _Cursor(start, line, base, known, [], state, settled)
    before = dialog.entries[known - 1] if known else None
    while _read_next(header, data, cursor, before):
        before = cursor.entries[-1]
    at, at_line, count, at_state = cursor.settled
    return Dialog(
        header=header,
        entries=(*dialog.entries[:known], *cursor.entries),
        state=cursor.state,
        size=base + len(data),
        settled=at,
        settled_line=at_line,
        settled_entries=count,
        settled_state=at_state,
        tail=data[at - base :],
    )


def _read_next(header: Header, data: bytes, cursor: _Cursor, before: Entry | None) -> bool:
    """Read the next entry, or run of hand-written entries; False at the end of the file."""
    gap = _SEPARATORS.match(data, cursor.pos)
    after_gap = gap.end() if gap else cursor.pos
    cursor.line += data.count(b"\n", cursor.pos, after_gap)
    cursor.pos = after_gap
    if cursor.pos >= len(data):
        return False
    match = _FRAMED.match(data, cursor.pos)
    if match is not None:
        entry = _framed(data, match, cursor, before)
        end = entry.end - cursor.base
        cursor.line += data.count(b"\n", cursor.pos, end)
        cursor.pos = end
        _take(header, cursor, entry)
        if entry.condition is Condition.SOUND:
            cursor.settled = (entry.end, cursor.line, cursor.known + len(cursor.entries), cursor.state)
        return True
    end = _next_framed(data, cursor.pos)
    region, at_end = data[cursor.pos : end], end == len(data)
    count = len(cursor.entries)
    for entry in hand_entries(header, region, cursor.line, cursor.state, at_end=at_end):
        offset = cursor.base + cursor.pos
        state = cursor.state
        named = replace(
            entry,
            id=str(entry.number) if entry.is_turn else f"{state.number}.{state.notes + 1}",
            start=entry.start + offset,
            end=entry.end + offset,
        )
        _take(header, cursor, named)
    cursor.line += region.count(b"\n")
    cursor.pos = end
    return len(cursor.entries) > count or not at_end


def _take(header: Header, cursor: _Cursor, entry: Entry) -> None:
    cursor.entries.append(entry)
    cursor.state = fold(header, cursor.state, entry)


def _next_framed(data: bytes, pos: int) -> int:
    """The offset of the next framed entry at or after `pos`, else the end of the data."""
    at = data.find(_FRAME_LINE, pos)
    while at >= 0:
        heading = data.rfind(b"\n", pos, at) + 1
        if heading > 0 and _FRAMED.match(data, heading):
            return heading
        at = data.find(_FRAME_LINE, at + 1)
    return len(data)


def _framed(data: bytes, match: re.Match[bytes], cursor: _Cursor, before: Entry | None) -> Entry:
    frame = _frame(match[4].decode("utf-8", "replace"), match[5].decode())
    start, content = match.start(), match.end()
    end = content + frame.size
    seal = data[start : match.start(5) - len(" sha=")]
    if end <= len(data) and digest(seal + data[content:end]) == frame.sha:
        condition = Condition.SOUND
    else:
        heading = _ANY_HEADING.search(data, content)
        end = heading.start() if heading else len(data)
        condition = Condition.EDITED
    text = data[content:end].decode("utf-8", "replace")
    body, marks, turn = _content(text if condition is Condition.SOUND else _TRAILING.sub("", text))
    number = max(int(match[1]), cursor.state.number + 1) if match[1] else 0
    state = cursor.state
    entry = Entry(
        id=str(number) if number else f"{state.number}.{state.notes + 1}",
        number=number,
        by=frame.by,
        name=match[2].decode("utf-8", "replace"),
        body=body,
        marks=marks,
        turn=turn,
        condition=condition,
        chain=frame.sha,
        start=cursor.base + start,
        end=cursor.base + end,
        line=cursor.line,
        frame=frame,
        linked=frame.prev == (before.chain if before else ""),
    )
    if condition is Condition.SOUND or _is_whole(entry, cut=end - content < frame.size):
        return entry
    return replace(entry, condition=Condition.DAMAGED, id=f"{state.number}.{state.notes + 1}", number=0)


def _is_whole(entry: Entry, *, cut: bool) -> bool:
    """True for an entry whose hash does not fit and that still has its last word: edited, not damaged."""
    if entry.is_turn:
        return entry.turn is not None or ending(entry) is not None
    return not cut


def _frame(attributes: str, sha: str) -> Frame:
    known = dict(part.split("=", 1) for part in attributes.split(" ") if "=" in part)
    return Frame(
        by=known["by"],
        at=known.get("at", ""),
        size=int(known["bytes"]),
        sha=sha,
        prev=known["prev"],
        re=known.get("re", ""),
        ms=known.get("ms", ""),
        model=known.get("model", ""),
        tokens_in=known.get("in", ""),
        tokens_out=known.get("out", ""),
        usd=known.get("usd", ""),
    )


def _content(text: str) -> tuple[str, tuple[Mark, ...], tuple[str, ...] | None]:
    """Split a frame's inside into body, trailer marks and TURN line."""
    text = text.rstrip("\n")
    head, _, last = text.rpartition("\n")
    match = _TURN_LINE.fullmatch(last)
    turn = tuple(match[1].split(", ")) if match else None
    if match:
        text = head.rstrip("\n")
    marks: list[Mark] = []
    while True:
        head, _, last = text.rpartition("\n")
        mark = canonical(last)
        if mark is None:
            break
        marks.append(mark)
        text = head
    return unescape(text.strip("\n")), tuple(reversed(marks)), turn
