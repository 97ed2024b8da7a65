"""The person's hand: what is struck, ruled out, who is invited and who leaves, read from any door and in any pieces."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialogd import person
from dialogd.errors import BadInput, DialogdError, Refused
from dialogd.protocol import board, certificate, lifecycle
from dialogd.protocol.certificate import answers
from dialogd.protocol.decide import Clock, Reply, Stop, Wait, decide
from dialogd.protocol.fold import steps
from dialogd.protocol.grammar import joint, parse, read_on, render
from dialogd.protocol.model import Draft, Mark
from dialogd.protocol.state import Dialog, State
from tests.examples import examples
from tests.support.cases import cases
from tests.support.room import Room, opening

TEXT = "## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"


def setup(toml: str) -> str:
    """A `## Setup` section."""
    return f"## Setup\n\n```toml\n{toml}\n```"


def room_of(*agents: str, toml: str = "", keys: tuple[str, ...] = (), turn: str = "") -> Room:
    """A room with these agents and rules."""
    return Room(opening(*agents, turn=turn, keys=keys, more=setup(toml) if toml else ""))


def does(room: Room, act: Callable[..., Dialog], *words: object, **more: bool) -> Dialog:
    """One command of the person on the room's file."""
    act(room.log, *words, **more)
    return room.dialog


def replies(room: Room, me: str, text: str) -> None:
    """Agent `me` takes its turn."""
    assert room.says(me, text) is not None


def asked(room: Room, me: str) -> str:
    """What agent `me` is asked now."""
    return room.thinks(me)


# -- a strike -------------------------------------------------------------------------------------------------------


def test_a_struck_turn_counts_for_nothing_and_stays_a_turn() -> None:
    room = room_of("A", "B", toml='verdict = "vote"\n[board]\nminimum_contributions = 1')
    replies(room, "A", "Mine.\n[PROPOSAL: Postgres]")
    replies(room, "B", "Yes.\n[VOTE: P1 approve | fast]\n[PROPOSAL: Redis too]")
    before = room.dialog
    after = does(room, person.strike, "3", "written in a hurry")
    entry = after.entry("3")
    assert (not entry.counts, entry.marks, entry.body) == (True, (), "Yes.")
    assert [str(mark) for mark in entry.withdrawn] == ["[VOTE: P1 approve | fast]", "[PROPOSAL P2: Redis too]"]
    assert (after.state.hand.struck, after.state.owing, after.state.number) == ({3}, before.state.owing, 3)
    assert [p.ref for p in after.state.table.proposals] == ["P1"]
    polls = after.state.polls
    assert ([(poll.ref, poll.ballots) for poll in polls.open], polls.heard) == ([("P1", ())], {"B"})
    assert after.state.floor.contributed == before.state.floor.contributed - 1
    assert [(held.agent, held.ref) for held in board.positions(after)] == [("A", "P1")]
    assert {one.turn for one in board.contributions(after)} == {2}
    assert parse(room.paper.data) == after
    replies(room, "A", "On.\n[PROPOSAL: SQLite]")
    assert room.dialog.state.table.proposals[-1].ref == "P3", "a number is never given twice"


def test_agents_see_that_a_turn_was_withdrawn_and_not_its_text() -> None:
    room = room_of("A", "B")
    replies(room, "A", "The secret plan is Redis.")
    digest = Draft("SYSTEM", "System", body="A plans Redis.", marks=(Mark("DIGEST", "B | turn 2 | free"),))
    data = room.paper.data + joint(room.dialog) + render(digest, room.dialog.entries[-1].chain)
    room = Room(data)
    does(room, person.strike, "2", "it was a joke")
    prompt = asked(room, "B")
    assert "turn 2 was withdrawn by the person: it was a joke" in prompt
    assert "secret plan" not in prompt
    assert "A plans Redis" not in prompt


