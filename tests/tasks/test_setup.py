"""A setup: what it may write, what of it is kept, and who sees that."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends.command import missing
from dialogd.errors import Refused
from dialogd.protocol.build import Due
from dialogd.protocol.rules import Build
from dialogd.tasks.gate import Gate, remove
from dialogd.tasks.kit import PLACES, prepare, toolchains, usual
from dialogd.tasks.worktrees import Worktree, Worktrees
from tests.support.cases import cases
from tests.support.pair import PATIENCE
from tests.tasks.ordinary import wheels
from tests.tasks.repos import Plants, a_repo, write
from tests.tasks.site import BWRAP, PLAN, Site, git, in_sight
from tests.tasks.test_git import ATTRIBUTES, planted

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
CONNECT = "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {}), 5)'"


class Bench:
    """A repository with a file, and the setups of its tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.file = folder, folder / "state", folder / "talk" / "dialog.md"
        self.state.mkdir()
        write(folder, {"talk/dialog.md": "SECRET"})
        self.repo = a_repo(folder / "mine", {".gitignore": "kit/\n*.made\n", "a.txt": "a\n", "sub/b.txt": "b\n"})
        self.trees = Worktrees(self.repo.path, build="3f9a1c")
        self.base = self.repo.git("rev-parse", "HEAD")

    def worktree(self, number: int = 1) -> Worktree:
        """The worktree of a task."""
        return self.trees.open(number, "ages", self.base)

    def gate(self, command: str, setup: str = "", limit: float = 60.0, *, network: bool = False) -> Gate:
        """A command over a tree, after a setup."""
        rules = Build("M", "L", gate=command, gate_timeout=limit, setup=setup, setup_network=network)
        return Gate(rules, self.trees, self.file, self.state)

    async def prepare(self, command: str, number: int = 1, *, network: bool = False) -> dict[str, Path]:
        """The kit that a setup makes: where each part lies, by its name in the tree."""
        at = self.worktree(number).path
        made = await prepare(self.gate("", command, network=network), at, self.base)
        return {str(place.relative_to(at)): source for place, source in made.items()}

    @property
    def beside(self) -> list[str]:
        """What lies beside the worktrees."""
        return sorted(path.name.rpartition(".")[0] for path in self.trees.root.iterdir() if path.name.startswith("."))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The same, with an empty home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Bench(tmp_path)


