"""What every peer's program shares: what is said in which turn, and when each turn was at its model. Python alone."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])  # where it may write, and finds `replies.json`
TURNS = int(sys.argv[2])
REPLIES = json.loads((FOLDER / "replies.json").read_text(encoding="utf-8"))


class Notes:
    """The moments of the turns that this process took: turn, monotonic and CPU time in nanoseconds."""

    def __init__(self, who: str = "both") -> None:
        self.file = FOLDER / f"notes-{who}.json"
        self.rows: list[tuple[int, int, int]] = []

    def reply(self, turn: int) -> str:
        """What the model says in that turn; noted is when it was asked."""
        self.rows.append((turn, time.monotonic_ns(), time.process_time_ns()))
        return str(REPLIES[turn % len(REPLIES)])

    def keep(self) -> None:
        """Write them down, in one step."""
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.rows), encoding="utf-8")
        part.replace(self.file)
