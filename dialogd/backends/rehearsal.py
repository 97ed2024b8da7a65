"""The lines that rehearsed agents speak, each an example of how a turn may read."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from types import MappingProxyType

from dialogd.backends import Found, Options, Request, Usage
from dialogd.backends.prices import FREE, Price
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.grammar import CONTROLS
from dialogd.protocol.model import ANY, USER, Entry, turn_number
from dialogd.protocol.rules import CRITIQUE, DECIDE, MODERATE, POST, PROPOSE, VOTE
from dialogd.protocol.table import Proposal, Standing

OPENING = "Rehearsal: scripted lines, no model was asked."
LONGEST_TEXT = 4_000  # characters of an agreed text that is still added to


@dataclass(frozen=True, slots=True)
class Objection:
    """One objection with all that follows from it. `claim` is short enough to be quoted whole."""

    claim: str
    because: str
    admit: str
    concede: str
    remedy: str


OBJECTIONS = (
    Objection(
        "it names no way back, and two weeks of data make a first choice permanent",
        "An interface protects the code. It does not protect what has been stored behind it: after two weeks people "
        "rely on it, and going back costs more than going on. Say how we would go back, and at which number, and I "
        "sign.",
        "I had counted on the interface to keep the choice open. It keeps the code open, not the data behind it.",
        "an interface alone does not keep the way back open",
        "The way back is written down and tried once before anybody depends on the result.",
    ),
    Objection(
        "it says that we measure, and names no number",
        "Without a limit fixed beforehand, two weeks of measuring end in two readings of one curve. Name one number "
        "and its limit before the first day, and I sign.",
        "I had meant to look at the numbers and judge then. That would be the same discussion, two weeks later.",
        "a measurement without a limit fixed beforehand settles nothing",
        "One number and its limit are fixed before the first measurement.",
    ),
    Objection(
        "it leaves open who looks after it when it fails",
        "What is simple to start is not simple at three in the morning. Put one name beside it, and I sign.",
        "I had taken simple for something that needs nobody. It needs somebody on the day it fails.",
        "what nobody owns is simple only until it fails",
        "One person is named who looks after it and may switch it off alone.",
    ),
    Objection(
        "it counts the cost of building and not the cost of keeping",
        "The first version is the cheapest week of its life. Count the hours of keeping it in the review, and I sign.",
        "I had compared what it takes to build. What it takes to keep is the larger number.",
        "the cost of keeping belongs in the comparison",
        "The review counts the hours that keeping it has cost.",
    ),
)
FOR_THE_PERSON = Objection(
    "the choice depends on what the person needs first",
    "It rests on what none of us knows: what hurts more, to start late or to go back. So I ask.",
    "That could only come from the person, and now it is there.",
    "the person's answer decides what we could only guess",
    "The person's answer decides it.",
)
BY_CLAIM = {objection.claim: objection for objection in (*OBJECTIONS, FOR_THE_PERSON)}

PLAN = "begin with the answer that is cheapest to undo, hide it behind one small interface, and judge it in two weeks"


def heard(scene: Scene) -> str:
    """What the person said since an agent last spoke, taken up; "" when they said nothing."""
    return f"The person says: “{scene.fresh}”. I answer with that in mind." if scene.fresh else ""


def propose(scene: Scene) -> str:
    """The first proposal."""
    return f"""On “{scene.topic}” we could argue until Friday about what is best. I would ask something else: which
answer do we regret least if we are wrong?

- A choice that one person can undo in a day needs no perfect argument.
- Two weeks of real use tell us what neither of us can know today.
- Whatever depends on it talks to one small interface, so that a second choice costs a file and not a project.

[PROPOSAL: {PLAN}]
[CONFIDENCE: 0.7]"""


def demand(scene: Scene) -> str:
    """What any proposal must bring, said before there is one."""
    objection = _objection(scene)
    return f"""Before anybody proposes an answer to “{scene.topic}”, one thing that most first answers get wrong.
{objection.because}

