"""From a reply to the entry that is written: read, rule, close, cut. Is it over, and why. Pure; the same every time.

The order is part of the format: clean, redact, lift marks, rule, cut; `grammar.render` escapes and hashes.
Consensus is mutual and exact: the same text, by its hash, signed by every agent. An objection beats a signature in
the same reply; an agent that says nothing has not agreed. Nobody ends a dialog alone, except the person, and whom
the dialog's rule names.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dialogd.protocol import build
from dialogd.protocol.admit import Admission, MarkPolicy, Refusal, claims_consensus, left_in_words, shown
from dialogd.protocol.fold import effective, state_after
from dialogd.protocol.lifecycle import cycle
from dialogd.protocol.marks import (
    APPROVE,
    CYCLE,
    ParsedReply,
    agreed,
    asking,
    of_their_own,
    read_decisions,
    read_reply,
    round_of,
    same_text,
    without_turn_line,
)
from dialogd.protocol.marks import (
    refused as did_not_count,
)
from dialogd.protocol.model import (
    AGREED,
    ANY,
    SYSTEM,
    USER,
    Addition,
    Draft,
    Header,
    Mark,
    Participant,
    Said,
    digest,
    system_note,
)
from dialogd.protocol.order import at_work, awaited, following, signing, ways_out
from dialogd.protocol.questions import NAME as QUESTION
from dialogd.protocol.questions import without_fields, written
from dialogd.protocol.rules import BUILDS, DECIDE, MODERATE, Build
from dialogd.protocol.state import SINCE, Debt, Dialog, Escalation, Question, Questions, Standing, State, tally
from dialogd.protocol.text import clean, is_blank, many, one_line, redact


@dataclass(frozen=True, slots=True)
class Close:
    """What is written under an entry, and how it ends: with a `turn`, or with an `outcome` for the reason `why`."""

    marks: tuple[Mark, ...] = ()
    turn: tuple[str, ...] | None = None
    outcome: str = ""
    why: str = ""


def lacks_body(dialog: Dialog, me: str, reply: ParsedReply) -> str:
    """Why the reply must be written anew, in words for its agent; "" when it need not. Asked for once."""
    if is_blank(reply.body) and not reply.marks:
        return "Your reply was empty. Answer with your contribution, or with the single line [PASS]."
    limit, rules = dialog.state.limits.max_message, dialog.state.build.rules
    own = "" if dialog.state.table.standing else next((line for _, line in reply.tried if of_their_own(line)), "")
    claims = claims_consensus(reply) or bool(own and dialog.header.rules.verdict == "mutual")
    if claims and not reply.summary and not MarkPolicy(dialog, me).signed(Mark("CONSENSUS_REACHED"), reply):
        return (
            f"You wrote {one_line(own, 100) or '[CONSENSUS_REACHED]'}, but there is no agreed text yet. Send your reply"
            " again with a section `## Consensus Summary` that states exactly what is agreed, then [CONSENSUS_REACHED];"
            " or without the mark."
        )
    reviews = rules is not None and dialog.state.build.reviewed_by(me) is not None and not reply.has(QUESTION)
    if rules and reviews and (missing := build.unscored(rules, reply.marks)):
        return (
            f"A review gives points for every criterion, and yours has none for {', '.join(missing)}. Send it again"
            f" with one line {build.score_form(rules)}."
        )
    too_long = "An agreed text" if claims_consensus(reply) and len(reply.body) > limit else ""
    too_long = too_long or "A proposal" * any(m.proposes and len(m.value) > limit for m in reply.marks)
    shorter = f"{too_long} is never cut, and yours has over {limit} characters. Send the reply again, shorter."
    return shorter if too_long else ""


def rule(
    dialog: Dialog,
    me: str,
    reply: ParsedReply,
    refused: Sequence[Refusal] = (),
    *,
    done: Sequence[Mark] = (),
    is_last: bool = False,
) -> Close:
    """What the admitted `reply` of `me` comes to in `dialog` as it stands now; `refused` is what did not count of it.

    `done` are the records of what the agent's daemon did for this turn: a submission.

    Pure; called again if the dialog has moved on. `is_last` says that the file has room for no other turn.
    """
    header, before = dialog.header, dialog.state
    debt, rules, is_alone = before.debt(me), header.rules, header.is_unattended
    done = () if reply.has(QUESTION) else done  # who asks the person has submitted nothing
    marks = [*_canonical(dialog, me, reply), *done, *shown(refused)]
    if is_alone and reply.has(QUESTION):
        alone = "nobody is at the table: take your default, or decide, and say what you assume"
        marks.append(did_not_count(QUESTION, alone))

    def after_it() -> State:  # once the turn stands in the file, before anybody is named in its TURN line
        number, re = before.number + 1, debt.re if debt else ""
        return state_after(header, before, Said(str(number), number, me, "", reply.body, tuple(marks), (), re=re))

    after = after_it()
    if found := settled(dialog, me, after, marks, is_last=is_last):
        marks += found
        after = after_it()
    outcome, why = end_of(header, found)
    asked = after.questions
    waits = {*asked.askers} - asked.told if is_alone else asked.open  # nobody answers what a daemon asked
    if not outcome and me == before.build.moderator and not waits and build.is_last_word(before.build, marks):
        outcome, why = build.ending(before.build)
    if outcome:
        return Close(tuple(marks), None, outcome, why)
    callers = (*before.table.deadlock, me)
    was_sealed = rules.sealed and debt is not None and debt.is_ready  # first answers decide nothing
    if reply.has("DEADLOCK") and not was_sealed:
        # All that may vote (all agents, where nobody may) call it, and they are two; nobody waits for who is absent.
        able = (set(header.voters) or {agent.id for agent in header.agents}) - before.absent
        if len(able) >= 2 and able <= {*callers}:
            if header.judge and header.judge not in before.absent and after.counted < after.limits.max_turns:
                return Close(tuple(marks), (header.judge,))
            last = sorted(marks, key=lambda mark: mark.name == "DEADLOCK")  # its own call, with its crux, is the end
            return Close(tuple(last), None, "DEADLOCK", f"deadlock, called by {', '.join(callers)}")
    # Nobody agrees alone: where fewer than two may sign, an agent's end waits for the person.
    ends = reply.has("CONSENSUS_REACHED") or reply.has("DEADLOCK")
    if ends and rules.verdict == "mutual" and len(header.voters) < 2 and not is_alone:
        after = replace(after, questions=Questions((Question("asked"), *after.questions.open)))
    own = any(mark.name == "DECISION" and mark.fields[1:2] in (("moderator",), ("decide",)) for mark in found)
    step = next_turn(header, before, after, me, is_decided=own)
    return Close((*marks, *step.marks), step.turn, step.outcome, step.why)


def _canonical(dialog: Dialog, me: str, reply: ParsedReply) -> Iterator[Mark]:
    """The reply's marks as they are written: proposals get their numbers."""
    standing, number = dialog.state.table.standing, int(dialog.state.table.next_ref[1:])
    for mark in reply.marks:
        if mark.proposes:
            yield replace(mark, ref=f"P{number}")
            number += 1
        elif mark.name != "CONSENSUS_REACHED":
            yield mark
    if not claims_consensus(reply) or (dialog.header.rules.verdict == "mutual" and len(dialog.header.voters) < 2):
        return
    claim = next(mark for mark in reply.marks if mark.name == "CONSENSUS_REACHED")
    if standing is not None and MarkPolicy(dialog, me).signed(Mark("CONSENSUS_REACHED"), reply):
        is_said = any(standing.proposal.ref in agreed(mark) for mark in reply.marks)
        if not is_said and not standing.signed_by(me):
            yield Mark("AGREE", standing.proposal.ref)
    elif text := same_text(reply.summary):
        yield Mark("CONSENSUS_PROPOSED", " | ".join(filter(None, (digest(text), claim.value))), f"P{number}")


