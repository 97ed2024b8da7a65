"""OpenAI's Responses, as the service speaks it: one response, a stream of events, errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from tests.support.standin.chat import failure
from tests.support.standin.form import (
    Event,
    Json,
    Reply,
    Said,
    Stage,
    compact,
    dicts,
    number_in,
    sse,
    strings,
    text_of,
    with_system,
)

OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})
CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call", "reasoning"})
DEFAULT_NAMESPACE = "functions"
INCOMPLETE = {"max_tokens": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    """`POST /v1/responses`."""

    def read(self, body: Json) -> Said:
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else dicts(given)
        said = [(_role(item), _text(item)) for item in items if item.get("type") not in CALLS]
        system, rest = with_system(text_of(body.get("instructions")), said)
        results = tuple(
            (item.get("status") == "failed" or item.get("success") is False, _text(item))
            for item in _since_the_model(items)
            if item.get("type") in OUTPUTS
        )
        return Said(system, rest, results, strings([tool.get("name", tool.get("type")) for _, tool in _tools(body)]))

    def objection(self, body: Json, thoughts: Mapping[int, Reply]) -> str:
        """A call comes after the thoughts that led to it, as they were sealed; nothing is kept here."""
        before: list[Json] = []
        for item in dicts(body.get("input")):
            thought = thoughts.get(number_in(item.get("call_id"))) if item.get("type") in CALLS else None
            if thought is not None and not any(_is_same(one, thought) for one in before):
                number = thought.number
                return (
                    f"Item 'fc_standin{number:06}' of type '{item['type']}' was provided without its required"
                    f" 'reasoning' item: 'rs_standin{number:06}'."
                )
            before = [] if item.get("type") in OUTPUTS else [*before, item]
        return ""

    def stream(self, reply: Reply, body: Json) -> Iterator[Event]:
        numbers = count()
        for name, stage, carries, fields in _events(reply, body):
            event = {"type": name, "sequence_number": next(numbers), **fields}
            yield Event(sse(event, name), stage, carries)

    def plain(self, reply: Reply, body: Json) -> object:
        return _response(reply, _status(reply), _items(reply, body))

    def failure(self, status: int, kind: str, message: str) -> Json:
        return failure(status, kind, message)

    def error_event(self, kind: str, message: str, failed: bool) -> bytes:
        if not failed:
            fields = {"type": "error", "sequence_number": 9999, "code": kind, "message": message, "param": None}
            return sse(fields, "error")
        reply = Reply("", 0, "", "", 0, 0)
        response = {**_response(reply, "failed", []), "error": {"code": kind, "message": message}, "usage": None}
        return sse({"type": "response.failed", "sequence_number": 9999, "response": response}, "response.failed")


Step = tuple[str, Stage, int, Json]


def _role(item: Json) -> str:
    if item.get("type") in OUTPUTS:
        return "tool"
    return str(item.get("role") or "user")


def _is_same(item: Json, thought: Reply) -> bool:
    """True for an item that holds these thoughts, unchanged."""
    return {key: value for key, value in item.items() if key != "status"} == _reasoning(thought, is_whole=True)


def _reasoning(reply: Reply, *, is_whole: bool) -> Json:
    """The thoughts as an item; sealed where they were asked for so."""
    summary = [] if reply.is_sealed else [{"type": "summary_text", "text": reply.thinking}]
    item = {"id": f"rs_standin{reply.number:06}", "type": "reasoning", "summary": summary}
    return item | ({"encrypted_content": reply.seal} if is_whole else {})


def _text(item: Json) -> str:
    return text_of(item.get("output") if item.get("type") in OUTPUTS else item.get("content"))


def _since_the_model(items: Sequence[Json]) -> list[Json]:
    spoken = (i for i, item in enumerate(items) if item.get("type") in CALLS or item.get("role") == "assistant")
    return list(items[max(spoken, default=-1) + 1 :])


def _tools(body: Json) -> Iterator[tuple[str, Json]]:
    """(namespace, tool) of each tool offered: beside the input or within it, alone or in a namespace."""
    groups = [dicts(item.get("tools")) for item in (body, *dicts(body.get("input")))]
    for tool in (tool for group in groups for tool in group):
        if tool.get("type") != "namespace":
            yield "", tool
            continue
        for inner in dicts(tool.get("tools")):
            yield str(tool.get("name", "")), inner


def _events(reply: Reply, body: Json) -> Iterator[Step]:
    begun = _response(reply, "in_progress", [])
    yield "response.created", Stage.OPENING, 0, {"response": begun}
    yield "response.in_progress", Stage.OPENING, 0, {"response": begun}
    items = _items(reply, body)
    for index, item in enumerate(items):
        steps = {"message": _spoken, "reasoning": _thought}.get(item["type"], _called)
        yield from steps(reply, index, item)
    status = _status(reply)
    if reply.stop:
        yield f"response.{status}", Stage.CLOSING, 0, {"response": _response(reply, status, items)}


def _items(reply: Reply, body: Json) -> list[Json]:
    items: list[Json] = []
    if reply.thinking:
        is_whole = "reasoning.encrypted_content" in (body.get("include") or ())
        items.append(_reasoning(reply, is_whole=is_whole))
    if reply.text or reply.tool is None:
        message = {"id": f"msg_standin{reply.number:06}", "type": "message", "role": "assistant"}
        items.append({**message, "status": "completed", "content": [_part(reply, reply.text)]})
    if reply.tool is not None:
        items.append(_call(reply, body))
    return items


def _part(reply: Reply, text: str) -> Json:
    if reply.stop == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _spoken(reply: Reply, index: int, item: Json) -> Iterator[Step]:
    where = {"item_id": item["id"], "output_index": index, "content_index": 0}
    begun = {**item, "status": "in_progress", "content": []}
    yield "response.output_item.added", Stage.OPENING, 0, {"output_index": index, "item": begun}
    yield "response.content_part.added", Stage.OPENING, 0, {**where, "part": _part(reply, "")}
    refuses = reply.stop == "refusal"
    name, key = ("refusal", "refusal") if refuses else ("output_text", "text")
    more: Json = {} if refuses else {"logprobs": []}
    for piece in reply.pieces():
        yield f"response.{name}.delta", Stage.TEXT, len(piece), {**where, "delta": piece, **more}
    yield f"response.{name}.done", Stage.CLOSING, 0, {**where, key: reply.text, **more}
    yield "response.content_part.done", Stage.CLOSING, 0, {**where, "part": _part(reply, reply.text)}
    yield "response.output_item.done", Stage.CLOSING, 0, {"output_index": index, "item": item}


def _thought(reply: Reply, index: int, item: Json) -> Iterator[Step]:
    where = {"item_id": item["id"], "output_index": index, "summary_index": 0}
    yield "response.output_item.added", Stage.OPENING, 0, {"output_index": index, "item": {**item, "summary": []}}
    for whole in item["summary"]:
        part = {"type": "summary_text", "text": ""}
        yield "response.reasoning_summary_part.added", Stage.OPENING, 0, {**where, "part": part}
        yield "response.reasoning_summary_text.delta", Stage.OPENING, 0, {**where, "delta": reply.thinking}
        yield "response.reasoning_summary_text.done", Stage.OPENING, 0, {**where, "text": reply.thinking}
        yield "response.reasoning_summary_part.done", Stage.OPENING, 0, {**where, "part": whole}
    yield "response.output_item.done", Stage.OPENING, 0, {"output_index": index, "item": item}


def _call(reply: Reply, body: Json) -> Json:
    """A call in the way in which the tool was offered: with arguments, or with plain text."""
    name, given = reply.tool or ("", {})
    namespace, offered = next((pair for pair in _tools(body) if pair[1].get("name") == name), ("", {}))
    item = {"status": "completed", "call_id": f"call_standin{reply.number:06}", "name": name}
    if namespace not in ("", DEFAULT_NAMESPACE):
        item["namespace"] = namespace
    if offered.get("type") == "custom" or (not offered and isinstance(given, str)):
        text = given if isinstance(given, str) else str(given.get("input", compact(dict(given))))
        return {"id": f"ctc_standin{reply.number:06}", "type": "custom_tool_call", **item, "input": text}
    arguments = given if isinstance(given, str) else compact(dict(given))
    return {"id": f"fc_standin{reply.number:06}", "type": "function_call", **item, "arguments": arguments}


def _called(reply: Reply, index: int, item: Json) -> Iterator[Step]:
    name, key = ("custom_tool_call_input", "input") if "input" in item else ("function_call_arguments", "arguments")
    where = {"item_id": item["id"], "output_index": index}
    begun = {**item, "status": "in_progress", key: ""}
    yield "response.output_item.added", Stage.CLOSING, 0, {"output_index": index, "item": begun}
    yield f"response.{name}.delta", Stage.CLOSING, 0, {**where, "delta": item[key]}
    done = {**where, key: item[key]} if key == "input" else {**where, key: item[key], "name": item["name"]}
    yield f"response.{name}.done", Stage.CLOSING, 0, done
    yield "response.output_item.done", Stage.CLOSING, 0, {"output_index": index, "item": item}


def _status(reply: Reply) -> str:
    return "incomplete" if reply.stop in INCOMPLETE else "completed"


def _response(reply: Reply, status: str, output: list[Json]) -> Json:
    ended = status in ("completed", "incomplete")
    return {
        "id": f"resp_standin{reply.number:06}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": INCOMPLETE[reply.stop]} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": _usage(reply) if ended else None,
    }


def _usage(reply: Reply) -> Json:
    return {
        "input_tokens": reply.tokens_in,
        "input_tokens_details": {"cached_tokens": reply.cached, "cache_write_tokens": reply.cache_write},
        "output_tokens": reply.tokens_out,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.tokens_in + reply.tokens_out,
    }
