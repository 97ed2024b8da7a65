"""Who is on the other end of a connection."""

import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
import uvicorn

from dialogd.server.serving import Address, Caller, choose_lookup, find_owner, find_uid, identify, make_server
from tests.server.serving import Site, connect, read_answer, request, running
from tests.support.cases import cases

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose socket it is")

NOBODY = 65534
HOLD = (
    "import socket,sys; s=socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('on', flush=True); input()"
)


@contextmanager
def connected(to: str = "127.0.0.1") -> Iterator[tuple[socket.socket, socket.socket]]:
    """Connect a client to a listener, by the address `to`; gives (client, our end)."""
    # Only a port that was bound by hand is no other connection's, and can be listened on afterwards.
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        closing(socket.create_connection((to, listener.getsockname()[1]), source_address=(to, 0))) as client,
        closing(listener.accept()[0]) as end,
    ):
        yield client, end


def reset(client: socket.socket) -> None:
    """Close with a reset instead of a farewell."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_a_process_of_this_user_is_its_own_caller() -> None:
    with connected() as (_, end):
        assert identify(end, find_uid) is Caller.OWN


def test_a_caller_that_stopped_sending_is_still_known() -> None:
    with connected() as (client, end):
        client.shutdown(socket.SHUT_WR)

        assert identify(end, find_uid) is Caller.OWN


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_a_caller_that_left_is_unknown(leave: Callable[[socket.socket], None]) -> None:
    with connected() as (client, end):
        leave(client)

        assert identify(end, find_uid) is Caller.UNKNOWN


def test_a_lookup_that_comes_too_late_does_not_count() -> None:
    with connected() as (client, end):

        def late(theirs: Address, ours: Address) -> int:
            reset(client)
            return os.geteuid()

        assert identify(end, late) is Caller.UNKNOWN


def test_an_ipv6_socket_that_calls_an_ipv4_port_is_found() -> None:
    with connected(to="::ffff:127.0.0.1") as (client, end):
        assert client.family is socket.AF_INET6
        assert identify(end, find_uid) is Caller.OWN


def test_a_listener_on_the_port_of_a_caller_that_left_is_not_the_caller() -> None:
    with connected() as (client, end):
        theirs, ours = client.getsockname(), end.getsockname()
        reset(client)
        with closing(socket.create_server(theirs)):
            assert find_uid(theirs, ours) is None


def test_the_pair_is_matched_in_one_direction() -> None:
    with connected() as (client, end), connected() as (_, other):
        assert find_uid(client.getsockname(), other.getsockname()) is None
        assert find_uid(client.getsockname(), end.getsockname()) == os.geteuid()


ROW = (
    "   1: 0100007F:8D5E 0100007F:0BB9 {state} 00000000:00000000 00:00000000 00000000 {uid:5d} {timeout:8d} {inode} 1 0"
)


@cases(
    ("rows", "owner"),
    [
        ([ROW.format(state="01", uid=1000, timeout=0, inode=7)], (1000, 7)),
        ([ROW.format(state="01", uid=0, timeout=0, inode=7)], (0, 7)),
        ([ROW.format(state="05", uid=0, timeout=0, inode=0)], None),
        ([ROW.format(state="05", uid=1000, timeout=0, inode=0)], None),
        (
            [ROW.format(state="01", uid=1000, timeout=0, inode=7), ROW.format(state="01", uid=1, timeout=0, inode=8)],
            None,
        ),
        ([], None),
    ],
)
def test_a_row_counts_only_with_an_inode(rows: list[str], owner: tuple[int, int] | None) -> None:
    table = "\n".join(["  sl  local_address", *rows, ""]).encode()

    assert find_owner(table, "0100007F:8D5E", "0100007F:0BB9") == owner


def test_a_system_that_cannot_tell_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_lookup() is find_uid
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert choose_lookup(lambda theirs, ours: None) is None
    assert len(caplog.records) == 1
    assert "other users of this machine" in caplog.text


@pytest.mark.root
def test_another_user_is_told_from_this_one() -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or pytest.skip("no python3 that nobody can run")
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        command = [python, "-I", "-c", HOLD, str(listener.getsockname()[1])]
        with subprocess.Popen(
            command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", stdin=-1, stdout=-1
        ) as other:
            with closing(listener.accept()[0]) as end:
                assert identify(end, find_uid) is Caller.OTHER
            other.communicate(b"\n")


def test_a_caller_is_looked_up_once_for_a_connection() -> None:
    found: list[Address] = []

    def lookup(theirs: Address, ours: Address) -> int | None:
        found.append(theirs)
        return os.geteuid()

    def make(site: Site, listener: socket.socket) -> uvicorn.Server:
        return make_server(site.app(), listener, on_shutdown=[site.close], find_lookup=lambda: lookup)

    with running(make) as site:
        for count in (1, 2):
            with connect(site.port) as connection:
                for _ in range(5):
                    connection.sendall(request(site.port, "POST /notify", body=b"{}"))
                    assert read_answer(connection).status == 202
                assert found[count - 1 :] == [connection.getsockname()]
