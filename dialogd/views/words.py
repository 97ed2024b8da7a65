"""What every mark says, once: one row a mark; page, terminal, documents, digest and flow all read it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

from dialogd.protocol import build, marks, questions
from dialogd.protocol.certificate import own_words
from dialogd.protocol.fold import NO_REASON
from dialogd.protocol.keys import key_holder
from dialogd.protocol.marks import fields_of
from dialogd.protocol.model import OUTCOMES, SYSTEM, USER, Entry, Mark, Outcome, Said
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import listed, one_line, redact

Name = Callable[[str], str]  # what is called how: an agent's id, USER, SYSTEM
BLOCK, LINE, REMARK, SMALL = "block", "line", "remark", "small"
WIDTH = 120  # characters of a text's first words

# How something was decided, by its method.
METHODS = {
    "mutual": "everybody signed the same text",
    "vote": "by vote",
    "moderator": "by the moderator",
    "review": "by its review",
    "decide": "by an agent that may decide",
    "judge": "by the judge",
    "person": "by the person's word",
    "by hand": "written by hand, without everybody's signature",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One mark. `says` has {who} or another subject first, {0} {1} for fields, {n0} for a field as names, {ref}; a part
    in brackets is left out where a value of it is empty. The first `used` fields are told by that; the rest follow.

    rank    how much of the page it takes
    noun    what a message of this kind is called, where its name in small letters is no word for it
    news    where the digest tells it
    body    what of its entry's text it shows: its `summary`, its `log`, or `same`: all, where that repeats the mark
    makes   its reference is its own number
    """

    says: str
    rank: str = LINE
    tone: str = ""
    noun: str = ""
    used: int = 0
    news: str = ""
    body: str = ""
    makes: bool = False


ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "TEXT": Row("{who} said", noun="said"),
        "PROPOSAL": Row("{who} proposed[ {ref}]", BLOCK, news="proposed", body="same", makes=True),
        "CONSENSUS_PROPOSED": Row(
            "{who} put up the text[ {ref}] to be signed", BLOCK, noun="text to sign", body="summary", makes=True
        ),
        "CONSENSUS_PROPOSED unsigned": Row(
            "{who} put up the text[ {ref}] to be signed, without signing it", BLOCK, used=9, body="summary", makes=True
        ),
        "OBJECTION": Row("{who} objected[ to {ref}]", BLOCK, "bad", news="objections"),
        "CONCEDE": Row("{who} conceded", REMARK, noun="concession", news="conceded"),
        "QUESTION": Row("{who} asked", REMARK, news="asked"),
        "EVIDENCE": Row("{who} gave evidence", REMARK),
        "IDEA": Row("{who} had an idea", REMARK),
        "CRITIQUE": Row("{who} criticised", REMARK),
        "SYNTHESIS": Row("{who} brought together", REMARK),
        "RESERVATION": Row("{who} kept a reservation", REMARK, news="objections"),
        "RE": Row("in answer to {ref}", SMALL),
        "CONFIDENCE": Row("{sure} sure", SMALL, used=9),
        "AGREE": Row("{who} agreed[ to {ref}]", BLOCK, "good", "agreement"),
        "VOTE": Row("{who} voted for {n0}", BLOCK, used=1),
        "VOTE approve": Row("{who} voted for {ref}", BLOCK, "good"),
        "VOTE reject": Row("{who} voted against {ref}", BLOCK, "bad"),
        "VOTE abstain": Row("{who} abstained on {ref}", BLOCK),
        "DECIDE": Row("{who} decided for {n0}", BLOCK, noun="ruling", used=1),
        "DECIDE approve": Row("{who} decided for {ref}", BLOCK, "good", "ruling"),
        "DECIDE reject": Row("{who} decided against {ref}", BLOCK, "bad", "ruling"),
        "DECIDE approve task": Row("{who} approved {ref}", BLOCK, "good"),
        "DECIDE reject task": Row("{who} sent {ref} back", BLOCK, "bad"),
        "DECISION": Row("{ref} was {0}[ ({how})]", BLOCK, used=2, news="decided"),
        "DECISION approved": Row("{ref} was approved[ ({how})]", BLOCK, "good", used=2),
        "DECISION rejected": Row("{ref} was rejected[ ({how})]", BLOCK, "bad", used=2),
        "DECISION undecided": Row("{ref} was undecided[ ({how})]", BLOCK, "asks", used=2),
        "CONSENSUS_REACHED": Row("{who} declared that there is an agreement", SMALL, noun="agreed", news="ended"),
        "DECIDED": Row("it was decided", BLOCK, "good", news="ended"),
        "DEADLOCK": Row("no agreement was reached", BLOCK, "bad", news="ended"),
        "DEADLOCK called": Row("{who} saw no agreement coming", BLOCK, "bad", news="ended"),
        "MAX_TURNS_REACHED": Row("a limit ended the dialog", noun="out of turns", news="ended"),
        "STOPPED": Row("{who} stopped the dialog", news="ended"),
        "PASS": Row("{who} had nothing to add", SMALL, noun="nothing to add"),
        "TO": Row("{who} gave the floor to {n0}", SMALL, noun="handed on", used=1),
        "TO user": Row("{who} asked for the floor", noun="handed on", used=1),
        "ESCALATE": Row("{who} passed it on to be decided", BLOCK, "asks", "to be decided"),
        "QUESTION_FOR_USER": Row("{who} asked {person}", BLOCK, "asks", "question to the person", news="asked_you"),
        "REFUSED": Row("this did not count: {tried}", REMARK, noun="did not count", used=1),
        "SEALED": Row("{who} sealed its answer", noun="sealed answer"),
        "ROUND": Row("a round began: {0}", used=1),
        "ROUND phase": Row("now: {1}", used=9),
        "ROUND closing": Row("the last round began", used=1),
        "ROUND red team": Row("the next turn argues against {1}", used=9),
        "STALLED": Row("{n0} gave no answer in time", tone="bad", noun="no answer in time", used=1, news="errors"),
        "AGENT_ERROR": Row("{n0} failed", tone="bad", noun="failure", used=1, news="errors"),
        "DIGEST": Row("{n0} summed up {1}", noun="earlier turns summed up", used=2),
        "DEFAULT_TAKEN": Row("nobody answered in time, so this counts", news="decided"),
        "PAUSED": Row("{who} paused the dialog", news="limits"),
        "RESUMED": Row("{who} let it go on", news="limits"),
        "STEP": Row("{who} switched stopping after every turn {0}", noun="step mode", used=1, news="limits"),
        "LIMIT": Row("{who} set {what}[ of {whose}] to {value}", used=9, news="limits"),
        "SKIP": Row("{who} passed over {n0}", noun="passed over", used=1, news="errors"),
        "RETRY": Row("{who} asked {n0} again", noun="asked again", used=1, news="errors"),
        "STRIKE": Row("{who} withdrew turn {0}", noun="withdrawn", used=1, news="withdrawn"),
        "VETO": Row("{who} ruled out {0}", BLOCK, "bad", "ruled out", 1, "withdrawn"),
        "INVITE": Row("{who} invited {guest}", noun="invited", used=9, news="people"),
        "LEAVE": Row("{who} let {n0} leave", noun="left", used=1, news="people"),
        "LEAVE user": Row("{who} left: nothing waits for {person} any more", noun="left", used=1, news="people"),
        "KEY": Row("{who} set the key of {whose}", noun="key", used=9, news="people"),
        "APPROVED": Row("{who} approved the result", BLOCK, "good", news="ended"),
        "APPROVED task": Row("{who} approved {task}", BLOCK, "good", used=1),
        "REJECTED": Row("{who} rejected the result", BLOCK, "bad", news="rejected", body="same"),
        "TASK_PROPOSED": Row("{who} proposed a task[, {task}]", BLOCK, noun="proposed task"),
        "IMPROVEMENT": Row("{who} proposed an improvement[, {task}]", BLOCK),
        "FINDING": Row("{who} found", BLOCK, "bad"),
        "RESOLVED": Row("{who} took finding {0} as resolved", BLOCK, used=1),
        "SCORE": Row("{who} scored", BLOCK),
        "TASK": Row("{who} said of {task}: {1}", BLOCK, used=2),
        "TASK assigned": Row("the work on {task} began", used=2),
        "TASK submitted": Row("{task} was handed in", BLOCK, used=2),
        "TASK changes": Row("{who} sent {task} back", BLOCK, "bad", used=2),
        "TASK approved": Row("{who} approved {task}", BLOCK, "good", used=2),
        "TASK stuck": Row("{task} was not approved, and waits for {person}", BLOCK, "asks", used=2),
        "TASK error": Row("{task} was stopped by an error", BLOCK, "bad", used=2),
        "TASK confirmed": Row("{who} confirmed {task}", used=2),
        "TASK dropped": Row("{who} dropped {task}", used=2),
        "TASK changed": Row("{who} changed {task}", used=2),
        "TASK retry": Row("{who} asked for another try of {task}", used=2),
        "TASK accepted": Row("{who} accepted {task}", tone="good", used=2),
        "TASK merged": Row("{who} took over {task}", tone="good", used=2),
        "TASK published": Row("{who} opened a pull request for {task}", used=2),
        "TASK rebase": Row("{who} had what is approved carried to another base", used=2),
        "GATE": Row("the gate of {task}: {1}", BLOCK, noun="tests", used=2, body="log"),
        "GATE passed": Row("the gate passed on {task}", BLOCK, "good", "tests", 2, body="log"),
        "GATE failed": Row("the gate failed on {task}", BLOCK, "bad", "tests", 2, body="log"),
        "GATE timeout": Row("the gate ran out of time on {task}", BLOCK, "bad", "tests", 2, body="log"),
        "GATE untested": Row("{task} is untested", BLOCK, "asks", "tests", 2, body="log"),
        "GATE asked": Row("the gate of {task} asked to run without a sandbox", BLOCK, "asks", "tests", 2, body="log"),
        "GATE command": Row("{who} had the tasks tested by another command: {2}", noun="tests", used=3),
        "GATE run": Row("{who} let the gate of {task} run without a sandbox", noun="tests", used=2),
    }
)
_OWN = Row("{who}, {kind}[ {ref}]", REMARK)  # a kind of the dialog's own
# What somebody did, as a list has it behind their name; some are no marks.
IN_A_LIST: Mapping[str, str] = MappingProxyType(
    {
        "RESERVATION": "has a reservation",
        "AGAINST": "is against",
        "OTHER_SIDE": "held another position",
        "OBJECTION": "objects",
        "CRITIQUE": "criticises",
        "QUESTION": "asked, and nobody answered",
        "QUESTION_FOR_USER": "asks the person",
        "PROPOSAL": "proposed, and it was not decided",
        "FINDING": "raised",
        "CRUX": "named as the crux",
    }
)
# What a mark is beside others: what it says about them, what came of a point, whom it is for.
FOLDED = frozenset({"RE", "CONFIDENCE", "TO"})  # they say something about the other marks of their turn
SILENT = FOLDED | {"PASS"}
TAKEN = "DEFAULT_TAKEN"
ASKING = frozenset({"QUESTION", questions.NAME, "ESCALATE"})
RAISED, GIVEN = ("OBJECTION", "CRITIQUE"), ("CONCEDE", "AGREE")
TO_ALL = frozenset({"DECISION", "DECIDED", "ROUND", "DIGEST"})
OF_AGENTS = frozenset({"CONSENSUS_PROPOSED", "SEALED"})  # by a daemon for its agent, out of what the agent said
_LIMITS = {
    "max_turns": "the limit of turns",
    "max_rounds": "the limit of rounds",
    "max_time": "the time in all",
    "timeout": "the time for a turn",
    "max_message": "the characters of one message",
    "max_size": "the size of the file",
}

