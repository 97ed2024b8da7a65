"""The `acp` backend: an agent that speaks the Agent Client Protocol, kept warm between turns."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import re
import shutil
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.backends import CODING, Found, Options, Request, Tool, Usage
from dialogd.backends.apis import QUOTED
from dialogd.backends.coding_agent import Checkpoint, checkpoint, counts, ended, failed, plan, table
from dialogd.backends.command import INSTALL, NO_PROGRAM, Command, Messages, last_line
from dialogd.backends.parts import tokens_of
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.model import digest
from dialogd.protocol.text import one_line

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

    ConfigOption = SessionConfigOptionSelect | SessionConfigOptionBoolean

PACKAGE, INSTALL_ACP = "agent-client-protocol", 'pip install "dialogd[acp]"'
REPLY_CAP = 4 * 1024 * 1024  # characters
CANCEL_GRACE = 0.3  # seconds that an agent has to end its turn by itself before it is ended
READ_ONLY = ("read-only", "readonly", "plan")  # modes, the strictest first

# What an agent reports while it works, as far as it matters here; everything else is dropped unread.
_HEARD = frozenset({"agent_message_chunk", "tool_call", "usage_update"})
# JSON-RPC's own codes, as the status of a service; an agent hands on that of its own service as it is.
_CODES = {-32000: 401, -32600: 400, -32601: 400, -32602: 400}
_ENDS = {"max_tokens": "cut", "max_turn_requests": "cut", "refusal": "refusal", "cancelled": "network"}
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


class Wire(Messages):
    """A running agent; for the ACP package a `Transport`, by `send`, `receive` and `close`."""

    async def send(self, message: dict[str, Any]) -> None:
        self.say(message)

    async def receive(self) -> dict[str, Any] | None:
        """The next message that matters here and can be understood."""
        while (message := await super().receive()) is not None:
            is_heard = table(message, "params", "update").get("sessionUpdate") in _HEARD
            is_one = bool(message.keys() & {"id", "method"}) and isinstance(message.get("id"), str | int | None)
            is_one = is_one and isinstance(message.get("error"), dict | None)
            if is_one and (is_heard or message.get("method") != "session/update"):
                return message
        return None

    async def close(self) -> None:
        """Nothing: `end` does it."""


def _whole(text: str) -> str:
    """The text with every half of a surrogate pair replaced: none can be written or hashed."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Warm:
    """One agent process, kept between turns; to it a client that refuses. Whoever made one awaits `end()`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        self.wire = Wire(command, None, environment, cwd)
        self.logins: tuple[str, ...] = ()
        self._cwd = str(cwd)
        self._connection: ClientSideConnection | None = None
        self._call: asyncio.Task[PromptResponse] | None = None
        self._session = ""
        self._heard: asyncio.Queue[str | Tool | None] = asyncio.Queue()
        self._size = 0
        self._is_at_tool = False
        self._dollars: float | None = None
        self._paid = 0.0

    @property
    def spent(self) -> float | None:
        """US dollars of this turn, of which an agent says the session's sum; None where it says nothing."""
        return None if self._dollars is None else max(self._dollars - self._paid, 0.0)

    async def open(self) -> None:
        """Shake hands. Raises what the package raises, or `BackendError` for a protocol that is not ours."""
        from acp import PROTOCOL_VERSION
        from acp.client.connection import ClientSideConnection
        from acp.schema import ClientCapabilities, Implementation

        from dialogd import __version__

        self._connection = ClientSideConnection(self, self.wire)  # type: ignore[arg-type]
        hello: InitializeResponse = await self._connection.initialize(
            PROTOCOL_VERSION, ClientCapabilities(), Implementation(name="dialogd", version=__version__)
        )
        if hello.protocol_version != PROTOCOL_VERSION:
            why = f"speaks version {hello.protocol_version} of the protocol, not {PROTOCOL_VERSION}"
            raise BackendError(why, fix="install another version of the agent", kind="request")
        self.logins = tuple(method.name for method in hello.auth_methods or ())

    async def new_session(self, model: str) -> str:
        """Begin a session, read-only where the agent has such a mode; its id. Raises what the package raises."""
        session = await self._agent.new_session(cwd=self._cwd, mcp_servers=[])
        await self._restrict(session)
        if model:
            option = _option(session.config_options, "model")
            offered = [] if option is None else _values(option)
            if option is None or model not in offered:
                fix = f"choose one of: {', '.join(offered)}" if offered else "set the model in the agent's own settings"
                raise BackendError(f"does not offer the model {model!r}", fix=fix, kind="request")
            await self._agent.set_config_option(option.id, session.session_id, model)
        return session.session_id

    async def _restrict(self, session: NewSessionResponse) -> None:
        option, modes = _option(session.config_options, "mode"), session.modes
        offered = [mode.id for mode in modes.available_modes] if modes else _values(option) if option else []
        plain = {name.rpartition("#")[2].lower().replace("_", "-"): name for name in offered}
        mode = next((plain[name] for name in READ_ONLY if name in plain), "")
        if not mode or mode == (modes.current_mode_id if modes else option and option.current_value):
            return
        if modes:
            await self._agent.set_session_mode(session_id=session.session_id, mode_id=mode)
        elif option:
            await self._agent.set_config_option(option.id, session.session_id, mode)

    async def prompt(self, session: str, text: str) -> AsyncGenerator[str | Tool | PromptResponse, None]:
        """What the agent says as it says it, last its response. Raises what the package raises."""
        from acp import text_block

        self._paid = self._dollars or 0.0 if session == self._session else 0.0
        self._dollars, self._session, self._size = None, session, 0
        self._is_at_tool = False
        heard = self._heard = asyncio.Queue()
        block = text_block(text.encode("utf-8", "replace").decode())
        self._call = asyncio.create_task(self._agent.prompt(session_id=session, prompt=[block]))
        self._call.add_done_callback(lambda _: heard.put_nowait(None))
        while (piece := await heard.get()) is not None:
            if self._size > REPLY_CAP:
                raise BackendError(f"the reply passed {REPLY_CAP:,} characters", fix="ask for a shorter one")
            yield piece
        yield self._call.result()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Take what the agent says. What it says after a tool is a paragraph of its own."""
        if session_id != self._session:
            return
        if update.session_update == "agent_message_chunk":
            if text := _whole(getattr(update.content, "text", "")):
                if self._is_at_tool:
                    self._heard.put_nowait(Tool())
                self._heard.put_nowait(f"\n\n{text}" if self._is_at_tool and self._size else text)
                self._is_at_tool, self._size = False, self._size + len(text)
        elif update.session_update == "tool_call":
            self._is_at_tool = True
            self._heard.put_nowait(Tool(_whole(update.title or "a tool")))
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

    async def cancel(self) -> None:
        if self._call is not None and not self._call.done() and not self.wire.over:
            with suppress(ConnectionError):
                await self._agent.cancel(session_id=self._session)
            await asyncio.wait((self._call,), timeout=CANCEL_GRACE)

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


def _option(options: Iterable[ConfigOption] | None, category: str) -> SessionConfigOptionSelect | None:
    from acp.schema import SessionConfigOptionSelect

    for option in options or ():
        if isinstance(option, SessionConfigOptionSelect) and category in (option.category, option.id):
            return option
    return None


def _values(option: SessionConfigOptionSelect) -> list[str]:
    groups = (getattr(item, "options", [item]) for item in option.options)
    return [choice.value for group in groups for choice in group]


class ACP(Command):
    """Talks to the agent that `options.variant`, else `options.command`, starts in the project, and keeps it."""

    name = "acp"
    costs = True
    give_one = "name the agent's command line: `acp:gemini --acp`, or --command 'gemini --acp'"

    def __init__(self, options: Options) -> None:
        if importlib.util.find_spec("acp") is None:
            raise BadInput(f"the acp backend needs the package {PACKAGE}", fix=INSTALL_ACP)
        super().__init__(replace(options, command=options.variant or options.command))
        self.model = options.model
        held = tuple(v for k, v in options.environment.items() if v and _SECRET_NAME.search(k.upper()))
        self.secrets = (*held, *options.secrets)
        if not options.trust_project:
            fix = "--trust-project allows it, for a project whose code you would run yourself; or name a backend that"
            raise BadInput(
                "an acp agent runs what its project contains (hooks, MCP servers, scripts): nothing keeps it from that",
                fix=f"{fix} only reads: {', '.join(sorted(CODING))}",
            )
        self._warm: Warm | None = None
        self._points: tuple[Checkpoint, ...] = ()
        self._turn = asyncio.Lock()

    @staticmethod
    def probe(variables: Mapping[str, str], variant: str = "") -> Found:
        from importlib import metadata

        pays = "whoever the agent asks"
        if importlib.util.find_spec("acp") is None:
            return Found(False, f"no package {PACKAGE}", pays, fix=INSTALL_ACP)
        if not variant.strip():
            return Found(False, "no agent named", pays, fix="name one: `acp:gemini --acp`")
        program = ACP.split(variant)[0]
        if shutil.which(program, path=variables.get("PATH", os.defpath)) is None:
            return Found(False, f"no {program} on PATH", pays, fix=INSTALL)
        return Found(True, f"{program} on PATH; starts with --trust-project only", pays, metadata.version(PACKAGE))

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        """Stream what the agent says. Raises `BackendError` for everything else than text and a regular end."""
        async with self._turn:
            said, warm = list[str](), None
            await asyncio.to_thread(importlib.import_module, "acp")  # takes a second, in which the daemon must answer
            try:
                warm = await self._started()
                async with aclosing(self._talk(warm, request, said)) as pieces:
                    async for piece in pieces:
                        yield piece
            except BaseException as error:  # failed, cancelled or left: what the session holds now is anybody's guess
                known = error if isinstance(error, BackendError) else await self._failure(error, warm or self._warm)
                await self.close()
                if known is not None:
                    known.partial = "".join(said)
                if known is None or known is error:
                    raise
                raise known from error

    async def close(self) -> None:
        """End the agent: first by asking, then by its guard. May be called twice, and while a reply is under way."""
        warm, self._warm, self._points = self._warm, None, ()
        if warm is not None:
            try:
                await warm.cancel()
            finally:
                await warm.end()

    async def _failure(self, error: BaseException, warm: Warm | None) -> BackendError | None:
        """What an exception of the package's means; None for one that is no failure of the agent's."""
        from acp import RequestError

        program = self._words[0]
        if warm is not None and isinstance(error, RequestError):
            known = error.data if isinstance(error.data, dict) else {"details": error.data}
            details = known.get("details") or known.get("message")
            words = f"{error}: {details}" if isinstance(details, str) and details != str(error) else str(error)
            ways = f" ({one_line(', '.join(warm.logins), QUOTED, self.secrets)})" if warm.logins else ""
            log_in = f"log in with the agent's own program{ways}, or give it its key"
            status = _CODES.get(error.code, error.code if error.code > 0 else None)
            return failed(program, words, status, log_in=log_in, secrets=self.secrets)
        if warm is not None and isinstance(error, ConnectionError):
            code = await warm.end()
            if warm.wire.errno is not None:
                return BackendError(f"cannot run {program!r}: {os.strerror(warm.wire.errno)}", fix=NO_PROGRAM)
            if warm.wire.is_flooded:
                fix = "start the agent so that it speaks ACP on stdout"
                return BackendError("floods its output with what is no message", fix=fix, kind="garbled")
            why = f"ended in the middle, exit {code}: {last_line(warm.wire.stderr, self.secrets)}".removesuffix(": ")
            return BackendError(why, fix=f"run {program!r} by hand and see why it ends", retryable=True)
        if isinstance(error, ValueError):  # pydantic's too
            why = f"answered outside the protocol: {one_line(str(error), QUOTED, self.secrets)}"
            return BackendError(why, fix="install another version of the agent", kind="garbled")
        return None

    async def _talk(self, warm: Warm, request: Request, said: list[str]) -> AsyncGenerator[str | Usage | Tool, None]:
        prompt = request.prompt()
        basis = digest(prompt.rules)
        chosen = plan(prompt, request.agent.id, basis, self._points)
        session = chosen.after.session if chosen.after else await warm.new_session(self.model)
        text = chosen.text if chosen.after else f"{prompt.rules}\n\n{chosen.text}"
        guess = Usage(self.model, prompt.tokens, 0, estimated=True)
        yield guess
        async with aclosing(warm.prompt(session, text)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    said.append(piece)
                if isinstance(piece, str | Tool):
                    yield piece
                    continue
                reply = "".join(said)
                yield replace(_used(piece, guess, reply), usd=warm.spent)
                if kind := _ENDS.get(piece.stop_reason) or ("" if reply.strip() else "empty"):
                    raise ended(self._words[0], kind)
        if not request.question:
            point = checkpoint(prompt, request.re, basis, session=session, reply="".join(said), usage=Usage())
            self._points = (point,)

    async def _started(self) -> Warm:
        if self._warm is not None and not self._warm.wire.over:
            return self._warm
        await self.close()
        words = [self._program(), *self._words[1:]]
        self._warm = Warm(words, self._environment, (self._project or Path()).absolute())
        await self._warm.open()
        return self._warm


def _used(response: PromptResponse, guess: Usage, reply: str) -> Usage:
    if (usage := response.usage) is not None:
        # Some agents count cached tokens in, others beside: the total tells.
        tokens_in = max(usage.input_tokens, usage.total_tokens - usage.output_tokens)
        cached = usage.cached_read_tokens, usage.cached_write_tokens
        return Usage(guess.model, tokens_in, usage.output_tokens, *cached)
    if counted := table(response.field_meta, "quota", "token_count"):  # Gemini's
        tokens_in, tokens_out = counts(counted, "input_tokens", "output_tokens")
        return Usage(guess.model, tokens_in, tokens_out)
    return replace(guess, tokens_out=tokens_of(reply))
