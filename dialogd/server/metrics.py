"""Prometheus metrics, with few labels, never one per dialog. Unknown figures are counted separately, never as 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from dialogd import __version__
from dialogd.agent.loop import Agent
from dialogd.agent.reporting import BUCKETS, Counters
from dialogd.errors import BackendError
from dialogd.views.standing import phase

if TYPE_CHECKING:
    from prometheus_client.core import Metric

ENDS = ("written", "interrupted", "late", "failed")
PHASES = ("no_dialog", "waiting", "thinking", "waiting_for_user", "paused", "ended", "error")


def render_metrics(agent: Agent) -> bytes:
    """The metrics of one daemon in the Prometheus text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now(agent))
    return bytes(generate_latest(registry))


class _Now:
    """The current numbers, each with the agent's id; `count`, `gauge` and `times` make one metric of them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        tally = self._agent.tally
        yield from self._work(tally)
        yield from self._spent(tally)
        yield from self._stands()

    def _work(self, tally: Counters) -> Iterator[Metric]:
        ends = {end: float(tally.ends[end]) for end in ENDS}
        errors = {kind: float(tally.errors[kind]) for kind in sorted(BackendError.KINDS)}
        yield self._count("turns", "Turns asked for, by how they ended.", ends, "outcome")
        yield self._times("turn_seconds", "How long the calls of written turns took.", tally)
        refused = {"": float(tally.refused)}
        yield self._count("deliveries_refused", "Replies to a live seat that were not to its own turn.", refused)
        yield self._count("errors", "Calls that failed for good, by what went wrong.", errors, "kind")
        yield self._count("secrets_redacted", "Secrets taken out of replies.", {"": tally.secrets})
        waited = self._agent.file.lock.waited
        yield self._count("lock_wait_seconds", "Time spent waiting for the dialog's lock.", {"": waited})

    def _spent(self, tally: Counters) -> Iterator[Metric]:
        bill = tally.bill
        tokens = {"in": bill.tokens_in - bill.cached, "cached": bill.cached, "out": bill.tokens_out}
        yield self._count("tokens", "Tokens of its calls, as far as known.", tokens, "type")
        yield self._count("cost_usd", "US dollars its calls are known to have cost.", {"": bill.usd})
        yield self._count("calls", "Calls of the backend.", {"": bill.calls})
        yield self._count("calls_unpriced", "Calls whose cost nobody knows.", {"": tally.unpriced})
        yield self._count("calls_uncounted", "Calls whose tokens nobody knows.", {"": bill.calls - bill.tokens_known})
        denied: Counter[str] = Counter()
        for (_, act), count in self._agent.file.journals.denied().items():
            denied[act] += count
        about = "Acts of the person's alone that sessions tried in this dialog, by any way."
        yield self._count("acts_refused", about, {act: float(count) for act, count in sorted(denied.items())}, "act")

    def _stands(self) -> Iterator[Metric]:
        agent, dialog = self._agent, self._agent.dialog
        now = phase(dialog, thinking=agent.is_working)
        yield self._gauge("thinking", "1 while a reply is being written.", {"": 1.0 if agent.is_working else 0.0})
        seconds = agent.call.seconds if agent.call else 0.0
        yield self._gauge("call_seconds", "Age of the call under way.", {"": seconds})
        yield self._gauge("event_clients", "Listeners on /events.", {"": agent.hub.clients})
        yield self._gauge("dialog_turn", "The dialog's last turn.", {"": dialog.state.number if dialog else 0})
        is_over = dialog is not None and dialog.state.outcome is not None
        yield self._gauge("dialog_ended", "1 once the dialog is over.", {"": float(is_over)})
        yield self._gauge(
            "dialog_state", "1 for where the dialog stands.", {word: float(word == now) for word in PHASES}, "state"
        )
        from prometheus_client.core import GaugeMetricFamily

        build = GaugeMetricFamily("dialogd_build_info", "The version.", labels=["version"])
        build.add_metric([__version__], 1.0)
        yield build

    def _count(self, name: str, about: str, values: Mapping[str, float], label: str = "") -> Metric:
        from prometheus_client.core import CounterMetricFamily

        return self._filled(CounterMetricFamily(f"dialogd_{name}", about, labels=_labels(label)), values, label)

    def _gauge(self, name: str, about: str, values: Mapping[str, float], label: str = "") -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        return self._filled(GaugeMetricFamily(f"dialogd_{name}", about, labels=_labels(label)), values, label)

    def _filled(self, family: Metric, values: Mapping[str, float], label: str) -> Metric:
        suffix = "_total" if family.type == "counter" else ""
        for word, value in values.items():
            labels = {"agent": self._agent.me, **({label: word} if label else {})}
            family.add_sample(family.name + suffix, labels, value)
        return family

    def _times(self, name: str, about: str, tally: Counters) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(f"dialogd_{name}", about, labels=["agent"])
        edges = (*(f"{edge:g}" for edge in BUCKETS), "+Inf")
        counts = accumulate(tally.durations.counts)
        family.add_metric([self._agent.me], list(zip(edges, map(float, counts), strict=True)), tally.durations.sum)
        return family


def _labels(label: str) -> list[str]:
    return ["agent", label] if label else ["agent"]
