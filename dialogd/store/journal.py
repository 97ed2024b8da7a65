"""Replies received and entries on their way into the file: what a crash must not lose. Drafts stand here too.

One JSON-lines file per writer, all of one dialog file in one folder, so that any daemon can finish what another
began. Records are appended and flushed; a line that a crash tore is passed over, and so is one that is no record of
ours, which is reported. Losing the journal loses no committed turn.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dialogd.errors import StorageError
from dialogd.protocol.model import USER, Entry, digest
from dialogd.protocol.state import Dialog
from dialogd.store.disk import MOVE, KeptFile, flush, flush_folder, make_folder, pread, why, write_all, write_once

DROPPED = "dropped.md"  # the text of turns whose journals were set aside
PERSON = "person"  # the journal of what command line and HTTP write for the person

SUSPECT_FIX = "check the disk, then restart this daemon"

_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT

_FRAMED = re.compile(rb"\s*(?:---\s+)?(## [^\n]*\n[^\n]*) sha=([0-9a-f]{16}) -->\n(.*)", re.S)


def chain_of(entry: bytes) -> str:
    """The hash that an entry's frame records."""
    match = re.search(rb" sha=([0-9a-f]{16}) -->\n", entry)
    return match[1].decode() if match else ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_entry(value: Any) -> bool:
    """True for an entry whose own hash fits: another one must not be completed in the file."""
    match = _FRAMED.fullmatch(_bytes(value)) if isinstance(value, str) else None
    return match is not None and digest(match[1] + match[3]).encode() == match[2]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# What the fields of records are; of what else stands in one, a nonce, calls, a second answer and an intent's dialog are
# read. What is in a bill is judged where it is read.
_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("dialog", "text", "tool", "arguments", "how", "chain", "why", "what"), _is_text),
    **dict.fromkeys(("ms", "number", "at", "turn", "knocks"), _is_count),
    **dict.fromkeys(("is_first", "is_error"), lambda value: isinstance(value, bool)),
    "usage": lambda value: isinstance(value, dict),
    "debt": lambda value: isinstance(value, list) and len(value) == 3 and all(map(_is_text, value)),
    "entry": _is_entry,
}

_KINDS = {
    "started": ("dialog",),  # the person has started the dialog
    "reply": ("debt", "text", "usage", "ms"),  # an agent's reply, before it is in the file
    "calling": ("usage", "is_first"),  # what a turn comes to by the end of a paid call
    "answer": ("debt", "text", "usage", "ms"),  # what it answered to the closing question
    "spent": ("usage",),  # what a call came to that brought no reply
    "tool": ("debt", "number", "tool", "arguments"),  # a call of a tool, before it is made
    "result": ("debt", "number", "tool", "arguments", "how", "text", "is_error"),  # what came of it, or why it was not
    "intent": ("at", "entry", "number"),  # the exact bytes about to be appended at an offset
    "done": ("chain", "number"),  # what became of the last intent
    "draft": ("debt", "text", "why"),  # a reply whose debt was closed
    "delivery": ("turn", "what", "knocks"),  # what becomes of a turn of a live seat
    "sent": (),  # drafts up to here were shown to their agent again
}


@dataclass(frozen=True, slots=True)
class Intent:
    """Bytes that somebody was about to append at offset `at`."""

    writer: str
    at: int
    entry: bytes
    number: int


@dataclass(frozen=True, slots=True)
class Received:
    """A reply as it came from the backend, for the debt of that key; `usage` is the bill of its calls.

    `nonce` is what its seal is made with, in a sealed round. `answers` are what its agent said to the closing question,
    and where that was put once more, "" where no answer came. `calls` are the calls of tools that it rests on, quoted.
    """

    debt: tuple[str, str, str]
    text: str
    usage: dict[str, Any]
    ms: int
    nonce: str = ""
    answers: tuple[str, ...] = ()
    calls: str = ""

    def landed(self, dialog: Dialog, me: str) -> Entry | None:
        """The turn as which this reply of agent `me` stands in the file already, or None."""
        _, re_, chain = self.debt
        opened = dialog.entry(re_)
        if opened is None or opened.chain != chain:
            return None
        mine = (e for e in dialog.latest_turns if e.by == me and e.frame is not None and e.re == re_)
        return next(mine, None)


@dataclass(frozen=True, slots=True)
class Lost:
    """A turn of this very dialog that was committed and is no longer in its file; `kept` is where its text lies."""

    number: int
    chain: str
    text: str
    kept: Path


def still_lost(lost: Iterable[Lost], dialog: Dialog) -> tuple[Lost, ...]:
    """Those of them that have not come back, as they were or in a note of the person's that names their hashes."""
    lost = tuple(lost)
    if not lost:
        return ()
    present = {entry.chain for entry in dialog.entries}
    notes = "\n".join(entry.body for entry in dialog.entries if entry.by == USER and not entry.is_turn)
    return tuple(one for one in lost if one.chain not in present and one.chain not in notes)