def agreed() -> Room:
    """A dialog of two that ended in consensus: A's text in turn 2, signed by B in turn 3."""
    room = room_of("A", "B")
    replies(room, "A", f"Here.\n{TEXT}")
    replies(room, "B", "Good.\n[AGREE: P1]")
    outcome = room.dialog.state.outcome
    assert outcome.name == "CONSENSUS_REACHED"
    return room


@cases(("turn", "table"), [("3", "P1"), ("2", "")])
def test_a_strike_of_what_the_end_rests_on_opens_the_dialog_again(turn: str, table: str) -> None:
    room = agreed()
    after = does(room, person.strike, turn)
    assert (after.state.outcome, after.state.owing, after.state.counted) == (None, ("USER",), 0)
    assert (after.state.table.standing.proposal.ref if after.state.table.standing else "") == table
    assert not any(decision.outcome == "approved" for decision in after.state.table.decisions)
    assert isinstance(decide(after, "A", room.clock()), Wait)
    assert parse(room.paper.data) == after
    assert f"turn {turn}" in " ".join(change.words for change in certificate.changes(after)) or turn == "2"
    assert not any(change.is_harm for change in certificate.changes(after))
    room.say("Once more.")
    assert room.owing == ("A",)


def test_a_strike_of_another_turn_leaves_the_end_alone() -> None:
    room = agreed()
    after = does(room, person.strike, "1", "badly put")
    assert after.state.outcome is not None
    assert not after.entries[0].counts


def test_several_turns_a_span_and_a_turn_of_the_person_are_struck_at_once() -> None:
    room = room_of("A", "B")
    room.say("Ten more.", turns=10)
    does(room, person.say, "Use SQLite", proposal=True)
    replies(room, "A", "or\n[PROPOSAL: Postgres]")
    limits = room.dialog.state.limits
    after = does(room, person.strike, "2-3, 4")
    assert after.state.hand.struck == {2, 3, 4}
    assert (after.state.table.proposals, after.state.limits) == ((), limits)
    assert does(room, person.strike, "3") is after, "once is enough"


@cases("turns", ["", "0", "9", "1-9", "P1", "1 and 2", "-", "99999999999", "²"])
def test_a_strike_of_no_turn_is_refused(turns: str) -> None:
    room = room_of("A", "B")
    before = room.text
    with pytest.raises(BadInput) as refused:
        person.strike(room.log, turns)
    assert "dialogd strike 1" in refused.value.fix
    assert room.text == before


def test_a_struck_turn_of_a_sealed_round_still_fits_its_seal() -> None:
    room = room_of("A", "B", toml='order = "parallel"\nsealed = true\nverdict = "vote"', turn="A, B")
    for me in "AB":
        replies(room, me, f"I am {me}.\n[PROPOSAL: of {me}]")
    room.step("A")
    after = does(room, person.strike, "2")
    assert after.state.debt("B") is not None
    room.step("B")
    assert [answer.status for answer in answers(room.dialog)] == ["fits", "fits"]
    assert [p.by for p in room.dialog.state.table.proposals] == ["B"]


def test_findings_keep_their_numbers_when_one_is_struck() -> None:
    room = room_of("A", "B", toml="review = true")
    replies(room, "A", "[FINDING: blocking | security | a.py | 3 | a hole | close it]")
    replies(room, "B", "[FINDING: blocking | security | b.py | 4 | another | close it]")
    after = does(room, person.strike, "2")
    assert [(f.number, f.by) for f in after.state.table.findings] == [(2, "B")]
    assert after.state.table.blocking == after.state.table.findings


# -- reasons --------------------------------------------------------------------------------------------------------