_RECORDS = ("TASK", "GATE", "APPROVED", "SEALED", "DIGEST", "CONSENSUS_PROPOSED")  # they name hashes
_COUNTED = ("score", "no", "iteration", "exit")
_GIT = ("branch", "base", "commit", "tree", "log", "gate")  # before what git and the gate call things
_HASH = re.compile(r"[0-9a-f]{12,}")
_SUBMISSION = re.compile(r"task-(\d+), iteration \d+, tree ")
LEADING = re.compile(r"[ \t]*(P\d{1,6}(?:(?:[ ,&+]+|[ ]and[ ])P\d{1,6})*)(?!\w)[ \t]*[:,.|–—-]*[ \t]*", re.I)
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_VALUE = re.compile(r"\{(\w+)\}")


def called(kind: str) -> str:
    """A kind of message in words: `AGENT_ERROR` is a failure."""
    row = ROWS.get(kind)
    return row.noun if row is not None and row.noun else kind.replace("_", " ").lower()


def row_of(kind: str) -> Row:
    """The row of a kind of mark, whatever its value is."""
    return ROWS.get(kind, _OWN)


@dataclass(frozen=True, slots=True)
class Wording:
    """A mark in words: `who` (may be "") and what it `says`, then its `text`.

    terms   what else counts: a suggested answer, until when (`by`), what a criterion is
    facts   what is only told on demand: hashes
    task    the number of the task that it is about, 0 for none; `points` of a hundred, None without
    """

    mark: Mark
    key: str  # of its row
    rank: str
    who: str
    says: str
    text: str = ""
    terms: str = ""
    by: str = ""
    facts: str = ""
    tone: str = ""
    task: int = 0
    points: int | None = None

    @property
    def begins(self) -> str:
        """Who and what, as the beginning of a sentence."""
        words = f"{self.who} {self.says}".strip()
        return f"{words[:1].upper()}{words[1:]}"

    @property
    def subject(self) -> str:
        """Whose doing it is, at the beginning of a sentence."""
        return f"{self.who[:1].upper()}{self.who[1:]}"

    @property
    def parts(self) -> list[str]:
        """What it says, split: every second part is a proposal or a task that it is about."""
        return re.split(r"(\bP\d{1,6}\b|\btasks? \d[\d, ]*\d)", self.says if self.who else self.begins)

    def __str__(self) -> str:
        by = f"to be answered by {self.by}" if self.by else ""
        words = self.begins + (f": {self.text}" if self.text else "")
        points = f"{self.points} of 100" if self.points is not None else ""
        words = "; ".join(filter(None, (words, by, points, self.terms)))
        return f"{words}{'' if words[-1] in '.?!…' else '.'}"


