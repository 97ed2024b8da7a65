"""What is said right before a mark that decides something: whose words it is, whether it is supposed, asked or denied.

Only the last sentence counts, 200 characters of it. One that runs on into the mark (`I cannot write`, `If B signs:`) is
read more strictly than one that is complete.
"""

from __future__ import annotations

import re

_SEEN = 200  # characters that are looked at
_ITEM = re.compile(r"(?:[-+•][ \t]|\d{1,3}[.)][ \t]|#{1,6}[ \t]|\||>)")

# What a sentence ends with that goes on in the mark: `I cannot write`, `What I do not say is`.
_ACT = (
    r"\b(?:(?:count|writ|sign|say|put|giv|mean|claim|vot|agree|send|declar|stat|typ|accept|approv|answer|read|add)"
    r"(?:e|es|s|ed|d|ing|ten|en|n)?|wrote|written|said|gave|meant|sent|endorse|schreib\w*|sage|sagen|unterschreib\w*"
    r"|zustimm\w*|zähl\w*|écrire|écris|signer|signe|dire|escribir|escribo|firmar|firmo|decir|escrever|assinar"
    r"|писать|написать|подписать)\b"
)
_TAIL = (
    r"(?:\W+(?:this|it|that|so|the|following|below|yet|here|now|down|as|a|an|my|our|to|with|off|on|mark|line|for|is|be"
    r"|you|us|of|like|such|in|turn|das|dies|es|noch|hier|als|ceci|cela|esto|eso))*\W*$"
)
_ENDS_ACTING = re.compile(_ACT + _TAIL, re.I)
_ENDS_OPEN = re.compile(
    r"\b(?:is|are|was|were|be|been|have|has|had|do|does|did|with|to|an?|the|of|at|for|as|my|than|ist|mit)\W*$", re.I
)
_DENIAL = re.compile(
    r"\b(?:not|never|cannot|no longer|nobody|no one|none|hardly|barely|refuse|unable|unwilling|hesita\w+|reluctant"
    r"|wrong|premature|too (?:early|soon)|instead of|rather than|without|avoid|nor|neither|far from"
    r"|no (?:reason|way|point|grounds?|basis)|dont|cant|wont|nicht|keine?[nsr]?|niemals|nie|pas|jamais|não|не)\b"
    r"|n't\b",
    re.I,
)
_ENDS_DENIED = re.compile(
    r"(?:(?<!or )\b(?:not|never|nicht|niemals)(?: (?:yet|now|quite|exactly|really))?|\bthere(?:'s| is) no)\W*$", re.I
)

# What a sentence hangs on: `If B signs:`, `I agree if …`.
_IF = (
    r"(?:if|unless|provided|providing|once|until|till|as long as|so long as|as soon as|assuming|supposing|suppose"
    r"|in case|wenn|falls|sobald|sofern|solange|vorausgesetzt|angenommen|si|dès que|à condition|pourvu|siempre que"
    r"|a menos que|cuando|caso|если)\b(?! (?:again|more|you ask me|I may|anything|I'm not mistaken|I read you)\b)"
)
_LEADS = re.compile(
    rf"\W*(?:(?:and|but|so|then|only|even|aber|nur|erst|mais|pero|solo|sólo) )*(?!when all (?:is|was) said)(?:{_IF}"
    r"|(?:when|after|before|nachdem|bevor)\b (?:you|they|he|she|everybody|everyone|all|both|we (?:have|know|agree)"
    r"|(?:agent )?(?-i:[A-HJ-Z])|the \w+|\w+ (?:is|are|has|have))\b (?:\w+ )?(?:signs?|signed|agrees?|agreed|votes?"
    r"|is|are|has|have|names?|named|confirms?|pass|passes|hat|haben|ist|sind)\b"
    r"|(?:should|had|were) (?:I|we|you|it|they|(?-i:[A-HJ-Z])|the)\b)",
    re.I,
)
_SIGNING = (
    r"\b(?:agree|sign|accept|approve|endorse|support|vote (?:yes|for)|go along|(?:fine|happy|ok|okay) with"
    r"|stimme|unterschreibe|unterzeichne)\b(?: (?:to|with|for|on|it|this|P\d{1,6}|yes|zu|the (?:text|proposal|summary)"
    r"|as it stands))*"
)
_HANGS = re.compile(
    rf"{_SIGNING},? (?:but )?(?:(?:only |nur |erst )?{_IF}|only (?:when|after|with|under)\b|subject to\b|when\b.*:$"
    r"|(?:on|under) (?:the |one |that )?condition|with the (?:proviso|caveat|condition))",
    re.I,
)
_THEN = re.compile(
    r"\b(?:I|we|ich|wir)(?:'ll|'d)? (?:(?:can|could|will|would|shall|do|am|also|gladly|happily|then|may) ){0,3}"
    rf"{_SIGNING}(?: too)?\W*$|\b(?:unterschreibe|stimme) ich\b[^,.]*\W*$",
    re.I,
)
_MET = re.compile(
    r"\b(?:now (?:it|that|they|we)\b|(?:it|that|they|which) (?:now|does|do|is now|are now)\b|is met\b)", re.I
)
_ASKS = re.compile(
    r"(?:^|[,;:] |\b(?:and|but|so|or|why|how|when|where|not?) )(?:should|shall|may|can|could|would|must|do|does|did"
    r"|am|will|soll|sollte|kann|darf|muss|würde|dois|puis|debo|puedo)(?:[ -])(?:I|we|you|ich|wir|je|yo)\b",
    re.I,
)

