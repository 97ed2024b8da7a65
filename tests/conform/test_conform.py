"""`dialogd conform`: a participant that keeps the protocol passes, and each that does not is told what is wrong."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dialogd.conform import CHECKS, FAIL, OK, SKIPPED
from dialogd.protocol.grammar import parse
from dialogd.protocol.strict import faults
from tests.cli.command import Commands
from tests.conform.guest import MISSING, Guest, OurGuest, free_port
from tests.support.pair import Pair

needs_node = pytest.mark.skipif(bool(MISSING), reason=MISSING)
FAST = ("health", "host", "origin", "another", "waits", "turn", "told", "body", "lock", "condition", "agreed", "limit")

TABLE = Path(__file__).with_name("broken.toml").read_text(encoding="utf-8")
BROKEN = {each["name"]: each for each in tomllib.loads(TABLE)["participant"]}


def changes(broken: dict[str, Any]) -> list[tuple[str, str]]:
    """What is replaced in the code of a broken participant."""
    return [(change["find"], change["replace"]) for change in broken["change"]]


@needs_node
def test_the_reference_participant_keeps_what_is_quickly_tried(tmp_path: Path) -> None:
    with Guest(tmp_path) as guest:
        found = guest.tried(*FAST, quiet=0.3)
    assert {name: check.words for name, check in found.items() if check.status != OK} == {}
    assert tuple(name for name in CHECKS if name in FAST) == tuple(found)


@needs_node
def test_a_broken_participant_is_told_what_is_wrong(tmp_path: Path) -> None:
    broken = BROKEN["names itself"]
    with Guest(tmp_path, changes(broken)) as guest:
        (check,) = guest.tried("turn", quiet=0.3).values()
    assert check.status == FAIL
    assert re.search(broken["says"], check.words), check.words
    assert any(broken["says"] in str(fault) for fault in faults(guest.file.read_bytes()))


def test_nobody_there_and_no_such_check(dialogd: Commands) -> None:
    here = ["conform", "--url", f"http://localhost:{free_port()}", "--file", "d.md"]
    nobody, unknown, away = dialogd.all(
        [here, [*here, "--only", "mood"], ["conform", "--url", "http://example.com:80", "--file", "d.md"]]
    )
    assert (nobody.code, unknown.code, away.code) == (3, 2, 2)
    assert "no check is called 'mood'" in unknown.err
    assert "is no loopback address" in away.err


@needs_node
def test_the_command_says_ok_and_skipped_line_by_line(dialogd: Commands) -> None:
    with Guest(dialogd.folder) as guest:
        words = ["conform", "--url", guest.url, "--file", str(guest.file), "--quiet", "0.3"]
        only = ["--only", "another", "--only", "text", "--only", "restart"]
        plain = dialogd(*words, *only)
        facts = dialogd(*words, *only, "--json")
    assert plain.code == 0
    rows = plain.out.splitlines()
    assert rows[0] == "ok      another: a request about another dialog is refused with 409"
    assert rows[1].startswith("skipped text: structure in its model's text stays text: name the file")
    assert rows[-1] == "3 checks: 1 ok, 0 FAIL, 2 skipped"
    assert facts.json["ok"] is True
    assert [check["status"] for check in facts.json["checks"]] == [OK, SKIPPED, SKIPPED]


@needs_node
def test_a_dialog_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    with Guest(tmp_path) as guest:
        guest.file.write_text("# Ours\n\n**Agents:** Z = Zoe, B = Bob\n\n---\n\n## Turn 1 — User\n\nWell?\n\nTURN: Z\n")
        before = guest.file.read_bytes()
        found = guest.tried("turn", "told", quiet=0.3)
    assert guest.file.read_bytes().startswith(before)
    assert (found["turn"].status, found["told"].status) == (OK, SKIPPED)
    assert {entry.by for entry in parse(guest.file.read_bytes()).entries} == {"USER", "Z", "B"}


# -- The whole of it, with many processes -----------------------------------------------------------------------------


@needs_node
@pytest.mark.slow
def test_the_reference_participant_passes(tmp_path: Path) -> None:
    with Guest(tmp_path) as guest:
        found = guest.tried()
    assert {name: check.words for name, check in found.items() if check.status != OK} == {}
    assert list(found) == list(CHECKS)


@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_participant_fails_with_its_sentence(tmp_path: Path, name: str) -> None:
    broken = BROKEN[name]
    with Guest(tmp_path, changes(broken)) as guest:
        (check,) = guest.tried(broken["check"]).values()
    assert check.status == FAIL, check
    assert re.search(broken["says"], check.words), check.words


@pytest.mark.slow
def test_a_daemon_passes(tmp_path: Path) -> None:
    """What dialogd itself starts keeps its own protocol, in every check."""
    with OurGuest(tmp_path) as guest:
        found = guest.tried()
    assert {name: check.words for name, check in found.items() if check.status != OK} == {}


@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("first", "AB")
def test_the_reference_participant_and_a_daemon_hold_a_dialog(tmp_path: Path, first: str) -> None:
    guest = Guest(tmp_path, mind=False)
    with Pair(tmp_path, "A", backend="rehearsal") as pair:
        pair.file = guest.file
        pair.start()
        agents = f"A = Claude A @ {pair.url('A')}, B = Node @ {guest.url}"
        asked = f"## Turn 1 — User\n\nTabs or spaces?\n\nTURN: {first}\n"
        guest.file.write_text(f"# Tabs or spaces?\n\n**Agents:** {agents}\n\n---\n\n{asked}")
        with guest:
            pair.notify("A")
            guest.notify()
            pair.until(lambda: pair.outcome, "the end")
    dialog = parse(guest.file.read_bytes())
    assert pair.outcome == "CONSENSUS_REACHED"
    assert {entry.by for entry in dialog.turns} == {"USER", "A", "B"}
    assert faults(guest.file.read_bytes()) == ()
