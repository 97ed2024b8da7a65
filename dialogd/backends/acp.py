"""An ACP agent on its leash, and the JSON messages that go to it and come from it."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.backends import CODING, Found, Options, Request, Tool, Usage
from dialogd.backends.child import STDERR_TAIL, Child, not_started
from dialogd.backends.command import clean_environment, last_line
from dialogd.backends.parts import tokens_of
from dialogd.backends.prices import Price, price_of
from dialogd.backends.service import SHORTER, TOO_LONG
from dialogd.backends.session import Checkpoint, checkpoint, plan
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.model import digest
from dialogd.protocol.redact import redact

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection
    from acp.schema import (
        InitializeResponse,
        NewSessionResponse,
        PermissionOption,
        PromptResponse,
        RequestPermissionResponse,
        SessionConfigOptionBoolean,
        SessionConfigOptionSelect,
        ToolCallUpdate,
    )
    from acp.schema import Usage as Reported

    ConfigOption = SessionConfigOptionSelect | SessionConfigOptionBoolean


LINE_CAP = 16 * 1024 * 1024  # bytes of one message
PATIENCE = 0.2  # seconds for the last words on stderr
NOISE_CAP = 64 * 1024  # bytes on stdout that are no message: a banner is let pass, a flood is not

# What an agent reports while it works, as far as it matters here; everything else is dropped unread.
_HEARD = frozenset({"agent_message_chunk", "tool_call", "usage_update"})


class Wire(Child):
    """A running agent; for the ACP package a `Transport`, by `send`, `receive` and `close`.

    It is served by the event loop, also between turns. Whoever made one awaits `end()`, whatever happens.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        """Start the agent (its first word is a path). Raises OSError when no process can be started."""
        super().__init__(command, b"", environment, cwd)
        self._reader = asyncio.StreamReader(limit=LINE_CAP)
        self._ends: list[asyncio.BaseTransport] = []
        self._stdin: asyncio.WriteTransport | None = None
        self._noise = 0
        self.is_drained = asyncio.Event()
        self.over = False
        self.trouble = ""

    async def open(self) -> None:
        """Connect the pipes to the event loop."""
        loop, process = asyncio.get_running_loop(), self._process
        reader = asyncio.StreamReaderProtocol(self._reader)
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        self._ends.append(self._stdin)
        self._ends.append((await loop.connect_read_pipe(lambda: reader, process.stdout))[0])
        self._ends.append((await loop.connect_read_pipe(lambda: _Tail(self), process.stderr))[0])

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message. Raises ConnectionError when the agent reads no more."""
        if self._stdin is None or self._stdin.is_closing():
            raise ConnectionError("the agent reads no more")
        self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end, of which `trouble` says the cause unless it is the agent's exit."""
        while not self.over:
            await asyncio.sleep(0)  # an agent that never pauses must not keep the loop
            line = await self._line()
            message = _message(line)
            if message is not None and _is_heard(message):
                return message
            if message is None and line.strip():
                self._note(line)
        return None

    async def close(self) -> None:
        """Nothing: `end` does it."""

    async def drained(self) -> None:
        """Wait until an agent that is gone has said its last on stderr."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.is_drained.wait(), PATIENCE)

    async def end(self) -> int:
        """End the agent and everything it started; the exit code. Takes under half a second, may be called twice."""
        self.over = True
        self._leash_is_gone()  # asks for `errno`
        for transport in self._ends:
            if isinstance(transport, asyncio.WriteTransport) and not transport.is_closing():
                transport.abort()
            elif not transport.is_closing():
                transport.close()
        self._ends.clear()
        return await super().end()

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            self.over = True
            return error.partial
        except asyncio.LimitOverrunError:
            self.over = True
            self.trouble = f"sent a message of over {LINE_CAP // 1024 // 1024} MiB"
            return b""

    def _note(self, line: bytes) -> None:
        self._noise += len(line)
        if self._noise > NOISE_CAP:
            self.over = True
            self.trouble = "prints on stdout what is no message of the protocol"


class _Tail(asyncio.Protocol):
    """Keeps the end of what an agent says on stderr."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def data_received(self, data: bytes) -> None:
        self._wire.stderr = (self._wire.stderr + data)[-STDERR_TAIL:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.is_drained.set()


def _message(line: bytes) -> dict[str, Any] | None:
    """The JSON-RPC message on a line; None where there is none that can be understood."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("id"), str | int | None):
        return None
    if not isinstance(value.get("error"), dict | None) or not isinstance(value.get("method"), str | None):
        return None
    if "method" not in value and "id" not in value:
        return None
    return _whole(value) if rb"\u" in line else value


def _is_heard(message: dict[str, Any]) -> bool:
    if message.get("method") != "session/update":
        return True
    params = message.get("params")
    update = params.get("update") if isinstance(params, dict) else None
    return isinstance(update, dict) and update.get("sessionUpdate") in _HEARD


def _whole(value: Any) -> Any:
    """The same with every half of a surrogate pair replaced: no such text can be written or hashed."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value


# -- What an ACP agent's refusals, ends and failures mean, as `BackendError` ------------------------------------------

QUOTED = 200  # characters of an agent's own words

# kind, codes, words: the first line that fits. Agents hand on their service's status as the code, or say it in words.
_SIGNS = (
    ("auth", (-32000, 401, 403), r"authenticat|unauthori[sz]ed|api[ _-]?key|log ?in\b|credential|permission_denied"),
    ("limit", (402,), r"spend|billing|credit balance|insufficient_quota|quota exceeded"),
    ("busy", (429, 500, 502, 503, 504, 529), r"rate.?limit|overloaded|too many requests|unavailable|\b(429|5\d\d)\b"),
    ("network", (408,), r"econn|enotfound|network|fetch failed|socket|timed? ?out|disconnected"),
    ("request", (400, 404, 413, -32600, -32601, -32602), r"not found|too (long|large)|invalid"),
)
_FIXES = {
    "auth": "log in with the agent's own program{logins}, or give it its key",
    "limit": "raise the limit where the account is kept, or name another agent",
    "busy": "wait, then ask again with `dialogd retry`",
    "network": "look at the network, then ask again with `dialogd retry`",
    "request": "look at the agent's model and settings",
    "failed": "run the agent by hand and see why it fails",
}
_ENDS = {
    "max_tokens": ("the reply was cut off at the agent's limit of tokens", "cut", "ask for a shorter one"),
    "max_turn_requests": ("the agent stopped at its limit of requests", "cut", "raise it in the agent's settings"),
    "refusal": ("the model refuses to answer", "refusal", "say in the dialog what is meant, or name another agent"),
    "cancelled": ("the agent ended its turn unfinished", "cut", "ask again with `dialogd retry`"),
}


def refused(code: int, message: str, data: Any, logins: tuple[str, ...], secrets: Sequence[str] = ()) -> BackendError:
    """The error that an agent answered with, without `secrets`."""
    said = _line(_words(message, data), secrets)
    kind = next((kind for kind, codes, signs in _SIGNS if code in codes or re.search(signs, said, re.I)), "failed")
    ways = f" ({_line(', '.join(logins), secrets)})" if logins else ""
    fix = SHORTER if kind == "request" and TOO_LONG.search(said) else _FIXES[kind].format(logins=ways)
    retryable = kind in ("busy", "network", "failed")
    return BackendError(f"answered with an error: {said}", fix=fix, retryable=retryable, kind=kind)


def ended(program: str, wire: Wire, code: int, secrets: Sequence[str] = ()) -> BackendError:
    """The error of an agent that is gone, without `secrets`."""
    if wire.errno is not None:
        return BackendError(
            f"cannot run {program!r}: {os.strerror(wire.errno)}",
            fix="it must be a program for this machine, or a script whose first line names its interpreter (#!)",
        )
    if wire.trouble:
        return BackendError(wire.trouble, fix="start the agent so that it speaks ACP on stdout", kind="garbled")
    said = last_line(wire.stderr, secrets)
    return BackendError(
        f"ended in the middle, exit {code}" + (f": {said}" if said else ""),
        fix=f"run {program!r} by hand and see why it ends",
        retryable=True,
    )


def unreadable(error: ValueError, secrets: Sequence[str] = ()) -> BackendError:
    """The error of an agent whose answer is not what the protocol says, without `secrets`."""
    return BackendError(
        f"answered outside the protocol: {_line(str(error), secrets)}",
        fix="install another version of the agent",
        kind="garbled",
    )


def judge(stop_reason: str, text: str) -> None:
    """Raise `BackendError` unless the turn ended regularly, with text."""
    if stop_reason in _ENDS:
        cause, kind, fix = _ENDS[stop_reason]
        raise BackendError(cause, fix=fix, kind=kind, retryable=stop_reason == "cancelled")
    if not text.strip():
        raise BackendError("the reply was empty", fix="look at the agent's own log", kind="empty", retryable=True)


def _words(message: str, data: Any) -> str:
    """What the agent says, its details included."""
    details = data.get("details") or data.get("message") if isinstance(data, dict) else data
    return f"{message}: {details}" if isinstance(details, str) and details != message else message


def _line(text: str, secrets: Sequence[str]) -> str:
    """As one printable line, without secrets: those go before the line is cut."""
    safe = redact(text, secrets)[0]
    return " ".join("".join(c if c.isprintable() else " " for c in safe).split())[:QUOTED]


# -- What a turn of an ACP agent used, from the several ways in which agents say it -----------------------------------


def account(guess: Usage, response: PromptResponse, text: str, usd: float | None) -> Usage:
    """The turn's usage: reported, else `guess` with the reply's size; `usd` where the agent says dollars."""
    if response.usage is not None:
        return replace(_reported(guess.model, response.usage), usd=usd)
    counted = _quota(response.field_meta or {})
    if counted is not None:
        return Usage(guess.model, *counted, usd=usd)
    return replace(guess, tokens_out=tokens_of(text), usd=usd)


def _reported(model: str, usage: Reported) -> Usage:
    """Some agents count cached tokens and thoughts in, others beside; the total tells which."""
    read, written = usage.cached_read_tokens or 0, usage.cached_write_tokens or 0
    tokens_in, tokens_out, thoughts = usage.input_tokens, usage.output_tokens, usage.thought_tokens or 0
    if tokens_in + tokens_out + read + written <= usage.total_tokens:
        tokens_in += read + written
    if tokens_in + tokens_out + thoughts <= usage.total_tokens:
        tokens_out += thoughts
    return Usage(model, tokens_in, tokens_out, usage.cached_read_tokens, usage.cached_write_tokens)


def _quota(meta: dict[str, Any]) -> tuple[int, int] | None:
    """What Gemini says, in a place of its own."""
    quota = meta.get("quota")
    count = quota.get("token_count") if isinstance(quota, dict) else None
    if not isinstance(count, dict):
        return None
    tokens = count.get("input_tokens"), count.get("output_tokens")
    return (tokens[0], tokens[1]) if isinstance(tokens[0], int) and isinstance(tokens[1], int) else None


# -- A warm ACP agent -------------------------------------------------------------------------------------------------

CANCEL_GRACE = 0.3  # seconds that an agent has to end its turn by itself before it is ended
REPLY_CAP = 4 * 1024 * 1024  # characters
READ_ONLY = ("read-only", "readonly", "plan")  # modes, the strictest first


class Ears:
    """What dialogd offers an agent: it listens, and refuses. No files, no terminal, no questions."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str | Tool | None] = asyncio.Queue()
        self._is_at_tool = False
        self.session = ""
        self._is_apart = False
        self.size = 0
        self._dollars: float | None = None
        self._paid = 0.0

    def listen(self, session: str) -> None:
        """Forget the last turn; hear `session` only."""
        self._paid = self._dollars or 0.0 if session == self.session else 0.0
        self._dollars = None
        self.session, self.heard = session, asyncio.Queue()
        self._is_apart = self._is_at_tool = False
        self.size = 0

    @property
    def spent(self) -> float | None:
        """US dollars of this turn, of which an agent says the session's sum; None where it says nothing."""
        return None if self._dollars is None else max(self._dollars - self._paid, 0.0)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Take what the agent says. What it says after a tool is a paragraph of its own."""
        if session_id != self.session:
            return
        kind = update.session_update
        if kind == "agent_message_chunk":
            text = getattr(update.content, "text", "")
            if text:
                if self._is_at_tool:
                    self.heard.put_nowait(Tool())
                self._is_at_tool = False
                self.heard.put_nowait(f"\n\n{text}" if self._is_apart and self.size else text)
                self._is_apart, self.size = False, self.size + len(text)
        elif kind == "tool_call":
            self._is_apart = self._is_at_tool = True
            self.heard.put_nowait(Tool(update.title or "a tool"))
        elif update.cost is not None and update.cost.currency.upper() == "USD":
            self._dollars = update.cost.amount

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        """No, this once: an agent may keep a no for ever in settings that are the person's."""
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        no = next((option.option_id for option in options if option.kind == "reject_once"), None)
        if no is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=no))


