"""Marks as the page shows them: what is decided about stands in blocks, all else in a thin line or a few grey words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dialogd.protocol import build, marks, questions, review
from dialogd.protocol.board import AGAINST, CONCEDED, FOR, latest, positions
from dialogd.protocol.marks import MARKS
from dialogd.protocol.model import OUTCOMES, SYSTEM, USER, Mark, Said, whose
from dialogd.protocol.review import Finding, findings
from dialogd.protocol.rules import REVIEW, SEVERITIES, Build
from dialogd.protocol.seal import COULD_READ
from dialogd.protocol.state import Dialog, Proposal
from dialogd.protocol.units import listed, many
from dialogd.views.flow import first_words
from dialogd.views.sentences import by_name, ending

BLOCK, LINE, REMARK, SMALL = "block", "line", "remark", "small"
HIDDEN = ""  # what another mark of the same entry says already
RECENT = 1000  # of the last entries: those in which it is looked for who stands behind which proposal
MOST_STANDINGS = 200  # proposals, the latest ones

_SUBMISSION = re.compile(r"task-(\d+), iteration (\d+), tree ")
_HASH = r"gate [0-9a-f]{64}"
_CHOICES = {"approve": ("vote for", "good"), "reject": ("vote against", "bad"), "abstain": ("abstain on", "")}
_DECIDES = {"approve": ("decide for", "good"), "reject": ("decide against", "bad")}
_OUTCOME_TONES = {"approved": "good", "rejected": "bad", "undecided": "asks"}
_LIMITS = {"max_turns": "turns", "max_rounds": "rounds", "max_message": "characters of one message"}
_LABELS = {
    "CONCEDE": "Concedes",
    "EVIDENCE": "Evidence",
    "IDEA": "Idea",
    "CRITIQUE": "Critique",
    "SYNTHESIS": "Brought together",
    "RESERVATION": "Still has a reservation",
    "QUESTION": "Asks the others",
    "REFUSED": "Did not count",
}


@dataclass(frozen=True, slots=True)
class Stand:
    """How some stand to a proposal, in a word (`for`, `against`, `signed by`), and who they are, as ids."""

    how: str
    who: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stands:
    """A proposal as it stands now: its state in a word, "" while it is open, and who stands how to it."""

    ref: str
    state: str
    stands: tuple[Stand, ...]


@dataclass(frozen=True, slots=True)
class Talk:
    """What of a dialog its marks are shown with: names by id, proposals and how they stand by number."""

    names: Mapping[str, str] = field(default_factory=dict)
    proposals: Mapping[str, Proposal] = field(default_factory=dict)
    standings: Mapping[str, Stands] = field(default_factory=dict)
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # those that an entry proposes, by its id
    findings: Mapping[int, Finding] = field(default_factory=dict)  # by their numbers
    build: Build | None = None

    def name(self, who: str) -> str:
        """What somebody is called; the person is `you`."""
        return "you" if who == USER else self.names.get(who, who)

    def about(self, refs: Sequence[str]) -> str:
        """What these proposals say, in a few words; "" for a text that is signed, which stands above."""
        made = [self.proposals[ref] for ref in refs if ref in self.proposals and not self.is_submission(ref)]
        return " · ".join(f"“{first_words(one.text)}”" for one in made if not one.sha)

    def is_submission(self, ref: str) -> bool:
        """True for the number under which a task is reviewed: what it is stands at the task."""
        return bool(self.submitted(ref))

    def submitted(self, ref: str) -> str:
        """The task that is reviewed under that number, "" for none."""
        match = _SUBMISSION.match(self.proposals[ref].text) if self.build and ref in self.proposals else None
        return match[1] if match else ""

    def of(self, entry: str) -> list[Finding]:
        """The findings of an entry, in their order."""
        return [one for one in self.findings.values() if one.entry == entry]

    def named(self, ids: str) -> str:
        """The names of `A, B`."""
        return listed([self.name(who.strip()) for who in ids.split(",")])


@dataclass(frozen=True, slots=True)
class MarkShown:
    """A mark in words. `rank` is a block, a line, a remark or small words beside others.

    who     whose doing it is, "" for nobody's; `says` follows it: `proposes {}`, or is a whole sentence; `named` are
            the proposals in the place of its braces
    ref     its own number; `acts`: the reader can do something about it here
    text    Markdown; `terms` follow it: what else counts, with the moment `by`
    facts   what is only said on demand: hashes
    task    the number of the task that it is about, 0 for none; `log` what its gate said, Markdown
    score   of a review: each part, its points and the most that it may have; `points` the sum, None without one
    found   its findings, the gravest first; `mended` those of earlier that it resolves
    """

    mark: Mark
    rank: str
    says: str
    who: str = ""
    named: str = ""
    ref: str = ""
    text: str = ""
    terms: str = ""
    by: str = ""
    facts: str = ""
    tone: str = ""
    acts: bool = False
    task: int = 0
    log: str = ""
    score: tuple[tuple[str, int, int], ...] = ()
    points: int | None = None
    found: tuple[Finding, ...] = ()
    mended: tuple[Finding, ...] = ()

    @property
    def parts(self) -> tuple[str, str, str]:
        """What it says before the proposals, these, and what it says behind them."""
        before, braces, after = self.says.partition("{}")
        return before, self.named if braces else "", after

    @property
    def about(self) -> str:
        """What such a mark means, "" for a kind of the dialog's own."""
        return MARKS[self.mark.name].meaning if self.mark.name in MARKS else ""


