"""Text and quantities: what may be carried into the file, and what people write (`5 minutes`, `$2.00`). Pure.

Lines are split on `\\n` and on nothing else: two readers that disagree about lines are how turns get forged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from reprlib import repr as shown  # cut to some thirty characters: a header may hold anything

_BLANKS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
# What turns the direction of writing, breaks a line for some readers only, or cannot be seen; inside of brackets.
# Without the joiners (U+200C, U+200D) and variation selectors, which scripts and emoji are written with.
UNSEEN = (
    r"\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\uffa0\ufff9-\ufffb"
    r"\U000e0000-\U000e007f"
)
_UNSEEN = re.compile(f"[{UNSEEN}]")
_NOTHING = re.compile(rf"[\s\x00-\x1f\x7f-\x9f\ufeff\ud800-\udfff\ufffd\u200c\u200d\ufe00-\ufe0f{UNSEEN}]*")

# What would read as structure at the start of a line: entry headings, TURN lines, marks, frames. Wider than any
# reader, and free of the mark table, so that a file written today reads the same tomorrow. Runs are possessive (`*+`):
# where two of them could share a run, one long line would cost its length squared.
_STRUCTURE = (
    r"(?:#{1,6}[ \t]*+(?:turn|note|user|system)\b"
    r"|[*_`>#~ \t-]*+turn[*_` \t]*+:"
    r"|[*_`~]{0,4}\[[ \t]*+(?-i:[A-Z][A-Z_]+)(?:[ \t]+P\d{1,6})?[ \t]*+(?::.*)?\]"
    r"[ \t]*+(?:[*_`~.,;:!]{1,6}[ \t]*+)?$"
    r"|<!--[ \t]*+dialogd\b)"
)
_ESCAPE = re.compile(rf"^([ \t]*+)(\\*{_STRUCTURE})", re.M | re.I)
_UNESCAPE = re.compile(rf"^([ \t]*+)\\(\\*{_STRUCTURE})", re.M | re.I)


def clean(text: str) -> str:
    """CRLF to LF; every other control character, lone CR and NUL among them, becomes U+FFFD."""
    return _SURROGATES.sub("\ufffd", _BLANKS.sub("\ufffd", text.replace("\r\n", "\n")))


def visible(text: str) -> str:
    """`clean`, and U+FFFD for what changes how the rest is read without being seen: for whatever shows a text."""
    return _UNSEEN.sub("\ufffd", clean(text))


def is_blank(text: str) -> bool:
    """True where nothing of it can be seen."""
    return _NOTHING.fullmatch(text) is not None


def escape(text: str) -> str:
    """Put one backslash before each line that would read as structure."""
    return _ESCAPE.sub(r"\1\\\2", text)


def unescape(text: str) -> str:
    """Take exactly one backslash off each line that `escape` put one on."""
    return _UNESCAPE.sub(r"\1\2", text) if "\\" in text else text


def one_line(text: str, limit: int = 500, secrets: Sequence[str] = ()) -> str:
    """A value for a mark: one line, no control characters, no secrets, at most `limit` code points."""
    # Secrets go first: of one that is cut, nobody sees any more that it was one.
    flat = " ".join(redact(clean(text), secrets)[0].split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


# -- Secrets: known key shapes, replaced by what kind of secret stood there -------------------------------------------

SHORTEST = 8  # characters: a shorter secret of one's own would take words out of every text

# Prefixes as their vendors document them; entropy guesses are left out, because hashes in a discussion are text.
_SHAPES = {
    "anthropic key": r"sk-ant-[A-Za-z0-9_-]{16,}",
    "openai key": r"sk-(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{24,}",  # without a digit it is a name, such as sk-learn
    "xai key": r"xai-[A-Za-z0-9]{20,}",
    "google key": r"AIza[A-Za-z0-9_-]{35}",
    "github token": r"(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
    "aws key": r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    "slack token": r"xox[abprs]-[A-Za-z0-9-]{10,}",
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    "jwt": r"eyJ[A-Za-z0-9_-]{10,500}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "url password": r"(?<=://)[^\s/:@]{1,64}:[^\s/@]{3,}(?=@)",
}
_NAMES = tuple(_SHAPES)
_OWN = "own key"
_PLACE = re.compile(rf"\[redacted: (?:{'|'.join((_OWN, *_NAMES))})\]")
_ANY = re.compile("|".join(rf"(?<![A-Za-z0-9])({shape})" for shape in _SHAPES.values()))
# How any of them begins. Nearly every text holds none of these, and is done after one cheap search.
_HEAD = re.compile(r"sk-|xai-|AIza|gh[pousr]_|github_pat_|A[KS]IA|xox[abprs]-|-----BEGIN |eyJ|://")

# For readers that see a text bit by bit: a private key's first and last line, and what may begin the first one.
KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
KEY_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
KEY_MAY_BEGIN = re.compile(r"-----BEGIN [A-Z ]*-{0,4}\Z")


def redact(text: str, own: Sequence[str] = ()) -> tuple[str, int]:
    """Replace every secret by `[redacted: KIND]`, also those `own` ones; gives the text and how many there were."""
    found = 0
    for secret in sorted(own, key=len, reverse=True):  # one may be the beginning of another
        if len(secret) >= SHORTEST and secret in text:
            found += text.count(secret)
            text = text.replace(secret, f"[redacted: {_OWN}]")
    if _HEAD.search(text):
        text, shapes = _ANY.subn(lambda match: f"[redacted: {_NAMES[(match.lastindex or 1) - 1]}]", text)
        found += shapes
    return text, found


def places(text: str) -> int:
    """How many places of a text read as `redact` leaves them; whoever wrote it may have put such words there."""
    return len(_PLACE.findall(text))


# -- Quantities as people write them: `5 minutes`, `1,000`, `1 MB`, `$2.00` --------------------------------------------

MAX_SECONDS = 7 * 86_400.0
MAX_COUNT = 1_000_000_000
MAX_SIZE = 1_000_000_000_000
MAX_DOLLARS = 1_000_000.0
MAX_TOKENS = 1_000_000_000_000

Budget = tuple[float | None, int | None]  # US dollars and tokens, None for what is not limited
NO_BUDGET: Budget = (None, None)

# [0-9] and not \d: digits of other scripts are more likely an accident than a limit.
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,15})"
_NUMBER = rf"{_WHOLE}(?:\.[0-9]{{1,9}})?"
_PART = rf"({_NUMBER})\s*([a-z]*)"
_DURATION = re.compile(rf"{_NUMBER}|{_NUMBER}\s*[a-z]+(?:\s*(?:,\s*)?(?:and\s+)?{_NUMBER}\s*[a-z]+)*")
_COUNT = re.compile(rf"({_WHOLE})(?:\.0)?(?:\s*(?:turns?|characters?|chars?))?")
_AMOUNT = re.compile(
    rf"(?:(?:us\s?)?\$|usd)\s?({_NUMBER})(?![\w.])|({_NUMBER})\s?(?:us\s?)?(?:\$|usd|dollars?)(?!\w)"
    rf"|({_NUMBER})\s?([km]?)\s?(?:tokens?|toks?)(?!\w)"
)


def _units(table: dict[str, float]) -> dict[str, float]:
    return {"": 1, **{name: factor for names, factor in table.items() for name in names.split()}}


_SECONDS_IN = _units(
    {
        "ms millisecond milliseconds": 0.001,
        "s sec secs second seconds": 1,
        "m min mins minute minutes": 60,
        "h hr hrs hour hours": 3_600,
        "d day days": 86_400,
    }
)
_BYTES_IN = _units({"b byte bytes": 1, "k kb": 1e3, "m mb": 1e6, "g gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30})
_TOKENS_IN = _units({"k": 1_000, "m": 1_000_000})


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _within(number: float, value: object, most: int) -> int:
    if not 1 <= number <= most:
        raise ValueError(f"{shown(value)} is not between 1 and {most:,}")
    return int(number)


def read_seconds(value: str | float) -> float:
    """Read a duration, more than nothing and at most 7 days, as seconds. Raises `ValueError`."""
    text = (f"{value:.9f}" if isinstance(value, float) else str(value)).strip().lower()
    parts = re.findall(_PART, text) if _DURATION.fullmatch(text) else ()
    total = sum(_number(number) * _SECONDS_IN.get(unit, math.nan) for number, unit in parts)
    if total > MAX_SECONDS:
        raise ValueError(f"{shown(value)} is longer than 7 days")
    if not total > 0:  # nor is what is no number
        raise ValueError(f"{shown(value)} is not a duration above zero such as `5 minutes`, `90 seconds` or `1h 30m`")
    return total


def read_count(value: str | float) -> int:
    """Read a whole number from 1 to 1,000,000,000. Raises `ValueError`."""
    match = _COUNT.fullmatch(str(value).strip().lower())
    if match is None:
        raise ValueError(f"{shown(value)} is not a whole number such as `20` or `1,000`")
    return _within(_number(match[1]), value, MAX_COUNT)


def read_size(value: str | float) -> int:
    """Read a size, at least one byte and at most 1 TB, as bytes. Raises `ValueError`."""
    match = re.fullmatch(_PART, str(value).strip().lower())
    if match is None or match[2] not in _BYTES_IN:
        raise ValueError(f"{shown(value)} is not a size such as `1 MB` or `500 KB`")
    return _within(_number(match[1]) * _BYTES_IN[match[2]], value, MAX_SIZE)


def read_budget(value: str) -> Budget:
    """Read a budget of dollars, of tokens, or of both. Raises `ValueError`."""
    text = str(value).strip().lower()
    money: list[float] = []
    tokens: list[int] = []
    for before, behind, number, unit in _AMOUNT.findall(text):
        if number:
            tokens.append(_within(_number(number) * _TOKENS_IN[unit], value, MAX_TOKENS))
        else:
            money.append(_number(before or behind))
    joined = re.fullmatch(r"\0(?:\s*(?:,\s*)?(?:and\s+)?\0)?", _AMOUNT.sub("\0", text))
    if joined is None or max(len(money), len(tokens)) != 1:
        raise ValueError(f"{shown(value)} is not a budget such as `$2.00`, `200,000 tokens` or `$2.00, 500k tokens`")
    if money and not 0 < money[0] <= MAX_DOLLARS:
        raise ValueError(f"{shown(value)} is not between $0 and ${MAX_DOLLARS:,.0f}")
    return next(iter(money), None), next(iter(tokens), None)


def _dollars(amount: float, digits: int) -> str:
    whole, _, rest = f"{amount:,.{digits}f}".partition(".")
    return f"${whole}.{rest.rstrip('0'):0<2}"


def dollars(amount: float) -> str:
    """Write an amount as people do: `$2.00`, `$1,234.50`; below a dollar up to four digits: `$0.0061`, `$0.34`."""
    return "under $0.0001" if amount and not round(amount, 4) else _dollars(amount, 2 if amount >= 1 else 4)


def budget_line(usd: float | None, tokens: int | None) -> str:
    """Write a budget so that `read_budget` reads it back as it is: `$2.00, 200,000 tokens`; "" for none."""
    parts = [_dollars(usd, 9)] if usd is not None else []
    return ", ".join([*parts, f"{tokens:,} tokens"] if tokens is not None else parts)


def many(count: int | str, what: str) -> str:
    """A number of things: `1 round`, `5 rounds`."""
    return f"{count} {what}{'' if str(count) == '1' else 's'}"


def listed(names: Sequence[str], word: str = "and") -> str:
    """`A`, `A and B`, `A, B and C`; "" for none."""
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def in_words(duration: float) -> str:
    """Write finite seconds as people say them: `3 minutes 2 seconds`, `6.1 seconds`, `0 seconds`."""
    tenths = round(max(duration, 0.0), 1)
    if tenths < 60:
        return many(f"{tenths:.1f}".removesuffix(".0"), "second")
    rest, words = round(duration), []
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        amount, rest = divmod(rest, length)
        words += [many(amount, unit)] if amount else []
    return " ".join(words)


# -- Times, read by the clock of a place ------------------------------------------------------------------------------

_ISO = re.compile(r"([2-8]\d{3}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)\s?([Zz]|[+-]\d\d:?\d\d)")

# A moment by the clock of a place, with the offset of that very date; a naive one is a time by that clock.
Zone = Callable[[datetime], datetime]


def moment_of(text: str) -> datetime | None:
    """A date and time with its offset, as it is given or stands in the file; None for anything else."""
    match = _ISO.fullmatch(text.strip())
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3].upper()}") if match else None
    except ValueError:
        return None


def as_iso(moment: datetime) -> str:
    """The moment as the file has it."""
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def seconds_between(earlier: str, later: str) -> float | None:
    """Seconds between two times as they stand in the file, such as `2026-11-21 20:00:00 +01:00`; None if one is none.

    A time without an offset is taken as UTC.
    """
    times = []
    for text in (earlier, later):
        try:
            moment = datetime.fromisoformat(text.strip().replace(" +", "+").replace(" -", "-"))
        except ValueError:
            return None
        times.append(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    return (times[1] - times[0]).total_seconds()