class Journal:
    """The journal of one writer. Its file stays open, until another one takes the name."""

    def __init__(self, journals: Journals, writer: str) -> None:
        self.path = journals.folder / f"{writer}.journal"
        self.writer = writer
        self.is_calling = False  # a call that this very object was told of is under way
        self._all = journals
        self._file = KeptFile(self.path, "the journal ", MOVE)
        self._mutex = threading.RLock()
        self._begin(0)

    def _begin(self, inode: int) -> None:
        """Know nothing yet of the file that stands there now."""
        self._inode, self._read_to, self._tally = inode, 0, _Tally(self.writer)

    def record(self, kind: str, *, durable: bool = True, **fields: Any) -> None:
        """Append one record; `durable` flushes it. A folder that is gone is made anew.

        Raises `StorageError`, and after a failed flush for good, as the dialog file does: what was not flushed may be
        gone, and a second flush would prove nothing.
        """
        if self._all.suspect:
            raise StorageError(self._all.suspect, fix=SUSPECT_FIX)
        record = {"kind": kind, "time": round(time.time(), 3), **fields}
        line = b"\n" + _bytes(json.dumps(record, ensure_ascii=False)) + b"\n"
        try:
            with self._mutex:
                self._append(line, durable=durable)
                self.is_calling &= kind not in ("reply", "answer", "spent")
                if self._is_next(len(line)):
                    self._tally.take(record)
                    self._read_to += len(line)
        except OSError as error:
            raise self._refused(error) from error

    def _append(self, line: bytes, *, durable: bool) -> None:
        """Write a line behind all others. Raises `UnsafeFile`, `OSError`, `StorageError`."""
        try:
            self._file.open(_OPEN)
        except FileNotFoundError:
            make_folder(self.path.parent)
            self._file.open(_OPEN)
        write_all(self._file.fd, line)
        self._flush(self._file.fd if durable else None, folder=self._file.is_new)

    def _is_next(self, size: int) -> bool:
        """True when what was just written stands right behind all that is known: then it need not be read."""
        if self._file.is_new:
            self._begin(self._file.inode)
        at = os.lseek(self._file.fd, 0, os.SEEK_CUR) - size
        return self._file.inode == self._inode and at == self._read_to

    def _flush(self, fd: int | None, *, folder: bool) -> None:
        try:
            if fd is not None:
                flush(fd)
            if folder:
                flush_folder(self.path.parent)
        except OSError as error:
            self._all.suspect = f"flushing {self.path} failed ({why(error)}); what was noted may not be on the disk"
            raise StorageError(self._all.suspect, fix=SUSPECT_FIX) from error

    def flush(self) -> None:
        """Make durable what was recorded without that. Raises `StorageError`."""
        with self._mutex:
            try:
                self._file.open(os.O_RDWR | os.O_APPEND)
            except FileNotFoundError:
                return  # set aside meanwhile, with the dialog that it belongs to
            except OSError as error:
                raise self._refused(error) from error
            self._flush(self._file.fd, folder=False)

    def _refused(self, error: OSError) -> StorageError:
        fix = "check the disk, or name another DIALOGD_STATE_DIR"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            fix = "free some space, or name another DIALOGD_STATE_DIR"
        elif error.errno in (errno.EACCES, errno.EPERM):
            fix = f"give yourself the right to write it: chmod u+rwX {self.path.parent} {self.path}"
        return StorageError(f"the journal {self.path} cannot be written: {why(error)}", fix=fix)

    def reply(self, received: Received, *, durable: bool = True) -> None:
        """Remember a reply before anything else is done with it."""
        more = {name: said for name in ("nonce", "calls") if (said := getattr(received, name))}
        debt, text, usage = list(received.debt), received.text, received.usage
        self.record("reply", durable=durable, debt=debt, text=text, usage=usage, ms=received.ms, **more)

    def calling(self, usage: Mapping[str, Any], *, is_first: bool) -> None:
        """Book a paid call before it is made, with what its turn will have come to by then, as far as can be known.

        The bill that comes with the reply, or else the `spent`, takes its place. After a kill there is neither.
        """
        self.record("calling", durable=False, usage=dict(usage), is_first=is_first)
        self.is_calling = True

    def answer(self, received: Received) -> None:
        """Remember the answers to the closing question; the flush of the intent to append makes them durable."""
        debt, usage, (text, *again) = list(received.debt), received.usage, received.answers
        more = {"again": again[0]} if again else {}
        self.record("answer", durable=False, debt=debt, text=text, usage=usage, ms=received.ms, **more)

    def draft(self, received: Received, why: str) -> None:
        """Keep a reply whose debt was closed. The calls that it rests on are kept by themselves."""
        self.record("draft", debt=list(received.debt), text=received.text, why=why)

    def records(self) -> Iterator[dict[str, Any]]:
        """All records, oldest first; what is none of ours is left out."""
        yield from filter(None, map(_record, self._lines()))

    def turns(self) -> Iterator[tuple[int, str, str, str]]:
        """Number, hash, text and dialog of every turn that this writer is known to have committed, oldest first."""
        intent: dict[str, Any] | None = None
        for record in self.records():
            if record["kind"] == "intent":
                intent = record
            elif record["kind"] == "done" and intent is not None:
                if intent["number"]:
                    yield intent["number"], record["chain"], intent["entry"], str(intent.get("dialog", ""))
                intent = None

    def odd(self) -> tuple[int, ...]:
        """The numbers of the lines that are no records of ours, and were not torn by a crash either."""
        return tuple(at for at, line in enumerate(self._lines(), 1) if _record(line) is None and not _is_torn(line))

    def _lines(self) -> list[bytes]:
        with self._mutex:
            try:
                size = self._file.open(os.O_RDONLY).st_size
            except FileNotFoundError:
                return []
            return pread(self._file.fd, size, 0).split(b"\n")

    def started(self) -> frozenset[str]:
        """The ids of the dialogs that the person has started."""
        return self._known().started

    def intent(self) -> Intent | None:
        """The last intent that is not known to be done."""
        return self._known().intent

    def received(self) -> Received | None:
        """The last reply that was neither appended nor kept as a draft."""
        return self._known().received

    def drafts(self) -> tuple[str, ...]:
        """Replies that were not sent, and not yet shown to their agent again; oldest first."""
        return self._known().drafts

    def calls(self) -> tuple[dict[str, Any], ...]:
        """The calls of tools that no turn of this writer's tells of yet, each by its latest record, by their numbers.

        They outlive the debt that they were made for: what is done is done.
        """
        return tuple(call for _, call in sorted(self._known().calls.items()))

    def owed(self) -> tuple[dict[str, Any], ...]:
        """What calls came to that no entry has accounted for, oldest first; not the reply that is being kept.

        A call that was begun and not heard of again is among them; the one that this object was told of is not.
        """
        known = self._known()
        return known.owed + (() if self.is_calling else known.calling)

    def _known(self) -> _Tally:
        """What all records come to; reads only what others have written since the last time."""
        with self._mutex:
            try:
                status = self._file.open(os.O_RDONLY)
            except FileNotFoundError:
                self._begin(0)
                return self._tally
            if status.st_ino != self._inode or status.st_size < self._read_to:
                self._begin(status.st_ino)
            if status.st_size > self._read_to:
                *lines, rest = pread(self._file.fd, status.st_size - self._read_to, self._read_to).split(b"\n")
                for record in filter(None, map(_record, [*lines, rest])):
                    self._tally.take(record)
                self._read_to += sum(map(len, lines)) + len(lines) + (len(rest) if _record(rest) else 0)
            return self._tally


