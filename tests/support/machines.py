"""Machines that share a dialog: each with a state directory, a dialog file, keys and a network of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from dialogd.protocol.keys import Keys, table_of
from dialogd.store.disk import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.store.mirror import Connection, begin, take
from tests.support import forked
from tests.support.pair import PATIENCE, Daemon, Pair

T = TypeVar("T")

NAME = "5eed" * 8  # of the log, at its engine
_CLONE_NEWNET = 0x40000000

OPENING = """# Claude Autonomous Dialog

**Topic:** Where should user sessions live?
**Max Turns:** {turns}
**Agents:** A = Claude A @ http://localhost:1, B = Claude B @ http://localhost:2
**Dialog:** {dialog}

## Setup

```toml
{keys}
```

## Rules

- Use `[CONSENSUS_REACHED]` when agreement is achieved

---

## Turn 1 — User

Postgres or Redis?

TURN: A
"""


def make_key(path: Path, name: str = "") -> Path:
    """An SSH key of somebody's own."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
    subprocess.run(words, check=True, capture_output=True)
    return path


def public(path: Path) -> str:
    """Its public part, `TYPE BASE64`."""
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


def signed(key: Path, sha: str, namespace: str = "dialogd") -> str:
    """What this key makes of a hash, as it stands in rows."""
    words = ["ssh-keygen", "-Y", "sign", "-q", "-n", namespace, "-f", str(key)]
    done = subprocess.run(words, input=f"{sha}\n".encode(), check=True, capture_output=True)
    return "".join(done.stdout.decode().split("\n")[1:-2])


class Cast:
    """The keys of everybody: `A` and `B`, the people `Ada` and `Bob`, and `Eve`, whom nobody knows."""

    def __init__(self, folder: Path) -> None:
        self.keys = {who: make_key(folder / who, who) for who in ("A", "B", "Ada", "Bob", "Eve")}

    def __getitem__(self, who: str) -> Path:
        return self.keys[who]

    @property
    def known(self) -> Keys:
        return Keys({who: public(self[who]) for who in "AB"}, {who: public(self[who]) for who in ("Ada", "Bob")})

    def opening(self, dialog: str = "20261127-shared", turns: int = 100_000) -> bytes:
        """A dialog that is to be shared."""
        return OPENING.format(dialog=dialog, turns=turns, keys=table_of(self.known)).encode()


class Files:
    """What one machine has on its disk: `person` speaks there, and `seats` are those of its agents."""

    def __init__(self, folder: Path, cast: Cast, person: str, seats: Iterable[str], url: str, name: str = NAME) -> None:
        self.folder = folder
        self.file = folder / "dialog.md"
        self.state_dir = folder / "state"
        self.connection = Connection(
            url=url,
            name=name,
            root="",
            holder=folder.name,
            person=str(cast[person]),
            person_name=person,
            seats={who: str(cast[who]) for who in seats},
        )
        self._logs: list[LogFile] = []
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def log(self) -> LogFile:
        """The file as a process of its own would have it: nothing is shared but the disk."""
        self._logs.append(LogFile(self.file, Journals(StateDir(self.state_dir).dialog(self.file))))
        return self._logs[-1]

    def close(self) -> None:
        """Let go of the engine, wherever it was opened here."""
        for log in self._logs:
            closed(log)

    def share(self, opening: bytes, others: Iterable[str]) -> str:
        """Write the dialog and put it to a new log; the root."""
        self.file.touch(0o600)
        self.file.write_bytes(opening)
        self.connection = begin(self.log(), self.connection, tuple(others))
        return self.connection.root

    def join(self, root: str) -> LogFile:
        """Make the mirror of the log with this root."""
        self.connection = Connection(**{**vars_of(self.connection), "root": root})
        log = self.log()
        take(log, self.connection)
        return log

    @property
    def typed(self) -> list[str]:
        """What was typed into the mirror, and is kept beside it."""
        return [path.read_text() for path in self.folder.glob(f"{self.file.name}.d/typed-*.txt")]

    @property
    def signatures(self) -> list[tuple[int, str, str, str]]:
        """End, hash, seat and signature of every line beside the mirror."""
        path = self.file.with_name("dialog.md.d") / "signatures"
        lines = [line.split() for line in path.read_text().split("\n") if line]
        return [(int(end), sha, seat, signature) for end, sha, seat, signature in lines]


