"""Who stands behind a decision or an approved tree, and in which turn: from what entries record, found in the file."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dialogd.protocol import build, marks
from dialogd.protocol.build import Task, Tasks
from dialogd.protocol.fold import fold, refs_in, steps, turns_in
from dialogd.protocol.marks import read_reply, same_text, stated, summary_of
from dialogd.protocol.model import AGREED, USER, Condition, Entry, Mark, digest
from dialogd.protocol.state import Dialog, Proposal, State

_IN_TURN = re.compile(r"([A-Za-z][\w-]*) in turn (\d{1,9})")
_VOTERS = re.compile(r"\bfor \(([^)]*)\)")
_JUDGE = re.compile(r"by ([A-Za-z][\w-]*) in turns \d{1,9} and (\d{1,9})")


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed, approved or decided, in which turn (0: a note, or nowhere), when, with which objection left."""

    agent: str
    name: str
    turn: int
    at: str = ""
    reservation: str = ""


def recorded(entries: Sequence[Entry], ref: str, method: str, evidence: str) -> Iterator[tuple[str, int]]:
    """Who stands behind a decision by the evidence of its mark, with the turn; 0 for a vote that is nowhere."""
    if method == "judge":
        yield from ((who, int(turn)) for who, turn in _JUDGE.findall(evidence))
    elif method == "vote":
        for names in _VOTERS.findall(evidence):
            yield from ((who, _vote(entries, who, ref)) for who in filter(None, re.split(r",\s*", names)))
    else:
        yield from ((who, int(turn)) for who, turn in _IN_TURN.findall(evidence))


def position(evidence: str) -> tuple[str, int]:
    """The agent, and the turn, whose position a judge chose; "" and 0 when the evidence names none."""
    match = _IN_TURN.match(evidence)
    return (match[1], int(match[2])) if match else ("", 0)


def _vote(entries: Sequence[Entry], who: str, ref: str) -> int:
    """The turn of the last vote of that agent, if it approves; else 0."""
    for entry in reversed(entries):
        if not _is_turn_of(entry, who):
            continue
        choice = marks.read_vote(entry.written).get(ref)
        if choice is not None:
            return entry.number if choice.choice == "approve" else 0
    return 0


def _is_turn_of(entry: Entry, who: str) -> bool:
    return entry.by == who and entry.is_turn and entry.condition is not Condition.DAMAGED


def turn_of(dialog: Dialog, who: str, number: int) -> Entry | None:
    """That turn, if it stands in the file and is that agent's."""
    return next((e for e in dialog.entries if e.number == number and _is_turn_of(e, who)), None)


def signer(dialog: Dialog, who: str, number: int, entry: Entry | None = None) -> Signer:
    """The signer with what its turn (or `entry`) says; time and objection are "" where that is gone."""
    agent = next((agent for agent in dialog.everybody if agent.id == who), None)
    entry = entry or turn_of(dialog, who, number)
    name = agent.name if agent else entry.name if entry else who
    if entry is None:
        return Signer(who, name, number)
    left = (mark.value for mark in entry.written if mark.name == "RESERVATION" and mark.value)
    return Signer(who, name, number, entry.at, "; ".join(left))


def stands(entry: Entry, ref: str, method: str) -> bool:
    """True when that turn still says what counted: a signature, a vote, a decision, or the text itself."""
    if method == "vote":
        return True  # its turn was found by its vote
    said = entry.written
    if method in ("moderator", "decide", "review"):
        made = [choice for mark in said if mark.name == "DECIDE" and (choice := marks.decision(mark))]
        return any((choice.ref, choice.choice) == (ref, "approve") for choice in made)
    if method == "judge":
        return any(mark.name == "DECIDE" for mark in said)
    puts = any((mark.name, mark.ref) == ("CONSENSUS_PROPOSED", ref) or ref in marks.agreed(mark) for mark in said)
    return puts or entry.by_hand


