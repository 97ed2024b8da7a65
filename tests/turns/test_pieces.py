"""A reply as it is handed on while it arrives: word by word, and never a part of a secret, however it was cut."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dialogd.agent.call import LONGEST, PAUSE, Pieces
from dialogd.backends import Tool
from dialogd.errors import BackendError
from dialogd.protocol.text import clean, redact
from tests.examples import examples
from tests.support.cases import cases
from tests.turns.minds import Mind, agent_with, dialog_in

OWN = "correct horse battery staple"
KEYS = [
    "sk-ant-api03-" + "Ab1" * 12,
    "AIza" + "x" * 35,
    "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4",
    "postgres://user:pässwörd123@host/db",
    OWN,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEvQIBADANBg\nAAoIBAQC7VJTUt9Us8cKj\n-----END RSA PRIVATE KEY-----",
]
HEARTS = ["Ab1Ab1", "xxxxxxxx", "SflKxwRJ", "wörd123", "battery", "BAQC7VJT"]


async def handed_on(chunks: list[str], pause: float = 0.0) -> list[str]:
    """What is handed on of a reply that comes in these chunks, each as soon as it may be."""
    told: list[str] = []
    pieces = Pieces(lambda text, _: told.append(text), (OWN,), pause=pause)
    for chunk in chunks:
        pieces.add(chunk)
    pieces.finish()
    return told


@examples(300, deadline=None)
@given(
    st.lists(st.sampled_from([*KEYS, "word", " ", "\n", "語", "://", "a@b", "-----BEGIN ", "\r\n", "\x1b"])), st.data()
)
def test_no_cut_lets_a_secret_through(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    told = "".join(asyncio.run(handed_on(chunks)))
    safe = redact(clean(text), (OWN,))[0]
    for heart in HEARTS:
        assert told.count(heart) <= safe.count(heart)


@examples(200, deadline=None)
@given(st.text(), st.data())
def test_all_of_a_reply_is_handed_on_in_order(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    told = asyncio.run(handed_on(chunks))
    assert "".join(told) == redact(clean(text), (OWN,))[0]


@cases(("key", "heart"), list(zip(KEYS, HEARTS, strict=True)))
async def test_a_key_one_character_at_a_time(key: str, heart: str) -> None:
    told = await handed_on(list(f"Here: {key} and so on.\n"))
    assert heart not in "".join(told)
    assert "".join(told).startswith("Here: ")
    assert "".join(told).endswith(" and so on.\n")


async def test_words_of_any_script_come_as_soon_as_they_are_certain() -> None:
    told = await handed_on(["タブの", "ほうが", "よい。"])
    assert told == ["タブの", "ほうが", "よい。"]


async def test_pieces_come_ten_times_a_second_at_most_and_the_last_waits_for_nobody() -> None:
    told: list[tuple[float, str]] = []
    pieces = Pieces(lambda text, _: told.append((time.monotonic(), text)))
    for number in range(50):
        pieces.add(f"{number} ")
    while len(told) < 2:
        await asyncio.sleep(0.01)
    assert [text for _, text in told] == ["0 ", "".join(f"{number} " for number in range(1, 50))]
    assert told[1][0] - told[0][0] >= PAUSE * 0.9
    pieces.abandon()


async def test_a_reply_of_megabytes_without_a_blank_is_no_burden() -> None:
    began = time.process_time()
    told = await handed_on(["x" * 1000] * 2000, PAUSE)
    assert time.process_time() - began < 10
    assert max(map(len, told)) == LONGEST
    assert sum(map(len, told)) == 2_000_000


async def test_an_agent_that_runs_a_tool_is_executing_and_then_thinks_again(tmp_path: Path) -> None:
    path, key = dialog_in(tmp_path), KEYS[0]
    mind = Mind((Tool(f"Read\n{key}"), Tool(f"Read\n{key}"), Tool(), "Tabs. ", Tool("Grep"), Tool(), "Yes."))
    async with agent_with(path, mind) as agent:
        with agent.hub.join() as listener:
            await agent.step()
            await agent.hub.close()
            told = [event.data async for event in listener if event.kind == "agent"]
    assert [(data["state"], data["reason"]) for data in told] == [
        ("thinking", ""),
        ("executing", "Read [redacted: anthropic key]"),
        ("thinking", ""),
        ("executing", "Grep"),
        ("thinking", ""),
        ("idle", ""),
    ]
    assert {data["turn"] for data in told[:-1]} == {2}


async def test_a_new_attempt_begins_the_text_anew(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    broken = BackendError("gone", fix="wait", kind="network", retryable=True)
    mind = Mind(("Tabs are ", broken), ("Spaces are ", broken), ("Neither ", broken))
    async with agent_with(path, mind) as agent:
        with agent.hub.join() as listener:
            await agent.step()
            await agent.hub.close()
            told = [event async for event in listener]
    texts = [(event.data["text"], event.data["reset"]) for event in told if event.kind == "text"]
    assert texts == [("Tabs are ", True), ("Spaces are ", True), ("Neither ", True)]
    assert [event.data["state"] for event in told if event.kind == "agent"][-1] == "failed"
