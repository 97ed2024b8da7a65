"""`dialogd plan`, `export`, `cost` and `verify`."""

from __future__ import annotations

import json as jsons
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from dialogd.agent.call import Bill, from_record
from dialogd.backends.seats import Seat, saved_cast
from dialogd.cli import options, terminal
from dialogd.cli.create import read_cast
from dialogd.cli.terminal import as_json, line, plain, remark, show
from dialogd.config import Settings, new_command
from dialogd.errors import BadInput, DialogdError, NotInstalled, Refused, StorageError
from dialogd.person import taken_out
from dialogd.protocol.certificate import RECORDS, Certificate, Change, certify, changes, differences, where
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.model import USER, Condition, Participant
from dialogd.protocol.money import estimate, in_dollars, standing, total, used
from dialogd.protocol.replay import Fault, faults
from dialogd.protocol.seal import SealedAnswer, answers
from dialogd.protocol.state import Dialog, Spent
from dialogd.protocol.text import dollars, many
from dialogd.store.archive import attachments_of
from dialogd.store.disk import fix, why, write_over
from dialogd.store.folders import StateDir, file_of
from dialogd.views import plan_files
from dialogd.views.export import FORMATS, file_name
from dialogd.views.export import export as exported
from dialogd.views.plan import Plan, has_spoken
from dialogd.views.plan_files import place, write
from dialogd.views.plan_page import as_json as facts_of
from dialogd.views.plan_page import first_screen, markdown
from dialogd.views.words import METHODS

if TYPE_CHECKING:
    from dialogd.backends.auto import Choice
    from dialogd.backends.prices import Price
    from dialogd.tasks.approvals import Judge
    from dialogd.templates.opening import Opening
    from dialogd.views.plan import Synthesis


SYNTHESIZE = "--synthesize"
EDITORS = ("sensible-editor", "editor", "nano", "vim", "vi")
ANYBODY = "*"  # what stands for `--synthesize` without an agent


class PlanCommand(TyperCommand):
    """The command whose `--synthesize` may stand alone, or before an agent."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--synthesize` its value."""
        for index, (word, following) in enumerate(zip(args, [*args[1:], ""], strict=False)):
            if word == SYNTHESIZE and (not AGENT_ID.fullmatch(following) or Path(following).exists()):
                args = [*args[:index], f"{SYNTHESIZE}={ANYBODY}", *args[index + 1 :]]
        return super().parse_args(ctx, args)


def plan(
    path: options.FileArgument = None,
    *,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write it there, as Markdown and JSON; `-` prints the whole of it."),
    ] = None,
    edit: Annotated[
        bool, typer.Option("--edit", help="Open a copy of your own, kept beside it, in $VISUAL or $EDITOR.")
    ] = False,
    synthesize: Annotated[
        str | None, typer.Option(SYNTHESIZE, metavar="[AGENT]", help="Let a model write a unified plan, in one call.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME[:MODEL]", help="Which model that is. Default: the agent's own.")
    ] = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Show the plan: decisions, dissent, open points.

    Who decided it, who disagrees and why, what comes next: from the dialog's marks, without a model; also of a dialog
    that has not ended. With --json as JSON. --out writes it, and prints the paths.
    """
    settings, _, dialog = options.opened(path or file)
    if not has_spoken(dialog):
        raise _silent(settings, dialog)
    drawn = Plan(dialog, str(settings.file.parent.resolve() / settings.file.name))
    if synthesize is not None:
        drawn = replace(drawn, synthesis=_synthesis(settings, drawn, synthesize, backend))
    elif backend is not None:
        raise BadInput("--backend is for --synthesize", fix="add --synthesize, or leave --backend out")
    if edit and out == "-":
        raise BadInput("what is printed cannot be edited", fix="leave --out out, or name a folder: --out DIR --edit")
    folder = Path.cwd() / Path(out).expanduser() if out else _place(settings)
    if edit:
        _edit(drawn, folder, json=json)
    elif out and out != "-":
        page, facts = write(drawn, folder, datetime.now(UTC))
        options.answer({"markdown": str(page), "json": str(facts)}, [str(page), str(facts)], json=json)
    else:
        if synthesize is not None and out is None:  # it was paid for, and is kept
            remark(f"written to {write(drawn, folder, datetime.now(UTC))[0]}")
        _show(drawn, json=json, is_whole=out == "-")


def _show(drawn: Plan, *, json: bool, is_whole: bool) -> None:
    """Print the plan: as JSON; as it stands in its file; or what one must know of it, laid out in a terminal."""
    if json or is_whole:
        show(plain(as_json(facts_of(drawn)) if json else markdown(drawn).removesuffix("\n")))
    elif sys.stdout.isatty():
        terminal.write(terminal.markdown(plain(first_screen(drawn))))
        remark("\nthe whole of it: dialogd plan --out -; a copy to work on: dialogd plan --edit")
    else:
        show(plain(first_screen(drawn)))


def _edit(drawn: Plan, folder: Path, *, json: bool) -> None:
    """Open the person's own copy of the plan in their editor. Raises `NotInstalled` without one, `DialogdError`."""
    words = editor()
    own, others = plan_files.to_edit(drawn, folder, datetime.now(UTC))
    for other in others:
        remark(f"note: another edited plan of this end is kept: {other}")
    before = own.read_bytes()
    try:
        code = subprocess.run([*words, str(own)], check=False).returncode
    except OSError as error:
        raise NotInstalled(
            f"{words[0]} cannot be run: {why(error)}", fix="name an editor: export EDITOR=nano"
        ) from None
    if code:
        raise DialogdError(f"{words[0]} ended with code {code}", fix=f"your plan is kept: {own}")
    is_changed = own.is_file() and own.read_bytes() != before
    options.answer({"markdown": str(own), "changed": is_changed}, [str(own)], json=json)


