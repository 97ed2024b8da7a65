"""What a file proves: who stands behind a decision, what changed since, what was sealed before anybody could read it.

seal = SHA-256 over nonce and text, in hex
text = the body, an empty line, and the agent's own marks in canonical form
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dialogd.protocol import build, compose, marks, questions
from dialogd.protocol.admit import MarkPolicy
from dialogd.protocol.build import Due, GateResult, Submission
from dialogd.protocol.compose import Close, limit_mark
from dialogd.protocol.fold import beginning, fold, steps, strikes
from dialogd.protocol.grammar import parse, read_on, render
from dialogd.protocol.header import read_header
from dialogd.protocol.lifecycle import cycle
from dialogd.protocol.model import AGREED, ANY, OUTCOMES, SYSTEM, USER, Condition, Draft, Entry, Mark, digest
from dialogd.protocol.state import Dialog, Proposal, State
from dialogd.protocol.text import clean, one_line

_IN_TURN = re.compile(r"([A-Za-z][\w-]*) in turn (\d{1,9})")
_VOTERS = re.compile(r"\bfor \(([^)]*)\)")
_JUDGE = re.compile(r"by ([A-Za-z][\w-]*) in turns \d{1,9} and (\d{1,9})")
RECORDS = "a certificate records, it does not authenticate: whoever can write the file can write a frame"


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed, approved or decided, in which turn (0: a note, or nowhere), when, with which objection left."""

    agent: str
    name: str
    turn: int
    at: str = ""
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    """A git tree that came of a decision: of which task, and the commit with which it was submitted."""

    task: str
    tree: str
    commit: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was agreed, by whom, over which chain of entries."""

    ref: str  # "" where the text is no proposal
    text: str  # "" where it no longer stands in the file
    sha: str  # as recorded, else computed
    method: str  # mutual, vote, moderator, decide, judge, person or by hand
    decided_at: str  # wall time
    decided_in: str  # the id of the entry, as `stands_in`
    signers: tuple[Signer, ...]
    chain: tuple[str, str]  # the hashes of the first entry and of the deciding one
    entries: int
    dialog: str
    evidence: str = ""
    reason: str = ""
    stands_in: str = ""
    header: str = ""  # its hash: no frame covers it
    links: tuple[str, ...] = ()  # the hashes of all entries up to the deciding one
    trees: tuple[Tree, ...] = ()  # those that a build had approved by then

    def as_json(self) -> dict[str, Any]:
        """The certificate as it is kept: the fields by name, and what it is worth."""
        facts = asdict(self)
        return {**facts, **{key: list(facts[key]) for key in ("chain", "links", "signers", "trees")}, "note": RECORDS}

    @property
    def verb(self) -> str:
        """What those behind it did."""
        said = {"vote": "approved", "review": "approved", "judge": "judged", "person": "agreed"}
        return said.get(self.method, "decided" if self.method in ("moderator", "decide") else "signed")

    @property
    def title(self) -> str:
        """What was agreed, in words: `P4 in turn 5`."""
        return f"{self.ref or 'the text'} in {where(self.stands_in)}" if self.stands_in else self.ref or "the text"


def where(entry_id: str) -> str:
    """An entry's id in words: `turn 7`, `note 7.2`."""
    return f"note {entry_id}" if "." in entry_id else f"turn {entry_id}"


def named(entry: Entry) -> str:
    """An entry in words: `turn 7 of A`; a damaged one by its line."""
    return f"{where(entry.id)} of {entry.by}" if entry.condition is not Condition.DAMAGED else f"line {entry.line}"


# -- Who stands behind a decision -------------------------------------------------------------------------------------


def recorded(entries: Sequence[Entry], ref: str, method: str, evidence: str) -> Iterator[tuple[str, int]]:
    """Who stands behind a decision by the evidence of its mark, with the turn; 0 for a vote that is nowhere."""
    if method == "vote":
        for names in _VOTERS.findall(evidence):
            yield from ((who, _vote(entries, who, ref)) for who in filter(None, re.split(r",\s*", names)))
    else:
        pattern = _JUDGE if method == "judge" else _IN_TURN
        yield from ((who, int(turn)) for who, turn in pattern.findall(evidence))