@pytest.fixture
def bench_in_sight(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The same where a sandbox shows all that it is not told to hide."""
    with in_sight() as folder:
        (folder / "home").mkdir()
        (folder / "mine").mkdir()
        monkeypatch.setenv("HOME", str(folder / "home"))
        yield Bench(folder)


async def test_what_git_ignores_is_kept_and_leads_to_the_worktree(bench: Bench) -> None:
    """Whole folders and single files, also of a folder that ignores itself; no link that stands alone."""
    command = (
        "mkdir -p kit/bin .venv/bin sub/kit __pycache__; echo $PWD >kit/bin/where; echo '*' >.venv/.gitignore; "
        "touch x.made .venv/bin/python sub/kit/one sub/kit/two; ln -s / root.made; ln -s ../sub kit/sub"
    )
    found = await bench.prepare(command)
    assert sorted(found) == [".venv", "kit", "sub/kit", "x.made"]
    assert (found["kit"] / "bin" / "where").read_text() == f"{bench.worktree().path}\n"
    assert sorted(path.name for path in found["sub/kit"].iterdir()) == ["one", "two"]
    assert bench.beside == [".kit-task-001-ages"]
    assert sorted(path.name for path in bench.worktree().path.iterdir()) == [".git", ".gitignore", "a.txt", "sub"]


async def test_each_task_has_its_own_and_makes_it_once(bench: Bench) -> None:
    command = "mkdir kit; echo $PWD >kit/where; date +%N >kit/when"
    one, two = await bench.prepare(command), await bench.prepare(command, 2)
    assert [(found["kit"] / "where").read_text().strip() for found in (one, two)] == [
        str(bench.worktree(number).path) for number in (1, 2)
    ]
    when = (one["kit"] / "when").read_text()
    assert ((await bench.prepare(command))["kit"] / "when").read_text() == when
    other = await bench.prepare(f"{command}; true")
    assert (other["kit"] / "when").read_text() != when
    assert bench.beside == [".kit-task-001-ages", ".kit-task-002-ages"]


async def test_a_kit_is_of_one_base_and_one_network(bench: Bench) -> None:
    at, command = bench.worktree().path, "mkdir kit; cp a.txt kit; date +%N >kit/when"
    first = await prepare(bench.gate("", command), at, bench.base)
    assert await prepare(bench.gate("", command), at, bench.base) == first
    base = bench.repo.commit({"a.txt": "b\n"})
    second = await prepare(bench.gate("", command), at, base)
    assert (second[at / "kit"] / "a.txt").read_text() == "b\n"
    when = (second[at / "kit"] / "when").read_text()
    third = await prepare(bench.gate("", command, network=True), at, base)
    assert (third[at / "kit"] / "when").read_text() != when
    assert bench.beside == [".kit-task-001-ages"]


async def test_a_setup_writes_nothing_else_and_reads_no_secret(bench_in_sight: Bench) -> None:
    bench = bench_in_sight
    home, worktree, other = Path(os.environ["HOME"]), bench.worktree(), bench.worktree(2)
    kept = bench.file.with_name("dialog.md.d")
    kept.mkdir()
    places = [home, kept, bench.state, bench.repo.path, bench.trees.root, worktree.git_dir, bench.trees.git.git_dir]
    for place in (*places, other.path):
        (place / "key").write_text(f"SECRET of {place}\n")
    (bench.folder / "open").write_text("OPEN\n")  # what nobody hides is seen
    places += [other.path, bench.file.parent, bench.folder, Path("/usr"), Path("/tmp")]
    before = {place: sorted(path.name for path in place.iterdir()) for place in places}
    tries = "; ".join(f"echo x >'{place}/planted'; cat '{place}'/* >>kit/seen" for place in places)
    found = await bench.prepare(f"mkdir kit; touch kit/seen; ({tries}) 2>/dev/null; true")
    seen = (found["kit"] / "seen").read_text(errors="replace")
    assert ("OPEN\n" in seen, re.findall("SECRET.*", seen)) == (True, [])
    after = {place: sorted(path.name for path in place.iterdir()) for place in places}
    assert [name for place in places for name in after[place] if name == "planted"] == []
    assert {place for place in places if place != bench.trees.root and before[place] != after[place]} <= {
        bench.state, Path("/tmp"), bench.trees.git.git_dir,
    }  # fmt: skip


@cases("network", [True, False])
async def test_the_network_is_there_where_the_person_allows_it(bench: Bench, network: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = f"mkdir kit; {CONNECT.format(server.getsockname()[1])} && touch kit/reached; true"
        found = await bench.prepare(command, network=network)
    assert ((found["kit"] / "reached").exists()) == network


async def test_it_is_told_where_packages_are_and_no_password(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"HTTPS_PROXY": "http://proxy:3128", "PIP_INDEX_URL": "https://me:word@index/simple", "MY_TOKEN": "word"}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    found = await bench.prepare("mkdir kit; env >kit/env")
    said = (found["kit"] / "env").read_text()
    assert ("HTTPS_PROXY=http://proxy:3128\n" in said, "word" in said) == (True, False)


@cases(
    "command, why",
    [
        ("echo one; echo no such package >&2; exit 3", r"`.*` failed: exit code 3: one / no such package"),
        ("exit 1", "it printed nothing"),
        ("mkdir kit; echo b >>sub/b.txt", r"changes what git does not ignore: sub/b\.txt"),
        ("mkdir kit; rm a.txt", r"changes what git does not ignore: a\.txt"),
        ("mkdir kit; echo '*' >>.gitignore", r"changes what git does not ignore: \.gitignore"),
        ("echo '*' >sub/.gitignore; touch sub/new", r"changes what git does not ignore: sub/\.gitignore"),
        ("mkdir kit new; touch new/file", "changes what git does not ignore: new/file"),
        ("chmod +x a.txt; echo b >>a.txt", r"changes what git does not ignore: a\.txt"),
        ("rm a.txt; ln -s sub/b.txt a.txt", r"changes what git does not ignore: a\.txt"),
        (f"for n in $(seq {PLACES + 1}); do touch $n.made; done", f"leaves {PLACES + 1} files and folders"),
    ],
)
async def test_what_goes_wrong_leaves_nothing(bench: Bench, command: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as found:
        await bench.prepare(command)
    assert found.value.fix
    assert bench.beside == []


async def test_a_setup_that_takes_too_long_is_ended(bench: Bench) -> None:
    setup = bench.gate("", "mkdir kit; sleep 600", 1.0)
    with pytest.raises(Refused, match="had not ended in 1 second"):
        await prepare(setup, bench.worktree().path, bench.base)
    assert bench.beside == []


def test_what_a_kill_leaves_is_no_kit(bench: Bench) -> None:
    """The next run removes what is half made."""
    worktree, command = bench.worktree(), "mkdir kit; [ -e /tmp/none ] || touch kit/half; sleep 600"
    script = (
        "import asyncio, sys; from pathlib import Path; from dialogd.tasks.gate import Gate;"
        " from dialogd.tasks.kit import prepare; from dialogd.protocol.rules import Build;"
        " from dialogd.tasks.worktrees import Worktrees; repo, file, state, at, base, command = sys.argv[1:];"
        " rules = Build('M', 'L', setup=command);"
        " gate = Gate(rules, Worktrees(Path(repo), build='3f9a1c'), Path(file), Path(state));"
        " asyncio.run(prepare(gate, Path(at), base))"
    )
    words = [bench.repo.path, bench.file, bench.state, worktree.path, bench.base, command]
    process = subprocess.Popen([sys.executable, "-c", script, *map(str, words)])

    async def half() -> None:
        async with asyncio.timeout(PATIENCE):
            while not [*bench.trees.root.glob(".*/tree/kit/half")]:
                await asyncio.sleep(0.02)

    try:
        asyncio.run(half())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert bench.beside == [".setup-task-001-ages"]
    asyncio.run(bench.prepare("mkdir kit; touch kit/whole"))
    assert bench.beside == [".kit-task-001-ages"]


async def test_only_what_files_hold_counts(bench: Bench) -> None:
    """A script that is made executable is as it was; names are whatever they are."""
    names = [r"a\377b.made", r"line\nbreak.made", r"kit/\377"]
    made = "; ".join(f"""touch "$(printf '{name}')\"""" for name in names)
    found = await bench.prepare(f"chmod +x a.txt sub/b.txt; mkdir kit; {made}")
    assert {os.fsencode(name) for name in found} == {b"a\xffb.made", b"line\nbreak.made", b"kit"}
    assert [os.fsencode(path.name) for path in found["kit"].iterdir()] == [b"\xff"]


