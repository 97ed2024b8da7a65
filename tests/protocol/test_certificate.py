"""What was agreed, by whom, over which chain; what the file shows to be changed since; what was sealed before it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dialogd.errors import NotADialog
from dialogd.protocol.board import contributions, decisions, proposals
from dialogd.protocol.certificate import (
    RECORDS,
    Certificate,
    SealedAnswer,
    answers,
    certify,
    changes,
    differences,
    seal,
    sealed_text,
)
from dialogd.protocol.grammar import parse, render
from dialogd.protocol.model import Draft, Mark, digest
from dialogd.protocol.state import Dialog
from tests.examples import examples
from tests.protocol.texts import texts
from tests.support.cases import cases
from tests.support.room import Room, opening

GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.txt"))
TEXT = "Sessions live in Postgres.\n\nA nightly job deletes the old ones."


def played(*turns: tuple[str, str], setup: str = "", agents: str = "AB") -> Room:
    """A room in which the agents said this, a second apart; `USER` notes."""
    more = f"## Setup\n\n```toml\n{setup}\n```" if setup else ""
    room = Room(opening(*agents, more=more))
    for who, text in turns:
        room.advance(1)
        if who == "USER":
            room.say(text, note=True)
        else:
            room.says(who, text)
    return room


def agreed() -> Room:
    """Two agents that agreed on a text, after a turn that does not matter."""
    return played(
        ("A", "Where do they live now?"),
        ("B", f"In memory.\n\n## Consensus Summary\n\n{TEXT}\n\n[CONSENSUS_REACHED]\n[RESERVATION: nobody measured]"),
        ("A", "So it is.\n\n[AGREE: P1]\n[RESERVATION]\n[RESERVATION: one more thing to run]"),
    )


def voted() -> Room:
    """Three agents, two of which approve."""
    return played(
        ("A", "[PROPOSAL: Postgres]"),
        ("B", "Good.\n\n[VOTE: P1 approve | simple]"),
        ("C", "No.\n\n[VOTE: P1 reject | slow]"),
        ("A", "Mine.\n\n[VOTE: P1 approve]"),
        setup='verdict = "vote"\norder = "round-robin"',
        agents="ABC",
    )


def both_sealed() -> Room:
    """Two first answers that were sealed."""
    room = Room(opening("A", "B", turn="A, B", setup="sealed = true"))
    for who in "AB":
        room.says(who, f"I am {who}.\n[PROPOSAL: {who}]")
    room.run()
    return room


def certificate_of(room: Room) -> Certificate:
    """The certificate of a dialog that was decided."""
    certificate = certify(room.dialog)
    assert certificate is not None
    return certificate


def kept(room: Room) -> dict[str, object]:
    """The certificate as somebody keeps it: as JSON."""
    facts: dict[str, object] = json.loads(json.dumps(certificate_of(room).as_json()))
    return facts


def compare(facts: dict[str, object], dialog: Dialog) -> tuple[str, ...]:
    """What differs from a certificate that was kept, in words."""
    return tuple(change.words for change in differences(facts, dialog))


def words(dialog: Dialog) -> str:
    """What was changed since, by the file alone."""
    return "\n".join(change.words for change in changes(dialog))


# -- what it says ---------------------------------------------------------------------------------------------------


def test_it_says_which_text_by_whom_when_with_which_objection_over_which_chain() -> None:
    room = agreed()
    made = certificate_of(room)
    assert (made.ref, made.text, made.method) == ("P1", TEXT, "mutual")
    assert made.sha == digest(TEXT) == room.dialog.entries[2].all("CONSENSUS_PROPOSED")[0].value
    assert [(s.agent, s.name, s.turn, s.at, s.reservation) for s in made.signers] == [
        ("B", "Claude B", 3, "2026-11-21T19:00:02Z", "nobody measured"),
        ("A", "Claude A", 4, "2026-11-21T19:00:03Z", "one more thing to run"),
    ]
    assert (made.decided_in, made.decided_at, made.stands_in) == ("4", "2026-11-21T19:00:03Z", "3")
    assert made.chain == (room.dialog.entries[0].chain, room.dialog.entries[3].chain)
    assert (made.entries, made.dialog) == (4, room.dialog.id)
    assert made.as_json()["note"] == RECORDS
    assert (changes(room.dialog), compare(kept(room), room.dialog)) == ((), ())


def test_a_vote_names_those_who_approved_by_their_last_vote() -> None:
    made = certificate_of(voted())
    assert (made.ref, made.text, made.sha, made.method) == ("P1", "Postgres", digest("Postgres"), "vote")
    assert [(s.agent, s.turn) for s in made.signers] == [("B", 3), ("A", 5)]
    assert (made.evidence, made.stands_in) == ("2 for (B, A), 1 against (C)", "2")


def test_a_vote_that_was_changed_counts_as_it_was_cast_last() -> None:
    room = played(
        ("A", "[PROPOSAL: Postgres]\n[TO: B]"),
        ("B", "[VOTE: P1 reject | slow]\n[TO: A]"),
        ("A", "It is not.\n[TO: B]"),
        ("B", "[VOTE: P1 approve | it is not]\n[TO: A]"),
        ("A", "[VOTE: P1 approve]\n[TO: C]"),
        ("C", "Well."),
        setup='verdict = "vote"\norder = "free"',
        agents="ABC",
    )
    assert [(s.agent, s.turn) for s in certificate_of(room).signers] == [("B", 5), ("A", 6)]


def test_a_moderator_and_a_judge_sign_what_they_decided() -> None:
    moderated = played(
        ("A", "[PROPOSAL: Postgres]"),
        ("B", "Fine.\n\n[DECIDE: P1 approve | it is there]"),
        setup='verdict = "moderator"\n[roles.B]\nrole = "moderator"',
    )
    made = certificate_of(moderated)
    assert (made.method, made.text, [(s.agent, s.turn) for s in made.signers]) == ("moderator", "Postgres", [("B", 3)])
    path = next(path for path in GOLDEN if path.name == "judge.txt")
    judged = certify(parse(path.read_bytes().partition(b"====\n")[2]))
    assert (judged.ref, judged.text, judged.stands_in) == ("", "Nobody has measured that it is slow.", "4")
    assert [(s.agent, s.turn) for s in judged.signers] == [("J", 7)]


def test_what_one_agent_decides_by_the_way_gives_way_to_what_ends_the_dialog() -> None:
    setup = '[roles.A]\nrole = "synthesizer"\npermissions = ["READ_ALL", "POST", "PROPOSE", "VOTE", "DECIDE"]'
    lines = (
        ("A", "Hm."),
        ("B", f"[PROPOSAL: a table]\n## Consensus Summary\n\n{TEXT}\n\n[CONSENSUS_REACHED]"),
        ("A", "[DECIDE: P1 approve | now]\n[AGREE: P2]"),
    )
    both = played(*lines, setup=setup)
    assert [(d.ref, d.entry) for d in both.dialog.state.table.decisions] == [("P1", "4"), ("P2", "4")]
    assert certificate_of(both).ref == "P2"
    on_the_way = played(("A", "[PROPOSAL: a table]"), ("B", "Hm."), ("A", "[DECIDE: P1 approve | now]"), setup=setup)
    assert on_the_way.dialog.state.outcome is None
    assert (certificate_of(on_the_way).method, certificate_of(on_the_way).ref) == ("decide", "P1")


@cases("heading", ["", "## Note — User\n\n"])
def test_the_person_ends_it_with_the_text_on_the_table(heading: str) -> None:
    room = played(("A", f"## Consensus Summary\n\n{TEXT}\n\n[CONSENSUS_REACHED]"))
    room.types(f"\n{heading}Good.\n\n[CONSENSUS_REACHED]\n")
    assert room.dialog.state.outcome is not None
    made = certificate_of(room)
    assert (made.method, made.text) == ("person", TEXT)
    assert [(s.agent, s.turn) for s in made.signers] == [("A", 2), ("USER", room.dialog.entries[-1].number)]


def test_the_person_ends_it_with_a_text_of_their_own() -> None:
    own = played(("A", "Hm."))
    own.types("\n## Consensus Summary\n\nPostgres, I say.\n\n[CONSENSUS_REACHED]\n")
    made = certificate_of(own)
    assert (made.method, made.text, [s.agent for s in made.signers]) == ("person", "Postgres, I say.", ["USER"])
    bare = played(("A", "Hm."))
    bare.types("\nGood.\n\n[CONSENSUS_REACHED]\n")
    assert bare.dialog.state.outcome is not None
    assert certify(bare.dialog) is None


def test_a_dialog_written_by_hand_has_one_too() -> None:
    text = "# By hand\n\n## Turn 1 — User\n\nWhere?\n\nTURN: A\n\n## Turn 2 — A\n\n## Consensus Summary\n\nPostgres.\n"
    made = certify(parse(f"{text}\n[CONSENSUS_REACHED]\n\nTURN: B\n\n## Turn 3 — B\n\n[CONSENSUS_REACHED]\n".encode()))
    assert (made.text, made.sha, made.decided_at) == ("Postgres.", digest("Postgres."), "")
    assert [(s.agent, s.turn, s.at) for s in made.signers] == [("A", 2, ""), ("B", 3, "")]


def test_a_decision_that_was_cut_short_is_none() -> None:
    data = agreed().paper.data
    assert certify(parse(data)) is not None
    assert certify(parse(data[:-1])) is None


@cases("path", GOLDEN)
def test_every_dialog_that_was_decided_has_a_certificate_and_no_other(path: Path) -> None:
    dialog = parse(path.read_bytes().partition(b"====\n")[2])
    outcome = dialog.state.outcome
    is_decided = outcome is not None and outcome.name in ("CONSENSUS_REACHED", "DECIDED")
    is_decided = is_decided or any(d.outcome == "approved" for d in dialog.state.table.decisions)
    made = certify(dialog)
    assert (made is not None) == is_decided
    assert changes(dialog) == ()
    if made is not None:
        assert made.text
        assert made.signers
        assert not [c for c in differences(made.as_json(), dialog) if c.is_harm]


def test_a_dialog_that_goes_on_keeps_the_certificate_of_what_was_decided() -> None:
    room = agreed()
    before = certificate_of(room)
    room.say("And the cache?")
    assert certify(room.dialog) == before
    assert compare(before.as_json(), room.dialog) == ("1 entry was added after it",)
    room.says("B", "## Consensus Summary\n\nNo cache.\n\n[CONSENSUS_REACHED]")
    room.says("A", "[AGREE: P2]")
    assert certificate_of(room).text == "No cache."
    assert compare(before.as_json(), room.dialog) == ("3 entries were added after it",)


# -- what was changed since, by the file alone ----------------------------------------------------------------------


def swapped(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """One thing replaced by another, which must be there."""

    def change(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return change


def without(turn: int) -> Callable[[bytes], bytes]:
    """That turn taken out."""
    return lambda data: re.sub(rb"## Turn %d .*?(?=## |\Z)" % turn, b"", data, flags=re.S)


def new_sha(data: bytes) -> bytes:
    """The text changed, and its recorded hash with it."""
    other = TEXT.replace("Postgres", "Redis")
    return data.replace(b"in Postgres", b"in Redis").replace(digest(TEXT).encode(), digest(other).encode())


REDIS = digest(TEXT.replace("Postgres", "Redis"))
EDITED = "was edited after it was written"
TEXT_EDITED = "turn 3, where P1 stands, was edited after A signed it in turn 4"
LINE_EDITED = "turn 2, where P1 stands, was edited after B approved it in turn 3, A approved it in turn 5"
NO_VOTE = "the decision counts B for P1, and no such vote stands in the file"
HARMS: list[tuple[Callable[[], Room], Callable[[bytes], bytes], str]] = [
    (
        agreed,
        swapped(b"live in Postgres", b"live in Redis"),
        f"the agreed text P1 in turn 3 was changed after A signed it in turn 4: recorded {digest(TEXT)}, now {REDIS}",
    ),
    (agreed, new_sha, TEXT_EDITED),
    (agreed, swapped(b"In memory.", b"On disk."), TEXT_EDITED),
    (agreed, swapped(b"[AGREE: P1]\n", b""), "turn 4, in which A signed P1, no longer says so"),
    (agreed, swapped(b"So it is.", b"So be it."), f"turn 4, in which A signed P1, {EDITED}"),
    (agreed, without(3), "P1 no longer stands in the file"),
    (agreed, without(3), "turn 3, in which B signed P1, is gone, cut or overwritten"),
    (agreed, swapped(b"\n\nTURN: A\n\n---\n\n## Turn 4", b"\n\n---\n\n## Turn 4"), "P1 no longer stands in the file"),
    (voted, swapped(b"P1 approve | simple", b"P1 reject | simple"), NO_VOTE),
    (voted, swapped(b"P1: Postgres", b"P1: Redis"), LINE_EDITED),
    (voted, without(3), NO_VOTE),
]


@cases(("begin", "harm", "said"), HARMS)
def test_what_was_changed_is_said_in_words(
    begin: Callable[[], Room], harm: Callable[[bytes], bytes], said: str
) -> None:
    dialog = parse(harm(begin().paper.data))
    assert said in words(dialog)
    assert any(change.is_harm for change in changes(dialog))
    assert compare(kept(begin()), dialog)


def test_each_change_is_said_once() -> None:
    dialog = parse(agreed().paper.data.replace(b"In memory.", b"On disk."))
    (change,) = changes(dialog)
    assert change.words.startswith(TEXT_EDITED)


def test_what_the_person_withdraws_is_said_and_is_no_harm() -> None:
    room = agreed()
    room.types("\n[STRIKE: turn 4 | a mistake]\n\n[VETO P1]\n")
    assert "turn 4, in which P1 was agreed, was struck by the person in note 4.1" in words(room.dialog)
    assert "P1 was ruled out by the person in note 4.1" in words(room.dialog)
    assert not any(change.is_harm for change in changes(room.dialog))
    other = agreed()
    other.types("\n[STRIKE: 2]\n")
    assert changes(other.dialog) == ()


# -- against a certificate kept elsewhere -----------------------------------------------------------------------------


def reframed(room: Room, old: str, new: str) -> bytes:
    """Every entry written anew, with perfect frames, and one text replaced: what a forger would do."""
    data, prev = room.text[: room.text.index("## Turn 2")], room.dialog.entries[0].chain
    for entry in room.dialog.entries[1:]:
        marks = tuple(Mark(m.name, m.value.replace(digest(old), digest(new)), m.ref) for m in entry.marks)
        attributes = (("re", entry.re), ("at", entry.frame.at))
        draft = Draft(entry.by, entry.name, entry.number, entry.body.replace(old, new), marks, entry.turn, attributes)
        written = render(draft, prev)
        prev = re.findall(r"sha=([0-9a-f]{16})", written.decode())[0]
        data += written.decode() + "\n---\n\n"
    return data.encode()


def test_a_perfect_forgery_is_seen_only_by_who_kept_a_certificate() -> None:
    room = agreed()
    assert parse(reframed(room, "x y", "z")).entries[-1].chain == room.dialog.entries[-1].chain  # nothing replaced
    forged = parse(reframed(room, TEXT, TEXT.replace("Postgres", "Redis")))
    assert changes(forged) == ()
    said = "\n".join(compare(kept(room), forged))
    assert "-Sessions live in Postgres.\n+Sessions live in Redis." in said
    assert f"`sha` was {digest(TEXT)}, and is {REDIS}" in said
    assert "entry 3 (turn 3 of B) is not what it was" in said
    assert "entry 2" not in said


def test_each_difference_is_said_in_words() -> None:
    room, facts = agreed(), kept(agreed())
    signers = facts["signers"]
    assert isinstance(signers, list)
    b, a = signers
    cases: list[tuple[dict[str, object], str]] = [
        ({"signers": [b, a, {**a, "agent": "C"}]}, "C, who stood behind it in turn 4, no longer does"),
        ({"signers": [b]}, "A stands behind it now, and did not"),
        (
            {"signers": [b, {**a, "at": "2026-01-01T00:00:00Z"}]},
            "A's at was 2026-01-01T00:00:00Z, and is 2026-11-21T",
        ),
        ({"signers": [b, {**a, "reservation": ""}]}, "A's reservation was none, and is one more thing to run"),
        ({"method": "vote"}, "`method` was vote, and is mutual"),
        ({"header": "0" * 16}, "the header is not what it was"),
        ({"dialog": "0" * 12}, f"the certificate is of dialog {'0' * 12}, this file is dialog {room.dialog.id}"),
        ({"text": "Redis."}, "the agreed text is not what it was:\n--- certificate\n+++ file\n"),
    ]
    for change, said in cases:
        assert any(line.startswith(said) for line in compare({**facts, **change}, room.dialog)), said


def test_what_was_added_inserted_or_taken_out_is_named() -> None:
    room, facts = agreed(), kept(agreed())
    room.say("Thanks.", note=True)
    room.say("Really.", note=True)
    (added,) = differences(facts, room.dialog)
    assert (added.words, added.is_harm) == ("2 entries were added after it", False)
    data = agreed().paper.data
    assert "entry 2 is gone" in compare(facts, parse(without(2)(data)))
    between = data.replace(b"## Turn 3", b"## Turn 3 \xe2\x80\x94 User\n\nWait.\n\nTURN: B\n\n---\n\n## Turn 3", 1)
    said = compare(facts, parse(between))
    assert any(line.startswith("entry 3 (turn 3 of USER) was not there") for line in said)
    (again,) = re.findall(rb"## Turn 2 .*?(?=## )", data, re.S)
    said = compare(facts, parse(data.replace(again, again * 2)))
    assert "entry 2 (turn 2 of A) was not there" in said
    said = compare(facts, parse(without(4)(data)))
    assert any(line.startswith("nothing is decided there any more") for line in said)
    assert "entry 4 is gone" in said


def test_no_byte_of_a_decided_dialog_changes_unseen() -> None:
    room = agreed()
    facts, data = kept(room), room.paper.data
    silent = [at for at in range(0, len(data), 3) if not _is_seen(facts, data, at)]
    gaps = {m.start() + i for m in re.finditer(rb"\n\n---\n\n", data) for i in range(len(m[0]))}
    assert set(silent) <= gaps


def _is_seen(facts: dict[str, object], data: bytes, at: int) -> bool:
    other = b"y" if data[at : at + 1] == b"x" else b"x"
    try:
        return bool(compare(facts, parse(data[:at] + other + data[at + 1 :])))
    except NotADialog:
        return True


@cache
def decided_and_sealed() -> tuple[dict[str, object], tuple[bytes, ...]]:
    """A certificate, and files to damage."""
    return kept(agreed()), tuple(begin().paper.data for begin in (agreed, voted, both_sealed))


@examples(60, deadline=None)
@given(texts, st.integers(0, 1200), st.integers(0, 400), st.integers(0, 2))
def test_any_damage_can_be_told_of(words: str, at: int, gone: int, which: int) -> None:
    facts, files = decided_and_sealed()
    data = files[which]
    try:
        dialog = parse(data[:at] + words.encode("utf-8", "surrogatepass") + data[at + gone :])
    except NotADialog:
        return
    certificate = certify(dialog)
    assert certificate is None or certificate.entries <= len(dialog.entries)
    changes(dialog)
    compare(facts, dialog)
    answers(dialog)
    contributions(dialog)
    proposals(dialog)
    decisions(dialog)


# -- sealed first answers -------------------------------------------------------------------------------------------

NONCE = "00ff"
STALLED = Draft("SYSTEM", "System", marks=(Mark("STALLED", "B | its seal is void"),), turn=("A",))


def note(who: str, body: str, *more: str) -> Draft:
    """A seal over a text without marks."""
    value = " | ".join((seal(NONCE, sealed_text(body, ())), *more))
    return Draft(who, f"Claude {who}", marks=(Mark("SEALED", value),), attributes=(("re", "1"),))


def turn(who: str, number: int, body: str, *marks: Mark, nonce: str = NONCE) -> Draft:
    """The text that follows a seal."""
    return Draft(who, f"Claude {who}", number, body, marks, ("A",), (("re", "1"), ("nonce", nonce)))


def written(*drafts: Draft, agents: str = "AB") -> bytes:
    """A file with these entries, chained."""
    data = opening(*agents, turn=", ".join(agents)).encode()
    for draft in drafts:
        last = parse(data).last
        data += b"\n---\n\n" + render(draft, last.chain if last else "")
    return data


def sealed(*drafts: Draft, agents: str = "AB") -> dict[str, SealedAnswer]:
    """What became of each agent's last seal."""
    return {answer.agent: answer for answer in answers(parse(written(*drafts, agents=agents)))}


