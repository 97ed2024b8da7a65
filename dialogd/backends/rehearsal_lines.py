"""The lines that rehearsed agents speak, each an example of how a turn may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dialogd.backends.rehearsal_scene import Scene, quote, turn_of
from dialogd.protocol.model import USER, Entry
from dialogd.protocol.state import Proposal, Standing

OPENING = "*Rehearsal: no model was asked; these lines are scripted.*"
LONGEST_TEXT = 4_000  # characters of an agreed text that is still added to


@dataclass(frozen=True, slots=True)
class Objection:
    """One objection with all that follows from it. `claim` is short enough to be quoted whole."""

    claim: str
    because: str
    price: str
    admit: str
    concede: str
    remedy: str


OBJECTIONS = (
    Objection(
        "it names no way back, and two weeks of data make a first choice permanent",
        "An interface protects the code. It does not protect what has been stored behind it: after two weeks people "
        "rely on it, and going back costs more than going on.",
        "Say how we would go back, and at which number, and I sign.",
        "I had counted on the interface to keep the choice open. It keeps the code open, not the data behind it.",
        "an interface alone does not keep the way back open",
        "The way back is written down and tried once before anybody depends on the result.",
    ),
    Objection(
        "it says that we measure, and names no number",
        "Without a limit fixed beforehand, two weeks of measuring end in two readings of the same curve.",
        "Name one number and its limit before the first day, and I sign.",
        "I had meant to look at the numbers and judge then. That would be the same discussion, two weeks later.",
        "a measurement without a limit fixed beforehand settles nothing",
        "One number and its limit are fixed before the first measurement.",
    ),
    Objection(
        "it leaves open who looks after it when it fails",
        "What is simple to start is not simple at three in the morning, with nobody named to look at it.",
        "Put one name beside it, and I sign.",
        "I had taken simple for something that needs nobody. It needs somebody on the day it fails.",
        "what nobody owns is simple only until it fails",
        "One person is named who looks after it and may switch it off alone.",
    ),
    Objection(
        "it counts the cost of building and not the cost of keeping",
        "The first version is the cheapest week of its life; most of the work comes after it.",
        "Count the hours of keeping it in the review, and I sign.",
        "I had compared what it takes to build. What it takes to keep is the larger number.",
        "the cost of keeping belongs in the comparison",
        "The review counts the hours that keeping it has cost.",
    ),
)
FOR_THE_PERSON = Objection(
    "the choice depends on what the person needs first",
    "It rests on something that none of us knows: what hurts more, to start late or to go back.",
    "I could argue either way, and it would be invention. So I ask.",
    "That could only come from the person, and now it is there.",
    "the person's answer decides what we could only guess",
    "The person's answer decides it.",
)
BY_CLAIM = {objection.claim: objection for objection in (*OBJECTIONS, FOR_THE_PERSON)}

PLAN = "take the simplest answer that runs today, keep it behind one small interface, and review it after two weeks"


def heard(scene: Scene) -> str:
    """What the person said since an agent last spoke, taken up; "" when they said nothing."""
    return f"The person says: “{scene.fresh}”. I answer with that in mind." if scene.fresh else ""


def propose(scene: Scene) -> str:
    """The first proposal."""
    return f"""The question is “{scene.topic}”. I would not look for the best answer yet,
but for the one that is cheapest to replace.

- What is small can be changed while it is small.
- Two weeks of use show more than two more rounds of opinions.

[PROPOSAL: {PLAN}]
[CONFIDENCE: 0.7]"""


def demand(scene: Scene) -> str:
    """What any proposal must bring, said before there is one."""
    objection = _objection(scene)
    return f"""Before anybody proposes an answer to “{scene.topic}”, one thing that most first answers get wrong.
{objection.because}

{objection.price}

[CRITIQUE: {objection.claim}]"""


def object_to(scene: Scene, lead: Proposal) -> str:
    """An objection, and the price of a yes."""
    objection = _objection(scene)
    return f"""{scene.name(lead.by)} is right to start small. I object to {lead.ref} in one point: {objection.claim}.

{objection.because} {objection.price}

[OBJECTION: {objection.claim}]
{answering(scene, lead)}
[CONFIDENCE: 0.6]"""


def ask_the_person(scene: Scene) -> str:
    """An objection that only the person can settle."""
    objection = FOR_THE_PERSON
    about = scene.lead.ref if scene.lead else "What was said so far"
    return f"""I cannot answer {about}, and I think that nobody here can. {objection.because}
{objection.price}

[OBJECTION: {objection.claim}]
{answering(scene, scene.lead)}
[QUESTION_FOR_USER: For “{scene.topic}”, which matters more: to start this week, or to be able to go back?]"""


def settle(scene: Scene, lead: Proposal) -> str:
    """A concession, and the text that everybody can sign."""
    return f"""{_concession(scene, lead)}

## Consensus Summary