# -- Certificates -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tree:
    """A git tree that came of a decision: of which task, and the commit with which it was submitted."""

    task: str
    tree: str
    commit: str


RECORDS = "a certificate records, it does not authenticate: whoever can write the file can write a frame"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was agreed. `sha` is the recorded hash of the text, the computed one where none is recorded.

    `method` is mutual, vote, moderator, decide, judge, person or by hand. `decided_in` and `stands_in` are ids of
    entries, `decided_at` wall time; `chain` is the hash of the first entry and of the deciding one, `links` those of
    all `entries` up to it, `header` the hash of the header, which no frame covers. `ref` is "" where the text is no
    proposal; `text` is "" where it no longer stands in the file. `trees` are those that a build had approved by then.
    """

    ref: str
    text: str
    sha: str
    method: str
    decided_at: str
    decided_in: str
    signers: tuple[Signer, ...]
    chain: tuple[str, str]
    entries: int
    dialog: str
    evidence: str = ""
    reason: str = ""
    stands_in: str = ""
    header: str = ""
    links: tuple[str, ...] = ()
    trees: tuple[Tree, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The certificate as it is kept: the fields by name, and what it is worth."""
        facts = asdict(self)
        lists = {"chain": list(self.chain), "links": list(self.links), "signers": list(facts["signers"])}
        lists["trees"] = list(facts["trees"])
        return {**facts, **lists, "note": RECORDS}

    @property
    def title(self) -> str:
        """What was agreed, in words: `P4 in turn 5`."""
        return f"{self.ref or 'the text'} in {where(self.stands_in)}" if self.stands_in else self.ref or "the text"


def where(entry_id: str) -> str:
    """An entry's id in words: `turn 7`, `note 7.2`."""
    return f"note {entry_id}" if "." in entry_id else f"turn {entry_id}"


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
    return entry.condition not in (Condition.DAMAGED, Condition.UNFINISHED) and not entry.is_struck


def _agrees(entry: Entry) -> bool:
    """True for an end by agreement."""
    end = entry.ending if _counts(entry) else None
    return end is not None and end.name in AGREED


def _approval(dialog: Dialog, entry: Entry) -> Mark | None:
    """The approval in this entry that counts; what ends the dialog goes before what one agent decides by the way."""
    counted = {d.ref for d in dialog.state.table.decisions if d.entry == entry.id and d.outcome == "approved"}
    marks = [m for m in entry.all("DECISION") if m.ref in counted and m.fields[0] == "approved"]
    return next((m for m in marks if m.fields[1:2] != ("decide",)), marks[0] if marks else None)


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
        proposal = Proposal("", who, stated(said), said.id) if said else Proposal("", "", "", str(number or ""))
    return _drawn_up(dialog, index, proposal, mark.ref, method, signers, evidence=evidence, reason=reason)


def _without_decision(dialog: Dialog, index: int, before: State) -> Certificate | None:
    """What an end without a DECISION mark agrees to: the person's own summary, else the text on the table."""
    entry = dialog.entries[index]
    after = fold(dialog.header, before, replace(entry, turn=(USER,)))  # as if it went on: its text and signature count
    standing = before.table.standing if entry.by == USER else after.table.standing
    me = signer(dialog, entry.by, entry.number, entry)
    if entry.by == USER and summary_of(entry.body):
        return _drawn_up(dialog, index, Proposal("", USER, summary_of(entry.body), entry.id), "", "person", (me,))
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
        text, sha = read_reply(text).body, ""
    links = tuple(e.chain for e in then.entries)
    approved = (one.task for one in approvals(then) if not one.void)
    return Certificate(
        ref, text, sha or (digest(same_text(text)) if text else ""), method, entry.at, entry.id, signers,
        (links[0], links[-1]), len(links), dialog.id, stands_in=proposal.entry if proposal else "",
        header=digest(dialog.header.text), links=links,
        trees=tuple(Tree(task.id, task.tree, task.commit) for task in approved), **more,
    )  # fmt: skip


