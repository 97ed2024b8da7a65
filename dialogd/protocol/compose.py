"""From a reply to the entry that is written: read, rule, close, cut. Pure; the same inputs give the same bytes.

The order is part of the format: clean, redact, lift marks, rule, cut; `grammar.render` escapes and hashes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dialogd.protocol.admit import admitted, left_in_words
from dialogd.protocol.consent import next_ref
from dialogd.protocol.fold import fold
from dialogd.protocol.hand import effective
from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import Reply, read_reply
from dialogd.protocol.model import SYSTEM, USER, Agent, Condition, Entry, Frame, Mark
from dialogd.protocol.moments import Here
from dialogd.protocol.onward import Step, onward
from dialogd.protocol.questions import written
from dialogd.protocol.redact import redact
from dialogd.protocol.render import Draft
from dialogd.protocol.roster import judge, speakers
from dialogd.protocol.rounds import CONTRIBUTIONS
from dialogd.protocol.settle import as_it_stands, counted, end_of
from dialogd.protocol.state import Debt, Dialog
from dialogd.protocol.text import clean, one_line
from dialogd.protocol.verdict import Ruling, rule


@dataclass(frozen=True, slots=True)
class Written:
    """A draft entry, and what was too long for it: `overflow` goes to the file `attachment` beside the dialog."""

    draft: Draft
    outcome: str = ""
    why: str = ""
    attachment: str = ""
    overflow: str = ""


def received(text: str, kinds: Collection[str] = ()) -> tuple[Reply, int]:
    """A raw reply, cleaned, redacted and read; with the number of secrets that were taken out.

    `kinds` are the dialog's own kinds of contribution.
    """
    safe, secrets = redact(clean(text))
    return read_reply(safe, tuple(kinds)), secrets


def agent_turn(
    dialog: Dialog,
    agent: Agent,
    debt: Debt,
    reply: Reply,
    *,
    attributes: tuple[tuple[str, str], ...],
    duration: str,
    folder: str,
    here: Here | None = None,
) -> Written:
    """The turn by which `agent` pays `debt` in the dialog as it stands.

    `attributes` go to the frame (`at`, `ms`, `model` …). `duration` is the dialog's age in words, for the closing
    lines. `folder` is the name of the attachments' folder, as linked from the file. By `here` the deadlines of
    questions are read; default: `at`.
    """
    # What did not count goes before the body: a summary reaches to the body's end.
    words = (left_in_words(admitted(dialog, agent.id, reply)[1]), reply.body)
    body, attachment, overflow = cut("\n\n".join(filter(None, words)), dialog.state.limits.max_message, folder)
    ruling = _ruled(dialog, agent.id, reply, body)
    ruling = replace(ruling, marks=written(ruling.marks, here or Here(dict(attributes).get("at", ""))))
    number = dialog.state.number + 1
    marks = (*ruling.marks, *_last_mark(dialog, ruling))
    if ruling.outcome in ("CONSENSUS_REACHED", "DECIDED", "DEADLOCK"):
        rehearsed = "REHEARSAL, " if dialog.is_rehearsed else ""
        body = "\n\n".join(part for part in (body, closing_lines(number, duration, f"{rehearsed}{ruling.why}")) if part)
    draft = Draft(
        by=agent.id,
        name=agent.name,
        number=number,
        body=body,
        marks=marks,
        turn=ruling.turn,
        attributes=(("re", debt.re), *attributes),
    )
    return Written(draft, ruling.outcome, ruling.why, attachment, overflow)


def _ruled(dialog: Dialog, me: str, reply: Reply, body: str) -> Ruling:
    """What the reply comes to; the turn for which the file has no more room ends the dialog, with what is decided."""
    ruling, most = rule(dialog, me, reply), dialog.state.limits.max_size
    size = sum(len(part.encode("utf-8", "replace")) for part in (body, *map(str, ruling.marks)))
    if ruling.turn is None or dialog.size + size < most:
        return ruling
    ruling = rule(dialog, me, reply, is_last=True)
    why = f"the limit of {most:,} bytes"
    return ruling if ruling.turn is None else Ruling(ruling.marks, None, "MAX_SIZE_REACHED", why)


def _last_mark(dialog: Dialog, ruling: Ruling) -> tuple[Mark, ...]:
    """The mark by which a turn ends the dialog, with the reason where no other line says it."""
    if not ruling.outcome:
        return ()
    is_said = ruling.outcome in ("MAX_TURNS_REACHED", "MAX_TIME_REACHED") and not dialog.header.rules.is_plain
    return (Mark(ruling.outcome, ruling.why if is_said else ""),)


def closing_lines(turns: int, duration: str, outcome: str) -> str:
    """The lines that close a dialog which ended by agreement: turns, duration, outcome."""
    return f"---\n\n**Total turns:** {turns}\n**Duration:** {duration}\n**Outcome:** {outcome}"


def cut(body: str, limit: int, folder: str) -> tuple[str, str, str]:
    """Cut a body to `limit` code points; gives body, attachment name and the rest ("" twice when nothing is cut)."""
    if len(body) <= limit:
        return body, "", ""
    name = f"{digest(body)}.md"
    rest = len(body) - limit
    link = f"*({rest:,} more characters: [the whole text]({folder}/{name}))*"
    return f"{body[:limit]}\n\n{link}", name, body


def error_note(dialog: Dialog, agent: str, cause: str, fix: str, attributes: tuple[tuple[str, str], ...] = ()) -> Draft:
    """The note that says an agent failed: the person's turn between two, the next agent's among more.

    `attributes` go to its frame: `at`, and what the agent spent since its last entry.
    """
    words = (one_line(part).replace(" | ", " / ") for part in (cause, fix))
    mark = Mark("AGENT_ERROR", " | ".join((agent, *words)))
    failed = dialog.state.failed | {agent}
    if {a.id for a in dialog.header.agents} <= failed and len(dialog.header.agents) > 1:
        marks = (mark, Mark("STOPPED", "error: every agent failed"))
        return Draft(SYSTEM, "System", marks=marks, attributes=attributes)
    return _note(passed_on(dialog, agent, mark), (mark,), attributes)


def stall_note(dialog: Dialog, agent: str, at: str) -> Draft:
    """The note that says an agent gave no answer in time; among more than two the turn goes on."""
    seal = dialog.state.seal(agent)
    mark = Mark("STALLED", f"{agent} | its seal in {seal.entry} is void: the text did not come" if seal else agent)
    is_round = dialog.header.rules.order == "parallel" or bool(dialog.state.seals)
    if len(dialog.header.agents) <= 2 and not is_round:
        return Draft(SYSTEM, "System", marks=(mark,), attributes=(("at", at),))
    return _note(passed_on(dialog, agent, mark), (mark,), (("at", at),))


def passed_on(dialog: Dialog, agent: str, mark: Mark) -> Step:
    """How it goes on when a note with `mark` passes over `agent`: the rest of the round, else what comes next.

    Between two agents the person is next, but in rounds: there one's failure does not stop the other. So is the person
    when nobody gave an answer since the last turn.
    """
    header, state = dialog.header, dialog.state
    rest = tuple(who for who in state.owing if who != agent)
    if rest:
        return Step(turn=rest)
    is_pair = len(header.agents) <= 2 and header.rules.order != "parallel" and not state.closing
    if is_pair or agent == judge(header):
        return Step(turn=(USER,))
    note = Entry("", 0, SYSTEM, "", "", (mark,), (), Condition.SOUND, "", 0, 0, 0, frame=Frame(SYSTEM, "", 0, "", ""))
    after = fold(header, state, note)
    found = tuple(counted(dialog, agent, after)) if header.rules.verdict == "vote" else ()
    outcome, why = end_of(header, found)
    if outcome:
        return Step(found, outcome=outcome, why=why)
    step = onward(header, state, after, agent)
    if mark.name == "STALLED" and step.turn is not None and _is_silent(dialog, agent):
        step = replace(step, turn=(USER,))
    return replace(step, marks=(*found, *step.marks))


def passed_by_hand(dialog: Dialog, agent: str, mark: Mark) -> Step:
    """How it goes on when the person passes over `agent`, or lets it go: the rest of the round, else what comes next.

    Step mode gives the person the word after turns alone. What a person's note cannot say (an escalation, a count of
    votes) is left to the next turn.
    """
    header, state = dialog.header, dialog.state
    note = Entry("", 0, USER, "", "", (mark,), (), Condition.SOUND, "", 0, 0, 0, frame=Frame(USER, "", 0, "", ""))
    alone = fold(header, state, replace(note, turn=None))
    if mark.name == "LEAVE" and alone.questions and alone.owing == (USER,):
        return Step()  # a TURN line would answer the question; the person has the word without one
    after = fold(header, state, note)
    after = after.but(hand=replace(after.hand, step=False), failed=after.failed | {agent})
    rest = tuple(who for who in after.owing if who not in (agent, USER))
    if rest:
        return Step(turn=rest)
    if mark.name == "LEAVE":
        header, agent = effective(header, after.hand), after.last_agent
    step = onward(header, state.but(escalated="", escalation=""), after, agent)  # what it was to decide is dropped
    return replace(step, marks=tuple(mark for mark in step.marks if mark.name == "PHASE"))


def _is_silent(dialog: Dialog, agent: str) -> bool:
    """True when `agent` is the last of those that get turns to give none since the last turn."""
    since = itertools.takewhile(lambda entry: not entry.is_turn, reversed(dialog.entries))
    silent = {mark.fields[0] for entry in since if entry.by == SYSTEM for mark in entry.all("STALLED")}
    return set(speakers(dialog.header)) <= silent | dialog.state.failed | {agent}


def _note(step: Step, marks: tuple[Mark, ...], attributes: tuple[tuple[str, str], ...]) -> Draft:
    """A daemon's note that goes on as `step` says."""
    marks = (*marks, *step.marks, *((Mark(step.outcome, step.why),) if step.outcome else ()))
    return Draft(SYSTEM, "System", marks=marks, turn=step.turn, attributes=attributes)


