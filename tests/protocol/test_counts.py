"""What counts and what does not, at the very edge of each rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dialogd import person
from dialogd.errors import BackendError
from dialogd.protocol.certificate import certify
from dialogd.protocol.decide import Clock, Write, decide
from dialogd.protocol.model import USER
from dialogd.protocol.state import Estimate
from tests.examples import examples
from tests.support.cases import cases
from tests.support.room import Room, opening

TEXT = "## Consensus Summary\nPostgres.\n[CONSENSUS_REACHED]"


def room(ids: str, setup: str, *keys: str, turn: str = "") -> Room:
    """A room of these agents (`AB`) with that Setup and header lines."""
    return Room(opening(*ids, turn=turn, keys=keys, setup=setup))


def refused(here: Room) -> list[str]:
    """What did not count, in the whole dialog."""
    return [mark.value for entry in here.dialog.entries for mark in entry.all("REFUSED")]


def test_sealed_first_answers_share_the_board() -> None:
    here = Room(opening("A", "B", turn="A, B", setup="sealed = true\n[board]\nblackboard_capacity = 6"))
    ideas = "\n".join(f"[IDEA: number {n}]" for n in range(5))
    here.scripts = {"A": [ideas], "B": [ideas]}
    here.run()
    assert here.dialog.state.floor.contributed == 6
    assert "of 6 contributions on the blackboard 3 are for each first answer" in refused(here)[0]


@cases("verdict", ["vote", "mutual"])
def test_who_may_not_vote_neither_votes_nor_signs_by_hand(verdict: str) -> None:
    here = room("ABC", f'verdict = "{verdict}"\norder = "round-robin"\n[roles.C]\nrole = "analyst"')
    here.speak(("A", "[PROPOSAL: Postgres]" if verdict == "vote" else TEXT))
    here.types("## Turn 3 — Claude C\n\nFine.\n\n[VOTE: P1 approve]\n[AGREE: P1]\n\nTURN: B\n")
    (turn,) = (entry for entry in here.dialog.turns if entry.by == "C")
    assert [mark.name for mark in turn.marks] == ["VOTE", "AGREE"]
    state = here.dialog.state
    assert [ballot.agent for poll in state.polls.open for ballot in poll.ballots] == []
    assert state.table.standing is None or [who for who, _ in state.table.standing.signers] == ["A"]


def test_a_budget_that_allows_no_turn_ends_the_dialog_with_what_the_votes_decide() -> None:
    here = room("ABC", 'verdict = "vote"\norder = "parallel"', "Budget: 10 tokens", turn="A, B, C")
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "Well."), ("C", "Well."))
    here.speak(("A", "[VOTE: P1 approve | mine]"), ("B", "[VOTE: P1 approve | good]"))
    action = decide(here.dialog, "C", Clock(next=Estimate(None, 11)))
    assert isinstance(action, Write)
    assert [(mark.name, mark.fields[:2]) for mark in action.draft.marks] == [
        ("DECISION", ("approved", "vote")),
        ("DECIDED", ("",)),
    ]


def test_a_text_that_all_who_are_left_have_signed_is_agreed_before_a_limit_ends_the_dialog() -> None:
    here = room("ABC", "")
    here.speak(("A", TEXT), ("B", "[AGREE: P1]"))
    here.types("\n[LEAVE: C]\n[LIMIT: max_turns 2]\n")
    here.step("A")
    assert here.outcome == "CONSENSUS_REACHED"
    certified = certify(here.dialog)
    assert (certified.ref, [signer.agent for signer in certified.signers]) == ("P1", ["A", "B"])


@cases(("ids", "verdict"), [("AB", "mutual"), ("ABC", "vote")])
def test_at_a_limit_nothing_is_agreed_that_nobody_has_argued_against(ids: str, verdict: str) -> None:
    first, yes = (TEXT, "[AGREE: P1]") if verdict == "mutual" else ("[PROPOSAL: x]", "[VOTE: P1 approve]")
    roles = '[roles.A]\nrole = "analyst"' if verdict == "vote" else ""
    here = room(ids, f'red_team = true\nverdict = "{verdict}"\n{roles}')
    here.speak(("A", first), *((who, yes) for who in ids[1:]))
    assert here.dialog.state.table.red_team == "P1"
    here.types("\n[LIMIT: max_turns 2]\n")
    here.step("A")
    assert (here.outcome, here.dialog.state.table.decisions) == ("MAX_TURNS_REACHED", ())


def test_the_turn_that_fills_the_file_counts_the_votes() -> None:
    here = room("ABC", 'verdict = "vote"\norder = "parallel"', "Max Size: 3 KB", turn="A, B, C")
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "Well."), ("C", "Well."))
    here.speak(("A", "[VOTE: P1 approve | mine]"), ("B", "x" * 3000 + "\n[VOTE: P1 approve | good]"))
    assert here.outcome == "DECIDED"


@cases(("ids", "verdict"), [("AB", "mutual"), ("ABC", "mutual"), ("ABC", "vote")])
def test_a_mere_pass_is_no_red_team_turn(ids: str, verdict: str) -> None:
    first, yes = (TEXT, "[AGREE: P1]") if verdict == "mutual" else ("[PROPOSAL: x]", "[VOTE: P1 approve]")
    roles = '[roles.A]\nrole = "analyst"' if verdict == "vote" else ""
    here = room(ids, f'red_team = true\nverdict = "{verdict}"\n{roles}')
    here.speak(("A", first), *((who, yes) for who in ids[1:]))
    assert here.dialog.state.table.red_team == "P1"
    first, *others = reversed(ids)
    here.speak((first, "[PASS]"))
    assert (here.outcome, here.dialog.state.table.red_team, here.owing) == ("", "P1", (others[0],))
    argued = Room(here.paper.data)
    argued.speak((others[0], "It fails when the disk is full. That can be lived with."))
    assert argued.outcome == {"mutual": "CONSENSUS_REACHED", "vote": "DECIDED"}[verdict]
    here.speak(*((who, "[PASS]") for who in others))
    assert (here.outcome, here.owing) == ("", ("USER",))


@cases("order", ["alternate", "priority", "free", "round-robin"])
@cases(("ids", "verdict"), [("AB", "mutual"), ("ABC", "mutual"), ("ABC", "vote")])
def test_who_argues_against_a_text_did_not_write_it(ids: str, verdict: str, order: str) -> None:
    first, yes = (TEXT, "[AGREE: P1]") if verdict == "mutual" else ("[PROPOSAL: x]", "[VOTE: P1 approve]")
    roles = '[roles.A]\nrole = "analyst"' if verdict == "vote" else ""
    here = room(ids, f'red_team = true\nverdict = "{verdict}"\norder = "{order}"\n{roles}')
    here.speak(("A", first))
    while not here.dialog.state.table.red_team:
        last = here.owing[0]
        here.speak((last, yes if last != "A" else "Well."))
    signed = [turn.by for turn in here.dialog.turns if {"AGREE", "VOTE"} & {mark.name for mark in turn.marks}]
    assert here.owing == (signed[-1],)
    assert "Argue against P1" in here.thinks(signed[-1])
    left = Room(here.paper.data)
    left.by_hand(person.skip, signed[-1])
    assert left.owing == (signed[-2] if len(signed) > 1 else "A",)
    here.answers(signed[-1], BackendError("broken", fix="mend it"))
    assert here.owing == ((signed[-2] if len(signed) > 1 else signed[-1]),)


def test_a_deadlock_needs_both_its_crux_and_its_experiment() -> None:
    here = room("AB", 'order = "round-robin"')
    here.speak(("A", "[DEADLOCK: load]"), ("B", "[DEADLOCK: load | measure]"))
    assert [who for who, _ in here.asked] == ["A"]
    assert here.dialog.state.outcome is not None


@st.composite
def rounds_of_three(draw: st.DrawFn) -> tuple[Room, list[tuple[str, str]]]:
    """A dialog in rounds whose first turn names some, and what is done by whom as long as it lasts."""
    turn = draw(st.sampled_from(["A", "C", "B, C", "A, B, C"]))
    keys = ("Max Turns: 60", f"Max Rounds: {draw(st.integers(1, 4))}")
    does = st.sampled_from(["says", "passes", "passes", "passes", "fails", "is skipped"])
    return room("ABC", 'order = "parallel"', *keys, turn=turn), draw(
        st.lists(st.tuples(st.sampled_from(["A", "B", "C"]), does), min_size=30, max_size=30)
    )


def acts(here: Room, who: str, what: str) -> None:
    """One agent's turn, or what takes its place."""
    if what == "is skipped":
        here.skip(who)
        return
    here.says(who, {"says": "One more thing.", "passes": "[PASS]"}.get(what, BackendError("down", fix="wait")))


