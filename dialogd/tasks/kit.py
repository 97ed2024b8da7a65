"""The kit of a task: what its tests need beside its files, such as `.venv`, made by the person's setup command.

The setup runs in a scratch copy of the task's base that stands at the worktree's own path, so that what it writes
leads there. What git ignores in that copy afterwards is the kit. It is kept beside the worktrees, where no program of
the build can write, and shown read-only, at its places, to who works on the task and to the gate.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from dialogd.backends import MACHINE
from dialogd.backends.command import BWRAP, homes, missing
from dialogd.errors import NotInstalled, Refused
from dialogd.protocol.build import GateResult
from dialogd.protocol.model import digest
from dialogd.store.disk import write_json
from dialogd.tasks.gate import NOT_STARTED, Gate, Kit, clear, how_it_ended, private, remove
from dialogd.tasks.worktrees import PARTS, Worktrees, places, some

PLACES = 200  # folders and files of a kit: each is mounted by itself
_NEEDED = frozenset({
    *map(str.lower, MACHINE), "curl_ca_bundle", "pip_cert", "pip_config_file", "pip_index_url", "pip_extra_index_url",
    "pip_find_links", "pip_no_index", "uv_default_index", "uv_index", "uv_index_url", "uv_find_links", "uv_native_tls",
    "uv_offline", "npm_config_registry", "npm_config_cafile", "goproxy", "gosumdb", "cargo_net_offline",
})  # fmt: skip
_PASSWORD = re.compile(r"://[^/\s]*@")

_PIP = "python3 -m venv .venv && .venv/bin/pip install -q"
_PYTEST = ".venv/bin/python -m pytest -q"

# A file of a checkout, and a piece of its text; the setup that is usual then, which needs the network, and the gate.
# Of either the first one counts.
_USUAL = (
    ("Makefile", "\ntest:", "", "make test"),
    ("uv.lock", "", "uv sync --frozen", ""),
    ("poetry.lock", "", "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install", ""),
    ("requirements.txt", "", f"{_PIP} -r requirements.txt pytest", _PYTEST),
    ("pyproject.toml", "", f"{_PIP} -e . pytest", _PYTEST),
    ("package-lock.json", "", "npm ci", ""),
    ("pnpm-lock.yaml", "", "pnpm install --frozen-lockfile", ""),
    ("yarn.lock", "", "yarn install --frozen-lockfile", ""),
    ("package.json", "", "npm install --no-package-lock", ""),
    ("package.json", '"test"', "", "npm test"),
    ("Cargo.toml", "", "", "cargo test"),
    ("go.mod", "", "", "go test ./..."),
)


# What a program reads of the home, beside the folder that it is installed in.
_READS = {"cargo": ("~/.rustup", "~/.cargo/registry", "~/.cargo/git"), "go": ("~/go/pkg/mod",)}


def usual(checkout: Path) -> dict[str, tuple[str, str]]:
    """For `setup` and `gate` the file of a checkout by which one is usual, and that command; "" without one."""
    found = {"setup": ("", ""), "gate": ("", "")}
    for name, piece, setup, gate in reversed(_USUAL):
        with suppress(OSError):
            if piece in "\n" + (checkout / name).read_text("utf-8", "replace"):
                found |= {what: (name, command) for what, command in (("setup", setup), ("gate", gate)) if command}
    return found


def toolchains(command: str) -> list[Path]:
    """The folders of the home that a sandbox has to be shown for a command: what its program reads there.

    With that in which it is installed, where no folder of `PATH` outside of the home has it.
    """
    program, own = next((word for word in command.split() if "=" not in word), ""), homes()
    found = [Path(one).expanduser() for one in _READS.get(program, ())]
    places = [Path(one).resolve() for one in os.get_exec_path() if "/" not in program and Path(one, program).is_file()]
    if places and all(any(place.is_relative_to(home) for home in own) for place in places):
        whole = places[0].parent  # all of `~/.nvm/versions/node/v24`, not its `bin` alone, where nothing is private
        found.insert(0, places[0] if whole in own or private(whole) else whole)
    return [one for one in found if one.is_dir() and not any(one.is_relative_to(of) for of in found if of != one)]


async def prepare(gate: Gate, at: Path, base: str) -> Kit:
    """The kit of the worktree at that path, where each part stands, and lies; made now unless it is there.

    The setup is run as its gate is, on that base. Raises `Refused` where it fails, or changes what git does not ignore;
    else as `Gate.over` does.
    """
    rules = gate.rules
    folder = gate.trees.root / f".kit-{at.name}.{digest(json.dumps([rules.setup, rules.setup_network, base]))}"
    if rules.setup and not folder.is_dir():
        await _make(gate, at, base, folder)
    return {at / name: folder / "kit" / name for name in places(folder)}


async def _make(gate: Gate, at: Path, base: str, folder: Path) -> None:
    rules, trees, aside, name = gate.rules, gate.trees, gate.aside, f"setup-{gate.trees.build}-{at.name}"
    if lacking := missing():
        raise NotInstalled(f"the setup has no sandbox: {lacking}", fix=f"{BWRAP}; or leave out --setup")
    await aside(lambda: clear(trees.root, f".setup-{at.name}.*"))  # of one that was killed
    scratch = trees.scratch(f".setup-{at.name}.")
    tree = scratch / "tree"
    try:
        network, environment = rules.setup_network, _environment()
        ran = await gate.in_copy(rules.setup, base, tree, name, at, network=network, environment=environment)
        if ran.state != "passed":
            said = " / ".join([row.strip() for row in ran.tail.split("\n") if row.strip()][-3:]) or "it printed nothing"
            begins = at.name == trees.trial  # later the setup stays as it is
            more = "; --setup-network gives it the network" if begins and not network else ""
            lacks = toolchains(rules.setup) if ran.code in NOT_STARTED else ()
            more += "".join(f"; --gate-sees {one} shows it that" for one in lacks)
            what = f"the setup `{rules.setup}` {how_it_ended(ran, rules.gate_timeout)}: {said}"
            raise Refused(what, fix=f"its output: {gate.log(name)}{more}")
        await aside(lambda: _keep(trees, base, tree, scratch, rules.setup))
        await aside(lambda: clear(trees.root, f".kit-{at.name}.*"))  # of another base
        await aside(lambda: scratch.rename(folder))
    finally:
        await aside(lambda: remove(scratch))


async def trial(gate: Gate, base: str, name: str) -> GateResult | None:
    """How a gate ends on a commit, after its setup where there is one; None without a gate. Raises as `Gate.over`."""
    at = gate.trees.root.resolve() / gate.trees.trial
    try:
        await prepare(gate, at, base)
        return await gate.over(base, name, at=at, base=base) if gate.rules.gate else None
    finally:
        await gate.aside(lambda: clear(gate.trees.root, f".kit-{at.name}.*"))


def _keep(trees: Worktrees, base: str, tree: Path, scratch: Path, command: str) -> None:
    """Make a kit of what a setup left in its copy of the tree, in `scratch`; nothing else stays there."""
    ignored, changed = trees.left(base, tree)
    tops = [*_tops(ignored)]
    # One that hides itself would hide from git what the lead adds beside it.
    if changed := [*changed, *(os.fsencode(name) for name in tops if Path(name).name == ".gitignore")]:
        fix = "name what it makes in .gitignore, and commit that; or have it leave these files as they are"
        raise Refused(f"the setup `{command}` changes what git does not ignore: {some(changed)}", fix=fix)
    parts = [name for name in tops if _is_part(tree / name)]
    if len(parts) > PLACES:
        fix = "have it make folders that git ignores as a whole, such as .venv or node_modules"
        raise Refused(f"the setup `{command}` leaves {len(parts)} files and folders, at most {PLACES} can be", fix=fix)
    for name in parts:
        to = scratch / "kit" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        (tree / name).rename(to)
    remove(tree)
    write_json(scratch / PARTS, parts)


def _tops(names: Sequence[bytes]) -> Iterator[str]:
    """These names without those that lie in another one of them."""
    folders = {name for name in names if name.endswith(b"/")}
    for name in names:
        inside = (name[: at + 1] for at in range(len(name) - 1) if name[at : at + 1] == b"/")
        if folders.isdisjoint(inside):
            yield os.fsdecode(name.rstrip(b"/"))


def _is_part(path: Path) -> bool:
    """Whether it can be shown at its place: no link, which would lead elsewhere, and no compiled Python."""
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        path.chmod(stat.S_IMODE(mode) | 0o700)  # so that it can be moved
    return (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) and path.name != "__pycache__"


def _environment() -> dict[str, str]:
    """What of the person's environment says where packages come from; nothing with a password in it."""
    given = os.environ.items()
    return {name: value for name, value in given if name.lower() in _NEEDED and not _PASSWORD.search(value)}
