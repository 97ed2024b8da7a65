"""Two machines with daemons that share one dialog: an engine that they reach by ways of their own, and a verdict."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dialogd.store.engines import gitremote, postgres
from tests.faults.history import bought_twice
from tests.faults.replies import Replies
from tests.faults.shared import faults, kept, received
from tests.support.gitdaemon import GitDaemon
from tests.support.machines import NAME, Cast, Files, Machine, closed
from tests.support.pair import stretched, until
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy


class Watched(Proxy):
    """A proxy that calls `on_entry` once, when an entry of that agent's passes to the server, or its answer back.

    Neither what it saw nor anything after it is passed on.
    """

    def watch(self, by: str, what: Callable[[], None], *, answer: bool) -> None:
        """Begin to look for an entry by this agent, or with `answer` for what the server says to that."""
        self._by, self._what, self._is_answer, self._is_asked = f"<!-- dialogd by={by} ".encode(), what, answer, False

    _by = b""

    async def _carry(self, reader: Any, writer: Any, is_answer: bool) -> None:
        await super()._carry(_Tap(reader, self, is_answer), writer, is_answer)

    def seen(self, data: bytes, is_answer: bool) -> bool:
        """True where this is to be passed on."""
        if not self._by:
            return True
        is_it = self._is_asked if is_answer else self._by in data
        if is_it and not is_answer and self._is_answer:
            self._is_asked = True
            return True
        if is_it and is_answer == self._is_answer:
            self._by = b""
            self._what()
            return False
        return True


class _Tap:
    """What a connection says, seen by its proxy first."""

    def __init__(self, reader: Any, proxy: Watched, is_answer: bool) -> None:
        self.reader, self.proxy, self.is_answer = reader, proxy, is_answer

    async def read(self, size: int) -> bytes:
        data: bytes = await self.reader.read(size)
        return data if not data or self.proxy.seen(data, self.is_answer) else b""


class _Reached:
    """An engine to which each machine comes by a proxy of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proxies: dict[str, Watched] = {}

    def put_in_place(self, who: str, machine: Machine) -> None:
        """Have this machine, in its network, find what its URL names."""

    def cut(self, who: str) -> None:
        """From now on nothing passes between the log and this machine."""
        self.proxies[who].freeze()

    def heal(self, who: str) -> None:
        self.proxies[who].thaw()
        self.proxies[who].cut()

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()


class InPostgres(_Reached):
    """A log in a database of its own; the proxies listen on Unix sockets."""

    patience = postgres.PATIENCE  # seconds that an answer is waited for

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.database = f"faults_{folder.name[-12:].lower().replace('-', '_')}"
        cluster.new_database(self.database)

    def url(self, who: str) -> str:
        """Where this machine finds it."""
        folder = self.folder / f"net-{who}"
        if who not in self.proxies:
            folder.mkdir()
            self.proxies[who] = Watched(self.cluster.socket, folder / ".s.PGSQL.5432")
        return f"postgresql://{'ada' if who == 'A' else 'bob'}@/{self.database}?host={quote(str(folder), safe='')}"

    def log(self) -> bytes:
        query = f"SELECT encode(data, 'hex') FROM dialogd.entry WHERE dialog = '{NAME}' ORDER BY \"end\""
        words = ["psql", "-h", str(self.cluster.folder), "-U", "postgres", "-d", self.database, "-Atc", query]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        return bytes.fromhex(done.stdout)

    def kill(self) -> None:
        """kill -9 of the server."""
        self.cluster.kill()

    def start(self) -> None:
        """Start it again."""
        self.cluster.start()


