"""How a dialog stands by its own rules: rows for people, facts for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from dialogd.protocol import decide, lifecycle
from dialogd.protocol.certificate import where
from dialogd.protocol.convergence import hundredths
from dialogd.protocol.marks import round_of
from dialogd.protocol.model import USER
from dialogd.protocol.result import as_of_now, rejected, reopenings
from dialogd.protocol.roster import voters, weight
from dialogd.protocol.state import Decision, Dialog, Poll
from dialogd.protocol.units import in_words

LATEST = 3  # decisions that are shown; all of them are among the facts
BY = {"harvest": "dialogd plan, dialogd export", "reset": "dialogd say … opens it again"}  # for words of programs


def signal_row(dialog: Dialog) -> tuple[tuple[str, str], ...]:
    """The weak signals, in one row; none before two agents have spoken."""
    found = lifecycle.assessed(dialog)
    if found is None:
        return ()
    counts = (_many(int(found[f"{name}s"]), name) for name in ("agreement", "disagreement"))
    near = hundredths(float(found["convergence"])) / 100
    numbers = f"convergence {near:.2f}, confidence {found['confidence']:.2f}"
    return (("signals", f"{found['advice']}: {', '.join(counts)}, {numbers} (weak: words only)"),)


def allowance(dialog: Dialog) -> str:
    """Where it stands and what that allows: `under way: post, read, vote, stop`; commands where there are any."""
    where = lifecycle.phase(dialog)
    return f"{lifecycle.PLAIN[where]}: {', '.join(BY.get(word, word) for word in lifecycle.ALLOWED[where])}"


def rows(dialog: Dialog, at: str) -> Iterator[tuple[str, str]]:
    """What there is to say of a dialog with rules of its own; nothing of a plain one but its limits. `at` is now."""
    state = dialog.state
    if not dialog.header.rules.is_plain:
        yield "rules", _rules(dialog)
        yield "round", _round(dialog)
        yield from _decisions(dialog)
    sealed, waiting = _seals(dialog)
    if sealed:
        yield "sealed", ", ".join(sealed) + (f"; waiting for {', '.join(waiting)}" if waiting else "")
    if state.queue:
        yield "in line", f"for the word: {', '.join(map(_you, state.queue))}"
    if (left := _time_left(dialog, at)) is not None:
        yield "time", f"{in_words(round(left))} left of {in_words(state.limits.max_time or 0.0)}"


def result(dialog: Dialog) -> Iterator[tuple[str, str]]:
    """What the person made of a result: that they took it, or rejected the one before this opening."""
    note, before = dialog.entry(dialog.state.approved) if dialog.state.approved else None, rejected(dialog)
    if note is not None:
        yield "approved", f"by you{when(note.frame.at) if note.frame else ''}"
    if before is not None:
        yield "rejected", f"{before.outcome} in {where(before.ended_in)}, by you{when(before.at)}: {before.reason}"


def when(at: str) -> str:
    """A time behind a few words: ` on 2026-11-22 at 18:04 UTC`; "" for none."""
    return f" on {at[:10]} at {at[11:16]} UTC" if at.endswith("Z") else ""


def _decisions(dialog: Dialog) -> Iterator[tuple[str, str]]:
    """What is voted on, what was decided last, who is to decide, what is in the way."""
    state, is_over = dialog.state, dialog.state.outcome is not None
    for poll in () if is_over else state.polls:
        yield "vote", _vote(dialog, poll)
    for decision in _decisions_now(dialog)[-LATEST:]:
        yield "decided", _decided(decision)
    if state.escalated and not is_over:
        yield "decides", _you(state.escalated) + (f": {state.escalation}" if state.escalation else "")
    if state.blocking:
        yield "blocks", f"an approval: finding {', '.join(map(str, state.blocking))}"


def _decisions_now(dialog: Dialog) -> tuple[Decision, ...]:
    """The decisions as they stand by what came after them; the reason says what that was."""
    opened, found = reopenings(dialog) if dialog.state.decisions else {}, []
    for decision in dialog.state.decisions:
        now = as_of_now(opened, decision.entry, decision.outcome, decision.reason)
        left = f"superseded: {now.superseded}" if now.superseded else ""
        found.append(replace(decision, outcome=now.outcome, reason="; ".join(filter(None, (now.reason, left)))))
    return tuple(found)


def facts(dialog: Dialog, at: str) -> dict[str, Any]:
    """The same for programs: `time_left` in seconds, null without a limit."""
    state, rules = dialog.state, dialog.header.rules
    sealed, waiting = _seals(dialog)
    return {
        "template": rules.template,
        "order": rules.order,
        "verdict": rules.verdict,
        "phase": _phase(dialog),
        "rounds": state.rounds,
        "max_rounds": state.limits.max_rounds,
        "polls": [_poll(dialog, poll) for poll in state.polls],
        "decisions": [_decision(decision) for decision in _decisions_now(dialog)],
        "escalated": state.escalated,
        "escalation": state.escalation,
        "sealed": list(sealed),
        "unsealed": list(waiting),
        "queue": list(state.queue),
        "blocking": list(state.blocking),
        "closing": state.closing,
        "time_left": _time_left(dialog, at),
    }


def _time_left(dialog: Dialog, at: str) -> float | None:
    """Seconds until the time limit of a dialog that goes on; None without a limit, or without a beginning."""
    left = None if dialog.state.outcome else decide.time_left(dialog, at)
    return None if left is None else max(left, 0.0)


def _rules(dialog: Dialog) -> str:
    rules = dialog.header.rules
    verdict = {
        "mutual": "all sign the same text",
        "vote": f"threshold {rules.threshold:.0%}, quorum {rules.quorum:.0%}"
        + (", the first wins" if rules.winner == "first" else ""),
        "moderator": "the moderator decides",
        "judge": f"{rules.judge or 'nobody'} judges",
    }[rules.verdict]
    return f"{rules.template + ': ' if rules.template else ''}order {rules.order}; verdict {rules.verdict}, {verdict}"


def _round(dialog: Dialog) -> str:
    """`2 of 5; phase 1 of 3, DISCOVERY: what there is`."""
    state = dialog.state
    most = state.limits.max_rounds
    number = state.rounds + (state.outcome is None)
    text = f"{number if most is None else min(number, most)}" + (f" of {most}" if most is not None else "")
    phase = _phase(dialog)
    if phase is None:
        return text
    about = f": {phase['description']}" if phase["description"] else ""
    return f"{text}; phase {phase['number']} of {phase['of']}, {phase['name']}{about}"


def _phase(dialog: Dialog) -> dict[str, Any] | None:
    """The phase that is under way; after the end the one that began last, for what was to follow never did."""
    rules, state = dialog.header.rules, dialog.state
    index = rules.phase(state.rounds)
    if index < 0:
        return None
    if state.outcome is not None:
        began = [
            name for e in dialog.entries if e.frame and e.number > state.base if (name := round_of(e.marks, "phase"))
        ]
        names = [phase.name for phase in rules.phases[: index + 1]]
        index = names.index(began[-1]) if began and began[-1] in names else 0
    phase = rules.phases[index]
    return {"number": index + 1, "of": len(rules.phases), "name": phase.name, "description": phase.description}


def _missing(dialog: Dialog, poll: Poll) -> list[str]:
    cast = {ballot.agent for ballot in poll.ballots}
    return [who for who in voters(dialog.header) if who not in cast]


def _vote(dialog: Dialog, poll: Poll) -> str:
    weigh = {b.agent: weight(dialog.header, [b.agent]) for b in poll.ballots}
    weights = {who: "" if heavy == 1 else f" (weight {heavy:g})" for who, heavy in weigh.items()}
    votes = ", ".join(f"{b.agent} {b.choice}{weights[b.agent]}" for b in poll.ballots) or "nobody yet"
    missing = _missing(dialog, poll)
    return f"{poll.ref}: {votes}" + (f"; not yet: {', '.join(missing)}" if missing else "")


def _poll(dialog: Dialog, poll: Poll) -> dict[str, Any]:
    votes = [{**asdict(ballot), "weight": weight(dialog.header, [ballot.agent])} for ballot in poll.ballots]
    return {"ref": poll.ref, "turn": poll.turn, "votes": votes, "missing": _missing(dialog, poll)}


def _decided(decision: Decision) -> str:
    reason = f"; {decision.reason}" if decision.reason else ""
    return f"{decision.ref} {decision.outcome} ({decision.method}): {decision.evidence}{reason}"


def _decision(decision: Decision) -> dict[str, str]:
    names = ("ref", "outcome", "method", "evidence", "reason", "entry")
    return {name: getattr(decision, name) for name in names}


def _seals(dialog: Dialog) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whose answers of the open round are sealed, and for whose seal it waits."""
    sealed = tuple(dict.fromkeys(seal.agent for seal in dialog.state.seals))
    return sealed, tuple(who for who in dialog.state.owing if who not in sealed) if sealed else ()


def _you(agent: str) -> str:
    return "you" if agent == USER else agent


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
