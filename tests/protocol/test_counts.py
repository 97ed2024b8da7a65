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


def test_votes_that_fail_in_one_turn_are_one_failed_vote() -> None:
    here = room("AB", 'verdict = "vote"')
    here.speak(("A", "[PROPOSAL: Postgres]\n[PROPOSAL: Redis]"))
    here.speak(("B", "[VOTE: P1 reject | no]\n[VOTE: P2 reject | no]"), ("A", "[PASS]"))
    assert len(here.dialog.state.table.decisions) == 2
    assert here.dialog.state.polls.failed == 1


def test_a_vote_stands_until_its_agent_votes_anew() -> None:
    here = room("ABC", 'verdict = "vote"\norder = "free"')
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 approve | good]\n[TO: A]"), ("A", "[TO: B]"))
    here.speak(("B", "And it is there."))
    assert [ballot.choice for ballot in here.dialog.state.polls.open[0].ballots] == ["approve"]


def test_one_agent_alone_approves_nothing() -> None:
    here = room("ABC", 'verdict = "vote"\norder = "round-robin"')
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 approve | good]"), ("C", "[VOTE: P1 abstain]"))
    here.speak(("A", "[VOTE: P1 abstain]"))
    assert [found.outcome for found in here.dialog.state.table.decisions] == ["rejected"]


@cases(
    ("limit", "why"),
    [("Max Rounds: 1", "the limit of 1 round"), ("Max Rounds: 2", "the limit of 2 rounds"),
     ("Max Turns: 1", "the limit of 1 turn"), ("Max Turns: 2", "the limit of 2 turns")],
)  # fmt: skip
def test_a_limit_is_named_as_one_or_as_many(limit: str, why: str) -> None:
    here = room("AB", "objections = true", limit)
    here.scripts = {"A": ["Tabs."] * 3, "B": ["Spaces."] * 3}
    here.run()
    assert here.dialog.state.outcome.reason == why


def test_why_a_vote_failed_is_the_rule_that_refused_it() -> None:
    here = room("AB", 'verdict = "vote"\nthreshold = 0.75\n[roles.A]\nweight = 3')
    here.talk("[PROPOSAL: Postgres]", "[VOTE: P1 reject | no]", "[VOTE: P1 approve | mine]")
    (mark,) = here.dialog.turns[-1].all("DECISION")
    assert mark.fields[3] == "one agent alone is for it"


def test_who_is_to_decide_after_votes_that_failed_is_named() -> None:
    here = room("ABM", 'verdict = "vote"\nescalation_threshold = 2\n[roles.M]\nrole = "moderator"')
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "No.\n[VOTE: P1 reject | no]"), ("M", "[DECIDE: P1 approve]"))
    assert refused(here) == ["DECIDE P1 approve | P1 is the voters' to decide, until 2 votes have failed; so far 0 did"]


def test_sealed_first_answers_share_the_board() -> None:
    here = Room(opening("A", "B", turn="A, B", setup="sealed = true\n[board]\nblackboard_capacity = 6"))
    ideas = "\n".join(f"[IDEA: number {n}]" for n in range(5))
    here.scripts = {"A": [ideas], "B": [ideas]}
    here.run()
    assert here.dialog.state.floor.contributed == 6
    assert "of the 6 contributions that the blackboard holds, 3 are for each first answer" in refused(here)[0]


@cases(("quorum", "outcome"), [("1.0", "rejected"), ("0.6", "approved")])
def test_a_pass_is_no_vote(quorum: str, outcome: str) -> None:
    here = room("ABC", f'verdict = "vote"\norder = "round-robin"\nquorum = {quorum}')
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 approve | good]"), ("C", "[PASS]"))
    here.speak(("A", "[VOTE: P1 approve | mine]"))
    (found,) = here.dialog.state.table.decisions
    assert found.outcome == outcome
    assert found.evidence == "2 for (B, A), no vote: C"


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


def test_a_turn_of_the_persons_clears_all_votes() -> None:
    here = room("ABC", 'verdict = "vote"\norder = "round-robin"')
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 approve | good]"))
    here.say("Consider the cost.", to="C")
    here.speak(("C", "[VOTE: P1 approve | cheap]"))
    assert here.dialog.state.table.decisions == ()
    (poll,) = here.dialog.state.polls.open
    assert [ballot.agent for ballot in poll.ballots] == ["C"]
    assert here.dialog.state.polls.heard == {"C"}


def test_a_pass_is_no_signature() -> None:
    here = room("AB", "")
    here.speak(("A", TEXT), ("B", "[PASS]"))
    assert here.outcome == ""
    assert [who for who, _ in here.dialog.state.table.standing.signers] == ["A"]


