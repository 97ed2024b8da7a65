"""`dialogd board`, `flow`, `replay` and `logs`."""

from __future__ import annotations

import os
import pathlib
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from dialogd.agent.clock import local
from dialogd.backends.seats import saved_cast, start_again
from dialogd.cli import options
from dialogd.cli.client import daemons
from dialogd.cli.terminal import as_json, fit, line, plain, remark, show, width
from dialogd.config import Settings, load
from dialogd.errors import BadInput, NotADialog, NotRunning
from dialogd.protocol import board as views
from dialogd.protocol.board import Contribution, Decided, Proposed
from dialogd.protocol.grammar import who
from dialogd.protocol.marks import MARKS
from dialogd.protocol.model import USER
from dialogd.protocol.rules import CONTRIBUTIONS
from dialogd.protocol.state import Dialog
from dialogd.store.folders import StateDir
from dialogd.store.logfile import LogFile
from dialogd.views.digest import since_turn
from dialogd.views.flow import Message, as_mermaid, names_of
from dialogd.views.flow import flow as messages_of
from dialogd.views.steps import Step, changed, decisions, facts, steps

WIDTH = 100  # columns
WIDEST = 16  # of a column that is not the last
DECISION = "DECISION"
_REF = re.compile(r"P(\d{1,6})|(?:turn )?(\d{1,9}(?:\.\d{1,9})?)", re.I)

