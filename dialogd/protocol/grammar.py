"""The file format, read and written: bytes -> Dialog, entry -> bytes. The normative text is docs/protocol.md."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate

from dialogd.errors import NotADialog
from dialogd.protocol.fold import beginning, effective, fold, joined, refolded
from dialogd.protocol.header import read_header
from dialogd.protocol.marks import (
    ACTS,
    CONTROLS,
    EITHERS,
    canonical,
    first_open_fence,
    is_yes,
    outside_fences,
    tolerant,
)
from dialogd.protocol.model import ALL, ANY, OUTCOMES, USER, Condition, Draft, Entry, Frame, Header, Mark, digest
from dialogd.protocol.state import Dialog, State
from dialogd.protocol.text import escape, one_line, unescape

_TURN_LINE = re.compile(r"TURN: ([A-Za-z][A-Za-z0-9_-]*(?:, [A-Za-z][A-Za-z0-9_-]*)*)")
# Readers count with these: anybody can write a frame, and what is no number there counts as not said.
_ENTRY = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_COUNT = re.compile(r"~?[0-9]{1,12}")
_NUMBERS = {"re": _ENTRY, "ms": re.compile(r"[0-9]{1,12}"), "in": _COUNT, "out": _COUNT, "knocks": _COUNT}


# The fields of a frame that are texts under their own names.
_PLAIN = frozenset(field.name for field in fields(Frame)) - {"by", "size", "sha", "prev", "tokens_in", "tokens_out"}


def _frame_of(match: re.Match[bytes]) -> tuple[Frame, str]:
    known = dict(part.split("=", 1) for part in match[4].decode("utf-8", "replace").split(" ") if "=" in part)
    known |= {key: "" for key, form in _NUMBERS.items() if not form.fullmatch(known.get(key, ""))}
    frame = Frame(
        by=known["by"],
        size=int(known["bytes"]),
        sha=match[5].decode(),
        prev=known["prev"],
        tokens_in=known["in"],
        tokens_out=known["out"],
        **{key: known.get(key, "") for key in _PLAIN},
    )
    return frame, known["re"]


def _content_of(text: str, kinds: Container[str]) -> tuple[str, tuple[Mark, ...], tuple[str, ...] | None]:
    """Split a frame's inside into body, trailer marks and TURN line; `kinds` are the dialog's own contributions."""
    text = text.rstrip("\n")
    head, _, last = text.rpartition("\n")
    match = _TURN_LINE.fullmatch(last)
    turn = tuple(match[1].split(", ")) if match else None
    if match:
        text = head.rstrip("\n")
    marks: list[Mark] = []
    while True:
        head, _, last = text.rpartition("\n")
        mark = canonical(last, kinds)
        if mark is None:
            break
        marks.append(mark)
        text = head
    return unescape(text.strip("\n")), tuple(reversed(marks)), turn


# -- Text that the person typed ---------------------------------------------------------------------------------------

HEADING = re.compile(
    r"##[ \t]+(?:turn[ \t]+(?P<number>\d{1,9})(?:[ \t]*[—–:-]+(?P<name>.*)|[ \t#]*)"
    r"|(?P<user>user)[ \t#]*|note[ \t]+[—–:-]+(?P<note>.*))",
    re.I,
)
RULE = re.compile(r"[ \t]*-{3,}[ \t]*")
_TURN = re.compile(r"[ \t]*+(?:[*_`]{1,4}[ \t]*+)?turn[*_`]{0,3}[ \t]*:[*_` \t]*(\S.*)", re.I)
_PERSON = frozenset({"user", "me", "human", "you", "person"})


def who(header: Header, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ids that a TURN line's value names, and the names in it that nobody answers to."""
    known: dict[str, str] = {ANY.casefold(): ANY, **dict.fromkeys(_PERSON, USER)}
    for agent in header.agents:
        known.setdefault(agent.name.casefold(), agent.id)
    known.update({agent.id.casefold(): agent.id for agent in header.agents})
    ids: dict[str, None] = {}
    strangers: list[str] = []
    for part in re.split(r"[,;&+]|\band\b", text):
        name = " ".join(part.split()).strip("*_`.@ ")
        if name.casefold() == ALL.casefold():
            ids.update(dict.fromkeys(agent.id for agent in header.agents))
        elif name.casefold() in known:
            ids[known[name.casefold()]] = None
        elif name:
            strangers.append(name)
    return tuple(ids), tuple(strangers)