@dataclass(frozen=True, slots=True)
class EntryShown:
    """An entry's words and its marks in their ranks; `body` is Markdown, without what a block shows."""

    body: str
    marks: tuple[MarkShown, ...]

    def of(self, rank: str) -> list[MarkShown]:
        """The marks of one rank."""
        return [mark for mark in self.marks if mark.rank == rank]


def talk_of(dialog: Dialog) -> Talk:
    """What this dialog's marks are shown with."""
    names = {agent.id: agent.name for agent in (*dialog.header_as_written.agents, *dialog.header.agents)}
    tasks: dict[str, tuple[str, ...]] = {}
    for task in dialog.state.tasks.all:
        tasks[task.entries[0]] = (*tasks.get(task.entries[0], ()), task.id)
    known = {one.number: one for one in findings(dialog)} if dialog.state.table.findings else {}
    proposals = {one.ref: one for one in dialog.state.table.proposals}
    return Talk(names, proposals, standings(dialog), tasks, known, dialog.header.rules.build)


def standings(dialog: Dialog) -> Mapping[str, Stands]:
    """Who stands behind which proposal now, by its number: of the latest ones, as their marks say."""
    table = dialog.state.table
    if not table.proposals:
        return {}
    decided = {one.ref: "vetoed" if one.method == "veto" else one.outcome for one in table.decisions}
    newest = next((one.ref for one in reversed(table.proposals) if one.sha), "")
    held: dict[str, dict[str, str]] = {}
    for (agent, ref), position in latest(positions(dialog, RECENT)).items():
        held.setdefault(ref, {})[agent] = position.stance
    found = {}
    for made in table.proposals[-MOST_STANDINGS:]:
        signs = table.standing is not None and table.standing.proposal.ref == made.ref
        state = decided.get(made.ref, "" if signs or not made.sha else "replaced" if made.ref != newest else "cleared")
        signers = [who for who, _ in table.standing.signers] if signs and table.standing is not None else []
        stances = {made.by: FOR, **held.get(made.ref, {})}
        stands = [Stand("signed by", tuple(signers))] if signers else []
        for stance, how in ((FOR, "for"), (AGAINST, "against"), (CONCEDED, "gave it up")):
            who = [agent for agent, held_now in stances.items() if held_now == stance and agent not in signers]
            stands += [Stand(how, tuple(who))] if who else []
        found[made.ref] = Stands(made.ref, state, tuple(stands))
    return found


