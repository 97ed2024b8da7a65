"""`dialogd show` and `logs`, and the board of `status`."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from dialogd.backends.seats import saved_cast, start_again
from dialogd.cli import options
from dialogd.cli.options import daemons
from dialogd.cli.terminal import as_json, clock, fit, line, plain, remark, show, table
from dialogd.config import Settings, load
from dialogd.errors import BadInput, NotADialog, NotRunning
from dialogd.protocol import board as views
from dialogd.protocol.grammar import parse, who
from dialogd.protocol.marks import MARKS
from dialogd.protocol.model import SYSTEM
from dialogd.protocol.state import Ballot, Dialog
from dialogd.store.disk import StateDir
from dialogd.views.builds import NAMES, Event, events, look_into
from dialogd.views.flow import Message, as_mermaid, names_of, since_turn
from dialogd.views.flow import flow as messages_of
from dialogd.views.standing import changed, decisions, facts, steps

WIDTH = 100  # columns
WIDEST = 16  # of a column that is not the last
DECISION = "DECISION"


def show_board(settings: Settings, *, json: bool) -> None:
    """Show what was contributed, proposed and decided."""
    dialog = options.dialog_at(options.log_of(settings))
    said, proposed, decided = views.contributions(dialog), views.proposals(dialog), views.decisions(dialog)

    def vote(one: Ballot) -> str:
        return f"{one.agent} {one.choice}{'' if one.weight == 1 else f' (weight {one.weight:g})'}"

    # The cells of each row; the last one stands in a line of its own where it may be long.
    contributions = [
        (str(c.turn), str(c.round), c.agent, f"{c.kind} {c.ref}".strip(), ", ".join(c.refs),
         "" if c.confidence is None else f"{c.confidence:g}", c.text, "")
        for c in said
    ]  # fmt: skip
    proposals = [
        (p.ref, p.agent, p.entry, str(p.round), p.decision or "open", ", ".join(p.supporters),
         ", ".join(p.opponents), ", ".join(map(vote, p.votes)), p.text)
        for p in proposed
    ]  # fmt: skip
    made = [
        (d.ref, d.stands, d.method, d.entry, str(d.round), d.evidence,
         f"superseded: {d.superseded}" if d.superseded else d.reason)
        for d in decided
    ]  # fmt: skip
    lines = [
        *_table("contributions", "turn round by type to sure text", contributions), "",
        *_table("proposals", "ref by entry round decision for against votes", proposals), "",
        *_table("decisions", "ref outcome method entry round evidence", made),
    ]  # fmt: skip
    if not (said or proposed or decided):
        lines = ["this dialog has no contributions, no proposals and no decisions yet"]
    tables: dict[str, Sequence[views.Contribution | views.Proposed | views.Decided]]
    tables = {"contributions": said, "proposals": proposed, "decisions": decided}
    known = {name: [asdict(row) for row in rows] for name, rows in tables.items()}
    options.answer({"file": str(settings.file), "dialog": dialog.id, **known}, lines, json=json)


def _table(title: str, heads: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table with its title, and below each row its last cell; "none" without rows."""
    yield f"{title}: {len(rows) or 'none'}"
    lines = table([heads.split(), *(row[:-1] for row in rows)] if rows else [], WIDEST)
    for row, below in zip(lines, ["", *(row[-1] for row in rows)], strict=False):
        yield fit(f"  {row}", WIDTH)
        if below:
            yield fit(f"      {line(below)}", WIDTH)


# -- `dialogd show` ---------------------------------------------------------------------------------------------------

LOOK = 0.1  # seconds between two looks at the file
WIDEST_NAME = 30  # columns
MOST_HEAD = 100_000  # bytes of a file in which the header of a build is looked for

_ENTRY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

What = Annotated[
    str | None, typer.Argument(metavar="[ENTRY|FILE]", help="An entry, such as 7 or 7.1; or the dialog file.")
]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="ID", help="Only from or to this agent, User or System; repeat it for more."),
]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", metavar="KIND", help="Only this kind, such as PROPOSAL; repeat it.")
]
Since = Annotated[
    str | None, typer.Option(metavar="TURN", help="Only after this turn, or this long ago: 7, 2h, yesterday.")
]
Project = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="The dialog of this project: of its settings, a build in it, or an agent's that works there; or its id."
        " Of a build: what happened to its tasks.",
    ),
]


class FlowLine(NamedTuple):
    """A message, or what happened to a task: what is filtered and shown of it."""

    id: str
    by: str
    to: str
    kind: str
    turn: int
    time: str
    words: str
    what: Message | Event

    @classmethod
    def of(cls, one: Message | Event) -> FlowLine:
        """The line of it."""
        if isinstance(one, Event):
            words = f"{one.reference:8}  {line(one.summary)}"
            return cls(one.id, one.from_agent, one.to_agent, one.type, one.turn, one.time, words, one)
        said = one.payload
        state = "  (withdrawn)" if said["is_withdrawn"] else "  (open)" if said["is_open"] else ""
        words = f"{line(' '.join(filter(None, [said['reference'], said['summary']])))}{state}"
        by, to, kind = one.from_agent, one.to_agent, one.message_type
        return cls(one.message_id, by, to, kind, said["turn"], one.timestamp, words, one)


