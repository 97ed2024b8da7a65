"""`dialogd build` and `dialogd tasks`: from a goal, or an approved plan, to reviewed commits by the person's word."""

from __future__ import annotations

import asyncio
import json as jsons
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from dialogd import person
from dialogd.backends import WRITING, auto, kind_of, writers
from dialogd.backends.command import BWRAP, missing
from dialogd.backends.rehearsal import script
from dialogd.backends.seats import Cast, Seat, saved_cast
from dialogd.cli import options
from dialogd.cli.create import SEATS, Asked, Seats, Start, former_cast, new_cast, takes_options
from dialogd.cli.launch import Held, interruptible, perform
from dialogd.cli.options import daemons, done, line, option, plain, remark, show, wrapped
from dialogd.cli.result import fresh, save
from dialogd.cli.status import ended, next_step, onwards
from dialogd.config import Settings, command_on, dotenv, file_flag
from dialogd.errors import BadInput, DialogdError, NotADialog, NotInstalled, Refused
from dialogd.protocol import build as tasks_of
from dialogd.protocol import lifecycle
from dialogd.protocol.build import APPROVED, MERGED, PROPOSED, GateResult, Task, listed
from dialogd.protocol.certificate import certify
from dialogd.protocol.model import USER
from dialogd.protocol.rules import Build
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import budget_line, in_words, many, one_line
from dialogd.store.disk import StateDir
from dialogd.tasks.approvals import Judge, Judged, approvals, bundled, fates, judge_here, opened
from dialogd.tasks.gate import NOT_STARTED, Gate, how_it_ended, last_line, readable
from dialogd.tasks.git import Git, checkout_at, new_repository, push, remotes, shown
from dialogd.tasks.kit import toolchains, trial, usual
from dialogd.tasks.worktrees import Worktrees, base_of
from dialogd.templates import ContextFile, Opening, template
from dialogd.views.builds import events, look_into, why_of

if TYPE_CHECKING:
    from dialogd.memory import DialogRow, Memory

TEMPLATE = "build"
EXPECTED = 3  # tasks, where nobody says how many


class Shorthand(TyperGroup):
    """A group in which what begins with none of its commands is meant for the first of them, whose help is its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command's name before words that name none."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the first command's help, and what else there is."""
        first = next(iter(self.commands.values()))
        first.format_help(type(ctx)(first, parent=ctx.parent, info_name=ctx.info_name), formatter)
        self.format_commands(ctx, formatter)


build = typer.Typer(cls=Shorthand, help="Have a goal carried out in a repository, task by task.", rich_markup_mode=None)
tasks = typer.Typer(
    cls=Shorthand, help="Show a build's tasks; confirm, change, drop, accept them.", rich_markup_mode=None
)

# -- `dialogd build GOAL` ---------------------------------------------------------------------------------------------

Goal = Annotated[
    str | None, typer.Argument(metavar="GOAL", help="What is to be done, in a line; with --continue: the file.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: you have seen what will be done.")]


@dataclass(frozen=True, slots=True)
class Job:
    """A build, beside what every dialog is asked for with."""

    repo: Annotated[str, option("DIR", "Your repository. Default: the folder that you are in.")] = "."
    gate: Annotated[str, option("CMD", "What tests a task, such as 'make test'. Default: nothing.")] = ""
    gate_sees: Annotated[
        list[str] | None, option("DIR", "A folder that the gate can read, as .venv or of a toolchain; repeat it.")
    ] = None
    setup: Annotated[str, option("CMD", "What makes what the tests need, as 'npm ci'; once for each task.")] = ""
    setup_network: Annotated[bool, typer.Option("--setup-network", help="The setup may use the network.")] = False
    decided: Annotated[
        str | None, option("DIALOG|PLAN", "Carry out what this dialog decided and you approved.", "--from")
    ] = None
    iterations: Annotated[int, option("N", "Attempts that a task has. Default: 3.", least=1)] = 3
    pass_score: Annotated[int, option("N", "Points that a review needs. Default: 80.", least=0, most=100)] = 80
    cycles: Annotated[int, option("N", "Improvements after the tasks. Default: 1.", least=0)] = 1
    parallel: Annotated[int, option("N", "Tech leads that work side by side. Default: 1.", least=1, most=8)] = 1
    expected: Annotated[int, option("N", "How many tasks to expect. Default: 3.", "--tasks", least=1)] = EXPECTED
    gate_timeout: Annotated[str, option("TIME", "How long the gate may take. Default: 15 minutes.")] = ""
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Try one: scripted agents, in a repository that is made for it.")
    ] = False
    yes: Yes = False

    def wanted(self, goal: str | None, asked: Asked) -> Start:
        """The dialog in which it is carried out. Raises what is in the way, of the goal and in the repository."""
        topic, said, along, source = _goal(goal, self.decided)
        folder = Path.cwd() / Path(self.repo).expanduser()
        base = base_of(folder)
        if base.uncommitted:
            few = ", ".join(base.uncommitted[:5]) + (" …" if len(base.uncommitted) > 5 else "")
            remark(f"note: not committed, and no part of it: {few}")
        given = {"gate": self.gate.strip(), "setup": self.setup.strip()}
        commands = {what: command and person.command_in_file(command, what) for what, command in given.items()}
        if self.setup and (lacking := missing()):
            raise BadInput(f"--setup needs the sandbox: {lacking}", fix=f"{BWRAP}; or leave out --setup")
        if self.setup_network and not self.setup:
            raise BadInput("--setup-network is for a setup", fix="name its command: --setup 'npm ci'")
        limit = int(options.duration(self.gate_timeout, "--gate-timeout")) if self.gate_timeout else 900
        rules: dict[str, str | int | bool] = {
            "repo": str(checkout_at(folder).path), "branch": base.branch, "base": base.commit, "source": source,
            **commands, "gate_timeout": max(limit, 1), "setup_network": self.setup_network,
            "iterations": self.iterations, "pass_score": self.pass_score, "cycles": self.cycles,
        }  # fmt: skip
        own = asdict(asked) | {"topic": topic, "question": said or asked.question}
        return Start(**own, template=TEMPLATE, build=rules, expected=self.expected, along=along)

    @property
    def toolchains(self) -> list[Path]:
        """The folders that the gate is to read."""
        return [Path.cwd() / Path(folder).expanduser() for folder in self.gate_sees or ()]