# What a complete sentence refuses: `I will not sign this.`, `What follows is only an example.`
_REFUSES = re.compile(
    r"\b(?:I|we)(?: (?:still|really|simply|must) )?(?:'m not| am not| are not| cannot| can't| can not| will not| won't"
    r"| do not| don't| would not| wouldn't| refuse)(?: (?:yet|ready|able|willing|prepared|to|really|possibly))*"
    r" (?:sign|agree|accept|approve|endorse|count)(?: (?:to|with|it|this|that|yet|now|P\d{1,6}|as it stands"
    r"|after all|any more|anymore|the (?:text|proposal|summary|mark)))*\W*$"
    r"|\bich (?:unterschreibe|stimme)(?: (?:das|dem|dies|hier|noch|P\d{1,6}))* nicht(?: zu)?\W*$"
    r"|^\W*(?:still )?not (?:signing|agreeing|approving|accepting|signed|agreed|ready)(?: to \w+)?"
    r"(?: (?:this|it))?(?: yet)?\W*$",
    re.I,
)
THIS = (
    r"(?:this|it|that|the (?:following|next|mark|line|above|vote|signature)(?: (?:line|mark|below|above))?"
    r"|what follows)"
)
_NOT_MEANT = re.compile(
    rf"\b(?:do not|don't|never|must not|should not) (?:\w+ )?(?:count|record|treat|take|read) {THIS}\b"
    rf"|\b(?:ignore|disregard) {THIS}\b"
    rf"|\b{THIS}(?:'s| is| was) (?:only |just |merely )?(?:not (?:yet )?(?:an? |my |our )?(?:vote|signature|yes"
    r"|agreement|approval|meant|final|to be counted)|(?:an? )?(?:example|illustration|quotation|template|placeholder"
    r"|joke|hypothetical))\b|\bzählt (?:das|dies) nicht\b|\b(?:das|dies) (?:zählt|gilt) (?:noch )?nicht\b"
    r"|^otherwise (?:not|no|I (?:do not|don't|object))\b",
    re.I,
)

# Who would say it, or said it once.
_HYPOTHETICAL = re.compile(
    r"(?:\b(?:I|we)(?:'d| would| could| might)(?: (?:then|now|also|rather|perhaps|even|have|gladly|otherwise))*"
    r"|\b(?:tempted|(?:was|were) (?:about|going|inclined)|(?:was|am|were) asked|wanted|hoped|hope|meant|plan"
    r"|planned|intended|be able) to|\b(?:before|until|once|unless|if|for) (?:I|we|me|us)(?: (?:can|could|will|to))?"
    r"|\b(?:almost|nearly|beinahe|fast)|\bI will (?:later|soon|then|tomorrow)|\bwould like (?:me|us) to"
    r"|\b(?:wants?|wanted|asks?|asked|expects?|expected|tells?|told|urges?) (?:me|us) to"
    rf"|\bich würde) {_ACT}{_TAIL}|\b(?:imagine|pretend|hypothetically)\b|\bich würde\b.*{_ACT}{_TAIL}",
    re.I,
)
_AS_ASKED = re.compile(r"\bas\b", re.I)
_FORMER = re.compile(
    r"\b(?:earlier|previous(?:ly)?|old|former(?:ly)?|first|initial(?:ly)?|original(?:ly)?)\b[^,.]{0,20}"
    r"\b(?:(?:vote|signature|answer|position|verdict) (?:was|had been)|wrote|said|voted)\b[^,.]{0,12}$"
    r"|\bI had (?:first |once )?(?:written|said|voted)\b[^,.]{0,12}$",
    re.I,
)
_SHOWN = re.compile(
    r"(?:^|\b(?:an?|as|for|my|one|only|just|the) )(?:example|illustration|sample|placeholder|template|mock-up)\b", re.I
)
_ATTRIBUTES = re.compile(
    r"\b(?:wrote|said|says|voted|examples?|template|instance|(?:could|should|would|might) (?:write|look)[^.:]{0,20})"
    r"[^.:]{0,30}:\W{0,6}$",
    re.I,
)
_OWN = re.compile(r"\b(?:I|my|our|we)\b", re.I)
_OTHERS = re.compile(
    r"\b(?:you|he|she|they|(?-i:[A-HJ-Z]|[A-Z][a-z]{2,20} [A-Z]))(?: (?:has|have|had|just|also|already|once|first))*"
    r" (?:wrote|writes|written|said|says|voted|votes|signed|schrieb|sagte|stimmte)\b[^,.:]{0,40}:\W{0,6}$"
    r"|^\W*(?:(?:and|so|then|here is|this is) )?(?:(?-i:[A-HJ-Z])'s|your|their|his|her)(?: \w+){0,2}"
    r" (?:vote|signature|words|line|mark)(?: (?:is|was|reads|would be|in turn \d{1,6}))*:\W{0,6}$"
    r"|^\W*(?:(?:to )?quot(?:e|ed|ing)|copied|cited|from (?:turn|message|agent|(?-i:[A-HJ-Z])\b))[^.:]{0,30}:\W{0,6}$"
    r"|^\W*(?:agent )?(?-i:[A-HJ-Z]):\W{0,6}$",
    re.I,
)
_CLAUSES = re.compile(
    r"[,;:()—–] |\b(?:but|(?<!not )so|hence|therefore|thus|aber|also|daher) "
    r"|\band (?=(?:I|we|sign|agree|approve|accept|therefore|so|vote)\b)",
    re.I,
)
_INSTEAD = re.compile(r"^(?:rather than|instead of)\b(?: [^ ]{1,30}){1,12}? (?=(?:I|we)\b)", re.I)