[CRITIQUE: {objection.claim}]"""


def object_to(scene: Scene, lead: Proposal) -> str:
    """An objection, and the price of a yes."""
    objection = _objection(scene)
    return f"""To begin small is right, and I would sign most of {lead.ref}. One thing is missing: {objection.claim}.

{objection.because}

[OBJECTION: {objection.claim}]
{answering(scene, lead)}
[CONFIDENCE: 0.6]"""


def ask_the_person(scene: Scene) -> str:
    """An objection that only the person can settle."""
    objection = FOR_THE_PERSON
    about = scene.lead.ref if scene.lead else "What was said so far"
    return f"""I cannot answer {about}, and I think that nobody here can. {objection.because}

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
    since = [entry for entry in (*scene.raised, *scene.points) if entry.number > turn_number(draft.entry)]
    if not since:
        opening = f"Nothing has been said against the text of {draft.ref}. I put it on the table again, as it was."
    else:
        names = " and ".join(dict.fromkeys(scene.name(entry.by) for entry in since))
        opening = f"{draft.ref} did not say what {names} said since. That is a gap in it, not in them; I close it."
        opening += f"\n\n[CONCEDE: {draft.ref} left something out]"
    text = draft.text.strip() if len(draft.text) < LONGEST_TEXT else f"On “{scene.topic}”: {PLAN}."
    return f"""{opening}
[RE: {turn_number(draft.entry)}, {draft.ref}]

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
[RE: {turn_number(text.entry)}, {text.ref}]
[CONFIDENCE: 0.9]"""


def wait(scene: Scene) -> str:
    """Nothing to add, and whose word is missing."""
    standing = scene.state.table.standing
    if standing is None:
        reason = (
            f"{scene.name(scene.state.questions.asker)} has asked the person, and the answer decides what I would say."
        )
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


# -- The lines of rehearsed agents that don't agree -------------------------------------------------------------------

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
    "Who carries the pager? A plan that needs an expert at night is another plan than one that a newcomer can follow.",
    "Look at the first bad day instead of the first good week: which part fails alone, and who notices first?",
    "Money is the smaller half of the price. The larger is attention: every moving part wants to be remembered.",
    "We talk as if the load were known. It is a guess with a decimal point, and half of it would change the answer.",
    "Names decide more than we admit. Call it temporary and it will be kept; call it the standard and it is copied.",
    "Tests tell us that the thing does what we thought of. The trouble lives in what only traffic brings.",
    "There is a customer at the end of this chain, who would see a delay of a second and never our architecture.",
    "Think of the day when it is removed. What is easy to take out was well put in, whatever it looked like before.",
    "Security is quiet until it is the only subject. Each place where data rests must be closed by somebody.",
    "Habit argues for what we have. That is no shame: a known weakness costs less than an unknown strength.",
    "The law may have an opinion. How long may this be kept, and who can order that it be deleted by Friday?",
    "A small team pays for each choice twice, once in code and once in the heads of those who join later.",
    "Speed was measured on an idle machine. Busy machines are where people live, and there the order may be reversed.",
)
ENDS = (
    ("What would have to be true for the opposite to be right?", "[QUESTION: what would make the opposite right?]"),
    ("I would write this down before the next word about tools.", "[IDEA: write this down first]"),
    ("The last turn passes over it.", "[CRITIQUE: the last turn passes over this]"),
    ("Until that is answered I hold back my yes.", "[OBJECTION: this side has not been weighed]"),
    ("It weighs little alone and much together with what came before.", "[CONFIDENCE: 0.4]"),
)


def hold_first(scene: Scene, lead: Proposal) -> str:
    """The first position, held."""
    return f"""I have looked for a way to meet that and found none that leaves {lead.ref} standing.
A way back that is proven on a copy proves something about the copy. On “{scene.topic}” we learn from use or not
at all.

[OBJECTION: a proof on a copy delays the only test that counts]
{answering(scene, lead)}"""


