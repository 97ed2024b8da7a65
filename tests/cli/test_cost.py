"""`dialogd cost` and `--budget`: what a dialog has cost, may cost, and is expected to cost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends.auto import Choice
from dialogd.backends.parts import tokens_of
from dialogd.backends.seats import Seat
from dialogd.cli.create import Start, draw_up, usual_ports
from dialogd.cli.result import MOST_OUT, RULES, SAID, estimate_of
from dialogd.config import Settings
from dialogd.errors import BadInput
from dialogd.protocol.grammar import joint, parse, render
from dialogd.protocol.model import Draft, Mark
from dialogd.templates import Opening, compose
from tests.cli.command import Commands, reviewed


def spend(file: Path, *drafts: Draft) -> None:
    """Append entries to a dialog file."""
    for draft in drafts:
        data = file.read_bytes()
        dialog = parse(data)
        last = dialog.last
        file.write_bytes(data + joint(dialog) + render(draft, last.chain if last else ""))


def turn(by: str, number: int, to: str, **attributes: str) -> Draft:
    """An agent's turn with an account in its frame."""
    return Draft(by, f"Claude {by}", number, "Well.", turn=(to,), attributes=tuple(attributes.items()))


def failure(by: str, **attributes: str) -> Draft:
    """A failure of an agent, with an account in its frame."""
    marks = (Mark("AGENT_ERROR", f"{by} | overloaded | ask again"),)
    return Draft("SYSTEM", "System", marks=marks, turn=("A",), attributes=tuple(attributes.items()))


BOUGHT = (
    turn("A", 2, "B", **{"in": "41200", "out": "900", "usd": "0.0861"}),
    turn("B", 3, "A", **{"in": "~1200", "out": "~100", "usd": "~0.9"}),
    turn("A", 4, "B", **{"in": "42000", "out": "1100", "usd": "0.0939"}),
    failure("B", calls="3", **{"in": "~3600", "out": "~0", "usd": "~0.1"}),
)


def test_what_each_agent_and_all_together_have_cost(dialogd: Commands) -> None:
    """What nobody knows is called unknown, and never nothing; what no entry accounts for is named."""
    assert dialogd("new", "Tabs?", "--budget", "$2.00, 100k tokens").code == 0
    spend(dialogd.file, *BOUGHT)
    reviewed(dialogd, "cost-budget", ["status --cost", "status --cost --json"])
    log, other = dialogd.begin("Tabs?", "other.md"), ["status --cost other.md", "status --cost other.md --json"]
    reviewed(dialogd, "cost-new", other)
    spend(log.path, turn("A", 2, "B"), turn("B", 3, "A", **{"in": "0", "out": "0", "usd": "0"}))
    log.journals.of("A").record("spent", usage={"calls": 1, "usd": 0.0027, "usd_known": 1, "is_estimated": True})
    reviewed(dialogd, "cost-unknown", other)


@pytest.mark.parametrize("text", ["$2.00", "200k tokens", "2 dollars and 200,000 tokens"])
def test_a_budget_stands_in_the_header_of_a_new_dialog(dialogd: Commands, text: str) -> None:
    facts = dialogd("new", "Tabs?", "--budget", text, "--json", "--step").json
    limits = dialogd.log.read().header.limits
    asked = (None if "$" not in text and "dollars" not in text else 2.0, 200_000 if "tokens" in text else None)
    assert (limits.budget, limits.tokens) == asked
    assert f"\n**Budget:** {facts['budget']}\n" in dialogd.file.read_text(encoding="utf-8")
    assert dialogd.log.read().header.setup["step"] is True
    assert dialogd("new", "Tabs?", "--replace", "--json").json["budget"] is None
    assert "**Budget:**" not in dialogd.file.read_text(encoding="utf-8")


def test_a_budget_that_makes_no_sense_is_refused_before_anything_is_written(dialogd: Commands) -> None:
    for done in dialogd.all([["new", "T", "--budget", "2"], ["run", "T", "--agents", "rehearsal", "--budget", "$0"]]):
        assert (done.code, done.out) == (2, "")
        assert "error: --budget: " in done.err
        assert "  fix: " in done.err
    assert not dialogd.file.exists()


