"""The dialogs that Home lists: those that go on, as they stand now, and those of the archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from dialogd.backends.auto import LAST_RESORT, family_of
from dialogd.backends.seats import saved_cast
from dialogd.cli.launch import Ongoing, ongoing
from dialogd.config import Settings
from dialogd.errors import BadInput
from dialogd.memory import DialogRow, Memory
from dialogd.memory.index import excerpt
from dialogd.memory.past import read_dialog, row_of
from dialogd.protocol.build import came_of
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, dollars, one_line
from dialogd.store.folders import StateDir
from dialogd.store.logfile import LogFile
from dialogd.views.standing import RUNS, Run
from dialogd.views.words import words_of

PAGE = 50  # dialogs of one answer
WORDS = 300  # characters of what is said of one
FOUND = 200  # entries that a search of the archive looks at
OPEN = "open"  # all but what has ended
RANK: Mapping[Run, int] = {"waiting": 0, "starting": 1, "running": 1, "asleep": 2, "ended": 3}
AGREED = {"CONSENSUS_REACHED": "agreed", "DECIDED": "decided"}

Row = dict[str, Any]


class Listing:
    """All dialogs of one state directory. What did not change is not read again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = StateDir(settings.state_dir)
        self.memory = Memory(settings.state_dir)
        self._logs: dict[Path, LogFile] = {}
        self._lock = Lock()  # of these: a file is read by one at a time

    def dialogs(self, search: str = "", state: str = "", after: int = 0) -> Row:
        """A page of the list: what waits for the person, what runs, the past; those that hold the words, if any.

        Raises `BadInput` for a state that is none.
        """
        if state and state not in (*RUNS, OPEN):
            raise BadInput(f"no dialog is ever {state[:60]!r}", fix=f"name one of: {', '.join((*RUNS, OPEN))}")
        going = self._ongoing()
        known = {one.dialog.id for one in going}
        rows = sorted(map(self._listed, going), key=lambda row: RANK[row["state"]])
        rows += (_kept(row) for row in self.memory.archived() if row.id.partition("~")[0] not in known)
        fits = [row for row in rows if state in ("", row["state"]) or (state == OPEN and row["state"] != "ended")]
        if search.strip():
            fits = self._searched(fits, search, {one.dialog.id: one.dialog for one in going})
        shown = fits[after : after + PAGE]
        return {"dialogs": shown, "more": len(fits) > after + PAGE, "after": after + len(shown)}

    def standing(self, wanted: str) -> Ongoing | None:
        """The dialog of that id, where it stands in its file still."""
        return next((one for one in self._ongoing(asked=False) if one.dialog.id == wanted), None)

    def text_of(self, wanted: str) -> tuple[Dialog, Path]:
        """A dialog to read, by its id, from its file or from the archive, and where it stands. Raises `BadInput`."""
        if (one := self.standing(wanted)) is not None:
            return one.dialog, one.file
        path = Path(self.memory.dialog(wanted).archive)
        return read_dialog(path), path

    def _ongoing(self, *, asked: bool = True) -> list[Ongoing]:
        with self._lock:
            return ongoing(self.settings, self._logs, asked=asked)

    def _listed(self, one: Ongoing) -> Row:
        """A dialog that goes on, or whose daemons still run, as the list has it."""
        row, dialog = row_of(one.dialog, one.file), one.dialog
        stands, words = one.stands(_ended(row)), one.stands(_ended(row)).words
        if dialog.state.build.all and dialog.state.outcome is None:
            words = f"{came_of(dialog.state.build)}; {words}"
        cast = saved_cast(self.state, one.file)
        seats = {seat.id: seat for seat in cast.seats} if cast is not None and cast.dialog == dialog.id else {}
        agents, models = [], dict(zip(row.agents, row.models, strict=False))
        for agent in dialog.header.agents:
            said, seat = one.healths.get(agent.id) or {}, seats.get(agent.id)
            backend = str(said.get("backend") or (seat.backend if seat else ""))
            model = str(said.get("model") or models.get(agent.id) or (seat.model if seat else ""))
            agents.append({"id": agent.id, "name": agent.name, "backend": backend, "model": model})
        port = next((daemon.port for daemon in one.running if one.healths.get(daemon.id) or dialog.state.outcome), 0)
        return _row(row, agents, stands.state, words) | {
            "waits_for_you": stands.waits_for_you,
            "url": f"http://localhost:{port}/" if port else "",
            "rehearsal": row.is_rehearsal or any(family_of(agent["backend"]) == LAST_RESORT for agent in agents),
        }

    def _searched(self, rows: list[Row], words: str, going: Mapping[str, Dialog]) -> list[Row]:
        """The rows that hold the words: in what is shown of them first, then in what was said there.

        Those that go on are in no archive: they are looked through.
        """
        wanted = words.casefold().split()
        shown = [row for row in rows if all(word in _text(row) for word in wanted)]
        said = {id_: text for id_, dialog in going.items() if (text := _said(dialog, wanted))}
        for hit in self.memory.search(words, limit=FOUND):
            said.setdefault(hit.dialog, hit.snippet)
        rest = {row["id"]: row for row in rows if row not in shown}
        return [*shown, *(rest[id_] | {"found": text} for id_, text in said.items() if id_ in rest)]


def _said(dialog: Dialog, wanted: Sequence[str]) -> str:
    """A piece of the newest entry that holds all these words, which are in lower case; "" where none does."""
    for entry in reversed(dialog.entries):
        text = words_of(entry)
        lower = " ".join(text.split()).casefold()
        if entry.counts and all(word in lower for word in wanted):
            return excerpt(clean(text), wanted)
    return ""


def _text(row: Row) -> str:
    shown = (row[name] for name in ("topic", "words", "outcome", "file", "id"))
    return " ".join((*shown, *(agent["name"] for agent in row["agents"]))).casefold()


def _ended(row: DialogRow) -> str:
    """How a dialog ended, in a sentence: what was agreed, else why it was not."""
    return f"{AGREED[row.outcome]}: {row.decided}" if row.outcome in AGREED and row.decided else row.headline


def _kept(row: DialogRow) -> Row:
    """A dialog of the archive, as the list has it."""
    seats = zip(row.agents, row.names, row.models, strict=True)
    agents = [{"id": who, "name": name or who, "backend": "", "model": model} for who, name, model in seats]
    return _row(row, agents, "ended", _ended(row))


def _row(row: DialogRow, agents: list[dict[str, str]], state: Run, words: str) -> Row:
    """A dialog in the list: `words` says in one sentence how it stands, `cost` what was spent.

    `url` is the page of a daemon that runs, `past` the page to read it on without one; "" is what nobody knows.
    """
    cost = f"{row.tokens:,} tokens" if row.tokens is not None else ""
    if row.is_rehearsal or row.usd is not None:
        cost = "nothing" if row.is_rehearsal else f"{'' if row.is_exact else 'about '}{dollars(row.usd or 0.0)}"
    names = ("id", "topic", "file", "usd", "started", "ended", "outcome", "turns")
    return {name: getattr(row, name) for name in names} | {
        "state": state,
        "words": one_line(words, WORDS),
        "waits_for_you": False,
        "agents": agents,
        "cost": cost,
        "url": "",
        "past": f"/past/{quote(row.id)}",
        "rehearsal": row.is_rehearsal,
        "found": "",
    }
