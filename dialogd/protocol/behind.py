"""What follows a mark that decides something: what makes it hang on something, takes it back, or denies it."""

from __future__ import annotations

import re

from dialogd.protocol.before import THIS, is_refused

_SEEN = 200  # characters that are looked at

_QUALIFIES = re.compile(
    r"\W*(?:but |and |however,? |my (?:vote|yes|signature|approval|agreement) |valid "
    r"|(?:this|that|it)(?: (?:vote|approval|signature|agreement))? (?:is |holds |stands |counts |depends )"
    r"|i (?:approve|agree|sign|vote yes) |(?:is |holds |stands |counts |depends ))*"
    r"(?:only (?:if|when|once|after)|if and only if|provided (?:that|we|it|the)|(?:on|under) (?:the |one )?condition"
    r"|unless\b|conditional(?: (?:up)?on\b|\W*$)|subject to"
    r"|pending (?:the|an?|your|my|our|their|its|this|that|review|approval|confirmation|clarification|results?)\b"
    r"|(?:as|so) long as|(?<=but )(?:if|not|first)\b|(?<=but )before\b"
    r"|(?<=counts )once\b|(?<=stands )once\b|(?<=depends )on\b|depending on\b[^,]*$"
    r"|with the (?:proviso|caveat|condition|exception)|except(?:ing)?\b(?! (?:for )?(?:that|this)\b)[^,]*$"
    r"|apart from (?!that|this)|assuming\b[^,]*$"
    r"|(?:aber )?(?:nur,? (?:wenn|falls|sofern)|erst,? (?:wenn|nach|nachdem))|aber (?:nicht|noch nicht|zuerst)\b"
    r"|vorausgesetzt\b|sofern\b|unter der (?:bedingung|voraussetzung)|mais (?:pas|d'abord)\b"
    r"|(?:mais )?(?:seulement|uniquement) (?:si|quand|après)|à condition|sous réserve|(?:pero )?s[oó]lo (?:si|cuando)"
    r"|pero (?:no|primero)\b|siempre que\b|a menos que\b)",
    re.I,
)
_TAKES_BACK = re.compile(
    r"\W*(?:(?:no|but|oh|hm+|ah|well|actually|sorry|and|or|nein|ach),? )*"
    r"(?:wait(?=\W*$|[,.:;!—–-]| (?:a|for|until|till|no|not|with|before)\b)"
    r"|hold on\b(?! to\b)|hang on\b|not so fast|(?:scratch|strike) (?:that|it|this)|on second thoughts?"
    r"|never ?mind|(?:just )?kidding\b|(?:i(?:'ve| have)? )?changed? my mind"
    rf"|(?:please )?(?:ignore|disregard|forget|cancel|discard) {THIS}"
    r"|i (?:hereby |must |now |do |have to |want to )?(?:(?:take|took) (?:that|it|this|my \w+|the above) back"
    r"|take back (?:that|it|this|my (?:vote|signature|yes))|(?:withdraw|retract|revoke|cancel) (?:that|it|this"
    r"|my (?:vote|signature|yes|agreement|approval|consent)|the above))"
    r"|(?:consider )?(?:(?:this|that|it|the above)(?: is)? )?(?:hereby )?(?:withdrawn|retracted|revoked|void)\b"
    r"|(?:warte?|moment|halt)(?=\W*$|[,.:;!])|vergiss (?:das|es)\b"
    r"|(?:das )?(?:nehme|ziehe) ich (?:(?:das|es|dies|meine \w+) )?zurück"
    r"|ich (?:nehme|ziehe) (?:das|es|dies|meine (?:stimme|unterschrift|zustimmung)) zurück"
    r"|attends\b|attendez\b|je retire\b|espera\b|(?:lo )?retiro\b)",
    re.I,
)
_NOT_YET = re.compile(
    r"\W*(?:(?:no|but|oh|well|actually|sorry|and|or),? )*(?:not yet|doch nicht|noch nicht|pas encore|todavía no)\b",
    re.I,
)
_NOTHING_BUT = re.compile(
    r"\W*(?:at least |but |or |only |actually,? |well,? |oh,? )*(?:not(?: really| quite| now| sure)?|no|nope|never"
    r"|in (?:principle|part|spirit|theory)|partly|partially|mostly|tentatively|provisionally|for (?:now|the moment)"
    r"|maybe|perhaps|probably|possibly|almost|nearly|conditionally|no,? I (?:do not|don't|cannot|can't|will not|won't)"
    r"|nein|vielleicht)\W*$|\W*\?\W*$",
    re.I,
)
_NOT_IT = re.compile(
    rf"\W*{THIS} (?:do(?:es)? not|doesn't|should not|shouldn't|must not|will not|won't|is not to|cannot|can't)"
    r" (?:yet )?(?:count|stand|hold|apply|be (?:counted|read|taken))\b"
    rf"|\W*{THIS}(?:'s| is| was| would be) (?:(?:what|how) (?:you|they|he|she|(?-i:[A-HJ-Z])|(?:I|we) (?:would|could"
    r"|might)|I'd|we'd)\b|too early|premature)"
    r"|\W*(?:so )?(?:says|said|wrote|writes|quoth) (?!I\b|so\b)"
    r"|(?:—|–|--) ?(?:agent )?(?-i:[A-HJ-Z])\W*$",
    re.I,
)
# A line that begins small goes on with the sentence of which the mark is a part.
_GOES_ON = re.compile(
    r"\W{0,5}(?:if|before|until|till|unless|once|when|provided|as soon as|yet|bevor|bis|wenn|falls|sobald|avant|antes"
    r"|(?:is|are|was|were|would|could|should|might|may|cannot|can't|can|will|does|has|had|isn't|wouldn't|wird|ist)\b"
    r"(?! (?:my|our|what (?:I|we) (?!would|could|might|do not|don't|cannot)|fine|good|right|clear|meine)\b))\b"
)
_IF = re.compile(
    r"\W*(?:but |and )?(?:if|falls|wenn|si)\b (?:we |I |you |they |it )?"
    r"(?:(?!,| (?:we|I|you|it|then|let|they|the \w+ (?:is|are|can|will))\b).){1,80}$",
    re.I,
)
_FIRST = re.compile(
    r"[^.?]{0,80}\b(?:needs?|must|has to|have to)\b[^.?|]{0,60}\bfirst\W*$"
    r"|\W*(?:but )?before (?:I (?:sign|agree|do|can|commit|say)|we (?:sign|agree|close|end|finish|conclude)|this|that"
    r"|it|my)\b[^.?]{0,80}\b(?:must|needs?|has to|have to|should|want|first|missing)\b",
    re.I,
)
_ASKS = re.compile(
    r"\W*(?:should|shall|may|can|could|do|must) (?:I|we) (?:really |now |already )?(?:write|say|sign|send|agree)\b"
    r"[^.!]*\?|\W*(?:is (?:it|that|this) (?:too early|right|what you|how)|really\?|right\?)"
    r"|\W*but\b[^.!]{0,120}\?\W*$|\W*or\b[^.!]{0,80}\?\W*$",
    re.I,
)
_RULES = (_QUALIFIES, _NOT_YET, _NOTHING_BUT, _NOT_IT, _GOES_ON, _IF, _FIRST, _ASKS)


def is_taken_back(after: str) -> bool:
    """True when what follows a mark takes it back: `Scratch that.`"""
    return bool(_TAKES_BACK.match(after[:_SEEN].strip()))


def is_qualified(after: str, mark: str) -> bool:
    """True when what follows a mark makes it hang on something, denies it, or goes on with a sentence around it.

    `mark` is the mark in words: a refusal of another proposal than its own denies nothing.
    """
    said = after[:_SEEN].strip()
    first = re.split(r"(?<=[.!?])\s", said, maxsplit=1)[0]
    return is_refused(first, mark) or any(rule.match(said) for rule in _RULES)
