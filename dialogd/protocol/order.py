"""Whose turn it is: the order of speaking, and its rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dialogd.protocol import build, marks
from dialogd.protocol.marks import contributes
from dialogd.protocol.model import USER, Header, Mark, Said
from dialogd.protocol.rules import DECIDE, MODERATE
from dialogd.protocol.state import Debt, Dialog, Escalation, Floor, State, can_pass


def following(header: Header, state: State, after: str) -> tuple[str, ...]:
    """Whom the order names after a turn of `after`; absent agents are passed over."""
    # An unknown `after` means that the order begins. Whom something was escalated to comes first, and a judge that has
    # read the positions in one order reads them in the other; one that asked the person goes on without an answer.
    # Gives USER when no agent is left to ask.
    if state.escalation.to not in ("", USER, after, *state.absent):
        return (state.escalation.to,)
    if state.build:
        return at_work(header, state) or (USER,)
    asking = {*state.questions.askers} - state.questions.told
    if after and after == header.judge and (len(state.table.judged) == 1 or after in asking):
        return (after,)
    able = [who for who in header.speakers if who not in state.absent]
    if not able:
        return (USER,)
    if one := _attacking(state, able):
        return (one,)
    if len(header.speakers) == 1:
        return (able[0],) if after != able[0] or state.limits.max_rounds is not None else (USER,)
    if header.rules.order == "parallel":
        return tuple(able) if len(able) > 1 or after != able[0] else (USER,)
    return (_single(header, state, after),)


def at_work(header: Header, state: State) -> tuple[str, ...]:
    """The agents of a build that have something to do now, and can."""
    waits = () if header.is_unattended else state.questions.askers
    return tuple(who for who in state.build.next_turns if header.agent(who) and who not in {*state.absent, *waits})


def _attacking(state: State, able: Sequence[str]) -> str:
    """Who of these argues against what was agreed at once; "" where nothing was, or all only passed."""
    # Whoever signed it last, else another one that did not write it; its author only where nobody else has a word.
    found = [p for p in state.table.proposals if p.ref == state.table.red_team]
    if not found:
        return ""
    author, standing = found[-1].by, state.table.standing
    signed = [who for who, _ in standing.signers] if standing is not None else []
    votes = (ballot for poll in state.polls.open if poll.ref == found[-1].ref for ballot in poll.ballots)
    signed += [ballot.agent for ballot in votes if ballot.choice == marks.APPROVE]
    left = [who for who in able if who not in state.floor.passed and not state.debts.missed.get(who)]
    others = [who for who in (*reversed(signed), *left) if who in left and who != author]
    return (*others, *left, "")[0]


def _single(header: Header, state: State, after: str) -> str:
    ids, floor, rules = list(header.speakers), state.floor, header.rules
    able = [who for who in ids if who != after and who not in state.absent]

    def pending(who: str) -> tuple[float, bool]:
        return rules.role(who).weight * (state.number - floor.chance_at.get(who, 0)), who not in floor.spoke

    match rules.order:
        case "free":
            asks = (one for one in floor.queue if one in able or (one == USER and USER not in state.owing))
            waits = min(able, key=lambda who: (floor.chance_at.get(who, 0), who in floor.spoke), default=USER)
            return next(asks, waits)
        case "priority":
            return max(able, key=pending, default=USER)
        case "round-robin":
            ids.sort(key=lambda who: -rules.role(who).priority)
    start = ids.index(after) + 1 if after in ids else 0
    return next((who for who in [*ids[start:], *ids[:start]] if who in able), USER)


def reopened(header: Header, state: State) -> tuple[str, ...]:
    """Whom a person's turn passes to when they name nobody: who owed, who asked, or the next in order."""
    # Always an agent: the person's turn gives those that failed another chance, and one that is alone another turn.
    if state.build:  # what the person says of the plan is for who made it
        left = frozenset(agent.id for agent in state.hand.left)  # who is only absent has another chance
        due = tuple(filter(header.agent, build.handed_out(replace(state.build, gone=left)).next_turns))
        return due or (state.build.moderator if header.agent(state.build.moderator) else header.agents[0].id,)
    if owing := tuple(a for a in state.owing if a != USER):
        return owing
    askers = tuple(who for who in state.questions.askers if header.agent(who))
    if header.rules.order != "parallel" and askers:
        return askers
    everybody = replace(
        state,
        debts=replace(state.debts, missed={}),
        floor=replace(state.floor, queue=()),
        table=replace(state.table, judged=()),
        escalation=Escalation(),
    )
    named = following(header, everybody, state.floor.last)
    return named if USER not in named else (header.speakers or (header.agents[0].id,))[:1]


# -- Who is waited for ------------------------------------------------------------------------------------------------


def signing(header: Header, state: State) -> tuple[str, ...]:
    """Who has to sign a text: all who may vote; with nobody at the table not who is absent, while two are left."""
    able = header.voters
    here = tuple(who for who in able if who not in state.absent)
    return here if header.is_unattended and len(here) > 1 else able


def positioned(header: Header, state: State) -> tuple[str, ...]:
    """The agents whose position a judge can choose: those that have stated one."""
    return tuple(who for who in header.speakers if who in state.floor.position_at)


