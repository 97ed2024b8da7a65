"""A log in PostgreSQL: rows of a table that only functions write to, and a notice for each. See postgres.sql.

One connection for everything, in autocommit: each call is one statement and one round trip. It works through poolers
too; those that share connections among transactions swallow the notices, and the poll takes their place.
"""

from __future__ import annotations

import os
import re
import select
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from dialogd.errors import BadInput, NotInstalled, StorageError
from dialogd.store.engine import LONGEST, MOST, NOTHING, PATIENCE, Differs, EngineAway, Place, Row, SeatTaken, public

try:
    import psycopg
    from psycopg import errors
except ImportError as missing:
    raise NotInstalled("PostgreSQL needs psycopg", fix="pip install 'dialogd[postgres]'") from missing

LEASE = 60.0  # seconds that a seat stays a daemon's when nothing is heard from it
SCHEMA = Path(__file__).with_suffix(".sql")

# The row that ends at `at`, without its content, and those behind it.
_ROWS = """
    SELECT "end", at, new.data, sha, seat, signature, new.names, new.files
    FROM dialogd.entry e LEFT JOIN LATERAL (SELECT e.data, e.names, e.files WHERE "end" > %(at)s) new ON true
    WHERE dialog = %(log)s AND "end" >= %(at)s ORDER BY "end"
"""
_HEAD = 'SELECT "end", sha FROM dialogd.entry WHERE dialog = %s ORDER BY "end" DESC LIMIT 1'
_HOLD = "SELECT dialogd.hold(%(log)s, %(daemon)s, %(machine)s, %(seconds)s)"
_ENTER = "SELECT dialogd.enter(%(log)s, %(mine)s, %(others)s::text[], %(daemon)s, %(machine)s, %(seconds)s)"
_ROW = "%(log)s, %(at)s, %(before)s, %(seat)s, %(data)b, %(sha)s, %(signature)s, %(names)s, %(files)b"
_PUT = f"SELECT taken, CASE WHEN taken <= 0 THEN dialogd.append({_ROW}) END FROM ({_HOLD}) held (taken)"

# What only another writer causes, and how a server turns somebody away before there are codes for it.
_LOST = (errors.SerializationFailure, errors.UniqueViolation, errors.DeadlockDetected)
_TURNED_AWAY = "authentication failed|pg_hba|does not exist|permission denied|no password|no such (user|database)"

Connection = psycopg.Connection[Any]
T = TypeVar("T")