def position(evidence: str) -> tuple[str, int]:
    """The agent, and the turn, whose position a judge chose; "" and 0 when the evidence names none."""
    match = _IN_TURN.match(evidence)
    return (match[1], int(match[2])) if match else ("", 0)


def _vote(entries: Sequence[Entry], who: str, ref: str) -> int:
    """The turn of the last vote of that agent, if it approves; else 0."""
    own = (entry for entry in reversed(entries) if entry.by == who)
    votes = ((entry.number, marks.read_vote(entry.written).get(ref)) for entry in own)
    number, choice = next(((number, choice) for number, choice in votes if choice is not None), (0, None))
    return number if choice is not None and choice.choice == "approve" else 0


def _turn_of(dialog: Dialog, who: str, number: int) -> Entry | None:
    return next((entry for entry in dialog.turns if (entry.number, entry.by) == (number, who)), None)


def signer(dialog: Dialog, who: str, number: int, entry: Entry | None = None) -> Signer:
    """The signer with what its turn (or `entry`) says; time and objection are "" where that is gone."""
    agent = next((agent for agent in dialog.everybody if agent.id == who), None)
    entry = entry or _turn_of(dialog, who, number)
    name = agent.name if agent else entry.name if entry else who
    left = [mark.value for mark in entry.written if mark.name == "RESERVATION" and mark.value] if entry else []
    return Signer(who, name, number, entry.at if entry else "", "; ".join(left))


# -- Certificates -----------------------------------------------------------------------------------------------------


def certify(dialog: Dialog) -> Certificate | None:
    """The certificate of the last approval in the file, or of the end by agreement; None while nothing was decided."""
    states: list[State] = []
    for index in range(len(dialog.entries) - 1, -1, -1):
        entry = dialog.entries[index]
        mark = _approval(dialog, entry) if _counts(entry) else None
        if mark is not None:
            return _as_recorded(dialog, index, mark)
        if _agrees(entry):
            states = states or [before for _, _, before, _ in steps(dialog)]
            found = _without_decision(dialog, index, states[index])
            if found is not None:
                return found
    return None


def unrecorded(dialog: Dialog) -> Iterator[tuple[int, Certificate]]:
    """Each end by agreement that no decision records, by its place among the entries, as it was certified then."""
    recorded_in = {decision.entry for decision in dialog.state.table.decisions}
    for index, (entry, _, before, _) in enumerate(steps(dialog)):
        if _agrees(entry) and entry.id not in recorded_in:
            found = _without_decision(until(dialog, index + 1), index, before)
            if found is not None:
                yield index, found


def _counts(entry: Entry) -> bool:
    return entry.condition not in (Condition.DAMAGED, Condition.UNFINISHED) and entry.counts


def _agrees(entry: Entry) -> bool:
    end = entry.ending if _counts(entry) else None
    return end is not None and end.name in AGREED


def _approval(dialog: Dialog, entry: Entry) -> Mark | None:
    """The approval in this entry that counts; what ends the dialog goes before what one agent decides by the way."""
    counted = {d.ref for d in dialog.state.table.decisions if d.entry == entry.id and d.outcome == "approved"}
    found = [m for m in entry.decisions if m.ref in counted and m.fields[0] == "approved"]
    return next((m for m in found if m.fields[1:2] != ("decide",)), found[0] if found else None)


def _as_recorded(dialog: Dialog, index: int, mark: Mark) -> Certificate:
    _, method, evidence, reason = (*mark.fields, "", "", "")[:4]
    entries = dialog.entries[: index + 1]
    signers = tuple(signer(dialog, who, turn) for who, turn in recorded(entries, mark.ref, method, evidence))
    if mark.ref:
        ids = {entry.id for entry in entries}
        made = (p for p in reversed(dialog.state.table.proposals) if p.ref == mark.ref and p.entry in ids)
        proposal = next(made, None)  # the one of that number that stood then
    else:
        who, number = position(evidence)
        said = next((e for e in dialog.turns if (e.by, e.number) == (who, number)), None)
        proposal = Proposal("", who, marks.stated(said), said.id) if said else Proposal("", "", "", str(number or ""))
    return _drawn_up(dialog, index, proposal, mark.ref, method, signers, evidence=evidence, reason=reason)


