"""What carries a dialog from one machine to another: a log that takes an entry only where its writer knew the rest.

An engine stores rows, in order; it is not trusted with more. Each row is signed, so it can withhold, but never forge.
A new engine is one file and one line of `ENGINES`; one of another package is an entry point of the group
`dialogd.engines`, named by its URL scheme. `tests/engines/contract.py` is the contract that any of them can run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from pkgutil import resolve_name
from typing import Protocol
from urllib.parse import urlsplit

from dialogd.errors import AlreadyRunning, BadInput, StorageError
from dialogd.store.logfile import LARGEST

NOTHING = sha256().hexdigest()  # the hash of no bytes at all: where a log begins
MOST = 2 * LARGEST  # bytes that one fetch may bring, attachments too: an engine could send without end
PATIENCE = 5.0  # seconds that one request to an engine may take: shorter than the wait for the lock beside a file
LONGEST = 60.0  # seconds for a whole log to arrive
# Where a password has what ends it, every program reads another host and port, and says those aloud.
_UNCLEAR = re.compile(r"//[^/?#]*@[^/?#]*@|//[^/?#@]*:[^/?#@]*[/?#].*@|^postgres.*(?:%(?!(?!00)[\da-fA-F]{2})|\s)")


class EngineAway(StorageError):
    """No answer: the engine cannot be reached, or what was asked of it has an unknown fate."""


class Differs(StorageError):
    """The log is shorter than this mirror, or not its continuation: it ends at byte `end` with the hash `sha`."""

    def __init__(self, end: int, sha: str) -> None:
        super().__init__(
            f"the log does not go on from here: it ends at byte {end:,} ({sha[:16] or 'nothing'})",
            fix="nothing was changed here; ask whoever keeps the log whether it was rolled back or exchanged",
        )
        self.end, self.sha = end, sha


class SeatTaken(AlreadyRunning):
    """A daemon on another machine holds this seat."""


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of a log, the first one with the header and all before it: `data` stands at byte `at`.

    `sha` is the SHA-256 (FIPS 180-4, hexadecimal) of all bytes up to and with it, `signature` what the key of `seat`
    (an agent's id, or `USER`) made of that: an OpenSSH signature, in base64 without line breaks. `files` are the
    attachments that it links, by their names.
    """

    at: int
    data: bytes
    sha: str
    seat: str
    signature: str
    files: tuple[tuple[str, bytes], ...] = ()

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.at + len(self.data)


@dataclass(frozen=True, slots=True)
class Place:
    """Which log, and who is here.

    `url` is the engine's, with its secrets; `name` the log's at it (at most 54 hexadecimal digits). `seats` are those
    that this machine writes for, `USER` among them. `holder` names this machine, the same one each time. `folder` is
    this machine's own, for what an engine wants to keep. `is_new` makes the log, with `others`, the seats that are
    elsewhere. `daemon_of` is the seat whose daemon opens it, "" for a command.
    """

    url: str
    name: str
    folder: Path
    holder: str
    seats: tuple[str, ...]
    is_new: bool = False
    others: tuple[str, ...] = ()
    daemon_of: str = ""


class Engine(Protocol):
    """One log at one engine, opened by the class with a `Place`. Used by several threads; each call takes bounded time.

    Opening and every call raise `EngineAway` where there is no answer, `BadInput` for a URL or log that makes no sense,
    `SeatTaken` where another machine's daemon holds the seat `daemon_of`, `StorageError` where the engine refuses.
    """

    def fetch(self, at: int, sha: str) -> Sequence[Row]:
        """The rows behind byte `at`, in order, without a gap. Raises `Differs` unless one ends there with that hash."""

    def put(self, row: Row, before: str, whole: bytes = b"") -> bool:
        """Append the row, durably, if the log ends at `row.at` with the hash `before`; else False, and nothing is done.

        Exactly one of many writers wins, also with equal bytes. `whole` is all of the text where the dialog ends.
        """

    def wait(self, seconds: float) -> bool:
        """Wait until somebody may have appended, so long at most; True where it is worth a `fetch`.

        An engine without notices says True when the time is over. Holds on to the seat `daemon_of`.
        """

    def close(self) -> None:
        """Let go of the log and the seat; a `wait` in another thread ends. Raises nothing."""


ENGINES = {
    **{f"postgres{way}": "dialogd.store.engines.postgres:Postgres" for way in ("ql", "")},
    **{f"git{way}": "dialogd.store.engines.gitremote:GitRemote" for way in ("", "+ssh", "+https", "+http", "+file")},
}


def open_engine(place: Place) -> Engine:
    """The log at an engine. Raises what opening it does, and `BadInput` for a URL of no engine or a name of no log."""
    if not re.fullmatch("[0-9a-f]{1,54}", place.name):
        raise BadInput(f"{place.name!r} is no name of a log", fix="check the line that you were given")
    if _UNCLEAR.search(place.url):
        fix = "write such characters of a user or password as %40 (@), %3A (:), %2F (/), %3F (?), %23 (#), %25 (%)"
        raise BadInput(f"where the password ends cannot be told: {public(place.url)}", fix=fix)
    scheme = urlsplit(place.url).scheme
    where = ENGINES.get(scheme)
    if where is None:
        from importlib.metadata import entry_points

        found = entry_points(group="dialogd.engines", name=scheme)
        if not found:
            fix = f"name one that begins with {', '.join(f'{name}://' for name in ENGINES)}"
            raise BadInput(f"{public(place.url)!r} is no engine of shared dialogs", fix=fix)
        where = next(iter(found)).value
    make: Callable[[Place], Engine] = resolve_name(where)
    return make(place)


def public(url: str) -> str:
    """The URL without who is asked for and how: a user may be a token, an option a password."""
    parts = urlsplit(url)
    rest = "…" if _UNCLEAR.search(url) else f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{parts.scheme}://{rest}"