# -- How the dialog goes on -------------------------------------------------------------------------------------------


def limit_reached(before: State, after: State, me: str, header: Header) -> tuple[str, str]:
    """The outcome of the limit that `after` has reached, and the limit in words; "" twice while there is room."""
    limits = after.limits
    if after.counted >= limits.max_turns:
        return "MAX_TURNS_REACHED", turns_limit(after)
    is_last_resort = me in (before.escalation.to, header.judge) and not _rest(after, me)
    if after.floor.rounds == before.floor.rounds and not is_last_resort:
        return "", ""
    if after.closing:
        is_cycle = after.closing.startswith(CYCLE)
        return ("DEADLOCK", after.closing) if is_cycle else ("STOPPED", f"time: {after.closing}")
    if limits.max_rounds is not None and after.floor.rounds >= limits.max_rounds:
        return "MAX_TURNS_REACHED", f"the limit of {many(limits.max_rounds, 'round')}"
    return "", ""


def turns_limit(state: State) -> str:
    """The limit of turns in words, with what a build has come to; turns are counted anew after a reopening."""
    done = f"; {build.ending(state.build)[1]}" if state.build.all else ""
    return f"the limit of {many(state.limits.max_turns, 'turn')}" + (f" {SINCE}" if state.base else "") + done


def limit_mark(cause: str, why: str) -> Mark:
    """The mark that ends a dialog at a limit: of turns, else of time, size or budget."""
    return Mark("MAX_TURNS_REACHED", why) if cause == "turns" else Mark("STOPPED", f"{cause}: {why}")


