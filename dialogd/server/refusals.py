"""Every error of a route as problem JSON that names its fix."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from dialogd.errors import DialogdError
from dialogd.server.problem import MEDIA_TYPE, problem

log = logging.getLogger("dialogd.server")


def handle_errors(app: FastAPI) -> None:
    """Have `app` answer every error, an unforeseen one too, as a problem."""

    @app.exception_handler(DialogdError)
    async def refused(_: Request, error: DialogdError) -> Response:
        return _answer(error.http_status, str(error), error.fix)

    @app.exception_handler(FileNotFoundError)
    async def missing(_: Request, error: FileNotFoundError) -> Response:
        return _answer(409, f"there is no dialog at {error.filename} yet", "write one, or run `dialogd new TOPIC`")

    @app.exception_handler(OSError)
    async def failed(_: Request, error: OSError) -> Response:
        where = f"{error.filename}: " if error.filename else ""
        return _answer(507, f"{where}{error.strerror or error}", "look at the file and its folder, then try again")

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return _answer(422, f"{where}: {first['msg']}", "see GET /docs for what this route takes")

    @app.exception_handler(HTTPException)
    async def plain(_: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        return _answer(error.status_code, str(error.detail), "see GET /docs for the routes and what they take", headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
        return _answer(500, "an unexpected error; the daemon goes on", "see the daemon's log: dialogd logs")


def _answer(status: int, detail: str, fix: str, headers: dict[str, str] | None = None) -> Response:
    return Response(problem(status, detail, fix), status, headers, MEDIA_TYPE)