def hold_second(scene: Scene, lead: Proposal | None) -> str:
    """The second position, taken, also before there is a first, or held."""
    if lead is None or not any(entry.by == scene.me.id for entry in scene.spoken):
        return f"""{lead.ref if lead else "What is said first about it as a rule"} puts the start first.
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
    first = scene.name(scene.first.by) if scene.first else "One side"
    others = " and ".join(agent.name for agent in scene.agents if agent.name != first) or "The other side"
    opening = "Nobody has moved for two rounds, and I have no argument left that was not heard."
    if scene.state.table.deadlock:
        opening = f"{' and '.join(map(scene.name, scene.state.table.deadlock))} called it a deadlock. On that we agree."
    return f"""{opening}
On “{scene.topic}” I call it what it is.

- **{first}:** {PLAN}.
- **{others}:** {COUNTER}.

[DEADLOCK: {CRUX} | {EXPERIMENT}]"""


def endless(scene: Scene) -> str:
    """For ever one more side of the matter, of which this agent did not speak for a dozen turns."""
    turn = scene.turn
    start, side = STARTS[turn * 3 % len(STARTS)], SIDES[turn % len(SIDES)]
    end, mark = ENDS[turn * 2 % len(ENDS)]
    return f"{start} {side}\n\nSo much for side {turn} of “{scene.topic}”. {end}\n\n{mark}"


# -- A piece about one question: two agents whose projects know something that the other's does not -------------------

STORY_TOPICS = frozenset({"Where should user sessions live?", "Where should user sessions live: Redis or Postgres?"})


def _shop_proposes(_scene: Scene, _refs: Sequence[str]) -> str:
    return """I read the web shop. Its sessions have been rows of Postgres for three years: one table, 30 days,
cleaned up at night. It is in every backup, and the support team ends a stolen session by deleting
its row.

Redis would be faster. It would also be a second thing that holds the truth, and nobody here is on call for it.

[PROPOSAL: Sessions stay in Postgres, one row each, for 30 days.]
[EVIDENCE: shop/db/schema.sql, table sessions; docs/on-call.md names Postgres and no Redis]
[CONFIDENCE: 0.7]"""


_GATEWAY = """the gateway. It looks up the session on every request, 1,900 times a
second at the evening peak, and it does so from three regions. From the farthest one a single look
at {} takes 140 ms, and its pool ends at 80 connections.

So I would keep nothing at all: the browser carries a signed cookie, and each region checks the signature by
itself in microseconds.

"""
_GATEWAY_MARKS = """[PROPOSAL: Sessions live in signed cookies; no store is asked.]
[EVIDENCE: gateway/metrics/peak.csv; gateway/config/pool.yaml, size 80]"""


def _gateway_proposes(_scene: Scene, _refs: Sequence[str]) -> str:
    return f"I read {_GATEWAY.format('the database')}{_GATEWAY_MARKS}\n[CONFIDENCE: 0.7]"


def _too_far(refs: Sequence[str]) -> str:
    return f"[OBJECTION: {refs[0]} sends 1,900 reads a second to one database, over a distance of 140 ms.]"


def _gateway_objects(scene: Scene, refs: Sequence[str]) -> str:
    said = f"You cannot see {_GATEWAY.format('your Postgres').replace('the gateway.', 'the gateway from there.', 1)}"
    return f"{said}{_too_far(refs)}\n{_GATEWAY_MARKS}\n[RE: {_last(scene)}, {refs[0]}]\n[CONFIDENCE: 0.7]"


def _gateway_compares(scene: Scene, refs: Sequence[str]) -> str:
    return f"""We answered two questions: you, who ends a session; I, who reads it. One fact decides between
{refs[0]} and {refs[1]}, and you cannot look it up from there: the reads come from three regions, and the farthest one
would wait 140 ms for each.

{_too_far(refs)}
[RE: {_last(scene)}, {refs[0]}]"""


def _shop_concedes_and_objects(scene: Scene, refs: Sequence[str]) -> str:
    return f"""I knew none of these three numbers, and with them {refs[0]} does not hold. I give up asking Postgres
