"""While you were away: what happened in a dialog since some turn, from its marks alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dialogd.errors import BadInput
from dialogd.flow import Message, flow
from dialogd.protocol import asked, board, units
from dialogd.protocol.decide import Clock, Wait, decide
from dialogd.protocol.ledger import AGAINST, Position, latest, positions
from dialogd.protocol.lifecycle import in_words
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.money import accounted, in_dollars, total
from dialogd.protocol.spent import Spent
from dialogd.protocol.state import Dialog, State
from dialogd.protocol.text import one_line

MOST = 4  # items of one kind in the text
WIDTH = 200  # characters of an item

_TROUBLE = ("AGENT_ERROR", "STALLED", "SKIP", "RETRY", "BUDGET_REACHED", "MAX_SIZE_REACHED")
_PEOPLE = ("INVITE", "LEAVE")
_LIMITS = ("LIMIT", "STEP", "PAUSED", "RESUMED")
_ENDED = ("CONSENSUS_REACHED", "DEADLOCK", "DECIDED", "MAX_TURNS_REACHED", "MAX_TIME_REACHED", "STOPPED", "APPROVED")
_WITHDRAWN = ("STRIKE", "VETO", "REJECTED")
_WAITING = frozenset({"waiting_for_user", "unknown_turn", "damaged", "no_turn_yet", "unfinished"})
_AGO = re.compile(r"(\d{1,6})\s*(m|min|minutes?|h|hours?|d|days?|w|weeks?)(?:\s+ago)?", re.I)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that happened: in which turn (that before a note), by whom, in words. `at` is wall time or ""."""

    turn: int
    by: str
    text: str
    at: str = ""
    is_withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class Away:
    """What happened after turn `since`; every list is in order. `spent` is the sum of these entries' accounts.

    `asked_you` are questions for the person that are still open. `now` says where the dialog stands, `needed` what it
    waits for from the person ("" for nothing).
    """

    since: int
    turns: int
    asked_you: tuple[Item, ...]
    ended: tuple[Item, ...]
    decided: tuple[Item, ...]
    proposed: tuple[Item, ...]
    objections: tuple[Item, ...]
    changed: tuple[Item, ...]
    conceded: tuple[Item, ...]
    asked: tuple[Item, ...]
    answered: tuple[Item, ...]
    errors: tuple[Item, ...]
    people: tuple[Item, ...]
    limits: tuple[Item, ...]
    withdrawn: tuple[Item, ...]
    spent: Spent
    now: str
    needed: str

    def sections(self) -> tuple[tuple[str, tuple[Item, ...]], ...]:
        """Title and items of everything that is not empty, the most important first."""
        titles = {
            "asked you": self.asked_you,
            "ended": self.ended,
            "decided": self.decided,
            "errors and stalls": self.errors,
            "objections that stand": self.objections,
            "changed their position": self.changed,
            "conceded": self.conceded,
            "proposed": self.proposed,
            "asked each other": self.asked,
            "answered": self.answered,
            "withdrawn by you": self.withdrawn,
            "joined and left": self.people,
            "limits and pauses": self.limits,
        }
        return tuple((title, items) for title, items in titles.items() if items)


def away(dialog: Dialog, since: int) -> Away:
    """What happened in the entries after turn `since`; 0 is the whole dialog."""
    entries = after(dialog, since)
    ids = {entry.id for entry in entries}
    messages = flow(dialog)
    said = [message for message in messages if message.payload["entry"] in ids]
    ledger = positions(dialog)
    return Away(
        since=since,
        turns=sum(entry.is_turn for entry in entries),
        asked_you=_of(said, "QUESTION_FOR_USER", is_open=True),
        ended=_of(said, *_ENDED),
        decided=(*_decided(dialog, ids), *_of(said, "DEFAULT_TAKEN")),
        proposed=tuple(_item(m) for m in said if m.message_type == "PROPOSAL"),
        objections=tuple(_standing(dialog, said, ledger)),
        changed=tuple(_changed(ledger, since)),
        conceded=_of(said, "CONCEDE"),
        asked=_of(said, "QUESTION"),
        answered=tuple(_answers(messages, ids)),
        errors=_of(said, *_TROUBLE),
        people=_of(said, *_PEOPLE),
        limits=_of(said, *_LIMITS),
        withdrawn=_of(said, *_WITHDRAWN),
        spent=_spent(dialog, entries),
        now=one_line(in_words(dialog)),
        needed=_needed(dialog),
    )


