"""A log in PostgreSQL: the contract, who may do what, connections that fail, and what poolers do."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from dialogd.errors import BadInput, DialogdError, StorageError
from dialogd.store.engine import NOTHING, PATIENCE, Differs, Engine, EngineAway, Place, Row, SeatTaken, open_engine
from tests.engines.contract import EngineContract, rows
from tests.support.pair import until
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy

SLACK = 2.5  # seconds that a loaded machine may add to a call's patience


@pytest.fixture(scope="module")
def database(cluster: Cluster) -> str:
    """A database in which the first share makes the schema."""
    name = f"test_{secrets.token_hex(4)}"
    cluster.new_database(name)
    return name


@pytest.fixture(scope="module")
def kept(cluster: Cluster) -> str:
    """A database whose schema was made by its keeper, from the file, as the error says that it can be."""
    from dialogd.store.engines.postgres import SCHEMA

    name = f"kept_{secrets.token_hex(4)}"
    cluster.sql(f"CREATE DATABASE {name}")
    words = ["psql", "-q", "-1", "-f", str(SCHEMA), "-v", "ON_ERROR_STOP=1", cluster.url("postgres", name)]
    subprocess.run(words, check=True)
    return name


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    with Proxy(cluster.socket) as proxy:
        yield proxy


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Place]:
    """Makes places, all of one log unless a name is given."""
    name = secrets.token_hex(16)

    def place(url: str, *seats: str, holder: str = "here", **more: object) -> Place:
        values: dict[str, object] = {"name": name, "folder": tmp_path, "seats": seats or ("USER", "A"), **more}
        return Place(url=url, holder=holder, **values)  # type: ignore[arg-type]

    return place


new = partial(replace, is_new=True, others=("B", "C"))


class TestPostgres(EngineContract):
    QUICK = 0.1

    @pytest.fixture
    def url(self, cluster: Cluster, database: str) -> str:
        return cluster.url("ada", database)

    @pytest.fixture
    def losing(self, cluster: Cluster, database: str, proxy: Proxy) -> Callable[[Place], Engine]:
        def opened(place: Place) -> Engine:
            engine = open_engine(replace(place, url=cluster.url("ada", database, port=proxy.port)))
            proxy.lose_answers()
            return engine

        return opened

    def test_ones_own_notices_wake_nobody(self, opened: Callable[..., Engine]) -> None:
        here = opened()
        assert here.put(rows("one\n")[0], NOTHING)
        before = time.monotonic()
        assert here.wait(0.5)
        assert time.monotonic() - before >= 0.5

    def test_notices_arrive(self, opened: Callable[..., Engine]) -> None:
        here = opened()
        assert here.notices_arrive()  # type: ignore[attr-defined]
        assert here.put(rows("one\n")[0], NOTHING)


@pytest.mark.slow
class TestSerializable(TestPostgres):
    """A database whose transactions see no others': a lost race is an error there, and still no more than lost."""

    @pytest.fixture(scope="class")
    @classmethod
    def database(cls, cluster: Cluster) -> str:
        name = f"strict_{secrets.token_hex(4)}"
        cluster.new_database(name)
        cluster.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = serializable")
        return name


@pytest.mark.slow
class TestPooled(TestPostgres):
    """A pooler that shares connections among transactions: everything but the notices."""

    HAS_NOTICES = False

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _pooled(cls, cluster: Cluster) -> Iterator[None]:
        with cluster.pooled():
            yield

    @pytest.fixture
    def url(self, cluster: Cluster, database: str) -> str:
        return cluster.url("ada", database, pooled=True)

    @pytest.fixture
    def proxy(self, cluster: Cluster) -> Iterator[Proxy]:
        with Proxy(cluster.folder / ".s.PGSQL.6432") as proxy:
            yield proxy

    def test_ones_own_notices_wake_nobody(self) -> None:
        """Nobody's do."""

    def test_notices_arrive(self, opened: Callable[..., Engine]) -> None:
        assert not opened().notices_arrive()  # type: ignore[attr-defined]


# -- who may do what ------------------------------------------------------------------------------------------------


