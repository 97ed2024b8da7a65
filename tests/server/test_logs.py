"""The log of a daemon: its size has a limit, and a line costs no look at the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dialogd.agent.reporting import LOG_FILES, LOG_SIZE

PROGRAM = """
import sys
from pathlib import Path
from dialogd.agent.reporting import say, set_up_logging

looks = []
set_up_logging("A", Path(sys.argv[1]), json_lines=False, debug=False)
sys.setprofile(lambda frame, what, named: looks.append(named) if what == "c_call" and "stat" in str(named) else None)
for number in range(100):
    say(f"line {number}")
sys.setprofile(None)
for number in range(100, 4500):
    say(f"line {number} " + "é" * 480)
print(len(looks))
"""


def test_a_log_is_rotated_by_its_size_without_a_look_at_it(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "A.log"
    file.write_text("x" * (LOG_SIZE - 2000) + "\n")
    command = [sys.executable, "-c", PROGRAM, str(file)]
    done = subprocess.run(command, cwd=repository, text=True, capture_output=True, check=True)
    assert done.stdout == "0\n"
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert [each.name for each in files] == ["A.log.2", "A.log.1", "A.log"]
    assert len(files) == LOG_FILES
    assert all(each.stat().st_size <= LOG_SIZE for each in files)
    assert files[1].stat().st_size > LOG_SIZE - 2000
    lines = "".join(each.read_text(encoding="utf-8") for each in files).splitlines()
    numbers = [int(line.partition("line ")[2].split()[0]) for line in lines]
    assert numbers == list(range(numbers[0], 4500))


TOGETHER = """
import asyncio, sys
from pathlib import Path
from dialogd.agent.reporting import log, say, set_up_logging

file = Path(sys.argv[1])
set_up_logging("A", file, json_lines=False, debug=False)
lines = lambda: [line.split("  ")[1] for line in file.read_text().splitlines()]

async def main():
    say("one")
    say("two")
    assert lines() == [], lines()
    log.warning("three")
    assert lines() == ["one", "two", "three"], lines()
    say("four")
    while lines()[-1] != "four":
        await asyncio.sleep(0.005)
    say("five")

asyncio.run(main())
"""


def test_lines_of_a_turn_are_written_together_soon_and_a_warning_at_once(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "A.log"
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER, str(file)],
        cwd=repository,
        text=True,
        capture_output=True,
        check=True,
        timeout=180,
    )
    assert [line.split("  ")[1] for line in done.stderr.splitlines()] == ["one", "two", "three", "four", "five"]
    assert file.read_text(encoding="utf-8") == done.stderr