@dataclass(frozen=True)
class Context:
    """What marks of a dialog are told with: names, proposals by number, tasks by the entry that asks for them."""

    name: Name
    texts: Mapping[str, str] = field(default_factory=dict)
    proposed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def submitted(self, ref: str) -> str:
        """The task that is reviewed under that number, "" for none."""
        match = _SUBMISSION.match(self.texts.get(ref, ""))
        return match[1] if match else ""


def context_of(dialog: Dialog, name: Name) -> Context:
    """What this dialog's marks are told with."""
    tasks: dict[str, tuple[str, ...]] = {}
    for task in dialog.state.build.all:
        tasks[task.entries[0]] = (*tasks.get(task.entries[0], ()), task.id)
    return Context(name, {one.ref: one.text for one in dialog.state.table.proposals if not one.sha}, tasks)


def worded(entry: Said, known: Context, marks_of: Sequence[Mark] | None = None) -> Iterator[Wording]:
    """Its marks in words, but those that another one tells too: the number under which a task is reviewed."""
    who = entry.from_session or known.name(entry.by)
    numbers = iter(known.proposed.get(entry.id, ()))
    for mark in entry.written if marks_of is None else marks_of:
        if entry.turn is None and mark.name in OUTCOMES and (mark.name != "DEADLOCK" or not marks.is_called(mark)):
            yield _end(mark, who if entry.by == USER or entry.from_session else "", known.name)
        elif mark.name not in ("PROPOSAL", "DECISION") or not known.submitted(mark.ref):
            task = f"task {next(numbers, '')}" if mark.name in ("TASK_PROPOSED", "IMPROVEMENT") else ""
            yield _worded(mark, who, known, task.removesuffix("task "))