def next_turn(header: Header, before: State, after: State, me: str, *, is_decided: bool = False) -> Close:
    """How the dialog goes on after an entry of `me` that does not end it by its rule."""
    # `before` and `after` are the states around the entry; `after` holds no debt that the entry itself opens.
    # `is_decided` says that the entry holds a decision.
    is_alone, rules = header.is_unattended, header.rules
    rest = tuple(who for who in _rest(after, me) if who != USER or not is_alone)
    is_asked = bool(after.questions.text) and not is_alone
    if after.build and (rest or is_asked):
        rest = tuple(dict.fromkeys((*rest, *at_work(header, after), *[USER] * is_asked)))
    outcome, why = limit_reached(before, after, me, header)
    if outcome:
        is_hard = after.counted >= after.limits.max_turns  # which nothing goes beyond
        last = None if rest or is_hard else _last_resort(header, before, after, outcome, why)
        return last or Close(outcome=outcome, why=why)
    marks: tuple[Mark, ...] = ()
    now = rules.phase(after.floor.rounds)
    if now > rules.phase(before.floor.rounds) >= 0:
        marks = (Mark("ROUND", f"phase | {rules.phases[now].name}"),)
    # What the moderator was to decide, and did not, is the person's.
    is_passed_up = bool(me) and not is_decided and before.escalation.to == me and not after.escalation.to
    passed_up = f"{me} did not decide: {before.escalation.why}" if is_passed_up else ""
    if passed_up and not is_alone:
        ask = f"{me} did not decide; please do: {without_fields(before.escalation.why)}"
        marks = (*marks, Mark("ESCALATE", passed_up), asking(ask))
    if rest:
        return Close(marks, rest)
    asked = after.questions
    if not is_alone and (asked.text or passed_up or after.hand.step):
        return Close(marks, (USER,))
    back = [who for who in asked.askers if who not in {*asked.told, *after.absent} and header.agent(who)]
    if back and is_alone:
        return Close(marks, tuple(dict.fromkeys((*back, *at_work(header, after)))))
    if after.escalation.to not in ("", USER):
        return Close(marks, (after.escalation.to,))
    named = following(header, after, me)
    for ask, outcome, why in _causes(header, after, named, passed_up):
        if is_alone and outcome:
            return _last_resort(header, before, after, outcome, why) or Close(marks, outcome=outcome, why=why)
        if ask and not is_alone:
            return Close((*marks, asking(ask)), (USER,))
    return Close(marks, named)


def _causes(header: Header, after: State, named: tuple[str, ...], passed_up: str) -> Iterator[tuple[str, str, str]]:
    """What keeps it from going on by its order, the weightiest first: what the person is asked; else outcome and why.

    The end is that of a dialog with nobody at the table. `named` would be next by the order, `passed_up` is what the
    moderator leaves to the person.
    """
    names, everybody, tasks = awaited(header, after), header.speakers, after.build
    here = [who for who in everybody if who not in after.absent]
    if passed_up:
        yield "", "DEADLOCK", without_fields(passed_up)
    if tasks and (not names or named != (USER,)):  # who can go on does, although another one is absent
        what, task = tasks.due_of(USER) if named == (USER,) else (None, None)
        why = f"task {task.id}: {task.why}" if what is build.Due.STUCK and task is not None else ""
        why = build.unplanned(tasks) if what is build.Due.GOAL else why
        yield build.question(tasks) if what else "", "STOPPED" if why else "", f"error: {why}"
        return
    if after.escalation.to == USER:
        why = without_fields(after.escalation.why)
        yield why or "please decide", "DEADLOCK", f"nobody could decide: {why}"
    if len(here) < 2 and not (len(everybody) == 1 and here and after.limits.max_rounds is not None):
        absent = ", ".join(who for who in everybody if who in after.absent)
        why = f"absent: {absent}" if absent else "nobody else takes part"
        yield "", "STOPPED", f"error: fewer than two agents are left; {why}"
    if names:
        why = f"error: nothing can be decided without {', '.join(names)}; absent: {', '.join(sorted(after.absent))}"
        yield ways_out(header, after), "STOPPED", why
    if after.floor.is_quiet and not tasks:
        ask = "" if header.rules.is_plain else "everybody passed: close the dialog, or say what is missing"
        yield ask, "DEADLOCK", "everybody passed"


