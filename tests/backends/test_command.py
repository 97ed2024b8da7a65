"""The command backend: what a program may do, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dialogd.backends import Backend, Options, Request, load_backend
from dialogd.backends.command import Command, clean_environment, last_line
from dialogd.backends.parts import Part, Prompt
from dialogd.errors import BackendError, BadInput
from dialogd.store.child import STDERR_TAIL
from tests.support.backend_contract import BackendContract, answer, until
from tests.support.cases import cases
from tests.support.pair import PATIENCE, a_second

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes that leave their group are only found on Linux")


def sh(script: str) -> Command:
    return Command(Options(command=shlex.join(["sh", "-c", script])))


def python(program: str) -> Command:
    return Command(Options(command=shlex.join([sys.executable, "-I", "-S", "-c", program])))


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def dead(pid: int) -> bool:
    """True when nothing of that pid runs; a zombie is left to the system's first process, in its own time."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.iterdir()]


class TestContract(BackendContract):
    def make(self) -> Backend:
        return Command(Options(command="cat"))

    def make_slow(self) -> Backend:
        return sh("echo thinking; sleep 600 & sleep 600")

    def make_failing(self) -> Backend:
        return sh("echo no quota left >&2; exit 1")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A file that is no program yet."""
    path = tmp_path / "agent"
    path.write_text("#!/bin/sh\npwd -P\n")
    return path


@cases(
    ("options", "says", "fix"),
    [
        *((Options(command=command), "no command", "--command") for command in ("", "  ", "''")),
        (Options(command="say 'hello"), "No closing quotation", "quote"),
        (Options(command="no-such-prog", environment={"PATH": "/nowhere"}), "no-such-prog.*PATH is /now", "full path"),
        (Options(command=shlex.quote(__file__)), "not an executable file", "chmod +x"),
        (Options(command="cat", project=Path("/no/such/folder")), "not a directory", "existing directory"),
    ],
)
def test_what_is_wrong_with_the_options_is_said_at_once(options: Options, says: str, fix: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        load_backend("command", options)
    assert fix in caught.value.fix


async def test_the_prompt_is_stdin_and_stdout_is_the_reply(request_: Request) -> None:
    prompt = Prompt("Grüße, 世界 \U0001f600\r\n", (Part("1", "\x00 data"),), "end" * 5_000)
    asked = replace(request_, prompt=lambda: prompt)
    assert await answer(Command(Options(command="cat")), asked) == prompt.text


async def test_text_arrives_while_the_command_still_runs(request_: Request, tmp_path: Path) -> None:
    read = tmp_path / "read"
    pieces = sh(f"echo first; until test -e {read}; do sleep 0.02; done; echo second").reply(request_)
    assert await anext(pieces) == "first\n"
    read.touch()
    assert [piece async for piece in pieces] == ["second\n"]


async def test_it_runs_in_the_project(request_: Request, script: Path) -> None:
    script.chmod(0o755)
    backend = Command(Options(command="./agent", project=script.parent))
    assert await answer(backend, request_) == f"{script.parent.resolve()}\n"


WRITES = "import os, time\nfor part in {}:\n    os.write(1, part); time.sleep(0.01)\n"


@cases(
    ("backend", "said"),
    [
        (Command(Options(command="printf '%s,' 'a b' $HOME ; | *")), "a b,$HOME,;,|,*,"),  # no shell reads the words
        (sh("printf 'one\ntwo'"), "one\ntwo"),
        (python(WRITES.format([bytes([byte]) for byte in "aß世😀z".encode()])), "aß世😀z"),
        (python(WRITES.format([b"ok \xe4\xb8", b"\xff", b" \xf0\x9f", b"\x98"])), "ok \ufffd\ufffd \ufffd"),
        (sh("echo done"), "done\n"),  # it need not read its prompt
        (sh("exec 0<&-; sleep 0.1; echo closed"), "closed\n"),
        (sh("head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero | tr '\\0' x"), "x" * 1_000_000),
    ],
)
async def test_what_a_command_prints_is_its_reply(request_: Request, backend: Command, said: str) -> None:
    long = replace(request_, prompt=lambda: Prompt("", (), "x" * 1_000_000))
    assert await answer(backend, long) == said


class TestEnvironment:
    async def test_secrets_of_the_daemon_are_not_passed_on(self, request_: Request) -> None:
        program = (
            "import asyncio, sys\n"
            "from dialogd.backends import Options\n"
            "from dialogd.backends.command import Command\n"
            "from tests.support.backend_contract import BackendContract, answer\n"
            "backend = Command(Options(command='env', environment={'MY_EXTRA': 'yes'}))\n"
            "sys.stdout.write(asyncio.run(answer(backend, BackendContract().request())))\n"
        )
        daemon = {
            "PATH": os.environ["PATH"],
            "HOME": "/home/ann",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONPATH": str(ROOT),
            "ANTHROPIC_API_KEY": "sk-ant-secret",
            "DIALOGD_TOKEN": "secret",
            "LD_LIBRARY_PATH": "/nowhere",
        }
        run = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program], env=daemon, capture_output=True, text=True, check=True
        )
        seen = dict(line.split("=", 1) for line in run.stdout.splitlines())
        passed = {name: daemon[name] for name in ("PATH", "HOME", "LC_ALL", "TZ")}
        ours = {"DIALOGD_AGENT": "A", "DIALOGD_TURN": "2", "DIALOGD_QUESTION": "", "MY_EXTRA": "yes"}
        assert seen == passed | ours

    def test_only_listed_names_are_clean(self) -> None:
        given = {"PATH": "p", "LC_TIME": "c", "PATHS": "x", "HOMEPAGE": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        assert clean_environment(given) == {"PATH": "p", "LC_TIME": "c"}


LAST = "echo half a reply; echo warning >&2; printf '\\033[31mno quota\\033[0m left\\n\\n' >&2; exit 1"


@cases(
    ("command", "cause", "partial"),
    [
        (LAST, "exited 1: no quota left", "half a reply\n"),
        ("kill -SEGV $$", "exited 139", ""),
        ("kill -PIPE $$; echo survived", "exited 141", ""),  # a signal that Python ignores
        ("true", "printed nothing", ""),
        ("echo; echo '  '", "printed nothing", ""),
    ],
)
async def test_a_failure_says_what_to_do(request_: Request, command: str, cause: str, partial: str) -> None:
    with pytest.raises(BackendError, match=f"^{cause}") as caught:
        await answer(sh(command), request_)
    assert (caught.value.partial, caught.value.retryable) == (partial, True)
    assert caught.value.fix


async def test_what_went_away_since_the_start_fails_the_reply(request_: Request, script: Path) -> None:
    script.chmod(0o755)
    project = script.parent / "project"
    project.mkdir()
    backend, inside = Command(Options(command=str(script))), Command(Options(command="cat", project=project))
    script.unlink()
    project.rmdir()
    for gone_, says in ((backend, "command not found"), (inside, "project")):
        with pytest.raises(BackendError, match=says) as caught:
            await answer(gone_, request_)
        assert "project" in says or not caught.value.retryable


@pytest.mark.parametrize("content", ["#!/no/such/interpreter\n", "no program at all\n"])
async def test_a_program_that_cannot_be_run_says_why(request_: Request, script: Path, content: str) -> None:
    script.write_text(content)
    script.chmod(0o755)
    with pytest.raises(BackendError, match="cannot run") as caught:
        await answer(Command(Options(command=str(script))), request_)
    assert "#!" in caught.value.fix
    assert not caught.value.retryable


@cases(
    ("script", "says", "partial"),
    [
        ("head -c 100000000 /dev/zero", "4 MiB", 4 * 1024 * 1024),
        ("head -c 100000000 /dev/zero >&2; printf '\\nthe end\\n' >&2; exit 2", "exited 2: the end", 0),
    ],
)
async def test_a_flood_takes_no_memory(request_: Request, script: str, says: str, partial: int) -> None:
    process = psutil.Process()
    children, before = set(process.children(recursive=True)), process.memory_info().rss
    with pytest.raises(BackendError, match=says) as caught:
        await answer(sh(script), request_)
    assert len(caught.value.partial) == partial
    assert process.memory_info().rss - before < 50_000_000
    assert set(process.children(recursive=True)) <= children


def test_a_last_line_is_short_and_printable() -> None:
    assert last_line(b"first\n\x1b[1mbad\x07\tthing\x1b[0m\r\n \n") == "bad thing"
    assert last_line(b"x" * 1000) == "x" * 200
    assert last_line(b"") == ""


class TestNothingIsLeft:
    @cases("cancels", [1, 5])
    async def test_a_command_that_ignores_sigterm_is_killed_in_time(self, request_: Request, cancels: int) -> None:
        before = set(psutil.Process().children(recursive=True))
        pieces = sh("trap '' TERM; echo deaf; while :; do sleep 1; done").reply(request_)
        assert await anext(pieces) == "deaf\n"
        call = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)
        started = time.monotonic()
        for _ in range(cancels):
            call.cancel()
            await asyncio.sleep(0.01)
        await asyncio.wait((call,))
        assert call.cancelled()
        assert time.monotonic() - started < a_second()
        assert set(psutil.Process().children(recursive=True)) <= before

    def test_a_polite_command_can_clean_up(self, tmp_path: Path) -> None:
        patient = "import sys; from dialogd.store import process_guard as guard; guard.GRACE = 600; "
        patient += "sys.exit(guard.Guard(int(sys.argv[1]), sys.argv[2:]).run())"
        polite = f"trap ': > {tmp_path}/cleaned; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", patient, str(theirs.fileno()), "/bin/sh", "-c", polite]
        with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(theirs.fileno(),), cwd=ROOT) as guard:
            theirs.close()
            assert guard.stdout.readline() == b"ready\n"
            ours.close()
            assert guard.wait(PATIENCE) == 7
        assert (tmp_path / "cleaned").exists()

    async def test_twenty_grandchildren_end_with_the_command(self, request_: Request, tmp_path: Path) -> None:
        script = f"for i in $(seq 20); do sh -c 'touch {tmp_path}/$$; exec sleep 600' & done; "
        script += f"until [ $(ls {tmp_path} | wc -l) = 20 ]; do sleep 0.02; done; echo done"
        started = time.monotonic()
        assert await answer(sh(script), request_) == "done\n"
        assert time.monotonic() - started < 5 * a_second()
        assert len(pids(tmp_path)) == 20
        assert all(gone(pid) for pid in pids(tmp_path))

    @LINUX
    @pytest.mark.parametrize("ending", ["pass", "time.sleep(60)"])
    async def test_a_grandchild_that_left_the_session_ends_too(
        self, request_: Request, tmp_path: Path, ending: str
    ) -> None:
        backend = python(_double_fork(tmp_path) + f"print('started', flush=True); {ending}\n")
        pieces = backend.reply(request_)
        assert await anext(pieces) == "started\n"
        rest = asyncio.ensure_future(anext(pieces, None))
        await asyncio.wait((rest,), timeout=0.5)
        rest.cancel()
        await asyncio.wait((rest,))
        assert len(pids(tmp_path)) == 1
        assert all(gone(pid) for pid in pids(tmp_path))

    @pytest.mark.slow
    @pytest.mark.parametrize("moment", ["started", "at once"])
    async def test_a_daemon_killed_with_9_leaves_nothing(self, tmp_path: Path, moment: str) -> None:
        started = tmp_path / "pids"
        started.mkdir()
        command = _double_fork(started) if sys.platform == "linux" else "import os, pathlib, time\n"
        command += f"pathlib.Path({str(started)!r}, str(os.getpid())).touch(); time.sleep(60)\n"
        program = (
            "import asyncio, shlex, sys\n"
            "from dialogd.backends import Options\n"
            "from dialogd.backends.command import Command\n"
            "from tests.support.backend_contract import BackendContract, answer\n"
            f"backend = Command(Options(command=shlex.join([sys.executable, '-I', '-S', '-c', {command!r}])))\n"
            "asyncio.run(answer(backend, BackendContract().request()))\n"
        )
        daemon = psutil.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            await until(lambda: bool(daemon.children()))
            if moment == "started":
                await until(lambda: len(pids(started)) >= 1 + (sys.platform == "linux"))
            family = daemon.children(recursive=True)
        finally:
            daemon.kill()
            daemon.wait()
        await until(lambda: all(map(dead, [p.pid for p in family] + pids(started))))

    @LINUX
    @cases(("sent", "says"), [(signal.SIGKILL, ""), (signal.SIGTERM, "exited 143")])
    async def test_a_signal_to_the_guard_ends_the_command(
        self, request_: Request, sent: signal.Signals, says: str
    ) -> None:
        before = set(psutil.Process().children())
        pieces = sh("echo ready; exec sleep 60").reply(request_)
        assert await anext(pieces) == "ready\n"
        (guard,) = set(psutil.Process().children()) - before
        family = guard.children(recursive=True)
        guard.send_signal(sent)
        with pytest.raises(BackendError, match=says or "."):
            await anext(pieces)
        await until(lambda: all(dead(p.pid) for p in family))

    @pytest.mark.slow
    async def test_thirty_calls_leave_no_descriptor_and_no_zombie(self, request_: Request) -> None:
        good, bad, slow = Command(Options(command="cat")), sh("exit 1"), sh("sleep 60")
        process = psutil.Process()
        await answer(good, request_)
        children = set(process.children(recursive=True))
        before = process.num_fds()
        for _ in range(10):
            await answer(good, request_)
            with pytest.raises(BackendError):
                await answer(bad, request_)
            with suppress(TimeoutError):
                await asyncio.wait_for(answer(slow, request_), 0.05)
        assert process.num_fds() == before
        assert set(process.children(recursive=True)) <= children


def _double_fork(directory: Path) -> str:
    """The beginning of a program that leaves a grandchild in a session of its own."""
    return (
        "import os, pathlib, time\n"
        "reader, writer = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        pathlib.Path({str(directory)!r}, str(os.getpid())).touch()\n"
        "        os.write(writer, b'.')\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait(); os.read(reader, 1)\n"
    )


class TestSecrets:
    """What a command says on stderr is quoted in short, and never a secret or a part of one."""

    TOKEN = "ghp_" + "Zq7Lm2Rt9Vx4Bn6Kc8Wd1Fg3Hj5Ps0YaTe4X"
    OWN = "correct-horse-battery-staple"

    @cases("length", [0, 165, 180, 190, 199])
    def test_a_secret_goes_before_the_line_is_cut(self, length: int) -> None:
        for secret, own in ((self.TOKEN, ()), (self.OWN, (self.OWN,))):
            for written in (secret, f"{secret[:9]}\x1b[1m{secret[9:]}"):
                line = last_line(f"{'x' * length} {written}".encode(), own)
                assert secret[:12] not in line
                assert secret[-12:] not in line

    def test_the_end_of_a_secret_is_not_told_where_its_beginning_is_lost(self) -> None:
        kept = f"x{self.TOKEN} the end {'y' * STDERR_TAIL}"[3:][:STDERR_TAIL].encode()
        assert last_line(kept).startswith("the end")
