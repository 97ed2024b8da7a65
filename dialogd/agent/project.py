"""What a project says to agents: its CLAUDE.md, AGENTS.md and GEMINI.md as one text, for a prompt, as data."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dialogd.store.disk import pread

NAMES = ("CLAUDE.md", "AGENTS.md", "GEMINI.md")
MOST = 40_000  # bytes of all together


def notes(project: Path | None) -> str:
    """The notes of the folder as Markdown with the files' names; "" without a project or notes.

    Files that are the same, or links to each other, come once. A link that leads out of the project is left out, and
    so is what is no file or no text. `@import` lines stay text. Together at most `MOST` bytes; a cut says so.
    """
    if project is None:
        return ""
    found: dict[str, list[str]] = {}
    for name in NAMES:
        text = _text(project, name)
        if text:
            found.setdefault(text, []).append(name)
    parts: list[str] = []
    left = MOST
    for text, names in found.items():
        shown = _beginning(text, left)
        left -= len(shown.encode())
        parts.append(f"# {' and '.join(names)}\n\n{shown}{_cut(shown, text)}")
    return "\n\n".join(parts)


def _text(project: Path, name: str) -> str:
    """The text of one file of the project's own folder, without blank lines around it; "" where it may not be used."""
    try:
        real = (project / name).resolve(strict=True)
        if not real.is_relative_to(project.resolve(strict=True)):
            return ""
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError):
        return ""
    try:
        data = pread(fd, MOST + 1, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return ""
    finally:
        os.close(fd)
    return "" if b"\0" in data else data.decode("utf-8-sig", "replace").strip()


def _beginning(text: str, most: int) -> str:
    """The whole lines of the text that fit into so many bytes."""
    if len(text.encode()) <= most:
        return text
    piece = text.encode()[: max(most, 0)].decode("utf-8", "ignore")
    return piece[: piece.rfind("\n") + 1].rstrip()


def _cut(shown: str, text: str) -> str:
    if len(shown) == len(text):
        return ""
    mark = "(the rest is left out: it is too long)"
    return f"\n\n{mark}" if shown else mark
