"""The one decision function: for every situation one answer, with its reason in words."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dialogd.errors import BackendError, Refused
from dialogd.protocol.decide import Action, Reply, Stop, Wait, Write
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import ANY, USER, Condition
from tests.examples import examples
from tests.protocol.texts import texts
from tests.support.room import Room, opening, waits


def reason(action: Action) -> str:
    """The words of a `Wait`."""
    assert isinstance(action, Wait)
    return action.reason


def test_a_header_alone_waits_for_a_turn() -> None:
    room = Room("# D\n\n**Topic:** x\n")
    assert waits(room.look("A")) == "no_turn_yet"
    assert "## Turn 1" in reason(room.look("A"))


def test_a_turn_that_nobody_has_is_said() -> None:
    room = Room("# D\n\n## Note — User\n\nRemember cost.\n\n[RESUMED]\n")
    assert waits(room.look("B")) == "unknown_turn"
    assert "dialogd say" in reason(room.look("B"))


def test_pace_is_kept_between_an_agents_own_turns_and_not_after_the_person() -> None:
    room = Room(opening(), A=["hello"], B=["hello"])
    room.pace = 2.0
    assert waits(room.step("A")) == "Reply"
    assert waits(room.look("B")) == "Reply"
    room.advance(0.5)
    room.step("B")
    action = room.look("A")
    assert isinstance(action, Wait)
    assert (action.status, action.seconds) == ("pace", 1.5)
    room.advance(1.5)
    assert waits(room.look("A")) == "Reply"
    room.scripts["A"] = ["more"]
    room.step("A")
    room.say("And what of B?", to="A")
    assert waits(room.look("A")) == "Reply"


LINES = st.one_of(
    st.sampled_from(
        [
            "Plain words.",
            "[PASS]",
            "[OBJECTION: no]",
            "[AGREE: P1]",
            "[AGREE: P2]",
            "[DEADLOCK]",
            "[QUESTION_FOR_USER: why?]",
            "[CONSENSUS_REACHED]",
            "## Consensus Summary\nPostgres.\n\n[CONSENSUS_REACHED]",
            "## Consensus Summary\nRedis.\n\n[CONSENSUS_REACHED]",
            "[PROPOSAL: x]\n[PROPOSAL: y]",
        ]
    ),
    texts,
)
HANDS = (
    "\n## User\nwords\nTURN: B\n",
    "\n[PAUSED]\n",
    "\n[RESUMED]\n",
    "\n[SKIP: A]\n",
    "\n[RETRY: B]\n",
    "\nhalf a li",
    "\nTURN: A",
    "\nTURN: Zoe\n",
    "\n## Turn 3 — Claude B\nby hand\nTURN: A\n",
    "\n## Note — User\nTURN: B\n",
    "\n[LIMIT: max_turns 30]\n",
    "\n[STOPPED]\n",
)


class Conversation(RuleBasedStateMachine):
    """Agents who say anything, fail, come late or never, and a person who does anything, in any order."""

    agents = "AB"

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(opening(*self.agents))
        self.thinking: list[str] = []

    @initialize(turn=st.sampled_from(["A", "B", "A, B", "ANY"]))
    def begin(self, turn: str) -> None:
        """A question to one, both or anybody."""
        self.room = Room(opening(*self.agents, turn=turn))

    def able(self) -> list[str]:
        """Who would reply now."""
        return [me for me in self.agents if isinstance(self.room.look(me), Reply)]

    @rule(line=LINES, data=st.data())
    def somebody_replies(self, line: str, data: st.DataObject) -> None:
        """One who may reply does so."""
        able = [me for me in self.able() if me not in self.thinking]
        if able:
            me = data.draw(st.sampled_from(able))
            self.room.thinks(me)
            number = self.room.dialog.state.number
            entry = self.room.answers(me, line)
            assert (entry.number, entry.by, entry.condition) == (number + 1, me, Condition.SOUND)

    @rule(me=st.sampled_from("ABC"))
    def somebody_thinks(self, me: str) -> None:
        """One who may reply begins to, and takes its time."""
        if me in self.able() and me not in self.thinking:
            self.room.thinks(me)
            self.thinking.append(me)

    @precondition(lambda self: bool(self.thinking))
    @rule(line=LINES, fails=st.booleans())
    def somebody_comes_back(self, line: str, fails: bool) -> None:
        """Late or not: it is appended while it is that agent's turn, else kept."""
        me = self.thinking.pop(0)
        before = self.room.dialog
        entry = self.room.answers(me, BackendError("broken", fix="mend it") if fails else line)
        if entry is None:
            assert self.room.dialog is before
        else:
            assert before.state.outcome is None
            assert before.state.debt(me) is not None

    @rule(me=st.sampled_from("ABC"), seconds=st.sampled_from([1.0, 31.0, 400.0]))
    def time_passes(self, me: str, seconds: float) -> None:
        """And somebody looks."""
        self.room.advance(seconds)
        if isinstance(self.room.look(me), Write) or (me in self.room.held and me in self.able()):
            self.room.step(me)

    @rule(text=st.sampled_from(HANDS))
    def the_person_types(self, text: str) -> None:
        """Anything, at the end of the file."""
        self.room.types(text)

    @rule(note=st.booleans(), to=st.sampled_from(["", "A", "all"]))
    def the_person_says(self, note: bool, to: str) -> None:
        """A turn or a remark, by the command."""
        self.room.say("I say so.", note=note, to=to)

    @invariant()
    def one_reading(self) -> None:
        """What was read bit by bit is what the file says as a whole; the chain holds."""
        dialog = self.room.dialog
        assert parse(self.room.paper.data) == dialog
        assert all(entry.linked for entry in dialog.entries)
        assert [entry.number for entry in dialog.turns] == sorted({entry.number for entry in dialog.turns})

    @invariant()
    def one_decision(self) -> None:
        """Nobody acts after the end or in a pause, only those who owe reply, and every wait has a reason."""
        state = self.room.dialog.state
        actions = {me: self.room.look(me) for me in (*self.agents, "Z")}
        for me, action in actions.items():
            assert not isinstance(action, Wait) or (action.reason and action.status)
            assert isinstance(action, Stop) == (state.outcome is not None)
            assert not isinstance(action, Reply) or (state.debt(me) is not None and not state.paused)
        assert state.outcome is None or state.debts.open == ()
        assert len(state.owing) == len(set(state.owing))

    @invariant()
    def somebody_can_go_on(self) -> None:
        """While it is running and undisturbed, an agent that owes a turn is asked for it."""
        room, state = self.room, self.room.dialog.state
        if state.outcome or state.paused or state.counted >= state.limits.max_turns:
            return
        last = room.dialog.last
        if last is not None and last.condition is Condition.UNFINISHED:
            return
        owing = [who for who in state.owing if who != USER]
        present = set(self.agents) - state.absent or set(self.agents)
        assert set(self.able()) == (present if ANY in owing else set(owing))


