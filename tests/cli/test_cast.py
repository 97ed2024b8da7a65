"""Agents as they are written on the command line, and what they come to on this machine."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends import auto
from dialogd.backends.seats import Cast, Seat, saved_cast
from dialogd.cli.create import Start, draw_up, read_cast, seated, usual_ports, with_budget
from dialogd.config import Settings, load
from dialogd.errors import BadInput
from dialogd.protocol.header import read_agent
from dialogd.store.disk import StateDir
from dialogd.templates import template
from tests.cli.command import PATIENCE, Commands, program
from tests.support.cases import cases

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-test-0123456789", "XAI_API_KEY": "xai-test-0123456789abcdef"}


def nowhere(folder: Path, **more: str) -> dict[str, str]:
    """An environment without any program, login or model server."""
    return {"PATH": str(folder / "bin"), "HOME": str(folder / "home"), "OLLAMA_HOST": "127.0.0.1:1", **more}


@cases(
    ("spec", "seat", "name"),
    [
        ("A=rehearsal:deadlock", Seat("A", "rehearsal:deadlock"), "Claude A"),
        ("ann-1=rehearsal:slow=0.5", Seat("ann-1", "rehearsal:slow=0.5"), "Claude ann-1"),
        ("B=codex:gpt-6.1-sol", Seat("B", "codex", "gpt-6.1-sol"), "Codex B"),
        ("C=anthropic:claude-sonnet-5-5", Seat("C", "anthropic", "claude-sonnet-5-5"), "Claude C"),
        ("D=claude", Seat("D", "claude"), "Claude D"),
        ("critic=grok", Seat("critic", "grok"), "Grok critic"),
        ("E=gemini", Seat("E", "gemini"), "Gemini E"),
        ("F=gpt", Seat("F", "gpt"), "GPT F"),
        ("G=ollama:qwen3:8b", Seat("G", "ollama", "qwen3:8b"), "Local G"),
        ("H=opencode:anthropic/x", Seat("H", "opencode", "anthropic/x"), "OpenCode H"),
        ("I=command:prog a@b c", Seat("I", "command", command="prog a@b c"), "Agent I"),
        ("J=acp:npx @scope/agent --acp", Seat("J", "acp", command="npx @scope/agent --acp"), "Agent J"),
        ("K=auto", Seat("K", "auto"), "Claude K"),
    ],
)
def test_an_agent_on_one_line(spec: str, seat: Seat, name: str) -> None:
    (found,) = read_cast(None, [spec])
    assert (found, found.name) == (seat, name)


def test_a_folder_after_the_at_is_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "web").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    specs = ["A=claude-code@~/web", "B=codex:gpt-6.1-sol@web", "C=acp:npx @x/y@~/web"]
    assert read_cast(None, specs) == (
        Seat("A", "claude-code", project=str(tmp_path / "web")),
        Seat("B", "codex", "gpt-6.1-sol", project=str(tmp_path / "web")),
        Seat("C", "acp", command="npx @x/y", project=str(tmp_path / "web")),
    )


@cases(
    "spec",
    ["A=chatgpt", "A=", "=claude", "A", "A B=claude", "USER=claude", "1=claude", "A=claude@/no/such/folder",
     "A=auto:grok", "A=Claude"],
)  # fmt: skip
def test_what_is_no_agent_is_refused_with_the_fix(spec: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_cast(None, [spec])
    assert refused.value.fix


def test_the_list_seats_backends_from_a() -> None:
    assert [(s.id, s.backend) for s in read_cast("claude, auto,grok", None)] == [
        ("A", "claude"), ("B", "auto"), ("C", "grok"),
    ]  # fmt: skip
    assert read_cast(None, None) == (Seat("A"), Seat("B"))
    for agents, each in ((",", None), ("grok", ["A=grok"]), (None, ["a=grok", "A=claude"])):
        with pytest.raises(BadInput):
            read_cast(agents, each)


@cases(
    ("agents", "each", "who"),
    [
        (None, ["Proponent=command:cat", "Challenger=command:cat"], "C = Operator"),
        (None, ["Proponent=live:claude:1:1"], "B = Challenger, C = Operator"),
        ("command:cat,auto,command:cat", None, "B = Challenger"),
    ],
)
def test_scripted_lines_that_nobody_asked_for_take_no_seat_beside_real_agents(
    tmp_path: Path, agents: str | None, each: list[str] | None, who: str
) -> None:
    three, nothing = template("architecture-debate"), nowhere(tmp_path)
    for settings in (Settings(), Settings(backend="rehearsal")):
        if agents is not None and "auto" in agents and settings.backend == "rehearsal":
            continue
        with pytest.raises(BadInput, match=f"nobody is there for {who}, and scripted lines take no seat") as refused:
            seated(read_cast(agents, each, three), settings, nothing, {})
        assert f"--agent {who[0]}=BACKEND" in refused.value.fix
    for fine in ("command:cat,rehearsal,rehearsal", "rehearsal", "command:cat"):
        seated(read_cast(fine, None, three), Settings(), nothing, {})
    assert {seat.backend for seat in seated(read_cast(None, None, three), Settings(), nothing, {})[0]} == {"rehearsal"}


@cases(("beside", "is_dollars"), [("rehearsal", True), ("command:cat", False), ("command:cat", True)])
def test_a_budget_of_dialogds_own_refuses_nobody(tmp_path: Path, beside: str, is_dollars: bool) -> None:
    priced_ = "free" if beside.startswith("command") and is_dollars else ""
    named = tuple(replace(seat, price=priced_ if seat.id == "B" else "") for seat in read_cast(f"grok,{beside}", None))
    seats, choices = seated(named, Settings(), nowhere(tmp_path, **KEYS), {})
    opening = with_budget(draw_up(Start("Tabs?"), seats, usual_ports(seats)), seats, choices, Settings())
    assert (opening.budget is not None, opening.tokens is not None) == (is_dollars, not is_dollars)


def test_nobody_named_means_one_family_after_the_other(tmp_path: Path) -> None:
    seats, choices = seated(read_cast(None, None), Settings(), nowhere(tmp_path, **KEYS), {})
    assert [(seat.backend, seat.name) for seat in seats] == [("anthropic", "Claude A"), ("grok", "Grok B")]
    assert [choices[who].pays for who in "AB"] == ["the key in ANTHROPIC_API_KEY", "the key in XAI_API_KEY"]
    named = read_cast(None, ["A=rehearsal:deadlock", "B=auto", "C=claude:claude-sonnet-5-5"])
    seats, _ = seated(named, Settings(), nowhere(tmp_path), KEYS)
    assert [(seat.id, seat.backend, seat.model) for seat in seats] == [
        ("A", "rehearsal:deadlock", ""), ("B", "grok", ""), ("C", "anthropic", "claude-sonnet-5-5"),
    ]  # fmt: skip


def test_seats_without_a_backend_get_what_the_settings_say(tmp_path: Path) -> None:
    own = nowhere(tmp_path, **KEYS)
    for variables, expected in (
        ({"DIALOGD_BACKEND": "rehearsal"}, ("rehearsal", "", "Claude A")),
        ({"DIALOGD_BACKEND": "grok:grok-4.7-fast"}, ("grok", "grok-4.7-fast", "Grok A")),
        ({"DIALOGD_COMMAND": "cat"}, ("command", "", "Agent A")),
        ({"DIALOGD_BACKEND": "auto"}, ("anthropic", "", "Claude A")),
    ):
        (seat,), choices = seated([Seat("A")], load({}, variables, tmp_path), own, {})
        assert (seat.backend, seat.model, seat.name) == expected
        assert choices["A"].here


def test_a_cast_of_a_template_takes_its_seats() -> None:
    design, council = template("system-design"), template("council")
    dealt = read_cast("claude,grok", None, design)
    assert [(seat.id, seat.name, seat.backend) for seat in dealt] == [
        ("A", "Architect", "claude"), ("B", "Optimizer", "grok"), ("C", "Security", "claude"), ("D", "Critic", "grok"),
    ]  # fmt: skip
    assert all(seat.is_known for seat in read_cast(None, None, design))
    named = read_cast(None, ["critic=grok", "a=claude"], design)
    assert [(seat.id, seat.backend) for seat in named] == [("A", "claude"), ("B", ""), ("C", ""), ("D", "grok")]
    four = read_cast("claude,grok,gpt,gemini", None, council)
    assert [seat.name for seat in four] == ["Engineer", "Advocate", "Sceptic", "Engineer 2"]
    own = read_cast(None, ["X=grok", "c=claude"], council)
    assert [(seat.id, seat.name) for seat in own] == [("X", "Engineer"), ("C", "Advocate")]
    one = read_cast(None, ["sceptic=claude"], council)
    assert [(seat.name, seat.backend) for seat in one] == [("Engineer", ""), ("Advocate", ""), ("Sceptic", "claude")]
    for agents, each, taken, why in (
        (None, ["A=grok", "Architect=claude"], design, "the id A is given to two agents"),
        (None, ["Tester=grok"], design, "Tester is no agent of the template system-design"),
        (None, ["A=grok"], template("circle"), r"the template circle is for 3\+ agents, not for 1"),
        ("grok,gpt,grok,gpt", None, template("debate"), r"for 3 agents \(A = Pro, B = Con, C = Judge\), not for 4"),
    ):
        with pytest.raises(BadInput, match=why):
            read_cast(agents, each, taken)
    assert read_cast("claude", None, template("pair")) == (Seat("A", "claude"),)


def test_nobody_named_spreads_families_over_a_cast(tmp_path: Path) -> None:
    seats, _ = seated(read_cast(None, None, template("council")), Settings(), nowhere(tmp_path, **KEYS), {})
    assert [(seat.backend, seat.name) for seat in seats] == [
        ("anthropic", "Engineer"), ("grok", "Advocate"), ("anthropic", "Sceptic"),
    ]  # fmt: skip


def test_a_cast_is_kept_and_found_again(tmp_path: Path) -> None:
    state, file = StateDir(tmp_path / "state"), tmp_path / "d.md"
    assert saved_cast(state, file) is None
    seats = (Seat("A", "codex", "m", "", "/p"), Seat("B", "acp", "", "x --acp", title="Critic"))
    cast = Cast("3f9a1c", seats, "0").with_ports([1, 2])
    cast.save(state, file)
    assert saved_cast(state, file) == cast
    kept = state.dialog(file) / "cast.json"
    kept.write_text(kept.read_text().replace('"title": "Critic"', '"later": 1'))
    assert saved_cast(state, file) == Cast("3f9a1c", (cast.seats[0], replace(cast.seats[1], title="")), "0")
    (state.dialog(file) / "cast.json").write_text('{"dialog": 1}')
    assert saved_cast(state, file) is None


@pytest.mark.slow
def test_run_introduces_everybody_and_caps_a_key_without_a_budget(dialogd: Commands) -> None:
    words = ["run", "Tabs?", "--agents", "rehearsal,grok", "--first", "B", "--timeout", "1s"]
    unreachable = {"XAI_API_KEY": KEYS["XAI_API_KEY"], "XAI_BASE_URL": "http://127.0.0.1:1/v1"}
    with dialogd.background(*words, **unreachable) as process:
        until_begun(dialogd)
        header = dialogd.log.read().header
        process.terminate()
        assert process.wait(PATIENCE) == 130, dialogd.output
    said = dialogd.output
    assert "A: rehearsal (scripted lines, no model) — nobody pays; nobody outside this machine sees anything\n" in said
    assert "B: grok grok-4.7 (a key in XAI_API_KEY) — paid by the key in XAI_API_KEY;" in said
    assert "whoever runs http://127.0.0.1:1 sees the dialog\n" in said
    assert "note: a key pays and no budget was given: the dialog ends at $5.00; --budget" in said
    assert [agent.name for agent in header.agents] == ["Claude A", "Grok B"]
    assert (header.limits.budget, header.limits.tokens) == (5.0, None)


@pytest.mark.slow
def test_run_counts_tokens_where_a_key_pays_and_no_price_is_known(dialogd: Commands) -> None:
    program(dialogd.folder, "opencode", 'echo "1.18.33"')
    words = ["run", "Tabs?", "--agents", "opencode,rehearsal", "--timeout", "1s"]
    here = {"PATH": f"{dialogd.folder}/bin:/usr/bin:/bin", "OPENCODE_API_KEY": "oc-test-0123456789abcdef"}
    unpriced = dialogd(*words, **here)
    limits = dialogd.log.read().header.limits
    assert (limits.budget, limits.tokens) == (None, 1_000_000), unpriced.err
    assert "the dialog ends at 1,000,000 tokens; --budget" in unpriced.err
    assert "there is a budget in dollars" not in unpriced.err
    priced = dialogd(*words, "--price", "A=1/2", "--replace", **here)
    limits = dialogd.log.read().header.limits
    assert (limits.budget, limits.tokens) == (5.0, None), priced.err
    assert re.search(r"^estimate: (at most )?about \$[\d.]+ for 20 turns \(A \$", priced.err, re.MULTILINE)
    cast = saved_cast(dialogd.state, dialogd.file)
    assert [seat.price for seat in cast.seats] == ["1/2", ""]
    assert cast.seats[0].flags()[-2:] == ["--price", "1/2"]


def test_a_price_for_nobody_or_that_cannot_be_read_is_refused(dialogd: Commands) -> None:
    for price, words in (("Z=1/2", "fix: name one of: A, B"), ("cheap", "--price 'cheap' cannot be read")):
        done = dialogd("run", "Tabs?", "--agents", "rehearsal,rehearsal", "--price", price)
        assert (done.code, dialogd.file.exists()) == (2, False)
        assert words in done.err


@pytest.mark.slow
def test_run_lets_a_projects_own_code_run_only_when_told(dialogd: Commands) -> None:
    command = f"{shlex.quote(sys.executable)} -m tests.support.acp_agent echo"
    words = ["run", "Tabs?", "--agent", f"A=acp:{command}", "--agent", "B=rehearsal"]
    done = dialogd(*words)
    assert (done.code, dialogd.file.exists()) == (2, False)
    assert "an acp agent runs what its project contains (hooks, MCP servers, scripts)" in done.err
    assert "fix: --trust-project allows it" in done.err
    with dialogd.background(*words, "--trust-project") as process:
        until_begun(dialogd)
        process.terminate()
        assert process.wait(PATIENCE) == 130, dialogd.output
    assert f"; {auto.RUNS_PROJECT}\n" in next(row for row in dialogd.output.splitlines(True) if "A: acp" in row)
    assert auto.RUNS_PROJECT not in next(row for row in dialogd.output.splitlines(True) if "B: rehearsal" in row)
    cast = saved_cast(dialogd.state, dialogd.file)
    assert [seat.trust_project for seat in cast.seats] == [True, False]
    idle = dialogd("run", "Tabs?", "--agents", "rehearsal,rehearsal", "--trust-project", "--replace")
    assert idle.code == 2
    assert "--trust-project means nothing to rehearsal" in idle.err


def until_begun(dialogd: Commands) -> None:
    """Wait until the dialog's file is there and the introductions are printed."""
    from tests.cli.command import until

    until(lambda: dialogd.file.exists() and "nudge" in dialogd.output, "the dialog", lambda: dialogd.output)


