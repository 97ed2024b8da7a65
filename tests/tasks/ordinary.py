"""Two ordinary projects, and a build in each as a person types it: pytest in `.venv`, mocha in `node_modules`.

A transcript has what stands in a terminal: `$ ` before a command, `> ` before a word typed while the build runs, an
answer behind `[y/N]`. The other lines are to be shown, numbers aside; `…` stands for what is left out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

from tests.support.pair import until
from tests.support.standin import Say, Seen, Use
from tests.support.terminal import Terminal
from tests.tasks import actor
from tests.tasks.repos import write

GOAL = "Refuse ages below zero"
PATIENCE = 120.0  # seconds for what is shown next
_CLOSING = "and with no other word"  # stands in every closing question


@dataclass(frozen=True, slots=True)
class Project:
    """A project: its files, what sets it up and tests it, the file that the task changes, wrongly and rightly."""

    name: str
    files: Mapping[str, str]
    setup: str
    gate: str
    changes: str
    wrong: str
    right: str
    red: str  # what the gate prints once it is wrong
    wrong_gate: str = ""  # what a person may take for its gate
    variables: Mapping[str, str] = field(default_factory=dict)  # of who sets it up


PYTHON = Project(
    "pytest in .venv",
    {
        "requirements.txt": "pytest\n",
        ".gitignore": ".venv/\n__pycache__/\n.pytest_cache/\n",
        "ages.py": "def read(text):\n    return int(text)\n",
        "test_ages.py": "import ages\n\n\ndef test_read():\n    assert ages.read('3') == 3\n",
    },
    "python3 -m venv .venv && .venv/bin/pip install -q -r requirements.txt pytest",
    ".venv/bin/python -m pytest -q",
    "ages.py",
    "def read(text):\n    return 4\n",
    "def read(text):\n    age = int(text)\n    if age < 0:\n        raise ValueError(age)\n    return age\n",
    "1 failed",
    "pytest -q",
)
NODE = Project(
    "mocha in node_modules",
    {
        "package.json": '{\n  "name": "ages",\n  "version": "1.0.0",\n  "scripts": {"test": "mocha"},\n'
        '  "devDependencies": {"mocha": "^11.0.0"}\n}\n',
        ".gitignore": "node_modules/\n",
        "ages.js": "exports.read = (text) => Number(text)\n",
        "test/ages.js": "const assert = require('assert')\nconst ages = require('../ages')\n\n"
        "it('reads an age', () => assert.equal(ages.read('3'), 3))\n",
    },
    "npm ci",
    "npm test",
    "ages.js",
    "exports.read = (text) => 4\n",
    "exports.read = (text) => {\n  const age = Number(text)\n  if (age < 0) throw Error(text)\n  return age\n}\n",
    "1 failing",
    "mocha",
)
_RUNNER = """#!/usr/bin/env node
let failed = 0
global.it = (what, test) => { try { test() } catch (error) { failed += 1; console.log(`${what}: ${error.message}`) } }
require(require('path').resolve('test/ages.js'))
console.log(failed ? `  ${failed} failing` : '  1 passing (3ms)')
process.exit(failed)
"""


def offline(project: Project) -> Project:
    """The same where no index is reached: with packages of its own."""
    if project == PYTHON:
        return replace(project, variables={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "vendor"})
    files = {
        "package.json": project.files["package.json"].replace("^11.0.0", "file:tools/mocha"),
        "tools/mocha/package.json": '{"name": "mocha", "version": "11.0.0", "bin": {"mocha": "mocha.js"}}\n',
        "tools/mocha/mocha.js": _RUNNER,
    }
    return replace(project, files={**project.files, **files}, variables={"NPM_CONFIG_REGISTRY": "http://127.0.0.1:9"})


def wheels(folder: Path) -> None:
    """Wheels of pytest and what it needs, made of what is installed here."""
    folder.mkdir(parents=True)
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        one = distribution(name)
        with ZipFile(folder / f"{name}-{one.version}-py3-none-any.whl", "w") as wheel:
            for file in one.files or ():
                if ".." not in file.parts and file.suffix != ".pyc":
                    wheel.write(str(file.locate()), str(file))


def cloned(project: Project, folder: Path) -> Path:
    """A fresh clone of it in `folder`, and a home there in which nothing is but who the person is for git."""
    home, origin = folder / "home", folder / "origin" / "ages"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@example.org\n")
    write(origin, project.files)
    if "PIP_FIND_LINKS" in project.variables:
        wheels(origin / project.variables["PIP_FIND_LINKS"])
    lock = "[ ! -e package.json ] || npm install --silent --package-lock-only"
    lock += "; [ ! -e tools ] || chmod +x tools/*/*.js"  # as npm would
    own = {**os.environ, **project.variables, "HOME": str(home)}
    for command in ("git init -q -b main", lock, "git add -A", "git commit -q -m Begin"):
        subprocess.run(["/bin/sh", "-c", command], cwd=origin, env=own, check=True)
    subprocess.run(["git", "clone", "-q", str(origin)], cwd=folder, env=own, check=True)
    return folder / "ages"


class Mind:
    """What the models answer, and how often they were asked: the lead's first edit is wrong, and it sees that.

    `saw` is what its shell told it.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.calls = 0
        self.saw: list[str] = []
        self._orders = [self._edit(project.wrong), project.gate, self._edit(project.right), project.gate]
        self._at = 0

    def _edit(self, text: str) -> str:
        return f"cat >{self.project.changes} <<'END'\n{text}END"

    def __call__(self, seen: Seen) -> Use | Say:
        self.calls += 1
        asked = seen.prompt
        now = asked[max(asked.rfind("# Your turn"), 0) :]
        kind, _, _ = actor.read(asked, is_question=_CLOSING in now)
        if "Sum up what was built" in now:
            return Say("Ages below zero are refused.")
        if kind != "work":
            plan = {"plan": "[TASK_PROPOSED: refuse ages below zero | -1 raises an error | none | 1 h]"}
            return Say(actor.said(plan, asked, is_question=kind == "question"))
        if self._at:
            self.saw.append(seen.tool_results[-1][1])
        if self._at == len(self._orders):
            return Say("Ages below zero are refused; the tests pass.")
        command, self._at = self._orders[self._at], self._at + 1
        if seen.form == "messages":
            return Use("Bash", {"command": command, "description": "the work"})
        return Use("exec_command", {"cmd": command})


