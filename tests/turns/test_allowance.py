"""What a turn may cost holds over all its calls: attempts, the question back, what was spent before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dialogd.backends import Usage
from dialogd.backends.prices import FREE, Price
from dialogd.store.journal import Received
from tests.logfile.files import log_of
from tests.turns.minds import DEAR, Mind, step
from tests.turns.test_spending import BUSY, SAID, dialog_in

UNCLEAR = "Fine.\n\n[CONSENSUS_REACHED]"
MOST = Usage("m-1", 4_000, 2_000)  # at DEAR: 0.08 dollars


async def test_another_attempt_may_cost_what_the_last_one_left(tmp_path: Path) -> None:
    mind = Mind((SAID, BUSY), ("Postgres.", SAID), price=DEAR)
    await step(dialog_in(tmp_path, "**Budget:** $0.10, 100k tokens"), mind)
    assert mind.requests[1].allowance == pytest.approx(0.088)
    assert mind.requests[1].tokens == 98_900


async def test_no_attempt_is_made_that_the_budget_cannot_pay(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** $0.09")
    mind = Mind((Usage("m-1", 4_500, 2_150), BUSY), ("Postgres.", SAID), price=DEAR)
    dialog = await step(path, mind)
    assert len(mind.asked) == 1
    assert dialog.last.mark("AGENT_ERROR")


async def test_the_question_back_may_cost_what_the_reply_left(tmp_path: Path) -> None:
    mind = Mind((UNCLEAR, SAID), ("Fine.", SAID), price=DEAR)
    await step(dialog_in(tmp_path, "**Budget:** $0.10"), mind)
    assert mind.requests[1].allowance == pytest.approx(0.088)


async def test_a_question_back_that_cannot_be_paid_is_not_asked(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** $0.08")
    mind = Mind((UNCLEAR, MOST), ("Fine, then.", SAID), price=DEAR)
    dialog = await step(path, mind)
    assert len(mind.asked) == 1
    assert dialog.turns[-1].body == "Fine."


async def test_what_was_spent_in_vain_is_not_there_to_be_spent(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** $0.10")
    log_of(path).journals.of("A").record("spent", usage={"calls": 1, "usd": 0.04, "usd_known": 1})
    mind = Mind(("Postgres.", SAID), price=DEAR)
    await step(path, mind)
    assert mind.requests[0].allowance == pytest.approx(0.06)


async def test_a_reply_that_is_paid_for_is_written_after_a_restart_whatever_is_left(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** $0.03")
    log = log_of(path)
    debt = log.read().state.debt("A")
    log.journals.of("A").reply(Received(debt.key, "Postgres.", {"calls": 1, "usd": 0.012, "usd_known": 1}, 5))
    mind = Mind(price=Price(1_000.0, 1_000.0))
    dialog = await step(path, mind)
    assert dialog.turns[-1].body == "Postgres."
    assert dialog.state.spent["A"].usd == 0.012
    assert mind.asked == []


async def test_tokens_are_counted_before_the_turn_also_where_they_are_free(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** 3,000 tokens")
    bought = 0
    for number in range(4):
        mind = Mind(("Words.", SAID), price=FREE)
        dialog = await step(path, mind, "AB"[number % 2])
        bought += len(mind.asked)
        if dialog.state.outcome is not None:
            break
    assert dialog.state.outcome.cause == "budget"
    assert bought == 2