def test_a_seat_is_its_roles_alone(cluster: Cluster, kept: str, machine: Callable[..., Place]) -> None:
    ada = open_engine(new(machine(cluster.url("ada", kept))))
    bob = open_engine(machine(cluster.url("bob", kept), "USER", "B"))
    with closing(ada), closing(bob):
        first, second = rows("one\n", "two\n")
        assert ada.put(first, NOTHING)
        for seat in ("A", "C", "Z"):
            with pytest.raises(StorageError, match=f"bob may not write for {seat}") as refused:
                bob.put(replace(second, seat=seat), first.sha)
            assert not isinstance(refused.value, EngineAway)
        assert list(ada.fetch(0, NOTHING)) == [first]
        assert bob.put(replace(second, seat="USER"), first.sha)
        third = rows("three\n", after=[first, second], seat="B")[0]
        assert bob.put(third, second.sha)
        assert [row.seat for row in ada.fetch(0, NOTHING)] == ["A", "USER", "B"]
        who = f"SELECT who FROM dialogd.entry WHERE dialog = '{machine('').name}' ORDER BY at"
        assert cluster.sql(who, database=kept) == [("ada",), ("bob",), ("bob",)]


def test_who_holds_no_seat_gets_none_of_a_log(cluster: Cluster, kept: str, machine: Callable[..., Place]) -> None:
    with closing(open_engine(new(machine(cluster.url("ada", kept))))) as ada:
        assert ada.put(rows("secret\n")[0], NOTHING)
        for seats in (("A",), ("USER",), ("USER", "A"), ("Z",)):
            with pytest.raises(StorageError, match="eve holds no seat"):
                open_engine(machine(cluster.url("eve", kept), *seats))
        with pytest.raises(StorageError, match="eve holds no seat"):
            open_engine(new(machine(cluster.url("eve", kept), "A", "X")))
        with closing(open_engine(machine(cluster.url("bob", kept), "B"))) as bob:
            assert bob.fetch(0, NOTHING)
            name, (row,) = machine("").name, rows("secret\n")
            cluster.sql(f"DELETE FROM dialogd.seat WHERE dialog = '{name}' AND role = 'bob'", database=kept)
            for _ in range(2):
                with pytest.raises(StorageError, match="bob holds no seat"):
                    bob.fetch(row.end, row.sha)


