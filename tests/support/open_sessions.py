"""Stand-ins for open sessions: real processes with real sockets and files, registered as the real programs do it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

TOKEN = "token-of-this-session-0123456789"
PATIENCE = 180.0  # seconds; a loaded machine is slow, not wrong

_LISTENER = """
import json, os, socket, subprocess, sys, threading
path, heard = sys.argv[1:]
there = socket.socket(socket.AF_UNIX)
there.bind(path)
os.chmod(path, 0o600)
there.listen()
print("listening", flush=True)
def hear(one):
    with one, one.makefile() as rows, open(heard, "a") as out:
        for row in rows:
            out.write(row)
            out.flush()
def listen():
    while True:
        threading.Thread(target=hear, args=(there.accept()[0],), daemon=True).start()
threading.Thread(target=listen, daemon=True).start()
for row in sys.stdin:
    asked = json.loads(row)
    done = subprocess.run(asked["words"], env=asked["environment"], cwd=asked["folder"], input=asked["given"],
                          capture_output=True, text=True, start_new_session=True)
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
"""


class Ran(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


@dataclass
class Claude:
    """A process that is registered as a session of Claude Code, with what its socket heard."""

    home: Path
    process: subprocess.Popen[bytes]
    socket: Path
    registration: Path
    key: Path
    heard: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def environment(self) -> dict[str, str]:
        """The variables that commands of this session have."""
        return {
            "CLAUDECODE": "1",
            "CLAUDE_PID": str(self.pid),
            "CLAUDE_CODE_MESSAGING_SOCKET": str(self.socket),
            "CLAUDE_CODE_MESSAGING_TOKEN": "token-of-commands",
        }

    def run(self, words: Sequence[str], environment: Mapping[str, str], folder: Path, given: str = "") -> Ran:
        """Run a command as the session does: as a process below its own, with its variables."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        variables = {**environment, **self.environment, "CLAUDE_CONFIG_DIR": str(self.home)}
        asked = {"words": list(words), "environment": variables, "folder": str(folder), "given": given}
        self.process.stdin.write(f"{json.dumps(asked)}\n".encode())
        self.process.stdin.flush()
        return Ran(*json.loads(self.process.stdout.readline()))

    def change(self, **values: object) -> None:
        """Change what the registration says; None takes a value away."""
        found = {**json.loads(self.registration.read_bytes()), **values}
        self.registration.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))

    def rows(self) -> list[dict[str, Any]]:
        text = self.heard.read_text() if self.heard.exists() else ""
        return [json.loads(row) for row in text.split("\n")[:-1]]

    def knocks(self) -> list[str]:
        return [row["message"]["content"] for row in self.rows() if row.get("type") == "user"]


@contextmanager
def claude(folder: Path, project: Path, name: str = "shop-3f", command: list[str] | None = None) -> Iterator[Claude]:
    """A session of Claude Code whose configuration is in `folder`; `command` is its process where that is no matter."""
    sessions, sockets = folder / "sessions", folder / "socks"
    for each in (folder, sessions, sockets):
        each.mkdir(mode=0o700, exist_ok=True)
    path, heard = sockets / f"{uuid.uuid4().hex[:8]}.sock", folder / f"heard-{uuid.uuid4().hex[:8]}"
    process = subprocess.Popen(
        command or [sys.executable, "-c", _LISTENER, str(path), str(heard)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        if command is None:
            assert process.stdout.readline() == b"listening\n"
        started = started_at(process.pid)
        registration = sessions / f"{process.pid}.json"
        known = {
            "pid": process.pid,
            "sessionId": str(uuid.uuid4()),
            "cwd": str(project),
            "procStart": started,
            "version": "2.1.330",
            "kind": "interactive",
            "pidDomain": "here",
            "messagingSocketPath": str(path),
            "name": name,
            "status": "idle",
        }
        registration.write_text(json.dumps(known))
        registration.chmod(0o644)
        key = sessions / f"{process.pid}.{hashlib.sha256(os.fsencode(path)).hexdigest()}.key"
        key.write_text(json.dumps({"peerToken": TOKEN, "procStart": started, "pidDomain": "here"}))
        key.chmod(0o600)
        yield Claude(folder, process, path, registration, key, heard)
    finally:
        process.kill()
        process.communicate()


def started_at(pid: int) -> str:
    """When a process started, in ticks since the boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@dataclass
class Codex:
    """A process called `codex` that holds a thread open; `told` is what `codex queue` was called with."""

    home: Path
    thread: str
    process: subprocess.Popen[bytes]
    rollout: Path
    lock: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables that commands of this session have."""
        return {"CODEX_THREAD_ID": self.thread}

    def told(self) -> list[str]:
        """The words of the calls of `codex queue`, one after the other."""
        told = self.home / "told"
        return told.read_text().split("\n")[:-1] if told.exists() else []

    def event(self, name: str) -> None:
        """Note the begin or the end of a turn, as Codex does."""
        with self.rollout.open("a") as out:
            out.write(json.dumps({"type": "event_msg", "payload": {"type": name}}, separators=(",", ":")) + "\n")


@contextmanager
def codex(folder: Path, project: Path, originator: str = "codex-tui", source: str = "cli") -> Iterator[Codex]:
    """A session of Codex whose home is `folder`: a copy of the shell, which holds the two files open."""
    thread = str(uuid.uuid4())
    program = folder / "bin" / "codex"
    lock = folder / "thread-writer-locks" / f"{thread}.lock"
    rollout = folder / "sessions" / f"rollout-2026-11-23T03-31-20-{thread}.jsonl"
    for path in (program, lock, rollout):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    shutil.copy(os.path.realpath("/bin/sh"), program)
    lock.touch()
    first = {"type": "session_meta", "payload": {"cwd": str(project), "originator": originator, "source": source}}
    rollout.write_text(json.dumps(first, separators=(",", ":")) + "\n")
    (folder / "queue").write_text('printf "%s\\n" "$@" >> told\nenv > environment\n')
    process = subprocess.Popen(
        [program, "-c", 'exec 3<"$1" 4<"$2"; echo open; read _', "codex", lock, rollout],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"open\n"
        yield Codex(folder, thread, process, rollout, lock)
    finally:
        process.kill()
        process.communicate()


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.02)
