"""A dialog as users of agent tools know sessions: found, described, paged. Everything follows from file and daemons."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from dialogd.agent.prompt import is_shown, may_read
from dialogd.cli import options
from dialogd.cli.client import daemons, healths
from dialogd.cli.launch import PROGRAM, begun
from dialogd.config import Settings
from dialogd.errors import BadInput, DialogdError
from dialogd.memory import DialogRow, Memory
from dialogd.protocol import lifecycle, questions
from dialogd.protocol.certificate import certify
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Participant
from dialogd.protocol.names import OPEN_SESSIONS, SESSIONS, agent_state, session_state
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import many, moment_of, one_line
from dialogd.store.folders import StateDir
from dialogd.store.registry import Running
from dialogd.views.flow import TEXT
from dialogd.views.standing import running

PAGE = 50  # messages of a page
DEFAULT_POSITION = "pair"

Health = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Around:
    """What is known beside the file: which daemons run, what each says of itself, and whether they are being started.

    `healths` holds the agents with a daemon; None for one that did not answer.
    """

    healths: Mapping[str, Health | None] = field(default_factory=dict)
    is_starting: bool = False


def state_of(dialog: Dialog | None, around: Around) -> str:
    """The state of a session, one of `SESSIONS`. Pure."""
    if dialog is None:
        return session_state(None, "starting" if around.is_starting else "asleep")
    return session_state(dialog, running(dialog, around.healths, is_starting=around.is_starting, end="").state)


def reason_of(dialog: Dialog | None, around: Around) -> str:
    """Why the session is in its state, and what it waits for, in words. Pure."""
    if dialog is None:
        return "nothing has been written yet"
    if dialog.state.outcome is not None:
        from dialogd.views.plan import Plan

        return f"ended, {Plan(dialog).headline}"
    if not around.healths and not around.is_starting:
        return "no daemon runs, so nobody answers"
    return lifecycle.in_words(dialog)


# -- One session -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DialogSession:
    """One dialog and what runs on it. `archive` is the copy where the file holds it no longer, None else."""

    settings: Settings
    dialog: Dialog
    around: Around
    running: tuple[Running, ...] = ()
    archive: Path | None = None

    @property
    def file(self) -> Path:
        """The dialog file."""
        return self.settings.file

    @property
    def is_over(self) -> bool:
        """True once the dialog has ended."""
        return self.dialog.state.outcome is not None

    @property
    def position(self) -> str:
        """The template that the dialog began with."""
        return self.dialog.header.rules.template or DEFAULT_POSITION

    @property
    def state(self) -> str:
        """One of `SESSIONS`."""
        return state_of(self.dialog, self.around)

    def facts(self) -> dict[str, Any]:
        """What a list of sessions says of it."""
        dialog = self.dialog
        return {
            "id": dialog.id,
            "position": self.position,
            "status": self.state,
            "reason": reason_of(dialog, self.around),
            "agents": [
                {"id": one.id, "role": _role(dialog, one), "status": agent_state(dialog, one.id, self.around.healths)}
                for one in dialog.header.agents
            ],
            "startedAt": started(dialog),
            "messageCount": len(dialog.entries),
            "topic": dialog.header.topic,
            "file": str(self.archive or self.file),
            "page": next((f"http://localhost:{one.port}" for one in self.running), ""),
        }

    def result(self) -> dict[str, Any]:
        """The facts, with what came of it so far: the outcome, the decided text, what the person is asked."""
        outcome, decided = self.dialog.state.outcome, certify(self.dialog)
        last = next((entry for entry in reversed(self.dialog.entries) if entry.is_turn and entry.by != USER), None)
        return {
            **self.facts(),
            "outcome": outcome.name if outcome else None,
            "decided": decided.text if decided is not None and outcome is not None else None,
            "lastTurn": message(last) if last is not None else None,
            "questions": [] if outcome else questions.facts(self.dialog),
        }


def _role(dialog: Dialog, agent: Participant) -> str:
    """What an agent is called in its dialog."""
    return agent.role or dialog.header.rules.role(agent.id).name or agent.name


def started(dialog: Dialog) -> str:
    """When a dialog began, in ISO; as its header has it where that is no time."""
    moment = moment_of(dialog.header.started)
    return moment.isoformat() if moment is not None else dialog.header.started


def message(entry: Entry) -> dict[str, Any]:
    """One entry as a message."""
    kind = next((mark.name for mark in entry.marks if mark.name not in ("RE", "CONFIDENCE", "TO")), TEXT)
    host = entry.frame.host if entry.frame is not None else ""
    return {
        "id": entry.id,
        "turn": entry.number or None,
        "from": {USER: "USER", SYSTEM: "SYSTEM"}.get(entry.by, entry.by),
        "name": entry.name,
        "type": kind,
        "text": "" if not entry.counts else entry.body.strip("\n"),
        "marks": [str(mark) for mark in entry.marks],
        "to": list(entry.turn or ()),
        "at": entry.at,
        **({"via": host} if host else {}),
        **({"withdrawn": True} if not entry.counts else {}),
    }


def history(dialog: Dialog, agent: str, page: int, reader: str = "") -> dict[str, Any]:
    """The messages of a page, counted from 1, or from -1 at the end; of one agent where one is named.

    `reader` is the agent that reads: it is shown what its prompt may hold, "" for the person. Raises `BadInput`.
    """
    names = {one.id.casefold(): one.id for one in dialog.everybody}
    names |= {one.name.casefold(): one.id for one in dialog.everybody}
    who = {"": "", "user": USER, "system": SYSTEM, "all": "", **names}.get(agent.strip().casefold())
    if who is None:
        known = ", ".join([*(one.id for one in dialog.everybody), USER])
        raise BadInput(f"nobody called {agent[:60]!r} takes part", fix=f"name one of: {known}")
    said = [e for e in dialog.entries if e.condition is not Condition.DAMAGED and (not who or e.by == who)]
    if reader:
        said = [e for e in said if may_read(dialog, e, reader) and is_shown(dialog, e.id, reader)]
    pages = max(-(-len(said) // PAGE), 1)
    number = page if page >= 0 else pages + 1 + page
    if not 1 <= number <= pages:
        raise BadInput(f"there is no page {page}: there {'is' if pages == 1 else 'are'} {many(pages, 'page')}",
                       fix=f"name one from 1 to {pages}, or -1 for the last")  # fmt: skip
    shown = said[(number - 1) * PAGE : number * PAGE]
    more = {"next": number + 1} if number < pages else {}
    return {"session": dialog.id, "page": number, "pages": pages, "messages": [message(e) for e in shown], **more}


# -- All sessions ----------------------------------------------------------------------------------------------------


def sessions(settings: Settings) -> list[DialogSession]:
    """The dialogs that are going on or were begun by a program and stand in their file still; newest first."""
    state = StateDir(settings.state_dir)
    began = dict(begun(state))
    served: dict[Path, list[Running]] = {}
    for daemon in daemons(settings):
        served.setdefault(Path(daemon.file), []).append(daemon)
    answers = healths(daemon for each in served.values() for daemon in each)
    found: list[DialogSession] = []
    for file in dict.fromkeys((*served, *began, settings.file)):
        with suppress(DialogdError, FileNotFoundError):
            own = options.settings_for(str(file))
            here = tuple(served.get(file, ()))
            around = Around({daemon.id: answers[daemon] for daemon in here}, is_starting=began.get(file, False))
            found.append(DialogSession(own, options.log_of(own).read(), around, here))
    return sorted(found, key=lambda one: started(one.dialog), reverse=True)


def at(settings: Settings, file: Path) -> DialogSession:
    """The session in one file. Raises what reading it raises."""
    own = options.settings_for(str(file))
    here = daemons(own, file)
    around = Around({daemon.id: health for daemon, health in healths(here).items()},
                    is_starting=dict(begun(StateDir(settings.state_dir))).get(file, False))  # fmt: skip
    return DialogSession(own, options.dialog_at(options.log_of(own)), around, here)


def find(settings: Settings, wanted: str) -> DialogSession:
    """The session of that id, the beginning of one, or the path of its file; "" where only one is open.

    Also an ended one of the archive. Raises `BadInput` where there is none, or several are meant, and for a file that
    is no session known here and lies outside the folder that the server works in.
    """
    name = wanted.strip()
    if is_path(name):
        file = Path(os.path.normpath(Path.cwd() / Path(name).expanduser()))
        if not (_is_known(settings, file) or file.resolve().is_relative_to(Path.cwd().resolve())):
            raise BadInput(
                f"{name[:200]} is no session known here, and outside {Path.cwd()}", fix="name its id: sessions_list"
            )
        return at(settings, file)
    going = sessions(settings)
    fits = [one for one in going if (one.dialog.id.startswith(name) if name else not one.is_over)]
    exact = [one for one in fits if one.dialog.id == name] or fits
    if len(exact) == 1:
        return exact[0]
    known = ", ".join(one.dialog.id for one in going[:10]) or "none: begin one with `ask`"
    if exact or not name:
        what = f"{wanted!r} means several sessions" if exact and name else f"{many(len(exact), 'session')} are open"
        raise BadInput(what, fix=f"name one of: {known}")
    try:
        row = Memory(settings.state_dir).dialog(name)
    except BadInput:
        raise BadInput(f"there is no session {name[:60]!r}", fix=f"name one of: {known}") from None
    return _kept(row)


def is_path(wanted: str) -> bool:
    """True for what names a session by its file."""
    return wanted.strip().endswith(".md") or os.sep in wanted


def _kept(row: DialogRow) -> DialogSession:
    """An ended session as the archive has it."""
    copy = Path(row.archive)
    return DialogSession(
        options.settings_for(row.file or row.archive), parse(copy.read_bytes()), Around(), archive=copy
    )


def _is_known(settings: Settings, file: Path) -> bool:
    """True for the file of the settings, of a daemon that runs, or of a session that a program began."""
    served = (Path(daemon.file) for daemon in daemons(settings))
    return file in {settings.file, *served, *dict(begun(StateDir(settings.state_dir)))}


def listed(settings: Settings, wanted: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
    """The facts of the sessions that fit, those of the archive behind the others. Raises `BadInput`."""
    status = wanted.get("status", "").strip().lower()
    if status and status not in (*SESSIONS, "open", "all"):
        raise BadInput(f"no session is ever {status[:60]!r}", fix=f"name one of: open, {', '.join(SESSIONS)}")
    found = [one.facts() for one in sessions(settings)]
    known = {facts["id"] for facts in found}
    if status != "open":
        for row in Memory(settings.state_dir).dialogs(limit + len(found)):
            if row.archive and row.id not in known:
                with suppress(DialogdError, OSError):
                    found.append(_kept(row).facts())

    def fits(facts: Mapping[str, Any]) -> bool:
        text, agent = wanted.get("topic", "").casefold(), wanted.get("agent", "").casefold()
        return (
            (status in ("", "all", facts["status"]) or (status == "open" and facts["status"] in OPEN_SESSIONS))
            and wanted.get("position", "").casefold() in ("", facts["position"])
            and text in one_line(facts["topic"], 1_000).casefold()
            and (not agent or any(agent in (a["id"].casefold(), a["role"].casefold()) for a in facts["agents"]))
        )

    return [facts for facts in found if fits(facts)][:limit]


# -- How fast a program may speak --------------------------------------------------------------------------------------

WINDOW = 60.0  # seconds that are looked back
FREE, MOST = 10, 30  # messages of programs in that time: from then on slowed; from then on refused
SLOWEST = 5.0  # seconds


def pause(entries: Sequence[Entry], now: datetime) -> float | None:
    """The seconds to wait before one more message of a program is written; None where it is refused. Pure."""
    count = 0
    for entry in reversed(entries):
        if entry.frame is None or not entry.frame.host:
            continue
        at = moment_of(entry.at)
        if at is not None and (now - at).total_seconds() > WINDOW:
            break
        count += 1
    if count >= MOST:
        return None
    return max(0.0, SLOWEST * (count + 1 - FREE) / (MOST - FREE))


# -- Commands that this package leaves to the command line -------------------------------------------------------------


def result_of_command(words: Sequence[str]) -> tuple[int, str, str]:
    """Run `dialogd WORDS` to its end: exit code, stdout, stderr. A process of its own: stdout may be the protocol's."""
    done = subprocess.run(
        [*PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    return done.returncode, done.stdout, done.stderr