@cases("act", ["veto", "strike", "leave", "stop", "reject"])
def test_of_a_reason_that_is_too_long_for_its_mark_nothing_is_lost(act: str) -> None:
    room = room_of("A", "B", "C")
    replies(room, "A", "[PROPOSAL: Postgres]")
    secret = "hunter2-hunter2-hunter2"
    reason = f"It forgets:\n\n[AGREE: P1]\n\n{'too slow ' * 53} {secret} {'| and dear ' * 100} the end"
    if act == "reject":
        room.stop()
    acts: dict[str, Callable[[], Dialog]] = {
        "veto": lambda: person.veto(room.log, "P1", reason, secrets=[secret]),
        "strike": lambda: person.strike(room.log, "2", reason, secrets=[secret]),
        "leave": lambda: person.leave(room.log, "C", reason, secrets=[secret]),
        "stop": lambda: person.stop(room.log, reason, secrets=[secret]),
        "reject": lambda: person.reject(room.log, reason, secrets=[secret]),
    }
    entry = acts[act]().last
    assert len(entry.written) == 1
    assert str(entry.written[0]).endswith("…]")
    assert entry.body.startswith("It forgets:\n\n[AGREE: P1]\n\ntoo slow")
    assert [part.count(" | and dear") for part in entry.body.split("[redacted: own key]")] == [0, 100]
    assert "hunter2" not in room.text


def test_a_reason_that_fits_its_mark_stands_there_alone() -> None:
    room = room_of("A", "B")
    replies(room, "A", "[PROPOSAL: Postgres]\n[PROPOSAL: Redis]")
    short = does(room, person.veto, "P1", "x" * 500).last
    assert (short.body, str(short.written[0])) == ("", f"[VETO: P1 | {'x' * 500}]")
    long = does(room, person.veto, "P2", f"{'x' * 500}y").last
    assert (long.body, str(long.written[0])) == (f"{'x' * 500}y", f"[VETO: P2 | {'x' * 499}…]")
    assert f"{'x' * 500}y" in asked(room, "B")


# -- a veto ---------------------------------------------------------------------------------------------------------


def test_what_is_ruled_out_cannot_be_voted_on_decided_or_signed() -> None:
    room = room_of("A", "B", "M", toml='verdict = "vote"\n[roles.M]\nrole = "moderator"')
    replies(room, "A", "fast\n[PROPOSAL: Redis]")
    after = does(room, person.veto, "p1", "we have no Redis")
    assert (after.state.table.vetoed, after.state.polls.open, after.state.owing) == (("P1",), (), ("B",))
    assert [(d.ref, d.outcome, d.method) for d in after.state.table.decisions] == [("P1", "rejected", "veto")]
    assert "P1: we have no Redis" in asked(room, "B")
    assert room.answers("B", "I do.\n[VOTE: P1 approve | fast]") is not None
    last = room.dialog.entries[-1]
    assert [mark.name for mark in last.marks] == ["REFUSED"]
    assert "P1 was ruled out by the person: we have no Redis" in last.marks[0].value
    assert room.asked == []
    assert board.proposals(room.dialog)[0].decision == "vetoed"
    assert does(room, person.veto, "P1", "again").entries[-1] is last


def test_consensus_on_a_text_that_was_ruled_out_is_refused_by_name() -> None:
    room = room_of("A", "B")
    replies(room, "A", f"Here.\n{TEXT}")
    after = does(room, person.veto, "P1")
    assert after.state.table.standing is None
    replies(room, "B", "Fine.\n[AGREE: P1]")
    assert [str(m) for m in room.dialog.entries[-1].marks] == ["[REFUSED: AGREE P1 | P1 was ruled out by the person]"]
    replies(room, "A", f"But it is best.\n{TEXT}")
    assert [m.name for m in room.dialog.entries[-1].marks] == ["REFUSED"]
    assert (room.dialog.state.table.standing, room.owing) == (None, ("B",))
    replies(room, "B", "## Consensus Summary\n\nIn memory.\n\n[CONSENSUS_REACHED]")
    replies(room, "A", "Yes.\n[AGREE: P2]")
    assert room.dialog.state.outcome is not None


