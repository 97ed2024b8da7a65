"""The commands of live seats: the sessions that are open here, what a seat owes, and its reply."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dialogd.backends.sessions import TITLES, running_sessions, session_here
from dialogd.cli import options
from dialogd.cli.client import ask, daemons
from dialogd.cli.terminal import plain, remark, show, table
from dialogd.config import start_command
from dialogd.errors import BadInput, DialogdError, NotRunning, Refused
from dialogd.store.registry import Running

SLICE = 45  # seconds of one waiting call
LARGEST = 1_000_000  # characters of a reply
ANSWER = 30.0  # seconds until it is known what became of a reply

Who = Annotated[str | None, typer.Option("--id", metavar="ID", help="The agent, where several live seats are here.")]


def turn(
    page: Annotated[int, typer.Option("--page", min=1, metavar="N", help="Which page, where it has several.")] = 1,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until a turn is owed, or the dialog ends.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show everything: the rules, and the dialog so far.")] = False,
    agent: Who = None,
    file: options.FileOption = None,
    as_json: options.JsonOption = False,
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
    if as_json:
        show(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        show(plain(found["text"]))
    if found["status"] != "owed":
        raise typer.Exit(1)


def reply(
    text: Annotated[str, typer.Argument(metavar="[FILE]", help="The file with the reply; `-`: standard input.")] = "-",
    *,
    debt: Annotated[str, typer.Option("--debt", metavar="NAME", help="The turn, as `dialogd turn` named it.")] = "",
    agent: Who = None,
    file: options.FileOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Reply for a live seat: to the turn that it owes.

    The reply is never an argument of a shell: what it quotes would be run there.
    """
    words = _read(text)
    daemon = _seat(agent, file)
    if not debt:
        health = _asked(daemon, "GET", "/health", seconds=5)
        debt = str((health.get("delivery") or {}).get("debt") or "")
        if not debt:
            raise Refused(f"{daemon.id} owes no turn now", fix="look what it owes: dialogd turn")
    came = _asked(daemon, "POST", "/reply", {"debt": debt, "text": words}, seconds=ANSWER)
    if as_json:
        show(json.dumps(came, ensure_ascii=False, indent=2))
        return
    number = f"turn {came['turn']}: " if came.get("turn") else ""
    show(plain(f"{number}{came['text']}"))


def sessions(as_json: options.JsonOption = False) -> None:
    """List the coding sessions that are open on this machine.

    Those of Claude Code and Codex, with project, name, what they do (idle, busy, waiting for you) and their seat.
    `dialogd join B --session NAME` asks one of them to take part.
    """
    refused: list[DialogdError] = []
    found = running_sessions(refused)
    seats = {daemon.session: daemon for daemon in daemons(options.settings_for()) if daemon.session}
    facts = [{**asdict(one), "key": one.key, "seat": _seat_of(seats.get(one.key))} for one in found]
    rows = [("program", "project", "name", "does", "seat")]
    for one in found:
        seat = seats.get(one.key)
        where = f"{seat.id} in {seat.file}" if seat is not None else "-"
        rows.append((TITLES[one.program], one.project, one.name, one.status or "unknown", where))
    options.answer(facts, table(rows) if found else ["no open session of Claude Code or Codex is here"], json=as_json)
    for error in refused:
        remark(f"left out: {error}\n  fix: {error.fix}")


def _seat_of(seat: Running | None) -> dict[str, object] | None:
    return None if seat is None else {"agent": seat.id, "file": seat.file, "port": seat.port}


def _read(path: str) -> str:
    """The reply in the file, or on standard input. Raises `BadInput`."""
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
    if around is not None:
        own = [daemon for daemon in daemons(settings) if daemon.session == around.key]
        if own:
            return own[0]
    here = daemons(settings, settings.file)
    chosen = [one for one in here if one.id == agent] if agent else [one for one in here if _is_live(one)]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        ids = ", ".join(one.id for one in chosen)
        raise BadInput(f"several live seats are at {settings.file}: {ids}", fix=f"name one: --id {chosen[0].id}")
    who = f"no daemon of agent {agent} runs" if agent else "no daemon of a live seat runs"
    flags = ["--backend", "live"]
    raise NotRunning(f"{who} at {settings.file}", fix=f"start one: {start_command(agent or 'B', settings.file, flags)}")


def _is_live(daemon: Running) -> bool:
    answer = ask(daemon.port, "GET", "/health", seconds=2)
    return answer is not None and answer[1].get("backend") == "live"


def _asked(
    daemon: Running, method: str, path: str, body: dict[str, Any] | None = None, *, seconds: float
) -> dict[str, Any]:
    """The answer of the seat's daemon. Raises `Refused` with its reason, `NotRunning` without an answer."""
    answer = ask(daemon.port, method, path, body, seconds=seconds)
    if answer is None:
        raise NotRunning(f"the daemon of {daemon.id} does not answer", fix=f"look into its log: {daemon.log}")
    status, found = answer
    if status >= 400:
        why = str(found.get("detail") or f"the daemon of {daemon.id} answered {status}")
        raise Refused(why, fix=str(found.get("fix") or "look what it owes: dialogd turn"))
    return found