Agent = Annotated[
    str | None, typer.Option("--agent", metavar="ID", help="Only what this agent made or took a side in.")
]
Type = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only this type: PROPOSAL, IDEA, TEXT, DECISION …")
]
Round = Annotated[int | None, typer.Option("--round", min=1, metavar="N", help="Only this round.")]
Ref = Annotated[
    str | None, typer.Option("--ref", metavar="REF", help="Only this proposal (P1) or turn (3), and what refers to it.")
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to show; "" and None: everything."""

    agent: str = ""
    kind: str = ""
    round: int | None = None
    ref: str = ""

    def takes(self, number: int, kind: str, agents: Sequence[str], refs: Sequence[str]) -> bool:
        """True when a row of this round, type, agents, turns and proposals is wanted."""
        return (
            self.round in (None, number)
            and self.kind in ("", kind)
            and (not self.agent or self.agent in agents)
            and (not self.ref or self.ref in refs)
        )


@dataclass(frozen=True, slots=True)
class Board:
    """The rows that are wanted."""

    contributions: tuple[Contribution, ...]
    proposals: tuple[Proposed, ...]
    decisions: tuple[Decided, ...]


def board(
    file: options.FileOption = None,
    agent: Agent = None,
    kind: Type = None,
    number: Round = None,
    ref: Ref = None,
    json: options.JsonOption = False,
) -> None:
    """Show what was contributed, proposed and decided. Filters combine. Exit code 3 where there is no dialog."""
    settings = options.settings_for(file)
    dialog = options.dialog_at(options.log_of(settings))
    wanted = Wanted(
        agent=_agent(dialog, agent) if agent is not None else "",
        kind=_kind(dialog, kind) if kind is not None else "",
        round=number,
        ref=_ref(ref) if ref is not None else "",
    )
    rows = chosen(dialog, wanted)
    if json:
        show(as_json({"file": str(settings.file), "dialog": dialog.id, **asdict(rows)}))
    else:
        show("\n".join(_tables(rows, is_all=wanted == Wanted())))


def chosen(dialog: Dialog, wanted: Wanted) -> Board:
    """The rows of the board that are wanted."""
    made = views.proposals(dialog)
    sides = {p.ref: (p.agent, *p.supporters, *p.opponents, *(vote.agent for vote in p.votes)) for p in made}
    stands = {p.ref: p.entry for p in made}
    speakers = {entry.id: entry.by for entry in dialog.entries}
    return Board(
        tuple(
            c
            for c in views.contributions(dialog)
            if wanted.takes(c.round, c.kind, (c.agent,), (str(c.turn), c.ref, *c.refs))
        ),
        tuple(p for p in made if wanted.takes(p.round, "PROPOSAL", sides[p.ref], (p.ref, p.entry, *p.refs))),
        tuple(
            d
            for d in views.decisions(dialog)
            if wanted.takes(
                d.round, DECISION, (speakers[d.entry], *sides.get(d.ref, ())), (d.ref, d.entry, stands.get(d.ref, ""))
            )
        ),
    )


def _agent(dialog: Dialog, name: str) -> str:
    ids, strangers = who(dialog.header, name)
    if strangers or len(ids) != 1:
        known = ", ".join(f"{agent.id} ({agent.name})" for agent in dialog.header.agents)
        raise BadInput(f"this dialog has no agent {name!r}", fix=f"name one of: {known}")
    return ids[0]


def _kind(dialog: Dialog, name: str) -> str:
    kind = re.sub(r"[\s-]+", "_", name.strip()).upper()
    own = {*dialog.header.rules.kinds, *(c.kind for c in views.contributions(dialog))}
    known = {name for name, kind in CONTRIBUTIONS.items() if kind.counts} | own | {views.TEXT, DECISION}
    if kind not in known:
        raise BadInput(f"no contribution is of type {name!r}", fix=f"name one of: {', '.join(sorted(known))}")
    return kind


def _ref(text: str) -> str:
    match = _REF.fullmatch(" ".join(text.split()))
    if match is None:
        raise BadInput(f"{text!r} is neither a proposal nor a turn", fix="write it like P1 or 3")
    return f"P{int(match[1])}" if match[1] else match[2]


def _tables(rows: Board, *, is_all: bool) -> Iterator[str]:
    """The three tables."""
    if is_all and not (rows.contributions or rows.proposals or rows.decisions):
        yield "this dialog has no contributions, no proposals and no decisions yet"
        return
    yield from _table("contributions", "turn round by type to sure text", map(_contribution, rows.contributions))
    yield ""
    yield from _table("proposals", "ref by entry round decision for against votes", map(_proposal, rows.proposals))
    yield ""
    yield from _table("decisions", "ref outcome method entry round evidence", map(_decision, rows.decisions))


# One row: its cells, and text for a line of its own below them.
Row = tuple[tuple[str, ...], str]


def _contribution(c: Contribution) -> Row:
    kind = f"{c.kind} {c.ref}".strip()
    sure = "" if c.confidence is None else f"{c.confidence:g}"
    return (str(c.turn), str(c.round), c.agent, kind, ", ".join(c.refs), sure, c.text), ""


def _proposal(p: Proposed) -> Row:
    votes = ", ".join(f"{v.agent} {v.choice}{'' if v.weight == 1 else f' (weight {v.weight:g})'}" for v in p.votes)
    sides = ", ".join(p.supporters), ", ".join(p.opponents)
    return (p.ref, p.agent, p.entry, str(p.round), p.decision or "open", *sides, votes), p.text


def _decision(d: Decided) -> Row:
    why = f"superseded: {d.superseded}" if d.superseded else d.reason
    return (d.ref, d.stands, d.method, d.entry, str(d.round), d.evidence), why


def _table(title: str, heads: str, rows: Iterator[Row]) -> Iterator[str]:
    """A table with its title; "none" without rows."""
    listed = [(tuple(line(cell) for cell in cells), line(below)) for cells, below in rows]
    if not listed:
        yield f"{title}: none"
        return
    cells = [tuple(heads.split()), *(cells for cells, _ in listed)]
    widths = [min(max(map(width, column)), WIDEST) for column in zip(*cells, strict=True)]
    yield f"{title}: {len(listed)}"
    for row, below in zip(cells, ["", *(below for _, below in listed)], strict=True):
        yield fit("  " + "  ".join(map(_padded, row[:-1], widths[:-1])) + f"  {row[-1]}", WIDTH).rstrip()
        if below:
            yield fit(f"      {below}", WIDTH)


def _padded(text: str, cells: int) -> str:
    short = fit(text, cells)
    return short + " " * (cells - width(short))


# -- `dialogd flow` ---------------------------------------------------------------------------------------------------

LOOK = 0.1  # seconds between two looks at the file
NO_TIME = "--:--:--"
WIDEST_FLOW = 30  # columns of a name
TEXT = "TEXT"

Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="ID", help="Only from or to this agent, User or System; repeat it for more."),
]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", metavar="KIND", help="Only this kind, such as PROPOSAL; repeat it.")
]
FlowSince = Annotated[
    str | None, typer.Option(metavar="TURN", help="Only after this turn, or this long ago: 7, 2h, yesterday.")
]


Project = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="The dialog of this project: of its settings, or of an agent that works there; or its id."
    ),
]


@dataclass(frozen=True, slots=True)
class FlowWanted:
    """What to show; empty: everything."""

    agents: frozenset[str]
    kinds: frozenset[str]
    since: int | None

    def of(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that are wanted."""
        return [m for m in messages if self._takes(m)]

    def _takes(self, message: Message) -> bool:
        among = {message.from_agent, *message.to_agent.split(", ")}
        return (
            (not self.agents or bool(self.agents & among))
            and (not self.kinds or message.message_type in self.kinds)
            and (self.since is None or message.payload["turn"] > self.since)
        )


def flow(
    path: options.FileArgument = None,
    agent: Agents = None,
    kind: Kinds = None,
    since: FlowSince = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid sequence diagram.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as the dialog does, until it ends.")] = False,
    project: Project = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Show who said what to whom, one line per message.

    A message is a mark, or the text of a turn without marks. Questions that nobody has answered yet stand at the end.
    With --json one array of messages; with --follow too, one object per line.
    """
    if mermaid and (json or follow):
        raise BadInput("--mermaid is a picture of what there is", fix="leave --json and --follow out")
    if project is not None and (path is not None or file is not None):
        raise BadInput("a project and a file are named", fix="name one of the two")
    settings = options.settings_for(path if path is not None else file)
    log = options.log_of(settings if project is None else replace(settings, file=_file_of(project, settings)))
    if follow:
        with suppress(KeyboardInterrupt):
            _follow(log, agent or (), kind or (), since, json=json)
        return
    dialog = options.dialog_at(log)
    messages = _wanted(dialog, agent or (), kind or (), since).of(messages_of(dialog))
    if mermaid:
        show(plain(as_mermaid(messages).removesuffix("\n")))
    elif json:
        show(as_json([asdict(message) for message in messages]))
    else:
        show("\n".join([*_lines(dialog, messages), *_open(messages)]) or "nobody has said anything yet")


def _file_of(project: str, settings: Settings) -> pathlib.Path:
    """The dialog file of a project: from its own settings, else the last one with an agent that works in it.

    Not a folder: the dialog of that id, or of its beginning. Raises `BadInput`.
    """
    from dialogd.memory import Memory

    known = Memory(settings.state_dir)
    folder = pathlib.Path(project).expanduser().resolve()
    if not folder.is_dir():
        return known.dialog_path(project)
    own = load({}, {name: value for name, value in os.environ.items() if name != "DIALOGD_FILE"}, folder)
    if own.origin("file") != "default":
        return own.file
    state = StateDir(settings.state_dir)
    for row in known.dialogs(None, files=[settings.file]):
        cast = saved_cast(state, pathlib.Path(row.file)) if row.file else None
        seats = cast.seats if cast is not None and cast.dialog == row.id else ()
        if any(seat.project and folder == pathlib.Path(seat.project).resolve() for seat in seats):
            return pathlib.Path(row.archive or row.file)
    raise BadInput(
        f"no dialog is known of the project {project}",
        fix=f"name its file: dialogd flow FILE; or set `file` in {folder / 'dialogd.toml'}",
    )


def _wanted(dialog: Dialog, agents: Sequence[str], kinds: Sequence[str], since: str | None) -> FlowWanted:
    """The filters, read by the words of this dialog. Raises `BadInput`."""
    turn = since_turn(dialog, since, datetime.now().astimezone().isoformat(), local) if since is not None else None
    return FlowWanted(
        frozenset(_speaker(dialog, name) for name in agents),
        frozenset(_flow_kind(dialog, name) for name in kinds),
        turn,
    )


def _speaker(dialog: Dialog, name: str) -> str:
    if name.casefold() == "system":
        return "System"
    if name in {agent.id for agent in dialog.header_as_written.agents}:
        return name
    ids, strangers = who(dialog.header, name)
    if strangers or len(ids) != 1:
        known = ", ".join(f"{agent.id} ({agent.name})" for agent in dialog.header.agents)
        raise BadInput(f"nobody in this dialog is called {name!r}", fix=f"name one of: {known}, User, System")
    return "User" if ids[0] == USER else ids[0]


def _flow_kind(dialog: Dialog, name: str) -> str:
    kind = "_".join(name.strip().replace("-", " ").split()).upper()
    known = {*MARKS, *dialog.header.rules.kinds, TEXT}
    if kind not in known and all(message.message_type != kind for message in messages_of(dialog)):
        raise BadInput(f"nothing is of kind {name!r}", fix=f"name one of: {', '.join(sorted(known))}")
    return kind


def _follow(log: LogFile, agents: Sequence[str], kinds: Sequence[str], since: str | None, *, json: bool) -> None:
    """Show all messages, then new ones, until the dialog ends."""
    shown: set[str] = set()
    dialog: Dialog | None = None
    while True:
        before = dialog
        with suppress(FileNotFoundError, NotADialog):  # it may be about to be written
            dialog = log.read()
        if dialog is not None and dialog is not before:
            messages = _wanted(dialog, agents, kinds, since).of(messages_of(dialog))
            fresh = [message for message in messages if message.message_id not in shown]
            shown.update(message.message_id for message in fresh)
            for text in [as_json(asdict(m), indent=None) for m in fresh] if json else _lines(dialog, fresh):
                show(text)
            if dialog.state.outcome is not None:
                return
        time.sleep(LOOK)


def _lines(dialog: Dialog, messages: Sequence[Message]) -> Iterator[str]:
    names = names_of(dialog).values()
    width = min(WIDEST_FLOW, max(map(len, ["System", *map(line, names)])))
    to = max([width, *(min(WIDEST_FLOW, len(_to(m))) for m in messages)])
    kind = max([8, *(len(line(m.message_type)) for m in messages)])
    for message in messages:
        said = message.payload
        words = " ".join(filter(None, [said["reference"], said["summary"]]))
        state = "  (withdrawn)" if said["is_withdrawn"] else "  (open)" if said["is_open"] else ""
        head = f"{clock(message.timestamp)}  {line(message.from_name):>{width}} → {_to(message):{to}}"
        yield plain(f"{head}  {line(message.message_type):{kind}}  {line(words)}{state}".rstrip())


def _open(messages: Sequence[Message]) -> Iterator[str]:
    """The questions that wait for an answer."""
    waiting = [message for message in messages if message.payload["is_open"]]
    if waiting:
        yield ""
        yield f"open: {len(waiting)}"
    for message in waiting:
        said = message.payload
        yield plain(f"  turn {said['turn']}, {line(message.from_name)} → {_to(message)}: {line(said['text'])[:200]}")


def _to(message: Message) -> str:
    return line(", ".join(message.to_names)) or "all"


def clock(at: str) -> str:
    """A time of the file as this machine's clock shows it; dashes for none."""
    try:
        return datetime.fromisoformat(at.replace("Z", "+00:00")).astimezone().strftime("%H:%M:%S")
    except (ValueError, OverflowError):
        return NO_TIME


# -- `dialogd replay` -------------------------------------------------------------------------------------------------

Turn = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only after turn N, with everything that held.")]
Pause = Annotated[bool, typer.Option("--step", help="Wait for Enter after each entry; q ends it.")]


def replay(
    path: options.FileArgument = None,
    turn: Turn = None,
    pause: Pause = False,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Step through a dialog: what each entry changed.

    And what every agent had to do then. With --turn, the whole state after that turn. It is read from the file alone.
    """
    settings = options.settings_for(path if path is not None else file)
    options.dialog_at(options.log_of(settings))  # whether there is one, and whether it can be trusted
    walked = _walked(settings.file.read_bytes())
    if turn is not None:
        found = [row for row in walked if row["number"] == turn]
        if not found:
            raise BadInput(f"this dialog has no turn {turn}", fix="dialogd flow lists its turns")
        show(as_json(found[0]) if json else "\n".join(_replay_lines(found[0], whole=True)))
    elif json:
        show(as_json(list(walked)))
    else:
        _show(walked, pause=pause)


def _show(rows: Iterator[dict[str, Any]], *, pause: bool) -> None:
    for row in rows:
        show("\n".join(_replay_lines(row, whole=False)))
        if pause and (sys.stdin.readline() or "q").strip().casefold() == "q":
            return


def _walked(data: bytes) -> Iterator[dict[str, Any]]:
    """Each entry as facts."""
    before: Mapping[str, str] = {}
    for step in steps(data):
        now, actions = facts(step.dialog), decisions(step.dialog)
        yield {**_entry(step), "state": now, "changed": changed(before, now), "decisions": actions}
        before = now


def _entry(step: Step) -> dict[str, Any]:
    entry = step.entry
    at = entry.frame.at if entry.frame else ""
    return {"entry": entry.id, "number": entry.number, "by": entry.by, "name": entry.name, "at": at}


def _in_words(action: Mapping[str, str]) -> str:
    words = {"reply": "replies", "write": "writes a note", "wait": "waits", "stop": "stops"}[action["action"]]
    return f"{words}: {action['status'] if action['action'] == 'stop' else action['reason']}"


def _replay_lines(row: dict[str, Any], *, whole: bool) -> Iterator[str]:
    kind = f"turn {row['number']}" if row["number"] else f"note {row['entry']}"
    yield plain(f"{clock(row['at'])}  {kind}, {line(row['name'])} ({row['by']})")
    if whole:
        yield from (plain(f"    {name}: {value}") for name, value in row["state"].items())
    else:
        yield from (plain(f"    {name}: {_change(*pair)}") for name, pair in row["changed"].items())
    yield from (plain(f"  → {who} {_in_words(action)}") for who, action in row["decisions"].items())


def _change(before: str, now: str) -> str:
    if before and now:
        return f"{before} → {now}"
    return now or f"no longer ({before})"


# -- `dialogd logs` ---------------------------------------------------------------------------------------------------

LogOf = Annotated[str, typer.Argument(metavar="ID", help="The agent, such as A.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="How many of the last lines.")]


def logs(
    agent: LogOf,
    follow: Follow = False,
    lines: Lines = 50,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Print the last lines of a daemon's log.

    Of an agent's daemon, running or not.
    """
    settings = options.settings_for(file)
    path, is_running = _find(settings, agent, only_here=file is not None)
    with path.open("rb") as source:
        last = [plain(raw.decode("utf-8", "replace").rstrip("\r\n")) for raw in deque(source, lines)]
        at = source.tell()
    if json:
        show(as_json({"agent": agent, "log": str(path), "running": is_running, "lines": last}))
        return
    remark(plain(f"{path}{'' if is_running else ' (not running)'}"))
    if last:
        show("\n".join(last))
    if follow:
        _logs_follow(path, at)


def _find(settings: Settings, agent: str, *, only_here: bool) -> tuple[Path, bool]:
    """The log of that agent: of the daemon that runs, at this file first; else the newest of that name."""
    running = [d for d in daemons(settings) if d.id.casefold() == agent.casefold() and d.log]
    here = [d for d in daemons(settings, settings.file) if d in running]
    for daemon in here or ([] if only_here else running):
        if Path(daemon.log).is_file():
            return Path(daemon.log), True
    folder = StateDir(settings.state_dir).logs
    found = [path for path in folder.glob("*.log") if path.name.casefold().startswith(f"{agent.casefold()}-")]
    if not found:
        again = start_again(StateDir(settings.state_dir), settings.file, None, agent)
        raise NotRunning(
            f"{agent} has no log in {folder}",
            fix=f"start it: {again}; or see `dialogd status`",
        )
    return max(found, key=lambda path: path.stat().st_mtime), False


def _logs_follow(path: Path, at: int) -> None:
    """Print new lines, also after the log was rotated, until Ctrl-C."""
    rest = b""
    inode = path.stat().st_ino
    while True:
        time.sleep(0.2)
        try:
            now = path.stat()
            if now.st_ino != inode or now.st_size < at:
                inode, at, rest = now.st_ino, 0, b""
            with path.open("rb") as source:
                source.seek(at)
                rest += source.read()
                at = source.tell()
        except FileNotFoundError:
            continue
        *whole, rest = rest.split(b"\n")
        for raw in whole:
            show(plain(raw.decode("utf-8", "replace").rstrip("\r")))
