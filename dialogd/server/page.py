"""The dialog as a plain page: text only, escaped, no script, nothing from outside."""

from __future__ import annotations

import html
from typing import Any

from dialogd.agent import Agent
from dialogd.protocol.decide import Wait

LAST = 200  # entries on the page


def render_page(agent: Agent, port: int) -> str:
    """A page to read: where the dialog stands, its last entries, and the commands that drive it."""
    dialog = agent.dialog
    if dialog is None:
        return _page(
            "no dialog yet", f"<p>There is no dialog at <code>{html.escape(str(agent.file.path))}</code> yet.</p>"
        )
    state = dialog.state
    status = state.outcome.name if state.outcome else f"turn {state.number}, next: {', '.join(state.owing) or 'nobody'}"
    reason = agent.action.reason if isinstance(agent.action, Wait) else ""
    left_out = max(0, len(dialog.entries) - LAST)
    parts = [f"<p><strong>{html.escape(status)}</strong> {html.escape(reason)}</p>"]
    if left_out:
        parts.append(f"<p>{left_out} earlier entries are in the file.</p>")
    for entry in dialog.entries[left_out:]:
        title = f"Turn {entry.number} — {entry.name}" if entry.is_turn else f"Note — {entry.name}"
        marks = "\n".join(str(mark) for mark in entry.marks)
        text = html.escape(f"{entry.body}\n\n{marks}".strip())
        parts.append(f"<h2>{html.escape(title)}</h2>\n<pre>{text}</pre>")
    commands = f"tail -f {agent.file.path}\ncurl -X POST localhost:{port}/pause\ndialogd say --file {agent.file.path} …"
    parts.append(f"<h2>Step in</h2>\n<pre>{html.escape(commands)}</pre>")
    return _page(dialog.header.topic or dialog.header.title, "\n".join(parts))


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
