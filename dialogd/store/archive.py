"""Copies of stopped dialogs in the state directory: same content, same name, once."""

from __future__ import annotations

import re
from pathlib import Path

from dialogd.protocol.model import digest
from dialogd.protocol.state import Dialog
from dialogd.store.disk import make_folder, write_once

LARGEST = 20_000_000  # bytes of an attachment


def archive(dialog: Dialog, file: Path, folder: Path) -> Path:
    """Copy the dialog file, and its attachments, into `folder`; gives the copy's path. Never overwrites a copy."""
    data = file.read_bytes()
    topic = re.sub(r"[^a-z0-9]+", "-", dialog.header.topic.lower()).strip("-")[:40] or "dialog"
    target = folder / f"{topic}-{dialog.id}-{digest(data)[:8]}.md"
    beside = file.with_name(file.name + ".d")
    if beside.is_dir():
        attachments = folder / f"{target.stem}.d"
        make_folder(attachments)
        for item in beside.iterdir():
            if item.is_file() and not item.is_symlink() and not item.name.startswith("."):
                write_once(item.read_bytes(), attachments / item.name)
    write_once(data, target)  # last: whoever sees it finds its attachments there
    return target


def attachments_of(file: Path) -> dict[str, str]:
    """The attachments of a dialog file, or of its copy in the archive: texts by name; what is no plain file is not."""
    found: dict[str, str] = {}
    for folder in (file.with_name(f"{file.name}.d"), file.with_name(f"{file.stem}.d")):
        if found or not folder.is_dir() or folder.is_symlink():
            continue
        for item in sorted(folder.iterdir()):
            if item.is_file() and not item.is_symlink() and item.suffix == ".md" and not item.name.startswith("."):
                with item.open("rb") as text:
                    found[item.name] = text.read(LARGEST).decode("utf-8", "replace")
    return found
