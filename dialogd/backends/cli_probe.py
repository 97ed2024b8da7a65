"""A look at a coding-agent CLI without running it: is it here, which version, who is logged in, who pays."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Protocol

from dialogd.backends import Found
from dialogd.backends.command import clean_environment

VERSION_WAIT = 5.0  # seconds

# How this machine reaches the network; no secrets in them, and without them some people's CLIs reach nothing.
NETWORK = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE",
           "NODE_EXTRA_CA_CERTS")  # fmt: skip


class CLI(Protocol):
    """What a look needs to know of a CLI's class."""

    program: str
    vendor: str
    key: str
    log_in: str

    def login(self, environment: Mapping[str, str]) -> str: ...


def look(kind: CLI, variables: Mapping[str, str]) -> Found:
    """What a backend's `probe` says of a CLI: on PATH, its version, logged in or with a key, who pays."""
    found = shutil.which(kind.program, path=variables.get("PATH") or os.environ.get("PATH"))
    if found is None:
        return Found(False, f"{kind.program} is not on PATH", fix=f"install {kind.program}")
    environment = {**clean_environment(os.environ), **variables}
    version = _ask_version(found, environment)
    if not version:
        return Found(False, f"{kind.program} does not say its version", fix=f"run `{kind.program} --version` by hand")
    if login := kind.login(environment):
        pays = f"the key of your {kind.vendor} login" if "with a key" in login else f"your {kind.vendor} login"
        return Found(True, f"{kind.program} {version}, {login}", pays=pays, version=version)
    if variables.get(kind.key):
        return Found(True, f"{kind.program} {version}, with {kind.key}", pays=f"the key in {kind.key}", version=version)
    return Found(False, f"{kind.program} {version}, not logged in, no {kind.key}", version=version, fix=kind.log_in)


def _ask_version(program: str, environment: Mapping[str, str]) -> str:
    try:
        run = subprocess.run(
            [program, "--version"],
            env=clean_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_WAIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return version_in(run.stdout) if run.returncode == 0 else ""


def version_in(said: bytes) -> str:
    """The version in what a program says of itself (`2.1.330 (Claude Code)`, `codex-cli 0.169.0`); "" without one."""
    return next((word for word in said.decode("utf-8", "replace").split() if word[:1].isdigit()), "")
