"""What a VOTE, a DECIDE or an AGREE chooses, as models write it. Pure, total, linear.

A yes is read only from a word that is a yes. Whatever denies, hedges, limits or contradicts it makes it unclear, and
what is unclear is None here: asked back by the caller, and never counted. `not approve` is unclear too: it may mean
a no or an abstention.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dialogd.protocol.model import Mark
from dialogd.protocol.wording import (
    APPROVE,
    BECAUSE,
    CHOICES,
    DOUBTS,
    FILLER,
    REJECT,
    is_conditional,
    is_opposed,
    is_withdrawn,
    repeats_choices,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """`choice` (approve, reject or abstain) on proposal `ref`, "" where the mark names none."""

    ref: str
    choice: str
    reason: str = ""

    def mark(self, name: str) -> Mark:
        """It in canonical form, as a VOTE or DECIDE."""
        said = f"{self.ref} {self.choice}".strip()
        return Mark(name, f"{said} | {self.reason}" if self.reason else said)


_TOKEN = re.compile(
    r"(?P<ref>(?:P#?|#P?)\d{1,6}(?!\w|\.\d|-P?\d))|(?P<sign>(?<!\w)[+\u2212-]1(?!\w|[.,/]\d|%))"
    r"|(?P<word>[^\W_]+(?:[-'][^\W_]+)*)|(?P<joint>[,&+])|(?P<stop>[;:.!(){}\[\]<>\"“”„«»'\u2018=→⇒–—-])|(?P<other>\S)",
    re.I,
)
_TAGS = re.compile(r"</?(?:b|strong|em|i|u|p|li|code|span|br)[ ]?/?>", re.I)
_WITHOUT_DOUBT = re.compile(
    r"\bwith(?:out| no) (?:any )?(?:reservations?|objections?|changes|conditions|hesitation|amendments?)\b", re.I
)
_FOR = re.compile(r"for (?:the )?(?:proposals? |#|P#?\d|P\d)", re.I)
_PLACEHOLDER = re.compile(r"<[a-z][a-z0-9 |/-]{0,40}>", re.I)
_HEADED = re.compile(r"\W*+(?:reasons?|rationale|justification)[\"'*]{0,3} ?[:=]\W*+", re.I)
_LOOK = str.maketrans("’\uff5c\uff1a\uff0c、\uff1b\uff1f\uff0f\uff08\uff09", "'|:,,;?/()", "*`_\ufe0f\u200d🏻🏼🏽🏾🏿")


@dataclass
class _Lead:
    """The beginning of a value, up to its reason: refs ("R") and choices ("C") in order, with a stop before or not."""

    items: list[tuple[str, str, bool]]
    rest: str = ""
    is_clear: bool = True


def tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Kind, meaning and place of each word and sign. Kinds: ref, choice, filler, because, for, joint, stop, word."""
    before = ""
    for match in _TOKEN.finditer(text):
        kind, said = match.lastgroup or "", match[0].casefold()
        is_number = before in ("proposal", "proposals") and re.fullmatch(r"\d{1,6}", said)
        if kind == "ref" or is_number:
            yield "ref", f"P{int(said.strip('p#'))}", match.start()
        elif said in CHOICES:
            yield "choice", CHOICES[said], match.start()
        elif said == "for":
            yield "filler" if _FOR.match(text, match.start()) else "for", said, match.start()
        elif said in FILLER or (kind == "other" and not said.isascii() and said not in DOUBTS):
            yield "filler", said, match.start()
        elif said in BECAUSE:
            yield "because", said, match.start()
        else:
            yield kind if kind in ("joint", "stop") else "word", said, match.start()
        before = said


def _lead(text: str, *, decided: bool, implied: bool) -> _Lead:
    """Read up to the reason. `decided` at the start, or with the first ref (`implied`), or with the first choice."""
    lead = _Lead([])
    is_stopped, last, kept, start = False, "", 0, 0 if decided else -1
    for kind, said, at in tokens(text):
        if kind in ("ref", "choice"):
            lead.items.append(("R" if kind == "ref" else "C", said, is_stopped))
            is_stopped, decided = False, decided or implied or kind == "choice"
        elif kind in ("joint", "stop"):
            is_stopped = is_stopped or kind == "stop"
            if decided:
                kept, start = len(lead.items), at + 1
        elif decided and kind in ("because", "for"):
            lead.rest = text[at:]
            return lead
        elif kind in ("word", "because"):
            # Words that follow a choice at once (`approve mostly`) limit it; behind a comma or dash they are reasons.
            lead.items, lead.rest, lead.is_clear = lead.items[:kept], text[max(start, 0) :], decided and start >= 0
            return lead
        last = kind
    if last == "for" and not decided:
        lead.items.append(("C", APPROVE, False))
    return lead


