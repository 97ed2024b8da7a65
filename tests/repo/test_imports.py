"""The command line starts fast because it imports little."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dialogd.cli.create import free_ports
from tests.support.cases import cases
from tests.support.pair import until

HEAVY = {"anthropic", "fastapi", "httpx2", "prometheus_client", "starlette", "uvicorn", "watchfiles"}


@cases("module", ["dialogd", "dialogd.__main__", "dialogd.cli", "dialogd.config", "dialogd.templates"])
def test_what_a_short_command_imports_is_light(module: str, repository: Path) -> None:
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=repository, text=True) == "\n"


@pytest.mark.slow
def test_importing_the_whole_product_does_nothing(repository: Path, tmp_path: Path) -> None:
    names = sorted(
        ".".join(path.relative_to(repository).with_suffix("").parts).removesuffix(".__init__")
        for path in (repository / "dialogd").rglob("*.py")
        if "testing" not in path.parts
    )
    program = f"import sys, threading; sys.path.insert(0, {str(repository)!r}); import {', '.join(names)}"
    program += "; print(threading.active_count())"
    assert subprocess.check_output([sys.executable, "-B", "-c", program], cwd=tmp_path, text=True) == "1\n"
    assert list(tmp_path.iterdir()) == []


UNSEEN = {
    "anthropic", "genai_prices", "httpx2", "jinja2", "markdown_it", "nh3", "openai", "prometheus_client",
    "rich", "dialogd.server.page",
}  # fmt: skip


@pytest.mark.slow
def test_a_daemon_that_nobody_looks_at_loads_no_page(repository: Path, tmp_path: Path) -> None:
    program = (
        "import os, sys; end = os._exit; os._exit = lambda code: (print(*sys.modules, flush=True), end(code)); "
        "from dialogd.cli import main; main()"
    )
    file = tmp_path / "dialog.md"
    file.write_text("# Claude Autonomous Dialog\n\n**Topic:** Tabs?\n\n---\n\n## Turn 1 — User\n\nTabs?\n\nTURN: B\n")
    for path, is_loaded in (("/health", False), ("/", True), ("/page/state", True), ("/openapi.json", True)):
        port = str(free_ports(1)[0])
        words = ["start", "A", "--backend", "rehearsal", "--file", str(file), "--port", port]
        environment = {**os.environ, "DIALOGD_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(repository)}
        with subprocess.Popen(
            [sys.executable, "-c", program, *words], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        ) as daemon:
            try:
                until(lambda: asked(port, "GET", "/health") == 200, "the daemon")  # noqa: B023 - it ends in this round
                assert [asked(port, "POST", "/notify"), asked(port, "GET", path)] == [200, 200]
            finally:
                daemon.terminate()
            modules = set(daemon.stdout.read().split())
        assert "dialogd.server.routes" in modules
        assert bool(modules & UNSEEN) is is_loaded, (path, modules & UNSEEN)


def asked(port: str, method: str, path: str) -> int:
    """The status of an answer, 0 for none."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=180)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()