class InGit(_Reached):
    """A log in a repository that a `git daemon` serves; a proxy listens on one port here and in the machine's net."""

    patience = gitremote.PATIENCE

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.daemon = GitDaemon(folder / "host")
        self._here: list[Proxy] = []
        self._moments = cycle(["pre-receive", "reference-transaction"])

    def url(self, who: str) -> str:
        """Where this machine finds it."""
        if who not in self.proxies:
            self.proxies[who] = Watched(self.daemon.socket)
        return f"git://127.0.0.1:{self.proxies[who].port}/log.git"

    def put_in_place(self, who: str, machine: Machine) -> None:
        """Have this machine, in its network, find what its URL names."""
        if machine.network.pid:
            here = self.proxies[who]
            self._here.append(here)
            there = ("127.0.0.1", here.port)
            self.proxies[who] = machine.network.run(lambda: Watched(self.daemon.socket, there))

    def log(self) -> bytes:
        branch = f"refs/heads/dialogd/{NAME}"
        names = [name for name in self.daemon.git("ls-tree", "-r", "--name-only", branch).split() if name[-3:] == ".md"]
        words = ["git", "--git-dir", str(self.daemon.path), "show"]
        shown = [f"{branch}:{name}" for name in sorted(names) if name.startswith("entries/")]
        return subprocess.run([*words, *shown], capture_output=True, check=True).stdout

    def kill(self) -> None:
        """kill -9 of the server in the middle of a push, in turn before it counts and after it, before that is said."""
        asked = self.folder / "asked"
        hook = self.daemon.hook(next(self._moments), f'[ "$1" = prepared ] || {{ touch {asked}; sleep 60; }}')
        until(asked.exists, "a push", seconds=40)
        self.daemon.kill()
        hook.unlink()
        asked.unlink()

    def start(self) -> None:
        """Start it again."""
        self.daemon.start()

    def close(self) -> None:
        super().close()
        for proxy in self._here:
            proxy.close()
        self.daemon.kill()


Engine = InPostgres | InGit


class Two:
    """A dialog that is shared by two machines, one with A, one with B; `kills` is how many calls may have been cut."""

    def __init__(self, folder: Path, engine: Engine, cast: Cast, think: float | str | dict[str, float | str]) -> None:
        self.folder, self.engine, self.cast = folder, engine, cast
        self.kills = 0
        self.files = {
            who: Files(folder / who, cast, {"A": "Ada", "B": "Bob"}[who], who, engine.url(who)) for who in "AB"
        }
        self.root = self.files["A"].share(cast.opening(), "B")
        closed(self.files["B"].join(self.root))
        self.replies = {who: Replies(files.folder) for who, files in self.files.items()}
        self.machines = {}
        for who, files in self.files.items():
            seconds = think[who] if isinstance(think, dict) else think
            self.machines[who] = Machine(files, self.replies[who].command(seconds))
            engine.put_in_place(who, self.machines[who])

    def __enter__(self) -> Two:
        return self

    def __exit__(self, *error: Any) -> None:
        for machine in self.machines.values():
            machine.__exit__(*error)

    def daemon(self, who: str) -> Any:
        return self.machines[who].daemons[who]

    def start(self, agents: Iterable[str] = "AB") -> None:
        for who in agents:
            self.daemon(who).start()
        for who in agents:
            self.daemon(who).until_ready()
            self.daemon(who).notify()

    def number(self, who: str) -> int:
        """The last turn in this machine's mirror."""
        return self.machines[who].number

    def until(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        until(condition, what, seconds=min(stretched(seconds), 40), why=self.told)

    def told(self) -> str:
        return "\n".join(machine.told_by_logs() for machine in self.machines.values())

    def goes_on(self, turns: int, seconds: float = 60.0) -> None:
        """Wait until both mirrors have so many more turns."""
        wanted = max(map(self.number, "AB")) + turns
        self.until(lambda: min(map(self.number, "AB")) >= wanted, f"turn {wanted} on both machines", seconds)

    def asked(self) -> list[tuple[str, int, int]]:
        return [call for who in "AB" for call in self.replies[who].asked()]

    def end(self, drafts: Iterable[str] | None = ()) -> list[str]:
        """Stop the daemons, and judge: gives what is wrong. `drafts` are the words that were not sent; None: any."""
        for who in "AB":
            if self.daemon(who).running:
                self.daemon(who).terminate()
        for who in "AB":
            log = self.files[who].log()
            log.pull()
            closed(log)
        whole = self.engine.log()
        words = {word for machine in self.machines.values() for word in received(machine.state_dir)}
        there = {word for machine in self.machines.values() for word in kept(machine.state_dir)}
        drafts = there if drafts is None else set(drafts)
        found = faults(whole, [files.file for files in self.files.values()], self.folder, words - drafts)
        found += [f"the drafts are {sorted(there)}"] if there != drafts else []
        found += [f"asked twice for {debt}" for m in self.machines.values() for debt in bought_twice(m.state_dir)]
        calls, written = len(self.asked()), len(words)
        if not written <= calls <= written + self.kills:
            found.append(f"{calls} calls for {written} replies and {self.kills} kills")
        ends = {self.files[who].file.read_bytes() for who in "AB"}
        found += ["the mirrors differ at the end"] if ends != {whole} else []
        told = self.told()
        return found + ([f"a traceback: {told}"] if "Traceback" in told else [])