@examples(200)
@given(rounds_of_three())
def test_rounds_in_which_all_are_asked_begin_and_end_together(given_: tuple[Room, list[tuple[str, str]]]) -> None:
    here, script = given_
    full, asked, did = 0, set(here.owing), dict[str, str]()
    for name, what in script:
        state = here.dialog.state
        if state.outcome is not None:
            break
        if state.owing == (USER,):
            here.say("Go on.", to=name)
            asked, did = {name}, {}
            continue
        who = name if name in state.owing else state.owing[0]
        acts(here, who, what)
        did[who] = what
        if state.owing != (who,):
            assert here.dialog.state.floor.rounds == full
            assert here.dialog.state.outcome is None
            continue
        now = here.dialog.state
        if len(now.absent) == 3:  # every agent failed: that is the end, whatever round it was
            assert now.outcome is not None
            break
        full += {*"ABC"} - now.absent <= asked
        assert now.floor.rounds == full
        is_quiet = {who for who, what in did.items() if what == "passes"} >= {*"ABC"} - now.absent <= asked
        assert now.outcome is not None or len(now.absent) > 1 or (now.owing == (USER,)) == is_quiet
        assert (now.outcome is not None) == (full == now.limits.max_rounds)
        asked, did = {*now.owing}, {}


def test_all_are_told_of_the_last_round_where_one_was_asked_alone() -> None:
    here = room("ABC", 'order = "parallel"', "Max Rounds: 2", turn="B")
    here.speak(("B", "Alone."), ("C", "One."), ("A", "One."))
    here.speak(("B", "One."))
    for who in "CAB":
        assert "Round 2 of 2: 0 more rounds at most after it." in here.thinks(who)
        here.speak((who, "Two."))
    assert here.outcome == "MAX_TURNS_REACHED"


def test_what_was_decided_at_the_limit_says_more_than_the_limit() -> None:
    here = room("AB", 'verdict = "vote"', "Max Turns: 3")
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 reject | slow]"))
    end = here.dialog.state.outcome
    assert end is not None
    assert (end.name, end.reason[:17]) == ("MAX_TURNS_REACHED", "P1 rejected, vote")
