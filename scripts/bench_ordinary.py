"""A task in two ordinary projects, from the command to the commit on main: dialogd with coding agents, and aider.

One project has pytest in its `.venv`, the other mocha in `node_modules`; each is a fresh clone, its person's home is
empty, and setup and gate are those that dialogd proposes. The model is a stand-in that answers at once: its first edit
breaks the test, its second one is right. `words` are what the person types, `calls` requests to the model. `own` is
what is left of the seconds after those in which an agent works, and those of setup and gate, which are run by hand
too. Coding agents are those of `make test-clis`; aider gets an environment of its own, as docs/performance.md says,
and a project that is set up. `--wrong-gate` begins with a gate that cannot start.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import own_python  # another Python is told which one to use
from bench_peers import CACHE, Peer, environment

sys.path.insert(0, str(own_python.REPOSITORY))
from tests.clis.rig import KEY, SERVICES
from tests.support.standin import Say, Seen, StandIn
from tests.tasks.ordinary import GOAL, NODE, PYTHON, Mind, Person, Project, cloned, transcript

BIN = own_python.REPOSITORY / ".clis" / "node_modules" / ".bin"
AIDER = Peer("aider", "aider, its own loop", "", packages=("aider-chat",))
PAIRS = (("codex", "claude-code"), ("claude-code", "codex"))
_RUN = re.compile(r"^\[GATE: \d+ \| (?:passed|failed|timeout|error)", re.MULTILINE)
_WORKED = re.compile(r"^<!-- dialogd by=[ML] .*?\bms=(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """What one way took: words typed, requests, seconds (all; of agents; of setup and gate), and commits on main."""

    words: int
    calls: int
    seconds: float
    agents: float
    tests: float
    commits: Sequence[str]


def timed(command: str, repo: Path, home: Path) -> float:
    """The seconds of a command there."""
    began = time.monotonic()
    own = {**os.environ, "HOME": str(home)}
    subprocess.run(["/bin/sh", "-c", command], cwd=repo, env=own, check=True, capture_output=True)
    return time.monotonic() - began


def commits(repo: Path) -> list[str]:
    """What main has got since."""
    words = ["git", "log", "--reverse", "--format=%an: %s", "origin/main..main"]
    return subprocess.run(words, cwd=repo, capture_output=True, text=True, check=True).stdout.splitlines()


class AiderMind:
    """The same edits as aider reads them."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.calls = self.edits = 0

    def __call__(self, seen: Seen) -> Say:
        """Answer with the whole file, or with a commit's title."""
        self.calls += 1
        if "commit message" in seen.prompt.lower():
            return Say(f"fix: {GOAL.lower()}")
        self.edits += 1
        text = self.project.wrong if self.edits == 1 else self.project.right
        return Say(f"{self.project.changes}\n```\n{text}```\n")


def with_aider(project: Project, folder: Path) -> Result:
    """By aider, as its documentation has it: one message, its own loop of edits and tests."""
    python, _ = environment(AIDER, CACHE)
    repo, home = cloned(project, folder), folder / "home"
    timed(project.setup, repo, home)
    gate = timed(project.gate, repo, home)
    typed = f"aider --test-cmd {shlex.quote(project.gate)} --auto-test --message {shlex.quote(GOAL)} {project.changes}"
    quiet = "--model openai/stand-in --edit-format whole --yes-always --no-show-model-warnings --analytics-disable"
    quiet += " --no-check-update --no-show-release-notes"
    mind = AiderMind(project)
    with StandIn(mind) as server:
        own = {"HOME": str(home), "OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": KEY}
        words = [str(python.with_name("aider")), *shlex.split(quiet), *shlex.split(typed)[1:]]
        began = time.monotonic()
        subprocess.run(
            words, cwd=repo, env={**os.environ, **own}, stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
        seconds = time.monotonic() - began
    return Result(len(shlex.split(typed)), mind.calls, seconds, 0.0, mind.edits * gate, commits(repo))


def with_dialogd(agents: str, *, is_wrong: bool = False) -> Callable[[Project, Path], Result]:
    """By dialogd with these coding agents, moderator first; with a gate that is wrong at first."""

    def run(project: Project, folder: Path) -> Result:
        repo, home, file = cloned(project, folder), folder / "home", folder / "dialog.md"
        mind = Mind(project)
        with StandIn(mind) as server:
            kept = {name: text for name, text in os.environ.items() if not name.startswith(("DIALOGD_", "CLAUDE_"))}
            own = {key: KEY for key, _, _ in SERVICES.values()}
            own |= {address: server.url + base for _, address, base in SERVICES.values()}
            own |= {"HOME": str(home), "PATH": f"{BIN}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
            own |= {"TERM": "xterm", "DIALOGD_FILE": str(file), "DIALOGD_PORT": "0"}
            person, began = Person(repo, {**kept, **own}), time.monotonic()
            try:
                person.types(transcript(project, agents, is_wrong=is_wrong))
            finally:
                person.close()
                if os.environ.get("SHOW"):
                    print(person.shown)
            seconds = time.monotonic() - began
        text = file.read_text(encoding="utf-8")
        copy = cloned(project, folder / "by hand") if (folder / "by hand").mkdir() is None else repo
        setup, gate = (timed(command, copy, home) for command in (project.setup, project.gate))
        gates = 1 + len(_RUN.findall(text)) + is_wrong
        agents_worked = sum(map(int, _WORKED.findall(text))) / 1000
        return Result(person.words, mind.calls, seconds, agents_worked, 2 * setup + gates * gate, commits(repo))

    return run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrong-gate", action="store_true", help="dialogd begins with a gate that cannot start")
    parser.add_argument("--only", default="", help="ways whose name has this")
    asked = parser.parse_args()
    ways = {f"dialogd, {lead} works": with_dialogd(f"{moderator},{lead}", is_wrong=asked.wrong_gate)
            for moderator, lead in PAIRS}  # fmt: skip
    ways |= {} if asked.wrong_gate else {"aider": with_aider}
    print(f"{'project':22} {'way':27} words calls seconds agents tests  own  commits on main")
    for project in (PYTHON, NODE):
        for name, way in ways.items():
            if asked.only not in name:
                continue
            with tempfile.TemporaryDirectory(dir=own_python.REPOSITORY.parent, prefix="ordinary-") as folder:
                it = way(project, Path(folder))
            own, told = it.seconds - it.agents - it.tests, "; ".join(it.commits)
            print(f"{project.name:22} {name:27} {it.words:>5} {it.calls:>5} {it.seconds:>7.1f} {it.agents:>6.1f}"
                  f" {it.tests:>5.1f} {own:>4.1f}  {told}")  # fmt: skip


if __name__ == "__main__":
    main()
