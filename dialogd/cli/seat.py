"""The commands of live seats: the sessions that are open here, what a seat owes, and its reply."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer

from dialogd import person
from dialogd.backends.auto import LIVE
from dialogd.backends.live import ASKS, UNASKED
from dialogd.backends.open_sessions import (
    TITLES,
    Session,
    of_key,
    program_of,
    running_sessions,
    session_here,
    wake,
)
from dialogd.cli import options
from dialogd.cli.create import AGREES, SEATS, Start, is_free, new_cast
from dialogd.cli.launch import FAILED, Daemons, Interrupt, detached, end, peers
from dialogd.cli.options import Text, daemons, health, notify, option, plain, remark, show, table
from dialogd.config import Settings, command_on, default_port, file_flag
from dialogd.errors import AlreadyRunning, BadInput, DialogdError, NotRunning, Refused
from dialogd.protocol.state import Dialog
from dialogd.store.registry import CLAUDE, CODEX, Running, is_inside

TOPIC = 100  # characters of a question that stand as the topic
END = 5.0  # seconds in which a daemon ends
SLICE = 45  # seconds of one waiting call
LARGEST = 1_000_000  # characters of a reply
ANSWER = 30.0  # seconds until it is known what became of a reply
RULES = "Bash(dialogd live turn:*) and Bash(dialogd live reply:*)"  # no more: `dialogd` alone also starts programs

live = typer.Typer(no_args_is_help=True)

Who = Annotated[Text, option("ID", "The agent, where several live seats are here.", "--id")]


# -- A session takes a seat -------------------------------------------------------------------------------------------


@live.command()
def join(
    agent: Annotated[Text, typer.Argument(metavar="[ID]", help="The seat: B. Default: the first free.")] = None,
    *,
    session: Annotated[Text, option("NAME", "Another session, as `dialogd live sessions` names it.")] = None,
    timeout: Annotated[str, option("TIME", "How long one of its turns may take. Default: 30 minutes.")] = "",
    go: Annotated[bool, typer.Option("--go", help="Set the dialog going, where its agents wait to begin.")] = False,
    file: options.FileOption = None,
) -> None:
    """Take part with the coding session that you are in.

    Type `!dialogd live join B` into an open session of Claude Code or Codex. From then on one line comes there
    whenever a turn is B's; `dialogd live turn` shows it, `dialogd live reply` answers. With --session another session
    is asked, and takes part once `dialogd live accept` was run in it; before that it is told nothing of the dialog.
    """
    settings = options.settings_for(file)
    if session:
        person.admitted(options.log_of(settings), "seat")
    one = _picked(session) if session else _around("live join")
    dialog = _open_dialog(settings)
    who = _place(settings, dialog, agent or settings.id)
    if _is_taken_by(settings, one, who):
        show(plain(f"{who} is this session's seat already. {_turn_line(who, settings.file, one)}"))
        return
    if dialog is not None:
        person.seat(options.log_of(settings), who, TITLES[one.program], timeout)
    elif timeout:
        command = shlex.join(["dialogd", "limit", "timeout", f"{who} {timeout}"])
        raise BadInput(
            f"there is no dialog yet, and its file is where it stands how long {who}'s turns may take",
            fix=f"join without --timeout; once it is written: {command}",
        )
    known = dialog.header.agent(who) if dialog is not None else None
    usual = known.port if known is not None else default_port(who)
    key, port = one.key + (UNASKED if session else ""), None if usual is not None and is_free(usual) else 0
    ready = options.settings_for(file, id=who, backend=LIVE, session=key, port=port)
    daemon = detached(ready, peers(ready, ()))
    if session:
        try:
            asyncio.run(wake(one, ASKS))
        except BaseException:
            _end(daemon)
            raise
        show(plain(f"the {one.title} in {one.project} was asked to take the seat of {who}: {AGREES}"))
    else:
        show(plain(_welcome(who, settings, dialog, one)))
    show(plain(_keeps(one)))
    if go:
        notify(daemons(settings, settings.file))


def take(settings: Settings) -> Settings:
    """Have the session of these settings take the seat of their agent: with a time of its own, noted in the file.

    One that this process does not run in has to agree first, as the settings say then. Raises `AlreadyRunning` where
    it holds another seat.
    """
    key = settings.session.removesuffix(UNASKED)
    _release(settings, key)
    person.seat(options.log_of(settings), settings.id, program_of(key))
    return replace(settings, session=key if settings.session == key and is_inside(os.getpid(), key) else key + UNASKED)


@live.command()
def accept(json: options.JsonOption = False) -> None:
    """Agree to take part, in a session that was asked to."""
    one = _around("live accept")
    asked = next((daemon for daemon in daemons(options.settings_for()) if daemon.session == one.key), None)
    if asked is None:
        raise NotRunning("nobody has asked this session to take part", fix="take a seat yourself: dialogd live join")
    came = _asked(asked, "POST", "/accept", {}, seconds=5)
    settings = options.settings_for(asked.file)
    options.answer(came, [_welcome(asked.id, settings, _open_dialog(settings), one), _keeps(one)], json=json)


def ask(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Who is asked: BACKEND[:MODEL][@DIR], such as codex.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question; `-` reads standard input.")],
    *,
    timeout: Annotated[str, option("TIME", "How long one of this session's turns may take. Default: 30 minutes.")] = "",
    file: options.FileOption = None,
) -> None:
    """Ask another agent something, from the session you are in.

    Type `!dialogd ask codex "Is this schema right?"` into an open session of Claude Code or Codex: it takes
    the seat A of a new dialog, speaks first, and a new Codex, which only reads the project, takes B.
    """
    words = options.typed(question)
    one = _around("ask", f"in any terminal, with two fresh agents: dialogd run --agents auto,{agent} …")
    _release(options.settings_for(file), one.key)
    folder = "" if "@" in agent else f"@{one.project}"
    topic = shorten(" ".join(words.split()), TOPIC, placeholder=" …")
    wanted = Start(topic, words, agent=[f"A=live:{one.key}", f"B={agent}{folder}"], first="A")
    settings, cast = new_cast(options.settings_for(file), wanted, "", replace=False, seat_timeout=timeout)
    both = Daemons(settings, cast)
    try:
        both.start(Interrupt())
    except BaseException:
        end(both.children.values())
        with suppress(FileNotFoundError):
            person.stop(options.log_of(settings), FAILED)
        raise
    show(plain(_welcome("A", settings, _open_dialog(settings), one)))
    show(plain(f"{_keeps(one)}\nwatch: tail -f {settings.file}; end it: {command_on(settings.file, 'stop')}"))


def _around(command: str, other: str = "") -> Session:
    """The session that this command runs inside of. Raises `BadInput` where it runs in none."""
    one = session_here(os.environ)
    if one is None:
        fix = other or (
            "pick one from here: dialogd live join --session NAME (dialogd live sessions lists them); any other"
            " program: dialogd start B --backend live, then dialogd live turn --wait"
        )
        raise BadInput(
            "this terminal is inside of no coding session",
            fix=f"type it into an open session of Claude Code or Codex: !dialogd {command} …; or {fix}",
        )
    return one


def _picked(name: str) -> Session:
    """The open session of that name, key, number or project folder. Raises `BadInput` for none, or several."""
    every = running_sessions()
    ways = [
        [one for one in every if name in (one.key, one.name, one.id, str(one.pid))],
        [one for one in every if name in (one.project, Path(one.project).name)],
    ]
    found = next(filter(None, ways), [])
    if len(found) == 1:
        return found[0]
    known = ", ".join(one.name for one in found or every) or "none is open"
    what = f"{len(found)} sessions are called {name!r}" if found else f"there is no open session {name!r}"
    raise BadInput(what, fix=f"name one of these: {known} (dialogd live sessions shows them)")


def _open_dialog(settings: Settings) -> Dialog | None:
    with suppress(FileNotFoundError):
        dialog = options.log_of(settings).read()
        return None if dialog.state.outcome is not None else dialog
    return None


def _place(settings: Settings, dialog: Dialog | None, agent: str) -> str:
    """The seat that is meant, else the first one that nobody has. Raises `BadInput`, `Refused`."""
    if agent:
        return person.single(person.named(dialog, agent), agent) if dialog is not None else agent
    here = daemons(settings, settings.file)
    taken = {one.id for one in here if not (one.session and _is_gone(one))}
    ids = [one.id for one in dialog.header.agents] if dialog is not None else [*SEATS]
    free = next((who for who in ids if who not in taken), "")
    if not free:
        raise Refused(
            f"every seat at {settings.file} is taken: {', '.join(ids)}",
            fix="make one more: dialogd invite C, then join C",
        )
    return free


def _is_taken_by(settings: Settings, one: Session, who: str) -> bool:
    """True when the session has this very seat. Ends the daemon of a session that is gone.

    Raises `AlreadyRunning` when the session has another seat, or the seat another holder.
    """
    there = next((daemon for daemon in daemons(settings, settings.file) if daemon.id == who), None)
    if there is not None and there.session == one.key:
        return True
    _release(settings, one.key)
    if there is not None:
        if not there.session or not _is_gone(there):
            holder = "an open session" if there.session else "a daemon"
            raise AlreadyRunning(
                f"{holder} holds the seat of {who} at {settings.file} (pid {there.pid})",
                fix=f"take another seat, or end that daemon: kill {there.pid}",
            )
        _end(there)
    return False


def _release(settings: Settings, key: str) -> None:
    """End what holds a seat for the session in dialogs that are over; raises `AlreadyRunning` where one goes on."""
    for daemon in [daemon for daemon in daemons(settings) if daemon.session == key]:
        if _open_dialog(options.settings_for(daemon.file)) is not None and not _is_gone(daemon):
            raise AlreadyRunning(
                f"this session holds the seat of {daemon.id} in {daemon.file}, and a session has one seat",
                fix="to move it, end that seat first, in a terminal of your own that this session did not start:"
                f" {command_on(Path(daemon.file), 'stop')}, or kill {daemon.pid}",
            )
        _end(daemon)


def _is_gone(daemon: Running) -> bool:
    try:
        return of_key(daemon.session) is None
    except BadInput:
        return True


def _end(daemon: Running) -> None:
    options.signalled(daemon, signal.SIGTERM)
    if not options.gone(daemon, time.monotonic() + END):
        raise AlreadyRunning(f"the daemon of {daemon.id} does not end", fix=f"kill -9 {daemon.pid}")


def _welcome(who: str, settings: Settings, dialog: Dialog | None, one: Session) -> str:
    waits = "" if dialog is not None else f'; there is none yet: dialogd new "TOPIC" --go{file_flag(settings.file)}'
    return f"this session is agent {who} in a dialog{waits}. {_turn_line(who, settings.file, one)}"


def _turn_line(who: str, file: Path, one: Session) -> str:
    how = "run `dialogd live turn`, and `dialogd live reply` with the reply on standard input, or in a file"
    if one.program == CODEX:
        how = "call the tools wait_for_turn and reply of the MCP server dialogd, for the sandbox bars these commands"
    return f"Whenever a turn is {who}'s, one line comes here: then {how} (the dialog: {file})"


def _keeps(one: Session) -> str:
    """What it may do, and how it does its part without a prompt each time."""
    asks = f"\nso that it need not ask you for each turn: /permissions, then allow {RULES}" * (one.program == CLAUDE)
    return (
        f"it keeps its own permissions, with write access to {one.project or 'its project'}; what others write comes as"
        f" data, never as orders{asks}"
    )


# -- What a seat owes -------------------------------------------------------------------------------------------------


@live.command()
def turn(
    page: Annotated[int, option("N", "Which page, where it has several. Default: 1.", least=1)] = 1,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until a turn is owed, or the dialog ends.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show everything: the rules, and the dialog so far.")] = False,
    agent: Who = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Show the turn that a live seat owes, and how to answer.

    Exit code 1 while none is owed. The text to be signed or voted on is always there in full.
    """
    daemon = _seat(agent, file)
    while True:
        path = f"/turn?page={page}&wait={SLICE if wait else 0}" + ("&full=1" if full else "")
        found = _asked(daemon, "GET", path, seconds=SLICE + 5)
        if found["status"] in ("owed", "ended") or not wait:
            break
    options.answer(found, [found["text"]], json=json)
    if found["status"] != "owed":
        raise typer.Exit(1)


