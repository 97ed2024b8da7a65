"""The coding sessions that are open on this machine: found, checked before use, knocked at.

Claude Code registers each of its sessions in a file, with a socket that takes messages; Codex keeps a lock and a
rollout file open for each of its threads, and has a command that queues a message; a server of OpenCode lists its
sessions, and takes prompts. They are only read and called: nothing is written into another program's folders. A knock
is one short line; no text of a dialog goes this way.
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
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
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dialogd.errors import BadInput, DialogdError, NotRunning, Refused, UnsafeFile

if TYPE_CHECKING:
    import psutil

CLAUDE, CODEX, OPENCODE = "claude", "codex", "opencode"
TITLES = {CLAUDE: "Claude Code", CODEX: "Codex", OPENCODE: "OpenCode"}
FAMILIES = {CLAUDE: "Claude", CODEX: "Codex", OPENCODE: "OpenCode"}  # what an agent is called in headings

INSIDE = {CLAUDE: "CLAUDECODE", CODEX: "CODEX_THREAD_ID", OPENCODE: "OPENCODE"}  # variables of a session's commands

LONGEST_KNOCK = 400  # characters
LARGEST = 64 * 1024  # bytes of a registration or a key
TAIL = 256 * 1024  # bytes of a rollout in which the last begin or end of a turn is sought
SETTLE = 2.0  # seconds after its last change in which a file may be half written
LOOKS = 5  # how often an older file is read before it is called damaged
CONNECT_SECONDS = 2.0
QUEUE_SECONDS = 20.0
ANSWER_SECONDS = 5.0  # in which a server of OpenCode answers, and
ANSWER = 1024 * 1024  # bytes that it may answer with
RECENT, MOST = 24 * 3600.0, 10  # seconds since a session of such a server was last at work, and how many are listed
# How the variables begin by which a process is known as a session's, or may write to it.
TOKENS = ("CLAUDE_CODE_MESSAGING_", "CODEX_THREAD_ID", "CODEX_SESSION_ID", "OPENCODE_PID", "OPENCODE_SERVER_")

_BUSY = {"busy": "busy", "shell": "busy", "idle": "idle", "waiting": "waiting"}
_THREAD = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SESSION = re.compile(r"ses_[A-Za-z0-9]{1,64}")
_OPENCODE = re.compile(
    r"opencode(?:\.exe)?"
)  # the file of the program; in its npm package it is called .exe everywhere
_PEERCRED, _LOCAL_PEERCRED, _LOCAL_PEERPID = 17, 1, 2  # SO_PEERCRED of Linux; macOS


@dataclass(frozen=True, slots=True)
class Session:
    """An open session.

    `program` is `claude`, `codex` or `opencode`, `id` the program's own name of it, `pid` the process that runs it,
    since `started` (as the system counts). `status` is `idle`, `busy`, `waiting` or `waiting (permission prompt)` (for
    the person), or "" where that is not known.
    """

    program: str
    id: str
    pid: int
    started: str
    project: str
    name: str
    status: str

    @property
    def key(self) -> str:
        """What a seat remembers: `claude:PID:START`, `codex:THREAD`, `opencode:PID:START:SESSION`.

        No later session has the same.
        """
        if self.program == CODEX:
            return f"{CODEX}:{self.id}"
        return f"{self.program}:{self.pid}:{self.started}" + (f":{self.id}" if self.program == OPENCODE else "")

    @property
    def title(self) -> str:
        """In words: `Claude Code session "shop-3f"`."""
        return f'{TITLES[self.program]} session "{self.name}"'


# -- Who is here ------------------------------------------------------------------------------------------------------


def running_sessions(refused: list[DialogdError] | None = None) -> tuple[Session, ...]:
    """This user's open sessions; those that a check refuses are left out, and their errors added to `refused`."""
    found: list[Session] = []
    for _, one in _every(*TITLES):
        if isinstance(one, Session):
            found.append(one)
        elif refused is not None and not isinstance(one, NotRunning):
            refused.append(one)
    return tuple(sorted(found, key=lambda session: (session.program, session.project, session.name)))


