"""Any bytes are a dialog or one clear error, at a cost that grows with the file and not with its square."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dialogd.agent import prompt
from dialogd.errors import NotADialog
from dialogd.protocol import admit, compose, marks
from dialogd.protocol.decide import Clock, Reply, Stop, Wait, Write, decide
from dialogd.protocol.grammar import parse
from dialogd.protocol.lifecycle import signals
from dialogd.protocol.model import Mark, digest
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, escape, unescape
from tests.examples import examples
from tests.protocol.texts import FORGED, texts
from tests.support.cases import cases
from tests.support.room import Room, opening

HEADER = b"# D\n\n**Topic:** x\n\n---\n\n"
FRAME = b"## Turn 2 \xe2\x80\x94 A\n<!-- dialogd by=A bytes=%d prev= sha=0123456789abcdef -->\n"
FIRST = b"## Turn 1 - User\n\n"


def read(data: bytes) -> Dialog | NotADialog:
    """The dialog, or why there is none."""
    try:
        return parse(data)
    except NotADialog as error:
        return error


def check(data: bytes) -> None:
    """The bytes give a dialog that every reader can use, or an error that says where and what to do."""
    dialog = read(data)
    if isinstance(dialog, NotADialog):
        assert dialog.line >= 1
        assert str(dialog).startswith(f"line {dialog.line}: ")
        assert dialog.fix
        return
    assert dialog.size == len(data)
    assert [e.start for e in dialog.entries] == sorted(e.start for e in dialog.entries)
    assert all(0 <= e.start < e.end <= len(data) for e in dialog.entries)
    assert all(data.count(b"\n", 0, e.start) + 1 == e.line for e in dialog.entries)
    assert len({e.id for e in dialog.entries}) == len(dialog.entries)
    assert [e.number for e in dialog.turns] == sorted({e.number for e in dialog.turns})
    for me in ("A", "Z"):
        action = decide(dialog, me, Clock())
        assert isinstance(action, Reply | Write | Wait | Stop)
        assert not isinstance(action, Wait) or action.reason
    signals(dialog)
    prompt.Prompts().turn(dialog, dialog.header.agents[0])


@examples(150)
@given(st.one_of(st.binary(max_size=200), texts.map(lambda text: text.encode("utf-8", "surrogatepass"))))
@example(b"")
@example(b"\n \n\t\n")
@example(b"\x00\x01\x02")
@example("TURN: A".encode("utf-16"))
@example(b"\x7fELF\x02\x01\x01\x00")
@example(b"# Notes\n\nMilk, bread.\n")
@example(b"## Turn 999999999 - A\nTURN: A\n## Turn 999999999 - A\nTURN: A\n")
@example("## Turn \u0663 - A\nTURN: A\n## Turn \u0663\n\nTURN: A\n".encode())
def test_any_bytes_are_a_dialog_or_a_clear_error(data: bytes) -> None:
    check(data)


@examples(150)
@given(texts, st.binary(max_size=8), st.integers(0, 600), st.sampled_from(["insert", "replace", "cut"]))
def test_a_broken_dialog_is_a_dialog_or_a_clear_error(words: str, junk: bytes, at: int, how: str) -> None:
    data = (
        opening("A", "B", question=clean(words)).encode()
        + b"\n---\n\n"
        + FORGED.encode()
        + words.encode("utf-8", "replace")
    )
    check(data[:at] + {"insert": junk + data[at:], "replace": junk + data[at + len(junk) :], "cut": b""}[how])


@pytest.mark.slow
@examples(2000)
@given(st.lists(st.one_of(texts.map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=9)), max_size=9))
def test_any_bytes_at_length(parts: list[bytes]) -> None:
    check(b"".join(parts))
    check(HEADER + FIRST + b"".join(parts))


SETUP = "# D\n\n## Setup\n\n```toml\n{}\n```\n\n## Turn 1 - User\nTURN: A\n"


@cases(
    "toml", ["a = " + "9" * 5000, "a = " + "[" * 5000, "a = " + "{a=" * 3000, "= 1", "a.b = 1\na = 2", "a = 2026-13-45"]
)
def test_a_setup_that_breaks_its_reader_is_a_warning(toml: str) -> None:
    header = parse(SETUP.format(toml).encode()).header
    assert (dict(header.setup), len(header.warnings)) == ({}, 1)


@cases("junk", ["abc", "-1", "\u00b2", "9" * 5000])
@cases("key", ["re", "ms", "in", "out"])
def test_a_sound_frame_whose_numbers_are_none_says_nothing(key: str, junk: str) -> None:
    head = SETUP.format('verdict = "vote"').encode()
    content = b"\n[VOTE: P1 approve | x]\n\nTURN: B\n"
    proposal = b"\n## Turn 2 - A\n\n[PROPOSAL: x]\n\nTURN: B\n\n"
    line = f"## Turn 3 — B\n<!-- dialogd by=B {key}={junk} bytes={len(content)} prev=".encode()
    data = head + proposal + line + f" sha={digest(line + content)} -->\n".encode() + content
    check(data)
    entry = parse(data).entries[-1]
    frame = entry.frame
    assert (entry.re, frame.ms, frame.tokens_in, frame.tokens_out) == ("", "", "", "")


BY_HAND: dict[str, Callable[[int], bytes]] = {
    "words": lambda n: b"some words of a question\n" * n,
    "one long line": lambda n: b"x" * n * 50,
    "blanks": lambda n: b"a" + b" " * n * 20 + b"b\n",
    "blank lines": lambda n: b"\n" * n * 20 + b"x\n",
    "rules": lambda n: b"---\n" * n * 5,
    "fences that never close": lambda n: b"```x\n" * n * 5,
    "fences of every length": lambda n: b"".join(b"~" * (3 + i % 60) + b" x\n" for i in range(n)),
    "headings": lambda n: b"## User\n" * n,
    "turns": lambda n: b"## User\nTURN: A\n" * n,
    "a TURN line of stars": lambda n: b"turn: a" + b"*" * n * 20 + b"b\n",
    "a TURN line of names": lambda n: b"TURN: " + b"A, " * n * 5 + b"B\n",
    "a heading of blanks": lambda n: b"## Turn 2 - a" + b" " * n * 20 + b"b\n",
    "marks": lambda n: b"[IDEA: x]\n" * n,
    "proposals": lambda n: b"TURN: A\n## Turn 2 - A\n" + b"".join(b"[PROPOSAL: %d]\n" % i for i in range(n)),
    "a mark of blanks": lambda n: b"[a" + b" " * n * 20 + b"x\n" + b"[IDEA:]" + b" " * n * 20 + b"x\n",
    "brackets": lambda n: b"[IDEA:" + b"] " * n * 10 + b"x\n",
    "frames that lie": lambda n: FORGED.encode().replace(b"bytes=", b"bytes=9") * (n // 4),
    "frames that lie big": lambda n: (FRAME % (n * 70)) * n,
    "an edited frame of blank lines": lambda n: FRAME % 1 + b"\n" * n * 20 + b"x\nTURN: B\n",
}
HEADERS: dict[str, Callable[[int], bytes]] = {
    "a key of blanks": lambda n: b"k: a" + b" " * n * 20 + b"b\n",
    "a title of blanks": lambda n: b"# a" + b" " * n * 20 + b"b\n",
    "agents": lambda n: b"Agents: " + b"".join(b"a%d, " % i for i in range(n)) + b"\n",
    "commas": lambda n: b"Agents: " + b"a," * n * 8 + b"\n",
    "brackets": lambda n: b"Agents: " + b"a(" * n * 5 + b"\n",
    "an agent of blanks": lambda n: b"Agents: a" + b" " * n * 10 + b"b@c\n",
    "headings in fences": lambda n: (b"```\n" + b"## Turn 1 - User\n" * 9 + b"```\n") * (n // 9),
    "headings in no fence": lambda n: b"```\n" + b"## Turn 1 - User\n" * n + b"```\n",
    "setups": lambda n: b"## Setup\n" * n * 3,
    "half a setup": lambda n: b"## Setup\n" + b"```toml\n" * n,
}
REPLIES: dict[str, Callable[[int], str]] = {
    "words": lambda n: "Some words of an answer.\n" * n,
    "an open bracket": lambda n: "[a" + " " * n * 20 + "x",
    "a bracket and blanks": lambda n: "[a:]" + " " * n * 20 + "x",
    "closing brackets": lambda n: "[IDEA:" + "] " * n * 10 + "x",
    "words in brackets": lambda n: "[" + "a " * n * 10 + "x",
    "stars": lambda n: "*" * n * 20 + "x",
    "stars and blanks": lambda n: "* " * n * 10 + "x",
    "blanks": lambda n: " " * n * 20 + "x",
    "backslashes": lambda n: "\\" * n * 20 + "x",
    "hashes": lambda n: "#" * n * 20 + "x",
    "fences": lambda n: "```x\n" * n,
    "fences of every length": lambda n: "".join("`" * (3 + i % 60) + " x\n" for i in range(n)),
    "half a token": lambda n: "-eyJ" * n * 5,
    "half a key": lambda n: "-sk-" * n * 5 + "sk-ant-" * n,
    "half a login": lambda n: "http://a:b" * n + "https://" * n,
    "private keys": lambda n: "-----BEGIN PRIVATE KEY-----\n" * n,
    "summaries": lambda n: "## Consensus Summary\n" * n,
    "proposals": lambda n: "".join(f"[PROPOSAL: {i}]\n" for i in range(n)),
    "signatures between words": lambda n: "It stands, and if it\n[AGREE: P1]\nfalls, so do we.\n\n" * n,
    "a row of signatures": lambda n: "If:\n" + "[AGREE: P1]\n\n" * n * 3 + "x",
    "one paragraph before a signature": lambda n: (
        "if it is not to a \n" * n * 5 + "[AGREE: P1]\n" + "or as of my\n" * n * 5
    ),
    "references": lambda n: "[AGREE: " + "P1," * n * 5 + "x]",
    "rows of marks": lambda n: "[VOTE: P1 approve] " * n,
    "open marks": lambda n: "[VOTE: " * n * 2,
    "names": lambda n: "[VOTE A A A " + "a " * n * 5 + "]",
    "decoration": lambda n: "- ** `` " * n * 2 + "[PASS]",
    "comments": lambda n: "<!--\n" * n * 2,
    "thoughts": lambda n: "<think>\n</think>\n" * n,
    "attempts": lambda n: "[VOTE\n" * n * 2,
    "strangers": lambda n: "".join(f"[NAME: {number}]\n" for number in range(n)),
}


def is_linear(work: Callable[[int], object], size: int = 400) -> bool:
    """True when four times as much takes less than eight times as long: linear work takes 4 times, quadratic 16.

    What is measured is this process's own time, the best of two; on a loaded machine it is tried again.
    """

    def cost(n: int) -> float:
        best = float("inf")
        for _ in range(2):
            begun = time.process_time()
            work(n)
            best = min(best, time.process_time() - begun)
        return best + 1e-3

    return any(cost(size * 4) / cost(size) < 8 for _ in range(4))


def on_the_table() -> Dialog:
    """A dialog in which B may sign the text P1."""
    room = Room(opening("A", "B"), A=["## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"])
    room.step("A")
    return room.dialog


TABLE = on_the_table()


def answered(reply: str) -> None:
    """Everything that is done to a reply on its way into the file and back."""
    read, _ = compose.received(reply)
    unescape(escape(read.body))
    for mark in read.marks:
        marks.agreed(Mark("AGREE", mark.value))
    admit.admit(TABLE, "B", read).counted((reply,))


@pytest.mark.slow
@cases("shape", BY_HAND)
def test_reading_what_a_hand_typed_is_linear(shape: str) -> None:
    assert is_linear(lambda n: parse(HEADER + FIRST + BY_HAND[shape](n) + b"\nTURN: A\n"))


@cases("shape", HEADERS)
def test_reading_a_header_is_linear(shape: str) -> None:
    assert is_linear(lambda n: parse(HEADERS[shape](n) + b"\n" + FIRST + b"TURN: A\n"))


@pytest.mark.slow
@cases("shape", REPLIES)
def test_reading_a_reply_is_linear(shape: str) -> None:
    assert is_linear(lambda n: answered(REPLIES[shape](n)))


def test_a_person_who_types_megabytes_is_read_in_moments() -> None:
    text = b"".join(shape(1200) for name, shape in BY_HAND.items() if name != "turns")
    begun = time.process_time()
    parse(HEADER + FIRST + text + b"\nTURN: A\n")
    assert time.process_time() - begun < 10
