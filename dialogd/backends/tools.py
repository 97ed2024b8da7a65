"""The tools that a model may call in its turn: of MCP servers of the person's, behind a gate, and of its own dialog.

What was begun and not heard of again is never made a second time. Servers run while a model is asked, each under a
guard.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from dialogd.backends.command import Messages, clean_environment, last_line
from dialogd.backends.parts import Prompt, fenced
from dialogd.config import ToolServer
from dialogd.errors import BadInput, DialogdError
from dialogd.protocol.lifecycle import worded
from dialogd.protocol.model import Participant
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, in_words, one_line, redact
from dialogd.store.child import end_tasks, until_done

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as Listed

START = 20.0  # seconds for a server to start and to list its tools
MOST_TOOLS = 100  # of one server
MOST_TEXT = 16_000  # characters of a result that the model is given
MOST_QUOTED = 1_500  # characters of a result that stands in the turn
MOST_SHOWN = 400  # characters of a call's arguments that stand in the turn
MOST_ASKED = 16_000  # characters of arguments that the person can be asked about: they see all of them, or none
MOST_DESCRIBED = 4_000  # characters of a tool's description
PATIENCE = 0.5  # part of what the turn has left of its time that one call, or the wait for the person, may take

LIST, SEND = "sessions_list", "sessions_send"
TEXT = "TEXT"  # the type of a message that is no contribution

ALLOWED = ("allowed", "approved by the person")
MADE = (
    "You have called tools since your last turn, and no turn of yours tells of it yet. These calls are made already; do"
    " not repeat them, and say so where a result is not known:"
)
UNKNOWN = (
    "the daemon was stopped in the middle of this call: whether it took effect is not known, and it is not made again"
)

Tell = Callable[..., None]
Record = Callable[..., Awaitable[None]]


class OfferedTool(NamedTuple):
    """A tool as the model is offered it."""

    name: str
    description: str
    schema: dict[str, Any]


class ToolResult(NamedTuple):
    """What the model is told of a call."""

    text: str
    is_error: bool = False


def _refused(why: str) -> ToolResult:
    return ToolResult(why, is_error=True)


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a turn as the journal keeps it. `how` is a word for the turn; `text` None while nothing is known."""

    number: int
    tool: str
    arguments: str
    how: str = ""
    text: str | None = None
    is_error: bool = False

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Called:
        """The call of a record of kind `tool` or `result`."""
        return cls(**{name: record[name] for name in cls.__slots__ if name in record})

    @property
    def result(self) -> ToolResult:
        """What the model is told of it, where it asks for it again."""
        return _refused(UNKNOWN) if self.text is None else ToolResult(self.text, self.is_error)

    @property
    def quoted(self) -> str:
        """As it stands in the turn: what was called, how it came to that, what it gave; nothing in it is structure."""
        if self.tool == SEND and not self.is_error:
            return self.text or ""
        head = f"{self.tool} {_short(self.arguments, MOST_SHOWN)}"
        if self.text is None:
            return fenced(f"{head}\nresult unknown: the daemon was stopped in the middle of the call")
        return fenced(f"{head}\n{self.how}\n{_short(self.text, MOST_QUOTED)}".rstrip())


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


# -- Asking the person ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PendingCall:
    """A call that waits for the person, until `until` (monotonic)."""

    id: str
    agent: str
    tool: str
    arguments: str
    until: float
    answer: asyncio.Future[bool] = field(repr=False)

    @property
    def data(self) -> dict[str, Any]:
        """What the person is shown."""
        seconds = round(max(self.until - time.monotonic(), 0.0), 1)
        known = {"call": self.id, "agent": self.agent, "tool": self.tool, "arguments": self.arguments}
        return {**known, "seconds": seconds}