def test_a_decision_that_stood_is_undone_by_a_veto() -> None:
    room = room_of("A", "D", toml='[roles.D]\nrole = "synthesizer"\npermissions = ["POST", "DECIDE", "VOTE"]')
    replies(room, "A", "fast\n[PROPOSAL: Redis]")
    replies(room, "D", "yes\n[DECIDE: P1 approve | fine]")
    assert room.dialog.state.table.decisions[-1].outcome == "approved"
    after = does(room, person.veto, "P1")
    assert [d.outcome for d in after.state.table.decisions] == ["rejected"]
    assert parse(room.paper.data) == after


def test_a_veto_of_nothing_and_after_the_end_are_refused() -> None:
    room = agreed()
    with pytest.raises(Refused) as refused:
        person.veto(room.log, "P1")
    assert "dialogd reject" in refused.value.fix
    with pytest.raises(BadInput) as unknown:
        person.veto(room.log, "P7")
    assert unknown.value.fix == "name one of: P1"
    before = room.dialog.state
    room.types("\n[VETO: P1]\n")
    assert (room.dialog.state.outcome, room.dialog.state.table.vetoed) == (before.outcome, ())


# -- who takes part -------------------------------------------------------------------------------------------------


def test_one_more_agent_comes_behind_the_others_and_has_to_sign() -> None:
    room = room_of("A", "B")
    replies(room, "A", f"Here.\n{TEXT}")
    after = does(room, person.invite, "C")
    assert [a.id for a in after.header.agents] == ["A", "B", "C"]
    assert [a.id for a in after.header_as_written.agents] == ["A", "B"]
    assert (after.header.agents[-1].url, after.state.owing) == ("http://localhost:3003", ("B",))
    replies(room, "B", "yes\n[AGREE: P1]")
    assert (room.dialog.state.outcome, room.owing) == (None, ("C",))
    assert "in a written dialog with A and B." in asked(room, "C")
    assert room.answers("C", "me too\n[AGREE: P1]") is not None
    assert room.dialog.state.outcome is not None
    assert parse(room.paper.data) == room.dialog


@cases("order", ["alternate", "round-robin", "priority", "free"])
def test_an_invited_agent_waits_for_its_turn_in_every_order(order: str) -> None:
    room = room_of("A", "B", toml=f'order = "{order}"')
    replies(room, "A", "One.")
    does(room, person.invite, "C = Guest (critic) @ http://127.0.0.1:4000")
    seen = []
    for _ in range(6):
        (me,) = room.owing
        seen.append(me)
        replies(room, me, f"Turn of {me}.")
    assert seen[0] == "B"
    assert set(seen) == {"A", "B", "C"}


@cases(
    ("agent", "why"),
    [
        ("A", ""),
        ("a", "A takes part already"),
        ("A = Somebody", "A takes part already"),
        ("USER", "the id USER is reserved"),
        ("1x", "is no agent"),
        ("", "is no agent"),
        ("C @ http://example.com:80", "is no loopback address"),
        ("C @ http://localhost:0", "is no loopback address"),
        ("C @ http://localhost:3002", "cannot listen on port 3002: B does"),
    ],
)
def test_who_cannot_take_part_is_not_invited(agent: str, why: str) -> None:
    room = room_of("A", "B")
    before = room.text
    if why:
        with pytest.raises(BadInput, match=why):
            person.invite(room.log, agent)
    else:
        person.invite(room.log, agent)
    assert room.text == before
    room.types(f"\n[INVITE: {agent}]\n")
    assert [a.id for a in room.dialog.header.agents] == ["A", "B"]


def test_an_agent_that_comes_back_is_who_it_was_and_nobody_gets_its_port() -> None:
    room = room_of("A", "B", keys=("Agents: A = Ann @ http://localhost:4641, B = Bob @ http://localhost:3002",))
    does(room, person.leave, "B")
    with pytest.raises(BadInput, match="cannot listen on port 3002: B does"):
        person.invite(room.log, "C @ http://localhost:3002")
    assert does(room, person.invite, "C").header.agents[-1].url == "http://localhost:3003"
    back = does(room, person.invite, "B").header.agents[-1]
    assert (back.id, back.name, back.url) == ("B", "Bob", "http://localhost:3002")
    assert parse(room.paper.data) == room.dialog


