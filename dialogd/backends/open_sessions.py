"""The coding sessions that are open on this machine: found, checked before use, woken.

Claude Code registers its sessions in files, with a socket that takes messages; Codex keeps a lock and a rollout file
open for each thread, and has a command that queues a message. Nothing is written into their folders, and what wakes a
session is one short line, no text of a dialog.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.errors import BadInput, DialogdError, NotRunning, Refused, UnsafeFile
from dialogd.store.registry import CLAUDE, CODEX, start_of

if TYPE_CHECKING:
    import psutil

TITLES = {CLAUDE: "Claude Code", CODEX: "Codex"}
INSIDE = {CLAUDE: "CLAUDECODE", CODEX: "CODEX_THREAD_ID"}  # variables of a session's commands

LONGEST_LINE = 400  # characters
LARGEST = 64 * 1024  # bytes of a registration or a key
TAIL = 256 * 1024  # bytes of a rollout in which the last begin or end of a turn is sought
SETTLE = 2.0  # seconds after its last change in which a file may be half written
CONNECT_SECONDS = 2.0
QUEUE_SECONDS = 20.0
# How the variables begin by which a process is known as a session's, or may write to it.
TOKENS = ("CLAUDE_CODE_MESSAGING_", "CODEX_THREAD_ID", "CODEX_SESSION_ID")

_BUSY = {"busy": "busy", "shell": "busy", "idle": "idle", "waiting": "waiting"}
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PEERCRED, _LOCAL_PEERCRED, _LOCAL_PEERPID = 17, 1, 2  # SO_PEERCRED of Linux; macOS
_ANEW = "start that session anew"


@dataclass(frozen=True, slots=True)
class Session:
    """An open session."""

    program: str  # `claude` or `codex`
    id: str  # the program's own name of it
    pid: int  # the process that runs it
    started: str  # since then, as the system counts
    project: str
    name: str
    status: str  # `idle`, `busy`, `waiting`, `waiting (permission prompt)` (for the person), "" where not known

    @property
    def key(self) -> str:
        """What a seat remembers: `claude:PID:START` or `codex:THREAD`. No later session has the same."""
        return f"{CODEX}:{self.id}" if self.program == CODEX else f"{CLAUDE}:{self.pid}:{self.started}"

    @property
    def title(self) -> str:
        """In words: `Claude Code session "shop-3f"`."""
        return f'{TITLES[self.program]} session "{self.name}"'


# -- Who is here ------------------------------------------------------------------------------------------------------


def running_sessions(refused: list[DialogdError] | None = None) -> tuple[Session, ...]:
    """This user's open sessions; those that a check refuses are left out, and their errors added to `refused`."""
    found = [one for _, one in (*_claude_sessions(), *_codex_sessions())]
    if refused is not None:
        refused += [one for one in found if isinstance(one, DialogdError) and not isinstance(one, NotRunning)]
    open_ones = (one for one in found if isinstance(one, Session))
    return tuple(sorted(open_ones, key=lambda session: (session.program, session.project, session.name)))


def session_here(variables: Mapping[str, str]) -> Session | None:
    """The session that this process runs inside of, None where it runs in none.

    One of this process's ancestors must be the session's own: variables outlive it in terminals that it once opened.
    Raises `Refused` in a sandbox that hides the session, and what its own checks raise.
    """
    import psutil

    if not any(map(variables.get, INSIDE.values())):
        return None
    above = [process.pid for process in psutil.Process().parents()]
    thread, pid = variables.get(INSIDE[CODEX]), variables.get("CLAUDE_PID")
    claude = list(_claude_sessions()) if variables.get(INSIDE[CLAUDE]) else []
    codex = list(_codex_sessions()) if thread else []
    found = [one for _, one in (*claude, *codex) if isinstance(one, Session) and one.pid in above]
    own = [one for one in found if (one.id == thread if one.program == CODEX else pid in (None, str(one.pid)))]
    if own:
        return min(own, key=lambda one: above.index(one.pid))
    is_known = any(isinstance(one, Session) and one.id == thread for _, one in codex)
    if variables.get("CODEX_SANDBOX_NETWORK_DISABLED") and thread and not is_known:
        raise Refused(
            "this command runs in Codex's sandbox, which hides the session and the loopback from it",
            fix="type it into Codex yourself, with ! before it; inside the sandbox the MCP tools do the same",
        )
    for number, one in (*claude, *codex):
        is_own = number in above or str(number) == pid
        if is_own and isinstance(one, DialogdError) and not isinstance(one, NotRunning):
            raise one
    return None