def lines_of(data: bytes) -> list[str]:
    """Lines as the person sees them: without the CR of a line end, or a byte order mark."""
    return [line.decode("utf-8", "replace").removesuffix("\r").removeprefix("\ufeff") for line in data.split(b"\n")]


def passes_turn(line: str) -> bool:
    """True when the person's line passes the turn, whoever it names."""
    return _TURN.fullmatch(line) is not None


@dataclass(slots=True)
class _Part:
    """Lines of one entry: from `first` up to `last` (exclusive); `turn` is the index of its TURN line."""

    first: int
    heading: re.Match[str] | None
    last: int = 0
    turn: int | None = None
    marks: list[tuple[int, Mark]] = field(default_factory=list)

    def mark_at_the_end(self, names: Container[str]) -> bool:
        """True where its last line is a mark of one of these names."""
        return bool(self.marks) and self.marks[-1][0] == self.last - 1 and self.marks[-1][1].name in names


def _parts(lines: Sequence[str], kinds: Container[str]) -> Iterator[_Part]:
    """Cut lines at headings, and after a TURN line that more text follows."""
    part: _Part | None = None
    visible = dict(outside_fences(lines, forgiving=True))
    for index, line in enumerate(lines):
        blank = not line.strip() or RULE.fullmatch(line) is not None
        found = HEADING.fullmatch(line) if index in visible else None
        if part is not None and (found or (part.turn is not None and not blank)):
            yield part
            part = None
        if part is None and not blank:
            part = _Part(index, found)
        if part is None:
            continue
        if not blank:
            part.last = index + 1
        if index in visible and not found:
            if passes_turn(line):
                part.turn = index
            elif (mark := tolerant(line, kinds)) is not None:
                part.marks.append((index, mark))
    if part is not None:
        yield part


def _by_hand(
    header: Header, lines: Sequence[str], part: _Part, place: tuple[int, int, int], state: State, *, open_end: bool
) -> Entry:
    """The entry that these lines are; with `open_end` the file ends with them: then it may be unfinished."""
    heading, (start, end, line) = part.heading, place
    targets, notice = _targets(header, lines, part)
    newline = not open_end or part.last < len(lines)
    speaker, name = _speaker(header, heading)
    last = part.last if part.turn is None else part.turn
    bare = _bare_at_the_end(lines, part.first, last) if speaker != USER else frozenset(range(part.first, part.last))
    marks = tuple(
        mark
        for at, mark in part.marks
        if (newline or at < part.last - 1)
        # An outcome without a TURN line is the person's end.
        and (at in bare or not is_yes(mark) or (mark.name in OUTCOMES and part.turn is None))
    )
    controls = part.mark_at_the_end(CONTROLS)
    ends = part.turn is None and any(mark.name in OUTCOMES for mark in marks)
    complete = ends or (newline and (part.turn is not None or part.mark_at_the_end(ACTS)))
    is_turn = complete and not controls and not (heading and heading["note"] is not None)
    number = max(int((heading and heading["number"]) or 0), state.number + 1) if is_turn else 0
    condition = Condition.UNFINISHED if open_end and not complete else Condition.BY_HAND
    if targets is None and condition is Condition.UNFINISHED:
        where = f"the text up to line {line + part.last - part.first - 1}"
        notice = f"{where} passes no turn: it has no `TURN:` line, and counts as a remark"
    return Entry(
        id=str(number) if is_turn else f"{state.number}.{state.notes + 1}",
        number=number,
        by=speaker if is_turn else USER,
        name=name,
        body=unescape("\n".join(lines[part.first + (1 if heading else 0) : last]).strip("\n")),
        marks=marks,
        turn=targets,
        condition=condition,
        chain=digest("\n".join(lines[part.first : part.last])),
        start=start,
        end=end,
        line=line,
        notice=notice,
        by_hand=True,
    )