def sentences(entry: Entry, name: Name) -> tuple[str, ...]:
    """What the marks of an entry say, as sentences; what it answers and how sure its author was come last."""
    found = list(worded(entry, Context(name)))
    beside = "; ".join(one.says for one in found if one.mark.name in ("RE", "CONFIDENCE"))
    told = [str(one) for one in found if one.mark.name not in ("RE", "CONFIDENCE")]
    return tuple([*told, f"{beside[0].upper()}{beside[1:]}."] if beside else told)


def ending(mark: Mark) -> tuple[str, str]:
    """How a dialog ended with that mark, in words, and why, as far as the mark says it."""
    end = Outcome(mark.name, "", "", mark.value)
    then = ", and the dialog ended" if end.cause or mark.name != "STOPPED" else ""
    return f"{end.words[0].upper()}{end.words[1:]}{then}", end.why


def _end(mark: Mark, who: str, name: Name) -> Wording:
    says, why = ending(mark)
    if who and mark.name == "STOPPED" and why == mark.value:  # not for a cause of the daemons'
        return Wording(mark, mark.name, LINE, who, "stopped the dialog", why)
    return Wording(
        mark, mark.name, LINE, "", says, by_name(why, name), tone="bad" if mark.value.startswith("error:") else ""
    )


def _worded(mark: Mark, who: str, known: Context, task: str) -> Wording:
    """One mark by its row."""
    fields = fields_of(mark)
    read = {"state": "", "ref": mark.ref, "task": task, **_READ.get(mark.name, _plain)(mark, known)}
    key = f"{mark.name} {read['state']}"
    key = key if key in ROWS else mark.name
    row = ROWS.get(key, _OWN)
    more, is_record = [part for part in fields[row.used :] if part], mark.name in _RECORDS
    facts = [part for part in fields if is_record and (part.split(" ")[0] in _GIT or _HASH.fullmatch(part))]
    told = [part for part in more if not (is_record and (part in facts or part.split(" ")[0] in _COUNTED))]
    if mark.name == "TASK" and (size := " ".join(told)) and read["state"] == "submitted":
        read["terms"], told = size, []
    attempt, score = (build.value_of(mark, key) if is_record else "" for key in ("iteration", "score"))
    names = {f"n{at}": listed([known.name(one) for one in part.split(", ")]) for at, part in enumerate(fields)}
    values = {"kind": mark.name.replace("_", " ").lower(), "person": known.name(USER), **names, **read}
    values |= {str(at): part for at, part in enumerate(fields)}
    head, _, says = row.says.partition(" ")
    subject = who if head == "{who}" else values.get(head[1:-1], "") if head[:2] == "{n" or head == "{person}" else None
    if subject is None:
        subject, says = "", row.says
    if mark.name == "APPROVED" and who == known.name(SYSTEM):  # a daemon names what a typed word meant
        subject = known.name(USER)
    says = " ".join(_filled(says, {"who": who, **values}).split())
    text = read.get("text", "; ".join(told))
    return Wording(
        mark, key, row.rank, subject, says, text,
        terms="; ".join(filter(None, (f"attempt {attempt}" if attempt else "", read.get("terms", "")))),
        by=read.get("by", ""), facts="; ".join(facts), tone=row.tone,
        task=build.number_of(Mark("TASK", read["task"].removeprefix("task "))) if read["task"] else 0,
        points=int(score) if score.isdecimal() else None,
    )  # fmt: skip