class Warm:
    """One agent process, kept between turns. Whoever made one awaits `end()`, whatever happens."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        """Start the agent in `cwd`. Raises OSError when no process can be started."""
        self.wire = Wire(command, environment, cwd)
        self.ears = Ears()
        self.logins: tuple[str, ...] = ()
        self._cwd = str(cwd)
        self._connection: ClientSideConnection | None = None
        self._call: asyncio.Task[PromptResponse] | None = None

    @property
    def is_over(self) -> bool:
        """True once it does not answer any more."""
        return self.wire.over

    async def open(self) -> None:
        """Shake hands. Raises what the package raises, or `BackendError` for a protocol that is not ours."""
        from acp import PROTOCOL_VERSION
        from acp.client.connection import ClientSideConnection
        from acp.schema import ClientCapabilities, Implementation

        await self.wire.open()
        self._connection = ClientSideConnection(self.ears, self.wire)  # type: ignore[arg-type]
        hello: InitializeResponse = await self._connection.initialize(
            PROTOCOL_VERSION, ClientCapabilities(), Implementation(name="dialogd", version=_version())
        )
        if hello.protocol_version != PROTOCOL_VERSION:
            raise BackendError(
                f"speaks version {hello.protocol_version} of the protocol, not {PROTOCOL_VERSION}",
                fix="install another version of the agent",
                kind="request",
            )
        self.logins = tuple(method.name for method in hello.auth_methods or ())

    async def new_session(self, model: str) -> str:
        """Begin a session, read-only where the agent has such a mode; its id. Raises what the package raises."""
        session = await self._agent.new_session(cwd=self._cwd, mcp_servers=[])
        await self._restrict(session)
        if model:
            await self._choose_model(session, model)
        return session.session_id

    async def prompt(self, session: str, text: str) -> AsyncGenerator[str | Tool | PromptResponse, None]:
        """What the agent says as it says it, last its response. Raises what the package raises."""
        from acp import text_block

        self.ears.listen(session)
        heard = self.ears.heard
        self._call = asyncio.create_task(
            self._agent.prompt(session_id=session, prompt=[text_block(_acp_warm_whole(text))])
        )
        self._call.add_done_callback(lambda _: heard.put_nowait(None))
        while (piece := await heard.get()) is not None:
            if self.ears.size > REPLY_CAP:
                raise BackendError(f"the reply passed {REPLY_CAP:,} characters", fix="ask for a shorter one")
            yield piece
        yield self._call.result()

    async def cancel(self) -> None:
        """Ask the agent to end its turn, and give it a moment to."""
        call = self._call
        if call is None or call.done() or self.is_over:
            return
        with suppress(ConnectionError):
            await self._agent.cancel(session_id=self.ears.session)
        await asyncio.wait((call,), timeout=CANCEL_GRACE)

    async def end(self) -> int:
        """End the process and everything it started; its exit code. A cancellation is kept back until all is gone."""
        try:
            return await self.wire.end()
        finally:
            if self._connection is not None:
                await self._connection.close()
            if self._call is not None:
                await asyncio.wait((self._call,))
                if not self._call.cancelled():
                    self._call.exception()  # looked at: nobody else will

    @property
    def _agent(self) -> ClientSideConnection:
        assert self._connection is not None
        return self._connection

    async def _restrict(self, session: NewSessionResponse) -> None:
        """Choose the strictest mode that the agent offers."""
        if session.modes is not None:
            offered = {_plain(mode.id): mode.id for mode in session.modes.available_modes}
            mode = next((offered[name] for name in READ_ONLY if name in offered), "")
            if mode and mode != session.modes.current_mode_id:
                await self._agent.set_session_mode(session_id=session.session_id, mode_id=mode)
            return
        option = _option(session.config_options, "mode")
        if option is not None:
            offered = {_plain(value): value for value in _values(option)}
            mode = next((offered[name] for name in READ_ONLY if name in offered), "")
            if mode and mode != option.current_value:
                await self._agent.set_config_option(option.id, session.session_id, mode)

    async def _choose_model(self, session: NewSessionResponse, model: str) -> None:
        option = _option(session.config_options, "model")
        offered = [] if option is None else _values(option)
        if option is None or model not in offered:
            raise BackendError(
                f"does not offer the model {model!r}",
                fix=f"choose one of: {', '.join(offered)}" if offered else "set the model in the agent's own settings",
                kind="request",
            )
        await self._agent.set_config_option(option.id, session.session_id, model)


def _acp_warm_whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _plain(name: str) -> str:
    return name.rpartition("#")[2].lower().replace("_", "-")


def _option(options: Iterable[ConfigOption] | None, category: str) -> SessionConfigOptionSelect | None:
    """The choice of that category, if the agent has one."""
    from acp.schema import SessionConfigOptionSelect

    for option in options or ():
        if isinstance(option, SessionConfigOptionSelect) and category in (option.category, option.id):
            return option
    return None


def _values(option: SessionConfigOptionSelect) -> list[str]:
    found: list[str] = []
    for item in option.options:
        inner = getattr(item, "options", None)
        found += [choice.value for choice in inner] if inner is not None else [item.value]
    return found


def _version() -> str:
    from dialogd import __version__

    return __version__


# -- The `acp` backend ------------------------------------------------------------------------------------------------

PACKAGE = "agent-client-protocol"
INSTALL = 'pip install "dialogd[acp]"'

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


class ACP:
    """Talks to the agent that `options.variant`, else `options.command`, starts in `options.project`.

    The agent is started by the first reply and kept until `close`, a failure or a cancellation. A turn sends only what
    its session has not seen. Its environment is clean, with `options.environment` on top.
    Nothing keeps an agent from running what its project contains, so it is not started without
    `options.trust_project`. Raises `BadInput` without that or the package, or for a command that cannot be run.
    """

    name = "acp"
    costs = True
    most_out = 0
    room = 0

    def __init__(self, options: Options) -> None:
        if not _has_package():
            raise BadInput(f"the acp backend needs the package {PACKAGE}", fix=INSTALL)
        if options.resume:
            raise BadInput("the acp backend cannot go on from a session of yours", fix="leave --resume out")
        self.model = options.model
        self.price = _price(options)
        self._words = _split(options.variant or options.command)
        self._project = (options.project or Path()).absolute()
        self._environment = {**clean_environment(os.environ), **options.environment}
        held = tuple(v for k, v in options.environment.items() if v and _SECRET_NAME.search(k.upper()))
        self.secrets = (*held, *options.secrets)
        if not self._project.is_dir():
            raise BadInput(f"the project {str(self._project)!r} is not a directory", fix="name an existing one")
        if self._program() is None:
            raise BadInput(f"command not found: {self._words[0]!r}", fix=_INSTALL_AGENT)
        if not options.trust_project:
            raise BadInput(
                "an acp agent runs what its project contains (hooks, MCP servers, scripts): nothing keeps it from that",
                fix="--trust-project allows it, for a project whose code you would run yourself; or name a backend that"
                f" only reads: {', '.join(sorted(CODING))}",
            )
        self._warm: Warm | None = None
        self._points: tuple[Checkpoint, ...] = ()
        self._turn = asyncio.Lock()

    @staticmethod
    def probe(variables: Mapping[str, str], variant: str) -> Found:
        """Whether the package and the agent's program are here."""
        pays = "whoever the agent asks"
        if not _has_package():
            return Found(False, f"no package {PACKAGE}", pays, fix=INSTALL)
        if not variant.strip():
            return Found(False, "no agent named", pays, fix="name one: `acp:gemini --acp`")
        program = _split(variant)[0]
        if shutil.which(program, path=variables.get("PATH", os.defpath)) is None:
            return Found(False, f"no {program} on PATH", pays, fix=_INSTALL_AGENT)
        from importlib.metadata import version

        return Found(True, f"{program} on PATH; starts with --trust-project only", pays, version(PACKAGE))

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        """Stream what the agent says. Raises `BackendError` for everything else than text and a regular end."""
        async with self._turn:
            said: list[str] = []
            is_done = False
            try:
                async with aclosing(self._answer(request)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, str):
                            said.append(piece)
                        yield piece
                is_done = True
            except BackendError as error:
                error.partial = "".join(said)
                raise
            finally:
                if not is_done:  # failed, cancelled or left early: what the session holds now is anybody's guess
                    await self._drop()

    async def close(self) -> None:
        """End the agent. May be called twice, and while a reply is under way."""
        await self._drop()

    async def _answer(self, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        """One reply, with every failure as a `BackendError`."""
        await asyncio.to_thread(importlib.import_module, "acp")  # takes a second, in which the daemon must answer
        from acp import RequestError

        warm = await self._started()
        try:
            async with aclosing(self._talk(warm, request)) as pieces:
                async for piece in pieces:
                    yield piece
        except RequestError as error:
            raise refused(error.code, str(error), error.data, warm.logins, self.secrets) from error
        except ConnectionError as error:
            await warm.wire.drained()
            code = await warm.end()
            raise ended(self._words[0], warm.wire, code, self.secrets) from error
        except ValueError as error:  # pydantic's too
            raise unreadable(error, self.secrets) from error

    async def _talk(self, warm: Warm, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        if self._warm is None:
            self._warm = warm
            await warm.open()
        prompt = request.prompt()
        basis = digest(prompt.system)
        chosen = plan(prompt, request.agent.id, basis, self._points)
        session = chosen.after.session if chosen.after else await warm.new_session(self.model)
        text = chosen.text if chosen.after else f"{prompt.system}\n\n{chosen.text}"
        guess = Usage(self.model, tokens_of(prompt.text), 0, estimated=True)
        yield guess
        said: list[str] = []
        async with aclosing(warm.prompt(session, text)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Tool):
                    yield piece
                elif isinstance(piece, str):
                    said.append(piece)
                    yield piece
                else:
                    yield account(guess, piece, "".join(said), warm.ears.spent)
                    judge(piece.stop_reason, "".join(said))
        if not request.question:
            point = checkpoint(prompt, request.re, basis, session=session, reply="".join(said), usage=Usage())
            self._points = (point,)

    async def _started(self) -> Warm:
        """The agent of the turn before, if it is still there; else a new one."""
        if self._warm is not None and not self._warm.is_over:
            return self._warm
        await self._drop()
        program = self._program()
        if program is None:
            raise BackendError(f"command not found: {self._words[0]!r}", fix=_INSTALL_AGENT)
        try:
            return Warm([program, *self._words[1:]], self._environment, self._project)
        except OSError as error:
            raise not_started(error, program) from error

    async def _drop(self) -> None:
        """End the agent: first by asking, then by its leash."""
        warm, self._warm, self._points = self._warm, None, ()
        if warm is None:
            return
        try:
            await warm.cancel()
        finally:
            await warm.end()

    def _program(self) -> str | None:
        """The full path of the agent, or None. One named by a path is looked up from the project."""
        program = self._words[0]
        if os.sep in program:
            program = str(self._project / program)
        return shutil.which(program, path=self._environment.get("PATH", os.defpath))


_INSTALL_AGENT = "install the agent, or give its full path; no shell is used, so no ~ and no aliases"


def _has_package() -> bool:
    return importlib.util.find_spec("acp") is not None


def _price(options: Options) -> Price | None:
    return price_of(options.model, "", options.price) if options.model or options.price else None


def _split(command: str) -> list[str]:
    fix = "name the agent's command line: `acp:gemini --acp`, or --command 'gemini --acp'"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInput(
            f"the command {command!r} cannot be split into words: {error}", fix="close every quote"
        ) from error
    if not words or not words[0] or "\0" in command:
        raise BadInput("the acp backend has no agent to start", fix=fix)
    return words
