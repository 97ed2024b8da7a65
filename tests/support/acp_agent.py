"""A real ACP agent without a mind, for tests: `python -m tests.support.acp_agent HABIT [VALUE]`.

echo          says what it was asked, in three pieces; says what it used
modes         offers modes and says in which one it is
ask FILE      wants to write FILE: asks first, writes if it may, says what came of it
tools         says something, uses a tool, says something else
stop REASON   says something and ends its turn for that reason; `empty`: says nothing and ends it regularly
error CODE    answers with that error, after something was said
login         wants a login before any session
big SIZE      says SIZE characters in one message
wait          works until it is told to stop, then stops
deaf          starts a process of its own, works for ever, and stops for nobody
crash         says something, complains on stderr, dies
noise LINES   prints so many lines that are no messages, then echoes
half          says something that is no whole text, then echoes
other VERSION speaks that version of the protocol
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acp import PROTOCOL_VERSION, RequestError, run_agent, start_tool_call, update_agent_message_text
from acp.schema import (
    AuthMethodAgent,
    Cost,
    InitializeResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    SessionMode,
    SessionModeState,
    SetSessionModeResponse,
    ToolCallUpdate,
    Usage,
    UsageUpdate,
)

if TYPE_CHECKING:
    from acp.interfaces import Client

CONTEXT = 200_000


class Agent:
    """Answers by habit. It keeps one count over all sessions, so that its figures tell them apart."""

    def __init__(self, habit: str, value: str) -> None:
        self.habit = habit
        self.value = value
        self.mode = "build"
        self.sessions = 0
        self.dollars = 0.0
        self.told_to_stop = asyncio.Event()

    def on_connect(self, conn: Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        version = int(self.value) if self.habit == "other" else PROTOCOL_VERSION
        login = AuthMethodAgent(id="key", name="A key")
        return InitializeResponse(protocol_version=version, auth_methods=[login] if self.habit == "login" else [])

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        """Begin a session, named by number and directory."""
        if self.habit == "login":
            raise RequestError.auth_required()
        self.sessions += 1
        self.dollars = 0.0
        modes = None
        if self.habit == "modes":
            offered = [SessionMode(id=name, name=name) for name in ("build", "plan", "read_only")]
            modes = SessionModeState(current_mode_id=self.mode, available_modes=offered)
        return NewSessionResponse(session_id=f"{self.sessions}@{cwd}", modes=modes)

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> SetSessionModeResponse:
        self.mode = mode_id
        return SetSessionModeResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        self.told_to_stop.set()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        text = prompt[0].text
        act = getattr(self, f"_{self.habit}", self._echo)
        reason = await act(session_id, text)
        self.dollars += 0.25
        cost = Cost(amount=self.dollars, currency="USD")
        update = UsageUpdate(session_update="usage_update", used=len(text), size=CONTEXT, cost=cost)
        await self.client.session_update(session_id=session_id, update=update)
        usage = Usage(input_tokens=len(text), output_tokens=7, cached_read_tokens=5, total_tokens=len(text) + 12)
        return PromptResponse(stop_reason=reason or "end_turn", usage=usage)

    async def _say(self, session: str, text: str) -> None:
        await self.client.session_update(session_id=session, update=update_agent_message_text(text))

    async def _echo(self, session: str, text: str) -> None:
        third = len(text) // 3 + 1
        for start in range(0, len(text), third):
            await self._say(session, text[start : start + third])

    async def _modes(self, session: str, text: str) -> None:
        await self._say(session, f"{self.mode} in {session}")

    async def _ask(self, session: str, text: str) -> None:
        options = [
            PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
            PermissionOption(option_id="never", name="Never", kind="reject_always"),
            PermissionOption(option_id="no", name="No", kind="reject_once"),
        ]
        call = ToolCallUpdate(tool_call_id="1", title=f"Write {self.value}")
        answer = await self.client.request_permission(session_id=session, tool_call=call, options=options)
        chosen = getattr(answer.outcome, "option_id", answer.outcome.outcome)
        if chosen == "yes":
            _write(Path(self.value))
        await self._say(session, f"I was told {chosen!r}.")

    async def _tools(self, session: str, text: str) -> None:
        await self._say(session, "Let me look.")
        await self.client.session_update(session_id=session, update=start_tool_call("1", "Read"))
        await self._say(session, "It is so.")

    async def _stop(self, session: str, text: str) -> str:
        if self.value == "empty":
            return "end_turn"
        await self._say(session, "This far.")
        return self.value

    async def _error(self, session: str, text: str) -> None:
        await self._say(session, "This far.")
        raise RequestError(int(self.value), "Internal error", {"details": "the service said something"})

    async def _big(self, session: str, text: str) -> None:
        await self._say(session, "x" * int(self.value))

    async def _wait(self, session: str, text: str) -> str:
        await self._say(session, "Working.")
        await self.told_to_stop.wait()
        self.told_to_stop.clear()
        return "cancelled"

    async def _deaf(self, session: str, text: str) -> None:
        _start_something()
        await self._say(session, "Working.")
        await asyncio.Event().wait()

    async def _crash(self, session: str, text: str) -> None:
        await self._say(session, "This far.")
        await asyncio.sleep(0.05)
        sys.stderr.write("out of memory\n")
        sys.stderr.flush()
        os._exit(3)

    async def _noise(self, session: str, text: str) -> None:
        for number in range(int(self.value)):
            os.write(1, b'[1, "not a message"] and this is number %d\n' % number)
        os.write(1, b'[]\n{"id": [1]}\n"x"\n{"jsonrpc": "2.0"}\n\xff\xfe\n' + b"[" * 5_000 + b"\n")
        await self._echo(session, text)

    async def _half(self, session: str, text: str) -> None:
        os.write(
            1,
            b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%s","update":'
            b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\\ud83d! "}}}}\n'
            % session.encode(),
        )
        await self._echo(session, text)


def _write(path: Path) -> None:
    path.write_text("written\n")


def _start_something() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"], start_new_session=True)


def main() -> None:
    """Serve on stdin and stdout until the client lets go."""
    habit, value = [*sys.argv[1:], "", ""][:2]
    asyncio.run(run_agent(Agent(habit, value)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
