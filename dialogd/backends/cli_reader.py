"""What a coding-agent CLI prints, line by line: its reply, its session, what it used, and why it failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dialogd.backends import Usage
from dialogd.backends.faults import SHORTER, TOO_LONG
from dialogd.backends.session import since
from dialogd.errors import BackendError
from dialogd.protocol.text import one_line

OUTPUT_CAP = 64 * 1024 * 1024  # bytes of stdout in one run; the files that it read are in there
LINES_CAP = 100_000  # of stdout in one run; a long one has a thousand
NOISE_CAP = 1024 * 1024  # bytes of stdout that are no event: warnings are let pass, a flood is not
QUOTED = 200  # characters of a CLI's own words
# What a session may count on from run to run; a run is one call, whatever was counted before it.
FIGURES = tuple(field.name for field in fields(Usage) if field.name not in ("model", "estimated", "calls"))

Event = Mapping[str, Any]


class LostSession(BackendError):
    """The CLI no longer has the session that was to be continued."""


@dataclass(frozen=True, slots=True)
class Words:
    """How a CLI is called in errors, how one logs in to it, and with a key of dialogd's giving where that goes."""

    program: str
    log_in: str
    keyed: bool = False  # it has a key of dialogd's giving, no login that it might renew
    variable: str = ""
    address: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)  # taken out of what is quoted, before it is cut short


class Reader:
    """Takes the events of one run. A subclass notes what they say; success needs a positive sign, `text` set.

    `begun` is the session that it runs in, `session` the one that can be continued. `total` is what the CLI has counted
    in this session by now; `tools` are those that have begun to run since somebody looked, "" once one has ended;
    `hopeless` ends the run at once.
    """

    def __init__(self, words: Words) -> None:
        self.words = words
        self.text: str | None = None
        self.session = self.begun = ""
        self.total = Usage()
        self.failure: BackendError | None = None
        self.hopeless = False
        self.tools: list[str] = []
        self.size = 0
        self._rest: list[bytes] = []  # pieces of a line that has not ended
        self._noise = self._lines = 0
        self._refusals = 0

    def take(self, event: Event) -> None:
        """Note what one event says."""
        raise NotImplementedError

    def give_up(self, message: str, status: int | None = None) -> None:
        """The CLI would go on trying, in vain."""
        self.failure, self.hopeless = failed(self.words, message, status), True

    def refused(self, message: str, status: int | None = None) -> None:
        """The service refuses who asks. A key does not get better; a login may be renewed on the way, once."""
        self._refusals += 1
        if self.words.keyed or self._refusals > 1:
            self.give_up(message, status)

    def feed(self, chunk: bytes) -> None:
        """Take a piece of stdout: whole lines are events, what is no JSON is ignored."""
        self.size += len(chunk)
        *lines, last = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest = []
        self._rest += [last] if last else []
        self._noise += sum(len(line) + 1 for line in lines if not _is_event(line))
        noise = self._noise + (sum(map(len, self._rest)) if self._rest and not _is_event(self._rest[0]) else 0)
        self._lines += len(lines)
        if noise > NOISE_CAP or self._lines > LINES_CAP or self.size > OUTPUT_CAP:
            what = f"{NOISE_CAP >> 20} MiB that is no answer" if noise > NOISE_CAP else f"{OUTPUT_CAP >> 20} MiB"
            what = f"{LINES_CAP:,} lines" if self._lines > LINES_CAP else what
            self.failure = BackendError(
                f"{self.words.program} floods its output: it printed more than {what}, and was ended",
                fix=f"run `{self.words.program}` by hand, and see what it prints; or install another version",
                kind="garbled",
            )
            self.hopeless = True
            return
        for line in lines:
            for event in _events(line):
                self.take(event)

    def end(self, code: int, said: str) -> None:
        """The run is over. `said` is stderr's last line. Sets `failure` unless there is a reply."""
        for event in _events(b"".join(self._rest)) if not self.hopeless else ():
            self.take(event)
        if self.failure is None and self.text is None:
            self.failure = failed(self.words, said or f"exited {code} without a reply")
        elif self.failure is None and not (self.text or "").strip():
            self.failure = BackendError(
                f"{self.words.program} answered with no text",
                fix="choose another --model",
                kind="empty",
                retryable=True,
            )

    def spent(self, before: Usage | None) -> Usage:
        """What this run used, where the session had counted `before`."""
        return replace(since(self.total, before, FIGURES), estimated=self.text is None)


def _is_event(line: bytes) -> bool:
    return line.lstrip().startswith(b"{")


def _events(line: bytes) -> Iterator[Event]:
    if _is_event(line):
        try:
            event = json.loads(line)
        except ValueError:
            return
        if isinstance(event, dict):
            yield event


# (kind, may be tried again, statuses, words). The first that fits counts.
_RULES: tuple[tuple[str, bool, frozenset[int], str], ...] = (
    ("limit", False, frozenset({402}), r"(usage|spend(ing)?|monthly|weekly|5-hour|session) limit|limit reached|hit your"
     r"|quota|credit balance|out of credits|budget|billing"),
    ("cut", False, frozenset(), r"output token maximum|max_output_tokens"),
    ("auth", False, frozenset({401, 403}), r"not logged in|log ?in|api key|authenticat|unauthorized"
     r"|missing environment variable|token (has )?(expired|been revoked)"),
    ("request", False, frozenset({400, 404, 413, 422}), r"too (long|large)|context (window|length)|selected model"
     r"|model .*(not|does)|exceeds the maximum|invalid_request"),
    ("busy", True, frozenset({409, 429, 503, 529}), r"overloaded|rate.?limit|too many requests|at capacity"
     r"|high demand"),
    ("garbled", True, frozenset(), r"json|malformed"),
    ("network", True, frozenset(), r"connect|network|socket|stream (disconnected|closed)|error sending request|ECONN"
     r"|fetch failed|timed? ?out"),
)  # fmt: skip

_STATUS = re.compile(r"\b(?:status|error|HTTP)\D{0,12}([45]\d\d)\b", re.I)


def failed(words: Words, message: str, status: int | None = None) -> BackendError:
    """The error that a CLI's own words amount to; `status` where it names the service's."""
    if status is None and (found := _STATUS.search(message)):
        status = int(found[1])
    kind, again = _kind(message, status)
    quoted = one_line(message, QUOTED, words.secrets)
    cause = f"{words.program} failed: {quoted}" if quoted else f"{words.program} failed"
    if kind == "auth" and words.keyed:
        cause += f" ({status or 'refused'} from {words.address})"
    return BackendError(
        cause,
        fix=SHORTER if kind == "request" and TOO_LONG.search(message) else _fix(kind, words),
        retryable=again,
        kind=kind,
    )


def _kind(message: str, status: int | None) -> tuple[str, bool]:
    for kind, again, statuses, pattern in _RULES:
        wanted = status is None or status in statuses or kind == "limit"
        if (status in statuses) or (wanted and re.search(pattern, message, re.I)):
            return kind, again
    return "failed", status is None or status >= 500


def _fix(kind: str, words: Words) -> str:
    return {
        "limit": f"wait until the limit of your login or key is renewed, or raise it; `{words.program}` says which",
        "auth": f"check {words.variable}: that key was sent to {words.address}" if words.keyed else words.log_in,
        "request": "choose another --model",
        "cut": "raise --max-tokens, or ask for a shorter reply",
        "busy": "ask again with `dialogd retry` in a while",
        "network": "look at the connection, then ask again with `dialogd retry`",
    }.get(kind, f"run `{words.program}` by hand in the project, and see what it says")
