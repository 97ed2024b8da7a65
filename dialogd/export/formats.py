"""The formats that a dialog can be exported to, and the one function for all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
PART = 40  # characters of a topic, and of an id, in a file's name


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


def not_shown(dialog: Dialog, to: str, *, attachments: Mapping[str, str] = NONE) -> str:
    """In words, the characters that the document leaves out, because no font here has them; "" for none."""
    if to != "pdf":
        return ""
    from dialogd.export.pdf import left_out

    return left_out(draw_up(dialog, attachments))


def file_name(dialog: Dialog, to: str) -> str:
    """`TOPIC-DIALOG.FORMAT`: a name that every system and every header takes, whatever topic and id hold."""
    parts = (_plain(dialog.header.topic.lower()) or "dialog", _plain(dialog.id))
    return f"{'-'.join(filter(None, parts))}.{to}"


def _plain(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "-", text).strip("-")[:PART].strip("-")
