"""The lock beside the file: gone with its holder, and no way to make two writers when it is tampered with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dialogd.errors import StorageError, UnsafeFile
from dialogd.store.disk import Lock
from tests.logfile.files import dialog_file, log_of, naive_read, times, turn
from tests.logfile.moments import watched
from tests.support.pair import PATIENCE, a_second

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dialog in which A owes a turn."""
    return dialog_file(tmp_path)


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands still in the middle of an append, holding the lock."""
    command = [sys.executable, "-m", "tests.logfile.writers", "holding", str(path), "1", "1"]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        if process.poll() is None:
            kill_group(process)


def kill_group(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal to the holder, which is a child of the process that was started."""
    os.killpg(process.pid, number)


def test_a_dead_holder_does_not_block(path: Path, holder: subprocess.Popen[bytes]) -> None:
    kill_group(holder)
    began = time.monotonic()
    log = log_of(path)
    assert log.append(turn("next"), log.journals.of("B")) is not None
    assert time.monotonic() - began < a_second()


def deleted(lock: Path) -> None:
    """As a cleaner of /tmp would."""
    lock.unlink()


def replaced(lock: Path) -> None:
    """Another file takes the name."""
    new = lock.with_name("new.lock")
    new.touch(0o600)
    new.replace(lock)


@pytest.mark.parametrize("tamper", [deleted, replaced])
def test_a_lock_file_that_goes_away_makes_no_second_turn(
    path: Path, holder: subprocess.Popen[bytes], tamper: Callable[[Path], None]
) -> None:
    tamper(path.with_name(path.name + ".lock"))
    log = log_of(path)
    assert log.append(turn("other"), log.journals.of("B")) is not None
    out, _ = holder.communicate(b"\n\n")
    assert out == b"held\n"
    assert [entry.number for entry in naive_read(path)] == [2]
    assert times(path, "other") == 1


@pytest.mark.parametrize("tamper", [deleted, replaced])
def test_a_lock_file_that_goes_away_while_somebody_waits_is_noticed(
    path: Path, holder: subprocess.Popen[bytes], tamper: Callable[[Path], None]
) -> None:
    log, outcome = log_of(path), []
    make = turn("other")

    def write() -> None:
        try:
            done = log.append(lambda now: make(now) if now.state.debt("A") else None, log.journals.of("B"))
            outcome.append("written" if done else "too late")
        except UnsafeFile:
            outcome.append("refused")

    tried = threading.Event()
    watch = {"flock": tried.set}
    waiting = threading.Thread(target=watched, args=(write, lambda name: watch.get(name, tried.is_set)()))
    waiting.start()
    assert tried.wait(PATIENCE)
    tamper(path.with_name(path.name + ".lock"))
    out, _ = holder.communicate(b"\n\n")
    waiting.join(PATIENCE)
    written = out.count(b"w0-0") + outcome.count("written")
    assert len(outcome) == 1
    assert written == 1
    assert [entry.number for entry in naive_read(path)] == [2]


@pytest.mark.slow
def test_a_stopped_holder_blocks_with_a_reason(path: Path, holder: subprocess.Popen[bytes]) -> None:
    kill_group(holder, signal.SIGSTOP)
    log, before = log_of(path), path.read_bytes()
    began = time.monotonic()
    with pytest.raises(StorageError, match="a stopped process may hold it") as caught:
        log.append(turn("next"), log.journals.of("B"))
    assert 8 < time.monotonic() - began < 8 + 6 * a_second()
    assert f"fuser {path}.lock" in caught.value.fix
    assert path.read_bytes() == before
    kill_group(holder, signal.SIGCONT)
    out, _ = holder.communicate(b"\n")
    assert out == b"w0-0\n"
    assert log.append(turn("next"), log.journals.of("B")) is not None


def test_threads_that_share_a_lock_keep_each_other_out(path: Path) -> None:
    lock, inside, most = Lock(path.with_name("shared.lock")), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lock.held():
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (most, inside) == (1, 0)
    with lock.held(), pytest.raises(StorageError, match="was not free"), Lock(lock.path, wait=0).held():
        pass
