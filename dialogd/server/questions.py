"""The routes by which the person takes a result, or rejects it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from fastapi import FastAPI

from dialogd import person
from dialogd.agent import Agent
from dialogd.protocol.state import Dialog
from dialogd.server import wire


class Act(Protocol):
    """Lets the person do something in the file, and tells everybody; with `starts` it sets the dialog going."""

    def __call__(self, agent: Agent, work: Callable[[], Dialog], *, starts: bool = ...) -> Awaitable[wire.Done]:
        """Do `work` in the disk's thread."""


def question_routes(app: FastAPI, agent: Agent, act: Act) -> None:
    """Add the routes of this module."""
    log, secrets = agent.file, agent.options.secrets

    @app.post("/approve")
    async def approve() -> wire.Done:
        """Take the result, once the dialog has ended; said twice, it is written once."""
        return await act(agent, lambda: person.approve(log), starts=False)

    @app.post("/reject")
    async def reject(wanted: wire.Reject) -> wire.Done:
        """Do not take the result: your turn, with the reason, opens the dialog again."""
        return await act(agent, lambda: person.reject(log, wanted.reason, secrets=secrets))
