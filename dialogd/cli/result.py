"""What a dialog came to: `dialogd plan`, `export`, `verify` and `status --cost`; what a new one may cost."""

from __future__ import annotations

import asyncio
import json as jsons
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import reduce
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dialogd.agent.call import Bill, Call, from_record
from dialogd.backends import CODING, Price
from dialogd.backends.auto import Choice, price_for
from dialogd.backends.parts import tokens_of
from dialogd.backends.seats import Seat, saved_cast
from dialogd.cli import options
from dialogd.cli.create import read_cast
from dialogd.cli.options import Text, as_json, line, option, plain, remark, show, table
from dialogd.config import Settings, new_command
from dialogd.errors import BadInput, DialogdError, NotInstalled, Refused
from dialogd.memory import keep
from dialogd.person import taken_out
from dialogd.protocol.certificate import RECORDS, Certificate, answers, certify, changes, differences, faults, where
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.keys import spoken
from dialogd.protocol.model import USER, Condition
from dialogd.protocol.state import Dialog, Spent, budget_standing, estimate, in_dollars, total, used
from dialogd.protocol.text import dollars, many
from dialogd.store.disk import StateDir, attachments_of, file_of, real, why, write_over, writing
from dialogd.store.logfile import LogFile
from dialogd.templates import Opening, compose
from dialogd.views import documents
from dialogd.views.documents import export as exported
from dialogd.views.documents import file_name, first_screen, markdown
from dialogd.views.documents import plan_facts as facts_of
from dialogd.views.plan import Plan, Synthesis, has_spoken
from dialogd.views.words import METHODS

SYNTHESIZE = "--synthesize"
ANYBODY = "*"  # what stands for `--synthesize` without an agent
EDITORS = ("sensible-editor", "editor", "nano", "vim", "vi")


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
    out: Annotated[Text, option("DIR", "Write it there, as Markdown and JSON; `-` prints the whole of it.")] = None,
    edit: Annotated[
        bool, typer.Option("--edit", help="Open a copy of your own, kept beside it, in $VISUAL or $EDITOR.")
    ] = False,
    synthesize: Annotated[Text, option("[AGENT]", "Let a model write a unified plan, in one call.")] = None,
    backend: Annotated[Text, option("NAME[:MODEL]", "Which model that is. Default: the agent's own.")] = None,
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
    if backend is not None and synthesize is None:
        raise BadInput("--backend is for --synthesize", fix="add --synthesize, or leave --backend out")
    if edit and out == "-":
        raise BadInput("what is printed cannot be edited", fix="leave --out out, or name a folder: --out DIR --edit")
    drawn = Plan(dialog, str(real(settings.file)))
    if synthesize is not None:
        drawn = replace(drawn, synthesis=_synthesis(settings, drawn, synthesize, backend))
    folder, is_whole = Path.cwd() / Path(out).expanduser() if out else _place(settings), out == "-"
    if edit:
        _edit(drawn, folder, json=json)
        return
    if (out and not is_whole) or (synthesize is not None and not out):  # what was paid for is kept
        page, facts = documents.write(drawn, folder, datetime.now(UTC))
        if out:
            options.answer({"markdown": str(page), "json": str(facts)}, [str(page), str(facts)], json=json)
            return
        remark(f"written to {page}")
    if json or is_whole:
        show(plain(as_json(facts_of(drawn)) if json else markdown(drawn).removesuffix("\n")))
    elif sys.stdout.isatty():
        options.write(options.markdown(plain(first_screen(drawn))))
        remark("\nthe whole of it: dialogd plan --out -; a copy to work on: dialogd plan --edit")
    else:
        show(plain(first_screen(drawn)))


def _edit(drawn: Plan, folder: Path, *, json: bool) -> None:
    """Open the person's own copy of the plan in their editor. Raises `NotInstalled` without one, `DialogdError`."""
    usual, words = next(filter(None, map(shutil.which, EDITORS)), ""), list[str]()
    with suppress(ValueError):  # a quotation mark is open
        words = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or usual)
    if not words:
        raise NotInstalled("no editor was found", fix="name one: export EDITOR=nano")
    own = documents.to_edit(drawn, folder, datetime.now(UTC))
    before = own.read_bytes()
    try:
        code = subprocess.run([*words, str(own)], check=False).returncode
    except OSError as error:
        what = f"{words[0]} cannot be run: {why(error)}"
        raise NotInstalled(what, fix="name an editor: export EDITOR=nano") from None
    if code:
        raise DialogdError(f"{words[0]} ended with code {code}", fix=f"your plan is kept: {own}")
    is_changed = own.is_file() and own.read_bytes() != before
    options.answer({"markdown": str(own), "changed": is_changed}, [str(own)], json=json)


