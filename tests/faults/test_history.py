"""The judge of histories shares nothing with us, passes sound files, and finds what it is there to find."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dialogd.protocol.grammar import parse
from tests.faults.history import Judge, problems, read
from tests.logfile.files import dialog_file, log_of, turn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dialog of five turns: the person, A, B, A, B."""
    log = log_of(dialog_file(tmp_path))
    for number, by, to in ((2, "A", "B"), (3, "B", "A"), (4, "A", "B"), (5, "B", "A")):
        log.append(turn(f"{by}-{number}", by, to), log.journals.of(by))
    return log.path


def without(data: bytes, number: int) -> bytes:
    return data.replace(entry(data, number), b"")


def entry(data: bytes, number: int) -> bytes:
    """The bytes of one turn, with the rule before it."""
    start = data.index(f"\n---\n\n## Turn {number} ".encode())
    end = data.find(f"\n---\n\n## Turn {number + 1} ".encode())
    return data[start:] if end < 0 else data[start:end]


def naive(
    base: bytes, by: str, text: str = "Yes.", *, last: str = "TURN: A", re_: str = "", number: int = 0, prev: str = ""
) -> bytes:
    """What a program appends that knows the format and nothing else: no lock, no fence, no turn to wait for."""
    found = re.findall(rb"^## Turn (\d+)", base, re.M)
    shas = re.findall(rb" sha=([0-9a-f]{16}) -->\n", base)
    content = f"\n{text}\n\n{last}\n".encode()
    seal = (
        f"## Turn {number or int(found[-1]) + 1} — Claude {by}\n<!-- dialogd by={by} re={re_ or found[-1].decode()}"
        f" bytes={len(content)} prev={prev or shas[-1].decode()}"
    ).encode()
    sha = hashlib.sha256(seal + content).hexdigest()[:16]
    return b"\n---\n\n" + seal + f" sha={sha} -->\n".encode() + content


def test_the_judge_shares_no_code_with_dialogd(repository: Path) -> None:
    tree = ast.parse((repository / "tests/faults/history.py").read_text(encoding="utf-8"))
    names = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} <= {
        "__future__", "collections", "contextlib", "dataclasses", "hashlib", "json", "pathlib", "re",
    }  # fmt: skip


def test_a_sound_history_has_no_problem(path: Path) -> None:
    assert [(found.number, found.by) for found in read(path)] == [(1, ""), (2, "A"), (3, "B"), (4, "A"), (5, "B")]
    assert problems(path, ["A-2", "B-3", "A-4", "B-5"]) == []


def test_a_lost_turn_is_found(path: Path) -> None:
    path.write_bytes(without(path.read_bytes(), 3))
    said = "\n".join(problems(path, ["B-3"]))
    for part in ("entry 4 by A comes after turn 2", "4 by A is chained to", "4 by A is by A, and owed by ['B']"):
        assert part in said
    assert "B-3 stands 0 times" in said


def test_a_turn_that_was_there_before_is_missed(path: Path) -> None:
    whole = path.read_bytes()
    for told, found in ((False, ["entry 5 by B is lost"]), (True, [])):
        judge = Judge()
        judge.look(whole)
        if told:
            judge.saved(whole, without(whole, 5))
        assert judge.close(without(whole, 5)) == found


def test_a_turn_that_stands_twice_is_found(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data + entry(data, 5))
    said = "\n".join(problems(path, ["B-5"]))
    assert "stands there twice" in said
    assert "is by B, and owed by ['A']" in said
    assert "B-5 stands 2 times" in said


def test_turns_out_of_order_are_found(path: Path) -> None:
    data = path.read_bytes()
    third = entry(data, 3)
    path.write_bytes(data.replace(third, b"") + third)
    assert problems(path) != []


def test_a_damaged_turn_is_nobodys(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"I say B-3", b"I say B-9"))
    assert [found.by for found in read(path)] == ["", "A", "", "A", "B"]
    assert "B-3 stands 0 times" in problems(path, ["B-3"])


def test_what_a_torn_turn_quotes_is_not_said_again(path: Path) -> None:
    judge, said = Judge(), path.read_bytes() + b"\nConsider W-1 too.\n\nTURN: A\n"
    judge.words.add("W-1")
    torn = naive(said, "A", "You say: \u201cConsider W-1 too\u201d. I do.", last="TURN: B")[:-12]
    assert [found for found in judge.close(said + torn) if "W-1" in found] == []
    assert "W-1 stands 2 times" in judge.close(said + b"\nConsider W-1 too.\n\nTURN: A\n")


def test_an_appender_that_keeps_the_rules_passes(path: Path) -> None:
    path.write_bytes(path.read_bytes() + naive(path.read_bytes(), "A", last="TURN: B"))
    assert problems(path) == []


