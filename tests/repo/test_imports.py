"""The command line starts fast because it imports little."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"anthropic", "fastapi", "httpx2", "prometheus_client", "starlette", "uvicorn", "watchfiles"}


@pytest.mark.parametrize(
    "module", ["dialogd", "dialogd.__main__", "dialogd.cli", "dialogd.config", "dialogd.templates"]
)
def test_what_a_short_command_imports_is_light(module: str, repository: Path) -> None:
    """No web framework, HTTP client or model API is loaded before a command needs it."""
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=repository, text=True) == "\n"


def test_importing_the_whole_product_does_nothing(repository: Path, tmp_path: Path) -> None:
    """No output, no file, no thread: importing every module only defines things."""
    names = sorted(
        ".".join(path.relative_to(repository).with_suffix("").parts).removesuffix(".__init__")
        for path in (repository / "dialogd").rglob("*.py")
        if "testing" not in path.parts
    )
    program = f"import sys, threading; sys.path.insert(0, {str(repository)!r}); import {', '.join(names)}"
    program += "; print(threading.active_count())"
    assert subprocess.check_output([sys.executable, "-B", "-c", program], cwd=tmp_path, text=True) == "1\n"
    assert list(tmp_path.iterdir()) == []