def _without_decision(dialog: Dialog, index: int, before: State) -> Certificate | None:
    """What an end without a DECISION mark agrees to: the person's own summary, else the text on the table."""
    entry = dialog.entries[index]
    after = fold(dialog.header, before, replace(entry, turn=(USER,)))  # as if it went on: its text and signature count
    standing = before.table.standing if entry.by == USER else after.table.standing
    me = signer(dialog, entry.by, entry.number, entry)
    if entry.by == USER and (own := marks.summary_of(entry.body)):
        return _drawn_up(dialog, index, Proposal("", USER, own, entry.id), "", "person", (me,))
    if standing is None:
        return None
    signers = tuple(signer(dialog, who, turn) for who, turn in standing.signers)
    method = "mutual" if set(dialog.header.voters) <= {s.agent for s in signers} else "by hand"
    if entry.by == USER:
        method, signers = "person", (*signers, me)
    return _drawn_up(dialog, index, standing.proposal, standing.proposal.ref, method, signers)


def until(dialog: Dialog, count: int) -> Dialog:
    """The dialog with its first `count` entries alone, to be certified as it was then."""
    return replace(dialog, entries=dialog.entries[:count])


def _drawn_up(
    dialog: Dialog, index: int, proposal: Proposal | None, ref: str, method: str, signers: tuple[Signer, ...],
    **more: str,
) -> Certificate:  # fmt: skip
    """The certificate of what was decided in the entry at `index`; `proposal` is None where its text is gone."""
    entry, then = dialog.entries[index], until(dialog, index + 1)
    text, sha = (proposal.text, proposal.sha) if proposal else ("", "")
    stands = dialog.entry(proposal.entry) if proposal else None
    if stands is not None and stands.by_hand:  # typed by hand: the marks are still among its lines
        text, sha = marks.read_reply(text).body, ""
    links = tuple(e.chain for e in then.entries)
    kept = [*steps(then)][-1][3].build.kept if dialog.state.build else []
    return Certificate(
        ref, text, sha or (digest(marks.same_text(text)) if text else ""), method, entry.at, entry.id, signers,
        (links[0], links[-1]), len(links), dialog.id, stands_in=proposal.entry if proposal else "",
        header=digest(dialog.header.text), links=links,
        trees=tuple(Tree(task.id, task.tree, task.commit) for task in kept if task.tree), **more,
    )  # fmt: skip


# -- What was changed since something was agreed, in words ------------------------------------------------------------

