"""Machines that share a dialog: each with a state directory, a dialog file, keys and a network of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from dialogd.protocol.keys import Keys, table_of
from dialogd.store.disk import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.store.mirror import Connection, begin, take

NAME = "5eed" * 8  # of the log, at its engine

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
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def log(self) -> LogFile:
        """The file as a process of its own would have it: nothing is shared but the disk."""
        return LogFile(self.file, Journals(StateDir(self.state_dir).dialog(self.file)))

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
    def signatures(self) -> list[tuple[int, str, str, str]]:
        """End, hash, seat and signature of every line beside the mirror."""
        path = self.file.with_name("dialog.md.d") / "signatures"
        lines = [line.split() for line in path.read_text().split("\n") if line]
        return [(int(end), sha, seat, signature) for end, sha, seat, signature in lines]


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