def after(dialog: Dialog, since: int) -> tuple[Entry, ...]:
    """The entries that stand behind turn `since` and count."""
    turn, found = 0, []
    for entry in dialog.entries:
        if entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
            continue
        turn = entry.number if entry.is_turn else turn
        if turn > since or (turn == since and not entry.is_turn):
            found.append(entry)
    return tuple(found)


def last_word(dialog: Dialog) -> int:
    """The turn at which the person last wrote something: what follows it is news. 0 where they never did."""
    turn, found = 0, 0
    for entry in dialog.entries:
        turn = entry.number if entry.is_turn else turn
        found = turn if entry.by == USER else found
    return found


def since_turn(dialog: Dialog, text: str, now_iso: str) -> int:
    """The turn that `2h`, `90m`, `1d`, `7`, `turn 7`, `today`, `yesterday` or a time means: its last one before that.

    `now_iso` is the time now, with the person's offset. Raises `BadInput`.
    """
    words = " ".join(text.split()).casefold()
    if match := re.fullmatch(r"(?:turn\s+)?#?(\d{1,9})", words):
        return int(match[1])
    moment = _moment(words, datetime.fromisoformat(now_iso.replace("Z", "+00:00")))
    if moment is None:
        raise BadInput(
            f"{one_line(text, 60)!r} is neither a turn nor a time",
            fix="write a turn (7), how long ago (90m, 2h, 1d), today, yesterday, or a time (2026-11-21T19:00)",
        )
    turn, found = 0, 0
    for entry in dialog.entries:
        turn = entry.number if entry.is_turn else turn
        passed = units.seconds_between(entry.frame.at, moment.isoformat()) if entry.frame else None
        if passed is not None and passed < 0:
            break
        found = turn if passed is not None else found  # when a turn was typed by hand, nobody knows
    return found


def _moment(words: str, now: datetime) -> datetime | None:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if words in ("today", "yesterday"):
        return midnight - timedelta(days=words == "yesterday")
    try:
        if match := _AGO.fullmatch(words):
            return now - timedelta(**{_UNITS[match[2][0]]: int(match[1])})
        found = datetime.fromisoformat(words.upper().replace("Z", "+00:00"))
    except (ValueError, OverflowError):
        return None
    return found.replace(tzinfo=now.tzinfo or UTC) if found.tzinfo is None else found


def _item(message: Message, text: str = "") -> Item:
    said = message.payload
    words = text or " ".join(filter(None, [said["reference"], one_line(said["text"], WIDTH) or said["summary"]]))
    return Item(said["turn"], message.from_agent, words, message.timestamp, said["is_withdrawn"])


def _of(said: Sequence[Message], *kinds: str, is_open: bool = False) -> tuple[Item, ...]:
    """The messages of these types, in words; with more than one type each names its own."""
    return tuple(
        _item(m, _words(m, named=len(kinds) > 1))
        for m in said
        if m.message_type in kinds and (m.payload["is_open"] or not is_open)
    )


def _words(message: Message, *, named: bool) -> str:
    text = one_line(message.payload["text"].replace(" | ", "; "), WIDTH)
    if message.message_type == "QUESTION":
        to = f"to {message.to_agent}: " if message.to_agent else ""
        return f"{to}{text}{' (open)' if message.payload['is_open'] else ''}"
    return f"{message.message_type} {text}".strip() if named else text


