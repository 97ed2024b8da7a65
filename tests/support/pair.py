"""Real daemons for tests: processes of their own, on free ports, with a dialog file and a state directory of their own.

    with Pair(tmp_path) as pair:
        pair.start()
        pair.begin("Where should user sessions live?")
        pair.notify()
        pair.until(lambda: pair.outcome, "the end")

Any number of agents: `Pair(tmp_path, "ABC")`. Every wait has a deadline; one in vain fails with the end of every log.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from dialogd.errors import DialogdError
from dialogd.protocol.grammar import parse
from dialogd.protocol.state import Dialog

PATIENCE = 180.0  # seconds; a loaded machine is slow, not wrong
STEP = 0.01  # seconds between two looks of a wait


class Process(Protocol):
    """A running daemon as its launcher knows it; `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...


# From the words after `dialogd`, the environment, the working directory and where output goes to a running process.
Launch = Callable[[Sequence[str], Mapping[str, str], Path, Path], Process]


def launch(words: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path) -> Process:
    """Start `python -m dialogd WORDS` in a session of its own."""
    with output.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "dialogd", *words],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE, why: Callable[[], str] = str) -> None:
    """Wait until `condition()`; raises AssertionError, with `why()`, when it is not so within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}\n{why()}")
        time.sleep(STEP)


def overwrite(path: Path, text: str | bytes) -> None:
    """Write a file anew, as editors do that save in one step: nobody reads half of it."""
    saved = path.with_name(f".{path.name}.saved")
    saved.touch(0o600)
    saved.write_bytes(text.encode() if isinstance(text, str) else text)
    saved.replace(path)


def a_second() -> float:
    """The longest that a second may last here: far more than two while anything else runs."""
    return max(2.0, 20.0 * (_wanted() > 1))


def stretched(seconds: float) -> float:
    """How long somebody has to be given here who needs so many seconds where nothing else runs."""
    return seconds * min(max(1.0, 1.5 * _wanted() / (os.cpu_count() or 1), 3.0 * (_wanted() > 1)), 15.0)


def _wanted() -> float:
    return max(os.getloadavg()[0], _running(), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _running() -> int:
    """How many programs want to run right now: the load is an average that comes a minute late. 0 where nobody says."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0])
    return 0


class Daemon:
    """One agent's daemon: started, asked, frozen, killed."""

    def __init__(self, agent: str, port: int, start: Callable[[Path], Process], output: Path) -> None:
        self.id = agent
        self.port = port
        self.output = output
        self._start = start
        self._process: Process | None = None

    def start(self) -> None:
        if self.running:
            raise AssertionError(f"{self.id} runs already")
        self._process = self._start(self.output)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._started().pid

    def until_ready(self, seconds: float = PATIENCE) -> None:

        def ready() -> bool:
            if not self.running:
                raise AssertionError(f"{self.id} ended at once:\n{self.said}")
            return self.health() is not None

        until(ready, f"{self.id} to answer", seconds=seconds, why=lambda: self.said)

    def ask(self, method: str, path: str, body: object = None, seconds: float = PATIENCE) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one request; raises OSError or `http.client.HTTPException` without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        finally:
            connection.close()

    def health(self) -> dict[str, Any] | None:
        """What it says about itself, None while it does not answer."""
        with suppress(OSError, http.client.HTTPException, ValueError):
            status, facts = self.ask("GET", "/health", seconds=20.0)
            return facts if status == 200 and facts.get("pid") == self.pid else None
        return None

    def notify(self, **message: object) -> dict[str, Any]:
        return self.ask("POST", "/notify", message or None)[1]

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def signal(self, number: int) -> None:
        """Send a signal; SIGSTOP freezes, SIGCONT thaws."""
        self._started().send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        return self._started().wait(seconds)

    def _started(self) -> Process:
        if self._process is None:
            raise AssertionError(f"{self.id} was never started")
        return self._process

    @property
    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""


def reserve() -> tuple[int, socket.socket]:
    """A port that stays ours: bound, so that nobody is given it; not listened on, so that a daemon may."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = int(reserved.getsockname()[1])
    if sys.platform != "linux":
        reserved.close()  # elsewhere even a socket that does not listen would keep the daemon out
    return port, reserved


class Pair:
    """Daemons that share one dialog file. Leaving the context kills what still runs.

    `backend` and `command` are the flags, one for all or by agent id, `flags` further words by agent id. `environment`
    is added to what the daemons get, and is all that they get from then on.
    With `told=False` all peers' addresses are dead: nobody hears a notification.
    """

    def __init__(
        self,
        folder: Path,
        agents: Iterable[str] = "AB",
        *,
        backend: str | Mapping[str, str] = "rehearsal",
        command: str | Mapping[str, str] = "",
        flags: Mapping[str, Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
        told: bool = True,
        launch: Launch = launch,
    ) -> None:
        self.folder = folder
        self.file = folder / "dialog.md"
        self.state_dir = folder / "state"
        self.launch = launch
        self._told = told
        self._backend, self._command, self._flags = backend, command, flags or {}
        self.environment = _environment(folder, self.state_dir, environment or {})
        self._reserved: list[socket.socket] = []
        self._dead = self._port()
        self.daemons = {who: Daemon(who, self._port(), self._starter(who), folder / f"{who}.out") for who in agents}

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for daemon in self.daemons.values():
            if daemon.running:
                daemon.kill()
        for reserved in self._reserved:
            reserved.close()
        if error is not None:
            error.add_note(self.told_by_logs())

    def __getitem__(self, agent: str) -> Daemon:
        return self.daemons[agent]

    def _port(self) -> int:
        port, reserved = reserve()
        self._reserved.append(reserved)
        return port

    def _starter(self, agent: str) -> Callable[[Path], Process]:
        return lambda output: self.launch(self.words(agent), self.environment, self.folder, output)

    def url(self, agent: str) -> str:
        """Where others are told that `agent` listens."""
        return f"http://localhost:{self.daemons[agent].port if self._told else self._dead}"

    def words(self, agent: str) -> list[str]:
        """The command line of one daemon, after `dialogd`."""
        command = _for(self._command, agent)
        backend = "command" if command else _for(self._backend, agent)
        words = ["start", agent, "--port", str(self.daemons[agent].port), "--file", str(self.file), "--pace", "0"]
        words += ["--backend", backend, *(["--command", command] if command else []), *self._flags.get(agent, ())]
        for who in self.daemons:
            words += ["--peer", f"{who}={self.url(who)}"] if who != agent else []
        return words

    def start(self, agents: Iterable[str] = "") -> None:
        """Start these daemons, all by default, and wait until they answer."""
        chosen = [self.daemons[who] for who in agents or self.daemons]
        for daemon in chosen:
            daemon.start()
        for daemon in chosen:
            daemon.until_ready()

    def opening(self, question: str, turn: str = "", setup: str = "", **keys: object) -> str:
        """A dialog as people write it by hand; `max_turns=8` is a header line, `setup` the lines of a `## Setup`."""
        agents = ", ".join(f"{who} = Claude {who} @ {self.url(who)}" for who in self.daemons)
        given = {"topic": question, "agents": agents, **keys}
        lines = [f"**{key.replace('_', ' ').title()}:** {value}" for key, value in given.items()]
        header = "\n".join(["# Claude Autonomous Dialog", "", *lines])
        asked = f"## Setup\n\n```toml\n{setup}\n```\n\n" if setup else ""
        rules = f"{asked}## Rules\n\n- Use `[CONSENSUS_REACHED]` when agreement is achieved\n\n---"
        return f"{header}\n\n{rules}\n\n## Turn 1 — User\n\n{question}\n\nTURN: {turn or next(iter(self.daemons))}\n"

    def begin(self, question: str, turn: str = "", setup: str = "", **keys: object) -> None:
        overwrite(self.file, self.opening(question, turn, setup, **keys))

    def hold(self, question: str, turn: str = "", setup: str = "", **keys: object) -> None:
        """Start every daemon, write a new dialog, and notify the first agent."""
        self.start()
        self.begin(question, turn, setup, **keys)
        self.notify()

    def types(self, text: str) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(text)

    def notify(self, agent: str = "") -> dict[str, Any]:
        """`curl -X POST …/notify`, at the first agent by default."""
        return self.daemons[agent or next(iter(self.daemons))].notify()

    def dialog(self) -> Dialog | None:
        """The dialog as the file stands, None while there is none to read."""
        with suppress(OSError, DialogdError):
            return parse(self.file.read_bytes())
        return None

    @property
    def number(self) -> int:
        """The last turn's number, 0 without a dialog."""
        return dialog.state.number if (dialog := self.dialog()) else 0

    @property
    def outcome(self) -> str:
        """The name of the mark that ended the dialog, "" while it goes on."""
        dialog = self.dialog()
        return dialog.state.outcome.name if dialog and dialog.state.outcome else ""

    def until(self, condition: Callable[[], object], what: str, *, seconds: float = PATIENCE) -> None:
        """Wait until `condition()`; fails with the end of every log."""
        until(condition, what, seconds=seconds, why=self.told_by_logs)

    def told_by_logs(self) -> str:
        ends = {who: "\n".join(daemon.said.split("\n")[-25:]) for who, daemon in self.daemons.items()}
        return "\n".join(f"--- {who}\n{end}" for who, end in ends.items())


def _for(value: str | Mapping[str, str], agent: str) -> str:
    return value if isinstance(value, str) else value.get(agent, "")


def _environment(folder: Path, state_dir: Path, more: Mapping[str, str]) -> dict[str, str]:
    """An environment without anybody's own settings."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DIALOGD_", "CLAUDE_"))},
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "DIALOGD_STATE_DIR": str(state_dir),
        **{"DIALOGD_POLL": "0.1", "DIALOGD_PLAN": "0", "DIALOGD_RETRY_WAIT": "0"},
        **more,
    }
