"""One call of a backend: attempts, deadline, what it costs. The reply is streamed as it arrives, without secrets."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from dialogd.backends import FREE, Backend, Delivery, NextRequest, Price, Request, Tool, Usage
from dialogd.backends.parts import Prompt
from dialogd.errors import BackendError, DialogdError
from dialogd.protocol.state import Dialog, Estimate, Spent, account
from dialogd.protocol.text import KEY_BEGINS, KEY_ENDS, KEY_MAY_BEGIN, SHORTEST, clean, in_words, one_line, redact

# -- What calls cost, and what the next one will --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bill:
    """The sum of some calls; `usd` in US dollars. The `…_known` count the calls that said something about it."""

    model: str = ""
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cached: int = 0
    usd: float = 0.0
    tokens_known: int = 0
    usd_known: int = 0
    is_estimated: bool = False

    @property
    def record(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {name: getattr(self, name) for name in self.__slots__}

    def plus(self, other: Bill) -> Bill:
        """Both together."""
        counted = ("calls", "tokens_in", "tokens_out", "cached", "usd", "tokens_known", "usd_known")
        return Bill(
            model=other.model or self.model,
            is_estimated=self.is_estimated or other.is_estimated,
            **{name: getattr(self, name) + getattr(other, name) for name in counted},
        )

    def attributes(self) -> tuple[tuple[str, str], ...]:
        """The frame's attributes: unknown figures are left out, never 0; `~` begins inexact ones."""
        if not self.calls:
            return ()
        tokens, dollars = self._mark(self.tokens_known), self._mark(self.usd_known)
        counted = bool(self.tokens_known)
        return (
            ("calls", str(self.calls)),
            ("model", self.model),
            ("in", f"{tokens}{self.tokens_in}" if counted else ""),
            ("cached", f"{tokens}{self.cached}" if counted and self.cached else ""),
            ("out", f"{tokens}{self.tokens_out}" if counted else ""),
            ("usd", f"{dollars}{_dollars(self.usd)}" if self.usd_known else ""),
        )

    @property
    def tokens(self) -> int:
        """All known tokens, both ways."""
        return self.tokens_in + self.tokens_out

    @property
    def known_usd(self) -> float | None:
        """Known US dollars; None when no call reported any."""
        return round(self.usd, 6) if self.usd_known else None

    @property
    def words(self) -> str:
        """What it cost, for people: `$0.0031`, `about $0.0031`, `cost unknown`."""
        if not self.calls:
            return "nothing spent"
        if not self.usd_known:
            return "cost unknown"
        return f"{'about ' if self._mark(self.usd_known) else ''}${_dollars(self.usd)}"

    def _mark(self, known: int) -> str:
        return "~" if self.is_estimated or known < self.calls else ""


MOST = 1e12  # tokens or dollars of one call; more is a slip, or somebody who wants to spoil the account


def _is_possible(usage: Usage) -> bool:
    """False for figures that are negative, infinite, or no numbers."""
    figures = (usage.tokens_in, usage.tokens_out, usage.cached, usage.cache_write, usage.usd)
    return all(figure is None or (type(figure) in (int, float) and 0 <= figure < MOST) for figure in figures)


def of_call(usage: Usage, price: Price | None) -> Bill:
    """The bill of one call, priced by `price` where the service named no price itself; empty where nobody was asked."""
    if not usage.calls:
        return Bill()
    tokens = usage.tokens_in is not None and usage.tokens_out is not None
    tokens_in, tokens_out = usage.tokens_in or 0, usage.tokens_out or 0
    usd = usage.usd
    if usd is None and price is not None and (tokens or price == FREE):
        usd = price.usd(tokens_in, tokens_out, usage.cached or 0, usage.cache_write or 0)
    return Bill(
        model=usage.model,
        calls=1,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        cached=usage.cached or 0,
        usd=usd or 0.0,
        tokens_known=int(tokens),
        usd_known=int(usd is not None),
        is_estimated=usage.estimated and bool(usd or tokens_in),
    )