def is_attributed(before: str) -> bool:
    """True when the line before a mark says that it is somebody else's, or an example: `A wrote:`."""
    said = before[-_SEEN:]
    return bool(_ATTRIBUTES.search(said) and not _OWN.search(said)) or bool(_OTHERS.search(_clause(_last(said))))


def is_supposed(before: str, mark: str) -> bool:
    """True when the sentence before a mark supposes it, asks for it, or denies it: `If B signs:`, `I cannot write`.

    `mark` is the mark in words: a refusal of another proposal than its own denies nothing.
    """
    said = _last(before[-_SEEN:])
    if (_ITEM.match(before) and not said.endswith(":")) or _MET.search(said):
        return False
    if is_refused(said, mark) or _HANGS.search(said) or (_LEADS.match(said) and _THEN.search(said)):
        return True
    return not said.endswith((".", "!", "?")) and _runs_on(said)


def _runs_on(said: str) -> bool:
    """The same for a sentence that goes on in the mark."""
    clause = _clause(said)
    is_called = said.endswith((":", ",", "—", "–", "…"))
    act = _ENDS_ACTING.search(clause) or _ENDS_OPEN.search(clause)
    if act and len(_DENIAL.findall(clause[: act.end()])) % 2:
        return True
    if _ENDS_DENIED.search(clause) or _FORMER.search(clause):
        return True
    if _HYPOTHETICAL.search(clause) and not _AS_ASKED.match(clause):
        return True
    if _LEADS.match(said) and (is_called or act or "," not in said):
        return True
    return bool((is_called and _SHOWN.search(clause)) or ((is_called or act) and _ASKS.search(said)))


def is_not_meant(before: str, after: str) -> bool:
    """True when a sentence beside a mark says that it is none: `Please don't read this as a vote.`"""
    first = re.split(r"(?<=[.!?])\s", after[:_SEEN].strip(), maxsplit=1)[0]
    return bool(_NOT_MEANT.search(_last(before[-_SEEN:])) or _NOT_MEANT.search(first))


def is_refused(sentence: str, mark: str) -> bool:
    """True when a sentence beside a mark says that it is not meant, or refuses it: `I will not sign this.`"""
    refused = _REFUSES.search(sentence)
    named, own = (set(re.findall(r"P\d+", text.upper())) for text in (refused[0] if refused else "", mark))
    is_of_it = not named or not own or bool(named & own)
    return bool(_NOT_MEANT.search(sentence) or (refused and is_of_it))


def _last(said: str) -> str:
    """The last sentence of a text, without the signs around it."""
    return re.split(r"(?<=[.!?])\s+", said.strip(" \t\"'()[]"))[-1].strip(" \t\"'()[]#>")


def _clause(said: str) -> str:
    """The last clause of a sentence; what stands between two commas is left out."""
    whole = re.sub(r", [^,]{1,30}, (?=\w+\W*$)", " ", _INSTEAD.sub("", said))
    return _CLAUSES.split(whole)[-1]
