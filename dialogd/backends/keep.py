"""Small JSON files of things that may be lost: written in one step, and read as nothing when they are broken."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """What the file holds, None when it is missing or no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: object) -> None:
    """Write the file (0600) in one step. A disk that refuses is no error."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        part.replace(path)