def in_ranks(entry: Said, body: str, talk: Talk) -> EntryShown:
    """The entry's words and marks as they are shown."""
    by = whose(entry.via) if entry.via else "" if entry.by == SYSTEM else talk.names.get(entry.by, entry.name)
    who = "You" if entry.by == USER and not entry.via else f"{by[:1].upper()}{by[1:]}"
    shown = [_shown(mark, entry, who, talk) for mark in entry.marks]
    numbers = iter(talk.tasks.get(entry.id, ()))
    for at, one in enumerate(shown):
        name = one.mark.name
        if name in ("TASK_PROPOSED", "IMPROVEMENT"):
            shown[at] = replace(one, named=f"task {next(numbers, '')}".strip())
        elif name == "CONSENSUS_PROPOSED" and (summary := marks.summary_of(body)):
            shown[at], body = replace(one, text=summary), marks.before_summary(body)
        elif name == "PROPOSAL" and entry.by == USER:
            words = re.sub(r"\AInstead of ((?:P\d+(?:, )?)+):\n\n", "", body)
            instead = re.match(r"Instead of ((?:P\d+(?:, )?)+):\n\n", body)
            if " ".join(words.split()) == one.text:
                terms = f"instead of {instead[1]}" if instead else ""
                shown[at], body = replace(one, text=words, terms=terms), ""
        elif name == "REJECTED" and " ".join(body.split()) == " ".join(one.text.split()):
            body = ""
        elif name == "GATE" and entry.by == SYSTEM:
            shown[at], body = replace(one, log=body), ""
        elif name == "QUESTION_FOR_USER" and one.mark.value == build.to_confirm(talk.tasks.get(entry.id, ())):
            shown[at] = replace(one, rank=HIDDEN)  # the tasks stand above
    return EntryShown(body, tuple(_reviewed(shown, entry, who, talk)))


# -- A review ---------------------------------------------------------------------------------------------------------


def _reviewed(shown: Sequence[MarkShown], entry: Said, who: str, talk: Talk) -> Iterator[MarkShown]:
    """What a review says in one block: what it decides, its points, its findings, what it resolves."""
    here = [mark for mark in entry.marks if mark.name in REVIEW]
    record, choice, approval = (
        next((one for one in shown if one.mark.name == name and one.task), None)
        for name in ("TASK", "DECIDE", "APPROVED")
    )
    if not here and not choice:
        if entry.by == SYSTEM and any(one.task for one in shown):
            shown = [one for one in shown if one.mark.name != "QUESTION_FOR_USER"]  # the record says what is asked
        yield from shown
        return
    folded = [one for one in (record, choice, approval) if one is not None]
    others = [one for one in shown if one.mark.name not in REVIEW and one not in folded]
    says = _does(who, "review") if who else "Found by dialogd itself"
    first = record or choice or MarkShown(here[0], BLOCK, says, who=who, tone="" if who else "asks")
    terms = [one.terms for one in folded]
    if record and choice and record.text:
        terms.insert(1, record.text)  # what the daemon counts, beside the reviewer's own reason
    score = next((_score(mark, talk) for mark in reversed(here) if mark.name == "SCORE"), ())
    yield replace(
        first,
        text=choice.text if choice else first.text,
        terms=" · ".join(filter(None, terms)),
        facts=approval.facts if approval else first.facts,
        score=score,
        points=first.points if first.points is not None else _sum(score, talk),
        found=tuple(sorted(_findings(here, entry, talk), key=lambda one: (not one.blocks, _gravity(one), one.number))),
        mended=tuple(_resolves(here, talk)),
    )
    yield from others


def _sum(score: Sequence[tuple[str, int, int]], talk: Talk) -> int | None:
    """What the parts come to, of a hundred; None where one is missing."""
    if len(score) < (len(talk.build.criteria) if talk.build else len(review.PARTS)):
        return None
    return round(100 * sum(got for _, got, _ in score) / sum(most for _, _, most in score))