def test_of_several_that_are_approved_at_once_one_wins_by_the_rule() -> None:
    here = room("ABC", 'verdict = "vote"\norder = "parallel"', turn="A, B, C")
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[PROPOSAL: Redis]"), ("C", "Well."))
    here.speak(("A", "[VOTE: P1 approve]\n[VOTE: P2 approve]"), ("B", "[VOTE: P1 approve]\n[VOTE: P2 approve]"))
    here.speak(("C", "[VOTE: P1 abstain]\n[VOTE: P2 approve]"))
    found = [(d.ref, d.outcome, d.reason) for d in here.dialog.state.table.decisions]
    reason = "at least 67% for it, and for P1: the most for it wins, of equals the first"
    assert found == [("P2", "approved", reason)]
    assert here.outcome == "DECIDED"


def test_of_equals_the_earliest_wins_and_a_weight_counts() -> None:
    votes = (("A", "[VOTE: P1 approve]\n[VOTE: P2 approve]"), ("B", "[VOTE: P1 abstain]\n[VOTE: P2 approve]"))
    won = []
    for weights in ("", "[roles.C]\nweight = 3"):
        here = room("ABC", f'verdict = "vote"\norder = "parallel"\n{weights}', turn="A, B, C")
        here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[PROPOSAL: Redis]"), ("C", "Well."))
        here.speak(*votes, ("C", "[VOTE: P1 approve]\n[VOTE: P2 abstain]"))
        won.append(here.dialog.state.table.decisions[0].ref)
    assert won == ["P1", "P1"]
    heavy = room("ABC", 'verdict = "vote"\norder = "parallel"\n[roles.B]\nweight = 3', turn="A, B, C")
    heavy.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[PROPOSAL: Redis]"), ("C", "Well."))
    heavy.speak(*votes, ("C", "[VOTE: P1 approve]\n[VOTE: P2 abstain]"))
    assert heavy.dialog.state.table.decisions[0].ref == "P2"


@cases(("most", "escalates"), [(1, True), (2, False), (3, False)])
def test_votes_that_fail_are_handed_on_after_as_many_as_the_dialog_says(most: int, escalates: bool) -> None:
    here = room("AB", f'verdict = "vote"\nescalation_threshold = {most}')
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 reject | no]"), ("A", "[PASS]"))
    assert (here.dialog.state.escalation.to == "USER") == escalates
    assert [mark.value for e in here.dialog.entries for mark in e.all("ESCALATE")] == ["1 vote failed"] * escalates


def test_at_the_limit_votes_count_although_the_round_is_not_over() -> None:
    here = room("ABC", 'verdict = "vote"\norder = "parallel"', "Max Turns: 6", turn="A, B, C")
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "Well."), ("C", "Well."))
    here.speak(("A", "[VOTE: P1 approve | mine]"), ("B", "[VOTE: P1 approve | good]"))
    assert here.outcome == "DECIDED"


@cases("limit", ["max_turns 3", "max_size 500 bytes"])
def test_a_limit_that_the_person_lowers_ends_the_dialog_with_what_the_votes_decide(limit: str) -> None:
    here = room("ABC", 'verdict = "vote"\norder = "parallel"', turn="A, B, C")
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "Well."), ("C", "Well."))
    here.speak(("A", "[VOTE: P1 approve | mine]"), ("B", "[VOTE: P1 approve | good]"))
    here.types(f"\n[LIMIT: {limit}]\n")
    here.step("C")
    assert (here.outcome, [found.outcome for found in here.dialog.state.table.decisions]) == ("DECIDED", ["approved"])


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


@cases(("vote", "outcomes"), [("reject", ["rejected"]), ("", [])])
def test_a_limit_says_which_vote_failed_and_invents_none(vote: str, outcomes: list[str]) -> None:
    here = room("ABC", 'verdict = "vote"\norder = "parallel"', turn="A, B, C")
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "Well."), ("C", "Well."))
    here.speak(("A", f"[VOTE: P1 {vote} | no]" if vote else "Well."))
    here.types("\n[LIMIT: max_turns 2]\n")
    here.step("B")
    assert (here.outcome, [d.outcome for d in here.dialog.state.table.decisions]) == ("MAX_TURNS_REACHED", outcomes)


def test_a_text_that_all_who_are_left_have_signed_is_agreed_before_a_limit_ends_the_dialog() -> None:
    here = room("ABC", "")
    here.speak(("A", TEXT), ("B", "[AGREE: P1]"))
    here.types("\n[LEAVE: C]\n[LIMIT: max_turns 2]\n")
    here.step("A")
    assert here.outcome == "CONSENSUS_REACHED"
    certified = certify(here.dialog)
    assert (certified.ref, [signer.agent for signer in certified.signers]) == ("P1", ["A", "B"])


