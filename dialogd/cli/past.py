"""Earlier dialogs: `dialogd list`, `recall` and `outcome`."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from dialogd import person
from dialogd.cli import options
from dialogd.cli.create import TOPIC
from dialogd.cli.terminal import line, plain, remark
from dialogd.errors import BadInput, DialogdError
from dialogd.protocol.text import dollars, many, moment_of

if TYPE_CHECKING:
    from dialogd.memory import DialogRow, Hit, Memory, PastDecision
    from dialogd.protocol.state import Dialog


TOPIC_WIDTH = 60  # characters of a topic in the list
LEAST_ID = 4  # characters of the beginning of an id that name its dialog; a shorter word is looked for
SHOWN = 12  # lines of a decision's text

Limit = Annotated[int, typer.Option(min=1, metavar="N", help="How many at most. Default: 20.")]
Everything = Annotated[bool, typer.Option("--all", help="List all of them.")]
Which = Annotated[str, typer.Argument(metavar="ID", help="Its id, the beginning of one, or the path of a file.")]
Words = Annotated[
    builtins.list[str] | None,
    typer.Argument(metavar="[WORDS|ID]", help="What to look for; or one dialog, by its id or file, to show in full."),
]
Rebuild = Annotated[bool, typer.Option("--rebuild", help="Read the archive's files anew, where its index is damaged.")]
By = Annotated[str, typer.Option("--agent", metavar="ID", help="Only what this agent wrote; USER for you.")]
Since = Annotated[str, typer.Option(metavar="TIME", help="Not older than this: 2h, 7d, yesterday, 2026-11-01.")]


def open_memory() -> Memory:
    """The memory of this user's state directory."""
    from dialogd.memory import Memory

    return Memory(options.settings_for().state_dir)