@live.command()
def reply(
    text: Annotated[str, typer.Argument(metavar="[FILE]", help="The file with the reply; `-`: standard input.")] = "-",
    *,
    debt: Annotated[str, option("NAME", "The turn, as `dialogd live turn` named it.")] = "",
    agent: Who = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Reply for a live seat: to the turn that it owes.

    The reply is never an argument of a shell: what it quotes would be run there.
    """
    words = _read(text)
    daemon = _seat(agent, file)
    if not debt:
        said = _asked(daemon, "GET", "/health", seconds=5)
        debt = str((said.get("delivery") or {}).get("debt") or "")
        if not debt:
            raise Refused(f"{daemon.id} owes no turn now", fix="look what it owes: dialogd live turn")
    came = _asked(daemon, "POST", "/reply", {"debt": debt, "text": words}, seconds=ANSWER)
    options.answer(came, [(f"turn {came['turn']}: " if came.get("turn") else "") + came["text"]], json=json)


@live.command()
def sessions(json: options.JsonOption = False) -> None:
    """List the coding sessions that are open on this machine.

    Those of Claude Code and Codex, with project, name, what they do (idle, busy, waiting for you)
    and their seat.
    `dialogd live join B --session NAME` asks one of them to take part.
    """
    refused: list[DialogdError] = []
    seats = {daemon.session: daemon for daemon in daemons(options.settings_for()) if daemon.session}
    facts: list[dict[str, object]] = []
    rows = [("program", "project", "name", "does", "seat")]
    for one in running_sessions(refused):
        seat, where, held = seats.get(one.key), "-", None
        if seat is not None:
            where, held = f"{seat.id} in {seat.file}", {"agent": seat.id, "file": seat.file, "port": seat.port}
        facts.append({**asdict(one), "key": one.key, "seat": held})
        rows.append((TITLES[one.program], one.project, one.name, one.status or "unknown", where))
    options.answer(facts, table(rows) if facts else ["no open session of Claude Code or Codex is here"], json=json)
    for error in refused:
        remark(f"left out: {error}\n  fix: {error.fix}")


def _read(path: str) -> str:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", fix="name a file that holds the reply") from None
    text = options.in_utf8(data, "the reply")
    if len(text) > LARGEST:
        raise BadInput(f"a reply has at most {LARGEST:,} characters", fix="make it shorter")
    return text


def _seat(agent: str | None, file: str | None) -> Running:
    """The daemon of the live seat that is meant: by its id; that of the session around; the only one at this file."""
    settings = options.settings_for(file)
    around = None if agent or file else session_here(os.environ)
    chosen = [one for one in daemons(settings) if one.session == around.key][:1] if around is not None else []
    if not chosen:
        here = daemons(settings, settings.file)
        chosen = [one for one in here if (one.id == agent if agent else (health(one) or {}).get("backend") == LIVE)]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        ids = ", ".join(one.id for one in chosen)
        raise BadInput(f"several live seats are at {settings.file}: {ids}", fix=f"name one: --id {chosen[0].id}")
    who = f"no daemon of agent {agent} runs" if agent else "no daemon of a live seat runs"
    again = command_on(settings.file, "start", agent or "B", "--backend", LIVE)
    raise NotRunning(f"{who} at {settings.file}", fix=f"start one: {again}")


def _asked(
    daemon: Running, method: str, path: str, body: dict[str, Any] | None = None, *, seconds: float
) -> dict[str, Any]:
    """The answer of the seat's daemon. Raises `Refused` with its reason, `NotRunning` without an answer."""
    answer = options.ask(daemon.port, method, path, body, seconds=seconds)
    retry = f"look into its log: {daemon.log}"
    return options.accepted(daemon, answer, fix="look what it owes: dialogd live turn", retry=retry)