def test_who_comes_first_answers_what_anybody_owes_and_its_own(path: Path) -> None:
    """dialogd and the judge close the same debts."""
    path.write_bytes(path.read_bytes() + b"\n## Note \xe2\x80\x94 User\n\nOr is it?\n\nTURN: ANY\n")
    asked, typed = path.read_bytes(), read(path)[-1]
    assert (typed.id, parse(asked).state.owing) == ("5.1", ("A", "ANY"))
    for by, answered, left in (("A", "5", ("B",)), ("A", "5.1", ("B",)), ("B", "5.1", ("A",))):
        path.write_bytes(asked + naive(asked, by, last=f"TURN: {left[0]}", re_=answered, prev=typed.sha))
        assert problems(path) == []
        assert parse(path.read_bytes()).state.owing == left
    path.write_bytes(path.read_bytes() + naive(path.read_bytes(), "B", last="TURN: A", re_="5.1"))
    assert "is by B, and owed by ['A']" in "\n".join(problems(path))


def test_two_appenders_without_a_lock_are_found(path: Path) -> None:
    base = path.read_bytes()
    path.write_bytes(base + naive(base, "A", "First.", last="TURN: B") + naive(base, "A", "Second.", last="TURN: B"))
    said = "\n".join(problems(path))
    assert "is chained to" in said
    assert "owed by ['B']" in said


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda base: naive(base, "B"), "is by B, and owed by ['A']"),
        (lambda base: naive(base, "A", re_="4"), "answers 4, and the debt was opened by 5"),
        (lambda base: naive(base, "A", number=9), "comes after turn 5"),
        (lambda base: naive(base, "A", prev="0" * 16), "is chained to 0000000000000000"),
        (lambda base: naive(base, "A", last="TURN: Z"), "passes to nobody known"),
        (lambda base: naive(base, "A", last="Bye."), "has no last word"),
        (lambda base: naive(base, "A", last="[PAUSED]\n\nTURN: B"), "bears the person's marks ['PAUSED']"),
        (lambda base: naive(base, "A", last="[DEADLOCK]\n[STOPPED]"), "bears several outcomes"),
        (lambda base: naive(base, "A", last="[CONSENSUS_REACHED]"), "ends by consensus, and [] have signed nothing"),
        (lambda base: naive(base, "A", last="[DEADLOCK]"), "ends in a deadlock that only ['A'] called"),
        (
            lambda base: naive(base, "A", "TURN: USER\n\nso", last="TURN: B"),
            "lines in its body that count as structure",
        ),
        (lambda base: naive(base, "A", "## Note — User\n\nso", last="TURN: B"), "lines in its body that count"),
        (lambda base: naive(base, "A", "[STOPPED]\n\nso", last="TURN: B"), "lines in its body that count"),
    ],
)
def test_each_rule_that_a_program_breaks_is_found(path: Path, wrong: Callable[[bytes], bytes], words: str) -> None:
    base = path.read_bytes()
    path.write_bytes(base + wrong(base))
    assert words in "\n".join(problems(path))


def test_nobody_but_the_person_writes_after_the_end(path: Path) -> None:
    base = path.read_bytes() + b"\n## Note \xe2\x80\x94 User\n\n[STOPPED]\n"
    link = hashlib.sha256("## Note — User\n\n[STOPPED]".encode()).hexdigest()[:16]
    path.write_bytes(base + naive(base, "A", prev=link))
    assert "entry 6 by A stands after the end of the dialog in 5.1" in problems(path)
    base += b"\n## User\n\nGo on.\n\nTURN: A\n"
    link = hashlib.sha256(b"## User\n\nGo on.\n\nTURN: A").hexdigest()[:16]
    path.write_bytes(base + naive(base, "A", number=7, re_="6", prev=link, last="TURN: B"))
    assert problems(path) == []


def test_behind_a_damaged_entry_only_the_person_writes(path: Path) -> None:
    torn = path.read_bytes()[:-12]
    base = torn + b"\n"
    path.write_bytes(base + naive(base, "B", number=5, re_="4"))
    assert "entry 5 by B was written behind the damaged entry 4.1" in problems(path)


def test_a_second_turn_in_one_pause_is_found(path: Path) -> None:
    base = path.read_bytes() + "\n## Note — User\n\n[PAUSED]\n".encode()
    link = hashlib.sha256("## Note — User\n\n[PAUSED]".encode()).hexdigest()[:16]
    first = naive(base, "A", prev=link, last="TURN: A")
    path.write_bytes(base + first)
    assert problems(path) == []
    path.write_bytes(base + first + naive(base + first, "A"))
    assert problems(path) == ["entry 7 by A is a second turn in one pause"]
