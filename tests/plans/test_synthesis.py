"""The unified plan that a model writes on request: what it is asked, and how the page marks it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from dialogd.agent.call import Call
from dialogd.backends import Price, Request, Usage
from dialogd.errors import BackendError
from dialogd.views.documents import markdown, prompt, synthesize
from dialogd.views.documents import plan_facts as as_json
from dialogd.views.plan import Plan
from tests.plans.scenes import consensus

SECRET = "sk-ant-api03-" + "x" * 40


class Writer:
    """A backend that writes one text, and remembers what it was asked."""

    name, model, costs, price, most_out, room = "writer", "m-2", True, Price(1.0, 2.0), 0, 0
    secrets: tuple[str, ...] = ()

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[str] = []

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage, None]:
        """The text, and what it cost."""
        self.asked.append(request.prompt().text)
        yield self.text
        yield Usage(model="m-2-2026", tokens_in=1_000_000, tokens_out=500_000)

    async def close(self) -> None:
        """Nothing is held."""


def test_the_dialog_is_data_in_the_request() -> None:
    asked = prompt(consensus(), ("Postgres",)).text
    for word in ("Nobody in", "~~~text\nB is right", "[RESERVATION: thirty days is a guess]", "## Turn 5, by B"):
        assert (word in asked) == (word != "Nobody in")
    assert "Postgres" not in asked
    assert asked.rstrip().endswith("Write only the plan.")


async def test_a_synthesis_is_marked_and_signed_by_nobody() -> None:
    dialog, backend = consensus(), Writer("# Plan: mine\n\nDo it (turn 4).")
    drawn = Plan(dialog)
    agent = dialog.header.agents[1]
    made = await synthesize(Call(backend, 0), drawn, agent, Path("dialog.md"))
    assert (made.agent, made.model, made.cost, len(backend.asked)) == ("B", "m-2-2026", "$2", 1)
    page = markdown(dataclasses.replace(drawn, synthesis=made))
    _, _, part = page.partition("\n## A unified plan, written by a model\n")
    assert "Written by m-2-2026 as B, from the dialog, after it ($2)." in part
    assert "read or signed it" in part.split("\n> ")[0]
    assert "\n> **Plan: mine**\n>\n> Do it (turn 4).\n" in part
    assert page.index("## Next steps") < page.index("## A unified plan") < page.index("is the record.")
    assert as_json(dataclasses.replace(drawn, synthesis=made))["synthesis"]["signed_by"] == []
    assert as_json(drawn)["synthesis"] is None


async def test_an_empty_synthesis_is_an_error() -> None:
    dialog = consensus()
    with pytest.raises(BackendError, match="empty"):
        await synthesize(Call(Writer(" \n"), 0), Plan(dialog), dialog.header.agents[0], Path("dialog.md"))


async def test_what_looks_like_a_key_does_not_come_back() -> None:
    dialog = consensus()
    made = await synthesize(Call(Writer(f"Use {SECRET}."), 0), Plan(dialog), dialog.header.agents[0], Path("d.md"))
    assert SECRET not in made.text
