"""An agent in this process, around a real file, with a backend that counts what it is asked."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dialogd.agent.events import Event, Hub
from dialogd.agent.loop import Agent
from dialogd.agent.peers import Peers
from dialogd.agent.turn import Behavior
from dialogd.backends import Request, Usage
from tests.logfile.files import log_of


class Counting:
    """Says `I say A-2` in turn 2, in other words each time, and remembers that it was asked."""

    name = "counting"
    price = None
    most_out = 100
    room = 0
    secrets = ()
    model = "none"
    costs = True

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def reply(self, request: Request) -> AsyncIterator[str | Usage]:
        self.asked.append(request.turn)
        yield f"I say {request.agent.id}-{request.turn} in call {os.getpid()}/{len(self.asked)}\n"
        yield Usage(model=self.model, usd=0.01)

    async def close(self) -> None:
        """Nothing is kept."""


@asynccontextmanager
async def agent_at(
    path: Path,
    me: str = "A",
    backend: Counting | None = None,
    log: Callable[[Event], None] | None = None,
) -> AsyncIterator[Agent]:
    """An agent as it is after a start of its daemon; the person's notify has come. `log` hears its events."""
    options = Behavior(pace=0.0, poll=0.05, retry_wait=0.01)
    agent = Agent(me, log_of(path), backend or Counting(), Peers(me, {}), Hub(log), options)
    agent.seen.nudge()
    try:
        yield agent
    finally:
        await agent.close()