@build.command("run", hidden=True)
@takes_options
def run(ctx: typer.Context, goal: Goal = None, *, job: Job, asked: Asked, held: Held) -> None:
    """Have a goal carried out in a repository, task by task: planned, built, tested, reviewed.

    A moderator splits it into tasks, you confirm them, a tech lead carries each out in a worktree of its own, the gate
    tests it, the moderator reviews it with a score. Your checkout is not touched; nothing is pushed or merged by
    itself. It says what it will be, and asks, before it starts. The moderator is agent M and the first of --agents, the
    tech lead is L. After a stop: dialogd build --continue
    """
    if job.rehearse:
        if names := _given(ctx, REHEARSAL_TAKES):
            what = f"{names}: a rehearsal brings goal, repository and agents along"
            raise BadInput(what, fix="leave it out, or leave --rehearse out")
        goal, (job, asked, held) = REHEARSED_GOAL, _rehearsed(job, asked, held)
    lasts, settings = held.lasts, held.settings(goal)
    if held.go_on:
        cast = _gone_on(ctx, job, asked, held, settings)
        if cast is None:
            return
    else:
        job = _as_usual(job)
        wanted = job.wanted(goal, asked)

        def agree(opening: Opening) -> None:
            rules = opening.rules.build
            assert rules is not None
            trees = Worktrees(Path(rules.repo), build=opening.dialog)
            gate = Gate(rules, trees, settings.file, settings.state_dir, job.toolchains)
            tried = _tried(gate, rules.base, yes=job.yes)
            for row in _about_rehearsal(job, held):
                remark(row)
            for row in chain(_will_be(opening, job, asked), tried):
                remark(wrapped(row, " " * 8) if sys.stderr.isatty() else row)
            ask("Start it?", yes=job.yes)

        try:
            settings, cast = new_cast(
                settings,
                wanted,
                held.pace or "",
                replace=held.replace,
                prices=held.price or (),
                agree=agree,
                led=lambda seats: _with_leads(seats, settings, job.parallel),
                equipped=lambda seats: _equipped(seats, job, wanted, settings),
            )
        except (DialogdError, KeyboardInterrupt):
            if job.rehearse:
                shutil.rmtree(Path(job.repo).parent)
            raise
    with interruptible() as interrupt:
        code = perform(settings, cast, interrupt, is_new=not held.go_on, stay=lasts, opens=held.opens)
    for row in _about_rehearsal(job, held):
        remark(row)
    raise typer.Exit(code)


REHEARSED_GOAL = "Read ages safely, and print them"
REHEARSAL_TAKES = ("rehearse", "yes", "unattended", "gate_sees", "file", "pace", "linger", "opens")


def _rehearsed(job: Job, asked: Asked, held: Held) -> tuple[Job, Asked, Held]:
    """What was asked for, with everything that a rehearsal brings along, in a temporary folder. Raises `DialogdError`.

    Without a sandbox no gate runs what the agents wrote: every tree is untested. Turn 1 says what it is and where it
    lies, for whoever sees its page alone.
    """
    folder = Path(tempfile.mkdtemp(prefix="dialogd-rehearsal-"))
    repo, gate = folder / "ages", "" if missing() else "python3 -m unittest -q"
    repo.mkdir()
    try:
        new_repository(repo, script()["repository"])
    except DialogdError:
        shutil.rmtree(folder)
        raise
    job = replace(job, repo=str(repo), gate=gate, expected=len(script()["tasks"]), cycles=0)
    held = replace(held, file=str(Path.cwd() / Path(held.file or folder / "dialog.md").expanduser()), plan=str(folder))
    question = "\n\n".join((f"{REHEARSED_GOAL}.", *_about_rehearsal(job, held)))
    return job, replace(asked, agents="rehearsal:build,rehearsal:build", question=question), held


def _about_rehearsal(job: Job, held: Held) -> Iterator[str]:
    """What is said of a rehearsal before it starts, and once it has ended; of any other build nothing."""
    if job.rehearse:
        folder, file = Path(job.repo).parent, Path(held.file or "")
        places = [str(folder), *([str(file)] if file.parent != folder else [])]
        yield "REHEARSAL: no model is asked and nothing is paid; agents say and write what was scripted"
        yield (
            f"repository, worktrees, dialog and plan lie in {' and '.join(places)}; "
            f"remove them with: rm -r {shlex.join(places)}"
        )
        if not job.gate:
            yield f"note: {missing()}: it goes on untested"


LEADS = ("codex", "claude-code", "gemini", "opencode")
"""What works where nobody says who; the moderator is often a Claude."""


def _of_build(seats: Seats) -> tuple[Seat, Seat]:
    """Who works, of several the first, and who moderates."""
    rules, by = template(TEMPLATE).rules([seat.id for seat in seats]).build, {seat.id: seat for seat in seats}
    assert rules is not None
    return by[rules.lead], by[rules.moderator]


def _with_leads(seats: Seats, settings: Settings, count: int) -> Seats:
    """The seats with so many leads, which are alike: a coding agent that is here, where nobody says who is to work.

    Of two it is one of another family than the moderator's, where that is known.
    """
    seats = _with_a_lead(seats, settings)
    free, like = (who for who in SEATS if who not in [seat.id for seat in seats]), _of_build(seats)[0]
    more = [replace(like, id=who, title=f"{like.title} {number}") for number, who in zip(range(2, count + 1), free)]  # noqa: B905
    return (*seats, *more)


def _with_a_lead(seats: Seats, settings: Settings) -> Seats:
    lead, _ = _of_build(seats)
    if lead.backend or settings.source("backend") != "default" or settings.command:
        return seats
    found = auto.survey(LEADS, os.environ, dotenv(Path.cwd()), settings.base_url)
    others = {auto.family_of(seat.backend) for seat in seats if seat is not lead}
    here = [name for name in LEADS if found[name].here and not writers()[name]]
    chosen = next(iter(sorted(here, key=lambda name: auto.family_of(name) in others)), "")
    return tuple(replace(seat, backend=chosen) if seat is lead else seat for seat in seats)