def editor() -> list[str]:
    """The person's editor and its arguments: $VISUAL, $EDITOR, else one that is usual. Raises `NotInstalled`."""
    for name in ("VISUAL", "EDITOR"):
        try:
            if words := shlex.split(os.environ.get(name, "")):
                return words
        except ValueError:
            raise NotInstalled(f"${name} cannot be read: a quotation mark is open", fix="export EDITOR=nano") from None
    found = next(filter(None, map(shutil.which, EDITORS)), None)
    if found is None:
        raise NotInstalled("no editor was found", fix="name one: export EDITOR=nano")
    return [found]


def _silent(settings: Settings, dialog: Dialog) -> Refused:
    """Why there is no plan: no agent has spoken, or only agents that the header does not name."""
    names = dict.fromkeys(line(entry.name) for entry in dialog.entries[1:] if entry.is_turn and entry.by == USER)
    person = {line(dialog.entries[0].name), "User", ""} if dialog.entries else set()
    strangers = [name for name in names if name not in person]
    if not strangers:
        return Refused(f"no agent has spoken in {settings.file}", fix="a plan needs a reply: see dialogd status")
    agents = ", ".join(f"{agent.id} ({agent.name})" for agent in dialog.header.agents)
    seats = ", ".join(f"{chr(ord('A') + number)} = {name}" for number, name in enumerate(strangers[:26]))
    return Refused(
        f"no agent has spoken in {settings.file}: its turns are by {', '.join(strangers)}, its agents are {agents}",
        fix=f"where they are agents, say so in its header: **Agents:** {seats}",
    )


def _place(settings: Settings) -> Path:
    """Where plans of this file go."""
    return place(settings.file, StateDir(settings.state_dir), settings.plan)


def leave_plan(settings: Settings, dialog: Dialog) -> Path | None:
    """Leave the plan of a dialog that has ended, where plans are wanted; gives the page's path, None without one.

    A failure to write it is only reported: the dialog has ended all the same.
    """
    if not settings.plan or dialog.state.outcome is None:
        return None
    with _remarking("no plan was left"):
        pair = plan_files.keep(dialog, settings.file, _place(settings), datetime.now(UTC))
        return pair[0] if pair else None
    return None


def disown(settings: Settings, dialog: Dialog) -> None:
    """Mark the plan of a rejected result as rejected; a failure is only reported."""
    with _remarking("the plan of the rejected result stays as it is"):
        if (page := plan_files.disown(dialog, settings.file, _place(settings))) is not None:
            remark(f"note: the plan of that result says so now: {page}")


@contextmanager
def _remarking(what: str) -> Iterator[None]:
    """Report what did not work on stderr, and continue."""
    try:
        yield
    except DialogdError as error:
        remark(f"note: {what}: {error}; {error.fix}")


