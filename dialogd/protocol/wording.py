"""The words of a vote, as models write them: what is a yes, what is a no, and what makes either unclear.

Only whole words count. A word that stands in no table makes a vote unclear, unless it is part of the reason.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from types import MappingProxyType

APPROVE, REJECT, ABSTAIN = "approve", "reject", "abstain"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


YES = _words(
    """approve approved approves approving approval accept accepted accepts accepting agree agreed agrees agreeing
    agreement yes yea yeah yep aye yay support supports supported favor favour ok okay lgtm pro thumbs-up +1 👍 ✅
    ✔ ✓ ☑ ja dafür zustimmen zustimme zustimmung genehmigt oui approuve approuvé approuver sí apruebo aprobado
    aprobar sim aprovo aprovado aprovar approvo approvato да はい 賛成 是 赞成 贊成 同意"""
)
NO = _words(
    """reject rejected rejects rejecting rejection no nay nope disapprove disapproved disapproves oppose opposed
    opposes against disagree disagreed disagrees decline declined declines deny denied veto object con contra
    thumbs-down -1 \u22121 👎 ❌ ✖ ✗ ✘ 🚫 nein dagegen ablehnen ablehnung abgelehnt non contre rejeté rejeter
    rechazo rechazado rechazar não rejeito rejeitado contro нет いいえ 反対 反对 反對"""
)
NEITHER = _words(
    """abstain abstained abstains abstaining abstention neutral 🤷 enthaltung enthalte abstengo abstención abstenção
    astensione 弃权 棄権"""
)
CHOICES: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(YES, APPROVE), **dict.fromkeys(NO, REJECT), **dict.fromkeys(NEITHER, ABSTAIN)}
)

# Words that change nothing. What hedges or denies (not, would, maybe, partly …) must never stand here.
FILLER = _words(
    """i i'm my we our a an the vote votes voted voting ballot choice cast casting position stance decision decide
    decided deciding verdict proposal proposals text ref status result answer is am are on to in of this that it
    hereby formally officially strong strongly full fully clear clearly definite definitely firm firmly absolute
    absolutely complete completely wholehearted wholeheartedly unconditional unconditionally gladly happily
    reluctantly enthusiastically also both with and und et y"""
)
# The same around a judge's answer.
JUDGING = _words(
    """agent agents position positions of the winner winning wins won win is for to decide decision verdict i side with
    prevails stronger better holds right case argument s in favor favour"""
)
# Signs that decide nothing are passed over, but for these.
DOUBTS = frozenset("🤔❓❔⁉‽¿\uff5e")
# A reason may follow these at once, without a comma or dash before it.
BECAUSE = _words("because since as reason reasons rationale justification why weil denn car parce porque")

_START = _words(
    """if but only except excepting unless provided providing once when whenever after until till before subject
    pending contingent condition conditions conditional conditionally conditioned assuming assumed with without
    minus however partly partially partial mostly or nor almost nearly unsure false never maybe perhaps probably
    possibly tentatively tentative provisionally later wait actually sorry correction si mais wenn falls aber sofern nur
    vorausgesetzt unter pero solo sólo siempre se mas ma но если только 如果 但 但是"""
)
_AT_START = re.compile(
    rf"\W*(?:(?:{'|'.join(sorted(_START))})\b|in (?:principle|part)\b|for (?:now|the moment)\b"
    r"|not(?: yet\b| sure\b|\W*$)|given that\b|0%?\W*$"
    r"|i(?:'m| am) (?:not|un)|i (?:disagree|object|reject|oppose)\b)",
    re.I,
)
_ANYWHERE = re.compile(
    r"\bexcept(?:ing)?\b|\ball but\b|\bI (?:do not|don['’]t|cannot|can['’]t) (?:agree|accept|approve|sign)\b"
    r"|\b(?:but (?:only|if|not|first|with|without|please|must|needs?)|only (?:if|when|after|once|with|under)"
    r"|provided (?:that|we|it|they|the|you|this)|providing that|(?:on|under) (?:the )?condition\b|on one condition"
    r"|condition(?:al|ed|ally) (?:on|upon)|(?:as|so) long as|subject to|contingent|unless"
    r"|with the (?:proviso|caveat|condition|exception)|if and only if|assuming (?:that|we|it|the))"
    r"|[,;.(–—-] {0,3}(?:and )?if\b"
    r"|\b(?:fix|add|do|needs?|change|resolve|test|write|update|clarify)\b[^.|]{0,60}\bfirst\W*$",
    re.I,
)
_RETRACTS = re.compile(
    r"\b(?:no,? (?:wait|thanks|way)|scratch that|on second thoughts?"
    r"|changed? my mind|just kidding|i withdraw|i take (?:it|that) back)",
    re.I,
)
# What the examples in an instruction say where an answer says something.
_ECHO = re.compile(r"\W*(?:(?:your |the |short |one )?reason(?: here)?|\.\.\.|…)\W*", re.I)
_OTHER_NO = re.compile(r"\b(?:reject(?:ed|s|ing)?|disapprove[ds]?|oppose[ds]?|abstain(?:ed|s)?|against|nay)\b", re.I)
_DENIES = re.compile(
    r"\W*(?:no|not|none|half|partial\w*|mostly|soon|tbd"
    r"|on (?:most|part|everything but|all but))\b",
    re.I,
)
_CLAUSE = 200  # characters that count as the beginning of a reason


def is_conditional(reason: str) -> bool:
    """True when what follows a yes makes it depend on something, or takes part of it back."""
    return bool(_AT_START.match(reason) or _ANYWHERE.search(reason))


def is_denied(claim: str) -> bool:
    """True when the value of a claim says that it is none, or not quite: `[CONSENSUS_REACHED: not yet]`."""
    return bool(_DENIES.match(claim)) or is_conditional(claim[:60])


def is_withdrawn(reason: str) -> bool:
    """True when what follows a choice takes it back, or only repeats the instruction's example."""
    is_echo = len(reason) < _CLAUSE and reason.strip() and _ECHO.fullmatch(reason)
    return bool(is_echo or _RETRACTS.search(reason))


def is_opposed(reason: str) -> bool:
    """True when what follows a yes, with no `|` between, speaks of a no or asks."""
    return bool(_OTHER_NO.search(reason[:_CLAUSE])) or reason.rstrip(" .!\"'”").endswith("?")


def repeats_choices(reason: str, choices: Container[str]) -> bool:
    """True when a field of the reason is nothing but a choice that is not among these: `approve | reject | abstain`."""
    words = (CHOICES.get(field.strip(" .!*_`'\"").casefold()) for field in reason.split("|"))
    return any(word is not None and word not in choices for word in words)
