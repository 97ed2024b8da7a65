"""An agent in this process around a real file, with a mind that says, bills and fails as it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from dialogd.agent.events import Hub
from dialogd.agent.loop import Agent
from dialogd.agent.peers import Peers
from dialogd.agent.turn import Behavior
from dialogd.backends import FREE, Price, Request, Tool, Usage
from dialogd.backends.parts import Prompt
from dialogd.backends.rehearsal import means_it
from dialogd.errors import BackendError
from dialogd.protocol.state import Dialog
from dialogd.store.logfile import LogFile
from tests.logfile.files import OPENING, log_of
from tests.support.pair import PATIENCE

Line = str | Usage | Tool | BackendError | float

DEAR = Price(10.0, 20.0)  # dollars per million tokens
SAID = Usage("m-1", 1_000, 100)  # at DEAR: 0.012 dollars
BUSY = BackendError("too many requests", fix="wait", retryable=True, kind="busy")
WRONG = BackendError("bad key", fix="another key", kind="auth")


class Mind:
    """Answers each call with the next lines: text, what it used, an error to raise, seconds to take.

    To a closing question it says what its reply means; or, where there are any, the next lines of `answers`.
    """

    name = "mind"
    model = "m-1"
    costs = True
    most_out = 4_000

    def __init__(
        self,
        *calls: Sequence[Line],
        price: Price | None = FREE,
        room: int = 0,
        answers: Sequence[Sequence[Line]] = (),
    ) -> None:
        self.calls = list(calls)
        self.answers = list(answers)
        self.price = price
        self.room = room
        self.secrets: tuple[str, ...] = ()
        self.asked: list[Prompt] = []
        self.requests: list[Request] = []

    async def reply(self, request: Request) -> AsyncIterator[str | Usage | Tool]:
        """The lines of the next call; nothing once there are no more."""
        self.asked.append(request.prompt())
        self.requests.append(request)
        for line in self._next(request):
            if isinstance(line, BackendError):
                raise line
            if isinstance(line, float):
                await asyncio.sleep(line)
            else:
                yield line

    def _next(self, request: Request) -> Sequence[Line]:
        if not request.question:
            return self.calls.pop(0) if self.calls else ("Nothing more.",)
        return self.answers.pop(0) if self.answers else (means_it(request.prompt().parts[-1].text, request.question),)

    async def close(self) -> None:
        """Nothing is kept."""


def dialog_in(tmp_path: Path, *keys: str, turn: str = "A") -> Path:
    """A dialog file whose first turn waits for A, or whoever is named."""
    path = tmp_path / "dialog.md"
    more = "".join(f"{key}\n" for key in keys)
    text = OPENING.replace("**Max Size:**", f"{more}**Max Size:**").replace("TURN: A", f"TURN: {turn}")
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


@asynccontextmanager
async def agent_with(path: Path, mind: Mind, me: str = "A", options: Behavior | None = None) -> AsyncIterator[Agent]:
    """An agent as it is after a start of its daemon; the person's notify has come."""
    options = options or Behavior(pace=0.0, poll=0.05, retry_wait=0.001)
    agent = Agent(me, log_of(path), mind, Peers(me, {}), Hub(), options)
    agent.seen.nudge()
    try:
        yield agent
    finally:
        await agent.close()


async def interrupted(
    agent: Agent, is_time: Callable[[], bool], act: Callable[[LogFile, str], object], path: Path
) -> None:
    """One step of the agent, into which the person acts as soon as it is time."""
    turn = asyncio.ensure_future(agent.step())
    deadline = time.monotonic() + PATIENCE
    while not is_time():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    act(log_of(path), "Consider the cost.")
    await asyncio.wait_for(turn, PATIENCE / 3)


@contextmanager
def journal_refusing(agent: Agent) -> Iterator[None]:
    """The agent's journal as one that must not be written to: everybody might have."""
    path = agent.journal.path
    path.touch(mode=0o600)
    path.chmod(0o666)
    try:
        yield
    finally:
        path.chmod(0o600)


async def step(path: Path, mind: Mind, me: str = "A", options: Behavior | None = None) -> Dialog:
    """One step of such an agent; the dialog afterwards."""
    async with agent_with(path, mind, me, options) as agent:
        await agent.step()
    return log_of(path).read()


def account(dialog: Dialog) -> tuple[str, str, str, str]:
    """What the last entry's frame says: calls, tokens in and out, dollars."""
    found = dialog.last.frame
    assert found is not None
    return found.calls, found.tokens_in, found.tokens_out, found.usd
