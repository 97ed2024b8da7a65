"""Two machines and an engine between them, while daemons, the server and the network fail: nothing lost, or doubled."""

from __future__ import annotations

import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from tests.faults.replies import Replies
from tests.faults.shared import received
from tests.faults.two import Engine, InGit, InPostgres, Two
from tests.support.machines import Cast, Files, Machine, closed
from tests.support.pair import stretched, until

pytestmark = [pytest.mark.slow]

CLOCKS = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    return Cast(tmp_path_factory.mktemp("keys"))


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


def test_a_killed_server_loses_and_doubles_nothing(two: Make, engine: Engine) -> None:
    both = two()
    both.start()
    for _ in range(3 if isinstance(engine, InPostgres) else 2):
        both.goes_on(2)
        engine.kill()
        time.sleep(0.3)
        engine.start()
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
    for turn in range(8 if isinstance(engine, InPostgres) else 4):
        both.goes_on(1)
        who = rng.choice("AB")
        if turn % 2:
            engine.proxies[who].lose_answers()
            continue
        engine.cut(who)
        time.sleep(rng.random() * 0.4)
        engine.heal(who)
    both.goes_on(3)
    both.kills += 2
    assert both.end() == []


def test_a_frozen_network_is_waited_for(two: Make, engine: Engine) -> None:
    both = two()
    both.start()
    both.goes_on(2)
    engine.cut("A")
    time.sleep(engine.patience + 2)  # longer than any answer is waited for
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
        for command in (["verify"], ["status", "--file"]):
            began = time.monotonic()
            code, said = both.machines[who].does(*command, str(mirror))
            assert code == 0, (command, said)
            asks = engine.patience * (command[0] == "status")  # it says how the log stands now, where that answers
            assert time.monotonic() - began < stretched(3.0 + asks)
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


@pytest.mark.skipif(not CLOCKS, reason="libfaketime is not installed (package faketime)")
@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_hours_off_changes_nothing(two: Make, engine: Engine, hours: int) -> None:
    both = two()
    machine = both.machines["B"]
    machine.launch = machine.executed
    clock = {"LD_PRELOAD": str(CLOCKS[0]), "FAKETIME": f"{hours:+}h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    machine.environment |= clock
    both.start()
    both.goes_on(5)
    both.kills += 2
    assert both.end() == []
    log = engine.log().decode()
    assert "[STALLED" not in log
    assert "[STOPPED" not in log
    times = {by: re.findall(rf"by={by} .*?at=(\S+)", log)[-1] for by in "AB"}
    apart = datetime.fromisoformat(times["B"]) - datetime.fromisoformat(times["A"])
    assert abs(apart.total_seconds() / 3600 - hours) < 0.1


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