DIFF_LINES = 12


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not what it was; `is_harm` is False for what may be done: added, struck, ruled out."""

    words: str
    is_harm: bool = True


def changes(dialog: Dialog) -> tuple[Change, ...]:
    """What the file itself shows to be changed of its last decision; nothing while there is none."""
    c = certify(dialog)
    if c is None:
        return tuple(_withdrawn(dialog, None))
    text = _text(dialog, c)
    found = map(Change, (*([text] if text else []), *_signers(dialog, c, told=c.stands_in if text else "")))
    return (*found, *_withdrawn(dialog, c))


def _text(dialog: Dialog, c: Certificate) -> str:
    if not c.text:
        return f"{c.title} no longer stands in the file: it was taken out, cut or overwritten"
    now, entry = digest(marks.same_text(c.text)), dialog.entry(c.stands_in)
    after = [f"{s.agent} {c.verb} it in turn {s.turn}" for s in c.signers if s.turn and str(s.turn) != c.stands_in]
    who = ", ".join(after) or "it was written"
    if now != c.sha:
        return f"the agreed text {c.title} was changed after {who}: recorded {c.sha}, now {now}"
    if entry is not None and entry.condition is Condition.EDITED:
        doubt = "the text may be another one, with its hash"
        return f"{where(c.stands_in)}, where {c.ref or 'the text'} stands, was edited after {who}: {doubt}"
    return ""


def _signers(dialog: Dialog, c: Certificate, told: str) -> Iterator[str]:
    """Signers whose turn is gone or changed, or no longer says it; of the entry `told` it was said already."""
    what = c.ref or "the text"
    for one in c.signers:
        entry, words = _turn_of(dialog, one.agent, one.turn), f"turn {one.turn}, in which {one.agent} {c.verb} {what}"
        if not one.turn:
            if c.method == "vote":
                yield f"the decision counts {one.agent} for {what}, and no such vote stands in the file"
        elif entry is None:
            yield f"{words}, is gone, cut or overwritten"
        elif not _says(entry, c.ref, c.method):
            yield f"{words}, no longer says so"
        elif entry.condition is Condition.EDITED and entry.id != told:
            yield f"{words}, was edited after it was written"


def _says(entry: Entry, ref: str, method: str) -> bool:
    """True when that turn still says what counted: a signature, a decision, or the text itself; votes were counted."""
    if method in ("vote", "judge"):
        return method == "vote" or any(mark.name == "DECIDE" for mark in entry.written)
    if method in ("moderator", "decide", "review"):
        made = (marks.decision(mark) for mark in entry.written if mark.name == "DECIDE")
        return any(choice is not None and (choice.ref, choice.choice) == (ref, "approve") for choice in made)
    texts = {mark.ref for mark in entry.written if mark.name == "CONSENSUS_PROPOSED"}
    return entry.by_hand or ref in texts.union(*map(marks.agreed, entry.written))


def _withdrawn(dialog: Dialog, c: Certificate | None) -> Iterator[Change]:
    """What the person struck or ruled out of an agreement, or of one that there was: their right, and to be known."""
    turns: dict[int, str] = {}
    refs: set[str] = set()
    if c is not None:
        refs.add(c.ref)
        turns |= {s.turn: f"in which {s.agent} {c.verb} it" for s in c.signers if s.turn}
        if c.stands_in.isdigit():
            turns[int(c.stands_in)] = "in which the agreed text stands"
    for entry in dialog.entries if c is None else ():
        made = [mark for mark in entry.written if mark.name == "DECISION" and mark.fields[0] == "approved"]
        refs |= {mark.ref for mark in made}
        if not entry.counts and (made or any(m.name in AGREED for m in entry.written)):
            turns[entry.number] = f"in which {(made[0].ref if made else '') or 'the text'} was agreed"
    for number, strike in strikes(dialog).items():
        if number in turns:
            words = f"turn {number}, {turns[number]}, was struck by the person in {where(strike.entry.id)}"
            yield Change(words, is_harm=False)
    for decision in dialog.state.table.decisions:
        if decision.method == "veto" and decision.ref in refs:
            yield Change(f"{decision.ref} was ruled out by the person in {where(decision.entry)}", is_harm=False)


# -- Against a certificate that was kept ------------------------------------------------------------------------------

_FACTS = ("ref", "method", "decided_in", "decided_at", "evidence", "reason", "sha", "trees")


def differences(saved: Mapping[str, Any], dialog: Dialog) -> tuple[Change, ...]:
    """What differs between a certificate as it was kept and the file; entries that were added after are no harm."""
    links = [*map(str, saved.get("links") or ())]
    # It covers the file up to the entry that decided, by its hash, else by its id.
    last = [n for n, e in enumerate(dialog.entries, 1) if e.chain in links[-1:]]
    last = last or [n for n, e in enumerate(dialog.entries, 1) if e.id == saved.get("decided_in")]
    count = (*last, min(len(links) or len(dialog.entries), len(dialog.entries)))[0]
    entries, now = dialog.entries[:count], certify(until(dialog, count))
    found = []
    if saved.get("dialog") not in (None, dialog.id):
        found.append(Change(f"the certificate is of dialog {saved['dialog']}, this file is dialog {dialog.id}"))
    elif saved.get("header") not in (None, "", digest(dialog.header.text)):
        found.append(Change("the header is not what it was: agents, limits, roles or rules were changed"))
    if now is None:  # by the person's strike or veto, or by a change of the file
        ref, place = saved.get("ref") or "the text", where(str(saved.get("decided_in") or "?"))
        words = f"nothing is decided there any more: the certificate says that {ref} was in {place}"
        by_person = [change.words for change in _withdrawn(dialog, None)]
        found.append(Change("; ".join([words, *by_person]), is_harm=not by_person))
    else:
        found += map(Change, _same_decision(saved, now.as_json()))
    found += map(Change, _same_entries(links, entries))
    if more := len(dialog.entries) - count:
        added = "1 entry was" if more == 1 else f"{more} entries were"
        found.append(Change(f"{added} added after it", is_harm=False))
    return tuple(found)


def _same_decision(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in _FACTS:
        if saved.get(key, now[key]) != now[key]:
            was, is_ = (value if value and not isinstance(value, list) else "other" for value in (saved[key], now[key]))
            yield f"`{key}` was {was or 'none'}, and is {is_ or 'none'}"
    if (text := str(saved.get("text", ""))) != now["text"]:
        lines = difflib.unified_diff(text.split("\n"), now["text"].split("\n"), "certificate", "file", lineterm="", n=1)
        yield "\n".join(("the agreed text is not what it was:", *itertools.islice(lines, DIFF_LINES)))
    before, after = ({one["agent"]: one for one in each} for each in (saved.get("signers") or (), now["signers"]))
    for who in {**before, **after}:
        if who not in after:
            yield f"{who}, who stood behind it in turn {before[who].get('turn')}, no longer does"
        elif who not in before:
            yield f"{who} stands behind it now, and did not"
        else:
            for key in ("turn", "at", "reservation"):
                if before[who].get(key) != after[who][key]:
                    yield f"{who}'s {key} was {before[who].get(key) or 'none'}, and is {after[who][key] or 'none'}"


def _same_entries(was: Sequence[str], entries: Sequence[Entry]) -> Iterator[str]:
    """Entries that are not what they were, by their hashes; one that stands there twice, too."""
    matched = difflib.SequenceMatcher(a=was, b=[entry.chain for entry in entries], autojunk=False)
    for what, a, b, c, d in matched.get_opcodes():
        said = {"insert": "was not there"}.get(what, "is not what it was")
        for index in range(c, d):
            if what != "equal" or entries[index].condition in (Condition.EDITED, Condition.DAMAGED):
                yield f"entry {index + 1} ({named(entries[index])}) {said}"
        yield from (f"entry {number + 1} is gone" for number in range(a + (d - c), b) if what != "equal")


# -- Seals: an agent binds itself to its first answer by a hash -------------------------------------------------------

_CLOSING = re.compile(r"\n*^---\n\n\*\*Total turns:\*\* [0-9]+\n\*\*Duration:\*\* .*\n\*\*Outcome:\*\* .*\Z", re.M)


def own_words(body: str) -> str:
    """A turn's body without the lines that a daemon writes under the one that ends the dialog."""
    return _CLOSING.sub("", body).strip("\n")


