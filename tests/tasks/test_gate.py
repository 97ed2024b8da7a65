"""The gate: the person's command over a tree that an agent wrote."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import psutil
import pytest

from dialogd.backends.command import limits_of, missing
from dialogd.errors import BadInput, NotInstalled, StorageError
from dialogd.protocol.build import GateResult
from dialogd.store.child import Limits
from dialogd.tasks.gate import HEAD, TAIL, readable, remove, run
from dialogd.tasks.worktrees import Worktrees
from tests.support.cases import cases
from tests.support.pair import PATIENCE, stretched
from tests.tasks.repos import a_repo, write

NEEDS = pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of a tree, in a folder of their own."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "Makefile").write_text("test:\n\t@echo tested\n")
    return folder


async def gate(command: str, tree: Path, limit: float = 600.0, **more: object) -> tuple[GateResult, str]:
    """How a gate ended, and its whole log."""
    tree.mkdir(exist_ok=True)
    log = tree.parent / "log"
    more["visible"] = {path: path for path in more.get("visible", ())}  # type: ignore[attr-defined]
    gated = await run(command, tree, limit, log, **more)  # type: ignore[arg-type]
    assert gated.log == sha256(log.read_bytes()).hexdigest()
    remove(tree)
    return gated, log.read_text(errors="replace")


def test_a_gate_sees_toolchains_of_the_home_and_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the home, the dialog, the state, what holds one of them, nor where only their owner may read something.

    Of the checkout what git ignores, and of other worktrees nothing.
    """
    home, state = tmp_path / "home", tmp_path / "home" / ".state" / "dialogd"
    monkeypatch.setenv("HOME", str(home))
    for name in (".pyenv/bin", ".cargo/bin", ".ssh", ".aws", "work", ".state/dialogd/logs", "talk"):
        (home / name).mkdir(parents=True)
    (home / ".ssh").chmod(0o700)
    for name in (".aws/credentials", ".cargo/credentials.toml"):
        (home / name).touch(0o600)
    (home / "work" / "key").symlink_to(home / ".aws" / "credentials")
    (home / "tools").symlink_to(home / ".pyenv")
    file = home / "talk" / "dialog.md"
    (tmp_path / "mine").mkdir()
    repo = a_repo(tmp_path / "mine", {".gitignore": "node_modules\n", "src/a.js": "", "node_modules.md": ""})
    (repo.path / "node_modules" / "one").mkdir(parents=True)
    repo.git("worktree", "add", "-q", str(tmp_path / "other"))
    trees = Worktrees(repo.path)
    for name, seen in ((".pyenv", ".pyenv"), (".cargo/bin", ".cargo/bin"), ("work", "work"), ("tools", ".pyenv")):
        assert readable([home / name], file, state, trees) == [(home / seen).resolve()]
    for folder in (repo.path / "node_modules", repo.path / "node_modules" / "one"):
        assert readable([folder], file, state, trees) == [folder]
    wrong = {
        "": "it holds your home", "..": "it holds your home", ".state": "it holds dialogd's state",
        ".state/dialogd/logs": "it holds dialogd's state", "talk": "it holds the dialog",
        ".ssh": r"only you may read .*\.ssh", ".aws": "only you may read .*credentials", ".cargo": "credentials.toml",
        "none": "is no folder", str(repo.path): "does not ignore", str(repo.path / "src"): "does not ignore",
        str(repo.path.parent): "your checkout", str(tmp_path / "other"): "another worktree",
    }  # fmt: skip
    for name, why in wrong.items():
        with pytest.raises(BadInput, match=why) as found:
            readable([home / ".pyenv", home / name], file, state, trees)
        assert found.value.fix