def closed(log: LogFile) -> None:
    """Let go of the engine."""
    if log.mirror is not None:
        log.mirror.close()


def vars_of(connection: Connection) -> Mapping[str, object]:
    return {name: getattr(connection, name) for name in connection.__slots__}


def is_signed(key: str, sha: str, signature: str, folder: Path) -> bool:
    """What `ssh-keygen -Y verify` says."""
    wrapped = "\n".join(signature[at : at + 70] for at in range(0, len(signature), 70))
    (folder / "sig").write_text(f"-----BEGIN SSH SIGNATURE-----\n{wrapped}\n-----END SSH SIGNATURE-----\n")
    (folder / "allowed").write_text(f"one {key}\n")
    words = ["ssh-keygen", "-Y", "verify", "-f", str(folder / "allowed"), "-I", "one", "-n", "dialogd"]
    command = [*words, "-s", str(folder / "sig")]
    return subprocess.run(command, input=f"{sha}\n".encode(), capture_output=True, check=False).returncode == 0


# -- Daemons, each machine in a network of its own ---------------------------------------------------------------------


class Network:
    """A network namespace with a loopback of its own; where none can be made (`why`), the one that everybody has."""

    def __init__(self) -> None:
        words = ["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec cat"]
        self.pid, self.why = 0, ""
        try:
            self._holder = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except FileNotFoundError:
            self.why = "unshare is not installed"
            return
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline().strip() == "up":
            self.pid = self._holder.pid
        else:
            self.why = f"no network namespace: {self._holder.stderr.read().strip()[:100]}"

    def close(self) -> None:
        if self.pid:
            self._holder.communicate()

    def run(self, work: Callable[[], T]) -> T:
        """Do something in it, in a thread of its own; raises what that raises."""
        if not self.pid:
            return work()

        def there() -> T:
            enter(self.pid)
            return work()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(there).result()


def enter(pid: int) -> None:
    """Take the calling thread to the network of a process."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(fd)


def _become_there(pid: int, *words: Any) -> None:
    """What a forked process does: it goes to another network first."""
    if pid:
        enter(pid)
    forked._become(*words)


class There(Daemon):
    """A daemon in another network."""

    network: Network

    def ask(self, method: str, path: str, body: object = None, seconds: float = PATIENCE) -> tuple[int, dict[str, Any]]:
        return self.network.run(lambda: Daemon.ask(self, method, path, body, seconds))


class Machine(Pair):
    """One machine that runs daemons; `files` is what it has on its disk."""

    def __init__(self, files: Files, command: str) -> None:
        self.network = Network()
        self.files = files
        home = files.folder / "home"
        home.mkdir(exist_ok=True)
        own = {"HOME": str(home), "SSH_AUTH_SOCK": "", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        super().__init__(files.folder, files.connection.seats, command=command, launch=self.begun, environment=own)
        for who, daemon in self.daemons.items():
            port = 3001 if self.network.pid else daemon.port  # the same one on every machine
            there = self.daemons[who] = There(who, port, self._starter(who), daemon.output)
            there.network = self.network

    def begun(self, words: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path) -> forked.Forked:
        """Start `dialogd WORDS` here."""
        streams = (Path(os.devnull), output, output)
        process = forked._fork.Process(
            target=_become_there, args=(self.network.pid, words, environment, folder, streams), daemon=True
        )
        process.start()
        assert process.pid is not None
        return forked.Forked(process, process.pid)

    def executed(
        self, words: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path
    ) -> subprocess.Popen[bytes]:
        """The same as a program of its own, which the environment counts for from its first moment."""
        there = ["nsenter", f"--net=/proc/{self.network.pid}/ns/net"] if self.network.pid else []
        with output.open("ab") as out:
            return subprocess.Popen(
                [*there, sys.executable, "-m", "dialogd", *words],
                env=dict(environment), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    def does(self, *words: str, seconds: float = PATIENCE) -> tuple[int, str]:
        """Exit code and output of one command of the person's here."""
        output = self.folder / "person.out"
        output.unlink(missing_ok=True)
        process = self.begun(words, self.environment, self.folder, output)
        try:
            return process.wait(seconds), output.read_text(errors="replace")
        finally:
            process.send_signal(signal.SIGKILL)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.network.close()
