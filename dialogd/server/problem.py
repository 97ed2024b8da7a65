"""The one form of every error on the wire: problem JSON (RFC 9457) that names its fix."""

import json
from http import HTTPStatus

MEDIA_TYPE = "application/problem+json"


def problem(status: int, detail: str, fix: str) -> bytes:
    """Return the body of an error answer; ASCII only, so nothing in `detail` reaches a terminal raw."""
    title = HTTPStatus(status).phrase
    return json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail, "fix": fix}).encode()
