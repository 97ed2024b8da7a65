"""House rules that no linter knows: docstrings, no mocks, nothing of one machine in the tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from dialogd.backends import BACKENDS
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
def texts(folder: str) -> tuple[tuple[str, str], ...]:
    """Path from the root and text of each module under `folder`; read once for all tests."""
    paths = sorted((REPOSITORY / folder).rglob("*.py"))
    return tuple((path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8")) for path in paths)


def test_every_module_says_its_job() -> None:
    assert [path for path, text in texts("dialogd") if text and not text.startswith(('"""', 'r"""'))] == []


def test_no_test_replaces_our_code_by_a_mock() -> None:
    forbidden = re.compile(r"\b(MagicMock|AsyncMock|Mock\(|mock\.patch|unittest\.mock|monkeypatch\.setattr|mocker)\b")
    own = Path(__file__).relative_to(REPOSITORY).as_posix()
    assert [path for path, text in texts("tests") if path != own and forbidden.search(text)] == []


def test_the_protocol_neither_opens_nor_prints() -> None:
    calls = [
        f"{path}:{node.lineno}"
        for path, text in texts("dialogd/protocol")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"open", "print", "input", "exec", "eval", "__import__"}
    ]
    assert calls == []


def test_git_on_a_project_is_run_by_one_module() -> None:
    """Of the others one has a repository of its own and the person's git, the other asks that for a setting."""
    runs = {
        path
        for path, text in texts("dialogd")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.List | ast.Tuple)
        and node.elts
        and isinstance(node.elts[0], ast.Constant)
        and node.elts[0].value == "git"
    }
    others = {"dialogd/store/engines/gitremote.py", "dialogd/store/signing.py"}
    assert runs == {"dialogd/tasks/git.py", *others}


def test_nothing_of_one_machine_is_in_the_tree() -> None:
    machine = re.compile(rb"(?<![\w.])/(" + b"|".join([b"work", b"root", b"farm"]) + rb")/\w")
    assert [str(path) for path in tracked() if machine.search(path.read_bytes())] == []


def test_the_example_of_dotenv_lists_every_variable_once() -> None:
    example = (REPOSITORY / ".env.example").read_text(encoding="utf-8")
    listed = re.findall(r"^#? ?([A-Z][A-Z_]+)=", example, re.MULTILINE)
    keys = {key for kind in BACKENDS.values() for key in kind.keys}
    settings = sorted(variable for setting in SETTINGS for variable in setting.variables)
    assert sorted(name for name in listed if name not in keys) == settings


def test_every_import_is_a_declared_dependency() -> None:
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
    line = re.compile(r"^ *(?:from|import) (\w+)[\w.]*(?: import .*|(?: as \w+)?)$", re.MULTILINE)
    found = ((path, name) for path, text in texts("dialogd") for name in line.findall(text) if name not in known)
    assert [f"{path}: {name}" for path, name in found] == []


def test_the_lock_library_is_one_that_is_safe() -> None:
    assert '"filelock>=4.2.1"' in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