def _rest(after: State, me: str) -> tuple[str, ...]:
    return tuple(who for who in after.owing if who not in (me, ANY))


def _last_resort(header: Header, before: State, after: State, outcome: str, why: str) -> Close | None:
    """Who has the last word where this dialog's rule gives it to one: the judge, the moderator, or the person."""
    one = header.judge
    if one and one not in after.absent and len(after.table.judged) < 2:
        waits = one in after.questions.askers and not header.is_unattended
        return Close((), (USER,) if waits else (one,))
    above = header.moderator if header.rules.verdict == "moderator" else ""
    if above and not before.escalation.to and above not in after.absent:
        return Close((Mark("ESCALATE", why),), (above,))
    return None


# -- What is decided once an agent's turn stands ----------------------------------------------------------------------

# By which methods a decision ends a dialog of each verdict; a build ends by its moderator's last word.
_ENDS: Mapping[str, tuple[str, ...]] = {
    "mutual": ("mutual",),
    "vote": ("vote", "moderator"),
    "moderator": ("moderator",),
    "judge": ("judge",),
    BUILDS: (),
}


def settled(dialog: Dialog, me: str, after: State, marks: Sequence[Mark], *, is_last: bool = False) -> list[Mark]:
    """The marks that the daemon adds because of what `marks` of `me` come to; `after` is the state with them."""
    header, debt = dialog.header, dialog.state.debt(me)
    if header.rules.sealed and debt is not None and debt.is_ready:
        return []  # first answers decide nothing: they were given without the others'
    if me == header.judge:
        return list(_judged(dialog.state, after, me))
    if rules := dialog.state.build.rules:
        return list(_reviewed(dialog, rules, me, after, marks))
    return [*_deciders(dialog, me, after, marks), *without(dialog, me, after, marks, is_last=is_last)]


def end_of(header: Header, found: Sequence[Mark]) -> tuple[str, str]:
    """The outcome that these decisions end the dialog with, by its rule, and why; "" twice when they do not."""
    rules = header.rules
    for mark in found:
        outcome, method, evidence = (*mark.fields, "", "", "")[:3]
        if mark.name != "DECISION" or method not in _ENDS[rules.verdict]:
            continue
        if outcome == "undecided":
            return "DEADLOCK", f"undecided: {evidence}"
        if outcome == "approved":
            if method == "mutual":
                return "CONSENSUS_REACHED", f"consensus on {mark.ref}, {evidence}"
            return "DECIDED", f"{mark.ref or evidence.split(';')[0]} {outcome} by {method}: {evidence}"
    return "", ""


def as_it_stands(dialog: Dialog) -> list[Mark]:
    """What the votes or signatures in hand come to where a limit ends the dialog and no turn follows."""
    if dialog.state.table.red_team:
        return []  # nobody has argued against it yet
    return without(dialog, "", dialog.state, is_last=True)


def without(
    dialog: Dialog, agent: str, after: State, marks: Sequence[Mark] = (), *, is_last: bool = False
) -> list[Mark]:
    """What signatures or votes come to after `marks` of `agent`; without marks it is passed over."""
    match dialog.header.rules.verdict:
        case "mutual":
            return list(_signed(dialog, after, marks))
        case "vote":
            return list(_voted(dialog, agent, after, is_last=is_last))
        case _:
            return []


def taken(dialog: Dialog) -> list[Mark]:
    """The decision that the person made by taking the text on the table."""
    standing = dialog.state.table.standing
    if not dialog.state.approved or standing is None:
        return []
    why = f"approved | person | {_signatures(dialog.header, standing)} | the person took the text as it stands"
    return [Mark("DECISION", why, standing.proposal.ref)]


