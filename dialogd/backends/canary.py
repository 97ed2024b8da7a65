"""Prove that a coding agent's program only reads, before it is used, with the flags of real turns.

It runs against a fake service with a fake key, in a home and a project made for it. The service orders it to read a
file of the project, to read one outside, and to write in every way that the CLI knows. The CLI passes when it
did the first, refused everything else and left nothing on the disk. What `bait` puts into the project must not run.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.errors import BackendError
from dialogd.protocol.model import digest
from dialogd.store.disk import read_json, write_json

if TYPE_CHECKING:
    from dialogd.backends.coding_agent import AgentCLI
    from dialogd.backends.fake_service import ModelRequest, ToolCall

LIMIT = 60.0  # seconds for one rehearsal of two turns
MEMORY = "canary.json"
KEPT = 50  # verdicts
RUNS = "3"  # raised whenever the canary learns to see more

_REFUSED = re.compile(
    r"no such (tool|file)|not found|disabled|denied|read-only|reject|unsupported"
    r"|not (allowed|permitted|available|a valid)|outside|unknown tool|unavailable|aborted",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: `text` for stdin, `system` is the file of the system prompt, `folder` is its own and goes with it.

    `session` is to be forked, "" begins a new one. `join` says that it is the person's.
    """

    text: str
    system: Path
    folder: Path
    session: str = ""
    join: bool = False
    allowance: float | None = None


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Where the proof happens: a home and a project made for it, files that hold a secret, the fake service."""

    home: Path
    project: Path
    inside: Path
    outside: Path
    marker: Path
    url: str

    def files(self) -> set[Path]:
        """All files of the project, and what the bait has created."""
        return {path for folder in (self.project, self.marker.parent) for path in folder.rglob("*") if path.is_file()}


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the CLI of a `backend` may be used, and at which of its levels. `model` is its own default."""

    safe: bool
    why: str
    version: str = ""
    level: int = 0
    model: str = ""
    backend: str = ""


async def prove(cli: AgentCLI) -> Proof:
    """Prove that a CLI only reads with these flags: the result known for its version, else a new one (seconds)."""
    version = await cli.version()
    if not version:
        return Proof(False, "it does not say its version")
    memory = cli.options.state.parent / MEMORY if cli.options.state else None
    key = _key(cli, version)
    try:
        return Proof(**_known(memory)[key])
    except (KeyError, TypeError):
        proof = Proof(False, "it has no way of reading only")
    for level in range(cli.levels):
        proof = replace(await _level(cli, level), version=version, backend=cli.name)
        if proof.safe:
            break
    if memory and proof.safe:
        others = {name: row for name, row in _known(memory).items() if name != key}
        write_json(memory, dict([*others.items(), (key, asdict(proof))][-KEPT:]))
    return proof


def last_model(agents: Path, backend: str) -> str:
    """The CLI's default model when it was last proved, "" where that is unknown.

    `agents` is the folder in which the agents' folders lie.
    """
    rows = (row for row in reversed(_known(agents / MEMORY).values()) if isinstance(row, dict))
    return next((str(row.get("model") or "") for row in rows if row.get("backend") == backend), "")


def _known(memory: Path | None) -> dict[str, Any]:
    rows = read_json(memory) if memory else None
    return rows if isinstance(rows, dict) else {}


def _key(cli: AgentCLI, version: str) -> str:
    """Binary, version and flags of every level, with placeholders for what differs from turn to turn."""
    folder = Path("FOLDER")
    flags = []
    for level in range(cli.levels):
        cli.level = level
        for session in ("", "SESSION"):
            run = Run("", folder / "SYSTEM", folder, session)
            flags += [*cli.arguments(run), repr(sorted(cli.settings(run).items()))]
    cli.level = 0
    same = [flag.replace(str(cli.project), "PROJECT").replace(str(cli.state), "STATE") for flag in flags]
    return digest("\0".join([RUNS, str(cli.path), version, *same]))


