"""The page on HTTP and the daemon say the same: routes, fields, statuses, events, numbers."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from dialogd.agent import events
from dialogd.errors import DialogdError
from dialogd.protocol.marks import MARKS
from dialogd.protocol.model import OUTCOMES
from dialogd.server import wire
from dialogd.server.guard import BODY_BYTES, HEADER_BYTES
from dialogd.server.routes import _STATUS, create_app
from dialogd.server.streams import KINDS, model_of
from dialogd.store.folders import StateDir
from tests.docs.manual import DOCS, REPOSITORY, blocks, codes, section, table

PAGE, EVENTS = DOCS / "http.md", DOCS / "events.md"
TEXT = PAGE.read_text(encoding="utf-8")
AGENT = cast("Any", SimpleNamespace(me="A", file=None, hub=events.Hub(), secrets=()))
SCHEMA: dict[str, Any] = create_app(AGENT, 3001, cast("Any", None), StateDir(Path("state"))).openapi()
ROUTES = {f"{method.upper()} {path}": about for path, way in SCHEMA["paths"].items() for method, about in way.items()}


def calls(name: str, folder: str = "") -> Iterator[ast.Call]:
    """Every call of a function or method of that name in the product, or in a folder of it."""
    for path in sorted((REPOSITORY / "dialogd" / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == name:
                yield node


def words(node: ast.AST | None) -> list[str]:
    """The string constants in an expression."""
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)] if node else []


# Each kind of event that the code tells; the hub and the reporter have a way of their own.
TOLD = {kind for call in calls("publish") for kind in words(call.args[0])} | {"turn", "note", "agent", "text"}
TOLD |= {"reset", "bye"}
# An agent waits for these; a notify never says so.
INNER = {"starting", "pace", "interrupted", "late", "storage", "unpriced"}


def test_every_section_is_of_a_route_that_is_there() -> None:
    named = re.findall(r"^### `([A-Z]+ /[^`…]*)`", TEXT, re.MULTILINE)
    assert named
    assert set(named) <= set(ROUTES)


def test_health_has_a_row_for_every_field() -> None:
    rows = table(section(PAGE, "`GET /health`"))
    assert sorted(code for row in rows for code in codes(row[0])) == sorted(wire.Health.model_fields)


def test_every_status_of_a_notify_has_its_row() -> None:
    waits = {word for call in calls("Wait") for word in words(call.args[0])}
    outcomes = {_STATUS.get(name, name.lower()) for name in MARKS if name in OUTCOMES} | set(_STATUS.values())
    listed = {code for row in table(section(PAGE, "`POST /notify`")) for code in codes(row[0])}
    assert listed == (waits | outcomes | {"accepted", "busy", "ok"}) - INNER
    assert waits & set(codes(section(PAGE, "`GET /health`").rpartition("|\n")[2])) >= INNER


def test_every_kind_of_event_has_its_row_with_its_fields() -> None:
    rows = {codes(row[0])[0]: row for row in table(section(EVENTS, "Kinds"))}
    assert sorted(rows) == sorted(KINDS) == sorted(TOLD)
    assert set(codes(section(EVENTS, "What is guaranteed"))) >= set(KINDS)
    (first,) = re.findall(r"^data: (.*)$", section(EVENTS, "Kinds"), re.MULTILINE)
    wrapped = json.loads(first)
    for kind, (_, said, example) in rows.items():
        data = (
            wrapped if kind == "state" else {key: wrapped[key] for key in ("v", "at")} | json.loads(codes(example)[0])
        )
        model_of(kind).model_validate(data)
        fields = set(model_of(kind).model_fields)
        assert set(data) <= fields <= {*data, *codes(said)}, kind


def test_every_status_of_an_error_has_its_row() -> None:
    trees = [DialogdError, *DialogdError.__subclasses__()]
    refused = {n.value for c in calls("Denial", "server") for n in ast.walk(c.args[0]) if isinstance(n, ast.Constant)}
    listed = {int(code) for row in table(section(PAGE, "Errors")) for code in re.findall(r"\d{3}", row[0])}
    backend, version = 502, 505  # never an answer of a route; no client of today
    assert {e.http_status for e in trees} | refused | {404, 405, 422} == listed | {backend, version}


def test_the_numbers_are_the_codes_own() -> None:
    for said in (
        f"the last {events.BACKLOG} events",
        f"{events.LAG} events behind",
        f"At most {events.CLIENTS} clients",
        f"{HEADER_BYTES // 1024} KiB of headers",
        f"{BODY_BYTES // 1024**2} MiB of body",
    ):
        assert said in TEXT + EVENTS.read_text(encoding="utf-8")


def test_the_examples_are_json() -> None:
    for block in blocks(PAGE, "json"):
        try:
            json.loads(block.text)
        except ValueError:
            assert all(json.loads(line) for line in block.text.strip().split("\n")), block.line
