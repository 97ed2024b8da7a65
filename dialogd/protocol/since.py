"""What was changed since something was agreed, in words: by the file alone, or against a certificate kept elsewhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dialogd.protocol.certificate import Certificate, certify, until, where
from dialogd.protocol.hand import refs_in, turns_in
from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import same_text
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.signers import Signer, stands, turn_of
from dialogd.protocol.state import Dialog

DIFF_LINES = 12
_SAID = {"vote": "approved", "moderator": "decided", "decide": "decided", "judge": "judged", "person": "agreed"}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not what it was; `is_harm` is False for what may be done: added, struck, ruled out."""

    words: str
    is_harm: bool = True


def changes(dialog: Dialog) -> tuple[Change, ...]:
    """What the file itself shows to be changed since its last decision; nothing while there is none."""
    certificate = certify(dialog)
    if certificate is None:
        return tuple(_withdrawn(dialog, None))
    covered = dialog.entries[: certificate.entries]
    text = tuple(_text(dialog, certificate))
    found = [*text, *_signers(dialog, certificate, skip=certificate.stands_in if text else "")]
    told = {certificate.stands_in if text else "", *(str(s.turn) for s in certificate.signers)}
    for entry in covered:
        if entry.condition in (Condition.EDITED, Condition.DAMAGED) and entry.id not in told:
            found.append(Change(f"{_named(entry)} was {_harm(entry)} after it was written"))
        if not entry.linked:
            found.append(Change(f"the chain is broken at {_named(entry)}: what stood before it was changed, removed"
                                " or inserted"))  # fmt: skip
    return (*found, *_withdrawn(dialog, certificate))


def _named(entry: Entry) -> str:
    return f"{where(entry.id)} of {entry.by}" if entry.condition is not Condition.DAMAGED else f"line {entry.line}"


def _harm(entry: Entry) -> str:
    return "cut or overwritten" if entry.condition is Condition.DAMAGED else "edited"


def _text(dialog: Dialog, certificate: Certificate) -> Iterator[Change]:
    """What became of the agreed text."""
    if not certificate.text:
        yield Change(f"{certificate.title} no longer stands in the file: it was taken out, cut or overwritten")
        return
    now = digest(same_text(certificate.text))
    entry = dialog.entry(certificate.stands_in)
    after = [s for s in certificate.signers if str(s.turn) != certificate.stands_in]
    verb = _verb(certificate)
    who = ", ".join(f"{s.agent} {verb} it in turn {s.turn}" for s in after if s.turn) or "it was written"
    if now != certificate.sha:
        words = f"the agreed text {certificate.title} was changed after {who}"
        yield Change(f"{words}: recorded {certificate.sha}, now {now}")
    elif entry is not None and entry.condition is Condition.EDITED:
        place = f"{where(entry.id)}, where {certificate.ref or 'the text'} stands,"
        yield Change(f"{place} was edited after {who}: {_doubt(dialog, certificate)}")


def _doubt(dialog: Dialog, certificate: Certificate) -> str:
    """What an edited entry leaves of the text in it."""
    if any(p.sha and (p.ref, p.entry) == (certificate.ref, certificate.stands_in) for p in dialog.state.proposals):
        return "the hash recorded there fits the text, and may have been changed with it"
    return "nobody recorded the hash of the text alone, so it may be another one"


def _verb(certificate: Certificate) -> str:
    return _SAID.get(certificate.method, "signed")


def _signers(dialog: Dialog, certificate: Certificate, skip: str) -> Iterator[Change]:
    """Signers whose turn is gone or changed, or no longer says it; `skip` is an entry that was spoken of already."""
    verb, what = _verb(certificate), certificate.ref or "the text"
    for signer in certificate.signers:
        if not signer.turn:
            if certificate.method == "vote":
                yield Change(f"the decision counts {signer.agent} for {what}, and no such vote stands in the file")
            continue
        entry = turn_of(dialog, signer.agent, signer.turn)
        words = f"turn {signer.turn}, in which {signer.agent} {verb} {what}"
        if entry is None:
            yield Change(f"{words}, is gone, cut or overwritten")
        elif not stands(entry, certificate.ref, certificate.method):
            yield Change(f"{words}, no longer says so")
        elif entry.condition is Condition.EDITED and entry.id != skip:
            yield Change(f"{words}, was edited after it was written")


