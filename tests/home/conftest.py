"""Home as a process of its own, on a port of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from dialogd.store.registry import HOME
from tests.cli.command import PATIENCE, Commands, until
from tests.server.serving import Answer, sent
from tests.support.minds import ANSWER, QUESTION
from tests.support.pair import until as patient

EXPORTS = {"md": "# ", "html": "<!doctype html>", "pdf": "%PDF", "json": "{"}  # how each begins


def fetch(
    port: int, path: str, body: object = None, *, method: str = "", raw: bytes | None = None, **headers: str
) -> Answer:
    """Ask Home or a daemon, as a page of its own would."""
    given, kind = (raw, "application/json" if raw else "") if raw is not None else (body, "")
    line = f"{method or ('GET' if given is None else 'POST')} {path}"
    return sent(port, line, given, kind, **{"host": f"localhost:{port}", **headers})


class Home:
    """`dialogd open` in a folder where nothing on PATH could answer. Dialogs and Home itself stay `linger`."""

    def __init__(self, folder: Path, linger: str = "60 seconds", **environment: str) -> None:
        self.commands = Commands(folder)
        self.linger = linger
        (folder / "bin").mkdir(exist_ok=True)
        self.commands.environment |= {
            "PATH": str(folder / "bin"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "DIALOGD_PACE": "0",
            "DIALOGD_PLAN": "0",
            "OLLAMA_HOST": "127.0.0.1:1",
            "BROWSER": "",
            "DISPLAY": "",
            **environment,
        }
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "DIALOGD_BACKEND", "WAYLAND_DISPLAY"):
            if name not in environment:
                self.commands.environment.pop(name, None)

    def open(self, *words: str, port: int | str = 0) -> str:
        """Open it; the address that was printed."""
        done = self.commands("open", "--port", str(port), "--linger", self.linger, *words)
        assert done.code == 0, done.err
        return done.out.strip()

    @property
    def known(self) -> dict[str, Any]:
        """What the state directory says of it; {} where none runs."""
        with suppress(FileNotFoundError):
            found = json.loads((self.commands.state.root / HOME).read_text())
            assert isinstance(found, dict)
            return found
        return {}

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.known["port"])

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://localhost:{self.port}/"

    def ask(
        self, path: str, body: object = None, *, method: str = "", raw: bytes | None = None, **headers: str
    ) -> Answer:
        """Ask it something, with these headers beside or in place of the usual ones (`sec_fetch_site`)."""
        return fetch(self.port, path, body, method=method, raw=raw, **headers)

    def start(self, **asked: object) -> Answer:
        """Start a dialog."""
        return self.ask("/start", {"question": "Tabs or spaces?", **asked})

    def dialogs(self, query: str = "") -> list[dict[str, Any]]:
        """The list."""
        found = self.ask(f"/dialogs{query}")["dialogs"]
        assert isinstance(found, list)
        return found

    def row(self, dialog: str) -> dict[str, Any]:
        """That dialog in the list."""
        return next(row for row in self.dialogs() if row["id"] == dialog)

    def carry_through(self, dialog: str, patience: float = PATIENCE) -> dict[str, Any]:
        """Be the person of a dialog of `curious` minds: answer, approve, export. Gives its row once that is done.

        By the list and the page's routes alone.
        """

        def becomes(state: str) -> dict[str, Any]:
            patient(lambda: self.row(dialog)["state"] == state, state, patience, lambda: json.dumps(self.row(dialog)))
            return self.row(dialog)

        waits = becomes("waiting")
        assert waits["waits_for_you"]
        assert waits["words"] == f"{waits['agents'][0]['name']} asks you: {QUESTION}"
        page = urlsplit(waits["url"]).port
        assert page is not None
        assert fetch(page, "/say", {"text": ANSWER}).status == 200
        over = becomes("ended")
        assert (over["outcome"], over["waits_for_you"]) == ("CONSENSUS_REACHED", False)
        assert ANSWER in over["words"]
        assert fetch(page, "/approve", {}).status == 200
        text = Path(over["file"]).read_text(encoding="utf-8")
        assert text.count("[APPROVED]") == 1
        for form, beginning in EXPORTS.items():
            saved = fetch(page, f"/export/{form}")
            assert (saved.status, saved.text[: len(beginning)]) == (200, beginning), form
            assert form == "pdf" or ANSWER in saved.text, form
        return self.row(dialog)

    def kill(self) -> None:
        """Kill it, where it runs."""
        with suppress(KeyError, ProcessLookupError):
            os.kill(self.known["pid"], signal.SIGKILL)
            until(lambda: not psutil.pid_exists(self.known["pid"]) or self.is_dead(), "Home's end")

    def is_dead(self) -> bool:
        """True once its process is gone, or waits to be buried."""
        try:
            return psutil.Process(self.known["pid"]).status() == psutil.STATUS_ZOMBIE
        except (psutil.Error, KeyError):
            return True

    def close(self) -> None:
        """End it, what it began, and every daemon, by pid."""
        self.kill()
        for found in self.commands.state.sessions.glob("*.json"):
            with suppress(psutil.Error, ValueError):
                known = json.loads(found.read_text())
                process = psutil.Process(known["pid"])
                if process.create_time() == known["created"]:
                    process.kill()
        self.commands.end_daemons()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A Home that is not open yet."""
    home = Home(tmp_path)
    yield home
    home.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """One open Home for a whole file, for what changes nothing."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.open()
    yield home
    home.close()