def _decided(dialog: Dialog, ids: set[str]) -> Iterator[Item]:
    """The decisions of these entries, with what they are about."""
    texts = {proposal.ref: proposal.text for proposal in dialog.state.proposals}
    entries = {entry.id: entry for entry in dialog.entries}
    for decision in board.decisions(dialog):
        entry = entries.get(decision.entry)
        if entry is None or entry.id not in ids:
            continue
        what = one_line(texts.get(decision.ref, ""), WIDTH // 2)
        words = f"{decision.ref} {decision.outcome} ({decision.method})".strip()
        words += (f": {what}" if what else "") + (f"; {one_line(decision.evidence, 80)}" if decision.evidence else "")
        yield Item(int(entry.id.split(".")[0]), "System", words, entry.frame.at if entry.frame else "")


def _standing(dialog: Dialog, said: Sequence[Message], ledger: Sequence[Position]) -> Iterator[Item]:
    """Objections whose author is still against what is still undecided; what everybody signed settles them all."""
    if dialog.state.outcome is not None and dialog.state.outcome.name == "CONSENSUS_REACHED":
        return
    held, final = latest(ledger), {decision.ref for decision in dialog.state.decisions if decision.is_final}
    gone = final | set(dialog.state.vetoed)
    for message in said:
        if message.message_type not in ("OBJECTION", "RESERVATION") or message.payload["is_withdrawn"]:
            continue
        against = [p.ref for p in ledger if (p.agent, p.turn) == (message.from_agent, message.payload["turn"])]
        against = [ref for ref in against if ref not in gone and held[message.from_agent, ref].stance == AGAINST]
        came_round = any(
            m.from_agent == message.from_agent
            and m.message_type in ("CONCEDE", "AGREE", "CONSENSUS_REACHED")
            and m.payload["turn"] > message.payload["turn"]
            for m in said
        )
        if against or not (came_round or dialog.state.outcome):
            yield _item(message)


def _changed(ledger: Sequence[Position], since: int) -> Iterator[Item]:
    held: dict[tuple[str, str], str] = {}
    for position in ledger:
        before = held.get((position.agent, position.ref))
        held[position.agent, position.ref] = position.stance
        if before is not None and position.turn > since:
            why = f", because of {one_line(position.cause, WIDTH // 2)}" if position.cause else ", naming no cause"
            yield Item(position.turn, position.agent, f"{position.ref}: {before} → {position.stance}{why}")


def _answers(messages: Sequence[Message], ids: set[str]) -> Iterator[Item]:
    """What was said in answer to a question, with the question."""
    asked = {m.message_id: m for m in messages if m.requires_response}
    for message in messages:
        question = asked.get(message.payload["answers"])
        if question is not None and message.payload["entry"] in ids:
            words = f"{one_line(question.payload['text'], 80)} → {one_line(message.payload['summary'], WIDTH // 2)}"
            yield _item(message, words)


def _spent(dialog: Dialog, entries: Sequence[Entry]) -> Spent:
    state = State(limits=dialog.header.limits)
    for entry in entries:
        state = accounted(dialog.header, state, entry)
    return total(state.spent)


def _needed(dialog: Dialog) -> str:
    """What the dialog waits for from the person, in words; "" while it goes on by itself."""
    state = dialog.state
    if state.outcome is not None:
        if state.approved or state.outcome.name == "STOPPED":
            return ""
        return "look at the result: dialogd approve takes it, dialogd reject WHY sends the agents back to it"
    if state.question:
        until = f" ({asked.until_in_words(state.question_by, '')})" if state.question_by else ""
        return one_line(f"answer {state.asker}: {state.question}{until}" if state.asker else state.question + until)
    agents = dialog.header.agents
    me = next((who for who in state.owing if who != USER), agents[0].id if agents else "")
    action = decide(dialog, me, Clock(rest=1e9))
    waits = isinstance(action, Wait) and (action.status in _WAITING or action.status == "paused")
    return one_line(action.reason) if isinstance(action, Wait) and waits else ""


def as_text(news: Away, most: int = MOST, width: int = 100) -> str:
    """A screenful: where it stands and what is needed first, then each kind, at most `most` items of it."""
    turns = "nothing was written" if not news.turns else f"{news.turns} turn{'s' if news.turns > 1 else ''}"
    is_priced = news.spent.entries > news.spent.unknown
    money = f", {in_dollars(news.spent)}" if is_priced else ""
    since = f"since turn {news.since}" if news.since else "since the beginning"
    lines = [f"{since}: {turns}{money}", f"now: {news.now}"]
    lines += [f"needed from you: {news.needed}"] if news.needed else ["needed from you: nothing"]
    for title, items in news.sections():
        lines += ["", f"{title}: {len(items)}" if len(items) > 1 else f"{title}:"]
        shown = items if len(items) <= most + 1 else items[-most:]
        lines += [f"  and {len(items) - len(shown)} earlier"] if len(shown) < len(items) else []
        lines += [one_line(_line(item), width - 2).join(("  ", "")) for item in shown]
    return "\n".join(lines)


def _line(item: Item) -> str:
    withdrawn = " (withdrawn)" if item.is_withdrawn else ""
    return f"turn {item.turn}, {item.by}: {item.text}{withdrawn}"