def sealed_text(body: str, given: Iterable[Mark]) -> str:
    """What a seal is made over: the body, then the agent's own marks; proposals without the number they get."""
    own = (marks.as_given(mark) for mark in given if mark.name not in marks.UNSEALED and marks.is_agents(mark))
    return "\n\n".join(part for part in (body.strip("\n"), "\n".join(map(str, own))) if part)


def seal(nonce: str, text: str) -> str:
    """The hash that an agent publishes first: 64 hex digits."""
    return hashlib.sha256((nonce + text).encode("utf-8", "replace")).hexdigest()


# -- Sealed first answers, checked from the file alone ----------------------------------------------------------------

COULD_READ = "could read files"


@dataclass(frozen=True, slots=True)
class SealedAnswer:
    """One agent's answer in a sealed round, opened by the entry `re`."""

    agent: str
    re: str
    note: str  # holds its seal
    turn: int  # holds its text; 0 for none
    status: str  # fits, waiting (it may still come), void (it did not), replaced (sealed anew), broken or unsealed
    why: str  # the same in words
    is_independent: bool = False
    could_read: bool = False

    @property
    def is_harm(self) -> bool:
        """True when something was changed, or is not what it claims to be."""
        return self.status == "broken"


def answers(dialog: Dialog) -> tuple[SealedAnswer, ...]:
    """Every seal of the file and what became of it, then what was answered in the same rounds without one."""
    agents = {agent.id for agent in dialog.everybody}
    framed = [e for e in dialog.entries if e.condition is not Condition.UNFINISHED and e.frame and e.by in agents]
    notes = [e for e in framed if not e.is_turn and e.mark("SEALED")]
    turns = [e for e in framed if e.is_turn]
    last = {(note.by, note.re): note.id for note in notes}
    found = [_checked(dialog, note, turns, is_last=last[note.by, note.re] == note.id) for note in notes]
    rounds = {re for _, re in last}
    for turn in turns:
        opens = turn.frame is not None and bool(turn.frame.nonce)
        if (turn.by, turn.re) not in last and (turn.re in rounds or opens):
            words = "opens a seal that does not stand in the file" if opens else "answers without a seal"
            status = "broken" if opens else "unsealed"
            found.append(SealedAnswer(turn.by, turn.re, "", turn.number, status, f"turn {turn.number} {words}"))
    return tuple(found)


