"""Marks as sentences, for documents that somebody reads who was not there: `Claude A proposed P1: …`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from dialogd.protocol import marks, questions
from dialogd.protocol.model import OUTCOMES, SYSTEM, USER, Entry, Mark
from dialogd.protocol.seal import own_words
from dialogd.protocol.state import Outcome

Name = Callable[[str], str]  # what is called how: an agent's id, USER, SYSTEM

# What somebody did, before what they said with it.
_SAID = {
    "OBJECTION": "objected",
    "CONCEDE": "conceded",
    "QUESTION": "asked",
    "EVIDENCE": "gave evidence",
    "IDEA": "had an idea",
    "CRITIQUE": "criticised",
    "SYNTHESIS": "brought together",
    "RESERVATION": "kept a reservation",
    "ESCALATE": "passed it on to be decided",
    "FINDING": "found",
    "RESOLVED": "took as mended",
    "SCORE": "scored",
    "REJECTED": "rejected the result",
    "PASS": "had nothing to add",
    "PAUSED": "paused the dialog",
    "RESUMED": "let it go on",
    "INVITE": "invited",
}
_ABOUT = {"VETO": "ruled out", "STRIKE": "withdrew turn", "SKIP": "passed over", "RETRY": "asked again"}
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
_CHOSE = {"approve": "for", "reject": "against", "abstain": ""}
_LIMITS = {"max_turns": "turns", "max_rounds": "rounds", "max_time": "time in all", "timeout": "time for a turn"}


def told(entry: Entry, name: Name) -> tuple[str, ...]:
    """What the marks of an entry say, as sentences; what it answers and how sure its author was come last."""
    who = name(entry.by)
    found = [_sentence(mark, who, name, entry) for mark in entry.written]
    found += filter(None, ["; ".join(_beside(entry))])
    ends = {text: "" if text[-1] in ".?!…" else "." for text in found if text}
    return tuple(f"{text[0].upper()}{text[1:]}{end}" for text, end in ends.items())


def words_of(entry: Entry) -> str:
    """An entry's own words: without the lines with which a daemon closed the dialog, and without typed marks."""
    text = own_words(entry.body)
    return (marks.prose(text) if entry.frame is None else text).strip("\n")


def _sentence(mark: Mark, who: str, name: Name, entry: Entry) -> str:
    """One mark; "" for those that say something about the others of their entry."""
    if mark.name in ("RE", "CONFIDENCE"):
        return ""
    if entry.turn is None and mark.name in OUTCOMES:
        return _with(*ending(mark))
    if mark.name in _WORDS:
        return _WORDS[mark.name](mark, who, name)
    if mark.name in _ABOUT:
        head, *rest = mark.fields
        return _with(f"{who} {_ABOUT[mark.name]} {_ref(mark)}{name(head)}", "; ".join(rest))
    if mark.name in _SAID:
        return _with(f"{who} {_SAID[mark.name]}", f"{_ref(mark)}{_plain(mark.value)}".strip())
    said = _with(f"{who}, {mark.name.replace('_', ' ').lower()}", f"{_ref(mark)}{_plain(mark.value)}".strip())
    return said if entry.by != SYSTEM else said.removeprefix(f"{who}, ")


def _with(what: str, said: str) -> str:
    return f"{what}: {said}" if said else what


def _plain(value: str) -> str:
    return value.replace(" | ", "; ")


def _ref(mark: Mark) -> str:
    return f"{mark.ref} " if mark.ref else ""


def _beside(entry: Entry) -> Iterator[str]:
    """What a turn answers, and how sure its author was."""
    found = [marks.references(mark) for mark in entry.written if mark.name == "RE"]
    turns = [f"turn {number}" for numbers, _ in found for number in numbers]
    refs = [ref for _, named in found for ref in named]
    if turns or refs:
        yield f"in answer to {', '.join((*turns, *refs))}"
    elif found:
        yield f"in answer to {', '.join(_plain(m.value) for m in entry.written if m.name == 'RE')}"
    for mark in entry.written:
        if mark.name == "CONFIDENCE":
            sure = marks.confidence(mark)
            yield f"{sure:.0%} sure" if sure is not None else f"how sure: {mark.value}"