def _record(line: bytes) -> dict[str, Any] | None:
    """What a line says; None for an empty one, and for no record of ours: nothing that stands there stops a daemon."""
    if not line.strip():
        return None
    try:
        record = json.loads(line)
        return record if all(_FIELDS[name](record[name]) for name in _KINDS[record["kind"]]) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_torn(line: bytes) -> bool:
    """True for an empty line, and for one that ends before the record does."""
    return not line.rstrip().endswith(b"}")


class _Tally:
    """What the records of one writer come to, one after another."""

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.started: frozenset[str] = frozenset()
        self.intent: Intent | None = None
        self.received: Received | None = None
        self.drafts: tuple[str, ...] = ()
        self.owed: tuple[dict[str, Any], ...] = ()
        self.calling: tuple[dict[str, Any], ...] = ()  # the turn that is being bought, or was when its daemon died
        self.calls: dict[int, dict[str, Any]] = {}  # of tools, since the last turn
        self._accounts = False  # the last intent gives account of what was spent
        # As a turn, since the reply: what an earlier entry or a note came to says nothing about it.
        self._written = False

    def take(self, record: dict[str, Any]) -> None:
        """Add one record."""
        match record["kind"]:
            case "reply":
                agent, re_, chain = record["debt"]
                nonce, calls = (str(record.get(name, "")) for name in ("nonce", "calls"))
                said = (record["text"], record["usage"], record["ms"])
                self.received = Received((agent, re_, chain), *said, nonce=nonce, calls=calls)
                self._written, self.calling = False, ()
            case "answer":
                self.calling = ()
                if self.received is not None and self.received.debt == tuple(record["debt"]):
                    usage, ms = record["usage"], record["ms"]
                    answers = tuple(filter(_is_text, (record["text"], record.get("again"))))
                    self.received = replace(self.received, answers=answers, usage=usage, ms=ms)
            case "intent":
                entry = _bytes(record["entry"])
                self.intent = Intent(self.writer, record["at"], entry, record["number"])
                self._written = bool(record["number"])
                self._accounts = b" calls=" in entry.partition(b" -->")[0]
            case "done":
                self.intent = None
                self.owed, self.calling = ((), ()) if self._accounts else (self.owed, self.calling)
                self.received, self.calls = (None, {}) if self._written else (self.received, self.calls)
            case "draft":
                kept = self.received
                if kept is not None and (list(kept.debt), kept.text) == (record["debt"], record["text"]):
                    self.owed += (kept.usage,)  # else another one came too late
                    self.received = None
                self.drafts += (record["text"],)
            case "sent":
                self.drafts = ()
            case "started":
                self.started |= {record["dialog"]}
            case "tool" | "result":
                self.calls = {**self.calls, record["number"]: record}
            case "spent":
                self.owed, self.calling = (*self.owed, record["usage"]), ()
            case "calling":  # one booked before is replaced, or was never heard of again
                before = self.calling if record["is_first"] else ()
                self.owed, self.calling = self.owed + before, (record["usage"],)


