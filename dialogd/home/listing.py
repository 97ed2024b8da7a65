"""The dialogs that Home lists: those that go on, as they stand now, and those of the archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from dialogd.backends.auto import LAST_RESORT, family_of
from dialogd.backends.seats import saved_cast
from dialogd.cli.client import daemons, healths
from dialogd.cli.launch import begun
from dialogd.config import Settings
from dialogd.errors import BadInput, DialogdError
from dialogd.home.forms import Dialogs, Listed, ListedAgent
from dialogd.memory import DialogRow, Memory
from dialogd.memory.index import excerpt
from dialogd.memory.past import read_dialog, row_of
from dialogd.protocol.build import came_of
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, dollars, one_line
from dialogd.store.folders import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.store.registry import Running
from dialogd.views.standing import RUNS, Run, running
from dialogd.views.words import words_of

PAGE = 50  # dialogs of one answer
WORDS = 300  # characters of what is said of one
FOUND = 200  # entries that a search of the archive looks at
OPEN = "open"  # all but what has ended
RANK: Mapping[Run, int] = {"waiting": 0, "starting": 1, "running": 1, "asleep": 2, "ended": 3}

Health = Mapping[str, Any]


@dataclass(frozen=True)
class OnDisk:
    """A dialog that stands in its file, and what runs on it; `healths` holds the agents with a daemon."""

    dialog: Dialog
    file: Path
    running: tuple[Running, ...]
    healths: Mapping[str, Health | None]
    is_starting: bool


class Listing:
    """All dialogs of one state directory. What did not change is not read again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = StateDir(settings.state_dir)
        self.memory = Memory(settings.state_dir)
        self._logs: dict[Path, LogFile] = {}
        self._lock = Lock()  # of these: a file is read by one at a time

    def dialogs(self, search: str = "", state: str = "", after: int = 0) -> Dialogs:
        """A page of the list: what waits for the person, what runs, the past; those that hold the words, if any.

        Raises `BadInput` for a state that is none.
        """
        if state and state not in (*RUNS, OPEN):
            raise BadInput(f"no dialog is ever {state[:60]!r}", fix=f"name one of: {', '.join((*RUNS, OPEN))}")
        going = list(self._going())
        known = {one.dialog.id for one in going}
        rows = [*sorted((self._listed(one) for one in going), key=lambda row: RANK[row.state])]
        rows += (_kept(row) for row in self.memory.archived() if row.id.partition("~")[0] not in known)
        fits = [row for row in rows if state in ("", row.state) or (state == OPEN and row.state != "ended")]
        if search.strip():
            fits = self._searched(fits, search, {one.dialog.id: one.dialog for one in going})
        shown = fits[after : after + PAGE]
        return Dialogs(dialogs=shown, more=len(fits) > after + PAGE, after=after + len(shown))

    def standing(self, wanted: str) -> OnDisk | None:
        """The dialog of that id, where it stands in its file still."""
        return next((one for one in self._going(asked=False) if one.dialog.id == wanted), None)

    # -- what goes on -----------------------------------------------------------------------------------------------

    def _going(self, *, asked: bool = True) -> Iterator[OnDisk]:
        """The dialogs with daemons, and those that have not ended; `asked`: with what their daemons say now."""
        served: dict[Path, list[Running]] = {}
        for daemon in daemons(self.settings):
            served.setdefault(Path(daemon.file), []).append(daemon)
        runs = dict(begun(self.state))
        files = dict.fromkeys((*served, *self._unkept((*runs, self.settings.file))))
        with self._lock:
            found = {file: dialog for file in files if (dialog := self._dialog(file)) is not None}
            self._logs = {file: log for file, log in self._logs.items() if file in files}
        open_ones = [file for file in found if found[file].state.outcome is None]
        answers = healths(one for file in open_ones for one in served.get(file, ())) if asked else {}
        for file, dialog in found.items():
            daemons_of = tuple(served.get(file, ()))
            if dialog.state.outcome is not None and not daemons_of:
                self.memory.keep(dialog, file)
                continue
            said = {one.id: answers.get(one) for one in daemons_of}
            yield OnDisk(dialog, file, daemons_of, said, is_starting=runs.get(file, False))

    def _unkept(self, files: Iterable[Path]) -> Iterator[Path]:
        """Those of the files whose dialog is not in the archive as it stands: the others are not read at all."""
        kept = self.memory.sizes()
        for file in files:
            with suppress(OSError):
                if file.stat().st_size not in kept.get(str(file), ()):
                    yield file

    def _dialog(self, file: Path) -> Dialog | None:
        """The dialog in the file; of one that is known only what is new is read. None for none."""
        if (log := self._logs.get(file)) is None:
            log = self._logs[file] = LogFile(file, Journals(self.state.dialog(file)))
        try:
            return log.read()
        except (DialogdError, OSError):
            return None

    def _listed(self, one: OnDisk) -> Listed:
        """A dialog that goes on, or whose daemons still run, as the list has it."""
        row, dialog = row_of(one.dialog, one.file), one.dialog
        stands = running(dialog, one.healths, is_starting=one.is_starting, end=_ended(row))
        words = stands.words
        if dialog.state.build.all and dialog.state.outcome is None:
            words = f"{came_of(dialog.state.build)}; {words}"
        cast = saved_cast(self.state, one.file)
        seats = {seat.id: seat for seat in cast.seats} if cast is not None and cast.dialog == dialog.id else {}
        agents, models = [], dict(zip(row.agents, row.models, strict=False))
        for agent in dialog.header.agents:
            said, seat = one.healths.get(agent.id) or {}, seats.get(agent.id)
            backend = str(said.get("backend") or (seat.backend if seat else ""))
            model = str(said.get("model") or models.get(agent.id) or (seat.model if seat else ""))
            agents.append(ListedAgent(id=agent.id, name=agent.name, backend=backend, model=model))
        port = next((daemon.port for daemon in one.running if one.healths.get(daemon.id) or dialog.state.outcome), 0)
        return _row(row, agents, stands.state, one_line(words, WORDS)).model_copy(
            update={
                "waits_for_you": stands.waits_for_you,
                "url": f"http://localhost:{port}/" if port else "",
                "rehearsal": row.is_rehearsal or any(family_of(one.backend) == LAST_RESORT for one in agents),
            }
        )

    # -- search -----------------------------------------------------------------------------------------------------

    def _searched(self, rows: list[Listed], words: str, going: Mapping[str, Dialog]) -> list[Listed]:
        """The rows that hold the words: in what is shown of them first, then in what was said there.

        Those that go on are in no archive: they are looked through.
        """
        wanted = words.casefold().split()
        shown = [row for row in rows if all(word in _text(row) for word in wanted)]
        said = {id_: text for id_, dialog in going.items() if (text := _said(dialog, wanted))}
        for hit in self.memory.search(words, limit=FOUND):
            said.setdefault(hit.dialog, hit.snippet)
        rest = {row.id: row for row in rows if row not in shown}
        return [*shown, *(rest[id_].model_copy(update={"found": text}) for id_, text in said.items() if id_ in rest)]