def _signatures(header: Header, standing: Standing) -> str:
    signers, able = dict(standing.signers), header.voters
    signed = ", ".join(f"{who} in turn {turn}" for who, turn in signers.items() if who in able)
    left = ", ".join(who for who in able if who not in signers)
    return f"signed by {signed}" + (f"; left out, being absent: {left}" if left else "")


def _signed(dialog: Dialog, after: State, marks: Sequence[Mark]) -> Iterator[Mark]:
    """The text on the table, once everybody who may sign has signed it."""
    standing, names = after.table.standing, {mark.name for mark in marks}
    able = set(signing(dialog.header, after))
    if standing is None or len(able) < 2 or names & {"OBJECTION", "DEADLOCK", "CONSENSUS_PROPOSED"}:
        return
    signers, ref = dict(standing.signers), standing.proposal.ref
    signs = any(ref in agreed(mark) for mark in marks)
    # Who left, or is left out, may have been the last to sign.
    is_plain = dialog.header.rules.is_plain and not (after.hand.left or after.absent)
    if not able <= set(signers) or not (signs or not is_plain):
        return
    held = _held(dialog, after, ref)
    if held is None:
        yield Mark("DECISION", f"approved | mutual | {_signatures(dialog.header, standing)}", ref)
    elif signs:
        yield from held


def _held(dialog: Dialog, after: State, ref: str, *, is_last: bool = False) -> tuple[Mark, ...] | None:
    rules, board = dialog.header.rules, dialog.header.rules.board
    if rules.review and after.table.blocking:
        open_ = ", ".join(str(one.number) for one in after.table.blocking)
        return (did_not_count(f"approval of {ref}", f"findings that block are open: {open_}"),)
    if board is not None and after.floor.contributed < board.minimum_contributions:
        why = f"an end needs {board.minimum_contributions} contributions, there are {after.floor.contributed}"
        return (did_not_count(f"approval of {ref}", why),)
    first = 2 if rules.sealed or rules.verdict == "vote" else 1  # turns of each agent in the very first exchange
    at_once = bool(after.floor.turns_of) and max(after.floor.turns_of.values()) <= first
    is_due = at_once or dialog.state.table.red_team  # a pass argues nothing: then it is another's
    if rules.red_team and is_due and not (after.table.is_tested or is_last):
        return (Mark("ROUND", f"red team | {ref}"),)
    return None


def _voted(dialog: Dialog, me: str, after: State, *, is_last: bool) -> Iterator[Mark]:
    """The votes that are over: at most one is won, by most weight; when enough have failed the moderator decides."""
    # A round is heard to its end first: what the others of it say is on its way, and may be the dissent worth reading.
    header, rules = dialog.header, dialog.header.rules
    is_last = is_last or bool(limit_reached(dialog.state, after, me, header)[0])
    if not is_last and awaited(header, after):
        return  # the person, or the end, comes before a count that only absence decides
    if not is_last and any(debt.agent not in (me, USER, ANY) for debt in after.debts.open):
        return
    over = after.polls.over(header, after.absent)
    polls = (poll for poll in after.polls.open if poll.ref in over or (is_last and poll.ballots))
    counts = {poll.ref: tally(header, poll, after.absent) for poll in polls}
    held = {ref: _held(dialog, after, ref, is_last=is_last) for ref, count in counts.items() if count.is_approved}
    free = [ref for ref, what in held.items() if what is None]
    won = max(free, key=lambda ref: rules.weight(counts[ref].approve), default="")  # of equals the earlier one
    known = dialog.state.polls.over(header, dialog.state.absent)  # what holds those up was said then
    failed = False
    for ref, count in counts.items():
        if ref == won:
            others = ", ".join(other for other in free if other != won)
            more = f", and for {others}: the most for it wins, of equals the first" if others else ""
            why = f"at least {rules.threshold:.0%} for it{more}"
            yield Mark("DECISION", f"approved | vote | {count.evidence} | {why}", ref)
            return
        if count.is_approved:
            yield from (held[ref] or ()) if ref not in known else ()
        else:
            failed = True
            short = "one agent alone is for it" if count.is_enough else f"less than {rules.threshold:.0%} for it"
            why = short if count.is_quorate else "fewer votes than the quorum"
            yield Mark("DECISION", f"rejected | vote | {count.evidence} | {why}", ref)
    enough = rules.escalation_threshold
    if failed and after.polls.failed + 1 >= enough and not is_last:
        yield Mark("ESCALATE", f"{enough} vote{'' if enough == 1 else 's'} failed")