def _withdrawn(dialog: Dialog, certificate: Certificate | None) -> Iterator[Change]:
    """What the person struck or ruled out: their right, and to be known."""
    turns, refs = _agreements(dialog, certificate)
    for entry in dialog.entries:
        if entry.by != USER or entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
            continue
        place = f"by the person in {where(entry.id)}"
        for mark in entry.written:
            if mark.name == "STRIKE":
                struck = sorted(turns_in(mark, dialog.state.number) & turns.keys())
                yield from (Change(f"turn {n}, {turns[n]}, was struck {place}", is_harm=False) for n in struck)
            elif mark.name == "VETO":
                ruled_out = [ref for ref in refs_in(mark) if ref in refs]
                yield from (Change(f"{ref} was ruled out {place}", is_harm=False) for ref in ruled_out)


def _agreements(dialog: Dialog, certificate: Certificate | None) -> tuple[dict[int, str], set[str]]:
    """The turns that an agreement rests, or rested, on, in words; and the proposals that were agreed on."""
    turns: dict[int, str] = {}
    refs: set[str] = set()
    if certificate is not None:
        refs.add(certificate.ref)
        turns |= {s.turn: f"in which {s.agent} {_verb(certificate)} it" for s in certificate.signers if s.turn}
        if certificate.stands_in.isdigit():
            turns[int(certificate.stands_in)] = "in which the agreed text stands"
    for entry in dialog.entries if certificate is None else ():
        made = [mark for mark in entry.written if mark.name == "DECISION" and mark.fields[0] == "approved"]
        refs |= {mark.ref for mark in made}
        if entry.is_struck and (made or any(m.name in ("CONSENSUS_REACHED", "DECIDED") for m in entry.written)):
            turns[entry.number] = f"in which {(made[0].ref if made else '') or 'the text'} was agreed"
    return turns, refs


def compare(saved: Mapping[str, Any], dialog: Dialog) -> tuple[str, ...]:
    """What differs, in words, between a certificate as it was kept (`Certificate.as_json`) and the file as it is."""
    return tuple(change.words for change in differences(saved, dialog))


def differences(saved: Mapping[str, Any], dialog: Dialog) -> tuple[Change, ...]:
    """As `compare`; entries that were added after the certified ones are no harm."""
    count = _place(saved, dialog)
    now = certify(until(dialog, count))
    return (
        *_same_dialog(saved, dialog),
        *(_same_decision(saved, now) if now else _undone(saved, dialog)),
        *_same_entries(saved, dialog.entries[:count]),
        *_added(len(dialog.entries) - count),
    )


def _place(saved: Mapping[str, Any], dialog: Dialog) -> int:
    """How many entries of the file the certificate covers: up to the one that decided, by its hash, else by its id."""
    last = _texts(saved.get("chain"))[-1:]
    for key, value in (("chain", last[0] if last else ""), ("id", str(saved.get("decided_in", "")))):
        for index in range(len(dialog.entries) - 1, -1, -1):
            if value and getattr(dialog.entries[index], key) == value:
                return index + 1
    covered = saved.get("entries")
    return min(covered, len(dialog.entries)) if isinstance(covered, int) and covered > 0 else len(dialog.entries)


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _undone(saved: Mapping[str, Any], dialog: Dialog) -> Iterator[Change]:
    """That what was decided is no longer, by the person's strike or veto or by a change of the file."""
    words = f"nothing is decided there any more: {_was(saved)}"
    by_person = [change.words for change in _withdrawn(dialog, None)]
    yield Change("; ".join([words, *by_person]), is_harm=not by_person)


def _was(saved: Mapping[str, Any]) -> str:
    ref, place = saved.get("ref") or "the text", saved.get("decided_in") or "?"
    return f"the certificate says that {ref} was in {where(str(place))}"


