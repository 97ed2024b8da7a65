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
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Any

from dialogd.errors import BadInput, DialogdError, NotInstalled, StorageError
from dialogd.store.engine import NOTHING, PATIENCE, Differs, EngineAway, Place, Row, SeatTaken, public

try:
    import psycopg
    from psycopg import errors
except ImportError as missing:
    raise NotInstalled("PostgreSQL needs psycopg", fix="pip install 'dialogd[postgres]'") from missing

LEASE = 60.0  # seconds that a seat stays a daemon's when nothing is heard from it
LONGEST = 60.0  # seconds for rows to arrive as long as they flow
SCHEMA = Path(__file__).with_suffix(".sql")

# What only another writer causes.
_LOST = (errors.SerializationFailure, errors.UniqueViolation, errors.DeadlockDetected)
_REFUSED = re.compile(
    "authentication failed|pg_hba|does not exist|permission denied|no password|no such (user|database)"
)
_POLLED = (0, select.POLLIN, select.POLLOUT, select.POLLIN | select.POLLOUT)  # by what psycopg waits for

# The row that ends at `at`, without its content, and those behind it.
_ROWS = """
    SELECT "end", sha, at, seat, signature, new.*
    FROM dialogd.entry e LEFT JOIN LATERAL (SELECT e.data, e.names, e.files WHERE "end" > %(at)s) new ON true
    WHERE dialog = %(log)s AND "end" >= %(at)s ORDER BY "end"
"""
# Where the log ends; no row at all for who holds no seat.
_HEAD = """
    SELECT coalesce("end", 0), coalesce(sha, %s) FROM dialogd.seat LEFT JOIN dialogd.entry USING (dialog)
    WHERE dialog = %s ORDER BY 1 DESC LIMIT 1
"""
_HOLD = "dialogd.hold(%s, %s, %s, %s)"
_APPEND = "dialogd.append(%s, %s, %s, %s, %b, %s, %s, %s, %b)"


