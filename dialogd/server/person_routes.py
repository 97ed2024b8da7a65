"""The routes by which the person acts: each writes one entry of theirs and tells everybody. No rule lives here."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, cast

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, create_model

from dialogd import person
from dialogd.acts import ACTS, Act, carry_out
from dialogd.agent.loop import Agent
from dialogd.protocol.state import Dialog
from dialogd.server import wire
from dialogd.store.caller import carried


class Invited(BaseModel):
    """One more agent, in parts; without name and address it gets the usual ones."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(max_length=64)
    name: str = Field("", max_length=200)
    url: str = Field("", description="where its daemon listens, on the loopback", max_length=200)


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


class Write(Protocol):
    """Carries out a command of the person and notifies the others; with `starts` it starts the dialog."""

    def __call__(self, agent: Agent, work: Callable[[], Dialog], *, starts: bool = True) -> Awaitable[wire.Done]: ...


def person_routes(app: FastAPI, agent: Agent, write: Write) -> None:
    """Add the routes of this module."""
    for act in ACTS.values():
        _route(app, act, agent, write)

    @app.post("/approve-call")
    async def approve_call(wanted: Judged) -> CallAnswered:
        """Let an agent make the call of a tool that it asks for, or refuse it; also of another daemon's agent."""
        await agent.on_disk(carried(lambda: person.admitted(agent.file, "approve-call")))
        owner = wanted.call.rpartition("-")[0]
        if owner != agent.me and agent.dialog is not None and agent.dialog.header.agent(owner) is not None:
            found = await agent.peers.approve_call(agent.dialog, owner, wanted.call, refuse=wanted.refuse)
            return CallAnswered.model_validate(found)
        asked = agent.approvals.answer(wanted.call, approve=not wanted.refuse)
        status: Literal["approved", "refused"] = "refused" if wanted.refuse else "approved"
        return CallAnswered(status=status, call=asked.id, agent=asked.agent, tool=asked.tool)


def _route(app: FastAPI, act: Act, agent: Agent, write: Write) -> None:
    """The act as a route, whose body has a field for each thing that it is given."""
    fields: dict[str, Any] = {
        one.name: (
            str | Invited if one.kind == "str | Invited" else one.kind,
            Field(one.default, description=one.about, **cast(Any, one.limits)),
        )
        for one in act.given
    }
    base = wire.Worded if act.name == "say" else wire.Meant
    model: Any = create_model(act.name.title(), __base__=base, __doc__=act.help, **fields)
    is_optional = all(one.default is not ... for one in act.given)

    async def post(given: Any = None) -> wire.Done:
        values = given.model_dump(exclude={"file", "dialog"}) if given is not None else {}
        starts = act.starts and not values.get("note")
        return await write(agent, lambda: carry_out(act, agent.file, values, agent.secrets), starts=starts)

    default = None if is_optional else inspect.Parameter.empty
    kind = model | None if is_optional else model
    body = inspect.Parameter("given", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
    post.__signature__ = inspect.Signature([body], return_annotation=wire.Done)  # type: ignore[attr-defined]
    post.__name__, post.__doc__ = act.do or act.name, act.help
    app.post(f"/{act.name}")(post)
