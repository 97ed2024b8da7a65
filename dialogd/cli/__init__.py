"""The command line. Errors become one message, one fix and an exit code here, and nowhere else."""

from __future__ import annotations

import sys


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
    """Read the command line and do what it says. Raises what the command raises."""
    from typer.main import get_command

    from dialogd.cli.app import build

    try:
        get_command(build())(prog_name="dialogd")
    except SystemExit as end:  # typer makes one of a pipe that was closed
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise


def _from_the_system(error: OSError) -> int:
    """Print what the system refused; nothing where the reader of stdout has gone, as `| head` does."""
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
    from dialogd.cli.terminal import plain, remark

    remark(plain(f"error: {message}\n  fix: {fix}"))
    return code
