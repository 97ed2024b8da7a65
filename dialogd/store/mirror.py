"""A shared dialog's file is a mirror: a byte-exact prefix of a log that lies elsewhere, whose every entry is signed.

Beside the mirror lie its signatures, one line per row: `END SHA SEAT SIGNATURE`. A row's line is flushed before its
bytes are written: what stands behind the last one was typed by somebody, and what is missing before it is fetched.
Everything here but `follow`, `fetch` and `standing` happens while `LogFile` holds the lock.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.config import command_on
from dialogd.errors import BadInput, DialogdError, Refused, StorageError, UnsafeFile
from dialogd.protocol import grammar
from dialogd.protocol.certificate import fault_of
from dialogd.protocol.keys import SOMEBODY, Keys, misuse, spoken
from dialogd.protocol.model import SYSTEM, USER, Addition, Draft, digest
from dialogd.protocol.state import Dialog
from dialogd.store import signing
from dialogd.store.disk import distrust, flush, make_folder, read_json, write_all, write_once, write_over, writing
from dialogd.store.engine import NOTHING, Differs, Engine, EngineAway, Place, Row, SeatTaken, open_engine, public
from dialogd.store.logfile import LARGEST

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

    from dialogd.store.logfile import LogFile

log = logging.getLogger("dialogd.mirror")

CONNECTION = "shared.json"  # in the state folder of a dialog file
SIGNATURES = "signatures"  # in the folder of attachments
POLL, REST = 2.0, 30.0  # seconds between two looks: while somebody else owes a turn; after ten minutes of rest
_LINE = re.compile(rb"(\d{1,12}) ([0-9a-f]{64}) ([A-Za-z][A-Za-z0-9_-]*) ([A-Za-z0-9+/]+=*)")
_SEAT = re.compile("[A-Za-z][A-Za-z0-9_-]{0,60}")


class Alarm(StorageError):
    """The log and this mirror do not belong together, or it holds what nobody here may have written."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a dialog is shared, and with which keys this machine writes: kept with its state, not in the file.

    `root` is the hash of the log's first row, `person` the path of the person's key as `ssh-keygen -f` takes it,
    `seats` are those of the agents that run here.
    """

    url: str
    name: str
    root: str
    holder: str
    person: str
    person_name: str
    seats: Mapping[str, str]

    @classmethod
    def at(cls, folder: Path) -> Connection | None:
        """What the state folder of a dialog file keeps, or None. Raises `UnsafeFile` for what others can write."""
        known = read_json(path := folder / CONNECTION)
        if known and (problem := distrust(path.lstat())):
            advice = "look at it; where it says what it should, put a copy with mode 600 in its place"
            raise UnsafeFile(f"{path} {problem[0]}", fix=advice)
        try:
            return cls(**known) if known else None
        except TypeError:
            return None

    def save(self, folder: Path) -> None:
        """Keep it. Raises `OSError`."""
        write_over(json.dumps(asdict(self)).encode(), folder / CONNECTION)

    def place(self, folder: Path, daemon_of: str = "", **new: Any) -> Place:
        """The log that it names, opened from here."""
        return Place(self.url, self.name, folder, self.holder, (*self.seats, USER), daemon_of=daemon_of, **new)


@dataclass(frozen=True, slots=True)
class Signed:
    """A line of the signatures: the log up to byte `end` has this hash, signed by the key of `seat`."""

    end: int
    sha: str
    seat: str
    signature: str


START = Signed(0, NOTHING, "", "")  # what goes before the first line


def signed_rows(data: bytes) -> list[Signed]:
    """The lines of a file of signatures by their places, behind `START`; what is no line of ours is passed over."""
    found = (_LINE.fullmatch(line) for line in data.split(b"\n")[:-1])  # the last one may be torn
    rows = {int(m[1]): Signed(int(m[1]), *(m[k].decode() for k in (2, 3, 4))) for m in found if m}
    return [START, *(rows[end] for end in sorted(rows))]


def _agreeing(signed: Iterable[Signed], data: bytes) -> Signed:
    """The last signature up to which these bytes are those that were signed."""
    sound, hashed = START, sha256()
    for one in signed:
        hashed.update(data[sound.end : one.end])
        if hashed.hexdigest() != one.sha:
            break
        sound = one
    return sound


def checked(before: Dialog | None, data: bytes, key: str) -> tuple[Dialog, str]:
    """The dialog with a row that this key signed, and why that may not stand there, as a sentence; "" where it may."""
    if before is None:
        dialog = grammar.parse(data)
        seat, _ = (dialog.state.hand.keys or Keys()).of(key)
        return dialog, "" if seat == USER else "the first row is not signed by the person"
    dialog = grammar.read_on(before, data)
    entry = dialog.entries[-1]
    if len(dialog.entries) != len(before.entries) + 1 or entry.end != dialog.size:
        return dialog, "it is not one entry"
    keys = before.state.hand.keys or Keys()
    wrong = misuse(entry, keys, key)
    names = [(USER, SOMEBODY), (SYSTEM, "System"), *((USER, name) for name in keys.people)]
    names += ((agent.id, agent.name) for agent in before.header.agents)
    owners = {who for who, name in names if name.casefold() == entry.name.casefold()}
    if not wrong and owners and entry.by not in owners:
        wrong = f"it is {entry.by}'s and bears the name of {entry.name}"
    if not wrong and (fault := fault_of(before, entry, data[entry.start - before.size : entry.end - before.size])):
        wrong = f"it {fault}"
    return dialog, wrong


def checked_rows(
    rows: Iterable[Row], dialog: Dialog | None, hashed: Hash
) -> Iterator[tuple[Row, Dialog | None, tuple[str, str, str], str]]:
    """Hold rows that follow this dialog, whose hash this is, against their signatures, up to the first that is wrong.

    Gives each row, the dialog with it, whose key signed it (seat, name, key), and why it may not stand there, or "".
    """
    end = dialog.size if dialog is not None else 0
    for row in rows:
        hashed.update(row.data)
        before, who, problem = dialog, ("", "", ""), "its bytes are not those that were signed"
        try:
            if row.at == end and hashed.hexdigest() == row.sha and row.end <= LARGEST:
                key = signing.signer(row.signature, row.sha)
                dialog, problem = checked(before, row.data, key)
                who = (*((before or dialog).state.hand.keys or Keys()).of(key), key)
        except (ValueError, DialogdError) as error:
            problem = str(error)
        yield row, dialog, who, problem
        if problem:
            return
        end = row.end


def _stamp(folder: Path) -> tuple[int, int] | None:
    """What tells one state of a kept connection from the next; None where there is none."""
    try:
        status = (folder / CONNECTION).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


class Mirror:
    """What makes one dialog file a mirror."""

    def __init__(self, file: LogFile, connection: Connection) -> None:
        self.file = file
        self.connection = connection
        self.problem, self.fix, self.is_alarm = "", "", False  # why nothing is taken in or written at present
        self._tell: Callable[[], object] = lambda: None  # that this has changed
        # What became of the last entry that was written here, perhaps by a process that was killed.
        self._in_doubt = any(journal.intent() for journal in file.journals.all())
        self._asked, self._came = 0.0, time.monotonic()  # when the engine last answered, and something last came
        self._engine: Engine | None = None
        self._taken: SeatTaken | None = None  # somebody else's daemon has the seat of this one
        self._opening = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._known: tuple[int, list[Signed]] = (-1, [])
        self._kept = _stamp(file.journals.folder)

    # -- the engine -----------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The log, opened. Raises what opening it does."""
        with self._opening:
            if self._engine is None:
                daemon_of = self.file.daemon_of if self.file.daemon_of in self.connection.seats else ""
                self._engine = open_engine(self.connection.place(self.file.journals.folder, daemon_of))
            return self._engine

    @property
    def is_connected(self) -> bool:
        """True while the file is shared from here at this very log; with the keys that this machine has now."""
        kept = _stamp(self.file.journals.folder)
        if kept != self._kept:
            known = Connection.at(self.file.journals.folder)
            if known is None or (known.name, known.root) != (self.connection.name, self.connection.root):
                return False
            self.connection, self._kept = known, kept
        return True

    def claim(self, agent: str) -> None:
        """Open the log as the daemon of this seat. Raises `SeatTaken`, `BadInput` where the seat is not here."""
        if agent not in self.connection.seats:
            raise BadInput(
                f"the seat {agent} is on another machine: its key lies where it was made",
                fix=f"start one of {', '.join(self.connection.seats) or 'no agents'} here, or the person gives {agent}"
                f" a key of this machine: {command_on(self.file.path, 'share', '--seat', f'{agent}=here')}",
            )
        with self._answers():
            self.engine  # noqa: B018 - opening it takes the seat

    @contextmanager
    def _answers(self, *, asked: bool = True) -> Iterator[None]:
        """Whatever the engine is asked: remembers why it gave no answer, or when it did.

        An alarm stays until rows were taken in again: that the engine answers ends none.
        """
        try:
            yield
        except Differs as error:
            last = self._signed()[-1]
            alarm = Alarm(
                f"the log ends at byte {error.end:,} with {spoken(error.sha) if error.end else 'nothing'}, this mirror"
                f" at byte {last.end:,} with {spoken(last.sha)}",
                fix=error.fix,
            )
            self._found(alarm)
            raise alarm from error
        except (DialogdError, OSError) as error:
            self._taken = error if isinstance(error, SeatTaken) else self._taken
            self._found(error)
            raise
        self._asked = time.monotonic() if asked else self._asked
        if not self.is_alarm:
            self._found()

    def _found(self, error: Exception | None = None) -> None:
        """Remember what is wrong, None for nothing, and tell where that is another kind of thing than before."""
        before = bool(self.problem), self.is_alarm
        self.problem, self.fix = str(error or ""), getattr(error, "fix", "")
        self.is_alarm = isinstance(error, Alarm)
        if before != (bool(self.problem), self.is_alarm) and not self._ending.is_set():
            self._tell()

    def fetch(self) -> Sequence[Row]:
        """What others have appended. Raises `EngineAway`, and `Alarm` where the log does not go on from here."""
        last = self._signed()[-1]
        if self._taken is not None:  # no turn is paid for that only the other daemon may write
            raise self._taken
        with self._answers():
            return self.engine.fetch(last.end, last.sha)

    # -- taking in ------------------------------------------------------------------------------------------------

    def settle(self, rows: Sequence[Row] | None = None) -> None:
        """Have the mirror end where its signatures do, then take in these rows, or where there is doubt the log's.

        Raises `EngineAway` where only the engine knows what stands here, and `Alarm`.
        """
        signed = self._signed()
        if (signed[-1].end, signed[-1].sha) != self.file.head or self._is_holed(signed):
            self._mend(signed)
        if self._in_doubt:
            rows = self.fetch()
        if rows is not None:
            end, _ = self.file.head
            more = (row for row in rows if row.at >= end or row.end > end)
            with self._answers(asked=False):
                for row in self._accepted(more, self.file.known, self.file.hashed):
                    self.file.add(row.data)
            self._found()
        if self._in_doubt:
            self.file.note_done()
            self._in_doubt = False

    def _accepted(self, rows: Iterable[Row], dialog: Dialog | None, hashed: Hash) -> Iterator[Row]:
        """The rows that go on from this dialog, whose hash this is, each once its seat was found to have signed it.

        Its attachments and its signature are written down first. Raises `Alarm` at the first one that does not fit.
        """
        end = dialog.size if dialog is not None else 0
        for row, _, (seat, _, _), wrong in checked_rows(rows, dialog, hashed):
            who = seat or (row.seat if _SEAT.fullmatch(row.seat) else "nobody known")  # the engine's words
            is_other = end == 0 and row.sha != self.connection.root
            if problem := wrong or ("the log does not begin as the line for `dialogd join` says" if is_other else ""):
                raise Alarm(
                    f"the entry at byte {end:,} of the log, written as {who}, is not taken in: {problem}",
                    fix="every honest mirror stops there; whoever keeps the log takes that writer's rights away, and"
                    " the person shares this file anew",
                )
            for name, data in row.files:
                if name == f"{digest(data)}.md" and name.encode() in row.data:
                    make_folder(self.file.attachments)
                    write_once(data, self.file.attachments / name)
            self._note(replace(row, seat=who))
            self._came, end = time.monotonic(), row.end
            yield row

    def _mend(self, signed: Sequence[Signed]) -> None:
        """Bring a mirror that does not stand as its signatures say back to them, or both on to what the engine has."""
        data = self.file.path.read_bytes()
        sound = _agreeing(() if self._is_holed(signed) else signed, data)
        tail, known, alarm = data[sound.end :], b"", None
        keep = 0  # bytes of it that are the log's
        try:
            if signed[-1] is not sound or not sound.end:  # the engine has more than stands here, or lines are lost
                with self._answers():
                    rows = self.engine.fetch(sound.end, sound.sha)
                    there = data[: sound.end] + b"".join(row.data for row in rows)
                    if signed[-1] is not _agreeing(signed[-1:], there):  # all that was ever here must be there
                        raise Differs(len(there), sha256(there).hexdigest())
                    before = grammar.parse(data[: sound.end]) if sound.end else None
                    for row in self._accepted(rows, before, sha256(data[: sound.end])):
                        known += row.data
                        keep = len(known) if tail.startswith(known) else keep
        except Alarm as error:
            alarm = error
        end = sound.end + len(known)
        if known.startswith(tail):
            self.file.add(known[len(tail) :])
        elif end and end >= signed[-1].end:  # a mirror never shrinks
            typed = tail[keep:].lstrip(b"\n")
            if typed.strip():  # each text in a file of its own: whoever sends one removes no other
                write_over(typed, self.file.attachments / f"typed-{digest(typed)}.txt")
                log.warning("%s", self.said_of_typed)
            self.file.restore(data[: sound.end] + known)
        self.file.note_done()
        if alarm is not None:
            raise alarm

    @property
    def said_of_typed(self) -> str:
        """What is said of text that was set aside and is there still; "" where there is none."""
        kept = next(iter(sorted(self.file.attachments.glob("typed-*.txt"))), None)
        if kept is None:
            return ""
        send = f"{command_on(self.file.path, 'say', '-')} < {shlex.quote(str(kept))} && rm {shlex.quote(str(kept))}"
        return f"what was typed into {self.file.path} is kept in {kept}; to send it, and remove that file: {send}"

    # -- writing --------------------------------------------------------------------------------------------------

    def named(self, addition: Addition) -> Addition:
        """The entry with the name of the person whose key signs it."""
        draft = addition.draft
        is_persons = draft.by == USER and not dict(draft.attributes).get("via")
        return replace(addition, draft=replace(draft, name=self.connection.person_name)) if is_persons else addition

    def put(self, dialog: Dialog, addition: Addition, data: bytes, writer: str) -> bool:
        """Append an entry to the log, signed; False where somebody was faster.

        Raises `EngineAway` where its fate is unknown: the next settling finds out. Raises `Refused` for what this
        machine may not write, `StorageError` where it cannot be signed.
        """
        before, hashed = self.file.head[1], self.file.hashed
        hashed.update(data)
        sha = hashed.hexdigest()
        seat, path = self._signs(addition.draft, writer)
        key = signing.public_key(Path(path))
        after, problem = checked(dialog, data, key)
        if problem:
            raise Refused(
                f"this cannot be written to the shared dialog: {problem}",
                fix=f"the keys that count: {command_on(self.file.path, 'verify')}",
            )
        files = ((addition.attachment, addition.overflow.encode("utf-8", "replace")),) if addition.attachment else ()
        row = Row(dialog.size, data, sha, seat, signing.sign(Path(path), sha), files)
        whole = self.file.path.read_bytes() + data if after.state.outcome is not None else b""
        self._in_doubt = True
        with self._answers():
            won = self.engine.put(row, before, whole)
        if won:
            self._note(row)
            self._came = time.monotonic()
        self._in_doubt = not won
        return won

    def _signs(self, draft: Draft, writer: str) -> tuple[str, str]:
        """The seat whose key signs an entry, and the key's path: the person's own for what is theirs."""
        seats, via = self.connection.seats, dict(draft.attributes).get("via", "")
        if draft.by == SYSTEM:
            who = writer if writer in seats else USER
        elif draft.by == USER and via:  # a session of an agent's: never the person's key
            who = next((one for one in (via, *seats) if one in seats), "")
        else:
            who = draft.by
        if who == USER:
            return USER, self.connection.person
        if who not in seats:
            raise Refused(f"the seat {draft.by} is on another machine", fix="its own side writes for it")
        return who, seats[who]

    # -- the signatures beside it ---------------------------------------------------------------------------------

    def _signed(self) -> list[Signed]:
        path = self.file.attachments / SIGNATURES
        size = path.stat().st_size if path.exists() else 0
        if self._known[0] != size:
            self._known = (size, signed_rows(path.read_bytes() if size else b""))
        return self._known[1]

    def _is_holed(self, signed: Sequence[Signed]) -> bool:
        """True where a line is lost before others: the first is the root's, and behind it each is of one entry."""
        if self.file.known is None or len(signed) == 1:
            return False
        first, last = signed[1], signed[-1]
        behind = sum(first.end < entry.end <= last.end for entry in self.file.known.entries)
        return first.sha != self.connection.root or behind > len(signed) - 2

    def _note(self, row: Row) -> None:
        """Write down a row's signature, durably, unless it is there."""
        signed, path = self._signed(), self.file.attachments / SIGNATURES
        one = Signed(row.end, row.sha, row.seat, row.signature)
        if one in signed:
            return
        line = f"\n{one.end} {one.sha} {one.seat} {one.signature}\n".encode()  # whatever a crash left stands above it
        with writing(path):
            make_folder(self.file.attachments)
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, line)
                flush(fd)
                size = os.fstat(fd).st_size
            finally:
                os.close(fd)
        self._known = (size, sorted((one, *(known for known in signed if known.end != one.end)), key=lambda k: k.end))

    # -- following the log ----------------------------------------------------------------------------------------

    def follow(self, tell: Callable[[], object]) -> None:
        """Take in what others append from now on, in a thread of its own, until `close`; once is enough.

        `tell` is called by any thread when all is well no more, or again.
        """
        if self._thread is None:
            self._tell = tell
            self._thread = threading.Thread(target=self._follow, name="mirror", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        is_news, said, pause = True, "", POLL
        while not self._ending.is_set():
            try:
                if is_news:
                    self.file.pull()
                is_news = True
                with self._answers():
                    is_news, said, pause = self.engine.wait(self._patience()), "", POLL
                self._taken = None
            except (DialogdError, OSError) as error:
                if not self._ending.is_set() and said != (said := str(error)):
                    log.warning("%s", said)
                is_news = not isinstance(error, SeatTaken)  # its seat is asked for by the next `wait`
                self._ending.wait(REST if isinstance(error, Alarm) else pause)
                pause = min(REST, 2 * pause)
            except Exception:  # whatever it was: the next look may go well
                log.exception("unexpected error")
                self._ending.wait(REST)

    def _patience(self) -> float:
        """Seconds until the next look: few while somebody elsewhere owes a turn, more the longer nothing came."""
        dialog = self.file.known
        owing = dialog.state.owing if dialog is not None and dialog.state.outcome is None else ()
        if any(who not in self.connection.seats for who in owing):
            return POLL
        return min(REST, max(POLL, (time.monotonic() - self._came) / 20))

    def close(self) -> None:
        """Let go of the log. Where it does not answer within a second, the seat's lease ends by itself."""
        self._ending.set()
        until = time.monotonic() + 1
        if self._engine is not None:
            closing = threading.Thread(target=self._engine.close, name="closing", daemon=True)
            closing.start()
            closing.join(1)
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(max(0.0, until - time.monotonic()))

    # -- how it stands --------------------------------------------------------------------------------------------

    def standing(self) -> dict[str, Any]:
        """Where the log is, who sits where, and how far this mirror is known to be the whole of it.

        `asked` and `came` are seconds since the engine last answered (None: not yet) and something last came. Waits
        for nobody.
        """
        now, last = time.monotonic(), self._signed()[-1]  # not the file's: its lock is held while an engine is asked
        keys = (self.file.known.state.hand.keys if self.file.known is not None else None) or Keys()
        here = self.connection.seats
        return {
            "log": public(self.connection.url),
            "name": self.connection.name,
            "here": sorted(here),
            "elsewhere": sorted(set(keys.agents) - set(here)),
            "people": sorted(keys.people),
            "end": last.end,
            "words": spoken(last.sha),
            "asked": round(now - self._asked, 1) if self._asked else None,
            "came": round(now - self._came, 1),
            "problem": self.problem,
            "fix": self.fix,
            "alarm": self.is_alarm,
            "typed": self.said_of_typed,
        }


# -- How a dialog comes to be shared ----------------------------------------------------------------------------------


def linked(file: LogFile, data: bytes) -> list[Path]:
    """The attachments beside a dialog file that its text links: all that leaves the machine with it."""
    items = sorted(file.attachments.glob("*.md"))
    return [item for item in items if item.is_file() and not item.is_symlink() and item.name.encode() in data]


def begin(file: LogFile, connection: Connection, others: Sequence[str]) -> Connection:
    """Put the dialog as it stands to a new log, signed by the person; `others` are the seats that are elsewhere.

    Gives the connection with the log's root. Raises what opening the engine and `put` do.
    """
    with file.standing_still() as data:
        sha = sha256(data).hexdigest()
        files = tuple((item.name, item.read_bytes()) for item in linked(file, data))
        row = Row(0, data, sha, USER, signing.sign(Path(connection.person), sha), files)
        connection = replace(connection, root=sha)
        engine = open_engine(connection.place(file.journals.folder, is_new=True, others=tuple(others)))
        try:
            if not engine.put(row, NOTHING):
                raise Refused(f"there is a log called {connection.name} already", fix="share once more")
        finally:
            engine.close()
        Mirror(file, connection)._note(row)
        connection.save(file.journals.folder)
    return connection


def take(file: LogFile, connection: Connection) -> Dialog:
    """Make the mirror of a log that was shared by somebody else, in a file that is not there yet.

    Raises `Alarm` for a log that does not begin with the connection's root, and what opening the engine does.
    """
    mirror = Mirror(file, connection)
    try:
        rows = mirror.fetch()
        if not rows:
            raise EngineAway(f"the log {connection.name} is empty", fix="ask for a new line")
        first = next(mirror._accepted(rows[:1], None, sha256()))
        file.create(first.data)
        connection.save(file.journals.folder)
    finally:
        mirror.close()
    return file.pull()


def part(file: LogFile) -> None:
    """Let a file be no mirror, once another dialog takes its place: what made it one is set aside. Raises `OSError`."""
    folder = file.journals.folder
    left = [path for path in (folder / CONNECTION, file.attachments / SIGNATURES) if path.exists()]
    if left:
        aside = folder / "aside" / f"shared-{time.time_ns()}"
        make_folder(aside)
        for path in left:
            write_once(path.read_bytes(), aside / path.name)
            path.unlink()
    shutil.rmtree(folder / "git", ignore_errors=True)  # an engine's copy of another log
