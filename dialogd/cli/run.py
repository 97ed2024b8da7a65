"""`dialogd new` and `dialogd run`: a dialog is made, and held."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from dialogd import person
from dialogd.backends import WRITING, Options, auto, kind_of, load_backend, writers
from dialogd.backends.auto import family_of
from dialogd.backends.sandbox import INSTALL
from dialogd.backends.seats import LINGER, Cast, Seat, saved_cast, start_again
from dialogd.backends.sessions import program_of
from dialogd.cli import options
from dialogd.cli.client import daemons, notify
from dialogd.cli.create import (
    AGREES,
    Start,
    create,
    draw_up,
    priced,
    seated,
    takes_options,
    usual_ports,
    warn_of_twins,
    with_recalled,
)
from dialogd.cli.launch import FAILED, Daemons, Interrupt, browse, free_ports, interruptible, is_free
from dialogd.cli.outcome import estimate_of, leave_plan, prices_of
from dialogd.cli.past import keep_ended
from dialogd.cli.status import ended, exit_code, next_step, onwards
from dialogd.cli.terminal import plain, remark
from dialogd.cli.watch import LOOK, LiveView
from dialogd.config import DEFAULT_FILE, FIRST_PORT, Settings, default_port, dotenv, file_words, start_command
from dialogd.errors import AlreadyRunning, BadInput, DialogdError, NotRunning, Refused
from dialogd.protocol.certificate import certify
from dialogd.protocol.model import AGREED, USER, Limits, Participant
from dialogd.protocol.money import DEFAULT_CAP, DEFAULT_TOKENS
from dialogd.protocol.text import budget_line, in_words, many
from dialogd.store.caller import is_inside
from dialogd.store.folders import StateDir
from dialogd.tasks.gate import readable
from dialogd.tasks.worktrees import Worktrees
from dialogd.templates.library import template
from dialogd.templates.opening import Opening, warnings

Go = Annotated[bool, typer.Option("--go", help="Set it going at once, if the first agent's daemon runs.")]


@takes_options
def new(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What it is about, in a line.")],
    *,
    wanted: Start,
    go: Go = False,
    file: options.FileOption = None,
    replace: options.Replace = False,
    json: options.JsonOption = False,
) -> None:
    """Write the file of a new dialog. A dialog that has ended is archived; one that has not is never overwritten."""
    settings, wanted = options.settings_for(file), dataclasses.replace(wanted, topic=topic)
    seats = wanted.seats()
    if any(seat.backend for seat in seats):  # those whom nobody named are chosen when they are started
        seated(seats, settings, os.environ, dotenv(Path.cwd()))
    opening = with_recalled(draw_up(wanted, seats, _ports(settings, seats), settings), wanted, settings)
    for cut in (c for c in opening.context if len(c.text.encode("utf-8", "replace")) < c.size):
        remark(f"note: of {cut.path} only the beginning goes along")
    for warning in warnings(opening):
        remark(f"warning: {warning}")
    warn_of_twins({seat.id: family_of(seat.backend) for seat in seats})
    log, here = options.log_of(settings), daemons(settings, settings.file)
    copy = create(log, settings, opening, replace=replace)
    for daemon in here:
        if daemon.session and daemon.id in [agent.id for agent in opening.agents]:
            person.seat(log, daemon.id, program_of(daemon.session))
    urls = {agent.id: agent.url for agent in opening.agents}
    kicks = [f"curl -X POST {urls[opening.first[0]]}/notify"]  # whose daemon tells those that answer at the same time
    starts = [_start_line(settings, seat, agent) for seat, agent in zip(seats, opening.agents, strict=True)]
    first, going, told = ", ".join(opening.first), None, tuple[str, ...]()
    if go:
        running = [daemon for daemon in daemons(settings, settings.file) if daemon.id in opening.first]
        told = notify(running)
        going = bool(told)
    facts = {
        "file": str(settings.file),
        "dialog": opening.dialog,
        "topic": opening.topic,
        "first": list(opening.first),
        "max_turns": opening.max_turns,
        "timeout": opening.timeout,
        "budget": budget_line(opening.budget, opening.tokens) or None,
        "agents": [
            {"id": a.id, "name": a.name, "url": a.url, "backend": s.backend, "model": s.model, "start": start}
            for a, s, start in zip(opening.agents, seats, starts, strict=True)
        ],
        "set_going_with": kicks,
        "archived": str(copy) if copy else None,
        "notified": going,
    }
    tail, stop = ["tail", "-f", str(settings.file)], ["dialogd", "stop", *file_words(settings.file)]
    parts = {"archived": [str(copy)] if copy else [], "start": starts, "set going": kicks}
    parts |= {"watch": [shlex.join(tail)], "stop": [shlex.join(stop)]}
    rows = (f"{'' if n else label:9} {row}" for label, listed in parts.items() for n, row in enumerate(listed))
    options.answer(facts, [f"{settings.file}\n", *rows], json=json)
    if going is not None and not json:
        late = f"not set going: no daemon of {first} runs here yet; start it, then use the curl line"
        remark(f"set going: {', '.join(told)} was notified" if told else late)


def _ports(settings: Settings, seats: tuple[Seat, ...]) -> list[int]:
    """Where daemons of this file listen already, else the usual ports, else those behind what other dialogs use."""
    here = {daemon.id: daemon.port for daemon in daemons(settings, settings.file)}
    taken = {daemon.port for daemon in daemons(settings)}
    behind = iter(port for port in range(FIRST_PORT + len(seats), 65_536) if port not in taken and is_free(port))
    usual = [next(behind) if port in taken else port for port in usual_ports(seats)]
    return [here.get(seat.id, port) for seat, port in zip(seats, usual, strict=True)]


def _start_line(settings: Settings, seat: Seat, agent: Participant) -> str:
    """The `dialogd start` command of an agent, ready to paste into a terminal."""
    port = int(agent.url.rpartition(":")[2])
    own_port = [] if port == default_port(seat.id) else ["--port", str(port)]
    return plain(start_command(seat.id, settings.file, (*own_port, *seat.flags())))


# -- `dialogd run` ----------------------------------------------------------------------------------------------------

Topic = Annotated[str | None, typer.Argument(metavar="TOPIC", help="What it is about; with --continue: the file.")]


@dataclass(frozen=True, slots=True)
class Held:
    """How a dialog is held: where its file and its plan lie, who pays what, and how long its page stays."""

    pace: options.Pace = None
    file: options.FileOption = None
    replace: options.Replace = False
    go_on: Annotated[
        bool, typer.Option("--continue", help="Start its agents again (run: or those you name), and go on.")
    ] = False
    linger: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long the daemons and the page stay after the end: 1 hour, or `always`, until Ctrl-C.",
        ),
    ] = None
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in your browser, where there is one.")
    ] = False
    plan: options.Plan = None
    price: Annotated[
        list[str] | None,
        typer.Option(
            "--price",
            metavar="[ID=]PRICE",
            help="Dollars per million tokens, IN/OUT[/CACHED] or free: of one agent, or of all; repeat it.",
        ),
    ] = None

    @property
    def lasts(self) -> float:
        """For how many seconds after the end the page stays. Raises `BadInput`."""
        if self.linger is None:
            return 0.0
        return inf if self.linger == "always" else options.duration(self.linger, "--linger")

    def settings(self, named: str | None) -> Settings:
        """The settings; to go on, the file may be `named` where something else is named otherwise."""
        file = self.file or (named if self.go_on else None)
        return options.settings_for(file, pace=self.pace, plan=self.plan)


INTERRUPTED = 130
LEADS = (
    "codex",
    "claude-code",
    "gemini",
    "opencode",
)  # what works in a build where nobody says who; the moderator is often a Claude
TEXT_LENGTH = 300  # characters of the decided text in the last lines; the file and the plan have all of it


@takes_options
def run(topic: Topic = None, *, wanted: Start, held: Held, trust_project: options.TrustProject = False) -> None:
    """Run a whole dialog: every agent, until it ends.

    Writes the file, starts a daemon per agent, and shows what they say. Ctrl-C stops the dialog and everything that was
    started. Takes /tmp/claude-dialog.md and ports 3001 … where they are free, else a file and ports of its own.
    """
    lasts = held.lasts
    with interruptible() as interrupt:
        settings = held.settings(topic)
        if held.go_on:
            cast = former_cast(settings, held.pace, wanted)
            if wanted.unattended:
                person.leave(options.log_of(settings), USER)
        elif topic is None:
            raise BadInput("what should the dialog be about?", fix='name the topic: dialogd run "Tabs or spaces?"')
        else:
            wanted = dataclasses.replace(wanted, topic=topic)
            settings, cast = new_cast(
                settings,
                wanted,
                held.pace or "",
                replace=held.replace,
                prices=held.price or (),
                trust_project=trust_project,
            )
        raise typer.Exit(perform(settings, cast, interrupt, is_new=not held.go_on, stay=lasts, opens=held.opens))


def new_cast(
    settings: Settings,
    wanted: Start,
    pace: str,
    *,
    replace: bool,
    prices: Sequence[str] = (),
    trust_project: bool = False,
    seat_timeout: str = person.SEAT_TIMEOUT,
    agree: Callable[[Opening], None] | None = None,
) -> tuple[Settings, Cast]:
    """Choose backends, file and ports, and write the dialog; `seat_timeout` is of open sessions.

    `agree` is shown what it will be before anything is written, and raises where that is not wanted.
    """
    asked = priced(_with_a_lead(wanted.seats(), wanted, settings), prices)
    seats, choices = seated(asked, settings, os.environ, dotenv(Path.cwd()))
    seats = _building(_trusting(seats) if trust_project else seats, wanted, settings)
    _try_backends(seats, choices, settings)
    ports = usual_ports(seats)
    explicit = settings.source("file") != "default"
    if explicit or not (all(map(is_free, ports)) and (replace or _is_vacant(settings))):
        ports = free_ports(len(seats))
    asked_for = with_recalled(draw_up(wanted, seats, ports, settings), wanted, settings)
    opening = with_budget(asked_for, seats, choices, settings)
    if opening is not asked_for:
        line = budget_line(opening.budget, opening.tokens)
        remark(f"note: a key pays and no budget was given: the dialog ends at {line}; --budget sets another limit")
    if not explicit and ports != usual_ports(seats):
        own = Path(tempfile.gettempdir()) / f"claude-dialog-{opening.dialog}.md"
        remark(f"note: {DEFAULT_FILE} or its ports are in use; this dialog has a file of its own")
        settings = options.settings_for(str(own), pace=pace or None, plan=settings.plan)
    elif daemons(settings, settings.file):
        _busy(settings)
    rehearses = any(choices[seat.id].is_last_resort(seat.backend or settings.backend) for seat in asked)
    if agree is not None:
        _present(opening, seats, choices, settings, rehearses=rehearses)
        agree(opening)
    copy = create(options.log_of(settings), settings, opening, replace=replace)
    for seat in (seat for seat in seats if seat.session):
        person.seat(options.log_of(settings), seat.id, program_of(seat.session), seat_timeout)
    if copy is not None:
        remark(f"note: the dialog that stood there is kept as {copy}")
    if agree is None:
        _present(opening, seats, choices, settings, rehearses=rehearses)
    return settings, Cast(opening.dialog, seats, pace).with_ports(ports)


def _present(
    opening: Opening,
    seats: tuple[Seat, ...],
    choices: Mapping[str, auto.Choice],
    settings: Settings,
    *,
    rehearses: bool,
) -> None:
    """Print who takes part, what may prevent a decision, and what it may cost."""
    if rehearses:
        remark("\n".join(auto.NO_MODEL))
    _introduce(seats, choices, settings)
    for seat in seats:
        if seat.session and not is_inside(os.getpid(), seat.session):
            remark(f"{seat.id}: {AGREES}")
    for warning in warnings(opening):
        remark(f"warning: {warning}")
    if text := estimate_of(opening, seats, choices, settings):
        remark(text)


def _try_backends(seats: tuple[Seat, ...], choices: Mapping[str, auto.Choice], settings: Settings) -> None:
    """Refuse what cannot be used, or not twice, before anything is written. Raises `BadInput`."""
    for seat in seats:
        if seat.backend.partition(":")[0] in auto.SCENARIOS | auto.COMMANDS:
            command, model = seat.command or settings.command, seat.model or settings.model
            trusts = seat.trust_project or settings.trust_project
            setup = Options(command=command, model=model, project=_project(seat, settings), trust_project=trusts)
            load_backend(seat.backend, setup)
        choices[seat.id].required()
    named = [seat.session.removesuffix("?") for seat in seats if seat.session]
    if len(set(named)) < len(named):
        raise BadInput("a session has one seat, and here one has two", fix="name another session for one of them")


def with_budget(
    opening: Opening, seats: Sequence[Seat], choices: Mapping[str, auto.Choice], settings: Settings
) -> Opening:
    """The dialog with a budget, where a key pays and nobody set one: dollars, or tokens where a price is unknown."""
    if opening.budget is not None or opening.tokens is not None or not any(c.is_metered for c in choices.values()):
        return opening
    known = prices_of(seats, choices, settings)
    known |= {seat.id: None for seat in seats if seat.backend in auto.COMMANDS and seat.id not in known}
    more = max(opening.max_turns / Limits().max_turns, 1.0) if opening.rules.build is not None else 1.0
    usd, tokens = (DEFAULT_CAP * more, None) if None not in known.values() else (None, round(DEFAULT_TOKENS * more))
    return dataclasses.replace(opening, budget=usd, tokens=tokens)


def _with_a_lead(seats: tuple[Seat, ...], wanted: Start, settings: Settings) -> tuple[Seat, ...]:
    """The seats; of a build the lead is a coding agent that is here, where nobody says who is to work.

    Of two it is one of another family than the moderator's, where that is known.
    """
    lead, _ = _of_build(seats, wanted)
    if lead is None or lead.backend or settings.source("backend") != "default" or settings.command:
        return seats
    found = auto.survey(LEADS, os.environ, dotenv(Path.cwd()), settings.base_url, settings.state_dir)
    here = [name for name in LEADS if found[name].here and not writers()[name]]
    others = {family_of(seat.backend) for seat in seats if seat is not lead}
    chosen = next((name for name in here if family_of(name) not in others), next(iter(here), ""))
    return tuple(dataclasses.replace(seat, backend=chosen) if seat is lead else seat for seat in seats)


def _of_build(seats: tuple[Seat, ...], wanted: Start) -> tuple[Seat | None, Seat | None]:
    """Who works and who moderates, of a build; None for any other dialog."""
    rules = template(wanted.template).rules([seat.id for seat in seats]).build if wanted.build else None
    by = {seat.id: seat for seat in seats}
    return (by.get(rules.lead), by.get(rules.moderator)) if rules is not None else (None, None)


def _building(seats: tuple[Seat, ...], wanted: Start, settings: Settings) -> tuple[Seat, ...]:
    """The seats, those of a build with the repository that they may read or work on, and what tests it."""
    lead, moderator = _of_build(seats, wanted)
    if lead is None:
        return seats
    kind_of(lead.backend)
    why = writers()
    if lacking := why[kind := lead.backend.partition(":")[0]]:
        able = ", ".join(sorted(name for name in WRITING if not why[name]))
        raise BadInput(
            f"{lead.backend} cannot work as {lead.id} ({lead.title}): {lacking}",
            fix=f"name another: --agent {lead.id}=BACKEND, one of {able}{f'; or {INSTALL}' if kind in WRITING else ''}",
        )
    if moderator is not None and moderator.backend.partition(":")[0] == auto.LAST_RESORT:
        raise BadInput(
            f"{moderator.backend} cannot work as {moderator.id} ({moderator.title}): its lines plan nothing",
            fix=f"name another: --agent {moderator.id}=BACKEND",
        )
    repo, gate = str(wanted.build["repo"]), str(wanted.build["gate"])
    folders, trees = [Path(folder) for folder in wanted.gate_sees], Worktrees(Path(repo))
    sees = readable(folders, settings.file, settings.state_dir, trees)
    work = dataclasses.replace(lead, gate=gate, gate_sees=tuple(map(str, sees)))
    return tuple(dataclasses.replace(work if seat is lead else seat, repo=repo) for seat in seats)


def _trusting(seats: tuple[Seat, ...]) -> tuple[Seat, ...]:
    """The seats, with `--trust-project` set for the backends that know it. Raises `BadInput` when none does."""
    trusting = tuple(dataclasses.replace(s, trust_project=s.backend in auto.TRUSTING) for s in seats)
    if not any(seat.trust_project for seat in trusting):
        raise BadInput(
            f"--trust-project means nothing to {' and '.join(dict.fromkeys(seat.backend for seat in seats))}",
            fix=f"leave it out; it is for {', '.join(sorted(auto.TRUSTING))}",
        )
    return trusting


def _project(seat: Seat, settings: Settings) -> Path | None:
    return Path(seat.project) if seat.project else settings.project


def _introduce(seats: tuple[Seat, ...], choices: Mapping[str, auto.Choice], settings: Settings) -> None:
    """Print what each agent is, who pays for it and who sees the text; warn about twins."""
    for seat in seats:
        who = f"{seat.id} ({seat.title})" if seat.title else seat.id
        trusts = seat.trust_project or settings.trust_project
        remark(f"{who}: {auto.introduce(choices[seat.id], _project(seat, settings), trusts=trusts)}")
    warn_of_twins({who: choice.family for who, choice in choices.items()})


def _is_vacant(settings: Settings) -> bool:
    """True when the file is absent or its dialog has ended, and no daemon works on it."""
    if daemons(settings, settings.file):
        return False
    try:
        return options.log_of(settings).read().state.outcome is not None
    except FileNotFoundError:
        return True
    except DialogdError:
        return False


def former_cast(settings: Settings, pace: str | None, wanted: Start | None = None) -> Cast:
    """The cast of the dialog to continue, introduced, at free ports: who is `wanted` now, else who played in it.

    Raises `Refused`, `NotRunning`, `BadInput`.
    """
    dialog = options.dialog_at(options.log_of(settings))
    if dialog.state.outcome is not None:
        where = shlex.quote(str(settings.file))
        fix = f'open it again first: dialogd say --file {where} "…"; or begin another: dialogd run TOPIC'
        if dialog.state.build:
            fix = next_step(dialog, settings.file)
        raise Refused(f"the dialog {ended(dialog)}", fix=fix)
    state, ids = StateDir(settings.state_dir), [agent.id for agent in dialog.header.agents]
    kept, given = saved_cast(state, settings.file), _named_now(wanted, ids)
    known = {seat.id: seat for seat in kept.seats} if kept is not None and kept.dialog == dialog.id else {}
    known |= {seat.id: seat for seat in given}
    if missing := [who for who in ids if who not in known]:
        starts = "; ".join(start_again(state, settings.file, dialog.id, who) for who in missing)
        who = f" {', '.join(missing)}" if given else ""
        raise NotRunning(
            f"nobody knows who played{who} in {settings.file}",
            fix=f"name each, --agent {missing[0]}=BACKEND; or start its agents one by one: {starts}",
        )
    if daemons(settings, settings.file):
        _busy(settings)
    seats, choices = seated([known[who] for who in ids], settings, os.environ, dotenv(Path.cwd()))
    _try_backends(tuple(seat for seat in seats if seat.id in {one.id for one in given}), choices, settings)
    _introduce(seats, choices, settings)
    for seat in (seat for seat in given if seat.session):
        person.seat(options.log_of(settings), seat.id, program_of(seat.session))
    ports = [seat.port for seat in seats]
    if not (all(ports) and all(map(is_free, ports))):
        ports = free_ports(len(ports))
    return Cast(dialog.id, seats, pace or (kept.pace if kept is not None else "")).with_ports(ports)


def _named_now(wanted: Start | None, ids: Sequence[str]) -> tuple[Seat, ...]:
    """The agents that are named for a dialog between `ids` which goes on. Raises `BadInput`."""
    if wanted is None or not (wanted.agents or wanted.agent):
        return ()
    asked = wanted.seats()
    if wanted.agents:  # in the seats of the dialog, whatever they are called
        asked = tuple(dataclasses.replace(seat, id=who) for seat, who in zip(asked, ids, strict=False))
    stranger = next((seat.id for seat in asked if seat.id not in ids), "")
    if stranger or len(asked) < len(wanted.seats()):
        what = f"{stranger} is no agent of this dialog" if stranger else f"this dialog has {many(len(ids), 'agent')}"
        raise BadInput(what, fix=f"name: {', '.join(ids)}; have another one take part: dialogd invite")
    return asked


def _busy(settings: Settings) -> None:
    ids = ", ".join(f"{daemon.id} (pid {daemon.pid})" for daemon in daemons(settings, settings.file))
    raise AlreadyRunning(
        f"daemons run on {settings.file}: {ids}", fix="watch them with `dialogd watch`, or end them with `dialogd stop`"
    )


def perform(
    settings: Settings, cast: Cast, interrupt: Interrupt, *, is_new: bool, stay: float, opens: bool = False
) -> int:
    """Start all daemons, show the dialog to its end, stop them; returns the exit code."""
    file = shlex.quote(str(settings.file))
    show = LiveView(settings, hint="Ctrl-C stops the dialog", is_run=True)
    agents = Daemons(settings, dataclasses.replace(cast, linger=stay if 0 < stay < inf else LINGER))
    port = cast.seats[0].port
    for label, text in (
        ("file", file),
        ("watch", f"tail -f {file}"),
        ("page", f"http://localhost:{port}"),
        ("nudge", f"curl -X POST localhost:{port}/notify"),
    ):
        show.say(f"{label:6} {text}")
    show.say("")
    if not sys.stdin.isatty() and not show.log.read().header.is_unattended:
        remark(
            "note: without a terminal the dialog may wait for you when an agent asks or fails; --unattended never waits"
        )
    closed, cut_off = "interrupted by the person", "`dialogd run` was cut off"
    try:
        with (
            agents.until_the_end(show.log, interrupt, closed=closed, cut_off=cut_off, failed=FAILED if is_new else ""),
            show,
        ):
            agents.start(interrupt)
            if opens:
                browse(f"http://localhost:{port}")
            _watch(show, agents, interrupt, stay=stay)
    except DialogdError:
        if is_new:
            leave_plan(settings, show.log.read())
        raise
    show.close()
    code = _close(show, stay=stay)
    return INTERRUPTED if interrupt.is_set() and not (stay and show.outcome) else code


def _watch(show: LiveView, agents: Daemons, interrupt: Interrupt, *, stay: float) -> None:
    """Show the dialog until it ends or the person interrupts; with `stay`, until they do or every daemon is gone.

    `stay` is how many seconds it may have been over, with nothing new in it, before this ends.
    """
    show.look()
    told, last, since = None, show.feed.dialog, time.monotonic()

    def look_again() -> object:
        show.look()
        return show.outcome

    while (stay or show.outcome is None) and not interrupt.is_set():
        if show.outcome is not None and show.outcome != told:
            told = show.outcome
            until = "" if stay == inf else f", or {in_words(stay)} without anything new do"
            what = "the page stays, to approve or reject: Ctrl-C ends it and the daemons"
            show.say(f"{show.how_it_ended}; {what}{until}")
        if show.outcome is None or show.feed.dialog is not last:
            last, since = show.feed.dialog, time.monotonic()
        elif time.monotonic() - since > stay:
            return
        show.listen(LOOK)
        show.look()
        agents.tend(look_again, show.say)
        dead = agents.dead()
        if show.outcome is not None and len(dead) == len(agents.children):
            return
        if show.outcome is not None and stay and (words := agents.farewell(dead)):
            show.say(words)


def _close(show: LiveView, *, stay: float) -> int:
    """Print how it ended; returns the exit code."""
    try:
        dialog = show.log.read()
    except FileNotFoundError:
        raise NotRunning(f"{show.settings.file} is gone", fix="dialogd run TOPIC begins another dialog") from None
    show.news()
    outcome, turns = dialog.state.outcome, dialog.state.number
    how = ended(dialog) if outcome else "not ended"
    show.say(f"{how} (turn {turns} was the last)")
    if dialog.is_rehearsed:
        show.say("REHEARSAL: the lines were scripted, and nobody will recall them; how to get a model: dialogd doctor")
    tasks = dialog.state.build
    if outcome is not None and outcome.name == "DECIDED" and not tasks and (decided := certify(dialog)) is not None:
        text = f"{decided.ref}: {decided.text}".removeprefix(": ")
        show.say(f"text   {shorten(text, TEXT_LENGTH, placeholder=' …')}")
    show.say(f"file   {show.settings.file}")
    keep_ended(show.settings, dialog)
    if (page := leave_plan(show.settings, dialog)) is not None:
        show.say(f"plan   {page}")
    if outcome is not None and outcome.name in AGREED and not tasks and (way := onwards(dialog, show.settings.file)):
        show.say(f"build  {way}")
    if outcome is not None and outcome.name in AGREED and not stay:
        show.say("page   closed with the daemons; --linger 1h keeps both")
    if step := next_step(dialog, show.settings.file):
        show.say(f"next   {step}")
    return exit_code(outcome)
