"""Who plays an agent: names, notes of the project, prices and caps, as a daemon's settings have them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from dialogd.backends import BACKENDS, CODING, kind_of
from tests.support.cases import cases
from tests.support.forked import fork
from tests.support.minds import consensus
from tests.support.pair import Pair
from tests.support.standin import Say, StandIn
from tests.turns.test_mixed import TOPIC, services


def begin(pair: Pair, agents: str, *keys: str) -> None:
    """A dialog whose header has these agents and keys."""
    text = pair.opening(TOPIC)
    line = next(line for line in text.split("\n") if line.startswith("**Agents:**"))
    pair.file.write_text(text.replace(line, "\n".join([f"**Agents:** {agents}", *keys])), encoding="utf-8")


def test_a_heading_carries_the_familys_name_where_nobody_named_the_agent(tmp_path: Path) -> None:
    with (
        StandIn(consensus) as server,
        Pair(tmp_path, backend={"A": "anthropic", "B": "gpt"}, environment=services(server), launch=fork) as pair,
    ):
        pair.start()
        begin(pair, f"A = Ann @ {pair.url('A')}, B @ {pair.url('B')}")
        pair.notify()
        pair.until(lambda: pair.number >= 3, "a turn of each")
        dialog = pair.dialog()
    assert [entry.name for entry in dialog.turns[1:3]] == ["Ann", "GPT B"]


def test_the_notes_of_a_project_reach_the_model_as_data(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "CLAUDE.md").write_text("Sessions stand in table s_17.\n@secret.txt\n")
    (project / "secret.txt").write_text("hidden")
    flags = {"A": ["--project", str(project)]}
    with (
        StandIn(lambda _: Say("Words.")) as server,
        Pair(tmp_path, "A", backend="anthropic", flags=flags, environment=services(server), launch=fork) as pair,
    ):
        pair.hold(TOPIC)
        pair.until(lambda: pair.number >= 2, "a turn")
        prompt = server.calls[0].prompt
    assert "~~~text\n# CLAUDE.md\n\nSessions stand in table s_17.\n@secret.txt\n~~~" in prompt
    assert "hidden" not in prompt


def test_a_model_is_told_what_it_has_to_look_at(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text("import pathlib, sys\npathlib.Path('asked').write_text(sys.stdin.read())\nprint('Words.')\n")
    flags = {"B": ["--project", str(tmp_path), "--command", shlex.join([sys.executable, str(program)])]}
    backends = {"A": "anthropic", "B": "command"}
    with (
        StandIn(lambda _: Say("Words.")) as server,
        Pair(tmp_path, backend=backends, flags=flags, environment=services(server), launch=fork) as pair,
    ):
        pair.hold(TOPIC)
        pair.until(lambda: pair.number >= 3, "a turn of each")
        model, asked = server.calls[0].system, (tmp_path / "asked").read_text()
    assert (
        "You have nothing but what is written here, and what you know: no files, no tools to look anything up." in model
    )
    assert "You have" not in asked.partition("# How it ends")[0]
    for one in (model, asked):
        assert "The others may have other projects, which you cannot see" in one


@cases("name", sorted(BACKENDS))
def test_each_backend_that_looks_at_a_project_says_so(name: str) -> None:
    has = kind_of(name).has
    assert ("project" in has) == (name in CODING | {"acp", "live"})
    assert ("read and search it" in has) == (name in CODING | {"acp"})


@pytest.mark.parametrize("where", ["header", "flag"])
def test_a_budget_in_dollars_is_refused_at_the_start_where_the_price_is_unknown(tmp_path: Path, where: str) -> None:
    flags = {"A": ["--model", "nobody-knows-1", *(["--budget", "$1"] if where == "flag" else [])]}
    with (
        StandIn(consensus) as server,
        Pair(tmp_path, "A", backend="gpt", flags=flags, environment=services(server), launch=fork) as pair,
    ):
        begin(pair, f"A @ {pair.url('A')}", *(["**Budget:** $1.00"] if where == "header" else []))
        pair["A"].start()
        assert pair["A"].wait() == 2
        assert "nobody knows what gpt nobody-knows-1 costs" in pair["A"].said
        assert "--price IN/OUT" in pair["A"].said
        assert server.calls == []


def test_a_price_that_is_given_counts(tmp_path: Path) -> None:
    flags = {"A": ["--model", "nobody-knows-1", "--price", "1000/2000", "--budget", "$900"]}
    with (
        StandIn(lambda _: Say("Words.", tokens_in=1000, tokens_out=500)) as server,
        Pair(tmp_path, "A", backend="gpt", flags=flags, environment=services(server), launch=fork) as pair,
    ):
        pair.hold(TOPIC)
        pair.until(lambda: pair.number >= 2, "a turn")
        dialog = pair.dialog()
    assert dialog.state.spent["A"].usd == 2.0


def test_a_key_without_any_budget_stops_at_a_usual_cap_and_says_so(tmp_path: Path) -> None:
    flags = {"A": ["--price", "99999/99999"]}
    with (
        StandIn(lambda _: Say("Words.")) as server,
        Pair(tmp_path, "A", backend="anthropic", flags=flags, environment=services(server), launch=fork) as pair,
    ):
        pair.hold(TOPIC)
        pair.until(lambda: pair.outcome, "the end")
        assert pair.outcome == "STOPPED"
        assert "[STOPPED: budget: A's own budget of $5.00" in pair.file.read_text()
        pair.until(lambda: "A stops at $5.00" in pair["A"].said, "the line in the log")
        assert server.calls == []


@pytest.mark.parametrize("flag", [["--resume", "x"], ["--trust-project"], ["--base-url", "http://localhost:1"]])
def test_a_flag_that_would_do_nothing_is_refused(tmp_path: Path, flag: list[str]) -> None:
    with Pair(tmp_path, "A", backend="rehearsal", flags={"A": flag}, launch=fork) as pair:
        pair["A"].start()
        assert pair["A"].wait() == 2
        assert f"{flag[0]} means nothing to rehearsal" in pair["A"].said


def test_an_address_of_the_folders_gets_no_key_of_the_environments(tmp_path: Path) -> None:
    with StandIn(consensus) as server:
        (tmp_path / ".env").write_text(f"ANTHROPIC_BASE_URL={server.url}\n")
        key = {"ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef"}
        with Pair(tmp_path, "A", backend="anthropic", environment=key, launch=fork) as pair:
            pair["A"].start()
            assert pair["A"].wait() == 2
            assert "ANTHROPIC_BASE_URL stands in .env and ANTHROPIC_API_KEY in the environment" in pair["A"].said
        assert server.seen == []
