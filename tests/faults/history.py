"""A judge of dialog files: its own reader of docs/protocol.md, its own hash chain, its own rules.

It shares no code with dialogd, so that either can be wrong alone. `Judge` is shown a file again and again while it
grows, and judges each entry once, in the file as it stood when the entry was first seen; `problems` judges one that is
finished. Rules that a dialog's Setup adds are none of its business.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

OUTCOMES = {
    "CONSENSUS_REACHED", "DEADLOCK", "DECIDED", "MAX_TURNS_REACHED", "STOPPED",
}  # fmt: skip
HAND = {
    "PAUSED", "RESUMED", "LIMIT", "SKIP", "RETRY", "STRIKE", "VETO", "INVITE", "LEAVE", "APPROVED", "REJECTED", "STEP",
}  # fmt: skip

_FRAMED = re.compile(r"## (?:Turn (\d+)|Note) — (.*)")
_FRAME = re.compile(r"(<!-- dialogd by=(\S+)(.*) bytes=(\d+) prev=([0-9a-f]*)) sha=([0-9a-f]{16}) -->")
_HEADING = re.compile(r"##\s+(?:turn\s+(\d+)(?:\s*[—–:-]+(.*)|[\s#]*)|(user)[\s#]*|(note)\s+[—–:-]+.*)", re.I)
_TURN = re.compile(r"\s*[*_`]{0,4}\s*turn[*_`]{0,3}\s*:[*_`\s]*(\S.*)", re.I)
_TURN_LINE = re.compile(r"TURN: [A-Za-z][\w-]*(?:, [A-Za-z][\w-]*)*")
_RULE = re.compile(r"\s*-{3,}\s*")
_MARK = re.compile(r"\[([A-Z_]+)(?: (P\d+))?(?:: (.*))?\]")
_TYPED_MARK = re.compile(r"\s*(?:[-*+]\s+)?[*_`]*\[([A-Za-z_]+)(?:\s*:\s*(.*))?\][*_`.]*\s*")
# What a reader who only looks at lines would take for structure.
_STRUCTURE = re.compile(
    r"\s*(?:##\s+(?:turn\s+\d|note\s+—|user\s*$)|(?-i:TURN):|<!-- dialogd|"
    rf"\[(?:{'|'.join(sorted(OUTCOMES | HAND))})\b)",
    re.I,
)


@dataclass(frozen=True)
class Entry:
    """One entry. `by` is "" unless a frame whose hash fits says it; `claims` is whose it would be.

    `owes` is what its TURN line names; `re` the debt that it answers; `sha` the recorded hash, else the computed one.
    """

    id: str
    number: int
    claims: str
    text: str
    owes: tuple[str, ...] | None
    marks: tuple[tuple[str, str, str], ...]
    condition: str  # sound, edited, damaged, by hand, unfinished
    sha: str
    prev: str = ""
    re: str = ""
    raw: bytes = b""

    @property
    def by(self) -> str:
        return self.claims if self.condition == "sound" else ""

    @property
    def end(self) -> str:
        """The outcome that it ends the dialog with, or ""."""
        return next((name for name, _, _ in self.marks if name in OUTCOMES), "") if self.owes is None else ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


class _Reader:
    """Reads the entries of one file, from the first heading on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.lines = data.split(b"\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.texts = [line.decode("utf-8", "replace").removesuffix("\r") for line in self.lines]
        self.number = self.notes = 0
        first = next((at for at in _unfenced(self.texts) if _HEADING.fullmatch(self.texts[at])), len(self.texts))
        self.header = "\n".join(self.texts[:first])
        self.agents = self._agents()
        self.at = first

    def _agents(self) -> dict[str, str]:
        line = next((line for line in self.header.split("\n") if line.lower().startswith("**agents:**")), "")
        found = re.findall(r"(?:^|, )([A-Za-z][\w-]*) = ([^@(,]+)", line.partition(":** ")[2])
        named = found or [("A", "Claude A"), ("B", "Claude B")]
        return {key.strip().casefold(): agent for agent, name in named for key in (name, agent)}

    def entries(self) -> Iterator[Entry]:
        while self.at < len(self.texts):
            if not self.texts[self.at].strip() or _RULE.fullmatch(self.texts[self.at]):
                self.at += 1
            elif (frame := self._frame(self.at)) is not None:
                yield self._framed(frame)
            else:
                yield from self._by_hand()

    def _frame(self, at: int) -> re.Match[str] | None:
        if at + 1 >= len(self.lines) or _FRAMED.fullmatch(self.texts[at]) is None:
            return None
        return _FRAME.fullmatch(self.lines[at + 1].decode("utf-8", "replace"))

    def _named(self, number: int) -> str:
        if number:
            self.number, self.notes = number, 0
            return str(number)
        self.notes += 1
        return f"{self.number}.{self.notes}"

    def _framed(self, frame: re.Match[str]) -> Entry:
        start, content = self.starts[self.at], self.starts[self.at + 2]
        size = int(frame[4])
        inside = self.data[content : content + size]
        seal = self.data[start : self.starts[self.at + 1]] + frame[1].encode()
        if len(inside) == size and _digest(seal + inside) == frame[6]:
            condition, stop = "sound", self.at + 2 + inside.count(b"\n")
        else:
            stop = next((at for at in range(self.at + 2, len(self.texts)) if self._ends(at)), len(self.texts))
            stop += stop < len(self.texts) and _HEADING.fullmatch(self.texts[stop]) is None
            inside = self.data[content : min(self.starts[stop], len(self.data))]
            condition = "damaged"
        body, marks, owes = _trailer(inside.decode("utf-8", "replace"))
        numbered = _FRAMED.fullmatch(self.texts[self.at])
        written = int(numbered[1] or 0) if numbered else 0
        if condition != "sound" and inside.endswith(b"\n"):
            end = owes is not None or any(name in OUTCOMES for name, _, _ in marks)
            whole = end if written else len(inside.rstrip(b"- \t\r\n")) + 1 >= size
            condition = "edited" if whole else condition
        self.at = stop
        number = max(written, self.number + 1) if written and condition != "damaged" else 0
        attributes = dict(part.split("=", 1) for part in frame[3].split(" ") if "=" in part)
        raw, re_ = seal + inside, attributes.get("re", "")
        return Entry(self._named(number), number, frame[2], body, owes, marks, condition, frame[6], frame[5], re_, raw)

    def _ends(self, at: int) -> bool:
        """True for a line that ends a frame whose hash does not fit."""
        return _HEADING.fullmatch(self.texts[at]) is not None or _TURN_LINE.match(self.texts[at]) is not None

    def _by_hand(self) -> Iterator[Entry]:
        stop = next((at for at in range(self.at, len(self.texts)) if self._frame(at)), len(self.texts))
        texts, first = self.texts[self.at : stop], self.at
        visible = set(_unfenced(texts))
        part: list[int] = []
        turned = False
        for at, line in enumerate(texts):
            blank = not line.strip() or _RULE.fullmatch(line) is not None
            heads = at in visible and _HEADING.fullmatch(line) is not None
            if part and (heads or (turned and not blank)):
                yield self._typed(texts, part, visible, is_last=False)
                part, turned = [], False
            if part or not blank:
                part.append(at)
                turned = turned or (at in visible and _TURN.fullmatch(line) is not None)
        if part:
            while not texts[part[-1]].strip() or _RULE.fullmatch(texts[part[-1]]):
                part.pop()
            is_last = stop == len(self.texts)
            yield self._typed(texts, part, visible, is_last=is_last, cut=is_last and first + part[-1] + 1 == stop)
        self.at = stop

    def _typed(self, texts: list[str], part: list[int], seen: set[int], *, is_last: bool, cut: bool = False) -> Entry:
        while not texts[part[-1]].strip() or _RULE.fullmatch(texts[part[-1]]):
            part = part[:-1]
        lines = [texts[at] for at in part]
        heading = _HEADING.fullmatch(lines[0]) if part[0] in seen else None
        read = [texts[at] for at in part if at in seen and not (cut and at == part[-1])]
        turns = [match for line in read if (match := _TURN.fullmatch(line))]
        found = [match for line in read if (match := _TYPED_MARK.fullmatch(line))]
        marks = tuple((match[1].upper(), "", match[2] or "") for match in found)
        last = _TYPED_MARK.fullmatch(lines[-1]) if not cut else None
        controls = last is not None and last[1].upper() in HAND - {"REJECTED"}
        owes = self._who(turns[-1][1]) if turns else None
        ends = owes is None and any(name in OUTCOMES for name, _, _ in marks)
        complete = owes is not None or ends or (last is not None and last[1].upper() in HAND)
        number = 0
        if complete and not controls and not (heading and heading[4]):
            number = max(int(heading[1] or 0) if heading else 0, self.number + 1)
        name = (heading[2] or "").strip(" \t#*_`").casefold() if heading else ""
        claims = self.agents.get(name, "USER") if number else "USER"
        condition = "unfinished" if is_last and not complete else "by hand"
        sha = _digest("\n".join(lines).encode())
        return Entry(self._named(number), number, claims, "\n".join(lines), owes, marks, condition, sha)

    def _who(self, names: str) -> tuple[str, ...]:
        said = [" ".join(name.split()).strip("*_`.@ ").casefold() for name in re.split(r"[,;&+]|\band\b", names)]
        if "all" in said:
            return tuple(dict.fromkeys(self.agents.values()))
        known = {**self.agents, "any": "ANY", "user": "USER"}
        return tuple(dict.fromkeys(known[name] for name in said if name in known)) or ("USER",)


def _unfenced(texts: list[str]) -> list[int]:
    """The numbers of the lines that stand in no closed code fence."""
    outside: list[int] = []
    at = 0
    while at < len(texts):
        fence = re.match(r" {0,3}(`{3,}|~{3,})", texts[at])
        end = None
        if fence is not None:
            closing = re.compile(rf" {{0,3}}{re.escape(fence[1][0])}{{{len(fence[1])},}}\s*")
            end = next((n for n in range(at + 1, len(texts)) if closing.fullmatch(texts[n])), None)
            parts = re.compile(r"[ \t]*#{1,6}[ \t]*(turn|note|user|system)\b|[ \t*_`]*turn[*_`]*[ \t]*:", re.I)
            if end is not None and sum(parts.match(text) is not None for text in texts[at:end]) > 100:
                end = None
        if end is None:
            outside.append(at)
        at = at + 1 if end is None else end + 1
    return outside


def _trailer(text: str) -> tuple[str, tuple[tuple[str, str, str], ...], tuple[str, ...] | None]:
    """Body, marks and TURN line of what stands in a frame: nothing else in it is structure."""
    lines = text.rstrip("\n").split("\n")
    owes = None
    if _TURN_LINE.fullmatch(lines[-1]):
        owes = tuple(lines.pop()[len("TURN: ") :].split(", "))
    while lines and not lines[-1]:
        lines.pop()
    marks: list[tuple[str, str, str]] = []
    while lines and (match := _MARK.fullmatch(lines[-1])):
        marks.insert(0, (match[1], match[2] or "", match[3] or ""))
        lines.pop()
    return "\n".join(lines), tuple(marks), owes


@dataclass
class _State:
    """What the entries so far come to, as far as the judge follows it."""

    agents: list[str]
    ruled: bool  # the Setup holds rules of which the judge knows nothing
    number: int = 0
    owing: dict[str, str] = field(default_factory=dict)  # who owes a turn, and the entry that opened the debt
    ended: str = ""
    paused: bool = False
    spoke_in_pause: set[str] = field(default_factory=set)
    text: str = ""  # the number of the consensus text on the table
    signers: set[str] = field(default_factory=set)
    deadlock: set[str] = field(default_factory=set)  # whose last turn calls it one
    last: Entry | None = None
    stood: frozenset[str] = frozenset()  # the hashes of what was typed by hand before the last look
    behind: set[str] = field(default_factory=lambda: {""})  # the hashes that the next entry may be chained to

    def take(self, entry: Entry) -> list[str]:
        """Add one entry; gives what is wrong with it, standing where it stands."""
        wrong = list(self._wrong(entry)) if entry.condition == "sound" else []
        if entry.number:
            self.number = entry.number
        if entry.condition == "damaged":
            self.last, self.behind = entry, {entry.sha}
            return wrong
        if entry.claims == "USER":
            self._person(entry)
        elif entry.condition != "unfinished":
            wrong += self._agent(entry) if entry.claims in self.agents else self._system(entry)
        if entry.condition != "unfinished":
            self._last_word(entry)
        self.last = entry
        # A person's editor takes no lock: what it adds can land between a daemon's last look at the file and its write.
        typed_just_now = entry.condition in ("by hand", "unfinished") and entry.sha not in self.stood
        self.behind = self.behind | {entry.sha} if typed_just_now else {entry.sha}
        return wrong

    def _wrong(self, entry: Entry) -> Iterator[str]:
        before = self.last
        overtaken = before is not None and before.sha != entry.prev and entry.prev in self.behind
        if overtaken:
            yield from self._wrong_text(entry)
            return
        if entry.prev != (before.sha if before else ""):
            yield f"is chained to {entry.prev or 'nothing'}, and stands after {before.sha if before else 'nothing'}"
        if entry.number and entry.number != self.number + 1:
            yield f"comes after turn {self.number}"
        if entry.claims == "USER":
            return
        if self.ended:
            yield f"stands after the end of the dialog in {self.ended}"
        if before is not None and before.condition == "damaged":
            yield f"was written behind the damaged entry {before.id}"
        yield from self._wrong_text(entry)
        if entry.claims in self.agents:
            yield from self._wrong_turn(entry)

    def _wrong_text(self, entry: Entry) -> Iterator[str]:
        if taken := [name for name, _, _ in entry.marks if name in HAND]:
            yield f"bears the person's marks {taken}"
        if len(ends := [name for name, _, _ in entry.marks if name in OUTCOMES]) > 1:
            yield f"bears several outcomes: {ends}"
        if lines := [line for line in entry.text.split("\n") if _STRUCTURE.match(line)]:
            yield f"has lines in its body that count as structure: {lines}"
        if strangers := set(entry.owes or ()) - {*self.agents, "USER", "ANY"}:
            yield f"passes to nobody known: {strangers}"

    def _wrong_turn(self, entry: Entry) -> Iterator[str]:
        opened = [self.owing[who] for who in (entry.claims, "ANY") if who in self.owing]
        if not opened:
            yield f"is by {entry.claims}, and owed by {sorted(self.owing)}"
        elif entry.re not in opened:
            yield f"answers {entry.re}, and the debt was opened by {' or '.join(opened)}"
        if not entry.number:
            return
        if entry.owes is None and not entry.end:
            yield "has no last word"
        left = set(self.owing) - {entry.claims, "ANY", "USER"}
        if opened and entry.owes is not None and not left <= set(entry.owes):
            yield f"passes to {entry.owes}, and {sorted(left)} still owe a turn"
        if self.paused and entry.claims in self.spoke_in_pause:
            yield "is a second turn in one pause"

    def _person(self, entry: Entry) -> None:
        for name, _, value in entry.marks:
            if name in ("PAUSED", "RESUMED"):
                self.paused = name == "PAUSED"
                self.spoke_in_pause.clear()
            elif name in ("SKIP", "RETRY"):
                who = value.split(" ")[0]
                for gone in (who, "USER"):
                    self.owing.pop(gone, None)
                if name == "RETRY" and not self.ended:
                    self.owing[who] = entry.id
        if entry.number:
            self.owing.clear()
            self.text, self.signers, self.deadlock = "", set(), set()
            self.ended = "" if not entry.end else self.ended
        elif entry.owes is not None:
            self.owing.pop("USER", None)

    def _agent(self, entry: Entry) -> list[str]:
        if not entry.number:
            return []
        if entry.condition == "by hand":
            self.owing.clear()
        for who in (entry.claims, "ANY"):
            self.owing.pop(who, None)
        if self.paused:
            self.spoke_in_pause.add(entry.claims)
        self._signed(entry)
        if self.ruled or entry.condition != "sound":
            return []
        if entry.end == "CONSENSUS_REACHED" and not set(self.agents) <= self.signers:
            return [f"ends by consensus, and {sorted(self.signers)} have signed {self.text or 'nothing'}"]
        if entry.end == "DEADLOCK" and not set(self.agents) <= self.deadlock:
            return [f"ends in a deadlock that only {sorted(self.deadlock)} called"]
        return []

    def _signed(self, entry: Entry) -> None:
        names = {name for name, _, _ in entry.marks}
        for name, ref, value in entry.marks:
            if name == "CONSENSUS_PROPOSED":
                self.text, self.signers = ref, {entry.claims}
            elif name == "AGREE" and self.text and value.split(" ")[0] == self.text:
                self.signers.add(entry.claims)
        if "OBJECTION" in names:
            self.text, self.signers = "", set()
        self.deadlock = self.deadlock | {entry.claims} if "DEADLOCK" in names else set()

    def _system(self, entry: Entry) -> list[str]:
        for name, _, value in entry.marks:
            if name == "AGENT_ERROR" or (name == "STALLED" and entry.owes is not None):
                self.owing.pop(value.split(" | ")[0], None)
        return []

    def _last_word(self, entry: Entry) -> None:
        if entry.end:
            self.ended = entry.id
        if self.ended:
            self.owing.clear()
            return
        for who in entry.owes or ():
            self.owing.setdefault(who, entry.id)


class Judge:
    """Sees one dialog grow; `found` is what was wrong."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.judged: dict[str, Entry] = {}  # by hash: every sound frame that ever stood in the file
        self.words: set[str] = set()  # each must stand in the person's text, once
        self.state = _State([], ruled=False)
        self._here: set[str] = set()
        self._typed: set[str] = set()

    def here(self) -> list[Entry]:
        return [self.judged[sha] for sha in self._here]

    def look(self, data: bytes) -> None:
        """The file as it stands now; nothing that stood in it may be gone, but for what `saved` was told of."""
        reader = _Reader(data)
        agents = list(dict.fromkeys(reader.agents.values()))
        state = _State(agents, "## setup" in reader.header.lower(), stood=frozenset(self._typed))
        here: Counter[str] = Counter()
        typed: set[str] = set()
        for entry in reader.entries():
            wrong = state.take(entry)
            if not entry.by:
                typed.add(entry.sha)
            if entry.condition != "sound":
                continue
            here[entry.sha] += 1
            if entry.sha not in self.judged or here[entry.sha] > 1:
                self.judged[entry.sha] = entry
                self.found += [f"entry {entry.id} by {entry.by} {text}" for text in wrong]
            if here[entry.sha] == 2:
                self.found.append(f"entry {entry.id} by {entry.by} stands there twice")
        for lost in self._here - set(here):
            self.found.append(f"entry {self.judged[lost].id} by {self.judged[lost].by} is lost")
        self._here, self._typed, self.state = set(here), typed, state

    def saved(self, old: bytes, new: bytes) -> None:
        """An editor has put `new` in the place of `old`: what is missing from it is the person's doing."""
        self.look(old)
        entries = list(_Reader(new).entries())
        self._here &= {entry.sha for entry in entries if entry.condition == "sound"}
        self.words &= set(_persons_words(entries))  # agents quote them, too

    def close(self, data: bytes) -> list[str]:
        self.look(data)
        typed = _persons_words(_Reader(data).entries())
        return self.found + [f"{word} stands {typed[word]} times" for word in sorted(self.words) if typed[word] != 1]


def _persons_words(entries: Iterable[Entry]) -> Counter[str]:
    """How often each word stands in what the person said, or nobody known did; an agent's torn turn quotes them."""
    said = (re.sub(r"“[^”]*”?", "", entry.text) for entry in entries if entry.by in ("", "USER"))
    return Counter(word for text in said for word in text.split())


def read(path: Path) -> list[Entry]:
    return list(_Reader(path.read_bytes()).entries())


def problems(path: Path, said: Iterable[str] = ()) -> list[str]:
    """What is wrong with the history in a file: gaps, doubles, turns that nobody owed, words that are lost."""
    words = Counter(word for entry in read(path) for word in entry.text.split())
    lost = [f"{word} stands {words[word]} times" for word in said if words[word] != 1]
    return Judge().close(path.read_bytes()) + lost


def appended(output: str) -> list[int]:
    """The numbers of the turns that a daemon's log says it has appended."""
    return [int(number) for number in re.findall(r"appended turn (\d+)", output)]


def all_records(journal: Path) -> list[dict[str, object]]:
    """Everything that one journal says; torn lines are left out."""
    found: list[dict[str, object]] = []
    for line in journal.read_bytes().split(b"\n"):
        with suppress(ValueError):
            found.append(dict(json.loads(line)))
    return found


def records(state_dir: Path, kind: str) -> list[dict[str, object]]:
    """All records of that kind in all journals, set aside or not."""
    found: list[dict[str, object]] = []
    for journal in sorted(state_dir.rglob("*.journal")):
        with suppress(FileNotFoundError):  # a daemon has just set it aside
            found += [record for record in all_records(journal) if record["kind"] == kind]
    return found


def bought_twice(state_dir: Path) -> list[object]:
    """Debts for which more than one reply was received."""
    replies = {(tuple(record["debt"]), record["text"]) for record in records(state_dir, "reply")}  # type: ignore[arg-type]
    debts = Counter(debt for debt, _ in replies)
    return [debt for debt, count in debts.items() if count > 1]