def test_nobody_but_the_functions_writes(cluster: Cluster, kept: str, machine: Callable[..., Place]) -> None:
    import psycopg

    with closing(open_engine(new(machine(cluster.url("ada", kept))))) as ada:
        assert ada.put(rows("one\n")[0], NOTHING)
        name = machine("").name
        for role in ("ada", "bob", "eve"):
            for statement in (
                "INSERT INTO dialogd.entry (dialog, at, seat, data, sha, signature, names, files)"
                f" VALUES ('{name}', 4, 'A', 'x', '', '', '{{}}', '{{}}')",
                "UPDATE dialogd.entry SET data = 'x'",
                "DELETE FROM dialogd.entry",
                "TRUNCATE dialogd.entry",
                f"INSERT INTO dialogd.seat (dialog, id, role) VALUES ('{name}', 'X', session_user)",
                "UPDATE dialogd.seat SET role = session_user",
                "DELETE FROM dialogd.seat",
                "DROP FUNCTION dialogd.enter",
                "CREATE TABLE dialogd.more ()",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    cluster.sql(statement, role=role, database=kept)
        for table, count in (("entry", {"ada": 1, "bob": 0, "eve": 0}), ("seat", {"ada": 2, "bob": 0, "eve": 0})):
            query = f"SELECT * FROM dialogd.{table} WHERE dialog = '{name}'"
            assert {role: len(cluster.sql(query, role=role, database=kept)) for role in count} == count
        # What a caller has made under the same names is not what the functions use.
        with psycopg.connect(cluster.url("ada", kept), autocommit=True) as caller:
            caller.execute("CREATE TEMP TABLE entry AS SELECT 'x'::text AS dialog")
            caller.execute("CREATE FUNCTION pg_temp.length(bytea) RETURNS int LANGUAGE sql AS 'SELECT 0'")
            caller.execute("SET search_path = pg_temp, dialogd, pg_catalog")
            second = rows("two\n", after=rows("one\n"))[0]
            values = (name, 4, rows("one\n")[0].sha, "A", second.data, second.sha, second.signature)
            query = "SELECT dialogd.append(%s, %s, %s, %s, %b, %s, %s, '{}', '{}')"
            assert caller.execute(query, values).fetchone() == (True,)
        assert [row.end for row in ada.fetch(0, NOTHING)] == [4, 8]


def test_several_people_speak_as_the_person(cluster: Cluster, kept: str, machine: Callable[..., Place]) -> None:
    places = [
        new(machine(cluster.url("ada", kept))),
        machine(cluster.url("bob", kept), "USER", "B"),
        machine(cluster.url("eve", kept), "USER", "C"),
    ]
    log = rows("ada\n", "bob\n", "eve\n", seat="USER")
    before = NOTHING
    for row, place in zip(log, places, strict=True):
        with closing(open_engine(place)) as engine:
            assert engine.put(row, before)
        before = row.sha


def test_the_founder_hands_seats_over(cluster: Cluster, kept: str, machine: Callable[..., Place]) -> None:
    first, second, third, fourth = rows("one\n", "two\n", "three\n", "four\n", seat="D")
    ada, bob, eve = (cluster.url(role, kept) for role in ("ada", "bob", "eve"))
    with closing(open_engine(new(machine(ada)))) as engine:
        assert engine.put(replace(first, seat="A"), NOTHING)
    with closing(open_engine(machine(bob, "B", "D"))) as engine:  # new to the log, and of one who sits
        assert engine.put(second, first.sha)
        open_engine(new(machine(bob, "B"), others=("A",))).close()  # no founder
        open_engine(new(machine(ada), others=("D",))).close()
        with pytest.raises(StorageError, match="bob may not write for D"):
            engine.put(third, second.sha)
        with closing(open_engine(machine(eve, "USER", "D"))) as guest:
            assert guest.put(third, second.sha)
            with closing(open_engine(new(machine(ada, "USER", "A", "D"), others=()))) as again:
                with pytest.raises(StorageError, match="eve may not write for D"):
                    guest.put(fourth, third.sha)
                assert again.put(fourth, third.sha)


def test_many_share_at_once_in_an_empty_database(cluster: Cluster, machine: Callable[..., Place]) -> None:
    name = f"empty_{secrets.token_hex(4)}"
    cluster.new_database(name)
    places = [new(machine(cluster.url("ada", name), name=secrets.token_hex(16))) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for engine in pool.map(open_engine, places):
            assert engine.put(rows("one\n")[0], NOTHING)
            engine.close()


def test_what_is_wrong_with_a_database_is_said(cluster: Cluster, machine: Callable[..., Place]) -> None:
    bare, lazy = f"bare_{secrets.token_hex(4)}", f"lazy_{secrets.token_hex(4)}"
    cluster.sql(f"CREATE DATABASE {bare}")
    cluster.new_database(lazy)
    cluster.sql(f"ALTER ROLE bob IN DATABASE {lazy} SET synchronous_commit = off")
    for place, kind, words, fix in (
        (machine(cluster.url("ada", bare)), BadInput, "schema", "line"),
        (new(machine(cluster.url("ada", bare))), StorageError, "may not make a schema", "postgres.sql"),
        (new(machine(cluster.url("bob", lazy))), StorageError, "synchronous_commit is off", "ALTER ROLE bob SET"),
        (machine(cluster.url("nobody", bare)), StorageError, "nobody", "URL"),
        (machine(cluster.url("ada", "nowhere")), StorageError, "nowhere", "URL"),
        (machine("postgresql://ada@/x?nonsense=1"), BadInput, "nonsense", "URL"),
        (machine("postgresql://ada:secret@127.0.0.1:1/x"), EngineAway, "refused", "answers"),
        (machine("postgresql://ada:%73ecret@127.0.0.1:1/x?password=secret"), EngineAway, "refused", "answers"),
        *(
            (machine(f"postgresql://{where}"), BadInput, "postgresql://…$", "%40")
            for where in (
                "ada:secret%zz@127.0.0.1/x",
                "ada:secret%00@127.0.0.1/x",
                "ada:the secret@127.0.0.1/x",
                "ada:pass@secret@127.0.0.1/x",
                "ada:secret/1@127.0.0.1/x",
                "ada:12/secret@127.0.0.1/x",
                "ada:secret?1@127.0.0.1/x",
                "ada:secret#1@127.0.0.1/x",
                "127.0.0.1/x?password=secret%",
            )
        ),
        (machine("postgresql://ada:secret@[::1]0/x"), BadInput, "unexpected character", "URL"),
        (machine(cluster.url("ada", bare), name="../x"), BadInput, "no name of a log", "line"),
    ):
        with pytest.raises(DialogdError, match=words) as said:
            open_engine(place)
        assert (type(said.value), "secret" in str(said.value)) == (kind, False)
        assert fix in said.value.fix
        assert "\n" not in str(said.value)


@pytest.mark.slow
def test_more_than_a_dialog_may_have_is_not_read(cluster: Cluster, kept: str, machine: Callable[..., Place]) -> None:
    with closing(open_engine(new(machine(cluster.url("ada", kept))))) as engine:
        log = rows(*"abcdefgh")
        for row, before in zip(log, [NOTHING, *(row.sha for row in log)], strict=False):
            assert engine.put(row, before)
        where = f"dialog = '{machine('').name}'"
        for change in (
            "data = convert_to(repeat('x', 30000000), 'utf8')",
            "files = ARRAY[repeat('x', 30000000)::bytea]",
        ):
            cluster.sql(f"UPDATE dialogd.entry SET data = 'x', files = '{{}}' WHERE {where}", database=kept)
            assert engine.fetch(0, NOTHING)
            cluster.sql(f"UPDATE dialogd.entry SET {change} WHERE {where} AND at > 1", database=kept)
            with pytest.raises(StorageError, match="over 134,217,728 bytes") as refused:
                engine.fetch(0, NOTHING)
            assert not isinstance(refused.value, EngineAway)


def test_a_server_ends_with_whoever_started_it(cluster: Cluster, repository: Path) -> None:
    assert cluster  # there is one here
    program = """
import sys, time
from tests.support.postgres import started
with started() as cluster:
    print(cluster.folder, cluster._server.pid, flush=True)
    time.sleep(600)
"""
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, cwd=repository, stdout=subprocess.PIPE, text=True) as starting:
        assert starting.stdout is not None
        folder, pid = starting.stdout.readline().split()
        server = psutil.Process(int(pid))
        assert server.is_running()
        starting.kill()
    until(lambda: not server.is_running(), "the server's end")
    shutil.rmtree(folder)


def test_without_psycopg_it_says_what_to_install(repository: Path) -> None:
    program = """
import sys; sys.modules["psycopg"] = None
from pathlib import Path
from dialogd.errors import NotInstalled
from dialogd.store.engine import Place, open_engine
for _ in range(2):
    try: open_engine(Place("postgresql://x", "00" * 16, Path(), "me", ()))
    except NotInstalled as error: print(error.fix)
"""
    words = [sys.executable, "-c", program]
    assert subprocess.check_output(words, cwd=repository, text=True) == "pip install 'dialogd[postgres]'\n" * 2


# -- one daemon for a seat ------------------------------------------------------------------------------------------


def test_a_lease_that_ran_out_is_lost_to_whoever_takes_it(
    cluster: Cluster, database: str, machine: Callable[..., Place]
) -> None:
    url, (row,) = cluster.url("ada", database), rows("one\n")
    name = machine("").name
    first = open_engine(new(machine(url), daemon_of="A"))
    with closing(first):
        cluster.sql(f"UPDATE dialogd.seat SET until = now() WHERE dialog = '{name}'", database=database)
        assert first.put(replace(row, seat="USER"), NOTHING)  # nobody has taken it: it is held again
        with pytest.raises(SeatTaken):
            open_engine(machine(url, holder="there", daemon_of="A"))
        cluster.sql(f"UPDATE dialogd.seat SET until = now() WHERE dialog = '{name}'", database=database)
        with closing(open_engine(machine(url, holder="there", daemon_of="A"))):
            with pytest.raises(SeatTaken):
                first.put(rows("two\n", after=[row])[0], row.sha)
            assert list(first.fetch(row.end, row.sha)) == []
        assert first.put(rows("two\n", after=[row])[0], row.sha)


@pytest.mark.slow
def test_waiting_holds_on_to_the_seat(cluster: Cluster, database: str, machine: Callable[..., Place]) -> None:
    from dialogd.store.engines.postgres import LEASE

    url, name = cluster.url("ada", database), machine("").name
    left = f"SELECT extract(epoch FROM until - now())::float8 FROM dialogd.seat WHERE dialog = '{name}' AND id = 'A'"
    stolen = f"UPDATE dialogd.seat SET holder = 'there' WHERE dialog = '{name}' AND id = 'D'"
    kept = open_engine(new(machine(url, "USER", "A", "D"), daemon_of="A"))
    lost = open_engine(machine(url, "D", daemon_of="D"))
    with closing(kept), closing(lost), ThreadPoolExecutor(1) as pool:
        cluster.sql(stolen, database=database)
        waiting = pool.submit(kept.wait, LEASE / 3 + 1)
        with pytest.raises(SeatTaken):
            lost.wait(600)
        waiting.result()
        assert LEASE - 5 < cluster.sql(left, database=database)[0][0] <= LEASE  # type: ignore[operator]


# -- connections that fail ------------------------------------------------------------------------------------------


def test_a_cut_connection_is_made_again(
    cluster: Cluster, database: str, proxy: Proxy, machine: Callable[..., Place]
) -> None:
    first, second = rows("one\n", "two\n")
    here = open_engine(new(machine(cluster.url("ada", database, port=proxy.port))))
    there = open_engine(machine(cluster.url("ada", database), holder="there"))
    with closing(here), closing(there):
        ended: list[object] = []

        def wait() -> None:
            try:
                ended.append(here.wait(600))
            except EngineAway as away:
                ended.append(away)

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: proxy.connections == 1, "the connection")
        proxy.cut()
        waiting.join(60)
        assert isinstance(ended[0], EngineAway), ended
        assert there.put(first, NOTHING)
        assert here.wait(600) is True  # who knows what was missed
        assert list(here.fetch(0, NOTHING)) == [first]
        waiting = threading.Thread(target=here.wait, args=(600,))
        waiting.start()
        assert there.put(second, first.sha)
        waiting.join(60)
        assert not waiting.is_alive()
        assert proxy.connections == 2


