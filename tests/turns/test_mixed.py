"""Real daemons with different backends, a person among them, three at one table; the service is a stand-in."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from dialogd import person
from dialogd.store.disk import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from tests.logfile.files import log_of
from tests.support.forked import fork
from tests.support.minds import consensus
from tests.support.pair import Pair, a_second
from tests.support.standin import Answer, Hang, Seen, StandIn

KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef",
    "OPENAI_API_KEY": "sk-test-0123456789abcdef",
    "XAI_API_KEY": "xai-test-0123456789abcdef",
}
TOPIC = "Where should user sessions live?"


def services(server: StandIn) -> dict[str, str]:
    """The environment of daemons whose services are the stand-in."""
    return {
        **KEYS,
        "ANTHROPIC_BASE_URL": server.url,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "XAI_BASE_URL": f"{server.url}/v1",
    }


def keys_seen(server: StandIn, ending: str) -> set[str]:
    """Whose keys came to the addresses that end so."""
    return {
        name
        for seen in server.calls
        if seen.path.partition("?")[0].endswith(ending)
        for name, key in KEYS.items()
        if key in str(seen.headers)
    }


@pytest.mark.slow
def test_a_model_and_a_model_of_another_house_agree(tmp_path: Path) -> None:
    with (
        StandIn(consensus) as server,
        Pair(tmp_path, backend={"A": "anthropic", "B": "gpt"}, environment=services(server), launch=fork) as pair,
    ):
        pair.hold(TOPIC)
        pair.until(lambda: pair.outcome, "the end")
        assert pair.outcome == "CONSENSUS_REACHED"
        assert keys_seen(server, "/messages") == {"ANTHROPIC_API_KEY"}
        assert keys_seen(server, "/completions") == {"OPENAI_API_KEY"}
        dialog = pair.dialog()
    assert {entry.name for entry in dialog.turns if entry.by == "B"} == {"Claude B"}
    frames = [entry.frame for entry in dialog.turns if entry.frame]
    assert all(frame.usd and frame.tokens_in and frame.model for frame in frames)
    assert set(dialog.state.spent) == {"A", "B"}


def test_two_models_hold_a_council(tmp_path: Path) -> None:
    setup = 'order = "parallel"\nverdict = "vote"\nsealed = true\nobjections = true'
    with (
        StandIn(consensus) as server,
        Pair(tmp_path, backend={"A": "anthropic", "B": "grok"}, environment=services(server), launch=fork) as pair,
    ):
        pair.hold(TOPIC, turn="A, B", setup=setup)
        pair.until(lambda: pair.outcome, "the end")
        assert pair.outcome == "DECIDED"
        dialog = pair.dialog()
    first = [entry for entry in dialog.entries if entry.frame and entry.re == "1"]
    assert [bool(entry.mark("SEALED")) for entry in first] == [True, True, False, False]
    (decision,) = [d for d in dialog.state.table.decisions if d.outcome == "approved"]
    assert (decision.ref, decision.method) == ("P1", "vote")
    assert all(entry.mark("RESERVATION") for entry in dialog.turns if entry.mark("VOTE"))
    assert len([call for call in server.calls if "messages" in call.path or "completions" in call.path]) == 6


@pytest.mark.slow
def test_three_of_three_houses_agree(tmp_path: Path) -> None:
    backends = {"A": "anthropic", "B": "grok", "C": "rehearsal"}
    with (
        StandIn(consensus) as server,
        Pair(tmp_path, "ABC", backend=backends, environment=services(server), launch=fork) as pair,
    ):
        pair.hold(TOPIC)
        pair.until(lambda: pair.outcome, "the end")
        dialog = pair.dialog()
    assert dialog.state.outcome is not None
    assert {entry.by for entry in dialog.turns} == {"USER", "A", "B", "C"}
    assert keys_seen(server, "/completions") == {"XAI_API_KEY"}


def test_a_model_and_a_person_talk(tmp_path: Path) -> None:
    said: list[str] = []

    def mind(seen: Seen) -> Answer:
        said.append(seen.prompt)
        return Hang() if len(said) == 1 else consensus(seen)

    with (
        StandIn(mind) as server,
        Pair(tmp_path, "A", backend="anthropic", environment=services(server), launch=fork) as pair,
    ):
        pair.hold(TOPIC)
        pair.until(lambda: said, "the first call")
        person.say(log_of(pair.file), "Consider Redis too.")
        pair["A"].notify()
        pair.until(lambda: pair.number >= 3, "an answer")
        dialog = pair.dialog()
    assert "Consider Redis too." in said[1]
    assert [entry.by for entry in dialog.turns][:3] == ["USER", "USER", "A"]


@pytest.mark.slow
def test_calls_that_kills_end_count_against_the_budget(tmp_path: Path) -> None:
    calls: list[str] = []

    def mind(seen: Seen) -> Answer:
        calls.append(seen.prompt)
        return Hang()

    with (
        StandIn(mind) as server,
        Pair(tmp_path, "A", backend="anthropic", environment=services(server), launch=fork) as pair,
    ):
        pair.begin(TOPIC, budget="$0.25")
        for kill in range(1, 30):
            pair.start()
            pair.notify()
            pair.until(lambda n=kill: len(calls) == n or pair.outcome, "a call, or the end")  # type: ignore[misc]
            if pair.outcome:
                break
            pair["A"].kill()
        (one, *_) = (bill["usd"] for bill in log_at(pair).journals.of("A").owed())
        assert pair.outcome == "STOPPED"
        assert "[STOPPED: budget: the budget of $0.25" in pair.file.read_text()
        assert 1 < len(calls) <= 0.25 / one


def log_at(pair: Pair) -> LogFile:
    """The dialog file of these daemons, with their journals."""
    return LogFile(pair.file, Journals(StateDir(pair.state_dir).dialog(pair.file)))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["anthropic", "gpt"])
def test_stop_during_a_call_is_over_within_a_second(tmp_path: Path, backend: str) -> None:
    with (
        StandIn(lambda _: Hang()) as server,
        Pair(tmp_path, "A", backend=backend, environment=services(server), launch=fork) as pair,
    ):
        pair.hold(TOPIC)
        pair.until(lambda: server.calls, "the call")
        family = [psutil.Process(pair["A"].pid), *psutil.Process(pair["A"].pid).children(recursive=True)]
        began = time.monotonic()
        pair["A"].ask("POST", "/stop", {})
        assert pair["A"].wait() == 0
        assert time.monotonic() - began < a_second()
        assert not [process for process in family if process.is_running()]
        dialog = pair.dialog()
    assert dialog is not None
    assert (pair.outcome, pair.number) == ("STOPPED", 1)