def _silent(settings: Settings, dialog: Dialog) -> Refused:
    """Why there is no plan: no agent has spoken, or only agents that the header does not name."""
    names = dict.fromkeys(line(entry.name) for entry in dialog.entries[1:] if entry.is_turn and entry.by == USER)
    strangers = [name for name in names if name not in (line(dialog.entries[0].name), "User", "")]
    if not strangers:
        return Refused(f"no agent has spoken in {settings.file}", fix="a plan needs a reply: see dialogd status")
    agents = ", ".join(f"{agent.id} ({agent.name})" for agent in dialog.header.agents)
    seats = ", ".join(f"{chr(ord('A') + number)} = {name}" for number, name in enumerate(strangers[:26]))
    return Refused(
        f"no agent has spoken in {settings.file}: its turns are by {', '.join(strangers)}, its agents are {agents}",
        fix=f"where they are agents, say so in its header: **Agents:** {seats}",
    )


def _synthesis(settings: Settings, drawn: Plan, agent: str, backend: str | None) -> Synthesis:
    """What the agent's model writes: the one that is named, its own, or the settings'. Raises `BadInput`."""
    from dialogd.agent.player import player, prepare

    agents = drawn.dialog.header.agents
    me = next((a for a in agents if agent == ANYBODY or a.id.casefold() == agent.casefold()), None)
    if me is None:
        raise BadInput(f"this dialog has no agent {agent!r}", fix=f"name one of: {', '.join(a.id for a in agents)}")
    cast = saved_cast(StateDir(settings.state_dir), settings.file)
    seats = read_cast(None, [f"{me.id}={backend}"]) if backend else ()
    if cast is not None and cast.dialog == drawn.dialog.id and not seats:
        seats = tuple(seat for seat in cast.seats if seat.id == me.id)
    seat = seats[0] if seats else Seat(me.id)
    given = {name: getattr(seat, name) or None for name in ("backend", "model", "command", "project")}
    own = options.settings_for(str(settings.file), id=me.id, **given)
    plays = player(own, drawn.dialog, StateDir(own.state_dir), own.file)
    remark(f"{me.id}: {plays.remarks[0]}; one call")

    async def call() -> Synthesis:
        try:
            await prepare(plays, drawn.dialog)
            one = Call(plays.backend, own.retry_wait, tuple(plays.behavior.secrets))
            return await documents.synthesize(one, drawn, me, own.file)
        finally:
            await plays.backend.close()

    return asyncio.run(call())


# -- What an end leaves: its plan, and its copy in the archive ---------------------------------------------------------


def _place(settings: Settings) -> Path:
    """Where plans of this file go."""
    return documents.place(settings.file, StateDir(settings.state_dir), settings.plan)


def leave_plan(settings: Settings, dialog: Dialog, say: Callable[[str], None] = remark) -> tuple[Path, Path] | None:
    """Leave the plan of a dialog that has ended, where one is wanted, as Markdown and as JSON; gives their paths.

    A failure is only said.
    """
    if settings.plan and dialog.state.outcome is not None:
        with _remarking("no plan was left", say):
            return documents.keep(dialog, settings.file, _place(settings), datetime.now(UTC))
    return None


def disown(settings: Settings, dialog: Dialog) -> None:
    """Mark the plan of a rejected result as rejected; a failure is only reported."""
    with _remarking("the plan of the rejected result stays as it is"):
        if (page := documents.disown(dialog, settings.file, _place(settings))) is not None:
            remark(f"note: the plan of that result says so now: {page}")


def keep_ended(settings: Settings, dialog: Dialog) -> None:
    """Archive a dialog that has ended, or whose result was rejected; a failure is only reported."""
    if dialog.state.outcome is not None or dialog.state.rejected:
        with _remarking("the dialog was not archived"):
            keep(dialog, settings.file, StateDir(settings.state_dir))


@contextmanager
def _remarking(what: str, say: Callable[[str], None] = remark) -> Iterator[None]:
    """Report what did not work, and continue."""
    try:
        yield
    except DialogdError as error:
        say(f"note: {what}: {error}; {error.fix}")
    except OSError as error:
        say(f"note: {what}: {error}")


# -- `dialogd export` -------------------------------------------------------------------------------------------------

