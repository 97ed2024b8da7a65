"""Two machines and an engine between them, while daemons, the server and the network fail: nothing lost, or doubled."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests.faults.history import bought_twice
from tests.faults.replies import Replies
from tests.faults.shared import faults, kept, received
from tests.support.machines import NAME, Cast, Files, Machine, closed
from tests.support.pair import stretched, until
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    return Cast(tmp_path_factory.mktemp("keys"))


class InPostgres:
    """A log in a database of its own; each machine comes to it by a proxy on a Unix socket of its own."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        self.database = f"faults_{folder.name[-12:].lower().replace('-', '_')}"
        cluster.new_database(self.database)
        self.proxies: dict[str, Proxy] = {}
        self.folder = folder

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

    def cut(self, who: str) -> None:
        """From now on nothing passes between the log and this machine."""
        self.proxies[who].freeze()

    def heal(self, who: str) -> None:
        self.proxies[who].thaw()
        self.proxies[who].cut()

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()


class InGit:
    """A log in a bare repository; each machine finds it by a link of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bare = folder / "bare.git"
        subprocess.run(["git", "init", "-q", "--bare", str(self.bare)], check=True)

    def url(self, who: str) -> str:
        """Where this machine finds it."""
        link = self.folder / f"{who}.git"
        if not link.is_symlink():
            self.heal(who)
        return f"git+file://{link}"

    def log(self) -> bytes:
        branch = f"refs/heads/dialogd/{NAME}"
        git = ["git", "--git-dir", str(self.bare)]
        listed = subprocess.run(
            [*git, "ls-tree", "-r", "--name-only", branch], capture_output=True, text=True, check=True
        )
        names = sorted(name for name in listed.stdout.split() if name.startswith("entries/") and name.endswith(".md"))
        shown = [subprocess.run([*git, "show", f"{branch}:{name}"], capture_output=True, check=True) for name in names]
        return b"".join(done.stdout for done in shown)

    def cut(self, who: str) -> None:
        """From now on this machine finds no log."""
        (self.folder / f"{who}.git").unlink()

    def heal(self, who: str) -> None:
        (self.folder / f"{who}.git").symlink_to(self.bare)

    def close(self) -> None:
        """Nothing runs."""


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

    def end(self, drafts: Iterable[str] = ()) -> list[str]:
        """Stop the daemons, and judge: gives what is wrong. `drafts` are the words that were not sent."""
        for who in "AB":
            if self.daemon(who).running:
                self.daemon(who).terminate()
        for who in "AB":
            log = self.files[who].log()
            log.pull()
            closed(log)
        whole = self.engine.log()
        words = {word for machine in self.machines.values() for word in received(machine.state_dir)}
        found = faults(whole, [files.file for files in self.files.values()], self.folder, words - set(drafts))
        there = {word for machine in self.machines.values() for word in kept(machine.state_dir)}
        found += [f"the drafts are {sorted(there)}"] if there != set(drafts) else []
        found += [f"asked twice for {debt}" for m in self.machines.values() for debt in bought_twice(m.state_dir)]
        calls, written = len(self.asked()), len(words)
        if not written <= calls <= written + self.kills:
            found.append(f"{calls} calls for {written} replies and {self.kills} kills")
        ends = {self.files[who].file.read_bytes() for who in "AB"}
        found += ["the mirrors differ at the end"] if ends != {whole} else []
        told = self.told()
        return found + ([f"a traceback: {told}"] if "Traceback" in told else [])


Make = Callable[..., Two]


@pytest.fixture(params=["postgres", "git"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="dialogd-two-", dir="/tmp"))  # a short path: that of a socket is limited
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        made = InGit(folder) if request.param == "git" else InPostgres(folder, request.getfixturevalue("cluster"))
        stack.callback(made.close)
        yield made


@pytest.fixture
def two(engine: Engine, cast: Cast) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda think=0.02: stack.enter_context(Two(engine.folder, engine, cast, think))


only_postgres = pytest.mark.parametrize("engine", ["postgres"], indirect=True)


def test_killed_daemons_lose_and_double_nothing(two: Make, engine: Engine) -> None:
    """-9 at a random moment, twelve times (six in git, which may push but six times a minute), once both at a time."""
    both = two()
    both.start()
    rng = random.Random(22)
    kills = 12 if isinstance(engine, InPostgres) else 6
    for kill in range(kills):
        both.goes_on(1)
        time.sleep(rng.random() * 0.25)
        hit = "AB" if kill == 3 else rng.choice("AB")
        for who in hit:
            both.daemon(who).kill()
            both.kills += 1
        for who in hit:
            both.daemon(who).start()
    for who in "AB":
        both.daemon(who).until_ready()
    both.goes_on(3)
    both.kills += 2  # the end may cut a call
    assert both.end() == []
    assert both.number("A") > kills


@only_postgres
def test_a_killed_server_loses_and_doubles_nothing(two: Make, cluster: Cluster) -> None:
    both = two()
    both.start()
    for _ in range(3):
        both.goes_on(2)
        cluster.kill()
        time.sleep(0.3)
        cluster.start()
        both.goes_on(2)
    both.kills += 2
    assert both.end() == []


@only_postgres
@pytest.mark.parametrize("answer", [False, True], ids=["just before the commit", "just after it"])
def test_death_at_the_commit(two: Make, engine: InPostgres, *, answer: bool) -> None:
    both = two()
    both.start()
    for who in "ABBA":
        both.goes_on(1)
        daemon = both.daemon(who)
        engine.proxies[who].watch(who, lambda daemon=daemon: daemon.signal(signal.SIGKILL), answer=answer)  # type: ignore[misc]
        both.until(lambda daemon=daemon: not daemon.running, f"{who} to be killed")  # type: ignore[misc]
        both.kills += 1
        daemon.start()
        daemon.until_ready()
    both.goes_on(3)
    both.kills += 2
    assert both.end() == []


@only_postgres
@pytest.mark.parametrize("milliseconds", [40, 200])
def test_a_slow_network_delays_and_loses_nothing(two: Make, engine: InPostgres, milliseconds: int) -> None:
    both = two()
    both.start()
    for proxy in engine.proxies.values():
        proxy.delay(milliseconds)
    both.goes_on(6)
    both.kills += 2
    assert both.end() == []


def test_cut_connections_lose_and_double_nothing(two: Make, engine: Engine) -> None:
    both = two()
    both.start()
    rng = random.Random(23)
    for turn in range(8 if isinstance(engine, InPostgres) else 3):
        both.goes_on(1)
        who = rng.choice("AB")
        if isinstance(engine, InPostgres) and turn % 2:
            engine.proxies[who].lose_answers()
            continue
        engine.cut(who)
        time.sleep(rng.random() * 0.4)
        engine.heal(who)
    both.goes_on(3)
    both.kills += 2
    assert both.end() == []


@only_postgres
def test_a_frozen_network_is_waited_for(two: Make, engine: InPostgres) -> None:
    both = two()
    both.start()
    both.goes_on(2)
    engine.cut("A")
    time.sleep(7)  # longer than any answer is waited for
    engine.proxies["A"].thaw()
    both.goes_on(3)
    both.kills += 2
    assert both.end() == []


def test_a_partition_makes_a_late_reply_a_draft(two: Make, engine: Engine) -> None:
    """B is cut off while its model writes, and Ada speaks at A: what B wrote was for another question."""
    both = two({"A": 0.02, "B": "held"})
    both.start()
    both.until(both.replies["B"].asked, "B to be asked")
    engine.cut("B")
    code, said = both.machines["A"].does(
        "say", "Wait: SQLite. What do you say?", "--to", "B", "--file", str(both.files["A"].file)
    )
    assert code == 0, said
    both.replies["B"].let_go()
    both.until(lambda: received(both.machines["B"].state_dir), "B's reply")
    (late,) = received(both.machines["B"].state_dir)
    time.sleep(1)
    assert late.encode() not in engine.log()
    assert both.number("B") == 2
    engine.heal("B")
    both.goes_on(3)
    both.kills += 2
    assert both.end([late]) == []


@only_postgres
def test_a_seat_has_one_daemon_at_a_time(two: Make, engine: InPostgres) -> None:
    """B's key was copied: what runs on the third machine is refused, and let in once the first one has gone."""
    both = two()
    both.start()
    both.goes_on(2)
    third = Files(both.folder / "C", both.cast, "Bob", "B", engine.url("C"))
    closed(third.join(both.root))
    calls = Replies(third.folder)
    with Machine(third, calls.command(0.02)) as machine:
        machine["B"].start()
        assert machine["B"].wait(60) != 0
        assert "B" in machine["B"].said
        assert calls.asked() == []
        both.goes_on(2)
        both.daemon("B").kill()  # its lease goes on for a minute
        both.kills += 1
        machine["B"].start()
        assert machine["B"].wait(60) != 0
        engine.cluster.sql("UPDATE dialogd.seat SET until = now() WHERE id = 'B'", database=engine.database)
        machine["B"].start()
        machine["B"].until_ready()
        until(calls.answered, "the third machine's reply", seconds=60, why=machine.told_by_logs)
        both.until(lambda: both.number("A") > 5, "it to come to A")
        before = len(both.replies["B"].asked())
        both.daemon("B").start()
        assert both.daemon("B").wait(60) != 0
        assert len(both.replies["B"].asked()) == before
        machine["B"].terminate()
        both.daemon("B").start()
        both.daemon("B").until_ready()
        before = len(both.replies["B"].asked())
        both.until(lambda: len(both.replies["B"].asked()) > before, "B to be asked here again")
        extra = set(received(machine.state_dir))
        both.daemon("A").terminate()
        both.daemon("B").terminate()
    both.kills += 4
    found = both.end()
    assert found == []
    assert all(engine.log().count(word.encode()) <= 1 for word in extra)