class Postgres:
    """See `Engine`. A URL as libpq takes it: postgresql://ROLE:PASSWORD@HOST/DATABASE?sslmode=verify-full.

    A thread of its own has the connection, and does what it is asked in order: whoever asks waits so long at most,
    whatever a name server or a silent peer takes.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._connection: Connection | None = None
        self._is_closed = False
        self._is_told = False  # of something that somebody else may have appended
        self._renew = float("inf")  # when the lease is to be renewed
        self._asked: SimpleQueue[tuple[Callable[[Connection], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="postgres", daemon=True)
        self._thread.start()
        try:
            self._ask(lambda _: None)
        except BaseException:
            self.close()
            raise

    def fetch(self, at: int, sha: str) -> Sequence[Row]:
        """See `Engine`."""

        def rows(connection: Connection) -> Sequence[Row]:
            found, room = [], MOST
            for one in connection.cursor().stream(_ROWS, {"log": self.place.name, "at": at}, binary=True):
                room -= sum(map(len, (one[2] or b"", *(one[7] or ()))))
                if room < 0:
                    self._drop()  # else the rest of it would be read
                    raise StorageError(f"{public(self.place.url)} sends over {MOST:,} bytes", fix="ask who keeps it")
                found.append(one)
            if (at, sha) != (0, NOTHING):
                if not found or (found[0][0], found[0][3]) != (at, sha):
                    self._enter(connection)  # to whom holds no seat any more every log looks empty
                    raise Differs(*(connection.execute(_HEAD, (self.place.name,)).fetchone() or (0, NOTHING)))
                del found[0]
            return [
                Row(at, data, sha, seat, signature, tuple(zip(names, files, strict=True)))
                for _, at, data, sha, seat, signature, names, files in found
            ]

        return self._ask(rows, PATIENCE if at else LONGEST)

    def put(self, row: Row, before: str, whole: bytes = b"") -> bool:
        """See `Engine`."""
        values = {name: getattr(row, name) for name in ("at", "seat", "data", "sha", "signature")}
        values |= {"names": [name for name, _ in row.files], "files": [data for _, data in row.files]}

        def append(connection: Connection) -> bool:
            try:
                return bool(self._held(connection, _PUT, before=before, **values)[1])
            except _LOST:
                return False

        return self._ask(append)

    def wait(self, seconds: float) -> bool:
        """See `Engine`."""
        end = monotonic() + seconds

        def news(connection: Connection) -> int | None:
            if monotonic() >= self._renew:
                self._held(connection, _HOLD)
            others = {notice.pid for notice in connection.notifies(timeout=0)} - {connection.info.backend_pid}
            is_told, self._is_told = self._is_told or bool(others), False
            return None if is_told else connection.fileno()

        while not self._is_closed:
            line = self._ask(news)
            if line is None or monotonic() >= end:
                return True
            poll = select.poll()
            poll.register(line, select.POLLIN)
            poll.poll(max(0.0, min(end, self._renew) - monotonic()) * 1000)
        return False

    def close(self) -> None:
        """See `Engine`."""
        self._is_closed = True
        self._asked.put(None)
        self._thread.join(PATIENCE)
        self._hang_up()

    def notices_arrive(self) -> bool:
        """Whether a notice of one connection comes to another within a second: not so through some poolers."""

        def arrive(connection: Connection) -> bool:
            with self._connect() as other:
                other.execute(f"NOTIFY dialogd_{self.place.name}")
            self._is_told = True  # somebody else's may have been the one
            return any(connection.notifies(timeout=1, stop_after=1))

        return self._ask(arrive)

    # -- its thread -----------------------------------------------------------------------------------------------

    def _ask(self, what: Callable[[Connection], T], seconds: float = PATIENCE) -> T:
        """Have the thread do something with the connection. Raises what that does, and `EngineAway`."""
        if self._is_closed:
            raise self._away("it was closed here")
        answer: Future[T] = Future()
        self._asked.put((what, answer))
        try:
            return answer.result(seconds)
        except TimeoutError:
            answer.cancel()  # where it has not begun it is not done later
            self._hang_up()
            raise self._away("none came in time") from None

    def _serve(self) -> None:
        for what, answer in iter(self._asked.get, None):
            known = self._connection
            try:
                if not answer.cancelled():
                    connection = known or self._open()
                    if answer.set_running_or_notify_cancel():
                        answer.set_result(what(connection))
            except BaseException as error:  # whoever asked gets it
                if known is None or isinstance(error, psycopg.Error):
                    self._drop()
                with suppress(InvalidStateError):
                    answer.set_exception(self._said(error) if isinstance(error, psycopg.Error) else error)
        with suppress(psycopg.Error, SeatTaken):  # then the lease lapses
            if self._connection is not None:
                self._held(self._connection, _HOLD, 0)
        self._drop()

    def _open(self) -> Connection:
        connection = self._connection = self._connect()
        query = "SELECT current_setting('synchronous_commit'), to_regnamespace('dialogd') IS NULL"
        (commit, is_bare), role = connection.execute(query).fetchone() or ("", False), connection.info.user
        if commit == "off":
            advice = f"in that database: ALTER ROLE {role} SET synchronous_commit = on"
            raise StorageError(f"synchronous_commit is off for {role}: what was said could be lost", fix=advice)
        if self.place.is_new and is_bare:
            try:
                with suppress(errors.DuplicateSchema, errors.UniqueViolation):  # somebody else was faster
                    connection.execute(SCHEMA.read_bytes())
            except errors.InsufficientPrivilege as error:
                fix = f"once, as somebody who may: psql -1 -f {SCHEMA} URL"
                raise StorageError(f"{role} may not make a schema in this database", fix=fix) from error
        connection.execute(f"LISTEN dialogd_{self.place.name}")
        self._enter(connection)
        return connection

    def _connect(self) -> Connection:
        options: dict[str, Any] = {"connect_timeout": round(PATIENCE), "client_encoding": "utf8"}
        # A pooler's connections share no prepared statements.
        return psycopg.connect(self.place.url, autocommit=True, prepare_threshold=None, **options)

    def _enter(self, connection: Connection) -> None:
        others = list(self.place.others) if self.place.is_new else None
        self._held(connection, _ENTER, mine=list(self.place.seats), others=others)

    def _held(self, connection: Connection, query: str, seconds: float = LEASE, **values: object) -> Any:
        """The row of a query that asks for the seat, and says first for how long another machine has it."""
        place = self.place
        values |= {"log": place.name, "daemon": place.daemon_of, "machine": place.holder, "seconds": seconds}
        row: Any = connection.execute(query, values).fetchone()
        if row[0] > 0:
            advice = f"stop that one; if its machine is gone, try again in {row[0]:.0f} seconds"
            raise SeatTaken(f"a daemon on another machine runs the seat {place.daemon_of}", fix=advice)
        self._renew = monotonic() + LEASE / 3 if place.daemon_of else float("inf")
        return row

    def _hang_up(self) -> None:
        """End what the connection carries, from any thread; whoever waits at it wakes."""
        if (connection := self._connection) is not None:
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def _drop(self) -> None:
        if self._connection is not None:
            self._hang_up()
            self._connection.close()
            self._connection, self._is_told = None, True  # who knows what is missed

    def _away(self, why: str) -> EngineAway:
        return EngineAway(f"{public(self.place.url)} gives no answer: {why}", fix="try again once it answers")

    def _said(self, error: psycopg.Error) -> Exception:
        words, url = " ".join((error.diag.message_primary or str(error)).split()), public(self.place.url)
        words = words.replace(self.place.url, url)  # libpq shows all of one that it cannot read
        is_no = not error.sqlstate and re.search(_TURNED_AWAY, words)
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not is_no:
            return self._away(words)
        if isinstance(error, errors.UndefinedObject | errors.InvalidSchemaName) or not (error.sqlstate or is_no):
            return BadInput(f"{url}: {words}", fix="check the URL, or the line that you were given")
        return StorageError(f"{url} refuses: {words}", fix="check the URL, or ask whoever keeps the log")