def _deciders(dialog: Dialog, me: str, after: State, marks: Sequence[Mark]) -> Iterator[Mark]:
    rules, state = dialog.header.rules, dialog.state
    may_end = rules.verdict == "moderator" or (rules.verdict == "vote" and state.escalation.to == me)
    may_decide = rules.role(me).may(DECIDE, MODERATE)
    for choice in read_decisions(marks).values() if may_decide else ():
        is_yes = choice.choice == APPROVE
        counts = may_end or (rules.review and after.table.blocking)
        held = _held(dialog, after, choice.ref, is_last=True) if counts and is_yes else None
        if held is not None:
            yield from held
            continue
        head = f"{'approved' if is_yes else 'rejected'} | {'moderator' if may_end else 'decide'}"
        why = choice.reason or "no reason given"
        yield Mark("DECISION", f"{head} | by {me} in turn {state.number + 1} | {why}", choice.ref)


def _reviewed(dialog: Dialog, rules: Build, me: str, after: State, marks: Sequence[Mark]) -> Iterator[Mark]:
    """What a review of the submitted task comes to; nothing while its reviewer has not decided."""
    task = dialog.state.build.reviewed_by(me)
    if task is None:
        return
    choice = read_decisions(marks).get(task.ref)
    if choice is None:
        yield from build.undecided(task) if all(mark.name != QUESTION for mark in marks) else ()
        return
    blocking = [one.number for one in after.table.blocking if one.task in (0, task.number)]
    why = build.objections(rules, task, marks, blocking, approves=choice.choice == APPROVE)
    evidence = f"by {me} in turn {dialog.state.number + 1}; tree {task.tree}; gate {task.gate}"
    reason = "; ".join(why) or choice.reason or "no reason given"
    yield Mark("DECISION", f"{'rejected' if why else 'approved'} | review | {evidence} | {reason}", task.ref)
    yield from build.records(dialog.state.build, rules, task, marks, why)


def _judged(before: State, after: State, me: str) -> Iterator[Mark]:
    if len(after.table.judged) < 2:
        return
    (first, _), (second, reason) = after.table.judged[-2:]
    turns = f"read in both orders by {me} in turns {before.number} and {before.number + 1}"
    if first == second and first not in ("", "none"):
        turn = after.floor.position_at[first]
        yield Mark("DECISION", f"approved | judge | {first} in turn {turn}; {turns} | {reason or 'no reason given'}")
    else:
        said = ", then ".join(answer or "nothing clear" for answer in (first, second))
        why = "its answer flipped with the order" if first != second else "no position held"
        yield Mark("DECISION", f"undecided | judge | {said}; {turns} | {why}")


# -- Entries as they are written --------------------------------------------------------------------------------------


def received(text: str, kinds: Collection[str] = ()) -> tuple[ParsedReply, int]:
    """A raw reply, cleaned, redacted and read; with the number of secrets that were taken out."""
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
) -> Addition:
    """The turn by which `agent` pays `debt` in the dialog in which its reply was admitted."""
    # `answers` are what the agent said to the closing question about its reply, and where that was put once more.
    # `calls` are the calls of tools that it made, quoted: they stand before what it says, and nothing in them counts.
    # `done` are the records of what its daemon did for this turn. `attributes` go to the frame (`at`, `ms`, `model` …).
    # `duration` is the dialog's age in words, for the closing lines. `folder` is the name of the attachments' folder,
    # as linked from the file. `here` is the wall time, with its machine's offset, from which the deadlines of questions
    # are counted; default: `at`.
    dialog = admission.dialog
    reply, refused = admission.counted(answers)
    # What did not count goes before the body: a summary reaches to the body's end.
    said = "\n\n".join(filter(None, (left_in_words(refused), reply.body)))
    body, attachment, overflow = _cut(calls, said, dialog.state.limits.max_message, folder)
    ruling = concluded(dialog, agent.id, reply, refused, body, done)
    number = dialog.state.number + 1
    marks = written(ruling.marks, here or dict(attributes).get("at", ""))
    if ruling.outcome in (*AGREED, "DEADLOCK"):
        rehearsed = "REHEARSAL, " if dialog.is_rehearsed else ""
        ending = (f"**Total turns:** {number}", f"**Duration:** {duration}", f"**Outcome:** {rehearsed}{ruling.why}")
        body = "\n\n".join(filter(None, (body, "---", "\n".join(ending))))
    draft = Draft(agent.id, agent.name, number, body, marks, ruling.turn, (("re", debt.re), *attributes))
    return Addition(draft, attachment, overflow)