def _equipped(seats: Seats, job: Job, wanted: Start, settings: Settings) -> Seats:
    """The seats with the repository that they may read or work on, and what tests it."""
    lead, moderator = _of_build(seats)
    kind_of(lead.backend)
    why = writers() | ({auto.LAST_RESORT: ""} if job.rehearse else {})
    if lacking := why[kind := lead.backend.partition(":")[0]]:
        able = ", ".join(sorted(name for name in WRITING if not why[name]))
        raise BadInput(
            f"{lead.backend} cannot work as {lead.id} ({lead.title}): {lacking}",
            fix=f"name another: --agent {lead.id}=BACKEND, one of {able}{f'; or {BWRAP}' if kind in WRITING else ''}",
        )
    if moderator.backend.partition(":")[0] == auto.LAST_RESORT and not job.rehearse:
        raise BadInput(
            f"{moderator.backend} cannot work as {moderator.id} ({moderator.title}): its lines plan nothing",
            fix=f"name another: --agent {moderator.id}=BACKEND",
        )
    repo = str(wanted.build["repo"])
    sees = readable(job.toolchains, settings.file, settings.state_dir, Worktrees(Path(repo)))
    rules = wanted.build
    work = replace(
        lead, gate=str(rules["gate"]), gate_sees=tuple(map(str, sees)), setup=str(rules["setup"]),
        setup_network=bool(rules["setup_network"]), repo=repo,
    )  # fmt: skip
    return tuple(
        replace(seat, repo=repo) if seat is moderator else replace(work, id=seat.id, title=seat.title) for seat in seats
    )


# What `--continue` takes beside the file: what it says, and what daemons take that it starts.
WORDS = ("go_on", "file", "budget", "unattended", "yes")
STARTS = ("gate_sees", "pace", "plan", "linger", "opens")


def _given(ctx: typer.Context, taken: Collection[str | None]) -> str:
    """What was given with the command beside what it takes, as people type it."""
    return ", ".join(
        "GOAL" if one.name == "goal" else one.opts[0]
        for one in ctx.command.params
        if one.name and one.name not in taken
        and getattr(ctx.get_parameter_source(one.name), "name", "") == "COMMANDLINE"
    )  # fmt: skip


def _meant(settings: Settings, dialog: Dialog) -> Build:
    """The rules of the build that a command is about.

    Raises `Refused` for a dialog that is none; and in another repository, where the command names no file.
    """
    rules, here = person.rules_of_build(dialog), Path.cwd()
    inside = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
    if settings.source("file").startswith("flag") or inside is None or inside.is_relative_to(rules.repo):
        return rules
    if not inside.is_relative_to(Worktrees(Path(rules.repo)).root):
        raise Refused(
            f"{settings.file} is the build in {rules.repo}, and you are in {inside}",
            fix=f"go to {rules.repo}; or name the file of the build that you mean, with --file (dialogd list --json)",
        )
    return rules


def _gone_on(ctx: typer.Context, job: Job, asked: Asked, held: Held, settings: Settings) -> Cast | None:
    """Have a build go on; its agents, None where their daemons run. Raises `BadInput` for what it does not take."""
    log = options.log_of(settings)
    rules = _meant(settings, options.dialog_at(log))
    runs = bool(daemons(settings, settings.file))
    names = _given(ctx, [*WORDS, *(() if runs else STARTS), *(() if held.file else ("goal",))])
    if runs and _given(ctx, [one.name for one in ctx.command.params if one.name not in STARTS]):
        raise BadInput(f"its daemons run, and take no {names}", fix="end them first: dialogd stop")
    if names:
        what = f"{names}: a build that goes on keeps what it began with"
        raise BadInput(what, fix="leave it out, or begin another build with it")
    trees = Worktrees(Path(rules.repo)) if job.gate_sees else None
    sees = tuple(map(str, readable(job.toolchains, settings.file, settings.state_dir, trees))) if trees else ()
    _offer_to_clean(options.dialog_at(log), settings.file)
    after = person.carry_on(log, asked.budget or "")
    if asked.unattended:
        after = person.leave(log, USER)
    if runs:
        done(settings, after, "its daemons run")
        return None
    cast = former_cast(settings, held.pace)
    seats = (replace(seat, gate_sees=sees) if sees and seat.id in rules.leads else seat for seat in cast.seats)
    return replace(cast, seats=tuple(seats))


def _goal(goal: str | None, decided: str | None) -> tuple[str, str, tuple[ContextFile, ...], str]:
    """Topic, question, what goes along, and the id of the dialog that decided it.

    Raises `BadInput`, `Refused` for what nobody has approved.
    """
    if decided is None:
        if not goal or not goal.strip():
            raise BadInput("what is to be built?", fix='name the goal: dialogd build "sort by date" --repo DIR')
        return goal, "", (), ""
    from dialogd.views.documents import first_screen
    from dialogd.views.plan import Plan

    dialog = _source(decided)
    agreed, outcome = certify(dialog), dialog.state.outcome
    if outcome is None or not outcome.is_agreed or agreed is None or not agreed.text.strip():
        how = ended(dialog) if outcome else "it has not ended"
        raise Refused(
            f"dialog {dialog.id} decided nothing that could be carried out: {how}",
            fix='name one that ended in agreement (dialogd list), or say the goal: dialogd build "goal"',
        )
    if not dialog.state.approved:
        what = f"you have not approved what dialog {dialog.id} decided"
        raise Refused(what, fix="read it, and approve it first: dialogd approve --file F")
    page = first_screen(Plan(dialog, decided))
    before = f"{goal}\n\n" if goal else ""
    said = f"{before}Carry out what dialog {dialog.id} decided:\n\n{agreed.text}"
    plan = ContextFile(f"plan of {dialog.id}", page, len(page.encode()))
    return goal or dialog.header.topic, said, (plan,), dialog.id


def _source(named: str) -> Dialog:
    """The dialog that a file, a plan of it, or an id means. Raises `BadInput`."""
    from dialogd.cli.past import open_memory
    from dialogd.memory import current
    from dialogd.memory.records import read_dialog

    path, fix = Path(named).expanduser(), "name a dialog's file, its plan or its id: dialogd list"
    if not path.exists():
        if "/" in named:
            raise BadInput(f"{named} does not exist", fix=fix)
        return current(open_memory().dialog(named))[1]
    try:
        return read_dialog(path)
    except (OSError, NotADialog) as error:
        try:
            ident = str(jsons.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["dialog"])
        except (OSError, ValueError, KeyError, TypeError):
            raise BadInput(f"{path} is neither a dialog nor the plan of one", fix=fix) from error
        return current(open_memory().dialog(ident))[1]