def of_key(key: str) -> Session | None:
    """The open session of that key, None when it is gone. Raises `BadInput` for no key, and `UnsafeFile`."""
    program, _, rest = key.partition(":")
    if program == CODEX and UUID.fullmatch(rest):
        return next((one for _, one in _codex_sessions() if isinstance(one, Session) and one.id == rest), None)
    if program != CLAUDE or not (found := re.fullmatch(r"([0-9]{1,20}):.+", rest)):
        raise BadInput(f"{key[:80]!r} names no session", fix="dialogd live sessions --json lists their keys")
    with suppress(NotRunning):
        one = _claude_session(_folder("CLAUDE_CONFIG_DIR", ".claude") / "sessions" / f"{int(found[1])}.json")
        return one if one.key == key else None
    return None


def program_of(key: str) -> str:
    return TITLES.get(key.partition(":")[0], "another program")


def status(session: Session) -> str:
    """What the session does now: `idle`, `busy`, `waiting …`, "" where that is not known, or `gone`."""
    try:
        now = _codex_thread(session) if session.program == CODEX else of_key(session.key)
    except DialogdError:
        return ""
    return now.status if now is not None else "gone"


async def wake(session: Session, line: str, again: str = "") -> None:
    """Send one short line to the session, which opens a turn there; everything is checked anew before.

    It begins with the time: Claude Code drops a line that is like the one before it. Raises `BadInput` for a line that
    is none, `NotRunning` when the session is gone, `UnsafeFile` or `Refused` when it is not what it says.
    """
    line = f"{time.strftime('%H:%M:%S')} dialogd{again}: {line}" if line.strip() else ""
    if not line or len(line) > LONGEST_LINE or not line.isprintable():
        raise BadInput(f"it takes one printable line of up to {LONGEST_LINE} characters", fix="make it shorter")
    if session.program == CODEX:
        await _queue(session, line)
    else:
        await asyncio.to_thread(_send, session, line)


def without_tokens(variables: Mapping[str, str]) -> dict[str, str]:
    """These variables without those by which a process is known as a session's, or may write to it."""
    return {name: value for name, value in variables.items() if not name.startswith(TOKENS)}


# -- Claude Code ------------------------------------------------------------------------------------------------------


def _folder(variable: str, usual: str) -> Path:
    """Where a program keeps its files; the folder above may be reached by links, it may be none."""
    named = os.environ.get(variable)
    return (Path(named).expanduser() if named else Path.home() / usual).resolve()


def _claude_sessions() -> Iterator[tuple[int, Session | DialogdError]]:
    for path in sorted((_folder("CLAUDE_CONFIG_DIR", ".claude") / "sessions").glob("*.json")):
        if re.fullmatch(r"[0-9]+", path.stem):
            try:
                yield int(path.stem), _claude_session(path)
            except DialogdError as error:
                yield int(path.stem), error


def _claude_session(path: Path) -> Session:
    import psutil

    registration, pid = _registration(path), int(path.stem)
    gone = NotRunning(f"the session of pid {pid} has ended", fix="open another, and join from there")
    try:
        owner = psutil.Process(pid).uids().real
    except psutil.Error:
        raise gone from None
    since, registered = start_of(pid), str(registration.get("procStart") or "")
    if not since or not registered or registered != (since if sys.platform == "linux" else _start_by_ps(pid)):
        raise gone  # its number was given to another process
    if owner != os.geteuid():
        raise UnsafeFile(f"{path} names a process of another user (uid {owner})", fix="remove it")
    id_, project, name = (_printable(registration.get(key)) for key in ("sessionId", "cwd", "name"))
    state = _BUSY.get(str(registration.get("status")), "")
    if state == "waiting" and (why := _printable(registration.get("waitingFor"))[:60]):
        state = f"{state} ({why})"
    return Session(CLAUDE, id_, pid, since, project, name or Path(project).name, state)


def _registration(path: Path) -> dict[str, Any]:
    _check(path.parent.parent, "folder", is_shared=True)
    _check(path.parent, "folder")
    found = _json(path, is_shared=True)
    if found.get("pid") != int(path.stem):
        raise UnsafeFile(f"{path} is the registration of another process", fix="remove it, and start that session anew")
    if found.get("kind") != "interactive":
        raise NotRunning(f"{path} is no session that somebody types into", fix="open one: claude")
    return found


def _start_by_ps(pid: int) -> str:
    """When a process began, as Claude Code registers it where there is no /proc; "" for none."""
    words = ["/bin/ps", "-o", "lstart=", "-p", str(pid)]
    variables = {"LC_ALL": "C", "TZ": "UTC"}
    return subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=5).stdout.strip()


