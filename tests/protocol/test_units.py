"""Durations, counts and sizes as people write them."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialogd.protocol.text import MAX_COUNT, MAX_SECONDS, MAX_SIZE, in_words, read_count, read_seconds, read_size
from tests.support.cases import cases


@cases(
    ("written", "expected"),
    [
        ("5 minutes", 300),
        ("90 seconds", 90),
        ("5m", 300),
        ("1 hour", 3600),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        ("1 Hour and 30 Minutes", 5400),
        ("1 hour, 5 seconds", 3605),
        (" 2.5 min ", 150),
        ("250ms", 0.25),
        ("90", 90),
        ("0.3", 0.3),
        (300, 300),
        (0.4, 0.4),
        (4 / 3, 4 / 3),
        ("7 days", MAX_SECONDS),
        ("1,000 seconds", 1000),
    ],
)
def test_durations_read_as_people_write_them(written: str | float, expected: float) -> None:
    assert read_seconds(written) == pytest.approx(expected)


@cases(
    "nonsense",
    [
        *("", "soon", "minutes", "5 parsecs", "-5 minutes", "0", "0 minutes", "inf", "nan", "1e3", "5 5", "1:30"),
        *("8 days", "5 minutes or so", "5m and", "\u0665 minutes", "1,00 seconds", "9" * 400, "5\nminutes\nTURN: A"),
        "5m" + " " * 100_000 + "!",  # in a moment: reading is linear
        *(-1, 0, math.inf, math.nan, 1e9, True),
    ],
)
def test_a_duration_that_makes_no_sense_is_refused(nonsense: str | float) -> None:
    with pytest.raises(ValueError, match=r"duration|unit of time|longer"):
        read_seconds(nonsense)


@cases(("written", "expected"), [("20", 20), ("1,000", 1000), (20, 20), (" 7 ", 7), ("20 turns", 20), (21.0, 21)])
def test_counts_read_as_people_write_them(written: str | float, expected: int) -> None:
    assert read_count(written) == expected


@cases("nonsense", ["", "many", "0", "-3", "2.5", 2.5, "1,00", True, math.inf, MAX_COUNT + 1, "9" * 5000])
def test_a_count_that_makes_no_sense_is_refused(nonsense: str | float) -> None:
    with pytest.raises(ValueError, match=r"whole number|between"):
        read_count(nonsense)


@cases(
    ("written", "expected"),
    [("1 MB", 10**6), ("500 KB", 500_000), ("1000000", 10**6), ("1.5mb", 1_500_000), ("1 MiB", 2**20), (7, 7)],
)
def test_sizes_read_as_people_write_them(written: str | float, expected: int) -> None:
    assert read_size(written) == expected


@cases("nonsense", ["", "big", "1 XB", "-1 MB", "0", "0.1 b", "9999 GB", math.nan, True])
def test_a_size_that_makes_no_sense_is_refused(nonsense: str | float) -> None:
    with pytest.raises(ValueError, match=r"size|between"):
        read_size(nonsense)


@cases(
    ("duration", "words"),
    [
        (182, "3 minutes 2 seconds"),
        (1, "1 second"),
        (0, "0 seconds"),
        (-4, "0 seconds"),
        (6.12, "6.1 seconds"),
        (59.96, "1 minute"),
        (60, "1 minute"),
        (3600, "1 hour"),
        (90_061, "1 day 1 hour 1 minute 1 second"),
    ],
)
def test_a_duration_is_said_in_words(duration: float, words: str) -> None:
    assert in_words(duration) == words


@given(st.integers(min_value=1, max_value=int(MAX_SECONDS)))
def test_what_is_said_in_words_reads_back(whole: int) -> None:
    assert read_seconds(in_words(whole)) == whole


@given(st.floats(min_value=0.1, max_value=MAX_SECONDS))
def test_words_are_never_off_by_more_than_half_a_second(duration: float) -> None:
    assert abs(read_seconds(in_words(duration)) - duration) <= 0.5


@given(st.text())
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    for read, most in ((read_seconds, MAX_SECONDS), (read_count, MAX_COUNT), (read_size, MAX_SIZE)):
        with contextlib.suppress(ValueError):
            assert 0 < read(text) <= most
