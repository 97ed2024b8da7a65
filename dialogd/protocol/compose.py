"""From a reply to the entry that is written: read, rule, close, cut. Pure; the same inputs give the same bytes.

The order is part of the format: clean, redact, lift marks, rule, cut; `grammar.render` escapes and hashes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dialogd.protocol.admit import Admission, Refusal, left_in_words
from dialogd.protocol.fold import effective, state_after
from dialogd.protocol.marks import ParsedReply, read_reply, round_of, without_turn_line
from dialogd.protocol.model import ANY, SYSTEM, USER, Draft, Mark, Participant, Said, digest
from dialogd.protocol.order import following, ways_out
from dialogd.protocol.questions import written
from dialogd.protocol.signals import cycle
from dialogd.protocol.state import Debt, Dialog, Escalation
from dialogd.protocol.text import clean, one_line, redact
from dialogd.protocol.verdict import Close, as_it_stands, end_of, next_turn, rule, taken, without


@dataclass(frozen=True, slots=True)
class Written:
    """A draft entry, and what was too long for it: `overflow` goes to the file `attachment` beside the dialog."""

    draft: Draft
    outcome: str = ""
    why: str = ""
    attachment: str = ""
    overflow: str = ""


def received(text: str, kinds: Collection[str] = ()) -> tuple[ParsedReply, int]:
    """A raw reply, cleaned, redacted and read; with the number of secrets that were taken out.

    `kinds` are the dialog's own kinds of contribution.
    """
    safe, secrets = redact(clean(text))
    return read_reply(without_turn_line(safe), tuple(kinds)), secrets


def agent_turn(
    admission: Admission,
    agent: Participant,
    debt: Debt,
    *,
    answers: Sequence[str] = (),
    calls: str = "",
    done: Sequence[Mark] = (),
    attributes: tuple[tuple[str, str], ...],
    duration: str,
    folder: str,
    here: str = "",
) -> Written:
    """The turn by which `agent` pays `debt` in the dialog in which its reply was admitted.

    `answers` are what the agent said to the closing question about its reply, and where that was put once more. `calls`
    are the calls of tools that it made, quoted: they stand before what it says, and nothing in them counts. `done` are
    the records of what its daemon did for this turn.
    `attributes` go to the frame (`at`, `ms`, `model` …). `duration` is the dialog's age in words, for the closing
    lines. `folder` is the name of the attachments' folder, as linked from the file. `here` is the wall time, with its
    machine's offset, from which the deadlines of questions are counted; default: `at`.
    """
    dialog = admission.dialog
    reply, refused = admission.counted(answers)
    # What did not count goes before the body: a summary reaches to the body's end.
    said = "\n\n".join(filter(None, (left_in_words(refused), reply.body)))
    body, attachment, overflow = _cut(calls, said, dialog.state.limits.max_message, folder)
    ruling = concluded(dialog, agent.id, reply, refused, body, done)
    number = dialog.state.number + 1
    marks = written(ruling.marks, here or dict(attributes).get("at", ""))
    if ruling.outcome in ("CONSENSUS_REACHED", "DECIDED", "DEADLOCK"):
        rehearsed = "REHEARSAL, " if dialog.is_rehearsed else ""
        ending = (f"**Total turns:** {number}", f"**Duration:** {duration}", f"**Outcome:** {rehearsed}{ruling.why}")
        body = "\n\n".join(filter(None, (body, "---", "\n".join(ending))))
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


def concluded(
    dialog: Dialog, me: str, reply: ParsedReply, refused: Sequence[Refusal], body: str, done: Sequence[Mark] = ()
) -> Close:
    """What a reply that counts comes to: all marks of the turn, with the one that ends the dialog, and how it ends.

    `body` is what is written of it. Deadlines of questions are still as the agent gave them. The turn for which the
    file has no more room ends the dialog, with what is decided.
    """
    most = dialog.state.limits.max_size
    ruling = _uncycled(dialog, me, rule(dialog, me, reply, refused, done=done), body)
    size = sum(len(part.encode("utf-8", "replace")) for part in (body, *map(str, ruling.marks)))
    if ruling.turn is not None and dialog.size + size >= most:
        ruling = rule(dialog, me, reply, refused, done=done, is_last=True)
        if ruling.turn is not None:
            ruling = Close(ruling.marks, None, "STOPPED", f"size: the limit of {most:,} bytes")
    marks, end = list(ruling.marks), ruling.outcome
    if ruling.turn is None and end != "DEADLOCK":  # what its agent alone called for is no end
        why = "one agent alone calls it, and this turn is the last"
        for at, mark in enumerate(marks):
            if mark.name == "DEADLOCK":
                marks[at] = Mark("REFUSED", f"{f'DEADLOCK {mark.value}'.strip().replace(' | ', ' / ')} | {why}")
    if end and all(mark.name != end for mark in marks):
        is_limit = end == "MAX_TURNS_REACHED" and not dialog.header.rules.is_plain
        is_alone = end == "DEADLOCK" and dialog.header.is_unattended
        marks.append(Mark(end, ruling.why if end == "STOPPED" or is_limit or is_alone else ""))
    return replace(ruling, marks=tuple(marks))


def _uncycled(dialog: Dialog, me: str, ruling: Close, body: str) -> Close:
    """How it goes on with the turn: where it closes a cycle thrice, and nobody else owes one, the person is asked.

    With nobody at the table there is a closing round instead, as after `Max Time`.
    """
    state, header = dialog.state, dialog.header
    is_alike = not dialog.state.build and not header.is_unattended  # the iterations of a task resemble one another
    if ruling.turn in (None, (USER,)) or not is_alike or state.closing or set(state.owing) - {me}:
        return ruling
    why = cycle(dialog, Said("", state.number + 1, me, "", body, ruling.marks, ruling.turn))
    question = Mark("QUESTION_FOR_USER", f"{why}: how is it to go on?")
    return Close((*ruling.marks, question), (USER,)) if why else ruling


def _cut(calls: str, said: str, limit: int, folder: str) -> tuple[str, str, str]:
    """What is written of calls of tools and of what was said, and name and text of an attachment for the rest.

    What was said is cut to `limit` code points, and never for the calls' sake.
    """
    whole = "\n\n".join(filter(None, (calls, said)))
    if len(whole) <= limit:
        return whole, "", ""
    if calls and len(said) <= limit:
        name = f"{digest(calls)}.md"
        link = f"*(the calls of tools that this turn made: [what they gave]({folder}/{name}))*"
        return "\n\n".join(filter(None, (link, said))), name, calls
    whole = "\n\n".join(filter(None, (said, calls)))
    name = f"{digest(whole)}.md"
    link = f"*({len(whole) - limit:,} more characters: [the whole text]({folder}/{name}))*"
    return f"{whole[:limit]}\n\n{link}", name, whole


def error_note(dialog: Dialog, agent: str, cause: str, fix: str, attributes: tuple[tuple[str, str], ...] = ()) -> Draft:
    """The note that says an agent failed: the person's turn between two, the next agent's among more.

    `attributes` go to its frame: `at`, and what the agent spent since its last entry.
    """
    words = (one_line(part).replace(" | ", " / ") for part in (cause, fix))
    mark = Mark("AGENT_ERROR", " | ".join((agent, *words)))
    absent = dialog.state.absent | ({agent} if dialog.state.debts.missed.get(agent) else set())
    if len(dialog.header.agents) > 1 and set(dialog.header.speakers) <= absent:
        marks = (mark, Mark("STOPPED", "error: every agent failed"))
        return Draft(SYSTEM, "System", marks=marks, attributes=attributes)
    return _note(passed_on(dialog, agent, mark), (mark,), attributes)


def stall_note(dialog: Dialog, agent: str, at: str) -> Draft:
    """The note that says an agent gave no answer in time; among more than two the turn goes on.

    Between two the debt stays open; with nobody at the table until it was noted twice.
    """
    seal, debt = dialog.state.debts.seal(agent), dialog.state.debt(agent)
    mark = Mark("STALLED", f"{agent} | its seal in {seal.entry} is void: the text did not come" if seal else agent)
    is_again = debt is not None and debt.stalled
    if _is_pair(dialog) and not dialog.state.debts.seals and not is_again:
        return Draft(SYSTEM, "System", marks=(mark,), attributes=(("at", at),))
    return _note(passed_on(dialog, agent, mark), (mark,), (("at", at),))


def passed_on(dialog: Dialog, agent: str, mark: Mark) -> Close:
    """How it goes on when a note with `mark` passes over `agent`: the rest of the round, else what comes next.

    Of two agents, and where it is the judge, who failed once is asked again; then the person is next, but in rounds:
    there one's failure does not stop the other. So is the person when nobody gave an answer since the last turn.
    """
    header, state = dialog.header, dialog.state
    rest = tuple(who for who in state.owing if who != agent and not (who == USER and header.is_unattended))
    if rest:
        return Close(turn=rest)
    after = state_after(header, state, _note_with(SYSTEM, mark))
    is_told = mark.name == "STALLED" and not header.is_unattended  # of two, the person is told who is silent
    if agent not in after.absent and (agent == header.judge or (_is_pair(dialog) and not is_told)):
        return Close(turn=(agent,))
    found = tuple(without(dialog, agent, after))
    outcome, why = end_of(header, found)
    if outcome:
        return Close(found, outcome=outcome, why=why)
    if _is_pair(dialog) and not header.is_unattended:
        ways = ways_out(header, after)
        return Close((Mark("QUESTION_FOR_USER", ways),) if ways else (), (USER,))
    step = next_turn(header, state, after, agent)
    is_still = mark.name == "STALLED" and step.turn is not None and _is_silent(dialog, agent)
    if is_still and not header.is_unattended:
        step = replace(step, turn=(USER,))
    return replace(step, marks=(*found, *step.marks))


def _note_with(by: str, mark: Mark, turn: tuple[str, ...] | None = ()) -> Said:
    """A note that is not written yet; with `turn=()` nobody is named in its TURN line so far."""
    return Said("", 0, by, "", "", (mark,), turn)


def _is_pair(dialog: Dialog) -> bool:
    """True where two take turns with one another: one that is silent keeps the other from going on."""
    return len(dialog.header.agents) <= 2 and dialog.header.rules.order != "parallel" and not dialog.state.closing


def passed_by_hand(dialog: Dialog, agent: str, mark: Mark) -> Close:
    """How it goes on when the person passes over `agent`, or lets it go: the rest of the round, else what comes next.

    Step mode gives the person the turn after turns alone. What a person's note cannot say (an escalation, a count of
    votes) is left to the next turn.
    """
    header, state = dialog.header, dialog.state
    alone = state_after(header, state, _note_with(USER, mark, None))
    if mark.name == "LEAVE" and alone.questions.open and alone.owing == (USER,):
        return Close()  # a TURN line would answer the question; it is the person's turn without one
    passed = state_after(header, state, _note_with(USER, mark))
    passed.hand = replace(alone.hand, step=False)
    after = replace(passed, debts=replace(passed.debts, missed={**passed.debts.missed, agent: 2}))
    rest = tuple(who for who in after.owing if who not in (agent, USER))
    if rest:
        return Close(turn=rest)
    if mark.name == "LEAVE":
        header, agent = effective(header, after.hand), after.floor.last
    step = next_turn(header, replace(state, escalation=Escalation()), after, agent)  # what it was to decide is dropped
    by_order = following(header, after, agent)
    if mark.name == "SKIP" and step.turn == (USER,) and ways_out(header, after):
        step = replace(step, turn=by_order)  # they know who is missing
    elif step.turn == by_order != (USER,) and (anew := following(header, passed, agent)) != (agent,):
        step = replace(step, turn=anew)  # asked at once with the others, it is asked again
    return replace(step, marks=tuple(mark for mark in step.marks if round_of((mark,), "phase") is not None))


def _is_silent(dialog: Dialog, agent: str) -> bool:
    """True when `agent` is the last of those that get turns to give none since the last turn."""
    since = itertools.takewhile(lambda entry: not entry.is_turn, reversed(dialog.entries))
    silent = {who for entry in since if entry.by == SYSTEM for who in entry.silent}
    return set(dialog.header.speakers) <= silent | dialog.state.debts.failed | {agent}


def _note(step: Close, marks: tuple[Mark, ...], attributes: tuple[tuple[str, str], ...]) -> Draft:
    """A daemon's note that goes on as `step` says."""
    marks = (*marks, *step.marks, *((Mark(step.outcome, step.why),) if step.outcome else ()))
    return Draft(SYSTEM, "System", marks=marks, turn=step.turn, attributes=attributes)


