"""A look at a coding-agent CLI without running it: is it here, which version, who is logged in, who pays."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from dialogd.backends import Found
from dialogd.backends.keep import read_json, write_json

VERSION_WAIT = 15.0  # seconds; on a busy machine the largest of these programs needs several
KNOWN_WAIT = 2.0  # seconds, where the last version of the same file is known
LONGEST = 4096  # bytes that a version may have; a program that prints more of them floods its output
MEMORY = "DIALOGD_STATE_DIR"  # the variable that says where versions are remembered

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
    from dialogd.backends.command import clean_environment

    found = shutil.which(kind.program, path=variables.get("PATH") or os.environ.get("PATH"))
    if found is None:
        return Found(False, f"{kind.program} is not on PATH", fix=f"install {kind.program}")
    environment = {**clean_environment(os.environ), **variables}
    version = _version(Path(found), environment, variables.get(MEMORY, ""))
    if not version:
        return Found(False, f"{kind.program} does not say its version", fix=f"run `{kind.program} --version` by hand")
    if login := kind.login(environment):
        pays = f"the key of your {kind.vendor} login" if "with a key" in login else f"your {kind.vendor} login"
        return Found(True, f"{kind.program} {version}, {login}", pays=pays, version=version)
    if variables.get(kind.key):
        return Found(True, f"{kind.program} {version}, with {kind.key}", pays=f"the key in {kind.key}", version=version)
    return Found(False, f"{kind.program} {version}, not logged in, no {kind.key}", version=version, fix=kind.log_in)


def _version(program: Path, environment: Mapping[str, str], state: str) -> str:
    """What the program says of itself; on a machine too busy to ask, what the same file said last.

    It is the same while path, size and time of change are. `state` is the state directory, "" for no memory.
    """
    memory = Path(state) / "programs" / f"{program.name}.json" if state else None
    mark = _mark(program)
    known = read_json(memory) if memory else None
    last = str(known.get("version") or "") if isinstance(known, dict) and mark and known.get("file") == mark else ""
    try:
        said = _asked(program, environment, KNOWN_WAIT if last else VERSION_WAIT)
    except OSError:
        return ""
    if said is None:
        return last
    version = version_in(said)
    if memory and version and version != last:
        with suppress(OSError):
            memory.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(memory, {"file": mark, "version": version})
    return version


def _asked(program: Path, environment: Mapping[str, str], seconds: float) -> bytes | None:
    """What `--version` prints, at most `LONGEST` bytes; b"" where it fails, None where it has no end in that time."""
    from dialogd.backends.command import clean_environment

    process = subprocess.Popen(
        [program, "--version"],
        env=clean_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
    )
    said, deadline = b"", time.monotonic() + seconds
    with process, selectors.DefaultSelector() as pipes:
        assert process.stdout is not None
        pipes.register(process.stdout, selectors.EVENT_READ)
        try:
            while len(said) < LONGEST:
                if not pipes.select(max(deadline - time.monotonic(), 0)):
                    return None
                if not (chunk := process.stdout.read(LONGEST)):
                    return said if process.wait(max(deadline - time.monotonic(), 0)) == 0 else b""
                said += chunk
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return b""


def _mark(program: Path) -> list[str | int]:
    """What tells a file from one that took its place: path behind the links, size, time of change in nanoseconds."""
    try:
        real = program.resolve()
        status = real.stat()
    except OSError:
        return []
    return [str(real), status.st_size, status.st_mtime_ns]


def version_in(said: bytes) -> str:
    """The version in what a program says of itself (`2.1.330 (Claude Code)`, `codex-cli 0.169.0`); "" without one."""
    return next((word for word in said.decode("utf-8", "replace").split() if word[:1].isdigit()), "")
