"""Phrases of agreement and disagreement in a reply, as far as a list can know them. A signal, never a verdict.

A phrase is looked for in one sentence at a time, outside code and quotes. What stands before it in its clause can turn
it round ("I don't think I agree") or make it nothing ("if", "do you", "B says"), and so can what stands behind a yes
("only if", "?"). A denied disagreement counts for nothing: "no objections" is no yes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from dialogd.protocol.marks import outside_fences

LONGEST = 500  # characters of a sentence that are looked at

_SOME = r"(?:(?:also|both|can|completely|do|entirely|fully|generally|gladly|largely|mostly|now|quite|really|still"
_SOME += r"|strongly|therefore|thus|totally|very much|wholly|wholeheartedly) ){0,3}"
_WE, _WE_ARE = r"\b(?:i|we) ", r"\b(?:i'm|i am|we're|we are) "
_FIRST = r"(?:^|, |: |— |– |\b(?:yes|ok|okay|fully|strongly|totally|completely) )"
_END = r"(?=[,.:;!?—–-]| [—–-]|$| with\b| on\b| to\b)"
_ACCEPTING = r"(?:agree|accept|support|sign|approve|endorse|concede|concur|go along)"
_YIELDING = r"(?!,? ?(?:(?:i|we|do|can|now|still|fully|also|think|believe|must|have to|would) )*(?:agree|accept|concede"
_YIELDING += (
    r"|concur|support)\b)(?!.{0,24}\b(?:you're|you are|that's|it's) (?:quite |absolutely )?(?:right|correct)\b)"
)
_PROCEED = (
    r"(?:proceed|go ahead|go with|go for|move forward|move ahead|move on with|do (?:that|it|this)|adopt|settle on|ship)"
)
_DOUBT = r"(?:concerns?|objections?|reservations?|doubts?)"

# Who agrees with somebody's objection has agreed to nothing.
_WITH_A_NO = rf"(?! with (?:the|this|that|your|[\w-]+'s) (?:[\w-]+ )?(?:critique|criticism|worry|{_DOUBT})\b(?!-))"

_AGREEING = (
    rf"{_WE}{_SOME}(?:agree|concur)\b{_WITH_A_NO}",
    rf"{_WE}{_SOME}(?:accept|support|endorse|second|approve) (?:of )?(?:it|p\d+|that|the|this|your)\b",
    rf"{_WE_ARE}{_SOME}(?:agreed|aligned|convinced|on board|in (?:full |complete )?agreement|on the same page)\b",
    rf"{_WE_ARE}{_SOME}(?:fine|happy|ok|okay|content) with\b",
    rf"{_FIRST}agreed?{_END}{_WITH_A_NO}",
    r"\b(?:you're|you are) (?:quite |absolutely |completely |probably )?(?:right|correct)\b",
    rf"\b(?:that's|that is) (?:quite |absolutely )?(?:right|correct|true){_END}",
    r"(?:^|, |\b(?:a|that's|make|raise) )(?:very )?(?:good|fair|valid|great|excellent) point\b|\bpoint taken\b",
    r"(?:\b(?:that|this) |^)makes (?:perfect |good |complete |total )?sense\b|\bmakes sense to me\b",
    r"\b(?:sounds|looks) (?:good|great|right|fine|reasonable)\b|\blgtm\b|(?<![\w.])\+1(?![\w.])",
    r"\bworks for me\b|\bfine (?:by|with) me\b",
    rf"\b(?:let'?s|let us) {_PROCEED}\b(?![^,;:]*\b(?:instead|rather)\b)",
    r"\b(?:ready|happy|willing|fine) to (?:proceed|go ahead|go with|sign|accept|adopt)\b",
    rf"{_WE}concede\b|\byou(?:'ve| have)? convinced me\b|\bi stand corrected\b|\bi was wrong\b",
    r"\b(?:could not|couldn't) agree more\b|\b(?:can't|cannot|can not) (?:help )?but agree\b",
    r"\bwe(?:'ve| have) (?:now )?(?:reached )?(?:a |an )?(?:consensus|agreement|converged)\b",
)
_DISAGREEING = (
    rf"\b(?:i|we|i'd|i'll) (?:must |have to |respectfully |partly |somewhat |would )?{_SOME}(?:disagree|dissent)\b",
    rf"\b(?:i|we|i'd|we'd) (?:must |have to |would )?{_SOME}(?:object|oppose|reject|dispute|contest|doubt)\b",
    rf"{_WE}(?:do not|don'?t|cannot|can'?t|can not|could not|couldn'?t|will not|won'?t|would not|wouldn'?t|never"
    rf"|no longer|hardly|barely) (?:yet |even )?{_SOME}(?:{_ACCEPTING}|see (?:how|why))\b(?! more)",
    rf"{_FIRST}disagreed?{_END}|^(?:not agreed|no deal)\b|\b(?:agree to (?:disagree|differ))\b",
    rf"\bhowever,? (?:i|we|i'm|i'd|i've|we're)\b{_YIELDING}",
    rf"\bhowever, (?:you|it|this|that|the|there|there's|it's|that's|your)\b{_YIELDING}",
    rf"\bon the other hand\b{_YIELDING}",
    rf"^(?:having said that|that said|that being said)\b{_YIELDING}",
    rf"\bbut (?:i'm not|i'd|(?:i|we) (?:think|believe|feel|worry|doubt|would|prefer|still)\b){_YIELDING}",
    rf"{_WE}(?:still |also )?(?:have|see|raise|hold) (?:(?!no\b|few\b|without\b)[\w-]+ ){{0,3}}{_DOUBT}\b",
    rf"\bmy (?:[\w-]+ ){{0,2}}{_DOUBT}\b"
    r"(?! (?:is|are|was|were|has been) (?:gone|met|moot|settled|answered|resolved))",
    rf"(?:{_WE_ARE}|\bi remain )(?:still |also )?(?:not (?:so |yet |quite |entirely |fully |at all |really )?"
    r"(?:convinced|persuaded|certain|comfortable|on board|sure (?:about|i|that|this))|unconvinced"
    r"|s[ck]eptical|against|opposed|doubtful|worried|concerned)\b",
    r"\b(?:you're|you are|that's|that is|this is|it's|it is) (?:simply |just |plainly |still )?"
    r"(?:wrong|mistaken|incorrect|not (?:right|correct|true))\b",
    r"\bi(?:'d| would) (?:much )?(?:rather|prefer)\b",
    rf"\b(?:let'?s|let us) (?:not|wait|hold)\b|{_WE}(?:shouldn't|should not|mustn't|must not) {_PROCEED}\b",
    r"\b(?:i|we|i'd|we'd|i'll|we'll|let me) (?:(?:must|have to|want to|would|will|do|like to|need to) ){0,2}push back"
    r"(?= (?:on|against|a bit|a little|here)\b|[,.;:!—–]|$)",
    r"\bmakes? no sense\b|\b(?:doesn't|does not) make (?:any |much )?sense\b",
    r"\b(?:that|this|it) (?:won't|will not|doesn't|does not|can't|cannot) work\b",
    r"\b(?:hard|difficult|impossible|unable|reluctant|hesitant|hesitate|refuse|not (?:willing|able|ready|prepared))"
    rf" (?:for (?:me|us) )?to (?:fully |really )?{_ACCEPTING}\b",
    rf"\bi wish (?:i|we) (?:could )?{_ACCEPTING}",
)

_YES = tuple(re.compile(pattern) for pattern in _AGREEING)
_NO = tuple(re.compile(pattern) for pattern in _DISAGREEING)


@lru_cache(maxsize=128)
def phrases(text: str) -> tuple[int, int]:
    """How many phrases of agreement and of disagreement a reply holds; one that comes again counts once."""
    yes: set[int] = set()
    no: set[int] = set()
    for sentence in _sentences(text):
        agreeing, disagreeing = _said(sentence)
        yes |= agreeing
        no |= disagreeing
    return len(yes), len(no)


def _said(sentence: str) -> tuple[set[int], set[int]]:
    """The numbers of the phrases that one sentence says: of agreement, of disagreement; one of each in a clause."""
    yes: dict[int, int] = {}
    no: dict[int, int] = {}
    starts = [match.end() for match in _BOUNDARY.finditer(sentence)]
    for number, match in _found(_NO, sentence):
        if _meant(sentence, match, starts) > 0:
            no.setdefault(_clause(starts, match.end()), number)
    for number, match in _found(_YES, sentence):
        meant = _meant(sentence, match, starts)
        if meant < 0 or (meant > 0 and _DIFFERS.match(sentence, match.end())):
            no.setdefault(_clause(starts, match.end()), -1 - number)  # a denied yes is another phrase than a no
        elif meant > 0 and not _LIMITED.match(sentence, match.end()):
            yes.setdefault(_clause(starts, match.end()), number)
    return set(yes.values()), set(no.values())


def _found(patterns: Sequence[re.Pattern[str]], sentence: str) -> Iterator[tuple[int, re.Match[str]]]:
    return ((number, match) for number, pattern in enumerate(patterns) for match in pattern.finditer(sentence))


_BOUNDARY = re.compile(
    r"(?<!that said)(?<!said that)(?<!being said)(?<!other hand),(?! that\b)|[:()]|[—–]| - "
    r"|\b(?:but|yet|though|although|(?<!not )because|since|whereas|while|so (?=i\b|we\b|let)|and (?=i\b|i'm|we\b|let))"
)
_DENYING = re.compile(
    r"\b(?:not|never|no|nothing|none|nobody|neither(?!.*\bnor\b)|nor|hardly|barely|cannot|without|doubt|unsure|unlikely|impossible"
    r"|unconvinced|refuse|wrong|deny|dont|cant|wont|doesnt|isnt|withdraw|drop|retract|answers|resolves|settles)\b|n't\b"
)
_SUPPOSING = re.compile(
    r"\b(?:if|whether|unless|until|till|before|once|when|assuming|suppose|supposing|provided|so that|in case|lest"
    r"|hope|hopefully|wish|want|pretend)\b"
)
_CONDITION = r"(?:if|unless|provided|providing|as long as|so long as|once|assuming|on (?:the |one )?conditions?)\b"
_CONDITION_FIRST = re.compile(rf"(?:(?:and|or|so|then|still|yet|only|even|but) )*{_CONDITION}(?!.*\b(?:but|however)\b)")
_ASKING = re.compile(r"(?:^|\W)(?:do|does|did|can|could|would|should|shall|may|might|will|must|are|am) $")
_REPORTING = re.compile(
    r"(?:\b(?:says|(?<!i )(?<!that )said|claims|(?<!i )claimed|thinks|writes|(?<!i )wrote|assumes|suggests|implies|asks"
    r"|asked|wonder|believes|(?:you|they) (?:say|claim|think|write|assume|believe|imply)|ensure|make sure|check|verify"
    r"|see|know)"
    r"(?: that| if| whether)?[:,]? )$"
)
_LIMITED = re.compile(
    rf"(?! that\b)[^,;:(—–]*(?:[,(—–] ?)?(?:\bbut )?(?:\bonly )?(?<!that )\b(?:{_CONDITION}|except|apart from|but not\b"
    r"|in (?:part|principle|theory|spirit)\b|on paper|partly|partially|somewhat|to (?:a|some) (?:degree|extent)"
    r"|up to a point|at first)"
)
_DIFFERS = re.compile(r" (?:to (?:disagree|differ)|(?:with|on|to|in) (?:neither|none|nothing|nobody|no one)|less)\b")


def _clause(starts: Sequence[int], place: int) -> int:
    """Where the clause begins that `place` stands in."""
    return max((start for start in starts if start <= place), default=0)


def _meant(sentence: str, match: re.Match[str], starts: Sequence[int]) -> int:
    """1 when the phrase is said, -1 when it is denied, 0 when it is asked, supposed or told of somebody else."""
    before = sentence[: match.start()]
    clause = before[_clause(starts, match.start()) :]
    if _SUPPOSING.search(clause) or _CONDITION_FIRST.match(before) or _REPORTING.search(before[-60:]):
        return 0
    is_asked = sentence.endswith("?") and (not starts or starts[-1] <= match.end())
    if is_asked or _ASKING.search(clause):
        return 0
    return -1 if len(_DENYING.findall(clause)) % 2 else 1


_LOOK = str.maketrans(
    {"’": "'", "\u2018": "'", "\u02bc": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "\u00a0": " "}
)
_LEFT_OUT = re.compile(r"`[^`]*`|~~[^~]+~~|\"[^\"]{1,400}\"|(?<!\w)'(?:[^']|(?<=\w)'(?=\w)){1,400}'(?!\w)|<[^<>]*>")
_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\d{1,3}[.)]|#{1,6}|\|)[ \t]+")
_STOP = re.compile(r"(?<=[.!?…;])[\"')\]]*\s+")


def _sentences(text: str) -> Iterator[str]:
    """The sentences of a reply outside code and quotes, in small letters, with straight apostrophes."""
    for block in _blocks(text.translate(_LOOK)):
        plain = _LEFT_OUT.sub(" … ", block).replace("*", "").replace("_", " ").casefold()
        plain = re.sub(r"\b(i|we),? however,? ", r"however, \1 ", " ".join(plain.split()))
        for sentence in _STOP.split(re.sub(r"\bnot only (?:do |does )?", "", plain)):
            yield sentence[:LONGEST].strip(" \"'")


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs, headings and items of lists, each as one text; quoted lines stand apart and are left out."""
    block: list[str] = []
    before = -1
    for index, line in outside_fences(text.split("\n"), forgiving=False):
        item, quoted = _ITEM.match(line), line.lstrip().startswith(">")
        if block and (index != before + 1 or item or quoted or not line.strip() or block[0].startswith("#")):
            yield "\n".join(block)
            block = []
        before = index
        if line.strip() and not quoted:
            block.append(line[item.end() :] if item and not line.lstrip().startswith("#") else line)
    yield "\n".join(block)