@NEEDS
class TestConfined:
    """What an agent wrote runs, and reaches nothing."""

    @cases(
        "command, state, code",
        [
            ("make test 2>/dev/null || cat Makefile", "passed", 0),
            ("echo said; echo wrong >&2; exit 3", "failed", 3),
            ("kill -9 $$", "failed", 137),
            ("false", "failed", 1),
            ("no-such-program", "failed", 127),
            ("exec 1>&- 2>&-; exit 4", "failed", 4),
        ],
    )
    async def test_the_exit_code_decides(self, tree: Path, command: str, state: str, code: int) -> None:
        tree.mkdir(exist_ok=True)
        (tree / "Makefile").write_text("test:\n\t@echo tested\n")
        gated, log = await gate(command, tree)
        assert (gated.state, gated.code) == (state, code)
        assert gated.tail == log.strip("\n")
        if "wrong" in command:
            assert log == "said\nwrong\n"
        assert sorted(path.name for path in tree.parent.iterdir()) == ["log"]

    async def test_it_has_neither_home_nor_dialog_nor_network(self, tree: Path, tmp_path: Path) -> None:
        around = tmp_path / "around"  # which would be there to be read
        state, dialog = around / "state", around / "dialog.md"
        state.mkdir(parents=True)
        for path in (state / "journal", dialog):
            path.write_text("SECRET")
        with socket.create_server(("127.0.0.1", 0)) as server:
            command = (
                f"cat {dialog} {state}/journal; echo x >> {dialog}; echo x > {state}/journal\n"
                "echo x > ~/.dialogd-gate-left && echo x > /tmp/dialogd-gate-left && echo wrote\n"
                "echo x > built && echo built\n"
                f"{os.path.realpath(sys.executable)} -I -S -c 'import socket; "
                f'socket.create_connection(("127.0.0.1", {server.getsockname()[1]}))\''
            )
            gated, log = await gate(command, tree, hidden=[state, dialog], visible=[around, Path(sys.base_prefix)])
        assert gated.state == "failed"
        assert "Connection refused" in log or "unreachable" in log
        assert "SECRET" not in log
        assert log.count("wrote\n") == log.count("built\n") == 1
        assert dialog.read_text() == (state / "journal").read_text() == "SECRET"
        assert not Path("/tmp/dialogd-gate-left").exists()
        assert not (Path.home() / ".dialogd-gate-left").exists()

    async def test_the_checkout_is_not_seen_where_the_tree_stands_in_its_place(self, tmp_path: Path) -> None:
        code, tree = tmp_path / "code", tmp_path / "tree"
        write(code / "mine", {"a.txt": "the checkout\n", ".venv/b.txt": "a tool\n", "mine": "the checkout\n"})
        write(code / "mine.dialogd", {"other": "a worktree\n"})
        (code / "link").symlink_to(code / "mine")
        seen = [code, code / "mine" / ".venv"]
        for number, there in enumerate((None, "a file", code)):
            write(tree, {"a.txt": "the tree\n"})
            if isinstance(there, str):
                (tree / ".venv").write_text(there)
            elif there:
                (tree / ".venv").symlink_to(there)
            command = f"pwd; cat {code}/mine/a.txt {code}/link/a.txt .venv/b.txt; ls .. ../mine.dialogd mine"
            _, log = await gate(command, tree, at=code / "mine", hidden=[code / "mine.dialogd"], visible=seen)
            assert f"{code}/mine\nthe tree\nthe tree\na tool\n" in log, number
            assert "the checkout" not in log
            assert "other" not in log
            assert "cannot access 'mine'" in log
        assert (code / "mine" / ".venv" / "b.txt").read_text() == "a tool\n"

    async def test_a_folder_of_the_home_can_be_shown(self, tree: Path, tmp_path: Path) -> None:
        tools = tmp_path / "home" / "tools"
        tools.mkdir(parents=True)
        (tools / "old").write_text("there")
        command = f"cat {tools}/old; echo x > {tools}/new; ls {tmp_path}/home"
        _, log = await gate(command, tree, hidden=[tmp_path / "home"], visible=[tools])
        assert "there" in log
        assert "Read-only" in log
        assert sorted(path.name for path in tools.iterdir()) == ["old"]

    async def test_a_secret_of_the_daemon_is_not_in_its_environment(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        _, log = await gate("env", tree)
        assert "sk-secret" not in log
        assert {line.partition("=")[0] for line in log.split("\n") if line and not line.startswith("LC_")} <= {
            "PATH", "LANG", "TZ", "USER", "LOGNAME", "HOME", "SHELL", "TERM", "CI", "TMPDIR", "PWD", "SHLVL", "_",
            "OLDPWD",
        }  # fmt: skip

    @pytest.mark.slow
    async def test_time_that_is_over_ends_all_of_it(self, tree: Path) -> None:
        before = set(psutil.Process().children(recursive=True))
        began = time.monotonic()
        command = "trap '' TERM; echo begun; setsid sleep 986 & sleep 986; sleep 986"
        gated, log = await gate(command, tree, limit=stretched(1.5))
        assert (gated.state, gated.code, log) == ("timeout", None, "begun\n")
        assert time.monotonic() - began < 400
        assert set(psutil.Process().children(recursive=True)) <= before

    async def test_a_gate_that_is_stopped_leaves_nothing(self, tree: Path) -> None:
        before = set(psutil.Process().children(recursive=True))
        task = asyncio.create_task(run("touch begun; sleep 985", tree, 600.0, tree.parent / "log"))
        async with asyncio.timeout(PATIENCE):
            while not (tree / "begun").exists():
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not (tree.parent / "log").exists()
        assert set(psutil.Process().children(recursive=True)) <= before

    @pytest.mark.slow
    async def test_a_daemon_that_is_killed_takes_the_gate_with_it(self, tree: Path) -> None:
        program = (
            "import asyncio, pathlib, sys\n"
            "from dialogd.tasks.gate import run\n"
            "tree = pathlib.Path(sys.argv[1])\n"
            "asyncio.run(run('setsid sleep 984 & touch begun; sleep 984', tree, 600.0, tree.parent / 'log'))\n"
        )
        daemon = subprocess.Popen([sys.executable, "-c", program, str(tree)], cwd=ROOT)
        async with asyncio.timeout(PATIENCE):
            while not (tree / "begun").exists():
                await asyncio.sleep(0.01)
        below = psutil.Process(daemon.pid).children(recursive=True)
        assert len(below) >= 4
        daemon.kill()
        daemon.wait()
        _, left = psutil.wait_procs(below, timeout=180)
        assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []

    async def test_a_flood_is_cut_in_its_middle(self, tree: Path) -> None:
        many = HEAD + 3 * TAIL
        command = (
            f"echo first; head -c {many} /dev/zero | tr '\\0' x; printf '\\n\\033[31mFAILED\\033[0m tests/a.py\\n'"
        )
        gated, log = await gate(command, tree)
        assert len(log) < HEAD + TAIL + 100
        assert log.startswith("first\nxxx")
        assert f"\n[{many + 6 + 28 - HEAD - TAIL:,} bytes are left out here]\n" in log
        assert gated.tail.split("\n") == ["FAILED tests/a.py"]
        short, _ = await gate("printf 'a\\033]0;title\\007b\\r\\n\\377'", tree)
        assert short.tail == "ab\n\ufffd"

    async def test_a_log_that_cannot_be_written_is_an_error(self, tree: Path, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="log"):
            await run("true", tree, 60.0, tmp_path / "none" / "log")


PYTHON = f"{os.path.realpath(sys.executable)} -I -S"
SMALL = Limits(100, 150 << 20, 10 << 30, 50, ())
BOMB = "b() { [ $1 = 0 ] && exec sleep 300; b $(($1 - 1)) & b $(($1 - 1)) & wait; }; b 8"  # 511 of them
FILLS = """
import asyncio, pathlib, sys
from dataclasses import replace
from dialogd.backends import Options, Workspace
from dialogd.backends.command import Command
from dialogd.tasks.gate import remove, run
from dialogd.errors import BackendError
from tests.clis.rig import prompt, request
from tests.support.backend_contract import answer

async def main():
    tree, fills = pathlib.Path(sys.argv[1], "tree"), "for n in 1 2 3; do head -c 60m /dev/zero > $n; done; sleep 300"
    tree.mkdir()
    gated = await run(fills, tree, 120.0, tree.parent / "log")
    print(gated.state, gated.code, gated.tail)
    remove(tree)
    tree.mkdir()
    agent = Command(Options(command=f"/bin/sh -c '{fills}'"))
    try:
        await answer(agent, replace(request(prompt()), workspace=Workspace(tree, tree.parent / "a", tree.parent / "b")))
    except BackendError as error:
        print(error)

asyncio.run(main())
"""


@NEEDS
class TestLimits:
    """What an agent wrote takes much, and the machine goes on."""

    @cases(
        "command, why",
        [
            (BOMB, "it had more than 100 processes and threads"),
            (f"{PYTHON} -c 'import time; kept = bytearray(300 << 20); time.sleep(300)'", "150 MiB of memory"),
        ],
    )
    async def test_a_bomb_is_ended_and_nothing_of_it_is_left(self, tree: Path, command: str, why: str) -> None:
        before = set(psutil.Process().children(recursive=True))
        gated, log = await gate(f"echo begun; {command}", tree, 300.0, visible=[Path(sys.base_prefix)], limits=SMALL)
        assert (gated.state, gated.code) == ("failed", 137)
        assert why in log
        assert gated.tail.endswith("]")
        assert log.startswith("begun\n\n[ended by dialogd: ")
        assert set(psutil.Process().children(recursive=True)) <= before

    def test_what_fills_the_disk_is_ended(self, tmp_path: Path) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        script = 'mount -t tmpfs -o size=200m none "$1" && exec "$2" -c "$3" "$1"'
        words = ["unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c", script, "sh", str(disk)]
        done = subprocess.run([*words, sys.executable, FILLS], capture_output=True, text=True, check=False, cwd=ROOT)
        if "unshare" in done.stderr or "mount:" in done.stderr:
            pytest.skip(done.stderr.strip())
        gated, told = done.stdout.strip().split("\n\n") if "\n\n" in done.stdout else done.stdout.strip().split("\n")
        assert gated.startswith("failed 137 [ended by dialogd: more than 100 MiB of the disk"), done.stderr
        assert told.startswith("'/bin/sh' was ended: more than 100 MiB of the disk"), done.stderr

    async def test_a_process_has_so_many_files_open_and_no_more(self, tree: Path) -> None:
        opens = f"{PYTHON} -c 'kept = [open(\"/dev/null\") for _ in range(60)]'"
        gated, log = await gate(opens, tree, visible=[Path(sys.base_prefix)], limits=SMALL)
        assert (gated.state, "Too many open files" in log) == ("failed", True)
        gated, log = await gate(opens, tree, visible=[Path(sys.base_prefix)])
        assert (gated.state, log) == ("passed", "")

    def test_they_are_shares_of_this_machine(self, tmp_path: Path) -> None:
        most = limits_of(tmp_path, Path("/dev/shm"))
        assert most.memory <= psutil.virtual_memory().total // 2
        assert most.disk <= max(psutil.disk_usage("/dev/shm").total // 2, 64 << 20)
        assert most.processes >= max(2048, 256 * (os.cpu_count() or 1))


async def test_as_the_person_it_runs_without_a_sandbox(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    seconds = f"983{os.getpid()}"  # of this test alone on this machine
    gated, log = await gate(
        f"cat {tmp_path}/mine; echo more > {tmp_path}/made; setsid sleep {seconds} & pwd", tree, as_person=True
    )
    assert (gated.state, gated.code) == ("passed", 0)
    assert log == f"mine{tree}\n"
    assert (tmp_path / "made").exists()
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", seconds]
    ]


async def test_without_a_command_nothing_runs(tree: Path) -> None:
    with pytest.raises(BadInput) as caught:
        await run(" ", tree, 600.0, tree.parent / "log")
    assert "--gate" in caught.value.fix


async def test_without_a_sandbox_nothing_runs(tree: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from dialogd.tasks.gate import run\n"
        "from dialogd.errors import NotInstalled\n"
        "tree = pathlib.Path(sys.argv[1])\n"
        "try:\n"
        "    asyncio.run(run('touch ../ran', tree, 600.0, tree.parent / 'log'))\n"
        "except NotInstalled as error:\n"
        "    print(error, error.fix)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tree)], env={"PATH": "/nowhere"}, capture_output=True, text=True, cwd=ROOT,
        check=True,
    )  # fmt: skip
    assert "the gate has no sandbox: bubblewrap (`bwrap`) is not on PATH install bubblewrap" in done.stdout
    assert not (tree.parent / "ran").exists()
    assert NotInstalled.exit_code == 1


def test_a_tree_that_took_its_rights_away_can_be_removed(tmp_path: Path) -> None:
    tree, other = tmp_path / "tree", tmp_path / "other"
    (tree / "a" / "b").mkdir(parents=True)
    other.mkdir(mode=0o500)
    (tree / "a" / "b" / "file").write_text("x")
    (tree / "a" / "link").symlink_to(other)
    for path in (tree / "a" / "b", tree / "a", tree):
        path.chmod(0)
    remove(tree)
    assert not tree.exists()
    assert other.stat().st_mode & 0o777 == 0o500
