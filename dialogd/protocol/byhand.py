"""Text that the person typed: headed or not, bold or lower case, finished or not; by hand is first class.

heading  = "##" ( "Turn" N [ dash NAME ] / "User" / "Note" dash NAME )      any case
turn     = "TURN:" names                                                    any case, bold, trailing dot
complete = the last non-blank line, newline included, is a TURN line, an outcome mark, REJECTED or a control mark,
           or an outcome mark stands above it and no TURN line follows
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dialogd.protocol.ballots import is_yes
from dialogd.protocol.hand import joined
from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import canonical, is_outcome, outside_fences, tolerant
from dialogd.protocol.model import ALL, ANY, USER, Condition, Entry, Header, Mark
from dialogd.protocol.state import State
from dialogd.protocol.text import one_line, unescape

HEADING = re.compile(
    r"##[ \t]+(?:turn[ \t]+(?P<number>\d{1,9})(?:[ \t]*[—–:-]+(?P<name>.*)|[ \t#]*)"
    r"|(?P<user>user)[ \t#]*|note[ \t]+[—–:-]+(?P<note>.*))",
    re.I,
)
RULE = re.compile(r"[ \t]*-{3,}[ \t]*")
_TURN = re.compile(r"[ \t]*+(?:[*_`]{1,4}[ \t]*+)?turn[*_`]{0,3}[ \t]*:[*_` \t]*(\S.*)", re.I)
_NEARLY = re.compile(r"\W{0,6}([A-Za-z]{3,5})(\W{0,6})(|\w.*)")
_NEARLY_LINE = 200  # characters; what is longer is no line of a word and names
_PERSON = frozenset({"user", "me", "human", "you", "person"})
CONTROLS = frozenset(
    {"PAUSED", "RESUMED", "LIMIT", "STRIKE", "VETO", "SKIP", "RETRY", "APPROVED", "INVITE", "LEAVE", "STEP"}
)


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


def nearly_passes(header: Header, numbered: Iterable[tuple[int, str]]) -> str:
    """What is said of the last of these lines that is nearly a TURN line, with its number; "" where none is.

    Nearly: the word TURN, or that with one letter more, less, wrong or swapped, whatever signs stand around it, and
    behind it nothing but names that somebody here answers to.
    """
    found = ""
    for number, line in numbered:
        match = _NEARLY.fullmatch(line) if len(line) < _NEARLY_LINE else None
        if match is None or passes_turn(line) or not _is_nearly(match[1].casefold(), "turn"):
            continue
        ids, strangers = who(header, match[3].strip("[](){}<> "))
        if not strangers and (ids or (match[1].casefold() == "turn" and ":" in match[2])):
            names = ", ".join(ids) or "A"
            found = (
                f"line {number}, `{line.strip()}`, is no TURN line and passes no turn; write `TURN: {names}` below it"
            )
    return found


def _is_nearly(word: str, wanted: str) -> bool:
    """True for the word itself, and for one slip of the fingers: a letter more, less, wrong, or two swapped."""
    more = any(word[:at] + word[at + 1 :] == wanted for at in range(len(word)))
    less = any(wanted[:at] + wanted[at + 1 :] == word for at in range(len(wanted)))
    others = [at for at, (one, two) in enumerate(zip(word, wanted, strict=False)) if one != two]
    swapped = sorted(word) == sorted(wanted) and len(others) == 2 and others[1] == others[0] + 1
    return more or less or swapped or (len(word) == len(wanted) and len(others) < 2)


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines of one entry: from `first` up to `last` (exclusive); `turn` is the index of its TURN line."""

    first: int
    last: int
    heading: re.Match[str] | None
    turn: int | None
    marks: tuple[tuple[int, Mark], ...]


def hand_entries(
    header: Callable[[], Header], region: bytes, line: int, state: State, *, at_end: bool
) -> Iterator[Entry]:
    """The entries of a stretch of hand-written bytes.

    `header` gives it as it counts by then, with whom an entry before has invited. `line` is the 1-based line where it
    begins; offsets are relative to it. `at_end` says that the file ends with it: then its last entry may be unfinished.
    Lines without structure before any heading are the person's.
    """
    raw, lines = region.split(b"\n"), lines_of(region)
    offsets = [0]
    for piece in raw:
        offsets.append(offsets[-1] + len(piece) + 1)
    parts = list(_parts(lines, header().rules.kinds))
    number = state.number
    for index, part in enumerate(parts):
        open_end = at_end and index == len(parts) - 1
        counts = header()
        entry = _entry(counts, lines, part, number, open_end=open_end)
        if entry.turn is None and not entry.is_turn:
            entry = replace(entry, notice=_without_turn(counts, lines, part, line, entry.condition))
        number = max(number, entry.number)
        end = min(offsets[part.last], len(region))
        yield replace(entry, start=offsets[part.first], end=end, line=line + part.first)