on every request.

But {refs[1]} takes away what the support team needs most. A signed cookie is good until it expires: whoever has
stolen one stays signed in, and there is no row to delete. That happened to us eleven times last year. What
nobody has asked yet: how long may a stolen session live?

[CONCEDE: {refs[0]} does not survive 1,900 reads a second]
[OBJECTION: {refs[1]} cannot end a stolen session before it expires.]
[QUESTION: How many minutes may a stolen session live?]
[EVIDENCE: shop/support/revoke.py; eleven takeovers in docs/incidents]
[RE: {_last(scene)}, {refs[1]}]"""


_FIRST_TEXT = """- **Postgres holds every session**, one row each, for 30 days. It alone is the truth.
- **The browser carries a signed cookie** that is good for five minutes. The gateway checks the signature by
  itself and asks Postgres only to renew it: 7 times a second instead of 1,900.
- **To end a session, delete its row.** That takes effect within five minutes; payments and changes of a
  password ask Postgres every time.
- **No Redis now.** We look at it again when renewals pass 500 a second or take longer than 50 ms in the nearest
  region."""


def _gateway_settles(scene: Scene, refs: Sequence[str]) -> str:
    return f"""Eleven times is no corner case, and I had not thought of the support team at all. I withdraw the
cookie as the only place.

Your question has an answer in the gateway: it already drops idle connections after five minutes. If a cookie is
good for just as long, both of us get what we need.

[CONCEDE: {refs[1]} leaves a stolen session alive]
[RE: {_last(scene)}]

## Consensus Summary

{_FIRST_TEXT}

[CONSENSUS_REACHED]"""


def _shop_improves(scene: Scene, refs: Sequence[str]) -> str:
    return f"""That is better than what either of us came with. I read {refs[2]} as the person on call would, at
three in the morning, and found one gap: both projects now depend on one signing key, and the text
does not say whose it is. I add a line.

[RE: {_last(scene)}, {refs[2]}]

## Consensus Summary

{_FIRST_TEXT}
- **The signing key belongs to the shop** and changes every 30 days. The gateway accepts the old one for ten
  minutes more.

[CONSENSUS_REACHED]"""


def _gateway_signs(scene: Scene, refs: Sequence[str]) -> str:
    return f"""The line is right, and it belongs to the shop: that is where the rows are. I would defend every
sentence of {refs[3]} before my own team.

One thing I cannot promise. Nobody has measured what a renewal costs from the third region; the 140 ms are a
single look on a quiet day.

