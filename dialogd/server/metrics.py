"""Prometheus metrics, with few labels, never one per dialog. Unknown figures are counted separately, never as 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate

from dialogd import __version__
from dialogd.agent.loop import Agent
from dialogd.agent.reporting import BUCKETS
from dialogd.errors import BackendError
from dialogd.views.standing import phase

ENDS = ("written", "interrupted", "late", "failed")
PHASES = ("no_dialog", "waiting", "thinking", "waiting_for_user", "paused", "ended", "error")
Row = tuple[str, str, str, str, Mapping[str, float]]  # name, type, what it is, label, numbers by the label's value


def render_metrics(agent: Agent) -> bytes:
    """The metrics of one daemon in the Prometheus text format; every number bears the agent's id."""
    lines: list[str] = []
    for name, kind, about, label, values in (*_work(agent), *_standing(agent)):
        suffix = "_total" if kind == "counter" else ""
        lines += [f"# HELP dialogd_{name}{suffix} {about}", f"# TYPE dialogd_{name}{suffix} {kind}"]
        for word, value in values.items():
            more = f',{label}="{word}"' if label else ""
            lines.append(f'dialogd_{name}{suffix}{{agent="{agent.me}"{more}}} {float(value)}')
        if name == "turn_seconds":
            lines += _histogram(agent)
    return "\n".join([*lines, ""]).encode()


def _work(agent: Agent) -> Iterator[Row]:
    tally, bill = agent.tally, agent.tally.bill
    errors = {kind: tally.errors[kind] for kind in sorted(BackendError.KINDS)}
    tokens = {"in": bill.tokens_in - bill.cached, "cached": bill.cached, "out": bill.tokens_out}
    denied: Counter[str] = Counter()
    for (_, act), count in agent.file.journals.denied().items():
        denied[act] += count
    ends = {end: tally.ends[end] for end in ENDS}
    yield "turns", "counter", "Turns asked for, by how they ended.", "outcome", ends
    yield "turn_seconds", "histogram", "How long the calls of written turns took.", "", {}
    for name, about, value in (
        ("deliveries_refused", "Replies to a live seat that were not to its own turn.", tally.refused),
        ("secrets_redacted", "Secrets taken out of replies.", tally.secrets),
        ("lock_wait_seconds", "Time spent waiting for the dialog's lock.", agent.file.lock.waited),
        ("cost_usd", "US dollars its calls are known to have cost.", bill.usd),
        ("calls", "Calls of the backend.", bill.calls),
        ("calls_unpriced", "Calls whose cost nobody knows.", tally.unpriced),
        ("calls_uncounted", "Calls whose tokens nobody knows.", bill.calls - bill.tokens_known),
    ):
        yield name, "counter", about, "", {"": value}
    yield "errors", "counter", "Calls that failed for good, by what went wrong.", "kind", errors
    yield "tokens", "counter", "Tokens of its calls, as far as known.", "type", tokens
    about = "Acts of the person's alone that sessions tried in this dialog, by any way."
    yield "acts_refused", "counter", about, "act", dict(sorted(denied.items()))


def _standing(agent: Agent) -> Iterator[Row]:
    dialog, now = agent.dialog, phase(agent.dialog, thinking=agent.is_working)
    is_over = dialog is not None and dialog.state.outcome is not None
    for name, about, value in (
        ("thinking", "1 while a reply is being written.", agent.is_working),
        ("call_seconds", "Age of the call under way.", agent.call.seconds if agent.call else 0.0),
        ("event_clients", "Listeners on /events.", agent.hub.clients),
        ("dialog_turn", "The dialog's last turn.", dialog.state.number if dialog else 0),
        ("dialog_ended", "1 once the dialog is over.", is_over),
    ):
        yield name, "gauge", about, "", {"": value}
    yield "dialog_state", "gauge", "1 for where the dialog stands.", "state", {word: word == now for word in PHASES}
    yield "build_info", "gauge", "The version.", "version", {__version__: 1}


def _histogram(agent: Agent) -> Iterator[str]:
    durations, me = agent.tally.durations, agent.me
    counts = list(accumulate(durations.counts))
    for edge, count in zip((*(f"{edge:g}" for edge in BUCKETS), "+Inf"), counts, strict=True):
        yield f'dialogd_turn_seconds_bucket{{agent="{me}",le="{edge}"}} {float(count)}'
    yield f'dialogd_turn_seconds_count{{agent="{me}"}} {float(counts[-1])}'
    yield f'dialogd_turn_seconds_sum{{agent="{me}"}} {durations.sum}'
