"""What can be noticed from outside: repetition, cycles, agreement in the air. Computed, shown, never a verdict.

Only the last turns are looked at, so the cost does not grow with the dialog. Similarity is the overlap of word sets
(Jaccard index, intersection over union); it cannot tell "use X" from "do not use X".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from dialogd.protocol import ballots
from dialogd.protocol.convergence import WINDOW, counted, overlap
from dialogd.protocol.ledger import positions
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.money import standing, used
from dialogd.protocol.roster import voters
from dialogd.protocol.state import Dialog, State

SAME = 0.85  # overlap from which two texts count as nearly the same
WARNINGS = (0.8, 0.5)  # parts of the budget whose spending is noticed
REWORDED = 2  # replacements of the text on the table from which they are noticed


@dataclass(frozen=True, slots=True)
class Signal:
    """One observation: `kind` for programs, `text` for people and prompts, `agents` whom it concerns."""

    kind: str
    text: str
    agents: tuple[str, ...] = ()


def signals(dialog: Dialog) -> tuple[Signal, ...]:
    """What can be noticed in the latest turns; most pressing first."""
    recent = _recent(dialog)
    found = [
        _repeating(recent),
        _cycle(recent),
        _rewording(dialog),
        budget(dialog.state),
        _quick(dialog, recent),
        _flip(dialog, recent),
        *_absent(dialog, recent),
        _accepted(dialog, recent),
        _agreeing(recent),
        _calm(recent),
    ]
    return tuple(signal for signal in found if signal is not None)


def _recent(dialog: Dialog) -> list[Entry]:
    """The last agent turns since the person spoke, oldest first."""
    turns: list[Entry] = []
    for entry in islice(reversed(dialog.entries), WINDOW * 3):
        if entry.by == USER and entry.is_turn:
            break
        if entry.is_turn and entry.condition is not Condition.DAMAGED and not entry.is_struck:
            turns.append(entry)
    return turns[:WINDOW][::-1]


def _repeating(recent: list[Entry]) -> Signal | None:
    """An agent's last three texts are nearly the same: a warning; four or more: a deadlock is suggested."""
    for agent in dict.fromkeys(entry.by for entry in reversed(recent)):
        own = [entry.body for entry in recent if entry.by == agent]
        same = 1
        while same < len(own) and overlap(own[-same], own[-same - 1]) >= SAME:
            same += 1
        if same > 3:
            return Signal(
                "deadlock_suggested", f"{agent} has said nearly the same thing {same} times; {_ADVICE}", (agent,)
            )
        if same == 3:
            return Signal("repetition", f"{agent} has said nearly the same thing three times", (agent,))
    return None


_ADVICE = "call it a [DEADLOCK] with both positions, the crux and the cheapest experiment that would settle it"


def _cycle(recent: list[Entry]) -> Signal | None:
    """The last turns repeat the turns before them: twice is a warning, three times suggests a deadlock."""
    for length in (2, 3, 4):
        rounds = 1
        while _repeats(recent, length, rounds):
            rounds += 1
        agents = tuple(dict.fromkeys(entry.by for entry in recent[-length:]))
        if rounds >= 3:
            return Signal("deadlock_suggested", f"the same {length} turns have come {rounds} times; {_ADVICE}", agents)
        if rounds == 2:
            return Signal("cycle", f"the last {length} turns repeat the {length} before them", agents)
    return None


def _repeats(recent: list[Entry], length: int, rounds: int) -> bool:
    if len(recent) < length * (rounds + 1):
        return False
    last = recent[len(recent) - length :]
    start = len(recent) - length * (rounds + 1)
    before = recent[start : start + length]
    return all(a.by == b.by and overlap(a.body, b.body) >= SAME for a, b in zip(before, last, strict=True))


def budget(state: State) -> Signal | None:
    """Half of the budget is spent, or four fifths."""
    part = used(state) or 0.0
    reached = next((level for level in WARNINGS if part >= level), None)
    if reached is None:
        return None
    return Signal("budget", f"{reached:.0%} of the budget is spent: {standing(state)}")


def _accepted(dialog: Dialog, recent: list[Entry]) -> Signal | None:
    """Somebody accepted somebody else's open proposal."""
    authors = {p.ref: p.by for p in dialog.state.proposals[-WINDOW:]}
    for entry in recent[-2:]:
        for mark in entry.all("AGREE"):
            ref = next((r for r in authors if r in ballots.agreed(mark)), None)
            if ref and authors[ref] != entry.by:
                text = f"{entry.by} accepts {ref} of {authors[ref]}"
                if dialog.header.rules.verdict == "mutual":
                    text += "; if nothing is open, write it as the consensus text"
                return Signal("accepted", text, (entry.by, authors[ref]))
    return None


