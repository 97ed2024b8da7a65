"""`dialogd new`: write a dialog file, and say how to set it going."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dialogd.backends.auto import family_of
from dialogd.backends.seats import Seat
from dialogd.cli import options
from dialogd.cli.cast import warn_of_twins
from dialogd.cli.client import daemons, notify
from dialogd.cli.create import Wanted, asks_for_a_dialog, create, draw_up, usual_ports, with_recalled
from dialogd.cli.launch import is_free
from dialogd.cli.terminal import as_json, plain, remark, show
from dialogd.config import FIRST_PORT, Settings, default_port, file_words, start_command
from dialogd.protocol.units import budget_line
from dialogd.templates.opening import Opening, warnings

Go = Annotated[bool, typer.Option("--go", help="Set it going at once, if the first agent's daemon runs.")]


@asks_for_a_dialog
def new(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What it is about, in a line.")],
    *,
    wanted: Wanted,
    go: Go = False,
    file: options.FileOption = None,
    replace: options.Replace = False,
    json: options.JsonOption = False,
) -> None:
    """Begin a dialog: write its file. A dialog that has ended is archived; one that has not is never overwritten."""
    settings = options.settings_for(file)
    seats = wanted.seats()
    opening = with_recalled(draw_up(wanted, seats, _ports(settings, seats), settings), wanted, settings)
    for cut in (c for c in opening.context if len(c.text.encode("utf-8", "replace")) < c.size):
        remark(plain(f"note: of {cut.path} only the beginning goes along"))
    for warning in warnings(opening):
        remark(plain(f"warning: {warning}"))
    warn_of_twins({seat.id: family_of(seat.backend) for seat in seats})
    copy = create(options.log_of(settings), settings, opening, replace=replace)
    going = _set_going(settings, opening) if go else None
    if json:
        show(as_json(_facts(settings, opening, seats, copy, going)))
    else:
        _tell(settings, opening, seats, copy, going)


def _ports(settings: Settings, seats: tuple[Seat, ...]) -> list[int]:
    """Where daemons of this file listen already, else the usual ports, else those behind what other dialogs use."""
    here = {daemon.id: daemon.port for daemon in daemons(settings, settings.file)}
    taken = {daemon.port for daemon in daemons(settings)}
    behind = iter(port for port in range(FIRST_PORT + len(seats), 65_536) if port not in taken and is_free(port))
    usual = [next(behind) if port in taken else port for port in usual_ports(seats)]
    return [here.get(seat.id, port) for seat, port in zip(seats, usual, strict=True)]


def _set_going(settings: Settings, opening: Opening) -> bool:
    """Notify the daemons of the agents that speak first; True when each of them heard it."""
    running = [daemon for daemon in daemons(settings, settings.file) if daemon.id in opening.first]
    return set(notify(running)) == set(opening.first)


def start_lines(settings: Settings, opening: Opening, seats: tuple[Seat, ...]) -> list[str]:
    """The `dialogd start` command of each agent, ready to paste into a terminal."""
    lines = []
    for seat, agent in zip(seats, opening.agents, strict=True):
        port = int(agent.url.rpartition(":")[2])
        own_port = [] if port == default_port(seat.id) else ["--port", str(port)]
        lines.append(plain(start_command(seat.id, settings.file, (*own_port, *seat.flags()))))
    return lines


def kick_lines(opening: Opening) -> list[str]:
    """The `curl` line for each agent that speaks first."""
    urls = {agent.id: agent.url for agent in opening.agents}
    return [f"curl -X POST {urls[who]}/notify" for who in opening.first]


def _tell(settings: Settings, opening: Opening, seats: tuple[Seat, ...], copy: Path | None, going: bool | None) -> None:
    show(plain(f"{settings.file}\n"))
    starts = start_lines(settings, opening, seats)
    kicks = kick_lines(opening)
    tail = shlex.join(["tail", "-f", str(settings.file)])
    stop = shlex.join(["dialogd", "stop", *file_words(settings.file)])
    archived = [plain(str(copy))] if copy else []
    rows = [
        *_rows("archived", archived),
        *_rows("start", starts),
        *_rows("set going", kicks),
        *_rows("watch", [tail]),
        *_rows("stop", [stop]),
    ]
    show("\n".join(rows))
    if going:
        remark(f"set going: {', '.join(opening.first)} was notified")
    elif going is False:
        remark(
            f"not set going: no daemon of {', '.join(opening.first)} runs here yet; start it, then use the curl line"
        )


def _rows(label: str, lines: list[str]) -> list[str]:
    return [f"{label if index == 0 else '':9} {line}" for index, line in enumerate(lines)]


def _facts(
    settings: Settings, opening: Opening, seats: tuple[Seat, ...], copy: Path | None, going: bool | None
) -> dict[str, object]:
    starts = start_lines(settings, opening, seats)
    return {
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
        "set_going_with": kick_lines(opening),
        "archived": str(copy) if copy else None,
        "notified": going,
    }
