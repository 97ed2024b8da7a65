"""The formats that a dialog can be exported to, and the one function for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from dialogd.errors import BadInput
from dialogd.export.content import draw_up
from dialogd.protocol.state import Dialog

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "md": "text/markdown; charset=utf-8",
        "html": "text/html; charset=utf-8",
        "pdf": "application/pdf",
        "json": "application/json",
    }
)
NONE: Mapping[str, str] = MappingProxyType({})
LARGEST = 20_000_000  # bytes of an attachment


def export(dialog: Dialog, to: str, *, attachments: Mapping[str, str] = NONE) -> bytes:
    """The dialog as a document of its own; `to` is one of `FORMATS`, `attachments` are texts by name.

    Raises `BadInput` for another format, `NotInstalled` where nothing here can make a PDF.
    """
    if to not in FORMATS:
        raise BadInput(f"nothing is exported as {to!r}", fix=f"name one of: {', '.join(FORMATS)}")
    if to == "json":
        from dialogd.export.facts import as_json

        return as_json(dialog, attachments).encode()
    document = draw_up(dialog, attachments)
    if to == "md":
        from dialogd.export.markdown import as_markdown

        return as_markdown(document).encode("utf-8", "replace")
    if to == "html":
        from dialogd.export.page import as_html

        return as_html(document).encode("utf-8", "replace")
    from dialogd.export.pdf import as_pdf

    return as_pdf(document)


def attachments_of(file: Path) -> dict[str, str]:
    """The attachments of a dialog file, or of its copy in the archive: texts by name; what is no plain file is not."""
    found: dict[str, str] = {}
    for folder in (file.with_name(f"{file.name}.d"), file.with_name(f"{file.stem}.d")):
        if found or not folder.is_dir() or folder.is_symlink():
            continue
        for item in sorted(folder.iterdir()):
            if item.is_file() and not item.is_symlink() and item.suffix == ".md" and not item.name.startswith("."):
                found[item.name] = item.read_bytes()[:LARGEST].decode("utf-8", "replace")
    return found
