"""The memory's values: rows, hits, decisions, outcomes, and times in UTC. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from dialogd.errors import BadInput
from dialogd.protocol.text import Zone, moment_of, one_line
from dialogd.views.flow import TIMES
from dialogd.views.flow import moment as named
from dialogd.views.plan import Signed


def written(at: datetime) -> str:
    """A time as it is kept: `2026-11-21T19:00:00Z`. Raises `OverflowError` at the ends of the calendar."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso(text: str) -> str:
    """A written time as it is kept; "" for anything else."""
    found = moment_of(text)
    return written(found) if found is not None else ""


def since(text: str, now: datetime, zone: Zone) -> str:
    """`2h`, `7d`, `yesterday` or a date by the clock of `zone`, as it is kept; "" for none. Raises `BadInput`."""
    if not text.strip():
        return ""
    try:
        if (found := named(text, now, zone)) is not None:
            return written(found)
    except OverflowError:
        pass
    raise BadInput(f"since {one_line(text, 60)!r} is no time", fix=f"write {TIMES}")


# -- What the memory holds --------------------------------------------------------------------------------------------

WORKED, FAILED = "worked", "failed"
DISCUSSED = "discussed"  # the status of what nobody decided, but somebody said


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a decision turned out, as the person says: worked or failed, and why."""

    outcome: str
    why: str
    at: str


@dataclass(frozen=True, slots=True)
class DialogRow:
    """A dialog in a list.

    `id` names it in every command. `state` is ended, running (daemons work on it) or open. `outcome` is the name of
    the mark that ended it, "" while it goes on; `headline` says in words how it stands. `usd` and `tokens` are None
    where nobody knows. `is_rehearsal`: scripted lines, which decide nothing and are not recalled. `file` is where the
    dialog stood, `archive` the copy; "" where there is none. `names` are the agents' in headings, `models` those that
    replied last, "" where nobody knows; `decided` is the beginning of the text that was decided last.
    """

    id: str
    topic: str
    started: str
    ended: str
    state: str
    outcome: str
    reason: str
    headline: str
    agents: tuple[str, ...]
    turns: int
    usd: float | None
    is_exact: bool
    tokens: int | None
    approved: bool
    is_rehearsal: bool = False
    file: str = ""
    archive: str = ""
    verdict: Verdict | None = None
    names: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    decided: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> DialogRow:
        """The row of such fields, as the index keeps them: without a verdict."""
        return cls(**{**facts, **{name: tuple(facts[name]) for name in ("agents", "names", "models")}})


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that holds the words. `entry` is its id (`7`, or `7.2` for a note), `turn` its number, 0 for the topic.

    `spans` are the places of the words in `snippet`, from and up to. `is_rehearsal`: lines of its dialog were scripted.
    `name` is what the agent is called, "" where nobody knows.
    """

    dialog: str
    topic: str
    entry: str
    turn: int
    agent: str
    at: str
    snippet: str
    spans: tuple[tuple[int, int], ...]
    is_rehearsal: bool = False
    name: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PastDecision:
    """A past decision.

    `status` is approved, rejected, undecided (a deadlock: `text` is the crux and the positions), or discussed: nobody
    decided anything, `text` is from a turn. `method` is mutual, vote, moderator, decide, judge, person, by hand or
    deadlock. `superseded` says in words that the dialog went on after it. `score` is from 0 to 1.
    """

    dialog: str
    topic: str
    ref: str
    status: str
    text: str
    method: str
    behind: tuple[Signed, ...]
    evidence: str
    reason: str
    turns: tuple[int, ...]
    at: str
    superseded: str = ""
    approved: bool = False
    verdict: Verdict | None = None
    score: float = 0.0
    archive: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> PastDecision:
        """The decision of such fields, as the index keeps them: without a verdict."""
        behind = tuple(Signed(**who) for who in facts["behind"])
        return cls(**{**facts, "behind": behind, "turns": tuple(facts["turns"])})