async def _level(cli: AgentCLI, level: int) -> Proof:
    """What comes of a first turn, and of one that goes on from it, at one of the CLI's levels."""
    from dialogd.backends.fake_service import FakeService

    orders, why, session = _Orders(), "", ""
    with (
        tempfile.TemporaryDirectory(prefix="dialogd-canary-", ignore_cleanup_errors=True) as folder,
        FakeService(orders.answer) as server,
    ):
        sandbox = _place(Path(folder), server.url)
        for path, text in cli.bait(sandbox.marker).items():
            (sandbox.project / path).parent.mkdir(parents=True, exist_ok=True)
            (sandbox.project / path).write_text(text, encoding="utf-8")
        orders.tools = (cli.reads(sandbox.inside), cli.reads(sandbox.outside), *cli.orders(sandbox))
        laid, double = sandbox.files(), cli.double(sandbox, level)
        try:
            async with asyncio.timeout(LIMIT):
                for number in (1, 2):
                    orders.given = 0
                    session = await _turn(double, sandbox, session)
                    if orders.given <= len(orders.tools):
                        why = f"the tools that it was told to use in turn {number} were not all called"
                    elif not session:
                        why = "it names no session"
                    if why:
                        break
        except TimeoutError:
            why = f"the canary had no end within {LIMIT:.0f} s"
        except BackendError as error:
            why = f"the canary failed: {error.cause}"
        finally:
            await double.close()
        if written := sandbox.files() - laid:
            why = f"it wrote {min(written).name!r}"
        why = why or orders.judge(sandbox, confined=level < cli.confined)
    return Proof(not why, why or "it refused", level=level, model=orders.model)


async def _turn(double: AgentCLI, sandbox: Sandbox, session: str) -> str:
    """One run; its session."""
    with tempfile.TemporaryDirectory(dir=sandbox.home, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        system = folder / "system.md"
        system.write_text("You are the canary.\n", encoding="utf-8")
        text = double.sendable(f"A rehearsal.\n\n@{sandbox.inside.name} and (@{sandbox.inside})")
        reader = double.events(double)
        async for _ in double.run(Run(text, system, folder, session), reader):
            pass
        return reader.session


def _place(folder: Path, url: str) -> Sandbox:
    folder = folder.resolve()
    home, project, marks = folder / "home", folder / "project", folder / "marks"
    for path in (home, project, marks):
        path.mkdir(mode=0o700)
    inside, outside = project / "inside.txt", home / "outside.txt"
    for path in (inside, outside):
        path.write_text(f"{path.stem} {secrets.token_hex(8)}\n", encoding="utf-8")
    return Sandbox(home, project, inside, outside, marks / "made", url)


class _Orders:
    """The service's side: orders one tool after the other in each turn, and notes what came back.

    `given` counts the answers of this turn, with the reply that follows the last order.
    """

    def __init__(self) -> None:
        self.tools: Sequence[tuple[str, Mapping[str, Any]]] = ()
        self.model = ""
        self.given = 0
        self._results: list[tuple[int, bool, str]] = []
        self._first = ""

    def answer(self, asked: ModelRequest) -> ToolCall | str:
        """The next order, or a reply once there is none."""
        from dialogd.backends.fake_service import ToolCall

        self.model = self.model or asked.model
        self._first = self._first or asked.text
        if self.given and asked.results:
            self._results.append((self.given - 1, *asked.results[-1]))
        self.given += 1
        return ToolCall(*self.tools[self.given - 1]) if self.given <= len(self.tools) else "Done."

    def judge(self, sandbox: Sandbox, *, confined: bool) -> str:
        """Why the CLI fails, "" when it passes."""
        inside, outside = (path.read_text().strip() for path in (sandbox.inside, sandbox.outside))
        if inside in self._first:
            return "it attached a file that the prompt named"
        for number, is_error, text in self._results:
            tool = self.tools[number][0]
            if number == 0 and inside not in text:
                return "it could not read a file of the project"
            if number == 1 and confined and outside in text:
                return "it read a file outside the project"
            if number > 1 and not is_error and not _REFUSED.search(text):
                return f"it did not refuse {tool!r}"
        if len(self._results) != 2 * len(self.tools):
            return "not every order came back with an answer"
        return ""
