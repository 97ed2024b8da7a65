"""What every engine of shared dialogs must do. Subclass it, and give the two fixtures:

    class TestMine(EngineContract):
        @pytest.fixture
        def url(self) -> str: ...                            # of an empty engine
        @pytest.fixture
        def losing(self) -> Callable[[Place], Engine]: ...   # one whose next put is done, yet its answer never comes

What the engine does not have is said by the attributes of the class.
"""

from __future__ import annotations

import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from itertools import repeat
from pathlib import Path

import pytest

from dialogd.errors import BadInput
from dialogd.store.engine import NOTHING, PATIENCE, Differs, Engine, EngineAway, Place, Row, SeatTaken, open_engine

WAITING = 20.0  # seconds that a notice may take on a loaded machine: far less than a wait that nobody ended


def rows(*texts: str | bytes, after: Sequence[Row] = (), seat: str = "A") -> list[Row]:
    """Rows with these bytes, one behind the other, after those of a log."""
    made, before = [], b"".join(row.data for row in after)
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        sha = sha256(before + data).hexdigest()
        made.append(Row(len(before), data, sha, seat, b64encode(f"signed {sha}".encode()).decode()))
        before += data
    return made


class EngineContract:
    """The rules; each test has a log of its own."""

    WRITERS, ROUNDS = 16, 10
    HAS_NOTICES = True  # a wait ends once somebody else has appended
    HAS_LEASES = True  # a seat's second daemon is refused
    QUICK = 0.3  # seconds of a wait that nobody ends

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def losing(self) -> Callable[[Place], Engine]:
        raise NotImplementedError

    @pytest.fixture
    def place(self, url: str, tmp_path: Path) -> Callable[..., Place]:
        """Makes places of this test's log, one machine each."""
        name = secrets.token_hex(16)

        def make(holder: str = "here", **more: object) -> Place:
            folder = tmp_path / holder
            folder.mkdir(exist_ok=True)
            values: dict[str, object] = {"url": url, "name": name, "folder": folder, "seats": ("USER", "A"), **more}
            return Place(holder=holder, **values)  # type: ignore[arg-type]

        return make

    @pytest.fixture
    def opened(self, place: Callable[..., Place]) -> Iterator[Callable[..., Engine]]:
        """Opens the log, the first time as a new one; all are closed at the end."""
        engines: list[Engine] = []

        def make(holder: str = "here", **more: object) -> Engine:
            is_new = not engines
            engines.append(open_engine(place(holder, is_new=is_new, others=("B", "C") if is_new else (), **more)))
            return engines[-1]

        yield make
        for engine in engines:
            engine.close()

    # -- appending and reading --------------------------------------------------------------------------------------

    def test_what_was_appended_is_read_in_order(self, opened: Callable[..., Engine]) -> None:
        here, there = opened(), opened("there", seats=("USER", "B"))
        assert list(here.fetch(0, NOTHING)) == []
        log = rows("# A dialog\n", "ä\n", b"\x00\xff\n", "x" * 1_000_000)
        before = NOTHING
        for row in log:
            assert here.put(row, before) is True
            assert list(there.fetch(row.at, before)) == [row]
            before = row.sha
        assert list(there.fetch(0, NOTHING)) == log
        assert list(there.fetch(log[1].end, log[1].sha)) == log[2:]
        assert list(there.fetch(log[3].end, log[3].sha)) == []

    def test_only_who_knows_the_rest_may_append(self, opened: Callable[..., Engine]) -> None:
        here = opened()
        log = rows("one\n", "two\n")
        early = rows("one\n", "three\n")[1]
        assert here.put(early, log[0].sha) is False
        assert here.put(log[0], log[1].sha) is False
        assert here.put(log[0], NOTHING) is True
        for row, before in ((log[0], NOTHING), (log[1], NOTHING), (log[1], log[1].sha), (early, "")):
            assert here.put(row, before) is False
        assert here.put(log[1], log[0].sha) is True
        assert list(here.fetch(0, NOTHING)) == log

    @pytest.mark.parametrize("is_equal", [False, True], ids=["different", "equal"])
    def test_of_many_writers_one_wins(self, opened: Callable[..., Engine], *, is_equal: bool) -> None:
        engines = [opened(f"machine{number}") for number in range(self.WRITERS)]
        log: list[Row] = []
        with ThreadPoolExecutor(self.WRITERS) as pool:
            for turn in range(self.ROUNDS):
                before = log[-1].sha if log else NOTHING
                texts = [f"turn {turn}" if is_equal else f"turn {turn} of {number}" for number in range(self.WRITERS)]
                mine = [rows(f"{text}\n", after=log)[0] for text in texts]
                start = threading.Barrier(self.WRITERS)

                def put(engine: Engine, row: Row, before: str, start: threading.Barrier) -> bool:
                    start.wait()
                    return engine.put(row, before)

                won = list(pool.map(put, engines, mine, repeat(before), repeat(start)))
                assert sum(won) == 1, f"round {turn}: {won}"
                log.append(mine[won.index(True)])
        assert list(engines[0].fetch(0, NOTHING)) == log

    def test_nothing_is_skipped(self, opened: Callable[..., Engine]) -> None:
        each = self.ROUNDS
        engines = [opened(f"machine{number}") for number in range(3)]
        logs: list[list[Row]] = [[] for _ in engines]

        def write(number: int) -> None:
            mine = 0
            while mine < each:
                log = logs[number]
                end, before = (log[-1].end, log[-1].sha) if log else (0, NOTHING)
                row = rows(f"{number}: {mine}\n", after=log)[0]
                if engines[number].put(row, before):
                    log.append(row)
                    mine += 1
                else:
                    log += engines[number].fetch(end, before)

        with ThreadPoolExecutor(len(engines)) as pool:
            list(pool.map(write, range(len(engines))))
        whole = list(engines[0].fetch(0, NOTHING))
        assert sorted(row.data for row in whole) == sorted(
            f"{number}: {turn}\n".encode() for number in range(len(engines)) for turn in range(each)
        )
        assert [row.at for row in whole] == [0, *(row.end for row in whole[:-1])]
        assert all(log == whole[: len(log)] for log in logs)

    def test_attachments_travel(self, opened: Callable[..., Engine]) -> None:
        here, there = opened(), opened("there")
        files = (("one.md", b"text"), ("two.md", bytes(range(256)) * 100))
        first, bare = rows("with\n", "without\n")
        row = replace(first, files=files)
        assert here.put(row, NOTHING)
        assert here.put(bare, row.sha)
        assert [found.files for found in there.fetch(0, NOTHING)] == [files, ()]

    def test_the_whole_text_may_come_with_the_last_row(self, opened: Callable[..., Engine]) -> None:
        here = opened()
        log = rows("one\n", "the end\n")
        assert here.put(log[0], NOTHING)
        assert here.put(log[1], log[0].sha, b"one\nthe end\n")
        assert list(here.fetch(0, NOTHING)) == log

    def test_logs_at_one_engine_are_apart(self, opened: Callable[..., Engine], place: Callable[..., Place]) -> None:
        here = opened()
        with_other = open_engine(place("here", name=secrets.token_hex(16), is_new=True))
        try:
            assert here.put(rows("here\n")[0], NOTHING)
            assert list(with_other.fetch(0, NOTHING)) == []
            assert with_other.put(rows("there\n")[0], NOTHING)
            assert list(here.fetch(0, NOTHING)) == rows("here\n")
        finally:
            with_other.close()

    def test_a_log_that_is_not_there_is_said(self, opened: Callable[..., Engine], place: Callable[..., Place]) -> None:
        opened()  # there is one, of another name
        with pytest.raises(BadInput) as refused:
            open_engine(place("here", name=secrets.token_hex(16))).fetch(0, NOTHING)
        assert refused.value.fix

    # -- what is unknown, or wrong ----------------------------------------------------------------------------------

    def test_an_unknown_fate_is_found_out(
        self, opened: Callable[..., Engine], place: Callable[..., Place], losing: Callable[[Place], Engine]
    ) -> None:
        first, row = rows("one\n", "two\n")
        assert opened().put(first, NOTHING)
        engine = losing(place("unlucky"))
        try:
            with pytest.raises(EngineAway) as away:
                engine.put(row, first.sha)
            assert away.value.fix
            assert list(engine.fetch(first.end, first.sha)) == [row]
            assert engine.put(row, first.sha) is False
            assert list(engine.fetch(0, NOTHING)) == [first, row]
        finally:
            engine.close()

    def test_a_log_that_does_not_go_on_from_here_is_said(self, opened: Callable[..., Engine]) -> None:
        here = opened()
        log = rows("one\n", "two\n")
        ends: list[tuple[int, str]] = [(0, NOTHING), (log[0].end, log[0].sha), (log[1].end, log[1].sha)]
        for count, head in enumerate(ends):
            for at, sha in ((999, "0" * 64), (head[0] + 1, head[1]), (log[0].end, log[1].sha)):
                with pytest.raises(Differs) as differs:
                    here.fetch(at, sha)
                assert (differs.value.end, differs.value.sha or NOTHING) == head
            if count < len(log):
                assert here.put(log[count], head[1])

    # -- waiting ----------------------------------------------------------------------------------------------------

    def test_a_wait_ends_with_its_time(self, opened: Callable[..., Engine]) -> None:
        here = opened()
        here.wait(0)
        for _ in range(3):
            before = time.monotonic()
            assert here.wait(self.QUICK) is True
            assert time.monotonic() - before < self.QUICK + PATIENCE

    def test_a_wait_ends_once_somebody_has_appended(self, opened: Callable[..., Engine]) -> None:
        if not self.HAS_NOTICES:
            pytest.skip("this engine has no notices")
        here, there = opened(), opened("there", seats=("B",))
        here.wait(0)
        log = rows("one\n", "two\n", "three\n", seat="B")
        before = NOTHING
        for row in log:
            waiting = threading.Thread(target=here.wait, args=(600,))
            waiting.start()
            assert there.put(row, before)
            waiting.join(WAITING)
            assert not waiting.is_alive()
            assert list(here.fetch(row.at, before)) == [row]
            before = row.sha

    def test_closing_ends_a_wait_elsewhere(self, opened: Callable[..., Engine]) -> None:
        here = opened()
        here.fetch(0, NOTHING)
        waiting = threading.Thread(target=here.wait, args=(600,))
        waiting.start()
        here.close()
        waiting.join(WAITING)
        assert not waiting.is_alive()
        here.close()

    def test_one_engine_serves_several_threads(self, opened: Callable[..., Engine]) -> None:
        here, there = opened(), opened("there", seats=("B",))
        log = [replace(row, seat="AB"[row.at % 2]) for row in rows(*(f"turn {n}\n" for n in range(2 * self.ROUNDS)))]
        seen: list[Row] = []

        def follow() -> None:
            while len(seen) < len(log):
                here.wait(self.QUICK)
                seen.extend(here.fetch(*((seen[-1].end, seen[-1].sha) if seen else (0, NOTHING))))

        following = threading.Thread(target=follow)
        following.start()
        before = NOTHING
        for row in log:
            assert (here if row.seat == "A" else there).put(row, before)
            before = row.sha
        following.join(60)
        assert seen == log

    # -- seats ------------------------------------------------------------------------------------------------------

    def test_a_seat_has_one_daemon(self, opened: Callable[..., Engine], place: Callable[..., Place]) -> None:
        if not self.HAS_LEASES:
            pytest.skip("this engine has no leases")
        first = opened(daemon_of="A")
        with pytest.raises(SeatTaken) as taken:
            open_engine(place("there", daemon_of="A"))
        assert taken.value.fix
        opened("there")  # a command may
        opened("there", seats=("B",), daemon_of="B")
        opened(daemon_of="A")  # the same machine again, after a crash: at once
        assert first.put(rows("one\n")[0], NOTHING)
        first.close()

    def test_a_seat_is_free_once_its_daemon_has_ended(self, opened: Callable[..., Engine]) -> None:
        if not self.HAS_LEASES:
            pytest.skip("this engine has no leases")
        first = opened(daemon_of="A")
        first.close()
        opened("there", daemon_of="A").wait(0)