def sealed_note(agent: Agent, debt: Debt, sha: str, at: str, *, could_read: bool) -> Draft:
    """The note by which an agent binds itself to an answer that nobody has seen yet."""
    mark = Mark("SEALED", f"{sha} | could read files" if could_read else sha)
    return Draft(agent.id, agent.name, marks=(mark,), attributes=(("re", debt.re), ("at", at)))


def limit_note(dialog: Dialog, mark: Mark, at: str) -> Draft:
    """The note that ends the dialog at a limit: with what the votes in hand decide, else with `mark`."""
    found = as_it_stands(dialog)
    outcome, _ = end_of(dialog.header, found)
    return Draft(SYSTEM, "System", marks=(*found, Mark(outcome) if outcome else mark), attributes=(("at", at),))


def closing_note(dialog: Dialog, why: str, at: str) -> Draft:
    """The note that asks everybody for a last word; those who owe a turn give it with that."""
    able = tuple(who for who in speakers(dialog.header) if who not in dialog.state.failed)
    mark = Mark("CLOSING", why)
    if not able:
        return limit_note(dialog, Mark("MAX_TIME_REACHED", why), at)
    return Draft(SYSTEM, "System", marks=(mark,), turn=able, attributes=(("at", at),))


def raising_note(dialog: Dialog, turn: int, cited_by: Sequence[int], at: str) -> Draft:
    """The note that makes a point a proposal, because several contributions refer to it."""
    entry = dialog.entry(str(turn))
    typed = next((m.fields[-1] for m in entry.marks if m.name in CONTRIBUTIONS), "") if entry else ""
    text = one_line(typed or (entry.body.strip() if entry else ""), 300)
    who = f"turn {turn} of {entry.by}" if entry else f"turn {turn}"
    said = f"{text} | {who}, referred to in turns {', '.join(map(str, cited_by))}"
    marks = (Mark("PROPOSAL", said, next_ref(dialog.state)), Mark("RE", str(turn)))
    return Draft(SYSTEM, "System", marks=marks, attributes=(("at", at),))
