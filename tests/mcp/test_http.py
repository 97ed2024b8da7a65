"""The server as a process of its own: over standard input and output, and over HTTP behind the guard."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.command import PATIENCE, until
from tests.mcp.conftest import Host, call
from tests.mcp.test_tools import TOOLS
from tests.server.serving import PAIRS, assert_carries_nothing, request

HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}  # fmt: skip


@contextmanager
def listening(host: Host) -> Iterator[int]:
    """`dialogd mcp --http` on a free port; ended by SIGTERM, which it takes for a good end."""
    said = host.folder / "mcp.err"
    with said.open("wb") as err:
        process = subprocess.Popen(
            host.commands.words(["mcp", "--http", "--port", "0"]), cwd=host.folder, env=host.commands.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
        )  # fmt: skip
    try:
        until(lambda: re.search(r"localhost:(\d+)/mcp", said.read_text()), "its address", said.read_text)
        yield int(re.findall(r"localhost:(\d+)/mcp", said.read_text())[0])
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.mark.slow
async def test_over_standard_input_and_output(host: Host) -> None:
    from mcp import Client, StdioServerParameters

    log = host.commands.begin("Tabs?")
    words = host.commands.words(["mcp"])
    server = StdioServerParameters(command=words[0], args=words[1:], env=host.commands.environment, cwd=host.folder)
    async with Client(server) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        assert (await call(client, "sessions_send", message="Well?"))["turn"] == 2
        assert (await call(client, "verify"))["sound"]
        assert "there is no session" in (await call(client, "plan", session="nope")).error
    assert log.read().entries[-1].body == "Well?"


NESTED = '{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "recall", "arguments": {"question": '
ODD = {
    "half a character": (f'{NESTED}"\\ud800 tabs"}}}}}}', "-32700"),
    "a deep nest": (f"{NESTED}{'[' * 20_000}{']' * 20_000}}}}}}}", "-32700"),
    "broken": ('{"jsonrpc": ', "-32700"),
    "an array": ("[]", "-32600"),
    "several at once": ('[{"jsonrpc": "2.0", "id": 3, "method": "ping"}]', "-32600"),
    "no message": ("{}", "-32600"),
}


@pytest.mark.slow
def test_every_line_is_answered(host: Host) -> None:
    process = subprocess.Popen(
        host.commands.words(["mcp"]), cwd=host.folder, env=host.commands.environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    begun = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
    nowhere = {"method": "resources/read", "params": {"uri": "dialog://nope/plan"}}
    lines = [json.dumps(HELLO), begun, *(line for line, _ in ODD.values()), json.dumps({**HELLO, "id": 4, **nowhere})]
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n".join(lines) + "\n")
    process.stdin.flush()
    answers = [process.stdout.readline() for _ in range(len(lines) - 1)]
    assert "there is no session 'nope'" in next(each for each in answers if '"id":4' in each)
    wanted = ["instructions", "there is no session 'nope'", *(words for _, words in ODD.values())]
    for words in wanted:
        answers.remove(next(each for each in answers if words in each))
    _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (0, "")


@pytest.mark.slow
async def test_over_http(host: Host) -> None:
    """With and without a handshake: the same tools. Other sites are refused by the daemons' guard."""
    from mcp import Client

    log = host.commands.begin("Tabs?")
    foreign = ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"})
    with listening(host) as port:
        for mode in ("auto", "legacy"):
            async with Client(f"http://localhost:{port}/mcp", mode=mode) as client:
                assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
                (row,) = (await call(client, "sessions_list"))["sessions"]
                assert row["id"] == log.read().id
        assert hello(port) == 200
        assert [hello(port, **headers) for headers in foreign] == [403, 403, 403]


def hello(port: int, **headers: str) -> int:
    """The status of a first request with these headers."""
    accepts = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("localhost", port, timeout=PATIENCE)
    try:
        connection.request("POST", "/mcp", json.dumps(HELLO), {**accepts, **headers})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.slow
def test_a_refused_request_calls_no_tool_by_the_one_behind_it(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    say = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"} | {
        "params": {"name": "sessions_send", "arguments": {"message": "Well?"}}
    }
    accepts = ("Accept: application/json, text/event-stream", "Content-Type: application/json")
    with listening(host) as port:
        assert hello(port) == 200
        for pair in PAIRS:
            assert_carries_nothing(port, pair, request(port, "POST /mcp", *accepts, body=json.dumps(say).encode()))
    assert len(log.read().entries) == 1


@pytest.mark.root
def test_other_users_are_refused(host: Host) -> None:
    program = (
        "import encodings.idna, http.client, os, sys; os.setuid(65534);"
        " c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]));"
        " c.request('GET', '/mcp'); print(c.getresponse().status)"
    )
    with listening(host) as port:
        words = [sys.executable, "-c", program, str(port)]
        assert subprocess.check_output(words, text=True).strip() == "403"