def _said(dialog: Dialog, wanted: Sequence[str]) -> str:
    """A piece of the newest entry that holds all these words, which are in lower case; "" where none does."""
    for entry in reversed(dialog.entries):
        text = words_of(entry)
        lower = " ".join(text.split()).casefold()
        if entry.counts and all(word in lower for word in wanted):
            return excerpt(clean(text), wanted)
    return ""


def _text(row: Listed) -> str:
    return " ".join((row.topic, row.words, row.outcome, row.file, row.id, *(a.name for a in row.agents))).casefold()


AGREED = {"CONSENSUS_REACHED": "agreed", "DECIDED": "decided"}


def _ended(row: DialogRow) -> str:
    """How a dialog ended, in a sentence: what was agreed, else why it was not."""
    if row.outcome in AGREED and row.decided:
        return f"{AGREED[row.outcome]}: {row.decided}"
    return row.headline


def _kept(row: DialogRow) -> Listed:
    """A dialog of the archive, as the list has it."""
    seats = zip(row.agents, row.names, row.models, strict=True)
    cast = [ListedAgent(id=who, name=name or who, model=model) for who, name, model in seats]
    return _row(row, cast, "ended", one_line(_ended(row), WORDS))


def _row(row: DialogRow, agents: list[ListedAgent], state: Run, words: str) -> Listed:
    return Listed(
        id=row.id,
        topic=row.topic,
        file=row.file,
        state=state,
        words=words,
        agents=agents,
        cost=_cost(row),
        usd=row.usd,
        started=row.started,
        ended=row.ended,
        outcome=row.outcome,
        turns=row.turns,
        past=f"/past/{quote(row.id)}",
        rehearsal=row.is_rehearsal,
    )


def _cost(row: DialogRow) -> str:
    """What was spent, in words."""
    if row.is_rehearsal:
        return "nothing"
    if row.usd is not None:
        return f"{'' if row.is_exact else 'about '}{dollars(row.usd)}"
    return f"{row.tokens:,} tokens" if row.tokens is not None else ""


def text_of(listing: Listing, wanted: str) -> tuple[Dialog, Path]:
    """A dialog to read, by its id, from its file or from the archive, and where it stands. Raises `BadInput`."""
    standing = listing.standing(wanted)
    if standing is not None:
        return standing.dialog, standing.file
    path = Path(listing.memory.dialog(wanted).archive)
    return read_dialog(path), path
