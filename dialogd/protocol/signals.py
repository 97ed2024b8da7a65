"""How near the latest replies are to each other: phrases, marks and shared words. A signal, never a verdict.

    convergence = |words that all have| / |words that any has|      words of four letters or more
    confidence  = 0.4 * min(agreements / 4, 1) + 0.3 * max(1 - disagreements / 4, 0) + 0.3 * convergence

It is weak, and knows no meaning: "use X" and "do not use X" share their words, and a phrase can be turned in more
ways than any list holds. Nothing ends by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal

from dialogd.protocol import marks
from dialogd.protocol.board import positions
from dialogd.protocol.model import USER, Condition, Entry, Said
from dialogd.protocol.money import standing, used
from dialogd.protocol.state import Dialog, State
from dialogd.protocol.units import many

Advice = Literal["FINALIZE", "MEDIATE", "CONTINUE"]

WINDOW = 12  # turns that are looked at, of many agents more
ENOUGH = 2  # agreements that suggest an end
TOO_MANY = 3  # disagreements above which somebody should mediate
FULL = 4  # agreements or disagreements from which more change nothing

_WORD = re.compile(r"\w{4,}")


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the latest replies suggest, and why in words. `convergence` and `confidence` are from 0 to 1."""

    advice: Advice
    reason: str
    agreements: int
    disagreements: int
    convergence: float
    confidence: float


def assess(dialog: Dialog) -> Assessment:
    """What the latest reply of each agent since the person last spoke suggests. Costs what a few turns cost."""
    replies = latest_replies(dialog)
    counts = [counted(entry) for entry in replies]
    yes, no = sum(count[0] for count in counts), sum(count[1] for count in counts)
    near = convergence(_unquoted(entry.body) for entry in replies)
    advice, reason = _advised(dialog, len(replies), (yes, no), near)
    return Assessment(advice, reason, yes, no, near, confidence(yes, no, near))


def assessed(dialog: Dialog) -> dict[str, str | int | float] | None:
    """What `assess` finds as facts, once two agents have spoken; None before."""
    if len(dialog.state.floor.spoke_at) < 2:
        return None
    found = assess(dialog)
    return {
        "advice": found.advice,
        "reason": found.reason,
        "agreements": found.agreements,
        "disagreements": found.disagreements,
        "convergence": int(found.convergence * 1_000 + 1e-9) / 1_000,  # cut, as it is where it is shown in hundredths
        "confidence": round(found.confidence, 3),
    }


def confidence(agreements: int, disagreements: int, near: float) -> float:
    """The weighted sum of both counts and the convergence, 0 to 1."""
    return 0.4 * min(agreements / FULL, 1) + 0.3 * max(1 - disagreements / FULL, 0) + 0.3 * near


def convergence(texts: Iterable[str]) -> float:
    """Intersection over union of the words of all texts that have any; 0.0 for fewer than two such texts."""
    sets = [words for words in map(_words, texts) if words]
    return len(frozenset.intersection(*sets)) / len(frozenset.union(*sets)) if len(sets) > 1 else 0.0


def hundredths(near: float) -> int:
    """A convergence in hundredths, as every surface shows it: cut, for 59.9 % are not yet 60 %."""
    return int(near * 100 + 1e-9)


def overlap(one: str, other: str) -> float:
    """Intersection over union of the words of four letters or more; 1.0 for two texts without any."""
    a, b = _words(one), _words(other)
    return len(a & b) / len(a | b) if a | b else 1.0


def is_last_round(dialog: Dialog) -> str:
    """Why the round under way is the last one, in words; "" while others may follow."""
    state, limits = dialog.state, dialog.state.limits
    if state.closing:
        return state.closing
    if limits.max_rounds is not None and state.floor.rounds + 1 >= limits.max_rounds:
        return f"the limit of {many(limits.max_rounds, 'round')}"
    if limits.max_turns - state.counted <= len(dialog.header.speakers):
        return f"the limit of {many(limits.max_turns, 'turn')}"
    return ""