def _checked(dialog: Dialog, note: Entry, turns: Sequence[Entry], *, is_last: bool) -> SealedAnswer:
    sha, *more = note.all("SEALED")[0].fields
    answer = next((t for t in turns if t.start > note.start and (t.by, t.re) == (note.by, note.re)), None)
    status, why = ("replaced", "it was sealed once more") if not is_last else _status(dialog, note, sha, answer)
    earlier = []
    if status == "fits" and answer is not None:
        asked = dialog.entry(note.re)
        since = asked.start if asked is not None else 0
        earlier = [f"{turn.by}'s in turn {turn.number}" for turn in turns if since < turn.start < note.start]
        before = f", and {', '.join(earlier)} stood in the file before that"
        alone = ", which stood before any answer: independent"
        why = f"turn {answer.number} fits its seal in note {note.id}{before if earlier else alone}"
    number = answer.number if answer is not None and is_last else 0
    is_independent = status == "fits" and not earlier
    return SealedAnswer(note.by, note.re, note.id, number, status, why, is_independent, COULD_READ in more)


def _status(dialog: Dialog, note: Entry, sha: str, answer: Entry | None) -> tuple[str, str]:
    if note.condition is not Condition.SOUND:
        return "broken", f"the seal in note {note.id} was changed since it was written"
    if answer is None:
        if any(seal.entry == note.id for seal in dialog.state.debts.seals):
            return "waiting", "its text is to follow"
        is_lost = any(e.condition is Condition.DAMAGED and (e.by, e.re) == (note.by, note.re) for e in dialog.entries)
        return ("broken", "its text was cut or overwritten") if is_lost else ("void", "its text did not come")
    if answer.frame is None or not answer.frame.nonce:
        return "broken", f"turn {answer.number} answers, and opens no seal"
    now = seal(answer.frame.nonce, sealed_text(answer.body, answer.written))
    edited = ", which was edited since it was written," if answer.condition is not Condition.SOUND else ""
    words = f"the text in turn {answer.number}{edited} does not fit its seal"
    return ("fits", "") if now == sha else ("broken", f"{words}: sealed {sha[:16]}…, this text gives {now[:16]}…")