def from_record(record: Mapping[str, Any]) -> Bill:
    """A bill as a journal keeps it; what cannot be read counts as unknown."""
    known: dict[str, Any] = {}
    for one in fields(Bill):
        value: Any = record.get(one.name)
        usual = type(one.default)
        is_fit = type(value) is usual or (type(value) is int and usual is float)
        if is_fit and (isinstance(value, str) or 0 <= value < MOST):
            known[one.name] = value
    return Bill(**known)


def _dollars(amount: float) -> str:
    """`0.0061`, `0`: six digits after the point at most."""
    return f"{amount:.6f}".rstrip("0").rstrip(".") or "0"


# -- What the coming turn will cost, as far as that can be known before it is bought. Pure ----------------------------

LEAST_REPLY = 1_000  # tokens: a turn that has no room for so short a reply is not bought
MARGIN = 1.25  # over the dearest of an agent's last turns, where a program calls its model as often as it likes
LOOKED_AT = 5  # turns


def forecast(
    backend: Backend, prompt: Callable[[], Prompt], dialog: Dialog, me: str, owed: Bill, *before: Prompt
) -> Estimate:
    """What agent `me` must be able to pay for its next turn, with what it `owed` for earlier calls; None if unknown.

    `prompt` makes the prompt, where that matters. `before` are other calls that the turn needs. An API's reply can be
    kept as short as the rest of the budget allows, so only a short one must fit, beside what is read: the prompt, or
    what its last turns read where that was more. A coding agent cannot be limited so: the
    cost of its last turns is used instead. A free backend may report no tokens: they count once it has reported some.
    """
    told, calls, price = _told(dialog, me), 1 + len(before), backend.price
    if price == FREE and not told:
        return Estimate(usd=0.0, tokens=None)
    if told and not backend.most_out:
        dearest = _dearest(told)
        return Estimate(dearest.usd * MARGIN * calls + owed.usd, round(dearest.tokens * MARGIN) * calls + owed.tokens)
    reply = min(backend.most_out or LEAST_REPLY, LEAST_REPLY)
    asked = [call.tokens for call in (prompt(), *before)]
    read_usd, read_tokens = reading(backend, dialog, me)
    tokens = sum(max(tokens, read_tokens) + reply for tokens in asked) + owed.tokens
    if price is None:
        return Estimate(None, tokens)
    usd = sum(max(price.usd(tokens, 0), read_usd) + price.usd(0, reply) for tokens in asked)
    return Estimate(usd + owed.usd, tokens)


