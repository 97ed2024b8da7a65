"""tests/bugs.toml is no list of yesterday's: each bug can still be planted, and names tests that are there."""

from __future__ import annotations

import ast
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def planting() -> ModuleType:
    """`scripts/plant_bugs.py`, as a module."""
    path = Path(__file__).resolve().parent.parent / "scripts" / "plant_bugs.py"
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location("plant_bugs", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def names(path: Path) -> frozenset[str]:
    """The classes and functions of a test file, `Class::test` for methods."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
            found |= {f"{node.name}::{f.name}" for f in inner if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}
    return frozenset(found)


def test_every_bug_can_be_planted(planting: ModuleType, repository: Path) -> None:
    texts, wrong = planting.sources(repository / planting.PACKAGE), []
    for bug in planting.bugs():
        try:
            planting.place(bug, texts)
        except ValueError as error:
            wrong.append(f"{bug.name}: {error}")
        if bug.find == bug.replace:
            wrong.append(f"{bug.name}: it changes nothing")
    assert wrong == []


def test_every_bug_names_tests_that_are_there(planting: ModuleType, repository: Path) -> None:
    wrong = []
    for bug in planting.bugs():
        for test in bug.tests or ("",):
            file, _, name = test.partition("[")[0].partition("::")
            path = repository / file
            if not (path.is_file() and (not name or name in names(path))):
                wrong.append(f"{bug.name}: there is no test {test!r}")
    assert wrong == []


def test_every_bug_has_a_name_of_its_own(planting: ModuleType) -> None:
    all_ = [bug.name for bug in planting.bugs()]
    assert len(all_) == len(set(all_)) > 30


def test_a_bug_whose_text_is_not_there_once_is_named(planting: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / planting.PACKAGE
    (package / "deep").mkdir(parents=True)
    (package / "one.py").write_text("total = 1 + 1\n", encoding="utf-8")
    bug = planting.Bug("sums are off", "two and two are four", "1 + 1", "1 + 2", ())
    planting.plant(bug, tmp_path)
    assert (package / "one.py").read_text(encoding="utf-8") == "total = 1 + 2\n"
    with pytest.raises(ValueError, match="stands 0 times"):
        planting.plant(bug, tmp_path)
    for name in ("two.py", "deep/three.py"):
        (package / name).write_text("total = 1 + 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"stands 2 times in dialogd/: .*three\.py, .*two\.py"):
        planting.plant(bug, tmp_path)
