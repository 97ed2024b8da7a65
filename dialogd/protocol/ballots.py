"""One reply's votes, and what DECIDE, TO, RE and CONFIDENCE say, as models write them. Pure, total, linear.

What is not clear is None, or named as unclear, so that it can be asked back; it never counts as a yes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dialogd.protocol.attempts import attempts
from dialogd.protocol.choices import Choice, agreed, decision, tokens, vote, votes
from dialogd.protocol.model import Mark
from dialogd.protocol.wording import APPROVE, JUDGING, REJECT, is_conditional, is_withdrawn

__all__ = [
    "Choice",
    "agreed",
    "cast",
    "confidence",
    "decision",
    "pick",
    "references",
    "suspects",
    "to",
    "vote",
    "votes",
]

_WORD = re.compile(r"[^\W_]\w*(?:-\w+)*|\S")
_NOBODY = frozenset({"none", "neither", "undecided", "nobody", "tie", "draw", "neutral"})
_JUDGED = JUDGING | frozenset("*_`\"'’@=:")
_NOT_YET = _JUDGED | {",", "and", "&", "or"}  # what begins no reason
_ENDS = frozenset(".;–—-(|")
_EVERYONE = frozenset({"all", "everyone", "everybody", "both"})
_RANGE = re.compile(r"(\d{1,6})[ ]?[–-][ ]?(\d{1,6})(?![\w.])")
_TURNS = re.compile(r"(?:\b(?:turns?|messages?|entry|note)[ ]#?|(?<![\w.#])#?)(\d{1,6})(?!\w|[.,]\d|%)", re.I)
_CITED = re.compile(r"\b(?:turns?|messages?)[ ]#?(\d{1,6})(?![\w])", re.I)
_PROPOSAL = re.compile(r"(?<![\w-])P#?(\d{1,6})(?!\w)", re.I)
_NUMBER = re.compile(r"(\d{1,3}(?:[.,]\d{1,6})?|[.,]\d{1,6})[ ]?(%|/[ ]?(\d{1,3})\b)?")


def cast(marks: Iterable[Mark], only: str = "") -> tuple[Mapping[str, Choice], tuple[str, ...]]:
    """The clear votes of one reply by ref, and in words what is unclear or contradicts itself.

    `only` is the proposal that a vote without a ref is for: the one that is open, where there is just one.
    """
    marks = tuple(marks)
    clear: dict[str, Choice] = {}
    unclear: dict[str, None] = {}
    for mark in marks:
        if mark.name != "VOTE":
            continue
        meant = [Choice(choice.ref or only, choice.choice, choice.reason) for choice in votes(mark)]
        if not meant or not all(choice.ref for choice in meant):
            unclear[str(mark)[:200]] = None
        for choice in meant:
            known = clear.setdefault(choice.ref, choice)
            if known.choice != choice.choice:
                unclear[f"{choice.ref}: both {known.choice} and {choice.choice}"] = None
    for ref, word in _against(marks, clear):
        unclear[f"{ref}: {clear[ref].choice} beside {word}"] = None
    doubtful = {words.partition(":")[0] for words in unclear}
    return {ref: choice for ref, choice in clear.items() if ref and ref not in doubtful}, tuple(unclear)


def _against(marks: Sequence[Mark], clear: Mapping[str, Choice]) -> Iterator[tuple[str, str]]:
    """Refs whose vote another mark of the same reply contradicts, and which."""
    answered = [ref for mark in marks if mark.name == "RE" for ref in references(mark)[1]]
    for mark in marks:
        if mark.name == "OBJECTION":
            named = _named(mark) or answered
            yield from ((ref, "an OBJECTION to it") for ref in named if ref in clear and clear[ref].choice == APPROVE)
        elif mark.name == "AGREE":
            yield from ((ref, "an AGREE") for ref in agreed(mark) if ref in clear and clear[ref].choice == REJECT)


def _named(mark: Mark) -> list[str]:
    """The proposals that a value begins with, and the mark's own."""
    kinds = itertools.takewhile(lambda token: token[0] in ("ref", "filler", "joint", "stop"), tokens(mark.value[:200]))
    return [*([mark.ref] if mark.ref else []), *(said for kind, said, _ in kinds if kind == "ref")]


