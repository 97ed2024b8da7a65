"""A bare repository as hosts have it, served by a real `git daemon` or by git over HTTP; only on the loopback.

with GitDaemon(folder) as daemon:
    Place(daemon.url, …)
"""

from __future__ import annotations

import os
import signal
import socketserver
import subprocess
import threading
from base64 import b64encode
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil


class Repository:
    """A bare repository in `folder`; whoever reaches it may push."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "log.git"
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
        for who in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{who}_NAME": "host", f"GIT_{who}_EMAIL": "host@localhost"}
        if not self.path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.git("init", "-q", "--bare", str(self.path), here=False)
            self.git("config", "http.receivepack", "true")

    @property
    def url(self) -> str:
        """Where an engine finds it on the disk."""
        return f"git+file://{self.path}"

    def git(self, *words: str, stdin: str | bytes = b"", here: bool = True) -> str:
        """What git says of it, without the last line end."""
        at = [f"--git-dir={self.path}"] if here else []
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            ["git", *at, *words], env=self.environment, input=data, capture_output=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")

    def hook(self, name: str, script: str) -> Path:
        """Have the host run a shell script at a push."""
        path = self.path / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def lose_next_answer(self) -> None:
        """The next push is done, and its server dies before it can say so."""
        self.hook("reference-transaction", 'if [ "$1" = committed ]; then rm "$0"; kill -9 $PPID; fi')


class GitDaemon(Repository):
    """Serves it over git's own protocol: each connection by a `git daemon`, which itself would queue but five.

    Also at a Unix socket, `socket`, for proxies in other network namespaces.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        super().__init__(folder)
        self.host, self.port = host, 0
        self.socket = folder / "git.sock"
        self._children: set[subprocess.Popen[bytes]] = set()
        self._servers: list[socketserver.BaseServer] = []
        self.start()

    @property
    def url(self) -> str:
        """Where an engine finds it."""
        return f"git://{self.host}:{self.port}/log.git"

    def start(self) -> None:
        """Listen, after `kill` where it was before."""
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                words = ["git", "daemon", "--inetd", "--export-all", "--enable=receive-pack"]
                with subprocess.Popen(
                    [*words, f"--base-path={outer.folder}"],
                    env=outer.environment, stdin=self.request, stdout=self.request, stderr=subprocess.DEVNULL,
                    start_new_session=True,
                ) as child:  # fmt: skip
                    outer._children.add(child)
                outer._children.discard(child)

        self.socket.unlink(missing_ok=True)
        over_tcp = _Server((self.host, self.port), Handler)
        self.port = over_tcp.server_address[1]
        self._servers = [over_tcp, _UnixServer(str(self.socket), Handler)]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def kill(self) -> None:
        """End it and all that serves, as kill -9 does."""
        for server in self._servers:
            server.shutdown()
        for child in self._children.copy():
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for server in self._servers:
            server.server_close()
        self._servers = []

    def __enter__(self) -> GitDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    request_queue_size = 128


class GitHTTP(Repository):
    """Serves it over HTTP; `status` is answered instead of what was asked for, `user` and `password` are asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.status, self.user, self.password = 0, "", ""
        self.seen: set[str] = set()  # command lines of all processes while it was asked something
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.serve(self)

            def do_POST(self) -> None:
                outer.serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where an engine finds it."""
        user = f"{self.user}:{self.password}@" if self.user else ""
        return f"git+http://{user}127.0.0.1:{self._server.server_port}/log.git"

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request by `git http-backend`."""
        self.seen |= {" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}
        body = _body(request)
        asked = f"Basic {b64encode(f'{self.user}:{self.password}'.encode()).decode()}"
        status = self.status
        if not status and self.user and request.headers.get("Authorization") != asked:
            status = 401
        if status:
            request.send_response(status)
            request.send_header("WWW-Authenticate", 'Basic realm="log"')
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        path, _, query = request.path.partition("?")
        environment = {
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(
            ["git", "http-backend"], env=self.environment | environment, input=body, capture_output=True, check=False
        )
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        request.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in (*headers.items(), ("Content-Length", str(len(answer)))):
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(answer)

    def __enter__(self) -> GitHTTP:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length", 0)))
    body = b""
    while size := int(request.rfile.readline(), 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return body