def _score(mark: Mark, talk: Talk) -> tuple[tuple[str, int, int], ...]:
    if talk.build is None:
        return tuple((name, round(value), 100) for name, value in review.parts_of(marks.fields_of(mark)).items())
    points = build.points(talk.build, [mark])
    return tuple((name.replace("_", " "), points[name], most) for name, most in talk.build.criteria.items()
                 if name in points)  # fmt: skip


def _findings(found: Sequence[Mark], entry: Said, talk: Talk) -> Iterator[Finding]:
    """The findings of an entry as they stand now; of one that is still being written as it tells them."""
    known = iter(talk.of(entry.id) if entry.id else ())
    for mark in found:
        if mark.name == "FINDING":
            yield next(known, None) or review.finding(marks.fields_of(mark))


def _gravity(one: Finding) -> int:
    word = one.severity.casefold()
    return SEVERITIES.index(word) if word in SEVERITIES else len(SEVERITIES)


def _resolves(found: Sequence[Mark], talk: Talk) -> Iterator[Finding]:
    for mark in found:
        number, *how = marks.fields_of(mark)
        if mark.name == "RESOLVED" and (match := re.search(r"\d{1,6}", number)):
            known = talk.findings.get(int(match[0])) or Finding(int(match[0]), "", 0)
            yield replace(known, resolved=" | ".join(how) or "resolved")


# -- One mark ---------------------------------------------------------------------------------------------------------


def _shown(mark: Mark, entry: Said, who: str, talk: Talk) -> MarkShown:
    make = _WORDS.get(mark.name)
    if mark.name in OUTCOMES and entry.turn is None and (mark.name != "DEADLOCK" or not mark.value):
        return _end(mark, who, talk)
    if make is not None:
        return make(mark, who, talk)
    label = _LABELS.get(mark.name) or mark.name.replace("_", " ").capitalize()
    return MarkShown(mark, REMARK, label, ref=mark.ref, text=mark.value.replace(" | ", " – "))


def _does(who: str, verb: str) -> str:
    """A verb as it follows who does it: you propose, Claude A proposes."""
    if who == "You":
        return verb
    head, blank, rest = verb.partition(" ")
    return f"{'passes' if head == 'pass' else f'{head}s'}{blank}{rest}"


def _line(mark: Mark, who: str, says: str, why: str = "", *, tone: str = "", facts: str = "") -> MarkShown:
    return MarkShown(mark, LINE, says, who=who, text=why, tone=tone, facts=facts)


def _small(mark: Mark, words: str) -> MarkShown:
    return MarkShown(mark, SMALL, words)


def _end(mark: Mark, who: str, talk: Talk) -> MarkShown:
    """How a dialog ended."""
    if talk.build is not None and mark.name in ("DECIDED", "DEADLOCK"):
        return _line(mark, "", "The build has ended", mark.value)
    says, why = ending(mark)
    if who and mark.name == "STOPPED" and why == mark.value:  # not for a cause of the daemons'
        return _line(mark, who, "stopped the dialog", why)
    return _line(mark, "", says, why, tone="bad" if mark.value.startswith("error:") else "")


def _proposal(mark: Mark, who: str, talk: Talk) -> MarkShown:
    if talk.is_submission(mark.ref):
        return MarkShown(mark, HIDDEN, "")
    says, ref = _does(who, "propose {}" if mark.ref else "propose"), mark.ref
    return MarkShown(mark, BLOCK, says, who=who, named=ref, ref=ref, text=mark.value, acts=bool(ref))