class ApprovalQueue:
    """The calls of one agent that wait for the person; no id is used again, so that a late answer approves nothing."""

    def __init__(self, agent: str, publish: Tell) -> None:
        self.agent = agent
        self.open: dict[str, PendingCall] = {}
        self.followers: list[Callable[[PendingCall], None]] = []  # they are told of each call that waits
        self.publish = publish

    async def ask(self, tool: str, arguments: str, until: float) -> bool | None:
        """The person's answer; None where none came by `until` (monotonic)."""
        answer = asyncio.get_running_loop().create_future()
        asked = PendingCall(f"{self.agent}-{token_hex(3)}", self.agent, tool, arguments, until, answer)
        self.open[asked.id] = asked
        self.publish("call", **asked.data)
        for follower in self.followers:
            follower(asked)
        approved: bool | None = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                    approved = await answer
        finally:
            del self.open[asked.id]
            word = {True: "approved", False: "refused", None: "unanswered"}[approved]
            self.publish("judged", call=asked.id, agent=self.agent, tool=tool, answer=word)
        return approved

    def answer(self, call: str, *, approve: bool) -> PendingCall:
        """Answer a call. Raises `BadInput`, which names those that wait, for one that does not."""
        asked = self.open.get(call)
        if asked is None or asked.answer.done():
            waiting = ", ".join(self.open)
            fix = f"these do: {waiting}" if waiting else "none does: `dialogd status` shows when one asks"
            raise BadInput(f"no call {call!r} waits for you", fix=fix)
        asked.answer.set_result(approve)
        return asked


# -- One server, while a model is asked -------------------------------------------------------------------------------


class ServerFailed(Exception):
    """A server could not be started, spoke nonsense, ended, or gave no answer in time."""


class Connection:
    """An MCP server; the SDK's client is entered and left in a task of its own, from `open` to `close`."""

    def __init__(self, server: ToolServer, secrets: Sequence[str]) -> None:
        self.server = server
        self._secrets = secrets
        self._child: Messages | None = None
        self._client: Client | None = None
        self._ready: asyncio.Future[list[Listed]] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(self, seconds: float) -> list[Listed]:
        """Start it; its tools, by name. Raises `ServerFailed`."""
        self._task = asyncio.create_task(self._run())
        tools: list[Listed] = await self._before_its_end(self._ready, seconds, "it did not list its tools")
        return tools

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """What a tool gives. Raises `ServerFailed`."""
        assert self._client is not None
        answer = asyncio.ensure_future(self._client.call_tool(tool, arguments))
        try:
            result: CallToolResult = await self._before_its_end(answer, seconds, "it gave no answer")
            return result
        finally:
            answer.cancel()
            await asyncio.wait({answer})

    async def close(self) -> None:
        """End it, and whatever its program started."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # it may be that nobody has asked

    async def _before_its_end(self, wanted: asyncio.Future[Any], seconds: float, late: str) -> Any:
        assert self._task is not None
        both: set[asyncio.Future[Any]] = {self._task, wanted}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done() and not self._task.done():
            raise ServerFailed(f"{late} within {in_words(seconds)}")
        try:
            if wanted.done():
                return wanted.result()
            said = "it ended"
        except Exception as error:  # whatever somebody else's server leads the SDK to; a group where tasks failed
            found: BaseException = error
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            said = one_line(str(found) or type(found).__name__, 300, self._secrets)
        last = last_line(self._child.stderr, self._secrets) if self._child is not None else ""
        raise ServerFailed(f"{said}; it said: {last}" if last else said)

    async def _run(self) -> None:
        from mcp import Client

        problem: Exception = ServerFailed("it ended")
        try:
            async with Client(self._transport()) as self._client:
                self._ready.set_result(await _listed(self._client))
                await asyncio.Event().wait()  # until `close` cancels this task, or the connection breaks
        except Exception as error:
            problem = error
        finally:
            if not self._ready.done():
                self._ready.set_exception(problem)

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """Streams of messages to the server: the SDK's own over HTTP, or over the pipes of a child."""
        if self.server.url:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            # No proxy of the environment's: this is loopback traffic, and no redirect leads away from there.
            timeout = httpx2.Timeout(30, read=None)
            plain: Any = {"verify": False} if self.server.url.lower().startswith("http:") else {}
            async with (
                httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=timeout, **plain) as http,
                streamable_http_client(self.server.url, http_client=http) as streams,
            ):
                yield streams
            return
        environment = {**clean_environment(os.environ), **self.server.environment}
        program = shutil.which(self.server.command[0], path=environment.get("PATH", os.defpath))
        if program is None:
            raise ServerFailed(f"no such program: {self.server.command[0]!r}")
        self._child = Messages([program, *self.server.command[1:]], None, environment, None)
        try:
            async with _streams(self._child) as streams:
                yield streams
        finally:
            await self._child.end()


