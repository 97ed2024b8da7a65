"""Budgets: what was spent stands in the frames, and no turn is begun that would pass what may be spent."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dialogd.errors import BackendError
from dialogd.protocol.decide import Action, Reply, Stop, Wait, Write, decide
from dialogd.protocol.grammar import joint, parse, read_on, render
from dialogd.protocol.header import read_header
from dialogd.protocol.lifecycle import signals
from dialogd.protocol.marks import ParsedReply
from dialogd.protocol.model import Addition, Condition, Draft, Limits, Mark
from dialogd.protocol.state import (
    Debt,
    Debts,
    Dialog,
    Estimate,
    Spent,
    State,
    account,
    allowance,
    budget_standing,
    estimate,
    in_dollars,
    in_tokens,
    reached,
    total,
    used,
)
from dialogd.protocol.text import MAX_COUNT, MAX_TOKENS, Budget, budget_line, dollars, read_budget
from tests.examples import examples
from tests.support.cases import cases
from tests.support.room import Room, opening, waits

GOLDEN = Path(__file__).with_name("golden") / "budget.md"
UPDATE = bool(os.environ.get("UPDATE_GOLDENS"))

Bill = tuple[tuple[str, str], ...]


def bill(usd: str = "", tokens_in: int | None = None, tokens_out: int | None = None) -> Bill:
    """The attributes of a frame that give account; "" and None for what nobody knows."""
    counts = ["" if count is None else str(count) for count in (tokens_in, tokens_out)]
    return (("calls", "1"), ("in", counts[0]), ("out", counts[1]), ("usd", usd))


class Shop(Room):
    """A room in which turns cost something: `bills` are those of the coming entries, `next` what each agent expects."""

    def __init__(self, text: str, bills: Sequence[Bill] = (), **scripts: Sequence[str | BackendError | None]) -> None:
        self.bills = list(bills)
        self.next: dict[str, Estimate] = {}
        self.caps: dict[str, Estimate] = {}
        self.unpriced: set[str] = set()
        self.paid: set[str] = set()
        super().__init__(text, **scripts)

    def look(self, me: str) -> Action:
        """What agent `me` would do, knowing its prices."""
        clock = replace(
            self.clock(),
            next=self.next.get(me, Estimate()),
            cap=self.caps.get(me, Estimate()),
            priced=me not in self.unpriced,
            paid=me in self.paid,
        )
        return decide(self.dialog, me, clock)

    def _turn(self, now: Dialog, me: str, debt: Debt, reply: ParsedReply) -> Addition | None:
        return self._billed(super()._turn(now, me, debt, reply))

    def _failed(self, now: Dialog, me: str, debt: Debt, error: BackendError) -> Addition | None:
        return self._billed(super()._failed(now, me, debt, error))

    def _billed(self, addition: Addition | None) -> Addition | None:
        if addition is None or not self.bills:
            return addition
        attributes = (*addition.draft.attributes, *self.bills.pop(0))
        return replace(addition, draft=replace(addition.draft, attributes=attributes))


def appended(data: bytes, draft: Draft) -> bytes:
    """The file with the drafted entry at its end."""
    dialog = parse(data)
    return data + joint(dialog) + render(draft, dialog.last.chain if dialog.last else "")


def spent(room: Room) -> dict[str, Spent]:
    """What the file says that each agent has spent."""
    return dict(room.dialog.state.spent)


def ending(room: Room) -> tuple[str, str]:
    """How the dialog ended, and why."""
    outcome = room.dialog.state.outcome
    return (outcome.name, outcome.reason) if outcome else ("", "")


# -- what a budget is ----------------------------------------------------------------------------------------------

BUDGETS = {
    "$2.00": (2.0, None),
    "$2": (2.0, None),
    "2 USD": (2.0, None),
    "USD 2": (2.0, None),
    "US$ 2": (2.0, None),
    "2.00 dollars": (2.0, None),
    "1 dollar": (1.0, None),
    "2$": (2.0, None),
    "2 US dollars": (2.0, None),
    "$1,234.50": (1234.5, None),
    "200,000 tokens": (None, 200_000),
    "200000 Tokens": (None, 200_000),
    "500k tokens": (None, 500_000),
    "1.5M tokens": (None, 1_500_000),
    "$2.00, 500k tokens": (2.0, 500_000),
    "500k tokens and $2": (2.0, 500_000),
    "$2 200,000 tokens": (2.0, 200_000),
    " $0.0061 ": (0.0061, None),
}
NONE = [
    "", "2", "200k", "$", "$0", "$-2", "0 tokens", "0.5 tokens", "$2, $3", "1k tokens, 2k tokens", "$2 each", "€2",
    "$nan", "$inf", "$1e9", "$2000000", "soon", "$2,", "$2 or", "2 USDT", "$٣", "9999999999999 tokens", "$1.2.3",
]  # fmt: skip


@cases(("text", "amounts"), BUDGETS.items())
def test_a_budget_is_read_as_people_write_it(text: str, amounts: Budget) -> None:
    assert read_budget(text) == amounts
    header = read_header(f"# D\n\n**Budget:** {text}\n")
    assert ((header.limits.budget, header.limits.tokens), header.warnings) == (amounts, ())
    assert Limits().changed(f"budget {text}") == (Limits(budget=amounts[0], tokens=amounts[1]), "")


@cases("text", NONE)
def test_what_is_no_budget_sets_none_and_says_why(text: str) -> None:
    with pytest.raises(ValueError, match=r"budget|between|kind"):
        read_budget(text)
    header = read_header(f"# D\n\n**Budget:** {text}\n")
    assert (header.limits, len(header.warnings)) == (Limits(), 1)
    assert "Budget" in header.warnings[0]
    before = Limits(budget=3.0)
    assert before.changed(f"budget {text}")[0] == before
    assert before.changed(f"budget {text}")[1].startswith("budget: ")


dollar_amounts = st.integers(1, 10**12).map(lambda micros: micros / 1e6)


@given(st.one_of(st.none(), dollar_amounts), st.one_of(st.none(), st.integers(1, MAX_TOKENS)))
def test_a_budget_that_is_written_is_read_back(usd: float | None, tokens: int | None) -> None:
    line = budget_line(usd, tokens)
    assert read_budget(line) == (usd, tokens) if line else (usd, tokens) == (None, None)


@cases(
    ("amount", "text"),
    [(0.0, "$0.00"), (2.0, "$2.00"), (0.5, "$0.50"), (0.0061, "$0.0061"), (0.34567, "$0.3457"), (1234.5, "$1,234.50"),
     (0.00001, "under $0.0001"), (0.99999, "$1.00")],
)  # fmt: skip
def test_dollars_are_written_as_people_do(amount: float, text: str) -> None:
    assert dollars(amount) == text


def test_a_limit_note_names_the_budget_anew_as_a_whole() -> None:
    room = Room(opening(keys=["Budget: $2, 500k tokens"]))
    room.types("\n[LIMIT: budget $4]\n")
    assert (room.dialog.state.limits.budget, room.dialog.state.limits.tokens) == (4.0, None)
    room.types("\n[LIMIT: Budget = 1M tokens]\n")
    assert (room.dialog.state.limits.budget, room.dialog.state.limits.tokens) == (None, 1_000_000)


# -- what was spent ------------------------------------------------------------------------------------------------


@cases(
    ("fields", "expected"),
    [
        (("812", "240", "0.0061"), Spent(1, 6100, 812, 240)),
        (("~812", "~240", "~0.0061"), Spent(1, 6100, 812, 240, exact=False)),
        (("0", "0", "0"), Spent(1)),
        (("812", "240", ""), Spent(1, 0, 812, 240, unknown=1)),
        (("", "", ""), Spent(1, unknown=1, uncounted=1)),
        (("812", "", "0.5"), Spent(1, 500_000, 812, 0, uncounted=1)),
        (("-1", "1e3", "-0.5"), Spent(1, unknown=1, uncounted=1)),
        (("many", "٣", "nan"), Spent(1, unknown=1, uncounted=1)),
        (("9" * 13, "1", "inf"), Spent(1, 0, 0, 1, unknown=1, uncounted=1)),
        (("1", "1", "~~1"), Spent(1, 0, 1, 1, unknown=1)),
        (("1", "1", "1" * 10), Spent(1, 0, 1, 1, unknown=1)),
    ],
)
def test_a_frame_is_read_for_what_it_says(fields: tuple[str, str, str], expected: Spent) -> None:
    assert account(*fields) == expected


bills = st.builds(
    bill,
    st.one_of(st.sampled_from(["", "~0.1", "nonsense", "0.3", "0.1", "0.7"]), st.decimals(0, 999, places=6).map(str)),
    st.one_of(st.none(), st.integers(0, 10**6)),
    st.one_of(st.none(), st.integers(0, 10**6)),
)
entries = st.lists(st.tuples(st.sampled_from(["A", "B", "error", "person", "stall"]), bills), max_size=8)


def written(talk: Sequence[tuple[str, Bill]]) -> tuple[bytes, list[int]]:
    """A file with these entries, and the offsets at which each of them ends."""
    data = opening(turn="A, B").encode()
    offsets = []
    for who, attributes in talk:
        number = parse(data).state.number + 1
        draft = {
            "error": Draft("SYSTEM", "System", marks=(Mark("AGENT_ERROR", "B | cause | fix"),), attributes=attributes),
            "stall": Draft("SYSTEM", "System", marks=(Mark("STALLED", "B"),), attributes=attributes),
            "person": Draft("USER", "User", number, "Well.", turn=("A", "B"), attributes=attributes),
        }.get(who, Draft(who, who, number, "Well.", turn=("A", "B"), attributes=attributes))
        data = appended(data, draft)
        offsets.append(len(data))
    return data, offsets


def expected_sum(talk: Sequence[tuple[str, Bill]], agent: str) -> Spent:
    """What an agent has spent, worked out on its own: in fractions, from the text of each account."""
    mine = [dict(attributes) for who, attributes in talk if {"error": "B"}.get(who, who) == agent]
    usd = [re.fullmatch(r"~?(\d+(?:\.\d+)?)", one["usd"]) for one in mine]
    return Spent(
        entries=len(mine),
        micros=sum(int(Fraction(found[1]) * 10**6) for found in usd if found),
        tokens_in=sum(int(one["in"] or 0) for one in mine),
        tokens_out=sum(int(one["out"] or 0) for one in mine),
        exact=not any(one["usd"].startswith("~") for one in mine),
        unknown=usd.count(None),
        uncounted=sum(not one["in"] or not one["out"] for one in mine),
    )


@examples(60)
@given(entries, st.randoms(use_true_random=False))
def test_spending_is_a_sum_whatever_the_order_and_however_it_is_read(
    talk: list[tuple[str, Bill]], random: Random
) -> None:
    data, offsets = written(talk)
    whole = parse(data)
    for agent in "AB":
        assert whole.state.spent.get(agent, Spent()) == expected_sum(talk, agent)
    assert set(whole.state.spent) <= {"A", "B"}
    dialog = parse(data[: (starts := [len(opening(turn="A, B").encode()), *offsets])[0]])
    for start, end in itertools.pairwise(starts):
        dialog = read_on(dialog, data[start:end])
    assert dialog == whole
    shuffled = list(talk)
    random.shuffle(shuffled)
    assert dict(parse(written(shuffled)[0]).state.spent) == dict(whole.state.spent)


def test_what_people_write_costs_nothing() -> None:
    room = Room(opening())
    room.types("\n## Turn 2 — Claude A\n\nBy hand.\n\nTURN: B\n")
    room.say("Hm.")
    room.say("A remark.", note=True)
    assert spent(room) == {}


def test_an_edited_entry_is_taken_as_it_now_stands_and_a_damaged_one_counts_for_nothing() -> None:
    room = Shop(opening(), [bill("0.25", 100, 10)], A=["One."])
    room.step("A")
    for changed in (room.text.replace("One.", "Two."), room.text.replace("usd=0.25", "usd=0.75")):
        dialog = parse(changed.encode())
        assert dialog.entries[-1].condition is Condition.EDITED
        assert dialog.state.spent["A"].usd == (0.25 if "0.25" in changed else 0.75)
    cut = parse(room.paper.data[:-6])
    assert (cut.entries[-1].condition, dict(cut.state.spent)) == (Condition.DAMAGED, {})


@cases(
    ("mark", "payer"),
    [
        (Mark("AGENT_ERROR", "B | cause | fix"), "B"),
        (Mark("DIGEST", "A | turns 1 to 9 | 300 words"), "A"),
        (Mark("STALLED", "B"), None),
        (Mark("AGENT_ERROR", "Z | cause | fix"), None),
        (Mark("STOPPED", "budget: B"), None),
    ],
)
def test_a_note_gives_account_of_the_agent_it_names(mark: Mark, payer: str | None) -> None:
    data = appended(opening().encode(), Draft("SYSTEM", "System", marks=(mark,), attributes=bill("0.5", 9, 1)))
    assert dict(parse(data).state.spent) == ({payer: Spent(1, 500_000, 9, 1)} if payer else {})


def test_a_failure_that_made_no_call_is_no_unknown_cost() -> None:
    error = Mark("AGENT_ERROR", "B | no key | set one")
    silent = appended(opening().encode(), Draft("SYSTEM", "System", marks=(error,), attributes=(("at", "now"),)))
    called = appended(opening().encode(), Draft("SYSTEM", "System", marks=(error,), attributes=bill()))
    assert dict(parse(silent).state.spent) == {}
    assert parse(called).state.spent["B"] == Spent(1, unknown=1, uncounted=1)


@cases(
    ("account_", "words"),
    [
        (Spent(), ("nothing", "0")),
        (Spent(2, 340_000, 9, 1), ("$0.34", "10")),
        (Spent(2, 340_000, 9, 1, exact=False), ("about $0.34", "10")),
        (Spent(2, 340_000, 9, 1, unknown=1, uncounted=1), ("at least $0.34", "at least 10")),
        (Spent(2, 0, 0, 0, unknown=2, uncounted=2), ("unknown", "unknown")),
        (Spent(2, 0, 9, 1), ("$0.00", "10")),
    ],
)
def test_what_was_spent_is_said_as_it_is_known(account_: Spent, words: tuple[str, str]) -> None:
    assert (in_dollars(account_), in_tokens(account_)) == words


# -- what may be spent ---------------------------------------------------------------------------------------------


def test_a_dialog_ends_before_the_turn_that_would_pass_its_budget() -> None:
    turns = [bill("0.9", 41_200, 900), bill("~0.95", 52_000, 1_100), bill("0.4", 60_000, 500)]
    room = Shop(opening("A", "B", keys=["Budget: $2.00"]), turns, A=["One.", "Three."], B=["Two.", "Four."])
    room.next = {"A": Estimate(0.2), "B": Estimate(0.1)}
    room.run()
    assert ending(room)[0] == "STOPPED"
    assert all(isinstance(room.look(me), Stop) for me in "AB")
    room.types("\n## User\n\nIt is worth it. Go on.\n\n[LIMIT: budget $4]\nTURN: A\n")
    room.step("A")
    assert (room.owing, round(total(room.dialog.state.spent).usd, 2)) == (("B",), 2.25)
    if UPDATE:
        GOLDEN.write_bytes(room.paper.data)
    assert room.paper.data == GOLDEN.read_bytes()
    assert parse(room.paper.data) == room.dialog


def test_without_a_raise_a_reopened_dialog_ends_again() -> None:
    room = Shop(opening(keys=["Budget: $1", "Max Turns: 4"]), [bill("1.2")], A=["One.", "Two."])
    room.run()
    room.say("And now?", to="A")
    assert (room.dialog.state.outcome, room.dialog.state.counted) == (None, 1)
    room.run()
    assert ending(room) == ("STOPPED", "budget: the budget of $1.00: $1.20 spent")


def test_a_daemon_that_starts_again_knows_what_was_spent() -> None:
    room = Shop(opening(keys=["Budget: 1000 tokens"]), [bill("", 600, 100)], A=["One."])
    room.next = {"B": Estimate(None, 301)}
    room.step("A")
    again = Shop(room.text)
    again.next = room.next
    assert again.dialog == room.dialog
    for one in (room, again):
        action = one.look("B")
        assert isinstance(action, Write)
        assert action.reason == "budget: the budget of 1,000 tokens: 700 used; the next turn would take about 301"
    again.next = {"B": Estimate(None, 300)}
    assert isinstance(again.look("B"), Reply)


@cases("budget", ["$1.50", "110 tokens"])
def test_a_budget_that_is_spent_to_the_last_ends_the_dialog(budget: str) -> None:
    for usd, tokens, word in (("1.5", 110, "Write"), ("1.499999", 109, "Reply")):
        room = Shop(opening(keys=[f"Budget: {budget}"]), [bill(usd, 100, tokens - 100)], A=["One."])
        room.step("A")
        assert waits(room.look("B")) == word


def test_only_the_agent_whose_turn_it_is_ends_the_dialog() -> None:
    room = Shop(opening(keys=["Budget: $1"]), [bill("1.5")], A=["One.\n[QUESTION_FOR_USER: well?]"])
    room.next = {"A": Estimate(0.1), "B": Estimate(0.1)}
    room.step("A")
    assert [waits(room.look(me)) for me in "AB"] == ["waiting_for_user"] * 2
    room.say("Well.", to="B")
    assert [waits(room.look(me)) for me in "AB"] == ["not_my_turn", "Write"]


def test_a_budget_in_dollars_needs_a_price() -> None:
    room = Shop(opening(keys=["Budget: $1"]))
    room.unpriced = {"A"}
    action = room.look("A")
    assert isinstance(action, Wait)
    assert (action.status, action.seconds) == ("unpriced", None)
    assert "--price IN/OUT" in action.reason
    (note,) = re.findall(r"`(\[LIMIT: .*\])`", action.reason)
    room.types(f"\n{note}\n")
    assert waits(room.look("A")) == "Reply"
    room.caps = {"A": Estimate(0.5)}
    assert waits(room.look("A")) == "unpriced"
    room.unpriced = set()
    assert waits(room.look("A")) == "Reply"


def test_a_reply_that_is_here_already_is_not_bought_again() -> None:
    room = Shop(opening(turn="A, B", keys=["Budget: $1"]), [bill("1.5")], A=["One."])
    room.step("A")
    assert waits(room.look("B")) == "Write"
    room.paid = {"B"}
    assert waits(room.look("B")) == "Reply"


def test_a_cap_of_its_own_holds_for_its_agent_alone() -> None:
    room = Shop(opening(keys=["Budget: $9"]), [bill("0.5", 10, 10), bill("0.5", 10, 10)], A=["One."], B=["Two."])
    room.caps = {"A": Estimate(0.6), "B": Estimate(None, 19)}
    room.next = {"A": Estimate(0.2, 5), "B": Estimate(0.2, 5)}
    room.step("A")
    assert allowance(room.dialog.state, "B", room.caps["B"]) == Estimate(8.5, 19)
    room.step("B")
    assert allowance(room.dialog.state, "A", room.caps["A"]) == Estimate(0.1, None)
    room.step("A")
    assert ending(room) == (
        "STOPPED", "budget: A's own budget of $0.60: $0.50 spent; the next turn would take about $0.20"
    )  # fmt: skip
    assert reached(room.dialog.state, "B", Estimate(0.0, 0), room.caps["B"]) == "B's own budget of 19 tokens: 20 used"


@cases(("cap", "word"), [(Estimate(None, 5), "Write"), (Estimate(0.1), "Write"), (Estimate(0.2, 6), "Reply")])
def test_a_cap_needs_no_budget_of_the_dialog(cap: Estimate, word: str) -> None:
    room = Shop(opening())
    room.caps, room.next = {"A": cap}, {"A": Estimate(0.2, 6)}
    assert waits(room.look("A")) == word


def test_in_a_round_each_may_use_its_part_of_the_rest() -> None:
    room = Shop(
        opening("A", "B", "C", turn="A, B, C", keys=["Budget: $3, 3k tokens"]), [bill("0.2", 100, 0)], A=["One."]
    )
    assert allowance(room.dialog.state, "C", Estimate()) == Estimate(1.0, 1000)
    room.next = dict.fromkeys("ABC", Estimate(1.0, 1000))
    assert [waits(room.look(me)) for me in "ABC"] == ["Reply"] * 3
    room.next["C"] = Estimate(1.01)
    assert [waits(room.look(me)) for me in "ABC"] == ["Reply", "Reply", "Write"]
    room.step("A")
    assert allowance(room.dialog.state, "C", Estimate()) == Estimate(1.4, 1450)
    assert waits(room.look("C")) == "Reply"
    room.next["C"] = Estimate(1.41)
    action = room.look("C")
    assert isinstance(action, Write)
    assert action.reason.endswith("would take about $1.41, and the $2.80 left is for 2 turns")


def test_the_person_takes_no_part_of_the_rest() -> None:
    room = Shop(opening(turn="USER, A", keys=["Budget: $3"]))
    assert room.owing == ("USER", "A")
    assert allowance(room.dialog.state, "A", Estimate()) == Estimate(3.0)
    room.next = {"A": Estimate(3.0)}
    assert waits(room.look("A")) == "Reply"


MICROS = st.integers(1, 3_000_000)


@examples(60)
@given(
    st.sampled_from(["AB", "ABC"]),
    st.integers(1, 12_000_000),
    st.lists(st.tuples(MICROS, st.integers(0, 100)), min_size=1, max_size=12),
    st.booleans(),
)
@example("AB", 3, [(1, 100)] * 4, False)
@example("ABC", 3_000_000, [(1_000_000, 100)] * 9, True)
def test_a_budget_is_never_passed_when_no_turn_costs_more_than_expected(
    agents: str, budget: int, costs: list[tuple[int, int]], in_rounds: bool
) -> None:
    turn = ", ".join(agents) if in_rounds else ""
    line = budget_line(budget / 1e6, None)
    room = Shop(opening(*agents, turn=turn, keys=[f"Budget: {line}", "Max Turns: 999"]))
    expected = dict(zip(itertools.count(), costs, strict=False))
    for step in itertools.count():
        owing = [who for who in room.owing if who in agents]
        if not owing or step >= len(expected):
            break
        for who in owing:  # all of a round decide before any of them has paid
            room.next[who] = Estimate(expected[step][0] / 1e6)
        ready = [who for who in owing if isinstance(room.look(who), Reply)]
        for who in ready if len(ready) == len(owing) else []:
            room.thinks(who)
        for who in ready if len(ready) == len(owing) else []:
            micros = expected[step][0] * expected[step][1] // 100
            room.bills = [bill(f"{micros / 1e6:.6f}", 1, 1)]
            room.answers(who, f"Words of {who} in step {step}.")
        if len(ready) < len(owing):
            room.step(next(who for who in owing if who not in ready))
            assert ending(room)[1].startswith("budget: ")
    assert total(room.dialog.state.spent).micros <= budget


states = st.builds(
    lambda limits, one, other, owing: State(limits=limits, spent={"A": one, "B": other}, debts=Debts(owing)),
    st.builds(Limits, budget=st.one_of(st.none(), dollar_amounts), tokens=st.one_of(st.none(), st.integers(1, 10**9))),
    *[st.builds(Spent, entries=st.just(1), micros=st.integers(0, 10**9), tokens_in=st.integers(0, 10**9))] * 2,
    st.sampled_from(["A", "AB", "ABC"]).map(lambda ids: tuple(Debt(who, "1") for who in ids)),
)
caps = st.builds(Estimate, st.one_of(st.none(), dollar_amounts), st.one_of(st.none(), st.integers(1, 10**9)))


@given(states, caps)
def test_what_is_allowed_is_what_may_be_bought(state: State, cap: Estimate) -> None:
    allowed = allowance(state, "A", cap)
    assert bool(reached(state, "A", allowed, cap)) == bool(reached(state, "A", Estimate(), cap))
    if allowed.usd is not None:
        assert reached(state, "A", Estimate(allowed.usd + 1e-6), cap)
    if allowed.tokens is not None:
        assert reached(state, "A", Estimate(None, allowed.tokens + 1), cap)
    if allowed == Estimate():
        assert not reached(state, "A", Estimate(1e6, 10**12), cap)


# -- what is noticed, and what may be expected ---------------------------------------------------------------------


def test_half_of_the_budget_and_four_fifths_are_noticed() -> None:
    noticed = {}
    for usd in ("0.99", "1", "1.59", "~1.6", "2"):
        room = Shop(opening(keys=["Budget: $2, 900k tokens"]), [bill(usd, 90_000, 10_000)], A=["One."])
        room.step("A")
        noticed[usd] = [(s.kind, s.text, s.agents) for s in signals(room.dialog)]
        assert usd == "2" or "of the budget" not in room.thinks("B")
    assert noticed == {
        "0.99": [],
        "1": [("budget", "50% of the budget is spent: $1.00 of $2.00, 100,000 of 900,000 tokens", ())],
        "1.59": [("budget", "50% of the budget is spent: $1.59 of $2.00, 100,000 of 900,000 tokens", ())],
        "~1.6": [("budget", "80% of the budget is spent: about $1.60 of $2.00, 100,000 of 900,000 tokens", ())],
        "2": [("budget", "80% of the budget is spent: $2.00 of $2.00, 100,000 of 900,000 tokens", ())],
    }
    tokens = Shop(opening(keys=["Budget: $2, 120k tokens"]), [bill("0.1", 90_000, 10_000)], A=["One."])
    tokens.step("A")
    assert [s.text[:3] for s in signals(tokens.dialog)] == ["80%"]
    assert (used(State()), budget_standing(State())) == (None, "")


@given(
    st.integers(1, 60), st.integers(1, 5), st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 9000),
    st.integers(0, 50), st.integers(0, 50),
)  # fmt: skip
def test_the_estimate_of_a_dialog_covers_every_dialog_within_its_assumptions(
    turns: int, agents: int, start: int, said: int, out: int, per_in: int, per_out: int
) -> None:
    def cost(tokens_in: int, tokens_out: int) -> float:
        return tokens_in * per_in + tokens_out * per_out

    whole = estimate(turns, agents, cost, start=start, said=said, out=out)
    paid = [0.0] * agents
    for turn in range(2, turns + 1):
        paid[(turn - 2) % agents] += cost(start + said * (turn - 2), out)
    assert whole >= max(paid)
    assert whole <= max(paid) + cost(said * agents, 0) * turns


def test_the_estimate_of_an_endless_dialog_is_made_in_a_moment() -> None:
    turns = MAX_COUNT
    assert estimate(turns, 2, lambda _, out: out * 1.0, start=1, said=1, out=3) == pytest.approx(
        3 * turns / 2, rel=1e-6
    )