def _send(session: Session, line: str) -> None:
    """Write to the session's socket, after all checks; the token is read for this and forgotten."""
    path = _folder("CLAUDE_CONFIG_DIR", ".claude") / "sessions" / f"{session.pid}.json"
    if _claude_session(path).key != session.key:
        raise NotRunning(f"the {session.title} has ended", fix="open another, and join from there")
    registration = _registration(path)
    listens = str(registration.get("messagingSocketPath") or "")
    if not listens or not listens.isprintable():
        raise UnsafeFile(f"{path} names a socket that is none", fix=_ANEW)
    key = _json(path.with_name(f"{session.pid}.{hashlib.sha256(os.fsencode(listens)).hexdigest()}.key"))
    if any(key.get(name) != registration.get(name) for name in ("procStart", "pidDomain")):
        raise UnsafeFile(f"the key of the {session.title} is another process's", fix=_ANEW)
    _check(Path(listens), "socket")
    _check(Path(listens).parent, "folder")
    text = line.replace("<", "&lt;").replace(">", "&gt;")
    attributes = 'from="dialogd" from-name="dialogd" from-mode="prompting"'
    content = f"<cross-session-message {attributes}>\n{text}\n</cross-session-message>"
    message = {"role": "user", "content": content}
    rows: tuple[dict[str, Any], ...] = (
        {"type": "auth", "token": str(key.get("peerToken") or "")},
        {"type": "user", "msgV": 1, "msg_id": str(uuid.uuid4()), "priority": "next", "message": message},
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
        out.settimeout(CONNECT_SECONDS)
        try:
            out.connect(listens)
            _check_peer(out, session.pid, listens)
            out.sendall("".join(f"{json.dumps(row)}\n" for row in rows).encode())
        except OSError as error:
            why = (error.strerror or "no answer").lower()
            raise NotRunning(f"the {session.title} cannot be reached: {why}", fix="is it still open?") from None


def _check_peer(connected: socket.socket, pid: int, path: str) -> None:
    """Raise unless whoever listens on the socket is that process, of this user."""
    if sys.platform == "linux":
        there, uid, _ = struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, _PEERCRED, 12))
    else:  # struct xucred: version, uid, groups
        _, uid = struct.unpack("II", connected.getsockopt(0, _LOCAL_PEERCRED, 76)[:8])
        there = connected.getsockopt(0, _LOCAL_PEERPID)
    if uid != os.geteuid():
        raise UnsafeFile(f"another user (uid {uid}) listens on {path}", fix="find out who: that is no session of yours")
    if there != pid:
        raise UnsafeFile(f"pid {there} listens on {path}, and the session is pid {pid}", fix=_ANEW)


# -- Codex ------------------------------------------------------------------------------------------------------------


def _codex_sessions() -> Iterator[tuple[int, Session | DialogdError]]:
    """Every thread that a running Codex holds open for somebody who types."""
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if not process.name().startswith("codex") or process.uids().real != os.geteuid():
                continue
            for thread, lock in _threads(process).items():
                try:
                    if (session := _codex_session(process, thread, lock)) is not None:
                        yield process.pid, session
                except DialogdError as error:
                    yield process.pid, error


def _threads(process: psutil.Process) -> dict[str, Path]:
    """The threads in this user's home of Codex that the process writes: those whose lock it has open."""
    locks = _folder("CODEX_HOME", ".codex") / "thread-writer-locks"
    files = (Path(opened.path) for opened in process.open_files())
    found = (path for path in files if path.parent == locks and path.suffix == ".lock")
    return {path.stem: path for path in found if UUID.fullmatch(path.stem)}


def _codex_session(process: psutil.Process, thread: str, lock: Path) -> Session | None:
    """The session of a thread, None for one that nobody types into, such as of `codex exec`, or not yet."""
    files = (Path(opened.path) for opened in process.open_files())
    rollout = next((path for path in files if path.name.endswith(f"-{thread}.jsonl")), None)
    if rollout is None:
        return None  # it has one from its first message on
    for folder in (lock.parent.parent, lock.parent):
        _check(folder, "folder", is_shared=True)
    for path in (lock, rollout):
        _check(path, "file", is_shared=True)
    with rollout.open("rb") as source:
        first = source.readline(LARGEST)
        source.seek(max(0, source.seek(0, os.SEEK_END) - TAIL))
        last = source.read(TAIL)
    told = {name: _printable(_field(first, name)) for name in ("originator", "source", "cwd")}
    if told["originator"] != "codex-tui" and told["source"] != "cli":
        return None
    began, *ends = (last.rfind(b'"type":"%s"' % word) for word in (b"task_started", b"task_complete", b"turn_aborted"))
    state = "idle" if max(ends) > began else "busy" if began >= 0 else ""
    name = f"{Path(told['cwd']).name or CODEX}-{thread[-4:]}"
    return Session(CODEX, thread, process.pid, f"{process.create_time():.2f}", told["cwd"], name, state)


