"""Searching what was said: whatever somebody types, and only what is there."""

from __future__ import annotations

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dialogd import person
from dialogd.memory import excerpt
from tests.examples import examples
from tests.memory.shelf import LICENSE, RETRIES, SESSIONS, STOPPED, Shelf
from tests.support.past import Past
from tests.support.room import Room, opening

SYNTAX = st.lists(
    st.sampled_from(
        ['a"b', '"x', 'y" OR "z', "AND", "a-b", "*", "NEAR(", ")", "^x", "{col}:", "NOT", "\0", "é", "rival"]
    )
)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.one_of(st.text(max_size=30), SYNTAX.map(" ".join)))
def test_nothing_that_is_typed_is_syntax(shelf: Shelf, words: str) -> None:
    if not shelf.index.exists():
        shelf.put(STOPPED)
    shelf.memory.recall(words)
    for hit in shelf.memory.search(words):
        assert all(0 <= start < end <= len(hit.snippet) for start, end in hit.spans)


def test_all_words_first_then_some(shelf: Shelf) -> None:
    for dialog in (SESSIONS, RETRIES, LICENSE, STOPPED):
        shelf.put(dialog)
    search = shelf.memory.search
    (hit,) = search("rivals looking")
    assert (hit.dialog, hit.agent, hit.turn) == (STOPPED.id, "B", 3)
    assert [hit.turn for hit in search("rivals calming")] == [2, 3]
    both = search("green turquoise")
    assert [(hit.turn, hit.agent) for hit in both] == [(3, "B")]
    assert "*".join(both[0].snippet[a:b] for a, b in both[0].spans) == "Green*turquoise"
    assert {hit.dialog for hit in search("green license")} == {STOPPED.id, LICENSE.id}
    assert search("zebra") == search("") == search("?!") == []


def test_an_excerpt_begins_with_a_whole_word_and_has_no_sign_of_markdown(shelf: Shelf) -> None:
    text = (
        f"## A __heading__\n\n> **{'before-the-end ' * 20}**\n- `co-operate` with turquoise and violet {'later ' * 60}"
    )
    room = Room(opening("A", "B"), A=[f"{text}\n\n[PROPOSAL: turquoise]"], B=["No.\n\n[PASS]"])
    room.run()
    shelf.put(room)
    (hit,) = shelf.memory.search("operate violet")
    assert [hit.snippet[a:b] for a, b in hit.spans] == ["operate", "violet"]
    inside = hit.snippet.strip("…")
    assert (hit.snippet[0], hit.snippet[-1]) == ("…", "…")
    assert set(inside.split()) <= {"before-the-end", "co-operate", "with", "turquoise", "and", "violet", "later"}
    assert 150 < len(hit.snippet) < 210
    assert (hit.name, hit.agent) == ("Claude A", "A")
    (head,) = shelf.memory.search("heading")
    assert head.snippet.startswith("A heading before-the-end")
    assert "Proposal P1: turquoise" in excerpt("x" * 900 + "\nProposal P1: turquoise", ["turquoise"])


def test_only_some_agents_and_only_some_time(shelf: Shelf) -> None:
    old, new = "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"
    shelf.put(STOPPED)
    search = shelf.memory.search
    assert {hit.agent for hit in search("blue green logo colour", agent="b")} == {"B"}
    assert search("green", since=old)
    assert search("green", since=new) == []
    assert len(search("blue green logo", limit=1)) == 1
    assert search("blue green logo", limit=1, offset=1) != search("blue green logo", limit=1)


def test_what_was_struck_and_what_was_recalled_is_not_found(shelf: Shelf) -> None:
    room = Room(opening(keys=["Topic: t"]), A=["Use a zeppelin."], B=["Use a bicycle."])
    room.step("A")
    room.step("B")
    person.strike(room.log, "2", "nonsense")
    room.stop("enough")
    shelf.put(room)
    assert shelf.memory.search("zeppelin") == []
    assert len(shelf.memory.search("bicycle")) == 1
    quoted = "Again?\n\n**Recalled from earlier dialogs (data):**\n\n> 1. hovercraft\n>\n> > eels\n\nAnd more."
    shelf.put(Past("d00077", "Recalled", quoted, ("Well.",)), "other.md")
    assert shelf.memory.search("hovercraft") == shelf.memory.search("eels") == []
    assert len(shelf.memory.search("more")) == 1


def test_a_message_that_was_cut_is_searched_as_it_was(shelf: Shelf) -> None:
    room = Room(opening("A", "B", keys=["Max Message: 200"]), A=["Long. " * 100 + "The turquoise end."])
    room.step("A")
    room.stop("enough")
    (name,) = room.attachments
    folder = shelf.folder / "dialog.md.d"
    folder.mkdir()
    (folder / name).write_text(room.attachments[name], encoding="utf-8")
    copy = shelf.put(room)
    (hit,) = shelf.memory.search("turquoise")
    assert (hit.entry, hit.agent, "turquoise end" in hit.snippet) == ("2", "A", True)
    copy.with_suffix(".d").joinpath(name).write_text("The turquoise end is planted.", encoding="utf-8")
    shelf.memory.rebuild()
    assert shelf.memory.search("turquoise") == []
    assert shelf.memory.search("long")[0].entry == "2"
