"""a2a-sdk: two servers that send each other their turns as A2A messages over HTTP; tasks are kept in memory.

`a2a_pair.py FOLDER TURNS NAME PORT PEER`: A opens.
"""

from __future__ import annotations

import asyncio
import sys

import httpx
import uvicorn
from a2a.client import Client, ClientConfig, create_client
from a2a.helpers import get_message_text, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Role, SendMessageRequest
from notes import TURNS, Notes
from starlette.applications import Starlette

NAME, PORT, PEER = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
notes = Notes(NAME)
over = asyncio.Event()
tasks: set[asyncio.Task[None]] = set()


def card(port: int) -> AgentCard:
    """Who listens there."""
    place = AgentInterface(url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0")
    return AgentCard(
        name="peer",
        description="speaks",
        version="1",
        supported_interfaces=[place],
        capabilities=AgentCapabilities(streaming=False),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="speak", name="speak", description="speaks", tags=["speak"])],
    )


class Peer:
    """The other one, over one kept connection."""

    client: Client | None = None

    async def send(self, turn: int, text: str) -> None:
        """Tell it of a turn."""
        if self.client is None:
            self.client = await create_client(
                card(PEER), ClientConfig(streaming=False, httpx_client=httpx.AsyncClient())
            )
        message = new_text_message(f"{turn}\n{text}", role=Role.ROLE_USER)
        async for _ in self.client.send_message(SendMessageRequest(message=message)):
            pass


peer = Peer()


async def take(turn: int) -> None:
    """One turn: ask the model, tell the peer."""
    if turn <= TURNS:
        await peer.send(turn, notes.reply(turn))
    if turn >= TURNS - 1:
        over.set()


class Speaker(AgentExecutor):
    """Acknowledges a turn and takes the next one."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """A turn has come."""
        assert context.message is not None
        turn = int(get_message_text(context.message).partition("\n")[0])
        await event_queue.enqueue_event(new_text_message("ok"))
        task = asyncio.create_task(take(turn + 1))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Nothing can be cancelled."""


async def main() -> None:
    """Serve until the last turn."""
    handler = DefaultRequestHandler(Speaker(), InMemoryTaskStore(), card(PORT))
    app = Starlette(routes=[*create_agent_card_routes(card(PORT)), *create_jsonrpc_routes(handler, "/")])
    server = uvicorn.Server(uvicorn.Config(app, port=PORT, log_level="warning", access_log=False))
    serving = asyncio.create_task(server.serve())
    for port in (PORT, PEER) if NAME == "A" else ():
        for _ in range(500):
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
            except OSError:
                await asyncio.sleep(0.02)
            else:
                break
    if NAME == "A":
        await take(1)
    await over.wait()
    await asyncio.sleep(0.3)
    notes.keep()
    server.should_exit = True
    await serving


asyncio.run(main())
