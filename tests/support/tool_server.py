"""A small MCP server, by the official SDK: what its tools were called with stands in the file that it is given.

With `--http` behind that it listens on a port of the loopback, which it says on stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer

calls = Path(sys.argv[1])
server = MCPServer("tickets")


def note(*words: object) -> None:
    """One line of the file."""
    with calls.open("a", encoding="utf-8") as file:
        file.write(" ".join(map(str, words)) + "\n")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    note("add", a, b)
    return a + b


@server.tool()
def quote(text: str) -> str:
    """Give a text back."""
    note("quote")
    return text


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    note("fail", why)
    raise ValueError(why)


@server.tool()
def die() -> str:
    """End the server in the middle of a call."""
    note("die")
    os._exit(3)


@server.tool()
def wait(seconds: float) -> str:
    """Take that long."""
    note("wait", os.getpid())
    time.sleep(seconds)
    note("waited")
    return "done"


@server.tool()
def variables() -> str:
    """The variables that this server was given."""
    note("variables")
    return json.dumps(dict(os.environ))


if __name__ == "__main__":
    if "--http" in sys.argv:
        server.run(transport="streamable-http", host="127.0.0.1", port=0)
    else:
        server.run()