def test_run_refuses_who_is_not_here_before_anything_is_written(dialogd: Commands) -> None:
    done = dialogd("run", "Tabs?", "--agents", "grok,rehearsal", XAI_API_KEY="")
    assert (done.code, dialogd.file.exists()) == (2, False)
    assert "error: the backend grok cannot be used here: no key\n  fix: put XAI_API_KEY into" in done.err


def test_a_reserved_id_is_said_to_be_reserved(dialogd: Commands) -> None:
    dialogd.begin("T", "other.md")
    name = "User"
    words = [
        ["new", "T", "--agent", f"{name}=rehearsal", "--agent", "B=rehearsal"],
        ["start", name],
        ["start", "A", "--peer", f"{name}=http://localhost:3002"],
        ["invite", name, "--file", "other.md"],
    ]
    for done in dialogd.all(words):
        assert done.code == 2
        assert "is reserved: USER, SYSTEM, ANY and ALL name no agent in a dialog" in done.err
    for name in ("USER", "system", "Any", "ALL"):
        assert f"the id {name} is reserved" in read_agent(f"{name} = Ann", 0)[1]


@pytest.mark.slow
def test_a_dialog_with_one_agent_warns(dialogd: Commands) -> None:
    said = "warning: A takes part alone: nobody answers it or signs what it proposes"
    words = ["--agent", "A=rehearsal", "--max-turns", "2"]
    new, run, two, own = dialogd.all(
        [["new", "T", *words], ["run", "T", *words, "--file", "b.md"], ["new", "T", "--file", "c.md"],
         ["new", "T", "-t", "contemplator", "--file", "d.md"]]
    )  # fmt: skip
    started = dialogd("start", "A", "--detach", "--port", "0")
    for done in (new, run, started):
        assert (done.code in (0, 4), said in done.err) == (True, True), done.err
    for done in (two, own):
        assert "alone" not in done.err
