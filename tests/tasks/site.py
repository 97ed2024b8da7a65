"""A build with real daemons, real git and scripted agents: see `actor.py` for what they may be told to do."""

from __future__ import annotations

import json
import shlex
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dialogd.backends.command import homes, missing
from dialogd.protocol.build import Due, Task
from dialogd.tasks.gate import remove
from tests.support.pair import PATIENCE, Pair

REPOSITORY = Path(__file__).resolve().parents[2]
_SHARED = dict.fromkeys(Path(folder).resolve() for folder in ("/tmp", "/var/tmp", tempfile.gettempdir()))
# The sandbox hides shared temporary folders, and with them agents and programs that lie there.
BWRAP = missing() or next(
    (f"this checkout lies in {one}, which the sandbox hides" for one in _SHARED if REPOSITORY.is_relative_to(one)), ""
)
ACTOR = Path(__file__).with_name("actor.py")
GATE = "python3 -m unittest -q"
PLAN = """[TASK_PROPOSED: read ages | negative ages are refused; there is a test | none | 1 h]
[TASK_PROPOSED: print ages | uses what task 1 reads | after 1 | 1 h]"""
READ = {
    "ages.py": "def read(text):\n    age = int(text)\n    if age < 0:\n        raise ValueError(age)\n    return age\n",
    "test_ages.py": "import unittest\n\nimport ages\n\n\nclass Ages(unittest.TestCase):\n"
    "    def test_read(self):\n        self.assertEqual(ages.read('3'), 3)\n",
}
PRINT = {"show.py": "import ages\n\n\ndef show(text):\n    print(ages.read(text))\n"}
USUAL = {"plan": PLAN, "001.1": READ, "002.1": PRINT}


@contextmanager
def in_sight() -> Iterator[Path]:
    """A folder that a sandbox shows unless it is told to hide it: beside the checkout's files; all of it goes."""
    if hides := BWRAP or ("this checkout lies in the home, which the sandbox hides" if _is_at_home() else ""):
        pytest.skip(hides)
    cache = REPOSITORY / ".pytest_cache"
    cache.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="in-sight-", dir=cache))
    try:
        yield folder
    finally:
        remove(folder)


def _is_at_home() -> bool:
    return any(REPOSITORY.is_relative_to(home) for home in homes())


