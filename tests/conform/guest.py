"""The reference participant as a process: as it is, or with something broken in it."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from urllib.request import urlopen

from dialogd.conform import Check, Probe, conform
from tests.support.pair import PATIENCE, reserve, until

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "scripts" / "participants" / "participant.mjs"
MISSING = next((f"{name} is not installed" for name in ("node", "flock") if shutil.which(name) is None), "")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Guest:
    """The Node participant B at `folder`/dialog.md; each of `broken` replaces one piece of its code by another.

    With a `mind` its model prints what `reply.txt` holds; without one it signs what lies on the table.
    """

    def __init__(self, folder: Path, broken: Sequence[tuple[str, str]] = (), *, mind: bool = True) -> None:
        self.folder, self.is_broken = folder, bool(broken)
        self.port, self._reserved = reserve()
        self.file, self.reply, self.pid = folder / "dialog.md", folder / "reply.txt", folder / "pid"
        self.reply.write_text("I have read it.", encoding="utf-8")
        self.think = f"cat {shlex.quote(str(self.reply))}" if mind else ""
        self.restart = folder / "restart.sh"
        self.restart.write_text(
            f"[ -f {self.pid} ] && kill -9 $(cat {self.pid})\n"
            f"{shlex.join(self.words(broken))} </dev/null >>{folder}/guest.out 2>&1 &\necho $! >{self.pid}\n"
        )

    def words(self, broken: Iterable[tuple[str, str]]) -> list[str]:
        """Its command line."""
        code = SOURCE.read_text(encoding="utf-8")
        for old, new in broken:
            assert code.count(old) == 1, f"it stands there {code.count(old)} times: {old}"
            code = code.replace(old, new)
        program = self.folder / SOURCE.name
        program.write_text(code, encoding="utf-8")
        words = ["node", str(program), "B", str(self.port), str(self.file)]
        return [*words, self.think] if self.think else words

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://localhost:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        subprocess.run(["/bin/sh", str(self.restart)], check=True)
        until(self._answers, "the participant to answer", why=(self.folder / "guest.out").read_text)

    def _answers(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> Guest:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        subprocess.run(["kill", "-9", self.pid.read_text().strip()], check=False, capture_output=True)
        self._reserved.close()
        if error is not None:
            error.add_note((self.folder / "guest.out").read_text())

    def notify(self) -> None:
        """Say as the person that it may begin."""
        urlopen(f"{self.url}/notify", data=b"").close()

    def tried(self, *only: str, quiet: float = 0.8) -> dict[str, Check]:
        """The checks by name, as `dialogd conform` makes them; who is broken in something may never answer."""
        patience = 20.0 if self.is_broken else PATIENCE
        probe = Probe(self.url, self.file, self.reply, f"sh {self.restart}", only, patience=patience, quiet=quiet)
        return {check.name: check for check in conform(probe)}


class OurGuest(Guest):
    """A daemon of dialogd's own in the same seat."""

    def words(self, broken: Iterable[tuple[str, str]]) -> list[str]:
        """Its command line, with its own settings and state."""
        settings = {"DIALOGD_STATE_DIR": self.folder / "state", "XDG_CONFIG_HOME": self.folder / "config"}
        settings |= {"DIALOGD_POLL": 0.1, "DIALOGD_PLAN": 0, "PYTHONPATH": REPOSITORY}
        words = ["env", "-C", str(self.folder), *(f"{name}={value}" for name, value in settings.items())]
        words += [sys.executable, "-m", "dialogd", "start", "B", "--port", str(self.port), "--file", str(self.file)]
        return [*words, "--pace", "0", "--backend", "command", "--command", self.think]
