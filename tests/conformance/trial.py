"""A participant on trial: it holds a dialog with the person and one other agent, A, both of whom are played here."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dialogd import person
from dialogd.errors import DialogdError
from dialogd.protocol.certificate import faults
from dialogd.protocol.grammar import joint, parse, render
from dialogd.protocol.marks import same_text
from dialogd.protocol.model import USER, Condition, Draft, Entry, Mark, digest
from dialogd.protocol.state import Dialog
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile, wall_time
from tests.support.pair import overwrite, reserve, until

REPOSITORY = Path(__file__).resolve().parents[2]
HEADER = (
    "# Conformance\n\n**Max Turns:** 900\n**Dialog:** {id}\n**Agents:** A = Conform @ {here}, B = Bob @ {there}\n\n"
    "---\n\n## Turn 1 — User\n\nDoes this participant keep the protocol?\n\nTURN: A\n"
)


class Trial:
    """Agent B, started here by `program` ({port}, {file}, {think}) in `folder`, or running already at `url`."""

    def __init__(self, folder: Path, program: str, url: str = "", quiet: float = 0.5, patience: float = 60) -> None:
        self.file, self.reply, self.quiet, self.patience = folder / "dialog.md", folder / "reply.txt", quiet, patience
        self.port, self._reserved = (int(url.rpartition(":")[2]), None) if url else reserve()
        self.folder, self.process, self.own, self.known = folder, None, set[str](), b""
        think = shlex.quote(f"cat {shlex.quote(str(self.reply))}")
        self.words = program.format(port=self.port, file=shlex.quote(str(self.file)), think=think)
        self.log, self.told = LogFile(self.file, Journals(folder / "journals")), list[tuple[str, int]]()
        self._peer = ThreadingHTTPServer(("127.0.0.1", 0), type("A", (_Peer,), {"trial": self}))
        threading.Thread(target=self._peer.serve_forever, daemon=True).start()
        self.says("I have read it.")
        here, there = (f"http://localhost:{port}" for port in (self._peer.server_address[1], self.port))
        self.log.create(HEADER.format(id=f"conform-{secrets.token_hex(4)}", here=here, there=there).encode())
        self.look()
        if program:
            self.start()

    def start(self) -> None:
        """Start the participant, killing the one that runs."""
        self.kill()
        words = ["env", f"DIALOGD_STATE_DIR={self.folder}/state", f"XDG_CONFIG_HOME={self.folder}", "DIALOGD_POLL=0.1"]
        words += ["DIALOGD_PLAN=0", f"PYTHONPATH={REPOSITORY}", "/bin/sh", "-c", f"exec {self.words}"]
        with (out := self.folder / "participant.out").open("ab") as to:
            self.process = subprocess.Popen(
                words, cwd=self.folder, env=os.environ, stdin=subprocess.DEVNULL, stdout=to, stderr=to
            )
        until(lambda: self.send("GET", "/health")[0], "it to answer", self.patience, out.read_text)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.kill()
        self._peer.shutdown()
        self._peer.server_close()
        if self._reserved is not None:
            self._reserved.close()

    def send(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one request; 0 without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            given = {"Host": f"localhost:{self.port}"} | {name.replace("_", "-"): headers[name] for name in headers}
            connection.request(method, path, None if body is None else json.dumps(body), given)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()

    def notify(self) -> tuple[int, dict[str, Any]]:
        return self.send("POST", "/notify", {"file": str(self.file), "dialog": self.dialog().id})

    def dialog(self) -> Dialog:
        return parse(self.file.read_bytes())

    def theirs(self) -> list[Entry]:
        """The entries that were not written here."""
        return [entry for entry in self.dialog().entries if entry.chain not in self.own]

    def look(self) -> None:
        """Hold all that B wrote against the protocol."""
        data = self.file.read_bytes()
        assert data.startswith(self.known), "the file was rewritten, not appended to"
        self.own |= set() if self.known else {entry.chain for entry in parse(data).entries}
        self.known = data
        assert [str(fault) for fault in faults(data) if fault.chain not in self.own] == []
        bad = [entry.line for entry in self.theirs() if entry.condition is not Condition.SOUND or not entry.linked]
        assert bad == [], "an entry whose hash does not fit, or that is not chained to the one before"

    def put(self, make: Callable[[Dialog], bytes]) -> None:
        """Append bytes as they are, under the lock."""
        with self.log.locked():
            before = {entry.chain for entry in self.dialog().entries}
            with self.file.open("ab", buffering=0) as file:
                file.write(make(self.dialog()))
            self.own |= {entry.chain for entry in self.dialog().entries} - before

    def write(self, draft: Callable[[Dialog], Draft | None]) -> None:
        with self.log.locked():
            self.own |= {entry.chain for entry in person.write(self.log, "say", draft).entries[-1:]}

    def note(self, name: str, value: str = "") -> None:
        self.write(lambda _: person.note_of(Mark(name, value)))

    def person_says(self, text: str, to: str = "B") -> None:
        self.write(lambda now: Draft(USER, "User", now.state.number + 1, text, (), (to,)))

    def other_says(self, text: str = "What do you think?", *marks: Mark) -> None:
        """A turn of A's, which passes the turn to B."""
        self.write(lambda now: _turn(now, text, "B", *marks))

    def framed(self, text: str, to: str) -> Callable[[Dialog], bytes]:
        """A turn of A's whose body is not escaped, with a hash that fits."""

        def make(now: Dialog) -> bytes:
            prev = now.last.chain if now.last else ""
            head, _, content = render(_turn(now, "BODY", to), prev).decode().replace("BODY", text).partition(" -->\n")
            seal = head[: head.rindex(" bytes=")] + f" bytes={len(content.encode())} prev={prev}"
            return joint(now) + f"{seal} sha={digest(seal + content)} -->\n{content}".encode()

        return make

    def propose(self) -> tuple[str, Mark]:
        """The body of a turn that puts a text on the table, and its mark."""
        text, ref = f"It keeps the protocol ({secrets.token_hex(2)}).", self.dialog().state.table.next_ref
        return f"I propose:\n\n## Consensus Summary\n\n{text}", Mark("CONSENSUS_PROPOSED", digest(same_text(text)), ref)

    def says(self, text: str) -> None:
        """What B's model says from now on."""
        overwrite(self.reply, text)

    def settle(self) -> int:
        """Bring the dialog to where A owes a turn, whatever became of it; gives how many entries are B's."""
        state, last = self.dialog().state, self.dialog().last
        if state.paused:
            self.note("RESUMED")
        if state.outcome is not None or state.owing != ("A",) or (last and last.condition is Condition.UNFINISHED):
            self.person_says("Let us go on.", "A")
        self.known = self.file.read_bytes()
        return len(self.theirs())

    def answered(self, before: int) -> Entry:
        """The turn that comes after `before` entries of B's."""
        deadline, found = time.monotonic() + self.patience, list[Entry]()
        while not found:
            assert time.monotonic() < deadline, "no turn came"
            time.sleep(0.05)
            with suppress(DialogdError):
                found = [entry for entry in self.theirs()[before:] if entry.is_turn]
            self.look()
        return found[0]

    def asked(self, text: str = "What do you think?", *marks: Mark) -> Entry:
        """What B writes where it owes a turn."""
        before = self.settle()
        self.other_says(text, *marks)
        self.notify()
        return self.answered(before)

    def silent(self, before: int) -> None:
        """Wait in vain for what should not be written."""
        time.sleep(self.quiet)
        assert [entry.id for entry in self.theirs()[before:]] == []


def _turn(now: Dialog, text: str, to: str, *marks: Mark) -> Draft:
    debt = now.state.debt("A")
    re = debt.re if debt else now.entries[-1].id
    return Draft("A", "Conform", now.state.number + 1, text, marks, (to,), (("re", re), ("at", wall_time())))


class _Peer(BaseHTTPRequestHandler):
    """A's daemon: it notes who notified it, and how many entries of B's stood in the file by then."""

    trial: Trial

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/notify"):
            self.trial.told.append((json.loads(body or b"{}").get("from", ""), len(self.trial.theirs())))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"status": "ok", "id": "A", "working_on": None}).encode())

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass
