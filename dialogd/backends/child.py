"""A command on its leash, as the daemon holds it: its pipes, its end, and what it said on stderr."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from dialogd.errors import BackendError

LEASH = Path(__file__).with_name("leash.py").resolve()
CHUNK = 64 * 1024
STDERR_TAIL = 64 * 1024
PATIENCE = 3.0  # seconds for the leash to end everything; it needs 0.3 as a rule


class Child:
    """A running command. Whoever made one awaits `end()`, whatever happens.

    All pipes are served by the one task that calls `read`: nothing runs on in the background.
    """

    def __init__(self, command: Sequence[str], stdin: bytes, environment: Mapping[str, str], cwd: Path | None) -> None:
        """Start `command` (its first word is a path). Raises OSError when no process can be started."""
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LEASH), str(theirs.fileno()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env=dict(environment),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._pipes = {name: _nonblocking(getattr(self._process, name)) for name in ("stdin", "stdout", "stderr")}
        self._unsent = memoryview(stdin)
        self._said = b""
        self.stderr = b""

    async def read(self) -> bytes:
        """The next bytes of stdout; b"" once the command and everything it started are gone."""
        await asyncio.sleep(0)  # a command that never pauses must not keep the loop
        while True:
            gone = self._leash_is_gone()
            self._feed()
            self.stderr = (self.stderr + self._take("stderr"))[-STDERR_TAIL:]
            chunk = self._take("stdout")
            if chunk or gone:
                return chunk
            await self._something_to_do()

    async def end(self) -> int:
        """End the command and everything it started, and wait for it; the exit code (128 + n after signal n).

        Takes under half a second. A cancellation is kept back until all is gone. May be called twice.
        """
        for name in tuple(self._pipes):
            self._close(name)
        self._control.close()
        cancelled: asyncio.CancelledError | None = None
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
        return int(self._said) if self._said else None

    def _leash_is_gone(self) -> bool:
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
            self._unsent = self._unsent[:0]
        if not self._unsent:
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
        outputs = [fd for name, fd in self._pipes.items() if name != "stdin"]
        inputs = [fd for name, fd in self._pipes.items() if name == "stdin"]
        await _any_ready((self._control.fileno(), *outputs), inputs)


def not_started(error: OSError, program: str) -> BackendError:
    """The error of a machine that starts no process, for whoever makes a `Child`."""
    return BackendError(
        f"no process could be started: {error.strerror}: {error.filename or program}",
        fix="look at the limits of this machine (`ulimit -a`, free memory) and at the project directory",
        retryable=True,
    )


def _nonblocking(pipe: IO[bytes]) -> int:
    fd = pipe.fileno()
    os.set_blocking(fd, False)
    return fd


async def _any_ready(readable: Iterable[int], writable: Iterable[int]) -> None:
    """Wait until one of the descriptors can be read or written without waiting."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        for fd in readable:
            loop.add_reader(fd, ready.set)
        for fd in writable:
            loop.add_writer(fd, ready.set)
        await ready.wait()
    finally:
        for fd in readable:
            loop.remove_reader(fd)
        for fd in writable:
            loop.remove_writer(fd)