def test_an_agent_that_leaves_owes_nothing_and_the_word_goes_on() -> None:
    room = room_of("A", "B", "C")
    replies(room, "A", f"Here.\n{TEXT}")
    room.thinks("B")
    after = does(room, person.leave, "claude b", "no need")
    assert (after.state.owing, after.header.speakers, after.header.voters) == (("C",), ("A", "C"), ("A", "C"))
    assert room.answers("B", "Too late.") is None
    quiet = decide(after, "B", Clock())
    assert isinstance(quiet, Wait)
    assert (quiet.status, "takes part no longer" in quiet.reason) == ("left", True)
    assert does(room, person.leave, "B") is after
    replies(room, "C", "yes\n[AGREE: P1]")
    assert room.dialog.state.outcome is not None
    again = does(room, person.invite, "B")
    assert [a.id for a in again.header.agents] == ["A", "C", "B"]
    assert again.state.hand.left == ()
    assert parse(room.paper.data) == again


def test_when_everybody_who_is_left_has_signed_it_ends() -> None:
    room = room_of("A", "B", "C")
    replies(room, "A", f"Here.\n{TEXT}")
    replies(room, "B", "yes\n[AGREE: P1]")
    does(room, person.leave, "C")
    room.step(room.owing[0])
    outcome = room.dialog.state.outcome
    assert outcome.name == "CONSENSUS_REACHED"


def test_votes_seals_findings_and_rounds_do_not_wait_for_who_left() -> None:
    room = room_of("A", "B", "C", toml='verdict = "vote"\nreview = true')
    replies(room, "A", "fast\n[PROPOSAL: Redis]")
    replies(room, "B", "hm\n[VOTE: P1 approve | x]\n[FINDING: blocking | s | f | 1 | hole | close]")
    after = does(room, person.leave, "B")
    assert (after.state.polls.open[0].ballots, after.state.table.blocking, after.state.owing) == ((), (), ("C",))
    sealed = room_of("A", "B", "C", toml='order = "parallel"\nsealed = true\nverdict = "vote"', turn="A, B, C")
    for me in "AB":
        replies(sealed, me, f"I am {me}.")
    after = does(sealed, person.leave, "C")
    assert all(debt.is_ready for debt in after.state.debts.open)
    for me in "AB":
        sealed.step(me)
    assert sealed.dialog.state.number == 3


@cases("by_hand", [False, True])
def test_what_one_that_leaves_was_to_decide_is_the_persons(*, by_hand: bool) -> None:
    room = room_of("A", "M", "B", toml='verdict = "vote"\n[roles.M]\nrole = "moderator"')
    replies(room, "A", "help\n[ESCALATE: we are stuck]")
    assert room.owing == ("M",)
    if by_hand:
        room.types("\n[LEAVE: M]\n")
    else:
        does(room, person.leave, "M")
    state = room.dialog.state
    assert (state.owing, state.escalation.to) == (("USER",), "USER")
    assert "M, who was to decide, has left" in state.questions.text
    court = room_of(
        "A", "B", "J", toml='verdict = "judge"\njudge = "J"\norder = "parallel"', keys=("Max Rounds: 1",), turn="A, B"
    )
    for me in "AB":
        replies(court, me, f"I am {me}.")
    assert court.dialog.state.owing == ("J",)
    does(court, person.leave, "J")
    assert court.dialog.state.owing == ("USER",)
    assert court.dialog.state.questions.text


