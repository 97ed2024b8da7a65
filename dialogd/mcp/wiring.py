"""What the SDK's server lacks: short schemas, a reason for every refusal, and an answer to every line."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, Tool, jsonrpc_message_adapter
from pydantic import ValidationError

from dialogd.errors import BadInput, DialogdError
from dialogd.protocol.names import WORDS, worded
from dialogd.protocol.text import one_line


class Server(MCPServer):
    """The SDK's server, whose schemas stand in every session's context, and so say only what a model needs."""

    async def list_tools(self) -> list[Tool]:
        """The tools, described in few words."""
        return [
            tool.model_copy(
                update={
                    "description": inspect.cleandoc(tool.description or ""),
                    "input_schema": short(tool.input_schema),
                    "output_schema": None,
                }
            )
            for tool in await super().list_tools()
        ]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool. Raises `ToolError` with what to do next, also for an argument that it does not take."""
        schema = next((tool.input_schema for tool in await self.list_tools() if tool.name == name), None)
        try:
            if schema is not None:
                arguments = json.loads(_whole(json.dumps(arguments)))
                words = next((one for one in WORDS if one in schema["properties"]), "")
                arguments = worded(arguments, words) if words else arguments
                check(schema, arguments)
            return await super().call_tool(name, arguments, context)
        except RecursionError:
            raise ToolError("the arguments are nested too deeply. What to do: send them flat") from None
        except DialogdError as error:
            raise ToolError(in_words(error)) from error
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            raise ToolError(
                f"{'; '.join(_faults(error.__cause__))}. What to do: mend that, and call {name} again"
            ) from None

    async def read_resource(self, uri: Any, context: Any = None) -> Any:
        """Read a resource. Raises `ResourceError` with the reason."""
        try:
            return await super().read_resource(uri, context)
        except ResourceError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, DialogdError):
                cause = cause.__cause__
            if cause is None:
                raise
            raise ResourceError(in_words(cause)) from None

    async def run_stdio_async(self) -> None:
        """Answer over standard input and output, until the input ends."""
        import anyio

        async with stdio_server() as (heard, says):
            sends, hears = anyio.create_memory_object_stream[SessionMessage | Exception](0)

            async def listen() -> None:
                async with sends:
                    async for item in _readable(heard, says):
                        await sends.send(item)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                options = self._lowlevel_server.create_initialization_options()
                await self._lowlevel_server.run(hears, says, options)


def in_words(error: DialogdError) -> str:
    """An error as a model reads it."""
    return f"{error}. What to do: {error.fix}"


async def _readable(heard: Any, says: Any) -> AsyncIterator[SessionMessage]:
    """The messages among what was heard; what is none is answered with the reason."""
    async for item in heard:
        if not isinstance(item, Exception):
            yield item
            continue
        fault: Mapping[str, Any] = item.errors()[0] if isinstance(item, ValidationError) else {}
        try:
            yield SessionMessage(jsonrpc_message_adapter.validate_json(_whole(fault["input"]), by_name=False))
        except (KeyError, TypeError, ValueError, RecursionError):
            is_json = fault.get("type") != "json_invalid"
            why = "the line is no single message of JSON-RPC" if is_json else f"the line is no JSON: {fault['msg']}"
            error = ErrorData(code=INVALID_REQUEST if is_json else PARSE_ERROR, message=why)
            await says.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=None, error=error)))


def _whole(line: str) -> str:
    """A line of JSON in which each half of a character became U+FFFD. Raises `ValueError`, `RecursionError`."""
    text = json.dumps(json.loads(line), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def check(schema: Mapping[str, Any], given: Mapping[str, Any], inside: str = "") -> None:
    """Raise `BadInput` for an argument that is none, or a part of one, with the known ones."""
    known = schema["properties"]
    for name, value in given.items():
        if name not in known:
            raise BadInput(
                f"there is no argument {inside}{one_line(name, 60)!r}", fix=f"name one of: {', '.join(known)}"
            )
        if isinstance(value, dict) and "properties" in known[name]:
            check(known[name], value, f"{name}.")


def _faults(error: ValidationError) -> list[str]:
    """What is wrong with arguments, each in a few words."""
    return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]


# -- Schemas ----------------------------------------------------------------------------------------------------------

_LEFT_OUT = {"title", "$defs", "maxLength", "minimum", "additionalProperties"}  # the server refuses what does not fit


def short(schema: Mapping[str, Any], defs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The same schema without titles, references, empty defaults, and null, which nobody needs to send."""
    defs = schema.get("$defs", {}) if defs is None else defs
    if ref := schema.get("$ref"):
        return short({**defs[ref.rpartition("/")[2]], **{k: v for k, v in schema.items() if k != "$ref"}}, defs)
    if some := [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]:
        return short({**some[0], **{k: v for k, v in schema.items() if k != "anyOf"}}, defs)
    kept = {name: value for name, value in schema.items() if name not in _LEFT_OUT}
    if not kept.get("default") or isinstance(kept["default"], dict):
        kept.pop("default", None)
    if "properties" in kept:  # its parts say what it is
        kept.pop("description", None)
        kept["properties"] = {name: short(one, defs) for name, one in kept["properties"].items()}
    return kept
