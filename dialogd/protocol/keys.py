"""Whose keys count in a shared dialog: `[keys]` of the Setup, and what the person changed since. Pure, total.

[keys]
A = "ssh-ed25519 AAAA…"
USER = ["ssh-ed25519 AAAA… Ada", "ssh-ed25519 AAAA… Bob"]

[KEY: A | ssh-ed25519 AAAA…]             A's key from here on
[KEY: USER | ssh-ed25519 AAAA… Ada]      that of the person called Ada
[LEAVE: A]                               ends A's
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dialogd.protocol.marks import FROM_SEATS, MARKS, Who
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Mark

# A public key as OpenSSH writes it (RFC 4253, section 6.6), and whose it is.
_KEY = re.compile(r"((?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]{1,60}) ([A-Za-z0-9+/]{20,4000}={0,2})(?: (.*))?")
_NAME = re.compile(r"[^|\"\\]{1,60}")
_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
SOMEBODY = "User"  # the person whose key has no name: what headings call them


@dataclass(frozen=True, slots=True)
class Keys:
    """Public keys, `TYPE BASE64`: of agents by id, of people by name."""

    agents: Mapping[str, str] = field(default_factory=dict)
    people: Mapping[str, str] = field(default_factory=dict)

    def of(self, key: str) -> tuple[str, str]:
        """Whose key this is: an agent's id and "", or `USER` and a name; two empty texts for nobody's."""
        who = next((agent for agent, known in self.agents.items() if known == key), "")
        name = next((name for name, known in self.people.items() if known == key), "")
        return (USER, name) if name else (who, "")

    def without(self, agent: str) -> Keys:
        """These without an agent that has left."""
        return replace(self, agents={who: key for who, key in self.agents.items() if who != agent})

    def held(self, mark: Mark) -> str:
        """The key that a `KEY` mark replaces; "" for a new one."""
        name = key_holder(mark)
        return self.people.get(name, "") if name else self.agents.get(mark.value.partition("|")[0].strip(), "")

    def changed(self, mark: Mark) -> Keys:
        """These with the key of a `KEY` mark; as they are where that has no form."""
        seat, _, text = mark.value.partition("|")
        found = read_key(text)
        if found is None or not _ID.fullmatch(seat.strip()):
            return self
        key, name = found
        if seat.strip() == USER:
            return replace(self, people={**self.people, name: key})
        return replace(self, agents={**self.agents, seat.strip(): key})


def read_key(text: str) -> tuple[str, str] | None:
    """Key and name of a line of a public key file; None where it is none."""
    match = _KEY.fullmatch(" ".join(text.split()))
    if match is None:
        return None
    name = match[3] or SOMEBODY
    return (f"{match[1]} {match[2]}", name) if _NAME.fullmatch(name) and name.isprintable() else None


def key_holder(mark: Mark) -> str:
    """The name of the person whose key a `KEY` mark sets; "" where it is an agent's."""
    seat, _, text = mark.value.partition("|")
    found = read_key(text)
    return found[1] if found and seat.strip() == USER else ""


def key_mark(seat: str, key: str, name: str = "") -> Mark:
    """The mark by which the person sets a key."""
    return Mark("KEY", f"{seat} | {key}{f' {name}' if name else ''}")


def read_keys(table: object, warnings: list[str]) -> Keys:
    """The keys of a Setup's table; what is none is left out, with a warning."""
    keys = Keys()
    if not isinstance(table, Mapping):
        warnings.append("header: Setup: keys is no table; ignoring it")
    for seat, given in table.items() if isinstance(table, Mapping) else ():
        for text in given if isinstance(given, list) else [given]:
            before, mark = keys, Mark("KEY", f"{seat} | {text}")
            keys = keys.changed(mark)
            if keys is before:
                warnings.append(f"header: Setup: keys: {seat} has no SSH public key; leaving it out")
            elif before.held(mark):
                warnings.append(f"header: Setup: keys: {seat} has two keys under one name; the last one counts")
    return keys


def table_of(keys: Keys) -> str:
    """The `[keys]` table of a Setup."""
    people = ", ".join(f'"{key} {name}"' for name, key in keys.people.items())
    return "\n".join(["[keys]", *(f'{who} = "{key}"' for who, key in keys.agents.items()), f"USER = [{people}]"])


def misuse(entry: Entry, keys: Keys, key: str) -> str:
    """Why an entry may not be signed by this key, as a sentence; "" where it may.

    A seat's key signs what its agent and its daemon write, and what its session may do by the person's hand; all else
    by the person's hand is signed by the key of the person whom the heading names. Keys are changed by the first of the
    people, who shared the dialog, and by whoever holds the one that is changed.
    """
    seat, name = keys.of(key)
    if not seat:
        return "its key is nobody's here"
    if entry.condition is not Condition.SOUND or entry.frame is None or not entry.linked:
        return "it is no sound entry of a daemon that follows the one before it"
    if entry.by == USER and not entry.via:
        if seat != USER:
            return f"it speaks for the person and is signed by {seat}"
        if name != next(iter(keys.people)) and any(keys.held(mark) != key for mark in entry.all("KEY")):
            return f"it changes another's key and is signed by {name}"
        return "" if entry.name == name else f"it speaks for {entry.name} and is signed by {name}"
    hand = [mark for mark in entry.marks if mark.name == "APPROVED" or _is_hands(mark)]
    if entry.by == USER:
        if entry.via != seat and (seat == USER or entry.via in keys.agents):
            return f"it was written by {entry.from_session} and is signed by {name or seat}"
        is_free = entry.turn is None and not entry.is_turn
        return "" if is_free and all(str(mark).startswith(FROM_SEATS) for mark in entry.marks) else _hand(hand, seat)
    if hand:
        return _hand(hand, seat)
    return "" if entry.by in (SYSTEM, seat) else f"it speaks for {entry.by} and is signed by {name or seat}"


def _is_hands(mark: Mark) -> bool:
    return mark.name in MARKS and MARKS[mark.name].who is Who.PERSON


def _hand(marks: Sequence[Mark], seat: str) -> str:
    named = f"[{marks[0].name}]" if marks else "what"
    return f"{named} is the person's to write and it is signed by {seat}"


# -- A hash that two people can compare by voice ----------------------------------------------------------------------

_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"


def spoken(sha: str) -> str:
    """The first 128 bits of a hexadecimal hash as eight words of five letters (proquints, arXiv:0901.4016)."""
    c, v = _CONSONANTS, _VOWELS
    words = (int(sha[at : at + 4], 16) for at in range(0, 32, 4))
    return " ".join(c[w >> 12] + v[w >> 10 & 3] + c[w >> 6 & 15] + v[w >> 4 & 3] + c[w & 15] for w in words)
