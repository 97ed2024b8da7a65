"""Whose keys count in a shared dialog: the Setup, the KEY mark, what each key may sign; and ways around it."""

from __future__ import annotations

import hashlib
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from dialogd.protocol.grammar import parse, read_on, render
from dialogd.protocol.header import read_header, with_keys
from dialogd.protocol.keys import Keys, key_mark, misuse, read_key, read_keys, spoken, table_of
from dialogd.protocol.model import SYSTEM, USER, Draft, Mark
from dialogd.protocol.state import Dialog
from tests.examples import examples
from tests.protocol.texts import texts
from tests.support.cases import cases


def key(who: str) -> str:
    """A public key that nobody has, another one for each."""
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{hashlib.sha256(who.encode()).hexdigest()[:43]}"


KEYS = Keys({"A": key("A"), "B": key("B")}, {"Ada": key("Ada"), "Bob": key("Bob")})
HEADER = """# Claude Autonomous Dialog

**Topic:** Tabs?
**Agents:** A = Claude A @ http://localhost:3001, B = Claude B @ http://localhost:3002, C = Claude C

---

## Turn 1 — User

Tabs?

TURN: A
"""


def dialog(text: str = "", keys: Keys = KEYS) -> Dialog:
    """A shared dialog, with this behind its first turn."""
    return parse((with_keys(HEADER.partition("---")[0], keys) + "---" + HEADER.partition("---")[2] + text).encode())


def after(before: Dialog, *drafts: Draft) -> Dialog:
    """The dialog with these entries, as daemons write them."""
    for draft in drafts:
        last = before.last
        before = read_on(before, b"\n" + render(draft, last.chain if last else ""))
    return before


def note(by: str, name: str, *marks: Mark, via: str = "", turn: tuple[str, ...] | None = None, body: str = "") -> Draft:
    return Draft(by, name, body=body, marks=marks, turn=turn, attributes=(("via", via),) if via else ())


def keys_of(found: Dialog) -> Keys:
    assert found.state.hand.keys is not None
    return found.state.hand.keys


# -- The table --------------------------------------------------------------------------------------------------------


def test_the_setup_binds_seats_and_people_to_keys() -> None:
    found = dialog()
    assert keys_of(found) == KEYS
    assert found.header.warnings == ()
    assert [KEYS.of(key(who)) for who in ("B", "Bob", "Eve")] == [("B", ""), (USER, "Bob"), ("", "")]
    assert parse(HEADER.encode()).state.hand.keys is None
    assert read_keys(tomllib.loads(table_of(KEYS))["keys"], []) == KEYS


@cases(
    "table, kept, words",
    [
        ('[keys]\nA = "ssh-ed25519"', "", "A has no SSH public key"),
        ("[keys]\nA = 7", "", "A has no SSH public key"),
        (f'[keys.A]\nkey = "{key("A")}"', "", "A has no SSH public key"),
        (f'[keys]\n"A B" = "{key("A")}"', "", "A B has no SSH public key"),
        (f'[keys]\n"A | {key("B")}" = "x"', "", "has no SSH public key"),
        (f'[keys]\n"A | {key("B")}" = ""', "", "has no SSH public key"),
        (f'[keys]\n"" = "{key("A")}"', "", "has no SSH public key"),
        (f'[keys]\nUSER = "{key("Ada")} A\\u001b[2Jda"', "", "USER has no SSH public key"),
        (f'[keys]\nUSER = "{key("Ada")} A | da"', "", "USER has no SSH public key"),
        (f'[keys]\nUSER = ["{key("Ada")}", "{key("Bob")}"]', "User", "two keys under one name"),
        (f'[keys]\nUSER = ["{key("Ada")} Ada", "{key("Bob")} Ada"]', "Ada", "two keys under one name"),
        (f'[keys]\nA = ["{key("A")}", "{key("B")}"]', "A", "two keys under one name"),
        ('keys = "none"', "", "keys is no table"),
        (f'[keys]\nUSER = "{key("Ada")}  Ada\\nByron"', "Ada Byron", ""),
    ],
)
def test_what_is_no_key_is_left_out_with_a_warning(table: str, kept: str, words: str) -> None:
    header = read_header(f"# D\n\n## Setup\n\n```toml\n{table}\n```\n")
    found = read_keys(header.setup["keys"], [])
    assert " ".join((*found.agents, *found.people)) == kept
    assert any(words in warning for warning in header.warnings) if words else header.warnings == ()


