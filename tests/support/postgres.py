"""A PostgreSQL of the tests' own: a cluster in a temporary folder, reached by a Unix socket there alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from tests.support.pair import until

REQUIRED = os.environ.get("DIALOGD_ENGINES") == "required"  # read before the tests forget such variables
ROLES = ("ada", "bob", "eve")  # may connect, no more; `postgres` may everything
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "unix_socket_permissions": "0777",
}


def program(name: str) -> str:
    """The path of a program of the server; Debian keeps those off PATH. "" where it is not installed."""
    found = shutil.which(name)
    beside = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4].split(".")[0])
    )
    return found or (str(beside[-1]) if beside else "")


def missing(why: str) -> None:
    """Skip the test, or fail it where engines may not be skipped."""
    if REQUIRED:
        pytest.fail(f"DIALOGD_ENGINES=required, and {why}")
    pytest.skip(why)


def as_servers_user() -> list[str]:
    """What stands before a command that refuses to run as the superuser, and must not outlive who starts it."""
    user = ["--reuid=postgres", "--regid=postgres", "--init-groups"] if os.geteuid() == 0 else []
    return ["setpriv", "--pdeathsig=INT", *user] if user or shutil.which("setpriv") else []


class Cluster:
    """One server; `folder` has its data and its socket. Starts as often as it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.socket = folder / ".s.PGSQL.5432"
        self._server: subprocess.Popen[bytes] | None = None
        words = [program("initdb"), "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        self._run([*words, "--locale=C", "--no-sync"])
        with (self.data / "postgresql.conf").open("a") as file:
            settings = {**SETTINGS, "unix_socket_directories": str(folder)}
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _run(self, words: list[str]) -> None:
        done = subprocess.run(
            [*as_servers_user(), *words], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        words = [*as_servers_user(), program("postgres"), "-D", str(self.data)]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until(self._answers, "PostgreSQL to answer", why=self.said)

    def _answers(self) -> bool:
        import psycopg

        assert self._server is not None
        assert self._server.poll() is None, f"PostgreSQL ended at once:\n{self.said()}"
        with suppress(psycopg.OperationalError):
            self.sql("SELECT 1")
            return True
        return False

    def said(self) -> str:
        """The end of the server's log."""
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def sql(self, *statements: str, role: str = "postgres", database: str = "postgres") -> list[tuple[object, ...]]:
        """Run statements, each in its own transaction; the rows of the last."""
        import psycopg

        rows: list[tuple[object, ...]] = []
        with psycopg.connect(self.url(role, database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)  # type: ignore[arg-type]
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def url(self, role: str = "ada", database: str = "postgres", *, port: int = 0, pooled: bool = False) -> str:
        """The address of a database here; with `port` by a proxy that listens there, or `pooled` by the pooler."""
        if port:
            return f"postgresql://{role}@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"
        return f"postgresql://{role}@/{database}?host={quote(str(self.folder), safe='')}{'&port=6432' * pooled}"

    def new_database(self, name: str) -> None:
        """An empty database in which everybody may make a schema."""
        self.sql(f"CREATE DATABASE {name}", f"GRANT CREATE ON DATABASE {name} TO PUBLIC")

    def kill(self) -> None:
        """kill -9 of the server and all its processes, as a machine's end would be."""
        assert self._server is not None
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(self._server.pid)
            main.suspend()  # else it starts new ones, or clears up
            every = [*main.children(recursive=True), main]
            for process in every:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(every, timeout=60)
        self._server.wait()

    @contextmanager
    def pooled(self) -> Iterator[None]:
        """Run a pooler that shares a few connections among transactions; skips or fails where there is none."""
        if not (path := shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")):
            missing("pgbouncer is not installed")
        users, settings = self.folder / "users.txt", self.folder / "pgbouncer.ini"
        users.write_text("".join(f'"{role}" ""\n' for role in ROLES))
        settings.write_text(
            f"[databases]\n* = host={self.folder}\n[pgbouncer]\nlisten_addr =\nlisten_port = 6432\n"
            f"unix_socket_dir = {self.folder}\nauth_type = trust\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 500\n"
        )
        with (self.folder / "pgbouncer.log").open("ab") as log:
            pooler = subprocess.Popen([*as_servers_user(), str(path), str(settings)], stdout=log, stderr=log)
        try:
            until(lambda: pooler.poll() is not None or (self.folder / ".s.PGSQL.6432").exists(), "pgbouncer")
            assert pooler.poll() is None, (self.folder / "pgbouncer.log").read_text()
            yield
        finally:
            pooler.kill()
            pooler.wait()
            (self.folder / ".s.PGSQL.6432").unlink(missing_ok=True)

    def stop(self) -> None:
        """End the server at once, but cleanly."""
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(signal.SIGINT)
            self._server.wait(60)


@contextmanager
def started() -> Iterator[Cluster]:
    """A cluster that runs, with the roles of the tests; skips or fails where none can."""
    if not program("initdb"):
        missing("initdb is not installed (package postgresql)")
    if find_spec("psycopg") is None:
        missing("psycopg is not installed")
    folder = Path(tempfile.mkdtemp(prefix="dialogd-pg-", dir="/tmp"))  # a short path: that of a socket is limited
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        folder.chmod(0o755)
        cluster = Cluster(folder)
        try:
            cluster.start()
            cluster.sql(*(f"CREATE ROLE {role} LOGIN" for role in ROLES))
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