def test_answers_sealed_before_any_text_are_independent() -> None:
    found = sealed(note("A", "Postgres."), note("B", "Redis.", "could read files"), turn("A", 2, "Postgres."),
                   turn("B", 3, "Redis.", Mark("AGREE", "P1"), Mark("REFUSED", "x | y")))  # fmt: skip
    assert {who: (a.status, a.is_independent, a.could_read, a.turn) for who, a in found.items()} == {
        "A": ("fits", True, False, 2),
        "B": ("fits", True, True, 3),
    }
    assert found["B"].why == "turn 3 fits its seal in note 1.2, which stood before any answer: independent"


def test_a_seal_after_an_answer_is_not_independent() -> None:
    found = sealed(note("A", "Postgres."), turn("A", 2, "Postgres."), note("B", "Redis."), turn("B", 3, "Redis."))
    assert [(a.status, a.is_independent, a.is_harm) for a in found.values()] == [
        ("fits", True, False),
        ("fits", False, False),
    ]
    assert "A's in turn 2 stood in the file before that" in found["B"].why


def test_a_text_that_does_not_fit_its_seal_is_harm() -> None:
    seals = (note("A", "Postgres."), note("B", "Redis."))
    cases = [turn("B", 2, "Memcached."), turn("B", 2, "Redis.", nonce="11"), turn("B", 2, "Redis.", nonce=""),
             turn("B", 2, "Redis.", Mark("IDEA", "late"))]  # fmt: skip
    for draft in cases:
        answer = sealed(*seals, draft)["B"]
        assert (answer.status, answer.is_independent, answer.is_harm) == ("broken", False, True)
    data = written(*seals, turn("B", 2, "Redis."))
    for changed in (data.replace(b"\nRedis.", b"\nValkey."), data.replace(b"[SEALED: ", b"[SEALED: 0")):
        assert [a.status for a in answers(parse(changed)) if a.agent == "B"] == ["broken"]
    assert sealed(*seals, turn("B", 2, "Redis.", nonce=""))["B"].why == "turn 2 answers, and opens no seal"
    said = [a.why for a in answers(parse(data.replace(b"[SEALED: ", b"[SEALED: 0")))]
    assert said[0] == "the seal in note 1.1 was changed since it was written"
    torn = written(*seals, turn("B", 2, "Redis."), STALLED).replace(b"\nRedis.\n\nTURN: A\n", b"\nRedis.\n")
    assert [a.why for a in answers(parse(torn)) if a.agent == "B"] == ["its text was cut or overwritten"]
    assert sealed(turn("B", 2, "Redis."))["B"].why == "turn 2 opens a seal that does not stand in the file"