class _Connection(psycopg.Connection[Any]):
    """A connection whose every answer is waited for so long at most; psycopg's own would wait for a silent peer."""

    until = float("inf")  # when the call that runs has to be over

    def wait(self, gen: Any, interval: float = 0, timeout: float | None = None) -> Any:
        """Run one of psycopg's generators to its end."""
        try:
            wants = next(gen)
            while True:
                poll = select.poll()
                poll.register(self.pgconn.socket, _POLLED[wants])
                if not poll.poll(max(0.0, min(PATIENCE, self.until - monotonic())) * 1000):
                    raise psycopg.OperationalError("no answer in time")
                wants = gen.send(wants)
        except StopIteration as end:
            return end.value
        except psycopg.Error:
            raise
        except BaseException:
            self.hang_up()  # the answer that comes now belongs to nobody
            raise

    def hang_up(self) -> None:
        """Close without waiting for anything; whoever waits at the socket wakes."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.pgconn.socket)) as same:
            same.shutdown(socket.SHUT_RDWR)
        self.close()


def _let_go(coming: Future[_Connection]) -> None:
    if coming.exception() is None:
        coming.result().hang_up()


class Postgres:
    """See `Engine`. A URL as libpq takes it: postgresql://ROLE:PASSWORD@HOST/DATABASE?sslmode=verify-full."""

    def __init__(self, place: Place) -> None:
        if not re.fullmatch("[0-9a-f]{8,40}", place.name):
            raise BadInput(f"{place.name!r} is no name of a log", fix="check the line that you were given")
        self.place = place
        self._mutex = threading.Lock()  # held while something is asked
        self._connection: _Connection | None = None
        self._coming: Future[_Connection] | None = None
        self._is_new = place.is_new
        self._is_told = False  # of something that somebody else may have appended
        self._renew = float("inf")  # when the lease is to be renewed
        self._ended, end = os.pipe()  # the end of one end wakes whoever waits at the other
        self._end = weakref.finalize(self, os.close, end)
        weakref.finalize(self, os.close, self._ended)
        try:
            with self._asking():
                pass
        except BaseException:
            self.close()
            raise

    def fetch(self, at: int, sha: str) -> Sequence[Row]:
        """See `Engine`. Takes as long as rows flow, a minute at most."""
        with self._asking(LONGEST) as connection:
            values = {"log": self.place.name, "at": at}
            found = connection.execute(_ROWS, values, binary=True).fetchall()
            if (at, sha) != (0, NOTHING):
                if not found or found[0][:2] != (at, sha):
                    head = self._one(connection, _HEAD, (NOTHING, self.place.name))
                    if head is None:
                        role = connection.info.user
                        raise StorageError(f"{role} holds no seat in this log any more", fix="ask whoever keeps it")
                    raise Differs(*head)
                del found[0]
            return [
                Row(at, data, sha, seat, signature, tuple(zip(names, files, strict=True)))
                for _, sha, at, seat, signature, data, names, files in found
            ]

    def put(self, row: Row, before: str, whole: bytes = b"") -> bool:
        """See `Engine`."""
        names, files = [name for name, _ in row.files], [data for _, data in row.files]
        log = (self.place.name, row.at, before, row.seat, row.data, row.sha, row.signature, names, files)
        with self._asking() as connection:
            try:
                if not self.place.daemon_of:
                    return bool(self._one(connection, f"SELECT {_APPEND}", log)[0])
                query = f"SELECT taken, CASE WHEN taken = 0 THEN {_APPEND} END FROM {_HOLD} taken"
                taken, is_won = self._one(connection, query, (*log, *self._lease()))
            except _LOST:
                return False
            self._held(taken)
            return bool(is_won)

    def wait(self, seconds: float) -> bool:
        """See `Engine`."""
        end = monotonic() + seconds
        while True:
            try:
                with self._asking() as connection:
                    if monotonic() >= self._renew:
                        self._held(self._one(connection, f"SELECT {_HOLD}", self._lease())[0])
                    connection.pgconn.consume_input()
                    while notice := connection.pgconn.notifies():
                        self._hear(connection, notice.be_pid)
                    if self._is_told or monotonic() >= end:
                        self._is_told = False
                        return True
                    poll = select.poll()
                    poll.register(connection.pgconn.socket, select.POLLIN)
            except EngineAway:
                if self._end.alive:
                    raise
                return False
            poll.register(self._ended, select.POLLIN)
            poll.poll(max(0.0, min(end, self._renew) - monotonic()) * 1000)

    def close(self) -> None:
        """See `Engine`."""
        self._end()
        if self._mutex.acquire(timeout=PATIENCE):
            with suppress(psycopg.Error):  # the seat's lease lapses
                if self._connection is not None and self.place.daemon_of:
                    self._connection.until = monotonic() + PATIENCE
                    self._one(self._connection, f"SELECT {_HOLD}", self._lease(0))
            if self._connection is not None:
                self._connection.hang_up()
            if self._coming is not None:
                self._coming.add_done_callback(_let_go)
            self._mutex.release()

    def notices_arrive(self) -> bool:
        """Whether a notice of one connection comes to another within a second: not so through some poolers."""
        probe = f"dialogd_{token_hex(8)}"
        with self._asking(), closing(self._connect()) as here, closing(self._connect()) as there:
            here.execute(f"LISTEN {probe}")
            there.execute(f"NOTIFY {probe}")
            here.until = monotonic() + 1
            with suppress(psycopg.OperationalError):
                return any(here.notifies(stop_after=1))
        return False

    # -- the connection -------------------------------------------------------------------------------------------

    @contextmanager
    def _asking(self, seconds: float = PATIENCE) -> Iterator[_Connection]:
        """The connection, for this thread alone, opened where there is none; its errors become ours."""
        until = monotonic() + PATIENCE
        if not self._mutex.acquire(timeout=PATIENCE):
            raise self._away("it is still being asked for something else")
        try:
            if not self._end.alive:
                raise self._away("it was closed here")
            if self._connection is None:
                self._connection = self._opened(until)
            self._connection.until = until + seconds - PATIENCE
            yield self._connection
        except psycopg.Error as error:
            raise self._told(error) from error
        finally:
            self._mutex.release()

    def _opened(self, until: float) -> _Connection:
        """A connection that listens and has the seats."""
        connection = self._connected(until)
        connection.until = until
        try:
            query = "SELECT current_setting('synchronous_commit'), to_regnamespace('dialogd') IS NULL"
            (commit, is_bare), role = self._one(connection, query), connection.info.user
            if commit == "off":
                raise StorageError(
                    f"synchronous_commit is off for {role}: what was said could be lost",
                    fix=f"in that database: ALTER ROLE {role} SET synchronous_commit = on",
                )
            name, seats = self.place.name, list(self.place.seats)
            if self._is_new and is_bare:
                try:
                    connection.execute(SCHEMA.read_bytes())
                except errors.InsufficientPrivilege as error:
                    fix = f"once, as somebody who may: psql -1 -f {SCHEMA} URL"
                    raise StorageError(f"{role} may not make a schema in this database", fix=fix) from error
                except (errors.DuplicateSchema, errors.UniqueViolation):
                    pass  # somebody else was faster
            if self._is_new:
                self._one(connection, "SELECT dialogd.found(%s, %s, %s)", (name, seats, list(self.place.others)))
                self._is_new = False
            enter = f"SELECT dialogd.enter(%s, %s, %s, %s, %s); LISTEN dialogd_{name}"  # in one round trip
            lease = (self.place.daemon_of, self.place.holder, LEASE)
            entered: Any = psycopg.ClientCursor(connection).execute(enter, (name, seats, *lease)).fetchone()
            self._held(entered[0])
            connection.add_notify_handler(lambda notice: self._hear(connection, notice.pid))
        except BaseException:
            connection.hang_up()
            raise
        return connection

    def _connected(self, until: float) -> _Connection:
        """A new connection, made in a thread: looking a name up, and several addresses, take what time they take."""
        if self._coming is None or (self._coming.done() and self._coming.exception() is not None):
            coming = self._coming = Future()

            def connect() -> None:
                try:
                    coming.set_result(self._connect())
                except BaseException as error:
                    coming.set_exception(error)

            threading.Thread(target=connect, name="postgres", daemon=True).start()
        try:
            connection = self._coming.result(max(0.0, until - monotonic()))
        except TimeoutError as error:  # it goes on: the next call may find it made
            raise self._away("no connection in time") from error
        except psycopg.Error as error:
            self._coming = None
            if _REFUSED.search(str(error)):
                raise StorageError(f"{public(self.place.url)}: {error}", fix="check the URL and your rights") from error
            raise
        self._coming = None
        return connection

    def _connect(self) -> _Connection:
        return _Connection.connect(
            self.place.url,
            autocommit=True,
            prepare_threshold=None,  # a pooler's connections share no prepared statements
            connect_timeout=round(PATIENCE),
            client_encoding="utf8",
            fallback_application_name="dialogd",
        )

    def _one(self, connection: _Connection, query: str, values: Sequence[object] = ()) -> Any:
        return connection.execute(query, values).fetchone()

    # -- notices, the seat, errors --------------------------------------------------------------------------------

    def _hear(self, connection: _Connection, pid: int) -> None:
        self._is_told |= pid != connection.pgconn.backend_pid

    def _lease(self, seconds: float = LEASE) -> tuple[object, ...]:
        return (self.place.name, self.place.daemon_of, self.place.holder, seconds)

    def _held(self, taken: float) -> None:
        """After the seat was asked for, with the seconds that another machine's daemon has it."""
        if taken:
            raise SeatTaken(
                f"a daemon on another machine runs the seat {self.place.daemon_of}",
                fix=f"stop that one; if its machine is gone, try again in {taken:.0f} seconds",
            )
        self._renew = monotonic() + LEASE / 3 if self.place.daemon_of else float("inf")

    def _away(self, why: str) -> EngineAway:
        return EngineAway(
            f"{public(self.place.url)} gives no answer: {why}", fix="nothing: it is asked again until it answers"
        )

    def _told(self, error: psycopg.Error) -> DialogdError:
        """What psycopg raised as an error of ours; whoever lost the connection connects anew."""
        words = error.diag.message_primary or str(error).strip()
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            if self._connection is not None:
                self._connection.hang_up()
                self._connection, self._is_told = None, True  # who knows what was missed
            return self._away(words)
        url = public(self.place.url)
        if isinstance(error, errors.UndefinedObject | errors.InvalidSchemaName | errors.UndefinedFunction):
            return BadInput(f"{url}: {words}", fix="check the line that you were given")
        if not error.sqlstate:
            return BadInput(f"{url} makes no sense: {words}", fix="write it as libpq takes it")
        return StorageError(f"{url} refuses: {words}", fix="ask whoever keeps the log")
