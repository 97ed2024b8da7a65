"""How daemons end: quickly, with exit code 0, and with nothing left behind."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.faults.history import appended, problems, read
from tests.faults.replies import Replies, freeze
from tests.support.pair import PATIENCE, Daemon, Pair, a_second

Cast = Callable[..., Pair]


@contextmanager
def listening(daemon: Daemon, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port), timeout=PATIENCE))
            client.sendall(f"GET /events HTTP/1.1\r\nHost: localhost:{daemon.port}\r\n\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 200"
            clients.append(client)
        yield clients


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_one_daemon_ends_in_a_second_with_all_streams_open_and_a_call_under_way(
    tmp_path: Path, replies: Replies, number: int
) -> None:
    with Pair(tmp_path, command=replies.command("held")) as pair:
        pair.begin("What now?", turn="A")
        pair.start("A")
        pair.notify("A")
        pair.until(replies.alive, "the call")
        with listening(pair["A"], 5) as clients:
            began = time.monotonic()
            pair["A"].signal(number)
            assert pair["A"].wait() == 0
            assert time.monotonic() - began < a_second()
            assert all(b"event: bye" in everything(client) for client in clients)
        assert replies.alive() == []
        assert not pair.outcome
        assert len(read(pair.file)) == 1
        assert not list((pair.state_dir / "running").glob("*.json"))


def everything(client: socket.socket) -> bytes:
    """What a client receives until its connection is closed."""
    received = b""
    while piece := client.recv(65536):
        received += piece
    return received


def test_a_stop_in_the_middle_of_a_call_ends_and_keeps_everything(cast: Cast, replies: Replies) -> None:
    pair = cast(command={"A": replies.command(), "B": replies.command("held")})
    pair.hold("What now?", turn="A")
    pair.until(lambda: replies.alive() and replies.asked("B"), "B's call")
    with listening(pair["A"], 2), listening(pair["B"], 2):
        began = time.monotonic()
        status, answer = pair["A"].ask("POST", "/stop")
        took = time.monotonic() - began
        codes = [daemon.wait() for daemon in pair.daemons.values()]
        assert time.monotonic() - began < 2 * a_second()
    assert (status, answer["outcome"], codes) == (200, "STOPPED", [0, 0])
    assert took < a_second()
    assert pair.outcome == "STOPPED"
    assert replies.alive() == []
    assert problems(pair.file) == []
    archived = Path(answer["archive"])
    assert archived.read_bytes() == pair.file.read_bytes()
    assert stat.S_IMODE(archived.stat().st_mode) == 0o600
    assert [copy.name for copy in archived.parent.iterdir()] == [archived.name]


def test_two_stops_at_once_write_one_end(cast: Cast, replies: Replies) -> None:
    pair = cast(command=replies.command("held"))
    pair.hold("What now?", turn="A, B")
    pair.notify("B")
    pair.until(lambda: len(replies.asked()) == 2, "both calls")
    connections = [
        http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=PATIENCE) for daemon in pair.daemons.values()
    ]
    for daemon in pair.daemons.values():
        freeze(daemon)  # each of them finds its stop before the other one can tell it of its own
    for connection in connections:
        connection.request("POST", "/stop")
    for daemon in pair.daemons.values():
        daemon.signal(signal.SIGCONT)
    for connection in connections:
        assert connection.getresponse().status == 200
        connection.close()
    assert [daemon.wait() for daemon in pair.daemons.values()] == [0, 0]
    assert pair.file.read_text().count("[STOPPED") == 1
    assert replies.alive() == []


def test_everything_a_daemon_leaves_is_private(cast: Cast, replies: Replies) -> None:
    before = os.umask(0)
    try:
        pair = cast(command=replies.command())
        pair.start()
        pair.begin("What now?", turn="A", max_turns=3)
        pair.file.chmod(0o600)
        pair.notify("A")
        pair.until(lambda: pair.outcome, "the end")
        pair.until(lambda: appended(pair["A"].said) == [2], "the line in the log")  # lines are written a few at a time
        pair["A"].ask("POST", "/stop")
        for daemon in pair.daemons.values():
            daemon.wait()
    finally:
        os.umask(before)
    ours = [pair.file.with_name("dialog.md.lock"), pair.state_dir, *pair.state_dir.rglob("*")]
    assert len(ours) > 12
    loose = {str(path): oct(path.stat().st_mode) for path in ours if path.stat().st_mode & 0o077}
    assert loose == {}
