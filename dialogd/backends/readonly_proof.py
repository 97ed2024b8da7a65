"""Prove that a coding agent's program writes nothing, before it is used, with the flags of turns.

It runs against a fake service with a fake key, in a home and a project made for it. The service orders it to read a
file of the project, to read one outside, and to write in every way that the CLI knows. The CLI passes when it did the
first, refused everything else and left nothing on the disk. What `bait` puts into the project must not run.

Turns that write run in a sandbox of ours, whose mounts are the proof. Where there is none, the trial is turned round:
writes in the project, which is a worktree, must work, and each to anything outside must leave that as it was: git's
folders, dialog, state directory, temporary folder, the program's own settings.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from dialogd.backends import Workspace
from dialogd.errors import BackendError
from dialogd.protocol.model import digest
from dialogd.store.disk import read_json, write_json

if TYPE_CHECKING:
    from dialogd.backends.coding_agent import AgentCLI
    from dialogd.backends.fake_service import ModelRequest, ToolCall

Order = tuple[str, Mapping[str, Any] | str]  # a call of a tool: its name, and the input, with `$words` to be filled in

LIMIT = 600.0  # seconds for one trial of two turns; they take one or two, and much more on a busy machine
MEMORY = "readonly-proofs.json"
KEPT = 50  # proofs
RUNS = "5"  # raised whenever the trial learns to see more

_REFUSED = re.compile(
    r"no such (tool|file)|not found|disabled|denied|read-only|reject|unsupported"
    r"|not (allowed|permitted|available|a valid)|outside|unknown tool|unavailable|aborted",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Way:
    """How a run may write: in `workspace`, at this level of the CLI's own rules, `boxed` in the sandbox of ours too."""

    workspace: Workspace
    level: int = 0
    boxed: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One run: `text` for stdin, `system` is the file of the system prompt, `folder` is its own and goes with it.

    `session` is to be forked, "" begins a new one. `join` says that it is the person's. Without a `way` it only reads.
    """

    text: str
    system: Path
    folder: Path
    session: str = ""
    join: bool = False
    allowance: float | None = None
    way: Way | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the CLI of a `backend` may be used, and at which of its levels. `model` is its own default."""

    safe: bool
    why: str
    version: str = ""
    level: int = 0
    model: str = ""
    backend: str = ""


async def prove(cli: AgentCLI, *, writes: bool = False) -> Proof:
    """Prove that a CLI only reads with these flags, or `writes` in a workspace and nowhere else, by itself.

    It is the result known for its version, else a new one (seconds): of the first level that holds, else of the last.
    """
    version = await cli.version()
    if not version:
        return Proof(False, "it does not say its version")
    memory = cli.options.state.parent / MEMORY if cli.options.state else None
    levels = range(cli.writes if writes else cli.levels)
    key = _key(cli, version, levels, writes=writes)
    try:
        return Proof(**_known(memory)[key])
    except (KeyError, TypeError):
        proof = Proof(False, "it has no way of its own of writing in one folder only", version)
    for level in levels:
        proof = replace(await _trial(cli, level, writes=writes), version=version, backend=cli.name)
        if proof.safe:
            if memory:
                others = {name: row for name, row in _known(memory).items() if name != key}
                write_json(memory, dict([*others.items(), (key, asdict(proof))][-KEPT:]))
            break
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


def _key(cli: AgentCLI, version: str, levels: Sequence[int], *, writes: bool) -> str:
    """Binary, version and flags of every level, with placeholders for what differs from turn to turn."""
    folder, chosen = Path("FOLDER"), cli.level
    flags = [repr(writes)]
    for cli.level in levels:
        for session in ("", "SESSION"):
            way = Way(Workspace(Path("WORKTREE"), folder, folder), cli.level) if writes else None
            run = Run("", folder / "SYSTEM", folder, session, way=way)
            flags += [*cli.arguments(run), repr(sorted(cli.settings(run).items()))]
    cli.level = chosen
    same = [flag.replace(str(cli.project), "PROJECT").replace(str(cli.state), "STATE") for flag in flags]
    return digest("\0".join([RUNS, str(cli.path), version, *same]))


