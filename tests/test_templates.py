"""Templates: found, split from their front matter, filled."""

from __future__ import annotations

import re

import pytest

from dialogd.errors import BadInput
from dialogd.protocol.model import OUTCOMES
from dialogd.templates import DEFAULT_TEMPLATE, Template, names, parse, template

VALUES = {
    "topic": "Where do $sessions live?",
    "max_turns": "20",
    "timeout": "5 minutes",
    "started": "2026-11-21 20:00:00 +01:00",
    "dialog": "3f9a1c",
    "agents": "A = Claude A @ http://localhost:3001",
    "more": "\n**Max Message:** 500",
}


def test_the_pair_is_there_and_says_what_it_is() -> None:
    """The default template is listed and its front matter is read."""
    pair = template()
    assert DEFAULT_TEMPLATE in names()
    assert (pair.name, pair.order, pair.verdict, pair.max_turns, pair.timeout) == (
        "pair",
        "alternate",
        "mutual",
        20,
        300.0,
    )
    assert pair.description
    assert pair.text.startswith("# Claude Autonomous Dialog\n")


def test_the_filled_pair_is_the_header_of_a_dialog() -> None:
    """Every value stands on its classic line, dollars in values stay, and the header ends in a separator."""
    text = template("pair").fill(VALUES)
    head, _, rules = text.partition("\n## Rules\n")
    assert "**Topic:** Where do $sessions live?\n" in head
    assert head.endswith("3001\n**Max Message:** 500\n")
    assert rules.endswith("\n\n---\n")
    assert {"[CONSENSUS_REACHED]", "[DEADLOCK]", "## Consensus Summary", "TURN: USER"} <= set(
        re.findall("`(.*?)`", rules)
    )


def test_nothing_in_the_pair_reads_as_a_turn_or_an_end() -> None:
    """No line of the header is a TURN line, an outcome mark or the heading of an entry."""
    for line in template("pair").fill(VALUES).split("\n"):
        assert not re.match(r"\W*(TURN:|## (Turn|Note|User))", line, re.IGNORECASE)
        assert line.strip("*_ ") not in {f"[{name}]" for name in OUTCOMES}


@pytest.mark.parametrize("name", names())
def test_every_template_can_be_filled(name: str) -> None:
    """Templates use no names but the known ones."""
    assert template(name).fill(VALUES)


@pytest.mark.parametrize("unknown", ["trio", "", "../README", "PAIR", "pair.md"])
def test_an_unknown_template_is_refused_with_the_known_ones(unknown: str) -> None:
    """The fix lists what there is; a path is no name."""
    with pytest.raises(BadInput, match="unknown template") as caught:
        template(unknown)
    assert "pair" in caught.value.fix


def test_a_template_needs_no_front_matter() -> None:
    """Plain Markdown is a template with the default order and limits."""
    assert parse("mine", "# Hello $topic\n---\nx: y\n") == Template("mine", "# Hello $topic\n---\nx: y\n")


def test_front_matter_overrides_defaults_and_is_cut_off() -> None:
    """Keys are read up to the second line of dashes; the rest begins at its first line of text."""
    found = parse("mine", "---\nname: trio\n\ntimeout: 90 seconds\nmax_turns: 1,000\n---\n\n# Hello\n")
    assert found == Template("trio", "# Hello\n", max_turns=1000, timeout=90.0)


@pytest.mark.parametrize(
    "front", ["timeout: soon", "max_turns: 0", "colour: red", "just words"], ids=["duration", "count", "key", "no key"]
)
def test_front_matter_that_makes_no_sense_is_refused(front: str) -> None:
    """A bad value, an unknown key and a line that is no pair: an error that names the template."""
    with pytest.raises(BadInput, match="mine"):
        parse("mine", f"---\n{front}\n---\n# Hello\n")


def test_front_matter_must_end() -> None:
    """An opening line of dashes without a closing one is refused."""
    with pytest.raises(BadInput, match="without an end"):
        parse("mine", "---\nname: x\n")


def test_a_name_without_a_value_is_refused() -> None:
    """A typo in a template is named; `$$` is a dollar."""
    with pytest.raises(BadInput, match="topick"):
        Template("mine", "$topick").fill(VALUES)
    assert Template("mine", "$$5 for ${dialog}").fill(VALUES) == "$5 for 3f9a1c"
