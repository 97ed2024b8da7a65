"""The command line. Errors become one message, one fix and an exit code here, and nowhere else."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, and exit."""
    import io

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    from typer.main import get_command

    from dialogd.cli.app import build
    from dialogd.errors import DialogdError

    try:
        get_command(build())(prog_name="dialogd")
    except DialogdError as error:
        if "--debug" in sys.argv[1:]:
            raise
        sys.exit(_explain(str(error), error.fix, error.exit_code))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if "--debug" in sys.argv[1:]:
            raise
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(_explain(f"{where}{error.strerror or error}", "check the file; --debug shows where it happened", 1))


def _explain(message: str, fix: str, code: int) -> int:
    """Print an error and its fix on stderr; gives the exit code."""
    from dialogd.cli.terminal import plain, remark

    remark(plain(f"error: {message}\n  fix: {fix}"))
    return code
