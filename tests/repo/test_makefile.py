"""The Makefile's help is complete, and the scripts parse."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest


def test_help_lists_every_documented_target(repository: Path) -> None:
    documented = re.findall(r"^([a-z-]+):.*?## ", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"help", "setup", "demo", "run", "test", "test-slow", "check", "clean"} <= set(documented)
    for command in (["make", "help"], ["make"]):
        shown = subprocess.check_output(command, cwd=repository, text=True)
        assert re.findall(r"^  ([a-z-]+) ", shown, re.MULTILINE) == documented


def test_every_documented_target_is_phony(repository: Path) -> None:
    text = (repository / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert set(re.findall(r"^([a-z-]+):.*?## ", text, re.MULTILINE)) <= set(phony[1].split())


@pytest.mark.parametrize(
    ("shell", "script"),
    [("sh", "scripts/setup.sh"), ("sh", "scripts/start_pair.sh"), ("sh", "scripts/stop_all.sh"), ("bash", ".ci/run")],
)
def test_scripts_parse_and_are_executable(shell: str, script: str, repository: Path) -> None:
    path = repository / script
    assert path.read_text(encoding="utf-8").split("\n")[0].endswith(shell)
    assert path.stat().st_mode & 0o111
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(path)], check=True)


def test_starting_a_pair_without_a_topic_explains_itself(repository: Path) -> None:
    done = subprocess.run(["sh", "scripts/start_pair.sh"], cwd=repository, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: " in done.stderr