To = Annotated[str, option("FORMAT", "md, html, pdf or json.")]
Out = Annotated[Text, option("PATH", "Where to; `-` is standard output. Default: TOPIC-DIALOG.FORMAT here.")]
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
    settings, _, dialog = options.opened(path or file)
    target = None
    if out != "-":
        target = Path.cwd() / (Path(out).expanduser() if out else file_name(dialog, to))
        target = target / file_name(dialog, to) if target.is_dir() else target
        if target.exists() and target.samefile(settings.file):
            raise BadInput(f"{target} is the dialog itself", fix="name another file with --out")
        fresh(target, "name another file with --out", force=force)
    made = exported(dialog, to, attachments=attachments_of(settings.file))
    if target is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(made)
        sys.stdout.buffer.flush()
        return
    save(made, target)
    options.answer({"file": str(target), "to": to, "bytes": len(made)}, [str(target)], json=json)


def fresh(target: Path, otherwise: str, *, force: bool) -> None:
    """Raise `BadInput` where a file is there already that may not be written over."""
    if (target.exists() or target.is_symlink()) and not force:
        raise BadInput(f"{target} is there already", fix=f"{otherwise}, or write over it with --force")


def save(made: bytes, target: Path) -> None:
    """Write the file. Raises `StorageError`."""
    with writing(target):
        write_over(made, target)


# -- `dialogd status --cost` ------------------------------------------------------------------------------------------


def show_cost(settings: Settings, *, json: bool) -> None:
    """Show what each agent has spent, and what is left. What nobody knows is called unknown."""
    log = options.log_of(settings)
    dialog = options.dialog_at(log)
    state = dialog.state
    names = {agent.id: agent.name for agent in dialog.everybody}
    names |= {who: who for who in state.spent if who not in names}
    bills = {who: [from_record(record) for record in log.journals.of(who).owed()] for who in names}
    loose = {who: reduce(Bill.plus, found) for who, found in bills.items() if found}  # calls that brought no entry
    agents, rows = [], [("", "turns", "tokens in", "tokens out", "dollars")]
    for who in (*names, ""):
        spent = state.spent.get(who, Spent()) if who else total(state.spent)
        turns = sum(entry.by == who if who else entry.by in names for entry in dialog.turns)
        counted = not (spent.uncounted and not spent.tokens)
        agents.append({
            **({"id": who, "name": names[who]} if who else {}), "turns": turns,
            "tokens_in": spent.tokens_in if counted else None, "tokens_out": spent.tokens_out if counted else None,
            "usd": None if spent.entries and spent.unknown == spent.entries else spent.usd,
            "exact": spent.exact and not spent.unknown, "entries": spent.entries,
            "entries_without_price": spent.unknown, "entries_without_tokens": spent.uncounted,
        })  # fmt: skip
        tokens = [f"{number:,}" if counted else "unknown" for number in (spent.tokens_in, spent.tokens_out)]
        partly = f" ({spent.unknown} of {spent.entries} entries unknown)" if 0 < spent.unknown < spent.entries else ""
        rows.append(
            (f"{who}  {names[who]}" if who else "in all", str(turns), tokens[0], tokens[1], in_dollars(spent) + partly)
        )
    lines = [f"{settings.file} (dialog {dialog.id})", *(f"  {row}" for row in table(rows))]
    if budget := budget_standing(state):
        lines.append(f"  budget: {budget} ({used(state) or 0.0:.0%})")
    lines += [f"  not in the file: {who} {bill.words}, for calls that brought no entry" for who, bill in loose.items()]
    facts = {
        "file": str(settings.file), "dialog": dialog.id, "agents": agents[:-1], "total": agents[-1],
        "budget": {"usd": state.limits.budget, "tokens": state.limits.tokens}, "used": used(state),
        "not_in_file": {who: {"calls": bill.calls, "usd": bill.known_usd} for who, bill in loose.items()},
    }  # fmt: skip
    options.answer(facts, lines, json=json)


# -- What a new dialog may cost ---------------------------------------------------------------------------------------

RULES = 1_500  # tokens of a prompt that stand in no file: who an agent is, the marks, what is asked of it
SAID = 1_000  # tokens by which a turn lengthens the prompts after it: over 400 words and their marks
PROGRAM = 12_000  # tokens of a coding agent's own prompt: instructions and tools
CALLS = 3  # of the model in a coding agent's turn that looks something up
MOST_OUT = 8_192  # tokens of a reply, where nobody says


