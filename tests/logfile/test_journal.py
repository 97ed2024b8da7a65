"""What a journal's records come to: what waits, what is owed, what was committed, whose file it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dialogd.protocol.grammar import render
from dialogd.protocol.model import Draft
from dialogd.store.journal import Journal, Journals, Received, chain_of
from tests.logfile.agents import agent_at
from tests.logfile.files import dialog_file, log_of, turn

REPLY = Received(("A", "1", "c0ffee"), "Postgres.", {"calls": 1, "usd": 0.5}, 5)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    (tmp_path / "state").mkdir(mode=0o700)
    return Journals(tmp_path / "state").of("A")


def wrote(journal: Journal, number: int = 0, calls: str = "", body: str = "So.") -> str:
    """Record that a turn, or without a number a note, was appended; its hash."""
    entry = b"\n---\n\n" + render(Draft("A", "Claude A", number, body, attributes=(("calls", calls),)), "")
    chain = chain_of(entry)
    journal.record("intent", at=0, entry=entry.decode(), number=number)
    journal.record("done", chain=chain, number=number)
    return chain


def test_a_note_settles_no_reply(journal: Journal) -> None:
    journal.reply(REPLY)
    wrote(journal)
    assert journal.received() == REPLY
    wrote(journal, 2)
    assert journal.received() is None


def test_only_an_entry_that_gives_account_settles_what_is_owed(journal: Journal) -> None:
    journal.record("spent", usage={"usd": 0.25})
    wrote(journal, 2, body="It took calls=2 in all.")
    assert journal.owed() == ({"usd": 0.25},)
    wrote(journal, calls="2")
    assert journal.owed() == ()


def test_a_reply_that_became_a_draft_stays_owed(journal: Journal) -> None:
    journal.reply(REPLY)
    assert journal.owed() == ()
    journal.draft(REPLY, "late")
    assert journal.owed() == (REPLY.usage,)


def test_a_draft_is_shown_once(journal: Journal) -> None:
    journal.draft(REPLY, "late")
    journal.record("sent")
    assert journal.drafts() == ()
    journal.draft(Received(("A", "3", "c0ffee"), "Redis.", {}, 5), "late")
    assert journal.drafts() == ("Redis.",)


def test_calls_of_tools_are_known_until_a_turn_tells_of_them(journal: Journal) -> None:
    known = {"tool": "tickets.add", "arguments": "{}"}
    journal.record("tool", debt=["A", "1", "c0ffee"], number=1, **known)
    journal.record("result", debt=["A", "1", "c0ffee"], number=1, **known, how="allowed", text="5", is_error=False)
    wrote(journal)
    journal.record("tool", debt=["A", "1.1", "beef"], number=2, **known)
    assert [(call["kind"], call["number"]) for call in journal.calls()] == [("result", 1), ("tool", 2)]
    wrote(journal, 2)
    assert journal.calls() == ()


def test_a_reply_has_landed_only_where_its_own_debt_was_opened(tmp_path: Path) -> None:
    log = log_of(dialog_file(tmp_path))
    log.append(turn("one"), log.journals.of("A"))
    dialog = log.read()
    opened = dialog.entry("1")
    here, elsewhere = (Received(("A", "1", chain), "I say one", {}, 5) for chain in (opened.chain, "0" * 16))
    assert here.landed(dialog, "A") == dialog.last
    assert here.landed(dialog, "B") is None
    assert elsewhere.landed(dialog, "A") is None


def test_a_journal_that_another_took_the_place_of_is_read_from_its_beginning(journal: Journal) -> None:
    journal.draft(REPLY, "late")
    assert journal.drafts() == ("Postgres.",)
    journal.path.rename(journal.path.with_suffix(".old"))
    other = Journals(journal.path.parent).of("A")
    for text in ("Redis.", "Mongo, which has a longer name and more to say for itself, and again."):
        other.draft(Received(("A", "1", "beef"), text, {}, 5), "late")
    assert journal.drafts() == other.drafts()
    assert len(journal.drafts()) == 2


def test_of_two_that_see_a_cut_one_sets_the_journals_aside(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    before = path.read_bytes()
    first, second = log_of(path), log_of(path)
    first.append(turn("one"), first.journals.of("A"))
    path.write_bytes(before)
    present = {entry.chain for entry in first.read(full=True).entries}
    assert first.set_aside(present) is not None
    journals: Journals = second.journals
    journals.of("A").reply(REPLY)
    assert second.set_aside(present) is None
    assert journals.of("A").received() == REPLY


def test_only_turns_are_known_as_committed_and_missed(journal: Journal) -> None:
    wrote(journal)
    journals = Journals(journal.path.parent)
    assert (journals.committed(), journals.turns()) == ({}, [])
    chain = wrote(journal, 2)
    assert journals.committed() == {2: chain}


class Meanwhile(Journals):
    """Journals of which something happens the moment before a daemon looks at them for the first time."""

    happens: Callable[[], object] = staticmethod(lambda: None)

    def odd(self) -> tuple[str, ...]:
        self.happens()
        return super().odd()


async def test_a_turn_that_is_committed_while_a_daemon_starts_is_not_gone(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    other = log_of(path)
    kept = Received(("A", "1", ""), "Bought.", {}, 1)
    other.journals.of("A").reply(kept)
    async with agent_at(path) as agent:
        journals = Meanwhile(agent.file.journals.folder)
        journals.happens = lambda: other.append(turn("meanwhile", "B", "A"), other.journals.of("B"))
        agent.file.journals = journals
        await agent.look()
        assert log_of(path).journals.of("A").received() == kept


def test_that_a_dialog_was_started_is_remembered_by_whoever_reads_its_journals(tmp_path: Path) -> None:
    """Also by one that has looked before: it reads on."""
    journals, other = Journals(tmp_path), Journals(tmp_path)
    assert not other.started("3f9a1c")
    for dialog in ("3f9a1c", "7d2b04"):
        journals.of("A").record("started", dialog=dialog)
        assert other.started(dialog)
    assert (other.started("3f9a1c"), Journals(tmp_path).started("3f9a1c"), other.started("000000")) == (
        True,
        True,
        False,
    )