def _synthesis(settings: Settings, drawn: Plan, agent: str, backend: str | None) -> Synthesis:
    """What the agent's model writes. Raises `BadInput`, `BackendError`."""
    import asyncio

    from dialogd.agent.call import Call
    from dialogd.agent.player import player, prepare
    from dialogd.views.plan_files import synthesize

    agents = drawn.dialog.header.agents
    me = next((a for a in agents if agent == ANYBODY or a.id.casefold() == agent.casefold()), None)
    if me is None:
        raise BadInput(f"this dialog has no agent {agent!r}", fix=f"name one of: {', '.join(a.id for a in agents)}")
    seat = _seat(settings, drawn.dialog, me, backend)
    own = options.settings_for(
        str(settings.file),
        id=me.id,
        backend=seat.backend or None,
        model=seat.model or None,
        command=seat.command or None,
        project=seat.project or None,
    )
    plays = player(own, drawn.dialog, StateDir(own.state_dir), own.file)
    remark(f"{me.id}: {plays.remarks[0]}; one call")

    async def call() -> Synthesis:
        try:
            await prepare(plays, drawn.dialog)
            wait, secrets = own.retry_wait, plays.behavior.secrets
            call = Call(plays.backend, wait, tuple(secrets))
            return await synthesize(call, drawn, me, own.file)
        finally:
            await plays.backend.close()

    return asyncio.run(call())


def _seat(settings: Settings, dialog: Dialog, me: Participant, backend: str | None) -> Seat:
    """The backend that answers: the one that was named, else the agent's, else the settings'."""
    if backend is not None:
        return read_cast(None, [f"{me.id}={backend}"])[0]
    cast = saved_cast(StateDir(settings.state_dir), settings.file)
    if cast is not None and cast.dialog == dialog.id:
        return next((seat for seat in cast.seats if seat.id == me.id), Seat(me.id))
    return Seat(me.id)


# -- `dialogd export` -------------------------------------------------------------------------------------------------

To = Annotated[str, typer.Option("--to", metavar="FORMAT", help="md, html, pdf or json.")]
Out = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Where to; `-` is standard output. Default: TOPIC-DIALOG.FORMAT here."),
]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]