@cases(
    "setup",
    [
        "",
        '## Setup\n\n```toml\nverdict = "vote"\n\n[roles.A]\nrole = "moderator"\n```\n\n',
        "## Setup\n\nNo fence.\n\n",
    ],
)
def test_keys_are_put_into_any_header(setup: str) -> None:
    head = HEADER.partition("---")[0]
    text = with_keys(head + setup, KEYS)
    header = read_header(text)
    assert read_keys(header.setup["keys"], []) == KEYS
    assert header.warnings == ()
    before = read_header(head + setup)
    assert {**header.setup, "keys": 0} == {**before.setup, "keys": 0}
    assert (header.agents, header.rules, header.limits) == (before.agents, before.rules, before.limits)


# -- The person's hand ------------------------------------------------------------------------------------------------


def keyed(*marks: Mark, name: str = "Ada") -> Draft:
    return note(USER, name, *marks)


LEFT, BACK = Mark("LEAVE", "b | ill"), Mark("INVITE", "B = Claude B @ http://localhost:3002")
NEW = key_mark("B", key("new"))


@cases(
    "drafts, whose",
    [
        ([keyed(NEW)], {"A": "A", "B": "new"}),
        ([keyed(key_mark("C", key("C")))], {"A": "A", "B": "B", "C": "C"}),
        ([keyed(key_mark(USER, key("new"), "Ada"))], {"A": "A", "B": "B", "Ada": "new"}),
        ([keyed(LEFT)], {"A": "A"}),
        ([keyed(LEFT), keyed(BACK)], {"A": "A"}),  # who comes back has no key until it gets one
        ([keyed(LEFT), keyed(BACK), keyed(NEW)], {"A": "A", "B": "new"}),
        ([keyed(Mark("LEAVE", USER))], {"A": "A", "B": "B"}),
        ([keyed(Mark("LEAVE", "Z"))], {"A": "A", "B": "B"}),
        ([keyed(key_mark("b", key("new")))], {"A": "A", "B": "B", "b": "new"}),  # ids are compared as they stand
        ([keyed(Mark("KEY", "B | none")), keyed(Mark("KEY", "B")), keyed(Mark("KEY"))], {"A": "A", "B": "B"}),
        ([note(SYSTEM, "System", NEW)], {"A": "A", "B": "B"}),
        ([Draft("A", "Claude A", 2, "Yes.", (NEW,), ("B",))], {"A": "A", "B": "B"}),
        ([Draft("A", "Claude A", 2, f"{NEW}\n\nYes.", (), ("B",))], {"A": "A", "B": "B"}),
        # A turn that the person withdraws: what it commanded stays.
        ([Draft(USER, "Ada", 2, "No.", (NEW,), ("B",)), keyed(Mark("STRIKE", "2"))], {"A": "A", "B": "new"}),
    ],
)  # fmt: skip
def test_a_key_is_changed_by_the_persons_hand_alone(drafts: list[Draft], whose: dict[str, str]) -> None:
    found = keys_of(after(dialog(), *drafts))
    people = {"Ada": "Ada", "Bob": "Bob"} | {who: of for who, of in whose.items() if who in KEYS.people}
    agents = {who: of for who, of in whose.items() if who not in KEYS.people}
    assert found == Keys({who: key(of) for who, of in agents.items()}, {who: key(of) for who, of in people.items()})


