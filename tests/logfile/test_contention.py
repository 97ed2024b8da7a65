"""Many writers at once: one entry after the other, each of them there that was acknowledged."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from dialogd.protocol.grammar import parse
from tests.logfile.files import dialog_file, log_of, naive_read, turn

REPOSITORY = Path(__file__).resolve().parents[2]


def write_at_once(how: str, path: Path, count: int, each: int) -> list[str]:
    """Run the writers; the words that they were told are in the file."""
    command = [sys.executable, "-m", "tests.logfile.writers", how, str(path), str(count), str(each)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def problems(path: Path, acknowledged: list[str]) -> list[str]:
    """What is wrong with a file that should hold all that was acknowledged, in order, once."""
    entries = naive_read(path)
    words = Counter(word for entry in entries if entry.sound for word in entry.text.split() if word[0] == "w")
    numbers = [entry.number for entry in entries]
    found = []
    if numbers != list(range(2, len(acknowledged) + 2)):
        found.append(f"{len(acknowledged)} acknowledged, and the turns are {numbers}")
    if words != Counter(acknowledged):
        found.append(f"lost: {set(acknowledged) - set(words)}, twice: {[w for w, n in words.items() if n > 1]}")
    if any(not entry.sound for entry in entries):
        found.append("damaged entries")
    if any(after.prev != before.sha for before, after in itertools.pairwise(entries)):
        found.append("the chain is broken")
    return found


@pytest.mark.parametrize("each", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_eight_processes_append_one_after_the_other(tmp_path: Path, each: int) -> None:
    path = dialog_file(tmp_path)
    acknowledged = write_at_once("ours", path, 8, each)
    assert len(set(acknowledged)) == len(acknowledged) == 8 * each
    assert problems(path, acknowledged) == []
    assert all(entry.linked for entry in parse(path.read_bytes()).entries)


def test_of_eight_answers_to_one_debt_one_is_written(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    acknowledged = write_at_once("one-debt", path, 8, 1)
    assert len(acknowledged) == 1
    assert problems(path, acknowledged) == []


def test_threads_of_one_process_append_one_after_the_other(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    shared, other = log_of(path), log_of(path)
    acknowledged: list[str] = []

    def write(number: int) -> None:
        log = other if number == 3 else shared
        for k in range(15):
            word = f"w{number}-{k}"
            if log.append(turn(word), log.journals.of(f"w{number}")):
                acknowledged.append(word)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(acknowledged) == 60
    assert problems(path, acknowledged) == []
