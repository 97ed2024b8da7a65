"""Replies received and entries on their way into the file: what a crash must not lose. Drafts stand here too.

One JSON-lines file per writer, all of one dialog file in one folder, so that any daemon can finish what another
began. Records are appended and flushed; a torn last line is ignored. Losing the journal loses no committed turn.

    reply    an agent's raw reply, before it is in the file     {debt, text, usage, ms}
    intent   the exact bytes about to be appended at an offset  {at, entry, number}
    done     what became of the last intent                     {chain, number}
    draft    a reply whose debt was closed                      {debt, text, why}
    sent     drafts up to here were shown to their agent again
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dialogd.disk import flush, flush_folder
from dialogd.errors import StorageError

PERSON = "person"  # the journal of what command line and HTTP write for the person


def chain_of(entry: bytes) -> str:
    """The hash that an entry's frame records."""
    match = re.search(rb" sha=([0-9a-f]{16}) -->\n", entry)
    return match[1].decode() if match else ""


@dataclass(frozen=True, slots=True)
class Intent:
    """Bytes that somebody was about to append at offset `at`."""

    writer: str
    at: int
    entry: bytes
    number: int

    @property
    def chain(self) -> str:
        """The hash that the entry records."""
        return chain_of(self.entry)


@dataclass(frozen=True, slots=True)
class Received:
    """A reply as it came from the backend, for the debt of that key."""

    debt: tuple[str, str, str]
    text: str
    usage: dict[str, Any]
    ms: int


class Journal:
    """The journal of one writer. Not shared between threads."""

    def __init__(self, folder: Path, writer: str) -> None:
        self.path = folder / f"{writer}.journal"
        self.writer = writer

    def record(self, kind: str, *, durable: bool = True, **fields: Any) -> None:
        """Append one record; `durable` flushes it. Raises `StorageError`; a failed flush is never tried again."""
        line = json.dumps({"kind": kind, "time": round(time.time(), 3), **fields}, ensure_ascii=False)
        data = b"\n" + line.encode("utf-8", "surrogatepass") + b"\n"
        try:
            new = not self.path.exists()
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if durable:
                    flush(fd)
            finally:
                os.close(fd)
            if new:
                flush_folder(self.path.parent)
        except OSError as error:
            raise StorageError(
                f"the journal {self.path} cannot be written: {error.strerror}",
                fix="free some space or name another DIALOGD_STATE_DIR",
            ) from error

    def reply(self, received: Received) -> None:
        """Remember a reply before anything else is done with it."""
        debt = list(received.debt)
        self.record("reply", debt=debt, text=received.text, usage=received.usage, ms=received.ms)

    def draft(self, received: Received, why: str) -> None:
        """Keep a reply whose debt was closed."""
        self.record("draft", debt=list(received.debt), text=received.text, why=why)

    def records(self) -> Iterator[dict[str, Any]]:
        """All records, oldest first; lines that a crash tore are left out."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                record = json.loads(line) if line.strip() else None
            except ValueError:
                continue
            if isinstance(record, dict) and "kind" in record:
                yield record

    def intent(self) -> Intent | None:
        """The last intent that is not known to be done."""
        found: Intent | None = None
        for record in self.records():
            if record["kind"] == "intent":
                entry = str(record["entry"]).encode("utf-8", "surrogatepass")
                found = Intent(self.writer, int(record["at"]), entry, int(record["number"]))
            elif record["kind"] == "done":
                found = None
        return found

    def received(self) -> Received | None:
        """The last reply that was neither appended nor kept as a draft."""
        found: Received | None = None
        for record in self.records():
            if record["kind"] == "reply":
                key = tuple(map(str, record["debt"]))
                found = Received((key[0], key[1], key[2]), record["text"], record.get("usage", {}), record["ms"])
            elif record["kind"] in ("done", "draft"):
                found = None
        return found

    def drafts(self) -> tuple[str, ...]:
        """Replies that were not sent, and not yet shown to their agent again; oldest first."""
        found: list[str] = []
        for record in self.records():
            if record["kind"] == "draft":
                found.append(str(record["text"]))
            elif record["kind"] == "sent":
                found.clear()
        return tuple(found)


class Journals:
    """All journals of one dialog file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, writer: str) -> Journal:
        """The journal of one writer: an agent id, or `PERSON`."""
        return Journal(self.folder, writer)

    def all(self) -> tuple[Journal, ...]:
        """Every journal there is."""
        return tuple(Journal(self.folder, path.stem) for path in sorted(self.folder.glob("*.journal")))

    def committed(self) -> dict[int, str]:
        """Turn number -> chain of every turn known to have been committed."""
        turns: dict[int, str] = {}
        for journal in self.all():
            for record in journal.records():
                if record["kind"] == "done" and record.get("number"):
                    turns[int(record["number"])] = str(record["chain"])
        return turns

    def dropped(self, present: set[str]) -> list[str]:
        """The committed entries, as text, whose hash is not among `present`; oldest first."""
        missing: list[tuple[int, str]] = []
        for journal in self.all():
            pending: dict[str, Any] | None = None
            for record in journal.records():
                if record["kind"] == "intent":
                    pending = record
                elif record["kind"] == "done" and pending is not None:
                    if record["chain"] not in present and pending["number"]:
                        missing.append((int(pending["number"]), str(pending["entry"])))
                    pending = None
        return [text for _, text in sorted(missing)]

    def set_aside(self, present: set[str]) -> Path | None:
        """Move all journals to a folder of their own, with the dropped turns as text; None when there are none."""
        journals = self.all()
        if not journals:
            return None
        target = self.folder / "aside" / time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        number = 0
        while target.exists():
            number += 1
            target = target.with_name(f"{target.name.split('-')[0]}-{number}")
        target.mkdir(mode=0o700, parents=True)
        dropped = self.dropped(present)
        if dropped:
            (target / "dropped.md").write_text("".join(dropped), encoding="utf-8", errors="surrogatepass")
        for journal in journals:
            journal.path.rename(target / journal.path.name)
        return target
