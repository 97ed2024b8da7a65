"""What an entry is worth telling a person who is not looking. Pure: values in, values out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dialogd.protocol import asked
from dialogd.protocol.model import USER, Entry
from dialogd.protocol.moments import Zone
from dialogd.protocol.questions import Question
from dialogd.protocol.redact import redact
from dialogd.protocol.state import Dialog

Event = Literal["question", "stalled", "error", "end", "entry"]

VERSION = 1
TEXT_LENGTH = 500  # characters of what was said
REASON_LENGTH = 300
TOPIC_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `agent` is whom it concerns, `text` what was said, `reason` why it matters; each on one line.

    `url` is the page of the daemon that raised it, `at` wall time in UTC. `is_main` is False for a second alert of the
    same entry, such as the error of an agent with which the dialog ended. `by` (an ISO time) and `default` are those of
    a question, "" without.
    """

    event: Event
    dialog: str
    topic: str
    file: str
    agent: str
    turn: int
    text: str
    reason: str
    url: str
    at: str
    is_main: bool = True
    by: str = ""
    default: str = ""

    @property
    def json(self) -> bytes:
        """What hooks are given: one JSON object, ASCII, with a newline."""
        facts = {
            "v": VERSION, "event": self.event, "dialog": self.dialog, "topic": self.topic, "file": self.file,
            "agent": self.agent, "turn": self.turn, "text": self.text, "reason": self.reason, "url": self.url,
            "at": self.at, "by": self.by, "default": self.default,
        }  # fmt: skip
        return json.dumps(facts).encode() + b"\n"

    @property
    def title(self) -> str:
        """The alert in a few words."""
        words = {"question": "your turn", "stalled": "stalled", "error": "an agent failed", "end": "ended"}
        return f"dialogd: {words.get(self.event, 'news')}" + (f" ({self.topic})" if self.topic else "")


def worth(
    dialog: Dialog,
    entry: Entry,
    *,
    file: str,
    url: str,
    at: str,
    zone: Zone | None = None,
    secrets: Sequence[str] = (),
) -> tuple[Alert, ...]:
    """The alerts that `entry`, the latest of `dialog`, is worth, the most pressing first; none for the person's own.

    Deadlines are told by the clock of `zone`.
    """
    if entry.by == USER:
        return ()
    found: list[tuple[Event, str, str]] = [*_pressing(dialog, entry)] or [("entry", entry.by, _marks(entry))]
    alerts = (
        Alert(
            event=event,
            dialog=dialog.id,
            topic=one_line(dialog.header.topic, TOPIC_LENGTH, secrets),
            file=file,
            agent=agent,
            turn=dialog.state.number,
            text=_said(entry, secrets),
            reason=one_line(reason, REASON_LENGTH, secrets),
            url=url,
            at=at,
            is_main=place == 0,
        )
        for place, (event, agent, reason) in enumerate(found)
    )
    return tuple(_asking(dialog, alert, zone, secrets) if alert.event == "question" else alert for alert in alerts)


def _asking(dialog: Dialog, alert: Alert, zone: Zone | None, secrets: Sequence[str]) -> Alert:
    """The alert of a question, with the words of the entry that asks: in a round another may have come last."""
    questions = dialog.state.questions
    own = [question for question in questions if question.asker == dialog.state.asker]
    entry = dialog.entry(own[-1].entry) if own else None
    if entry is None:
        return alert
    room = max((REASON_LENGTH + 3) // len(questions) - 3, 30)  # for each, with what stands between them
    reason = " / ".join(_question(dialog, each, alert.at, zone, room, secrets) for each in questions)
    return replace(
        alert,
        text=_said(entry, secrets),
        reason=one_line(reason, REASON_LENGTH),
        by=next((question.by for question in own if question.by), ""),
        default=one_line(next((question.default for question in own if question.default), ""), TEXT_LENGTH, secrets),
    )


def _question(dialog: Dialog, question: Question, at: str, zone: Zone | None, room: int, secrets: Sequence[str]) -> str:
    """A question with its deadline and default, in so many characters: its own words are the first to be cut."""
    terms = one_line(asked.terms_in_words(dialog, question, at, zone), room * 2 // 3, secrets)
    said = one_line(question.said, room - len(terms) - 3 if terms else room, secrets)
    return f"{said} ({terms})" if terms else said


def _said(entry: Entry, secrets: Sequence[str]) -> str:
    return one_line(entry.body or " ".join(map(str, entry.marks)), TEXT_LENGTH, secrets)


def _marks(entry: Entry) -> str:
    return " ".join(str(mark) for mark in entry.marks)


def _pressing(dialog: Dialog, entry: Entry) -> Iterator[tuple[Event, str, str]]:
    """Event, agent and reason of what should reach the person: an end, a failure, a stall, a question."""
    outcome = dialog.state.outcome
    if outcome is not None and outcome.entry == entry.id:
        yield "end", entry.by, f"{outcome.name}: {outcome.reason}" if outcome.reason else outcome.name
    is_told = False
    for mark in entry.marks:
        if mark.name == "AGENT_ERROR":
            agent, cause, fix = (*mark.fields, "", "")[:3]
            yield "error", agent, f"{agent} failed: {cause}" + (f" ({fix})" if fix else "")
            is_told = True
        elif mark.name == "STALLED":
            yield "stalled", mark.fields[0], f"{mark.fields[0]} gave no answer in time"
            is_told = True
    if outcome is None and not is_told and _asks(dialog, entry):
        state = dialog.state
        yield "question", state.asker or entry.by, state.question or state.escalation or "the next turn is yours"


def _asks(dialog: Dialog, entry: Entry) -> bool:
    """True when the dialog waits for the person since this entry, and not merely because it goes step by step."""
    state = dialog.state
    if set(state.owing) != {USER} or not any(debt.re == entry.id for debt in state.debts):
        return False
    return not state.step or bool(state.question) or state.escalated == USER


def one_line(text: str, length: int, secrets: Sequence[str] = ()) -> str:
    """The text without secrets and control characters, on one line, cut to so many characters."""
    safe = redact(text, secrets)[0]
    words = "".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in safe).split()
    whole = " ".join(words)
    return whole if len(whole) <= length else f"{whole[: length - 1].rstrip()}…"