class Journals:
    """All journals of one dialog file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.suspect = ""  # why no journal is written from here any more: a flush failed; "" while all is well
        self._known: dict[str, Journal] = {}

    def of(self, writer: str) -> Journal:
        """The journal of one writer: an agent id, or `PERSON`."""
        return Journal(self, writer)

    def all(self) -> tuple[Journal, ...]:
        """Every journal there is; each remembers what of it was read."""
        writers = sorted(path.stem for path in self.folder.glob("*.journal"))
        return tuple(self._known.setdefault(writer, self.of(writer)) for writer in writers)

    def odd(self) -> tuple[str, ...]:
        """In words: each line of a journal that is no record of ours. It stays where it is, and counts for nothing."""
        return tuple(
            f"line {number} of the journal {journal.path} is damaged; it is passed over, and the file counts"
            for journal in self.all()
            for number in journal.odd()
        )

    def started(self, dialog: str) -> bool:
        """True when any writer remembers that the person started the dialog of that id."""
        return any(dialog in journal.started() for journal in self.all())

    def committed(self) -> dict[int, str]:
        """Turn number -> chain of every turn known to have been committed."""
        turns: dict[int, str] = {}
        for journal in self.all():
            turns |= {number: chain for number, chain, _, _ in journal.turns()}
        return turns

    def turns(self) -> list[tuple[int, str, str]]:
        """Number, hash and text of every turn known to have been committed, by number."""
        return sorted((n, chain, text) for journal in self.all() for n, chain, text, _ in journal.turns())

    def remembered(self, writer: str = "") -> set[str]:
        """The hashes of all entries that journals here, or those of one writer, know; of those set aside too."""
        folders = (self.folder, *self.folder.glob("aside/*"))
        found = (one for folder in folders for one in Journals(folder).all() if writer in ("", one.writer))
        records = (record for journal in found for record in journal.records())
        return {chain_of(_bytes(record["entry"])) for record in records if record["kind"] == "intent"}

    def elsewhere(self, chains: set[str]) -> Path | None:
        """The folder of another dialog file whose journals know one of these entries."""
        others = (folder for folder in sorted(self.folder.parent.iterdir()) if folder != self.folder)
        return next((folder for folder in others if chains & Journals(folder).remembered()), None)

    def lost(self, dialog: Dialog) -> tuple[Lost, ...]:
        """The turns of this dialog that a save has taken out of its file and that have not come back; by number.

        Journals that were set aside tell too, while the text that was kept of them is there: who deletes that forgets.
        """
        found: dict[str, Lost] = {}
        for folder in (self.folder, *(kept.parent for kept in sorted(self.folder.glob(f"aside/*/{DROPPED}")))):
            for journal in Journals(folder).all():
                for number, chain, text, of in journal.turns():
                    kept = journal.path if folder == self.folder else folder / DROPPED
                    if of == dialog.id:
                        found[chain] = Lost(number, chain, text, kept)
        return still_lost(sorted(found.values(), key=lambda one: one.number), dialog)

    def set_aside(self, present: set[str]) -> Path | None:
        """Move all journals to a folder of their own, with the dropped turns as text; None when there are none."""
        journals = self.all()
        if not journals:
            return None
        target = self.folder / "aside" / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        make_folder(target)
        if dropped := [text for _, chain, text in self.turns() if chain not in present]:
            write_once(_bytes("".join(dropped)), target / DROPPED)
        for journal in journals:
            journal.path.rename(target / journal.path.name)
        flush_folder(target)
        flush_folder(self.folder)
        return target