def _same_dialog(saved: Mapping[str, Any], dialog: Dialog) -> Iterator[Change]:
    if saved.get("dialog") not in (None, dialog.id):
        yield Change(f"the certificate is of dialog {saved['dialog']}, this file is dialog {dialog.id}")
    elif saved.get("header") not in (None, "", digest(dialog.header.text)):
        yield Change("the header is not what it was: agents, limits, roles or rules were changed")


_FACTS = {"ref": "proposal", "method": "method", "decided_in": "deciding entry", "decided_at": "time of the decision",
          "evidence": "evidence", "reason": "reason", "sha": "recorded hash of the text"}  # fmt: skip


def _same_decision(saved: Mapping[str, Any], now: Certificate) -> Iterator[Change]:
    facts = now.as_json()
    for key, called in _FACTS.items():
        if key in saved and saved[key] != facts[key]:
            yield Change(f"the {called} was {_quoted(saved[key])}, and is {_quoted(facts[key])}")
    was = str(saved.get("text", ""))
    if was != now.text:
        place = f", in {where(now.stands_in)}," if now.stands_in else ""
        yield Change(f"the agreed text{place} is not what it was:\n{_diff(was, now.text)}")
    yield from _same_signers(saved, now.signers)


def _quoted(value: object) -> str:
    return str(value) if value else "none"


def _diff(was: str, now: str) -> str:
    """A short unified diff."""
    lines = list(difflib.unified_diff(was.split("\n"), now.split("\n"), "certificate", "file", lineterm="", n=1))
    more = len(lines) - DIFF_LINES
    return "\n".join([*lines[:DIFF_LINES], *([f"… {more} more lines"] if more > 0 else [])])


def _same_signers(saved: Mapping[str, Any], signers: Sequence[Signer]) -> Iterator[Change]:
    kept = saved.get("signers")
    was = {str(s.get("agent")): s for s in kept if isinstance(s, Mapping)} if isinstance(kept, list) else {}
    now = {signer.agent: signer for signer in signers}
    for who, one in was.items():
        if who not in now:
            yield Change(f"{who}, who stood behind it in turn {one.get('turn')}, no longer does")
            continue
        for key in ("turn", "at", "reservation"):
            before, after = one.get(key), getattr(now[who], key)
            if before is not None and before != after:
                called = {"at": "time", "reservation": "remaining objection"}.get(key, key)
                yield Change(f"{who}'s {called} was {_quoted(before)}, and is {_quoted(after)}")
    yield from (Change(f"{who} stands behind it now, and did not") for who in now if who not in was)


def _same_entries(saved: Mapping[str, Any], entries: Sequence[Entry]) -> Iterator[Change]:
    """Entries that are not what they were, by their hashes; by the first and last one where it names no others."""
    was = _texts(saved.get("links")) or _texts(saved.get("chain"))
    now = [entry.chain for entry in entries]
    is_whole = len(was) != 2 or saved.get("entries") == 2
    for index, entry in enumerate(entries):
        edited = entry.condition in (Condition.EDITED, Condition.DAMAGED)
        is_new = entry.chain not in was if is_whole else (index == 0 and was[:1] != now[:1])
        if not edited and not is_new:
            continue
        inserted = is_whole and index < len(was) and was[index] in now
        what = "was not there" if is_new and inserted else "is not what it was"
        yield Change(f"entry {index + 1} ({_named(entry)}) {what}")
    if is_whole:
        lost = [i + 1 for i, sha in enumerate(was) if sha not in now and (i >= len(now) or now[i] in was)]
        yield from (Change(f"entry {number} is gone") for number in lost)
    elif was and was[-1] not in now:
        yield Change("the entry that decided is not what it was, or is gone")
    if not is_whole and isinstance(saved.get("entries"), int) and saved["entries"] != len(entries):
        yield Change(f"it covers {saved['entries']} entries, there are {len(entries)} up to the same one now")


def _added(count: int) -> Iterator[Change]:
    if count > 0:
        words = "1 entry was" if count == 1 else f"{count} entries were"
        yield Change(f"{words} added after it", is_harm=False)
