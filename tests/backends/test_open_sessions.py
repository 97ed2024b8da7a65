"""The sessions that are open on this machine: which ones are found, and what is refused before it is used."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dialogd.backends.open_sessions import Session, of_key, running_sessions, session_here, status, wake, without_tokens
from dialogd.errors import BadInput, DialogdError, NotRunning, Refused, UnsafeFile
from tests.support import open_sessions
from tests.support.open_sessions import TOKEN, Claude, started_at, until

NOBODY = 65534
AT = r"\d\d:\d\d:\d\d"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder of Claude Code's, which this process and its children know; others have a home beside."""
    folder = tmp_path / "config"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex-home"))
    return folder


@pytest.fixture
def claude(config: Path, tmp_path: Path) -> Iterator[Claude]:
    with open_sessions.claude(config, tmp_path / "shop") as session:
        yield session


def only(refused: list[DialogdError] | None = None) -> Session:
    (session,) = [one for one in running_sessions(refused) if one.program == "claude"]
    return session


# -- Claude Code ------------------------------------------------------------------------------------------------------


def test_a_session_is_found_with_what_it_says_of_itself(claude: Claude, tmp_path: Path) -> None:
    found = only()
    assert (found.program, found.pid, found.project, found.name) == (
        "claude",
        claude.pid,
        str(tmp_path / "shop"),
        "shop-3f",
    )
    assert found.key == f"claude:{claude.pid}:{started_at(claude.pid)}"
    assert of_key(found.key) == found
    for said, meant in (("idle", "idle"), ("busy", "busy"), ("shell", "busy"), ("waiting", "waiting"), ("new", "")):
        claude.change(status=said)
        assert status(found) == meant


def test_a_knock_is_one_message_of_one_line(claude: Claude) -> None:
    asyncio.run(wake(only(), "Turn 3 is yours: dialogd live turn --file '/tmp/<b>.md'"))
    until(lambda: len(claude.rows()) == 2, "message")
    auth, message = claude.rows()
    assert auth == {"type": "auth", "token": TOKEN}
    assert message["type"] == "user"
    assert re.fullmatch(
        '<cross-session-message from="dialogd" from-name="dialogd" from-mode="prompting">\n'
        rf"{AT} dialogd: Turn 3 is yours: dialogd live turn --file '/tmp/&lt;b&gt;\.md'\n</cross-session-message>",
        message["message"]["content"],
    )


def test_no_knock_is_like_the_one_before(claude: Claude) -> None:
    asyncio.run(wake(only(), "turn 3 is yours"))
    until(claude.knocks, "first knock")
    until(lambda: time.strftime("%H:%M:%S") not in claude.knocks()[0], "next second")
    asyncio.run(wake(only(), "turn 3 is yours"))
    until(lambda: len(claude.knocks()) == 2, "second knock")
    assert len({*claude.knocks()}) == 2


@pytest.mark.parametrize("line", ["", " ", "two\nlines", "a\x1b[2J", "x" * 401])
def test_what_is_no_line_is_not_sent(claude: Claude, line: str) -> None:
    with pytest.raises(BadInput):
        asyncio.run(wake(only(), line))
    assert not claude.rows()


def test_a_registration_that_is_being_written_is_read_again(claude: Claude) -> None:
    whole, is_over = claude.registration.read_bytes(), threading.Event()

    def write() -> None:
        while not is_over.wait(0.01):
            with claude.registration.open("wb", buffering=0) as out:
                out.write(whole[:100])
                is_over.wait(0.02)
                out.write(whole[100:])

    writing = threading.Thread(target=write)
    writing.start()
    try:
        refused: list[DialogdError] = []
        found = [len(running_sessions(refused)) for _ in range(20)]
        assert ([str(error) for error in refused], found) == ([], [1] * 20)
    finally:
        is_over.set()
        writing.join()


def test_a_session_that_ended_is_gone_for_good(claude: Claude) -> None:
    session = only()
    claude.process.kill()
    claude.process.wait()
    assert claude.registration.exists()
    assert (running_sessions(), of_key(session.key), status(session)) == ((), None, "gone")
    with pytest.raises(NotRunning):
        asyncio.run(wake(session, "hello"))


def test_a_reused_pid_is_another_session(claude: Claude) -> None:
    session = only()
    claude.change(procStart=str(int(started_at(claude.pid)) - 7))
    refused: list[DialogdError] = []
    assert running_sessions(refused) == ()
    assert (of_key(session.key), status(session), refused) == (None, "gone", [])
    later = Session(session.program, session.id, session.pid, "123", session.project, session.name, "idle")
    claude.change(procStart=session.started)
    assert (of_key(later.key), status(later)) == (None, "gone")
    with pytest.raises(NotRunning):
        asyncio.run(wake(later, "hello"))
    assert not claude.rows()