def list_dialogs(
    words: Words = None,
    every: Everything = False,
    limit: Limit = 20,
    agent: By = "",
    since: Since = "",
    rebuild: Rebuild = False,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """List your dialogs, search them, or show one in full.

    Those that go on and those that ended, newest first, with what they cost and how they turned out. With WORDS the
    passages that hold them; exit code 1 when nothing is found. With the ID or the file of a dialog its result,
    decisions and every turn.

    A dialog that ended while no daemon looked is archived when this command sees it, at its --file.
    """
    known = open_memory()
    if rebuild:
        known.rebuild()
        facts = known.status()
        broken = f", {facts['unreadable']} of them cannot be read" if facts["unreadable"] else ""
        lines = [
            f"archive   {facts['archive']}: {facts['copies']} copies, {facts['dialogs']} dialogs{broken}",
            f"index     {facts['index']}: {facts['entries']} entries, {facts['decisions']} decisions",
        ]
        options.answer(facts, lines, json=json)
    elif words and (named := _named(known, words[0]) if len(words) == 1 else None):
        _show_dialog(known, *named, json=json)
    elif words:
        _search(known, " ".join(words), agent, since, limit, json=json)
    else:
        rows = known.dialogs(None if every else limit, files=[options.settings_for(file).file])
        options.answer([row.as_json() for row in rows], map(_row, rows), json=json)
        if not rows and not json:
            remark("no dialog yet; begin one: dialogd run TOPIC")


def _row(row: DialogRow) -> str:
    end = "REHEARSAL" if row.is_rehearsal else row.outcome or row.state
    turned = f"  {row.verdict.outcome}" if row.verdict else "  approved" if row.approved else ""
    facts = f"{when(row):16}  {row.id:12}  {end:18}  {row.turns:3} turns  {cost(row):12}"
    return f"{facts}  {line(row.topic)[:TOPIC_WIDTH]}{turned}"


def when(row: DialogRow) -> str:
    """When a dialog ended, or that it is running, in local time."""
    ended = moment_of(row.ended)
    local = f"{ended.astimezone():%Y-%m-%d %H:%M}" if ended is not None else "undated"
    return local if row.state == "ended" else row.state


def cost(row: DialogRow) -> str:
    """What a dialog cost, as far as anybody knows."""
    return "cost unknown" if row.usd is None else f"{'' if row.is_exact else 'about '}{dollars(row.usd)}"


def _search(known: Memory, words: str, agent: str, since: str, limit: int, *, json: bool) -> None:
    """Search what was said in past dialogs. Exit code 1 when nothing is found."""
    from dialogd.memory.past import since as since_then

    moment = since_then(since, datetime.now(UTC), datetime.astimezone)
    known.dialogs(0, files=[options.settings_for().file])
    hits = known.search(words, agent=agent, since=moment, limit=limit)
    options.answer([hit.as_json() for hit in hits], map(_hit, hits), json=json)
    _found(hits, "nothing found", json=json)


def _found(things: Sequence[object], nothing: str, *, json: bool) -> None:
    """Say that nothing was found, and end with exit code 1, where it is so."""
    if not things:
        if not json:
            remark(nothing)
        raise typer.Exit(1)


def _hit(hit: Hit) -> str:
    """Two lines: where it is, and the passage with the words marked."""
    where = f"turn {hit.entry}" if hit.turn and "." not in hit.entry else f"note {hit.entry}" if hit.turn else "topic"
    rehearsal, who = "REHEARSAL  " if hit.is_rehearsal else "", f" {hit.agent}" if hit.agent else ""
    text, end = "", 0
    for start, stop in hit.spans:
        text += f"{plain(hit.snippet[end:start])}*{line(hit.snippet[start:stop])}*"
        end = stop
    head = f"{hit.dialog}  {rehearsal}{where}{who}  {hit.at[:10]}  {line(hit.topic)}"
    return f"{plain(head)}\n    {text}{plain(hit.snippet[end:])}"


# -- One dialog in full -----------------------------------------------------------------------------------------------


def _named(known: Memory, word: str) -> tuple[Path, DialogRow | None] | None:
    """The file that a word names: a dialog's own, or the copy of the one with that id; None for a mere word."""
    if "/" in word or (word.endswith(".md") and Path(word).exists()):
        return Path(word).expanduser(), None
    if len(word) < LEAST_ID or not any(sign.isdigit() for sign in word):
        return None
    try:
        row = known.dialog(word)
    except DialogdError:
        return None
    return Path(row.archive), row


def _show_dialog(known: Memory, path: Path, row: DialogRow | None, *, json: bool) -> None:
    """Show one dialog in full: result, decisions, every turn."""
    from dialogd.memory.past import read_dialog
    from dialogd.views.documents import entry_facts

    try:
        dialog = read_dialog(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}", fix="dialogd list names them") from error
    row, decisions = (row, known.decisions(row.id)) if row else _unlisted(known, path, dialog)
    verdicts = known.verdicts(row.id) if row.archive else ()
    facts = {
        **row.as_json(),
        "decisions": [decision.as_json() for decision in decisions],
        "outcomes": [{"outcome": v.outcome, "why": v.why, "at": v.at} for v in verdicts],
        "entries": [entry_facts(entry) for entry in dialog.entries],
    }
    options.answer(facts, _page(row, decisions, dialog), json=json)


def _unlisted(known: Memory, path: Path, dialog: Dialog) -> tuple[DialogRow, Sequence[PastDecision]]:
    """A dialog that is named by its file: its archived copy, else the file itself."""
    from dialogd.memory.past import facts, row_of

    try:
        row = known.dialog(path.name) if path.name.endswith(".md") else known.dialog(dialog.id)
        if Path(row.archive).samefile(path):
            return row, known.decisions(row.id)
    except (DialogdError, OSError):
        pass
    return row_of(dialog, path), facts(dialog).decisions


def _page(row: DialogRow, decisions: Sequence[PastDecision], dialog: Dialog) -> Iterator[str]:
    """The dialog as text for a terminal: its result, then every entry."""
    yield f"{line(row.topic)}  ({row.id})"
    yield line(f"{'REHEARSAL, no model was asked: ' if row.is_rehearsal else ''}{row.headline}")
    yield f"{when(row)} · {', '.join(row.agents)} · {many(row.turns, 'turn')} · {cost(row)}"
    yield from (f"{name:8} {value}" for name, value in (("file", row.file), ("archive", row.archive)) if value)
    if row.verdict is not None:
        yield f"later    it {row.verdict.outcome}: {line(row.verdict.why)}"
    for decision in decisions:
        yield ""
        yield from told(decision)
    for entry in dialog.entries:
        name, at = line(entry.name) or entry.by, f", {entry.at}" if entry.at else ""
        title = f"Turn {entry.number}, {name}" if entry.is_turn else f"Note {entry.id}, {name}"
        yield f"\n── {title}{at}{', withdrawn by you' if not entry.counts else ''} ──"
        yield from filter(str.strip, [entry.body.strip("\n")])
        yield from map(str, entry.marks if entry.frame is not None else ())


def told(decision: PastDecision) -> Iterator[str]:
    """A decision as text for a terminal: how it was made and turned out, its text, the reason."""
    from dialogd.memory.past import about

    where, *rest = map(line, about(decision))
    text = decision.text.strip().split("\n")
    yield where
    yield from (f"  {part}" for part in rest)
    yield from (f"    {row}" for row in (*text[:SHOWN], *(["…"] if len(text) > SHOWN else [])))
    if why := "; ".join(filter(None, (decision.evidence, decision.reason))):
        yield f"  because: {line(why)}"


# -- `dialogd recall` and `outcome` -----------------------------------------------------------------------------------

RECALL = "--recall"


class RecallCommand(TyperCommand):
    """A command whose `--recall` may stand alone, or before a question."""

    def parse_args(self, ctx: Any, args: builtins.list[str]) -> builtins.list[str]:
        """Give a bare `--recall` its value; a word after it is the question, unless it must be the topic."""
        if RECALL in args:
            at = args.index(RECALL)
            following = args[at + 1 : at + 2]
            if not following or following[0].startswith("-") or not self._has_topic(ctx, args):
                args = [*args[:at], f"{RECALL}={TOPIC}", *args[at + 1 :]]
        return super().parse_args(ctx, args)

    def _has_topic(self, ctx: Any, args: builtins.list[str]) -> bool:
        """True when a topic is left once the word behind `--recall` is its question."""
        values, _, _ = self.make_parser(ctx).parse_args(args=[*args])
        return isinstance(values.get("topic"), str)


Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What you want to know, in your own words.")]
MostRecalled = Annotated[int, typer.Option(min=1, metavar="N", help="How many decisions at most. Default: 3.")]
Outcome = Annotated[str, typer.Argument(metavar="worked|failed", help="How it turned out.")]
Why = Annotated[str, typer.Argument(metavar="[WHY]", help="What happened, in a sentence.")]


def recall(question: Question, limit: MostRecalled = 3, json: options.JsonOption = False) -> None:
    """Find past decisions about something, best match first. Exit code 1 when nothing is found."""
    known = open_memory()
    known.dialogs(0, files=[options.settings_for().file])
    found = known.recall(question, limit)
    lines = "\n\n".join("\n".join(told(decision)) for decision in found)
    options.answer([decision.as_json() for decision in found], filter(None, [lines]), json=json)
    _found(found, "" if found else f"nothing found: {known.why_nothing()}", json=json)


def outcome(which: Which, outcome: Outcome, why: Why = "", json: options.JsonOption = False) -> None:
    """Record how a decision turned out: worked or failed. With a reason. What is said last counts."""
    known = open_memory()
    person.alone(known.state, "outcome")
    row = known.outcome(which, outcome.lower(), why)
    lines = [f"{row.id} {row.verdict.outcome}: {row.verdict.why}"] if row.verdict else []
    options.answer(row.as_json(), lines, json=json)