PAUSED, APPROVED = Mark("PAUSED"), Mark("APPROVED")
OWN = key_mark(USER, key("new"), "Bob")
MISUSES: list[tuple[str, Draft, str, str]] = [
    ("its own turn", Draft("A", "Claude A", 2, "Yes.", (), ("B",)), "A", ""),
    ("a turn by another seat", Draft("A", "Claude A", 2, "Yes.", (), ("B",)), "B", "for A and is signed by B"),
    ("a turn by the person", Draft("A", "Claude A", 2, "Yes.", (), ("B",)), "Ada", "it speaks for A"),
    ("nobody's key", Draft("A", "Claude A", 2, "Yes.", (), ("B",)), "Eve", "its key is nobody's here"),
    ("the person by a seat", note(USER, "Ada", PAUSED), "A", "it speaks for the person and is signed by A"),
    ("the person", note(USER, "Ada", PAUSED), "Ada", ""),
    ("the person's turn", Draft(USER, "Bob", 2, "No.", (), ("B",)), "Bob", ""),
    ("another person", note(USER, "Ada", PAUSED), "Bob", "it speaks for Ada and is signed by Bob"),
    ("a person without name", note(USER, "User", PAUSED), "Ada", "it speaks for User"),
    ("a session's pause", note(USER, "A's session", PAUSED, via="A"), "A", ""),
    ("a session's word", note(USER, "A's session", via="A", body="Look."), "A", ""),
    ("a session's limit", note(USER, "A's session", Mark("LIMIT", "timeout B 30 minutes"), via="A"), "A", ""),
    ("a session's budget", note(USER, "A's session", Mark("LIMIT", "budget $4"), via="A"), "A", "[LIMIT] is"),
    ("a session's key", note(USER, "A's session", NEW, via="A"), "A", "[KEY] is the person's to write"),
    ("a session's yes", note(USER, "A's session", APPROVED, via="A"), "A", "[APPROVED] is the person's"),
    ("a session's call", note(USER, "A's session", via="A", turn=("B",)), "A", "is the person's to write"),
    ("a session's turn", Draft(USER, "A's session", 2, "x", attributes=(("via", "A"),)), "A", "is the person's"),
    ("another's session", note(USER, "B's session", PAUSED, via="B"), "A", "was written by B's session"),
    ("a session, by the person's key", note(USER, "A's session", PAUSED, via="A"), "Ada", "was written by A's session"),
    ("a yes by a seat", note(SYSTEM, "System", APPROVED), "A", "[APPROVED] is the person's to write"),
    ("a yes in a turn", Draft("A", "Claude A", 2, "x", (APPROVED,), ("B",)), "A", "[APPROVED] is the person's"),
    ("a key by a daemon", note(SYSTEM, "System", NEW), "B", "[KEY] is the person's to write"),
    ("a key in a turn", Draft("B", "Claude B", 2, "x", (NEW,), ("A",)), "B", "[KEY] is the person's to write"),
    ("a key in a text", Draft("B", "Claude B", 2, f"{NEW}\n\nx", (), ("A",)), "B", ""),  # which is text
    ("a note of the daemon", note(SYSTEM, "System", Mark("STALLED", "A")), "B", ""),
    ("the same by the person", note(SYSTEM, "System", Mark("STALLED", "A")), "Ada", ""),
    ("the sharer changes any key", note(USER, "Ada", NEW, OWN), "Ada", ""),
    ("a guest changes their own", note(USER, "Bob", OWN), "Bob", ""),
    ("a guest changes a seat's", note(USER, "Bob", NEW), "Bob", "it changes another's key and is signed by Bob"),
    ("a guest makes a new seat", note(USER, "Bob", key_mark("C", key("C"))), "Bob", "another's key"),
    ("a guest makes a person", note(USER, "Bob", key_mark(USER, key("Bob"), "Eve")), "Bob", "another's key"),
    ("a guest takes the sharer's name", note(USER, "Bob", key_mark(USER, key("Bob"), "Ada")), "Bob", "another's key"),
    ("in a turn too", Draft(USER, "Bob", 2, "x", (NEW,), ("A",)), "Bob", "another's key"),
    ("beside their own", note(USER, "Bob", OWN, NEW), "Bob", "another's key"),
]  # fmt: skip