def test_the_last_agent_cannot_leave_and_of_one_an_end_waits_for_the_person() -> None:
    room = room_of("A", "B")
    replies(room, "A", "One.")
    after = does(room, person.leave, "B")
    assert after.state.owing == ("USER",)
    with pytest.raises(Refused, match="last agent"):
        person.leave(room.log, "A")
    room.types("\n[LEAVE: A]\n")
    assert [a.id for a in room.dialog.header.agents] == ["A"]
    room.say("And?")
    replies(room, "A", TEXT)
    assert (room.dialog.state.outcome, room.owing) == (None, ("USER",))


# -- step mode, limits, suggestions, questions ----------------------------------------------------------------------


def test_step_mode_begins_and_ends_in_the_middle() -> None:
    room = room_of("A", "B")
    does(room, person.step, on=True)
    replies(room, "A", "One.")
    assert room.owing == ("USER",)
    person.pass_on(room.log)
    assert room.owing == ("B",)
    replies(room, "B", "Two.")
    after = does(room, person.step, on=False)
    assert (after.state.hand.step, after.state.owing) == (False, ("A",))
    assert does(room, person.step, on=False) is after
    header = room_of("A", "B", toml="step = true")
    assert header.dialog.state.hand.step
    header.types("\n[STEP: off]\n")
    replies(header, "A", "One.")
    assert header.dialog.state.owing == ("B",)


def test_a_suggestion_of_the_person_is_a_proposal_like_any_other() -> None:
    room = room_of("A", "B", toml='verdict = "vote"')
    replies(room, "A", "fast\n[PROPOSAL: Redis]")
    after = does(room, person.say, "use SQLite | it is there\nalready", instead="P1")
    made = after.state.table.proposals[-1]
    assert (made.ref, made.by, made.text) == ("P2", "USER", "use SQLite | it is there already")
    assert after.entries[-1].body == "Instead of P1:\n\nuse SQLite | it is there\nalready"
    assert (after.state.owing, [poll.ref for poll in after.state.polls.open]) == (("B",), ["P1", "P2"])
    replies(room, "B", "yes\n[VOTE: P2 approve | simple]")
    replies(room, "A", "yes\n[VOTE: P2 approve | simple]")
    outcome = room.dialog.state.outcome
    assert outcome.name == "DECIDED"
    for text, instead in (("", ""), ("\u200b \u2060", ""), ("x", "P9"), ("x", "nothing")):
        with pytest.raises(BadInput):
            person.say(room.log, text, proposal=True, instead=instead)


def test_one_agent_is_asked_alone_and_then_the_order_goes_on() -> None:
    room = room_of("A", "B", "C")
    assert does(room, person.say, "Why?", to="claude b").state.owing == ("B",)
    replies(room, "B", "Because.")
    assert room.owing == ("C",)
    for name in ("Z", "me"):
        with pytest.raises(BadInput):
            person.say(room.log, "Why?", to=name)


def test_skipping_goes_on_as_the_dialog_would() -> None:
    room = room_of("A", "B", toml='order = "round-robin"', keys=("Max Rounds: 1",))
    replies(room, "A", "One.")
    room.skip("B")
    outcome = room.dialog.state.outcome
    assert outcome.name == "MAX_TURNS_REACHED"
    stepping = room_of("A", "B", "C", toml="step = true")
    stepping.skip("A")
    assert stepping.dialog.state.owing == ("B",)


# -- by every door, in any pieces -----------------------------------------------------------------------------------

TYPED = {
    "[STRIKE: 2 | r]": lambda room: person.strike(room.log, "2", "r"),
    "[VETO: P1 | r]": lambda room: person.veto(room.log, "P1", "r"),
    "[INVITE: C]": lambda room: person.invite(room.log, "C"),
    "[LEAVE: B | r]": lambda room: person.leave(room.log, "B", "r"),
    "[STEP: on]": lambda room: person.step(room.log, on=True),
    "[LIMIT: max_turns 40]": lambda room: person.limit(room.log, "max_turns", "40"),
}


def essence(state: State) -> tuple[object, ...]:
    """What a state comes to, whichever entry brought it there."""
    decided = [(d.ref, d.outcome, d.method, d.reason) for d in state.table.decisions]
    return state.hand, state.owing, state.limits, [p.ref for p in state.table.proposals], decided, state.outcome