_NUMBER = re.compile(r"\b[0-9a-f]{12}\b|\d[\d.,]*")


class Person:
    """Who types a transcript into a terminal, beginning in that folder, and how many words that are.

    `stands` says what a text of the transcript means here. What the transcript shows is waited for in its order, after
    what was typed before it.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], stands: Mapping[str, str] | None = None) -> None:
        self.folder, self.environment, self.stands = folder, environment, stands or {}
        self.words = 0
        self.shown = ""  # by commands that have ended
        self._terminal: Terminal | None = None
        self._wanted: list[str] = []  # since something was typed last

    def types(self, transcript: str) -> None:
        """Type all of it, each line once what stands before it is shown."""
        for text, meant in self.stands.items():
            transcript = transcript.replace(text, meant)
        for line in transcript.rstrip().split("\n"):
            prompt, question, answer = line.partition("[y/N] ")
            if line.startswith("$ "):
                self.done()
                self._begin(line[2:])
            elif line.startswith("> "):
                self._type(line[2:])
            elif line.strip() != "…":
                self.until(prompt + question)
                if answer:
                    self._type(answer)
        self.done()

    def _begin(self, command: str) -> None:
        words = shlex.split(command)
        self.words += len(words)
        self._wanted = []
        if words[0] == "cd":
            self.folder /= words[1]
        else:
            self._terminal = Terminal(["/bin/sh", "-c", f"exec {command}"], self.environment, self.folder)

    def _type(self, answer: str) -> None:
        assert self._terminal is not None
        self.words += len(shlex.split(answer))
        self._terminal.type(answer)
        self._wanted = []

    def until(self, line: str) -> None:
        """Wait for the next line, whatever numbers are in it; commands that have ended show no more."""
        terminal = self._terminal
        assert terminal is not None
        self._wanted.append("[0-9a-f.,]+".join(re.escape("".join(part.split())) for part in _NUMBER.split(line)))

        def is_shown() -> bool:
            is_over = terminal.has_ended
            shown, at = "".join(terminal.answer.split()), 0
            for wanted in self._wanted:
                found = re.compile(wanted).search(shown, at)
                assert found or not is_over, f"it has ended without {line!r}\n{terminal.text[-3000:]}"
                if found is None:
                    return False
                at = found.end()
            return True

        until(is_shown, repr(line), PATIENCE, lambda: terminal.text[-3000:])

    def done(self) -> None:
        """Wait for the end of what runs."""
        if (terminal := self._terminal) is not None:
            until(lambda: terminal.has_ended, "the command to end", PATIENCE, lambda: terminal.text[-3000:])
            self.close()

    def close(self) -> None:
        """Leave the terminal."""
        if self._terminal is not None:
            self.shown += self._terminal.text
            self._terminal.close()
        self._terminal = None


def transcript(project: Project, agents: str = "", *, is_wrong: bool = False) -> str:
    """A build of the project as it is typed; with a gate that is wrong at first."""
    command = f'$ dialogd build "{GOAL}"'
    command += f" --gate {shlex.quote(project.wrong_gate)}" if is_wrong else ""
    command += f" --agents {agents}" if agents else ""
    gate = "" if is_wrong else f"Take the usual --gate {shlex.quote(project.gate)}? [y/N] y\n"
    mended = (
        f"the gate could not start\n> gate {shlex.quote(project.gate)}\n"
        f"Test the tasks by {project.gate!r} from now on? [y/N] y\n"
        f"the gate is {project.gate!r} from the next tree on\n> retry\n"
    )
    return (
        f"{command}\nTake the usual --setup {shlex.quote(project.setup)} --setup-network? [y/N] y\n{gate}"
        "Start it? [y/N] y\n>> your turn: confirm, change or drop the proposed tasks: 001\n> confirm\n"
        f"{mended if is_wrong else ''}1 of 1 tasks approved\n$ dialogd build merge\nMerge? [y/N] y\n"
    )
