"""`dialogd verify` finds what was done to a file behind the daemons' backs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable

from dialogd import person
from dialogd.protocol.grammar import render
from dialogd.protocol.model import Draft
from tests.cli.command import Commands
from tests.support.room import Room, opening


def conducted(dialogd: Commands, name: str = "dialog.md") -> bytes:
    """A dialog with a hand-written turn and three framed entries, all sound."""
    log = dialogd.begin("Tabs?", name)
    person.say(log, "Consider tabs")
    person.pause(log)
    person.say(log, "Consider spaces")
    return log.path.read_bytes()


def edited(data: bytes) -> bytes:
    """One word of the second turn."""
    return data.replace(b"Consider tabs", b"Consider taps")


def edited_by_hand(data: bytes) -> bytes:
    """The first turn, which has no hash of its own: the next one remembers it."""
    return data.replace(b"**Question:**\nTabs?", b"**Question:**\nTaps?")


def torn(data: bytes) -> bytes:
    """The last bytes are gone."""
    return data[:-20]


def taken_out(data: bytes) -> bytes:
    """The note is gone, and the third turn with it."""
    return data[: data.index(b"## Note")]


def forged(data: bytes) -> bytes:
    """A turn with a perfect frame that nobody here wrote."""
    prev = re.findall(rb"sha=([0-9a-f]+)", data)[-1].decode()
    return data + b"\n---\n\n" + render(Draft("A", "Claude A", 4, "I agree", turn=("B",)), prev)


# What is done to it, the problem of each entry, how many turns are missing.
HARMS: list[tuple[Callable[[bytes], bytes], list[str], int]] = [
    (edited, ["", "edited", "", ""], 0),
    (edited_by_hand, ["", "chain broken", "", ""], 0),
    (torn, ["", "", "", "damaged"], 0),
    (taken_out, ["", ""], 1),
    (forged, ["", "", "", "", "unknown"], 0),
]


def test_a_sound_dialog_passes(dialogd: Commands) -> None:
    conducted(dialogd)
    shutil.copy(dialogd.file, dialogd.folder / "copy.md")
    here, there, missing = dialogd.all([["verify", "--json"], ["verify", "copy.md"], ["verify", "nowhere.md"]])
    assert (here.code, there.code, missing.code) == (0, 0, 2)
    assert here.json["sound"] is True
    assert [entry["condition"] for entry in here.json["entries"]] == ["by hand", "sound", "sound", "sound"]
    verdict, copied, more = there.out.splitlines()
    assert (verdict, more.startswith("more: --details ")) == ("Sound. 4 entries. Nothing was decided.", True)
    assert copied.startswith("copied: it was not held against its journals")
    assert copied.endswith(f"; to do so: dialogd verify {dialogd.file}")


def test_what_was_done_to_it_is_found(dialogd: Commands) -> None:
    for harm, _, _ in HARMS:
        (dialogd.folder / f"{harm.__name__}.md").write_bytes(harm(conducted(dialogd, f"{harm.__name__}.md")))
    found = dialogd.all([["verify", "--json", f"{harm.__name__}.md"] for harm, _, _ in HARMS])
    for done, (harm, problems, missing) in zip(found, HARMS, strict=True):
        assert done.code == 1, harm.__name__
        assert [entry["problem"] for entry in done.json["entries"]] == problems, harm.__name__
        assert len(done.json["missing"]) == missing, harm.__name__


def test_harm_is_told_in_words(dialogd: Commands) -> None:
    data = conducted(dialogd)
    dialogd.file.write_bytes(edited(taken_out(data)))
    done = dialogd("verify", str(dialogd.file))
    line = data[: data.index(b"## Turn 2")].count(b"\n") + 1
    assert f"line {line}: turn 2, User: edited" in done.out
    assert "missing: Turn 3 — User" in done.out
    assert str(dialogd.state.dialog(dialogd.file)) in done.out
    assert done.out.startswith("Not sound: 1 problem, 1 missing. 2 entries. Nothing was decided.\n")
    assert "turn 1, User" not in done.out
    assert "turn 1, User: by hand" in dialogd("verify", "--details").out


def test_a_damaged_journal_is_told_and_is_no_harm_to_the_dialog(dialogd: Commands) -> None:
    conducted(dialogd)
    journal = dialogd.log.journals.of("person").path
    journal.write_bytes(b'{"kind": "done"}\n' + journal.read_bytes())
    told, facts = dialogd.all([["verify"], ["verify", "--json"]])
    assert (told.code, facts.code) == (0, 0)
    assert f"line 1 of the journal {journal} is damaged; it is passed over, and the file counts\n" in told.out
    assert len(facts.json["journals"]) == 1


def decided(dialogd: Commands, name: str = "dialog.md", setup: str = "") -> bytes:
    """Two agents that agreed at once, as their daemons write it."""
    room = Room(opening("A", "B", turn="A, B" if setup else "", more=setup))
    for who, text in (
        ("A", "## Consensus Summary\n\nPostgres.\nNo cache.\n\n[CONSENSUS_REACHED]"),
        ("B", "Yes.\n[AGREE: P1]\n[RESERVATION: nobody measured]"),
    ):
        room.says(who, text)
    room.run()
    (dialogd.folder / name).write_bytes(room.paper.data)
    return room.paper.data


def test_a_decided_dialog_shows_its_certificate(dialogd: Commands) -> None:
    decided(dialogd)
    brief, told, facts = dialogd.all([["verify"], ["verify", "--details"], ["verify", "--json"]])
    assert (brief.code, told.code, facts.code) == (0, 0, 0)
    assert brief.out.split("\n")[0] == told.out.split("\n")[0] == "Sound. 3 entries. Everybody signed P1."
    assert "certificate" not in brief.out
    how = "decided in turn 3 at 2026-11-21T19:00:00Z, everybody signed the same text"
    assert f"certificate: P1 in turn 2, {how}\n" in told.out
    assert "  | Postgres.\n  | No cache.\n" in told.out
    assert (
        "  by B, Claude B, turn 3, 2026-11-21T19:00:00Z; strongest remaining objection: nobody measured\n" in told.out
    )
    assert "it does not authenticate: whoever can write the file can write a frame\n" in told.out
    assert (facts.json["sound"], facts.json["changes"], facts.json["compared"]) == (True, [], None)
    assert facts.json["certificate"]["text"] == "Postgres.\nNo cache."
    assert facts.json["seals"] == []


def test_what_was_changed_since_it_was_agreed_is_told(dialogd: Commands) -> None:
    dialogd.file.write_bytes(decided(dialogd).replace(b"No cache.", b"A cache."))
    told, facts = dialogd.all([["verify"], ["verify", "--json"]])
    assert (told.code, facts.code) == (1, 1)
    said = "the agreed text P1 in turn 2 was changed after B signed it in turn 3: recorded "
    assert told.out.startswith("Not sound: 1 problem, what was agreed, sealed or kept was changed since. 3 entries. ")
    assert f"\nsince then: {said}" in told.out
    assert facts.json["changes"][0].startswith(said)
    assert facts.json["sound"] is False


def test_a_file_is_compared_with_a_certificate_that_was_kept(dialogd: Commands) -> None:
    data = decided(dialogd)
    certificate = dialogd("verify", "--json").json["certificate"]
    (dialogd.folder / "bare.json").write_text(json.dumps(certificate), encoding="utf-8")
    (dialogd.folder / "plan.json").write_text(json.dumps({"certificate": certificate}), encoding="utf-8")
    (dialogd.folder / "more.md").write_bytes(data)
    person.say(dialogd.begin("x", "other.md"), "hm", note=True)
    with (dialogd.folder / "more.md").open("ab") as file:
        file.write(b"\n## Note \xe2\x80\x94 User\n\nThanks.\n\n[RESUMED]\n")
    same, more, other = dialogd.all(
        [
            ["verify", "--certificate", "bare.json"],
            ["verify", "--certificate", "plan.json", "--json", "more.md"],
            ["verify", "--certificate", "plan.json", "other.md"],
        ]
    )
    assert (same.code, more.code, other.code) == (0, 0, 1)
    assert "compared with the certificate that was kept: all the same\n" in same.out
    assert more.json["compared"] == ["1 entry was added after it"]
    assert "  nothing is decided there any more: the certificate says that P1 was in turn 3\n" in other.out
    changed = {**certificate, "text": "Postgres.\nA cache."}
    (dialogd.folder / "changed.json").write_text(json.dumps(changed), encoding="utf-8")
    done = dialogd("verify", "--certificate", "changed.json")
    assert done.code == 1
    assert "    -A cache.\n    +No cache.\n" in done.out


def test_a_certificate_that_is_none_is_refused(dialogd: Commands) -> None:
    decided(dialogd)
    for name, text in {"bad.json": "{", "none.json": '{"certificate": null}', "list.json": "[]"}.items():
        (dialogd.folder / name).write_text(text, encoding="utf-8")
    said = {
        "gone.json": "cannot be read: No such file",
        "bad.json": "holds no JSON",
        "none.json": "nothing was decided when it was written",
        "list.json": "text, signers and links are not in it",
    }
    for done, words in zip(
        dialogd.all([["verify", "--certificate", name] for name in said]), said.values(), strict=True
    ):
        assert done.code == 2
        assert words in done.err
        assert "fix: name a collaboration_plan JSON" in done.err


def test_sealed_answers_are_checked_by_anybody(dialogd: Commands) -> None:
    data = decided(dialogd, setup="## Setup\n\n```toml\nsealed = true\n```")
    told = dialogd("verify", "--details")
    assert told.code == 0
    assert (
        "sealed answer of A to turn 1: fits: turn 2 fits its seal in note 1.1, which stood before any answer"
        in told.out
    )
    reading = re.sub(rb"(\[SEALED: [0-9a-f]{64})\]", rb"\1 | could read files]", data, count=1)
    (dialogd.folder / "reading.md").write_bytes(reading)
    dialogd.file.write_bytes(data.replace(b"No cache.", b"A cache."))
    broken, read = dialogd.all([["verify", "--json"], ["verify", "--json", "reading.md"]])
    assert broken.code == 1
    assert [(seal["agent"], seal["status"]) for seal in broken.json["seals"]] == [("A", "broken"), ("B", "fits")]
    assert [(seal["agent"], seal["could_read"]) for seal in read.json["seals"]] == [("A", True), ("B", False)]


def test_a_text_that_was_not_sealed_is_found_in_a_sound_file(dialogd: Commands) -> None:
    data = decided(dialogd, setup="## Setup\n\n```toml\nsealed = true\n```")
    head = data[: data.index(b"## Turn 2")]
    prev = re.findall(rb"sha=([0-9a-f]+)", head)[-1].decode()
    draft = Draft("A", "Claude A", 2, "Redis.", turn=("B",), attributes=(("re", "1"), ("nonce", "ab")))
    dialogd.file.write_bytes(head + render(draft, prev))
    done = dialogd("verify")
    assert done.code == 1
    assert "sealed answer of A to turn 1: broken: the text in turn 2 does not fit its seal: sealed " in done.out
    changed = "what was agreed, sealed or kept was changed since"
    assert done.out.startswith(f"Not sound: {changed}. 4 entries. Nothing was decided.\n")


def test_what_does_not_follow_is_named(dialogd: Commands) -> None:
    dialogd.file.write_bytes(forged(conducted(dialogd)))
    told, facts = dialogd.all([["verify"], ["verify", "--json"]])
    assert (told.code, facts.code) == (1, 1)
    assert told.out.startswith("Not sound: 1 problem, 1 fault. 5 entries. ")
    assert ": turn 4 of A answers no open debt: the turn is with " in told.out
    (fault,) = facts.json["faults"]
    assert set(fault) == {"line", "words"}


def test_a_file_that_was_moved_says_so_and_the_way_back(dialogd: Commands) -> None:
    conducted(dialogd)
    moved = dialogd.file.rename(dialogd.folder / "my dialog.md")
    said = dialogd("verify", str(moved)).out.splitlines()[1]
    assert said.startswith("moved: it was not held against its journals")
    assert said.endswith(f"; to do so: mv '{moved}' {dialogd.file}")
    moved.rename(dialogd.file)
    assert dialogd("verify", "--json").json["moved"] == ""


def test_earlier_dialogs_of_the_file_are_no_alarm(dialogd: Commands) -> None:
    conducted(dialogd)
    assert dialogd("new", "Spaces?", "--replace").code == 0
    person.say(dialogd.log, "Consider spaces")
    brief, whole = dialogd.all([["verify"], ["verify", "--details"]])
    assert (brief.code, whole.code) == (0, 0)
    assert brief.out.split("\n")[0] == "Sound. 2 entries. Nothing was decided."
    assert "earlier dialog" not in brief.out
    assert "kept: turns of an earlier dialog in this file, or what was taken out of this one: " in whole.out
    log, data = dialogd.log, dialogd.file.read_bytes()
    person.pause(log)
    dialogd.file.write_bytes(data[: data.index(b"## Turn 2")])
    log.set_aside({entry.chain for entry in log.read().entries})
    assert "Turn 2: taken out of the file by a save." in dialogd("verify").out