@pytest.mark.parametrize("where", ["own", "included", "home"])
async def test_in_a_hostile_repository_nothing_of_it_runs_for_a_setup(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    plants = Plants(bench.folder / "plants")
    bench.base = bench.repo.commit({".gitattributes": ATTRIBUTES, "c.long": "long\n"})
    planted(bench.repo, plants, where)
    monkeypatch.setenv("HOME", str(bench.repo.home))
    plants.forget()
    command = "mkdir kit; cat a.txt c.long >kit/seen"
    found = await bench.prepare(command)
    assert (found["kit"] / "seen").read_text() == "a\nlong\n"
    gate = bench.gate("cat kit/seen", command)
    ran = await gate.over(bench.base, "one", at=bench.worktree().path, base=bench.base)
    assert (ran.state, ran.tail, plants.ran) == ("passed", "a\nlong", set())


async def test_what_a_setup_plants_for_git_runs_nowhere(bench: Bench) -> None:
    """Neither the repository that it makes of its copy, nor one in what is kept; nor count what such a one ignores."""
    plants, worktree = Plants(bench.folder / "plants"), bench.worktree()
    program, link = plants.program("any", "exit 1"), (worktree.path / ".git").read_text()
    plants.forget()
    plant = (
        f"git config core.fsmonitor '{program}'; git config core.hooksPath '{plants.folder}/bin'; echo '*' >.git/info/"
        f"exclude; for hook in post-index-change reference-transaction; do ln -s '{program}' .git/hooks/$hook; done"
    )
    command = f"mkdir kit; for one in . kit; do git init -q $one && (cd $one && {plant}) || exit 1; done"
    found = await bench.prepare(command)
    assert list(found) == ["kit"]
    assert (worktree.path / ".git").read_text() == link
    assert bench.beside == [".kit-task-001-ages"]
    write(worktree.path, {"a.txt": "b\n"})
    at, commit = worktree.path, bench.trees.submit(worktree, 1, "1:x", "Task").commit
    ran = await bench.gate("cat a.txt", command).over(commit, "one", at=at, base=bench.base)
    assert (ran.tail, plants.ran) == ("b", set())
    with pytest.raises(Refused, match=r"changes what git does not ignore: new\.txt"):
        await bench.prepare(f"{command}; touch new.txt", 2)
    assert plants.ran == set()


async def test_what_a_setup_made_is_in_no_commit_also_where_git_ignores_it_no_more(bench: Bench) -> None:
    """A sandbox leaves an empty file where it has shown one."""
    await bench.prepare("mkdir kit; echo made | tee kit/one >x.made")
    worktree = bench.worktree()
    write(worktree.path, {".gitignore": "", "x.made": "", "y.made": "mine\n"})
    commit = bench.trees.submit(worktree, 1, "1:x", "Task").commit
    assert bench.repo.git("ls-tree", "-r", "--name-only", commit).split() == [
        ".gitignore", "a.txt", "sub/b.txt", "y.made",
    ]  # fmt: skip


async def test_a_gate_stands_where_the_worktree_is_and_cannot_change_the_kit(bench: Bench) -> None:
    """Whatever the tree under test has at its places: a link, a file, a folder."""
    command = "mkdir -p kit sub/kit; echo right | tee kit/tool sub/kit/tool x.made >/dev/null"
    worktree = bench.worktree()
    await bench.prepare(command)
    write(worktree.path, {".gitignore": "", "kit": "a file"})
    (worktree.path / "sub" / "b.txt").unlink()
    (worktree.path / "sub").rmdir()
    (worktree.path / "sub").symlink_to(bench.repo.path)
    (worktree.path / "x.made").mkdir()
    (worktree.path / "x.made" / "y").touch()
    commit = bench.trees.submit(worktree, 1, "1:x", "Task").commit
    gate = bench.gate(
        f"pwd; cat kit/tool sub/kit/tool x.made; ls '{bench.repo.path}'; (echo x >kit/tool; rm -rf kit sub/kit;"
        f" mv kit k; echo x >x.made; for one in '{bench.trees.root}'/.kit-*; do echo x >\"$one/kit/kit/tool\";"
        " done) 2>/dev/null; cat kit/tool",
        command,
    )
    ran = await gate.over(commit, "one", at=worktree.path, base=bench.base)
    assert (ran.state, ran.tail.split("\n")) == ("passed", [str(worktree.path), *["right"] * 4])
    assert bench.beside == [".kit-task-001-ages"]  # its copy is gone
    assert {path.read_text() for path in bench.trees.root.glob(".kit-*/kit/**/tool")} == {"right\n"}


@cases("held, other", [("L", "N"), ("N", "L"), ("L-2", "L")])
async def test_a_gate_leaves_the_copy_of_another_lead_s_gate_alone(bench: Bench, held: str, other: str) -> None:
    """That is removed of one's own alone, where a gate was killed."""
    waits = replace(bench.gate("mkfifo held && read -r word <held; cat a.txt"), by=held)
    first = asyncio.create_task(waits.over(bench.base, "one"))
    try:
        async with asyncio.timeout(PATIENCE):
            while not (found := [*bench.trees.root.glob(".gate-*/held")]):
                assert not first.done()
                await asyncio.sleep(0.01)
        second = await replace(bench.gate("cat a.txt"), by=other).over(bench.base, "two")
        assert found[0].exists()
        await asyncio.to_thread(found[0].write_text, "go on\n")
        assert [(one.state, one.tail) for one in (await first, second)] == [("passed", "a")] * 2
    finally:
        first.cancel()


@cases(
    "files, setup, gate",
    [
        ({"uv.lock": "", "pyproject.toml": ""}, "uv sync --frozen", ".venv/bin/python -m pytest -q"),
        ({"package.json": '{"scripts": {"test": "x"}}', "package-lock.json": ""}, "npm ci", "npm test"),
        ({"package.json": "{}"}, "npm install --no-package-lock", ""),
        ({"Makefile": "all:\n\ntest: all\n", "go.mod": ""}, "", "make test"),
        ({"Makefile": "all:\n", "Cargo.toml": ""}, "", "cargo test"),
        ({"README.md": ""}, "", ""),
    ],
)
def test_the_usual_commands_follow_from_the_files(
    tmp_path: Path, files: Mapping[str, str], setup: str, gate: str
) -> None:
    folder = tmp_path / "-".join(files)
    write(folder, dict(files))
    assert {what: command for what, (_, command) in usual(folder).items()} == {"setup": setup, "gate": gate}


@cases(
    "files, command, shown",
    [
        (["~/.nvm/v24/bin/npm"], "CI=1 npm ci", ["~/.nvm/v24"]),
        (["~/.nvm/v24/bin/npm", "system/bin/npm"], "npm ci", []),
        (["~/.own/bin/npm", "~/.own/token"], "npm ci", ["~/.own/bin"]),
        (["~/bin/npm"], "npm ci", ["~/bin"]),
        (["~/.cargo/bin/cargo", "~/.cargo/registry/one", "~/.rustup/two"], "cargo test", ["~/.cargo", "~/.rustup"]),
        (["system/bin/go", "~/go/pkg/mod/one"], "go test ./...", ["~/go/pkg/mod"]),
        (["~/.nvm/v24/bin/npm"], ".venv/bin/npm", []),
    ],
)
def test_a_toolchain_that_lies_in_the_home_alone_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Sequence[str], command: str, shown: Sequence[str]
) -> None:
    home, folders = tmp_path / "home", list[str]()
    monkeypatch.setenv("HOME", str(home))
    for name in files:
        path = Path(name).expanduser() if name.startswith("~") else tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600 if path.name == "token" else 0o755)
        folders += [str(path.parent)] * (path.parent.name == "bin")
    monkeypatch.setenv("PATH", ":".join(folders))
    assert toolchains(command) == [Path(one).expanduser() for one in shown]