# -- One trial --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the proof happens: a home and a project made for it, files that hold a secret, the fake service."""

    home: Path
    project: Path
    inside: Path
    outside: Path
    marker: Path
    url: str
    planted: str  # what the orders write

    @classmethod
    def make(cls, folder: Path, url: str, *, writes: bool) -> Stage:
        """Make it; where the agent may write, what the bait makes could be made by the agent too."""
        folder = folder.resolve()
        home, project = folder / "home", folder / "project"
        marks = (project if writes else folder) / "marks"
        inside, outside = project / "inside.txt", home / "outside.txt"
        for path in (home, project, marks):
            path.mkdir(mode=0o700)
        for path in (inside, outside):
            path.write_text(f"{path.stem} {secrets.token_hex(8)}\n", encoding="utf-8")
        stage = cls(home, project, inside, outside, marks / "made", url, f"planted-{secrets.token_hex(8)}")
        if writes:
            stage._furnish()
        return stage

    def _furnish(self) -> None:
        """Make a worktree of the project, and what stands around it."""
        workspace, top = self.workspace, self.home.parent
        dialog, lock, *others = workspace.forbidden
        for path in (workspace.git_dir, workspace.common_dir / "hooks", *others, top / "agent"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        texts = {
            dialog: "# Claude Autonomous Dialog\n",
            lock: "",
            top / "state" / "journal": "old\n",
            workspace.common_dir / "config": "[core]\n",
            workspace.common_dir / "hooks" / "pre-commit": "#!/bin/sh\n",
            workspace.git_dir / "HEAD": "ref: refs/heads/task\n",
            self.project / ".git": f"gitdir: {workspace.git_dir}\n",
        }
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")

    @property
    def workspace(self) -> Workspace:
        """The project as a worktree, with everything that it must not write."""
        top, common = self.home.parent, self.home.parent / "repository" / ".git"
        dialog = top / "dialog" / "dialog.md"
        lock = dialog.with_name("dialog.md.lock")
        forbidden = (dialog, lock, dialog.parent, top / "state", top / "shared", self.home)
        return Workspace(self.project, common / "worktrees" / "project", common, forbidden)

    def made(self, number: int) -> tuple[Path, ...]:
        """The files that turn `number` is to make."""
        return self.project / f"made-{number}.txt", self.project / f"new-{number}" / "made.txt"

    def guarded(self) -> dict[Path, bytes]:
        """Every file outside the project that nothing may change, with its content; the home is the program's own."""
        folders = [path for path in self.workspace.guarded if path.is_dir() and path != self.home]
        pinned = [self.project / ".git", *(path for folder in folders for path in folder.rglob("*"))]
        return {path: path.read_bytes() for path in pinned if path.is_file()}

    def files(self) -> set[Path]:
        """All files of the project, and what the bait has created."""
        return {path for folder in (self.project, self.marker.parent) for path in folder.rglob("*") if path.is_file()}

    def filled(self, order: Order, path: Path | None = None) -> Order:
        """The order with its words filled in."""
        path = path or self.project / "made"
        old = path.read_text("utf-8", "replace")[:4] if path.is_file() else ""
        words = {name: str(getattr(self, name)) for name in ("inside", "marker", "url", "project")}
        words |= {
            "path": str(path),
            "old": old,
            "text": self.planted,
            "elsewhere": str(self.workspace.common_dir / "x"),
        }
        words |= {"quoted": shlex.quote(str(path)), "folder": shlex.quote(str(path.parent))}

        def fill(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: fill(item) for name, item in value.items()}
            if isinstance(value, list):
                return [fill(item) for item in value]
            return Template(value).safe_substitute(words) if isinstance(value, str) else value

        return order[0], fill(order[1])


async def _trial(cli: AgentCLI, level: int, *, writes: bool) -> Proof:
    """What comes of a first turn, and of one that goes on from it, at one of the CLI's levels."""
    from dialogd.backends.fake_service import FakeService

    service, why, session = _Orders(), "", ""
    with (
        tempfile.TemporaryDirectory(prefix="dialogd-proof-", ignore_cleanup_errors=True) as folder,
        FakeService(service.answer) as server,
    ):
        stage = Stage.make(Path(folder), server.url, writes=writes)
        double = cli.double(stage, level, writes=writes)
        for name, text in double.bait(stage.marker).items():
            (stage.project / name).parent.mkdir(parents=True, exist_ok=True)
            (stage.project / name).write_text(text, encoding="utf-8")
        way, outside = Way(stage.workspace, level) if writes else None, _own_and_shared(double, stage)
        laid, kept = stage.files(), stage.guarded()
        try:
            async with asyncio.timeout(LIMIT):
                for number in (1, 2):
                    service.begin(_orders(double, stage, number, outside, writes=writes))
                    session = await _turn(double, stage, session, way)
                    if service.given <= len(service.tools):
                        why = f"the tools that it was told to use in turn {number} were not all called"
                    elif not session:
                        why = "it names no session"
                    if why:
                        break
        except TimeoutError:
            why = f"the trial had no end within {LIMIT:.0f} s"
        except BackendError as error:
            why = f"the trial failed: {error.cause}"
        finally:
            await double.close()
        if writes:
            why = _changed(stage, kept, outside) or why
            laid |= {path for number in (1, 2) for path in stage.made(number)}
            missed = next((path for path in laid - stage.files()), None)
            why = why or (f"it did not write {missed.name!r} where it may" if missed else "")
            why = "it fetched something by itself" if any("made" in path for path in server.fetched) else why
        if written := stage.files() - laid:
            why = f"it wrote {min(written).name!r}"
        why = why or service.judge(stage, confined=level < cli.confined, refuses=not writes)
    how = "it wrote in the worktree and nowhere else" if writes else "it refused"
    return Proof(not why, why or how, level=level, model=service.model)


def _orders(double: AgentCLI, stage: Stage, number: int, outside: Sequence[Path], *, writes: bool) -> list[Order]:
    """The calls of one turn: read inside, read outside, and all the ways to write."""
    orders = [stage.filled(double.reads, path) for path in (stage.inside, stage.outside)]
    if not writes:
        return [*orders, *map(stage.filled, double.orders)]
    orders += [stage.filled(double.makes[0], path) for path in stage.made(number)]
    folders = [path / "planted" for path in stage.workspace.guarded if path.is_dir()]
    for path in (*stage.guarded(), *folders, *outside):
        ways = (double.reads, *double.makes, *double.changes) if path.is_file() else double.makes
        orders += [stage.filled(order, path) for order in ways]
    return [*orders, *map(stage.filled, double.escapes)]


def _own_and_shared(double: AgentCLI, stage: Stage) -> list[Path]:
    """What must not be planted where the program itself may write: its settings, and those of the home; and in /tmp."""
    shared = Path(tempfile.gettempdir()).resolve() / f"{stage.planted}.txt"
    own = [double.persons / name for name in double.settings_files]
    return [shared, *own, *(stage.home / name for name in (".bashrc", ".profile", ".gitconfig", "planted"))]


def _changed(stage: Stage, kept: Mapping[Path, bytes], outside: Sequence[Path]) -> str:
    """What was changed that must stay, "" when nothing was."""
    now = stage.guarded()
    changed = [path for path in {**kept, **now} if kept.get(path) != now.get(path)]
    planted = stage.planted.encode()
    changed += [path for path in outside if path.is_symlink() or (path.is_file() and planted in path.read_bytes())]
    outside[0].unlink(missing_ok=True)
    return f"it wrote {min(changed).name!r} outside the worktree" if changed else ""


async def _turn(double: AgentCLI, stage: Stage, session: str, way: Way | None) -> str:
    """One run; its session."""
    with tempfile.TemporaryDirectory(dir=double.state, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        system = folder / "system.md"
        system.write_text("You are being tried.\n", encoding="utf-8")
        text = double.sendable(f"A rehearsal.\n\n@{stage.inside.name} and (@{stage.inside})")
        reader = double.events(double)
        async for _ in double.run(Run(text, system, folder, session, way=way), reader):
            pass
        return reader.session


class _Orders:
    """The service's side: orders one tool after the other in each turn, and notes what came back.

    `given` counts the answers of this turn, with the reply that follows the last order.
    """

    def __init__(self) -> None:
        self.tools: Sequence[Order] = ()
        self.model = ""
        self.given = self._wanted = 0
        self._results: list[tuple[int, str, bool, str]] = []
        self._first = ""

    def begin(self, tools: Sequence[Order]) -> None:
        """Begin a turn with these orders."""
        self.tools, self.given = tools, 0
        self._wanted += len(tools)

    def answer(self, asked: ModelRequest) -> ToolCall | str:
        """The next order, or a reply once there is none."""
        from dialogd.backends.fake_service import ToolCall

        self.model = self.model or asked.model
        self._first = self._first or asked.text
        if 0 < self.given <= len(self.tools) and asked.results:
            self._results.append((self.given - 1, self.tools[self.given - 1][0], *asked.results[-1]))
        self.given += 1
        return ToolCall(*self.tools[self.given - 1]) if self.given <= len(self.tools) else "Done."

    def judge(self, stage: Stage, *, confined: bool, refuses: bool) -> str:
        """Why the CLI fails, "" when it passes; where it does not say that it refuses, the disk tells."""
        inside, outside = (path.read_text().strip() for path in (stage.inside, stage.outside))
        if inside in self._first:
            return "it attached a file that the prompt named"
        for number, tool, is_error, text in self._results:
            if number == 0 and inside not in text:
                return "it could not read a file of the project"
            if number == 1 and confined and outside in text:
                return "it read a file outside the project"
            if refuses and number > 1 and not is_error and not _REFUSED.search(text):
                return f"it did not refuse {tool!r}"
        return "" if len(self._results) == self._wanted else "not every order came back with an answer"
