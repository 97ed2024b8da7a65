"""Commands and daemons of tests, forked from one process that has imported everything: there in a tenth of the time."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["pytest", "tests.support.forked", "tests.support.preloaded"])


def _become(words: Sequence[str], environment: Mapping[str, str], folder: Path, streams: Sequence[Path]) -> None:
    """What a forked process does: `dialogd WORDS` in a session of its own, its three streams in files."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(streams):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - they live as long as the process
    sys.stdout, sys.stderr = (open(fd, "w", encoding="utf-8", closefd=False) for fd in (1, 2))  # noqa: SIM115
    sys.argv = ["dialogd", *words]
    from dialogd.__main__ import main

    main()


def begun(words: Sequence[str], environment: Mapping[str, str], folder: Path, streams: Sequence[Path]) -> BaseProcess:
    """Start `dialogd WORDS` with these three streams; it ends with the tests, whatever they forget."""
    process = _fork.Process(target=_become, args=(words, environment, folder, streams), daemon=True)
    process.start()
    return process


@dataclass
class Forked:
    """A forked process, as `tests.support.pair` handles processes."""

    process: BaseProcess
    pid: int

    def poll(self) -> int | None:
        """Its exit code, negative after a signal; None while it runs."""
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"process {self.pid} still runs after {timeout} s"
        return self.process.exitcode

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


def fork(words: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path) -> Forked:
    """Start `dialogd WORDS`, as `tests.support.pair.launch` does, but fast."""
    process = begun(words, environment, folder, (Path(os.devnull), output, output))
    assert process.pid is not None
    return Forked(process, process.pid)
