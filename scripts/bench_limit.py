"""What one turn costs this machine at the least: two processes hand a byte to and fro and append durably, no more.

One turn: a byte arrives over TCP, flock, read the tail, append 500 bytes, fdatasync, unlock, send a byte.
Run it alone, or let bench_turns.py run it beside the daemons.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_stamps import Spread, Stamps

TAIL = 1024  # bytes that a turn reads
ENTRY = b"x" * 499 + b"\n"
WARM_UP = 20  # turns that don't count


def play(file: str, connection: int, turns: int, *, opens: bool) -> None:
    """Be one of the two players for `turns` turns of its own."""
    peer = socket.socket(fileno=connection)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fd = os.open(file, os.O_RDWR | os.O_APPEND)
    lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    flush = getattr(os, "fdatasync", os.fsync)
    for turn in range(turns):
        if turn or not opens:
            peer.recv(1)
        fcntl.flock(lock, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        os.pread(fd, TAIL, max(0, size - TAIL))
        os.write(fd, ENTRY)
        flush(fd)
        fcntl.flock(lock, fcntl.LOCK_UN)
        peer.send(b".")


def limit(folder: Path, turns: int) -> list[int]:
    """Let two processes take about `turns` turns on a file in `folder`; nanoseconds from each turn to the next."""
    file = folder / "limit"
    file.write_bytes(b"")
    each = (turns + WARM_UP) // 2 + 1
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other, Stamps(file) as stamps:
        players = []
        for end, opens in ((one, "opens"), (other, "waits")):
            command = [sys.executable, __file__, str(file), str(end.fileno()), str(each), opens]
            players.append(subprocess.Popen(command, pass_fds=[end.fileno()]))
        for player in players:
            if player.wait() != 0:
                raise RuntimeError("a player of the limit failed")
    file.unlink()
    return stamps.between([turn * len(ENTRY) for turn in range(WARM_UP, each * 2)])


def main() -> None:
    """Measure once and print it."""
    with tempfile.TemporaryDirectory() as folder:
        found = Spread.of(limit(Path(folder), 4000))
    print(f"limit: p50 {found.p50:.3f} ms, p99 {found.p99:.3f} ms, {1000 / found.mean:,.0f} turns/s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        play(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), opens=sys.argv[4] == "opens")
    else:
        main()