def concluded(
    dialog: Dialog, me: str, reply: ParsedReply, refused: Sequence[Refusal], body: str, done: Sequence[Mark] = ()
) -> Close:
    """What a reply that counts comes to: all marks of the turn, with the one that ends the dialog, and how it ends."""
    # `body` is what is written of it. Deadlines of questions are still as the agent gave them. The turn for which the
    # file has no more room ends the dialog, with what is decided.
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
                marks[at] = did_not_count(f"DEADLOCK {mark.value}".strip().replace(" | ", " / "), why)
    if end and all(mark.name != end for mark in marks):
        is_limit = end == "MAX_TURNS_REACHED" and not dialog.header.rules.is_plain
        is_alone = end == "DEADLOCK" and dialog.header.is_unattended
        marks.append(Mark(end, ruling.why if end == "STOPPED" or is_limit or is_alone else ""))
    return replace(ruling, marks=tuple(marks))


def _uncycled(dialog: Dialog, me: str, ruling: Close, body: str) -> Close:
    """How it goes on with the turn: where it closes a cycle thrice, and nobody else owes one, the person is asked."""
    state, header = dialog.state, dialog.header
    is_alike = not dialog.state.build and not header.is_unattended  # the iterations of a task resemble one another
    if ruling.turn in (None, (USER,)) or not is_alike or state.closing or set(state.owing) - {me}:
        return ruling
    why = cycle(dialog, Said("", state.number + 1, me, "", body, ruling.marks, ruling.turn))
    question = asking(f"{why}: how is it to go on?")
    return Close((*ruling.marks, question), (USER,)) if why else ruling


def _cut(calls: str, said: str, limit: int, folder: str) -> tuple[str, str, str]:
    """What is written of calls of tools and of what was said, and name and text of an attachment for the rest."""
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
    """The note that says an agent failed: the person's turn between two, the next agent's among more."""
    words = (one_line(part).replace(" | ", " / ") for part in (cause, fix))
    mark = Mark("AGENT_ERROR", " | ".join((agent, *words)))
    absent = dialog.state.absent | ({agent} if dialog.state.debts.missed.get(agent) else set())
    if len(dialog.header.agents) > 1 and set(dialog.header.speakers) <= absent:
        marks = (mark, Mark("STOPPED", "error: every agent failed"))
        return Draft(SYSTEM, "System", marks=marks, attributes=attributes)
    return _note(passed_on(dialog, agent, mark), (mark,), attributes)


def stall_note(dialog: Dialog, agent: str, at: str) -> Draft:
    """The note that says an agent gave no answer in time; among more than two the turn goes on."""
    # Between two the debt stays open; with nobody at the table until it was noted twice.
    seal, debt = dialog.state.debts.seal(agent), dialog.state.debt(agent)
    mark = Mark("STALLED", f"{agent} | its seal in {seal.entry} is void: the text did not come" if seal else agent)
    is_again = debt is not None and debt.stalled
    if _is_pair(dialog) and not dialog.state.debts.seals and not is_again:
        return system_note(at, (mark,))
    return _note(passed_on(dialog, agent, mark), (mark,), (("at", at),))