def _as_usual(job: Job) -> Job:
    """The job with the usual setup and gate of its repository, where it names none and the person says yes."""
    folder, asks = Path.cwd() / Path(job.repo).expanduser(), sys.stdin.isatty() and sys.stderr.isatty() and not job.yes
    new: dict[str, Any] = {}
    sees = [*(job.gate_sees or ())]
    given = {"setup": job.setup or job.gate_sees or missing(), "gate": job.gate}
    for what, (name, command) in usual(folder).items():
        if given[what] or not command:
            continue
        network, more = what == "setup", [one for one in map(str, toolchains(command)) if one not in sees]
        words = [f"--{what}", command, *["--setup-network"] * network, *(f"--gate-sees={one}" for one in more)]
        if not asks:
            remark(f"note: there is {name}, and no {what}; usual is {shlex.join(words)}")
        elif said_yes(f"There is {name}, and no {what}. Take the usual {shlex.join(words)}?"):
            sees += more
            new |= {what: command, **({"setup_network": True} if network else {})}
    return replace(job, **new, gate_sees=sees)


def _will_be(opening: Opening, job: Job, asked: Asked) -> Iterator[str]:
    """What the build will be, before anything is started."""
    rules = opening.rules.build
    assert rules is not None
    work = f"{many(job.expected, 'task')} of up to {many(rules.iterations, 'attempt')}"
    yield f"goal    {one_line(opening.topic, 200)}"
    yield f"repo    {rules.repo}: from {rules.branch} at {rules.base[:12]}; its checkout is not touched"
    if rules.setup:
        net = "with the network" if rules.setup_network else "without network; --setup-network gives it that"
        yield f"setup   {rules.setup}"
        yield f"        once for each task, in a sandbox, {net}"
    yield f"gate    {rules.gate or 'none: nothing is tested, and every approval says so'}"
    if rules.gate and (why := missing()):
        what = "every tree is untested" if asked.unattended else "you are asked for each tree"
        yield f"        no sandbox here, so {what}: {why}"
    elif rules.gate:
        seen = f"only {', '.join(job.gate_sees)}" if job.gate_sees else "nothing: --gate-sees .venv shows it a folder"
        seen = "nothing" if rules.setup and not job.gate_sees else seen
        yield f"        in a sandbox, without network; of your home and your checkout it sees {seen}"
    yield f"turns   at most {opening.max_turns}: {work}, {many(rules.cycles, 'improvement')}, a summary"
    if asked.unattended:
        yield "        more tasks than that get no more turns: --tasks says how many to expect"
    yield f"time    at most {in_words(opening.timeout)} for a turn, {in_words(rules.gate_timeout)} for the gate"
    yield f"budget  {budget_line(opening.budget, opening.tokens) or 'no limit'}"
    yield (
        "person  nobody: tasks are taken as proposed, and dropped where they fail; nothing is merged without your word"
        if asked.unattended
        else "person  you confirm the tasks, and decide where one fails; nothing is merged without your word"
    )


def _tried(gate: Gate, base: str, *, yes: bool) -> Iterator[str]:
    """How setup and gate end on the commit that the work starts from, as they will run on each task.

    Raises `Refused` where the setup fails: no task would be begun.
    """
    rules = gate.rules
    if not (rules.gate or rules.setup) or missing():
        return
    way_out = "; Ctrl-C leaves that out" if sys.stdin.isatty() and not yes else ""
    what = "setup runs, then the gate," if rules.setup and rules.gate else f"{'gate' if rules.gate else 'setup'} runs"
    yield f"tried   the {what} on {base[:12]}, before anything is changed{way_out}"
    try:
        ran = asyncio.run(trial(gate, base, name := f"base-{base[:12]}"))
    except KeyboardInterrupt:
        if yes:
            raise
        yield "        interrupted: how it ends is not known"
        return
    except NotInstalled as error:
        yield f"        it could not start: {line(str(error))}"
        return
    if ran is None:
        yield "        the setup passed"
        return
    if ran.state == "passed":
        yield f"        it passed, in {in_words(ran.seconds)}. {line(last_line(ran))}"
        return
    how = f"could not start: exit code {ran.code}" if ran.code in NOT_STARTED else how_it_ended(ran, rules.gate_timeout)
    how += ": --gate-timeout gives it more" if ran.state == "timeout" else ""
    yield f"        it {how}"
    yield from (f"          {line(row)}" for row in ran.tail.split("\n")[-5:] if row.strip())
    yield f"        its output: {gate.log(name)}"
    yield f"        {_mend(gate, ran)}; or name another (--gate)"


def _mend(gate: Gate, ran: GateResult) -> str:
    """What may help a gate that did not pass."""
    rules, checkout = gate.rules, gate.trees.checkout.path
    found = toolchains(rules.gate) if ran.code in NOT_STARTED else []
    if not rules.setup:
        found += [one for one in (checkout / ".venv", checkout / "node_modules") if one.is_dir()]
    if lacks := next((min(str(one), os.path.relpath(one), key=len) for one in found if one not in gate.sees), ""):
        return f"show it what it lacks (--gate-sees {lacks})"
    if rules.setup:
        return "have the setup make what it lacks (--setup)"
    return f"have what it lacks made (--setup {shlex.quote(usual(checkout)['setup'][1] or 'CMD')})"


NOBODY_TO_ASK = "your word is needed, and nobody can be asked here"