@only_postgres
def test_a_full_disk_at_a_mirror_loses_nothing(two: Make) -> None:
    """The log takes A's entry, the disk here does not: A says so, and goes on when there is room."""
    both = two()
    both.start("A")
    both.until(lambda: both.number("A") == 2, "A's turn")
    process = psutil.Process(both.daemon("A").pid)
    before = both.files["A"].file.read_bytes()
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (len(before) + 40, hard))
    both.start("B")
    both.until(lambda: both.number("B") == 3, "B's turn")
    both.until(lambda: "too large" in both.daemon("A").said, "A to say what is wrong")
    assert both.files["A"].file.read_bytes()[: len(before)] == before
    assert both.daemon("A").health() is not None
    process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
    both.goes_on(3, 120)
    both.kills += 2
    assert both.end() == []


@only_postgres
def test_with_a_frozen_engine_a_daemon_stops_and_all_can_be_read(two: Make, engine: InPostgres) -> None:
    both = two({"A": "held", "B": 0.02})
    both.start()
    both.until(both.replies["A"].asked, "A to be asked")
    for who in "AB":
        engine.cut(who)
    both.replies["A"].let_go()
    both.until(lambda: received(both.machines["A"].state_dir), "A's reply")
    for who in "AB":
        daemon, mirror = both.daemon(who), both.files[who].file
        before = mirror.read_bytes()
        for path in ("/health", "/page/state", "/page/entries"):
            began = time.monotonic()
            status, _ = daemon.ask("GET", path)
            assert (status, path) == (200, path)
            assert time.monotonic() - began < stretched(1.0)
        for command in (["status", "--file"], ["verify"], ["status", "--json", "--file"]):
            began = time.monotonic()
            code, said = both.machines[who].does(*command, str(mirror))
            assert code == 0, (command, said)
            assert time.monotonic() - began < stretched(3.0)
        assert mirror.read_bytes() == before
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        daemon.wait()
        assert time.monotonic() - began < stretched(1.5), f"{who} took {time.monotonic() - began:.1f} s to stop"
    for who in "AB":
        engine.heal(who)
    both.start()
    both.goes_on(3)
    both.kills += 2
    assert both.end() == []
    assert [call[1] for call in both.replies["A"].asked()].count(2) == 1


def test_lost_races_are_nobodys_loss(two: Make, engine: Engine) -> None:
    """Both people speak at once, again and again, while the agents do."""
    both = two()
    both.start()
    rounds = 4 if isinstance(engine, InPostgres) else 2
    for turn in range(rounds):
        both.goes_on(1)
        running = [
            machine.begun(
                ["say", "--note", f"Mind-{who}-{turn} too.", "--file", str(machine.file)],
                machine.environment, machine.folder, machine.folder / "person.out",
            )
            for who, machine in both.machines.items()
        ]  # fmt: skip
        assert [process.wait(60) for process in running] == [0, 0], both.told()
    both.goes_on(2)
    both.kills += 2
    assert both.end() == []
    log = engine.log().decode()
    assert [log.split().count(f"Mind-{who}-{turn}") for who in "AB" for turn in range(rounds)] == [1] * 2 * rounds
