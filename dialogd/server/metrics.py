"""Prometheus metrics, few and with few labels: never one per dialog."""

from __future__ import annotations

from dialogd import __version__
from dialogd.agent import Agent


def render_metrics(agent: Agent) -> bytes:
    """The metrics of one daemon in the Prometheus text format."""
    from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

    registry = CollectorRegistry()

    def count(name: str, about: str, value: float) -> None:
        Counter(name, about, ["agent"], registry=registry).labels(agent.me).inc(value)

    def gauge(name: str, about: str, value: float) -> None:
        Gauge(name, about, ["agent"], registry=registry).labels(agent.me).set(value)

    dialog = agent.dialog
    count("dialogd_turns", "Turns this daemon has appended.", agent.turns.tally.turns)
    count("dialogd_cost_usd", "US dollars this daemon's calls are known to have cost.", agent.turns.tally.bill.usd)
    count("dialogd_secrets_redacted", "Secrets taken out of replies.", agent.turns.tally.secrets)
    gauge("dialogd_thinking", "1 while a reply is being written.", 1.0 if agent.call else 0.0)
    gauge("dialogd_call_seconds", "Age of the call under way.", agent.call.seconds if agent.call else 0.0)
    gauge("dialogd_event_clients", "Listeners on /events.", agent.hub.clients)
    gauge("dialogd_dialog_turn", "Number of the dialog's last turn.", dialog.state.number if dialog else 0)
    gauge("dialogd_dialog_ended", "1 once the dialog is over.", 1.0 if dialog and dialog.state.outcome else 0.0)
    Gauge("dialogd_build_info", "The version.", ["version"], registry=registry).labels(__version__).set(1)
    return bytes(generate_latest(registry))