def _without_turn(header: Header, lines: Sequence[str], part: _Part, line: int, condition: Condition) -> str:
    """What is said of text that passes no turn: which line was meant to, else that it has none."""
    within = [(index, lines[index]) for index in range(part.first, part.last)]
    visible = (within[index] for index, _ in outside_fences([text for _, text in within], forgiving=True))
    nearly = nearly_passes(header, ((line + index, text) for index, text in visible))
    if nearly or condition is not Condition.UNFINISHED:
        return nearly
    return f"the text up to line {line + part.last - 1} passes no turn: it has no `TURN:` line, and counts as a remark"


def _parts(lines: Sequence[str], kinds: Container[str]) -> Iterator[_Part]:
    """Cut lines at headings, and after a TURN line that more text follows."""
    heading: re.Match[str] | None = None
    first: int | None = None
    turn: int | None = None
    marks: list[tuple[int, Mark]] = []
    visible = dict(outside_fences(lines, forgiving=True))
    for index, line in enumerate(lines):
        blank = not line.strip() or RULE.fullmatch(line) is not None
        found = HEADING.fullmatch(line) if index in visible else None
        if first is not None and (found or (turn is not None and not blank)):
            yield _Part(first, _trim(lines, first, index), heading, turn, tuple(marks))
            first, heading, turn, marks = None, None, None, []
        if first is None and not blank:
            first, heading = index, found
        if index in visible and not found:
            if passes_turn(line):
                turn = index
            elif (mark := tolerant(line, kinds)) is not None:
                marks.append((index, mark))
    if first is not None:
        yield _Part(first, _trim(lines, first, len(lines)), heading, turn, tuple(marks))


def _trim(lines: Sequence[str], first: int, last: int) -> int:
    while last > first + 1 and (not lines[last - 1].strip() or RULE.fullmatch(lines[last - 1])):
        last -= 1
    return last


def _entry(header: Header, lines: Sequence[str], part: _Part, before: int, *, open_end: bool) -> Entry:
    heading = part.heading
    targets, notice = _targets(header, lines, part)
    newline = not open_end or part.last < len(lines)
    speaker, name = _speaker(header, heading)
    last = part.last if part.turn is None else part.turn
    bare = _bare_at_the_end(lines, part.first, last) if speaker != USER else frozenset()
    marks = tuple(
        mark
        for at, mark in part.marks
        if (newline or at < part.last - 1) and (speaker == USER or at in bare or not _is_yes(part, mark))
    )
    last_mark = part.marks[-1] if part.marks else None
    controls = last_mark is not None and last_mark[0] == part.last - 1 and last_mark[1].name in CONTROLS
    ends = part.turn is None and any(is_outcome(mark) for mark in marks)
    rejects = last_mark is not None and last_mark[0] == part.last - 1 and last_mark[1].name == "REJECTED"
    complete = ends or (newline and (part.turn is not None or controls or rejects))
    is_turn = complete and not controls and not (heading and heading["note"] is not None)
    text = lines[part.first + (1 if heading else 0) : last]
    return Entry(
        id="",
        number=_number(heading, before) if is_turn else 0,
        by=speaker if is_turn else USER,
        name=name,
        body=unescape("\n".join(text).strip("\n")),
        marks=marks,
        turn=targets,
        condition=Condition.UNFINISHED if open_end and not complete else Condition.BY_HAND,
        chain=digest("\n".join(lines[part.first : part.last])),
        start=0,
        end=0,
        line=0,
        notice=notice,
    )


def _bare_at_the_end(lines: Sequence[str], first: int, last: int) -> frozenset[int]:
    """The lines at the end of an agent's turn, typed by hand, that are bare marks: nobody can ask what it meant."""
    found: set[int] = set()
    for index in range(last - 1, first - 1, -1):
        if lines[index].strip() and canonical(lines[index].rstrip()) is None:
            break
        found.add(index)
    return frozenset(found)


def _is_yes(part: _Part, mark: Mark) -> bool:
    """True for a mark by which an agent approves; a CONSENSUS_REACHED without a TURN line is the person's end."""
    return is_yes(mark) and not (mark.name == "CONSENSUS_REACHED" and part.turn is None)


def _number(heading: re.Match[str] | None, before: int) -> int:
    written = int(heading["number"] or 0) if heading else 0
    return written if written > before else before + 1


def _targets(header: Header, lines: Sequence[str], part: _Part) -> tuple[tuple[str, ...] | None, str]:
    if part.turn is None:
        return None, ""
    match = _TURN.fullmatch(lines[part.turn])
    header = joined(header, [mark for _, mark in part.marks])
    ids, strangers = who(header, match[1] if match else "")
    ids_known = ", ".join(agent.id for agent in header.agents)
    if ids:
        return ids, f"nobody here is called {', '.join(strangers)}" if strangers else ""
    return (USER,), f"TURN: names nobody known ({one_line(', '.join(strangers), 60)}); the agents are {ids_known}"


def _speaker(header: Header, heading: re.Match[str] | None) -> tuple[str, str]:
    """Whose text it is: an agent's when the heading names one, else the person's."""
    name = ((heading["name"] or heading["note"] or "") if heading else "").strip(" \t#*_`")
    ids, _ = who(header, name) if name else ((), ())
    if len(ids) == 1 and header.agent(ids[0]):
        return ids[0], name
    return USER, name if name and name.casefold() not in _PERSON else "User"