def _bare_at_the_end(lines: Sequence[str], first: int, last: int) -> frozenset[int]:
    """The lines at the end of an agent's turn, typed by hand, that are bare marks: nobody can ask what it meant."""
    found: set[int] = set()
    for index in range(last - 1, first - 1, -1):
        if lines[index].strip() and canonical(lines[index].rstrip()) is None:
            break
        found.add(index)
    return frozenset(found)


def _targets(header: Header, lines: Sequence[str], part: _Part) -> tuple[tuple[str, ...] | None, str]:
    if part.turn is None:
        return None, ""
    match = _TURN.fullmatch(lines[part.turn])
    header = joined(header, [mark for _, mark in part.marks])
    ids, strangers = who(header, match[1] if match else "")
    if ids:
        return ids, f"nobody here is called {', '.join(strangers)}" if strangers else ""
    known = ", ".join(agent.id for agent in header.agents)
    return (USER,), f"TURN: names nobody known ({one_line(', '.join(strangers), 60)}); the agents are {known}"


def _speaker(header: Header, heading: re.Match[str] | None) -> tuple[str, str]:
    name = ((heading["name"] or heading["note"] or "") if heading else "").strip(" \t#*_`")
    ids, _ = who(header, name) if name else ((), ())
    if len(ids) == 1 and header.agent(ids[0]):
        return ids[0], name
    return USER, name if name and name.casefold() not in _PERSON else "User"


# -- The file format, read --------------------------------------------------------------------------------------------

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


def parse(data: bytes, known: Header | None = None) -> Dialog:
    """Read a whole dialog file; a header that is `known` is not read again. Total and linear. Raises `NotADialog`."""
    start = _first_entry(data)
    text = data[:start].decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n")
    header = known if known is not None and known.text == text else read_header(text)
    return _read(Dialog(header, (), beginning(header), 0), data, start)


def read_on(dialog: Dialog, more: bytes) -> Dialog:
    """The dialog after `more` was appended to its file; reads only what is not settled yet."""
    if not more:
        return dialog
    if not dialog.settled_entries:
        return parse(dialog.tail + more, dialog.header_as_written)
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
    raise NotADialog(
        "no turn was found: neither a `## Turn 1 — User` heading nor a `TURN: A` line, outside of code fences",
        fix="add `## Turn 1 — User`, your question and a last line `TURN: A`, or run `dialogd new TOPIC`",
        line=data.count(b"\n") + 1,
    )


def _first_heading(data: bytes) -> int:
    """The offset of the first entry heading outside closed code fences, else the end of the data."""
    # Bodies of framed entries are opaque: a fence in one closes none that stands open in the header.
    end = _next_framed(data, 0)
    while (match := _FRAMED.match(data, end)) and _sound_end(data, match, _frame_of(match)[0]) is None:
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


def _read(dialog: Dialog, data: bytes, start: int) -> Dialog:
    """Read entries from `data[start:]`, which begins where `dialog` is settled."""
    known, written = dialog.settled_entries, dialog.header_as_written
    first = dialog.settled_state if known else dialog.state
    reader = _Reader(
        data=data,
        base=dialog.settled,
        written=written,
        header=effective(written, first.hand),
        state=first,
        pos=start,
        line=dialog.settled_line + data.count(b"\n", 0, start),
        chain=dialog.entries[known - 1].chain if known else "",
        settled=(dialog.settled, dialog.settled_line, 0, dialog.settled_state),
        is_firm=known > 0 or (_ANY_HEADING.match(data, start) is not None and _is_firm(data[:start])),
    )
    while reader.read_next():
        pass
    at, line, more, settled_state = reader.settled
    count, header, state, before = known + more, reader.header, reader.state, None
    entries = (*(dialog.settled_before or dialog.entries)[:known], *reader.entries)
    if state.hand.struck != first.hand.struck:
        # The person struck turns of it: it is folded once more. What is settled knows of the strikes up to there alone;
        # what stands behind it may still read differently.
        settled, settled_state = refolded(written, entries[:count], settled_state.hand.struck)
        entries, state = refolded(written, entries, state.hand.struck)
        before = settled if settled != entries[:count] else None
        header = effective(written, state.hand)
    return Dialog(
        header=header,
        entries=entries,
        state=state,
        size=dialog.settled + len(data),
        settled=at,
        settled_line=line,
        settled_entries=count,
        settled_state=settled_state,
        tail=data[at - dialog.settled :],
        written=written,
        settled_before=before,
    )


