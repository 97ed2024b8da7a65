"""The person's hand in a dialog: veto, strike, suggest, ask, limit, invite, leave, step; each an entry in the file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dialogd.errors import BadInput, Refused
from dialogd.logfile import LogFile
from dialogd.person import in_mark, named, note_of, say, single, write
from dialogd.protocol import hand, lifecycle
from dialogd.protocol.compose import passed_by_hand
from dialogd.protocol.consent import next_ref
from dialogd.protocol.fold import limit as limited
from dialogd.protocol.header import read_agent
from dialogd.protocol.model import USER, Agent, Mark
from dialogd.protocol.order import following, reopened
from dialogd.protocol.redact import redact
from dialogd.protocol.render import Draft
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, one_line

LONGEST = 100_000  # characters of a suggestion, which is one line of the file and never cut


def veto(log: LogFile, proposal: str, reason: str = "", *, secrets: Sequence[str] = ()) -> Dialog:
    """Rule a proposal (`P2`) out for good. Does nothing when it is ruled out already.

    `secrets` are taken out. Raises `BadInput` for a proposal that is none, `Refused` after the end.
    """
    wanted = hand.refs_in(Mark("VETO", proposal))
    short, whole = in_mark(reason, secrets)
    mark = _mark("VETO", ", ".join(wanted), short)

    def make(dialog: Dialog) -> Draft | None:
        known = [one.ref for one in dialog.state.proposals]
        strange = [ref for ref in wanted if ref not in known]
        if strange or not wanted:
            what = f"there is no proposal {', '.join(strange) or repr(proposal[:60])}"
            raise BadInput(
                what, fix=f"name one of: {', '.join(known)}" if known else "wait for one: nobody has proposed yet"
            )
        if dialog.state.outcome is not None:
            raise Refused(
                f"cannot veto: the dialog is {lifecycle.in_words(dialog)}",
                fix='do not take the result: dialogd reject "why"; or withdraw a turn: dialogd strike N',
            )
        if all(ref in dialog.state.vetoed for ref in wanted):
            return None
        return note_of(mark, turn=_or_next(dialog), body=whole)

    return write(log, make)


def strike(log: LogFile, turns: str, reason: str = "", *, secrets: Sequence[str] = ()) -> Dialog:
    """Withdraw turns (`7`, `7, 9`, `3-5`): their marks stop counting. Does nothing when they are struck already.

    A strike of what the end rests on opens the dialog again, with the word to the person. `secrets` are taken out.
    Raises `BadInput` for a turn that is none.
    """
    short, whole = in_mark(reason, secrets)

    def make(dialog: Dialog) -> Draft | None:
        there = {entry.number for entry in dialog.turns}
        wanted = sorted(hand.turns_in(Mark("STRIKE", turns), max(dialog.state.number, 1)))
        if not wanted or not set(wanted) <= there or not _is_clear(turns, dialog):
            last = dialog.state.number
            fix = f"name turns from 1 to {last}: dialogd strike {last}" if last else "there is no turn yet"
            raise BadInput(f"there is no turn {turns[:60].strip() or '(none given)'}", fix=fix)
        if set(wanted) <= dialog.state.struck:
            return None
        return note_of(_mark("STRIKE", ", ".join(map(str, wanted)), short), body=whole)

    return write(log, make)


def _is_clear(turns: str, dialog: Dialog) -> bool:
    """True when the text holds numbers of turns and nothing else."""
    words = re.split(r"[\s,–-]+", turns.strip(" ,"))
    return all(re.fullmatch(r"\d{1,9}", word) and 1 <= int(word) <= dialog.state.number for word in words)


def suggest(log: LogFile, text: str, instead: str = "", *, secrets: Sequence[str] = ()) -> Dialog:
    """Put a proposal of the person's own, numbered like all, in a turn; it passes to whom `say` would.

    `instead` is the proposal (`P1`) in whose place it is meant. `secrets` are taken out. Raises `BadInput`.
    """
    words = redact(clean(text), secrets)[0].strip()
    if not words or len(words) > LONGEST:
        what = "there is nothing to suggest" if not words else f"a suggestion has at most {LONGEST:,} characters"
        raise BadInput(what, fix='give the words: dialogd suggest "Use SQLite"')
    refs = hand.refs_in(Mark("VETO", instead))

    def make(dialog: Dialog) -> Draft:
        known = [one.ref for one in dialog.state.proposals]
        if instead.strip() and (not refs or any(ref not in known for ref in refs)):
            fix = f"name one of: {', '.join(known)}" if known else "leave it out: nobody has proposed anything yet"
            raise BadInput(f"there is no proposal {instead[:60]!r} to put this in the place of", fix=fix)
        body = f"Instead of {', '.join(refs)}:\n\n{words}" if refs else words
        mark = Mark("PROPOSAL", one_line(words, LONGEST), next_ref(dialog.state))
        turn = reopened(dialog.header, dialog.state)
        return Draft(USER, "User", dialog.state.number + 1, body, (mark,), turn)

    return write(log, make)


def ask(log: LogFile, agent: str, text: str, *, secrets: Sequence[str] = ()) -> Dialog:
    """Ask one agent: a turn that passes to it alone; after its answer the order goes on.

    Raises `BadInput` for no agent, or several.
    """
    single(named(log.read(), agent), agent)
    return say(log, text, to=agent, secrets=secrets)


def limit(log: LogFile, name: str, value: str) -> Dialog:
    """Change a limit, by a note: `max_turns` `40`. Does nothing where that changes nothing. Raises `BadInput`."""
    said = " ".join(f"{name} {value}".split())
    new = f"{said.partition(' ')[0].lower().replace('-', '_')} {said.partition(' ')[2]}"

    def make(dialog: Dialog) -> Draft | None:
        limits, problem = limited(dialog.state.limits, new)
        if problem:
            raise BadInput(problem, fix="write it like: dialogd limit max_turns 40, or dialogd limit budget '$4'")
        return None if limits == dialog.state.limits else note_of(Mark("LIMIT", one_line(new, 200)))

    return write(log, make)


def invite(log: LogFile, agent: str, *, secrets: Sequence[str] = ()) -> Dialog:
    """Have one more agent take part, behind the others: `C`, `C = Claude C`, `C = Claude C @ http://localhost:3003`.

    Its daemon is started by the person. Does nothing when that very agent takes part. `secrets` are taken out. Raises
    `BadInput` for a bad id, name or address, or an id or port that another agent has.
    """
    agent = redact(clean(agent), secrets)[0]

    def make(dialog: Dialog) -> Draft | None:
        if _takes_part(dialog, agent):
            return None
        found, problem = hand.invited(dialog.header, agent, dialog.state.hand.left)
        if found is None:
            port = hand.free_port(dialog.header, dialog.state.hand.left)
            raise BadInput(
                f"cannot invite {agent[:60].strip() or 'nobody'}: {problem or 'that is no agent'}",
                fix=f"give it an id and a port of its own: dialogd invite {_free_id(dialog)} --port {port}",
            )
        return note_of(Mark("INVITE", as_written(found)))

    return write(log, make)


def _takes_part(dialog: Dialog, agent: str) -> bool:
    """True when this very agent takes part: nothing that is said of it is new."""
    known, problem = read_agent(agent.strip(), 0)
    one = dialog.header.agent(known.id) if known is not None and not problem else None
    if known is None or one is None:
        return False
    return (not known.is_named or known.name == one.name) and ("@" not in agent or known.url == one.url)


def as_written(agent: Agent) -> str:
    """An agent as a header or an INVITE mark names it."""
    name = f" = {agent.name}" if agent.is_named else ""
    return f"{agent.id}{name}{f' ({agent.role})' if agent.role else ''} @ {agent.url}"


def _free_id(dialog: Dialog) -> str:
    taken = {agent.id.casefold() for agent in dialog.header.agents}
    return next((letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter.casefold() not in taken), "Z2")


def leave(log: LogFile, agent: str, reason: str = "", *, secrets: Sequence[str] = ()) -> Dialog:
    """Let an agent take part no longer: what it owed is closed, and the word goes on. Does nothing for who has left.

    `USER` is the person: nothing waits for them from here on, as in a dialog that began with nobody at the table.
    Raises `BadInput` for an unknown agent, `Refused` for the last one, and for the person where one agent is left.
    """
    short, whole = in_mark(reason, secrets)

    def make(dialog: Dialog) -> Draft | None:
        if any(agent.strip().casefold() in (one.id.casefold(), one.name.casefold()) for one in dialog.state.hand.left):
            return None
        if agent.strip().upper() == USER:
            return note_of(_mark("LEAVE", USER, short), body=whole) if _may_go(dialog) else None
        found = single(named(dialog, agent), agent)
        if len(dialog.header.agents) == 1:
            raise Refused(f"{found} is the last agent and cannot leave", fix="end the dialog: dialogd stop")
        mark = _mark("LEAVE", found, short)
        if dialog.state.outcome is not None or found not in dialog.state.owing:
            return note_of(mark, body=whole)
        step = passed_by_hand(dialog, found, mark)
        end = (Mark(step.outcome, step.why),) if step.outcome else ()
        return note_of(mark, *step.marks, *end, turn=step.turn, body=whole)

    return write(log, make)


def _may_go(dialog: Dialog) -> bool:
    """True where the person is at the table. Raises `Refused` where one agent would be left."""
    if len(dialog.header.agents) < 2:
        raise Refused("you cannot leave: one agent alone agrees to nothing", fix="end the dialog: dialogd stop")
    return not dialog.header.is_unattended


def step(log: LogFile, *, on: bool) -> Dialog:
    """Step mode: with `on` the word comes back to the person after every turn. Does nothing where it is so already.

    Off, the word goes on where it waits for the person for no other reason. Raises `Refused` after the end.
    """

    def make(dialog: Dialog) -> Draft | None:
        lifecycle.refuse(dialog, "step")
        state = dialog.state
        if state.step is on:
            return None
        waits = not on and set(state.owing) == {USER} and not state.questions and state.escalated != USER
        turn = following(dialog.header, state, state.last_agent) if waits and state.last_agent else None
        return note_of(Mark("STEP", "on" if on else "off"), turn=turn)

    return write(log, make)


def _mark(name: str, value: str, short: str) -> Mark:
    """A mark with the person's reason behind its bar."""
    return Mark(name, f"{value} | {short}" if short else value)


def _or_next(dialog: Dialog) -> tuple[str, ...] | None:
    """Who is next, where nobody owes a turn: so that nothing hangs."""
    return None if dialog.state.debts else reopened(dialog.header, dialog.state)