def reading(backend: Backend, dialog: Dialog, me: str) -> tuple[float, int]:
    """Dollars and tokens of what an API call of agent `me` reads, by its last turns.

    A gateway adds prompts of its own to each. Nothing where none were reported yet, and for a program, whose turn is
    any number of calls.
    """
    usd, tokens = 0.0, 0
    for spent, calls in _told(dialog, me) if backend.most_out else ():
        written = backend.price.usd(0, spent.tokens_out) if backend.price else 0.0
        usd, tokens = max(usd, (spent.usd - written) / calls), max(tokens, spent.tokens_in // calls)
    return usd * MARGIN, round(tokens * MARGIN)


def at_stake(backend: Backend, prompt: Callable[[], Prompt], dialog: Dialog, me: str) -> Bill:
    """The estimate that counts until a call's bill is known: by its prompt, and what its last turns read and wrote.

    A program counts as the dearest of its last turns, once there is one.
    """
    told, price = _told(dialog, me), backend.price
    dearest = _dearest(told) if told else Spent(unknown=1)
    usd = None if dearest.unknown else dearest.usd
    tokens_in, tokens_out = dearest.tokens_in, dearest.tokens_out
    if backend.most_out or not told:
        read_usd, read_tokens = reading(backend, dialog, me)
        tokens_in, tokens_out = prompt().tokens, max((s.tokens_out for s, _ in told), default=LEAST_REPLY)
        usd = max(price.usd(tokens_in, 0), read_usd) + price.usd(0, tokens_out) if price is not None else usd
        tokens_in = max(tokens_in, read_tokens)
    return Bill(
        model=backend.model,
        calls=1,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        usd=usd or 0.0,
        tokens_known=1,
        usd_known=int(usd is not None),
        is_estimated=True,
    )


def is_priced(backend: Backend) -> bool:
    """True where a budget in dollars can be kept: its price is known, or somebody else replies, at their own cost."""
    return backend.price is not None or hasattr(backend, "is_opened")


def _told(dialog: Dialog, me: str) -> list[tuple[Spent, int]]:
    """What the latest turns of agent `me` cost, and in how many calls; without those that do not say."""
    mine = (entry.frame for entry in dialog.latest_turns if entry.by == me and entry.frame is not None)
    found = [(account(f.tokens_in, f.tokens_out, f.usd), f.calls) for f in islice(mine, LOOKED_AT)]
    told = [(spent, calls) for spent, calls in found if spent.micros or spent.tokens]
    return [(spent, max(int(calls[:6]), 1) if calls.isdecimal() else 1) for spent, calls in told]


def _dearest(told: list[tuple[Spent, int]]) -> Spent:
    return max((spent for spent, _ in told), key=lambda spent: (spent.micros, spent.tokens))


# -- A reply as it arrives --------------------------------------------------------------------------------------------

PAUSE = 0.1  # seconds between two pieces
LONGEST = 16 * 1024  # characters of a piece; more that comes at once is several
_END = 256  # characters in which the end of a secret of several lines is looked for

_WIDE = re.compile(r".*[^\x00-\x7f]", re.S)  # up to the last character beyond ASCII
_KEY = "[redacted: private key]"


class Pieces:
    """Streams what `add` takes, cleaned and without secrets, as soon as that is certain.

    `hand_on(text, is_first)` gets each piece; together they are the reply. `finish` streams the rest; on an
    interruption call `abandon`. `pause` is in seconds. Known secrets that contain blanks are kept together too.
    """

    def __init__(
        self, hand_on: Callable[[str, bool], None], secrets: Sequence[str] = (), *, pause: float = PAUSE
    ) -> None:
        self._hand_on = hand_on
        self._secrets = secrets
        self._pause = pause
        self._with_gaps = [one for one in secrets if len(one) >= SHORTEST and (_gap(one) or not one.isascii())]
        self._waiting: list[str] = []
        self._is_first = True
        self._is_key = False  # within a private key, which is told already
        self._told_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        """Take what has arrived."""
        self._waiting.append(text)
        if self._timer is None:
            wait = self._told_at + self._pause - time.monotonic()
            if wait <= 0:
                self._tell()
            else:
                self._timer = asyncio.get_running_loop().call_later(wait, self._tell)

    def finish(self) -> None:
        """Stream the rest: nothing follows."""
        self.abandon()
        self._tell(is_end=True)

    def abandon(self) -> None:
        """Stream nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, *, is_end: bool = False) -> None:
        """Stream what is certain, and keep what may be the beginning of a secret.

        A private key is replaced from its beginning on, wherever it ends.
        """
        self._timer, self._told_at = None, time.monotonic()
        text, said = "".join(self._waiting), ""
        cut = len(text) if is_end else _gap(text)
        text, rest = text[:cut], text[cut:]
        while text:
            if self._is_key:
                over = KEY_ENDS.search(text)
                self._is_key = over is None
                text, rest = (text[over.end() :], rest) if over else ("", text[-_END:] + rest)
            elif begins := KEY_BEGINS.search(text):
                said += text[: begins.start()] + _KEY
                self._is_key, text = True, text[begins.end() :]
            else:
                certain = len(text) - (0 if is_end else self._uncertain(text))
                said, text, rest = said + text[:certain], "", text[certain:] + rest
        self._waiting = [] if is_end or not rest else [rest]
        said = redact(clean(said), self._secrets)[0]
        for start in range(0, len(said), LONGEST):
            self._hand_on(said[start : start + LONGEST], self._is_first)
            self._is_first = False

    def _uncertain(self, text: str) -> int:
        """How many characters at the end may be the beginning of a secret with gaps in it."""
        begins = KEY_MAY_BEGIN.search(text)
        kept = len(text) - begins.start() if begins else 0
        for secret in self._with_gaps:
            sizes = range(min(len(secret) - 1, len(text)), kept, -1)
            kept = next((size for size in sizes if text.endswith(secret[:size])), kept)
        return kept


def _gap(text: str) -> int:
    """The last place that is not inside a possible secret; 0 without one.

    Keys are ASCII without blanks, but a password in an address may hold any letter.
    """
    cut = max(map(text.rfind, " \t\n")) + 1
    wide = None if text.isascii() or "://" in text[cut:] else _WIDE.match(text, cut)
    return wide.end() if wide else cut


def beginning(text: str, secrets: Sequence[str] = ()) -> str:
    """The text of an interrupted reply, without secrets, and without a last word that may be part of one."""
    said: list[str] = []
    pieces = Pieces(lambda piece, _: said.append(piece), secrets, pause=0.0)
    pieces.add(text)
    pieces.abandon()
    return "".join(said)


# -- One call of a backend --------------------------------------------------------------------------------------------

log = logging.getLogger("dialogd")

ATTEMPTS = 3
LONGEST_WAIT = 10.0  # seconds between attempts, unless the service asks for more
LONGEST_NAME = 80  # characters of a tool's name
LARGEST = 4 * 1024 * 1024  # characters of a reply; more is a runaway


class Callbacks(NamedTuple):
    """Who listens to a call: to its pieces, the first of each attempt marked; each tool, "" after it; deliveries."""

    hear: Callable[[str, bool], None] = lambda _text, _is_first: None
    use: Callable[[str], None] = lambda _tool: None
    tell: Callable[[Delivery], None] = lambda _news: None


@dataclass(slots=True)
class Call:
    """A call of `backend` in progress, of several attempts and perhaps several questions; `bill` is for all of them.

    `book` is told of each request just before it goes out. `retry_wait` is the shortest wait between attempts in
    seconds. `secrets` are taken out of what comes, as the backend's own are. `parts` are the latest attempt so far;
    `redacted` counts the secrets in replies.
    """

    backend: Backend
    retry_wait: float
    secrets: tuple[str, ...] = ()
    book: Callable[[Request], Awaitable[None]] | None = None
    began: float = field(default_factory=time.monotonic)
    parts: list[str] = field(default_factory=list)
    bill: Bill = field(default_factory=Bill)
    redacted: int = 0

    def __post_init__(self) -> None:
        self.secrets = (*self.secrets, *self.backend.secrets)

    @property
    def text(self) -> str:
        """What this attempt has brought so far."""
        return "".join(self.parts)

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self.began

    async def ask(self, request: Request, deadline: float, on: Callbacks | None = None) -> str:
        """The reply, without secrets. Up to three attempts within `deadline` seconds from the call's beginning.

        Raises `BackendError` once no attempt is left, the deadline has passed, or trying again is useless, and what
        `book` raises.
        """
        request = replace(request, until=self.began + deadline)
        try:
            async with asyncio.timeout(max(0.0, deadline - self.seconds)):
                for attempt in range(1, ATTEMPTS + 1):
                    try:
                        text, found = redact(await self._attempt(request, on or Callbacks()), self.secrets)
                        self.redacted += found
                        return text
                    except BackendError as error:
                        wait = error.retry_after or self._wait(attempt)
                        is_too_long = self.seconds + wait >= deadline
                        if not (error.retryable and attempt < ATTEMPTS and self.affords(request)) or is_too_long:
                            raise self._safe(error, error.retry_after if is_too_long else None) from error
                        await asyncio.sleep(wait)
        except TimeoutError:
            raise BackendError(
                f"no answer within {in_words(deadline)}",
                fix="ask again with `dialogd retry`, or raise **Timeout:** in the header",
                partial=beginning(self.text, self.secrets),
                kind="timeout",
                retryable=True,
            ) from None
        raise AssertionError("the last attempt returns or raises")

    def affords(self, request: Request, before: Bill | None = None) -> bool:
        """True while the turn's allowance pays, after the calls so far and `before`, for at least one more."""
        bill = before.plus(self.bill) if before else self.bill
        left = request.less(bill.usd, bill.tokens)
        if left.allowance is None and left.tokens is None:
            return True
        tokens = max(request.prompt().tokens, request.reads)
        usd = self.backend.price.usd(tokens, 0) if self.backend.price else 0.0
        return (left.allowance is None or usd <= left.allowance) and (left.tokens is None or tokens <= left.tokens)

    def _wait(self, attempt: int) -> float:
        """Two to ten seconds by default, doubling, with jitter so that agents do not retry together."""
        base = self.retry_wait * 2.0 ** (attempt - 1) * random.uniform(1.0, 1.5)
        return float(min(base, max(LONGEST_WAIT, self.retry_wait)))

    async def _attempt(self, request: Request, on: Callbacks) -> str:
        """Run one attempt. A backend's bug is an error without retries."""
        size, usage, request = 0, Usage(), request.less(self.bill.usd, self.bill.tokens)
        if self.book is not None:
            await self.book(request)
        self.parts = []
        pieces = Pieces(on.hear, self.secrets)
        try:
            async with aclosing(self.backend.reply(request)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Usage):
                        usage = chunk if _is_possible(chunk) else usage
                    elif isinstance(chunk, NextRequest):
                        self.bill, usage = self.bill.plus(of_call(usage, self.backend.price)), Usage(calls=0)
                        if self.book is not None:
                            await self.book(request)
                    elif isinstance(chunk, Tool):
                        on.use(one_line(chunk.name, LONGEST_NAME, self.secrets))
                    elif isinstance(chunk, Delivery):
                        on.tell(chunk)
                    else:
                        self.parts.append(chunk)
                        size += len(chunk)
                        if size > LARGEST:
                            raise BackendError(
                                f"the reply passed {LARGEST:,} characters",
                                fix="ask for a shorter one",
                                partial=self.text,
                            )
                        pieces.add(chunk)
            pieces.finish()
        except DialogdError:
            raise
        except Exception as error:  # else the turn would be asked for, and paid, again and again
            log.exception("a backend broke its promise to raise nothing but BackendError")
            raise BackendError(
                f"the backend broke: {type(error).__name__}: {one_line(str(error), 200, self.secrets)}",
                fix="look into `dialogd logs`, and tell the backend's author",
            ) from error
        finally:
            pieces.abandon()
            self.bill = self.bill.plus(of_call(usage, self.backend.price))
        return self.text

    def _safe(self, error: BackendError, too_long: float | None) -> BackendError:
        """The error without secrets: it quotes what the backend said, and goes into the file.

        A wait that the service asked for, and that is `too_long` for the turn, is part of the cause.
        """
        cause, fix = (redact(text, self.secrets)[0] for text in (error.cause, error.fix))
        if too_long:
            cause = f"{cause}; the service asked to wait until {_time_in(too_long)}"
        partial = redact(error.partial, self.secrets)[0] if error.is_whole else beginning(error.partial, self.secrets)
        return BackendError(
            cause, fix=fix, retryable=error.retryable, partial=partial, is_whole=error.is_whole, kind=error.kind
        )


def _time_in(seconds: float) -> str:
    """`16:17`: the local time in so many seconds, with its date where that is another day."""
    now = datetime.now().astimezone()
    then = now + timedelta(seconds=min(seconds, 1e9))  # a service may ask for anything
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M}"