def ask(question: str, *, yes: bool) -> None:
    """The person's word. Raises `Refused` where it is not given, and where nobody can be asked."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(NOBODY_TO_ASK, fix="say it with the command: --yes")
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # a word that was typed during a trial is no answer
    if not said_yes(question):
        raise Refused("nothing was done", fix="say y, or --yes, once you agree")


def said_yes(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


# -- What becomes of the work -----------------------------------------------------------------------------------------

Onto = Annotated[str, typer.Option(metavar="BRANCH", help="Another branch than the one the work started from.")]
Numbers = Annotated[list[str] | None, typer.Argument(metavar="TASK", help="Numbers, such as 001 3.")]
Number = Annotated[str, typer.Argument(metavar="TASK", help="Its number, such as 003.")]
Because = Annotated[str, typer.Option("--why", metavar="TEXT", help="Why; agents are told.")]


@build.command("merge")
def merge(
    onto: Onto = "",
    commits: Annotated[
        bool, typer.Option("--commits", help="Keep each attempt as the commit that it is: a fast-forward.")
    ] = False,
    yes: Yes = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also where `dialogd tasks verify` would refuse it; the file says so.")
    ] = False,
    file: options.FileOption = None,
) -> None:
    """Bring what is approved to your branch, one commit for each task.

    The commits are yours, as your git knows you and signs; attempts that were sent back are no part of it. Says what it
    will do, and asks. Where the branch has moved since, nothing is done: `dialogd build rebase` has the tasks tested
    and reviewed again. What `dialogd tasks verify` would refuse is refused, with the reasons; a tree that no gate
    tested is named as such, and your yes is the word on it.
    """
    settings, log, dialog = options.opened(file)
    rules = _meant(settings, dialog)
    person.admitted(log, "build merge")
    what = person.takeover(log, Path(rules.repo), onto, commits=commits)
    doubtful = {task.id: f" ({tasks_of.tested(task)})" for task in what.approved if task.gate != "passed"}
    names = ", ".join(f"{task.id}{doubtful.get(task.id, '')}" for task in what.approved)
    remark(f"{rules.repo}: {line(what.words)}")
    remark(f"with task{'s' * (len(what.approved) > 1)} {names}; {what.size}")
    for doubt in what.doubts:
        remark(f"{'overruled' if anyway else 'against it'}: {line(doubt)}")
    person.undoubted(log, what, anyway=anyway)
    ask("Merge?", yes=yes)
    after, where = person.merge(log, Path(rules.repo), what, anyway=anyway)
    here = f" and its files in {shown(where)}" if where else "; it is checked out nowhere"
    last = next(one.merged for one in after.state.build.all if one.commit == what.to)
    done(settings, after, f"{what.branch} is at {last[:12]}{here}")
    _offer_to_clean(after, settings.file)


@build.command("rebase")
def rebase(onto: Onto = "", yes: Yes = False, file: options.FileOption = None) -> None:
    """Carry approved tasks to where your branch is now.

    Each is tested and reviewed again there: an approval is for one tree and no other. A turn of yours, which opens a
    build again that had ended.
    """
    settings, log, dialog = options.opened(file)
    rules = _meant(settings, dialog)
    person.admitted(log, "build rebase")
    what = person.carried_over(log, Path(rules.repo), onto)
    if what.approved:
        numbers, place = ", ".join(task.id for task in what.approved), f"{what.branch} at {what.at[:12]}"
        remark(f"tasks {numbers} are carried to {place}; their approvals end, and they are reviewed again")
        ask("Rebase?", yes=yes)
    after = person.rebase(log, what.at)
    done(settings, after, f"tasks go on from {what.at[:12]}")
    if not daemons(settings, settings.file):
        remark(f"start its agents: {command_on(settings.file, 'build', '--continue')}")


@build.command("pr")
def pr(
    task: Number,
    remote: Annotated[str, typer.Option(metavar="NAME", help="Which remote, where there are several.")] = "",
    yes: Yes = False,
    file: options.FileOption = None,
) -> None:
    """Push a task's branch, and open a pull request by `gh`.

    Says what it will run, and asks. Only of a task that is approved; the branch holds the tasks before it too. The file
    records its address: where one is open for that commit, it is named, and no other is opened.
    """
    settings, log, dialog = options.opened(file)
    rules = _meant(settings, dialog)
    person.admitted(log, "build pr")
    (one,) = person.tasks_named(dialog, task)
    if one.state not in (APPROVED, MERGED):
        raise Refused(f"task {one.id} is {one.state}, not approved", fix="dialogd tasks says how it stands")
    if one.request is not None:
        remark(f"it was opened already, for commit {one.commit[:12]}; one more: gh pr create --head {one.branch}")
        show(plain(one.request.url))
        return
    repo = Path(rules.repo)
    trees = Worktrees(repo, build=dialog.id)
    if trees.git.ref(f"refs/heads/{one.branch}") != one.commit or trees.tree_of(one.commit) != one.tree:
        what = f"the branch {one.branch} is not at the commit that was approved"
        raise Refused(what, fix=f"put it back: git branch -f {one.branch} {one.commit[:12]}")
    if shutil.which("gh") is None:
        raise NotInstalled("`gh` is not on PATH", fix=f"install it (cli.github.com), or push {one.branch} yourself")
    known = remotes(repo)
    chosen = remote or ("origin" if "origin" in known else next(iter(known), ""))
    if chosen not in known:
        what = f"there is no remote {chosen}" if chosen else "the repository has no remote"
        raise Refused(what, fix=f"name one of: {', '.join(known)}" if known else "git remote add origin URL")
    title = one_line(one.description, 100)
    begun = ["gh", "pr", "create", "--head", one.branch, "--base", rules.branch, "--title", title]
    remark(f"git push {chosen} {one.branch}   ({one.commit[:12]} to {known[chosen]})")
    remark(shlex.join(begun))
    ask("Publish it?", yes=yes)
    push(repo, chosen, one.branch)

    def gh(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=repo, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )

    listed = gh("gh", "pr", "list", "--head", one.branch, "--state", "open", "--json", "url,headRefOid").stdout
    said = ""
    with suppress(ValueError, TypeError, KeyError):  # creating one says what is wrong
        said = " ".join(str(each["url"]) for each in jsons.loads(listed) if each["headRefOid"] == one.commit)
    if not said:
        ran = gh(*begun, "--body", "\n".join(_request(one, rules, dialog)))
        if ran.returncode:
            wrong = " ".join(ran.stderr.split())[:300] or f"exit code {ran.returncode}"
            fix = "`gh auth status` and `gh pr create` say more; then this command again"
            raise Refused(f"the branch is pushed, and gh said: {wrong}", fix=fix)
        said = ran.stdout
    url = _ADDRESS.search(said)
    if url is None:
        remark("it was opened, and gh named no address: the file has none")
        return
    person.published(log, one.number, tasks_of.Request(url[0], int(url[1]) if url[1] else None, one.commit))
    show(plain(url[0]))


_ADDRESS = re.compile(r"https?://[!-{}~]+?(?:/pull/(\d{1,9})(?!\d)|(?=\s|\Z))")


def _request(task: Task, rules: Build, dialog: Dialog) -> Iterator[str]:
    """The text of a pull request: what was asked for, and what was said of it."""
    yield task.description
    yield ""
    yield from (f"- {one}" for one in task.criteria)
    tested = tasks_of.tested(task) + (f" (`{rules.gate}`)" if rules.gate else "")
    score = f"with {task.score} points" if task.score is not None else "without a score"
    by = "by you" if task.reviewer == USER else f"by {task.reviewer}"
    yield f"\nApproved {by} {score}, {tested}; tree {task.tree}, dialog {dialog.id}, task {task.id}."
    before = [one.id for one in dialog.state.build.all if one.state == APPROVED and one.number != task.number]
    if before:
        yield f"Tasks stack: this branch may hold tasks {', '.join(before)} too."


@build.command("bundle")
def bundle(
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file to write.")],
    *,
    key: Annotated[str, typer.Option(metavar="KEY", help="The SSH key that signs it: ~/.ssh/id_ed25519.")],
    file: options.FileOption = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    json: options.JsonOption = False,
) -> None:
    """Write this build's approvals to a signed file, for elsewhere.

    `dialogd tasks verify --commit C --bundle OUT --allowed-signers F` checks a commit by it elsewhere. It has
    the dialog's whole text in it, and only approvals that hold here, by file and journals.
    """
    settings = options.settings_for(file)
    person.admitted(options.log_of(settings), "build bundle")
    judge, against, _ = _judge_of(file, untested=True)
    holding = [approval for approval in judge.approvals if not judge.doubts(approval)]
    if against or not holding:
        found = [doubt for approval in judge.approvals for doubt in judge.doubts(approval)]
        reason = next(iter((*against, *found)), "nothing was approved")
        raise Refused(f"no approval holds: {reason}", fix="dialogd verify and dialogd tasks say more")
    target = Path.cwd() / Path(out).expanduser()
    fresh(target, "name another file", force=force)
    save(bundled(judge, holding, Path(key).expanduser()), target)
    facts = {"file": str(target), "approvals": [approval.as_json() for approval in holding]}
    options.answer(facts, [*(f"{line(one.words)}: tree {one.task.tree}" for one in holding), str(target)], json=json)


# -- `dialogd tasks` --------------------------------------------------------------------------------------------------


@tasks.command("list", hidden=True)
def list_tasks(file: options.FileOption = None, json: options.JsonOption = False) -> None:
    """Show the tasks: state, score, attempts, branch."""
    settings, _, dialog = options.opened(file)
    rules = person.rules_of_build(dialog)
    state = dialog.state.build
    facts: dict[str, object] = {
        "dialog": dialog.id,
        "file": str(settings.file),
        "due": [{"what": what.value[0], "by": who, "task": task and task.id} for what, task, who in state.steps],
        "tasks": [_facts(one) for one in state.all],
    }
    facts |= {"due": []} if dialog.state.outcome else {}
    if json:
        facts["events"] = [asdict(one) for one in events(dialog, look_into(Path(rules.repo or ".")))]
    is_running = bool(daemons(settings, settings.file))
    options.answer(facts, _table(dialog, settings.file, is_running=is_running), json=json)


def _facts(task: Task) -> dict[str, object]:
    """A task as programs are told of it; null for what is not known yet."""
    known = asdict(task)
    names = "state why description iteration branch base commit tree gate author reviewer"
    return {
        "id": task.id, **{key: known[key] or None for key in names.split()}, "criteria": list(task.criteria),
        "after": [f"{number:03}" for number in task.after], "hours": task.hours, "score": task.score,
        "untested": task.gate == "untested", "improvement": dict(task.asks) or None,
        "pr_url": task.request.url if task.request else None,
        "pr_number": task.request.number if task.request else None,
    }  # fmt: skip


def _table(dialog: Dialog, file: Path, *, is_running: bool) -> Iterator[str]:
    """The tasks as people read them, and what waits for them; at the end the next step, as `status` has it."""
    known = listed(dialog.state.build)
    if not known:
        yield "no task is proposed yet"
    for task in known:
        is_told = task.commit and task.gate not in ("", "passed")
        state = f"{task.state}, {tasks_of.tested(task)}" if is_told else task.state
        facts = [
            f"{task.score} of 100" if task.score is not None else "",
            f"attempt {task.iteration} of {tasks_of.last_attempt(dialog.state.build, task)}" if task.iteration else "",
            f"after {', '.join(f'{number:03}' for number in task.after)}" if task.after else "",
            f"{task.hours:g} h" if task.hours else "",
            task.branch,
        ]
        below = [", ".join(filter(None, facts)), task.request.url if task.request else ""]
        if task.state == PROPOSED:
            below += [f"- {one}" for one in task.criteria]
        else:
            below.append(one_line(why_of(task), 200))
        yield f"{task.id}  {state:20}  {one_line(task.description, 100)}"
        yield from (f"     {row}" for row in below if row)
    if dialog.state.outcome is not None:
        yield f"\n{ended(dialog)}"
        if step := next_step(dialog, file, is_running=is_running):
            yield f"next: {step}"
    elif question := tasks_of.question(dialog.state.build):
        yield f"\n{question}"
        yield from (f"  {one}" for one in lifecycle.answers(dialog, file_flag(file)))


@tasks.command("change")
def change(
    task: Number,
    description: Annotated[str, typer.Option("--description", "-d", metavar="TEXT", help="What is to be done.")] = "",
    criterion: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="What must be true of it; repeat it for more.")
    ] = None,
    after: Annotated[str, typer.Option(metavar="TASKS", help="Which come first: 1,2 or none.")] = "",
    hours: Annotated[str, typer.Option(metavar="N", help="Your estimate.")] = "",
    file: options.FileOption = None,
) -> None:
    """Change what a task asks for, before it is begun."""
    settings, log, before = options.opened(file)
    _meant(settings, before)
    secrets, criteria = options.own_secrets(), criterion or ()
    new = person.change_task(
        log, task, description=description, criteria=criteria, after=after, hours=hours, secrets=secrets
    )
    done(settings, new, "changed" if new.state.build != before.state.build else "it was so already")


class Word(NamedTuple):
    """A word of the person on tasks: what came of it, and what its command says."""

    came: str
    about: str
    has_reason: bool = False


_WORDS = {
    "confirm": Word("confirmed", "Confirm proposed tasks, so that the work begins. Default: all of them."),
    "retry": Word("tried again", "Have a task tried again that failed, with all its attempts. Default: the one that "
                  "waits.\n\nWords behind the numbers are the reason, which its agent is told: retry \"keep the old "
                  "names\".", has_reason=True),
    "accept": Word("accepted", "Approve a task yourself that its reviewer did not. Default: the one that waits for you."
                   "\n\nAlso the word that `dialogd tasks verify` asks for, where a yes was only typed, or no gate "
                   "tested a tree."),
    "drop": Word("dropped", "Drop tasks: they are not carried out. Who works on one is interrupted.", has_reason=True),
}  # fmt: skip


_NUMBERS = re.compile(r"all|[\d,]+")


def _command(act: str) -> Callable[..., None]:
    def command(task: Numbers = None, file: options.FileOption = None) -> None:
        _said(act, task, "", file)

    def with_reason(task: Numbers = None, why: Because = "", file: options.FileOption = None) -> None:
        words = task or []
        numbers = [*takewhile(_NUMBERS.fullmatch, words)]
        _said(act, numbers, why or " ".join(words[len(numbers) :]), file)

    return with_reason if _WORDS[act].has_reason else command


for _act, _word in _WORDS.items():
    tasks.command(_act, help=_word.about)(_command(_act))


def _said(act: str, named: Sequence[str] | None, why: str, file: str | None) -> None:
    """Carry out the person's word on tasks, and print what came of it."""
    settings, log, before = options.opened(file)
    _meant(settings, before)
    after = person.tasks(log, act, ", ".join(named or ()), why, secrets=options.own_secrets())
    mark = after.entries[-1].mark("TASK") if len(after.entries) > len(before.entries) else None
    grown = after.state.limits.max_turns
    room = f"; max_turns is {grown} from here on" if grown != before.state.limits.max_turns else ""
    done(settings, after, f"{mark.fields[0]} {_WORDS[act].came}{room}" if mark else f"{_WORDS[act].came} already")
    if act == "accept" and (bad := tasks_of.red(after.state.build)):
        later = "unless the gate of a later task passes, only this takes it over"
        remark(f"{bad.id}: {tasks_of.tested(bad)}; {later}: {onwards(after, settings.file)}")


