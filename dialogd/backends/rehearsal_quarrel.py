"""The lines of rehearsed agents that don't agree."""

from __future__ import annotations

from dialogd.backends.rehearsal_lines import PLAN, answering
from dialogd.backends.rehearsal_scene import Scene
from dialogd.protocol.state import Proposal

COUNTER = "prove the way back first, on a copy, and start only when it has worked once"
CRUX = "is going back after two weeks of use still possible at a price that somebody would pay?"
EXPERIMENT = "half a day: start on a copy, let it run an hour, go back, and count what was lost"

STARTS = (
    "I am not there yet.",
    "One side of this has not been looked at.",
    "Before anybody counts votes:",
    "Let me turn it round.",
    "That is true, and it is not the whole.",
    "Suppose we had already decided.",
    "I keep coming back to the same place from another door.",
)
SIDES = (
    (
        "Who carries the pager? A plan that needs an expert at night is a different plan from one that a "
        "newcomer can follow from a page of notes."
    ),
    (
        "Look at the first bad day instead of the first good week. Which part fails alone, which part takes "
        "others along, and who notices first?"
    ),
    (
        "Money is the smaller half of the price. The larger is attention: every moving part wants to be "
        "remembered by somebody for years."
    ),
    (
        "We talk as if the load were known. It is a guess with a decimal point, and half of the guess would "
        "change the answer."
    ),
    (
        "Names decide more than we admit. Call it temporary and it will be kept; call it the standard and it "
        "will be copied."
    ),
    (
        "Tests tell us that the thing does what we thought of. The trouble lives in what none of us thought "
        "of, and only traffic brings it."
    ),
    ("There is a customer at the end of this chain. She would see a delay of a second and never see our architecture."),
    ("Think of the day when it is removed. What is easy to take out was well put in, whatever it looked like before."),
    (
        "Security is quiet until it is the only subject. Each place where data rests is a place that somebody"
        " must close."
    ),
    "Habit argues for what we have. That is no shame: a known weakness costs less than an unknown strength.",
    "The law may have an opinion. How long may this be kept, and who can order that it be deleted by Friday?",
    "A small team pays for each choice twice, once in code and once in the heads of those who join later.",
    (
        "Speed was measured on an idle machine. Busy machines are where people live, and there the order may "
        "be reversed."
    ),
)
ENDS = (
    ("What would have to be true for the opposite to be right?", "[QUESTION]"),
    ("I would write this down before the next word about tools.", "[IDEA]"),
    ("The last turn passes over it.", "[CRITIQUE]"),
    ("Until that is answered I hold back my yes.", "[OBJECTION: this side has not been weighed]"),
    ("It weighs little alone and much together with what came before.", "[CONFIDENCE: 0.4]"),
)


def hold_first(scene: Scene, lead: Proposal) -> str:
    """The first position, held."""
    return f"""I have looked for a way to meet that and found none that leaves {lead.ref} standing.
A way back that is proven on a copy proves something about the copy. On “{scene.topic}” we learn from use or not at all.

[OBJECTION: a proof on a copy delays the only test that counts]
{answering(scene, lead)}"""


def hold_second(scene: Scene, lead: Proposal) -> str:
    """The second position, taken or held."""
    if not any(entry.by == scene.me.id for entry in scene.spoken):
        return f"""{lead.ref} puts the start first.
I put the way back first, and I don't think that both can come first.

[PROPOSAL: {COUNTER}]
[OBJECTION: what cannot be undone must not be learned by doing]
{answering(scene, lead)}
[CONFIDENCE: 0.7]"""
    return f"""Once more, because it is the point on which I will not move: use teaches, but it also binds.
Whoever starts {lead.ref} today has decided about “{scene.topic}” before the review begins.

[OBJECTION: a review after the fact can only confirm]
{answering(scene, lead)}"""


def call_deadlock(scene: Scene) -> str:
    """Positions, crux, and the cheapest experiment that would settle it."""
    first = scene.name(scene.lead.by) if scene.lead else "One side"
    others = " and ".join(agent.name for agent in scene.agents if agent.name != first) or "The other side"
    opening = "Nobody has moved for two rounds, and I have no argument left that was not heard."
    if scene.state.deadlock:
        opening = f"{' and '.join(map(scene.name, scene.state.deadlock))} called it a deadlock. On that we agree."
    return f"""{opening}
On “{scene.topic}” I call it what it is.

- **{first}:** {PLAN}.
- **{others}:** {COUNTER}.

[DEADLOCK: {CRUX} | {EXPERIMENT}]"""


def one_more_side(scene: Scene) -> str:
    """A side of the matter that this agent did not speak of last time, nor for a dozen turns."""
    turn = scene.turn
    start, side = STARTS[turn * 3 % len(STARTS)], SIDES[turn % len(SIDES)]
    end, mark = ENDS[turn * 2 % len(ENDS)]
    return f"{start} {side}\n\nSo much for side {turn} of “{scene.topic}”. {end}\n\n{mark}"