def _agreed(mark: Mark, who: str, _name: Name) -> str:
    return _with(f"{who} agreed to {mark.ref}{mark.fields[0]}", "; ".join(mark.fields[1:]))


def _voted(mark: Mark, who: str, name: Name) -> str:
    choice = marks.vote(mark)
    verb = "voted" if mark.name == "VOTE" else "decided"
    if choice is None:
        head, *rest = mark.fields
        return _with(f"{who} {verb} for {name(head)}", "; ".join(rest))
    side = _CHOSE[choice.choice]
    return _with(f"{who} {f'{verb} {side}' if side else 'abstained on'} {choice.ref}", choice.reason)


def _deadlock(mark: Mark) -> str:
    crux, *test = mark.fields
    if not marks.is_called(mark):
        return mark.value
    return f"it turns on {crux}" + (f"; what would settle it: {'; '.join(test)}" if test else "") if crux else ""


def ending(mark: Mark) -> tuple[str, str]:
    """How a dialog ended with that mark, in words, and why, as far as the mark says it."""
    end = Outcome(mark.name, "", "", mark.value)
    why = _deadlock(mark) if mark.name == "DEADLOCK" else end.why
    then = ", and the dialog ended" if end.cause or mark.name != "STOPPED" else ""
    return f"{end.words[0].upper()}{end.words[1:]}{then}", why


def _decision(mark: Mark, _who: str, name: Name) -> str:
    outcome, how, evidence, *why = (*mark.fields, "", "", "")
    about, told = mark.ref or "a position", by_name(evidence, name)
    # What everybody signed is told by who signed it.
    by = f" ({METHODS.get(how, how)})" if how and how != "mutual" else ""
    return _with(f"{about} was {outcome}{by}", "; ".join(filter(None, (told, *why))))


_ID = r"(?<![^\s,;:()|])[^\s,;:()|]{1,64}(?![^\s,;:()|])"  # whole words only: a long one is read once
_IDS = re.compile(
    rf"{_ID}(?= in turns? \d)|(?<=\(){_ID}(?:, {_ID})*(?=\))|(?:(?<=absent: )|(?<=no vote: )){_ID}(?:, {_ID})*"
)


def by_name(evidence: str, name: Name) -> str:
    """What a decision rests on, with names for ids: where turns are told, voices counted, absent ones left out."""
    return _IDS.sub(lambda found: ", ".join(map(name, found[0].split(", "))), evidence)


def cause(written: str) -> str:
    """What a change of mind gives as its cause."""
    words = re.sub(r"(^|; )RE: ", r"\1answering ", re.sub(r"(^|; )EVIDENCE: ", r"\1", written))
    return re.sub(r"answering (\d)", r"answering turn \1", words)


def _limit(mark: Mark, who: str, name: Name) -> str:
    which, _, value = mark.value.partition(" ")
    agent, _, rest = value.partition(" ")
    whose = f" of {name(agent)}" if name(agent) != agent else ""
    return f"{who} set the limit of {_LIMITS.get(which, which.replace('_', ' '))}{whose} to {rest if whose else value}"


def _asked(mark: Mark, who: str, _name: Name) -> str:
    asked = questions.parse(mark)
    default = f"; without an answer: {asked.default}" if asked.default else ""
    return f"{who} asked the person: {asked.said}{f'; to be answered by {asked.by}' if asked.by else ''}{default}"


def _failed(mark: Mark, _who: str, name: Name) -> str:
    agent, *why = mark.fields
    return _with(f"{name(agent)} failed", "; ".join(why))


def _approved(mark: Mark, who: str, name: Name) -> str:
    if not mark.value.startswith("task-"):
        return _with(f"{who} approved the result", _plain(mark.value))
    task, *rest = mark.fields
    by = (
        f"{name(USER)} approved" if who == name(SYSTEM) else f"{who} approved"
    )  # a daemon names what a typed word meant
    return _with(f"{by} {task.replace('-', ' ')}", "; ".join(rest))


