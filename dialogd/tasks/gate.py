"""Run the person's gate (`make test`) over a tree that an agent wrote, and say how it ended."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dialogd.backends.command import BWRAP, ESCAPE_SEQUENCE, clean_environment, confined, homes, limits_of, missing
from dialogd.errors import BackendError, BadInput, DialogdError, NotInstalled
from dialogd.protocol.build import GateResult, command_of
from dialogd.protocol.model import Condition
from dialogd.protocol.rules import Build
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import in_words, one_line
from dialogd.store.child import Child, Limits
from dialogd.store.disk import StateDir, write_over, writing
from dialogd.store.journal import PERSON, Journals

if TYPE_CHECKING:
    from dialogd.tasks.worktrees import Worktrees

HEAD = 3 * 1024 * 1024  # bytes of output that a log keeps from its beginning
TAIL = 1024 * 1024  # and from its end
TOLD = 4000  # bytes of the end that are told
SHELL = "/bin/sh"
NOT_STARTED = (126, 127)  # how a shell ends where a command cannot be started

Kit = Mapping[Path, Path]  # what stands beside the files of a tree: at which place, and where it lies


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate of a build by its `rules`, with its setup, and what it sees beside the tree under test.

    It is kept from the dialog `file` with all that lies beside it, from the `state` directory, and from what else there
    is of the repository. `aside` does blocking work in a thread. `by` is the agent whose daemon runs it:
    that of another may run it at the same time.
    """

    rules: Build
    trees: Worktrees
    file: Path
    state: Path
    sees: Sequence[Path] = ()
    aside: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread
    by: str = ""

    def log(self, name: str) -> Path:
        """Where its output is kept, of a run by that name."""
        return StateDir(self.state).logs / f"gate-{name}.log"

    async def over(
        self, commit: str, name: str, *, as_person: bool = False, at: Path | None = None, base: str = ""
    ) -> GateResult:
        """Run it over the files of a commit, in a folder of their own; `log` says where its output is then.

        They stand where the checkout is; with a setup `at` a worktree instead, with what that makes of its `base`.
        Raises as `run`, `readable` and `prepare` do.
        """
        from dialogd.tasks.kit import prepare

        at = at if self.rules.setup else None
        kit = None if at is None else await prepare(self, at, base)
        root, mine = self.trees.root, f".gate-{self.trees.build}-{self.by}."  # no id has a dot in it
        clear(root, f"{mine}*")  # of a gate that was killed
        export = self.trees.scratch(mine)
        try:
            return await self.in_copy(self.rules.gate, commit, export, name, at, kit, as_person=as_person)
        finally:
            await self.aside(lambda: clear(root, export.name))

    async def in_copy(
        self, command: str, commit: str, export: Path, name: str, at: Path | None, kit: Kit | None = None, **how: Any
    ) -> GateResult:
        """Run a command as the gate in the folder `export`, which stays there; `how` is what else `run` takes."""
        trees = self.trees
        await self.aside(lambda: trees.export(commit, export))
        sees = await self.aside(lambda: readable(self.sees, self.file, self.state, trees))
        shown = {path: path for path in sees}
        hidden = [*beside(self.file, self.state), *await self.aside(trees.others)]
        if at is not None:
            hidden.append(trees.checkout.path)
            shown |= {} if kit is None else {**in_worktree(sees, trees.checkout.path, at), **kit}
        at, log = at or trees.checkout.path, self.log(name)
        limit = self.rules.gate_timeout
        return await run(command, export, limit, log, at=at, visible=shown, hidden=hidden, **how)


def is_by_command(dialog: Dialog, journals: Journals) -> bool:
    """True where the gate that the file has now was given by a command of the person's on this machine.

    A line that was typed, copied or written by a session gives none: a file alone makes no daemon run anything.
    """
    rules, entry = dialog.state.build.rules, dialog.entry(dialog.state.build.gate_entry)
    if rules is None or entry is None or not (entry.is_persons and entry.linked):
        return False
    is_whole = entry.condition is Condition.SOUND and rules.gate in map(command_of, entry.all("GATE"))
    return is_whole and entry.chain in journals.remembered(PERSON)


def beside(file: Path, state: Path) -> list[Path]:
    """What no program of a build may see of a dialog: its file, what lies beside that, the state directory."""
    return [path for path in (file, Path(f"{file}.lock"), Path(f"{file}.d"), state) if path.exists()]


