"""A process that has imported the daemon once, and forks: real daemons that start in a tenth of a second."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PRELOADED = (
    "anyio._backends._asyncio", "dialogd.backends.command", "dialogd.backends.rehearsal", "dialogd.cli.app",
    "dialogd.daemon", "encodings.idna", "httpx2", "platformdirs", "psutil", "pydantic.v1", "typer.main",
    "uvicorn.loops.asyncio", "uvicorn.lifespan.off", "uvicorn.protocols.http.h11_impl", "watchfiles",
)  # fmt: skip


class Forked:
    """A daemon that the zygote forked, in the manner of `subprocess.Popen`."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative after a signal; None while it runs."""
        if self._code is None:
            self._code = self._zygote.ask({"poll": self.pid})
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        deadline = time.monotonic() + (timeout or 60.0)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"daemon {self.pid}", timeout or 60.0)
            time.sleep(0.002)
        return code

    def send_signal(self, sig: int, /) -> None:
        """Send a signal to it, unless it is gone."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class Zygote:
    """The parent of daemons, with `more` modules imported too; `launch` fits `Pair`."""

    def __init__(self, *more: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote", *more],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: Mapping[str, object]) -> Any:
        """One question, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def launch(self, words: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path) -> Forked:
        """As `tests.support.pair.launch`."""
        question = {"words": list(words), "environment": dict(environment), "cwd": str(folder), "output": str(output)}
        return Forked(self, self.ask(question))

    def close(self) -> None:
        """End it; its daemons are ended by whoever started them."""
        self._process.communicate()


def _become_daemon(words: list[str], environment: dict[str, str], cwd: str, output: str) -> None:
    """In the forked child: everything as after a start from a shell, but for the imports."""
    code = 1
    try:
        os.setsid()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        for fd, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)):
            os.dup2(os.open(path, flags, 0o600), fd)
        os.dup2(1, 2)
        sys.argv = ["dialogd", *words]
        from dialogd.cli import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _poll(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def main() -> None:
    """Answer questions until stdin ends."""
    for module in (*PRELOADED, *sys.argv[1:]):
        importlib.import_module(module)
    gc.freeze()  # pages that the collector does not touch stay shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        question = json.loads(line)
        if "poll" in question:
            answer: int | None = _poll(question["poll"])
        else:
            answer = os.fork()
            if answer == 0:
                _become_daemon(**question)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
