"""The plan as a Markdown page and as one JSON object. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dialogd.protocol.build import DROPPED, MERGED, tested
from dialogd.protocol.certificate import where
from dialogd.protocol.lifecycle import answers, continued
from dialogd.protocol.model import AGREED, Entry
from dialogd.protocol.signals import convergence
from dialogd.protocol.text import dollars, in_words, listed, many, moment_of, one_line, visible
from dialogd.views.plan import Plan, PlanDecision, Statement, method, without_marks
from dialogd.views.standing import entry_fields
from dialogd.views.words import called, sentences, words_of

if TYPE_CHECKING:
    from jinja2 import Environment

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


# -- The page ---------------------------------------------------------------------------------------------------------

# What somebody did, as a list of the first screen has it behind their name.
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


def markdown(plan: Plan) -> str:
    """The whole page, ending in a newline."""
    return _filled(plan, title=True, record=True) + "\n"


def first_screen(plan: Plan) -> str:
    """What a person must know: the page without the record below it."""
    return _filled(plan, title=True)


def summary(plan: Plan) -> str:
    """What came of it, the decision first: for everybody who was not there."""
    return _filled(plan)


def _filled(plan: Plan, *, title: bool = False, record: bool = False) -> str:
    build = plan.dialog.state.build
    return document("plan.md.jinja", plan=plan, build=build, continue_=_continue(plan), title=title, record=record)


def document(name: str, **values: object) -> str:
    """The Markdown template of that name, filled; what agents wrote goes through `inline`, `quoted` or `guarded`."""
    page = _templates().get_template(name).render(**values)
    # Texts stand in quotes, where no line is empty: what is left empty here are parts that say nothing.
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in page.split("\n"))).strip("\n")


@lru_cache(maxsize=1)
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("dialogd.views", "."), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["inline"] = inline
    given = (
        inline, quoted, guarded, fenced, date, where, method, listed, without_marks, words_of, sentences, called,
        convergence, shlex.quote,
    )  # fmt: skip
    made.globals.update({one.__name__: one for one in given})
    made.globals.update(
        kinds=KINDS, byline=_byline, tasks=_tasks, decided_how=_decided_how, still_open=_open, votes=_votes,
        findings=_findings, disagreements=_disagreements, changes=_changes, figures=_figures,
    )  # fmt: skip
    return made


def date(at: str) -> str:
    """A time of the file for people: `21 November 2026, 19:01 UTC`; as it stands where it is none."""
    moment = moment_of(at)
    if moment is None:
        return inline(at, 40)
    zone = f"UTC{moment:%z}".removesuffix("+0000") if moment.tzinfo else ""
    return f"{moment.day} {moment:%B %Y, %H:%M} {zone}".strip()


def _byline(plan: Plan) -> str:
    """Who held it, when, and how long."""
    dialog, when = plan.dialog, plan.ended or plan.began
    facts = [
        listed([inline(plan.name(agent.id), 80) or inline(agent.id, 80) for agent in dialog.header.agents]),
        f"{'ended' if plan.ended else 'began'} {date(when)}" if when else "",
        many(dialog.state.number, "turn"),
        in_words(round(plan.seconds)) if plan.seconds else "",
        dollars(usd) if (usd := plan.metrics["cost"]["usd"]) else "",
    ]
    return " · ".join(filter(None, facts))


def _tasks(plan: Plan) -> Iterator[str]:
    """What became of the tasks of a build."""
    for task in plan.dialog.state.build.all:
        facts = (
            task.state,
            f"{task.score} of 100" if task.score is not None else "",
            many(task.iteration, "iteration") if task.iteration else "",
            tested(task) if task.commit and task.gate else "",
            f"tree {task.tree[:12]}" if task.tree else "",
            inline(task.why) if task.state == MERGED and task.why else "",
        )
        if task.state != DROPPED or task.why != "replaced":
            yield f"**{task.id} {inline(task.description)}**: {', '.join(filter(None, facts))}"


def _decided_how(name: str) -> str:
    how = method(name)
    return f"decided {how}" if how.startswith("by ") else how or "decided"


def _open(plan: Plan, listing: Callable[[Sequence[Statement]], str]) -> str:
    """What is open, most pressing first; after a deadlock, what does not stand above it."""
    is_deadlock = plan.outcome == "DEADLOCK"
    shown = [said for said in plan.questions if not is_deadlock or said.kind not in ("CRUX", "PROPOSAL")]
    left = [str(f.number) for f in plan.findings if not f.resolved_in and not f.blocks]
    named = f"finding{'' if len(left) == 1 else 's'} {listed(left)}, listed below"
    rows = listing(shown).rstrip("\n") if shown else ""
    rows = "\n".join(filter(None, (rows, f"- **Not resolved, and blocking nothing:** {named}" if left else "")))
    if rows:
        return f"What stands above. Besides:\n\n{rows}" if is_deadlock else rows
    sentence = "was found in the agents' marks; what they left unmarked is not seen."
    return f"What stands above. Nothing else {sentence}" if is_deadlock else f"Nothing {sentence}"


def _continue(plan: Plan) -> str:
    """What the person can do about a dialog without an agreement."""
    if plan.outcome in AGREED:
        return ""
    again = continued(plan.dialog)
    if not plan.outcome and plan.dialog.state.questions.text:
        return f"The dialog waits for you: `{answers(plan.dialog)[0]}`."
    if not plan.outcome:
        return f"The dialog can go on: `{again}`, or a word of yours with `dialogd say`."
    if plan.dialog.state.build and plan.outcome != "DEADLOCK":
        return f"The build can go on: `{again}`."
    return "A turn of yours opens the dialog again: `dialogd say`."


def _votes(plan: Plan, d: PlanDecision) -> str:
    weight = ("weight",) if any(v.weight != 1 for v in d.votes) else ()
    rows = [(plan.name(v.agent), v.choice, *(f"{v.weight:g}" for _ in weight), str(v.turn), v.reason) for v in d.votes]
    return "\n".join(table(("voter", "vote", *weight, "turn", "reason"), rows))


def _findings(plan: Plan) -> str:
    rows = [
        (str(f.number), f.severity, f.category, f"{f.file}:{f.line}".strip(":"), f.issue, f.suggestion,
         f"turn {f.resolved_in}: {f.resolved}" if f.resolved_in else "open")
        for f in plan.findings
    ]  # fmt: skip
    found = ["\n".join(table(("no.", "severity", "category", "where", "issue", "suggestion", "resolved"), rows))]
    if plan.findings and (score := plan.score) is not None:
        parts = [(name, f"{value:.1f}", f"{score.points[name]:.2f}") for name, value in score.parts.items()]
        parts.append(("**total**", "", f"**{sum(round(p, 2) for p in score.points.values()):.2f}**"))
        told = ", ".join(f"{name} {value:.0f}" for name, value in score.parts.items())
        missing = f"Score: none, for a part is missing ({told})."
        found.append(missing if score.total is None else "\n".join(table(("part", "of 100", "points"), parts)))
    return "\n\n".join(["## Findings", *found]) if rows else ""


def _disagreements(plan: Plan) -> str:
    rows = [
        (str(c.said.turn), plan.name(c.said.by), c.said.kind.lower(), c.said.text, ", ".join(c.about), c.how or "open")
        for c in sorted(plan.conflicts, key=lambda c: bool(c.how))
    ]
    return "\n".join(table(("turn", "by", "kind", "what", "about", "what became of it"), rows))


def _changes(plan: Plan) -> str:
    rows = [(str(c.turn), plan.name(c.agent), c.ref, f"{c.before} → {c.now}") for c in plan.changes]
    return "\n".join(table(("turn", "agent", "on", "change"), rows))


def _figures(plan: Plan) -> str:
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
    return "\n".join(table(("metric", "value"), rows))


def _tokens(figures: Mapping[str, Any]) -> str:
    counts = figures["tokens"]
    return "unknown" if counts["in"] is None else f"{counts['in']:,} in, {counts['out']:,} out"


def _usd(figures: Mapping[str, Any]) -> str:
    cost = figures["cost"]
    return "unknown" if cost["usd"] is None else f"{'' if cost['exact'] else 'about '}{dollars(cost['usd'])}"


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
    """An entry by its fields, for every command that prints one; `sha` is its hash."""
    return {**entry_fields(entry), "at": entry.at or None, "sha": entry.chain}
