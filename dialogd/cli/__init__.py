"""The command line. Errors become one message, one fix and an exit code here, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dialogd.errors import DialogdError


def main() -> None:
    """Run the command line, and exit."""
    import io

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    from dialogd.errors import DialogdError

    try:
        _carry_out()
    except DialogdError as error:
        if "--debug" in sys.argv[1:]:
            raise
        sys.exit(_explain(str(error), error.fix, error.exit_code))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if "--debug" in sys.argv[1:]:
            raise
        sys.exit(_from_the_system(error))


def _carry_out() -> None:
    """Read the command line and do what it says. Raises what the command raises, `BadInput` for wrong usage."""
    import typer
    from typer.main import get_command

    from dialogd.cli.app import build

    _refuse_damaged(sys.argv[1:])
    usage_error: Any = typer.BadParameter.__bases__[0]  # typer has no public name for it
    try:
        sys.exit(get_command(build())(prog_name="dialogd", standalone_mode=False))
    except usage_error as error:
        raise _misused(error) from None
    except typer.Abort:
        sys.exit(1)
    except SystemExit as end:  # typer makes one of a pipe that was closed
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise


def _refuse_damaged(words: Sequence[str]) -> None:
    """Raise `BadInput` for an argument that is no UTF-8, which would be damaged, unless a file has that name."""
    import os

    from dialogd.errors import BadInput

    for word in words:
        if any("\udc80" <= sign <= "\udcff" for sign in word) and not os.path.lexists(word):
            shown = os.fsencode(word).decode("latin-1")
            raise BadInput(
                f"the argument {shown[:60]!r}, as Latin-1, is not UTF-8",
                fix="type it in a terminal that is set to UTF-8, or convert it first: iconv -f latin1 -t utf-8",
            )


def _misused(error: Any) -> DialogdError:
    """The error for a mistyped command, with suggestions; exits with the help where nothing was typed at all."""
    from dialogd.errors import BadInput

    said = str(error.format_message())
    if said.startswith("Usage:"):
        error.show()
        sys.exit(error.exit_code)
    options = sorted(getattr(error, "possibilities", None) or ())
    if options:
        said = str(error.message)
    command = error.ctx.command_path if error.ctx is not None else "dialogd"
    meant = f"did you mean {' or '.join(options)}? " if options else ""
    return BadInput(f"{said[:1].lower()}{said[1:].rstrip('.')}", fix=f"{meant}what there is: {command} --help")


def _from_the_system(error: OSError) -> int:
    """Print what the system refused; nothing where the reader of stdout has gone away, as with `| head`."""
    if isinstance(error, BrokenPipeError):
        import os

        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # what is left in the buffer goes nowhere, too
        os.close(nowhere)
        return 0
    where = f"{error.filename}: " if error.filename else ""
    return _explain(f"{where}{error.strerror or error}", "check the file; --debug shows where it happened", 1)


def _explain(message: str, fix: str, code: int) -> int:
    """Print an error and its fix on stderr; gives the exit code."""
    from dialogd.cli.terminal import remark

    remark(f"error: {message}\n  fix: {fix}")
    return code
