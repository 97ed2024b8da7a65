"""Say whose process is on the other end of a loopback TCP connection; Linux only, elsewhere nobody can tell."""

import logging
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger("dialogd.guard")

Address = tuple[str, int]
UidOf = Callable[[Address, Address], int | None]
"""(theirs, ours) -> uid of the socket at their end; None when no process owns it (any more)."""

MAPPED = "::ffff:"

# Linux's numbers, by hand: Python has names for some of them, and those on Linux only.
TCP_INFO = 11
ESTABLISHED, CLOSE_WAIT = 1, 8
AF_NETLINK = 16
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
ANY_STATE = 0xFFFFFFFF
ANY_COOKIE = (0xFFFFFFFF, 0xFFFFFFFF)
NETLINK_HEADER = struct.Struct("=IHHII")
# Of the answer: message type, both ports as sent, uid, inode.
DIAG_ANSWER = struct.Struct("=4xH10x4x4s44x12xII")


class Caller(Enum):
    """Who is on the other end: this user, another one, nobody that could be found, or nobody could look."""

    OWN = "own"
    OTHER = "other"
    UNKNOWN = "unknown"
    UNCHECKED = "unchecked"


class TcpEnd(Protocol):
    """What `identify` needs of a connected socket."""

    def getpeername(self) -> Any: ...
    def getsockname(self) -> Any: ...
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def identify(end: TcpEnd, uid_of: UidOf) -> Caller:
    """Say whose socket is connected to `end`; `UNKNOWN` when that socket is closed already."""
    try:
        uid = uid_of(end.getpeername()[:2], end.getsockname()[:2])
        # Asked after the lookup: while our end lives, nobody else can have taken their address and port.
        alive = end.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 1)[0] in (ESTABLISHED, CLOSE_WAIT)
    except OSError:
        return Caller.UNKNOWN
    if uid is None or not alive:
        return Caller.UNKNOWN
    return Caller.OWN if uid == os.geteuid() else Caller.OTHER


def choose_lookup(ways: Sequence[UidOf] | None = None) -> UidOf | None:
    """Return the first of `ways` with which this process finds itself; None, with one warning, if there is none."""
    if ways is None:
        ways = (ask_kernel, read_proc) if sys.platform == "linux" else ()
    chosen = next((way for way in ways if _finds_itself(way)), None)
    if chosen is None:
        log.warning(
            "cannot tell which user opens a connection on this system: other users of this machine could call this "
            "daemon; pages of other sites still cannot"
        )
    return chosen


def _finds_itself(uid_of: UidOf) -> bool:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()),
            listener.accept()[0] as end,
        ):
            return identify(end, uid_of) is Caller.OWN
    except OSError:
        return False


def ask_kernel(theirs: Address, ours: Address) -> int | None:
    """Look one socket up by NETLINK_SOCK_DIAG: about 0.03 ms, however many sockets there are."""
    family = socket.AF_INET6 if ":" in theirs[0] else socket.AF_INET
    ports = struct.pack("!HH", theirs[1], ours[1])
    hosts = b"".join(socket.inet_pton(family, host).ljust(16, b"\0") for host in (theirs[0], ours[0]))
    question = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, ANY_STATE)
    question += ports + hosts + struct.pack("=III", 0, *ANY_COOKIE)
    header = NETLINK_HEADER.pack(NETLINK_HEADER.size + len(question), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
    with socket.socket(AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(header + question)
        answer, sender = kernel.recvfrom(4096, socket.MSG_DONTWAIT)
    if sender[0] != 0 or len(answer) < DIAG_ANSWER.size:
        return None
    kind, found_ports, uid, inode = DIAG_ANSWER.unpack_from(answer)
    # Where no such connection is left, the kernel answers with a listener on their port, if there is one.
    found = kind == SOCK_DIAG_BY_FAMILY and found_ports == ports
    # A closed socket that still lingers has no inode, and says uid 0.
    return uid if found and inode else None


def read_proc(theirs: Address, ours: Address) -> int | None:
    """Look one socket up in /proc/net/tcp and tcp6: 1 to 5 ms with a thousand sockets."""
    uid = _search_proc(theirs, ours)
    # The tables are read in pieces while others come and go, so a row can be missed once.
    return _search_proc(theirs, ours) if uid is None else uid


def _search_proc(theirs: Address, ours: Address) -> int | None:
    for name, family, prefix in _tables(theirs):
        table = Path("/proc/net", name)
        ends = (_row_end(family, prefix, end) for end in (theirs, ours))
        uid = find_uid(table.read_bytes(), *ends) if table.exists() else None
        if uid is not None:
            return uid
    return None


def find_uid(table: bytes, theirs: str, ours: str) -> int | None:
    """Return the uid of the row with these two ends; None when there is none, or one that no process owns."""
    row = re.compile(rf" {theirs} {ours} \w\w \S+ \S+ \S+ +(\d+) +\d+ (\d+) ".encode())
    owners = {int(uid) if int(inode) else None for uid, inode in row.findall(table)}
    return owners.pop() if len(owners) == 1 else None


def _tables(theirs: Address) -> list[tuple[str, socket.AddressFamily, str]]:
    if ":" in theirs[0].removeprefix(MAPPED):
        return [("tcp6", socket.AF_INET6, "")]
    # A client can reach an IPv4 port through an IPv6 socket; that one stands in tcp6.
    return [("tcp", socket.AF_INET, ""), ("tcp6", socket.AF_INET6, MAPPED)]


def _row_end(family: socket.AddressFamily, prefix: str, end: Address) -> str:
    packed = socket.inet_pton(family, prefix + end[0].removeprefix(MAPPED))
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"