def session_here(variables: Mapping[str, str], seated: Collection[str] = ()) -> Session | None:
    """The session that this process runs inside of, None where it runs in none.

    The variables say so, and one of this process's ancestors is the session's own: both, for variables outlive the
    session in terminals that it once opened. Of several in one process it is the one that is at work, else the one
    whose key is among `seated`. Raises `Refused` where that does not tell, and inside of a sandbox that hides the
    session, and what the checks of that very session raise.
    """
    import psutil

    if not any(map(variables.get, INSIDE.values())):
        return None
    found = [*_every(*(program for program, name in INSIDE.items() if variables.get(name)))]
    sessions = [one for _, one in found if isinstance(one, Session) and _is_named(one, variables)]
    above = [process.pid for process in psutil.Process().parents()]
    for pid in above:
        if here := [one for one in sessions if one.pid == pid]:
            return here[0] if here[0].program != OPENCODE else _at_work(here, seated)
    if variables.get("CODEX_SANDBOX_NETWORK_DISABLED") and variables.get(INSIDE[CODEX]) and not sessions:
        raise Refused(
            "this command runs in Codex's sandbox, which hides the session and the loopback from it",
            fix="type it into Codex yourself, with ! before it; inside the sandbox the MCP tools do the same",
        )
    own = {*map(str, above), variables.get("CLAUDE_PID"), variables.get("OPENCODE_PID")}
    for pid, one in found:
        if isinstance(one, DialogdError) and not isinstance(one, NotRunning) and str(pid) in own:
            raise one
    return None


def _every(*programs: str) -> Iterator[tuple[int, Session | DialogdError]]:
    """Each open session of these programs, or why it is left out, with its process."""
    find = {CLAUDE: _claude_sessions, CODEX: _codex_sessions, OPENCODE: _opencode_sessions}
    return chain.from_iterable(find[program]() for program in programs)


def _is_named(session: Session, variables: Mapping[str, str]) -> bool:
    """True where the variables of a command name this session, or its process, as far as they name one."""
    if session.program == CODEX:
        return variables.get("CODEX_THREAD_ID") == session.id
    pid = "OPENCODE_PID" if session.program == OPENCODE else "CLAUDE_PID"
    return variables.get(pid, str(session.pid)) == str(session.pid)


def _at_work(sessions: list[Session], seated: Collection[str]) -> Session:
    """The session of a server that runs a command now: while it does, it is busy. Raises `Refused` with the list."""
    busy = [one for one in sessions if one.status == "busy"]
    found = busy if len(busy) == 1 else [one for one in busy or sessions if one.key in seated]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{one.name} ({one.id})" for one in sessions)
    raise Refused(
        f"{len(busy) or 'none'} of the sessions of this OpenCode server are at work, so which one asks is not known",
        fix=f"name one, in any terminal: dialogd join --session NAME, of {known}",
    )


def of_key(key: str) -> Session | None:
    """The open session of that key, None when it is gone. Raises `BadInput` for no key, and `UnsafeFile`."""
    program, _, rest = key.partition(":")
    pid, _, started = rest.partition(":")
    if program == CODEX and _THREAD.fullmatch(rest):
        return next((one for _, one in _codex_sessions() if isinstance(one, Session) and one.id == rest), None)
    if program == OPENCODE and (server := _Server.of_key(key)) is not None:
        return server.session(key.rpartition(":")[2])
    if program != CLAUDE or not (pid.isascii() and pid.isdigit() and len(pid) <= 20 and started):
        raise BadInput(f"{key[:80]!r} names no session", fix="dialogd sessions --json lists their keys")
    try:
        one = _claude_session(_claude_folder() / f"{int(pid)}.json")
    except NotRunning:
        return None
    return one if one.key == key else None


def holder_of(key: str) -> str:
    """What can hold one seat, of a key: the session, and of OpenCode its server, whose commands look all alike."""
    return key.rpartition(":")[0] if key.startswith(f"{OPENCODE}:") else key


def program_of(key: str) -> str:
    """The name of the program whose session that key is: `Claude Code`."""
    return TITLES.get(key.partition(":")[0], "another program")


def status(session: Session) -> str:
    """What the session does now: `idle`, `busy`, `waiting …`, "" where that is not known, or `gone`."""
    try:
        if session.program == CODEX:
            now: Session | None = _codex_thread(session)
        else:
            now = of_key(session.key)
    except DialogdError:
        return ""
    return now.status if now is not None else "gone"


