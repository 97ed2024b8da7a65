"""`dialogd export`: a dialog as one document to take along."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dialogd.cli import options
from dialogd.cli.terminal import as_json, plain, remark, show
from dialogd.errors import BadInput, StorageError
from dialogd.protocol.state import Dialog
from dialogd.store.archive import attachments_of
from dialogd.store.disk import fix, why, write_over
from dialogd.views.export import FORMATS, file_name, not_shown
from dialogd.views.export import export as exported

File = Annotated[
    str | None, typer.Argument(metavar="FILE", help="The dialog file, or one of the archive. Default: as --file.")
]
To = Annotated[str, typer.Option("--to", metavar="FORMAT", help="md, html, pdf or json.")]
Out = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Where to; `-` is standard output. Default: TOPIC-DIALOG.FORMAT here."),
]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]


def export(
    path: File = None,
    *,
    to: To,
    out: Out = None,
    force: Force = False,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Write a dialog as one document: Markdown, HTML, PDF or JSON, complete in itself.

    What agents wrote is only text in each of them. Never writes over a file without --force.
    """
    if to not in FORMATS:
        raise BadInput(f"nothing is exported as {to!r}", fix=f"name one of: {', '.join(FORMATS)}")
    settings = options.settings_for(path if path is not None else file)
    dialog = options.dialog_at(options.log_of(settings))
    data = None if out == "-" else _target(out, dialog, to, settings.file, force=force)
    attachments = attachments_of(settings.file)
    made = exported(dialog, to, attachments=attachments)
    if gone := not_shown(dialog, to, attachments=attachments):
        remark(plain(f"warning: no font here has {gone}: they are not in the PDF; `--to html` has every character"))
    if data is None:
        _print(made)
        return
    try:
        write_over(made, data)
    except OSError as error:
        raise StorageError(f"{data} cannot be written: {why(error)}", fix=fix(error)) from error
    show(as_json({"file": str(data), "to": to, "bytes": len(made)}) if json else plain(str(data)))


def _target(out: str | None, dialog: Dialog, to: str, source: Path, *, force: bool) -> Path:
    """Where the document goes. Raises `BadInput` where something stands that must stay."""
    target = Path.cwd() / (Path(out).expanduser() if out else file_name(dialog, to))
    if target.is_dir():
        target /= file_name(dialog, to)
    if target.exists() and source.exists() and target.samefile(source):
        raise BadInput(f"{target} is the dialog itself", fix="name another file with --out")
    if (target.exists() or target.is_symlink()) and not force:
        raise BadInput(f"{target} is there already", fix="name another file with --out, or write over it with --force")
    return target


def _print(made: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(made)
    sys.stdout.buffer.flush()
