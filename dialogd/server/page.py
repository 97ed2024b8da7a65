"""The pages: the dialog's, which a script keeps up to date, and the one that describes the HTTP surface."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from dialogd.protocol.state import Dialog
from dialogd.server.page_entries import LAST, PageEntry, window
from dialogd.server.page_state import PageState
from dialogd.server.templating import fill, safe

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{others}; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def render_page(state: PageState, dialog: Dialog | None) -> str:
    """The page as it begins: where the dialog stands and its last entries; it can be read without its scripts."""
    shown = window(dialog, None, None, LAST)
    entries = [(entry, safe(entry.html)) for entry in shown.entries]
    return fill(
        "page.html", state=state, entries=entries, total=shown.total, dialog=shown.dialog, last=_last(shown.entries)
    )


def _last(entries: Sequence[PageEntry]) -> int:
    """The index of the last finished entry, -1 without one."""
    return next((entry.index for entry in reversed(entries) if entry.condition != "unfinished"), -1)


def page_policy(host: str, others: Sequence[str]) -> dict[str, str]:
    """The headers of the page: scripts and styles of this daemon alone; it may ask who of the others is alive.

    `host` is the request's own Host, `others` the addresses of the other daemons.
    """
    name = host.rpartition(":")[0]
    ports = [url.rpartition(":")[2] for url in others]
    known = "".join(f" http://{name}:{port}" for port in ports if port.isascii() and port.isdigit())
    # The opener policy: a page that opened this one can neither watch nor steer its window.
    return {
        "content-security-policy": _POLICY.format(others=known),
        "cross-origin-opener-policy": "same-origin",
    }


def render_api(schema: dict[str, Any]) -> str:
    """The HTTP surface, from its OpenAPI description; the page fetches nothing from outside."""
    rows = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            call = html.escape(f"{method.upper()} {path}")
            text = html.escape(about.get("description", ""))
            rows.append(f"<h2><code>{call}</code></h2>\n<p>{text}</p>\n{_fields(schema, about)}")
    intro = '<p>The whole description: <a href="/openapi.json">/openapi.json</a>.</p>'
    return _page(
        str(schema["info"]["title"]), f"<p>{html.escape(schema['info']['description'])}</p>{intro}\n" + "\n".join(rows)
    )


def _fields(schema: dict[str, Any], about: dict[str, Any]) -> str:
    """The query parameters and body fields of one route."""
    fields = [(p["name"], p["schema"], p.get("description", "")) for p in about.get("parameters", ())]
    body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    model = schema["components"]["schemas"].get(str(body.get("$ref", "")).rpartition("/")[2], {})
    fields += [(name, f, f.get("description", "")) for name, f in model.get("properties", {}).items()]
    items = (
        f"<li><code>{html.escape(name)}</code> ({html.escape(str(kind.get('type', 'any')))}) {html.escape(text)}</li>"
        for name, kind, text in fields
    )
    return f"<ul>{''.join(items)}</ul>" if fields else ""


def _page(title: str, body: str) -> str:
    safe = html.escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{safe}</title></head>\n<body><h1>{safe}</h1>\n{body}\n</body></html>\n"
    )
