"""Copies of stopped dialogs in the state directory: same content, same name, once."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dialogd.disk import flush, flush_folder
from dialogd.protocol.hashing import digest
from dialogd.protocol.model import Dialog


def archive(dialog: Dialog, file: Path, folder: Path) -> Path:
    """Copy the dialog file, and its attachments, into `folder`; gives the copy's path. Never overwrites a copy."""
    data = file.read_bytes()
    topic = re.sub(r"[^a-z0-9]+", "-", dialog.header.topic.lower()).strip("-")[:40] or "dialog"
    target = folder / f"{topic}-{dialog.id}-{digest(data)[:8]}.md"
    _copy(data, target)
    beside = file.with_name(file.name + ".d")
    if beside.is_dir():
        attachments = folder / f"{target.stem}.d"
        attachments.mkdir(mode=0o700, exist_ok=True)
        for item in beside.iterdir():
            if item.is_file() and not item.is_symlink():
                _copy(item.read_bytes(), attachments / item.name)
    return target


def _copy(data: bytes, target: Path) -> None:
    """Write `target` in one step, durably; a crash leaves it whole or absent."""
    if target.exists():
        return
    part = target.with_name(f".{target.name}.{os.getpid()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        flush(fd)
    finally:
        os.close(fd)
    part.replace(target)
    flush_folder(target.parent)