LONGEST_DIFF = 10_000_000  # characters


@tasks.command("show")
def show_changes(task: Number, file: options.FileOption = None) -> None:
    """Show what a task changes, in your pager.

    The diff of what was submitted last. The pager is GIT_PAGER, PAGER or less; without a terminal it is printed.
    """
    _, _, dialog = options.opened(file)
    rules = person.rules_of_build(dialog)
    (one, *_) = person.tasks_named(dialog, task)
    if not one.commit:
        raise Refused(f"task {one.id} has submitted nothing yet", fix="dialogd tasks says how it stands")
    diff = Worktrees(Path(rules.repo), build=dialog.id).diff(one.base, one.commit, LONGEST_DIFF)
    left_out = [f"too long to be shown: {name.path}" for name in diff.omitted]
    about = [f"{one.id}  {one.state}, {tasks_of.tested(one)}  {one.description}", why_of(one)]
    about += [f"{diff.stat}, {one.base[:12]} to {one.commit[:12]}", *left_out]
    options.paged(plain("\n".join([*filter(None, about), "", *(name.patch for name in diff.files)])))


@tasks.command("gate")
def gate(
    how: Annotated[
        str, typer.Argument(metavar="CMD|run|untested", help="Another command; or your word where there is no sandbox.")
    ],
    yes: Yes = False,
    file: options.FileOption = None,
) -> None:
    """Have another command test the tasks, or say what becomes of the gate without a sandbox.

    A command ('npm test') is tried where the work starts from, and asked about. It tests every tree that is not
    approved yet: what the one before said of that counts no more. Without a sandbox the gate waits: `run` has it run
    what the agent wrote, as you, on the tree that waits and no other; `untested` has that tree reviewed untested.
    """
    settings, log, dialog = options.opened(file)
    rules = _meant(settings, dialog)
    if how in ("run", "untested"):
        done(settings, person.gate(log, how), "the gate runs" if how == "run" else "it is reviewed untested")
        return
    person.admitted(log, "tasks gate")
    command, secrets = person.command_in_file(how), options.own_secrets()
    kept = saved_cast(StateDir(settings.state_dir), settings.file)
    leads = [seat for seat in (kept.seats if kept else ()) if seat.id in rules.leads]
    sees = [Path(one) for seat in leads for one in seat.gate_sees]
    trees = Worktrees(Path(rules.repo), build=dialog.id)
    changed = Gate(replace(rules, gate=command), trees, settings.file, settings.state_dir, sees)
    own = [(seat.repo, seat.setup, seat.setup_network) for seat in leads]
    if rules.setup and (rules.repo, rules.setup, rules.setup_network) not in own:  # a file alone has nothing run
        remark(f"not tried: the setup {line(rules.setup)!r} stands in the file, and no build was begun here with it")
    else:
        for row in _tried(changed, dialog.state.build.start, yes=yes):
            remark(row)
    ask(f"Test the tasks by {line(command)!r} from now on?", yes=yes)
    after = person.another_gate(log, command, secrets=secrets)
    done(settings, after, f"the gate is {line(command)!r} from the next tree on")


