"""The plan as a Markdown page and as one JSON object. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dialogd.protocol.build import DROPPED, MERGED, tested
from dialogd.protocol.certificate import where
from dialogd.protocol.lifecycle import answers, continued
from dialogd.protocol.model import Entry
from dialogd.protocol.signals import convergence
from dialogd.protocol.text import one_line, visible
from dialogd.protocol.units import dollars, in_words, listed, many, moment_of
from dialogd.views.plan import (
    Agreed,
    Comparison,
    Plan,
    PlanCost,
    PlanDecision,
    Statement,
    method,
    spent,
    without_marks,
)
from dialogd.views.words import sentences, words_of

# A fence at the very beginning of a line is one to every reader of Markdown. What one behind blanks or a list's sign
# opens and closes depends on what stands around it: a text with such a fence is taken to have none.
_DOUBTFUL = re.compile(r"[ \t>*+\d.)-]+(?:`{3,}|~{3,})")
_FENCE = re.compile(r"(`{3,}|~{3,})(.*)")
# What would open a tag, a comment or an image, or define a link for the whole page.
BACKSLASHED = r"\\\1"
_INLINE = re.compile(r"(?<!\\)(\\*)(<(?=[A-Za-z/!?])|!(?=\[))")
_DEFINITION = re.compile(r"^([ \t]*)\[(?=[^\]]{1,999}\]:)")
_TITLE = re.compile(r"^ {0,3}#{1,6}[ \t]+([^ \t#].*?)[ \t]*#*[ \t]*$")
# Other headings: those in lists, empty ones, and the line of = or - below a text.
_HEADING = re.compile(r"^((?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(#{1,6}(?:[ \t]|$)|=+[ \t]*$|-+[ \t]*$)")


# Where a link, or the definition of one, would lead to anything but a page, an address or a place in the document;
# `//host` is whatever the reader's program takes it for.
_LINK = re.compile(r"\](?=\([ \t]*+(?:\n[ \t>]*+)?+<?+(?:\s*+[/\\]{2}|(?!https?://|mailto:|#)[^()\n]*[:&]))", re.I)
_DEFINED = re.compile(r"^((?:[ \t>*+-]|\d{1,9}[.)])*)\[(?=[^\]\n]{1,999}\]:)", re.M)


def _backslashed(match: re.Match[str]) -> str:
    """The sign behind a backslash of ours, unless its author's own has that effect: two would undo each other."""
    before, sign = match.groups()
    return f"{before}{'' if len(before) % 2 else chr(92)}{sign}"


def quoted(text: str) -> str:
    """A text as a block quote. Outside of fenced code, headings become bold and tags and images lose their effect."""
    return "\n".join(f"> {line}".rstrip() for line in _safe_lines(visible(text).strip("\n").split("\n")))


def _safe_lines(lines: Sequence[str]) -> Iterator[str]:
    fence, is_clear = "", not any(_DOUBTFUL.match(line) for line in lines)
    for line in lines:
        match = _FENCE.fullmatch(line) if is_clear else None
        if fence:
            closes = match is not None and match[1].startswith(fence) and not match[2].strip()
            fence = "" if closes else fence
            yield line
        elif match is not None and not (match[1][0] == "`" and "`" in match[2]):
            fence = match[1]
            yield line
        else:
            yield _harmless(line)


def _harmless(line: str) -> str:
    if (title := _TITLE.match(line)) is not None:
        return f"**{_INLINE.sub(_backslashed, title[1]).strip('*_ ')}**"
    return _HEADING.sub(r"\1\\\2", _DEFINITION.sub(r"\1\\[", _INLINE.sub(_backslashed, line)))


def inline(text: str, limit: int = 500) -> str:
    """A text on one line, without tags and images, fit for a sentence, a list or a heading."""
    return _INLINE.sub(_backslashed, one_line(visible(text), limit))