def latest_replies(dialog: Dialog) -> tuple[Entry, ...]:
    """The last turn of each agent that takes part, since the person spoke; oldest first, bare passes left out."""
    who = set(dialog.header.speakers)
    found: dict[str, Entry] = {}
    for entry in islice(reversed(dialog.entries), 3 * max(WINDOW, len(who))):
        if (entry.by == USER and entry.is_turn) or len(found) == len(who):
            break
        says = entry.is_turn and entry.condition is not Condition.DAMAGED and not entry.is_struck
        if says and entry.by in who and (entry.body.strip() or any(mark.name != "PASS" for mark in entry.marks)):
            found.setdefault(entry.by, entry)
    return tuple(found.values())[::-1]


def _advised(dialog: Dialog, replies: int, counts: tuple[int, int], near: float) -> tuple[Advice, str]:
    """The advice and its reason: the last round comes first, then agreement, then too much disagreement."""
    yes, no = counts
    least = dialog.header.rules.convergence_threshold
    share = f"the latest replies share {hundredths(near)}% of their words"
    said = f"{_number(yes, 'agreement')}, {_number(no, 'disagreement')}"
    if dialog.state.outcome is not None:
        return "FINALIZE", f"the dialog has ended; {said}, {share}"
    if not replies:
        return "CONTINUE", "no agent has replied yet"
    last = is_last_round(dialog)
    if last:
        return "FINALIZE", f"this is the last round ({last}); {said}, {share}"
    if yes >= ENOUGH and no == 0 and near >= least:
        return "FINALIZE", f"{said}, and {share} ({least * 100:g}% is enough)"
    if no > TOO_MANY:
        return "MEDIATE", f"{_number(no, 'disagreement')} in the latest replies, more than {TOO_MANY}"
    nearness = f"{share}, {'which is enough' if near >= least else f'below {least * 100:g}%'}"
    return "CONTINUE", f"{_number(yes, 'agreement')} of {ENOUGH}, {_number(no, 'disagreement')}, {nearness}"


