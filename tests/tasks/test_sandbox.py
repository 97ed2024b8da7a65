"""The sandbox: what a program in it can write, see and reach."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from dialogd.backends.command import confined, homes, limits_of, memory, missing
from dialogd.store.child import GUARD, Child
from tests.support.cases import cases
from tests.support.pair import stretched, until

NEEDS = pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A folder that may be written."""
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


def sh(
    script: str,
    inside: Path,
    *arguments: object,
    read_only: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    network: bool = False,
) -> str:
    """What a shell script says in a sandbox, on both streams."""
    words = ["/bin/sh", "-c", script, "sh", *map(str, arguments)]
    command = confined(words, cwd=inside, writable=[inside], read_only=read_only, hidden=hidden, network=network)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180, cwd=inside)
    assert not done.stderr.startswith("bwrap:"), done.stderr
    return done.stdout + done.stderr


@NEEDS
class TestWrites:
    """Only what is named can be written."""

    def test_what_is_written_inside_is_there_and_nothing_else(self, inside: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "old").write_text("old")
        (inside / "out").symlink_to(outside)
        script = """
            echo new > new
            for target in "$1/new" out/new /etc/dialogd-test /usr/dialogd-test ../dialogd-test; do
                echo new > "$target"
            done
            echo new > "$1/old"; echo new > out/old; rm -f "$1/old"; mv "$1" "$1.moved"; chmod 777 "$1/old"
            ln "$1/old" hard && echo new > hard
        """
        sh(script, inside, outside, read_only=[outside])
        assert (inside / "new").read_text() == "new\n"
        assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("old", "old")]
        assert (outside / "old").stat().st_mode & 0o777 == 0o644
        assert not any(Path(path).exists() for path in ("/etc/dialogd-test", "/usr/dialogd-test"))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "outside"]

    def test_the_deeper_rule_counts(self, inside: Path) -> None:
        pinned = inside / ".git"
        pinned.write_text("gitdir: elsewhere\n")
        said = sh("echo x > .git; rm -f .git; mv .git a; ln -sf a .git; echo ok > b", inside, read_only=[pinned])
        assert pinned.read_text() == "gitdir: elsewhere\n"
        assert sorted(path.name for path in inside.iterdir()) == [".git", "b"]
        assert "Read-only file system" in said

    def test_a_folder_may_be_written_below_a_hidden_one(self, inside: Path, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("SECRET")
        said = sh("ls ..; cat ../secret; echo x > ../left; echo new > new", inside, hidden=[tmp_path])
        assert "SECRET" not in said
        assert said.startswith("inside\n")
        assert (inside / "new").exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "secret"]

    def test_folders_in_memory_have_a_size_and_processes_a_number(self, inside: Path, tmp_path: Path) -> None:
        script = """
            for folder in /tmp /dev/shm "$1"; do df -P -k "$folder" | tail -n 1; done
            grep processes /proc/self/limits; echo x > /dev/null && echo usable; echo x > /dev/new
        """
        hidden = tmp_path / "hidden"
        hidden.mkdir()
        *sizes, number, usable, refused = sh(script, inside, hidden, hidden=[hidden]).strip().split("\n")
        page = os.sysconf("SC_PAGE_SIZE")
        assert len(sizes) == 3
        assert all(int(line.split()[1]) * 1024 <= memory() // 4 + page for line in sizes)
        assert "Read-only file system" in refused
        assert usable == "usable"
        assert number.split()[2:4] == [str(2 * limits_of(inside).processes)] * 2

    def test_mounts_stay_as_they_are(self, inside: Path, tmp_path: Path) -> None:
        script = (
            "mount -o remount,bind,rw / ; mount -o remount,bind,rw $1; echo x > $1/new; grep CapEff /proc/self/status"
        )
        outside = tmp_path / "outside"
        outside.mkdir()
        assert "CapEff:\t0000000000000000" in sh(script, inside, outside, read_only=[outside])
        assert list(outside.iterdir()) == []

    def test_no_setting_of_the_kernel_can_be_opened_for_writing(self, inside: Path) -> None:
        script = """
            for file in $(find /proc/sys /proc/sysrq-trigger /proc/irq -type f 2>/dev/null); do
                (exec 3>>"$file") 2>/dev/null && echo "$file"
            done; echo end
        """
        assert sh(script, inside, network=True) == "end\n"


@NEEDS
class TestSight:
    """What it can see and reach."""

    def test_hidden_folders_are_empty_and_hidden_files_closed(self, inside: Path, tmp_path: Path) -> None:
        folder, file, link = tmp_path / "state", tmp_path / "dialog.md", tmp_path / "link"
        folder.mkdir()
        (folder / "journal").write_text("SECRET")
        file.write_text("SECRET")
        link.symlink_to(folder)
        script = 'cat "$1/journal" "$2" "$3/journal"; echo x > "$2"; ls "$1"; echo end'
        said = sh(script, inside, folder, file, link, hidden=[link, file])
        assert "SECRET" not in said
        assert "Permission denied" in said
        assert "journal\n" not in said
        assert file.read_text() == "SECRET"

    def test_shared_folders_are_its_own(self, inside: Path, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("SECRET")
        for folder in ("/tmp", "/var/tmp", "/dev/shm"):
            said = sh(
                f'ls {folder}; cat "$1"; echo x > {folder}/dialogd-box-left && echo kept', inside, tmp_path / "secret"
            )
            assert "SECRET" not in said
            assert "kept\n" in said
            assert not Path(folder, "dialogd-box-left").exists()
        assert "docker.sock" not in sh("ls /run /var/run/", inside)

    def test_without_network_nothing_is_reached(self, inside: Path, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
            unix.bind(f"\0{tmp_path.name}-dialogd")
            unix.listen()
            program = (
                "import socket, sys\n"
                "for family, address in ((socket.AF_INET, ('127.0.0.1', int(sys.argv[1]))),"
                " (socket.AF_UNIX, '\\0' + sys.argv[2])):\n"
                "    try:\n"
                "        socket.socket(family).connect(address)\n"
                "        print('reached')\n"
                "    except OSError as error:\n"
                "        print('no:', error)\n"
            )
            (inside / "reach.py").write_text(program)
            script = 'exec "$1" -I -S reach.py "$2" "$3"'
            told = (os.path.realpath(sys.executable), tcp.getsockname()[1], f"{tmp_path.name}-dialogd")
            shut, open_ = (sh(script, inside, *told, network=network) for network in (False, True))
        assert shut.count("no:") == 2
        assert "reached" not in shut
        assert open_.count("reached") == 2

    def test_no_process_outside_is_seen(self, inside: Path) -> None:
        said = sh("ls /proc; kill -0 $1 && echo seen", inside, os.getpid())
        assert "seen" not in said
        assert len([word for word in said.split() if word.isdigit()]) < 6


@pytest.mark.slow
@NEEDS
def test_it_ends_with_whoever_started_it(inside: Path) -> None:
    script = "setsid sleep 987 & setsid nohup sleep 987 & echo up > up; sleep 987"
    command = confined(["/bin/sh", "-c", script], cwd=inside, writable=[inside], network=False)
    starter = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"], cwd=inside)
    until((inside / "up").exists, "it to run")
    below = psutil.Process(starter.pid).children(recursive=True)
    assert len(below) >= 4
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    _, left = psutil.wait_procs(below, timeout=180)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
@NEEDS
async def test_it_ends_with_the_guard_of_its_processes(inside: Path) -> None:
    script = "setsid sh -c 'setsid sleep 986 & sleep 986' & echo up > up; sleep 986"
    command = confined(["/bin/sh", "-c", script], cwd=inside, writable=[inside], network=False)
    child = Child(command, b"", {"PATH": os.environ["PATH"]}, inside)
    try:
        until((inside / "up").exists, "it to run")
        (guard,) = [one for one in psutil.Process().children() if str(GUARD) in one.cmdline()]
        until(lambda: len(guard.children(recursive=True)) >= 7, "all of it to run")
        below = guard.children(recursive=True)
        guard.kill()
        _, left = psutil.wait_procs(below, timeout=stretched(20))
        assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        await child.end()


@pytest.mark.slow
@NEEDS
def test_nothing_runs_once_the_guard_is_gone(inside: Path) -> None:
    script = "setsid sleep 985 & echo up > up; sleep 985"
    command = confined(["/bin/sh", "-c", script], cwd=inside, writable=[inside], network=False)
    command[1:1] = ["--block-fd", "0"]  # for which it waits as soon as it is made
    ours, theirs = socket.socketpair()
    words = [sys.executable, str(GUARD), str(theirs.fileno()), *limits_of(inside).words(), *command]
    with ours, theirs, subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], cwd=inside) as guard:
        until(lambda: len(psutil.Process(guard.pid).children(recursive=True)) == 2, "the sandbox to be made")
        outer, inner = psutil.Process(guard.pid).children(recursive=True)
        until(lambda: str(inside) in Path(f"/proc/{inner.pid}/mountinfo").read_text(), "its folder to be there")
        guard.kill()
        outer.wait(180)
        assert guard.stdin is not None
        guard.stdin.write(b"go")
    inner.wait(stretched(20))
    assert not (inside / "up").exists()


BROKEN = {
    "": "is not on PATH",
    "echo 'bwrap: No permissions to create new namespace' >&2; exit 1": "does not work here: bwrap: No permissions",
    'while [ $1 != -- ]; do shift; done; shift; exec "$@"': "does not work here",
}


@cases("script, why", BROKEN.items())
def test_what_does_not_confine_is_no_sandbox(tmp_path: Path, script: str, why: str) -> None:
    folder = tmp_path / str(len(script))
    folder.mkdir()
    if script:
        (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bwrap").chmod(0o755)
    program = "from dialogd.backends.command import missing; print(missing())"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PATH": str(folder)}, capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert why in done.stdout


def test_homes_are_never_the_whole_disk() -> None:
    program = "from dialogd.backends.command import homes; print(*homes())"

    def told(home: str) -> list[str]:
        command = f"cd {shlex.quote(str(ROOT))} && exec {shlex.quote(sys.executable)} -c {shlex.quote(program)}"
        environment = {"PATH": os.environ["PATH"], "HOME": home}
        return subprocess.run(
            ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()

    assert told("/opt/me")[0] == "/opt/me"
    assert "/" not in told("/")
    assert all(home != Path("/") for home in homes())
