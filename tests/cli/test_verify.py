"""`dialogd verify` finds what was done to a file behind the daemons' backs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

from dialogd import person
from dialogd.protocol.render import Draft, render
from tests.cli.command import Commands


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
    """Exit code 0; framed entries are sound, the first turn is by hand; a copy elsewhere passes as well."""
    conducted(dialogd)
    shutil.copy(dialogd.file, dialogd.folder / "copy.md")
    here, there, missing = dialogd.all([["verify", "--json"], ["verify", "copy.md"], ["verify", "nowhere.md"]])
    assert (here.code, there.code, missing.code) == (0, 0, 2)
    assert here.json["sound"] is True
    assert [entry["condition"] for entry in here.json["entries"]] == ["by hand", "sound", "sound", "sound"]
    assert there.out.endswith("4 entries, no problems, none missing\n")


def test_what_was_done_to_it_is_found(dialogd: Commands) -> None:
    """Exit code 1, and the entry, line and kind of the harm."""
    for harm, _, _ in HARMS:
        (dialogd.folder / f"{harm.__name__}.md").write_bytes(harm(conducted(dialogd, f"{harm.__name__}.md")))
    found = dialogd.all([["verify", "--json", f"{harm.__name__}.md"] for harm, _, _ in HARMS])
    for done, (harm, problems, missing) in zip(found, HARMS, strict=True):
        assert done.code == 1, harm.__name__
        assert [entry["problem"] for entry in done.json["entries"]] == problems, harm.__name__
        assert len(done.json["missing"]) == missing, harm.__name__


def test_harm_is_told_in_words(dialogd: Commands) -> None:
    """The line of the file, the turn, and where the text of a missing turn is kept."""
    data = conducted(dialogd)
    dialogd.file.write_bytes(edited(taken_out(data)))
    done = dialogd("verify", str(dialogd.file))
    line = data[: data.index(b"## Turn 2")].count(b"\n") + 1
    assert f"line {line}: turn 2, User: edited" in done.out
    assert "missing: Turn 3 — User" in done.out
    assert str(dialogd.state.dialog(dialogd.file)) in done.out
    assert done.out.endswith("2 entries, 1 problem, 1 missing\n")