@tasks.command("clean")
def clean(yes: Yes = False, file: options.FileOption = None) -> None:
    """Remove worktrees and branches of tasks that are merged or dropped.

    With them goes what the setup made for them, and what was cut off. Says what goes, and asks. A worktree with edits
    that are in no commit, and a branch that somebody moved or checked out, stay and are named, with what to do. Nothing
    of another build goes.
    """
    settings, log, dialog = options.opened(file)
    repo = Path(_meant(settings, dialog).repo)
    person.admitted(log, "tasks clean")
    found = [*person.leftovers(dialog, repo)[1]]
    for one in found:
        remark(line(one.words))
    going = [one.task for one in found if not one.stays]
    if not going:
        show(f"nothing can be removed{'' if found else ': no merged or dropped task has left anything'}")
        return
    ask("Remove it?", yes=yes)
    done(settings, person.clean_up(log, repo, ", ".join(going)), f"removed: {', '.join(going)}")


def _offer_to_clean(dialog: Dialog, file: Path) -> None:
    """Say what removes the worktrees of tasks that are merged or dropped, where one can go."""
    with suppress(DialogdError):  # what is in the way of that is told by what needs it
        _, found = person.leftovers(dialog, Path(person.rules_of_build(dialog).repo))
        if any(not one.stays for one in found):
            remark(f"worktrees of merged or dropped tasks can go: {command_on(file, 'tasks', 'clean')}")


# -- Does a commit have a tree that was approved? ---------------------------------------------------------------------

_PUSHED = re.compile(r".+ ([0-9a-f]{40}|[0-9a-f]{64}) (\S+) ([0-9a-f]{40}|[0-9a-f]{64})", re.ASCII)