@asynccontextmanager
async def _streams(child: Messages) -> AsyncIterator[Any]:
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    heard, hears = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    says, said = anyio.create_memory_object_stream[SessionMessage](0)

    async def listen() -> None:
        async with heard:
            while (message := await child.receive()) is not None:
                with suppress(ValueError):  # what is no message is a server's chatter
                    await heard.send(SessionMessage(jsonrpc_message_adapter.validate_python(message, by_name=False)))

    async def speak() -> None:
        async with said:
            async for message in said:
                with suppress(ConnectionError):  # then `listen` has come to the end, too
                    child.say(message.message.model_dump(mode="json", by_alias=True, exclude_unset=True))

    tasks = [asyncio.create_task(listen()), asyncio.create_task(speak())]
    try:
        yield hears, says
    finally:
        await end_tasks(*tasks)
        for stream in (heard, hears, says, said):
            stream.close()


async def _listed(client: Client) -> list[Listed]:
    """All tools of a server, by name: the same ones make the same request, which a service finds in its cache."""
    found: list[Listed] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) >= MOST_TOOLS:
            return sorted(found[:MOST_TOOLS], key=lambda tool: tool.name)


def text_of(result: CallToolResult) -> str:
    """A result as text; what is none is named."""
    parts: list[str] = []
    for block in result.content:
        resource = getattr(block, "resource", None)
        text = getattr(block, "text", None) or getattr(resource, "text", None)
        parts.append(text if isinstance(text, str) else f"[{block.type}: no text, left out]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


# -- The tools of one turn --------------------------------------------------------------------------------------------


class _Tool(NamedTuple):
    connection: Connection
    name: str
    schema: dict[str, Any]
    is_denied: bool


@dataclass
class Toolbox:
    """The tools of the turn by which agent `me` pays a debt, and the calls that it has made for it."""

    servers: Sequence[ToolServer]
    dialog: Dialog
    me: Participant
    most: int  # calls that the turn may make
    approvals: ApprovalQueue
    record: Record  # keeps a call in the journal
    tell: Tell
    earlier: Sequence[Called] = ()  # those that the journal knows and no turn tells of yet, also of a debt before
    secrets: Sequence[str] = ()
    states: Callable[[str], str] = lambda _: ""  # what another agent does

    def __post_init__(self) -> None:
        self.calls = {call.number: call for call in self.earlier}
        self.offered: tuple[OfferedTool, ...] = ()
        self._until = float("inf")
        self._open: list[Connection] = []
        self._tools: dict[str, _Tool] = {}
        self._again: Counter[tuple[str, str]] = Counter()  # calls of earlier attempts that this one may ask for again
        self._answered = 0  # in this attempt
        others = [agent for agent in self.dialog.header.agents if agent.id != self.me.id]
        self._others = {key.lower(): agent for agent in others for key in (agent.name, agent.id)}
        self._ids = ", ".join(agent.id for agent in others)

    # -- while a model is asked -----------------------------------------------------------------------------------

    async def open(self, until: float) -> None:
        """Start the servers, for an attempt whose time ends at `until` (monotonic). One that fails is left out."""
        self._until, self._answered, self._tools = until, 0, {}
        self._again = Counter((call.tool, call.arguments) for call in self.calls.values())
        if self.servers:
            await asyncio.to_thread(__import__, "mcp")  # takes a while, in which the daemon must answer
        self._open = [Connection(server, self.secrets) for server in self.servers if not server.is_denied]
        seconds = min(START, self._time_left())
        found = await asyncio.gather(*(one.open(seconds) for one in self._open), return_exceptions=True)
        offered = list(self._own_tools())
        for connection, tools in zip(self._open, found, strict=True):
            server = connection.server
            if isinstance(tools, ServerFailed):
                self.tell("warning", text=f"the tools of {server.name} are not offered: {tools}")
                continue
            if isinstance(tools, BaseException):
                raise tools
            for tool in tools:
                name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server.name}__{tool.name}")[:64]
                if name in self._tools:
                    continue
                is_denied = server.may_call(tool.name) == "deny"
                self._tools[name] = _Tool(connection, tool.name, dict(tool.input_schema), is_denied)
                if not is_denied:
                    about = clean(tool.description or tool.title or "")[:MOST_DESCRIBED]
                    offered.append(OfferedTool(name, about, dict(tool.input_schema)))
        self.offered = tuple(offered)

    async def close(self) -> None:
        """End the servers; at most ten seconds are spent on that, cancelled or not."""
        closing = asyncio.ensure_future(asyncio.wait_for(asyncio.gather(*(one.close() for one in self._open)), 10))
        self._open = []
        try:
            await until_done(closing)
        finally:
            if not closing.cancelled():
                closing.exception()

    @property
    def is_used_up(self) -> bool:
        """True once the turn may make no more calls."""
        return max(self._answered, len(self.calls)) >= self.most

    @property
    def quoted(self) -> str:
        """All calls as they stand in the turn; "" without any."""
        return "\n\n".join(call.quoted for _, call in sorted(self.calls.items()))

    def within(self, prompt: Prompt) -> Prompt:
        """The prompt, with what is known of calls that were made before for this turn."""
        if not self.calls:
            return prompt
        said = [fenced(f"{one.tool} {one.arguments}\n{one.result.text}") for one in self.calls.values()]
        return replace(prompt, now="\n\n".join([MADE, *said, prompt.now]))

    async def call(self, name: str, arguments: str) -> ToolResult:
        """Make a call, or say why not; whatever comes of it is told to the model, which may go on."""
        tool, given, problem = self._tools.get(name), dict[str, Any](), "the arguments are not JSON"
        with suppress(ValueError, RecursionError):
            read = json.loads(arguments or "{}")
            given, problem = (read, "") if isinstance(read, dict) else ({}, "the arguments are no JSON object")
        label = f"{tool.connection.server.name}.{tool.name}" if tool else name.replace("__", ".", 1)
        label = one_line(label, 80, self.secrets)  # `tickets.create`: a tool as people are shown it
        plain = redact(clean(json.dumps(given, ensure_ascii=False, sort_keys=True)), self.secrets)[0]
        is_over, self._answered = self.is_used_up, self._answered + 1
        if not problem and (known := self._known(label, plain)) is not None:
            return known
        if is_over:
            return _refused(f"this turn may make {self.most} calls, and has; write your turn now")
        if problem:
            plain, how, told = self._safe(arguments)[:MOST_SHOWN], "not made", _refused(problem)
        elif name == LIST:
            how, told = "", ToolResult(self._sessions())
        elif name == SEND:
            told = self._message(given)
            how = "not sent" if told.is_error else ""
        elif tool is None:
            names = ", ".join(one.name for one in self.offered)
            how, told = "not made", _refused(self._safe(f"there is no tool {name!r}; there are {names}"))
        elif tool.is_denied:
            how, told = "denied", _refused("this tool is denied by the person's configuration")
        elif misfit := _misfit(tool.schema, given):
            how, told = "not made", _refused(self._safe(f"the arguments do not fit: {misfit}"))
        else:
            how = await self._allowed(tool, label, plain)
            if how in ALLOWED:
                return await self._made(tool, label, plain, given, how)
            how, told = "refused", _refused(how)
        return await self._settle(label, plain, how, told, len(self.calls) + 1)

    async def _allowed(self, tool: _Tool, label: str, arguments: str) -> str:
        """One of `ALLOWED`, else why it is not."""
        if tool.connection.server.may_call(tool.name) == "allow":
            return ALLOWED[0]
        if self.dialog.header.is_unattended:
            return "nobody is there to approve this call, and it was not made"
        if len(arguments) > MOST_ASKED:
            return f"the person cannot be asked about over {MOST_ASKED:,} characters of arguments; it was not made"
        approved = await self.approvals.ask(label, arguments, time.monotonic() + self._time_left())
        if approved is None:
            return "nobody answered whether this call may be made, and it was not made"
        return ALLOWED[1] if approved else "the person refused this call, and it was not made"

    async def _made(self, tool: _Tool, label: str, arguments: str, given: dict[str, Any], how: str) -> ToolResult:
        begun = Called(len(self.calls) + 1, label, arguments)
        try:
            await self.record("tool", number=begun.number, tool=label, arguments=arguments)
        except (DialogdError, OSError) as error:
            return _refused(self._safe(f"the call could not be noted ({error}), and was not made"))
        self.calls[begun.number] = begun
        try:
            result = await tool.connection.call(tool.name, given, self._time_left())
            told = ToolResult(self._safe(text_of(result)), bool(result.is_error))
        except ServerFailed as error:
            told = _refused(self._safe(f"{error}; whether the call took effect is not known"))
        return await self._settle(label, arguments, how + (", failed" if told.is_error else ""), told, begun.number)

    async def _settle(self, label: str, arguments: str, how: str, told: ToolResult, number: int) -> ToolResult:
        call = Called(number, label, arguments, how, told.text, told.is_error)
        self.calls[number] = call
        with suppress(DialogdError, OSError):  # without it, the call counts as one of which nothing is known
            await self.record("result", **asdict(call))
        return told

    def _known(self, label: str, arguments: str) -> ToolResult | None:
        """What is known of the same call by an earlier attempt at this turn: it is not made again for each."""
        same = [call for call in self.calls.values() if (call.tool, call.arguments) == (label, arguments)]
        if lost := next((call for call in same if call.text is None), None):
            return lost.result
        if not self._again[label, arguments]:
            return None
        self._again[label, arguments] -= 1
        return same[0].result

    def _safe(self, text: str) -> str:
        return _short(redact(clean(text), self.secrets)[0], MOST_TEXT)

    def _time_left(self) -> float:
        """Seconds that one call may take: it leaves time for the rest of the turn."""
        return max((self._until - time.monotonic()) * PATIENCE, 0.0)

    # -- the dialog's own tools -----------------------------------------------------------------------------------

    def _own_tools(self) -> tuple[OfferedTool, OfferedTool]:
        to = {"type": "string", "enum": [*dict.fromkeys(agent.id for agent in self._others.values()), "all"]}
        fields = {"to": to, "text": {"type": "string"}, "type": {"type": "string", "enum": self._types}}
        nothing: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
        message = {**nothing, "properties": fields, "required": ["to", "text"]}
        return (
            OfferedTool(LIST, "The agents of this dialog, with what each does now.", nothing),
            OfferedTool(SEND, "Put a message to one agent, or to all, into the turn that you write now.", message),
        )

    @property
    def _types(self) -> list[str]:
        from dialogd.protocol.marks import BESIDE
        from dialogd.protocol.rules import CONTRIBUTIONS

        known = {**CONTRIBUTIONS, **self.dialog.header.rules.kinds}
        return [TEXT, *(name for name, kind in known.items() if name not in BESIDE and not kind.fields)]

    def _sessions(self) -> str:
        """The agents of the dialog as JSON; nothing of it stands in the turn beyond that it was asked."""
        state = self.dialog.state
        rows = []
        for agent in self.dialog.header.agents:
            status = "executing" if agent.id == self.me.id else self.states(agent.id)
            status = status or ("thinking" if state.debt(agent.id) is not None else "idle")
            status = "failed" if agent.id in state.debts.failed or agent.id in state.absent else status
            rows.append({"id": agent.id, "name": agent.name, "role": agent.role, "status": status})
        return json.dumps(rows, ensure_ascii=False)

    def _message(self, given: Mapping[str, Any]) -> ToolResult:
        """The message as it will stand in the turn, quoted so that no line of it is a mark; or what is wrong."""
        to, kind, text = (str(worded(given, "text").get(name, "")).strip() for name in ("to", "type", "text"))
        kind = (kind or TEXT).upper()
        whom = self._others.get(to.lower())
        if whom is None and to.lower() != "all":
            return _refused(f"there is no agent {one_line(to, 60)!r} to send to; there are {self._ids}, and all")
        if kind not in self._types:
            return _refused(f"there is no type {one_line(kind, 60)!r}; there are {', '.join(self._types)}")
        if not text:
            return _refused("the message is empty")
        lines = [f"> {line}".rstrip() for line in self._safe(text).split("\n")]
        return ToolResult("\n".join([f"**To {(whom.name or whom.id) if whom else 'all'}** ({kind.lower()}):", *lines]))


def _misfit(schema: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Why arguments do not fit the schema of a tool, "" where they do, or where the schema itself makes no sense."""
    import jsonschema  # comes with the SDK

    try:
        jsonschema.validate(given, schema)
    except jsonschema.ValidationError as error:
        where = ".".join(map(str, error.absolute_path))
        return one_line(f"{where}: {error.message}" if where else error.message, 300)
    except Exception:  # whatever else a schema may lead to: the server judges for itself
        return ""
    return ""
