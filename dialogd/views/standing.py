"""How a dialog stands: one model, of which every surface shows all or a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dialogd.protocol import names, questions
from dialogd.protocol.model import USER, Entry
from dialogd.protocol.signals import convergence, signals
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import listed

Phase = Literal["no_dialog", "thinking", "waiting", "paused", "waiting_for_user", "ended", "error"]


class Question(BaseModel):
    """What the person is asked; `by` is an ISO time with its offset, null without a deadline.

    `takes_default` is true where the default will count as the answer once that time has passed.
    """

    text: str
    asker: str
    entry: str
    by: str | None
    default: str | None
    takes_default: bool


class Noticed(BaseModel):
    """A signal; never a verdict."""

    kind: str
    text: str
    agents: list[str]


class Basics(BaseModel):
    """What stands in the file alone."""

    model_config = ConfigDict(frozen=True)

    dialog: str | None = None
    topic: str = ""
    turn: int = 0
    turn_of: list[str] = []
    outcome: str | None = None
    approved: bool = False
    question: Question | None = None
    questions: list[Question] = []


class Standing(Basics):
    """How a dialog stands, with what follows from it."""

    phase: Phase = "no_dialog"
    lifecycle: str | None = None
    allowed: list[str] = []
    signals: list[Noticed] = []
    convergence: float | None = None


def basics(dialog: Dialog | None) -> dict[str, Any]:
    """The fields of `Basics`."""
    if dialog is None:
        return {}
    state, asked = dialog.state, [Question(**each) for each in questions.facts(dialog)]
    return {
        "dialog": dialog.id,
        "topic": dialog.header.topic,
        "turn": state.number,
        "turn_of": list(state.owing),
        "outcome": state.outcome.name if state.outcome else None,
        "approved": bool(state.approved),
        "question": asked[0] if asked else None,
        "questions": asked,
    }


def standing(dialog: Dialog | None, *, thinking: bool) -> dict[str, Any]:
    """The fields of `Standing`; `thinking`: an agent is at a turn."""
    return {
        **basics(dialog),
        "phase": phase(dialog, thinking=thinking),
        "lifecycle": names.lifecycle_of(dialog),
        "allowed": names.allowed(dialog),
        "signals": [Noticed(**asdict(one)) for one in signals(dialog)] if dialog is not None else [],
        "convergence": convergence(dialog) if dialog is not None else None,
    }


def phase(dialog: Dialog | None, *, thinking: bool) -> Phase:
    """The dialog in one word."""
    if dialog is None:
        return "no_dialog"
    state = dialog.state
    if state.outcome is not None:
        return "error" if state.outcome.failed else "ended"
    if state.paused:
        return "paused"
    if thinking:
        return "thinking"
    return "waiting_for_user" if state.owing and set(state.owing) <= {USER} else "waiting"


def entry_fields(entry: Entry) -> dict[str, Any]:
    """A turn (`number` > 0) or note by its fields, as every program gets it; `turn` is whose turn follows.

    `struck`: the person withdrew it, so that `marks` has none of its own.
    """
    return {
        "id": entry.id,
        "number": entry.number,
        "by": entry.by,
        "name": entry.name,
        "text": entry.body,
        "marks": [str(mark) for mark in entry.marks],
        "turn": None if entry.turn is None else list(entry.turn),
        "condition": entry.condition.value,
        "struck": entry.is_struck,
    }


# -- With the daemons that run on it ----------------------------------------------------------------------------------

Run = Literal["starting", "running", "waiting", "asleep", "ended"]
RUNS: tuple[Run, ...] = ("starting", "running", "waiting", "asleep", "ended")


@dataclass(frozen=True, slots=True)
class Running:
    """What runs on a dialog, in a word and in a sentence; `waits_for_you`: nothing goes on without the person."""

    state: Run
    words: str
    waits_for_you: bool = False


def running(dialog: Dialog, healths: Mapping[str, Mapping[str, Any] | None], *, is_starting: bool, end: str) -> Running:
    """What runs on it: `healths` holds the agents with a daemon, None for one that does not answer.

    `end` says how it ended, where it did.
    """
    state = dialog.state
    called = {agent.id: agent.name for agent in dialog.everybody}
    if state.outcome is not None:
        return Running("ended", end)
    is_whole = all(agent.id in healths for agent in dialog.header.agents)
    if is_starting and (not healths or not (is_whole or state.has_spoken)):
        return Running("starting", "its agents are being started")
    if not healths:
        return Running("asleep", "it has not ended, and no agent of it runs")
    calls = [call for health in healths.values() for call in (health or {}).get("calls") or ()]
    if calls:
        who, tool = str(calls[0].get("agent", "")), calls[0].get("tool", "a tool")
        return Running("waiting", f"{called.get(who, who)} asks to call {tool}: allow it or not", True)
    if state.paused:
        return Running("waiting", "paused, until you resume it", True)
    if state.questions.text:
        who = f"{called.get(state.questions.asker, 'an agent')} asks you: " if state.questions.asker else ""
        return Running("waiting", f"{who}{state.questions.text}", True)
    writing = [called[who] for who, said in healths.items() if said and said.get("working_on") and who in called]
    if writing:
        return Running("running", f"{listed(writing)} {'is' if len(writing) == 1 else 'are'} writing")
    owing = [called.get(who, who) for who in state.owing if who != USER]
    if owing and not state.has_spoken and not is_starting:
        return Running("waiting", "it has not begun: start it on its page", True)
    if owing:
        return Running("running", f"{listed(owing)} {'is' if len(owing) == 1 else 'are'} next")
    return Running("waiting", "it is your turn", True)
