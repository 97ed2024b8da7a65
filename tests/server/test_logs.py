"""The log of a daemon: its size has a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dialogd.agent.events import LOG_FILES, LOG_SIZE

PROGRAM = """
import sys
from pathlib import Path
from dialogd.agent.events import say, set_up_logging

set_up_logging("A", Path(sys.argv[1]), json_lines=False, debug=False)
for number in range(4500):
    say(f"line {number} " + "é" * 480)
"""


def test_a_log_is_rotated_by_its_size_and_said_on_stderr_too(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "A.log"
    file.write_text("x" * (LOG_SIZE - 2000) + "\n")
    command = [sys.executable, "-c", PROGRAM, str(file)]
    done = subprocess.run(command, cwd=repository, text=True, capture_output=True, check=True)
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert [each.name for each in files] == ["A.log.2", "A.log.1", "A.log"]
    assert len(files) == LOG_FILES
    assert all(each.stat().st_size <= LOG_SIZE for each in files)
    lines = "".join(each.read_text(encoding="utf-8") for each in files).splitlines()
    numbers = [int(line.partition("line ")[2].split()[0]) for line in lines]
    assert numbers == list(range(numbers[0], 4500))
    assert done.stderr.endswith(f"{lines[-1]}\n")