def _filled(says: str, values: Mapping[str, str]) -> str:
    """A row's words with these values; a part in brackets only where each value of it is known. Values stay as are."""

    def one(found: re.Match[str]) -> str:
        words = found[1] if found[1] is not None else found[0]
        is_told = found[1] is None or all(values.get(name) for name in _VALUE.findall(words))
        return _VALUE.sub(lambda value: values.get(value[1], ""), words) if is_told else ""

    # One pass over the row's own words: what a value holds is never read as a placeholder.
    return re.sub(rf"{_OPTIONAL.pattern}|{_VALUE.pattern}", one, says)


# -- Marks whose value has a form of its own: what of it the row's words need -----------------------------------------

Read = Callable[[Mark, Context], dict[str, str]]


def _plain(mark: Mark, _known: Context) -> dict[str, str]:
    """Of most marks the state is the field by which rows differ."""
    fields = (*fields_of(mark), "")
    return {"state": fields[0]}


def _about(refs: Iterable[str], known: Context) -> dict[str, str]:
    """The proposals that a mark names, and what they say, in a few words; for a submission its task."""
    refs = tuple(refs)
    if task := known.submitted(refs[0]) if refs else "":
        return {"ref": f"task {task}", "task": f"task {task}"}
    texts = " · ".join(f"“{first_words(known.texts[ref])}”" for ref in refs[:1] if ref in known.texts)
    return {"ref": listed(refs), "terms": texts}