@tasks.command("verify")
def verify(
    path: options.FileArgument = None,
    *,
    file: options.FileOption = None,
    commit: Annotated[
        str | None, typer.Option("--commit", metavar="C", help="Is this commit's tree one that a build approved?")
    ] = None,
    repo: Annotated[
        str, typer.Option("--repo", metavar="DIR", help="The commit's repository. Default: this folder.")
    ] = ".",
    bundle: Annotated[
        str | None, typer.Option("--bundle", metavar="F", help="Judge by a signed bundle: dialogd build bundle.")
    ] = None,
    allowed_signers: Annotated[
        str | None, typer.Option("--allowed-signers", metavar="F", help="Who may sign it: see ssh-keygen(1).")
    ] = None,
    pre_push: Annotated[
        bool, typer.Option("--pre-push", help="As a hook: each tip that git says it pushes, on stdin.")
    ] = False,
    untested: Annotated[bool, typer.Option("--untested", help="A tree that no gate tested will do.")] = False,
    json: options.JsonOption = False,
) -> None:
    """Check that a commit's tree is one that a build approved.

    Exit code 0 only when exactly that tree was approved, on the base that it comes from, by others than its author,
    with its gate green or your word on "untested", in a sound file; else 1, with the reasons. With --bundle it needs no
    dialog here; without a signature by one of --allowed-signers that is "integrity only", and 1. See docs/build.md.
    """
    if (commit is None) != pre_push:
        raise BadInput("which commits?", fix="name one, --commit HEAD; or --pre-push, which reads them itself")
    if bundle is not None and (path or file):
        raise BadInput("a bundle has its own copy of the dialog", fix="name the dialog or --bundle, not both")
    if bundle is None:
        if allowed_signers is not None:
            raise BadInput("--allowed-signers is for --bundle", fix="name the bundle: --bundle F")
        judge, against, by = _judge_of(path or file, untested=untested)
    else:
        held = opened(Path(bundle).expanduser(), Path(allowed_signers).expanduser() if allowed_signers else None)
        judge, by = Judge(held.data, untested=untested), f"signed by {held.signer}"
        against = () if held.signer else (f"integrity only: {held.why}",)
    checkout = checkout_at(Path.cwd() / Path(repo).expanduser())
    git, rows, facts = Git(checkout.common_dir, here=checkout.git_dir), [], []
    for name, tip, there in _pushed() if pre_push else [("", str(commit), "")]:
        try:
            found = judge.judge(git, tip, there)
        except Refused as error:
            if not name:
                raise
            found = Judged(tip, "", None, (str(error),))  # a tag of a file, for one
        reasons = (*found.why, *against)
        title = f"commit {found.commit[:12]}{f' for {line(name)}' if name else ''}, tree {found.tree[:12] or 'none'}"
        if found.approval is not None and not reasons:
            rows.append(f"{title}: approved as {line(found.approval.words)}; {line(by)}")
        else:
            its = [f"  its tree is that of {line(found.approval.words)}"] if found.approval is not None else []
            rows += [f"{title}: not approved", *its, *(f"  {line(reason)}" for reason in reasons)]
        judged = replace(found, why=reasons, approval=None if reasons else found.approval)
        facts.append({"ref": name or None, **judged.as_json()})
    is_good = all(fact["approved"] for fact in facts)
    options.answer({"approved": is_good, "commits": facts}, rows or ["no commit is to be judged"], json=json)
    raise typer.Exit(0 if is_good else 1)


def _judge_of(file: str | None, *, untested: bool) -> tuple[Judge, tuple[str, ...], str]:
    """The judge of commits by file and journals here, what speaks against all of them, and whose word it is."""
    settings = options.settings_for(file)
    if not settings.file.exists():
        fix = "name the build's dialog, or a bundle of it: --bundle F"
        raise BadInput(f"there is no file {settings.file}", fix=fix)
    return *judge_here(options.log_of(settings), untested=untested), f"by {settings.file} and its journals"


def _pushed() -> Iterator[tuple[str, str, str]]:
    """What git tells a pre-push hook: each name that is pushed, its commit, and what stands there; no deleted ones."""
    for row in filter(None, sys.stdin.buffer.read().decode("utf-8", "backslashreplace").split("\n")):
        match = _PUSHED.fullmatch(row)
        if match is None:
            raise BadInput(f"no line of a pre-push hook: {line(row)[:80]!r}", fix="call it from .git/hooks/pre-push")
        commit, name, there = match.groups()
        if commit.strip("0"):
            yield name, commit, there if there.strip("0") else ""


def became(known: Memory, row: DialogRow) -> tuple[str, str]:
    """What became of the trees of a build, or of the builds that carried a decision out. Raises `Refused`."""
    from dialogd.memory import current

    found, doubt = [], ""
    for one in (row, *(other for other in known.archived() if other.id != row.id)):
        with suppress(DialogdError, OSError):
            dialog = current(one)[1]
            rules, approved = dialog.state.build.rules, approvals(dialog)
            if dialog.id != one.id or rules is None or row.id not in (one.id, rules.source) or not approved:
                continue
            checkout = checkout_at(Path(rules.repo))
            of_it = fates(Git(checkout.common_dir, here=checkout.git_dir), approved, rules.branch)
            found += [(fate, rules.branch) for fate in of_it]
            last = next((fate.approval.task for fate in of_it[::-1] if fate.commit), None)
            if last is not None and last.gate not in tasks_of.GREEN:
                doubt = f"task {last.id} was merged although its {tasks_of.tested(last)}"
    for fate, branch in found:
        if fate.reverted:
            task = fate.approval.task
            return "failed", f"reverted on {branch} by commit {fate.reverted}: task {task.id}, tree {task.tree}"
    merged = [(fate, branch) for fate, branch in found if fate.commit]
    if doubt or not merged:
        what = "none of its trees is on the branch" if found else "no build of it has approved anything"
        words = f'{"" if doubt else "merge it, or "}say it: dialogd outcome {row.id} worked|failed "why"'
        raise Refused(f"git does not say how {row.id} turned out: {doubt or what}", fix=words)
    told = (f"task {f.approval.task.id} as commit {f.commit}, tree {f.approval.task.tree}" for f, _ in merged)
    left = f"; not merged: {len(found) - len(merged)}" if len(found) > len(merged) else ""
    against = dict.fromkeys(fate.approval.task.why for fate, _ in merged if fate.approval.task.state == MERGED)
    although = "".join(f"; {why}" for why in against if why)
    return "worked", f"merged into {merged[0][1]}: {'; '.join(told)}{left}{although}"