def awaited(header: Header, state: State) -> tuple[str, ...]:
    """The absent agents without which nothing can be decided any more: whoever goes on only pays."""
    rules, absent, one = header.rules, state.absent, header.judge
    if state.build:
        both, leads = (state.build.moderator, *state.build.leads), {*state.build.leads}
        gone, due = tuple(who for who in both if who in absent or not header.agent(who)), {*state.build.next_turns}
        needed = due | leads if leads <= {*gone} and leads & due else due - leads  # of leads one is enough
        return tuple(who for who in gone if who in needed)
    if not absent:
        return ()
    if one:
        return (one,) if one in absent else ()
    if rules.verdict == "moderator":
        deciders = tuple(agent.id for agent in header.agents if rules.role(agent.id).may(DECIDE, MODERATE))
        return deciders if absent.issuperset(deciders) else ()
    gone = tuple(who for who in header.voters if who in absent)
    here = [who for who in header.voters if who not in absent]
    if rules.verdict == "vote":
        above = header.moderator
        votes = ({*here, *(ballot.agent for ballot in poll.ballots)} for poll in state.polls.open)
        is_open = any(can_pass(header, agents) for agents in (here, *votes)) or (above and above not in absent)
        return () if is_open else gone
    if (standing := state.table.standing) is not None:
        missing = tuple(who for who in header.voters if not standing.signed_by(who))
        return missing if len(header.voters) > 1 and absent.issuperset(missing) else ()
    return gone if len(here) < 2 and header.is_unattended else ()


def is_takeable(header: Header, state: State) -> bool:
    """True where the person can take the text on the table before the end: all have signed it but who is absent."""
    standing = state.table.standing
    if state.outcome is not None or standing is None or header.rules.verdict != "mutual":
        return False
    return all(standing.signed_by(who) or who in state.absent for who in header.voters)


def ways_out(header: Header, state: State) -> str:
    """What the person can do where only absent agents are missing, in words; "" where they are not."""
    names = awaited(header, state)
    if not names:
        return ""
    standing, signed = state.table.standing if is_takeable(header, state) else None, ""
    again = "`retry {0}` asks it again" + ("" if state.build else ", `leave {0}` goes on without it")
    ways = [(again if header.agent(who) else "`invite {0}` has it back").format(who) for who in names]
    if standing is not None:
        signed = f"{standing.proposal.ref} is signed by {', '.join(who for who, _ in standing.signers) or 'nobody'}; "
        ways.append(f"`approve` takes {standing.proposal.ref} as it stands")
    one, more = ("is absent", "are absent") if any(map(header.agent, names)) else ("has left", "have left")
    are = one if len(names) == 1 else more
    between = " or " if state.build and state.build.moderator not in names else ", "  # of several leads one is enough
    return f"{signed}{', '.join(names)} {are}, and nothing can be decided without: {between.join(ways)}"


# -- Rounds, contributions, and who wants the floor -------------------------------------------------------------------


def contributions(marks: Iterable[Mark]) -> int:
    """How many contributions a turn holds: its typed ones, else itself, unless it only passes."""
    marks = tuple(marks)
    return sum(map(contributes, marks)) or int(not any(mark.is_pass for mark in marks))


def spoken(header: Header, state: State, said: Said) -> int:
    """Note on the floor that an agent has had its turn; gives how many contributions it made."""
    made = 0 if not said.counts else contributions(said.marks)
    named = dict.fromkeys(who for mark in said.all("TO") for who in marks.to(mark, _heard(header)) if who != said.by)
    state.floor = state.floor.spoken(said, made=made, named=tuple(named))
    passed_over(header, state, said.by, passes=not made and said.passes)
    return made


def passed_over(header: Header, state: State, who: str, *, passes: bool = False) -> None:
    """Note on the floor that `who` has had its chance in this round; `passes`: it did nothing but pass."""
    able = frozenset(header.speakers) - state.absent
    state.floor = state.floor.heard(who, state.number, able, state.owing, passes=passes)


def queued(header: Header, floor: Floor, said: Said) -> Floor:
    """The floor after the person's TO: whom it names waits behind the others who do."""
    ids = _heard(header)
    queue = list(floor.queue)
    for mark in said.all("TO"):
        names = marks.to(mark, ids) or ((said.by,) if not mark.value and said.by in ids else ())
        queue += [who for who in names if who not in queue]
    return replace(floor, queue=tuple(queue))


def _heard(header: Header) -> list[str]:
    """Who may be handed the floor: the person too, where they are at the table."""
    return [*(() if header.is_unattended else (USER,)), *header.speakers]


# -- The fence --------------------------------------------------------------------------------------------------------


def is_open(dialog: Dialog, me: str, debt: Debt) -> bool:
    """The fence: a reply may be appended only while the very debt that it answers is open."""
    now = dialog.state.debt(me)
    return dialog.state.outcome is None and now is not None and now.key == debt.key


def is_apart(dialog: Dialog, debt: Debt) -> bool:
    """True when others owe a turn to the same word: nobody is to read an answer to it before it stands in the file."""
    # Who is asked again has a debt of its own, while those of the others are still open.
    opened = dialog.entry(debt.re)
    is_several = opened is not None and opened.turn is not None and len(opened.turn) > 1
    is_open = any(other.key == debt.key for other in dialog.state.debts.open)
    return is_several or is_sealed_round(dialog, debt) or (is_open and len(dialog.state.owing) > 1)


def is_sealed_round(dialog: Dialog, debt: Debt) -> bool:
    """True when the answer to this debt is to be sealed: the first one, where the header says so and several owe it."""
    first = next((entry.id for entry in dialog.entries if entry.is_turn), "")
    return dialog.header.rules.sealed and debt.re == first and (len(dialog.state.owing) > 1 or debt.is_ready)
