"""The long part of the page: votes, views, quarrels, changes, cost, metrics, the conversation, how to verify. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dialogd.plan.figures import shares
from dialogd.plan.outcome import method
from dialogd.plan.quoting import fenced, inline, quoted, table
from dialogd.plan.value import Account, Comparison, Cost, Plan
from dialogd.protocol.convergence import hundredths
from dialogd.protocol.model import SYSTEM, USER, Entry
from dialogd.protocol.units import dollars, in_words

_UNEXPLAINED = "**neither evidence nor a turn named**"
_STANDS = {"RESERVATION": "reservation", "OBJECTION": "objection", "CONCEDE": "concession"}


def record(plan: Plan) -> Iterator[str]:
    """Section by section; what has nothing to say is left out."""
    yield "---"
    yield "*The record. All of it is read from the dialog's marks and text; no model wrote it.*"
    for section in (_votes, _findings, _views, _agreements, _disagreements, _changes, _worth, _figures, _verify, _talk):
        yield from section(plan)


def _votes(plan: Plan) -> Iterator[str]:
    if not plan.decisions:
        return
    yield "## Decisions and votes"
    for d in plan.decisions:
        title = f"### {d.ref or 'A position'}: {d.stands}"
        by = f"Proposed by {d.by}. " if d.by else ""
        yield title
        how = f"{d.made.capitalize()} in turn {d.turn}, {inline(method(d.method))}"
        left = f"; superseded: {d.superseded}" if d.superseded else ""
        yield f"{by}{how}: {inline(d.evidence)}; {inline(d.reason)}{left}."
        weighted = any(v.weight != 1 for v in d.votes)
        rows = [(v.agent, v.choice, *([f"{v.weight:g}"] if weighted else []), str(v.turn), v.reason) for v in d.votes]
        if rows:
            yield "\n".join(table(("voter", "vote", *(["weight"] if weighted else []), "turn", "reason"), rows))


def _findings(plan: Plan) -> Iterator[str]:
    if not plan.findings:
        return
    yield "## Findings"
    rows = [
        (str(f.number), f.severity, f.category, f"{f.file}:{f.line}".strip(":"), f.issue, f.suggestion,
         f"turn {f.resolved_in}: {f.resolved}" if f.resolved_in else "open")
        for f in plan.findings
    ]  # fmt: skip
    yield "\n".join(table(("no.", "severity", "category", "where", "issue", "suggestion", "resolved"), rows))
    if plan.score is not None:
        if plan.score.total is None:
            parts = ", ".join(f"{name} {value:.0f}" for name, value in plan.score.parts.items())
            yield f"Score: none, for a part is missing ({parts})."
            return
        points = [(name, f"{value:.1f}", f"{plan.score.points[name]:.2f}") for name, value in plan.score.parts.items()]
        points.append(("**total**", "", f"**{sum(round(p, 2) for p in plan.score.points.values()):.2f}**"))
        yield "\n".join(table(("part", "of 100", "points"), points))


def _views(plan: Plan) -> Iterator[str]:
    if not plan.views:
        return
    yield "## Each agent in its own words"
    for view in plan.views:
        yield f"### {view.agent}, {inline(view.name, 80)}"
        yield quoted(view.text)
        yield f"*Turn {view.turn}{', its beginning' if view.is_cut else ''}.*"
        if view.stands:
            yield "\n".join(f"- {_STANDS[s.kind]} in turn {s.turn}: {inline(s.text)}" for s in view.stands)


def _agreements(plan: Plan) -> Iterator[str]:
    if not plan.agreements:
        return
    yield "## Key agreements"
    yield "\n".join(f"- {inline(s.text)} ({_proposed_by(s.by)}approved in turn {s.turn})" for s in plan.agreements)


def _proposed_by(who: str) -> str:
    return f"by {'the person' if who == USER else who}, " if who else ""


def _disagreements(plan: Plan) -> Iterator[str]:
    if not plan.conflicts:
        return
    yield "## Key disagreements"
    rows = [
        (str(c.said.turn), c.said.by, c.said.kind.lower(), c.said.text, ", ".join(c.about), c.how or "open")
        for c in sorted(plan.conflicts, key=lambda c: bool(c.how))
    ]
    yield "\n".join(table(("turn", "by", "kind", "what", "about", "what became of it"), rows))


def _changes(plan: Plan) -> Iterator[str]:
    if not plan.changes:
        return
    yield "## Changes of position"
    rows = [
        (str(c.turn), c.agent, c.ref, f"{c.before} → {c.now}", _UNEXPLAINED if c.is_unexplained else c.cause)
        for c in plan.changes
    ]
    yield "\n".join(table(("turn", "agent", "on", "change", "because of"), rows))


def _worth(plan: Plan) -> Iterator[str]:
    yield "## Was the debate worth it?"
    if plan.worth.why:
        yield f"It cannot be said: {inline(plan.worth.why)}."
    for comparison in plan.worth.comparisons:
        yield "\n".join(_compared(comparison, plan.worth.whole))


def _compared(c: Comparison, whole: Cost) -> Iterator[str]:
    verdict = {
        True: "**The same result.**",
        False: "**Another result.**",
        None: "**It cannot be compared by marks.**",
    }[c.same]
    vote = f"A plain count of {inline(c.basis)} would have said: {inline(c.verdict)}."
    yield f"{verdict} {vote} The outcome: {inline(c.outcome)}."
    yield ""
    choices = ", ".join(f"{said.by}: {inline(said.text, 120)} (turn {said.turn})" for said in c.choices)
    yield f"- counted: {choices}"
    if c.remark:
        yield f"- {inline(c.remark)}"
    if whole != Cost(whole.turns):
        yield f"- cost: {_cost(c.first)} for these; {_cost(whole)} for all"
    else:
        yield "- cost: unknown, no turn says what it took"


def _cost(cost: Cost) -> str:
    parts = [
        dollars(cost.usd) if cost.usd is not None else "",
        f"{cost.tokens:,} tokens" if cost.tokens is not None else "",
        f"{in_words(cost.seconds)} of calls" if cost.seconds is not None else "",
    ]
    return ", ".join(part for part in parts if part) or "an unknown amount"


def _figures(plan: Plan) -> Iterator[str]:
    m, s = plan.metrics, plan.signals
    yield "## Metrics"
    rows = [
        ("contributions_total", str(m.contributions_total)),
        ("contributions_per_agent", shares(m.contributions_per_agent)),
        ("rounds_completed", str(m.rounds_completed)),
        ("proposals_made", str(m.proposals_made)),
        ("decisions_reached", str(m.decisions_reached)),
        ("conflicts_resolved", f"{m.conflicts_resolved} of {len(plan.conflicts)}"),
        ("consensus_rate", _part(m.consensus_rate)),
        ("average_confidence", _part(m.average_confidence)),
        ("tokens", _tokens(m.spent)),
        ("cost", _usd(m.spent)),
        *_by_agent(plan),
        ("latency", _latency(plan)),
    ]
    yield "\n".join(table(("metric", "value"), rows))
    agreements = f"{s.agreements} phrase{'' if s.agreements == 1 else 's'} of agreement"
    yield (
        f"Signals, weak ones (“use X” and “do not use X” look alike to them): confidence {s.confidence:.2f},"
        f" convergence {hundredths(s.convergence) / 100:.2f}, {agreements} and {s.disagreements} of disagreement;"
        f" {s.advice}: {inline(s.reason)}."
    )


def _by_agent(plan: Plan) -> Iterator[tuple[str, str]]:
    for who, account in plan.metrics.spent_per_agent.items():
        if account.usd is not None or account.tokens_in is not None:
            yield f"cost of {who}", f"{_usd(account)}; tokens: {_tokens(account)}"


def _part(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _tokens(account: Account) -> str:
    if account.tokens_in is None or account.tokens_out is None:
        return "unknown"
    return f"{account.tokens_in:,} in, {account.tokens_out:,} out"


def _usd(account: Account) -> str:
    if account.usd is None:
        return "unknown"
    return f"{'' if account.is_exact else 'about '}{dollars(account.usd)}"


def _latency(plan: Plan) -> str:
    latency = plan.metrics.latency
    if latency.total is None or latency.mean is None or latency.longest is None:
        return "unknown"
    total, mean, longest = (in_words(seconds) for seconds in (latency.total, latency.mean, latency.longest))
    return f"{total} of calls, {mean} each on average, the longest {longest}"


def _verify(plan: Plan) -> Iterator[str]:
    yield "## How to verify"
    file = shlex.quote(inline(plan.file) or "FILE")
    lines = [f"- `dialogd verify {file}` checks every entry against its recorded hash and the entry before it."]
    if plan.agreed is not None and plan.agreed.sha:
        held = "the JSON beside this page holds it to the letter"
        lines.append(f"- The agreed text has the hash `{plan.agreed.sha}`; {held}.")
    if plan.dialog.last is not None:
        count = len(plan.dialog.entries)
        entries = "1 entry" if count == 1 else f"{count} entries"
        lines.append(f"- {entries}; the last has the hash `{plan.dialog.last.chain}`.")
    lines.append("- Hashes show what was changed afterwards. They do not prove who wrote it.")
    yield "\n".join(lines)


def _talk(plan: Plan) -> Iterator[str]:
    yield "## The whole conversation"
    for entry in plan.dialog.entries:
        yield f"### {_title(entry)}"
        marks = "\n".join(str(mark) for mark in entry.marks) if entry.frame is not None else ""
        yield fenced("\n\n".join(part for part in (entry.body, marks) if part) or "(nothing)")


def _title(entry: Entry) -> str:
    who = {USER: "the person", SYSTEM: "the daemon"}.get(entry.by, entry.by)
    name = f" ({inline(entry.name, 80)})" if entry.by not in (USER, SYSTEM) and entry.name else ""
    at = f", {entry.frame.at}" if entry.frame is not None and entry.frame.at else ""
    kind = f"Turn {entry.number}" if entry.is_turn else "Note"
    odd = "" if entry.condition.value in ("sound", "by hand") else f" ({entry.condition.value})"
    struck = " (withdrawn by the person)" if entry.is_struck else ""
    return f"{kind}, {who}{name}{at}{odd}{struck}"