@pytest.mark.slow
def test_no_call_waits_for_a_peer_that_says_nothing(
    cluster: Cluster, database: str, proxy: Proxy, machine: Callable[..., Place]
) -> None:
    url = cluster.url("ada", database, port=proxy.port)
    open_engine(new(machine(url))).close()
    small, large = rows("one\n")[0], rows("x" * 30_000_000)[0]
    calls: dict[str, Callable[[Engine], object]] = {
        "fetch": lambda engine: engine.fetch(4, small.sha),
        "put": lambda engine: engine.put(small, NOTHING),
        "put much": lambda engine: engine.put(large, NOTHING),
        "notices": lambda engine: engine.notices_arrive(),  # type: ignore[attr-defined]
        "close": lambda engine: engine.close(),
    }
    engines = {call: open_engine(machine(url, "USER", "A", daemon_of="A")) for call in calls}
    waiting = threading.Thread(target=suppressed, args=(engines["fetch"].wait, 600))
    waiting.start()
    time.sleep(0.2)
    proxy.freeze()

    def took(call: Callable[[], object]) -> float:
        before = time.monotonic()
        suppressed(call)
        return time.monotonic() - before

    with ThreadPoolExecutor(len(calls) + 1) as pool:
        opening = pool.submit(took, lambda: open_engine(machine(url)))
        found = {call: pool.submit(took, partial(make, engines[call])) for call, make in calls.items()}
        times = {"open": opening.result(), **{call: seconds.result() for call, seconds in found.items()}}
    assert {call: seconds for call, seconds in times.items() if seconds > PATIENCE + SLACK} == {}
    waiting.join(PATIENCE + SLACK)  # its connection was given up, and no other can be made
    assert not waiting.is_alive()
    made = proxy.connections
    proxy.thaw()
    assert list(engines["fetch"].fetch(0, NOTHING)) in ([], [small], [large])
    assert proxy.connections <= made + 1
    for engine in engines.values():
        engine.close()


