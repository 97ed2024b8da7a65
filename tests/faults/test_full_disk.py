"""Running daemons on a disk that fills up: they say so, wait, and write the same reply once there is room."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.faults.history import problems, read
from tests.faults.replies import Replies, drafts
from tests.support.pair import Pair

Cast = Callable[..., Pair]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="this system cannot limit another process's files")
@pytest.mark.parametrize("others", ["", "B"])
def test_a_daemon_waits_for_room_and_asks_nobody_twice(cast: Cast, replies: Replies, others: str) -> None:
    """A's reply is refused after 40 bytes: once there is room it stands there once, and is no draft.

    B, when it runs, has room, and completes what A began.
    """
    pair = cast(command=replies.command())
    pair.start("A" + others)
    pair.begin("What now? " + "A long question. " * 3000, turn="A", max_turns=4)
    process = psutil.Process(pair["A"].pid)
    before = pair.file.read_bytes()
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (len(before) + 40, hard))
    pair.notify("A")
    pair.until(lambda: "file too large" in str((pair["A"].health() or {}).get("waiting")), "A to say what is wrong")
    assert pair.file.read_bytes()[: len(before)] == before
    assert others or [entry.number for entry in read(pair.file) if entry.by] == []
    process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
    if not others:
        pair.start("B")
    pair.until(lambda: pair.outcome, "the end")
    assert [(who, turn) for who, turn, _ in replies.asked()] == [("A", 2), ("B", 3), ("A", 4)]
    assert problems(pair.file) == []
    assert drafts(pair) == []


@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_on_a_full_file_system_a_turn_waits_for_room(tmp_path: Path) -> None:
    python, here = shlex.quote(sys.executable), shlex.quote(str(REPOSITORY))
    script = f"""
        mount -t tmpfs -o size=24k none {tmp_path} && cd {tmp_path} && mkdir -m 700 state
        {python} -c 'import sys; sys.path.insert(0, "{REPOSITORY}")
from pathlib import Path
from tests.logfile.files import dialog_file
dialog_file(Path("."))' && cp dialog.md ../before && head -c 100000 /dev/zero > ballast 2> /dev/null
        cd {here}
        {python} -m tests.faults.one_agent {tmp_path}/dialog.md 3
        cmp {tmp_path}/dialog.md {tmp_path}/../before && rm {tmp_path}/ballast
        {python} -m tests.faults.one_agent {tmp_path}/dialog.md 1
    """
    command = ["unshare", "-m", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    if "permission denied" in done.stderr.lower():
        pytest.skip(f"may not mount here: {done.stderr.strip()[:100]}")
    full, roomy = done.stdout.strip().split("\n")
    assert '"asked": [], "acknowledged": []' in full  # what cannot be booked is not bought
    assert "no space left on device" in full.lower()
    assert '"acknowledged": [2]' in roomy
