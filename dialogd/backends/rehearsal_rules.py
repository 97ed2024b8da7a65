"""Rehearsed agents in a dialog with rules: what each does that its role allows and the dialog needs next."""

from __future__ import annotations

from collections.abc import Iterator

from dialogd.backends import rehearsal_lines as lines
from dialogd.backends.rehearsal_scene import Scene, turn_of
from dialogd.protocol.model import USER
from dialogd.protocol.roles import CRITIQUE, DECIDE, MODERATE, POST, PROPOSE, VOTE, Role
from dialogd.protocol.rules import Rules
from dialogd.protocol.state import Poll, Proposal

POSITIONS = (
    lines.PLAN,
    "measure for one week first, against one number that is fixed beforehand, and decide by it",
    "keep what there is, and write down which number would make us change it",
    "try both on one day's copy of the data, and keep the one that fails better",
)
RESERVATIONS = (
    "nobody has measured what going back costs",
    "one number is easy to meet and says little of the rest",
    "who looks after it at night is named, and was not asked",
    "one day's copy does not hold what happens in a month",
)
FINDING = "minor | documentation | README.md | 1 | the change is not mentioned | add a line that says what changed"
SCORE = "code quality 80 | test coverage 75 | security 90 | documentation 60 | acceptance criteria 85"


def speak(scene: Scene) -> str:
    """The next lines of this agent, with the confidence and the reservation that the dialog may ask for."""
    said = "\n".join((_by_office(scene) or _by_role(scene), *_needed(scene)))
    text, _, marks = said.partition("\n[")
    return f"{text}\n\n[{marks}" if marks and not text.endswith("\n") else said


def _rules(scene: Scene) -> Rules:
    return scene.request.dialog.header.rules


def _role(scene: Scene) -> Role:
    return _rules(scene).role(scene.me.id)


def _needed(scene: Scene) -> Iterator[str]:
    """What the header asks of every turn."""
    rules = _rules(scene)
    if rules.board is not None and rules.board.require_confidence:
        yield f"[CONFIDENCE: 0.{6 + scene.seat % 4}]"
    if rules.objections and _role(scene).may(VOTE):
        yield f"[RESERVATION: {RESERVATIONS[scene.seat % len(RESERVATIONS)]}]"


def _by_office(scene: Scene) -> str:
    """What only this agent is asked for now: to judge, to decide, to argue against, to sum up, to vote."""
    state, rules, me = scene.state, _rules(scene), scene.me.id
    if me == rules.judge and rules.verdict == "judge":
        return _judge(scene)
    newest = scene.draft or scene.lead
    if state.escalated == me and newest is not None:
        ref = newest.ref
        return f"It is mine to decide, and {ref} can be undone.\n[DECIDE: {ref} approve | it can be undone]"
    if state.red_team:
        return (
            f"Against {state.red_team}, as strongly as I can: it would fail if the number were chosen to be met, and"
            " nobody would notice for two weeks. The review would show it, and going back is written down. It holds."
        )
    votes = [_vote(scene, poll, index) for index, poll in enumerate(state.polls) if _may_vote(scene, poll)]
    if votes:
        return "I have read each proposal as if I had to run it.\n" + "\n".join(votes)
    if state.closing:
        return f"My last word: {POSITIONS[scene.seat % 4]}. What would change my mind is a number that says otherwise."
    return ""


def _may_vote(scene: Scene, poll: Poll) -> bool:
    return _role(scene).may(VOTE) and all(ballot.agent != scene.me.id for ballot in poll.ballots)


def _vote(scene: Scene, poll: Poll, index: int) -> str:
    """The first open proposal has this agent's vote; the others it leaves to those who know more of them."""
    if index == 0:
        return f"[VOTE: {poll.ref} approve | it starts with what can be undone]"
    return f"[VOTE: {poll.ref} abstain | {scene.state.polls[0].ref} first]"


def _judge(scene: Scene) -> str:
    """The agent that spoke first has put the position that can be undone, in whatever order it is read."""
    first = scene.spoken[0].by if scene.spoken else "none"
    return (
        f"{first} says what would make us go back, and the others do not. The order in which I read them changes"
        f" nothing in that.\n[DECIDE: {first} | it names what would undo it]"
    )


def _by_role(scene: Scene) -> str:
    """What this agent's role lets it do in the course of the dialog."""
    state, role, rules = scene.state, _role(scene), _rules(scene)
    own = [entry for entry in scene.spoken if entry.by == scene.me.id]
    standing, lead = state.standing, scene.lead
    if rules.review and role.may(POST, CRITIQUE) and "FINDING" in rules.kinds and not own:
        return _reviewed(scene)
    if standing is not None and role.may(VOTE) and not standing.signed_by(scene.me.id) and rules.verdict == "mutual":
        return lines.sign(scene, standing)
    if rules.verdict == "moderator" and role.may(DECIDE, MODERATE) and (newest := scene.draft or lead):
        return _decision(scene, newest)
    if role.may(PROPOSE) and not own:
        return _proposal(scene)
    if rules.verdict == "mutual" and role.may(PROPOSE) and standing is None and lead:
        return lines.settle(scene, lead)
    if lead is None and role.may(PROPOSE):
        return _proposal(scene)
    return _remark(scene, lead)


def _proposal(scene: Scene) -> str:
    position = POSITIONS[scene.seat % len(POSITIONS)]
    return (
        f"On “{scene.topic}”: I would {position}. What would change my mind is a number that says otherwise.\n"
        f"[PROPOSAL: {position}]"
    )


def _decision(scene: Scene, newest: Proposal) -> str:
    others = {entry.by for entry in scene.spoken if entry.number > turn_of(newest.entry)} - {scene.me.id}
    if not others and len(scene.agents) > 2:
        return f"{newest.ref} has not been answered yet. I wait for one more voice.\n[PASS]"
    return f"{newest.ref} has been answered, and it can be undone.\n[DECIDE: {newest.ref} approve | it can be undone]"


def _reviewed(scene: Scene) -> str:
    said = "I have read the change from its end to its beginning. Nothing in it blocks."
    return f"{said}\n[FINDING: {FINDING}]\n[SCORE: {SCORE}]"


def _remark(scene: Scene, lead: Proposal | None) -> str:
    """A contribution of the kind that the role allows; else that there is nothing to add."""
    role, last = _role(scene), scene.spoken[-1].number if scene.spoken else 1
    objection = lines.OBJECTIONS[(scene.seat + len(scene.spoken)) % len(lines.OBJECTIONS)]
    about = lead.ref if lead else "what was said"
    if role.may(CRITIQUE):
        return f"One thing about {about}. {objection.because}\n[CRITIQUE: {objection.claim}]\n[RE: {last}]"
    if role.may(POST):
        return f"To bring it together: {objection.remedy}\n[SYNTHESIS: {objection.remedy}]\n[RE: {last}]"
    asker = "" if not scene.state.question else f" {scene.name(scene.state.asker or USER)} has asked the person."
    return f"Nothing to add to {about}.{asker}\n[PASS]"