def prices_of(seats: Sequence[Seat], choices: Mapping[str, Choice], settings: Settings) -> dict[str, Price | None]:
    """The prices of the agents whose tokens cost money, by id; None for an unknown price."""
    agents, found = StateDir(settings.state_dir).agents, dict[str, Price | None]()
    for seat in seats:
        choice, price = choices[seat.id], seat.price or settings.price
        if choice.is_metered or price:
            found[seat.id] = price_for(choice, seat.model or settings.model, price, agents=agents)
    return found


def costs_of(
    opening: Opening, seats: Sequence[Seat], choices: Mapping[str, Choice], settings: Settings
) -> dict[str, float | None]:
    """What each agent whose tokens cost money may spend at most, about, in US dollars; None where nobody knows."""
    start, out = RULES + tokens_of(compose(opening)), settings.max_tokens or MOST_OUT

    def most(who: str, price: Price) -> float:
        # Each call of a coding agent has a prompt of its own, and how many a turn takes is the agent's to say.
        begun, calls = (start + PROGRAM, CALLS) if choices[who].backend in CODING else (start, 1)

        def cost(tokens_in: int, tokens_out: int) -> float:
            return price.usd(tokens_in, 0) * calls + price.usd(0, tokens_out)

        return estimate(opening.max_turns, len(opening.agents), cost, start=begun, said=min(SAID, out), out=out)

    prices = prices_of(seats, choices, settings)
    return {who: None if price is None else most(who, price) for who, price in prices.items()}


def estimate_of(opening: Opening, seats: Sequence[Seat], choices: Mapping[str, Choice], settings: Settings) -> str:
    """What a new dialog may cost, in a line; "" when it costs nothing. Raises `BadInput` for a price."""
    costs = costs_of(opening, seats, choices, settings)
    known = {who: usd for who, usd in costs.items() if usd is not None}
    strangers = " and ".join(who for who, usd in costs.items() if usd is None)
    if not any(known.values()):
        return f"estimate: unknown, for nobody knows the price of {strangers}" if strangers else ""
    parts = ", ".join(f"{who} {_cents(usd)}" for who, usd in known.items())
    is_open = any(choices[who].backend in CODING for who in known)  # one may call its model as often as it likes
    most = f"{'' if is_open else 'at most '}about {_cents(sum(known.values()))}"
    text = f"estimate: {most} for {opening.max_turns} turns ({parts})"
    ends = f"; the budget ends it at {dollars(cap)}" if 0 < (cap := opening.budget or 0) < sum(known.values()) else ""
    return text + (f"; unknown: {strangers}" if strangers else "") + ends


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
UNSIGNED = "shared, and no signatures lie beside it: who wrote what cannot be told here"
SIGNED = "since it was shared, only who holds a seat's or a person's key wrote for them; before, its sharer vouches"
TEXT_LINES = 8  # of the agreed text that are shown

Kept = Annotated[Text, option("F", "Compare with a certificate kept elsewhere: a plan's JSON.")]
Details = Annotated[bool, typer.Option("--details", help="Also each entry, the seals, and who signed what.")]


def verify(
    path: options.FileArgument = None,
    file: options.FileOption = None,
    certificate: Kept = None,
    details: Details = False,
    json: options.JsonOption = False,
) -> None:
    """Check that no entry was altered after it was written.

    Each entry is held against its recorded hash, the entry before it, and the journals; and what its daemon wrote is
    worked out anew from the entries before it; in a shared dialog each is held against its signature too. The verdict
    comes first, then whatever was changed since. Exit code 0 when all is sound or written by hand, 1 otherwise.
    """
    settings = options.settings_for(path or file)
    if not settings.file.exists():
        raise BadInput(
            f"there is no file {settings.file}",
            fix=f"name the dialog file: dialogd verify FILE; or begin a dialog: {new_command(settings.file)}",
        )
    kept = _kept(Path(certificate)) if certificate is not None else None
    found = _Verified(options.log_of(settings), kept)
    options.answer(found.facts(), found.report(details=details), json=json)
    raise typer.Exit(1 if found.wrong else 0)