def show_messages(
    what: What = None,
    agent: Agents = None,
    kind: Kinds = None,
    since: Since = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid sequence diagram.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as the dialog does, until it ends.")] = False,
    project: Project = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Show who said what to whom, or what one entry changed.

    One line per message: a mark, or the text of a turn without marks. Questions that nobody has answered yet stand at
    the end. With --json one array of messages; with --follow too, one object per line. With --project the tasks of a
    build: time, from and to, type, task, summary. With ENTRY how the dialog stood after it, and what every agent had
    to do then.
    """
    entry = what if what and _ENTRY.fullmatch(what) else None
    path = None if entry else what
    if mermaid and (json or follow):
        raise BadInput("--mermaid is a picture of what there is", fix="leave --json and --follow out")
    if project is not None and (path or file):
        raise BadInput("a project and a file are named", fix="name one of the two")
    settings = options.settings_for(path or file)
    if entry:
        _show_entry(settings, entry, json=json)
        return
    log = options.log_of(settings if project is None else replace(settings, file=_file_of(project, settings)))

    def wanted(dialog: Dialog) -> list[FlowLine]:
        agents = {NAMES.get(one, one) for one in (_speaker(dialog, name) for name in agent or ())}
        turn = (
            -1
            if since is None
            else since_turn(dialog, since, datetime.now().astimezone().isoformat(), datetime.astimezone)
        )
        rules, kinds = dialog.state.build.rules, {re.sub(r"[\s-]+", "_", name.strip()).upper() for name in kind or ()}
        every: Iterable[Message | Event] = messages_of(dialog)
        if project is not None and not mermaid and rules is not None:
            every = events(dialog, look_into(Path(rules.repo) if rules.repo else None))
        else:
            _check_kinds(dialog, kinds)
        return [
            told
            for told in map(FlowLine.of, every)
            if (not agents or agents & {told.by, *told.to.split(", ")})
            and (not kinds or told.kind in kinds)
            and told.turn > turn
        ]

    shown: set[str] = set()
    dialog: Dialog | None = None if follow else options.dialog_at(log)
    while follow and (dialog is None or dialog.state.outcome is None):
        before = dialog
        with suppress(FileNotFoundError, NotADialog):  # it may be about to be written
            dialog = log.read()
        if dialog is not None and dialog is not before:
            fresh = [told for told in wanted(dialog) if told.id not in shown]
            shown.update(told.id for told in fresh)
            for text in [as_json(asdict(t.what), indent=None) for t in fresh] if json else _lines(dialog, fresh):
                show(text)
        time.sleep(LOOK)
    if follow or dialog is None:
        return
    told = wanted(dialog)
    messages = [one.what for one in told if isinstance(one.what, Message)]
    if mermaid:
        show(plain(as_mermaid(messages).removesuffix("\n")))
        return
    waiting = [message for message in messages if message.payload["is_open"]]
    lines = [*_lines(dialog, told), *(["", f"open: {len(waiting)}"] if waiting else [])]
    for one in waiting:
        to, words = line(", ".join(one.to_names)) or "all", line(one.payload["text"])[:200]
        lines.append(plain(f"  turn {one.payload['turn']}, {line(one.from_name)} → {to}: {words}"))
    options.answer([asdict(one.what) for one in told], lines or ["nobody has said anything yet"], json=json)


def _speaker(dialog: Dialog, name: str) -> str:
    """The id of whoever is meant, an agent that has left too, USER or SYSTEM. Raises `BadInput`."""
    if name.upper() == SYSTEM or name in {agent.id for agent in dialog.header_as_written.agents}:
        return SYSTEM if name.upper() == SYSTEM else name
    ids, strangers = who(dialog.header, name)
    if strangers or len(ids) != 1:
        known = ", ".join(f"{agent.id} ({agent.name})" for agent in dialog.header.agents)
        raise BadInput(f"nobody in this dialog is called {name!r}", fix=f"name one of: {known}, User, System")
    return ids[0]


def _check_kinds(dialog: Dialog, kinds: Iterable[str]) -> None:
    """Raise `BadInput` for a kind of contribution that there is not."""
    said = {c.kind for c in views.contributions(dialog)} | {message.message_type for message in messages_of(dialog)}
    known = {*MARKS, *dialog.header.rules.kinds, views.TEXT, DECISION} | said
    for kind in kinds:
        if kind not in known:
            raise BadInput(f"nothing is of kind {kind!r}", fix=f"name one of: {', '.join(sorted(known))}")


def _file_of(project: str, settings: Settings) -> Path:
    """The dialog of a project: the one its own settings name, else the last one in which an agent works in it.

    Not a folder: the dialog of that id, or of its beginning. Raises `BadInput`.
    """
    from dialogd.memory import Memory, current

    known = Memory(settings.state_dir)
    folder = Path(project).expanduser().resolve()
    if not folder.is_dir():
        return current(known.dialog(project))[0]
    own = load({}, {name: value for name, value in os.environ.items() if name != "DIALOGD_FILE"}, folder)
    if own.source("file") != "default":
        return own.file
    for row in known.dialogs(None, files=[settings.file]):
        cast = saved_cast(StateDir(settings.state_dir), Path(row.file)) if row.file else None
        places = [seat.project for seat in cast.seats] if cast is not None and cast.dialog == row.id else []
        with suppress(OSError, NotADialog), Path(row.archive or row.file).open("rb") as file:
            head = file.read(MOST_HEAD)
            rules = parse(head).state.build.rules if b"[build]" in head else None
            places += [rules.repo] if rules is not None else []
        if any(place and folder == Path(place).resolve() for place in places):
            return current(row)[0]
    raise BadInput(
        f"no dialog is known of the project {project}",
        fix=f"name its file: dialogd show FILE; or set `file` in {folder / 'dialogd.toml'}",
    )


def _lines(dialog: Dialog, every: Sequence[FlowLine]) -> Iterator[str]:
    names = names_of(dialog)
    whom = [line(", ".join(names.get(who, who) for who in told.to.split(", "))) or "all" for told in every]
    width = min(WIDEST_NAME, max(map(len, ["System", *map(line, names.values())])))
    to = max([width, *(min(WIDEST_NAME, len(one)) for one in whom)])
    kind = max([8, *(len(line(told.kind)) for told in every)])
    for told, one in zip(every, whom, strict=True):
        head = f"{clock(told.time)}  {line(names.get(told.by, told.by)):>{width}} → {one:{to}}"
        yield plain(f"{head}  {line(told.kind):{kind}}  {told.words}".rstrip())


def _show_entry(settings: Settings, wanted: str, *, json: bool) -> None:
    """Show one entry: what it changed, how the dialog stood after it, and what every agent had to do then."""
    options.opened(str(settings.file))  # whether there is one, and whether it can be trusted
    before: Mapping[str, str] = {}
    for entry, dialog in steps(settings.file.read_bytes()):
        now = facts(dialog)
        if entry.id == wanted:
            known = {"entry": entry.id, "number": entry.number, "by": entry.by, "name": entry.name, "at": entry.at}
            row = {**known, "state": now, "changed": changed(before, now), "decisions": decisions(dialog)}
            options.answer(row, _entry_lines(row), json=json)
            return
        before = now
    raise BadInput(f"this dialog has no entry {wanted}", fix="dialogd show lists its turns")


def _entry_lines(row: dict[str, Any]) -> Iterator[str]:
    kind = f"turn {row['number']}" if row["number"] else f"note {row['entry']}"
    yield f"{clock(row['at'])}  {kind}, {line(row['name'])} ({row['by']})"
    for name, value in row["state"].items():
        was, _ = row["changed"].get(name, ("", ""))
        yield f"    {name}: {value}{f'  (before: {was})' if was else ''}"
    words = {"reply": "replies", "write": "writes a note", "wait": "waits", "stop": "stops"}
    for agent, action in row["decisions"].items():
        why = action["status"] if action["action"] == "stop" else action["reason"]
        yield f"  → {agent} {words[action['action']]}: {why}"


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
    path, is_running = _log_of(settings, agent, only_here=file is not None)
    with path.open("rb") as source:
        last = [plain(raw.decode("utf-8", "replace").rstrip("\r\n")) for raw in deque(source, lines)]
        at = source.tell()
    if not json:
        remark(f"{path}{'' if is_running else ' (not running)'}")
    options.answer({"agent": agent, "log": str(path), "running": is_running, "lines": last}, last, json=json)
    rest, inode = b"", path.stat().st_ino
    while follow and not json:
        time.sleep(0.2)
        with suppress(FileNotFoundError):
            now = path.stat()
            if now.st_ino != inode or now.st_size < at:  # it was rotated
                inode, at, rest = now.st_ino, 0, b""
            with path.open("rb") as source:
                source.seek(at)
                *whole, rest = (rest + source.read()).split(b"\n")
                at = source.tell()
            for raw in whole:
                show(plain(raw.decode("utf-8", "replace").rstrip("\r")))


def _log_of(settings: Settings, agent: str, *, only_here: bool) -> tuple[Path, bool]:
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
        raise NotRunning(f"{agent} has no log in {folder}", fix=f"start it: {again}; or see `dialogd status`")
    return max(found, key=lambda path: path.stat().st_mtime), False
