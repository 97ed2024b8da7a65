"""What a build costs beyond its work: a task's round through daemons, beside the same git and gate called alone.

Two daemons carry out so many tasks in a repository of so many files (`command` agents that answer at once, pace 0). A
round lasts from one approval to the next: a worktree, the lead's turn, its commit, the gate, the review. Then one
process opens the same worktrees, runs the same program in them, commits, runs the same gate and reads the same diffs.
docs/performance.md has the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path

import own_python  # another Python is told which one to use
from bench_turns import Pair, call, load

GATE = "test -f README.md"
APPROVED = re.compile(rb"^\[APPROVED: task-(\d+) ", re.MULTILINE)
ENDED = re.compile(rb"^\[(DECIDED|DEADLOCK|STOPPED|MAX_TURNS_REACHED)\b", re.MULTILINE)
# Answers at once, whoever asks: the plan, the work in its folder, the review, the summary.
AGENT = r"""asked=$(cat); now=${asked##*# Your turn}
case "$now" in
*"Carry out this task"*) echo "work $(ls | wc -l)" >"file-$(ls | wc -l).txt"; echo "Done." ;;
*"Plan now"*) for i in $(seq TASKS); do echo "[TASK_PROPOSED: task number $i | a file more | none | 1 h]"; done ;;
*"You decide on P"*) ref=${now#*You decide on }; echo "SCORE"; echo "[DECIDE: ${ref%%:*} approve]" ;;
*) echo "It is built." ;;
esac
"""
SCORE = "[SCORE: code quality 25 | test coverage 20 | security 20 | documentation 10 | acceptance criteria 25]"
SETUP = """## Setup

