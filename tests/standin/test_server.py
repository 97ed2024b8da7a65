"""The stand-in as a server: what it notes, what it answers by itself, its limits, and that it goes when it is told."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable

import httpx2
import pytest

from tests.standin.asking import FORMS, QUESTION, STREAMING, SYSTEM, ask, body_of
from tests.support.cases import cases
from tests.support.standin import Hang, Say, Seen, Stall, StandIn, in_order
from tests.support.standin.server import MOST_BODY, MOST_CONNECTIONS, MOST_SEEN

pytestmark = pytest.mark.slow  # a tool of the tests is tried here, no promise


hello = in_order(Say("Hello."))


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def get(server: StandIn, path: str, method: str = "GET") -> httpx2.Response:
    """A request without a body."""
    with httpx2.Client(trust_env=False, verify=False) as client:
        return client.request(method, server.url + path)


@cases("form", FORMS)
def test_a_request_is_noted_and_read(form: str) -> None:
    """Method, path, headers, body, system prompt, all text, the question, the model, whether a stream is wanted."""
    with StandIn(hello) as server:
        ask(server, form)
        ask(server, form, stream=False)
        first, second = server.seen
    assert (first.method, first.path, first.query) == ("POST", *STREAMING[form].partition("?")[::2])
    assert first.headers["content-type"] == "application/json"
    assert first.body == body_of(form)
    assert (first.system, first.prompt, first.last) == (SYSTEM, f"{SYSTEM}\n\n{QUESTION}", QUESTION)
    assert (first.form, first.stream, second.stream) == (form, True, False)
    assert first.model == ("gem" if form == "gemini" else "m")
    assert first.at <= second.at <= time.monotonic()
    assert (first.number, second.number) == (1, 2)


def test_what_asks_no_model_is_answered_without_the_script() -> None:
    """Lists of models, counts of tokens, a look whether anybody is there; anything else is not here."""
    with StandIn(lambda seen: pytest.fail("asked"), models=("m1", "m2")) as server:
        assert (get(server, "/").status_code, get(server, "/", "HEAD").status_code) == (200, 200)
        assert [model["id"] for model in get(server, "/v1/models").json()["data"]] == ["m1", "m2"]
        assert get(server, "/v1beta/models").json()["models"][1] == {"name": "models/m2"}
        assert get(server, "/api/tags").json()["models"][0]["name"] == "m1"
        assert get(server, "/v1/messages/count_tokens", "POST").json() == {"input_tokens": 0}
        assert get(server, "/v1beta/models/m1:countTokens", "POST").json() == {"totalTokens": 0}
        assert (get(server, "/nowhere").status_code, get(server, "/v1/messages").status_code) == (404, 404)
        assert (len(server.seen), server.calls) == (9, [])


def test_a_body_that_is_no_json_is_refused_as_the_service_refuses_it() -> None:
    """Status 400, and the script is not asked."""
    with StandIn(lambda seen: pytest.fail("asked")) as server, httpx2.Client(trust_env=False, verify=False) as client:
        answer = client.post(f"{server.url}/v1/messages", content=b"[1, 2")
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert server.seen[0].body is None


@cases(
    ("headers", "query"),
    [
        ({"x-api-key": "sk-1"}, ""),
        ({"authorization": "Bearer sk-1"}, ""),
        ({"x-goog-api-key": "sk-1"}, ""),
        ({}, "?key=sk-1"),
    ],
)
def test_only_the_key_it_was_given_is_served(headers: dict[str, str], query: str) -> None:
    """However it is sent; another one is refused and never reaches the script."""
    with StandIn(hello, key="sk-1") as server, httpx2.Client(trust_env=False, verify=False) as client:
        url = f"{server.url}/v1/messages{query}"
        assert client.post(url, json=body_of("messages"), headers=headers).status_code == 200
        other = client.post(f"{server.url}/v1/messages", json=body_of("messages"), headers={"x-api-key": "sk-2"})
        assert (other.status_code, other.json()["error"]["type"]) == (401, "authentication_error")
        assert server.seen[0].key == "sk-1"


def test_one_connection_serves_many_requests() -> None:
    """It is kept open from one to the next."""
    with StandIn(hello) as server, httpx2.Client(trust_env=False, verify=False) as client:
        for _ in range(3):
            assert client.post(f"{server.url}/v1/messages", json=body_of("messages")).status_code == 200
        assert (server.open, len(server.seen)) == (1, 3)


def test_closing_ends_what_hangs_at_once() -> None:
    """Hanging and stalling requests break off; nobody listens afterwards; closing again does nothing."""
    broken: list[str] = []

    def wait_for(form: str) -> None:
        try:
            came = ask(server, form)
            broken.append(type(came.error).__name__)
        except httpx2.HTTPError as error:
            broken.append(type(error).__name__)

    with StandIn(in_order(Hang(), Stall("one two three"))) as server:
        waiting = [threading.Thread(target=wait_for, args=(form,)) for form in ("chat", "messages")]
        for thread in waiting:
            thread.start()
        until(lambda: len(server.calls) == 2)
        begun = time.monotonic()
        server.close()
        for thread in waiting:
            thread.join()
        assert time.monotonic() - begun < 1
        server.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server.port), timeout=5)
    assert len(broken) == 2
    assert "NoneType" not in broken


def test_a_client_that_leaves_is_noticed() -> None:
    """A hanging request ends with its client."""
    with StandIn(in_order(Hang())) as server:
        with pytest.raises(httpx2.ReadTimeout):
            ask(server, "messages", timeout=0.2)
        until(lambda: server.open == 0)


def test_what_the_script_raises_comes_out_at_the_end() -> None:
    """The client sees a dropped connection, the test the reason."""

    def script(seen: Seen) -> Say:
        raise LookupError("no more lines")

    def run() -> None:
        with StandIn(script) as server:
            with pytest.raises(httpx2.RemoteProtocolError):
                ask(server, "chat")
            until(lambda: server.open == 0)

    with pytest.raises(LookupError, match="no more lines"):
        run()


def test_it_listens_on_the_loopback_alone() -> None:
    """The socket is bound to 127.0.0.1."""
    with StandIn(hello) as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", server.port), timeout=5)


def test_only_so_many_connections_are_held() -> None:
    """One more than the limit is closed; when one leaves there is room again."""
    with StandIn(hello) as server:
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MOST_CONNECTIONS)]
        until(lambda: server.open == MOST_CONNECTIONS)
        with pytest.raises(httpx2.HTTPError):
            ask(server, "chat")
        held.pop().close()
        until(lambda: server.open < MOST_CONNECTIONS)
        assert ask(server, "chat").text == "Hello."
        for connection in held:
            connection.close()


def test_only_so_many_requests_are_kept() -> None:
    """The oldest are forgotten; numbers go on."""
    with StandIn(hello) as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        lines = connection.makefile("rb")
        for _ in range(MOST_SEEN + 5):
            connection.sendall(b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            while lines.readline().strip():
                pass
        assert [server.seen[0].number, server.seen[-1].number, len(server.seen)] == [6, MOST_SEEN + 5, MOST_SEEN]


def test_only_so_many_bytes_are_kept() -> None:
    """Large requests push older ones out; one that is too large is not even read to its end."""
    with StandIn(hello) as server, httpx2.Client(trust_env=False, verify=False, timeout=30) as client:
        large = b"x" * (MOST_BODY - 1)
        for _ in range(3):
            assert client.post(f"{server.url}/nowhere", content=large).status_code == 404
        assert [seen.number for seen in server.seen] == [2, 3]
        with pytest.raises(httpx2.HTTPError):
            client.post(f"{server.url}/nowhere", content=large + b"xx")
        assert server.seen[-1].number == 3


@cases(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_packed_body_is_read(coding: str, pack: Callable[[bytes], bytes]) -> None:
    """As some clients send it; what is no such packing is no JSON."""
    with StandIn(hello) as server, httpx2.Client(trust_env=False, verify=False) as client:
        body, headers = json.dumps(body_of("chat")).encode(), {"content-encoding": coding}
        for content, status in ((pack(body), 200), (pack(body)[:-9], 400), (body, 400)):
            answer = client.post(f"{server.url}/v1/chat/completions", content=content, headers=headers)
            assert answer.status_code == status
        assert server.seen[0].prompt == f"{SYSTEM}\n\n{QUESTION}"


def test_nonsense_closes_the_connection_and_nothing_else() -> None:
    """No HTTP, a half request, a body without end: the next client is served."""
    with StandIn(hello) as server:
        for nonsense in (
            b"\x00\x01\x02\r\n\r\n",
            b"POST /v1/messages HTTP/1.1\r\nhost: l\r\ncontent-length: 9\r\n\r\nabc",
        ):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(nonsense)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(100) == b""
        assert ask(server, "chat").text == "Hello."
        assert len(server.seen) == 1


def test_a_client_that_waits_for_leave_to_send_gets_it() -> None:
    """`Expect: 100-continue` is answered before the body comes."""
    with StandIn(hello) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: l\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        connection.sendall(head)
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"{}")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_it_is_cheap_to_import() -> None:
    """Neither a web framework nor an SDK nor an HTTP client comes along."""
    program = (
        "import sys, tests.support.standin, tests.support.minds\n"
        "print([m for m in ('fastapi', 'anthropic', 'openai', 'httpx2', 'pydantic', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
