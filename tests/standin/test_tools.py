"""Tools in the four forms: how a call is told, what a request says of results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.standin.asking import FORMS, PATHS, ask
from tests.support.cases import cases
from tests.support.standin import Seen, StandIn, Use, in_order
from tests.support.standin.server import FORMS as KNOWN

pytestmark = pytest.mark.slow  # a tool of the tests is tried here, no promise


USE = Use("glob", {"path": "a.txt"}, say="Let me look.")


def seen(form: str, body: dict[str, Any]) -> Seen:
    """A request with that body."""
    return Seen("POST", PATHS[form].partition("?")[0], {}, json.dumps(body).encode(), 0.0, 1)


RESULTS: dict[str, dict[str, Any]] = {
    "messages": {
        "messages": [
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "x", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "old"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "2", "name": "x", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "2",
                        "is_error": True,
                        "content": [{"type": "text", "text": "new"}],
                    }
                ],
            },
            {"role": "system", "content": "# Environment"},
        ]
    },
    "chat": {
        "messages": [
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "tool_call_id": "1", "content": "old"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "tool_call_id": "2", "content": "new"},
        ]
    },
    "responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Q"}]},
            {"type": "function_call", "call_id": "1", "name": "x", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "old"},
            {"type": "custom_tool_call", "call_id": "2", "name": "x", "input": ""},
            {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "new"}]},
        ]
    },
    "gemini": {
        "contents": [
            {"role": "user", "parts": [{"text": "Q"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "x", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "x", "response": {"output": "old"}}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "x", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "x", "response": {"error": "new"}}}]},
        ]
    },
}
SAYS_WHETHER = {"messages", "gemini"}


@cases("form", FORMS)
def test_results_are_those_since_the_model_last_spoke(form: str) -> None:
    """Their text, and whether they are errors where the form says so; the prompt holds the older ones too."""
    request = seen(form, RESULTS[form])
    assert request.tool_results == [(form in SAYS_WHETHER, "new")]
    assert [word for word in request.prompt.split() if word in ("Q", "old", "new")] == ["Q", "old", "new"]
    assert request.last == "Q"


@cases(
    ("form", "tools"),
    [
        ("messages", [{"name": "read"}, {"type": "web_search", "name": "search"}]),
        ("chat", [{"type": "function", "function": {"name": "read"}}, {"function": {"name": "search"}}]),
        ("responses", [{"type": "function", "name": "read"}, {"type": "search"}]),
        ("gemini", [{"functionDeclarations": [{"name": "read"}, {"name": "search"}]}]),
    ],
)
def test_the_tools_offered_are_named(form: str, tools: list[Any]) -> None:
    """In the order in which they stand."""
    assert seen(form, {"tools": tools}).tools == ["read", "search"]


def test_tools_within_the_input_and_in_namespaces_are_found() -> None:
    """As Codex offers them."""
    space = {"type": "namespace", "name": "clock", "tools": [{"type": "function", "name": "sleep"}]}
    tools = [{"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}, space]
    body = {"input": [{"type": "additional_tools", "role": "developer", "tools": tools}]}
    assert seen("responses", body).tools == ["exec", "sleep"]
    plain = [call(Use(name, given), body) for name, given in (("exec", "1 + 1"), ("sleep", {"ms": 1}))]
    assert [item["type"] for item in plain] == ["custom_tool_call", "function_call"]
    assert (plain[0]["input"], plain[1]["arguments"]) == ("1 + 1", '{"ms":1}')
    assert ["namespace" in item for item in plain] == [False, True]


def call(use: Use, body: dict[str, Any]) -> dict[str, Any]:
    """The call that the Responses form makes of `use`."""
    from tests.support.standin.server import reply_of

    answer: Any = KNOWN["responses"].plain(reply_of(seen("responses", body), use), body)
    item: dict[str, Any] = answer["output"][-1]
    return item


@cases("form", FORMS)
def test_a_call_stands_after_its_text_in_both_ways(form: str) -> None:
    """Name and input, as a stream and in one piece."""
    with StandIn(in_order(USE)) as server:
        stream, plain = ask(server, form), ask(server, form, stream=False)
    assert stream.text == "Let me look."
    told, whole = json.dumps(stream.events), plain.raw.decode()
    for text in (told, whole):
        assert text.index("Let me ") < text.index("glob")
        assert "a.txt" in text
    assert {"messages": "tool_use", "chat": "tool_calls"}.get(form, "") in told


@cases("form", ["messages", "chat", "responses"])
def test_messages_that_open_a_request_are_its_system_prompt(form: str) -> None:
    """Those of the system and of the developer, up to the first of the user's; later ones stand where they stand."""
    roles = ("system", "developer", "user", "system")
    said = [{"role": role, "content": f"{role} {number}"} for number, role in enumerate(roles)]
    request = seen(form, {"input" if form == "responses" else "messages": said})
    assert request.system == "system 0\n\ndeveloper 1"
    assert request.prompt == "system 0\n\ndeveloper 1\n\nuser 2\n\nsystem 3"


@cases("form", FORMS)
@cases("strange", [{}, {"messages": "x", "input": 3, "contents": [1]}, {"messages": [{"content": [3]}]}])
def test_a_strange_request_is_read_as_far_as_it_goes(form: str, strange: dict[str, Any]) -> None:
    """Nothing is raised."""
    request = seen(form, {**strange, "tools": [1, {"name": 3}], "system": [None], "instructions": {}})
    assert (request.system, request.tool_results, request.tools) == ("", [], [])