```toml
person = "absent"
confirm = false

[build]
moderator = "A"
lead = "B"
repo = {repo}
branch = "main"
base = "{base}"
gate = "{gate}"
cycles = 0

[roles.A]
role = "moderator"
permissions = ["READ_ALL", "POST", "CRITIQUE", "MODERATE", "DECIDE"]

[roles.B]
role = "tech lead"
permissions = ["READ_ALL", "POST"]
```"""


@dataclass
class Builders(Pair):
    """The daemons of a build: a moderator and a lead, both this command."""

    agent: str = ""
    repo: Path = Path()

    def command(self, me: str, port: int, peer: str, other: int) -> list[str]:
        """How a daemon is started."""
        words = super().command(me, port, peer, other)
        words[words.index("rehearsal:endless")] = "command"
        return [*words, "--command", self.agent, "--repo", str(self.repo), *(["--gate", GATE] if me == "B" else [])]

    def cpu(self) -> float:
        """Seconds of CPU that both have used, with all that they started and that has ended."""
        times = [process.cpu_times() for process in self.processes]
        return sum(one.user + one.system + one.children_user + one.children_system for one in times)


def git(repo: Path, *words: str) -> str:
    """What git says."""
    identity = ("-c", "user.name=Bench", "-c", "user.email=bench@localhost")
    return subprocess.run(
        ["git", "-C", str(repo), *identity, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def repository(folder: Path, files: int) -> str:
    """Make a repository with so many files; its commit."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "README.md").write_text("A benchmark.\n")
    for number in range(files):
        path = folder / f"package{number // 50}" / f"module{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"VALUE = {number}\n" * 40)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "Begin")
    return git(folder, "rev-parse", "HEAD")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a task took: milliseconds by the clock, and of CPU, of all processes together."""

    ms: float
    cpu: float


def rounds(folder: Path, source: Path, tasks: int, files: int) -> list[Cost]:
    """What each task cost from the approval before it, or from the plan, through daemons."""
    base = repository(folder / "repo", files)
    (folder / "agent.sh").write_text(AGENT.replace("TASKS", str(tasks)).replace("SCORE", SCORE))
    (folder / "talk").mkdir()
    file = folder / "talk" / "dialog.md"
    setup = SETUP.format(repo=json.dumps(str(folder / "repo")), base=base, gate=GATE)
    file.write_text(
        f"# Claude Autonomous Dialog\n\n**Topic:** Build\n**Max Turns:** {4 * tasks + 10}\n**Max Size:** 100 MB\n\n"
        f"{setup}\n\n---\n\n## Turn 1 — User\n\n**Question:**\nBuild it.\n\nTURN: A\n",
        encoding="utf-8",
    )
    file.chmod(0o600)
    agent = shlex.join(["/bin/sh", str(folder / "agent.sh")])
    moments: list[Cost] = []
    with Builders(file, source, agent=agent, repo=folder / "repo") as pair:

        def has_ended() -> bool:
            data = file.read_bytes()
            while len(moments) < len(APPROVED.findall(data)) + (b"\nTURN: B" in data):
                moments.append(Cost(time.perf_counter() * 1000, pair.cpu() * 1000))
            return ENDED.search(data) is not None

        call(pair.ports[0], "POST", "/notify")
        pair.until(has_ended, "the build has ended", every=0.005)
    if len(moments) != tasks + 1:
        raise RuntimeError(f"{len(moments) - 1} of {tasks} tasks were approved:\n{file.read_text()[-2000:]}")
    return [Cost(after.ms - before.ms, after.cpu - before.cpu) for before, after in pairwise(moments)]


def alone(folder: Path, tasks: int, files: int) -> list[Cost]:
    """The same of one process: worktree, program, commit, gate over a copy, the diffs of a review."""
    from dialogd.agent.builder import DIFF_SHOWN
    from dialogd.tasks import gate
    from dialogd.tasks.worktrees import Worktrees

    base = repository(folder / "repo", files)
    (folder / "agent.sh").write_text(AGENT.replace("TASKS", str(tasks)).replace("SCORE", SCORE))
    trees, found = Worktrees(folder / "repo", build="bench"), []
    for number in range(1, tasks + 1):
        begun, used = time.perf_counter(), sum(os.times()[:4])
        worktree = trees.open(number, f"task number {number}", base)
        trees.keep(worktree, "nothing")
        words = ["/bin/sh", str(folder / "agent.sh")]
        subprocess.run(
            words, cwd=worktree.path, input=b"# Your turn: Carry out this task", capture_output=True, check=True
        )
        made = trees.submit(worktree, number, f"{number}:x", f"Task {number}")
        copy = Path(tempfile.mkdtemp(prefix=".gate-", dir=trees.root))
        trees.export(made.commit, copy)
        asyncio.run(gate.run(GATE, copy, 60, folder / "gate.log"))
        gate.remove(copy)
        trees.diff(base, made.commit, DIFF_SHOWN)
        subprocess.run(words, cwd=folder, input=b"# Your turn: You decide on P1:", capture_output=True, check=True)
        base = made.commit
        found.append(Cost((time.perf_counter() - begun) * 1000, (sum(os.times()[:4]) - used) * 1000))
    return found


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20, metavar="N", help="tasks of a build (20)")
    parser.add_argument("--files", type=int, default=200, metavar="N", help="files of the repository (200)")
    parser.add_argument(
        "--times", type=int, default=3, metavar="N", help="builds, of which the quickest round of each task is told (3)"
    )
    parser.add_argument("--source", type=Path, default=own_python.REPOSITORY, metavar="DIR", help="another checkout")
    parser.add_argument("--folder", type=Path, default=Path.home(), metavar="DIR", help="not below /tmp (the home)")
    given = parser.parse_args()
    from dialogd.backends.command import missing

    if lacking := missing():
        print(f"a build cannot be measured here: {lacking}", file=sys.stderr)
        return 1
    print(load())
    through, bare = [], []
    for _ in range(given.times):
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=given.folder) as name:
            folder = Path(name)
            for part in ("build", "bare"):
                (folder / part).mkdir()
            through.append(rounds(folder / "build", given.source, given.tasks, given.files))
            bare.append(alone(folder / "bare", given.tasks, given.files))
    print(f"{'task':>6} {'round ms':>9} {'alone':>7} {'ratio':>6} {'CPU ms':>9} {'alone':>7} {'ratio':>6}")
    sides = [[least(costs) for costs in zip(*side, strict=True)] for side in (through, bare)]
    for task in dict.fromkeys((1, 2, (given.tasks + 1) // 2, given.tasks)):
        if task <= given.tasks:
            print(row(str(task), *(side[task - 1] for side in sides)))
    print(
        row(
            "all",
            *(Cost(*(statistics.fmean(column) for column in zip(*map(astuple, side), strict=True))) for side in sides),
        )
    )
    return 0


def least(costs: Sequence[Cost]) -> Cost:
    """The least of some: what other programs disturbed least."""
    return Cost(min(one.ms for one in costs), min(one.cpu for one in costs))


def row(name: str, whole: Cost, own: Cost) -> str:
    """A line of the table."""
    columns = ((whole.ms, own.ms), (whole.cpu, own.cpu))
    return f"{name:>6}" + "".join(f" {of:>9.0f} {beside:>7.0f} {of / beside:>6.2f}" for of, beside in columns)


if __name__ == "__main__":
    sys.exit(main())
