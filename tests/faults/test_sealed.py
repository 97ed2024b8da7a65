"""Sealed first answers between real daemons: bound before anybody can read, through kills and lost journals."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dialogd.protocol.certificate import seal, sealed_text
from dialogd.protocol.model import Entry
from tests.support.pair import Pair

Cast = Callable[..., Pair]
SETUP = 'sealed = true\norder = "parallel"'


def waiting(text: str, for_file: Path) -> str:
    """A command that answers once that file is there."""
    return shlex.join(["sh", "-c", f"cat >/dev/null; while [ ! -e {for_file} ]; do sleep 0.02; done; echo {text}"])


def answering(text: str) -> str:
    return shlex.join(["sh", "-c", f"cat >/dev/null; echo {text}"])


def entries(pair: Pair) -> list[Entry]:
    dialog = pair.dialog()
    return list(dialog.entries[1:]) if dialog else []


def seals(pair: Pair) -> list[str]:
    return [entry.by for entry in entries(pair) if entry.mark("SEALED")]


def waits_for(pair: Pair) -> str:
    waiting = (pair["A"].health() or {}).get("waiting") or {}
    return str(waiting.get("status", ""))


def assert_opened(pair: Pair) -> None:
    """All seals stand before all texts of the first round, and each text is what its seal says."""
    first = [entry for entry in entries(pair) if entry.frame and entry.re == "1"]
    notes, texts = first[: len(first) // 2], first[len(first) // 2 :]
    assert all(entry.mark("SEALED") for entry in notes)
    said = {entry.by: entry.mark("SEALED") for entry in notes}
    assert {entry.by for entry in texts} == set(said)
    for entry in texts:
        mark = said[entry.by]
        assert seal(entry.frame.nonce, sealed_text(entry.body, entry.marks)) == mark.fields[0]


def test_nobody_reads_an_answer_before_all_are_bound(cast: Cast, tmp_path: Path) -> None:
    go = tmp_path / "go"
    pair = cast(command={"A": answering("secret-of-A"), "B": waiting("answer-of-B", go)})
    pair.hold("What now?", turn="A, B", setup=SETUP, max_rounds=1)
    pair.until(lambda: seals(pair) == ["A"], "A's seal")
    pair.until(lambda: waits_for(pair) == "sealed", "A to wait for the others' seals")
    assert "secret-of-A" not in pair.file.read_text(encoding="utf-8")
    go.touch()
    pair.until(lambda: pair.outcome, "the end")
    assert seals(pair) == ["A", "B"]
    assert_opened(pair)


def test_killed_after_its_seal_it_follows_with_the_text_it_had_sealed(cast: Cast, tmp_path: Path) -> None:
    go, asked = tmp_path / "go", tmp_path / "asked"
    command = shlex.join(["sh", "-c", f"cat >/dev/null; echo x >>{asked}; echo kept-$(wc -l <{asked})"])
    pair = cast(command={"A": command, "B": waiting("answer-of-B", go)})
    pair.hold("What now?", turn="A, B", setup=SETUP, max_rounds=1)
    pair.until(lambda: seals(pair) == ["A"], "A's seal")
    pair["A"].kill()
    go.touch()
    pair.until(lambda: seals(pair) == ["A", "B"], "B's seal")
    pair["A"].start()
    pair["A"].until_ready()
    pair.until(lambda: pair.outcome, "the end")
    assert_opened(pair)
    assert asked.read_text() == "x\n"
    assert any("kept-1" in entry.body for entry in entries(pair))


@pytest.mark.slow
def test_a_sealed_answer_that_is_lost_is_an_error_and_no_other_answer(cast: Cast, tmp_path: Path) -> None:
    go = tmp_path / "go"
    pair = cast(command={"A": answering("mine"), "B": waiting("answer-of-B", go)})
    pair.hold("What now?", turn="A, B", setup=SETUP, max_rounds=1)
    pair.until(lambda: seals(pair) == ["A"], "A's seal")
    pair["A"].kill()
    for journal in pair.state_dir.rglob("A.journal"):
        journal.unlink()
    go.touch()
    pair["A"].start()
    pair["A"].until_ready()
    pair.until(lambda: any(entry.mark("AGENT_ERROR") for entry in entries(pair)), "A's error")
    error = next(entry.mark("AGENT_ERROR") for entry in entries(pair) if entry.mark("AGENT_ERROR"))
    assert error.fields[0] == "A"
    assert "sealed is lost" in error.fields[1]
    assert not any(entry.by == "A" and entry.is_turn for entry in entries(pair))


def test_a_seat_whose_tools_could_read_files_says_so(cast: Cast) -> None:
    pair = cast(command={"A": answering("mine")})
    pair.hold("What now?", turn="A, B", setup=SETUP, max_rounds=1)
    pair.until(lambda: pair.outcome, "the end")
    fields = {entry.by: entry.mark("SEALED") for entry in entries(pair) if entry.mark("SEALED")}
    assert {who: mark.fields[1:] for who, mark in fields.items() if mark} == {"A": ("could read files",), "B": ()}
    assert_opened(pair)


@pytest.mark.slow
def test_who_is_left_alone_in_the_round_answers_without_a_seal(cast: Cast, tmp_path: Path) -> None:
    go = tmp_path / "go"
    failing = shlex.join(["sh", "-c", "cat >/dev/null; exit 3"])
    pair = cast(command={"A": failing, "B": waiting("answer-of-B", go)})
    pair.hold("What now?", turn="A, B", setup=SETUP, max_rounds=1)
    pair.until(lambda: any(entry.mark("AGENT_ERROR") for entry in entries(pair)), "A's error")
    go.touch()
    pair.until(lambda: pair.outcome, "the end")
    turn = next(entry for entry in entries(pair) if entry.is_turn)
    assert turn.by == "B"
    assert turn.frame.nonce == ""
