"""A warm ACP agent: its process, its session, one prompt at a time; every permission it asks for is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.backends import Tool
from dialogd.backends.acp_wire import Wire
from dialogd.errors import BackendError

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
        self._call = asyncio.create_task(self._agent.prompt(session_id=session, prompt=[text_block(_whole(text))]))
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


def _whole(text: str) -> str:
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
