"""The limiter: who shares a key waits together, never longer than the cap, and damage to its file harms nobody."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from datetime import datetime
from pathlib import Path

import pytest

from dialogd.backends.service import LONGEST, PAUSE, Limiter, holds
from dialogd.errors import BackendError
from tests.backends.apis import FORMS, KEY, TEXT, make, outcome
from tests.support.pair import a_second
from tests.support.standin import Fail, Say, StandIn, in_order


def pair(tmp_path: Path, other_key: str = KEY) -> tuple[Limiter, Limiter]:
    """Two agents' limiters, in folders beside each other."""
    a = Limiter("api.example", KEY, tmp_path / "A")
    return a, Limiter("api.example", other_key, tmp_path / "B")


def busy(retry_after: float | None = None, kind: str = "busy") -> BackendError:
    """What a service says that is asked too often."""
    return BackendError("429", fix="wait", retryable=True, retry_after=retry_after, kind=kind)


async def test_nobody_waits_without_a_reason(tmp_path: Path) -> None:
    began = time.monotonic()
    await pair(tmp_path)[0].ready()
    assert time.monotonic() - began < 0.2 * a_second()
    assert not list(tmp_path.iterdir())


async def test_what_one_agent_was_told_holds_for_the_others(tmp_path: Path) -> None:
    told, other = pair(tmp_path)
    other.stagger = 0.0
    began = time.monotonic()
    told.hold(0.5)
    assert other.told.left <= 0.5
    await other.ready()
    assert 0.4 < time.monotonic() - began < 2 * a_second()
    assert other.told.left == 0.0


async def test_another_key_is_not_held_back(tmp_path: Path) -> None:
    told, other = pair(tmp_path, other_key="another")
    told.hold(30)
    assert other.told.left == 0.0
    assert Limiter("elsewhere", KEY, tmp_path / "A").told.left == 0.0


def test_without_a_folder_it_holds_in_this_process_alone() -> None:
    alone = Limiter("api.example", KEY)
    alone.hold(30)
    assert alone.told.left > 10
    assert Limiter("api.example", KEY).told.left == 0.0


def test_the_longer_wait_stays(tmp_path: Path) -> None:
    a, b = pair(tmp_path)
    a.hold(40)
    b.hold(1)
    assert a.told.left > 10
    assert b.told.left > 10
    b.hold(80)
    assert a.told.left > 40


def test_the_others_wait_as_long_as_the_service_asked_the_one(tmp_path: Path) -> None:
    told, other = pair(tmp_path)
    told.heed(busy(retry_after=300))
    assert 150 < other.told.left <= 300


def test_no_wait_is_longer_than_the_cap(tmp_path: Path) -> None:
    a, b = pair(tmp_path)
    a.hold(3600)
    assert LONGEST / 2 < b.told.left <= LONGEST


def test_what_is_held_is_listed_with_the_moment_the_service_named(tmp_path: Path) -> None:
    pair(tmp_path)[0].hold(0.01)
    Limiter("other.example", KEY, tmp_path / "A").hold(7200)
    time.sleep(0.02)
    (held,) = holds(tmp_path)
    assert held.host == "other.example"
    assert held.until - time.time() > LONGEST
    at = datetime.fromtimestamp(held.until).astimezone()
    assert held.words.endswith(f"{at:%H:%M}")
    assert holds(tmp_path / "nowhere") == []


async def test_a_wait_that_a_turn_has_no_time_for_is_an_error_at_once(tmp_path: Path) -> None:
    told, other = pair(tmp_path)
    told.heed(busy(retry_after=600))
    began = time.monotonic()
    with pytest.raises(BackendError) as caught:
        await other.ready(began + 20)
    assert time.monotonic() - began < 5 * a_second()
    assert (caught.value.kind, caught.value.retryable) == ("busy", True)
    assert 300 < (caught.value.retry_after or 0) <= 600
    told.hold(700)
    assert other.told.left <= LONGEST


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"{}",
        b'{"host": "h", "told": 1, "not_before": "soon"}',
        b'{"host": "h", "told": 1, "not_before": null}',
        b'{"host": "h", "told": 1, "not_before": NaN}',
        b'{"host": "h", "told": 1, "not_before": Infinity}',
        b'{"host": "h", "told": 1, "not_before": 1e400}',
        b'{"host": "h", "told": 1, "not_before": 1' + b"0" * 5000 + b"}",
        b'{"host": "h", "told": 1, "not_before": 99999999999}',
        b'{"host": "h", "told": 1, "not_before": -5}',
        b'{"host": "h", "told": 99999999999, "not_before": 99999999999}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
async def test_a_damaged_file_holds_nobody_back(tmp_path: Path, content: bytes) -> None:
    a, b = pair(tmp_path)
    a.hold(30)
    a.file.write_bytes(content)
    assert b.told.left == 0.0
    await b.ready()
    b.hold(20)
    assert Limiter("api.example", KEY, tmp_path / "C").told.left > 5


def test_the_file_names_no_key_and_nobody_else_reads_it(tmp_path: Path) -> None:
    a, _ = pair(tmp_path)
    a.hold(30)
    (file,) = (tmp_path / "limits").iterdir()
    assert file == a.file
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert json.loads(file.read_text()).keys() == {"host", "not_before", "told"}
    assert KEY not in f"{file} {file.read_text()}"


def test_a_folder_that_cannot_be_written_still_holds_here(tmp_path: Path) -> None:
    (tmp_path / "limits").write_text("a file where the folder should be")
    a, b = pair(tmp_path)
    a.hold(30)
    assert a.told.left > 10
    assert b.told.left == 0.0


def test_only_complaints_are_heeded(tmp_path: Path) -> None:
    a, b = pair(tmp_path)
    a.heed(busy(kind="network", retry_after=60))
    assert b.told.left == 0.0
    a.heed(busy())
    assert 0 < b.told.left <= PAUSE
    a.heed(busy(60))
    assert b.told.left > 30


async def test_those_who_waited_do_not_knock_together(tmp_path: Path) -> None:
    told, _ = pair(tmp_path)
    told.hold(0.1)
    ends: list[float] = []

    async def wait() -> None:
        limiter = Limiter("api.example", KEY, tmp_path / "B")
        limiter.stagger = 0.4
        await limiter.ready()
        ends.append(time.monotonic())

    await asyncio.gather(*(wait() for _ in range(12)))
    assert max(ends) - min(ends) > 0.05


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ("messages", 529),
        pytest.param("messages", 429, marks=pytest.mark.slow),
        *(pytest.param(form, status, marks=pytest.mark.slow) for form in FORMS[1:] for status in (429, 529)),
    ],
)
async def test_a_backend_waits_for_what_another_ones_service_said(tmp_path: Path, form: str, status: int) -> None:
    with StandIn(in_order(Fail(status, retry_after=0.5), Say(TEXT))) as server:
        a, b = (make(form, server, state=tmp_path / agent) for agent in "AB")
        assert (await outcome(a)).failed.kind == "busy"
        assert (await outcome(b)).text == TEXT
        first, second = server.calls
        assert second.at - first.at >= 0.45
        for backend in (a, b):
            await backend.close()