def test_a_seal_without_its_text_waits_or_is_void() -> None:
    assert sealed(note("A", "Postgres."))["A"].status == "waiting"
    assert sealed(turn("A", 2, "Postgres."), note("A", "Postgres."))["A"].status == "void"
    found = sealed(note("A", "Postgres."), note("B", "Redis."), turn("A", 2, "Postgres."), STALLED)
    assert (found["B"].status, found["B"].why, found["B"].is_harm) == ("void", "its text did not come", False)
    again = answers(parse(written(note("A", "Postgres."), note("A", "Redis."), turn("A", 2, "Redis."))))
    assert [(a.note, a.status, a.turn) for a in again] == [("1.1", "replaced", 0), ("1.2", "fits", 2)]


def test_an_answer_without_a_seal_is_named() -> None:
    found = sealed(note("A", "Postgres."), turn("C", 2, "Redis.", nonce=""), turn("A", 3, "Postgres."), agents="ABC")
    assert (found["C"].status, found["C"].why) == ("unsealed", "turn 2 answers without a seal")
    assert answers(agreed().dialog) == ()


# Setup beside `sealed`, A's answer, B's answer: whatever a daemon makes of them, or adds below, seals fit.
MODERATED = '\nverdict = "moderator"\n[roles.B]\nrole = "moderator"\npermissions = ["POST", "MODERATE", "DECIDE"]'
CALLED = "No.\n[DEADLOCK: cost | measure]"
ANSWERS = [
    ("", "I am A.\nTURN: B\n\\[PASS]\n[PROPOSAL: x]\n[AGREE: P1]", "I am B.\n\n\n[PROPOSAL P7: y]\n[CONCEDE: P2]\n\n"),
    ('\norder = "parallel"', "[PASS]", "[PASS]"),
    ("", CALLED, CALLED),
    ("", "x" * 20_000, "[QUESTION_FOR_USER: which?]\n## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"),
    ('\nverdict = "vote"', "[PROPOSAL: x]\n[VOTE: P1 approve]", "[PROPOSAL: y]\n[VOTE: P1 approve]"),
    (MODERATED, "[PROPOSAL: x]", "Hm.\n[DECIDE: P1 approve]"),
]


@cases("max_rounds", ["none", "1"])
@cases(("setup", "first", "second"), ANSWERS)
def test_what_is_sealed_is_what_stands_in_the_file_afterwards(
    setup: str, first: str, second: str, max_rounds: str
) -> None:
    more = f"## Setup\n\n```toml\nsealed = true{setup}\n```"
    room = Room(opening("A", "B", turn="A, B", keys=[f"Max Rounds: {max_rounds}"], more=more))
    for who, text in (("A", first), ("B", second)):
        room.says(who, text)
    room.run()
    assert [(a.agent, a.status, a.is_independent) for a in answers(room.dialog)] == [
        ("A", "fits", True),
        ("B", "fits", True),
    ]