@cases("typed", TYPED)
def test_typed_by_hand_a_mark_means_what_the_command_means(typed: str) -> None:
    said, commanded, loose = (room_of("A", "B") for _ in range(3))
    for room in (said, commanded, loose):
        replies(room, "A", "fast\n[PROPOSAL: Redis]")
    said.types(f"\n{typed}\n")
    loose.types(f"\n**{typed.replace('STRIKE', 'strike').replace('LEAVE', 'Leave')}**\n")
    TYPED[typed](commanded)
    assert essence(said.dialog.state) == essence(commanded.dialog.state) == essence(loose.dialog.state)
    assert not said.dialog.entries[-1].is_turn


def test_a_turn_line_by_hand_names_whom_the_same_text_invites() -> None:
    room = room_of("A", "B")
    room.types("\n## User\nLet C answer.\n\n[INVITE: C = Carla @ http://localhost:3009]\n\nTURN: Carla\n")
    assert room.owing == ("C",)
    room.types("\n## Turn 3 - Carla\nHere I am.\nTURN: B\n")
    assert (room.dialog.entries[-1].by, room.owing) == ("C", ("B",))
    assert parse(room.paper.data) == room.dialog


def test_what_can_be_done_follows_the_dialog() -> None:
    room = room_of("A")
    assert {"say", "strike", "invite", "limit", "step"} <= set(lifecycle.commands(room.dialog))
    assert not {"veto", "leave", "pass"} & set(lifecycle.commands(room.dialog))
    replies(room, "A", "y\n[PROPOSAL: x]")
    does(room, person.invite, "B")
    assert {"veto", "leave", "pass"} <= set(lifecycle.commands(room.dialog))
    room.stop()
    assert {"say", "strike", "invite"} <= set(lifecycle.commands(room.dialog))
    with pytest.raises(Refused, match="the dialog is over"):
        person.step(room.log, on=True)


MARKS = st.sampled_from(
    [
        "STRIKE: 2", "STRIKE: 3, 4", "STRIKE: 1-9 | all", "VETO: P1", "VETO: P2 | no", "INVITE: C", "LEAVE: A",
        "INVITE: D = Dora @ http://localhost:3010", "LEAVE: B", "LEAVE: C", "STEP: on", "STEP: off", "SKIP: A",
        "LIMIT: max_turns 9", "PROPOSAL: mine", "INVITE: C @ http://localhost:3001", "RETRY: B", "STRIKE: 5",
    ]
)  # fmt: skip
SAID = st.sampled_from(
    [
        "Well.", TEXT, "yes\n[AGREE: P1]", "well\n[PROPOSAL: x]", "no\n[OBJECTION: no]", "stuck\n[DEADLOCK]",
        "yes\n[VOTE: P1 approve | x]", "hm\n[QUESTION_FOR_USER: what?]", "yes\n[DECIDE: P1 approve | x]", "[PASS]",
    ]
)  # fmt: skip
SETUPS = st.sampled_from(
    ["", 'verdict = "vote"', 'verdict = "judge"\njudge = "B"', 'order = "parallel"', "step = true"]
)


def act(draw: Callable[..., str], room: Room) -> None:
    """Somebody does something: who owes a turn answers, or the person's hand, typed or commanded."""
    owing = [who for who in room.owing if isinstance(room.look(who), Reply)]
    kind = draw(st.sampled_from(["reply", "reply", "note", "types", "turn", "unfinished", "say"]))
    if kind == "reply" and owing:
        room.says(owing[0], draw(SAID))
    elif kind == "note":
        name, _, value = draw(MARKS).partition(": ")
        draft = person.note_of(Mark(name, value))
        person.write(room.log, "retry", lambda _: draft)
    elif kind == "types":
        room.types(f"\n[{draw(MARKS)}]\n\n[{draw(MARKS)}]\n")
    elif kind == "turn":
        room.types(f"\n## User\nhello\n[{draw(MARKS)}]\nTURN: {draw(st.sampled_from('ABCD'))}\n")
    elif kind == "unfinished":
        room.types(f"\n[{draw(MARKS)}]\nhalf a li")
    elif kind == "say":
        room.say("On.")