def _number(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def counted(entry: Entry) -> tuple[int, int]:
    """The agreements and disagreements of one reply, by its phrases or its marks, whichever are more.

    A kind of mark counts once; a phrase and a mark beside it say the same yes or no.
    """
    yes, no = phrases(_unquoted(entry.body))
    kinds = {mark.name for mark in entry.marks} | {choice.choice for choice in marks.read_vote(entry.marks).values()}
    return max(yes, len(kinds & _YES)), max(no, len(kinds & _NO))


_AGREE = (
    "i agree", "we agree", "i accept", "you're right", "you are right", "good point", "let's proceed", "sounds good",
    "i concede",
)  # fmt: skip
_DISAGREE = (
    "i disagree", "i don't agree", "i do not agree", "i object", "i'm not convinced", "i am not convinced",
    "however, i", "on the other hand", "i still think",
)  # fmt: skip


def phrases(text: str) -> tuple[int, int]:
    """How many of the phrases of agreement, and of disagreement, a text holds; each counts once, wherever it stands."""
    said = " ".join(text.lower().replace("’", "'").split())
    yes, no = (sum(re.search(rf"\b{phrase}\b", said) is not None for phrase in each) for each in (_AGREE, _DISAGREE))
    return yes, no


def sentences(body: str) -> tuple[list[str], list[str]]:
    """The sentences of a reply with a phrase of agreement, and those with one of disagreement."""
    said = [" ".join(one.split()) for one in re.split(r"(?<=[.!?])\s+|\n\s*\n", _unquoted(body))]
    found = [(one, phrases(one)) for one in said]
    return [one for one, (yes, _) in found if yes], [one for one, (_, no) in found if no]


_YES, _NO = frozenset({"AGREE", "CONCEDE", "approve"}), frozenset({"OBJECTION", "CRITIQUE", "reject"})


@lru_cache(maxsize=8 * WINDOW)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _unquoted(body: str) -> str:
    """A text without its block quotes: who quotes the others has not come nearer to them."""
    return "\n".join(line for line in body.split("\n") if not line.lstrip().startswith(">"))


# -- What can be noticed from outside ---------------------------------------------------------------------------------

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


def cycle(dialog: Dialog, *said: Said) -> str:
    """The cycle that the dialog is caught in with what is `said` next, in words; "" where it has not come three times.

    Only where its Setup wants cycles broken: looking for one takes time.
    """
    if dialog.header.setup.get("break_cycles") is not True:
        return ""
    recent = [*_recent(dialog), *said]
    found = (signal for signal in (_cycle(recent), _repeating(recent)) if signal is not None)
    return next((s.text.partition("; ")[0] for s in found if s.kind == "deadlock_suggested"), "")


def _repeating(recent: Sequence[Said]) -> Signal | None:
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


def _cycle(recent: Sequence[Said]) -> Signal | None:
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


def _repeats(recent: Sequence[Said], length: int, rounds: int) -> bool:
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
    authors = {p.ref: p.by for p in dialog.state.table.proposals[-WINDOW:]}
    for entry in recent[-2:]:
        for mark in entry.all("AGREE"):
            ref = next((r for r in authors if r in marks.agreed(mark)), None)
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
    text = dialog.state.table.standing
    if text is None or text.replaced < REWORDED or dialog.state.outcome is not None:
        return None
    texts = [proposal for proposal in dialog.state.table.proposals[-3 * WINDOW :] if proposal.sha]
    agents = tuple(dict.fromkeys(proposal.by for proposal in texts[-text.replaced - 1 :]))
    times = f"the text on the table was reworded {text.replaced} times, by {_names(agents)}"
    return Signal("rewording", f"{times}; sign {text.proposal.ref} as it stands, or object with a reason", agents)


def _quick(dialog: Dialog, recent: list[Entry]) -> Signal | None:
    """Somebody agreed before anybody had answered anybody twice: nothing was tested yet."""
    turns = dialog.state.floor.turns_of
    if dialog.header.rules.is_plain or max(turns.values(), default=0) > 1:
        return None
    said = [(entry.by, *counted(entry)) for entry in recent[1:]]
    agents = tuple(who for who, yes, no in said if yes and not no)
    if not agents:
        return None
    verb = "agree" if len(agents) > 1 else "agrees"
    text = f"{_names(agents)} {verb} in the very first exchange; argue against it once before it counts"
    return Signal("quick_agreement", text, agents)


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


NAMED = 20  # proposals in one sentence


def _absent(dialog: Dialog, recent: list[Entry]) -> Iterator[Signal]:
    """Who may vote, and does not: it spoke twice since it could see the proposal, or gave none in two polls."""
    table, polls = dialog.state.table, dialog.state.polls
    last = [decision for decision in table.decisions[-WINDOW:] if decision.method == "vote"][-2:]
    absent = [re.search(r"(?:no vote|absent): ([^;|]*)", decision.evidence) for decision in last]
    for agent in dialog.header.voters:
        saw = [entry.asked_after - entry.by_hand for entry in recent if entry.by == agent]
        unvoted = [poll for poll in polls.open if all(ballot.agent != agent for ballot in poll.ballots)]
        late = [poll.ref for poll in unvoted if sum(turn >= poll.turn for turn in saw) >= 2]
        if late:
            named = late if len(late) <= NAMED else [*late[:NAMED], f"{len(late) - NAMED} more"]
            yield Signal("absent_vote", f"{agent} spoke twice and has not voted on {_names(named)}", (agent,))
        elif len(last) == 2 and all(who is not None and agent in re.split(", (?:absent: )?", who[1]) for who in absent):
            refs = _names(decision.ref for decision in last)
            yield Signal("absent_vote", f"{agent} gave no vote on {refs}", (agent,))


def _names(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