[AGREE: {refs[3]}]
[RESERVATION: a renewal from the third region has not been measured under load]
[RE: {_last(scene)}, {refs[3]}]
[CONFIDENCE: 0.85]"""


def _last(scene: Scene) -> int:
    return scene.spoken[-1].number


# Who speaks, after how many turns of the shop and of the gateway: the lines, and how many proposals there are by then.
# Where both answer the question at once, either answer may come first.
STORY: Mapping[tuple[str, int, int], tuple[Callable[[Scene, Sequence[str]], str], int]] = MappingProxyType(
    {
        ("shop", 0, 0): (_shop_proposes, 0),
        ("gateway", 0, 0): (_gateway_proposes, 0),
        ("gateway", 1, 0): (_gateway_objects, 1),
        ("gateway", 1, 1): (_gateway_compares, 2),
        ("shop", 1, 1): (_shop_concedes_and_objects, 2),
        ("shop", 1, 2): (_shop_concedes_and_objects, 2),
        ("gateway", 2, 1): (_gateway_settles, 2),
        ("gateway", 2, 2): (_gateway_settles, 2),
        ("shop", 2, 2): (_shop_improves, 3),
        ("shop", 2, 3): (_shop_improves, 3),
        ("gateway", 3, 2): (_gateway_signs, 4),
        ("gateway", 3, 3): (_gateway_signs, 4),
    }
)


def _story(scene: Scene) -> str:
    """The next lines of the piece, while nobody has said anything that is not in it; "" for any other dialog."""
    is_its = (scene.dialog.header.topic or scene.topic) in STORY_TOPICS and len(scene.agents) == 2
    together = is_its and len(scene.dialog.entries[0].turn or ()) > 1  # which may take a turn more
    if not is_its or scene.points or scene.state.base or scene.state.limits.max_turns <= 6 + together:
        return ""
    shop = scene.agents[0].id if together else scene.spoken[0].by if scene.spoken else scene.me.id
    count = sum(entry.by == shop for entry in scene.spoken)
    part = "shop" if scene.me.id == shop else "gateway"
    line, proposed = STORY.get((part, count, len(scene.spoken) - count), (None, 0))
    proposals = scene.state.table.proposals
    is_played = len(proposals) == proposed and all(entry.body.startswith(OPENING) for entry in scene.spoken)
    is_next = not scene.spoken or scene.spoken[-1].by != scene.me.id
    if line is None or not (is_played and is_next):
        return ""
    own = sorted(proposals[:2], key=lambda proposal: proposal.by != shop)
    text = line(scene, [proposal.ref for proposal in (*own, *proposals[2:])])
    return re.sub(r"(?<=[^\n\]])\n(?! *[-#\[]|\n) *", " ", text)  # a paragraph is one line, as a model writes it


# -- What a rehearsed agent sees of a dialog --------------------------------------------------------------------------

LOOK_BACK = 24  # entries, and proposals
QUOTE = 80  # characters

_LABEL = re.compile(r"^\s*\*\*\w[\w ]*:\*\*", re.M)


class Scene:
    """The dialog since it was opened, or opened again, as far as `LOOK_BACK` reaches; oldest first.

    `me` is whose lines are wanted, for the turn `turn`. Each part is read when a script asks for it.
    """

    def __init__(self, request: Request) -> None:
        self.dialog, self.me, self.turn = request.dialog, request.agent, request.turn
        self.state, self.rules, self.agents = self.dialog.state, self.dialog.header.rules, self.dialog.header.agents
        self.role = self.rules.role(self.me.id)
        self.seat = next((i for i, agent in enumerate(self.agents) if agent.id == self.me.id), 0)

    @cached_property
    def topic(self) -> str:
        """The topic, or the question, shortened to be quoted."""
        question = self.dialog.entries[0].body if self.dialog.entries else ""
        return quote(self.dialog.header.topic or question) or "this question"

    @cached_property
    def fresh(self) -> str:
        """What the person said, in a turn or a note, since an agent last spoke; "" when they said nothing.

        A note that changes a limit, pauses and the like says nothing, nor does a session that holds a seat.
        """
        for entry in islice(reversed(self.dialog.entries), LOOK_BACK):
            if entry.is_turn and entry.by != USER:
                break
            is_act = not entry.is_turn and any(mark.name in CONTROLS for mark in entry.marks)
            is_act |= bool(entry.via) or entry.is_struck
            if entry.by == USER and entry.number != 1 and entry.body.strip() and not is_act:
                return quote(entry.body)
        return ""

    @cached_property
    def spoken(self) -> tuple[Entry, ...]:
        """The agents' turns."""
        return tuple(entry for entry in self._entries if entry.is_turn and entry.by != USER)

    @cached_property
    def raised(self) -> tuple[Entry, ...]:
        """The agents' turns that object."""
        return tuple(entry for entry in self.spoken if entry.mark("OBJECTION") or entry.mark("CRITIQUE"))

    @cached_property
    def points(self) -> tuple[Entry, ...]:
        """The person's turns after the opening question."""
        return tuple(e for e in self._entries if e.by == USER and e.number > 1 and e.body.strip())

    @cached_property
    def draft(self) -> Proposal | None:
        """The newest consensus text that was proposed, also before the dialog was opened again."""
        return next((proposal for proposal in self._proposals if proposal.sha), None)

    @cached_property
    def lead(self) -> Proposal | None:
        """The first plain proposal."""
        own = (p for p in reversed(self._proposals) if not p.sha and turn_number(p.entry) > self.state.base)
        return next(own, None)

    @cached_property
    def first(self) -> Proposal | None:
        """The proposal of the first position, which in a sealed round may stand behind the second."""
        own = (p for p in reversed(self._proposals) if p.text == PLAN and turn_number(p.entry) > self.state.base)
        return next(own, None)

    @cached_property
    def earlier(self) -> Proposal | None:
        """The last plain proposal from before the dialog was opened again."""
        return next((p for p in self._proposals if not p.sha and turn_number(p.entry) <= self.state.base), None)

    @cached_property
    def _entries(self) -> list[Entry]:
        recent = islice(reversed(self.dialog.entries), LOOK_BACK)
        return [entry for entry in recent if turn_number(entry.id) > self.state.base and not entry.is_struck][::-1]

    @cached_property
    def _proposals(self) -> tuple[Proposal, ...]:
        """Newest first."""
        return tuple(islice(reversed(self.state.table.proposals), LOOK_BACK))

    @property
    def first_in_line(self) -> bool:
        """True unless somebody before this agent owes a turn of the same round."""
        owing = [who for who in self.state.owing if who not in (USER, ANY)]
        return not owing or owing[0] == self.me.id or self.me.id not in owing

    def name(self, agent: str) -> str:
        """What an agent is called; the person is `the person`."""
        if agent == USER:
            return "the person"
        return next((a.name for a in self.agents if a.id == agent), agent)


