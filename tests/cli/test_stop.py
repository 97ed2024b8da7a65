"""`dialogd stop` where something is in its way: a held lock, a full disk, a stop before it that was killed."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dialogd import person
from dialogd.protocol.model import Draft
from tests.cli.command import Commands
from tests.faults.history import records
from tests.faults.replies import Replies, held_reply, locked
from tests.server.daemon_process import send
from tests.support.forked import fork
from tests.support.pair import Pair, a_second


def promised() -> float:
    """Seconds after which a daemon that hangs is killed."""
    return 1.5 * a_second()


def copies(dialogd: Commands) -> list[bytes]:
    """What lies in the archive."""
    return [path.read_bytes() for path in sorted(dialogd.state.archive.glob("*.md"))]


def plans(folder: Path) -> int:
    """How many pages of plans lie there."""
    return len(list(folder.glob("collaboration_plan_*.md")))


def conducted(dialogd: Commands) -> None:
    """A dialog in which an agent has spoken."""
    dialogd.begin("Tabs?")
    person.write(dialogd.log, "say", lambda d: Draft("A", "Claude A", d.state.number + 1, "Tabs.", turn=("B",)))


def test_the_next_stop_finishes_one_that_was_killed(dialogd: Commands) -> None:
    conducted(dialogd)
    person.stop(dialogd.log, "dialogd stop")
    done = dialogd("stop", DIALOGD_PLAN="1")
    assert (done.code, done.err) == (0, "")
    assert "[STOPPED], copied to " in done.out
    assert copies(dialogd) == [dialogd.file.read_bytes()]
    assert plans(dialogd.folder) == 1
    for path in dialogd.folder.glob("collaboration_plan_*"):
        path.unlink()
    again = dialogd("stop", DIALOGD_PLAN="1")
    assert (again.code, plans(dialogd.folder)) == (3, 0)
    assert "nothing to stop" in again.err


@pytest.mark.ptrace
@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_stop_killed_at_any_flush_is_finished_by_the_next(dialogd: Commands, call: str) -> None:
    conducted(dialogd)
    before = dialogd.file.read_bytes()
    words = [sys.executable, "-m", "dialogd", "stop"]
    environment = {**dialogd.environment, "DIALOGD_PLAN": "1"}
    for k in range(1, 40):
        shutil.rmtree(dialogd.state.root)
        dialogd.file.write_bytes(before)
        for path in dialogd.folder.glob("collaboration_plan_*"):
            path.unlink()
        fault = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={k}"]
        strace = ["strace", "-f", "-o", os.devnull, *fault]
        traced = subprocess.run(
            [*strace, *words], cwd=dialogd.folder, env=environment, capture_output=True, check=False
        )
        done = dialogd("stop", DIALOGD_PLAN="1")
        assert done.code in (0, 3), (k, done)
        assert dialogd.log.read().state.outcome is not None, k
        assert (copies(dialogd), plans(dialogd.folder)) == ([dialogd.file.read_bytes()], 1), k
        if traced.returncode == 0:
            assert k > 2
            return
    raise AssertionError("no stop went through without its fault")


@pytest.mark.slow
def test_a_lock_that_another_process_holds_delays_no_stop(dialogd: Commands) -> None:
    with Pair(dialogd.folder, launch=fork) as pair:
        pair.start()
        pair.begin("Tabs?")
        for who in "AB":
            pair.until(lambda who=who: (pair[who].health() or {}).get("dialog"), "both to know it")  # type: ignore[misc]
        with locked(dialogd.file):
            began = time.monotonic()
            done = dialogd("stop")
            took = time.monotonic() - began
        assert done.code == 1
        assert f"{dialogd.file} is still open: the lock {dialogd.file}.lock was not free within 0.3 s" in done.err
        assert took < promised() + 2.5
        assert not pair["A"].running
        assert not pair["B"].running
    assert dialogd("stop").code == 0
    assert b"[STOPPED: dialogd stop]" in dialogd.file.read_bytes()


def known(pair: Pair) -> None:
    """Start the daemon A and write a dialog; it has read it."""
    pair.start()
    pair.begin("Tabs?")
    pair.until(lambda: (pair["A"].health() or {}).get("dialog"), "it to be known")


def test_a_posted_stop_is_answered_at_once_while_the_lock_is_held(dialogd: Commands) -> None:
    replies = Replies(dialogd.folder)
    with Pair(dialogd.folder, "A", command=replies.command(), launch=fork) as pair:
        known(pair)
        with held_reply(pair, begin="A"):
            began = time.monotonic()
            answer = send(pair["A"], "POST /stop")
            assert time.monotonic() - began < promised()
            assert answer.status == 507
            assert "was not free within 0.3 s" in answer.problem["detail"]
            assert pair["A"].wait() == 0
    assert b"STOPPED" not in dialogd.file.read_bytes()


@pytest.mark.ptrace
def test_a_posted_stop_is_answered_at_once_while_the_disk_hangs(dialogd: Commands) -> None:
    replies = Replies(dialogd.folder)
    with Pair(dialogd.folder, "A", command=replies.command("held"), launch=fork) as pair:
        known(pair)
        pair.notify()
        pair.until(replies.asked, "a call")
        slow = ["-e", "trace=fsync", "-e", "inject=fsync:delay_enter=3000000:when=1"]
        strace = ["strace", "-f", "-p", str(pair["A"].pid), "-o", os.devnull, *slow]
        with subprocess.Popen(strace, stderr=subprocess.PIPE) as tracing:
            assert b"attached" in tracing.stderr.readline()
            replies.let_go()
            pair.until(lambda: records(pair.state_dir, "intent"), "the flush of an intent to begin")
            began = time.monotonic()
            answer = send(pair["A"], "POST /stop").json
            assert time.monotonic() - began < promised()
            assert (answer["outcome"], "the disk does not answer" in answer["note"]) == (None, True)
            assert pair["A"].wait() == 0
        assert pair.outcome == "STOPPED"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="this system cannot limit another process's files")
def test_a_full_disk_is_told_of_the_dialog_that_stays_open(dialogd: Commands) -> None:
    conducted(dialogd)
    size = dialogd.file.stat().st_size
    done = limited(dialogd, size + 10)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert f"{dialogd.file} is still open: " in said
    assert "free some space" in said
    assert "holds no open dialog" not in said
    assert dialogd.log.read().state.outcome is None


def test_a_dialog_that_could_not_be_copied_is_told_as_closed(dialogd: Commands) -> None:
    conducted(dialogd)
    shutil.rmtree(dialogd.state.archive)
    (dialogd.state.root / "archive").write_text("in the way")
    done = dialogd("stop")
    assert done.code == 1
    assert f"{dialogd.file} [STOPPED] is closed, and has no copy in the archive: " in done.err
    (dialogd.state.root / "archive").unlink()
    assert dialogd("stop").code == 0
    assert copies(dialogd) == [dialogd.file.read_bytes()]


def limited(dialogd: Commands, size: int) -> subprocess.CompletedProcess[bytes]:
    """`dialogd stop`, whose files may not grow beyond so many bytes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    words = [sys.executable, "-B", "-m", "dialogd", "stop"]
    return subprocess.run(
        words, cwd=dialogd.folder, env=dialogd.environment, capture_output=True, check=False, preexec_fn=limit
    )