@cases("what, draft, signer, why", MISUSES)
def test_what_each_key_may_sign(what: str, draft: Draft, signer: str, why: str) -> None:
    entry = after(dialog(), draft).entries[-1]
    found = misuse(entry, KEYS, key(signer))
    assert (why in found) if why else not found, f"{what}: {found}"


def test_an_invitation_changes_its_seats_key_and_its_own_once() -> None:
    keys = Keys({"A": key("A"), "B": key("line")}, {"Ada": key("Ada"), "Guest": key("line")})
    draft = note(USER, "Guest", NEW, key_mark(USER, key("guest"), "Guest"))
    found = after(dialog(keys=keys), draft)
    assert not misuse(found.entries[-1], keys, key("line"))
    assert keys_of(found).of(key("line")) == ("", "")
    assert misuse(found.entries[-1], keys_of(found), key("line"))
    again = after(found, note(USER, "Guest", key_mark("B", key("other")))).entries[-1]
    assert "another's key" in misuse(again, keys_of(found), key("guest"))
    turn = Draft("B", "Claude B", 2, "Yes.", (), ("A",))
    assert misuse(
        after(dialog(keys=keys), turn).entries[-1], keys, key("line")
    )  # it is a person's: no turn of the seat's


@cases("what", ["typed", "edited", "unlinked"])
def test_what_is_no_sound_entry_is_signed_by_nobody(what: str) -> None:
    if what == "typed":
        found = dialog(f"\n## Note — Ada\n\n{NEW}\n")
    else:
        good = after(dialog(), note(USER, "Ada", NEW, body="Because."))
        found = read_on(dialog(), b"\n" + render(note(USER, "Ada", NEW, body="Because."), "0" * 16))
        if what == "edited":
            tail = render(note(USER, "Ada", NEW, body="Because."), good.entries[0].chain)
            found = read_on(dialog(), b"\n" + tail.replace(b"Because", b"Becquse"))
    assert "no sound entry" in misuse(found.entries[-1], KEYS, key("Ada"))


# -- Whatever the bytes are -------------------------------------------------------------------------------------------


@examples(200)
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda x: st.lists(x) | st.dictionaries(texts, x))
)
def test_any_table_gives_keys_and_warnings(table: object) -> None:
    warnings: list[str] = []
    keys = read_keys(table, warnings)
    assert all(read_key(f"{one} x") == (one, "x") for one in (*keys.agents.values(), *keys.people.values()))
    assert keys == Keys() or isinstance(table, dict)


@examples(200)
@given(texts, texts, st.sampled_from([USER, "A", "b", ""]))
def test_any_mark_leaves_keys_that_can_be_written_down(text: str, name: str, seat: str) -> None:
    for mark in (Mark("KEY", text), Mark("KEY", f"{seat} | {text}"), Mark("KEY", f"{seat} | {key('new')} {name}")):
        found = KEYS.changed(mark)
        KEYS.held(mark)
        assert read_keys(tomllib.loads(table_of(found))["keys"], []) == found


def test_a_hash_is_eight_words_that_tell_it_from_others() -> None:
    said = spoken(hashlib.sha256(b"").hexdigest())
    assert len(said.split()) == 8
    assert {len(word) for word in said.split()} == {5}
    assert len({spoken(hashlib.sha256(bytes([n])).hexdigest()) for n in range(200)}) == 200
    assert spoken("7f000001" * 8).startswith("lusab babad")  # the example of the paper that defines them
