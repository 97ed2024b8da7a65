"""The nouns of a plan: frozen values. Turns are numbers, agents are ids; what is unknown is None or ""."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dialogd.protocol.result import Rejection, Standing
from dialogd.protocol.review import Finding, Score
from dialogd.protocol.state import Dialog


@dataclass(frozen=True, slots=True)
class Said:
    """Something that somebody said in a turn: a mark's name as `kind`, and its text."""

    kind: str
    by: str
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Signed:
    """Who stands behind the agreed text, since which turn, and with which reservation ("" for none)."""

    agent: str
    turn: int
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The exact text that was decided; `method` is mutual, vote, moderator, decide, judge, person or by hand.

    `by` wrote it, in the entry `stands_in`. `ref` is "" for a text that is no proposal: a position that a judge chose.
    `is_earlier` is True when the dialog was opened again after it had been decided, `is_rejected` when the person did
    not take it.
    """

    ref: str
    text: str
    sha: str
    method: str
    decided_in: str
    decided_at: str
    signers: tuple[Signed, ...]
    by: str = ""
    stands_in: str = ""
    is_earlier: bool = False
    is_rejected: bool = False


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote: approve, reject or abstain, and what it weighs."""

    agent: str
    choice: str
    turn: int
    reason: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Decided(Standing):
    """What was decided on a proposal: `outcome` is approved, rejected or undecided.

    An approval that the person did not take is rejected, for their reason, in their turn `rejected_in` (0 else).
    `superseded` says in words that the dialog was opened again after it, "" where it stands.
    """

    ref: str
    by: str
    text: str
    outcome: str
    method: str
    evidence: str
    reason: str
    turn: int
    votes: tuple[Vote, ...] = ()
    rejected_in: int = 0
    superseded: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """An agent in its own words: the beginning of its last turn of substance, and its last stands by mark."""

    agent: str
    name: str
    turn: int
    text: str
    is_cut: bool
    stands: tuple[Said, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """An objection or critique; `how` says in words what became of it, "" while it is open."""

    said: Said
    about: tuple[str, ...] = ()
    how: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """An agent's change of stance on a proposal; `is_unexplained` when neither evidence nor an argument was named."""

    agent: str
    ref: str
    before: str
    now: str
    turn: int
    cause: str
    is_unexplained: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A next step and where it was read: `the agreed text`, `turn 7, by A`, `turn 7, by A: what would settle it`."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What some turns came to; None where nobody knows. `seconds` is the time of the calls, added up."""

    turns: int
    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A plain vote of the first words of each agent, against the outcome.

    `basis` says what was counted, `choices` who said what in which turn, `verdict` what a plain vote would have said,
    `same` whether the outcome is that (None: the marks cannot tell), `remark` what limits the comparison.
    """

    basis: str
    choices: tuple[Said, ...]
    verdict: str
    outcome: str
    same: bool | None
    first: Cost
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Worth:
    """Was the debate worth it: the comparisons that can be made, or `why` there is none; `whole` is all it cost."""

    comparisons: tuple[Comparison, ...]
    whole: Cost
    why: str = ""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long the agents' calls took, in seconds; None where no frame says so."""

    total: float | None
    mean: float | None
    longest: float | None


@dataclass(frozen=True, slots=True)
class Account:
    """What was spent, by agent or in all; None where nobody knows, `is_exact` False where a part was estimated."""

    tokens_in: int | None
    tokens_out: int | None
    usd: float | None
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of a dialog, by the names under which other systems report them.

    contributions_total         typed contributions of agents; a turn without any counts as one, a mere pass as none
    contributions_per_agent     the same for each agent of the header
    rounds_completed            rounds in which everybody who can speak spoke or was passed over, since the dialog began
                                or was last opened again
    proposals_made              numbered proposals and texts put up for signature; positions and texts without a number
                                that were decided
    decisions_reached           those of them that were approved or rejected: never more than proposals_made
    conflicts_resolved          objections and critiques whose proposal was decided later, that somebody conceded, or
                                whose author signed the final text
    consensus_rate              of the agents that may vote, the part that stands behind what was approved (0 to 1, the
                                mean over approved proposals); None when nothing was approved
    average_confidence          the mean of all [CONFIDENCE] marks, 0 to 1; None without any
    """

    contributions_total: int
    contributions_per_agent: Mapping[str, int]
    rounds_completed: int
    proposals_made: int
    decisions_reached: int
    conflicts_resolved: int
    consensus_rate: float | None
    average_confidence: float | None
    spent: Account
    spent_per_agent: Mapping[str, Account]
    latency: Latency


@dataclass(frozen=True, slots=True)
class Signals:
    """What the words look like: hints, never verdicts. `advice` is FINALIZE, MEDIATE or CONTINUE."""

    advice: str
    reason: str
    agreements: int
    disagreements: int
    convergence: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A unified plan that a model wrote from the dialog; nobody signed it. `cost` in words."""

    text: str
    agent: str
    model: str
    cost: str


@dataclass(frozen=True, slots=True)
class Approval:
    """That the person took the result: the note, and its time, "" where it was written by hand."""

    entry: str
    at: str


@dataclass(frozen=True)
class Plan:
    """What a dialog comes to. `outcome` is its mark's name, "" while it goes on; `headline` says it in words."""

    dialog: Dialog
    file: str
    task: str
    began: str
    ended: str
    outcome: str
    headline: str
    agreed: Agreed | None
    on_the_table: Agreed | None
    decisions: tuple[Decided, ...]
    views: tuple[View, ...]
    agreements: tuple[Said, ...]
    conflicts: tuple[Conflict, ...]
    dissent: tuple[Said, ...]
    changes: tuple[Change, ...]
    positions: tuple[Said, ...]
    crux: tuple[Said, ...]
    experiments: tuple[Said, ...]
    questions: tuple[Said, ...]
    steps: tuple[Step, ...]
    worth: Worth
    findings: tuple[Finding, ...]
    score: Score | None
    signals: Signals
    metrics: Metrics
    certificate: Mapping[str, object] | None = None
    synthesis: Synthesis | None = field(default=None)
    approved: Approval | None = None
    rejections: tuple[Rejection, ...] = ()
