"""`dialogd verify` finds what was done to a file behind the daemons' backs; its sentences stand in `golden/`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from dialogd import person
from dialogd.protocol.grammar import render
from dialogd.protocol.model import Draft
from tests.cli.command import Commands, reviewed
from tests.cli.test_share import machine, ok, shared
from tests.support.gitdaemon import Repository
from tests.support.room import Room, opening

SEALED = "sealed = true"


def conducted(dialogd: Commands, name: str = "dialog.md") -> bytes:
    """A dialog with a hand-written turn and three framed entries, all sound."""
    log = dialogd.begin("Tabs?", name)
    person.say(log, "Consider tabs")
    person.pause(log)
    person.say(log, "Consider spaces")
    return log.path.read_bytes()


def decided(dialogd: Commands, setup: str = "") -> bytes:
    """Two agents that agreed at once, as their daemons write it."""
    room = Room(opening("A", "B", turn="A, B" if setup else "", setup=setup))
    for who, text in (
        ("A", "## Consensus Summary\n\nPostgres.\nNo cache.\n\n[CONSENSUS_REACHED]"),
        ("B", "Yes.\n[AGREE: P1]\n[RESERVATION: nobody measured]"),
    ):
        room.says(who, text)
    room.run()
    dialogd.file.write_bytes(room.paper.data)
    return room.paper.data


def forged(data: bytes) -> bytes:
    """A turn with a perfect frame that nobody here wrote."""
    prev = re.findall(rb"sha=([0-9a-f]+)", data)[-1].decode()
    return data + b"\n---\n\n" + render(Draft("A", "Claude A", 4, "I agree", turn=("B",)), prev)


def unsealed(data: bytes) -> bytes:
    """Another answer than the one that was sealed, in a sound file."""
    head = data[: data.index(b"## Turn 2")]
    prev = re.findall(rb"sha=([0-9a-f]+)", head)[-1].decode()
    return head + render(
        Draft("A", "Claude A", 2, "Redis.", turn=("B",), attributes=(("re", "1"), ("nonce", "ab"))), prev
    )


# What is done to it, the problem of each entry, how many turns are missing.
HARMS: dict[str, tuple[Callable[[bytes], bytes], list[str], int]] = {
    "edited": (lambda data: data.replace(b"Consider tabs", b"Consider taps"), ["", "edited", "", ""], 0),
    # The first turn has no hash of its own: the next one remembers it.
    "by-hand": (lambda data: data.replace(b":**\nTabs?", b":**\nTaps?"), ["", "chain broken", "", ""], 0),
    "torn": (lambda data: data[:-20], ["", "", "", "damaged"], 0),
    "taken-out": (lambda data: data[: data.index(b"## Note")], ["", ""], 1),
    "forged": (forged, ["", "", "", "", "unknown"], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", ["sound", *HARMS])
def test_what_was_done_to_a_file_is_found(dialogd: Commands, name: str) -> None:
    data = conducted(dialogd)
    harm, problems, missing = HARMS.get(name, (bytes, [""] * 4, 0))
    dialogd.file.write_bytes(harm(data))
    facts = dialogd("verify", "--json")
    assert (facts.code, facts.json["sound"]) == ((0, True) if name == "sound" else (1, False))
    assert [entry["problem"] for entry in facts.json["entries"]] == problems
    assert len(facts.json["missing"]) == missing
    assert all(set(fault) == {"line", "words"} for fault in facts.json["faults"])
    reviewed(dialogd, f"verify-{name}", ["verify", "verify --details"])


DECIDED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "decided": ("", bytes),
    "changed": ("", lambda data: data.replace(b"No cache.", b"A cache.")),
    "sealed": (SEALED, bytes),
    "opened": (SEALED, lambda data: data.replace(b"No cache.", b"A cache.")),
    "reading": (SEALED, lambda data: re.sub(rb"(\[SEALED: [0-9a-f]{64})\]", rb"\1 | could read files]", data, count=1)),
    "unsealed": (SEALED, unsealed),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDED)
def test_what_was_agreed_and_sealed_is_held_against_the_file(dialogd: Commands, name: str) -> None:
    setup, harm = DECIDED[name]
    dialogd.file.write_bytes(harm(decided(dialogd, setup)))
    reviewed(dialogd, f"verify-{name}", ["verify", "verify --details"])
    facts = dialogd("verify", "--json").json
    assert facts["sound"] == (name in ("decided", "sealed"))
    assert facts["compared"] is None
    if name == "decided":
        assert (facts["certificate"]["text"], facts["seals"]) == ("Postgres.\nNo cache.", [])
    seals = {"sealed": ["fits", "fits"], "opened": ["broken", "fits"]}.get(name)
    assert seals is None or [seal["status"] for seal in facts["seals"]] == seals


def test_a_damaged_journal_is_told_and_is_no_harm_to_the_dialog(dialogd: Commands) -> None:
    conducted(dialogd)
    journal = dialogd.log.journals.of("person").path
    journal.write_bytes(b'{"kind": "done"}\n' + journal.read_bytes())
    told, facts = dialogd.all([["verify"], ["verify", "--json"]])
    assert (told.code, facts.code, len(facts.json["journals"])) == (0, 0, 1)
    assert f"line 1 of the journal {journal} is damaged; it is passed over, and the file counts\n" in told.out


def test_a_file_is_compared_with_a_certificate_that_was_kept(dialogd: Commands) -> None:
    data = decided(dialogd)
    certificate = dialogd("verify", "--json").json["certificate"]
    written = {
        "bare": json.dumps(certificate), "plan": json.dumps({"certificate": certificate}),
        "changed": json.dumps({**certificate, "text": "Postgres.\nA cache."}), "bad": "{",
        "none": '{"certificate": null}', "list": "[]",
    }  # fmt: skip
    for name, text in written.items():
        (dialogd.folder / f"{name}.json").write_text(text, encoding="utf-8")
    more = b"\n## Note \xe2\x80\x94 User\n\nThanks.\n\n[RESUMED]\n"
    (dialogd.folder / "more.md").write_bytes(data + more)
    person.say(dialogd.begin("x", "other.md"), "hm", note=True)
    lines = [
        "verify --certificate bare.json", "verify --certificate plan.json more.md",
        "verify --certificate plan.json other.md", "verify --certificate changed.json",
        *(f"verify --certificate {name}.json" for name in ("gone", "bad", "none", "list")),
    ]  # fmt: skip
    reviewed(dialogd, "verify-compared", lines)
    assert dialogd("verify", "--certificate", "plan.json", "--json", "more.md").json["compared"] == [
        "1 entry was added after it"
    ]


def test_a_file_that_was_moved_says_so_and_the_way_back(dialogd: Commands) -> None:
    conducted(dialogd)
    shutil.copy(dialogd.file, dialogd.folder / "copy.md")
    copied, missing = dialogd.all([["verify", "copy.md"], ["verify", "nowhere.md"]])
    assert (copied.code, missing.code) == (0, 2)
    assert copied.out.splitlines()[1].startswith("copied: it was not held against its journals")
    assert copied.out.splitlines()[1].endswith(f"; to do so: dialogd verify {dialogd.file}")
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


# -- A shared dialog --------------------------------------------------------------------------------------------------


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Commands, Commands]:
    """Two machines that share a dialog: each person said something."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    ada, bob = machine(tmp_path, "ada"), machine(tmp_path, "bob")
    ada.begin("Tabs?")
    ok(bob("join", shared(ada, Repository(tmp_path / "repository").url)))
    ok(ada("say", "Look at the editor first."))
    ok(bob("say", "--note", "Ours shows tabs."))
    ok(ada("say", "--note", "Good."))
    return ada, bob


