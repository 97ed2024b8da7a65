"""A participant on trial: it holds a dialog with the person and one other agent, both of whom are played here."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dialogd import person
from dialogd.errors import DialogdError
from dialogd.protocol.grammar import joint, parse, render
from dialogd.protocol.marks import same_text
from dialogd.protocol.model import USER, Condition, Draft, Entry, Mark, digest
from dialogd.protocol.replay import faults
from dialogd.protocol.state import Dialog
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from tests.support.pair import PATIENCE, overwrite, reserve, until

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = REPOSITORY / "scripts" / "participants" / "participant.mjs"
PROGRAMS = {
    "reference": f"node {shlex.quote(str(NODE))} B {{port}} {{file}} {{think}}",
    "daemon": f"{shlex.quote(sys.executable)} -m dialogd start B --port {{port}} --file {{file}} --pace 0"
    " --backend command --command {think}",
}
MISSING = next((f"{name} is not installed" for name in ("node", "flock") if shutil.which(name) is None), "")
HEADER = (
    "# Conformance\n\n**Topic:** Does this participant keep the protocol?\n**Max Turns:** 900\n**Dialog:** {id}\n"
    "**Agents:** A = Conform @ {here}, B = Bob @ {there}\n\n---\n\n## Turn 1 — User\n\nAnswer.\n\nTURN: A\n"
)


class Trial:
    """Agent B at `url`, started here by `program` in `folder` ({port}, {file}, {think}), or running already.

    `reply` is the file that its model prints. `quiet` is how long nothing may happen where nothing should, in seconds.
    """

    def __init__(self, folder: Path, program: str, url: str = "", quiet: float = 0.5, patience: float = 60) -> None:
        self.file, self.reply, self.quiet, self.patience = folder / "dialog.md", folder / "reply.txt", quiet, patience
        self.port, self._reserved = (int(url.rpartition(":")[2]), None) if url else reserve()
        self.folder, self.process, self.own, self.known = folder, None, set[str](), b""
        think = shlex.quote(f"cat {shlex.quote(str(self.reply))}")
        self.words = program.format(port=self.port, file=shlex.quote(str(self.file)), think=think)
        self.log = LogFile(self.file, Journals(folder / "journals"))
        self.told: list[tuple[str, int]] = []  # who notified A, and how many entries of B's stood in the file then
        self._peer = self._listen()
        self.says("I have read it.")
        if not self.file.exists():
            here = f"http://localhost:{self._peer.server_address[1]}"
            text = HEADER.format(id=f"conform-{secrets.token_hex(4)}", here=here, there=f"http://localhost:{self.port}")
            self.log.create(text.encode())
        self.look()
        if program:
            self.start()

    def _listen(self) -> ThreadingHTTPServer:
        trial = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith("/notify"):
                    trial.told.append((json.loads(body or b"{}").get("from", ""), len(trial.theirs())))
                data = json.dumps({"status": "ok", "id": "A", "working_on": None}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def start(self) -> None:
        """Start the participant, killing the one that runs."""
        self.kill()
        settings = {
            "DIALOGD_STATE_DIR": "state",
            "XDG_CONFIG_HOME": "config",
            "DIALOGD_POLL": "0.1",
            "DIALOGD_PLAN": "0",
        }
        settings = {key: str(self.folder / value) if "D" in key[-3:] else value for key, value in settings.items()}
        with (self.folder / "participant.out").open("ab") as out:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {self.words}"],
                cwd=self.folder, env=os.environ | settings | {"PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        until(
            lambda: self.send("GET", "/health"), "it to answer", PATIENCE, (self.folder / "participant.out").read_text
        )

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

    # -- Over HTTP ----------------------------------------------------------------------------------------------------

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Status and JSON of one request; None without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Host": f"localhost:{self.port}", **(headers or {})})
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def notify(self) -> tuple[int, dict[str, Any]]:
        """The person's notify."""
        return self.send("POST", "/notify", {"file": str(self.file), "dialog": self.dialog().id}) or (0, {})

    # -- In the file --------------------------------------------------------------------------------------------------

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
        assert bad == [], "an entry that was not written as its hash says, or not chained to the one before"

    def put(self, make: Callable[[Dialog], bytes]) -> None:
        """Append bytes as they are, under the lock."""
        with self.log.locked():
            before = {entry.chain for entry in self.dialog().entries}
            with self.file.open("ab", buffering=0) as file:
                file.write(make(self.dialog()))
            self.own |= {entry.chain for entry in self.dialog().entries} - before

    def write(self, draft: Callable[[Dialog], Draft | None]) -> None:
        """Append an entry of the person's or of A's."""
        with self.log.locked():
            self.own |= {entry.chain for entry in person.write(self.log, "say", draft).entries[-1:]}

    def note(self, name: str, value: str = "") -> None:
        self.write(lambda _: person.note_of(Mark(name, value)))

    def person_says(self, text: str, to: str) -> None:
        self.write(lambda now: Draft(USER, "User", now.state.number + 1, text, (), (to,)))

    def other_says(self, text: str = "What do you think?", *marks: Mark) -> None:
        """A turn of A's, which passes the turn to B."""
        self.write(
            lambda now: Draft("A", "Conform", now.state.number + 1, text, marks, ("B",), (("re", self.debt(now)),))
        )

    @staticmethod
    def debt(dialog: Dialog) -> str:
        debt = dialog.state.debt("A")
        return debt.re if debt else dialog.entries[-1].id

    def framed(self, dialog: Dialog, text: str, to: str) -> bytes:
        """A turn of A's whose body is not escaped, with a hash that fits."""
        draft = Draft("A", "Conform", dialog.state.number + 1, "BODY", (), (to,), (("re", self.debt(dialog)),))
        prev = dialog.last.chain if dialog.last else ""
        head, _, content = render(draft, prev).decode().replace("BODY", text).partition(" -->\n")
        seal = head[: head.rindex(" bytes=")] + f" bytes={len(content.encode())} prev={prev}"
        return joint(dialog) + f"{seal} sha={digest(seal + content)} -->\n{content}".encode()

    def propose(self) -> tuple[str, Mark]:
        """The body of a turn that puts a text on the table, and its mark."""
        text, ref = f"It keeps the protocol ({secrets.token_hex(2)}).", self.dialog().state.table.next_ref
        return f"I propose:\n\n## Consensus Summary\n\n{text}", Mark("CONSENSUS_PROPOSED", digest(same_text(text)), ref)

    # -- What is asked, and what comes of it --------------------------------------------------------------------------

    def says(self, text: str) -> None:
        """What B's model says from now on."""
        overwrite(self.reply, text)

    def settle(self) -> int:
        """Bring the dialog to where A owes a turn, whatever became of it; gives how many entries are B's."""
        state, last = self.dialog().state, self.dialog().last
        if state.paused:
            self.note("RESUMED")
        is_odd = last is not None and last.condition in (Condition.DAMAGED, Condition.UNFINISHED)
        if is_odd or state.outcome is not None or state.owing != ("A",):
            self.person_says("Let us go on.", "A")
        self.known = self.file.read_bytes()
        return len(self.theirs())

    def answered(self, before: int, why: str = "") -> Entry:
        """The turn that comes after `before` entries of B's."""
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            try:
                found = [entry for entry in self.theirs()[before:] if entry.is_turn]
            except DialogdError:
                found = []
            self.look()
            if found:
                return found[0]
            time.sleep(0.05)
        raise AssertionError(f"no turn came {why}")

    def asked(self, text: str = "What do you think?", *marks: Mark) -> Entry:
        """What B writes where it owes a turn."""
        before = self.settle()
        self.other_says(text, *marks)
        self.notify()
        return self.answered(before)

    def silent(self, before: int, why: str) -> None:
        """Wait in vain for what should not be written."""
        time.sleep(self.quiet)
        assert [entry.id for entry in self.theirs()[before:]] == [], f"it wrote {why}"