def in_worktree(folders: Sequence[Path], checkout: Path, at: Path) -> dict[Path, Path]:
    """Where folders of the checkout stand in a worktree `at` another place, and where they lie."""
    return {at / path.relative_to(checkout): path for path in folders if path.is_relative_to(checkout)}


def how_it_ended(result: GateResult, limit: float) -> str:
    """How a command ended that did not pass, in words."""
    return f"had not ended in {in_words(limit)}" if result.state == "timeout" else f"failed: exit code {result.code}"


def last_line(result: GateResult) -> str:
    """The last thing that it printed, as a sentence: a gate that is green without a test is seen by that."""
    lines = [line for line in result.tail.split("\n") if line.strip()]
    said = one_line(lines[-1], 120).replace("`", "'") if lines else ""
    return f"The last line that it printed: `{said}`." if said else "It printed nothing: it reports no test."


async def run(  # noqa: PLR0913 - what a program of the build may see and take
    command: str,
    export: Path,
    limit: float,
    log: Path,
    *,
    at: Path | None = None,
    hidden: Sequence[Path] = (),
    visible: Kit = MappingProxyType({}),
    as_person: bool = False,
    limits: Limits | None = None,
    network: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> GateResult:
    """Run `command` by the shell in `export`, a folder of its own with the tree's files.

    In the sandbox: `export` can be written, and stands `at` another place: that of the checkout, so that what leads
    there leads to the tree. The home is empty, so are the shared temporary folders and `hidden` ones (dialog, state
    directory, other worktrees), there is no `network` unless it is given; at each place of `visible` what it names can
    be read. `environment` adds variables. After `limit` seconds it is ended with all that it started. `log` gets its
    output, at most `HEAD` + `TAIL` bytes.
    What passes `limits`, by default those of `sandbox.limits`, is ended and has failed; the log's last line says so.
    `as_person` runs it without a sandbox, with the person's rights: only with their word for this very tree.
    Raises `NotInstalled` where there is no sandbox, and `StorageError` when the log cannot be written.
    """
    output, began, is_over = _Output(), time.monotonic(), False
    if not command.strip() or "\0" in command:
        raise BadInput("the gate has no command to run", fix="name one: --gate 'make test'")
    words = [SHELL, "-c", f"exec 2>&1\n{command}"]
    if not as_person:
        if lacking := missing():
            raise NotInstalled(f"the gate has no sandbox: {lacking}", fix=BWRAP)
        at = at or export
        for place, source in visible.items():
            await asyncio.to_thread(_make_room, export, at, place, source)
        words = confined(
            words, cwd=at, writable=(), hidden=[*homes(), *hidden], instead={at: export}, shown=visible, network=network
        )
    child = _start(words, export, limits, environment, as_person=as_person)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while chunk := await child.read():
                    output.add(chunk)
                is_over = True
    finally:
        code = await child.end()
    if child.errno is not None or (child.stderr.startswith(b"bwrap:") and not as_person):
        said = child.stderr.decode("utf-8", "replace").strip() or os.strerror(child.errno or 0)
        raise NotInstalled(f"the gate could not be started: {said[:200]}", fix=BWRAP)
    if child.passed:
        output.add(f"\n[ended by dialogd: {child.passed}]\n".encode())
        code = 128 + signal.SIGKILL
    data = output.kept()
    with writing(f"the gate's log {log}"):
        await asyncio.to_thread(write_over, data, log)
    state = "timeout" if not is_over else "failed" if code else "passed"
    return GateResult(state, code if is_over else None, time.monotonic() - began, sha256(data).hexdigest(), _told(data))


def _make_room(export: Path, at: Path, place: Path, source: Path) -> None:
    """Have a place in the tree for what is shown in it, whatever the tree has there."""
    room, parts = export, place.relative_to(at).parts if place.is_relative_to(at) else ()
    for count, part in enumerate(parts, 1):
        room /= part
        is_folder, wanted = room.is_dir() and not room.is_symlink(), count < len(parts) or source.is_dir()
        if is_folder and not wanted:
            remove(room)
        if not (is_folder and wanted):
            room.unlink(missing_ok=True)
            room.mkdir() if wanted else room.touch()


def readable(folders: Sequence[Path], file: Path, state: Path, trees: Worktrees) -> list[Path]:
    """These folders as a gate may read them: of toolchains that lie in the home, and what git ignores in the checkout.

    Raises `BadInput` for what is no folder; for one that holds a home, the dialog, the checkout or another worktree, or
    lies in dialogd's state; and where anything lies that only its owner may read: so keys and tokens are kept.
    """
    apart = [*(("your home", home) for home in homes()), ("the dialog", file.parent.resolve())]
    apart += [("dialogd's state", state.resolve()), ("your checkout", trees.checkout.path)]
    found = []
    for folder in folders:
        path = folder.expanduser().resolve()
        if not path.is_dir():
            raise BadInput(f"{folder} is no folder", fix="name one that a toolchain lies in: --gate-sees ~/.pyenv")
        holds = next((name for name, one in apart if one.is_relative_to(path)), "")
        if path.is_relative_to(state.resolve()):
            holds = "dialogd's state"
        if path.is_relative_to(trees.checkout.path):
            if not any(path.is_relative_to(one) for one in trees.ignored()):
                holds = "files of your checkout that git does not ignore"
        elif any(path.is_relative_to(one) for one in trees.others()):
            holds = "another worktree"
        if not holds and (own := private(path)) is not None:
            holds = f"what only you may read ({own})"
        if holds:
            fix = "name a folder below it, in which nothing is secret, such as ~/.cargo/bin"
            raise BadInput(f"the gate must not see {path}: it holds {holds}", fix=fix)
        found.append(path)
    return found


def private(folder: Path) -> Path | None:
    """The first file or folder from there on that only its owner may read; None without one. Follows no links."""
    for place, _, names in os.walk(folder):
        for path in (Path(place), *(Path(place, name) for name in names)):
            with suppress(OSError):
                mode = path.lstat().st_mode
                if not stat.S_ISLNK(mode) and not mode & 0o044:
                    return path
    return None


def clear(root: Path, names: str) -> None:
    """Remove the folders of these names below a folder, and that too where nothing else is in it."""
    for folder in root.glob(names):
        remove(folder)
    with suppress(OSError):
        root.rmdir()


def remove(folder: Path) -> None:
    """Remove a folder that a program has filled, also where it took its own rights away; follows no links."""
    with suppress(OSError):
        folder.chmod(0o700)
    for path, names, _ in os.walk(folder):
        for inner in (Path(path, name) for name in names):
            with suppress(OSError):
                if stat.S_ISDIR(inner.lstat().st_mode):
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


class _Output:
    """What was said: its beginning, its end, and how much between them is left out."""

    def __init__(self) -> None:
        self._head, self._rest = bytearray(), bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        room = HEAD - len(self._head)
        self._head += chunk[:room]
        self._rest += chunk[room:]
        if len(self._rest) > 2 * TAIL:
            self._dropped += len(self._rest) - TAIL
            del self._rest[:-TAIL]

    def kept(self) -> bytes:
        """The log: all of it, or both ends with a line between them."""
        left_out = self._dropped + max(len(self._rest) - TAIL, 0)
        between = f"\n[{left_out:,} bytes are left out here]\n".encode() if left_out else b""
        return bytes(self._head) + between + bytes(self._rest[-TAIL:])


def _start(
    words: Sequence[str], export: Path, limits: Limits | None, more: Mapping[str, str], *, as_person: bool
) -> Child:
    home = os.environ.get("HOME") or next(map(str, homes()), "/")
    environment = clean_environment(os.environ) | {"HOME": home, "SHELL": SHELL, "TERM": "dumb", "CI": "true", **more}
    environment |= {} if as_person else {"TMPDIR": "/tmp"}
    try:
        return Child(words, b"", environment, export, limits or limits_of(export))
    except BackendError as error:
        raise DialogdError(f"the gate could not be started: {error}", fix=error.fix) from error


def _told(data: bytes) -> str:
    """The end of the output, in whole lines where there are some."""
    end = data[-TOLD:]
    if len(data) > TOLD and b"\n" in end[:-1]:
        end = end.partition(b"\n")[2]
    return ESCAPE_SEQUENCE.sub("", end.decode("utf-8", "replace")).replace("\r\n", "\n").strip("\n")
