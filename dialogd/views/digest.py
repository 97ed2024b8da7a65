"""What happened since a turn or a time, in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from dialogd.errors import BadInput
from dialogd.protocol import board, lifecycle, questions, units
from dialogd.protocol.board import AGAINST, Position, Reopening, latest, positions, rejections_in, reopenings
from dialogd.protocol.certificate import where
from dialogd.protocol.decide import Clock, Wait, decide
from dialogd.protocol.model import AGREED, OUTCOMES, USER, Condition, Entry, turn_number
from dialogd.protocol.money import accounted, in_dollars, total
from dialogd.protocol.state import Dialog, Spent
from dialogd.protocol.text import one_line
from dialogd.protocol.units import Zone, clock_at
from dialogd.views.flow import ASKING, Message, flow, names_of
from dialogd.views.words import by_name, called, ending, first_words, row_of

TIMES = "how long ago (90m, 2h, 7d), today, yesterday, or a time (2026-11-21T19:00)"

_PART = r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)"
_SPAN = re.compile(rf"{_PART}(?:,?(?: and)? ?{_PART})*(?: ago)?")
_PARTS, _NOTHING = re.compile(_PART), timedelta()
_DATED = re.compile(r"[0-9]{4}-")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def last_word(dialog: Dialog) -> int:
    """The turn at which the person last wrote something, 0 where they never did."""
    return next((turn_number(entry.id) for entry in reversed(dialog.entries) if entry.is_persons), 0)


def since_turn(dialog: Dialog, text: str, now_iso: str, zone: Zone | None = None) -> int:
    """The turn that `7`, `turn 7` or a time, as `moment` reads it, means: the last one before that.

    `now_iso` is the time now, with the person's offset. Raises `BadInput`.
    """
    words = " ".join(text.split()).casefold()
    if match := re.fullmatch(r"(?:turn\s+)?#?(\d{1,9})", words):
        return int(match[1])
    then = moment(words, datetime.fromisoformat(now_iso), zone)
    if then is None:
        raise BadInput(
            f"{one_line(text, 60)!r} is neither a turn nor a time",
            fix=f"write a turn (7), {TIMES}",
        )
    found = 0
    for entry in dialog.entries:
        passed = units.seconds_between(entry.at, then.isoformat())
        if passed is not None and passed < 0:
            break
        found = turn_number(entry.id) if passed is not None else found  # when a turn was typed by hand, nobody knows
    return found


def moment(text: str, now: datetime, zone: Zone | None = None) -> datetime | None:
    """The time that `2h`, `1h 30m ago`, `7d`, `today`, `yesterday`, a date or a time means; None for anything else.

    A time without an offset is in `zone`, or without that in the zone of `now`.
    """
    words, zone = " ".join(text.split()).casefold(), zone or clock_at(now.tzinfo or UTC)
    try:
        if words in ("today", "yesterday"):
            day = zone(now).date() - timedelta(days=words == "yesterday")
            return zone(datetime.combine(day, time()))
        if _SPAN.fullmatch(words):
            return now - sum((timedelta(**{_UNITS[unit[0]]: float(n)}) for n, unit in _PARTS.findall(words)), _NOTHING)
        found = datetime.fromisoformat(words.upper()) if _DATED.match(words) else None
        return found if found is None or found.tzinfo else zone(found)
    except (ValueError, OverflowError):
        return None


# -- While you were away ----------------------------------------------------------------------------------------------

MOST = 4  # items of one kind in the text
WIDTH = 200  # characters of an item

_WAITING = frozenset({"waiting_for_user", "unknown_turn", "damaged", "no_turn_yet", "unfinished", "paused"})
_NAMED = ("errors", "people", "limits", "withdrawn")  # sections of several kinds: each item says its own

TITLES = {
    "asked_you": "asked you",
    "ended": "ended",
    "decided": "decided",
    "rejected": "rejected by you",
    "errors": "errors and stalls",
    "objections": "objections that stand",
    "changed": "changed their position",
    "conceded": "conceded",
    "proposed": "proposed",
    "asked": "asked each other",
    "answered": "answered",
    "withdrawn": "withdrawn by you",
    "people": "joined and left",
    "limits": "limits and pauses",
}


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that happened: its turn (of a note, the one before), by whom, in words. `at` is wall time or ""."""

    turn: int
    by: str
    text: str
    at: str = ""
    is_withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class Away:
    """What happened after turn `since`. `spent` is the sum of these entries' accounts.

    `items` are those of each kind of `TITLES`, in order: `asked_you` are questions for the person that are still open,
    `decided` is without what they rejected. `now` is the dialog's state in words, `needed` what it waits for from the
    person, with commands ("" for nothing).
    """

    since: int
    turns: int
    items: Mapping[str, tuple[Item, ...]]
    spent: Spent
    now: str
    needed: str

    def sections(self) -> tuple[tuple[str, tuple[Item, ...]], ...]:
        """Title and items of everything that is not empty, the most important first."""
        return tuple((title, items) for kind, title in TITLES.items() if (items := self.items[kind]))


