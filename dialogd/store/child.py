"""A command under its guard, as the daemon holds it: its pipes, its end, and what it said on stderr."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dialogd.errors import BackendError

GUARD = Path(__file__).with_name("process_guard.py").resolve()
_PYTHON = (sys.executable, "-I", "-S")
CHUNK = 64 * 1024
STDERR_TAIL = 64 * 1024
PATIENCE = 3.0  # seconds for the guard to end everything; it needs 0.3 as a rule


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command and all that it starts may take together; where it takes more, it is ended.

    `processes` with their threads, `memory` is bytes, `disk` bytes of each file system on which `folders` lie, and of
    any one file; `files` may be open in one process.
    """

    processes: int
    memory: int
    disk: int
    files: int
    folders: tuple[Path, ...]

    def words(self) -> list[str]:
        numbers = f"--limits={self.processes},{self.memory},{self.disk},{self.files}"
        return [numbers, *(f"--folder={folder}" for folder in self.folders)]

    def told(self, passed: str) -> str:
        return {
            "tasks": f"it had more than {self.processes:,} processes and threads",
            "memory": f"it took more than {_size(self.memory)} of memory",
            "disk": f"more than {_size(self.disk)} of the disk, or half of the files for which it had room, were taken",
        }.get(passed, "the machine has no memory left")


async def until_done(work: asyncio.Future[Any]) -> None:
    """Wait until that is done. A cancellation is kept back until then: what it ends must not be left running."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them, and wait until each has ended, however."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Child:
    """A running command. Whoever made one awaits `end()`, whatever happens.

    All pipes are served by the one task that calls `read`: nothing runs on in the background.
    """

    def __init__(
        self,
        command: Sequence[str],
        stdin: bytes | None,
        environment: Mapping[str, str],
        cwd: Path | None,
        limits: Limits | None = None,
    ) -> None:
        """Start `command` (its first word is a path); `stdin` None: `write` says what comes, and when.

        Raises `BackendError` when no process can be started.
        """
        self.limits = limits
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        try:
            self._process = subprocess.Popen(
                [*_PYTHON, str(GUARD), str(theirs.fileno()), *(limits.words() if limits else ()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env=dict(environment),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except OSError as error:
            self._control.close()
            raise BackendError(
                f"no process could be started: {error.strerror}: {error.filename or command[0]}",
                fix="look at the limits of this machine (`ulimit -a`, free memory) and at the project directory",
                retryable=True,
            ) from error
        finally:
            theirs.close()
        self._pipes = {name: getattr(self._process, name).fileno() for name in ("stdin", "stdout", "stderr")}
        for fd in self._pipes.values():
            os.set_blocking(fd, False)
        self._unsent = memoryview(stdin or b"")
        self._stays_open = stdin is None
        self._wake = asyncio.Event()  # there is something to do that no pipe tells
        self._is_ended = False
        self._said = b""
        self.stderr = b""

    def write(self, data: bytes) -> None:
        """Write to stdin, for a child that is being read. Raises ConnectionError when nobody reads it any more."""
        if "stdin" not in self._pipes:
            raise ConnectionError("the command reads no more")
        self._unsent = memoryview(bytes(self._unsent) + data)
        self._feed()
        self._wake.set()

    async def read(self) -> bytes:
        """The next bytes of stdout; b"" once the command and everything it started are gone."""
        await asyncio.sleep(0)  # a command that never pauses must not keep the loop
        while not self._is_ended:
            gone = self._guard_is_gone()
            self._feed()
            self.stderr = (self.stderr + self._take("stderr"))[-STDERR_TAIL:]
            chunk = self._take("stdout")
            if chunk or gone:
                return chunk
            await self._something_to_do()
        return b""

    async def end(self) -> int:
        """End the command and everything it started, and wait for it; the exit code (128 + n after signal n).

        Takes under half a second. A cancellation is kept back until all is gone. May be called twice.
        """
        cancelled: asyncio.CancelledError | None = None
        self._is_ended = True
        self._wake.set()
        try:
            await asyncio.sleep(0)  # whoever still reads lets go of the pipes
        except asyncio.CancelledError as error:
            cancelled = error
        for name in tuple(self._pipes):
            self._close(name)
        self._control.close()
        deadline = time.monotonic() + PATIENCE
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            try:
                await asyncio.sleep(0.002)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return self._process.returncode

    @property
    def errno(self) -> int | None:
        """Why the command could not be started, or None when it was."""
        return int(self._said) if self._said.isdigit() else None

    @property
    def passed(self) -> str:
        """Which of its limits it passed, in words, and was ended for it; "" for none."""
        return self.limits.told(self._said.decode()) if self.limits and self._said.isalpha() else ""

    def check(self, program: str, fix: str) -> None:
        """Raise `BackendError` for a command that could not be run (`fix` says what to do), or took too much."""
        if self.errno is not None:
            raise BackendError(f"cannot run {program!r}: {os.strerror(self.errno)}", fix=fix)
        if self.passed:
            raise BackendError(
                f"{program!r} was ended: {self.passed}",
                fix="look at what it left in its worktree, and ask again with `dialogd retry`",
            )

    def _guard_is_gone(self) -> bool:
        try:
            said = self._control.recv(64)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self._said += said
        return not said

    def _feed(self) -> None:
        """Write as much of stdin as fits. A command that doesn't want it all is free not to read it."""
        fd = self._pipes.get("stdin")
        if fd is None:
            return
        try:
            if self._unsent:
                self._unsent = self._unsent[os.write(fd, self._unsent[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent, self._stays_open = self._unsent[:0], False
        if not self._unsent and not self._stays_open:
            self._close("stdin")

    def _take(self, name: str) -> bytes:
        """What stands in a pipe, at most one chunk; closes it at its end."""
        fd = self._pipes.get(name)
        if fd is None:
            return b""
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return b""
        if not chunk:
            self._close(name)
        return chunk

    def _close(self, name: str) -> None:
        del self._pipes[name]
        getattr(self._process, name).close()

    async def _something_to_do(self) -> None:
        """Wait until a pipe can be read or written without waiting, or somebody wakes this up."""
        loop, fd = asyncio.get_running_loop(), self._pipes.get("stdin") if self._unsent else None
        readable = [self._control.fileno(), *(fd for name, fd in self._pipes.items() if name != "stdin")]
        self._wake.clear()
        try:
            for each in readable:
                loop.add_reader(each, self._wake.set)
            if fd is not None:
                loop.add_writer(fd, self._wake.set)
            await self._wake.wait()
        finally:
            for each in readable:
                loop.remove_reader(each)
            if fd is not None:
                loop.remove_writer(fd)


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
