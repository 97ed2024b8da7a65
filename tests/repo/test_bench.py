"""The benchmark runs from end to end and prints what docs/performance.md explains."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^ +(\d+) +[\d.]+ +[\d.]+ +[\d,]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +(\d+)$", re.MULTILINE)


def bench(*options: str) -> str:
    """What the benchmark prints."""
    command = [sys.executable, str(REPOSITORY / "scripts" / "bench_turns.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_bench_measures_turns_beside_the_limit() -> None:
    """A short dialog: a row for each length, with all its turns, and the other figures above."""
    said = bench("--lengths", "4,9", "--rounds", "1", "--limit-turns", "40", "--idle", "0.2", "--starts", "1")
    assert [match.groups() for match in ROW.finditer(said)] == [("4", "20"), ("9", "45")]
    for figure in (
        "load ",
        "idle, before the first turn",
        "idle, after 53 turns",
        "dialogd --help:",
        "from turn 4 to",
    ):
        assert figure in said


def test_the_bench_explains_its_options() -> None:
    """`--help` answers without starting anything."""
    assert "--quick" in bench("--help")