def test_what_nobody_types_into_is_no_session(claude: Claude) -> None:
    for kind in ("bg", "daemon", None):
        claude.change(kind=kind)
        assert running_sessions() == ()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "claude:",
        "claude:12",
        "claude:x:1",
        "codex:1",
        "other:1:2",
        "claude:-1:2",
    ],
)
def test_a_key_that_is_none_is_refused(config: Path, key: str) -> None:
    with pytest.raises(BadInput):
        of_key(key)


def widen(path: Path, mode: int) -> None:
    path.chmod(path.stat().st_mode | mode)


def linked(path: Path) -> None:
    real = path.with_name(f"real-{path.name}")
    path.rename(real)
    path.symlink_to(real)


def twice(path: Path) -> None:
    path.with_name("other-name").hardlink_to(path)


def rewritten(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **values}))


Spoil = Callable[[Claude], object]

REGISTRATION: dict[str, tuple[Spoil, str]] = {
    "a link": (lambda one: linked(one.registration), "is a link"),
    "two names": (lambda one: twice(one.registration), "hard link"),
    "written by all": (lambda one: widen(one.registration, 0o002), "can be written by others"),
    "folder of a group": (lambda one: widen(one.registration.parent, 0o020), "can be written by others"),
    "folder of all": (lambda one: widen(one.registration.parent, 0o002), "can be written by others"),
    "folder above": (lambda one: widen(one.home, 0o002), "can be written by others"),
    "a link for the folder": (lambda one: linked(one.registration.parent), "is a link"),
    "no JSON": (lambda one: one.registration.write_text("{"), "is not what Claude Code writes"),
    "no object": (lambda one: one.registration.write_text("[1]"), "is not what Claude Code writes"),
    "too deep": (lambda one: one.registration.write_text("[" * 60_000), "is not what Claude Code writes"),
    "a folder": (lambda one: (one.registration.unlink(), one.registration.mkdir()), "not of the kind"),
    "too long": (lambda one: one.change(more="x" * 70_000), "is not what Claude Code writes"),
    "another's number": (lambda one: one.change(pid=os.getpid()), "registration of another process"),
}


@pytest.mark.parametrize("case", REGISTRATION)
def test_a_registration_that_anybody_may_have_written_is_refused(claude: Claude, case: str) -> None:
    session = only()
    spoil, reason = REGISTRATION[case]
    spoil(claude)
    os.utime(claude.registration, (0, 0), follow_symlinks=False)  # nobody is writing it just now
    refused: list[DialogdError] = []
    assert running_sessions(refused) == ()
    assert [reason in str(error) for error in refused] == [True]
    with pytest.raises(UnsafeFile, match=reason):
        of_key(session.key)
    with pytest.raises(UnsafeFile, match=reason):
        asyncio.run(wake(session, "hello"))
    assert not claude.rows()


def elsewhere(one: Claude) -> None:
    """Let the registration name a socket on which another process listens, key included: a forged target."""
    other = one.home / "socks" / "other.sock"
    script = (
        f"import os, socket; s = socket.socket(1); s.bind({str(other)!r}); os.chmod({str(other)!r}, 0o600);"
        "s.listen(); print(1, flush=True); s.accept()[0].recv(9)"
    )
    thief = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    THIEVES.append(thief)
    thief.stdout.readline()
    one.change(messagingSocketPath=str(other))
    one.key.rename(one.key.with_name(f"{one.pid}.{hashlib.sha256(os.fsencode(other)).hexdigest()}.key"))


THIEVES: list[subprocess.Popen[bytes]] = []