def passed_on(dialog: Dialog, agent: str, mark: Mark) -> Close:
    """How it goes on when a note with `mark` passes over `agent`: the rest of the round, else what comes next."""
    # Of two agents, and where it is the judge, who failed once is asked again; then the person is next, but in rounds:
    # there one's failure does not stop the other. So is the person when nobody gave an answer since the last turn.
    header, state = dialog.header, dialog.state
    rest = tuple(who for who in state.owing if who != agent and not (who == USER and header.is_unattended))
    after = state_after(header, state, _note_with(SYSTEM, mark))
    if rest:
        return Close(turn=tuple(dict.fromkeys((*rest, *(at_work(header, after) if state.build else ())))))
    is_told = mark.name == "STALLED" and not header.is_unattended  # of two, the person is told who is silent
    if agent not in after.absent and (agent == header.judge or (_is_pair(dialog) and not is_told)):
        return Close(turn=(agent,))
    found = tuple(without(dialog, agent, after))
    outcome, why = end_of(header, found)
    if outcome:
        return Close(found, outcome=outcome, why=why)
    if _is_pair(dialog) and not header.is_unattended:
        ways = ways_out(header, after)
        return Close((asking(ways),) if ways else (), (USER,))
    step = next_turn(header, state, after, agent)
    if is_told and step.turn is not None:
        since = itertools.takewhile(lambda entry: not entry.is_turn, reversed(dialog.entries))
        silent = {agent, *state.debts.failed, *(who for entry in since if entry.by == SYSTEM for who in entry.silent)}
        if silent >= set(header.speakers):  # the last of those that get turns to give none since the last turn
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
        return Close(turn=(*rest, *[USER] * bool(state.build and alone.questions.askers)))
    if mark.name == "LEAVE":
        header, agent = effective(header, after.hand), after.floor.last
    step = next_turn(header, replace(state, escalation=Escalation()), after, agent)  # what it was to decide is dropped
    by_order = following(header, after, agent)
    if mark.name == "SKIP" and step.turn == (USER,) and ways_out(header, after):
        step = replace(step, turn=by_order)  # they know who is missing
    elif step.turn == by_order != (USER,) and (anew := following(header, passed, agent)) != (agent,):
        step = replace(step, turn=anew)  # asked at once with the others, it is asked again
    return replace(step, marks=tuple(mark for mark in step.marks if round_of((mark,), "phase") is not None))


def _note(step: Close, marks: tuple[Mark, ...], attributes: tuple[tuple[str, str], ...]) -> Draft:
    marks = (*marks, *step.marks, *((Mark(step.outcome, step.why),) if step.outcome else ()))
    return Draft(SYSTEM, "System", marks=marks, turn=step.turn, attributes=attributes)


def sealed_note(agent: Participant, debt: Debt, sha: str, at: str, *, could_read: bool) -> Draft:
    """The note by which an agent binds itself to an answer that nobody has seen yet."""
    mark = Mark("SEALED", f"{sha} | could read files" if could_read else sha)
    return Draft(agent.id, agent.name, marks=(mark,), attributes=(("re", debt.re), ("at", at)))


def limit_note(dialog: Dialog, mark: Mark, at: str) -> Draft:
    """The note that ends the dialog at a limit: with what the votes in hand decide, else with `mark`."""
    found = as_it_stands(dialog)
    outcome, _ = end_of(dialog.header, found)
    return system_note(at, (*found, Mark(outcome) if outcome else mark))


def closing_note(dialog: Dialog, why: str, at: str) -> Draft:
    """The note that asks everybody for a last word; those who owe a turn give it with that."""
    out = {*dialog.state.absent, *(debt.agent for debt in dialog.state.debts.open if debt.stalled)}
    able = tuple(who for who in dialog.header.speakers if who not in out)
    mark = Mark("ROUND", f"closing | {why}")
    if not able:
        return limit_note(dialog, Mark("STOPPED", f"time: {why}"), at)
    return system_note(at, (mark,), turn=able)


def decided_note(dialog: Dialog, at: str) -> Draft | None:
    """The note that ends the dialog where its end needs no word any more; None where it does."""
    state = dialog.state
    if state.table.standing is None or not (state.approved or state.absent or state.hand.left):
        return None
    found = taken(dialog) or (as_it_stands(dialog) if dialog.header.rules.verdict == "mutual" else [])
    outcome = "DECIDED" if state.approved else end_of(dialog.header, found)[0]
    if not found or not outcome:
        return None
    return system_note(at, (*found, Mark(outcome)))


def going_on(dialog: Dialog, at: str) -> Draft | None:
    """The note by which it goes on where the turn is the person's, or anybody's, and nobody is there to take it."""
    header, state = dialog.header, dialog.state
    if not header.is_unattended:
        return None
    alone = replace(state, debts=state.debts.without(USER, ANY))
    step = next_turn(header, alone, alone, state.floor.last)
    draft = _note(step, (), (("at", at),))
    return replace(draft, body="Nobody is at the table.")