def _text(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    sha, *how = mark.fields
    says = _does(who, "put {} on the table, for all to sign" + ", without signing it" * bool(how))
    facts = f"hash of the text: {sha}" * bool(sha)
    return MarkShown(mark, BLOCK, says, who=who, named=mark.ref, ref=mark.ref, facts=facts, acts=bool(mark.ref))


def _objection(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    refs = marks.objected(mark)
    says = _does(who, "object to {}" if refs else "object")
    return MarkShown(mark, BLOCK, says, who=who, named=listed(refs), text=mark.value, tone="bad")


def _agree(mark: Mark, who: str, talk: Talk) -> MarkShown:
    refs = marks.agreed(mark)
    made = talk.proposals.get(refs[0]) if refs else None
    says = _does(who, "sign {}" if made is not None and made.sha else "agree with {}" if refs else "agree")
    why = mark.value.partition("|")[2].strip()
    about = talk.about(refs[:1])
    return MarkShown(mark, BLOCK, says, who=who, named=listed(refs), text=why, terms=about, tone="good")


def _vote(mark: Mark, who: str, talk: Talk) -> MarkShown:
    choice, known = marks.vote(mark), _CHOICES if mark.name == "VOTE" else _DECIDES
    if choice is None or choice.choice not in known:
        says = _does(who, "vote" if mark.name == "VOTE" else "decide")
        return MarkShown(mark, BLOCK, says, who=who, text=mark.value.replace(" | ", " – "))
    (verb, tone), about = known[choice.choice], talk.about((choice.ref,))
    says, why = _does(who, f"{verb} {{}}"), choice.reason
    if task := talk.submitted(choice.ref):
        says = _does(who, {"good": "approve {}", "bad": "send {} back"}[tone])
        return MarkShown(mark, BLOCK, says, who=who, named=f"task {task}", text=why, tone=tone, task=int(task))
    return MarkShown(mark, BLOCK, says, who=who, named=choice.ref, text=why, terms=about, tone=tone)


def _decision(mark: Mark, _who: str, talk: Talk) -> MarkShown:
    outcome, _, evidence, reason = (*mark.fields, "", "", "", "")[:4]
    if talk.is_submission(mark.ref):
        return MarkShown(mark, HIDDEN, "")
    what = "{} is" if mark.ref else "It is"
    told = by_name(evidence, talk.name).rstrip(".")
    words = ". ".join(f"{part[:1].upper()}{part[1:]}" for part in (told, reason) if part)
    return MarkShown(mark, BLOCK, f"{what} {outcome}", named=mark.ref, text=words, tone=_OUTCOME_TONES.get(outcome, ""))


def _asks(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    asked = questions.parse(mark)
    says = _does(who, "ask you") if who else "A question for you"
    says = "ask" if who == "You" else says
    terms = f"Suggested answer: {asked.default}" if asked.default else ""
    return MarkShown(mark, BLOCK, says, who=who, text=asked.text, terms=terms, by=asked.by, tone="asks")


def _escalates(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    says = _does(who, "hand it to who decides") if who else "It goes to who decides"
    return MarkShown(mark, BLOCK, says, who=who, text=mark.value, tone="asks")


def _deadlock(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    crux, *experiment = mark.fields
    terms = f"What would settle it: {' – '.join(experiment)}" if experiment else ""
    if not marks.is_called(mark):
        return MarkShown(mark, BLOCK, "No agreement was reached", text=mark.value, tone="bad")
    says = _does(who, "see no agreement") if who else "No agreement is in sight"
    return MarkShown(mark, BLOCK, says, who=who, text=crux, terms=terms, tone="bad")


def _veto(mark: Mark, who: str, talk: Talk) -> MarkShown:
    refs, _, why = mark.value.partition("|")
    says, about = _does(who, "rule out {}"), talk.about((refs.strip(),))
    return MarkShown(mark, BLOCK, says, who=who, named=refs.strip(), text=why.strip(), terms=about, tone="bad")


def _approved(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    if mark.value.startswith("task-"):
        _, tree, gate, *score = (*mark.fields, "", "", "")[:4]
        tested = {
            "untested": "nobody tested it",
            "failed": "its gate failed",
            "timeout": "its gate ran out of time",
        }.get("".join(gate.split(" ")[1:2]), "its gate passed" * bool(re.fullmatch(_HASH, gate)))
        terms = " · ".join(filter(None, (tested, "it counts for exactly this state of the files")))
        says = _does(who, "approve {}") if who else "{} is approved by your word"
        facts, points, number = f"{tree} · {gate}", score[0].removeprefix("score "), build.number_of(mark)
        return MarkShown(
            mark, BLOCK, says, who=who, named=f"task {number:03}", terms=terms, facts=facts, tone="good", task=number,
            points=int(points) if points.isdecimal() else None,
        )  # fmt: skip
    return MarkShown(mark, BLOCK, f"{_does(who, 'approve')} the result", who=who, text=mark.value, tone="good")


def _rejected(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    return MarkShown(mark, BLOCK, f"{_does(who, 'reject')} the result", who=who, text=mark.value, tone="bad")


def _limit(mark: Mark, who: str, talk: Talk) -> MarkShown:
    name, _, value = mark.value.partition(" ")
    if name in _LIMITS:
        says = f"set the limit to {value} {_LIMITS[name]}"
    elif name == "timeout" and (own := re.match(r"([A-Za-z][\w-]*) (\d.*)", value)):
        says = f"gave {talk.name(own[1])} {own[2]} for each turn"
    else:
        known = {"max_time": "the time", "max_size": "the size of the file", "timeout": "the time for one turn"}
        says = f"set {known.get(name, f'the {name}')} to {value}"
    return _line(mark, who, says)


def _strike(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    turns, _, why = mark.value.partition("|")
    several = "turns" if re.search(r"\d\D+\d", turns) else "turn"
    return _line(mark, who, f"withdrew {several} {turns.strip()}", why.strip())


def _step(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    is_on = mark.value.strip().lower() != "off"
    says = "asked to have the turn back after every other" if is_on else "let them go on without a stop at each turn"
    return _line(mark, who, says)


def _invite(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    ident, _, rest = mark.value.partition("=")
    name = rest.partition("@")[0].strip() or ident.strip()
    return _line(mark, who, f"invited {name}", facts=mark.value)


def _leave(mark: Mark, who: str, talk: Talk) -> MarkShown:
    one, _, why = mark.value.partition("|")
    if one.strip() == USER:
        return _line(mark, who, "left: nothing waits for you any more", why.strip())
    return _line(mark, who, f"had {talk.named(one)} leave the dialog", why.strip())


def _to(mark: Mark, who: str, talk: Talk) -> MarkShown:
    if who == "You":
        asks = mark.value.strip().upper() == USER
        return _line(mark, who, "asked for the floor" if asks else f"gave the floor to {talk.named(mark.value)}")
    return _small(mark, f"hands on to {talk.named(mark.value)}")


def _sealed(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    sha, _, rest = mark.value.partition("|")
    could = "; it could read files before" if rest.strip() == COULD_READ else ""
    return _line(mark, who, "sealed its answer ✓", facts=f"seal: {sha.strip()}{could}")


def _round(mark: Mark, _who: str, _talk: Talk) -> MarkShown:
    kind, *rest = mark.fields
    what = " – ".join(rest)
    known = {
        "closing": ("The last round", what),
        "phase": (f"Now: {what.lower()}", ""),
        "red team": (f"The next turn argues against {what}", ""),
    }
    return _line(mark, "", *known.get(kind, (f"A round begins: {mark.value}", "")))


def _stalled(mark: Mark, _who: str, talk: Talk) -> MarkShown:
    one, _, rest = mark.value.partition("|")
    return _line(mark, talk.named(one), "gave no answer in time", rest.strip(), tone="bad")


def _error(mark: Mark, _who: str, talk: Talk) -> MarkShown:
    one, *rest = mark.fields
    why = ". ".join([f"{part[:1].upper()}{part[1:]}" if at else part for at, part in enumerate(rest) if part])
    return _line(mark, talk.named(one), "failed", why, tone="bad")


def _digest(mark: Mark, _who: str, talk: Talk) -> MarkShown:
    one, *rest = mark.fields
    return _line(mark, talk.named(one), f"summed up {rest[0] if rest else 'earlier turns'}", facts=" · ".join(rest[1:]))


def _re(mark: Mark, _who: str, _talk: Talk) -> MarkShown:
    turns, refs = marks.references(mark)
    told = [*([f"turn{'' if len(turns) == 1 else 's'} {_ranges(turns)}"] if turns else []), *refs]
    return _small(mark, f"answers {listed(told) or mark.value}")


def _confidence(mark: Mark, _who: str, _talk: Talk) -> MarkShown:
    sure = marks.confidence(mark)
    return _small(mark, f"{mark.value} sure" if sure is None else f"{sure:.0%} sure")


def _asks_task(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    """A task that is proposed, or an improvement."""
    asked = build.proposed(mark, 1_000_000, "")
    kind = " ".join(filter(None, (asked.asks.get("category", ""), asked.asks.get("priority", ""))))
    terms = (
        kind,
        asked.asks.get("impact", ""),
        f"done when: {'; '.join(asked.criteria)}" if asked.criteria else "",
        f"after {', '.join(f'{number:03}' for number in asked.after)}" if asked.after else "",
        f"{asked.hours:g} h" if asked.hours else "",
    )
    says = _does(who, "propose {}") + (", an improvement" if asked.asks else "")
    return MarkShown(
        mark, BLOCK, says, who=who, named="a task", text=asked.description, terms=" · ".join(filter(None, terms))
    )


_SAID_OF_TASKS = {
    "confirmed": "confirmed",
    "dropped": "dropped",
    "changed": "changed",
    "retry": "asked for another try of",
    "accepted": "accepted",
    "merged": "took over",
    "published": "opened a pull request for",
}


def _task(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    """What became of a task, or what the person says of it."""
    named, state, *rest = (*marks.fields_of(mark), "", "")
    state, rest, number = state.casefold(), [part for part in rest if part], build.number_of(mark)
    task = "all tasks" if named == "all" else f"task{'s' if ',' in named else ''} {named}"
    facts = " · ".join(part for part in rest if part.split(" ")[0] in ("branch", "base", "commit", "tree"))
    score, attempt = build.value_of(mark, "score"), build.value_of(mark, "iteration")
    told = ("branch", "base", "commit", "tree", "score", "no", "iteration")
    why = "; ".join(part for part in rest if part.split(" ")[0] not in told)
    if state in _OF_TASKS:
        says, tone = _OF_TASKS[state]
        words = _does(who, says) if who and state != "stuck" else "{} is handed in" if state == "submitted" else says
        size = why.replace("; ", ", ") if state == "submitted" else ""
        terms = " · ".join(filter(None, (f"attempt {attempt}" if attempt else "", size)))
        points = int(score) if score.isdecimal() else None
        return MarkShown(
            mark, BLOCK, words, who=who if state != "stuck" else "", named=task, text="" if size else why, terms=terms,
            facts=facts, tone=tone, task=number, points=points,
        )  # fmt: skip
    if state == "assigned":
        return _line(mark, "", f"The work on {task} begins, attempt {attempt}", facts=facts)
    if state == "error":
        return MarkShown(mark, BLOCK, "{} cannot go on", named=task, text=". ".join(rest[1:]), tone="bad", task=number)
    if state == "rebase":
        return _line(mark, who, "had what is approved carried to another base", facts=" ".join(rest))
    if state in _SAID_OF_TASKS and who:
        return _line(mark, who, f"{_SAID_OF_TASKS[state]} {task}", "" if state == "changed" else why)
    return _line(mark, "", f"{task.capitalize()}: {state}", why)


_OF_TASKS = {
    "submitted": ("hand in {}", ""),
    "changes": ("send {} back", "bad"),
    "approved": ("approve {}", "good"),
    "stuck": ("{} is not approved, and waits for you", "asks"),
}

_GATE_SAYS = {
    "passed": ("The gate passed on {}", "good"),
    "failed": ("The gate failed on {}", "bad"),
    "timeout": ("The gate ran out of time on {}", "bad"),
    "untested": ("{} is untested", "asks"),
    "asked": ("May the gate run on {} without a sandbox?", "asks"),
}


def _gate(mark: Mark, who: str, _talk: Talk) -> MarkShown:
    """What the tests said of a submission, or the person of the tests."""
    named, state, *rest = (*marks.fields_of(mark), "")
    if who:
        says = (
            f"let the gate of task {named} run without a sandbox"
            if state == "run"
            else f"had task {named} reviewed untested"
        )
        return _line(mark, who, says, facts=" · ".join(rest))
    says, tone = _GATE_SAYS.get(state, (f"The gate of {{}}: {state}", ""))
    took = next((many(int(part[:-2]), "second") for part in rest if re.fullmatch(r"[1-9]\d* s", part)), "")
    facts = " · ".join(part for part in rest if part and not re.fullmatch(r"\d+ s", part))
    number = build.number_of(mark)
    return MarkShown(
        mark,
        BLOCK,
        says,
        named=f"task {named}",
        terms=f"in {took}" if took else "",
        facts=facts,
        tone=tone,
        task=number,
    )


_WORDS: Mapping[str, Callable[[Mark, str, Talk], MarkShown]] = {
    "TASK_PROPOSED": _asks_task,
    "IMPROVEMENT": _asks_task,
    "TASK": _task,
    "GATE": _gate,
    "PROPOSAL": _proposal,
    "CONSENSUS_PROPOSED": _text,
    "OBJECTION": _objection,
    "AGREE": _agree,
    "VOTE": _vote,
    "DECIDE": _vote,
    "DECISION": _decision,
    "QUESTION_FOR_USER": _asks,
    "ESCALATE": _escalates,
    "DEADLOCK": _deadlock,
    "VETO": _veto,
    "APPROVED": _approved,
    "REJECTED": _rejected,
    "CONSENSUS_REACHED": lambda mark, who, _: _small(mark, f"{who} would end it here" if who else "would end it here"),
    "PAUSED": lambda mark, who, _: _line(mark, who, "paused", mark.value),
    "RESUMED": lambda mark, who, _: _line(mark, who, "resumed", mark.value),
    "SKIP": lambda mark, who, talk: _line(mark, who, f"passed over {talk.named(mark.value)}"),
    "RETRY": lambda mark, who, talk: _line(mark, who, f"asked {talk.named(mark.value)} once more"),
    "LIMIT": _limit,
    "STRIKE": _strike,
    "STEP": _step,
    "INVITE": _invite,
    "LEAVE": _leave,
    "TO": _to,
    "SEALED": _sealed,
    "ROUND": _round,
    "STALLED": _stalled,
    "AGENT_ERROR": _error,
    "DIGEST": _digest,
    "DEFAULT_TAKEN": lambda mark, _, __: _line(mark, "", "No answer came in time, so this counts", mark.value),
    "RE": _re,
    "CONFIDENCE": _confidence,
    "PASS": lambda mark, _, __: _small(mark, "passes: nothing to add"),
}


def _ranges(turns: Sequence[int]) -> str:
    """Turns in a few words: `3 to 5`, `3, 7`."""
    is_row = len(turns) > 2 and all(after - before == 1 for before, after in pairwise(turns))
    return f"{turns[0]} to {turns[-1]}" if is_row else listed([str(turn) for turn in turns])


def as_streamed(found: Sequence[Mark], summary: str, next_ref: str) -> Iterator[Mark]:
    """The marks of a reply that is still being written, with the numbers that they will get."""
    number = int(next_ref[1:])
    for mark in found:
        if mark.name == "PROPOSAL" and not mark.ref:
            yield replace(mark, ref=f"P{number}")
            number += 1
        elif mark.name == "CONSENSUS_REACHED" and summary:
            yield Mark("CONSENSUS_PROPOSED", "", f"P{number}")
            number += 1
        else:
            yield mark


def at_first(who: str, found: Sequence[Mark]) -> Mapping[str, Stands]:
    """How the proposals that `who` is making stand, once they are made."""
    hows = {"PROPOSAL": "for", "CONSENSUS_PROPOSED": "signed by"}
    return {mark.ref: Stands(mark.ref, "", (Stand(hows[mark.name], (who,)),)) for mark in found if mark.name in hows}