# -- Approvals: who stands behind a tree that a build made ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Approval:
    """That the tree of `task` was approved, and the entries on which that rests.

    root       the commit that the first task of this line of work started from
    submitted  the entry that submitted the tree; `tested` has what the gate said of it
    vouched    the entry with the person's word on an untested tree, `approved` the one that approved it
    word       where the person said by a command, once it was approved, that it is
    void       where, and why, it does not count any more: "" while it does
    """

    task: Task
    root: str
    submitted: Entry
    tested: Entry
    approved: Entry
    vouched: Entry | None = None
    word: Entry | None = None
    void: str = ""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries on which it rests, in the order of the file; what is typed counts for nothing beside a `word`."""
        found = filter(None, (self.submitted, self.tested, self.vouched, self.approved, self.word))
        return tuple(entry for entry in dict.fromkeys(found) if not (self.word and entry.by_hand))

    @property
    def wants_word(self) -> bool:
        """True where the person's word by a command is missing: it rests on a typed one, or nothing was tested."""
        is_untested = self.task.gate == "untested" and not (self.vouched or self.approved.by == USER)
        return not self.void and not self.word and (is_untested or any(entry.by_hand for entry in self.entries))

    @property
    def words(self) -> str:
        """What was approved, by whom: `task 003, by M in turn 9, score 86, gate passed`."""
        by = "the person" if self.task.reviewer == USER else self.task.reviewer
        score = "no score" if self.task.score is None else f"score {self.task.score}"
        return f"task {self.task.id}, by {by} in {where(self.approved.id)}, {score}, {build.tested(self.task)}"

    def as_json(self) -> dict[str, Any]:
        """The facts, for programs."""
        task = self.task
        return {
            "task": task.id, "tree": task.tree, "commit": task.commit, "base": task.base, "root": self.root,
            "gate": task.gate, "gate_log": task.log or None, "score": task.score, "author": task.author,
            "reviewer": task.reviewer, "state": task.state, "void": self.void or None,
            "entries": [entry.id for entry in self.entries],
        }  # fmt: skip


def approvals(dialog: Dialog) -> tuple[Approval, ...]:
    """Every approval of a tree that follows from the file, in order, also those that are void by now."""
    if not dialog.state.build:
        return ()
    found: list[Approval] = []
    roots: dict[str, str] = {}
    said: dict[tuple[int, str], Entry] = {}  # the last entry that submitted, tested, vouched for a task
    for entry, _, before, after in steps(dialog):
        for task in after.build.all if after.build is not before.build else ():
            was = before.build.of(task.number) or Task(task.number, "")
            if task.entries[1] == entry.id and was.entries[1] != entry.id:
                said = {key: value for key, value in said.items() if key[0] != task.number}
                said[task.number, "submitted"] = entry
            if task.gate != was.gate and task.gate:
                said[task.number, "tested"] = entry
                if entry.by == USER:
                    said[task.number, "vouched"] = entry
            is_new = task.state == build.APPROVED and was.state not in (build.APPROVED, build.MERGED)
            if is_new and (submitted := said.get((task.number, "submitted"))) is not None:
                root = roots.setdefault(task.commit, roots.get(task.base, task.base))
                tested = said.get((task.number, "tested"), submitted)
                vouched = said.get((task.number, "vouched")) if task.gate == "untested" else None
                found.append(Approval(task, root, submitted, tested, entry, vouched))
        accepted = build.accepted_in(entry, before.build)
        found = [_voided(replace(one, word=entry) if one.wants_word and one.task.number in accepted else one,
                         after.build, entry) for one in found]  # fmt: skip
    return tuple(found)