class _Verified:
    """What was found of a dialog file whose journals are at hand; `kept` is a certificate to compare it with."""

    def __init__(self, log: LogFile, kept: Mapping[str, Any] | None) -> None:
        self.file, journals = log.path, log.journals
        written = journals.turns()  # before the file: what is written meanwhile stands there, and is not missed
        dialog = self.dialog = log.read(full=True)
        self.is_shared = dialog.state.hand.keys is not None
        is_signed = self.is_shared and (log.attachments / "signatures").is_file()
        signatures = self.signatures = _Signatures(log, dialog) if is_signed else None
        signed = {entry.chain for entry in dialog.entries[: len(signatures.keys)]} if signatures else set[str]()
        present, remembered = {entry.chain for entry in dialog.entries}, journals.remembered() | signed
        unknown = {entry.chain for entry in dialog.entries if entry.condition is Condition.SOUND} - remembered
        elsewhere = journals.elsewhere(unknown) if unknown else None
        self.moved = _moved(elsewhere, self.file) if elsewhere else ""
        self.problems, self.made = [*_problems(dialog, remembered)], certify(dialog)
        if signatures is not None:
            for at in range(first := len(signatures.keys), len(self.problems)):
                why = signatures.problem if at == first else "it stands behind one that is not signed"
                self.problems[at] = ("not signed", f"{self.problems[at][1]}; not signed: {line(why)}")
        self.missing = [_heading(text) for _, chain, text in written if chain not in present]
        self.missing += signatures.missing if signatures else []
        self.journals, self.lost, self.odd = journals.folder, taken_out(log.lost(dialog), self.file), journals.odd()
        self.aside = [str(path) for path in sorted(journals.folder.glob("aside/*/dropped.md"))]
        self.since, self.seals, self.faults = changes(dialog), answers(dialog), faults(self.file.read_bytes())
        self.compared = differences(kept, dialog) if kept is not None else None
        bad = sum(bool(problem) for problem, _ in self.problems)
        is_changed = any(one.is_harm for one in (*self.since, *(self.compared or ())))
        is_changed |= any(seal.is_harm for seal in self.seals)
        self.wrong = [
            *([many(bad, "problem")] if bad else []), *([f"{len(self.missing)} missing"] if self.missing else []),
            *([many(len(self.faults), "fault")] if self.faults else []),
            *(["what was agreed, sealed or kept was changed since"] if is_changed else []),
            *(["its signatures are gone"] if signatures is None and log.mirror is not None else []),
        ]  # fmt: skip

    def report(self, *, details: bool) -> Iterator[str]:
        """The verdict, then what was changed since, in lines."""
        dialog, made, signatures = self.dialog, self.made, self.signatures
        count, agreed = len(dialog.entries), "Nothing was decided"
        if made is not None:
            how = METHODS.get(made.method, line(made.method))
            agreed = f"Decided: {line(made.ref) or 'a text'}, {how}"
            agreed = f"Everybody signed {line(made.ref) or 'a text'}" if made.method == "mutual" else agreed
        verdict = f"Not sound: {', '.join(self.wrong)}" if self.wrong else "Sound"
        yield f"{verdict}. {count} entr{'y' if count == 1 else 'ies'}. {agreed}."
        yield from [self.moved] if self.moved else []
        yield from signatures.words if signatures else [UNSIGNED] if self.is_shared else []
        for entry, (problem, words) in zip(dialog.entries, self.problems, strict=True):
            if details or problem or entry.notice:
                notice = f"; {line(entry.notice)}" if entry.notice else ""
                yield f"line {entry.line}: {where(entry.id)}, {line(entry.name)}: {words}{notice}"
        for name in self.missing:
            yield f"missing: {name.removeprefix('## ')}: it was written and is no longer in the file"
        if self.missing:
            yield f"  the journals in {self.journals} keep the text of what is missing"
        elif self.lost:
            yield self.lost
        yield from self.odd
        for kept_at in self.aside if details else ():
            yield f"kept: turns of an earlier dialog in this file, or what was taken out of this one: {kept_at}"
        for seal in self.seals:
            if details or seal.is_harm:
                could_read = "; its tools could have read files" if seal.could_read else ""
                yield f"sealed answer of {line(seal.agent)} to {where(seal.re)}: {seal.status}: {seal.why}{could_read}"
        if made is not None and details:
            yield from _certified(made)
        yield from (f"since then: {change.words}" for change in self.since)
        if self.compared is not None:
            yield "compared with the certificate that was kept: " + ("it differs" if self.compared else "all the same")
            yield from ("  " + change.words.replace("\n", "\n    ") for change in self.compared)
        yield from (line(str(fault)) for fault in self.faults)
        records = SIGNED if signatures is not None and not signatures.problem else RECORDS
        yield records if details else "more: --details shows each entry, the seals, and who signed what"

    def facts(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            "file": str(self.file),
            "sound": not self.wrong,
            "entries": [
                {"id": e.id, "number": e.number, "by": e.by, "line": e.line, "condition": e.condition.value,
                 "linked": e.linked, "problem": problem}
                for e, (problem, _) in zip(self.dialog.entries, self.problems, strict=True)
            ],
            "moved": self.moved, "missing": self.missing, "set_aside": self.aside, "journals": self.odd,
            "certificate": self.made.as_json() if self.made else None,
            "changes": [change.words for change in self.since],
            "compared": None if self.compared is None else [change.words for change in self.compared],
            "seals": [asdict(seal) for seal in self.seals],
            "faults": [{"line": fault.line, "words": fault.words} for fault in self.faults],
            "signed": self.signatures.as_json() if self.signatures else None,
        }  # fmt: skip


