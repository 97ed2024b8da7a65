"""Run `dialogd` and note the modules whose functions run: `python -m tests.support.traced OUT WORDS...`.

With SIGUSR1 the names noted so far are written to OUT, a line of JSON, and noting begins anew; so they are at the end.
What runs while a module is imported does not count.
"""

from __future__ import annotations

import inspect
import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import dialogd

PRODUCT = str(Path(dialogd.__file__).parent)


def main(out: Path, words: list[str]) -> None:
    noted: set[str] = set()
    importing = threading.local()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PRODUCT):
            return
        if code.co_name == "<module>":
            importing.depth = getattr(importing, "depth", 0) + (1 if event == "call" else -1)
        elif event == "call" and code.co_flags & inspect.CO_OPTIMIZED and not getattr(importing, "depth", 0):
            noted.add(Path(code.co_filename).relative_to(PRODUCT).as_posix())

    def write(*_: object) -> None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sorted(noted)) + "\n")
        noted.clear()

    signal.signal(signal.SIGUSR1, write)
    sys.argv = ["dialogd", *words]
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        from dialogd.__main__ import main as run

        run()
    finally:
        sys.setprofile(None)
        write()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
