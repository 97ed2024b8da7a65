"""Every error as problem JSON (RFC 9457) with its fix."""

from __future__ import annotations

import json
import logging
import shlex
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from dialogd.config import new_command
from dialogd.errors import DialogdError

MEDIA_TYPE = "application/problem+json"
NO_OBJECT = ("json_invalid", "model_attributes_type")

log = logging.getLogger("dialogd.server")


def problem(status: int, detail: str, fix: str, field: str = "") -> bytes:
    """Return the body of an error answer; ASCII only, so nothing in `detail` reaches a terminal raw.

    `field` is the part of the sent form that it concerns, where that is known.
    """
    title = HTTPStatus(status).phrase
    facts = {"type": "about:blank", "title": title, "status": status, "detail": detail, "fix": fix}
    return json.dumps({**facts, "field": field} if field else facts).encode()


def handle_errors(app: FastAPI) -> None:
    """Have `app` answer every error, an unforeseen one too, as a problem."""

    @app.exception_handler(DialogdError)
    async def refused(_: Request, error: DialogdError) -> Response:
        return _answer(error.http_status, str(error), error.fix, field=error.field)

    @app.exception_handler(OSError)
    async def failed(_: Request, error: OSError) -> Response:
        if isinstance(error, FileNotFoundError):
            return _answer(
                409, f"there is no dialog at {error.filename} yet", f"write one: {new_command(Path(error.filename))}"
            )
        where = f"{error.filename}: " if error.filename else ""
        return _answer(507, f"{where}{error.strerror or error}", "look at the file and its folder, then try again")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] in NO_OBJECT:
            fix = f"send one, or where all is optional no body at all; curl {request.base_url}docs says what it takes"
            return _answer(400, "the body is not a JSON object", fix)
        where, field = (".".join(map(str, part)) for part in (first["loc"], first["loc"][1:]))
        return _answer(422, f"{where}: {first['msg']}", "see GET /docs for what this route takes", field=field)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, UnicodeDecodeError):
            convert = "iconv -f latin1 -t utf-8 body.json | curl --data-binary @- URL"
            return _answer(400, "the body is not UTF-8", f"send it as UTF-8, such as: {convert}")
        headers = dict(error.headers or {})
        allowed = headers.get("Allow") or headers.get("allow")
        line = f"curl -X {allowed} {shlex.quote(f'{request.base_url}{request.url.path[1:]}')}; " if allowed else ""
        docs = f"curl {request.base_url}docs lists the routes and what they take"
        return _answer(error.status_code, str(error.detail), f"{line}{docs}", headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
        return _answer(500, "an unexpected error; the daemon goes on", "see the daemon's log: dialogd logs")


def _answer(status: int, detail: str, fix: str, headers: dict[str, str] | None = None, field: str = "") -> Response:
    return Response(problem(status, detail, fix, field), status, headers, MEDIA_TYPE)
