"""The routes by which the person takes a result, or rejects it."""

from __future__ import annotations

from fastapi import FastAPI

from dialogd import person
from dialogd.agent.loop import Agent
from dialogd.server import wire
from dialogd.server.hand import Act


def result_routes(app: FastAPI, agent: Agent, act: Act) -> None:
    """Add the routes of this module."""
    log, secrets = agent.file, agent.secrets

    @app.post("/approve")
    async def approve(_: wire.Meant | None = None) -> wire.Done:
        """Take the result, once the dialog has ended; said twice, it is written once."""
        return await act(agent, lambda: person.approve(log), starts=False)

    @app.post("/reject")
    async def reject(wanted: wire.Reject) -> wire.Done:
        """Do not take the result: your turn, with the reason, opens the dialog again."""
        return await act(agent, lambda: person.reject(log, wanted.reason, secrets=secrets))