On “{scene.topic}”: {quote(lead.text, 500).rstrip(".")}.
{_conditions(scene, (*scene.raised, *scene.points), "Part of the agreement")}
[CONSENSUS_REACHED]"""


def amend(scene: Scene, draft: Proposal) -> str:
    """The text that was on the table, with what has been said since."""
    since = [entry for entry in (*scene.raised, *scene.points) if entry.number > turn_of(draft.entry)]
    if not since:
        opening = f"Nothing has been said against the text of {draft.ref}. I put it on the table again, as it was."
    else:
        names = " and ".join(dict.fromkeys(scene.name(entry.by) for entry in since))
        opening = f"{draft.ref} did not say what {names} said since. That is a gap in it, not in them; I close it."
        opening += f"\n\n[CONCEDE: {draft.ref} left something out]"
    text = draft.text.strip() if len(draft.text) < LONGEST_TEXT else f"On “{scene.topic}”: {PLAN}."
    return f"""{opening}
[RE: {turn_of(draft.entry)}, {draft.ref}]

## Consensus Summary

{text}
{_conditions(scene, since, f"Added to {draft.ref}")}
[CONSENSUS_REACHED]"""


def sign(scene: Scene, standing: Standing) -> str:
    """A signature, with its reason."""
    text = standing.proposal
    signers = " and ".join(scene.name(who) for who, _ in standing.signers)
    reasons = (
        "It starts with what can be undone, and it says what would make us undo it.",
        "My own point stands in it in words that I can hold us to. I looked for a sentence that I would not defend "
        "and found none.",
        "It decides what has to be decided now and leaves the rest to a number. More I would not put in.",
        "It is less than each of us wanted, and nobody has to pretend anything.",
    )
    return f"""I read {text.ref}, which {signers} signed, as if nobody were here to explain it.
{reasons[scene.seat % len(reasons)]}

[AGREE: {text.ref}]
[RE: {turn_of(text.entry)}, {text.ref}]
[CONFIDENCE: 0.9]"""


def wait(scene: Scene) -> str:
    """Nothing to add, and whose word is missing."""
    standing = scene.state.standing
    if standing is None:
        reason = f"{scene.name(scene.state.asker)} has asked the person, and the answer decides what I would say."
    else:
        missing = [agent.name for agent in scene.agents if not standing.signed_by(agent.id)]
        reason = f"I have signed {standing.proposal.ref}. Open is the word of {', '.join(missing) or 'the person'}."
    return f"{reason}\n\n[PASS]"


def _objection(scene: Scene) -> Objection:
    """The objection of this seat; the second seat has the first one."""
    return OBJECTIONS[(scene.seat - 1) % len(OBJECTIONS)]


def answering(scene: Scene, proposal: Proposal | None) -> str:
    """What this turn answers: the last turn, and a proposal."""
    answered = str(scene.spoken[-1].number) if scene.spoken else str(max(scene.turn - 1, 1))
    return f"[RE: {answered}, {proposal.ref}]" if proposal else f"[RE: {answered}]"


def _claim(entry: Entry) -> str:
    mark = entry.mark("OBJECTION") or entry.mark("CRITIQUE")
    return quote(mark.value if mark and mark.value else entry.body)


def _concession(scene: Scene, lead: Proposal) -> str:
    """What is given up, and what for; with the marks that say so."""
    if scene.raised:
        last = scene.raised[-1]
        text, mark = _admission(scene, last)
        return f"{text}\n\n[CONCEDE: {mark}]\n[RE: {last.number}, {lead.ref}]"
    if scene.points:
        text = f"What the person says weighs more than {lead.ref} as it stood."
        return f"{text}\n\n[CONCEDE: the person's word goes before {lead.ref}]"
    return f"Nobody has objected to {lead.ref}. I put it into words that can be signed.\n\n[RE: {lead.ref}]"


def _admission(scene: Scene, last: Entry) -> tuple[str, str]:
    """The answer to the last objection: in a sentence or two, and as a mark's value."""
    if last.by == scene.me.id:
        text = "My objection can be met by a condition, and I would rather have the condition than be right."
        return text, f"my objection of turn {last.number} is met by a condition"
    known = BY_CLAIM.get(_claim(last))
    admit = known.admit if known else "I had not seen it from that side."
    text = f"{scene.name(last.by)} is right.\n{admit}\nI give that up and keep the small start."
    return text, known.concede if known else f"the objection of turn {last.number} stands"


def _conditions(scene: Scene, entries: Sequence[Entry], title: str) -> str:
    """What was raised, as conditions of the agreement: a list with a line before it and empty lines around."""
    if not entries:
        return ""
    items = []
    for entry in sorted(entries, key=lambda entry: entry.number):
        if entry.by == USER:
            said, remedy = quote(entry.body), "This is a condition, not a wish."
        else:
            said = _claim(entry)
            remedy = BY_CLAIM[said].remedy if said in BY_CLAIM else "This is answered before the work starts."
        items.append(f"- Turn {entry.number}, {scene.name(entry.by)}: “{said}”. {remedy}")
    return f"\n{title}:\n\n" + "\n".join(items) + "\n"