# -- A dialog worked out anew: what its daemons wrote, compared with what follows from the entries before -------------
#
# Readers are forgiving, so that a person may type; whoever writes frames is not forgiven. What no file shows is taken
# as it stands: reasons, times, what git and a gate said. What the person typed breaks no rule.


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry that does not follow from those before it, in a plain sentence; `chain` is its hash."""

    line: int
    words: str
    chain: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.words}"


def faults(data: bytes) -> tuple[Fault, ...]:
    """The framed entries that no daemon could have written where they stand. Raises `NotADialog`."""
    # Each is judged in the dialog as it stood then, up to the first entry that was changed: behind it nothing follows.
    dialog, found = parse(data), list[Fault]()
    header = dialog.header_as_written
    first = dialog.entries[0].start if dialog.entries else len(data)
    before = Dialog(read_header(header.text), (), beginning(header), first, written=header)
    for entry, after in itertools.zip_longest(dialog.entries, dialog.entries[1:]):
        if entry.condition not in (Condition.SOUND, Condition.BY_HAND) or not entry.linked:
            break
        if entry.frame is not None:
            words = fault_of(before, entry, data[entry.start : entry.end])
            found += [Fault(entry.line, f"{where(entry.id)} of {entry.by} {words}", entry.chain)] if words else []
        if after is not None:
            before = read_on(before, data[before.size : after.start]) if before.entries else parse(data[: after.start])
    return tuple(found)


def fault_of(before: Dialog, entry: Entry, raw: bytes) -> str:
    """Why no daemon could have written this entry, with these bytes, behind those before it; "" where one could."""
    then = replace(entry, marks=entry.written, withdrawn=None)  # what was withdrawn later counted then
    return _form(before, then, raw) or _against(before, then)


def _form(before: Dialog, entry: Entry, raw: bytes) -> str:
    """Why the bytes are not those that a writer makes of such an entry; "" where they are."""
    draft = Draft(entry.by, entry.name, entry.number, entry.body, entry.marks, entry.turn)
    inside, wanted = (part.split(b"\n", 2)[-1].rstrip() for part in (raw, render(draft, "")))
    wanted = clean(wanted.decode()).encode()
    if inside != wanted:
        pairs = itertools.zip_longest(inside.split(b"\n"), wanted.split(b"\n"), fillvalue=b"")
        there = next(a for a, b in pairs if a != b).decode("utf-8", "replace")
        return f"is not written as entries are at `{one_line(there, 60)}`"
    if entry.is_turn and entry.number != before.state.number + 1 and not (before.last and before.last.by_hand):
        return f"is out of order: the next is turn {before.state.number + 1}"
    return ""


def _against(before: Dialog, entry: Entry) -> str:
    if entry.by == USER:
        is_free = entry.turn is None and all(str(mark).startswith(marks.FROM_SEATS) for mark in entry.marks)
        is_allowed = entry.is_persons or (is_free and not entry.is_turn)
        return "" if is_allowed else "is from a session: it is the person's alone"
    if entry.by == SYSTEM:
        bare = entry.turn is None and (not entry.marks or entry.mark("DIGEST") is not None)
        drafts = [] if bare else list(filter(None, _notes(before, entry)))
        is_like = any(draft.turn == entry.turn and _names(draft.marks) == _names(entry.marks) for draft in drafts)
        return "" if bare or is_like else "does not follow: nothing calls for it"
    debts = before.state.debts.open
    if not any(debt.agent in (entry.by, ANY) and debt.re == entry.re for debt in debts):
        return f"answers no open debt: the turn is with {', '.join(before.state.owing) or 'nobody'}"
    if not entry.is_turn:
        return "" if {mark.name for mark in entry.marks} == {"SEALED"} else "is no seal, and no turn"
    return _turn(before, entry)


def _turn(before: Dialog, entry: Entry) -> str:
    """Why an agent's own marks do not come to what its daemon wrote; "" where they do."""
    policy, steps, refusals = MarkPolicy(before, entry.by), list[Close](), list[str]()
    body, done = own_words(entry.body), tuple[Mark, ...]()
    if before.state.build.due_of(entry.by)[0] is Due.WORK:  # the records of a submission
        done = build.records_of_work(entry)
    for reply in _replies(before, entry, done):
        refused = policy.admitted(reply)[1]
        refusals += [f"`{one_line(str(one.mark), 80)}` may not count: {one.why}" for one in refused]
        if not refused:
            steps.append(compose.concluded(before, entry.by, reply, (), body, done))
    if any(step.turn == entry.turn and _counted(step.marks) == _counted(entry.marks) for step in steps):
        return ""
    if not steps:
        return f"does not follow: {refusals[0]}"
    wanted, there = _counted(steps[0].marks), _counted(entry.marks)
    differ = [*(f"`{one_line(mark, 80)}` counts for nothing there" for mark in there - wanted)]
    differ += (f"`{one_line(mark, 80)}` is missing" for mark in wanted - there)
    going = f"the rules go on with `TURN: {', '.join(steps[0].turn or ())}`"
    return f"does not follow: {(*differ, going)[0]}"


