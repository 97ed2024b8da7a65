"""`dialogd templates`: what a dialog can start from, and what is in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated

import typer

from dialogd.cli import options
from dialogd.cli.terminal import as_json, line, plain, show
from dialogd.errors import BadInput
from dialogd.protocol.rules import PERMISSIONS
from dialogd.protocol.units import in_words
from dialogd.templates.library import Place, Template, find, load, places

templates = typer.Typer(rich_markup_mode=None, invoke_without_command=True, help="List what a dialog can start from.")

INDENT = " " * 4

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from the list, a file, or a folder with a SKILL.md.")]


@templates.callback()
def list_all(context: typer.Context, json: options.JsonOption = False) -> None:
    """List what a dialog can start from: run and new take a name, or a file, with -t.

    They lie in ./.dialogd/templates, your config directory or ./skills, or come with dialogd. The one that stands
    first under a name counts.
    """
    if context.invoked_subcommand is not None:
        return
    rows = [_row(place, hidden) for place, hidden in _listed()]
    if json:
        show(as_json(rows))
        return
    heads = ("name", "agents", "order", "verdict", "from")
    table = [heads, *([line(str(row[head] or "")) for head in heads] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    abouts = [
        "what it is for",
        *(f"problem: {row['problem']}" if row["problem"] else row["description"] for row in rows),
    ]
    columns = get_terminal_size().columns if sys.stdout.isatty() else 0  # 0: a line for each, for other programs
    for cells, about in zip(table, abouts, strict=True):
        padded = (f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
        show(_fitted(f"{'  '.join(padded)}  ", line(str(about)), columns))


def _fitted(cells: str, about: str, columns: int) -> str:
    """A row of the list; where it is wider than the terminal, what it is for stands below."""
    if not columns or len(cells + about) <= columns:
        return f"{cells}{about}".rstrip()
    return f"{cells.rstrip()}\n{fill(about, max(columns, 40), initial_indent=INDENT, subsequent_indent=INDENT)}"


@templates.command("show")
def show_one(name: Name, json: options.JsonOption = False) -> None:
    """Show what is in a template: who takes part, what they may do, phases, limits; and what is wrong in it.

    Exit code 2 when something in it must be put right.
    """
    chosen = load(find(name))
    if json:
        show(as_json(chosen.usable().skill.as_json()))
        return
    for text in (*_facts(chosen), *_sections(chosen)):
        show(plain(text))
    for remark in chosen.remarks:
        show(plain(f"note     {remark}"))
    for note in chosen.terms.notes:
        show(plain(f"note     line {note.line}: {note.what}"))
    for problem in chosen.terms.problems:
        show(plain(f"problem  line {problem.line}: {problem.what}\n         fix: {problem.fix}"))
    if chosen.terms.problems:
        raise typer.Exit(BadInput.exit_code)


def _listed() -> Iterator[tuple[Place, bool]]:
    """Every template, and whether another of its name counts before it."""
    seen: set[str] = set()
    for place in places():
        yield place, place.name in seen
        seen.add(place.name)


def _row(place: Place, hidden: bool) -> dict[str, object]:
    row: dict[str, object] = {"name": place.name, "from": place.group, "file": place.file}
    empty = dict.fromkeys(("agents", "order", "verdict"))
    try:
        chosen = load(place)
    except BadInput as error:
        return {**row, **empty, "description": "", "problem": f"{error}; {error.fix}"}
    problem = next(iter(chosen.terms.problems), None)
    rules = chosen.terms.rules
    wrong = f"{place.file}, line {problem.line}: {problem.what}; {problem.fix}" if problem else None
    if hidden and not wrong:
        wrong = f"hidden by another {place.name}; name it by its path: -t {place.file}"
    return {
        **row,
        "agents": chosen.how_many,
        "order": rules.order,
        "verdict": rules.verdict,
        "description": chosen.description,
        "problem": wrong,
    }


def _facts(chosen: Template) -> Iterator[str]:
    """Its first lines: name, file, what it fixes."""
    terms, rules = chosen.terms, chosen.terms.rules
    yield f"{chosen.name}: {chosen.description}".rstrip(": ")
    yield f"file     {chosen.source}"
    yield f"agents   {chosen.how_many}; order {rules.order}; verdict {_verdict(chosen)}"
    limits = {
        "turns": terms.max_turns,
        "rounds": terms.max_rounds,
        "time": in_words(terms.max_time) if terms.max_time else None,
        "one reply": in_words(chosen.timeout),
    }
    yield "limits   " + "; ".join(f"{name} {value}" for name, value in limits.items() if value is not None)
    switches = [key.replace("_", " ") for key in ("sealed", "red_team", "objections", "review") if getattr(rules, key)]
    if switches:
        yield f"with     {', '.join(switches)}"


def _verdict(chosen: Template) -> str:
    rules = chosen.terms.rules
    if rules.verdict == "vote":
        first = ", the first wins" if rules.winner == "first" else ""
        return f"vote (threshold {rules.threshold:.0%}, quorum {rules.quorum:.0%}{first})"
    return f"judge ({chosen.terms.judge})" if rules.verdict == "judge" else rules.verdict


def _sections(chosen: Template) -> Iterator[str]:
    """What it says of agents, phases, messages, criteria and errors."""
    rules = chosen.terms.rules
    for part in chosen.terms.cast:
        role = part.role
        may = ", ".join(name for name in PERMISSIONS if name in role.permissions)
        facts = [f"may {may}", f"weight {role.weight:g}" if role.weight != 1 else "", part.backend, role.personality]
        yield f"agent    {part.name}: {'; '.join(fact for fact in facts if fact)}"
        yield from (f"         - {duty}" for duty in role.responsibilities)
    for phase in rules.phases:
        rounds = "1 round" if phase.rounds == 1 else f"{phase.rounds} rounds"
        yield f"phase    {phase.name} ({rounds}): {phase.description}"
    for name, meaning in ((name, kind.meaning) for name, kind in rules.kinds.items()):
        yield f"message  [{name}]: {meaning}"
    yield from (f"success  {point}" for point in rules.success)
    yield from (f"error    {point}" for point in rules.errors)