def quote(text: str, limit: int = QUOTE) -> str:
    """The beginning of a text on one line, fit to stand between “ and ” and in a mark."""
    head = _LABEL.sub(" ", text[: 10 * limit])
    plain = "".join(c if c.isprintable() else " " for c in head).translate(_HARMLESS)
    flat = " ".join(plain.split()).strip("’ ").removesuffix(".")
    if len(flat) <= limit:
        return flat
    return flat[: limit - 1].rsplit(" ", 1)[0].rstrip(",;:. ") + "…"


_HARMLESS = str.maketrans({"[": "(", "]": ")", "|": "/", "“": "’", "”": "’", '"': "’", "#": " ", "*": " ", "`": "’"})


# -- Rehearsed agents in a dialog with rules --------------------------------------------------------------------------

POSITIONS = (
    PLAN,
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


def _needed(scene: Scene) -> Iterator[str]:
    """What the header asks of every turn."""
    rules = scene.rules
    if rules.board is not None and rules.board.require_confidence:
        yield f"[CONFIDENCE: 0.{6 + scene.seat % 4}]"
    if rules.objections and scene.role.may(VOTE):
        yield f"[RESERVATION: {RESERVATIONS[scene.seat % len(RESERVATIONS)]}]"


def _by_office(scene: Scene) -> str:
    """What only this agent is asked for now: to judge, to decide, to argue against, to sum up, to vote."""
    state, rules, me = scene.state, scene.rules, scene.me.id
    if me == rules.judge and rules.verdict == "judge":
        first = scene.spoken[0].by if scene.spoken else "none"
        return (
            f"{first} says what would make us go back, and the others do not. The order in which I read them changes"
            f" nothing in that.\n[DECIDE: {first} | it names what would undo it]"
        )
    newest = scene.draft or scene.lead
    if state.escalation.to == me and newest is not None:
        ref = newest.ref
        return f"It is mine to decide, and {ref} can be undone.\n[DECIDE: {ref} approve | it can be undone]"
    if state.table.red_team:
        return (
            f"Against {state.table.red_team}, as strongly as I can: it would fail if the number were chosen to be met,"
            " and nobody would notice for two weeks. The review would show it, and going back is written down."
            " It holds."
        )
    polls = [poll for poll in state.polls.open if all(ballot.agent != me for ballot in poll.ballots)]
    if polls and scene.role.may(VOTE):
        first = state.polls.open[0].ref  # the others are left to those who know more of them
        votes = (f"abstain | {first} first", "approve | it starts with what can be undone")
        said = (f"[VOTE: {poll.ref} {votes[poll.ref == first]}]" for poll in polls)
        return "I have read each proposal as if I had to run it.\n" + "\n".join(said)
    if state.closing:
        return f"My last word: {POSITIONS[scene.seat % 4]}. What would change my mind is a number that says otherwise."
    return ""


def _by_role(scene: Scene) -> str:
    """What this agent's role lets it do in the course of the dialog."""
    state, role, rules = scene.state, scene.role, scene.rules
    own = [entry for entry in scene.spoken if entry.by == scene.me.id]
    standing, lead = state.table.standing, scene.lead
    if rules.review and role.may(POST, CRITIQUE) and "FINDING" in rules.kinds and not own:
        return f"I have read the change. Nothing in it blocks.\n[FINDING: {FINDING}]\n[SCORE: {SCORE}]"
    if standing is not None and role.may(VOTE) and not standing.signed_by(scene.me.id) and rules.verdict == "mutual":
        return sign(scene, standing)
    if rules.verdict == "moderator" and role.may(DECIDE, MODERATE) and (newest := scene.draft or lead):
        return _decision(scene, newest)
    if role.may(PROPOSE) and (lead is None or not own):
        position = POSITIONS[scene.seat % len(POSITIONS)]
        return (
            f"On “{scene.topic}”: I would {position}. What would change my mind is a number that says otherwise.\n"
            f"[PROPOSAL: {position}]"
        )
    if rules.verdict == "mutual" and role.may(PROPOSE) and standing is None and lead:
        return settle(scene, lead)
    return _remark(scene, lead)


def _decision(scene: Scene, newest: Proposal) -> str:
    others = {entry.by for entry in scene.spoken if entry.number > turn_number(newest.entry)} - {scene.me.id}
    if not others and len(scene.agents) > 2:
        return f"{newest.ref} has not been answered yet. I wait for one more voice.\n[PASS]"
    return f"{newest.ref} has been answered, and it can be undone.\n[DECIDE: {newest.ref} approve | it can be undone]"


def _remark(scene: Scene, lead: Proposal | None) -> str:
    """A contribution of the kind that the role allows; else that there is nothing to add."""
    role, last = scene.role, scene.spoken[-1].number if scene.spoken else 1
    objection = OBJECTIONS[(scene.seat + len(scene.spoken)) % len(OBJECTIONS)]
    about = lead.ref if lead else "what was said"
    if role.may(CRITIQUE):
        return f"One thing about {about}. {objection.because}\n[CRITIQUE: {objection.claim}]\n[RE: {last}]"
    if role.may(POST):
        return f"To bring it together: {objection.remedy}\n[SYNTHESIS: {objection.remedy}]\n[RE: {last}]"
    asker = (
        ""
        if not scene.state.questions.text
        else f" {scene.name(scene.state.questions.asker or USER)} has asked the person."
    )
    return f"Nothing to add to {about}.{asker}\n[PASS]"


# -- The `rehearsal` backend ------------------------------------------------------------------------------------------

SLOW_SECONDS = 6.0
LONGEST = 3600.0


class Rehearsal:
    """Plays a scenario, `options.variant`: consensus (default), deadlock, endless, ask, error, slow.

    Deterministic: what is said follows from the dialog alone, so daemons may come and go. `slow` streams the
    consensus word by word over six seconds; `slow=0.5` over half a second.
    Raises `BadInput` for another variant.
    """

    name = "rehearsal"
    model = "rehearsal"
    costs = False
    price: Price | None = FREE
    most_out = 2_000
    room = 0
    secrets: tuple[str, ...] = ()

    def __init__(self, options: Options) -> None:
        scenario, given, seconds = (options.variant or "consensus").partition("=")
        script = SCENARIOS.get(scenario)
        if script is None or (given and scenario != "slow"):
            raise BadInput(f"unknown rehearsal {options.variant!r}", fix=f"choose one of: {', '.join(SCENARIOS)}")
        self._script = script
        self._seconds = 0.0 if scenario != "slow" else _seconds(seconds) if given else SLOW_SECONDS

    @staticmethod
    def probe(_variables: Mapping[str, str], _variant: str) -> Found:
        """It is always here."""
        return Found(True, "scripted lines, no model")

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage, None]:
        """Stream the next lines of the script. Raises `BackendError` in the scenario `error`, always."""
        if request.question:
            yield means_it(request.prompt().parts[-1].text, request.question)
            yield Usage(model=self.model, usd=0.0)
            return
        scene = Scene(request)
        text = "\n\n".join(part for part in (OPENING, heard(scene), self._script(scene)) if part)
        pieces = re.findall(r"\S+\s*" if self._seconds else r"(?s).+?(?:\n\n|$)", text)
        for piece in pieces:
            if self._seconds:
                await asyncio.sleep(self._seconds / len(pieces))
            yield piece
        yield Usage(model=self.model, usd=0.0)

    async def close(self) -> None:
        """Nothing is kept between replies."""


