"""`GET /metrics`: read by Prometheus' own parser, right after what has happened, silent about what nobody knows."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dialogd.backends import Usage
from dialogd.errors import BackendError
from dialogd.server.routes import render_metrics
from tests.docs.manual import DOCS, codes, section
from tests.server.daemon_process import Room, send
from tests.turns.minds import Mind, agent_with, dialog_in


def samples(text: str) -> dict[str, float]:
    """Every number by its name and its labels but the agent's: `dialogd_turns_total written`."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name not in ("agent", "version")]
            assert len(labels) <= 1
            key = " ".join((sample.name, *labels))
            assert key not in found
            found[key] = sample.value
    return found


async def test_a_turn_and_a_failure_are_counted_and_an_unknown_price_is_no_zero(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, turn="A")
    priced = Usage(tokens_in=100, tokens_out=20, cached=40, usd=0.25)
    mind = Mind(("Tabs.\nTURN: A", priced), (BackendError("no", fix="wait", kind="limit"),))
    async with agent_with(path, mind) as agent:
        await agent.look()
        await agent.step()
        now = samples(render_metrics(agent).decode())
    assert now["dialogd_turns_total written"] == 1
    assert (now["dialogd_tokens_total in"], now["dialogd_tokens_total cached"]) == (60, 40)
    assert (now["dialogd_tokens_total out"], now["dialogd_cost_usd_total"]) == (20, 0.25)
    assert (now["dialogd_calls_total"], now["dialogd_calls_unpriced_total"]) == (1, 0)
    assert sum(value for name, value in now.items() if name.startswith("dialogd_errors_total")) == 0
    assert [name for name, value in now.items() if name.startswith("dialogd_dialog_state ") and value] == [
        "dialogd_dialog_state waiting"
    ]
    assert now["dialogd_lock_wait_seconds_total"] > 0


async def test_a_failure_is_counted_by_its_kind(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    async with agent_with(path, Mind((BackendError("no", fix="wait", kind="limit"),), price=None)) as agent:
        await agent.step()
        now = samples(render_metrics(agent).decode())
    assert (now["dialogd_turns_total failed"], now["dialogd_errors_total limit"]) == (1, 1)
    assert (now["dialogd_calls_total"], now["dialogd_calls_unpriced_total"]) == (1, 1)


def test_a_daemon_serves_its_metrics_and_the_page_names_them(tmp_path: Path) -> None:
    with Room(tmp_path) as room:
        room.open()
        answer = send(room.a, "GET /metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    now = samples(text)
    assert (now["dialogd_dialog_turn"], now["dialogd_event_clients"], now["dialogd_build_info"]) == (1, 0, 1)
    typed = {line.split()[2] for line in text.split("\n") if line.startswith("# TYPE")}
    told = {code for code in codes(section(DOCS / "http.md", "`GET /metrics`")) if code.startswith("dialogd_")}
    assert told == typed
