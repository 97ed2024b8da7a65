"""Minds for a stand-in: what an agent would answer to a prompt of dialogd, by the request alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.standin.form import THINKERS
from tests.support.standin.server import Say, Seen

_ME = re.compile(r"^You are ([A-Za-z][\w-]*)\b[^\n]*\bdialog\b", re.M)
_NOW = re.compile(r"^# (?:Your turn|One question back)$", re.M)
_ASKED = re.compile(r"^# One question about your reply\n\n(.*)", re.M | re.S)
_REPLY = re.compile(r"^# Your reply\n\n(.*)^# One question about your reply$", re.M | re.S)
_NUMBER = re.compile(r"^This is turn (\d+)\b", re.M)
_WAITS = re.compile(r"^The text (P\d+) waits for your signature", re.M)
_POLL = re.compile(r"^The proposal (P\d+) waits for your vote", re.M)
_TOPIC = re.compile(r"^\*\*Topic:\*\*[ \t]*(.+)$", re.M)
_ENTRY = re.compile(r"^## (Turn \d+|Note), by ([^\n]+)\n\n(~{3,})text\n(.*?)\n\3$", re.M | re.S)
_YOU = " (you)"
_PERSON = "the person"

_POINTS = (
    "what it costs to go back once people depend on it",
    "who would notice first if it failed at night",
    "how little of it could be tried on one day",
    "what would have to be true for the opposite to be right",
    "which part of it nobody here has ever measured",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """What a mind finds in a request: who it is, the turn, what waits for its signature or vote, and who wrote what."""

    me: str
    turn: int
    topic: str
    waits: str
    polls: tuple[str, ...]
    turns: tuple[tuple[str, str], ...]  # (by, text), oldest first; the agent itself by its id, the person as `USER`

    def last_with(self, mark: str) -> int:
        """The index of the last turn with a mark of that name, -1 without one."""
        return max((i for i, (_, text) in enumerate(self.turns) if f"\n[{mark}" in f"\n{text}"), default=-1)


def look(seen: Seen) -> Scene | None:
    """Read a prompt of dialogd's out of a request, wherever its parts stand; None when there is none in it."""
    text = seen.prompt
    me = [match[1] for match in _ME.finditer(text)]
    now = [match.end() for match in _NOW.finditer(text)]
    if not me or not now:
        return None
    asked = text[now[-1] :]
    number, waits, topic = _NUMBER.search(asked), _WAITS.search(asked), _TOPIC.search(text)
    turns = tuple(turn for role, said in seen.said.messages for turn in _turns(role, said, me[-1]))
    return Scene(
        me[-1],
        int(number[1]) if number else len(turns) + 1,
        topic[1].strip() if topic else "the question",
        waits[1] if waits else "",
        tuple(_POLL.findall(asked)),
        turns,
    )


def _turns(role: str, said: str, me: str) -> Iterator[tuple[str, str]]:
    """The turns in a message; in a continued session the agent's own stand in it as the model's messages."""
    if role in THINKERS:
        yield me, said.replace("[CONSENSUS_REACHED]", "[CONSENSUS_PROPOSED]")
        return
    for match in _ENTRY.finditer(said):
        if match[1] != "Note":
            yield _by(match[2], me), match[4]


def consensus(seen: Seen) -> Say:
    """Propose, object once, write a text to sign, sign, vote; whichever the dialog needs next."""
    if (meant := _meant(seen)) is not None:
        return Say(meant)
    scene = look(seen)
    if scene is None:
        return Say("Noted.")
    if scene.waits:
        return Say(_signature(scene))
    if scene.polls:
        return Say(_votes(scene))
    lead, objection, text = (scene.last_with(mark) for mark in ("PROPOSAL", "OBJECTION", "CONSENSUS_PROPOSED"))
    if lead < 0 and text < 0:
        return Say(_proposal(scene))
    if objection < 0 and text < 0 and scene.turns[lead][0] != scene.me:
        return Say(_objection(scene))
    spoken = max((i for i, (by, _) in enumerate(scene.turns) if by == "USER"), default=-1)
    if text > max(objection, spoken):
        return Say("I have signed the text that is on the table, and wait for the others.\n\n[PASS]")
    return Say(_summary(scene))


QUESTION, ANSWER = "How many users are there?", "About a million users."


def curious(seen: Seen) -> Say:
    """As `consensus`, but A's first turn asks the person, and the agreed text holds what they answered."""
    scene = look(seen)
    if scene is None or _ASKED.search(seen.last):
        return consensus(seen)
    if scene.me == "A" and scene.last_with("QUESTION_FOR_USER") < 0:
        return Say(f"One thing only you can know.\n\n[QUESTION_FOR_USER: {QUESTION}]")
    told = next((text for by, text in scene.turns if by == "USER" and ANSWER in text), "")
    reply = consensus(seen)
    said = f"## Consensus Summary\n\n{ANSWER if told else 'Nobody answered.'}"
    return Say(reply.text.replace("## Consensus Summary\n", f"{said}\n"))


def _meant(seen: Seen) -> str | None:
    """The answer to a closing question: of the lines that it offers, those that the reply says; None for a turn.

    The reply stands in the question, or in a session as the model's last message.
    """
    asked = _ASKED.search(seen.last)
    if asked is None:
        return None
    quoted = _REPLY.search(seen.last)
    said = quoted[1] if quoted else next((t for role, t in reversed(seen.said.messages) if role in THINKERS and t), "")
    forms = re.findall(r"`(\[[^`]*\])`", asked[1])
    return "\n".join(form for form in forms if form[:-1] in said) or "[PASS]"


def endless(seen: Seen) -> Say:
    """One more point, some 200 words of it, for ever."""
    scene = look(seen)
    turn = scene.turn if scene else seen.number
    point = _POINTS[turn % len(_POINTS)]
    lines = [
        f"- Point {turn}.{i}: whoever asks {point} in case {turn * 7 + i} finds another answer." for i in range(12)
    ]
    return Say(f"In turn {turn} I look at {point}.\n\n" + "\n".join(lines) + f"\n\n[QUESTION: and {point}?]")


def _by(label: str, me: str) -> str:
    if label.startswith(_PERSON):
        return "USER"
    return me if label.endswith(_YOU) else label.split(" ", maxsplit=1)[0]


def _votes(scene: Scene) -> str:
    first, *others = scene.polls
    lines = [f"[VOTE: {first} approve | it can be undone]", *(f"[VOTE: {ref} abstain]" for ref in others)]
    return "I have read them as if I had to run them.\n\n" + "\n".join(lines) + "\n[RESERVATION: nobody has tried it]"


def _proposal(scene: Scene) -> str:
    return f"""On “{scene.topic}” I would take what can be undone most cheaply, and learn from its use.

[PROPOSAL: start with the smallest answer that works, and review it after two weeks]
[CONFIDENCE: 0.7]"""


def _objection(scene: Scene) -> str:
    return f"""I agree with the direction on “{scene.topic}”, but a review without a number is a feeling with a date.

[OBJECTION: nothing says what would make us go back]
[CONFIDENCE: 0.6]"""


def _summary(scene: Scene) -> str:
    return f"""The objection is right: the review needs a number, and I put it in.

[CONCEDE: the review gets a number that was written down before]

## Consensus Summary

On “{scene.topic}”: start with the smallest answer that works, and review it after two weeks. If it was in the way more
than once a week, go back.

[CONSENSUS_REACHED]"""


def _signature(scene: Scene) -> str:
    return f"""{scene.waits} says what we do, when we look at it again, and what would make us go back. That was open.

[AGREE: {scene.waits}]
[CONFIDENCE: 0.9]"""