def plain_note(text: str, at: str) -> Draft:
    """A daemon's note that only tells something: no mark, no turn."""
    return Draft(SYSTEM, "System", body=text, attributes=(("at", at),))


def sealed_note(agent: Participant, debt: Debt, sha: str, at: str, *, could_read: bool) -> Draft:
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
    out = {*dialog.state.absent, *(debt.agent for debt in dialog.state.debts.open if debt.stalled)}
    able = tuple(who for who in dialog.header.speakers if who not in out)
    mark = Mark("ROUND", f"closing | {why}")
    if not able:
        return limit_note(dialog, Mark("STOPPED", f"time: {why}"), at)
    return Draft(SYSTEM, "System", marks=(mark,), turn=able, attributes=(("at", at),))


def decided_note(dialog: Dialog, at: str) -> Draft | None:
    """The note that ends the dialog where its end needs no word any more; None where it does.

    The person took the text, or everybody who is left has signed it.
    """
    state = dialog.state
    if state.table.standing is None or not (state.approved or state.absent or state.hand.left):
        return None
    found = taken(dialog) or (as_it_stands(dialog) if dialog.header.rules.verdict == "mutual" else [])
    outcome = "DECIDED" if state.approved else end_of(dialog.header, found)[0]
    if not found or not outcome:
        return None
    return Draft(SYSTEM, "System", marks=(*found, Mark(outcome)), attributes=(("at", at),))


def going_on(dialog: Dialog, at: str) -> Draft | None:
    """The note by which it goes on where the turn is the person's, or anybody's, and nobody is there to take it."""
    header, state = dialog.header, dialog.state
    if not header.is_unattended:
        return None
    alone = replace(state, debts=state.debts.without(USER, ANY))
    step = next_turn(header, alone, alone, state.floor.last)
    draft = _note(step, (), (("at", at),))
    return replace(draft, body="Nobody is at the table.")