class ConversationOfThree(Conversation):
    """The same among three."""

    agents = "ABC"


FEW = settings(
    max_examples=25, stateful_step_count=15, report_multiple_bugs=False, suppress_health_check=[HealthCheck.too_slow]
)
Conversation.TestCase.settings = FEW
ConversationOfThree.TestCase.settings = FEW
TestConversation = Conversation.TestCase
TestConversationOfThree = ConversationOfThree.TestCase
MARKS = st.sampled_from(
    ["", "[PASS]", "[AGREE: P1]", "[OBJECTION: no]", "[QUESTION_FOR_USER: x]", "[DEADLOCK]", "[CONSENSUS_REACHED]"]
)
PERSON = st.sampled_from(["", "", "", "say", "note", "pause", "resume", "stop", "skip", "retry"])


def interfere(room: Room, act: str) -> None:
    """The person does something."""
    acts = {
        "say": lambda: room.say("I say so."),
        "note": lambda: room.say("By the way.", note=True),
        "pause": room.pause,
        "resume": room.resume,
        "stop": room.stop,
        "skip": lambda: room.types("\n[SKIP: A]\n"),
        "retry": lambda: room.types(f"\n[RETRY: {(*room.owing, 'A')[0]}]\n"),
    }
    if act:
        with suppress(Refused):  # nothing is paused after the end
            acts[act]()


@example("AB", [("[QUESTION_FOR_USER: x]", ""), ("[QUESTION_FOR_USER: x]", "skip"), ("", "say")])
@examples(60)
@given(st.sampled_from(["AB", "ABC"]), st.lists(st.tuples(MARKS, PERSON), max_size=12))
def test_at_every_point_exactly_one_agent_replies_and_none_once_it_is_over(
    agents: str, script: list[tuple[str, str]]
) -> None:
    """Alternating or going round: one at a time, whatever is said; none in a pause, at the person's turn, or after.

    Only an answer of the person goes to all who asked.
    """
    room = Room(opening(*agents))
    asked: set[str] = set()
    for mark, act in script:
        interfere(room, act)
        state = room.dialog.state
        able = [me for me in agents if isinstance(room.look(me), Reply)]
        at_rest = state.outcome is not None or state.paused or state.owing == (USER,)
        assert at_rest or len(state.owing) == 1 or set(state.owing) <= asked, (state, act)
        assert able == ([] if at_rest else [*state.owing]), (state, act)
        if able:
            asked |= {able[0]} if mark == "[QUESTION_FOR_USER: x]" else set()
            room.says(able[0], f"Words.\n{mark}")


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Conversation, ConversationOfThree])
def test_conversations_at_length(machine: type[Conversation]) -> None:
    """The same machines, many more runs."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=settings(max_examples=250, stateful_step_count=40, deadline=None))
