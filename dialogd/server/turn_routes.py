"""The routes of a live seat: what is owed, and the reply that somebody else wrote."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, Field

from dialogd.agent.loop import Agent
from dialogd.backends.live import Asked, Live
from dialogd.errors import BadInput, Refused
from dialogd.protocol.decide import Stop, Wait
from dialogd.protocol.text import is_blank, redact
from dialogd.server import wire
from dialogd.store.caller import carried
from dialogd.store.journal import Received

LONGEST_WAIT = 45.0  # seconds: some programs cut a longer call of a tool
LOOK = 0.2  # seconds between two looks at whether there is still a point in waiting
SETTLE = 20.0  # seconds in which a reply is usually in the file


class Owed(BaseModel):
    """The turn that this agent owes, or why it owes none.

    `status` is `owed`, else the word for why not; `debt` names the turn for the reply. `text` is a page of what there
    is to read, or the reason. `seconds` is the time that is left.
    """

    agent: str
    dialog: str
    status: str = Field(examples=["owed", "not_my_turn", "paused", "ended"])
    debt: str = ""
    turn: int = 0
    page: int = 0
    pages: int = 0
    text: str
    seconds: float = 0.0


class Delivered(wire.Worded):
    """A reply to the turn that `debt` names."""

    debt: str = Field(description="as GET /turn named it", max_length=100)
    text: str = Field(description="the reply, as any agent writes it", max_length=1_000_000)


class Taken(BaseModel):
    """What a reply came to, and in `text` what happens next.

    It stands in the file (`appended`, with the number of its turn), it is asked about (`asked`), it came too late and
    is kept (`draft`), or it waits (`taken`).
    """

    status: Literal["appended", "asked", "draft", "taken"]
    turn: int = 0
    text: str


class Accepted(BaseModel):
    """The session holds the agent's seat from here on."""

    status: Literal["accepted"] = "accepted"
    agent: str


def turn_routes(app: FastAPI, agent: Agent) -> None:
    """Add the routes of this module."""

    @app.get("/turn")
    async def turn(
        request: Request,
        wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="seconds to wait for a turn")] = 0.0,
        page: Annotated[int, Query(ge=1, description="which page, where it has several")] = 1,
        full: Annotated[bool, Query(description="everything, not only what is new since the last turn")] = False,
    ) -> Owed:
        """What this agent owes: what to read, and how to answer."""
        return await _owed(agent, request, wait, page, full=full)

    @app.post("/accept")
    async def accept() -> Accepted:
        """Agree to take part: the session that was asked from outside may, and nobody else."""
        live = _live(agent)
        caller = await agent.on_disk(carried(agent.file.caller))
        if caller.seat is None or caller.seat.pid != os.getpid():
            raise Refused(
                f"only the session that was asked can take the seat of {agent.me}",
                fix="run it inside of that session: dialogd live accept",
            )
        live.accept()
        return Accepted(agent=agent.me)

    @app.post("/reply")
    async def reply(delivered: Delivered) -> Taken:
        """Take the reply to the turn that is owed; a late one is kept as a draft, one that comes twice counts once."""
        live = await _seat(agent)
        if is_blank(delivered.text):
            raise BadInput("the reply is empty", fix="write your contribution, or the single line [PASS]")
        until = time.monotonic() + SETTLE
        await _asked_for(agent, live, delivered.debt, until)
        try:
            came = live.deliver(delivered.debt, delivered.text, is_open=_is_unasked(agent, live, delivered.debt))
        except Refused:
            agent.tally.refused += 1
            raise
        asked = live.asked(delivered.debt)
        assert asked is not None  # it is one that was taken
        if came == "early":
            return await _keep(agent, live, asked, delivered.text)
        if came in ("late", "kept"):
            return await _draft(agent, asked, delivered.text if came == "late" else "")
        return await _outcome(agent, live, asked, delivered.text, until)


async def _owed(agent: Agent, request: Request, wait: float, page: int, *, full: bool) -> Owed:
    """The turn that is owed, waited for so many seconds while the one who asks is still there."""
    live = await _seat(agent)
    until = time.monotonic() + wait
    while live.owed is None and not agent.is_stopping and time.monotonic() < until:
        await live.changed(min(until - time.monotonic(), LOOK))  # what ends the dialog changes nothing there
        if isinstance(agent.action, Stop) or await _has_left(request):
            break
    found = None if await _has_left(request) else live.open(page, full=full)
    dialog = agent.dialog.id if agent.dialog is not None else ""
    if found is None:
        status, reason = _standing(agent)
        return Owed(agent=agent.me, dialog=dialog, status=status, text=reason)
    owed, text, pages = found
    return Owed(
        agent=agent.me,
        dialog=dialog,
        status="owed",
        debt=owed.debt,
        turn=owed.turn,
        page=page,
        pages=pages,
        text=text,
        seconds=round(max(owed.until - time.monotonic(), 0.0), 1),
    )


async def _has_left(request: Request) -> bool:
    """True once who asks has hung up, as a session does that is killed: it has fetched nothing."""
    return await request.is_disconnected() or await request.is_disconnected()  # the first says that there is no body


