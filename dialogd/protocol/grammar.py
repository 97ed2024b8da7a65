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
from dialogd.protocol import hand
from dialogd.protocol.byhand import RULE, hand_entries, lines_of, nearly_passes, passes_turn
from dialogd.protocol.fold import fold
from dialogd.protocol.framed import content_of, frame_of, is_whole, trimmed
from dialogd.protocol.hashing import digest
from dialogd.protocol.header import read_header
from dialogd.protocol.marks import outside_fences
from dialogd.protocol.model import Condition, Entry, Frame, Header
from dialogd.protocol.refold import refolded
from dialogd.protocol.state import Dialog, State

_SEPARATORS = re.compile(rb"(?:[ \t\r]*\n|-{3,}[ \t\r]*\n)*")
_FRAMED = re.compile(
    rb"## (?:Turn (\d{1,9})|Note) \xe2\x80\x94 ([^\n]*)\n"
    rb"(<!-- dialogd (by=[^\n]* bytes=\d{1,9} prev=[0-9a-f]*) sha=([0-9a-f]{16}) -->)(?:\n|\Z)"
)
_FRAME_LINE = b"\n<!-- dialogd by="
_ANY_HEADING = re.compile(
    rb"^(?:\xef\xbb\xbf)?##[ \t]+(?:Turn[ \t]+\d|Note[ \t]+(?:\xe2\x80[\x93\x94]|[:-])|User[ \t\r]*$)", re.M | re.I
)
_LAST_WORD = re.compile(rb"%b|^(?-i:TURN): [A-Za-z][A-Za-z0-9_, -]*\r?(?:\n|\Z)" % _ANY_HEADING.pattern, re.M | re.I)


