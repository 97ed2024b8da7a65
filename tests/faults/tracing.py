"""Runs under strace: what a process does to its files, and faults put into its system calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TOUCHING = "openat,read,write,pread64,lseek,fsync,fstat,newfstatat,flock,close,unlink,rename,mkdir,fcntl"
_CALL = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)[( ]", re.M)


@dataclass(frozen=True)
class Traced:
    """What came of a traced run: exit code, what it printed on both channels, and its system calls."""

    code: int
    out: str
    said: str
    trace: str

    @property
    def calls(self) -> Counter[str]:
        return Counter(name for name in _CALL.findall(self.trace.replace(" resumed>", "")))

    def lines(self, call: str, path: Path) -> list[str]:
        """Every call of that name on that file, in order."""
        return [line for line in self.trace.split("\n") if f"{call}(" in line and f"<{path}>" in line]


def traced(folder: Path, paths: list[Path], words: list[str], *faults: str) -> Traced:
    """Run `python -m WORDS`; only calls that touch `paths`, if any are named, are seen and get the faults."""
    trace = folder / "trace"
    # Not --seccomp-bpf, which is faster: with it faults are not counted, and most never happen.
    command = ["strace", "-f", "-y", "-s", "200", "-o", str(trace), "-e", f"trace={TOUCHING}", "-e", "signal=none"]
    for path in paths:
        command += ["-P", str(path)]
    for fault in faults:
        command += ["-e", f"inject={fault}"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, sys.executable, "-m", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env=environment,
    )
    return Traced(done.returncode, done.stdout, done.stderr, trace.read_text(errors="replace"))
