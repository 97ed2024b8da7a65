"""What everybody writes first: a daemon reads the whole file, looks for its turn, rewrites the file, tells the other.

No lock, no flush, no journal; the standard library alone. `naive.py FOLDER TURNS NAME PORT PEER`: A opens.
"""

from __future__ import annotations

import http.client
import queue
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from notes import FOLDER, TURNS, Notes

NAME, PORT, PEER = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
FILE = FOLDER / "naive.md"
OTHER = {"A": "B", "B": "A"}[NAME]
notes = Notes(NAME)
told: queue.Queue[None] = queue.Queue()


class Handler(BaseHTTPRequestHandler):
    """Answers at once; the turn is taken beside it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Somebody says: look."""
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()
        told.put(None)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def tell(connection: http.client.HTTPConnection) -> None:
    """Tell the other, as soon as it listens."""
    for _ in range(500):
        with suppress(OSError):
            connection.request("POST", "/notify")
            connection.getresponse().read()
            return
        connection.close()
        time.sleep(0.02)


def main() -> None:
    """Take turns until the last one."""
    threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", PEER)
    if NAME == "A":
        told.put(None)
    turn = 0
    while turn < TURNS - 1:
        told.get(timeout=60)
        text = FILE.read_text(encoding="utf-8")
        if not text.rstrip().endswith(f"TURN: {NAME}"):
            continue
        turn = text.count("\n## Turn ") + 1
        FILE.write_text(f"{text}\n## Turn {turn}\n\n{notes.reply(turn)}\n\nTURN: {OTHER}\n", encoding="utf-8")
        tell(connection)
    notes.keep()


main()