def suppressed(call: Callable[..., object], *values: object) -> None:
    """Call it, whatever becomes of it."""
    with suppress(EngineAway):
        call(*values)


@pytest.mark.slow
def test_a_far_database_is_slow_and_no_more(
    cluster: Cluster, database: str, proxy: Proxy, machine: Callable[..., Place]
) -> None:
    proxy.delay(200)
    with closing(open_engine(new(machine(cluster.url("ada", database, port=proxy.port)), daemon_of="A"))) as engine:
        before = time.monotonic()
        assert engine.put(rows("one\n")[0], NOTHING)
        assert time.monotonic() - before < 0.4 + SLACK / 2  # one round trip


@pytest.mark.slow
def test_a_server_that_was_killed_has_all_that_it_said_it_had(
    cluster: Cluster, database: str, machine: Callable[..., Place]
) -> None:
    log = rows(*(f"turn {number}\n" for number in range(2_000)))
    found: list[Row] = []
    with closing(open_engine(new(machine(cluster.url("ada", database))))) as engine:

        def write(first: int) -> None:
            with suppress(EngineAway):
                for number in range(first, len(log)):
                    assert engine.put(log[number], log[number - 1].sha if number else NOTHING)
                    done.append(number)

        for _ in range(3):
            done: list[int] = []
            writing = threading.Thread(target=write, args=(len(found),))
            writing.start()
            until(lambda done=done: len(done) >= 20, "some turns")  # type: ignore[misc]
            cluster.kill()
            writing.join(60)
            with pytest.raises(EngineAway):
                engine.fetch(0, NOTHING)
            cluster.start()
            said = len(found) + len(done)
            found = list(engine.fetch(0, NOTHING))
            assert found == log[: len(found)]
            assert said <= len(found) <= said + 1