def _field(line: bytes, name: str) -> str:
    """A text in the first line of a rollout, which may be longer than what was read of it."""
    found = re.search(rb'"%s":("(?:[^"\\]|\\.)*")' % name.encode(), line)
    return str(json.loads(found[1])) if found else ""


def _codex_thread(session: Session) -> Session | None:
    import psutil

    try:
        process = psutil.Process(session.pid)
        if process.uids().real != os.geteuid() or f"{process.create_time():.2f}" != session.started:
            return None
        lock = _threads(process).get(session.id)
        return _codex_session(process, session.id, lock) if lock is not None else None
    except (psutil.Error, OSError):
        return None


async def _queue(session: Session, line: str) -> None:
    from dialogd.backends.command import clean_environment, last_line
    from dialogd.store.child import Child

    program, home = await asyncio.to_thread(_codex_program, session)
    words = [program, "queue", "--thread", session.id, "--message", line]
    child = Child(words, b"", clean_environment(os.environ) | {"CODEX_HOME": home}, Path(home))
    try:
        async with asyncio.timeout(QUEUE_SECONDS):
            while await child.read():
                pass
    except TimeoutError:
        raise NotRunning(f"`codex queue` took over {QUEUE_SECONDS:g} s", fix="try it by hand") from None
    finally:
        code = await child.end()
    child.check("codex queue", "try it by hand")
    if code:
        raise NotRunning(f"the {session.title} took no message: {last_line(child.stderr)}", fix="is it still open?")


def _codex_program(session: Session) -> tuple[str, str]:
    """The program that runs the thread, and its home. Raises `NotRunning` when nobody has the thread open."""
    import psutil

    found = _codex_thread(session) or of_key(session.key)
    with suppress(psutil.Error, KeyError, OSError):
        if found is not None:
            process = psutil.Process(found.pid)
            lock, program = _threads(process)[found.id], Path(process.exe())
            _check(program, "file", owners=(os.geteuid(), 0))
            return str(program), str(lock.parent.parent)
    raise NotRunning(f"the {session.title} has ended", fix="open it again: codex resume")


# -- Whom to trust ----------------------------------------------------------------------------------------------------


def _json(path: Path, *, is_shared: bool = False) -> dict[str, Any]:
    """A small JSON file that only this user can have written; one that is half written is read again."""
    while True:
        _check(path, "file", is_shared=is_shared)
        if not is_shared and path.lstat().st_mode & 0o077:
            raise UnsafeFile(f"{path} can be read by others", fix=f"take that away: chmod 600 {path}")
        with suppress(ValueError, RecursionError, OSError):
            with path.open("rb") as source:
                found = json.loads(source.read(LARGEST))
            if isinstance(found, dict):
                return found
        with suppress(FileNotFoundError):
            if abs(time.time() - path.stat().st_mtime) > SETTLE:
                raise UnsafeFile(f"{path} is not what Claude Code writes there", fix=_ANEW)
        time.sleep(0.01)


_KINDS = {"file": stat.S_ISREG, "folder": stat.S_ISDIR, "socket": stat.S_ISSOCK}


def _check(path: Path, kind: str, *, owners: tuple[int, ...] = (), is_shared: bool = False) -> None:
    """Raise unless it is of that kind, no link, this user's (or one of `owners`'), and nobody else may write it."""
    what = str(path) if kind == "file" else f"the {kind} {path}"
    try:
        found = path.lstat()
    except OSError:
        raise NotRunning(f"{what} is gone", fix="look whether the session is still open") from None
    if not _KINDS[kind](found.st_mode):
        named = "a link" if stat.S_ISLNK(found.st_mode) else "not of the kind it should be"
        raise UnsafeFile(f"{what} is {named}", fix=f"remove it, and {_ANEW}")
    if kind == "file" and found.st_nlink > 1 and not owners:
        raise UnsafeFile(f"{what} has more than one name (a hard link)", fix=f"remove it, and {_ANEW}")
    if found.st_uid not in (owners or (os.geteuid(),)):
        raise UnsafeFile(f"{what} belongs to another user (uid {found.st_uid})", fix="find out who put it there")
    if found.st_mode & (stat.S_IWOTH if is_shared else stat.S_IWOTH | stat.S_IWGRP):
        raise UnsafeFile(f"{what} can be written by others", fix="take that away: chmod go-w")


def _printable(value: object) -> str:
    text = str(value or "")[:200]
    return "".join(sign if sign.isprintable() else " " for sign in text).strip()
