"""A coding agent from npm in a home and a project of its own, before the stand-in; and the prompts it is asked."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from dialogd.backends import Options, Request, Usage, load_backend
from dialogd.backends.coding_agent import AgentCLI
from dialogd.backends.parts import Part, Prompt
from dialogd.protocol.grammar import parse
from tests.support.backend_contract import DIALOG
from tests.support.standin import Say, Script, Seen

BIN = os.environ.get("DIALOGD_CLIS_BIN", "")  # the tests' own environment has no such variables any more
PATH = os.pathsep.join(filter(None, [BIN, os.environ.get("PATH", "")]))
KEYS = {"claude-code": "ANTHROPIC_API_KEY", "codex": "OPENAI_API_KEY"}
BASES = {"claude-code": "", "codex": "/v1"}
URLS = {"claude-code": "ANTHROPIC_BASE_URL", "codex": "OPENAI_BASE_URL"}
KEY = "sk-ant-test-0123456789"


@dataclass(frozen=True)
class World:
    """Where an agent lives. `state` is dialogd's, beside the canary's memory that all tests share."""

    name: str
    home: Path
    project: Path
    state: Path

    def options(self, url: str, **more: object) -> Options:
        """Options for this world: a fake key, and the stand-in as the service."""
        options = Options(
            project=self.project,
            state=self.state,
            variables={KEYS[self.name]: KEY, URLS[self.name]: url + BASES[self.name]},
            environment={"HOME": str(self.home), "PATH": PATH},
        )
        return replace(options, **more)  # type: ignore[arg-type]

    def make(self, url: str, **more: object) -> AgentCLI:
        """The backend."""
        backend = load_backend(self.name, self.options(url, **more))
        assert isinstance(backend, AgentCLI)
        return backend

    def files(self) -> dict[str, bytes]:
        """Every file of the project with its content."""
        return {str(p.relative_to(self.project)): p.read_bytes() for p in self.project.rglob("*") if p.is_file()}


SYSTEM = "You are A, a participant in a written dialog."
HEADER = Part("header", "# The dialog's header\n\nTopic: sessions")
QUESTION = Part("1", "## Turn 1, by the person\n\nPostgres or Redis?", "USER")


def turn(number: int, by: str, text: str, **more: object) -> Part:
    """A turn of the dialog, as a part of a prompt."""
    part = Part(str(number), f"## Turn {number}, by {by}\n\n~~~text\n{text}\n~~~", by)
    return replace(part, **more)  # type: ignore[arg-type]


def prompt(*parts: Part, now: str = "It is your turn now.") -> Prompt:
    """A prompt of a dialog that began with the question."""
    return Prompt(SYSTEM, (HEADER, QUESTION, *parts), now)


def request(asked: Prompt, re: str = "1", allowance: float | None = None) -> Request:
    """A turn of agent A to ask for."""
    dialog = parse(DIALOG)
    agent = dialog.header.agent("A")
    assert agent is not None
    return Request(dialog, agent, 2, Path("/tmp/no-such-dialog.md"), lambda: asked, re, allowance=allowance)


async def ask(backend: AgentCLI, asked: Prompt, re: str = "1", allowance: float | None = None) -> tuple[str, Usage]:
    """A reply, and the last usage that came with it."""
    text, usage = "", Usage()
    async for piece in backend.reply(request(asked, re, allowance)):
        if isinstance(piece, Usage):
            usage = piece
        elif isinstance(piece, str):
            text += piece
    return text, usage


def numbered(seen: Seen) -> Say:
    """A reply with the number of the request in it, whatever was asked for besides."""
    return Say(f"Reply of request {seen.number}.", tokens_in=100, tokens_out=20)


def counting() -> Script:
    """A script that numbers its replies."""
    numbers = count(1)
    return lambda _: Say(f"Reply of request {next(numbers)}.", tokens_in=100, tokens_out=20)