def away(dialog: Dialog, since: int, zone: units.Zone | None = None) -> Away:
    """What happened in the entries after turn `since`; 0 is the whole dialog. `zone` is the reader's clock."""
    entries, messages = after(dialog, since), flow(dialog)
    ids, ends = {entry.id for entry in entries}, {entry.id: entry.ending for entry in dialog.entries}
    names, ledger, opened = names_of(dialog), positions(dialog), reopenings(dialog)
    asked = {message.message_id: message.payload["text"] for message in messages if message.message_type in ASKING}
    items: dict[str, list[Item]] = {section: [] for section in TITLES}
    items["decided"] += _decided(dialog, ids, opened)
    items["rejected"] += _rejected(dialog, ids, opened)
    items["changed"] += _changed(ledger, since)
    for message in messages:
        said, section = message.payload, row_of(message.message_type).news
        if said["entry"] not in ids:
            continue
        if question := asked.get(said["answers"]):
            words = f"{one_line(question, 80)} → {one_line(said['summary'], WIDTH // 2)}"
            items["answered"].append(_item(message, words))
        end = ends[said["entry"]]
        if message.message_type in OUTCOMES:
            if end is not None and end.name == message.message_type:
                again = opened.get(said["entry"])
                then = f", opened again in {where(again.by)}" if again else ""
                items["ended"].append(_item(message, one_line(": ".join(filter(None, ending(end))), WIDTH) + then))
        elif section and _is_news(dialog, section, message, messages, ledger):
            items[section].append(_item(message, _words(message, section, names)))
    turns, now = sum(entry.is_turn for entry in entries), one_line(lifecycle.in_words(dialog))
    found = {section: tuple(rows) for section, rows in items.items()}
    return Away(since, turns, found, _spent(dialog, entries), now, _needed(dialog, zone))


def after(dialog: Dialog, since: int) -> tuple[Entry, ...]:
    """The entries after turn `since` that count."""
    counted = (entry for entry in dialog.entries if entry.condition not in (Condition.DAMAGED, Condition.UNFINISHED))
    return tuple(e for e in counted if turn_number(e.id) >= since + e.is_turn)


def _item(message: Message, text: str) -> Item:
    said = message.payload
    return Item(said["turn"], message.from_agent, text, message.timestamp, said["is_withdrawn"])


def _words(message: Message, section: str, names: Mapping[str, str]) -> str:
    said = message.payload
    head, *rest = said["text"].split(" | ")
    text = one_line("; ".join((names.get(head, head), *rest)), WIDTH)
    if section in _NAMED or message.message_type == "APPROVED":
        return ": ".join(filter(None, (called(message.message_type), text)))
    if section == "asked":
        to = f"to {message.to_agent}: " if message.to_agent else ""
        return f"{to}{text}{' (open)' if said['is_open'] else ''}"
    if section in ("asked_you", "conceded", "decided"):
        return text
    return " ".join(filter(None, (said["reference"], text or said["summary"])))


def _is_news(
    dialog: Dialog, section: str, message: Message, messages: Sequence[Message], ledger: Sequence[Position]
) -> bool:
    """False for a question that was answered, one whose words stand in its turn alone, and an objection that is met."""
    said, by, outcome = message.payload, message.from_agent, dialog.state.outcome
    if section == "asked_you":
        return said["is_open"]
    if section != "objections":
        return bool(said["text"]) or section != "asked"
    if said["is_withdrawn"] or (outcome is not None and outcome.name == "CONSENSUS_REACHED"):
        return False  # a text that all signed settles them all
    table, held = dialog.state.table, latest(ledger)
    gone = {decision.ref for decision in table.decisions if decision.is_final} | set(table.vetoed)
    against = {p.ref for p in ledger if (p.agent, p.turn) == (by, said["turn"])} - gone
    later = (m.message_type for m in messages if m.from_agent == by and m.payload["turn"] > said["turn"])
    came_round = any(row_of(kind).news == "conceded" or kind in ("AGREE", "CONSENSUS_REACHED") for kind in later)
    return any(held[by, ref].stance == AGAINST for ref in against) or not (came_round or outcome)