def _replies(before: Dialog, entry: Entry, done: tuple[Mark, ...]) -> Iterator[marks.ParsedReply]:
    left = [mark for mark in entry.marks if mark not in done]
    either = [mark for mark in left if mark.name in marks.EITHERS]
    own = [
        marks.as_given(mark) for mark in left if mark.name not in (*marks.EITHERS, *AGREED) and marks.is_agents(mark)
    ]
    put, header = entry.put, before.header
    claim = Mark("CONSENSUS_REACHED", " | ".join(put.fields[1:]) if put else "")
    claims = [[claim]] if put else [[]]
    if not put and header.rules.verdict == "mutual" and len(header.voters) < 2:
        claims.append([claim])  # an end that fewer than two may sign leaves no mark
    body = own_words(entry.body)
    for count in range(len(either), -1, -1):
        for chosen, said in itertools.product(itertools.combinations(either, count), claims):
            yield marks.ParsedReply(body, (*own, *chosen, *said), marks.summary_of(body))


def _notes(before: Dialog, entry: Entry) -> Iterator[Draft | None]:
    """The notes that a daemon may write here, for what this one says."""
    at, state, limits = entry.at, before.state, before.state.limits
    if state.outcome is not None:
        return
    yield from (compose.error_note(before, *why) for why in entry.failures if state.debt(why[0]) is not None)
    yield from (compose.stall_note(before, who, at) for who in entry.silent if state.debt(who) is not None)
    why = marks.round_of(entry.marks, "closing")
    if why is not None and (limits.max_time is not None or (before.header.is_unattended and cycle(before))):
        yield compose.closing_note(before, why, at)
    yield questions.due(before, at)
    yield compose.decided_note(before, at)
    yield compose.going_on(before, at)
    if state.counted >= limits.max_turns:
        yield compose.limit_note(before, limit_mark("turns", ""), at)
    # A cap of its agent's own stands in no file.
    reached = {"budget": True, "time": limits.max_time is not None, "size": before.size >= limits.max_size}
    end = entry.ending
    causes = [end.value.partition(":")[0]] if end is not None and end.name == "STOPPED" else reached
    yield from (compose.limit_note(before, limit_mark(cause, ""), at) for cause in causes if reached.get(cause))
    rules = state.build.rules
    for what, task, _ in state.build.steps:
        if rules is None or task is None or what not in (Due.ASSIGN, Due.GATE):
            continue
        if what is Due.ASSIGN:
            if task.carried:
                yield build.carried_note(task, Submission("", "", "", ""), state.table.next_ref, at)
            yield build.assigned_note(task, "", "", at)
        else:
            found = entry.all("FINDING")
            yield build.gate_note(rules, task, GateResult(""), found, at)
            yield build.ask_gate_note(rules, task, "", found, at)
        yield build.error_note(state.build, task, "", "", at)


def _counted(said: Iterable[Mark]) -> Counter[str]:
    """The marks that are compared, without the words that are their writer's own."""
    return Counter(_essence(mark) for mark in said if mark.name != "REFUSED")


def _essence(mark: Mark) -> str:
    """What of a mark follows from the file: not a deadline, a crux or a reason."""
    if mark.name in marks.EITHERS or mark.name in OUTCOMES:
        return mark.name
    if mark.name == "DECISION":
        outcome, method, evidence = (*mark.fields, "", "", "")[:3]
        behind = sorted(f"{who} in turn {turn}" for who, turn in recorded((), mark.ref, method, evidence))
        return str(replace(mark, value=" | ".join((outcome, method, ", ".join(behind)))))
    return str(mark)


def _names(said: Iterable[Mark]) -> Counter[tuple[str, str]]:
    return Counter((mark.name, mark.ref) for mark in said)