def _agree(mark: Mark, known: Context) -> dict[str, str]:
    about = _about(marks.agreed(mark), known)
    return {**about, "text": "; ".join(filter(None, fields_of(mark)[1:]))}


def _choice(mark: Mark, known: Context) -> dict[str, str]:
    choice = marks.vote(mark)
    if choice is None:
        return {}
    about = _about([choice.ref], known)
    return {"state": choice.choice + " task" * ("task" in about), **about, "text": choice.reason}


def _decision(mark: Mark, known: Context) -> dict[str, str]:
    outcome, how, evidence, *why = (*mark.fields, "", "", "")
    # What everybody signed is told by who signed it.
    by = METHODS.get(how, how) if how != "mutual" else ""
    text = "; ".join(part for part in (by_name(evidence, known.name), *why) if part not in ("", NO_REASON))
    return {"state": outcome, "ref": mark.ref or "a position", "how": by, "text": text}


def _deadlock(mark: Mark, _known: Context) -> dict[str, str]:
    crux, *experiment = mark.fields
    if not marks.is_called(mark):
        return {"text": mark.value}
    told = f"what would settle it: {'; '.join(experiment)}" if experiment else ""
    return {"state": "called", "text": f"it turns on {crux}" if crux else "", "terms": told}


def _asked(mark: Mark, _known: Context) -> dict[str, str]:
    asked = questions.parse(mark)
    return {"text": asked.said, "by": asked.by, "terms": f"without an answer: {asked.default}" if asked.default else ""}


def _answers(mark: Mark, _known: Context) -> dict[str, str]:
    turns, refs = marks.references(mark)
    is_row = len(turns) > 2 and all(after - before == 1 for before, after in pairwise(turns))
    numbers = f"{turns[0]} to {turns[-1]}" if is_row else listed([str(turn) for turn in turns])
    told = [*([f"turn{'' if len(turns) == 1 else 's'} {numbers}"] if turns else []), *refs]
    return {"ref": listed(told) or mark.value.replace(" | ", "; "), "text": ""}


def _sure(mark: Mark, _known: Context) -> dict[str, str]:
    sure = marks.confidence(mark)
    return {"sure": mark.value if sure is None else f"{sure:.0%}"}


def _limit(mark: Mark, known: Context) -> dict[str, str]:
    which, _, value = mark.value.partition(" ")
    agent, _, rest = value.partition(" ")
    whose_ = known.name(agent) if rest and known.name(agent) != agent else ""
    what = _LIMITS.get(which, f"the {which.replace('_', ' ')}")
    return {"what": what, "whose": whose_, "value": rest if whose_ else value}


def _task(mark: Mark, _known: Context) -> dict[str, str]:
    named, state = (*fields_of(mark), "", "")[:2]
    task = "all tasks" if named == "all" else f"task{'s' if ',' in named else ''} {named.removeprefix('task-')}"
    return {"state": state.casefold(), "task": task}


def _approved(mark: Mark, known: Context) -> dict[str, str]:
    if not mark.value.startswith("task-"):
        return {}
    gate = next((part for part in mark.fields if part.startswith("gate ")), "").split(" ")[1:2]
    tested = {"untested": "nobody tested it", "failed": "its gate failed", "timeout": "its gate ran out of time"}
    words = tested.get("".join(gate), "its gate passed" * bool(gate and _HASH.fullmatch(gate[0])))
    return {**_task(mark, known), "state": "task", "terms": words, "text": ""}