def test_who_speaks_without_voting_is_no_yes() -> None:
    here = room("ABCDEF", 'verdict = "vote"')
    yes, no = "[VOTE: P1 approve | good]", "[VOTE: P1 reject | it is slow]"
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", yes), ("C", yes), ("D", no), ("E", "Well."), ("F", "Well."))
    here.speak(("A", no))
    (decision,) = here.dialog.state.table.decisions
    assert (here.outcome, decision.outcome) == ("", "rejected")
    assert decision.evidence.endswith("no vote: E, F")


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


def test_after_sealed_answers_agreement_in_the_second_turn_is_agreement_at_once() -> None:
    here = room("AB", "sealed = true\nred_team = true", turn="A, B")
    for who in "AB":
        here.says(who, "Postgres.")
    here.step("A")
    here.step("B")
    here.speak(("A", TEXT), ("B", "[AGREE: P1 | yes]"))
    assert here.dialog.state.table.red_team == "P1"
    assert here.outcome == ""


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


def test_as_many_contributions_as_an_end_needs_are_enough() -> None:
    here = room("AB", "[board]\nminimum_contributions = 2")
    here.speak(("A", TEXT), ("B", "Yes.\n[AGREE: P1 | yes]"))
    assert here.outcome == "CONSENSUS_REACHED"


def test_the_first_of_two_decisions_on_a_proposal_counts() -> None:
    here = room("ABS", '[roles.S]\nrole = "synthesizer"')
    here.speak(("A", "[PROPOSAL: Postgres]\n[PROPOSAL: Redis]"), ("B", "Well."))
    here.speak(("S", "[DECIDE: P1 reject | no]\n[DECIDE: P2 approve | fine]\n[DECIDE: P2 reject | or not]"))
    here.speak(("A", "Well."), ("B", "Well."), ("S", "[DECIDE: P1 approve | after all]"))
    decided = [(d.ref, d.outcome) for d in here.dialog.state.table.decisions]
    assert decided == [("P1", "rejected")]


def test_nothing_goes_beyond_the_limit_of_turns() -> None:
    here = room("ABJ", 'verdict = "judge"\njudge = "J"', "Max Turns: 3", "Max Rounds: 1")
    here.speak(("A", "Postgres."), ("B", "Redis."))
    assert here.outcome == "MAX_TURNS_REACHED"


def test_a_plain_dialog_is_not_closed_by_passes() -> None:
    here = room("AB", "")
    here.speak(("A", "[PASS]"), ("B", "[PASS]"))
    assert here.owing == ("A",)


def test_one_that_passes_makes_no_round_of_passes() -> None:
    here = room("AB", 'order = "round-robin"')
    here.speak(("A", "[PASS]"), ("B", "Redis is one more thing to run."))
    assert here.owing == ("A",)


def test_a_deadlock_needs_both_its_crux_and_its_experiment() -> None:
    here = room("AB", 'order = "round-robin"')
    here.speak(("A", "[DEADLOCK: load]"), ("B", "[DEADLOCK: load | measure]"))
    assert [who for who, _ in here.asked] == ["A"]
    assert here.dialog.state.outcome is not None


def test_a_moderator_may_hand_the_word_on_in_any_order() -> None:
    here = room("AM", 'order = "round-robin"\n[roles.M]\nrole = "moderator"')
    here.speak(("A", "[TO: M]"), ("M", "[TO: A]"))
    assert [said.split(" ")[0] for said in refused(here)] == ["TO"]


def test_what_was_escalated_to_one_is_not_decided_by_another() -> None:
    here = room(
        "ASM", 'verdict = "vote"\norder = "parallel"\n[roles.S]\nrole = "synthesizer"\n[roles.M]\nrole = "moderator"'
    )
    here.speak(("A", "[PROPOSAL: Postgres]\n[ESCALATE: we cannot]"))
    here.retry("S")
    here.speak(("S", "[DECIDE: P1 approve | mine]"))
    assert not here.dialog.state.table.decisions
    assert any("it was handed to M, who decides now" in said for said in refused(here))


def test_who_may_not_propose_may_sign() -> None:
    here = room("ABC", 'order = "round-robin"\n[roles.C]\nrole = "critic"')
    here.speak(("A", TEXT), ("B", "[AGREE: P1 | yes]"), ("C", "Yes.\n[CONSENSUS_REACHED]"))
    assert here.outcome == "CONSENSUS_REACHED"


def test_a_full_board_takes_nothing_more() -> None:
    here = room("AB", "[board]\nblackboard_capacity = 1")
    here.speak(("A", "[IDEA: Postgres]"), ("B", "[IDEA: Redis]"))
    assert len(refused(here)) == 1
    assert "the blackboard is full" in refused(here)[0]


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