def pick(mark: Mark, ids: Sequence[str]) -> tuple[str, str] | None:
    """Whose position a judge's DECIDE chooses, an agent's id or "none", and why; None when that is not clear."""
    known = {agent.casefold(): agent for agent in ids}
    head, _, reason = mark.value.partition("|")
    found: list[str] = []
    start = 0  # where a reason may begin: behind the last comma or colon after a name
    for match in _WORD.finditer(head):
        word = match[0].casefold()
        if word in known or word in _NOBODY:
            found.append(known.get(word, "none"))
        elif found and (word in _ENDS or word in ("because", "since", "as") or (start and word not in _NOT_YET)):
            reason = " ".join(part for part in (head[start or match.start() :].strip(" ,.;:–—-("), reason) if part)
            break
        elif word not in _JUDGED and word != ",":
            return None
        start = match.end() if found and word in (",", ":") else start
    reason = " ".join(reason.split())
    if mark.ref or len(set(found)) != 1 or is_withdrawn(reason) or is_conditional(reason[:60]):
        return None
    return found[0], reason


def to(mark: Mark, ids: Sequence[str]) -> tuple[str, ...]:
    """The agents that a TO mark hands the word on to, in its order; who is not known is passed over."""
    known = {agent.casefold(): agent for agent in ids}
    named: list[str] = []
    last = ""
    for match in _WORD.finditer(re.split(r"[|:;.(—–]", mark.value, maxsplit=1)[0]):
        word = match[0].casefold()
        if word in _EVERYONE:
            named.extend(ids)
        elif word in known:
            named.append(known[word])
            last = match[0]
            continue
        elif word not in ("and", "&", ",", "+", "then", "agent", "agents", "@", "*", "_", "`", "or", "/", "und", "et"):
            if last and last != known[last.casefold()]:
                named.pop()  # an article, as in "a colleague"
            break
        last = ""
    return tuple(dict.fromkeys(named))


def references(mark: Mark) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The turns and the proposals that a mark refers to: `RE: 3, P1`, `RE: turns 3-5`; what follows a `|` is no ref."""
    head = mark.value.partition("|")[0]
    refs = dict.fromkeys([*([mark.ref] if mark.ref else []), *(f"P{int(n)}" for n in _PROPOSAL.findall(head))])
    bare = re.match(
        r"(?:[\s,;&+#–*_`().-]|\d{1,6}(?!\w|%)|P#?\d{1,6}\b|(?:turns?|and|to|messages?|proposals?)\b)*+", head, re.I
    )
    lead = _PROPOSAL.sub(" ", bare[0] if bare else "")
    turns: list[int] = []
    for first, last in _RANGE.findall(lead):
        turns.extend(range(int(first), min(int(last), int(first) + 50) + 1))
    lead = _RANGE.sub(" ", lead)
    turns.extend(int(n) for n in itertools.chain(_TURNS.findall(lead), _CITED.findall(head)))
    return tuple(dict.fromkeys(turns)), tuple(refs)


def confidence(mark: Mark) -> float | None:
    """A CONFIDENCE from 0 to 1: `0.8`, `80%`, `8/10`, `85`; None when it is no such number."""
    said = mark.value.partition("|")[0].strip(" \t~≈*_`=()").rstrip(".").casefold()
    match = _NUMBER.fullmatch(re.sub(r"^(?:about|around|approx\.?|roughly) ", "", said[:40]).strip("~≈ "))
    if match is None:
        return None
    digits = match[1].replace(",", ".")
    value = float(digits)
    if match[3]:
        value = value / int(match[3]) if int(match[3]) else -1.0
    elif match[2] or (value > 10 and "." not in digits):
        value /= 100
    return value if 0 <= value <= 1 else None


_SURE = re.compile(r"\b(approve|reject|abstain)", re.I)


def suspects(body: str, names: Iterable[str], marks: Iterable[Mark] = ()) -> tuple[str, ...]:
    """Lines of a body that look like a VOTE, DECIDE, AGREE or CONSENSUS_REACHED that was not read; at most five.

    `marks` are those that were read: a line that says the same as one of them asks for nothing.
    """
    marks = tuple(marks)
    clear, _ = cast(marks)
    signs = any(mark.name in ("AGREE", "CONSENSUS_REACHED") for mark in marks)
    decided = {choice.ref: choice for mark in marks if mark.name == "DECIDE" and (choice := decision(mark))}
    found: dict[str, None] = {}
    for name, line in attempts(body, names):
        known = {"VOTE": clear, "DECIDE": decided}.get(name)
        if (signs if known is None else _repeats(line, known)) or line in found:
            continue
        found[line] = None
        if len(found) == 5:
            break
    return tuple(found)


def _repeats(line: str, known: Mapping[str, Choice]) -> bool:
    """True when a line names only proposals that are chosen on, and no other choice than theirs."""
    refs = [f"P{int(n)}" for n in _PROPOSAL.findall(line)] or list(known)
    if not refs or any(ref not in known for ref in refs):
        return False
    return {word.casefold() for word in _SURE.findall(line)} <= {known[ref].choice for ref in refs}