def _asked_task(mark: Mark, _known: Context) -> dict[str, str]:
    """What a task that is proposed, or an improvement, comes with."""
    asked = build.proposed(mark, 1_000_000, "")
    terms = (
        " ".join(filter(None, (asked.asks.get("category", ""), asked.asks.get("priority", "")))),
        asked.asks.get("impact", ""),
        f"done when: {'; '.join(asked.criteria)}" if asked.criteria else "",
        f"after {', '.join(f'{number:03}' for number in asked.after)}" if asked.after else "",
        f"{asked.hours:g} h" if asked.hours else "",
    )
    return {"text": asked.description, "terms": " · ".join(filter(None, terms))}


_READ: Mapping[str, Read] = MappingProxyType(
    {
        "AGREE": _agree,
        "OBJECTION": lambda mark, _: {"ref": listed(marks.objected(mark))},
        "VOTE": _choice,
        "DECIDE": _choice,
        "DECISION": _decision,
        "DEADLOCK": _deadlock,
        "QUESTION_FOR_USER": _asked,
        "RE": _answers,
        "CONFIDENCE": _sure,
        "LIMIT": _limit,
        "CONSENSUS_PROPOSED": lambda mark, _: {"state": (*mark.fields, "")[1]},
        "TO": lambda mark, _: {"state": "user" if mark.value.strip().upper() == USER else ""},
        "LEAVE": lambda mark, _: {"state": "user" if fields_of(mark)[0] == USER else ""},
        "KEY": lambda mark, known: {"whose": key_holder(mark) or known.name(mark.value.partition("|")[0].strip())},
        "INVITE": lambda mark, _: {
            "guest": mark.value.partition("=")[2].partition("@")[0].strip() or mark.value.partition("=")[0].strip()
        },
        "REFUSED": lambda mark, _: {"tried": tried(mark.fields[0])},
        "TASK": _task,
        "GATE": _task,
        "APPROVED": _approved,
        "TASK_PROPOSED": _asked_task,
        "IMPROVEMENT": _asked_task,
    }
)


# -- What else is told in words ---------------------------------------------------------------------------------------

_ID = r"(?<![^\s,;:()|])[^\s,;:()|]{1,64}(?![^\s,;:()|])"  # whole words only: a long one is read once
_IDS = re.compile(
    rf"{_ID}(?= in turns? \d)|(?<=\(){_ID}(?:, {_ID})*(?=\))|(?:(?<=absent: )|(?<=no vote: )){_ID}(?:, {_ID})*"
)
_DECORATION = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+][ \t]+)*|[*_`]{2,}")


def by_name(evidence: str, name: Name) -> str:
    """What a decision rests on, with names for ids: where turns are told, voices counted, absent ones left out."""
    return _IDS.sub(lambda found: ", ".join(map(name, found[0].split(", "))), evidence)


def tried(mark: str) -> str:
    """A mark that did not count, as its record has it, with its name in words."""
    return re.sub(r"\b([A-Z]+_)*[A-Z]+\b", lambda match: match[0].replace("_", " ").lower(), mark, count=1)


def gist(mark: Mark, text: str, names: Mapping[str, str]) -> str:
    """The first words of what a mark says. What everybody signed is told by who signed it."""
    if mark.name == "DECISION":
        text = by_name(text.replace(" | mutual | ", " | ", 1), lambda who: names.get(who, who))
    return first_words(tried(text) if mark.name == "REFUSED" else text)


def named_by(mark: Mark) -> tuple[str, ...]:
    """The proposals and turns that a mark itself names."""
    if mark.ref:
        return (mark.ref,)
    if mark.name == "STRIKE":
        return tuple(re.findall(r"\d{1,9}", mark.value)[:1])
    match = LEADING.match(mark.value)
    return marks.agreed(mark) or (tuple(re.findall(r"P\d{1,6}", match[1].upper())) if match else ())


def words_of(entry: Entry) -> str:
    """An entry's own words: without the lines with which a daemon closed the dialog, and without typed marks."""
    text = own_words(entry.body)
    return (marks.prose(text) if entry.frame is None else text).strip("\n")


def first_words(text: str) -> str:
    """The beginning of a text on one line, without the signs that format it."""
    head = "\n".join(redact(text)[0].strip()[: 8 * WIDTH].split("\n")[:12])
    return one_line("\n".join(_DECORATION.sub("", line) for line in head.split("\n")).replace(" | ", ", "), WIDTH)
