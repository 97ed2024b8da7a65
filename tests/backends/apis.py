"""Model-API backends against the stand-in: how they are made, what one reply brings."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dialogd.backends import Options, Request, Usage
from dialogd.backends.apis import Anthropic, OpenAI
from dialogd.backends.parts import Part, Prompt
from dialogd.errors import BackendError
from dialogd.protocol.grammar import parse
from tests.support.backend_contract import DIALOG
from tests.support.standin import StandIn

FORMS = ("messages", "chat", "responses")
KEY = "sk-ant-test-0123456789abcdef0123456789"
TEXT = "I propose to keep the sessions in Postgres, since it is there already and is backed up."

API = Anthropic | OpenAI


def options(form: str, url: str, **changes: Any) -> Options:
    """Options of the backend that speaks `form`, with a fake key."""
    if form == "messages":
        base = Options(model="claude-opus-5-5", base_url=url, variables={"ANTHROPIC_API_KEY": KEY})
    else:
        base = Options("gpt", model="gpt-6.1-sol", base_url=f"{url}/v1", variables={"OPENAI_API_KEY": KEY}, api=form)
    return replace(base, **changes)


def make(form: str, server: StandIn | str, **changes: Any) -> API:
    chosen = options(form, server if isinstance(server, str) else server.url, **changes)
    return Anthropic(chosen) if form == "messages" else OpenAI(chosen)


def request(*parts: str, now: str = "This is turn 2.", **changes: Any) -> Request:
    dialog = parse(DIALOG)
    agent = dialog.header.agent("A")
    assert agent is not None
    pieces = tuple(Part(str(number), text) for number, text in enumerate(parts or ("Postgres or Redis?",), 1))
    prompt = Prompt("You are A.", pieces, now)
    return replace(Request(dialog, agent, 2, Path("/tmp/no-such-dialog.md"), lambda: prompt), **changes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one reply came to; `usages` since the service was asked."""

    text: str
    usages: tuple[Usage, ...]
    error: BackendError | None

    @property
    def usage(self) -> Usage:
        return self.usages[-1]

    @property
    def failed(self) -> BackendError:
        assert self.error is not None, f"no error, but {self.text!r}"
        return self.error


async def outcome(backend: API, asked: Request | None = None) -> Outcome:
    texts: list[str] = []
    usages: list[Usage] = []
    error = None
    try:
        async with aclosing(backend.reply(asked or request())) as pieces:
            async for piece in pieces:
                if isinstance(piece, Usage) and piece.calls:
                    usages.append(piece)
                elif isinstance(piece, str):
                    texts.append(piece)
    except BackendError as caught:
        error = caught
    return Outcome("".join(texts), tuple(usages), error)