def _pairs(items: Sequence[tuple[str, str, bool]], ref: str, implied: str) -> dict[str, str]:
    """Choice by ref; {} where it is not certain which belongs to which. `ref` is the mark's own."""
    runs = [(kind, list(run)) for kind, run in itertools.groupby(items, key=lambda item: item[0])]
    refs = [said for kind, said, _ in items if kind == "R"]
    choices = {said for kind, said, _ in items if kind == "C"} or ({implied} if implied else set())
    is_list = not any(item[2] for kind, run in runs if kind == "R" for item in run[1:])
    if not choices or not is_list or (ref and {ref, *refs} != {ref}):
        return {}
    if len(choices) == 1 and (len(runs) < 3 or [kind for kind, _ in runs] == ["C", "R", "C"]):
        return dict.fromkeys(refs or [ref], *choices)
    return {} if len(runs) % 2 else _alternating(runs)


def _alternating(runs: Sequence[tuple[str, list[tuple[str, str, bool]]]]) -> dict[str, str]:
    """`P1 approve, P2 reject` or `approve P1, reject P2`, as pairs; {} where one ref gets two choices."""
    pairs: dict[str, str] = {}
    for one, other in zip(runs[::2], runs[1::2], strict=True):
        named, said = (one[1], other[1]) if one[0] == "R" else (other[1], one[1])
        for each, choice in itertools.product(named, said):
            if pairs.setdefault(each[1], choice[1]) != choice[1]:
                return {}
    return pairs


def _choices(mark: Mark, implied: str = "") -> tuple[Choice, ...]:
    """What a mark's value chooses; `implied` is what it chooses by naming a ref. () when it is not clear."""
    value = " ".join(_WITHOUT_DOUBT.sub("", _TAGS.sub(" ", mark.value.translate(_LOOK))).split())
    head, _, reason = value.partition("|")
    field, _, after = reason.partition("|")
    decided = bool(implied and mark.ref)
    lead = _lead(head, decided=decided, implied=bool(implied))
    kinds = {item[0] for item in lead.items}
    if lead.is_clear and not implied and field and (kinds == {"R"} or (kinds == {"C"} and _only_refs(field))):
        lead, reason = _lead(f"{head}:{field}", decided=False, implied=False), after
    pairs = _pairs(lead.items, mark.ref, implied) if lead.is_clear else {}
    said = set(pairs.values())
    parts = [_plain(lead.rest), _plain(reason)]
    is_unclear = (
        bool(_PLACEHOLDER.search(head)) or any(map(is_withdrawn, (lead.rest, reason))) or repeats_choices(reason, said)
    )
    if APPROVE in said:
        is_unclear = is_unclear or is_opposed(lead.rest) or any(map(is_conditional, (lead.rest, reason, *parts)))
    if is_unclear or (implied and said != {implied}):
        return ()
    text = "; ".join(part for part in parts if part)
    return tuple(Choice(ref, choice, text) for ref, choice in pairs.items())


def _plain(reason: str) -> str:
    """A reason without the word that heads it, and without the signs around it."""
    headed = _HEADED.match(reason)
    return reason[headed.end() if headed else 0 :].strip(" ,;:–—-(){}\"'")


def _only_refs(text: str) -> bool:
    return {kind for kind, _, _ in tokens(text)} == {"ref"}


def votes(mark: Mark) -> tuple[Choice, ...]:
    """Every vote of a VOTE mark: `P1, P2 approve` and `P1 approve, P2 reject` are two; () when it is not clear."""
    return _choices(mark)


def vote(mark: Mark) -> Choice | None:
    """The one vote of a VOTE mark; None when it has several, or is not clear."""
    return next(iter(votes(mark))) if len(votes(mark)) == 1 else None


def decision(mark: Mark) -> Choice | None:
    """Approve or reject, as a DECIDE mark says; None when it says neither, or not clearly."""
    choice = vote(mark)
    return choice if choice is not None and choice.choice in (APPROVE, REJECT) else None


def agreed(mark: Mark) -> tuple[str, ...]:
    """The proposals that an AGREE mark accepts without an if or but; () for any other."""
    return tuple(choice.ref for choice in _choices(mark, APPROVE) if choice.ref)