def planned(turns: int = 20, budget: str | None = None, agents: str = "rehearsal,rehearsal,rehearsal") -> Opening:
    """A dialog that is about to begin."""
    wanted = Start("Tabs or spaces?", agents=agents, max_turns=turns, budget=budget)
    seats = wanted.seats()
    return draw_up(wanted, seats, usual_ports(seats))


KEY = Choice("anthropic", "a key", "the key in ANTHROPIC_API_KEY", "Anthropic")


def estimated(opening: Opening, prices: Mapping[str, str | None], out: int = 0) -> str:
    """The estimate where these agents cost money: so much for a million tokens in and out, None for who knows what."""
    seats = [Seat(who, model="nobody-knows-1", price=price or "") for who, price in prices.items()]
    return estimate_of(opening, seats, dict.fromkeys(prices, KEY), Settings(max_tokens=out))


def test_the_estimate_names_each_agent_that_costs() -> None:
    opening = planned()
    line = estimated(opening, {"A": "3/15", "B": "1/5", "C": None}, 1000)
    # Seven turns of each, after 2, 5 … 17 and 18 others' turns; what stands before them is the file and the rules.
    read = 7 * (RULES + tokens_of(compose(opening))) + (2 + 5 + 8 + 11 + 14 + 17 + 18) * SAID
    a, b = ((read * price + 7 * 1000 * price * 5) / 1e6 for price in (3, 1))
    whole, of_a, of_b = (f"${math.ceil(usd * 100) / 100:.2f}" for usd in (a + b, a, b))
    assert line == (f"estimate: at most about {whole} for 20 turns (A {of_a}, B {of_b}); unknown: C")
    assert estimated(planned(), {"A": None, "C": None}) == ("estimate: unknown, for nobody knows the price of A and C")
    assert (estimated(planned(), {}), estimated(planned(), {"A": "free"})) == ("", "")


def test_an_estimate_grows_with_what_it_is_about() -> None:
    def dollars_of(opening: Opening, price: str = "5/25", out: int = 0) -> float:
        return float(estimated(opening, {"A": price}, out).partition("$")[2].partition(" ")[0])

    usual = dollars_of(planned())
    assert usual == dollars_of(planned(), out=MOST_OUT)
    assert usual < dollars_of(planned(turns=40))
    assert usual < dollars_of(replace(planned(), question="word " * 50_000))
    assert usual < dollars_of(planned(), out=MOST_OUT * 2)
    assert usual < dollars_of(planned(), "5/50")
    assert usual < dollars_of(planned(agents="rehearsal,rehearsal"))


def test_the_estimate_of_a_cast_counts_those_whose_tokens_are_paid() -> None:
    choices = {"A": KEY, "B": replace(KEY, pays="your Claude subscription"), "C": KEY}
    models = {"A": "claude-opus-5-5", "B": "claude-opus-5-5", "C": "nobody-knows-1"}
    seats = [Seat(who, model=model) for who, model in models.items()]
    line = estimate_of(planned(), seats, choices, Settings())
    assert line.startswith("estimate: at most about $")
    assert "(A $" in line
    assert ", B" not in line
    assert line.endswith("; unknown: C")
    assert estimate_of(replace(planned(), budget=0.01), seats, choices, Settings()).endswith(
        "; the budget ends it at $0.01"
    )
    assert "budget" not in estimate_of(replace(planned(), budget=1_000), seats, choices, Settings())
    assert "C $" in estimate_of(planned(), seats, choices, Settings(price="1/2"))
    with pytest.raises(BadInput, match="price"):
        estimate_of(planned(), seats, choices, Settings(price="cheap"))


def test_the_estimate_knows_coding_agents_on_keys(tmp_path: Path) -> None:
    key = Choice("claude-code", "claude 2.1.330, with ANTHROPIC_API_KEY", "the key in ANTHROPIC_API_KEY", "Anthropic")
    login = replace(key, why="logged in", pays="your Anthropic login")
    seats = [Seat(who) for who in "ABC"]
    line = estimate_of(planned(), seats, {"A": key, "B": login, "C": KEY}, Settings(state_dir=tmp_path))
    found = re.fullmatch(
        r"estimate: about \$[\d.]+ for 20 turns \(A \$([\d.]+), C \$([\d.]+)\)",
        line,
    )
    assert found, line
    assert float(found[1]) > 2 * float(found[2])