def parse(data: bytes) -> Dialog:
    """Read a whole dialog file.

    Total: any bytes give a Dialog or raise `NotADialog` with a line and a fix. Linear in the file.
    """
    start = _first_entry(data)
    header = read_header(data[:start].decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n"))
    state = State(limits=header.limits, hand=hand.first(header))
    return _read(Dialog(header, (), state, 0), data, start)


def read_on(dialog: Dialog, more: bytes) -> Dialog:
    """The dialog after `more` was appended to its file; reads only what is not settled yet."""
    if not more:
        return dialog
    if not dialog.settled_entries:
        return parse(dialog.tail + more)
    return _read(dialog, dialog.tail + more, 0)


def _first_entry(data: bytes) -> int:
    """Where the header ends: at the first entry heading, else at the last rule before a bare TURN line."""
    if not data.strip():
        raise NotADialog("the file is empty", fix="write a header and a question, or run `dialogd new TOPIC`")
    start = _first_heading(data)
    frame = _FRAMED.match(data, start)
    if frame is None and start < len(data):
        return start
    follows = frame is None or b" prev= " not in frame[3]
    headless = _headless(data[:start]) if follows else None
    hidden = _ANY_HEADING.search(data, 0, start) if follows else None
    if headless is not None:
        return headless
    if frame is not None:
        return hidden.start() if hidden else start
    if re.search(rb"^\*{0,2}(?:Topic|Max Turns|Agents|Dialog):", data, re.M | re.I):
        return len(data)
    if b"\x00" in data[:4096]:
        raise NotADialog("the file is binary, not Markdown text", fix="name another file with --file")
    text = data.decode("utf-8", "replace")
    if nearly := nearly_passes(read_header(""), enumerate(text.split("\n"), 1)):
        raise NotADialog(f"no turn was found: {nearly}", fix="correct that line")
    raise NotADialog(
        "no turn was found: neither a `## Turn 1 — User` heading nor a `TURN: A` line, outside of code fences",
        fix="add `## Turn 1 — User`, your question and a last line `TURN: A`, or run `dialogd new TOPIC`",
        line=data.count(b"\n") + 1,
    )


def _first_heading(data: bytes) -> int:
    """The offset of the first entry heading outside closed code fences, else the end of the data.

    Bodies of framed entries are opaque: a fence in one closes none that stands open in the header.
    """
    end = _next_framed(data, 0)
    while (match := _FRAMED.match(data, end)) and _sound_end(data, match, frame_of(match)) is None:
        end = _next_framed(data, match.end())
    head = data[:end]
    if _ANY_HEADING.search(head) is None:
        return end
    lines = head.split(b"\n")
    visible = outside_fences(lines_of(head), forgiving=True)
    found = next((index for index, _ in visible if _ANY_HEADING.match(lines[index])), None)
    return end if found is None else sum(len(line) + 1 for line in lines[:found])


def _headless(head: bytes) -> int | None:
    """Where a first turn without heading begins: at the last rule before the last bare TURN line, if there is one."""
    visible = dict(outside_fences(lines_of(head), forgiving=True))
    turn = max((index for index, line in visible.items() if passes_turn(line)), default=None)
    if turn is None:
        return None
    rule = max((index for index, line in visible.items() if index < turn and RULE.fullmatch(line)), default=0)
    return sum(len(line) + 1 for line in head.split(b"\n")[:rule])


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
    header: Header  # as it counts here
    written: Header  # as the file has it


def _read(dialog: Dialog, data: bytes, start: int) -> Dialog:
    """Read entries from `data[start:]`, which begins where `dialog` is settled."""
    known = dialog.settled_entries
    written, base = dialog.header_as_written, dialog.settled
    line = dialog.settled_line + data.count(b"\n", 0, start)
    state = dialog.settled_state if known else dialog.state
    settled = (base, dialog.settled_line, known, dialog.settled_state)
    cursor = _Cursor(start, line, base, known, [], state, settled, hand.effective(written, state.hand), written)
    before = dialog.entries[known - 1] if known else None
    while _read_next(data, cursor, before):
        before = cursor.entries[-1]
    entries = (*(dialog.settled_before or dialog.entries)[:known], *cursor.entries)
    if cursor.state.struck != state.struck:
        return _without_struck(cursor, entries, data)
    at, at_line, count, at_state = cursor.settled
    return Dialog(
        header=cursor.header,
        entries=entries,
        state=cursor.state,
        size=base + len(data),
        settled=at,
        settled_line=at_line,
        settled_entries=count,
        settled_state=at_state,
        tail=data[at - base :],
        written=written,
    )


def _without_struck(cursor: _Cursor, entries: tuple[Entry, ...], data: bytes) -> Dialog:
    """The dialog of these entries once more, from its beginning, after the person struck turns of it.

    What is settled knows of the strikes up to there alone: what stands behind it may still read differently.
    """
    at, line, count, at_state = cursor.settled
    before, before_state = refolded(cursor.written, entries[:count], at_state.struck)
    now, state = refolded(cursor.written, entries, cursor.state.struck)
    return Dialog(
        header=hand.effective(cursor.written, state.hand),
        entries=now,
        state=state,
        size=cursor.base + len(data),
        settled=at,
        settled_line=line,
        settled_entries=count,
        settled_state=before_state,
        tail=data[at - cursor.base :],
        written=cursor.written,
        settled_before=before if before != now[:count] else None,
    )


def _read_next(data: bytes, cursor: _Cursor, before: Entry | None) -> bool:
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
        _take(cursor, entry)
        if entry.condition is Condition.SOUND:
            cursor.settled = (entry.end, cursor.line, cursor.known + len(cursor.entries), cursor.state)
        return True
    end = _next_framed(data, cursor.pos)
    region, at_end = data[cursor.pos : end], end == len(data)
    count = len(cursor.entries)
    for entry in hand_entries(lambda: cursor.header, region, cursor.line, cursor.state, at_end=at_end):
        offset = cursor.base + cursor.pos
        state = cursor.state
        named = replace(
            entry,
            id=str(entry.number) if entry.is_turn else f"{state.number}.{state.notes + 1}",
            start=entry.start + offset,
            end=entry.end + offset,
        )
        _take(cursor, named)
    cursor.line += region.count(b"\n")
    cursor.pos = end
    return len(cursor.entries) > count or not at_end


def _take(cursor: _Cursor, entry: Entry) -> None:
    cursor.entries.append(entry)
    before = cursor.state.hand
    cursor.state = fold(cursor.header, cursor.state, entry)
    if cursor.state.hand is not before:
        cursor.header = hand.effective(cursor.written, cursor.state.hand)


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
    frame = frame_of(match)
    sound_end = _sound_end(data, match, frame)
    start, content, end = match.start(), match.end(), sound_end or len(data)
    if sound_end is None and (last := _LAST_WORD.search(data, content)):
        end = last.start() if last[0].startswith((b"#", b"\xef")) else last.end()
    inside = data[content:end] if sound_end else trimmed(data[content:end])
    body, marks, turn = content_of(inside.decode("utf-8", "replace"), cursor.header.rules.kinds)
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
        condition=Condition.SOUND if sound_end else Condition.EDITED,
        chain=frame.sha,
        start=cursor.base + start,
        end=cursor.base + end,
        line=cursor.line,
        frame=frame,
        linked=frame.prev == (before.chain if before else ""),
    )
    ended = data[end - 1 : end] == b"\n"
    if sound_end or (ended and is_whole(entry, cut=len(inside) + 1 < frame.size)):
        return entry
    return replace(entry, condition=Condition.DAMAGED, id=f"{state.number}.{state.notes + 1}", number=0)


def _sound_end(data: bytes, match: re.Match[bytes], frame: Frame) -> int | None:
    """Where the framed entry ends whose recorded hash fits; None for one that was cut or changed."""
    content = match.end()
    end = content + frame.size
    # No body holds a frame's line, it would be escaped: many frames that lie about their size cost no more than one.
    if end > len(data) or data.find(_FRAME_LINE, content, end) >= 0:
        return None
    seal = data[match.start() : match.start(5) - len(" sha=")]
    return end if digest(seal + data[content:end]) == frame.sha else None