class _Signatures:
    """Which key signed each entry of a shared dialog, up to the first that does not hold, and why not."""

    def __init__(self, log: LogFile, dialog: Dialog) -> None:
        from dialogd.store.engine import Row
        from dialogd.store.mirror import SIGNATURES, checked_rows, signed_rows

        # Under the lock where this machine writes to it: a signature is there a moment before its bytes are.
        with log.standing_still() if log.mirror is not None else nullcontext(log.path.read_bytes()) as data:
            signed = signed_rows((log.attachments / SIGNATURES).read_bytes())
        pairs = pairwise(one for one in signed if one.end <= dialog.size)
        rows = (Row(a.end, data[a.end : b.end], b.sha, b.seat, b.signature) for a, b in pairs)
        self.dialog, self.problem, self.sha = dialog, "", ""  # `sha` of all that is signed
        self.keys: list[tuple[str, str]] = []  # who, and the key
        # What was signed and does not stand in the file.
        lost = (one for one in signed if one.end > len(data))
        self.missing = [f"an entry signed by {one.seat}, up to byte {one.end:,}" for one in lost]
        for row, after, (seat, name, key), self.problem in checked_rows(rows, None, sha256()):
            if after is not None and not self.problem:
                self.keys += [(name or seat, key)] * (len(after.entries) - len(self.keys))
                self.sha = row.sha
        if not self.problem and len(self.keys) < len(dialog.entries):
            self.problem = "nobody's signature covers it"

    def as_json(self) -> dict[str, Any]:
        found: dict[tuple[str, str], list[str]] = {}
        for entry, whose in zip(self.dialog.entries, self.keys, strict=False):
            found.setdefault(whose, []).append(entry.id)
        by = [{"who": who, "key": key, "entries": ids} for (who, key), ids in found.items()]
        return {"by": by, "problem": self.problem, "sha256": self.sha, "words": spoken(self.sha) if self.sha else ""}

    @property
    def words(self) -> Iterator[str]:
        facts = self.as_json()
        for one in facts["by"]:
            ids = one["entries"]
            span = where(ids[0]) if len(ids) == 1 else f"from {where(ids[0])} to {where(ids[-1])}"
            yield f"signed by {line(one['who'])}: {len(ids)} entr{'y' if len(ids) == 1 else 'ies'}, {span}"
        yield f"what is signed, to be compared by voice: {facts['words'] or 'nothing'}"


def _moved(folder: Path, file: Path) -> str:
    """That the journals in `folder` belong to where the file was, and the way back."""
    if (old := file_of(folder)) is None:
        return f"moved or copied: it was not held against its journals, which are in {folder}"
    what, back = ("copied", "dialogd verify") if old.exists() else ("moved", f"mv {shlex.quote(str(file))}")
    words = f"{what}: it was not held against its journals, which belong to {old}; to do so: {back}"
    return line(f"{words} {shlex.quote(str(old))}")


def _kept(path: Path) -> Mapping[str, Any]:
    """A certificate from a plan's JSON, or from a file of its own. Raises `BadInput`."""
    try:
        facts = jsons.loads(path.read_text(encoding="utf-8"))
        found = facts.get("certificate", facts) if isinstance(facts, dict) else facts
        what = "holds no certificate: text, signers and links are not in it"
        if isinstance(found, dict) and {"text", "signers", "links"} <= found.keys():
            return found
        if found is None:
            what = "holds no certificate: nothing was decided when it was written"
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
    except ValueError:
        what = "holds no JSON"
    fix = "name a collaboration_plan JSON of a dialog that was decided: --certificate PLAN.json"
    raise BadInput(f"{path} {what}", fix=fix)


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
