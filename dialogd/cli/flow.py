"""`dialogd flow`: who said what to whom, one line per turn or mark."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Annotated

import typer

from dialogd.agent.clock import local
from dialogd.backends.seats import saved_cast
from dialogd.cli import options
from dialogd.cli.terminal import as_json, line, plain, show
from dialogd.config import Settings, load
from dialogd.errors import BadInput, NotADialog
from dialogd.protocol.grammar import who
from dialogd.protocol.marks import MARKS
from dialogd.protocol.model import USER
from dialogd.protocol.state import Dialog
from dialogd.store.folders import StateDir
from dialogd.store.logfile import LogFile
from dialogd.views.digest import since_turn
from dialogd.views.flow import Message, as_mermaid, names_of
from dialogd.views.flow import flow as messages_of

LOOK = 0.1  # seconds between two looks at the file
NO_TIME = "--:--:--"
WIDEST = 30  # columns of a name
TEXT = "TEXT"

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
        metavar="DIR", help="The dialog of this project: of its settings, or of an agent that works there; or its id."
    ),
]


@dataclass(frozen=True, slots=True)
class Wanted:
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
    since: Since = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid sequence diagram.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as the dialog does, until it ends.")] = False,
    project: Project = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Show who said what to whom: a line for each mark, or for the text of a turn without marks.

    Questions that nobody has answered yet stand at the end. With --json one array of messages; with --follow too, one
    object per line.
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
    """The dialog of a project: the one its own settings name, else the last one in which an agent works in it.

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


def _wanted(dialog: Dialog, agents: Sequence[str], kinds: Sequence[str], since: str | None) -> Wanted:
    """The filters, read by the words of this dialog. Raises `BadInput`."""
    turn = since_turn(dialog, since, datetime.now().astimezone().isoformat(), local) if since is not None else None
    return Wanted(
        frozenset(_speaker(dialog, name) for name in agents), frozenset(_kind(dialog, name) for name in kinds), turn
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


def _kind(dialog: Dialog, name: str) -> str:
    kind = "_".join(name.strip().replace("-", " ").split()).upper()
    known = {*MARKS, *dialog.header.rules.kinds, TEXT}
    if kind not in known and all(message.message_type != kind for message in messages_of(dialog)):
        raise BadInput(f"nothing is of kind {name!r}", fix=f"name one of: {', '.join(sorted(known))}")
    return kind


def _follow(log: LogFile, agents: Sequence[str], kinds: Sequence[str], since: str | None, *, json: bool) -> None:
    """Show what there is, then what comes, until the dialog ends."""
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
    width = min(WIDEST, max(map(len, ["System", *map(line, names)])))
    to = max([width, *(min(WIDEST, len(_to(m))) for m in messages)])
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