def _live(agent: Agent) -> Live:
    """The live seat. Raises `Refused` where a backend of another kind replies."""
    if not isinstance(agent.backend, Live):
        raise Refused(
            f"{agent.me} is no live seat: {agent.backend.name} writes its replies",
            fix=f"start it as one: dialogd start {agent.me} --backend live",
        )
    return agent.backend


async def _seat(agent: Agent) -> Live:
    """The live seat. Raises `Refused` for a session that holds another one, and for who may be one."""
    live = _live(agent)
    caller = await asyncio.to_thread(agent.file.caller)
    if caller.is_unknown:
        agent.tally.refused += 1
        raise Refused(
            "the system does not say which process asks, and a session that holds another seat may not",
            fix="keep the connection open until the answer is there",
        )
    seat = caller.seat
    if seat is not None and (seat.id, Path(seat.file)) != (agent.me, agent.file.path):
        agent.tally.refused += 1
        raise Refused(
            f"this session holds the seat of {seat.id} at {seat.file}, not that of {agent.me} here",
            fix=f"take its own turn: dialogd live turn --id {seat.id} --file {seat.file}",
        )
    return live


def _standing(agent: Agent) -> tuple[str, str]:
    """Why nothing is owed: a word for programs, a reason for people."""
    match agent.action:
        case Stop(outcome):
            return "ended", f"the dialog has ended: {outcome.name} {outcome.reason}".strip()
        case Wait(status, reason, _):
            return status, reason
        case _:
            return "busy", "the last reply is being written into the file"


async def _asked_for(agent: Agent, live: Live, debt: str, until: float) -> None:
    """Wait while a turn is open and about to be asked for, as after a restart: what comes for it then is not late."""
    while _is_unasked(agent, live, debt) and not agent.is_stopping:
        action, left = agent.action, until - time.monotonic()
        waits_for_somebody = isinstance(action, Wait) and action.seconds is None and action.status != "starting"
        if left <= 0 or waits_for_somebody:
            return
        await live.changed(min(left, LOOK))


def _is_unasked(agent: Agent, live: Live, debt: str) -> bool:
    """True while the turn of that name is owed, or may be, and nobody is asked for it."""
    asked, dialog = live.asked(debt), agent.dialog
    if asked is None or live.owed is not None or agent.call is not None:
        return False
    return dialog is None or (_is_open(agent, asked) and dialog.state.debts.seal(agent.me) is None)


async def _keep(agent: Agent, live: Live, asked: Asked, text: str) -> Taken:
    """Keep a reply to a turn that is owed while the dialog waits for something else; a draft where it has passed."""
    dialog = agent.dialog
    debt = dialog.state.debt(agent.me) if dialog is not None else None
    if dialog is None or debt is None or debt.key != _key(agent, asked):
        live.drop()
        return await _draft(agent, asked, text)
    if not asked.kind:  # an answer to a question about a reply is kept in memory: after a kill it is asked again
        try:
            await agent.keep_reply(dialog, debt, text)
        except BaseException:
            live.drop()
            raise
        live.keep(asked)
    _, reason = _standing(agent)
    return Taken(
        status="taken", text=f"it is kept, and will be written into the file once the dialog goes on: {reason}"
    )


async def _outcome(agent: Agent, live: Live, asked: Asked, text: str, until: float) -> Taken:
    while time.monotonic() < until:
        if (number := _landed(agent, asked)) is not None:
            return Taken(
                status="appended", turn=number, text="it is in the file; your next one: dialogd live turn --wait"
            )
        is_handed = live.handed == asked.debt
        if is_handed and live.owed is not None and live.owed.debt != asked.debt:
            return Taken(status="asked", text="there is a question about your reply; fetch it: dialogd live turn")
        if agent.call is None and agent.dialog is not None:
            if not _is_open(agent, asked):
                return await _draft(agent, asked, "" if is_handed else text)  # closed before the turn took it
            if agent.dialog.state.debts.seal(agent.me) is not None:
                return Taken(status="taken", text="it is sealed, and opened once all have given their answer")
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await agent.settled()
    kept = await agent.on_disk(agent.journal.received)
    if live.handed == asked.debt or (kept is not None and kept.debt == _key(agent, asked)):
        return Taken(status="taken", text="it is kept, and will be written into the file")
    return await _draft(agent, asked, text)  # the daemon that took it was killed before it kept it


async def _draft(agent: Agent, asked: Asked, text: str) -> Taken:
    """The reply has become a draft; one with a `text` is kept as one here."""
    if text:
        safe = redact(text, agent.secrets)[0]
        await agent.keep_draft(Received(_key(agent, asked), safe, {}, 0), "its turn had passed")
    return Taken(
        status="draft", text="its turn had passed; it is kept as a draft, and shown to you with your next turn"
    )


def _is_open(agent: Agent, asked: Asked) -> bool:
    debt = agent.dialog.state.debt(agent.me) if agent.dialog is not None else None
    return debt is not None and debt.key == _key(agent, asked)


def _key(agent: Agent, asked: Asked) -> tuple[str, str, str]:
    return agent.me, asked.re, asked.chain


def _landed(agent: Agent, asked: Asked) -> int | None:
    if agent.dialog is None:
        return None
    entry = Received(_key(agent, asked), "", {}, 0).landed(agent.dialog, agent.me)
    return entry.number if entry is not None else None