def _voided(approval: Approval, now: Tasks, entry: Entry) -> Approval:
    """The approval after an entry: void once its task is no longer approved; merged is approved too."""
    task = now.of(approval.task.number)
    if approval.void or (task is not None and task.tree == approval.task.tree and task.state in _STANDING):
        return approval if task is None or approval.void else replace(approval, task=task)
    return replace(approval, void=f"the work was moved to another base in {where(entry.id)}")


_STANDING = frozenset({build.APPROVED, build.MERGED})


def doubts(
    dialog: Dialog, approval: Approval, faulty: Mapping[str, str], known: Collection[str] | None, *, untested: bool
) -> Iterator[str]:
    """Why an approval does not hold, in words; nothing where it does.

    `faulty` says by an entry's hash which rule of the protocol it breaks, `known` has the hashes that journals
    remember, None where there are none to ask. `untested` is the word of who asks on a tree that no gate tested.
    """
    task = approval.task
    yield from unproved(dialog, approval, faulty, known)
    if task.gate not in build.GREEN:
        yield f"its gate {'ran out of time' if task.gate == 'timeout' else 'failed' if task.gate else 'was not run'}"
    elif approval.wants_word and not untested and not any(entry.by_hand for entry in approval.entries):
        yield f"no gate tested it, and the person has not said that this will do; that is said by: {_accept(task)}"
    for entry in dialog.entries:
        if entry.condition in (Condition.EDITED, Condition.DAMAGED) and entry not in approval.entries:
            yield f"{_named(entry)} was {'edited' if entry.condition is Condition.EDITED else 'cut or overwritten'}"
        elif known is not None and entry.frame and entry.chain not in known and entry not in approval.entries:
            yield f"{_named(entry)} is in no journal here: forged, or the file is from elsewhere"
        if not entry.linked:
            yield f"the chain is broken at {_named(entry)}: what stood before it was changed, removed or inserted"


def unproved(
    dialog: Dialog, approval: Approval, faulty: Mapping[str, str], known: Collection[str] | None
) -> Iterator[str]:
    """What keeps an approval from being the word of those who have to give it, whatever the gate said."""
    task, rules = approval.task, dialog.state.build.rules
    if approval.void:
        yield f"its approval as task {task.id} is void: {approval.void}"
    by, made = approval.approved.by, approval.approved.marks
    if by == task.author:
        yield f"{by}, who wrote it, approved it"
    elif by != USER and (rules is None or by != rules.moderator):
        yield f"{by} approved it, who does not review"
    if by != USER and build.approval(task, task.score) not in made:
        yield f"{where(approval.approved.id)} has no APPROVED record of this tree"
    for entry in approval.entries:
        if entry.by_hand:
            yield f"{where(entry.id)}, on which it rests, is typed, which any program can; say it by: {_accept(task)}"
        else:
            yield from _unproved(entry, faulty, known)


def _accept(task: Task) -> str:
    return f"dialogd tasks accept {task.id}"


def _unproved(entry: Entry, faulty: Mapping[str, str], known: Collection[str] | None) -> Iterator[str]:
    """What is wrong with an entry on which an approval rests."""
    if entry.condition is not Condition.SOUND:
        yield f"{where(entry.id)}, on which it rests, was changed after it was written"
    elif known is not None and entry.chain not in known:
        yield f"{where(entry.id)}, on which it rests, is in no journal here: forged, or the file is from elsewhere"
    elif entry.by == USER and entry.from_session:
        yield f"{where(entry.id)}, on which it rests, is by a session, not by the person"
    elif entry.chain in faulty:
        yield f"{where(entry.id)}, on which it rests, breaks the protocol: {faulty[entry.chain]}"


# -- What was changed since something was agreed, in words ------------------------------------------------------------