async def knock(session: Session, line: str, again: str = "") -> None:
    """Send one short line to the session, which opens a turn there; everything is checked anew before.

    It begins with the time: Claude Code drops a line that is like the one before it.

    That it was sent does not say that anybody reads it. Raises `BadInput` for a line that is none, `NotRunning` when
    the session is gone, `UnsafeFile` or `Refused` when it is not what it says.
    """
    import asyncio

    line = f"{time.strftime('%H:%M:%S')} dialogd{again}: {line}" if line.strip() else ""
    if not line or len(line) > LONGEST_KNOCK or not line.isprintable():
        raise BadInput(f"a knock is one printable line of up to {LONGEST_KNOCK} characters", fix="make it shorter")
    if session.program == CODEX:
        await _queue(session, line)
    elif session.program == OPENCODE:
        await asyncio.to_thread(_Server(session.pid, session.started).prompt, session, line)
    else:
        await asyncio.to_thread(_send, session, line)


def without_tokens(variables: Mapping[str, str]) -> dict[str, str]:
    """These variables without those by which a process is known as a session's, or may write to it."""
    return {name: value for name, value in variables.items() if not name.startswith(TOKENS)}


# -- Claude Code ------------------------------------------------------------------------------------------------------


def _claude_folder() -> Path:
    """Where Claude Code registers its sessions; the folder above it may be reached by links, it may be none."""
    named = os.environ.get("CLAUDE_CONFIG_DIR")
    return (Path(named).expanduser() if named else Path.home() / ".claude").resolve() / "sessions"


def _claude_sessions() -> Iterator[tuple[int, Session | DialogdError]]:
    """Every registration, as a session, or why it is none, with its process."""
    folder = _claude_folder()
    try:
        files = sorted(path for path in folder.iterdir() if re.fullmatch(r"[0-9]+\.json", path.name))
    except OSError:
        return
    for path in files:
        try:
            yield int(path.stem), _claude_session(path)
        except DialogdError as error:
            yield int(path.stem), error


def _claude_session(path: Path) -> Session:
    """The session of a registration. Raises `NotRunning` when it is gone, `UnsafeFile` for what nobody should trust."""
    registration = _registration(path)
    pid = int(path.stem)
    started = _check_process(pid, str(registration.get("procStart") or ""), path)
    known = (str(registration.get(name) or "") for name in ("sessionId", "cwd", "name"))
    id_, project, name = (_printable(text) for text in known)
    state = _BUSY.get(str(registration.get("status")), "")
    if state == "waiting" and (why := _printable(str(registration.get("waitingFor") or ""))[:60]):
        state = f"{state} ({why})"
    return Session(CLAUDE, id_, pid, started, project, name or Path(project).name, state)


def _registration(path: Path) -> dict[str, Any]:
    """What a registration says, of an interactive session."""
    _check_folder(path.parent.parent, is_shared=True)
    _check_folder(path.parent)
    found = _json(path, is_public=True)
    if found.get("pid") != int(path.stem):
        raise UnsafeFile(f"{path} is the registration of another process", fix="remove it, and start that session anew")
    if found.get("kind") != "interactive":
        raise NotRunning(f"{path} is no session that somebody types into", fix="open one: claude")
    return found


def _check_process(pid: int, registered: str, path: Path) -> str:
    """When the process began, as keys have it; raise unless it runs, is this user's, and is the registered one."""
    import psutil

    from dialogd.store.origin import start_of

    gone = NotRunning(f"the session of pid {pid} has ended", fix="open another, and join from there")
    try:
        owner = psutil.Process(pid).uids().real
    except psutil.Error:
        raise gone from None
    since = start_of(pid)
    if not since or not registered or registered != (since if sys.platform == "linux" else _said_by_ps(pid)):
        raise gone  # its number was given to another process
    if owner != os.geteuid():
        raise UnsafeFile(f"{path} names a process of another user (uid {owner})", fix="remove it")
    return since


def _said_by_ps(pid: int) -> str:
    """When a process began, as Claude Code registers it where there is no /proc; "" for none."""
    words = ["/bin/ps", "-o", "lstart=", "-p", str(pid)]
    variables = {"LC_ALL": "C", "TZ": "UTC"}
    return subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=5).stdout.strip()


