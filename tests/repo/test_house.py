"""House rules that no linter knows: docstrings, no mocks, nothing of one machine in the tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dialogd.backends.keys import OWN
from dialogd.config import SETTINGS

REPOSITORY = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    """Every file that is, or would be, in the repository."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"not a git checkout: {done.stderr.strip()}")
    return [path for name in done.stdout.split("\0") if name and (path := REPOSITORY / name).is_file()]


@cache
def modules(folder: str) -> tuple[tuple[str, str, ast.Module], ...]:
    """Path from the root, text and syntax tree of each module under `folder`; read once for all tests."""
    found = []
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append((path.relative_to(REPOSITORY).as_posix(), text, ast.parse(text)))
    return tuple(found)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def imported(tree: ast.AST) -> set[str]:
    """The top-level packages that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_every_module_says_its_job() -> None:
    """Each module that holds anything opens with a docstring."""
    assert [path for path, text, tree in modules("dialogd") if text.strip() and not ast.get_docstring(tree)] == []


def test_every_test_says_what_it_shows() -> None:
    """Each test has a docstring."""
    silent = [
        f"{path}::{function.name}"
        for path, _, tree in modules("tests")
        for function in functions(tree)
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]
    assert silent == []


def test_no_test_replaces_our_code_by_a_mock() -> None:
    """Fakes keep the rules; mocks and patches do not."""
    forbidden = re.compile(r"\b(MagicMock|AsyncMock|Mock\(|mock\.patch|unittest\.mock|monkeypatch\.setattr|mocker)\b")
    own = Path(__file__).relative_to(REPOSITORY).as_posix()
    assert [path for path, text, _ in modules("tests") if path != own and forbidden.search(text)] == []


def test_the_protocol_neither_opens_nor_prints() -> None:
    """What an import contract cannot see: the pure core uses no built-in that reaches outside."""
    calls = [
        f"{path}:{node.lineno}"
        for path, _, tree in modules("dialogd/protocol")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"open", "print", "input", "exec", "eval", "__import__"}
    ]
    assert calls == []


def test_nothing_of_one_machine_is_in_the_tree() -> None:
    """No path of the machine it was written on."""
    machine = re.compile(rb"(?<![\w.])/(" + b"|".join([b"work", b"root", b"farm"]) + rb")/\w")
    assert [str(path) for path in tracked() if machine.search(path.read_bytes())] == []


def test_the_example_of_dotenv_lists_every_variable_once() -> None:
    """`.env.example` and the table of settings name the same variables; beside them stand keys of services."""
    example = (REPOSITORY / ".env.example").read_text(encoding="utf-8")
    listed = re.findall(r"^#? ?([A-Z][A-Z_]+)=", example, re.MULTILINE)
    keys = {key for own in OWN.values() for key in own.keys}
    settings = sorted(variable for setting in SETTINGS for variable in setting.variables)
    assert sorted(name for name in listed if name not in keys) == settings


def test_every_import_is_a_declared_dependency() -> None:
    """What the product imports stands in pyproject.toml; nothing comes along by chance."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    declared = {re.split(r"[<>=~! \[;]", line)[0] for line in [*project["dependencies"], *extras]}
    packages = {
        "python-dotenv": "dotenv",
        "pyyaml": "yaml",
        "agent-client-protocol": "acp",
        "markdown-it-py": "markdown_it",
    }
    known = {packages.get(name, name.replace("-", "_")) for name in declared} | {
        "dialogd",
        "starlette",
    }  # fastapi's own foundation
    known |= sys.stdlib_module_names
    product = [(path, tree) for path, _, tree in modules("dialogd") if not path.startswith("dialogd/testing/")]
    assert [f"{path}: {name}" for path, tree in product for name in imported(tree) - known] == []