def _is_firm(head: bytes) -> bool:
    """True where no fence stands open in the header, that could yet be closed around the first entries."""
    lines = lines_of(head)[:-1]
    return first_open_fence(lines) == len(lines)


@dataclass
class _Reader:
    """Reads one entry after another; `base` is the file's offset of the first byte at hand."""

    data: bytes
    base: int
    written: Header  # as the file has it
    header: Header  # as it counts here
    state: State
    pos: int
    line: int
    chain: str  # of the entry before
    settled: tuple[int, int, int, State]  # offset, line, entries and state up to which nothing changes any more
    is_firm: bool  # nothing that is appended later can change where the entries begin
    entries: list[Entry] = field(default_factory=list)

    def read_next(self) -> bool:
        """Read the next entry, or run of hand-written entries; False at the end of the file."""
        gap = _SEPARATORS.match(self.data, self.pos)
        self._go_to(gap.end() if gap else self.pos)
        if self.pos >= len(self.data):
            return False
        match = _FRAMED.match(self.data, self.pos)
        if match is None:
            self._read_by_hand()
            return True
        entry = self._framed(match)
        self._go_to(entry.end - self.base)
        self._take(entry)
        if entry.condition is Condition.SOUND:
            self.settled, self.is_firm = (entry.end, self.line, len(self.entries), self.state), True
        return True

    def _go_to(self, end: int) -> None:
        self.line += self.data.count(b"\n", self.pos, end)
        self.pos = end

    def _take(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.chain = entry.chain
        before = self.state.hand
        self.state = fold(self.header, self.state, entry)
        if self.state.hand is not before:
            self.header = effective(self.written, self.state.hand)

    def _read_by_hand(self) -> None:
        """The entries of a stretch of hand-written bytes. Lines without structure before any heading are the person's.

        The last one may still go on. What stands before it is settled, where no fence is open that could yet be closed.
        """
        end = _next_framed(self.data, self.pos)
        region = self.data[self.pos : end]
        lines = lines_of(region)
        offsets = [0, *accumulate(len(piece) + 1 for piece in region.split(b"\n"))]
        parts = list(_parts(lines, self.header.rules.kinds))
        offset, line = self.base + self.pos, self.line
        is_firm = self.is_firm and self.settled[2] == len(self.entries)
        firm = first_open_fence(lines[:-1]) if is_firm else 0
        for part in parts:
            start, last = offset + offsets[part.first], offset + min(offsets[part.last], len(region))
            if part is not parts[0] and part.first < firm:
                self.settled = (start, line + part.first, len(self.entries), self.state)
            place, open_end = (start, last, line + part.first), end == len(self.data) and part is parts[-1]
            self._take(_by_hand(self.header, lines, part, place, self.state, open_end=open_end))
        self._go_to(end)
        if parts and end < len(self.data) and firm == len(lines) - 1:
            self.settled = (self.base + end, self.line, len(self.entries), self.state)

    def _framed(self, match: re.Match[bytes]) -> Entry:
        data, state = self.data, self.state
        frame, answers = _frame_of(match)
        sound_end = _sound_end(data, match, frame)
        content, end = match.end(), sound_end or len(data)
        if sound_end is None and (last := _LAST_WORD.search(data, content)):
            end = last.start() if last[0].startswith((b"#", b"\xef")) else last.end()
        inside = data[content:end]
        if sound_end is None:  # without the blank lines and rules that lead to the next entry
            kept = len(inside.rstrip(b"- \t\r\n"))
            inside = inside[:kept] + inside[kept:].split(b"\n", 1)[0]
        body, marks, turn = _content_of(inside.decode("utf-8", "replace"), self.header.rules.kinds)
        number = max(int(match[1]), state.number + 1) if match[1] else 0
        note_id = f"{state.number}.{state.notes + 1}"
        entry = Entry(
            id=str(number) if number else note_id,
            number=number,
            by=frame.by,
            name=match[2].decode("utf-8", "replace"),
            body=body,
            marks=marks,
            turn=turn,
            condition=Condition.SOUND if sound_end else Condition.EDITED,
            re=answers,
            chain=frame.sha,
            start=self.base + match.start(),
            end=self.base + end,
            line=self.line,
            frame=frame,
            linked=frame.prev == self.chain,
        )
        ended = data[end - 1 : end] == b"\n"
        if sound_end or (ended and _is_whole(entry, cut=len(inside) + 1 < frame.size)):
            return entry
        return replace(entry, condition=Condition.DAMAGED, id=note_id, number=0)


def _is_whole(entry: Entry, *, cut: bool) -> bool:
    """True for an entry whose hash does not fit and that still has its last word: edited, not damaged."""
    if not entry.is_turn:
        return not cut
    end = entry.ending
    # An agent's call for a deadlock stands above its TURN line: cut there, it would end the dialog alone.
    return entry.turn is not None or (end is not None and not (cut and end.name in EITHERS))


def _next_framed(data: bytes, pos: int) -> int:
    at = data.find(_FRAME_LINE, pos)
    while at >= 0:
        heading = data.rfind(b"\n", pos, at) + 1
        if heading > 0 and _FRAMED.match(data, heading):
            return heading
        at = data.find(_FRAME_LINE, at + 1)
    return len(data)


def _sound_end(data: bytes, match: re.Match[bytes], frame: Frame) -> int | None:
    """Where the framed entry ends whose recorded hash fits; None for one that was cut or changed."""
    content = match.end()
    end = content + frame.size
    # No body holds a frame's line, it would be escaped: many frames that lie about their size cost no more than one.
    if end > len(data) or data.find(_FRAME_LINE, content, end) >= 0:
        return None
    seal = data[match.start() : match.start(5) - len(" sha=")]
    return end if digest(seal + data[content:end]) == frame.sha else None


# -- The file format, written ----------------------------------------------------------------------------------------


_NO_VALUE = re.compile(r"[^\x21-\x7e]|--|[<>]")  # what the value of an attribute cannot hold


def render(draft: Draft, prev: str) -> bytes:
    """The bytes of an entry, heading to last newline; `prev` is the chain of the entry before, "" for none."""
    parts = [escape(draft.body.strip("\n"))] if draft.body.strip("\n") else []
    if draft.marks:
        parts.append("\n".join(str(mark) for mark in draft.marks))
    if draft.turn:
        parts.append(f"TURN: {', '.join(draft.turn)}")
    content = ("\n" + "\n\n".join(parts) + "\n").encode("utf-8", "replace")
    heading = f"Turn {draft.number}" if draft.number else "Note"
    attributes = "".join(f" {key}={_NO_VALUE.sub('_', value)}" for key, value in draft.attributes if value)
    seal = (
        f"## {heading} — {one_line(draft.name, 80)}\n"
        f"<!-- dialogd by={draft.by}{attributes} bytes={len(content)} prev={prev}"
    ).encode("utf-8", "replace")
    return seal + f" sha={digest(seal + content)} -->\n".encode() + content


def joint(dialog: Dialog) -> bytes:
    """What stands between the file's present end and the next entry."""
    end = dialog.tail[-1:]
    return b"\n---\n\n" if end in (b"\n", b"") else b"\n\n---\n\n"