USE: dict[str, tuple[Spoil, str, type[DialogdError]]] = {
    "key read by others": (lambda one: widen(one.key, 0o044), "can be read by others", UnsafeFile),
    "key is a link": (lambda one: linked(one.key), "is a link", UnsafeFile),
    "key with two names": (lambda one: twice(one.key), "hard link", UnsafeFile),
    "no path": (lambda one: one.change(messagingSocketPath="/tmp/\ud800"), "a socket that is none", UnsafeFile),
    "planted key": (lambda one: rewritten(one.key, procStart="1"), "another process's", UnsafeFile),
    "key from elsewhere": (lambda one: rewritten(one.key, pidDomain="there"), "another process's", UnsafeFile),
    "no key": (lambda one: one.key.unlink(), "is gone", NotRunning),
    "no socket named": (lambda one: one.change(messagingSocketPath=None), "a socket that is none", UnsafeFile),
    "another's socket": (elsewhere, "listens on", UnsafeFile),
    "socket of all": (lambda one: widen(one.socket, 0o022), "can be written by others", UnsafeFile),
    "socket is a link": (lambda one: linked(one.socket), "is a link", UnsafeFile),
    "a file for a socket": (lambda one: (one.socket.unlink(), one.socket.touch()), "of the kind", UnsafeFile),
    "socket in a folder of all": (lambda one: widen(one.socket.parent, 0o022), "can be written by others", UnsafeFile),
    "no socket": (lambda one: one.socket.unlink(), "is gone", NotRunning),
}


@pytest.mark.parametrize("case", USE)
def test_a_socket_or_key_that_is_not_the_sessions_is_refused(claude: Claude, case: str) -> None:
    session = only()
    spoil, reason, kind = USE[case]
    try:
        spoil(claude)
        with pytest.raises(kind, match=reason) as caught:
            asyncio.run(wake(session, "hello"))
    finally:
        while THIEVES:
            thief = THIEVES.pop()
            thief.kill()
            thief.communicate()
    assert TOKEN not in str(caught.value)
    assert caught.value.fix
    assert not claude.rows()


FOREIGN: dict[str, tuple[Callable[[Claude], Path], bool]] = {
    "registration": (lambda one: one.registration, False),
    "folder": (lambda one: one.registration.parent, False),
    "key": (lambda one: one.key, True),
    "socket": (lambda one: one.socket, True),
    "folder of the socket": (lambda one: one.socket.parent, True),
}


@pytest.mark.root
@pytest.mark.parametrize("case", FOREIGN)
def test_what_belongs_to_another_user_is_refused(claude: Claude, case: str) -> None:
    session = only()
    which, is_listed = FOREIGN[case]
    os.chown(which(claude), NOBODY, NOBODY)
    refused: list[DialogdError] = []
    assert bool(running_sessions(refused)) == is_listed
    assert len(refused) == (0 if is_listed else 1)
    with pytest.raises(UnsafeFile, match=f"belongs to another user .uid {NOBODY}"):
        asyncio.run(wake(session, "hello"))
    assert not claude.rows()