def _agreeing(recent: list[Entry]) -> Signal | None:
    """Two agents in consecutive turns agree or concede."""
    if len(recent) < 2 or recent[-1].by == recent[-2].by:
        return None
    if all(entry.mark("AGREE") or entry.mark("CONCEDE") for entry in recent[-2:]):
        return Signal("agreement", "two agents agree in consecutive turns", (recent[-2].by, recent[-1].by))
    return None


def _calm(recent: list[Entry]) -> Signal | None:
    """An objection was raised, and none in the last two turns."""
    if len(recent) < 3 or any(entry.mark("OBJECTION") or entry.mark("CRITIQUE") for entry in recent[-2:]):
        return None
    if any(entry.mark("OBJECTION") for entry in recent[:-2]):
        return Signal("no_new_objection", "no new objection for two turns")
    return None


def _rewording(dialog: Dialog) -> Signal | None:
    """The text on the table was put anew again and again: each signs its own, and nobody another's."""
    text = dialog.state.standing
    if text is None or text.replaced < REWORDED or dialog.state.outcome is not None:
        return None
    texts = [proposal for proposal in dialog.state.proposals[-3 * WINDOW :] if proposal.sha]
    agents = tuple(dict.fromkeys(proposal.by for proposal in texts[-text.replaced - 1 :]))
    times = f"the text on the table was reworded {text.replaced} times, by {_names(agents)}"
    return Signal("rewording", f"{times}; sign {text.proposal.ref} as it stands, or object with a reason", agents)


def _quick(dialog: Dialog, recent: list[Entry]) -> Signal | None:
    """Somebody agreed before anybody had answered anybody twice: nothing was tested yet."""
    turns = dialog.state.turns_of
    if dialog.header.rules.is_plain or max(turns.values(), default=0) > 1:
        return None
    agents = tuple(entry.by for entry in recent[1:] if _agrees(entry))
    if not agents:
        return None
    verb = "agree" if len(agents) > 1 else "agrees"
    text = f"{_names(agents)} {verb} in the very first exchange; argue against it once before it counts"
    return Signal("quick_agreement", text, agents)


def _agrees(entry: Entry) -> bool:
    yes, no = counted(entry)
    return yes > 0 and no == 0


def _flip(dialog: Dialog, recent: list[Entry]) -> Signal | None:
    """An agent's latest turn changed a position of its own, and gave neither evidence nor what it answers."""
    last = {entry.by: entry.number for entry in recent}
    flagged = [p for p in positions(dialog, 3 * WINDOW) if p.flagged and last.get(p.agent) == p.turn]
    if not flagged:
        return None
    flip = flagged[-1]
    text = f"{flip.agent} is now {_STANCES[flip.stance]} {flip.ref}, without [EVIDENCE] or [RE] to say what changed"
    return Signal("flip", text, (flip.agent,))


_STANCES = {"for": "for", "against": "against", "open": "undecided on", "conceded": "giving up"}


def _absent(dialog: Dialog, recent: list[Entry]) -> Iterator[Signal]:
    """Who may vote, and does not: it spoke twice since it could see the proposal, or was absent from two votes."""
    for agent in voters(dialog.header):
        own = [entry for entry in recent if entry.by == agent]
        late = [
            poll.ref
            for poll in dialog.state.polls
            if all(ballot.agent != agent for ballot in poll.ballots)
            and sum(_saw(entry) >= poll.turn for entry in own) >= 2
        ]
        missed = _missed(dialog.state, agent)
        if late:
            yield Signal("absent_vote", f"{agent} spoke twice and has not voted on {_names(late)}", (agent,))
        elif missed:
            yield Signal("absent_vote", f"{agent} was absent from the votes on {_names(missed)}", (agent,))


def _missed(state: State, agent: str) -> list[str]:
    """The last two votes, when the agent was absent from both."""
    votes = [decision for decision in state.decisions[-WINDOW:] if decision.method == "vote"][-2:]
    absent = [re.search(r"absent: ([^;|]*)", decision.evidence) for decision in votes]
    if len(votes) < 2 or any(who is None or agent not in who[1].split(", ") for who in absent):
        return []
    return [decision.ref for decision in votes]


def _saw(entry: Entry) -> int:
    """The number of the turn that an agent's turn answers: what it could see."""
    return int(entry.frame.re.split(".")[0] or 0) if entry.frame is not None else entry.number - 1


def _names(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