def export(
    path: options.FileArgument = None,
    *,
    to: To,
    out: Out = None,
    force: Force = False,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Save the dialog as Markdown, HTML, PDF or JSON.

    One document, complete in itself. What agents wrote is only text in each of them. Never writes over a file without
    --force.
    """
    if to not in FORMATS:
        raise BadInput(f"nothing is exported as {to!r}", fix=f"name one of: {', '.join(FORMATS)}")
    settings, _, dialog = options.opened(path or file)
    target = None if out == "-" else _target(out, dialog, to, settings.file, force=force)
    made = exported(dialog, to, attachments=attachments_of(settings.file))
    if target is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(made)
        sys.stdout.buffer.flush()
        return
    try:
        write_over(made, target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {why(error)}", fix=fix(error)) from error
    options.answer({"file": str(target), "to": to, "bytes": len(made)}, [str(target)], json=json)


def _target(out: str | None, dialog: Dialog, to: str, source: Path, *, force: bool) -> Path:
    """Where the document goes. Raises `BadInput` where it would overwrite a file."""
    target = Path.cwd() / (Path(out).expanduser() if out else file_name(dialog, to))
    if target.is_dir():
        target /= file_name(dialog, to)
    if target.exists() and source.exists() and target.samefile(source):
        raise BadInput(f"{target} is the dialog itself", fix="name another file with --out")
    if (target.exists() or target.is_symlink()) and not force:
        raise BadInput(f"{target} is there already", fix="name another file with --out, or write over it with --force")
    return target


# -- `dialogd status --cost` ------------------------------------------------------------------------------------------

RULES = 1_500  # tokens of a prompt that stand in no file: who an agent is, the marks, what is asked of it
SAID = 1_000  # tokens by which a turn lengthens the prompts after it: over 400 words and their marks
PROGRAM = 12_000  # tokens of a coding agent's own prompt: instructions and tools
CALLS = 3  # of the model in a coding agent's turn that looks something up
MOST_OUT = 8_192  # tokens of a reply, where nobody says


def show_cost(settings: Settings, *, json: bool) -> None:
    """Show what each agent has spent, and what is left. What nobody knows is called unknown."""
    log = options.log_of(settings)
    dialog = options.dialog_at(log)
    state = dialog.state
    names = {agent.id: agent.name for agent in dialog.everybody}
    names |= {who: who for who in state.spent if who not in names}
    turns = {who: sum(entry.by == who for entry in dialog.turns) for who in names}
    whole, of_all, used_up = total(state.spent), sum(turns.values()), used(state)
    bills = {who: [from_record(record) for record in log.journals.of(who).owed()] for who in names}
    loose = {who: reduce(Bill.plus, found) for who, found in bills.items() if found}  # calls that brought no entry
    spent = {who: state.spent.get(who, Spent()) for who in names}
    facts = {
        "file": str(settings.file),
        "dialog": dialog.id,
        "agents": [{"id": who, "name": name, **_spending(turns[who], spent[who])} for who, name in names.items()],
        "total": _spending(of_all, whole),
        "budget": {"usd": state.limits.budget, "tokens": state.limits.tokens},
        "used": used_up,
        "not_in_file": {who: {"calls": bill.calls, "usd": bill.known_usd} for who, bill in loose.items()},
    }
    rows = [("", "turns", "tokens in", "tokens out", "dollars")]
    rows += [_row(f"{line(who)}  {line(name)}", turns[who], spent[who]) for who, name in names.items()]
    rows.append(_row("in all", of_all, whole))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{settings.file} (dialog {dialog.id})"]
    for label, *cells, money in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:4], strict=True))
        lines.append("  ".join((f"  {label:{widths[0]}}", *numbers, money)))
    if budget := standing(state):
        lines.append(f"  budget: {budget} ({used_up or 0.0:.0%})")
    lines += [f"  not in the file: {who} {bill.words}, for calls that brought no entry" for who, bill in loose.items()]
    options.answer(facts, lines, json=json)


def _spending(turns: int, spent: Spent) -> dict[str, object]:
    """What was spent, for programs: null for what nobody knows at all."""
    counted = not (spent.uncounted and not spent.tokens)
    return {
        "turns": turns,
        "tokens_in": spent.tokens_in if counted else None,
        "tokens_out": spent.tokens_out if counted else None,
        "usd": None if spent.entries and spent.unknown == spent.entries else spent.usd,
        "exact": spent.exact and not spent.unknown,
        "entries": spent.entries,
        "entries_without_price": spent.unknown,
        "entries_without_tokens": spent.uncounted,
    }


def _row(label: str, turns: int, spent: Spent) -> tuple[str, str, str, str, str]:
    counted = not (spent.uncounted and not spent.tokens)
    tokens = [f"{number:,}" if counted else "unknown" for number in (spent.tokens_in, spent.tokens_out)]
    partly = f" ({spent.unknown} of {spent.entries} entries unknown)" if 0 < spent.unknown < spent.entries else ""
    return label, str(turns), tokens[0], tokens[1], in_dollars(spent) + partly


def estimate_of(opening: Opening, seats: Sequence[Seat], choices: Mapping[str, Choice], settings: Settings) -> str:
    """`estimate_line` for a cast, for the agents whose tokens cost money.

    Raises `BadInput` for a price that cannot be read.
    """
    prices = prices_of(seats, choices, settings)
    return estimate_line(opening, prices, settings.max_tokens, _programs(prices, choices))


def costs_of(
    opening: Opening, seats: Sequence[Seat], choices: Mapping[str, Choice], settings: Settings
) -> dict[str, float | None]:
    """What each agent whose tokens cost money may spend at most, about, in US dollars; None where nobody knows."""
    prices = prices_of(seats, choices, settings)
    return _costs(opening, prices, settings.max_tokens, _programs(prices, choices))


def _programs(prices: Mapping[str, Price | None], choices: Mapping[str, Choice]) -> frozenset[str]:
    """The coding agents among them."""
    from dialogd.backends import CODING

    return frozenset(who for who in prices if choices[who].backend in CODING)


def prices_of(seats: Sequence[Seat], choices: Mapping[str, Choice], settings: Settings) -> dict[str, Price | None]:
    """The prices of the agents whose tokens cost money, by id; None for an unknown price."""
    from dialogd.backends.auto import price_for

    agents, found = StateDir(settings.state_dir).agents, dict[str, "Price | None"]()
    for seat in seats:
        choice, price = choices[seat.id], seat.price or settings.price
        if choice.is_metered or price:
            found[seat.id] = price_for(choice, seat.model or settings.model, price, agents=agents)
    return found


def estimate_line(
    opening: Opening, prices: Mapping[str, Price | None], most_out: int = 0, programs: Collection[str] = ()
) -> str:
    """What a new dialog may cost, in a line; "" when it costs nothing.

    `prices` are those of the agents that cost money, by id, None for an unknown one; `most_out` is how many tokens a
    reply may have, 0 for the usual number. `programs` are those that are coding agents: each call of theirs has a
    prompt of their own, and how many a turn takes is theirs to say.
    """
    known = {who: usd for who, usd in _costs(opening, prices, most_out, programs).items() if usd is not None}
    strangers = " and ".join(who for who, price in prices.items() if price is None)
    if not any(known.values()):
        return f"estimate: unknown, for nobody knows the price of {strangers}" if strangers else ""
    parts = ", ".join(f"{who} {_cents(usd)}" for who, usd in known.items())
    whole = sum(known.values())
    many = " and ".join(who for who in known if who in programs)
    most = "about" if many else "at most about"
    text = f"estimate: {most} {_cents(whole)} for {opening.max_turns} turns ({parts})"
    text += f"; more where {many} calls its model more than {CALLS} times a turn" if many else ""
    text += f"; unknown: {strangers}" if strangers else ""
    if opening.budget is not None and opening.budget < whole:
        text += f"; the budget of {dollars(opening.budget)} ends it before that"
    return text


def _costs(
    opening: Opening, prices: Mapping[str, Price | None], most_out: int, programs: Collection[str]
) -> dict[str, float | None]:
    """What each agent may spend at most, about; None for an unknown price."""
    from dialogd.backends.parts import tokens_of
    from dialogd.templates.opening import compose

    start, out = RULES + tokens_of(compose(opening)), most_out or MOST_OUT

    def dear(who: str, price: Price) -> float:
        begun, calls = (start + PROGRAM, CALLS) if who in programs else (start, 1)

        def cost(tokens_in: int, tokens_out: int) -> float:
            return price.usd(tokens_in, 0) * calls + price.usd(0, tokens_out)

        return estimate(opening.max_turns, len(opening.agents), cost, start=begun, said=min(SAID, out), out=out)

    return {who: None if price is None else dear(who, price) for who, price in prices.items()}


def _cents(usd: float) -> str:
    return dollars(math.ceil(usd * 100) / 100)


# -- `dialogd verify` -------------------------------------------------------------------------------------------------

WORDS = {
    Condition.SOUND: "sound",
    Condition.BY_HAND: "by hand",
    Condition.EDITED: "edited: its text is not the one that was written",
    Condition.DAMAGED: "damaged: cut or overwritten; it counts for nothing",
    Condition.UNFINISHED: "unfinished: somebody is typing, or the file was cut here",
}
BROKEN = "chain broken: something before it was changed, removed or inserted"
UNKNOWN = "unknown: no journal here remembers it; forged, or written on another machine"
TEXT_LINES = 8  # of the agreed text that are shown

Kept = Annotated[
    str | None,
    typer.Option("--certificate", metavar="F", help="Compare with a certificate kept elsewhere: a plan's JSON."),
]


Details = Annotated[bool, typer.Option("--details", help="Also each entry, the seals, and who signed what.")]
Commit = Annotated[
    str | None, typer.Option("--commit", metavar="C", help="Is this commit's tree one that a build approved?")
]
InRepo = Annotated[str, typer.Option("--repo", metavar="DIR", help="The commit's repository. Default: this folder.")]
FromBundle = Annotated[
    str | None, typer.Option("--bundle", metavar="F", help="Judge by a signed bundle: dialogd build bundle.")
]
Signers = Annotated[
    str | None, typer.Option("--allowed-signers", metavar="F", help="Who may sign it: see ssh-keygen(1).")
]
PrePush = Annotated[bool, typer.Option("--pre-push", help="As a hook: each tip that git says it pushes, on stdin.")]
Untested = Annotated[bool, typer.Option("--untested", help="A tree that no gate tested will do.")]


def verify(
    path: options.FileArgument = None,
    file: options.FileOption = None,
    certificate: Kept = None,
    details: Details = False,
    json: options.JsonOption = False,
) -> None:
    """Check that no entry was altered after it was written.

    Each entry is held against its recorded hash, the entry before it, and the journals; and what its daemon wrote is
    worked out anew from the entries before it. The verdict comes first, then whatever was changed since. Exit code 0
    when all is sound or written by hand, 1 otherwise.
    """
    settings = options.settings_for(path or file)
    if not settings.file.exists():
        raise BadInput(
            f"there is no file {settings.file}",
            fix=f"name the dialog file: dialogd verify FILE; or begin a dialog: {new_command(settings.file)}",
        )
    kept = _kept(Path(certificate)) if certificate is not None else None
    found = _verified(settings, kept)
    options.answer(found.facts(settings.file), list(found.rows(details=details)), json=json)
    raise typer.Exit(0 if found.is_sound else 1)


def verify_commits(
    path: options.FileArgument = None,
    *,
    file: options.FileOption = None,
    commit: Commit = None,
    repo: InRepo = ".",
    bundle: FromBundle = None,
    allowed_signers: Signers = None,
    pre_push: PrePush = False,
    untested: Untested = False,
    json: options.JsonOption = False,
) -> None:
    """Check that a commit's tree is one that a build approved.

    Exit code 0 only when exactly that tree was approved, on the base that it comes from, by others than its author,
    with its gate green or your word on "untested", in a sound file; else 1, with the reasons. With --bundle it needs no
    dialog here; without a signature by one of --allowed-signers that is "integrity only", and 1. See docs/approvals.md.
    """
    if (commit is None) != pre_push:
        raise BadInput("which commits?", fix="name one, --commit HEAD; or --pre-push, which reads them itself")
    if bundle is not None and (path or file):
        raise BadInput("a bundle has its own copy of the dialog", fix="name the dialog or --bundle, not both")
    if allowed_signers is not None and bundle is None:
        raise BadInput("--allowed-signers is for --bundle", fix="name the bundle: --bundle F")
    asked = (
        judging(path or file, untested=untested)
        if bundle is None
        else _judging_elsewhere(bundle, allowed_signers, untested=untested)
    )
    _answer_commits(asked, repo, _pushed() if pre_push else [("", str(commit), "")], json=json)


@dataclass(frozen=True)
class Judging:
    """What commits are held against; `against` are reasons that concern all of them, `by` says whose word it is."""

    judge: Judge
    against: tuple[str, ...]
    by: str


def judging(file: str | None, *, untested: bool) -> Judging:
    """The judge of commits by the dialog that is here: the file and its journals. Raises `BadInput` without one."""
    from dialogd.tasks.approvals import judge_here

    settings = options.settings_for(file)
    if not settings.file.exists():
        raise BadInput(
            f"there is no file {settings.file}", fix="name the build's dialog, or a bundle of it: --bundle F"
        )
    judge, against = judge_here(options.log_of(settings), untested=untested)
    return Judging(judge, against, f"by {settings.file} and its journals")


def _judging_elsewhere(bundle: str, signers: str | None, *, untested: bool) -> Judging:
    """The judge of commits by a bundle."""
    from dialogd.tasks.approvals import Judge, opened

    held = opened(Path(bundle).expanduser(), Path(signers).expanduser() if signers else None)
    against = () if held.signer else (f"integrity only: {held.why}",)
    return Judging(Judge(held.data, untested=untested), against, f"signed by {held.signer}")


_PUSHED = re.compile(r".+ ([0-9a-f]{40}|[0-9a-f]{64}) (\S+) ([0-9a-f]{40}|[0-9a-f]{64})", re.ASCII)


def _pushed() -> list[tuple[str, str, str]]:
    """What git tells a pre-push hook: each name that is pushed, its commit, and what stands there; no deleted ones."""
    pushed = []
    for row in filter(None, sys.stdin.buffer.read().decode("utf-8", "backslashreplace").split("\n")):
        match = _PUSHED.fullmatch(row)
        if match is None:
            raise BadInput(f"no line of a pre-push hook: {line(row)[:80]!r}", fix="call it from .git/hooks/pre-push")
        commit, name, there = match.groups()
        if commit.strip("0"):
            pushed.append((name, commit, there if there.strip("0") else ""))
    return pushed


def _answer_commits(asked: Judging, repo: str, names: Sequence[tuple[str, str, str]], *, json: bool) -> NoReturn:
    """Say of each commit whether it was approved, and end with exit code 0 where all were."""
    from dialogd.tasks.approvals import Judged
    from dialogd.tasks.git import Git, checkout_at

    checkout = checkout_at(Path.cwd() / Path(repo).expanduser())
    git, found = Git(checkout.common_dir, here=checkout.git_dir), []
    for name, commit, there in names:
        try:
            judged = asked.judge.judge(git, commit, there)
        except Refused as error:
            if not name:
                raise
            judged = Judged(commit, "", None, (str(error),))  # a tag of a file, for one
        why = (*judged.why, *asked.against)
        found.append((name, replace(judged, why=why, approval=None if why else judged.approval), judged.approval))
    rows = []
    for name, judged, approval in found:
        title = f"commit {judged.commit[:12]}{f' for {line(name)}' if name else ''}, tree {judged.tree[:12] or 'none'}"
        if judged.approval is not None:
            rows.append(f"{title}: approved as {line(judged.approval.words)}; {line(asked.by)}")
            continue
        rows.append(f"{title}: not approved")
        rows += [f"  its tree is that of {line(approval.words)}"] if approval is not None else []
        rows += [f"  {line(reason)}" for reason in judged.why]
    facts = [{"ref": name or None, **judged.as_json()} for name, judged, _ in found]
    is_good = all(judged.approval is not None for _, judged, _ in found)
    options.answer({"approved": is_good, "commits": facts}, rows or ["no commit is to be judged"], json=json)
    raise typer.Exit(0 if is_good else 1)


@dataclass(frozen=True)
class _Verified:
    """What was found of a file.

    `moved` says where the journals belong that know it, "" where they are its own.
    `problems` has an entry's problem, "" for none, and its line of the report; `missing` are the headings of what was
    written and is gone, `lost` what a save took out of this dialog before. `aside` keeps that, and earlier dialogs of
    the same file. `compared` is None without a certificate that was kept.
    """

    dialog: Dialog
    moved: str
    problems: Sequence[tuple[str, str]]
    missing: Sequence[str]
    lost: str
    aside: Sequence[str]
    odd: Sequence[str]
    folder: Path
    compared: Sequence[Change] | None
    faults: Sequence[Fault]

    @cached_property
    def changed(self) -> Sequence[Change]:
        """What was changed of what was agreed."""
        return changes(self.dialog)

    @cached_property
    def seals(self) -> Sequence[SealedAnswer]:
        """The sealed answers, held against their seals."""
        return answers(self.dialog)

    @property
    def bad(self) -> int:
        """How many entries have a problem."""
        return sum(bool(problem) for problem, _ in self.problems)

    @property
    def is_kept(self) -> bool:
        """True where what was agreed, sealed and kept is as it was."""
        changed = any(change.is_harm for change in (*self.changed, *(self.compared or ())))
        return not changed and not any(seal.is_harm for seal in self.seals)

    @property
    def is_sound(self) -> bool:
        """True where nothing is wrong."""
        return self.is_kept and not self.missing and not self.bad and not self.faults

    def facts(self, file: Path) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "file": str(file),
            "sound": self.is_sound,
            "entries": [
                {
                    "id": e.id, "number": e.number, "by": e.by, "line": e.line, "condition": e.condition.value,
                    "linked": e.linked, "problem": problem,
                }
                for e, (problem, _) in zip(self.dialog.entries, self.problems, strict=True)
            ],
            "moved": self.moved,
            "missing": self.missing,
            "set_aside": self.aside,
            "journals": self.odd,
            "certificate": self.certified.as_json() if self.certified else None,
            "changes": [change.words for change in self.changed],
            "compared": None if self.compared is None else [change.words for change in self.compared],
            "seals": [asdict(seal) for seal in self.seals],
            "faults": [{"line": f.line, "words": f.words} for f in self.faults],
        }  # fmt: skip

    @cached_property
    def certified(self) -> Certificate | None:
        """What was agreed."""
        return certify(self.dialog)

    @property
    def verdict(self) -> str:
        """Is it sound, how much is it, and was anything agreed; in a line."""
        wrong = [
            *([many(self.bad, "problem")] if self.bad else []),
            *([f"{len(self.missing)} missing"] if self.missing else []),
            *([many(len(self.faults), "fault")] if self.faults else []),
            *([] if self.is_kept else ["what was agreed, sealed or kept was changed since"]),
        ]
        entries = f"{len(self.problems)} entr{'y' if len(self.problems) == 1 else 'ies'}"
        agreed, made = "Nothing was decided", self.certified
        if made is not None:
            text = line(made.ref) or "a text"
            agreed = f"Decided: {text}, {METHODS.get(made.method, line(made.method))}"
            agreed = f"Everybody signed {text}" if made.method == "mutual" else agreed
        return f"{'Not sound: ' + ', '.join(wrong) if wrong else 'Sound'}. {entries}. {agreed}."

    def rows(self, *, details: bool) -> Iterator[str]:
        """The lines of the report: the verdict, what is wrong, and with `details` the rest."""
        yield from filter(None, (self.verdict, self.moved))
        for entry, (problem, verdict) in zip(self.dialog.entries, self.problems, strict=True):
            title = f"line {entry.line}: {f'turn {entry.number}' if entry.is_turn else f'note {entry.id}'}"
            words = "; ".join(filter(None, (verdict, line(entry.notice))))
            if details or problem or entry.notice:
                yield f"{title}, {line(entry.name)}: {words}"
        for name in self.missing:
            yield f"missing: {name.removeprefix('## ')}: it was written and is no longer in the file"
        if self.missing:
            yield f"  the journals in {self.folder} keep the text of what is missing"
        elif self.lost:
            yield self.lost
        yield from self.odd
        for path in self.aside if details else ():
            yield f"kept: turns of an earlier dialog in this file, or what was taken out of this one: {path}"
        for seal in self.seals:
            if details or seal.is_harm:
                could_read = "; its tools could have read files" if seal.could_read else ""
                yield f"sealed answer of {line(seal.agent)} to {where(seal.re)}: {seal.status}: {seal.why}{could_read}"
        if self.certified is not None and details:
            yield from _certified(self.certified)
        yield from (f"since then: {change.words}" for change in self.changed)
        if self.compared is not None:
            yield "compared with the certificate that was kept: " + ("it differs" if self.compared else "all the same")
            yield from ("  " + change.words.replace("\n", "\n    ") for change in self.compared)
        yield from (line(str(fault)) for fault in self.faults)
        yield RECORDS if details else "more: --details shows each entry, the seals, and who signed what"


def _verified(settings: Settings, kept: Mapping[str, Any] | None) -> _Verified:
    """Look at the file, the journals and the certificate that was kept."""
    journals = (log := options.log_of(settings)).journals
    written = journals.turns()  # before the file: what is written meanwhile stands there, and is not missed
    dialog = log.read(full=True)
    present, remembered = {entry.chain for entry in dialog.entries}, journals.remembered()
    unknown = {entry.chain for entry in dialog.entries if entry.condition is Condition.SOUND} - remembered
    return _Verified(
        dialog,
        moved=_moved(journals.elsewhere(unknown) if unknown else None, settings.file),
        problems=[*_problems(dialog, remembered)],
        missing=[_heading(text) for _, chain, text in written if chain not in present],
        lost=taken_out(log.lost(dialog), settings.file),
        aside=[str(path) for path in sorted(journals.folder.glob("aside/*/dropped.md"))],
        odd=journals.odd(),
        folder=journals.folder,
        compared=differences(kept, dialog) if kept is not None else None,
        faults=faults(settings.file.read_bytes()),
    )


def _moved(folder: Path | None, file: Path) -> str:
    """That the journals in `folder` belong to where the file was, and the way back; "" without one."""
    if folder is None:
        return ""
    old = file_of(folder)
    if old is None:
        return f"moved or copied: it was not held against its journals, which are in {folder}"
    back = ("dialogd verify",) if old.exists() else ("mv", shlex.quote(str(file)))
    what = "copied" if old.exists() else "moved"
    words = f"{what}: it was not held against its journals, which belong to {old}; to do so: "
    return line(words + " ".join((*back, shlex.quote(str(old)))))


def _kept(path: Path) -> Mapping[str, Any]:
    """A certificate from a plan's JSON, or from a file of its own. Raises `BadInput`."""
    fix = "name a collaboration_plan JSON of a dialog that was decided: --certificate PLAN.json"
    try:
        facts = jsons.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", fix=fix) from None
    except ValueError:
        raise BadInput(f"{path} holds no JSON", fix=fix) from None
    found = facts.get("certificate", facts) if isinstance(facts, dict) else facts
    if found is None:
        raise BadInput(f"{path} holds no certificate: nothing was decided when it was written", fix=fix)
    if not isinstance(found, dict) or not {"text", "signers", "links"} <= found.keys():
        raise BadInput(f"{path} holds no certificate: text, signers and links are not in it", fix=fix)
    return found


def _problems(dialog: Dialog, remembered: set[str]) -> Iterator[tuple[str, str]]:
    """The problem of each entry, "" where it is in order, and its line of the report.

    Only a journal that knows this dialog can call one of its entries unknown.
    """
    is_known = any(entry.frame and entry.chain in remembered for entry in dialog.entries)
    for entry in dialog.entries:
        verdict = WORDS[entry.condition]
        problem = "" if entry.condition in (Condition.SOUND, Condition.BY_HAND) else entry.condition.value
        if entry.condition is Condition.SOUND and is_known and entry.chain not in remembered:
            verdict, problem = UNKNOWN, "unknown"
        if not entry.linked:
            verdict = BROKEN if not problem else f"{verdict}; {BROKEN}"
            problem = problem or "chain broken"
        yield problem, verdict


def _heading(text: str) -> str:
    return next((line(row) for row in text.split("\n") if row.startswith("## ")), "an entry")


def _certified(c: Certificate) -> Iterator[str]:
    at = f" at {c.decided_at}" if c.decided_at else ""
    yield f"certificate: {line(c.title)}, decided in {where(c.decided_in)}{at}, {METHODS.get(c.method, line(c.method))}"
    rows = c.text.split("\n")
    yield from (f"  | {row}" for row in rows[:TEXT_LINES])
    if len(rows) > TEXT_LINES:
        yield f"  | … {len(rows) - TEXT_LINES} more lines in {where(c.stands_in)}"
    yield f"  hash {c.sha or 'none'}, {c.entries} entries from {c.chain[0]} to {c.chain[1]}"
    yield from (f"  tree {tree.tree} of task {tree.task}, commit {tree.commit}" for tree in c.trees)
    for signer in c.signers:
        place = f"turn {signer.turn}" if signer.turn else "no turn"
        objection = f"; strongest remaining objection: {line(signer.reservation)}" if signer.reservation else ""
        yield f"  by {line(signer.agent)}, {line(signer.name)}, {place}, {signer.at or 'no time recorded'}{objection}"