def means_it(reply: str, question: str) -> str:
    """The answer of a scripted agent to a closing question: what its reply says, without a reason."""
    lines = []
    for asked in question.split("\n"):
        forms = [form for form in re.findall(r"`(\[[^`]*\])`", asked) if not form.startswith("[RESERVATION")]
        lines += [form for form in forms if re.search(rf"{re.escape(form[:-1])}\s*[|\]]", reply)][:1]
    return "\n".join(lines)


def consensus(scene: Scene) -> str:
    """Propose, object, concede over a summary, sign; whichever the dialog needs next. With rules, what they ask for.

    About the demo's question two agents play a piece of its own.
    """
    if not scene.rules.is_plain:
        return speak(scene)
    if lines := _story(scene):
        return lines
    standing = scene.state.table.standing
    if standing is not None:
        return wait(scene) if standing.signed_by(scene.me.id) else sign(scene, standing)
    if scene.state.questions.text:
        return wait(scene)
    if scene.draft is not None:
        return amend(scene, scene.draft)
    if scene.lead is None and scene.earlier is not None:
        return settle(scene, scene.earlier)
    if scene.lead is None:
        return propose(scene) if scene.first_in_line else demand(scene)
    if not scene.raised and scene.lead.by != scene.me.id:
        return object_to(scene, scene.lead)
    return settle(scene, scene.lead)