# -- In a build -------------------------------------------------------------------------------------------------------


PYTHON = "python3 -m venv .venv && .venv/bin/pip install -q --no-index --find-links vendor pytest"
NODE = "npm install --no-audit --no-fund --no-package-lock --offline --install-links"
AGES = {"ages.py": "def read(text):\n    return int(text)\n"}
FORGES = (
    "echo '#!/bin/sh' >.venv/bin/pytest; rm -rf .venv; mv .venv other; rm -rf ../.kit-*; echo x >>.venv/bin/python;"
    " .venv/bin/pytest -q -p no:cacheprovider"
)


def begun(site: Site, files: Mapping[str, str], setup: str) -> None:
    """Have files in its repository, and a setup."""
    write(site.repo, dict(files))
    git(site.repo, "add", "-A")
    if "checks/run.js" in files:
        git(site.repo, "update-index", "--chmod=+x", "checks/run.js")
    git(site.repo, "commit", "-q", "-m", "Ages")
    site.rules = (*site.rules, f"setup = '{setup}'")
    site.own_flags["L"] += ["--setup", setup]


@pytest.mark.slow
@pytest.mark.skipif(bool(BWRAP), reason=BWRAP or "it is here")
def test_the_lead_runs_what_the_gate_runs_and_cannot_change_it(tmp_path: Path) -> None:
    """It sees its test fail by the pytest of the kit, and so does the gate, whatever it tried."""
    script = {
        "plan": PLAN.splitlines()[0],
        "001.1": {**AGES, "run": FORGES},
        "001.2": {"ages.py": "def read(text):\n    return abs(int(text))\n", "run": ".venv/bin/pytest -q"},
    }
    with Site(tmp_path, script, gate=".venv/bin/pytest -q -p no:cacheprovider") as site:
        test = "import ages\n\n\ndef test_read():\n    assert ages.read('-3') == 3\n"
        wheels(site.repo / "vendor")
        begun(site, {"test_ages.py": test, ".gitignore": ".venv\n__pycache__\n"}, PYTHON)
        site.build()
        assert [task.state for task in site.tasks] == ["approved"], site.text
        first, second = site.text.split("[GATE: 001 | failed |")
        assert "I ran it: 1 " in first
        assert "1 failed" in first
        assert "[GATE: 001 | passed |" in second
        assert "1 passed" in second
        assert git(site.repo, "ls-tree", "-r", "--name-only", site.tasks[0].commit).count(".venv") == 0