@pytest.mark.root
def test_a_process_of_another_user_is_no_session(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import os; os.setuid({NOBODY}); print(1, flush=True); input()"]
    with open_sessions.claude(config, tmp_path, command=command) as session:
        session.process.stdout.readline()
        refused: list[DialogdError] = []
        assert running_sessions(refused) == ()
        assert "a process of another user" in str(refused[0])


def test_nothing_is_written_into_the_programs_folders(claude: Claude) -> None:
    before = {path: path.stat().st_mtime_ns for path in claude.home.rglob("*") if path != claude.heard}
    session = only()
    asyncio.run(wake(session, "hello"))
    status(session)
    until(claude.knocks, "knock")
    assert before == {path: path.stat().st_mtime_ns for path in claude.home.rglob("*") if path != claude.heard}


# -- Inside of a session ----------------------------------------------------------------------------------------------

WHO = (
    "import os; from dialogd.backends.open_sessions import session_here;"
    " s = session_here(os.environ); print(s and s.key)"
)


def test_a_command_of_a_session_knows_its_session(claude: Claude, tmp_path: Path) -> None:
    words = [sys.executable, "-c", WHO]
    done = claude.run(words, dict(os.environ), Path.cwd())
    assert (done.code, done.out.strip()) == (0, only().key)
    below = claude.run(["sh", "-c", f"'{sys.executable}' -c '{WHO}'; true"], dict(os.environ), Path.cwd())
    assert below.out.strip() == only().key


def test_variables_alone_make_no_session(claude: Claude) -> None:
    variables = {**os.environ, **claude.environment}
    done = subprocess.run([sys.executable, "-c", WHO], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
    assert session_here({}) is None
    inner = {**os.environ, "CLAUDE_PID": "1"}  # the session's own variables go on top of these
    other = claude.run(["env", "CLAUDE_PID=1", sys.executable, "-c", WHO], inner, Path.cwd())
    assert other.out.strip() == "None"


def test_a_session_that_is_refused_is_no_reason_to_go_on_without(claude: Claude) -> None:
    widen(claude.registration.parent, 0o002)
    with pytest.raises(UnsafeFile):
        session_here({**claude.environment, "CLAUDE_CONFIG_DIR": str(claude.home)})


def test_what_is_refused_of_another_session_is_no_matter_here(claude: Claude, tmp_path: Path) -> None:
    with open_sessions.claude(claude.home, tmp_path / "shop", "other-11") as other:
        other.registration.chmod(0o666)
        variables = {"CLAUDE_CONFIG_DIR": str(claude.home)}
        assert session_here({**variables, "CODEX_THREAD_ID": str(uuid.uuid4())}) is None
        assert session_here({**variables, "CLAUDECODE": "1", "CLAUDE_PID": str(claude.pid)}) is None
        nested = {**os.environ, "CODEX_THREAD_ID": str(uuid.uuid4())}
        assert claude.run([sys.executable, "-c", WHO], nested, Path.cwd()).out.strip() == only().key


def test_the_tokens_of_a_session_are_taken_away(claude: Claude) -> None:
    assert without_tokens({**claude.environment, "HOME": "/home/me"}) == {
        "CLAUDECODE": "1",
        "CLAUDE_PID": str(claude.pid),
        "HOME": "/home/me",
    }


# -- Codex ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def codex(config: Path, tmp_path: Path) -> Iterator[open_sessions.Codex]:
    home = tmp_path / "codex-home"
    home.mkdir()
    with open_sessions.codex(home, tmp_path / "shop") as session:
        yield session


def thread(session: open_sessions.Codex) -> Session | None:
    return next((one for one in running_sessions() if one.id == session.thread), None)


def test_an_open_thread_is_found_with_what_its_rollout_says(codex: open_sessions.Codex, tmp_path: Path) -> None:
    found = thread(codex)
    assert (found.program, found.pid, found.project) == ("codex", codex.process.pid, str(tmp_path / "shop"))
    assert found.key == f"codex:{codex.thread}"
    assert of_key(found.key) == found
    told = []
    for event in ("", "task_started", "task_complete", "task_started", "turn_aborted"):
        if event:
            codex.event(event)
        told.append(status(found))
    assert told == ["", "busy", "idle", "busy", "idle"]
    codex.process.kill()
    codex.process.wait()
    assert (thread(codex), of_key(found.key), status(found)) == (None, None, "gone")


def test_codex_itself_queues_a_knock(codex: open_sessions.Codex, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "CLAUDE_CODE_MESSAGING_TOKEN"):
        monkeypatch.setenv(name, "secret-secret-secret")
    found = thread(codex)
    assert found is not None
    asyncio.run(wake(found, "Turn 3 is yours: dialogd live turn; `$(touch x)`"))
    *words, line = codex.told()
    assert words == ["--thread", codex.thread, "--message"]
    assert re.fullmatch(rf"{AT} dialogd: Turn 3 is yours: dialogd live turn; `\$\(touch x\)`", line)
    environment = (codex.home / "environment").read_text()
    assert f"CODEX_HOME={codex.home}\n" in environment
    assert "secret" not in environment


def test_a_thread_that_nobody_has_open_is_not_queued_for(codex: open_sessions.Codex) -> None:
    found = thread(codex)
    assert found is not None
    codex.process.kill()
    codex.process.wait()
    with pytest.raises(NotRunning):
        asyncio.run(wake(found, "hello"))
    assert codex.told() == []


def test_a_queue_that_fails_is_told(codex: open_sessions.Codex) -> None:
    found = thread(codex)
    assert found is not None
    (codex.home / "queue").write_text("echo no rollout found >&2; exit 1")
    with pytest.raises(NotRunning, match="no rollout found"):
        asyncio.run(wake(found, "hello"))


def test_a_run_of_codex_exec_is_no_session(config: Path, tmp_path: Path) -> None:
    with open_sessions.codex(tmp_path / "codex-home", tmp_path, "codex_exec", "exec") as session:
        assert thread(session) is None


def test_a_file_that_is_not_the_threads_is_refused(codex: open_sessions.Codex) -> None:
    widen(codex.rollout, 0o002)
    refused: list[DialogdError] = []
    assert not [one for one in running_sessions(refused) if one.id == codex.thread]
    assert "can be written by others" in str(refused[0])


def test_inside_the_sandbox_of_codex_nothing_is_known(config: Path) -> None:
    with pytest.raises(Refused, match="sandbox") as caught:
        session_here({"CODEX_THREAD_ID": str(uuid.uuid4()), "CODEX_SANDBOX_NETWORK_DISABLED": "1"})
    assert "!" in caught.value.fix
