"""One tree of errors; each says what happened, what to do next, its HTTP status and its exit code.

DialogdError            1  500
├── BadInput            2  400   what the caller typed or sent is wrong
├── NotADialog          1  409   the file cannot be read as a dialog
├── UnsafeFile          1  409   the file cannot be trusted: symlink, another owner, world-writable ...
├── StorageError        1  507   the disk refused: full, read-only, a failed flush
├── Refused             1  409   the dialog's state does not allow it
├── AlreadyRunning      3  409   port or seat taken
├── NotRunning          3  503   no daemon where one was expected
├── NotInstalled        1  501   what this needs is not installed on this machine
└── BackendError        1  502   the backend gave no usable answer
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class DialogdError(Exception):
    """Anything dialogd refuses to do. `str(error)` says what happened; `fix` says what to do next.

    `field` is the part of a form that it concerns, such as `budget` or `agents.0.project`; "" where nobody said.
    """

    exit_code = 1
    http_status = 500
    field = ""

    def __init__(self, message: str, *, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@contextmanager
def concerning(field: str) -> Iterator[None]:
    """What is refused inside of this concerns that field, unless it says more exactly which."""
    try:
        yield
    except DialogdError as error:
        error.field = error.field or field
        raise


class BadInput(DialogdError):
    """A flag, setting, header or body is wrong."""

    exit_code = 2
    http_status = 400


class NotADialog(DialogdError):
    """The file is no dialog. `line` (1-based) is where reading failed."""

    http_status = 409

    def __init__(self, message: str, *, fix: str, line: int = 1) -> None:
        super().__init__(f"line {line}: {message}", fix=fix)
        self.line = line


class UnsafeFile(DialogdError):
    """A path that dialogd will not open: symlink, hard link, directory, another owner, world-writable."""

    http_status = 409


class StorageError(DialogdError):
    """The disk refused a write or a flush; nothing was acknowledged."""

    http_status = 507


class Refused(DialogdError):
    """The dialog as it stands does not allow this."""

    http_status = 409


class AlreadyRunning(DialogdError):
    """A port or a seat is taken."""

    exit_code = 3
    http_status = 409


class NotRunning(DialogdError):
    """No daemon answers where one was expected."""

    exit_code = 3
    http_status = 503


class NotInstalled(DialogdError):
    """What this needs is not installed on this machine."""

    http_status = 501


class BackendError(DialogdError):
    """The backend gave no usable answer.

    `cause` is one short line for the dialog's note of the failure. `kind` is a word for programs (`KINDS`).
    `retryable` says whether the same call may succeed later; `retry_after` is what the service asked for, in
    seconds. `partial` is text that arrived before the failure; with `is_whole` it is all there was to come.
    """

    http_status = 502
    # auth: key or login; limit: a spending limit; busy: too many requests, overloaded; network: no or a cut answer;
    # timeout; request: the service refuses the request as it is; refusal: the model refuses; empty; cut: a reply that
    # ended before its end; garbled: an answer nobody can read; unsafe: a safety check failed; silent: a live session
    # that was knocked at in vain; gone: one that has ended; failed: anything else.
    KINDS = frozenset(
        {"auth", "limit", "busy", "network", "timeout", "request", "refusal", "empty", "cut", "garbled", "unsafe",
         "silent", "gone", "failed"}
    )  # fmt: skip

    def __init__(
        self,
        cause: str,
        *,
        fix: str,
        retryable: bool = False,
        retry_after: float | None = None,
        partial: str = "",
        is_whole: bool = False,
        kind: str = "failed",
    ) -> None:
        super().__init__(cause, fix=fix)
        self.cause = cause
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.partial = partial
        self.is_whole = is_whole