_BECAME = {
    "assigned": "the work on {} began",
    "submitted": "{} was handed in",
    "changes": "{} was sent back",
    "approved": "{} was approved",
    "stuck": "{} was left to the person",
    "error": "{} was stopped by an error",
}


def _task(mark: Mark, who: str, _name: Name) -> str:
    named, state, *rest = (*mark.fields, "", "")
    task = "all tasks" if named == "all" else f"task{'s' if ',' in named else ''} {named}"
    told = "; ".join(part for part in rest if part and part.split(" ")[0] not in ("branch", "base", "commit", "tree"))
    return _with(_BECAME.get(state, f"{who} said of {{}} “{state}”").format(task), told)


def _gate(mark: Mark, who: str, _name: Name) -> str:
    named, state, *rest = (*mark.fields, "", "")
    told = "; ".join(part for part in rest if part and part.split(" ")[0] not in ("tree", "log"))
    by = {
        "run": f"{who} let the gate of task {named} run without a sandbox",
        "asked": f"the gate of task {named} asked to run without a sandbox",
    }
    return _with(by.get(state, f"the gate of task {named}: {state}"), told)


def _refused(mark: Mark, who: str, _name: Name) -> str:
    what, *why = mark.fields
    return _with(f"this did not count: {tried(what)}", "; ".join(why))


def tried(mark: str) -> str:
    """A mark that did not count, as its record has it, with its name in words."""
    return re.sub(r"\b([A-Z]+_)*[A-Z]+\b", lambda match: match[0].replace("_", " ").lower(), mark, count=1)


_WORDS: Mapping[str, Callable[[Mark, str, Name], str]] = MappingProxyType(
    {
        "PROPOSAL": lambda mark, who, _: f"{who} proposed {_with(mark.ref or 'this', mark.value)}",
        "CONSENSUS_PROPOSED": lambda mark, who, _: (
            f"{who} put up the text {mark.ref} to be signed" + ", without signing it" * (len(mark.fields) > 1)
        ),
        "CONSENSUS_REACHED": lambda mark, who, _: _with(f"{who} declared that there is an agreement", mark.value),
        "AGREE": _agreed,
        "VOTE": _voted,
        "DECIDE": _voted,
        "DEADLOCK": lambda mark, who, _: _with(
            f"{who} saw no agreement coming" if marks.is_called(mark) else "No agreement was reached", _deadlock(mark)
        ),
        "DECISION": _decision,
        "LIMIT": _limit,
        "QUESTION_FOR_USER": _asked,
        "AGENT_ERROR": _failed,
        "STALLED": lambda mark, _, name: _with(f"{name(mark.fields[0])} gave no answer in time", _rest(mark)),
        "TO": lambda mark, who, name: f"{who} addressed {', '.join(name(one) for one in mark.value.split(', '))}",
        "LEAVE": lambda mark, who, name: _with(f"{who} let {name(mark.fields[0])} leave", _rest(mark)),
        "REFUSED": _refused,
        "SEALED": lambda _mark, who, _: f"{who} sealed its answer, to be opened when all have sealed theirs",
        "ROUND": lambda mark, _who, _: f"from here on: {_plain(mark.value)}",
        "DIGEST": lambda mark, _who, name: f"earlier turns were summed up by {name(mark.fields[0])}",
        "DEFAULT_TAKEN": lambda mark, _who, _: _with("nobody answered in time, so this counts", _plain(mark.value)),
        "APPROVED": _approved,
        "TASK": _task,
        "GATE": _gate,
        "TASK_PROPOSED": lambda mark, who, _: f"{who} proposed a task: {_plain(mark.value)}",
        "IMPROVEMENT": lambda mark, who, _: f"{who} proposed an improvement: {_plain(mark.value)}",
        "STEP": lambda mark, who, _: f"{who} switched stopping after every turn {mark.value}",
    }
)


def _rest(mark: Mark) -> str:
    return "; ".join(mark.fields[1:])
