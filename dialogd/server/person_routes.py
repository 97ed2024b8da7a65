"""The routes by which the person acts: each writes one entry of theirs and tells everybody. No rule lives here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from dialogd import person
from dialogd.agent.loop import Agent
from dialogd.protocol.state import Dialog
from dialogd.server import wire
from dialogd.store.caller import carried


class Veto(wire.Meant):
    """The proposal to rule out."""

    proposal: str = Field(description="its number: P2", max_length=200)
    reason: str = Field("", max_length=1_000_000)


class Strike(wire.Meant):
    """The turns to withdraw."""

    turn: int | str = Field(description="a turn's number, or several: 7, 9")
    reason: str = Field("", max_length=1_000_000)


class Limit(wire.Meant):
    """A limit and its new value."""

    name: str = Field(description="its name, such as max_turns", max_length=50)
    value: int | float | str = Field(description="as in the header: 40, 10 minutes, $4")


class Invited(BaseModel):
    """One more agent, in parts; without name and address it gets the usual ones."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(max_length=64)
    name: str = Field("", max_length=200)
    url: str = Field("", description="where its daemon listens, on the loopback", max_length=200)


class Invite(wire.Meant):
    """Who is to take part."""

    agent: str | Invited = Field(description="an id, C = Name, C = Name @ http://localhost:3003, or its parts")


class Leave(wire.Meant):
    """Who is to leave."""

    agent: str = Field(description="an id or a name", max_length=200)
    reason: str = Field("", max_length=1_000_000)


class Step(wire.Meant):
    """Whether it is the person's turn after every agent's."""

    on: bool


class Judged(wire.Meant):
    """A call of a tool that an agent asks for, by its id, and whether it may be made."""

    call: str = Field(description="its id: A-3f9a1c", max_length=100)
    refuse: bool = False


class CallAnswered(BaseModel):
    """A call that the person has answered."""

    status: Literal["approved", "refused"]
    call: str
    agent: str
    tool: str


class Act(Protocol):
    """Carries out a command of the person and notifies the others; with `starts` it starts the dialog."""

    def __call__(self, agent: Agent, work: Callable[[], Dialog], *, starts: bool = True) -> Awaitable[wire.Done]: ...


def person_routes(app: FastAPI, agent: Agent, act: Act) -> None:
    """Add the routes of this module."""
    log, secrets = agent.file, agent.secrets

    @app.post("/say")
    async def say(words: wire.Say) -> wire.Done:
        """Speak as the person: a turn, which interrupts the call in flight, or with `note` a note."""
        asked = words.model_dump(exclude={"file", "dialog"})
        return await act(agent, lambda: person.say(log, secrets=secrets, **asked), starts=not words.note)

    @app.post("/pause")
    async def pause(_: wire.Meant | None = None) -> wire.Done:
        """Let agents finish their turn and wait; survives restarts."""
        return await act(agent, lambda: person.pause(log), starts=False)

    @app.post("/resume")
    async def resume(_: wire.Meant | None = None) -> wire.Done:
        """End the pause."""
        return await act(agent, lambda: person.resume(log), starts=False)

    @app.post("/restore")
    async def restore() -> wire.Done:
        """Put back turns that an editor's save has removed, as text in a note of the person's."""
        return await act(agent, lambda: person.restore(log), starts=False)

    @app.post("/retry")
    async def retry(named: wire.Named) -> wire.Done:
        """Ask an agent again."""
        return await act(agent, lambda: person.retry(log, named.agent))

    @app.post("/skip")
    async def skip(named: wire.Named) -> wire.Done:
        """Skip an agent that owes a turn."""
        return await act(agent, lambda: person.skip(log, named.agent))

    @app.post("/floor")
    async def floor(asked: wire.Floor | None = None) -> wire.Done:
        """Ask for the floor, where the order is free: for an agent, or without a body for the person."""
        return await act(agent, lambda: person.floor(log, asked.agent if asked else ""), starts=False)

    @app.post("/limit")
    async def limit(wanted: Limit) -> wire.Done:
        """Change a limit: turns, rounds, time, sizes, budget."""
        return await act(agent, lambda: person.limit(log, wanted.name, str(wanted.value)), starts=False)

    @app.post("/step")
    async def step(wanted: Step) -> wire.Done:
        """Turn step mode on or off: it is the person's turn after every agent's."""
        return await act(agent, lambda: person.step(log, on=wanted.on), starts=False)

    @app.post("/pass")
    async def pass_on(_: wire.Meant | None = None) -> wire.Done:
        """Pass the person's turn on without saying anything."""
        return await act(agent, lambda: person.pass_on(log))

    @app.post("/veto")
    async def veto(wanted: Veto) -> wire.Done:
        """Rule out a proposal."""
        return await act(agent, lambda: person.veto(log, wanted.proposal, wanted.reason, secrets=secrets), starts=False)

    @app.post("/strike")
    async def strike(wanted: Strike) -> wire.Done:
        """Withdraw turns: their marks stop counting. If the end rests on them, the dialog is open again."""
        turns = str(wanted.turn)
        return await act(agent, lambda: person.strike(log, turns, wanted.reason, secrets=secrets), starts=False)

    @app.post("/invite")
    async def invite(wanted: Invite) -> wire.Done:
        """Add an agent; its daemon is started on the command line."""
        return await act(agent, lambda: person.invite(log, _named(wanted.agent), secrets=secrets), starts=False)

    @app.post("/leave")
    async def leave(wanted: Leave) -> wire.Done:
        """Remove an agent from the dialog."""
        return await act(agent, lambda: person.leave(log, wanted.agent, wanted.reason, secrets=secrets), starts=False)

    @app.post("/approve")
    async def approve(_: wire.Meant | None = None) -> wire.Done:
        """Accept the result of a dialog that has ended; repeated, it writes nothing more."""
        return await act(agent, lambda: person.approve(log), starts=False)

    @app.post("/reject")
    async def reject(wanted: wire.Reject) -> wire.Done:
        """Reject the result: a turn of yours with the reason reopens the dialog."""
        return await act(agent, lambda: person.reject(log, wanted.reason, secrets=secrets))

    @app.post("/approve-call")
    async def approve_call(wanted: Judged) -> CallAnswered:
        """Let an agent make the call of a tool that it asks for, or refuse it; also of another daemon's agent."""
        await agent.on_disk(carried(lambda: person.admitted(log, "approve-call")))
        owner = wanted.call.rpartition("-")[0]
        if owner != agent.me and agent.dialog is not None and agent.dialog.header.agent(owner) is not None:
            found = await agent.peers.approve_call(agent.dialog, owner, wanted.call, refuse=wanted.refuse)
            return CallAnswered.model_validate(found)
        asked = agent.approvals.answer(wanted.call, approve=not wanted.refuse)
        status: Literal["approved", "refused"] = "refused" if wanted.refuse else "approved"
        return CallAnswered(status=status, call=asked.id, agent=asked.agent, tool=asked.tool)


def _named(wanted: str | Invited) -> str:
    """The agent as an INVITE mark writes it."""
    if isinstance(wanted, str):
        return wanted
    named = f"{wanted.id} = {wanted.name}" if wanted.name.strip() else wanted.id
    return f"{named} @ {wanted.url}" if wanted.url.strip() else named