def git(repo: Path, *words: str) -> str:
    """What git says."""
    identity = ("-c", "user.name=Person", "-c", "user.email=person@example.org")
    return subprocess.run(
        ["git", "-C", str(repo), *identity, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def repository(folder: Path) -> Path:
    """A repository with one commit on `main`."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "Person")
    git(folder, "config", "user.email", "person@example.org")
    (folder / "README.md").write_text("Ages.\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "Begin")
    return folder


class Listener(socketserver.ThreadingTCPServer):
    """Notes what the agents tell, a line for each call, and says so to them when it is written.

    A call named in `held` (`work 001.1`) goes on once it is taken out, by `let_go`; the first one of a name in `lost`
    never does.
    """

    daemon_threads = True

    def __init__(self, log: Path) -> None:
        self.log, self.lock = log, threading.Condition()
        self.held: set[str] = set()
        self.lost: set[str] = set()
        super().__init__(("127.0.0.1", 0), _Line)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def let_go(self) -> None:
        """Have the calls go on that are held."""
        with self.lock:
            self.held.clear()
            self.lock.notify_all()


class _Line(socketserver.StreamRequestHandler):
    server: Listener

    def handle(self) -> None:
        line = self.rfile.readline()
        name = named(json.loads(line))
        with self.server.lock:
            is_lost = name in self.server.lost
            self.server.lost.discard(name)
            with self.server.log.open("ab") as log:
                log.write(line)
            self.server.lock.wait_for(lambda: name not in self.server.held)
        with suppress(OSError):  # who asked may be dead by now
            if is_lost:
                self.rfile.read()  # until it is
            self.wfile.write(b".")


def named(call: Mapping[str, str]) -> str:
    """What a call is called: `plan`, `work 001.1`, `review 001.1` …"""
    return f"{call['kind']} {call['step']}".strip()


class Site(Pair):
    """A repository, a moderator M and `leads`, by default L, at one build: scripted, or these `backend`s."""

    def __init__(
        self,
        folder: Path,
        script: Mapping[str, Any] = USUAL,
        *,
        gate: str = GATE,
        rules: Sequence[str] = ("cycles = 0",),
        person: str = "",
        environment: Mapping[str, str] | None = None,
        backend: Mapping[str, str] | None = None,
        leads: str = "L",
    ) -> None:
        self.repo = repository(folder / "repo")
        self.script, self.log = folder / "script.json", folder / "calls.jsonl"
        self.script.write_text(json.dumps(script))
        self.gate, self.rules, self.person = gate, rules, person
        self.listener = Listener(self.log)
        command = shlex.join([sys.executable, str(ACTOR), str(self.script), str(self.listener.server_address[1])])
        own = ["--repo", str(self.repo)]
        self.leads = leads
        self.own_flags = {"M": own, **dict.fromkeys(leads, [*own, "--gate", gate] if gate else own)}
        (folder / "talk").mkdir()
        named = {"backend": backend} if backend else {"command": command}
        super().__init__(folder, f"M{leads}", flags=self.own_flags, environment=environment, **named)
        self.file = folder / "talk" / "dialog.md"

    def __exit__(self, *given: Any) -> None:
        super().__exit__(*given)
        self.listener.let_go()
        self.listener.shutdown()
        self.listener.server_close()

    def open(self, question: str = "Read and print ages.") -> None:
        """Write the dialog, start the daemons, and let it go."""
        base = git(self.repo, "rev-parse", "HEAD")
        lines = [
            *([f'person = "{self.person}"'] if self.person else []),
            "[build]",
            'moderator = "M"',
            'lead = "L"',
            f"further_leads = {[*self.leads[1:]]}",
            f"repo = {json.dumps(str(self.repo))}",
            'branch = "main"',
            f'base = "{base}"',
            f"gate = {json.dumps(self.gate)}",
            *self.rules,
            "[roles.M]",
            'role = "moderator"',
            'permissions = ["READ_ALL", "POST", "CRITIQUE", "MODERATE", "DECIDE"]',
            *(
                line
                for lead in self.leads
                for line in (f"[roles.{lead}]", 'role = "tech lead"', 'permissions = ["READ_ALL", "POST"]')
            ),
        ]
        self.begin(question, setup="\n".join(lines), max_turns=60)
        for daemon in self.daemons.values():
            if not daemon.running:
                daemon.start()
        for daemon in self.daemons.values():
            daemon.until_ready()  # a coding agent is tried first
        self.notify()

    # -- what has come of it --------------------------------------------------------------------------------------

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks as the file tells of them."""
        dialog = self.dialog()
        return dialog.state.build.all if dialog is not None else ()

    @property
    def due(self) -> Due | None:
        """What is due; None without a dialog."""
        dialog = self.dialog()
        return dialog.state.build.steps[0].due if dialog is not None else None

    @property
    def calls(self) -> list[str]:
        """What the agents were asked for, in order: `plan`, `work 001.1`, `review 001.1` …"""
        rows = map(json.loads, self.log.read_text().splitlines()) if self.log.exists() else ()
        return [named(row) for row in rows if row["kind"] != "question"]

    def prompts(self, what: str) -> list[str]:
        """The prompts of the calls of that name."""
        rows = map(json.loads, self.log.read_text().splitlines())
        return [row["prompt"] for row in rows if named(row) == what]

    @property
    def text(self) -> str:
        """The file."""
        return self.file.read_text(encoding="utf-8")

    # -- the person -----------------------------------------------------------------------------------------------

    def types(self, line: str) -> None:
        """The person types a line at the end of the file."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")

    def waits_at(self, *calls: str) -> None:
        """Have agents wait at these calls (`work 001.1`), and at no others any more."""
        with self.listener.lock:
            self.listener.held = set(calls)
            self.listener.lock.notify_all()

    def until_asked(self, call: str) -> None:
        """Wait until an agent was asked for that."""
        self.until(lambda: call in self.calls, call)

    def until_due(self, what: Due) -> None:
        """Wait until that is due."""
        self.until(lambda: self.due is what, f"{what} to be due")

    def confirm(self) -> None:
        """Wait for the plan, and confirm all of it."""
        self.until_due(Due.CONFIRM)
        self.types("[TASK: all | confirmed]")

    def commands(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What `dialogd WORDS` says to the person."""
        words = (sys.executable, "-m", "dialogd", *words, "--file", str(self.file))
        return subprocess.run(
            words, env=self.environment, cwd=self.repo, capture_output=True, text=True, check=False, timeout=120
        )

    def rebase(self) -> None:
        """The person has what is approved carried to where their branch is."""
        done = self.commands("build", "rebase", "--yes")
        assert done.returncode == 0, done.stderr

    def plan(self) -> None:
        """Begin, and confirm all of the plan."""
        self.open()
        self.confirm()

    def build(self) -> None:
        """All of it, from the question to the end."""
        self.plan()
        self.until_end()

    def until_end(self) -> None:
        """Wait for the end."""
        self.until(lambda: self.outcome, "the end", seconds=3 * PATIENCE)