def test_of_a_shared_dialog_it_says_who_signed_what_with_the_log_gone(
    sides: tuple[Commands, Commands], tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "repository")
    for one in sides:
        done = ok(one("verify"))
        assert "unknown" not in done.out
        told = one("verify", "--details").out
        assert "its sharer vouches" in told
        assert "does not authenticate" not in told
        found = one("verify", "--json").json["signed"]
        assert f"compared by voice: {found['words']}" in done.out
        assert found["problem"] == ""
        assert [by["who"] for by in found["by"]] == ["ada", "Guest B", "Guest B"]  # the invitation's key, then his own
        assert sum(len(by["entries"]) for by in found["by"]) == len(one("verify", "--json").json["entries"])
        assert found["sha256"] == sha256(one.file.read_bytes()).hexdigest()


def test_what_is_not_signed_is_named_with_its_entry(sides: tuple[Commands, Commands]) -> None:
    ada, _ = sides
    path = ada.file.with_name("dialog.md.d") / "signatures"
    data, rows = ada.file.read_bytes(), [row for row in path.read_bytes().split(b"\n") if row]
    last = rows[-1].split(b" ")
    other = rows[-2].split(b" ")
    swapped = b" ".join([*last[:3], other[3]])
    changed = data.replace(b"Ours shows tabs.", b"Ours shows Tabs.")

    def told(rows: list[bytes], data: bytes) -> str:
        ada.file.write_bytes(data)
        path.write_bytes(b"\n".join([*rows, b""]))
        done = ada("verify")
        assert done.code == 1, done.out
        return done.out

    assert "nobody's signature covers it" in told(rows[:-1], data)
    assert "not signed: it does not fit" in told([*rows[:-1], swapped], data)
    assert "not signed: its bytes are not those that were signed" in told(rows, changed)
    assert "behind one that is not signed" in told(rows, changed)
    assert "missing: an entry signed by USER" in told(rows, data[: int(other[0])])
    assert "nobody's signature covers it" in told(rows, data + b"\n## Note\n\nMore.\n")
    told([], data)
    path.unlink()
    ada.file.write_bytes(data)
    done = ada("verify")
    assert ("no signatures lie beside it" in done.out, "its signatures are gone" in done.out, done.code) == (
        True,
        True,
        1,
    )