@examples(60, deadline=None)
@given(st.data(), SETUPS)
def test_with_the_persons_hand_in_it_reading_on_is_reading_the_whole(data: st.DataObject, toml: str) -> None:
    room = room_of("A", "B", toml=toml)
    for _ in range(data.draw(st.integers(2, 8))):
        act(data.draw, room)
        check(room.dialog)
    whole = room.paper.data
    first = data.draw(st.integers(whole.index(b"## Turn 1") + 60, len(whole)))
    dialog = parse(whole[:first])
    for end in sorted({*data.draw(st.lists(st.integers(first, len(whole)), max_size=3)), len(whole)}):
        dialog = read_on(dialog, whole[dialog.size : end])
        assert dialog == parse(whole[:end])
    assert dialog == room.dialog


def check(dialog: Dialog) -> None:
    """What holds in every dialog: the steps lead to its state, refs are single, nobody who left is waited for."""
    state = dialog.state
    last = list(steps(dialog))[-1]
    assert last[3] == state
    refs = [p.ref for p in state.table.proposals]
    assert len(refs) == len(set(refs))
    assert dialog.header.agents
    assert {entry.number for entry in dialog.entries if not entry.counts} <= state.hand.struck
    gone = {agent.id for agent in state.hand.left}
    assert not gone & {agent.id for agent in dialog.header.agents}
    for agent in (*dialog.header.agents, *state.hand.left):
        action = decide(dialog, agent.id, Clock(rest=99.0))
        assert not (agent.id in gone and isinstance(action, Reply))
        assert not isinstance(action, Wait) or action.reason
        assert isinstance(action, Stop) == (state.outcome is not None)


def test_a_hundred_strikes_are_read_once() -> None:
    room = room_of("A", "B")
    text = "".join(f"\n## User\nturn\nTURN: A\n\n[STRIKE: {number}]\n" for number in range(1, 301))
    begun = time.process_time()
    dialog = parse(room.paper.data + text.encode())
    assert time.process_time() - begun < 15
    assert len(dialog.state.hand.struck) == 300


def test_a_span_as_long_as_a_number_typed_by_hand_is_read_in_moments() -> None:
    room = room_of("A", "B")
    room.types("\n## Turn 999999999 — User\n\nturn\n\nTURN: A\n\n[STRIKE: 1-999999999]\n")
    struck = room.dialog.state.hand.struck
    assert 1 in struck
    assert len(struck) <= 10_000
    with pytest.raises(BadInput):
        person.strike(room.log, "1-999999999")


def test_what_makes_no_sense_is_refused_in_words() -> None:
    room = room_of("A", "B")
    for attempt in (
        lambda: person.veto(room.log, ""),
        lambda: person.leave(room.log, "Z"),
        lambda: person.leave(room.log, "all"),
        lambda: person.strike(room.log, "7"),
    ):
        with pytest.raises(DialogdError) as refused:
            attempt()
        assert refused.value.fix


def test_a_strike_that_the_next_line_hides_again_never_was() -> None:
    room = room_of("A", "B")
    replies(room, "A", "fast\n[PROPOSAL: Redis]")
    before = room.dialog
    room.types("\n```\n[STRIKE: 2]\n")
    assert not room.dialog.entries[1].counts
    room.types("```\n\nJust an example.\n\nTURN: B\n")
    assert room.dialog.entries[1].counts
    assert [p.ref for p in room.dialog.state.table.proposals] == ["P1"]
    assert room.dialog.entries[1] == before.entries[1]
    assert parse(room.paper.data) == room.dialog
