"""The person takes the result of a dialog, or rejects it: then it goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from dialogd import person
from dialogd.cli import options, plan
from dialogd.cli.history import keep_ended
from dialogd.cli.speak import done, opened
from dialogd.cli.terminal import plain, show

Reason = Annotated[str, typer.Argument(metavar="REASON", help="What is wrong with it; `-` reads standard input.")]


def approve(file: options.FileOption = None) -> None:
    """Take the result of a dialog that has ended, or a text that only absent agents have not signed: that ends it."""
    settings, log, before = opened(file)
    after = person.approve(log)
    keep_ended(settings, after)
    if before.state.outcome is None:
        plan.leave(settings, after)
    what = "it was approved already" if before.state.approved else "approved"
    outcome = after.state.outcome
    show(plain(f"{what}: the result of {outcome.name}, in {outcome.entry}" if outcome else what))


def reject(reason: Reason, file: options.FileOption = None) -> None:
    """Do not take the result: your turn, with the reason, opens the dialog again."""
    settings, log, _ = opened(file)
    words = options.typed(reason)
    after = person.reject(log, words, secrets=options.own_secrets())
    plan.disown(settings, after)
    keep_ended(settings, after)
    done(settings, after, f"turn {after.state.number} is yours; the result is rejected, the dialog is open again")