def _decided(dialog: Dialog, ids: set[str], opened: Mapping[str, Reopening]) -> Iterator[Item]:
    """The decisions of these entries, with what they are about; none of an end that the person rejected."""
    wanted = ids - {rejection.ended_in for rejection in rejections_in(opened)}
    times = {entry.id: entry.at for entry in dialog.entries if entry.id in wanted}
    texts, names = _texts(dialog), names_of(dialog)
    for decision in board.decisions(dialog, opened):
        if decision.entry in times:
            behind = one_line(by_name(decision.evidence, lambda who: names.get(who, who)), WIDTH // 2)
            words = "; ".join(filter(None, (_about(texts, decision), behind, decision.superseded)))
            yield Item(turn_number(decision.entry), "System", words, times[decision.entry])


def _texts(dialog: Dialog) -> dict[str, str]:
    """What each proposal says, by its number."""
    return {proposal.ref: proposal.text for proposal in reversed(dialog.state.table.proposals)}


def _about(texts: Mapping[str, str], decision: board.Decided) -> str:
    """What was decided, how, about which text: `P1 approved (vote): Postgres`; of what all signed, who did says how."""
    text = texts.get(decision.ref, "")
    words = f"{decision.ref} {decision.made}{'' if decision.method == 'mutual' else f' ({decision.method})'}".strip()
    return f"{words}: {one_line(first_words(text), WIDTH // 2)}" if text else words


def _rejected(dialog: Dialog, ids: set[str], opened: Mapping[str, Reopening]) -> Iterator[Item]:
    """The results that the person rejected in these entries: what they would have decided, and why not."""
    texts, about = _texts(dialog), dict[str, list[str]]()
    for decision in board.decisions(dialog, opened):
        about.setdefault(decision.entry, []).append(_about(texts, decision))
    for rejection in rejections_in(opened):
        if str(rejection.turn) in ids:
            result = ", ".join(about.get(rejection.ended_in, ())) or rejection.outcome
            words = f"{result}; because: {one_line(rejection.reason, WIDTH // 2)}"
            yield Item(rejection.turn, "User", words, rejection.at)


def _changed(ledger: Sequence[Position], since: int) -> Iterator[Item]:
    held: dict[tuple[str, str], str] = {}
    for position in ledger:
        before = held.get((position.agent, position.ref))
        held[position.agent, position.ref] = position.stance
        if before is not None and position.turn > since:
            yield Item(position.turn, position.agent, f"{position.ref}: {before} → {position.stance}")


def _spent(dialog: Dialog, entries: Sequence[Entry]) -> Spent:
    spent: Mapping[str, Spent] = {}
    for entry in entries:
        spent = accounted(dialog.header, spent, entry)
    return total(spent)


def _needed(dialog: Dialog, zone: units.Zone | None) -> str:
    """What the dialog waits for from the person, in words; "" for nothing."""
    state = dialog.state
    if state.outcome is not None:
        if state.approved or (state.outcome.name == "STOPPED" and not state.outcome.is_limit):
            return ""
        if state.outcome.name not in AGREED:
            return "say how it ends: `dialogd approve` closes it as it is, `dialogd say …` opens it again"
        return "look at the result: `dialogd approve` takes it, `dialogd reject WHY` sends the agents back to it"
    if state.questions.text:
        words = questions.waiting(dialog, "", zone)
        said = f"answer {state.questions.asker}: {words}" if state.questions.asker else words
        tasks = dialog.state.build
        return one_line(f"{said}: `{lifecycle.answers(dialog)[0]}`" if tasks else said)
    agents = dialog.header.agents
    me = next((who for who in state.owing if who != USER), agents[0].id if agents else "")
    action = decide(dialog, me, Clock(rest=1e9))
    return one_line(action.reason) if isinstance(action, Wait) and action.status in _WAITING else ""


def as_text(news: Away, most: int = MOST, width: int = 100) -> str:
    """One screen of text: the state and what is needed first, then at most `most` items of each kind."""
    turns = "nothing was written" if not news.turns else f"{news.turns} turn{'s' if news.turns > 1 else ''}"
    is_priced = news.spent.entries > news.spent.unknown
    money = f", {in_dollars(news.spent)}" if is_priced else ""
    since = f"since turn {news.since}" if news.since else "since the beginning"
    lines = [f"{since}: {turns}{money}", f"now: {news.now}", f"needed from you: {news.needed or 'nothing'}"]
    for title, items in news.sections():
        lines += ["", f"{title}: {len(items)}" if len(items) > 1 else f"{title}:"]
        shown = items if len(items) <= most + 1 else items[-most:]
        lines += [f"  and {len(items) - len(shown)} earlier"] if len(shown) < len(items) else []
        lines += [_line(item, width) for item in shown]
    return "\n".join(lines)


def _line(item: Item, width: int) -> str:
    """One item on one line, cut if too long, with a note at its end if it was withdrawn."""
    withdrawn = " (withdrawn)" if item.is_withdrawn else ""
    words = one_line(f"turn {item.turn}, {item.by}: {item.text}", width - 2 - len(withdrawn))
    return f"  {words}{withdrawn}"
