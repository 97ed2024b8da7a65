"""Take the daemon's port on 127.0.0.1, or say who has it."""

import errno
import json
import socket
import time
from contextlib import suppress

from dialogd.errors import AlreadyRunning, BadInput, DialogdError

HOST = "127.0.0.1"
BACKLOG = 512
HIGHEST_PORT = 65535
FIRST_FREE_PORT = 1024
PROBE_SECONDS = 1.0
PROBE_BYTES = 64 * 1024


def bind(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1:`port`; 0 takes any free port.

    Raises `BadInput` for a number that is no port or one this user may not take, `AlreadyRunning` when it is taken.
    """
    if not 0 <= port <= HIGHEST_PORT:
        raise BadInput(f"{port} is not a port", fix=f"choose one from {FIRST_FREE_PORT} to {HIGHEST_PORT} with --port")
    # The protocol is named: without it asyncio leaves Nagle's algorithm on, and answers on kept connections wait 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        # Until somebody listens, two processes can hold the same port.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _explain(port, error) from error
    return listener


def _explain(port: int, error: OSError) -> DialogdError:
    if error.errno == errno.EADDRINUSE:
        return AlreadyRunning(
            f"port {port} is taken by {describe_listener(port)}",
            fix=f"stop it, or choose another port, for example --port {_free_port(port)}",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return BadInput(
            f"this user may not listen on port {port}: ports below {FIRST_FREE_PORT} belong to the system",
            fix=f"choose one from {FIRST_FREE_PORT} to {HIGHEST_PORT} with --port",
        )
    return DialogdError(f"cannot listen on {HOST}:{port}: {error.strerror}", fix="choose another port with --port")


def describe_listener(port: int) -> str:
    """Say in a few words who answers on 127.0.0.1:`port`; asks for at most a second."""
    health: object = None
    with suppress(OSError, ValueError):
        health = json.loads(_ask_health(port).partition(b"\r\n\r\n")[2])
    if not isinstance(health, dict) or health.get("port") != port or not isinstance(health.get("id"), str):
        return "another program"
    file = health.get("file")
    where = f" on {_plain(file)}" if isinstance(file, str) else ""
    return f"the dialogd daemon of agent {_plain(health['id'])}{where}"


def _ask_health(port: int) -> bytes:
    """Return the raw answer to GET /health. By hand: whoever answers may be slow, endless or no HTTP server."""
    deadline = time.monotonic() + PROBE_SECONDS
    answer = b""
    with socket.create_connection((HOST, port), timeout=PROBE_SECONDS) as connection:
        connection.sendall(f"GET /health HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
        while len(answer) < PROBE_BYTES and (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (piece := connection.recv(PROBE_BYTES)):
                break
            answer += piece
    return answer


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:200])


def _free_port(taken: int) -> int:
    # Not the next ones: those are likely to be the seats of this one's peers.
    for port in range(taken + 10, min(taken + 100, HIGHEST_PORT)):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((HOST, port))
            return port
    return 0