DIFF_LINES = 12
_SAID = {"vote": "approved", "moderator": "decided", "decide": "decided", "judge": "judged", "person": "agreed",
         "review": "approved"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not what it was; `is_harm` is False for what may be done: added, struck, ruled out."""

    words: str
    is_harm: bool = True


def changes(dialog: Dialog) -> tuple[Change, ...]:
    """What the file itself shows to be changed of its last decision; nothing while there is none."""
    certificate = certify(dialog)
    if certificate is None:
        return tuple(_withdrawn(dialog, None))
    text = tuple(_text(dialog, certificate))
    skip = certificate.stands_in if text else ""
    found = [*text, *_signers(dialog, certificate, skip=skip)]
    return (*found, *_withdrawn(dialog, certificate))


def _named(entry: Entry) -> str:
    return f"{where(entry.id)} of {entry.by}" if entry.condition is not Condition.DAMAGED else f"line {entry.line}"


def _text(dialog: Dialog, certificate: Certificate) -> Iterator[Change]:
    """What became of the agreed text."""
    c = certificate
    if not c.text:
        yield Change(f"{c.title} no longer stands in the file: it was taken out, cut or overwritten")
        return
    now, entry = digest(same_text(c.text)), dialog.entry(c.stands_in)
    after = [s for s in c.signers if s.turn and str(s.turn) != c.stands_in]
    who = ", ".join(f"{s.agent} {_verb(c)} it in turn {s.turn}" for s in after) or "it was written"
    if now != c.sha:
        yield Change(f"the agreed text {c.title} was changed after {who}: recorded {c.sha}, now {now}")
    elif entry is not None and entry.condition is Condition.EDITED:
        is_recorded = any(p.sha and (p.ref, p.entry) == (c.ref, c.stands_in) for p in dialog.state.table.proposals)
        doubt = "nobody recorded the hash of the text alone, so it may be another one"
        if is_recorded:
            doubt = "the hash recorded there fits the text, and may have been changed with it"
        yield Change(f"{where(c.stands_in)}, where {c.ref or 'the text'} stands, was edited after {who}: {doubt}")


def _verb(certificate: Certificate) -> str:
    return _SAID.get(certificate.method, "signed")


def _signers(dialog: Dialog, certificate: Certificate, skip: str) -> Iterator[Change]:
    """Signers whose turn is gone or changed, or no longer says it; `skip` is an entry that was spoken of already."""
    verb, what = _verb(certificate), certificate.ref or "the text"
    for signer in certificate.signers:
        if not signer.turn:
            if certificate.method == "vote":
                yield Change(f"the decision counts {signer.agent} for {what}, and no such vote stands in the file")
            continue
        entry = turn_of(dialog, signer.agent, signer.turn)
        words = f"turn {signer.turn}, in which {signer.agent} {verb} {what}"
        if entry is None:
            yield Change(f"{words}, is gone, cut or overwritten")
        elif not stands(entry, certificate.ref, certificate.method):
            yield Change(f"{words}, no longer says so")
        elif entry.condition is Condition.EDITED and entry.id != skip:
            yield Change(f"{words}, was edited after it was written")


def _withdrawn(dialog: Dialog, certificate: Certificate | None) -> Iterator[Change]:
    """What the person struck or ruled out: their right, and to be known."""
    turns, refs = _agreements(dialog, certificate)
    for entry in dialog.entries:
        if entry.by != USER or entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
            continue
        place = f"by the person in {where(entry.id)}"
        for mark in entry.written:
            if mark.name == "STRIKE":
                struck = sorted(turns_in(mark, dialog.state.number) & turns.keys())
                yield from (Change(f"turn {n}, {turns[n]}, was struck {place}", is_harm=False) for n in struck)
            elif mark.name == "VETO":
                ruled_out = [ref for ref in refs_in(mark) if ref in refs]
                yield from (Change(f"{ref} was ruled out {place}", is_harm=False) for ref in ruled_out)


def _agreements(dialog: Dialog, certificate: Certificate | None) -> tuple[dict[int, str], set[str]]:
    """The turns that an agreement rests, or rested, on, in words; and the proposals that were agreed on."""
    turns: dict[int, str] = {}
    refs: set[str] = set()
    if certificate is not None:
        refs.add(certificate.ref)
        turns |= {s.turn: f"in which {s.agent} {_verb(certificate)} it" for s in certificate.signers if s.turn}
        if certificate.stands_in.isdigit():
            turns[int(certificate.stands_in)] = "in which the agreed text stands"
    for entry in dialog.entries if certificate is None else ():
        made = [mark for mark in entry.written if mark.name == "DECISION" and mark.fields[0] == "approved"]
        refs |= {mark.ref for mark in made}
        if entry.is_struck and (made or any(m.name in AGREED for m in entry.written)):
            turns[entry.number] = f"in which {(made[0].ref if made else '') or 'the text'} was agreed"
    return turns, refs


def differences(saved: Mapping[str, Any], dialog: Dialog) -> tuple[Change, ...]:
    """What differs between a certificate as it was kept and the file; entries that were added after are no harm."""
    count = _covered(saved, dialog)
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
        found += _same_decision(saved, now.as_json())
    found += _same_entries([*map(str, saved.get("links") or ())], entries)
    if more := len(dialog.entries) - count:
        added = "1 entry was" if more == 1 else f"{more} entries were"
        found.append(Change(f"{added} added after it", is_harm=False))
    return tuple(found)


def _covered(saved: Mapping[str, Any], dialog: Dialog) -> int:
    """How many entries of the file the certificate covers: up to the one that decided, by its hash, else by its id."""
    last = [*map(str, saved.get("links") or ())][-1:]
    for key, value in (("chain", last[0] if last else ""), ("id", str(saved.get("decided_in", "")))):
        for index in range(len(dialog.entries) - 1, -1, -1):
            if value and getattr(dialog.entries[index], key) == value:
                return index + 1
    return min(len(last and saved["links"]) or len(dialog.entries), len(dialog.entries))


_FACTS = ("ref", "method", "decided_in", "decided_at", "evidence", "reason", "sha", "trees")


def _same_decision(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    for key in _FACTS:
        if saved.get(key, now[key]) != now[key]:
            was, is_ = (value if value and not isinstance(value, list) else "other" for value in (saved[key], now[key]))
            yield Change(f"`{key}` was {was or 'none'}, and is {is_ or 'none'}")
    if (was := str(saved.get("text", ""))) != now["text"]:
        lines = difflib.unified_diff(was.split("\n"), now["text"].split("\n"), "certificate", "file", lineterm="", n=1)
        yield Change("\n".join(("the agreed text is not what it was:", *itertools.islice(lines, DIFF_LINES))))
    was, now_ = ({one["agent"]: one for one in each} for each in (saved.get("signers") or (), now["signers"]))
    for who in {**was, **now_}:
        if who not in now_:
            yield Change(f"{who}, who stood behind it in turn {was[who].get('turn')}, no longer does")
        elif who not in was:
            yield Change(f"{who} stands behind it now, and did not")
        for key in ("turn", "at", "reservation") if who in was and who in now_ else ():
            if was[who].get(key) != now_[who][key]:
                yield Change(f"{who}'s {key} was {was[who].get(key) or 'none'}, and is {now_[who][key] or 'none'}")


def _same_entries(was: Sequence[str], entries: Sequence[Entry]) -> Iterator[Change]:
    """Entries that are not what they were, by their hashes."""
    matched = difflib.SequenceMatcher(a=was, b=[entry.chain for entry in entries], autojunk=False)
    for what, a, b, c, d in matched.get_opcodes():
        words = {"insert": "was not there", "replace": "is not what it was"}
        for index in range(c, d):
            is_edited = entries[index].condition in (Condition.EDITED, Condition.DAMAGED)
            if what in words or is_edited:
                said = words.get(what, "is not what it was")
                yield Change(f"entry {index + 1} ({_named(entries[index])}) {said}")
        yield from (Change(f"entry {number + 1} is gone") for number in range(a + (d - c), b) if what != "equal")
