"""The plan as a Markdown page: what a person must know stands first, the record below. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dialogd.plan.outcome import method
from dialogd.plan.quoting import inline, quoted
from dialogd.plan.reading import listed, without_marks
from dialogd.plan.record import record
from dialogd.plan.value import Agreed, Decided, Plan, Said
from dialogd.protocol.certificate import where
from dialogd.protocol.units import many

UNEXPLAINED = "naming neither evidence nor a turn that it answers"
MOST = 12  # items of a list on the first screen; the record holds all


def markdown(plan: Plan) -> str:
    """The whole page, ending in a newline."""
    return "\n\n".join([first_screen(plan), *record(plan)]) + "\n"


def first_screen(plan: Plan) -> str:
    """What a person must know: the page without the record below it."""
    parts = [*_top(plan), *_decided(plan), *_positions(plan), *_dissent(plan), *_open(plan), *_next(plan)]
    return "\n\n".join([*parts, *_synthesis(plan)])


def _top(plan: Plan) -> Iterator[str]:
    dialog = plan.dialog
    kind = "REHEARSAL, no plan" if dialog.is_rehearsed else "Plan"
    yield f"# {kind}: {inline(plan.task, 120) or 'a dialog without a topic'}"
    yield f"**Outcome:** {inline(plan.headline)}"
    yield from _judged(plan)
    if plan.findings or plan.score is not None:
        yield f"**Review:** {_review(plan)}"
    agents = ", ".join(f"{a.id} ({inline(a.name, 80)})" for a in dialog.header.agents)
    turns, rounds = dialog.state.number, plan.metrics.rounds_completed
    when = plan.ended or plan.began
    facts = [
        f"dialog `{dialog.id}`",
        *([f"{'ended' if plan.ended else 'began'} {_date(when)}"] if when else []),
        agents,
        f"{many(turns, 'turn')}, {many(rounds, 'complete round')}",
        *([f"${plan.metrics.spent.usd:.4f}"] if plan.metrics.spent.usd else []),
    ]
    yield " · ".join(facts)


def _judged(plan: Plan) -> Iterator[str]:
    """What the person made of it, and of results before it."""
    if plan.approved is not None:
        yield f"**Approved by the person**{_on(plan.approved.at)}"
    for r in plan.rejections:
        what = f"{r.outcome} in {where(r.ended_in)}"
        yield f"**Rejected by the person**{_on(r.at)}: {what}, for the reason in turn {r.turn}: {inline(r.reason)}"


def _on(at: str) -> str:
    return f" on {_date(at)}" if at else ""


def _review(plan: Plan) -> str:
    score = plan.score.total if plan.score is not None else None
    left = [f for f in plan.findings if not f.resolved_in]
    words = f"{len(plan.findings)} findings, {len(left)} open, {sum(f.blocks for f in left)} of them blocking"
    return f"score {score:.0f} of 100; {words}" if score is not None else f"no score; {words}"


def _date(at: str) -> str:
    return inline(at.replace("T", " ").replace("Z", " UTC").replace("+00:00", "UTC"), 40)


def _decided(plan: Plan) -> Iterator[str]:
    others = [d for d in plan.decisions if plan.agreed is None or d.ref != plan.agreed.ref]
    if plan.agreed is not None:
        yield "## What was decided"
        yield quoted(without_marks(plan.agreed.text) or "(the text no longer stands in the file)")
        how = method(plan.agreed.method)
        how = f"decided {how}" if how.startswith("by ") else how or "decided"
        yield f"{_ref(plan.agreed)}: {how}. {_signers(plan.agreed)}".rstrip()
        yield from _proposed_by_the_chosen(plan, plan.agreed)
        if plan.agreed.is_earlier:
            rejected = plan.agreed.is_rejected
            who = "The person rejected it." if rejected else "The dialog was opened again after that."
            yield f"**{who}** What it comes to now is open."
    elif others:
        yield "## What was decided"
    elif plan.outcome != "DEADLOCK":
        yield "## What was decided"
        yield "Nothing yet." if not plan.outcome else "Nothing: no text was agreed, and no proposal decided."
    if others:
        yield "\n".join(_decision(d) for d in others)
    if plan.on_the_table is not None:
        text = plan.on_the_table
        who = listed([s.agent for s in text.signers]) or "nobody"
        yield f"On the table, and not agreed: the text {text.ref}, signed by {who} alone:"
        yield quoted(without_marks(text.text))


def _ref(agreed: Agreed) -> str:
    return agreed.ref or f"The position of {agreed.by}, as turn {agreed.stands_in} states it"


def _proposed_by_the_chosen(plan: Plan, chosen: Agreed) -> Iterator[str]:
    """What an agent whose position was chosen had proposed: its last turn alone may not name it."""
    own = [said for said in plan.positions if said.by == chosen.by and said.kind == "PROPOSAL"]
    if not chosen.ref and own:
        yield "\n".join(f"What {said.by} had proposed, in turn {said.turn}: {inline(said.text)}" for said in own)


def _signers(agreed: Agreed) -> str:
    who = [f"{s.agent} in turn {s.turn}" for s in agreed.signers]
    return f"Behind it: {', '.join(who)}." if who else ""


def _decision(d: Decided) -> str:
    what, how = f"**{d.ref or 'position'} {d.outcome}**", f"in turn {d.turn}, {inline(method(d.method))}"
    said, text = inline(d.evidence) or "no evidence named", f": {inline(d.text)}" if d.text else ""
    if d.rejected_in:
        return f"- {what} by the person in turn {d.rejected_in}{text} ({d.made} {how}: {said}; {inline(d.reason)})"
    return f"- {what} {how}{text} ({said}{f'; superseded: {d.superseded}' if d.superseded else ''})"


def _positions(plan: Plan) -> Iterator[str]:
    """A deadlock is a result: where each stands, the crux, and what would settle it."""
    if plan.outcome != "DEADLOCK":
        return
    yield "## Where they stand"
    yield from _positions_by_agent(plan)
    yield "## The crux"
    yield "\n".join(map(_with_names, plan.crux)) or "No agent named it."
    yield "## The cheapest experiment that would settle it"
    yield "\n".join(map(_with_names, plan.experiments)) or "No agent named one."


def _with_names(said: Said) -> str:
    return f"- {inline(said.text)} ({said.by}, turn {said.turn})"


def _positions_by_agent(plan: Plan) -> Iterator[str]:
    for view in plan.views:
        own = [said for said in plan.positions if said.by == view.agent]
        words = {"PROPOSAL": "for", "OBJECTION": "against"}
        if own:
            lines = [f"- {words[said.kind]}: {inline(said.text)} (turn {said.turn})" for said in own]
            yield f"**{view.agent}**, {inline(view.name, 80)}:\n\n" + "\n".join(lines)
        else:
            yield f"**{view.agent}**, {inline(view.name, 80)} (turn {view.turn}):\n\n{quoted(view.text)}"


def _dissent(plan: Plan) -> Iterator[str]:
    if plan.agreed is None and all(d.outcome != "approved" for d in plan.decisions):
        open_ = [conflict.said for conflict in plan.conflicts if not conflict.how]
        if open_ and plan.outcome != "DEADLOCK":
            yield "## Disagreement"
            yield _list(open_)
        return
    yield "## Dissent"
    quick = [c for c in plan.changes if c.is_unexplained and c.now == "for"]
    lines = [_said(said) for said in plan.dissent]
    lines += [f"- **{c.agent} came round to {c.ref}** in turn {c.turn}, {UNEXPLAINED}" for c in quick]
    yield "\n".join(lines) or "None in the marks: no reservation, and nobody stands against it."


_KINDS = {
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


def _said(said: Said) -> str:
    what = _KINDS.get(said.kind, said.kind.lower())
    return f"- **{said.by} {what}:** {inline(said.text) or 'see there'} (turn {said.turn})"


def _list(said: Sequence[Said]) -> str:
    lines = [_said(item) for item in said[:MOST]]
    return "\n".join([*lines, *([f"- and {len(said) - MOST} more, below"] if len(said) > MOST else [])])


def _open(plan: Plan) -> Iterator[str]:
    yield "## Still open"
    shown, above = plan.questions, ""
    left = [str(f.number) for f in plan.findings if not f.resolved_in and not f.blocks]
    left_open = f"- **Not resolved, and blocking nothing:** {_findings(left)}" if left else ""
    if plan.outcome == "DEADLOCK":
        shown = tuple(said for said in shown if said.kind not in ("CRUX", "PROPOSAL"))
        above = "What stands above. "
    rows = "\n".join(filter(None, (_list(shown), left_open)))
    if rows:
        yield f"{above.strip()} Besides:\n\n{rows}" if above else rows
    else:
        what = "nothing else" if above else "nothing"
        sentence = f"{what} was found in the agents' marks; what they left unmarked is not seen."
        yield f"{above}{sentence[0].upper()}{sentence[1:]}"


def _findings(numbers: Sequence[str]) -> str:
    return f"finding{'' if len(numbers) == 1 else 's'} {listed(numbers)}, listed below"


def _next(plan: Plan) -> Iterator[str]:
    yield "## Next steps"
    if not plan.steps:
        yield f"None were named. {_continue(plan)}".rstrip()
    elif plan.outcome == "DEADLOCK" and plan.experiments and plan.steps[0].text == plan.experiments[0].text:
        yield f"The experiment above. {_continue(plan)}"
    else:
        yield "\n".join(f"{number}. {inline(step.text)}" for number, step in enumerate(plan.steps, 1))
        yield f"*From {', '.join(dict.fromkeys(step.where for step in plan.steps))}.*"


def _continue(plan: Plan) -> str:
    """What the person can do about a dialog without an agreement."""
    if plan.outcome in ("CONSENSUS_REACHED", "DECIDED"):
        return ""
    if not plan.outcome and plan.dialog.state.question:
        return "The dialog waits for your answer: `dialogd say`."
    if not plan.outcome:
        return "The dialog can go on: `dialogd run --continue`, or a word of yours with `dialogd say`."
    return "A turn of yours opens the dialog again: `dialogd say`."


def _synthesis(plan: Plan) -> Iterator[str]:
    if plan.synthesis is None:
        return
    s = plan.synthesis
    yield "## A unified plan, written by a model"
    yield (
        f"*Written by {inline(s.model) or 'a model'} as {s.agent}, from the dialog, after it ({inline(s.cost)}). Nobody"
        " in the dialog has read or signed it; where it differs from the marks, the marks are right.*"
    )
    yield quoted(s.text)