@pytest.mark.slow
def test_a_commit_that_no_copy_confirmed_is_no_win(
    cluster: Cluster, database: str, machine: Callable[..., Place]
) -> None:
    first, second = rows("one\n", "two\n")
    with closing(open_engine(new(machine(cluster.url("ada", database))))) as engine:
        assert engine.put(first, NOTHING)
        cluster.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        try:
            until(lambda: cluster.sql("SHOW synchronous_standby_names") == [("nobody",)], "the setting")
            with pytest.raises(EngineAway):
                engine.put(second, first.sha)
        finally:
            cluster.sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        until(lambda: list(engine.fetch(first.end, first.sha)) == [second], "the row")
        assert engine.put(second, first.sha) is False


def test_a_log_that_was_cut_is_said(cluster: Cluster, kept: str, machine: Callable[..., Place]) -> None:
    first, second = rows("one\n", "two\n")
    with closing(open_engine(new(machine(cluster.url("ada", kept))))) as engine:
        assert engine.put(first, NOTHING)
        assert engine.put(second, first.sha)
        where = f"dialog = '{machine('').name}'"
        for change, head in (
            (f"UPDATE dialogd.entry SET sha = repeat('0', 64) WHERE {where} AND at = 4", (8, "0" * 64)),
            (f"DELETE FROM dialogd.entry WHERE {where} AND at = 4", (4, first.sha)),
            (f"DELETE FROM dialogd.entry WHERE {where}", (0, NOTHING)),
        ):
            cluster.sql(change, database=kept)
            with pytest.raises(Differs) as differs:
                engine.fetch(second.end, second.sha)
            assert (differs.value.end, differs.value.sha) == head