@pytest.mark.skipif(bool(BWRAP), reason=BWRAP or "it is here")
def test_a_kit_that_is_gone_is_made_anew_before_the_lead_is_asked(tmp_path: Path) -> None:
    reads = {"run": "cat kit/tool"}
    script = {"plan": PLAN.splitlines()[0], "001.1": {**AGES, **reads}, "review 001.1": "no", "001.2": reads}
    with Site(tmp_path, script, gate="cat kit/tool") as site:
        begun(site, {".gitignore": "kit\n"}, "mkdir kit; echo right >kit/tool")
        site.waits_at("review 001.1")
        site.plan()
        site.until_asked("review 001.1")
        (kept,) = (tmp_path / "repo.dialogd").glob(".kit-*")
        remove(kept)
        site.waits_at()
        site.until_asked("work 001.2")
        assert kept.is_dir()
        site.until(lambda: site.text.count("I ran it: 0 right") == 2, "the second attempt")


@pytest.mark.slow
@pytest.mark.skipif(bool(BWRAP), reason=BWRAP or "it is here")
def test_a_node_project_has_its_node_modules(tmp_path: Path) -> None:
    package = '{"name": "app", "scripts": {"test": "checks"}, "dependencies": {"checks": "file:./checks"}}'
    checks = '{"name": "checks", "version": "1.0.0", "bin": "run.js"}'
    runs = (
        "#!/usr/bin/env node\nconst is = require(process.cwd() + '/ages.js').read('-3') === 3;\n"
        "console.log(is ? 'green' : 'red');\nprocess.exit(is ? 0 : 1);\n"
    )
    script = {
        "plan": PLAN.splitlines()[0],
        "001.1": {"ages.js": "exports.read = (text) => Math.abs(text);\n", "run": "npm test"},
    }
    files = {
        "package.json": package, "checks/package.json": checks, "checks/run.js": runs, ".gitignore": "node_modules\n",
        "ages.js": "exports.read = (text) => Number(text);\n",
    }  # fmt: skip
    with Site(tmp_path, script, gate="npm test") as site:
        begun(site, files, NODE)
        site.build()
        assert [(task.state, task.gate) for task in site.tasks] == [("approved", "passed")], site.text
        assert "I ran it: 0 " in site.text