def _send(session: Session, line: str) -> None:
    """Write to the session's socket, after all checks; the token is read for this and forgotten."""
    path = _claude_folder() / f"{session.pid}.json"
    now = _claude_session(path)
    if now.key != session.key:
        raise NotRunning(f"the {session.title} has ended", fix="open another, and join from there")
    registration = _registration(path)
    listens = str(registration.get("messagingSocketPath") or "")
    if not listens:
        raise Refused(
            f"the {session.title} takes no messages (Claude Code {_printable(str(registration.get('version')))})",
            fix="let it wait for its turns: dialogd turn --wait; newer versions can be knocked at",
        )
    if not listens.isprintable():
        raise UnsafeFile(f"{path} names a socket that is none", fix="start that session anew")
    key = _json(path.with_name(f"{session.pid}.{hashlib.sha256(os.fsencode(listens)).hexdigest()}.key"))
    for name in ("procStart", "pidDomain"):
        if key.get(name) != registration.get(name):
            raise UnsafeFile(f"the key of the {session.title} is another process's", fix="start that session anew")
    _check_socket(Path(listens))
    text = line.replace("<", "&lt;").replace(">", "&gt;")
    content = (
        f'<cross-session-message from="dialogd" from-name="dialogd" from-mode="prompting">\n{text}\n'
        "</cross-session-message>"
    )
    message = {
        "type": "user",
        "msgV": 1,
        "msg_id": str(uuid.uuid4()),
        "priority": "next",
        "message": {"role": "user", "content": content},
    }
    rows = ({"type": "auth", "token": str(key.get("peerToken") or "")}, message)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
        out.settimeout(CONNECT_SECONDS)
        try:
            out.connect(listens)
            _check_peer(out, session.pid, listens)
            out.sendall("".join(f"{json.dumps(row)}\n" for row in rows).encode())
        except OSError as error:
            why = error.strerror or "no answer"
            raise NotRunning(
                f"the {session.title} cannot be reached: {why.lower()}", fix="look whether it is still open"
            ) from None


def _check_socket(path: Path) -> None:
    """Raise unless it is a socket of this user's, in a folder of this user's, that nobody else may write to."""
    try:
        status, folder = path.lstat(), path.parent.lstat()
    except OSError:
        raise NotRunning(f"the socket {path} is gone", fix="look whether the session is still open") from None
    kind = "socket" if stat.S_ISSOCK(status.st_mode) else ""
    _check(status, f"the socket {path}", kind)
    _check(folder, f"the folder {path.parent}", "folder" if stat.S_ISDIR(folder.st_mode) else "")


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
        raise UnsafeFile(f"pid {there} listens on {path}, and the session is pid {pid}", fix="start that session anew")


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
    locks = _codex_home() / "thread-writer-locks"
    files = (Path(opened.path) for opened in process.open_files())
    found = (path for path in files if path.parent == locks and path.suffix == ".lock")
    return {path.stem: path for path in found if _THREAD.fullmatch(path.stem)}


def _codex_home() -> Path:
    named = os.environ.get("CODEX_HOME")
    return (Path(named).expanduser() if named else Path.home() / ".codex").resolve()


def _codex_session(process: psutil.Process, thread: str, lock: Path) -> Session | None:
    """The session of a thread, None for one that nobody types into, such as of `codex exec`, or not yet."""
    files = (Path(opened.path) for opened in process.open_files())
    rollout = next((path for path in files if path.name.endswith(f"-{thread}.jsonl")), None)
    if rollout is None:
        return None  # it has one from its first message on
    _check_folder(lock.parent.parent, is_shared=True)
    _check_folder(lock.parent, is_shared=True)
    _check_file(lock, is_public=True)
    _check_file(rollout, is_public=True)
    with rollout.open("rb") as source:
        first = source.readline(LARGEST)
        source.seek(max(0, source.seek(0, os.SEEK_END) - TAIL))
        last = source.read(TAIL)
    said = {name: _printable(_field(first, name)) for name in ("originator", "source", "cwd")}
    if said["originator"] != "codex-tui" and said["source"] != "cli":
        return None
    began, ended = (max(last.rfind(b'"type":"%s"' % word) for word in words) for words in (_BEGINS, _ENDS))
    state = "idle" if ended > began else "busy" if began >= 0 else ""
    name = f"{Path(said['cwd']).name or CODEX}-{thread[-4:]}"
    return Session(CODEX, thread, process.pid, f"{process.create_time():.2f}", said["cwd"], name, state)


_BEGINS, _ENDS = (b"task_started",), (b"task_complete", b"turn_aborted")


def _field(line: bytes, name: str) -> str:
    """A text in the first line of a rollout, which may be longer than what was read of it."""
    found = re.search(rb'"%s":("(?:[^"\\]|\\.)*")' % name.encode(), line)
    return str(json.loads(found[1])) if found else ""


