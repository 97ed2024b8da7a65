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
from dialogd.store.journal import Received
from dialogd.store.registry import carried

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
        live, until = await _seat(agent), time.monotonic() + wait
        while live.owed is None and not agent.is_stopping and time.monotonic() < until:
            await live.changed(min(until - time.monotonic(), LOOK))  # what ends the dialog changes nothing there
            if isinstance(agent.action, Stop) or await _has_left(request):
                break
        found = None if await _has_left(request) else live.open(page, full=full)
        status, reason = _standing(agent)
        answer = Owed(agent=agent.me, dialog=agent.dialog.id if agent.dialog else "", status=status, text=reason)
        if found is None:
            return answer
        owed, text, pages = found
        left = {"seconds": round(max(owed.until - time.monotonic(), 0.0), 1)}
        what = {"status": "owed", "debt": owed.debt, "turn": owed.turn, "page": page, "pages": pages, "text": text}
        return answer.model_copy(update={**what, **left})

    @app.post("/accept")
    async def accept() -> Accepted:
        """Agree to take part: the session that was asked from outside may, and nobody else."""
        live = _live(agent)
        caller = await agent.on_disk(carried(agent.file.caller))
        if caller.seat is None or caller.seat.pid != os.getpid():
            why = f"only the session that was asked can take the seat of {agent.me}"
            raise Refused(why, fix="run it inside of that session: dialogd live accept")
        live.accept()
        return Accepted(agent=agent.me)

    @app.post("/reply")
    async def reply(delivered: Delivered) -> Taken:
        """Take the reply to the turn that is owed; a late one is kept as a draft, one that comes twice counts once."""
        live = await _seat(agent)
        if is_blank(delivered.text):
            raise BadInput("the reply is empty", fix="write your contribution, or pass")
        return await _Delivery(agent, live, delivered.debt, delivered.text).taken()


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
    seat = caller.seat
    if not caller.is_unknown and (seat is None or (seat.id, Path(seat.file)) == (agent.me, agent.file.path)):
        return live
    agent.tally.refused += 1
    if seat is None:
        why = "the system does not say which process asks, and a session that holds another seat may not"
        raise Refused(why, fix="keep the connection open until the answer is there")
    why = f"this session holds the seat of {seat.id} at {seat.file}, not that of {agent.me} here"
    raise Refused(why, fix=f"take its own turn: dialogd live turn --id {seat.id} --file {seat.file}")


def _standing(agent: Agent) -> tuple[str, str]:
    """Why nothing is owed: a word for programs, a reason for people."""
    match agent.action:
        case Stop(outcome):
            return "ended", f"the dialog has ended: {outcome.name} {outcome.reason}".strip()
        case Wait(status, reason, _):
            return status, reason
        case _:
            return "busy", "the last reply is being written into the file"


class _Delivery:
    """A reply that is delivered for a debt, until it is known what became of it."""

    def __init__(self, agent: Agent, live: Live, debt: str, text: str) -> None:
        self.agent, self.live, self.debt, self.text = agent, live, debt, text
        self.until = time.monotonic() + SETTLE

    async def taken(self) -> Taken:
        """Hand it over, and wait for what it comes to. Raises `Refused` for one that nobody asked for."""
        await self._asked_for()
        try:
            came = self.live.deliver(self.debt, self.text, is_open=self._is_unasked())
        except Refused:
            self.agent.tally.refused += 1
            raise
        if came == "early":
            return await self._keep()
        return await (self._draft(is_kept=came == "kept") if came in ("late", "kept") else self._outcome())

    @property
    def asked(self) -> Asked:
        """The turn that it is for."""
        asked = self.live.asked(self.debt)
        assert asked is not None  # else it was refused
        return asked

    @property
    def key(self) -> tuple[str, str, str]:
        return self.agent.me, self.asked.re, self.asked.chain

    def _is_open(self) -> bool:
        debt = self.agent.dialog.state.debt(self.agent.me) if self.agent.dialog is not None else None
        return debt is not None and debt.key == self.key

    def _is_sealed(self) -> bool:
        return self.agent.dialog is not None and self.agent.dialog.state.debts.seal(self.agent.me) is not None

    def _is_unasked(self) -> bool:
        """True while the turn of that name is owed, or may be, and nobody is asked for it."""
        if self.live.asked(self.debt) is None or self.live.owed is not None or self.agent.call is not None:
            return False
        return self.agent.dialog is None or (self._is_open() and not self._is_sealed())

    async def _asked_for(self) -> None:
        """Wait while a turn is about to be asked for, as after a restart: what comes for it then is not late."""
        while self._is_unasked() and not self.agent.is_stopping:
            action, left = self.agent.action, self.until - time.monotonic()
            waits_for_somebody = isinstance(action, Wait) and action.seconds is None and action.status != "starting"
            if left <= 0 or waits_for_somebody:
                return
            await self.live.changed(min(left, LOOK))

    async def _keep(self) -> Taken:
        """Keep a reply to a turn that is owed while the dialog waits for something else; a draft where it passed."""
        dialog = self.agent.dialog
        debt = dialog.state.debt(self.agent.me) if dialog is not None else None
        if dialog is None or debt is None or debt.key != self.key:
            self.live.drop()
            return await self._draft()
        if not self.asked.kind:  # an answer to a question is kept in memory: after a kill it is asked again
            try:
                await self.agent.keep_reply(dialog, debt, self.text)
            except BaseException:
                self.live.drop()
                raise
            self.live.keep(self.asked)
        _, reason = _standing(self.agent)
        text = f"it is kept, and will be written into the file once the dialog goes on: {reason}"
        return Taken(status="taken", text=text)

    async def _outcome(self) -> Taken:
        """Wait until it is in the file, asked about, sealed or late."""
        agent, live = self.agent, self.live
        while time.monotonic() < self.until:
            landed = Received(self.key, "", {}, 0).landed(agent.dialog, agent.me) if agent.dialog is not None else None
            if landed is not None:
                text = "it is in the file; your next one: dialogd live turn --wait"
                return Taken(status="appended", turn=landed.number, text=text)
            is_handed = live.handed == self.debt
            if is_handed and live.owed is not None and live.owed.debt != self.debt:
                return Taken(status="asked", text="there is a question about your reply; fetch it: dialogd live turn")
            if agent.call is None and agent.dialog is not None:
                if not self._is_open():
                    return await self._draft(is_kept=is_handed)  # else closed before the turn took it
                if self._is_sealed():
                    return Taken(status="taken", text="it is sealed, and opened once all have given their answer")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await agent.settled()
        kept = await agent.on_disk(agent.journal.received)
        if live.handed == self.debt or (kept is not None and kept.debt == self.key):
            return Taken(status="taken", text="it is kept, and will be written into the file")
        return await self._draft()  # the daemon that took it was killed before it kept it

    async def _draft(self, *, is_kept: bool = False) -> Taken:
        """It has become a draft, which is kept here unless it is already."""
        if not is_kept:
            safe = redact(self.text, self.agent.secrets)[0]
            await self.agent.keep_draft(Received(self.key, safe, {}, 0), "its turn had passed")
        text = "its turn had passed; it is kept as a draft, and shown to you with your next turn"
        return Taken(status="draft", text=text)
