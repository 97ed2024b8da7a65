"""Plant the bugs of tests/bugs.toml, one at a time, and see that the tests they name catch them.

Each bug is one piece of the package's text, found wherever it stands, and what takes its place in a copy. The tests
run in the copy, as do all daemons that they start; the checkout is never touched. Before that the same tests must pass
without any bug. The exit code is 1 when a bug is not caught, or its text is no longer there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

import own_python  # noqa: F401 - another Python is told which one to use

REPOSITORY = Path(__file__).resolve().parent.parent
BUGS = REPOSITORY / "tests" / "bugs.toml"
PACKAGE = "dialogd"
ANYWHERE = "not (ptrace or root or clis or browser)"
LEFT_OUT = (".*", "node_modules")
PATIENCE = 300.0  # seconds for the tests of one bug
FAILED = 1  # pytest's exit code where a test failed; all others say that nothing was tested


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug: its `name` and the `law` it breaks, in words; what to `find`, what to `replace` it by, which `tests`."""

    name: str
    law: str
    find: str
    replace: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a bug: `caught`, `NOT CAUGHT` or `stale`, in how many seconds, and which test or what was wrong."""

    bug: Bug
    verdict: str
    seconds: float = 0.0
    why: str = ""
    said: str = ""


def bugs() -> tuple[Bug, ...]:
    """All bugs there are, in the order of the file."""
    rows = tomllib.loads(BUGS.read_text(encoding="utf-8"))["bug"]
    return tuple(Bug(**{**row, "tests": tuple(row["tests"])}) for row in rows)


def sources(package: Path) -> dict[Path, str]:
    """The texts of a package: its code, templates and scripts."""
    files = (path for path in sorted(package.rglob("*")) if path.suffix in (".py", ".html", ".js", ".css"))
    return {path: path.read_text(encoding="utf-8") for path in files}


def place(bug: Bug, texts: dict[Path, str]) -> Path:
    """The file that holds the bug's text. Raises `ValueError` unless it stands in the package exactly once."""
    found = [path for path, text in texts.items() for _ in range(text.count(bug.find))]
    if len(found) != 1:
        where = ", ".join(str(path) for path in found)
        raise ValueError(f"its text stands {len(found)} times in {PACKAGE}/{f': {where}' if where else ''}")
    return found[0]


def plant(bug: Bug, root: Path) -> None:
    """Put the bug into the copy of the checkout at `root`. Raises `ValueError` where its text is not there once."""
    texts = sources(root / PACKAGE)
    path = place(bug, texts)
    path.write_text(texts[path].replace(bug.find, bug.replace), encoding="utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)  # it could be taken for the new text's


def copied(folder: Path) -> Path:
    """A copy of the checkout in `folder`, with its compiled files, which spares each bug some seconds.

    It lies in the checkout: sandboxes hide temporary folders, and would skip what is to catch the bug.
    """
    root = folder / "copy"
    shutil.copytree(REPOSITORY, root, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    return root


def tested(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run these tests in the copy until one fails; pytest's exit code and what it said."""
    options = ["-q", "-x", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "--tb=line", "-m", ANYWHERE, *tests]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end within {PATIENCE:g} s"
    return done.returncode, done.stdout + done.stderr


def tried(bug: Bug) -> Result:
    """What comes of the bug in a copy of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".bug-", dir=REPOSITORY) as folder:
        root = copied(Path(folder))
        try:
            plant(bug, root)
        except ValueError as error:
            return Result(bug, "stale", why=str(error))
        code, said = tested(root, bug.tests)
    verdict = "caught" if code == FAILED else "NOT CAUGHT"
    failed = (line for line in said.split("\n") if line.startswith(("FAILED tests/", "ERROR tests/")))
    first = next(failed, "")
    why = first.split()[1].partition("[")[0] if first else f"pytest said {code}"
    return Result(bug, verdict, time.monotonic() - began, why, said)


def sound(chosen: Sequence[Bug]) -> tuple[int, str]:
    """Run the tests of these bugs where none is planted."""
    tests = dict.fromkeys(test for bug in chosen for test in bug.tests)
    with tempfile.TemporaryDirectory(prefix=".bug-", dir=REPOSITORY) as folder:
        return tested(copied(Path(folder)), tuple(tests))


def main() -> int:
    """Plant what was asked for, print a table, give the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="the bugs with this in their names")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default: 2)")
    options = parser.parse_args()
    chosen = [bug for bug in bugs() if not options.only or any(name in bug.name for name in options.only)]
    if not chosen:
        parser.error(f"no bug is called {' or '.join(options.only)}; they stand in {BUGS.relative_to(REPOSITORY)}")
    code, said = sound(chosen)
    if code != 0:
        print(said)
        print("these tests must pass without a bug before they can catch one")
        return 1
    width = max(len(bug.name) for bug in chosen)
    with ThreadPoolExecutor(options.jobs) as pool:
        results = []
        for result in pool.map(tried, chosen):
            results.append(result)
            print(f"{result.bug.name:{width}}  {result.verdict:10}  {result.seconds:5.1f} s  {result.why}", flush=True)
    missed = [result for result in results if result.verdict != "caught"]
    for result in missed:
        print(f"\n{result.bug.name}: {result.verdict}: {result.why}\n{result.said[-2000:]}")
    print(f"{len(results) - len(missed)} of {len(results)} bugs are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