def _codex_thread(session: Session) -> Session | None:
    """The session as it is now, in the same process; None when it is gone from there."""
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
    """Have Codex itself queue the line for the thread; it says so also for one that nobody has open."""
    import asyncio

    from dialogd.backends.command import clean_environment, last_line

    program, home = await asyncio.to_thread(_codex_program, session)
    child = await asyncio.create_subprocess_exec(
        program,
        *("queue", "--thread", session.id, "--message", line),
        env=clean_environment(os.environ) | {"CODEX_HOME": home},
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(QUEUE_SECONDS):
            _, stderr = await child.communicate()
    except TimeoutError:
        raise NotRunning(f"`codex queue` took over {QUEUE_SECONDS:g} s", fix="try it by hand") from None
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if child.returncode:
        raise NotRunning(f"the {session.title} took no message: {last_line(stderr)}", fix="look whether it is open")


def _codex_program(session: Session) -> tuple[str, str]:
    """The program that runs the thread, and its home. Raises `NotRunning` when nobody has the thread open."""
    import psutil

    gone = NotRunning(f"the {session.title} has ended", fix="open it again: codex resume")
    found = _codex_thread(session) or of_key(session.key)
    if found is None:
        raise gone
    try:
        process = psutil.Process(found.pid)
        lock, program = _threads(process)[found.id], Path(process.exe())
        _check(program.stat(), f"the program {program}", "file", owners=(os.geteuid(), 0))
    except (psutil.Error, KeyError, OSError):
        raise gone from None
    return str(program), str(lock.parent.parent)


# -- OpenCode ---------------------------------------------------------------------------------------------------------


def _opencode_sessions() -> Iterator[tuple[int, Session | DialogdError]]:
    """The sessions of every server of OpenCode that keeps them where this user's OpenCode does."""
    import psutil

    from dialogd.store.origin import start_of

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if not _is_opencode(process) or _data_folder(process.environ()) != _data_folder(os.environ):
                continue
            try:
                for session in _Server(process.pid, start_of(process.pid)).sessions():
                    yield process.pid, session
            except DialogdError as error:
                yield process.pid, error


def _is_opencode(process: psutil.Process) -> bool:
    return process.uids().real == os.geteuid() and bool(_OPENCODE.fullmatch(Path(process.exe()).name))


def _data_folder(variables: Mapping[str, str]) -> Path:
    """Where OpenCode keeps its sessions."""
    return Path(variables.get("XDG_DATA_HOME") or Path(variables.get("HOME", "")) / ".local" / "share").resolve()


@dataclass(frozen=True, slots=True)
class _Server:
    """A process of OpenCode, by its pid and start, as a server that listens on the loopback.

    Everything is checked anew for each request. Raises `NotRunning` when the process is gone or has no server,
    `Refused` for a server that is open to others, wants a password, or does not answer as OpenCode does.
    """

    pid: int
    started: str

    @classmethod
    def of_key(cls, key: str) -> _Server | None:
        """The server in the key of a session, None for what is no such key."""
        from dialogd.store.origin import read_key

        found = read_key(key)
        return cls(found.pid, found.started) if found and found.pid and _SESSION.fullmatch(found.id) else None

    def sessions(self) -> list[Session]:
        """Its latest sessions in the folder that it was started in, without those that sessions began themselves."""
        door = self._door()
        since = int((time.time() - RECENT) * 1000)
        rows = self._get(door, f"/session?roots=true&limit=100&start={since}")
        found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        latest = sorted(found, key=_updated, reverse=True)
        states = self._get(door, "/session/status")
        sessions = (self._session(row, states) for row in latest if _updated(row) >= since)
        return [one for one in sessions if one is not None][:MOST]

    def session(self, id_: str) -> Session | None:
        """Its session of that name, None when it is gone."""
        try:
            door = self._door()
            row = self._get(door, f"/session/{id_}")
        except NotRunning:
            return None
        return self._session(row, self._get(door, "/session/status"))

    def prompt(self, session: Session, line: str) -> None:
        """Open a turn with that line, as the agent that the session is at: the default one may have more rights."""
        door = self._door()
        row = self._get(door, f"/session/{session.id}")
        if self._session(row, {}) is None:
            raise NotRunning(f"the {session.title} has ended", fix="open another, and join from there")
        agent = {"agent": row["agent"]} if isinstance(row.get("agent"), str) and row["agent"] else {}
        self._ask(
            door, "POST", f"/session/{session.id}/prompt_async", agent | {"parts": [{"type": "text", "text": line}]}
        )

    def _session(self, row: Any, states: Any) -> Session | None:
        """What a server says of a session; None for one of another folder, or that another session began."""
        import psutil

        said = row if isinstance(row, dict) else {}
        id_, project = str(said.get("id")), str(said.get("directory"))
        try:
            is_here = project == psutil.Process(self.pid).cwd()
        except psutil.Error:
            return None
        if not _SESSION.fullmatch(id_) or said.get("parentID") or not is_here:
            return None
        name = _printable(str(said.get("title") or ""))[:60].strip() or id_
        state = "busy" if isinstance(states, dict) and id_ in states else "idle"
        return Session(OPENCODE, id_, self.pid, self.started, _printable(project), name, state)

    def _doors(self) -> list[tuple[str, int]]:
        """Where this very process listens."""
        import psutil

        from dialogd.store.origin import is_start

        try:
            process = psutil.Process(self.pid)
            if not _is_opencode(process) or not is_start(self.pid, self.started):
                raise NotRunning(f"the OpenCode of pid {self.pid} has ended", fix="open another, and join from there")
            ends = [one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        except (psutil.Error, OSError):
            raise NotRunning(f"the OpenCode of pid {self.pid} has ended", fix="open another") from None
        return [(end.ip, end.port) for end in ends]

    def _door(self) -> tuple[str, int]:
        """Where its server listens: it may listen elsewhere too, such as for a login."""
        doors = self._doors()
        for ip, port in doors:
            if not ipaddress.ip_address(ip).is_loopback:
                raise Refused(
                    f"the OpenCode server of pid {self.pid} listens at {ip}:{port}, beyond this machine, where anybody"
                    " may give it orders",
                    fix="start it with --hostname 127.0.0.1",
                )
        problem: DialogdError = NotRunning(
            f"the OpenCode of pid {self.pid} has no server", fix="start it with one: opencode --port 4096"
        )
        for door in doors:
            try:
                if "healthy" in (self._get(door, "/global/health") or {}):
                    return door
            except DialogdError as error:
                problem = error
        raise problem

    def _get(self, door: tuple[str, int], path: str) -> Any:
        return self._ask(door, "GET", path)

    def _ask(self, door: tuple[str, int], method: str, path: str, body: object = None) -> Any:
        """The JSON that it answers with, None for an empty answer."""
        from http.client import HTTPException  # here: `status` needs none of it

        try:
            status, data = self._exchange(door, method, path, b"" if body is None else json.dumps(body).encode())
            found = json.loads(data) if data and status < 300 else None
        except (OSError, HTTPException, ValueError) as error:
            if door not in self._doors():
                raise NotRunning(
                    f"the OpenCode of pid {self.pid} has no server any more", fix="start it anew"
                ) from None
            why = "does not answer in time" if isinstance(error, TimeoutError) else "does not answer as OpenCode does"
            raise Refused(f"the OpenCode server of pid {self.pid} {why}", fix="start it anew") from None
        if status in (401, 403):
            raise Refused(
                f"the OpenCode server of pid {self.pid} wants a password, which is for its own clients",
                fix="let its session wait for turns: dialogd turn --wait; or start it without OPENCODE_SERVER_PASSWORD",
            )
        if status == 404:
            raise NotRunning(f"the OpenCode server of pid {self.pid} has no {path}", fix="open another session")
        if status >= 300:
            raise Refused(f"the OpenCode server of pid {self.pid} answered {status}", fix="look what it logs")
        return found

    def _exchange(self, door: tuple[str, int], method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """One request and its answer, within the limits of both. Checked is who listens once it is connected."""
        from http.client import HTTPResponse

        host = f"[{door[0]}]" if ":" in door[0] else door[0]
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {host}:{door[1]}\r\nConnection: close\r\nAccept: application/json\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(door, CONNECT_SECONDS) as out:
            if door not in self._doors():
                raise NotRunning(f"another process listens at {host}:{door[1]}", fix="start that server anew")
            out.sendall(head.encode() + body)
            heard = _Heard(out, time.monotonic() + ANSWER_SECONDS)
            answer = HTTPResponse(cast("socket.socket", heard), method=method)
            answer.begin()
            return answer.status, answer.read()


class _Heard(io.RawIOBase):
    """What comes over a connection, for the parser of answers: until a time, and so much at most."""

    def __init__(self, connected: socket.socket, until: float) -> None:
        self._connected, self._until, self._left = connected, until, ANSWER

    def makefile(self, _mode: str) -> io.BufferedReader:
        """To be read."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there by now."""
        self._connected.settimeout(max(self._until - time.monotonic(), 0.001))
        read = self._connected.recv_into(buffer)
        self._left -= read
        if self._left < 0:
            raise ValueError("too long")
        return read


def _updated(row: dict[str, Any]) -> float:
    """When a session was last at work, in milliseconds; 0 where that is not said."""
    times = row.get("time")
    found = times.get("updated") if isinstance(times, dict) else 0
    return float(found) if isinstance(found, int | float) else 0.0


# -- Whom to trust ----------------------------------------------------------------------------------------------------


def _json(path: Path, *, is_public: bool = False) -> dict[str, Any]:
    """A small JSON file that only this user can have written. Raises `UnsafeFile`, `NotRunning` without one.

    Claude Code writes over it in place, so one that is half written is read again; a few times also one that nobody
    seems to write any more: on a busy machine who writes and who reads are held up for seconds.
    """
    old = 0
    while (found := _object(_read(path, is_public=is_public))) is None:
        old += not _is_fresh(path)
        if old == LOOKS:
            raise UnsafeFile(f"{path} is not what Claude Code writes there", fix="start that session anew")
        time.sleep(0.01)
    return found


def _is_fresh(path: Path) -> bool:
    """True while whoever writes this file may not be done; also where it is gone, which the next reading tells."""
    try:
        return abs(time.time() - path.stat().st_mtime) < SETTLE
    except OSError:
        return True


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data) if len(data) <= LARGEST else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _read(path: Path, *, is_public: bool) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotRunning(f"{path} is gone", fix="look whether the session is still open") from None
    except OSError as error:
        _check_file(path, is_public=is_public)  # a link, as a rule
        raise UnsafeFile(f"{path} cannot be read: {error.strerror}", fix="start that session anew") from None
    try:
        _check_regular(os.fstat(fd), path, is_public=is_public)
        return os.read(fd, LARGEST + 1)
    finally:
        os.close(fd)


def _check_file(path: Path, *, is_public: bool) -> None:
    try:
        _check_regular(path.lstat(), path, is_public=is_public)
    except OSError:
        raise NotRunning(f"{path} is gone", fix="look whether the session is still open") from None


def _check_regular(status: os.stat_result, path: Path, *, is_public: bool) -> None:
    _check(status, str(path), "file" if stat.S_ISREG(status.st_mode) else "", is_shared=is_public)
    if status.st_nlink > 1:
        raise UnsafeFile(f"{path} has more than one name (a hard link)", fix="remove it, and start that session anew")
    if not is_public and status.st_mode & 0o077:
        raise UnsafeFile(f"{path} can be read by others", fix=f"take that away: chmod 600 {path}")


def _check_folder(path: Path, *, is_shared: bool = False) -> None:
    try:
        status = path.lstat()
    except OSError:
        raise NotRunning(f"{path} is gone", fix="look whether the session is still open") from None
    _check(status, f"the folder {path}", "folder" if stat.S_ISDIR(status.st_mode) else "", is_shared=is_shared)


def _check(
    status: os.stat_result, what: str, kind: str, *, owners: tuple[int, ...] = (), is_shared: bool = False
) -> None:
    """Raise unless it is of a kind at all, this user's (or one of `owners`'), and nobody else may write it.

    With `is_shared` only every user may not: that of a group is common, and harmless in a folder that is private.
    """
    if not kind:
        named = "a link" if stat.S_ISLNK(status.st_mode) else "not of the kind it should be"
        raise UnsafeFile(f"{what} is {named}", fix="remove it, and start that session anew")
    if status.st_uid not in (owners or (os.geteuid(),)):
        raise UnsafeFile(f"{what} belongs to another user (uid {status.st_uid})", fix="find out who put it there")
    if status.st_mode & (stat.S_IWOTH if is_shared else stat.S_IWOTH | stat.S_IWGRP):
        raise UnsafeFile(f"{what} can be written by others", fix="take that away: chmod go-w")


def _printable(text: str) -> str:
    """What other programs wrote, fit for a terminal: one line, at most 200 characters."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:200]).strip()
