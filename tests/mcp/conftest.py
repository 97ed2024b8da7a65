"""A folder for dialogs that programs begin, the server's settings in it, and a client in the same process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dialogd.cli import options
from tests.cli.command import Commands

if TYPE_CHECKING:
    from mcp import Client  # the SDK takes as long to import as all other tests together: only who talks to it does


@dataclass(frozen=True)
class Answer:
    """What a tool came to: its facts, or the words of its error."""

    facts: dict[str, Any]
    error: str

    def __getitem__(self, name: str) -> Any:
        """One of its facts; fails with the error where there is one."""
        assert not self.error, self.error
        return self.facts[name]


async def call(client: Client, tool: str, **arguments: Any) -> Answer:
    """Call a tool."""
    result = await client.call_tool(tool, arguments)
    text = "\n".join(getattr(part, "text", "") for part in result.content)
    if result.is_error:
        return Answer({}, text)
    facts = result.structured_content if result.structured_content is not None else json.loads(text)
    assert isinstance(facts, dict)
    return Answer(facts, "")


@dataclass(frozen=True)
class Host:
    """The folder, and how to reach a server in it."""

    folder: Path
    commands: Commands

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """The SDK's own client, on a server in this process."""
        from mcp import Client

        from dialogd.mcp.server import make

        async with Client(make(options.settings_for())) as client:
            yield client


@pytest.fixture
def host(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """An empty folder; what a test left running there is ended, by pid."""
    commands = Commands(tmp_path)
    for name in ("DIALOGD_STATE_DIR", "DIALOGD_FILE", "DIALOGD_BACKEND", "DIALOGD_RETRY_WAIT", "HOME"):
        monkeypatch.setenv(name, commands.environment[name])
    monkeypatch.setenv("DIALOGD_PACE", "0")
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.chdir(tmp_path)
    yield Host(tmp_path, commands)
    commands.end_daemons()