def guarded(text: str) -> str:
    """The text without links that could run something, and without link definitions."""
    return _DEFINED.sub(r"\1\\[", _LINK.sub(r"]\\", text))


def fenced(text: str) -> str:
    """A text between fences of tildes that nothing in it can close."""
    text = visible(text)
    longest = max((len(run) for run in re.findall(r"~{3,}", text)), default=2)
    fence = "~" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table; nothing without rows."""
    if not rows:
        return
    yield f"| {' | '.join(head)} |"
    yield _row(["---"] * len(head))
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(inline(cell).replace('|', chr(92) + '|') or '–' for cell in cells)} |"


# -- The long part of the page ----------------------------------------------------------------------------------------

_STANDS = {"RESERVATION": "reservation", "OBJECTION": "objection", "CONCEDE": "concession"}


def record(plan: Plan) -> Iterator[str]:
    """Section by section; what has nothing to say is left out. Figures and hashes come last."""
    yield "---"
    yield "*What follows is the record. All of it is read from the dialog's marks and text; no model wrote it.*"
    sections = {
        "Decisions and votes": _votes,
        "Findings": _findings,
        "Each agent in its own words": _views,
        "Key agreements": _agreements,
        "Key disagreements": _disagreements,
        "Changes of position": _changes,
        "The first answers, counted": _worth,
        "The whole conversation": _talk,
        "Appendix: figures": _figures,
        "Appendix: how to verify": _verify,
    }
    for title, section in sections.items():
        if blocks := list(filter(None, section(plan))):
            yield f"## {title}"
            yield from blocks


def _votes(plan: Plan) -> Iterator[str]:
    for d in plan.decisions:
        yield f"### {d.ref or 'A position'}: {d.stands}"
        by = f"Proposed by {_name(plan, d.by)}. " if d.by else ""
        # What everybody signed is told by who signed it.
        by_rule = "" if d.method == "mutual" and d.evidence else f", {inline(method(d.method))}"
        how = f"{d.made.capitalize()} in turn {d.turn}{by_rule}"
        left = f"; superseded: {d.superseded}" if d.superseded else ""
        why = "; ".join(filter(None, (inline(plan.rests_on(d)), inline(d.reason))))
        yield f"{by}{how}{f': {why}' if why else ''}{left}."
        weight = ("weight",) if any(v.weight != 1 for v in d.votes) else ()
        rows = [
            (plan.name(v.agent), v.choice, *(f"{v.weight:g}" for _ in weight), str(v.turn), v.reason) for v in d.votes
        ]
        yield "\n".join(table(("voter", "vote", *weight, "turn", "reason"), rows))


def _findings(plan: Plan) -> Iterator[str]:
    rows = [
        (str(f.number), f.severity, f.category, f"{f.file}:{f.line}".strip(":"), f.issue, f.suggestion,
         f"turn {f.resolved_in}: {f.resolved}" if f.resolved_in else "open")
        for f in plan.findings
    ]  # fmt: skip
    yield "\n".join(table(("no.", "severity", "category", "where", "issue", "suggestion", "resolved"), rows))
    if plan.findings and plan.score is not None:
        if plan.score.total is None:
            parts = ", ".join(f"{name} {value:.0f}" for name, value in plan.score.parts.items())
            yield f"Score: none, for a part is missing ({parts})."
            return
        points = [(name, f"{value:.1f}", f"{plan.score.points[name]:.2f}") for name, value in plan.score.parts.items()]
        points.append(("**total**", "", f"**{sum(round(p, 2) for p in plan.score.points.values()):.2f}**"))
        yield "\n".join(table(("part", "of 100", "points"), points))


def _views(plan: Plan) -> Iterator[str]:
    for view in plan.views:
        yield f"### {_name(plan, view.agent)}"
        yield quoted(view.text)
        yield f"*Turn {view.turn}{', its beginning' if view.is_cut else ''}.*"
        if view.stands:
            yield "\n".join(f"- {_STANDS[s.kind]} in turn {s.turn}: {inline(s.text)}" for s in view.stands)


def _agreements(plan: Plan) -> Iterator[str]:
    how = {"APPROVED": "approved", "CONCEDE": "conceded", "AGREE": "agreed to"}
    by = {said.by: f"by {_name(plan, said.by)}, " if said.by else "" for said in plan.agreements}
    yield "\n".join(f"- {inline(s.text)} ({by[s.by]}{how[s.kind]} in turn {s.turn})" for s in plan.agreements)


def _disagreements(plan: Plan) -> Iterator[str]:
    rows = [
        (str(c.said.turn), plan.name(c.said.by), c.said.kind.lower(), c.said.text, ", ".join(c.about), c.how or "open")
        for c in sorted(plan.conflicts, key=lambda c: bool(c.how))
    ]
    yield "\n".join(table(("turn", "by", "kind", "what", "about", "what became of it"), rows))


def _changes(plan: Plan) -> Iterator[str]:
    rows = [(str(c.turn), plan.name(c.agent), c.ref, f"{c.before} → {c.now}") for c in plan.changes]
    yield "\n".join(table(("turn", "agent", "on", "change"), rows))


def _worth(plan: Plan) -> Iterator[str]:
    if plan.worth.why:
        yield f"It cannot be said: {inline(plan.worth.why)}."
    for comparison in plan.worth.comparisons:
        yield "\n".join(_compared(plan, comparison, plan.worth.whole))


def _compared(plan: Plan, c: Comparison, whole: PlanCost) -> Iterator[str]:
    verdict = {True: "The same result.", False: "Another result.", None: "It cannot be compared by marks."}[c.same]
    vote = f"A plain count of {inline(c.basis)} would have said: {inline(c.verdict)}."
    yield f"**{verdict}** {vote} The outcome: {inline(c.outcome)}."
    yield ""
    choices = ", ".join(f"{_name(plan, said.by)}: {inline(said.text, 120)} (turn {said.turn})" for said in c.choices)
    yield f"- counted: {choices}"
    if c.remark:
        yield f"- {inline(c.remark)}"
    is_known = whole != PlanCost(whole.turns)
    took = f"{spent(c.first)} for these; {spent(whole)} for all" if is_known else "unknown, no turn says what it took"
    yield f"- cost: {took}"


def _figures(plan: Plan) -> Iterator[str]:
    m = plan.metrics
    seconds = [in_words(value) for value in m["latency"].values() if value is not None]
    rows = [
        ("contributions_total", str(m["contributions_total"])),
        ("contributions_per_agent", ", ".join(f"{who} {n}" for who, n in m["contributions_per_agent"].items())),
        ("rounds_completed", str(m["rounds_completed"])),
        ("proposals_made", str(m["proposals_made"])),
        ("decisions_reached", str(m["decisions_reached"])),
        ("conflicts_resolved", f"{m['conflicts_resolved']} of {len(plan.conflicts)}"),
        *((name, "none" if m[name] is None else f"{m[name]:.2f}") for name in ("consensus_rate", "average_confidence")),
        ("tokens", _tokens(m)),
        ("cost", _usd(m)),
        *(
            (f"cost of {who}", f"{_usd(account)}; tokens: {_tokens(account)}")
            for who, account in m["per_agent"].items()
            if account["cost"]["usd"] is not None or account["tokens"]["in"] is not None
        ),
        *(
            (
                f"live session of {who}",
                f"{many(one['turns'], 'turn')}, {many(one['knocks'], 'knock')}, {one['silent']} silent",
            )
            for who, one in m["live"].items()
        ),
        ("latency", "{} of calls, {} each on average, the longest {}".format(*seconds) if seconds else "unknown"),
    ]
    yield "\n".join(table(("metric", "value"), rows))
    near = convergence(plan.dialog)
    yield f"Convergence, a weak signal from marks and phrases: {'unknown' if near is None else f'{near:.2f}'}."


def _tokens(figures: Mapping[str, Any]) -> str:
    counts = figures["tokens"]
    return "unknown" if counts["in"] is None else f"{counts['in']:,} in, {counts['out']:,} out"


def _usd(figures: Mapping[str, Any]) -> str:
    cost = figures["cost"]
    return "unknown" if cost["usd"] is None else f"{'' if cost['exact'] else 'about '}{dollars(cost['usd'])}"


def _verify(plan: Plan) -> Iterator[str]:
    file = shlex.quote(inline(plan.file) or "FILE")
    lines = [f"- `dialogd verify {file}` checks every entry against its recorded hash and the entry before it."]
    if plan.agreed is not None and plan.agreed.sha:
        held = "the JSON beside this page holds it to the letter"
        lines.append(f"- The agreed text has the hash `{plan.agreed.sha}`; {held}.")
    lines.append(f"- The dialog's id is `{inline(plan.dialog.id)}`.")
    if plan.dialog.last is not None:
        count = len(plan.dialog.entries)
        entries = "1 entry" if count == 1 else f"{count} entries"
        lines.append(f"- {entries}; the last has the hash `{plan.dialog.last.chain}`.")
    lines.append("- Hashes show what was changed afterwards. They do not prove who wrote it.")
    yield "\n".join(lines)


def _talk(plan: Plan) -> Iterator[str]:
    for entry in plan.dialog.entries:
        yield f"### {_title(plan, entry)}"
        if entry.at:
            yield f"*{date(entry.at)}*"
        if (text := words_of(entry)).strip():
            yield quoted(guarded(text))
        if found := sentences(entry, plan.name):
            yield "\n".join(f"- {inline(guarded(sentence), LONGEST)}" for sentence in found)


def _title(plan: Plan, entry: Entry) -> str:
    who = f"{entry.from_session}, not the person" if entry.from_session else _name(plan, entry.by)
    kind = f"Turn {entry.number}" if entry.is_turn else "Note"
    odd = "" if entry.condition.value in ("sound", "by hand") else f" ({entry.condition.value})"
    struck = " (withdrawn by the person)" if entry.is_struck else ""
    return f"{kind} — {who[0].upper()}{who[1:]}{odd}{struck}"


def _name(plan: Plan, who: str) -> str:
    """What that agent is called, or several, fit for a sentence or a heading."""
    return inline(plan.name(who), 80) or inline(who, 80)


# -- The plan as a Markdown page --------------------------------------------------------------------------------------

LONGEST = 1_000_000_000  # characters of a sentence of the conversation: nothing is cut
UNEXPLAINED = "naming neither evidence nor a turn that it answers"
MOST = 12  # items of a list on the first screen; the record holds all


def markdown(plan: Plan) -> str:
    """The whole page, ending in a newline."""
    return "\n\n".join([first_screen(plan), *record(plan)]) + "\n"


def first_screen(plan: Plan) -> str:
    """What a person must know: the page without the record below it."""
    kind = "A rehearsal, no plan" if plan.dialog.is_rehearsed else "Plan"
    title = f"# {kind}: {inline(plan.task, 120) or 'a dialog without a topic'}"
    return "\n\n".join([title, *summary(plan), *_synthesis(plan)])


def summary(plan: Plan) -> Iterator[str]:
    """What came of it, as blocks of Markdown, the decision first: for everybody who was not there."""
    yield f"**Outcome:** {inline(plan.headline)}"
    yield from _judged(plan)
    is_build = plan.dialog.header.rules.build is not None
    if (plan.findings or plan.score is not None) and not is_build:
        yield f"**Review:** {_review(plan)}"
    yield _byline(plan)
    for section in (_tasks, _dissent, _open, _next) if is_build else (_decided, _positions, _dissent, _open, _next):
        yield from section(plan)
    if plan.outcome and plan.course and not is_build:
        yield "## Was the debate worth it?"
        yield " ".join(map(inline, plan.course))


def _tasks(plan: Plan) -> Iterator[str]:
    """What became of the tasks of a build."""
    yield "## Tasks"
    rows = []
    for task in plan.dialog.state.tasks.all:
        if task.state == DROPPED and task.why == "replaced":
            continue
        facts = (
            task.state,
            f"{task.score} of 100" if task.score is not None else "",
            many(task.iteration, "iteration") if task.iteration else "",
            tested(task) if task.commit and task.gate else "",
            f"tree {task.tree[:12]}" if task.tree else "",
            inline(task.why) if task.state == MERGED and task.why else "",
        )
        rows.append(f"- **{task.id} {inline(task.description)}**: {', '.join(filter(None, facts))}")
    yield "\n".join(rows) or "None was proposed."


def _byline(plan: Plan) -> str:
    """Who held it, when, and how long."""
    dialog, when = plan.dialog, plan.ended or plan.began
    facts = [
        listed([_name(plan, agent.id) for agent in dialog.header.agents]),
        *([f"{'ended' if plan.ended else 'began'} {date(when)}"] if when else []),
        many(dialog.state.number, "turn"),
        *([in_words(round(plan.seconds))] if plan.seconds else []),
        *([dollars(usd)] if (usd := plan.metrics["cost"]["usd"]) else []),
    ]
    return f"*{' · '.join(facts)}*"


def _judged(plan: Plan) -> Iterator[str]:
    """What the person made of it, and of results before it."""
    if plan.approved is not None:
        yield f"**Approved by the person**{_on(plan.approved.at)}"
    for r in plan.rejections:
        what = f"the result of {where(r.ended_in)}"
        yield f"**Rejected by the person**{_on(r.at)}: {what}, in turn {r.turn}: {inline(r.reason)}"


def _on(at: str) -> str:
    return f" on {date(at)}" if at else ""


def _review(plan: Plan) -> str:
    score = plan.score.total if plan.score is not None else None
    left = [f for f in plan.findings if not f.resolved_in]
    words = f"{len(plan.findings)} findings, {len(left)} open, {sum(f.blocks for f in left)} of them blocking"
    return f"score {score:.0f} of 100; {words}" if score is not None else f"no score; {words}"


def date(at: str) -> str:
    """A time of the file for people: `21 November 2026, 19:01 UTC`; as it stands where it is none."""
    moment = moment_of(at)
    if moment is None:
        return inline(at, 40)
    zone = f"UTC{moment:%z}".removesuffix("+0000") if moment.tzinfo else ""
    return f"{moment.day} {moment:%B %Y, %H:%M} {zone}".strip()


def _decided(plan: Plan) -> Iterator[str]:
    others = [d for d in plan.decisions if plan.agreed is None or d.ref != plan.agreed.ref]
    if plan.agreed is not None:
        yield "## What was decided"
        yield quoted(without_marks(plan.agreed.text) or "(the text no longer stands in the file)")
        how = method(plan.agreed.method)
        how = f"decided {how}" if how.startswith("by ") else how or "decided"
        yield f"{_ref(plan, plan.agreed)}: {how}. {_signers(plan, plan.agreed)}".rstrip()
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
        yield "\n".join(_decision(plan, d) for d in others)
    if plan.on_the_table is not None:
        text = plan.on_the_table
        who = listed([_name(plan, s.agent) for s in text.signers]) or "nobody"
        yield f"On the table, and not agreed: the text {text.ref}, signed by {who} alone:"
        yield quoted(without_marks(text.text))


def _ref(plan: Plan, agreed: Agreed) -> str:
    return agreed.ref or f"The position of {_name(plan, agreed.by)}, as turn {agreed.stands_in} states it"


def _proposed_by_the_chosen(plan: Plan, chosen: Agreed) -> Iterator[str]:
    """What an agent whose position was chosen had proposed: its last turn alone may not name it."""
    own = [said for said in plan.positions if said.by == chosen.by and said.kind == "PROPOSAL"]
    if not chosen.ref and own:
        who = _name(plan, chosen.by)
        yield "\n".join(f"What {who} had proposed, in turn {said.turn}: {inline(said.text)}" for said in own)


def _signers(plan: Plan, agreed: Agreed) -> str:
    who = [f"{_name(plan, s.agent)}{f' in turn {s.turn}' if s.turn else ''}" for s in agreed.signers]
    return f"Behind it: {listed(who)}." if who else ""


def _decision(plan: Plan, d: PlanDecision) -> str:
    what, how = f"**{d.ref or 'A position'} was {d.outcome}**", f"in turn {d.turn}, {inline(method(d.method))}"
    said, text = inline(plan.rests_on(d)) or "no evidence named", f": {inline(d.text)}" if d.text else ""
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
    yield "\n".join(_with_names(plan, said) for said in plan.crux) or "No agent named it."
    yield "## The cheapest experiment that would settle it"
    yield "\n".join(_with_names(plan, said) for said in plan.experiments) or "No agent named one."


def _with_names(plan: Plan, said: Statement) -> str:
    return f"- {inline(said.text)} ({_name(plan, said.by)}, turn {said.turn})"


def _positions_by_agent(plan: Plan) -> Iterator[str]:
    for view in plan.views:
        own = [said for said in plan.positions if said.by == view.agent]
        sides = {"PROPOSAL": "for", "OBJECTION": "against"}
        name = f"**{_name(plan, view.agent)}**"
        if own:
            lines = [f"- {sides[said.kind]}: {inline(said.text)} (turn {said.turn})" for said in own]
            yield f"{name}:\n\n" + "\n".join(lines)
        else:
            yield f"{name} (turn {view.turn}):\n\n{quoted(view.text)}"


def _dissent(plan: Plan) -> Iterator[str]:
    if plan.agreed is None and all(d.outcome != "approved" for d in plan.decisions):
        open_ = [conflict.said for conflict in plan.conflicts if not conflict.how]
        if open_ and plan.outcome != "DEADLOCK":
            yield "## Disagreement"
            yield _list(plan, open_)
        return
    yield "## Dissent"
    yield (
        "\n".join(_said(plan, said) for said in plan.dissent)
        or "None in the marks: no reservation, and nobody stands against it."
    )


KINDS = {
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


def _said(plan: Plan, said: Statement) -> str:
    what = KINDS.get(said.kind, said.kind.lower())
    return f"- **{_name(plan, said.by)} {what}:** {inline(said.text) or 'see there'} (turn {said.turn})"


def _list(plan: Plan, said: Sequence[Statement]) -> str:
    lines = [_said(plan, item) for item in said[:MOST]]
    return "\n".join([*lines, *([f"- and {len(said) - MOST} more, below"] if len(said) > MOST else [])])


def _open(plan: Plan) -> Iterator[str]:
    yield "## Still open"
    shown, above = plan.questions, ""
    left = [str(f.number) for f in plan.findings if not f.resolved_in and not f.blocks]
    left_open = f"- **Not resolved, and blocking nothing:** {_page_findings(left)}" if left else ""
    if plan.outcome == "DEADLOCK":
        shown = tuple(said for said in shown if said.kind not in ("CRUX", "PROPOSAL"))
        above = "What stands above. "
    rows = "\n".join(filter(None, (_list(plan, shown), left_open)))
    if rows:
        yield f"{above.strip()} Besides:\n\n{rows}" if above else rows
    else:
        what = "nothing else" if above else "nothing"
        sentence = f"{what} was found in the agents' marks; what they left unmarked is not seen."
        yield f"{above}{sentence[0].upper()}{sentence[1:]}"


def _page_findings(numbers: Sequence[str]) -> str:
    return f"finding{'' if len(numbers) == 1 else 's'} {listed(numbers)}, listed below"


def _next(plan: Plan) -> Iterator[str]:
    is_build = plan.dialog.header.rules.build is not None
    if is_build and not _continue(plan):
        return
    yield "## Next steps"
    if is_build:
        yield _continue(plan)
    elif not plan.steps:
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
    again = continued(plan.dialog)
    if not plan.outcome and plan.dialog.state.questions.text:
        return f"The dialog waits for you: `{answers(plan.dialog)[0]}`."
    if not plan.outcome:
        return f"The dialog can go on: `{again}`, or a word of yours with `dialogd say`."
    if plan.dialog.header.rules.build is not None and plan.outcome != "DEADLOCK":
        return f"The build can go on: `{again}`."
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


# -- The plan for programs --------------------------------------------------------------------------------------------

FORMAT = "dialogd-plan/1"


def as_json(plan: Plan) -> dict[str, Any]:
    """Everything that the page says, and the exact texts; null for what nobody knows."""
    state, header = plan.dialog.state, plan.dialog.header
    outcome, rules = state.outcome, header.rules
    lists: dict[str, Sequence[Any]] = {
        "decisions": plan.decisions,
        "views": plan.views,
        "key_agreements": plan.agreements,
        "key_disagreements": plan.conflicts,
        "dissent": plan.dissent,
        "position_changes": plan.changes,
        "positions": plan.positions,
        "crux": plan.crux,
        "experiments": plan.experiments,
        "open_questions": plan.questions,
        "next_steps": plan.steps,
    }
    return {
        "format": FORMAT,
        "task": plan.task,
        "dialog": plan.dialog.id,
        "file": plan.file,
        "began": plan.began or None,
        "ended": plan.ended or None,
        "rounds": state.floor.rounds,
        "turns": state.number,
        "outcome": {
            "name": outcome.name if outcome else None,
            "by": outcome.by if outcome else None,
            "via": outcome.via if outcome else None,
            "reason": outcome.reason if outcome else None,
            "in_words": plan.headline,
        },
        "consensus_reached": outcome is not None and outcome.name == "CONSENSUS_REACHED",
        "approved": asdict(plan.approved) if plan.approved else None,
        "rejections": [asdict(item) for item in plan.rejections],
        "agents": [{"id": a.id, "name": a.name, "role": rules.role(a.id).name or a.role} for a in header.agents],
        "agreed": asdict(plan.agreed) if plan.agreed else None,
        "on_the_table": asdict(plan.on_the_table) if plan.on_the_table else None,
        **{name: [asdict(item) for item in items] for name, items in lists.items()},
        "worth": asdict(plan.worth),
        "findings": [{**asdict(item), "blocks": item.blocks} for item in plan.findings],
        "score": {"parts": dict(plan.score.parts), "points": dict(plan.score.points), "total": plan.score.total}
        if plan.score
        else None,
        "convergence": convergence(plan.dialog),
        "metrics": dict(plan.metrics),
        "certificate": plan.certificate,
        "synthesis": {**asdict(plan.synthesis), "signed_by": []} if plan.synthesis else None,
        "conversation": [entry_facts(entry) for entry in plan.dialog.entries],
    }  # fmt: skip


def entry_facts(entry: Entry) -> dict[str, Any]:
    """An entry by its fields, for every command that prints one; `turn` is whose turn follows, `sha` its hash.

    `struck`: the person withdrew it, so that `marks` has none of its own.
    """
    return {
        "id": entry.id,
        "number": entry.number,
        "by": entry.by,
        "name": entry.name,
        "at": entry.at or None,
        "condition": entry.condition.value,
        "struck": entry.is_struck,
        "text": entry.body,
        "marks": [str(mark) for mark in entry.marks],
        "turn": list(entry.turn) if entry.turn is not None else None,
        "sha": entry.chain,
    }