def ask(scene: Scene) -> str:
    """As consensus, but the second to speak first asks the person."""
    asked = scene.state.questions.text or any(entry.mark("QUESTION_FOR_USER") for entry in scene.spoken)
    if scene.spoken and not asked and not scene.points and not scene.state.base and scene.first_in_line:
        return ask_the_person(scene)
    return consensus(scene)


def deadlock(scene: Scene) -> str:
    """Two positions that nobody leaves; from the fifth agent turn on, a call to end it."""
    if len(scene.spoken) >= 4:
        return call_deadlock(scene)
    if scene.first is None and scene.first_in_line:
        return propose(scene)
    if scene.first is not None and scene.first.by == scene.me.id:
        return hold_first(scene, scene.first)
    return hold_second(scene, scene.first)


def error(scene: Scene) -> str:
    """No lines at all."""
    raise BackendError(
        "rehearsal:error fails on purpose",
        fix=f"start {scene.me.id} with another backend, for example --backend rehearsal",
    )


SCENARIOS: Mapping[str, Callable[[Scene], str]] = MappingProxyType(
    {
        "consensus": consensus,
        "deadlock": deadlock,
        "endless": endless,
        "ask": ask,
        "error": error,
        "slow": consensus,
    }
)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST:
        raise BadInput(f"rehearsal:slow={text} is no number of seconds", fix="write it like rehearsal:slow=0.5")
    return seconds