# Projects whose tests are run by a program of their own, which git does not have as one: `npm ci` makes it one.
PROGRAM = {
    "checks/package.json": '{"name": "checks", "version": "1.0.0", "bin": {"checks": "./run.js"}}',
    "checks/run.js": "#!/usr/bin/env node\nconsole.log('green');\n",
    ".gitignore": "node_modules\n",
}
OF_A_WORKSPACE = {**PROGRAM, "package.json": '{"workspaces": ["checks"], "scripts": {"test": "checks"}}'}
OF_A_FOLDER = {
    **PROGRAM,
    "package.json": '{"dependencies": {"checks": "file:./checks"}, "scripts": {"test": "checks"}}',
}
CI = "npm ci --offline --no-audit --no-fund"


def locked(repo: Path, files: Mapping[str, str]) -> None:
    """Write a Node project with its lock file."""
    write(repo, dict(files))
    words = ["npm", "install", "--package-lock-only", *CI.split()[2:]]
    subprocess.run(words, cwd=repo, check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
@pytest.mark.parametrize("file_mode", ["true", "false"])
@pytest.mark.parametrize("files", [OF_A_WORKSPACE, OF_A_FOLDER], ids=["workspace", "folder"])
async def test_a_program_that_npm_makes_executable_fails_no_setup_and_is_in_no_commit(
    bench: Bench, files: Mapping[str, str], file_mode: str
) -> None:
    """Until the lead makes it one, where the repository's git looks at that."""
    bench.repo.git("config", "core.fileMode", file_mode)
    bench.trees = Worktrees(bench.repo.path, build=bench.trees.build)
    locked(bench.repo.path, files)
    bench.base = bench.repo.commit()
    found = await bench.prepare(f"{CI}; mkdir node_modules/seen; stat -c %A checks/run.js >node_modules/seen/mode")
    assert list(found) == ["node_modules"]
    assert (found["node_modules"] / "seen" / "mode").read_text() == "-rwxr-xr-x\n"
    worktree = bench.worktree()
    assert not os.access(worktree.path / "checks" / "run.js", os.X_OK)
    write(worktree.path, {"a.txt": "b\n"})
    one = bench.trees.submit(worktree, 1, "1:x", "Task")
    assert bench.repo.git("diff", "--name-only", bench.base, one.commit) == "a.txt"
    ran = await bench.gate("node node_modules/.bin/checks", CI).over(one.commit, "1", at=worktree.path, base=bench.base)
    assert (ran.state, ran.tail) == ("passed", "green")
    (worktree.path / "checks" / "run.js").chmod(0o755)
    two = bench.trees.submit(worktree, 2, "2:x", "Task")
    told = bench.repo.git("diff", "--summary", one.commit, two.commit).split()
    assert told == (["mode", "change", "100644", "=>", "100755", "checks/run.js"] if file_mode == "true" else [])


@pytest.mark.slow
@pytest.mark.skipif(bool(BWRAP) or shutil.which("npm") is None, reason=BWRAP or "npm is not installed")
def test_a_program_of_a_workspace_runs_where_git_has_it_as_one(tmp_path: Path) -> None:
    script = {"plan": PLAN.splitlines()[0], "001.1": {"a.txt": "a\n", "run": "npm test --no-update-notifier"}}
    with Site(tmp_path, script, gate="npm test") as site:
        locked(site.repo, OF_A_WORKSPACE)
        begun(site, OF_A_WORKSPACE, CI)
        site.build()
        assert [(task.state, task.gate) for task in site.tasks] == [("approved", "passed")], site.text
        assert "I ran it: 0 " in site.text
        assert "green" in site.text


@pytest.mark.slow
@pytest.mark.skipif(bool(BWRAP), reason=BWRAP or "it is here")
def test_a_setup_that_fails_stops_the_task_before_the_lead_is_asked(tmp_path: Path) -> None:
    with Site(tmp_path, {"plan": PLAN.splitlines()[0], "001.1": AGES}, gate="true") as site:
        begun(site, {".gitignore": "kit\n"}, "mkdir kit; [ -e go ] || { echo no such package; exit 3; }")
        site.plan()
        site.until_due(Due.STUCK)
        assert "failed: exit code 3: no such package" in site.tasks[0].why
        assert site.calls == ["plan"]


@pytest.mark.parametrize("what", ["'mkdir kit'", "with the network"])
def test_a_daemon_runs_no_other_setup_than_its_flags_say(tmp_path: Path, what: str) -> None:
    with Site(tmp_path, {"plan": PLAN.splitlines()[0], "001.1": AGES}, gate="true") as site:
        begun(site, {".gitignore": "kit\n"}, "mkdir kit")
        if "network" in what:
            site.rules = (*site.rules, "setup_network = true")
        else:
            site.own_flags["L"][-1] = "mkdir other"
        site.plan()
        told = f"asks for {'a' if 'network' in what else 'the'} setup {what}"
        site.until(lambda: told in site.told_by_logs() or len(site.calls) > 1, "the daemon's words")
        assert (site.calls, told in site.told_by_logs()) == (["plan"], True)


@pytest.mark.skipif(bool(BWRAP), reason=BWRAP or "it is here")
def test_a_setup_that_takes_long_is_told(tmp_path: Path) -> None:
    """Not what was waited for before it, which was the person's word."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Site(tmp_path, {"plan": PLAN.splitlines()[0], "001.1": AGES}, gate="true") as site,
    ):
        server.settimeout(PATIENCE)
        holds = f"import socket as s; s.create_connection((None, {server.getsockname()[1]})).recv(1)"
        begun(site, {".gitignore": "kit\n"}, f'mkdir kit; python3 -c "{holds}"')
        site.rules = (*site.rules, "setup_network = true")
        site.own_flags["L"].append("--setup-network")
        site.plan()
        held, _ = server.accept()
        words = [sys.executable, "-m", "dialogd", "status", "--file", str(site.file)]
        said = subprocess.run(words, env=site.environment, capture_output=True, text=True, check=True).stdout
        assert "L sets up 001" in said, said
        assert "waiting for the person" not in said
        held.close()
        site.until_end()


def test_a_setup_that_stands_in_the_file_alone_is_not_run_to_try_a_gate(tmp_path: Path) -> None:
    with Site(tmp_path, rules=("cycles = 0", 'setup = "exit 7"')) as site:
        site.open()
        tried = site.commands("tasks", "gate", "true", "--yes")
        assert tried.stdout.startswith("the gate is 'true' from the next tree on"), tried.stderr
        assert "not tried: the setup 'exit 7' stands in the file" in tried.stderr
