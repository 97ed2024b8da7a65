"""Every act of the person, as an entry in the file. Works with daemons running or none.

Each is drawn up from the dialog as it stands under the lock, and gives the dialog as it then is. Where there is nothing
to do nothing is written. `secrets` are taken out of what is given. Raises `BadInput` for what makes no sense, `Refused`
for what the dialog does not allow now, and for what is the person's alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from dialogd.config import command_on
from dialogd.errors import BadInput, Refused
from dialogd.protocol import build, fold, lifecycle
from dialogd.protocol.compose import decided_note, passed_by_hand
from dialogd.protocol.fold import state_after
from dialogd.protocol.grammar import who
from dialogd.protocol.header import agent_words, read_agent
from dialogd.protocol.marks import BESIDE
from dialogd.protocol.model import ALL, OTHER, USER, Addition, Draft, Mark, Said, whose
from dialogd.protocol.order import following, reopened
from dialogd.protocol.rules import CONTRIBUTIONS, Build
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import budget_line, clean, in_words, is_blank, many, one_line, read_budget, redact, unescape
from dialogd.store.disk import StateDir
from dialogd.store.journal import PERSON, Lost
from dialogd.store.logfile import LogFile, wall_time
from dialogd.store.registry import Caller, caller_here

if TYPE_CHECKING:
    from dialogd.tasks.git import Person as Committer
    from dialogd.tasks.worktrees import Leftover, Worktrees

Given = ParamSpec("Given")

notices = logging.getLogger("dialogd.person")

LONGEST = 100_000  # characters of a proposal, which is one line of the file and never cut


def write(log: LogFile, act: str, make: Callable[[Dialog], Draft | None]) -> Dialog:
    """Append what `make` draws up from the dialog under the lock, stamped with the time and whose doing it was."""
    via = admitted(log, act)

    def addition(dialog: Dialog) -> Addition | None:
        draft = make(dialog)
        if draft is None:
            return None
        named = replace(draft, name=whose(via)) if via and draft.by == USER else draft
        return Addition(replace(named, attributes=(("at", wall_time()), ("via", via), *draft.attributes)))

    return log.append(addition, log.journals.of(PERSON)) or log.read()


def _act(
    name: str, allowed_as: str = ""
) -> Callable[[Callable[Concatenate[Dialog, Given], Draft | None]], Callable[Concatenate[LogFile, Given], Dialog]]:
    """Makes an act of what draws up its entry; refused where the dialog does not allow what it is `allowed_as`."""

    def made(
        make: Callable[Concatenate[Dialog, Given], Draft | None],
    ) -> Callable[Concatenate[LogFile, Given], Dialog]:
        @wraps(make)
        def do(log: LogFile, /, *args: Given.args, **given: Given.kwargs) -> Dialog:
            def draft(dialog: Dialog) -> Draft | None:
                if allowed_as:
                    lifecycle.refuse(dialog, allowed_as)
                return make(dialog, *args, **given)

            return write(log, name, draft)

        return do

    return made


def note_of(*marks: Mark, turn: tuple[str, ...] | None = None, body: str = "") -> Draft:
    """A note of the person's; without words, but where a mark is too short for them."""
    return Draft(USER, "User", body=body, marks=marks, turn=turn)


def _turn_of(dialog: Dialog, body: str, marks: tuple[Mark, ...], turn: tuple[str, ...]) -> Draft:
    here = tuple(who for who in turn if who == USER or dialog.header.agent(who))  # not whom they let leave
    return Draft(USER, "User", dialog.state.number + 1, body, marks, here or (USER,))


def in_mark(reason: str, secrets: Sequence[str] = ()) -> tuple[str, str]:
    """The person's reason as a mark holds it, and as the body has to where a mark is too short for it; else ""."""
    words = redact(clean(reason), secrets)[0].strip("\n")
    short = one_line(words)
    return short.replace(" | ", " / "), "" if short == one_line(words, len(words)) else words


def _mark(name: str, value: str, short: str) -> Mark:
    """A mark with the person's reason behind its bar."""
    return Mark(name, f"{value} | {short}" if short else value)


def _after(dialog: Dialog, *marks: Mark) -> build.Tasks:
    """The tasks of a build as they stand once the person has written these marks."""
    return state_after(dialog.header, dialog.state, Said("", 0, USER, "", "", marks, ())).build


# -- What the person says ---------------------------------------------------------------------------------------------


def say(  # noqa: PLR0913 - what the person may say with a turn
    log: LogFile,
    text: str,
    *,
    to: str = "",
    note: bool = False,
    proposal: bool = False,
    instead: str = "",
    turns: int | None = None,
    budget: str = "",
    kind: str = "",
    host: str = "",
    secrets: Sequence[str] = (),
    check: Callable[[Dialog], object] = lambda _: None,
) -> Dialog:
    """Append the person's words: a turn, or with `note` a remark that costs nobody a call.

    `to` names whom the turn passes to (default: who owed it, else who asked, else the next in order). With `proposal`
    the words are a numbered proposal like any other; `instead` is the one (`P1`) in whose place it is meant. `turns`
    grants that many more turns, `budget` sets another one. `kind` makes them a contribution of that name, `host` is the
    program they came by. `check` is given the dialog under the lock, and raises where nothing may be added.
    """
    words = redact(clean(text), secrets)[0].strip("\n")
    proposes = proposal or bool(instead.strip()) or kind.strip().upper() == "PROPOSAL"
    if is_blank(words):
        raise BadInput("there is nothing to say", fix='give the words: dialogd say "Consider Redis too"')
    if proposes and (note or len(words) > LONGEST):
        what = "a note proposes nothing" if note else f"a proposal has at most {LONGEST:,} characters"
        raise BadInput(what, fix="make it a turn, not a note" if note else "propose the gist of it")
    limits, refs = _budget_mark(budget), fold.refs_in(Mark("VETO", instead))
    by = (("host", host),) if host else ()

    def make(dialog: Dialog) -> Draft:
        check(dialog)
        typed = _typed(dialog, kind, words)
        if note:
            return Draft(USER, "User", body=words, marks=(*typed, *limits), attributes=by)
        if instead.strip():
            _require_proposals(dialog, refs, instead)
        body = f"Instead of {', '.join(refs)}:\n\n{words}" if refs else words
        proposed = (Mark("PROPOSAL", one_line(words, LONGEST), dialog.state.table.next_ref),) if proposes else ()
        used = 0 if dialog.state.outcome else dialog.state.counted
        granted = () if turns is None else (Mark("LIMIT", f"max_turns {used + 1 + turns}"),)
        turn = _able(dialog, to) if to else reopened(dialog.header, dialog.state)
        return replace(_turn_of(dialog, body, (*proposed, *typed, *granted, *limits), turn), attributes=by)

    return write(log, "note" if note and not (limits or kind.strip()) else "say", make)


def kinds(dialog: Dialog, *, note: bool = False) -> tuple[str, ...]:
    """The kinds that the person's words may be as they stand, without fields; a note neither proposes nor objects."""
    known = {**CONTRIBUTIONS, **dialog.header.rules.kinds}.items()
    beside = ("RESERVATION", *BESIDE, *(("PROPOSAL", "OBJECTION") if note else ()))
    return tuple(name for name, kind in known if name not in beside and not kind.fields and not kind.resolves)


def _typed(dialog: Dialog, kind: str, words: str) -> tuple[Mark, ...]:
    if (name := kind.strip().upper()) and name not in kinds(dialog):
        raise BadInput(f"there are no messages of type {kind[:60]!r}", fix=f"name one of: {', '.join(kinds(dialog))}")
    return () if name in ("", "PROPOSAL") else (Mark(name, one_line(words, LONGEST)),)  # a proposal is numbered


def _budget_mark(budget: str) -> tuple[Mark, ...]:
    try:
        return (Mark("LIMIT", f"budget {budget_line(*read_budget(budget))}"),) if budget else ()
    except ValueError as error:
        raise BadInput(f"the budget {error}", fix="write it like $4, 500k tokens, or both") from None


def _require_proposals(dialog: Dialog, refs: Sequence[str], typed: str) -> None:
    """Raise `BadInput` where what was `typed` names no proposal, or one that is none."""
    known = [one.ref for one in dialog.state.table.proposals]
    strange = [ref for ref in refs if ref not in known]
    if strange or not refs:
        fix = f"name one of: {', '.join(known)}" if known else "wait for one: nobody has proposed yet"
        raise BadInput(f"there is no proposal {', '.join(strange) or repr(typed[:60])}", fix=fix)


# -- How the dialog goes on -------------------------------------------------------------------------------------------


@_act("pause")
def pause(dialog: Dialog) -> Draft | None:
    """Let agents finish their turn and wait; survives restarts."""
    if dialog.state.outcome is not None:
        lifecycle.refuse(dialog, "pause")
    return None if dialog.state.paused else note_of(Mark("PAUSED"))


@_act("resume")
def resume(dialog: Dialog) -> Draft | None:
    """Let agents go on."""
    return note_of(Mark("RESUMED")) if dialog.state.paused else None


@_act("pass")
def pass_on(dialog: Dialog) -> Draft | None:
    """Pass the turn, when it is the person's, to the next agent without a word: step mode's Enter."""
    is_mine = USER in dialog.state.owing
    return note_of(turn=following(dialog.header, dialog.state, dialog.state.floor.last)) if is_mine else None


@_act("retry", "retry")
def retry(dialog: Dialog, agent: str) -> Draft:
    """Ask `agent` once more: it owes a turn anew."""
    one = single(_able(dialog, agent), agent)
    others = dialog.state.build and {*dialog.state.questions.askers} - {one}  # of a build wait for their answer
    rest = tuple(a for a in dialog.state.owing if a != one and (a != USER or others))
    return note_of(Mark("RETRY", one), turn=(one, *rest))


@_act("skip", "skip")
def skip(dialog: Dialog, agent: str) -> Draft:
    """Pass over `agent`: its debt is closed and the turn goes on."""
    one = single(named(dialog, agent), agent)
    if one not in dialog.state.owing and one not in dialog.state.debts.failed:
        owing = ", ".join(dialog.state.owing) or "nobody"
        raise Refused(
            f"{one} owes no turn: the dialog is {lifecycle.where(dialog)}, and the turn is with {owing}",
            fix=f"skip {owing}, or wait for {one}'s turn",
        )
    return _passed(dialog, one, Mark("SKIP", one))


def _passed(dialog: Dialog, agent: str, mark: Mark, body: str = "") -> Draft:
    """The note by which what `agent` owes is closed, and the turn goes on."""
    step = passed_by_hand(dialog, agent, mark)
    end = (Mark(step.outcome, step.why),) if step.outcome else ()
    return note_of(mark, *step.marks, *end, turn=step.turn, body=body)


@_act("floor", "floor")
def floor(dialog: Dialog, agent: str = "") -> Draft | None:
    """Ask for the floor where the order is free: for `agent`, else for the person; it comes behind who asked before."""
    one = USER if not agent or agent.upper() == USER else single(named(dialog, agent), agent)
    if one in dialog.state.floor.queue:
        return None
    if one in dialog.state.owing:
        raise Refused(
            f"{one} has the floor: the dialog is {lifecycle.where(dialog)}, and the turn is with {one}",
            fix='speak: dialogd say "…"' if one == USER else "ask for it again after that turn",
        )
    able = dialog.header.speakers
    if one != USER and one not in able:
        raise Refused(f"{one} gets no turns in this dialog", fix=f"ask for one of: USER, {', '.join(able)}")
    return note_of(Mark("TO", one))


@_act("step", "step")
def step(dialog: Dialog, *, on: bool) -> Draft | None:
    """Step mode: with `on` the turn comes back to the person after every other."""
    state = dialog.state
    if state.hand.step is on:
        return None
    # Off, it goes on where it waits for the person for no other reason.
    waits = not on and set(state.owing) == {USER} and not state.questions.open and state.escalation.to != USER
    turn = following(dialog.header, state, state.floor.last) if waits and state.floor.last else None
    return note_of(Mark("STEP", "on" if on else "off"), turn=turn)


@_act("limit")
def limit(dialog: Dialog, name: str, value: str) -> Draft | None:
    """Change a limit: `max_turns` `40`."""
    first, _, rest = " ".join(f"{name} {value}".split()).partition(" ")
    new = f"{first.lower().replace('-', '_')} {rest}"
    limits, problem = dialog.state.limits.changed(new)
    if problem:
        raise BadInput(problem, fix="write it like: dialogd limit max_turns 40, or dialogd limit budget '$4'")
    return None if limits == dialog.state.limits else note_of(Mark("LIMIT", one_line(new, 200)))


# -- What stands in the file, and what comes of it --------------------------------------------------------------------


def restore(log: LogFile) -> Dialog:
    """Put turns back that a save has taken out of the file, as text in a note.

    Their marks do not count any more: who spoke since has answered a dialog without them.
    """

    def make(dialog: Dialog) -> Draft | None:
        lost = log.journals.lost(dialog)
        if not lost:
            return None
        intro = f"{_turns_of(lost)} had been taken out of this file by a save, and stand here as text."
        return note_of(body="\n\n".join([intro, *map(_as_text, lost)]))

    return write(log, "restore", make)


def taken_out(lost: Sequence[Lost], file: Path) -> str:
    """What is to be said of turns that a save has taken out of `file`, with what puts them back; "" for none."""
    if not lost:
        return ""
    back = command_on(file, "restore")
    return (
        f"{_turns_of(lost)}: taken out of the file by a save. Put back, as a note of yours: {back};"
        f" the text is kept in {lost[-1].kept}"
    )


def _turns_of(lost: Sequence[Lost]) -> str:
    numbers = sorted({one.number for one in lost})
    if len(numbers) == 1:
        return f"Turn {numbers[0]}"
    is_row = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"Turns {numbers[0]} to {numbers[-1]}" if is_row else f"Turns {', '.join(map(str, numbers))}"


def _as_text(lost: Lost) -> str:
    """A turn as a note has it: its heading with its hash, by which it is known to be back, and all that stood below."""
    heading, _, rest = lost.text.lstrip("-\n").partition("\n")
    return f"**{heading.removeprefix('## ')}** ({lost.chain})\n\n{unescape(rest.partition(chr(10))[2].strip(chr(10)))}"


@_act("veto")
def veto(dialog: Dialog, proposal: str, reason: str = "", *, secrets: Sequence[str] = ()) -> Draft | None:
    """Rule a proposal (`P2`) out for good."""
    wanted = fold.refs_in(Mark("VETO", proposal))
    short, whole = in_mark(reason, secrets)
    _require_proposals(dialog, wanted, proposal)
    if dialog.state.outcome is not None:
        raise Refused(
            f"cannot veto: the dialog is {lifecycle.in_words(dialog)}",
            fix='do not take the result: dialogd reject "why"; or withdraw a turn: dialogd strike N',
        )
    if all(ref in dialog.state.table.vetoed for ref in wanted):
        return None
    # Where nobody owes a turn somebody has to be next, so that nothing hangs.
    turn = None if dialog.state.debts.open else reopened(dialog.header, dialog.state)
    return note_of(_mark("VETO", ", ".join(wanted), short), turn=turn, body=whole)


@_act("strike")
def strike(dialog: Dialog, turn: str, reason: str = "", *, secrets: Sequence[str] = ()) -> Draft | None:
    """Withdraw turns (`7`, `7, 9`, `3-5`): their marks stop counting; what ended by them is open again."""
    short, whole = in_mark(reason, secrets)
    last = dialog.state.number
    wanted = sorted(fold.turns_in(Mark("STRIKE", turn), max(last, 1)))
    words = re.split(r"[\s,–-]+", turn.strip(" ,"))
    is_clear = all(re.fullmatch(r"\d{1,9}", word) and 1 <= int(word) <= last for word in words)  # numbers alone
    if not wanted or not set(wanted) <= {entry.number for entry in dialog.turns} or not is_clear:
        fix = f"name turns from 1 to {last}: dialogd strike {last}" if last else "there is no turn yet"
        raise BadInput(f"there is no turn {turn[:60].strip() or '(none given)'}", fix=fix)
    if set(wanted) <= dialog.state.hand.struck:
        return None
    return note_of(_mark("STRIKE", ", ".join(map(str, wanted)), short), body=whole)


@_act("stop")
def stop(dialog: Dialog, why: str = "", *, secrets: Sequence[str] = ()) -> Draft | None:
    """End the dialog with `[STOPPED]`."""
    short, whole = in_mark(why, secrets)
    return None if dialog.state.outcome else note_of(Mark("STOPPED", short), body=whole)


def approve(log: LogFile) -> Dialog:
    """Take the result, or the text that only absent agents have not signed; that ends the dialog."""

    def make(dialog: Dialog) -> Draft | None:
        if dialog.state.approved:
            return None
        lifecycle.refuse(dialog, "approve")
        return note_of(Mark("APPROVED"))

    after = write(log, "approve", make)
    return after if after.state.outcome else write(log, "approve", lambda dialog: decided_note(dialog, wall_time()))


@_act("reject", "reject")
def reject(dialog: Dialog, reason: str, *, secrets: Sequence[str] = ()) -> Draft:
    """Do not take the result: a turn with the reason, which opens the dialog again; it passes to whom `say` would."""
    words = redact(clean(reason), secrets)[0].strip("\n")
    if is_blank(words):
        raise BadInput("a rejection needs a reason", fix='say what is wrong: dialogd reject "It forgets …"')
    return _turn_of(dialog, words, (Mark("REJECTED", in_mark(words)[0]),), reopened(dialog.header, dialog.state))


# -- Whose act it is --------------------------------------------------------------------------------------------------

FROM_SEATS = frozenset({"join", "note", "pause", "resume", "stop"})
"""What a session that holds a seat may do, too; the file says whose doing it was."""

IN_TERMINALS = {
    "start": "start another agent",
    "seat": "ask another session to take part",
    "replace": "put another dialog in the place of this one",
    "share": "share a dialog with another machine",
    "mirror": "take part in a dialog of another machine",
}
"""What the person does in a terminal alone, in words."""


def admitted(log: LogFile, act: str) -> str:
    """Whose session does this, as a frame's `via` has it; "" for the person. A refusal is logged."""
    caller = log.caller()
    via = "" if caller.is_person else caller.via(log.path)
    if not via or act in FROM_SEATS:
        return via
    notices.info("refused %s from %s", act, whose(via))
    raise _not_theirs(act, caller, is_here=via != OTHER)


def own_words(log: LogFile, act: str, agent: str = "") -> None:
    """Refuse an act by which a session that holds a seat here would speak for another one than its own, `agent`."""
    if log.caller().via(log.path) not in ("", OTHER, agent):
        admitted(log, act)


def alone(state: StateDir, act: str) -> None:
    """Refuse an act outside of a dialog that comes from a session that holds a seat in any."""
    if not (caller := caller_here(state.registry)).is_person:
        raise _not_theirs(act, caller, is_here=False)


def _not_theirs(act: str, caller: Caller, *, is_here: bool) -> Refused:
    """Why this is not done, and where the person does it."""
    what = IN_TERMINALS.get(act, act)
    if caller.seat is None:
        return Refused(
            f"cannot {what}: no program of yours, outside of a sandbox, was found to ask for this",
            fix="do it in a terminal of your own" + ("" if act in IN_TERMINALS else f": dialogd {act}"),
        )
    who = "session" if caller.seat.session else "agent"
    holds = f"holds seat {caller.seat.id}" + ("" if is_here else f" of the dialog at {caller.seat.file}")
    page = "" if act in IN_TERMINALS else ", or on the page"
    own = "; what the seat has to say goes into its turn: dialogd live turn, dialogd live reply" * (act == "say")
    return Refused(
        f"cannot {what} from here: this comes from the {who} that {holds}, and is for the person alone",
        fix=f"do it in a terminal of your own that this {who} did not start{page}{own}",
    )


# -- Who takes part ---------------------------------------------------------------------------------------------------


def named(dialog: Dialog, name: str) -> tuple[str, ...]:
    """The agents that `name` means. Raises `BadInput` where it means none."""
    ids, strangers = who(dialog.header, name)
    agents = tuple(i for i in ids if i != USER)
    if strangers or not agents:
        known = ", ".join(f"{agent.id} ({agent.name})" for agent in dialog.header.agents)
        raise BadInput(f"this dialog has no agent {name!r}", fix=f"name one of: {known}")
    return agents


def single(agents: tuple[str, ...], name: str) -> str:
    """The one agent that `name` means. Raises `BadInput` where it means several."""
    if len(agents) != 1:
        raise BadInput(f"{name!r} names several agents: {', '.join(agents)}", fix=f"name one of: {', '.join(agents)}")
    return agents[0]


def _able(dialog: Dialog, name: str) -> tuple[str, ...]:
    """The agents that `name` means, of ALL those that may speak; the judge may. Raises `Refused` for an observer."""
    agents, rules = named(dialog, name), dialog.header.rules
    able = tuple(who for who in agents if rules.role(who).speaks)
    if able == agents or (able and name.strip().upper() == ALL):
        return able
    mute = next(who for who in agents if who not in able)
    others = ", ".join(agent.id for agent in dialog.header.agents if rules.role(agent.id).speaks)
    fix = f"name one of: {others}" if others else "give an agent **Permissions** such as POST"
    raise Refused(f"{mute} gets no turns in this dialog: it only reads", fix=fix)


SEAT_TIMEOUT = "30 minutes"  # of a turn, for a session that has other things to do too
SEATED = (
    "The seat of {agent} is an open session of {what}: it keeps its own permissions, with write access to its project,"
    " and replies when it can."
)


def seat(log: LogFile, agent: str, what: str, timeout: str = "") -> Dialog | None:
    """Note that an open session, such as of `Claude Code`, takes the agent's seat, and the time that its turns have.

    Without a `timeout` that is `SEAT_TIMEOUT`, where the file gives the agent none yet. Gives None without a dialog.
    """

    def make(dialog: Dialog) -> Draft | None:
        if dialog.state.outcome is not None:
            return None
        who = single(named(dialog, agent), agent)
        own = dialog.state.limits.timeouts.get(who)
        said = f"timeout {who} {timeout or (in_words(own) if own else SEAT_TIMEOUT)}"
        limits, problem = dialog.state.limits.changed(said)
        if problem:
            raise BadInput(problem, fix="write it like: --timeout 45m")
        body, seat_of = SEATED.format(agent=who, what=what), SEATED.partition("{what}")[0].format(agent=who)
        notes = (entry.body.strip() for entry in reversed(dialog.entries) if entry.by == USER and not entry.number)
        is_known = next((note for note in notes if note.startswith(seat_of)), "") == body
        if is_known and limits == dialog.state.limits:
            return None
        return note_of(Mark("LIMIT", one_line(said, 200)), body=body)

    try:
        return write(log, "join", make)
    except FileNotFoundError:
        return None


@_act("share")
def set_keys(dialog: Dialog, marks: Sequence[Mark]) -> Draft | None:
    """Set keys of a shared dialog, or of one that is about to be: `KEY` marks."""
    return note_of(*marks) if marks else None


@_act("invite")
def invite(dialog: Dialog, agent: str, *, secrets: Sequence[str] = ()) -> Draft | None:
    """Have one more agent take part, behind the others: `C`, `C = Claude C`, `C = Claude C @ http://localhost:3003`."""
    agent = redact(clean(agent), secrets)[0]
    if _takes_part(dialog, agent):
        return None
    found, problem = fold.invited(dialog.header, agent, dialog.state.hand.left)
    if found is None:
        port = fold.free_port(dialog.header, dialog.state.hand.left)
        taken = {agent.id.casefold() for agent in dialog.header.agents}
        free = next((letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter.casefold() not in taken), "Z2")
        raise BadInput(
            f"cannot invite {agent[:60].strip() or 'nobody'}: {problem or 'that is no agent'}",
            fix=f"give it an id and a port of its own: dialogd invite {free} --port {port}",
        )
    return note_of(Mark("INVITE", agent_words(found)))


def _takes_part(dialog: Dialog, agent: str) -> bool:
    """True when this very agent takes part: nothing that is said of it is new."""
    known, problem = read_agent(agent.strip(), 0)
    one = dialog.header.agent(known.id) if known is not None and not problem else None
    if known is None or one is None:
        return False
    return (not known.is_named or known.name == one.name) and ("@" not in agent or known.url == one.url)


@_act("leave")
def leave(dialog: Dialog, agent: str, reason: str = "", *, secrets: Sequence[str] = ()) -> Draft | None:
    """Let an agent take part no longer: what it owed is closed, and the turn goes on.

    `USER` is the person: nothing waits for them from here on, as in a dialog that began with nobody at the table.
    """
    short, whole = in_mark(reason, secrets)
    if any(agent.strip().casefold() in (one.id.casefold(), one.name.casefold()) for one in dialog.state.hand.left):
        return None
    if agent.strip().upper() == USER:
        if len(dialog.header.agents) < 2:
            raise Refused("you cannot leave: one agent alone agrees to nothing", fix="end the dialog: dialogd stop")
        return None if dialog.header.is_unattended else note_of(_mark("LEAVE", USER, short), body=whole)
    found = single(named(dialog, agent), agent)
    if len(dialog.header.agents) == 1:
        raise Refused(f"{found} is the last agent and cannot leave", fix="end the dialog: dialogd stop")
    mark = _mark("LEAVE", found, short)
    if dialog.state.outcome is not None or found not in dialog.state.owing:
        return note_of(mark, body=whole)
    return _passed(dialog, found, mark, whole)


# -- The tasks of a build ---------------------------------------------------------------------------------------------

# How each is said in the file, the states from which it leads on, and those in which it was done before.
_ACTS: Mapping[str, tuple[str, Set[str], Set[str]]] = {
    "confirm": ("confirmed", {build.PROPOSED}, {build.CONFIRMED, *build.UNDER_WAY, *build.KEPT}),
    "drop": ("dropped", {build.PROPOSED, build.CONFIRMED, *build.UNDER_WAY}, {build.DROPPED}),
    "retry": ("retry", {build.STUCK, build.ERROR}, set()),
    "accept": ("accepted", {build.STUCK}, build.KEPT),
}


def tasks(log: LogFile, act: str, named: str = "", reason: str = "", *, secrets: Sequence[str] = ()) -> Dialog:
    """`confirm`, `drop`, `retry` or `accept` tasks of a build (`001, 003`); without a name, those that wait for it.

    What rests on a typed word, or was not tested, is accepted by the command although it is approved. Dropping one that
    is under way is a turn of the person's, which ends the call; all else is a note.
    """
    if act not in _ACTS:
        raise BadInput(f"nothing is called {act[:60]!r} here", fix=f"name one of: {', '.join(_ACTS)}")
    from dialogd.tasks.approvals import approvals

    (word, able, done), (short, whole) = _ACTS[act], in_mark(reason, secrets)

    def make(dialog: Dialog) -> Draft | None:
        rules_of_build(dialog)
        unsaid = {one.task.number for one in approvals(dialog) if one.wants_word} if act == "accept" else set[int]()
        if not unsaid:
            lifecycle.refuse(dialog, "tasks")
        wanted = tasks_named(dialog, named) if named.strip() or act == "drop" else _waiting(dialog, act, able, unsaid)
        if named.strip().casefold() == "all":
            wanted = [task for task in wanted if task.state in able | done] or wanted
        if wrong := next((task for task in wanted if task.state not in able | done), None):
            raise Refused(f"cannot {act} task {wrong.id}: it is {wrong.state}", fix=_ways(dialog))
        new = [task for task in wanted if task.state in able or task.number in unsaid]
        if not new:
            return None
        if not unsaid.issuperset(task.number for task in new):
            lifecycle.refuse(dialog, "tasks")
        mark = _mark("TASK", f"{', '.join(task.id for task in new)} | {word}", short.replace("|", "/"))
        after = _after(dialog, mark)
        is_turn = act == "drop" and any(task.state in (build.ASSIGNED, build.SUBMITTED) for task in new)
        beside = [one for one in after.all if one.state == build.STUCK and one.number in {task.number for task in new}]
        if act == "accept" and beside:
            why = f"cannot accept task {beside[0].id}: another one was approved since it began"
            raise Refused(why, fix=f"have it tried again, on top of that: dialogd tasks retry {beside[0].id}")
        trees = [build.approval(task, task.score) for task in new] if act == "accept" else []
        marks = (mark, *trees, *_room(dialog, after, turn=is_turn))
        return _turn_of(dialog, whole, marks, after.next_turns) if is_turn else note_of(*marks, body=whole)

    return write(log, f"tasks {act}", make)


@_act("tasks change")
def change_task(
    dialog: Dialog,
    named: str,
    *,
    description: str = "",
    criteria: Sequence[str] = (),
    after: str = "",
    hours: str = "",
    secrets: Sequence[str] = (),
) -> Draft | None:
    """Change what a task asks for, before the work on it begins; what is left out stays.

    `after` are the tasks that come first (`1, 2`; `none`), `hours` an estimate.
    """
    texts = [_field(description, secrets), "; ".join(_field(one, secrets).replace(";", ",") for one in criteria)]
    texts += [_field(after, secrets), _field(hours, secrets)]
    rules_of_build(dialog)
    lifecycle.refuse(dialog, "tasks")
    (task, *others) = tasks_named(dialog, named)
    if others or not any(texts):
        what = "several tasks cannot be changed at once" if others else "nothing is to be changed"
        raise BadInput(what, fix=f"dialogd tasks change {task.id} --description TEXT")
    first = [*map(int, re.findall(r"\d+", texts[2]))]
    if texts[2] and texts[2].casefold() != "none" and (not first or any(n >= task.number or n < 1 for n in first)):
        fix = "name older ones, such as --after 1; --after none: it waits for no other"
        raise BadInput(f"task {task.id} cannot come after {texts[2][:60]!r}", fix=fix)
    if texts[3] and not re.fullmatch(r"\d{1,4}(\.\d{1,2})?( ?h)?", texts[3]):
        raise BadInput(f"{texts[3][:60]!r} is no estimate in hours", fix="write it like --hours 2")
    if task.state not in (build.PROPOSED, build.CONFIRMED):
        raise Refused(f"cannot change task {task.id}: it is {task.state}", fix=_ways(dialog))
    mark = Mark("TASK", " | ".join((task.id, "changed", *texts)).rstrip(" |"))
    return None if _after(dialog, mark) == dialog.state.build else note_of(mark)


def _field(text: str, secrets: Sequence[str]) -> str:
    """A text as one field of a mark has it."""
    return one_line(text, LONGEST, secrets).replace("|", "/")


@_act("tasks gate")
def gate(dialog: Dialog, how: str) -> Draft:
    """Where no sandbox is: let the gate `run` on this very tree all the same, or have it reviewed `untested`."""
    if how not in ("run", "untested"):
        raise BadInput(f"a gate cannot be {how[:60]!r}", fix="dialogd tasks gate run, or dialogd tasks gate untested")
    rules_of_build(dialog)
    lifecycle.refuse(dialog, "tasks")
    what, task = dialog.state.build.due_of(USER)
    if what is not build.Due.ALLOW or task is None:
        raise Refused("no gate waits for your word", fix=_ways(dialog))
    return note_of(Mark("GATE", f"{task.id} | {how} | tree {task.tree}"))


def command_in_file(command: str, what: str = "gate", secrets: Sequence[str] = ()) -> str:
    """A build's command, on one line. Raises `BadInput` for what a line of the file cannot hold."""
    words = " ".join(command.split())
    if not words or "\n" in command.strip() or redact(one_line(words, LONGEST), secrets) != (words, 0):
        why = "has no command" if not words else "has more than a line can hold, or a secret in it"
        raise BadInput(f"the {what} {why}", fix=f"write a script, and name it: ./{what}.sh")
    return words


@_act("tasks gate")
def another_gate(dialog: Dialog, command: str, *, secrets: Sequence[str] = ()) -> Draft | None:
    """Have this command test every tree that is not approved yet, and those that come, in the place of the gate."""
    words, rules = command_in_file(command, secrets=secrets), rules_of_build(dialog)
    is_so = rules.gate == words and not dialog.state.build.gate_entry
    return None if is_so else note_of(Mark("GATE", f"all | command | {words}"))


# -- What is approved, on the person's branch -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a merge, or a rebase, would do with the `approved` tasks and a branch of the person's that is at `at`.

    A merge brings the branch to the tree of `to`, a difference of `size`, by one commit `by` the person for each task
    on top of `start`; `made` are commits that are taken as they are, by the approved ones. `doubts` are why `dialogd
    tasks verify` would refuse it. A rebase carries the tasks to where the branch is, and moves nothing: its `to` is "".
    """

    branch: str
    at: str
    approved: tuple[build.Task, ...]
    to: str = ""
    size: str = ""
    doubts: tuple[str, ...] = ()
    start: str = ""
    made: Mapping[str, str] = field(default_factory=dict)
    by: Committer | None = None

    @property
    def new(self) -> tuple[build.Task, ...]:
        """The tasks for which a commit is to be made."""
        return tuple(task for task in self.approved if task.commit not in self.made)

    @property
    def words(self) -> str:
        """What a merge does with the branch."""
        to = self.made.get(self.to, "")
        if self.by is None:
            way = f"goes from {self.at[:12]} to {to[:12]}, a fast-forward" if to != self.at else "has it already"
            return f"{self.branch} {way}"
        from dialogd.tasks.git import shown

        how = f"{many(len(self.new), 'commit')} by {shown(self.by.words)}{', signed' if self.by.signing else ''}"
        return f"{self.branch} goes from {self.at[:12]} to what was approved as {self.to[:12]}: {how}, one a task"


def takeover(log: LogFile, repo: Path, onto: str = "", *, commits: bool = False) -> Takeover:
    """What a merge would do: of all that is approved, into `onto`, by default the branch that the build began from.

    With `commits` each attempt stays the commit that it is: a fast-forward.
    """
    from dialogd.tasks.approvals import judge_here
    from dialogd.tasks.git import person_of

    judge, against = judge_here(log, untested=True)
    known, (trees, branch, at) = judge.dialog.state.build, _branch(judge.dialog, repo, onto)
    ready = _approved(known)
    last = next((task for task in ready if task.commit == known.base), None)
    if last is None:
        raise Refused(f"nothing to merge: {_none_approved(known)}", fix="dialogd tasks")
    again = command_on(log.path, "build", "rebase")
    if trees.tree_of(last.commit) != last.tree:
        why = f"commit {last.commit[:12]} does not have the tree that was approved"
        raise Refused(why, fix=f"have it submitted and reviewed again: {again}")
    ready = ready[: 1 + ready.index(last)]
    made, start = {}, _start(trees, known, ready, at)
    if landed := judge.landed(trees.git, last, at):  # by hand, or before a kill
        made = {task.commit: landed.get(task.tree, at) for task in ready} | {last.commit: at}
    elif commits and trees.is_ancestor(at, last.commit):
        made = {task.commit: task.commit for task in ready}
    elif commits or not start:
        raise Refused(f"{branch} has moved since: {at[:12]} is not part of what was approved", fix=again)
    elif start == at:
        made = {task.commit: task.commit for task in ready if trees.is_ancestor(task.commit, at)}
    doubts = dict.fromkeys((*judge.judge(trees.git, last.commit).why, *against))
    what = Takeover(branch, at, ready, last.commit, trees.diff(at, last.commit, 0).stat, tuple(doubts), start, made)
    return replace(what, by=person_of(trees.git)) if what.new else what


def _start(trees: Worktrees, known: build.Tasks, ready: Sequence[build.Task], at: str) -> str:
    """The commit on top of which a branch that is at `at` takes these tasks over; "" where it has moved since."""
    below = next((task for task in known.all if task.merged and task.commit == ready[0].base), None)
    start = below.merged if below else ready[0].base  # a task may stand on attempts that are one commit by now
    if trees.is_ancestor(at, start):
        return start
    return at if trees.is_ancestor(at, ready[-1].commit) else ""


def _approved(tasks: build.Tasks) -> tuple[build.Task, ...]:
    """What is approved, in the order in which it stands on one another."""
    return tuple(task for number in tasks.stack if (task := tasks.of(number)) and task.state == build.APPROVED)


def _none_approved(tasks: build.Tasks) -> str:
    is_done = any(task.state == build.MERGED for task in tasks.all)
    return "all is merged already" if is_done else "no task is approved"


def carried_over(log: LogFile, repo: Path, onto: str = "") -> Takeover:
    """What a rebase would do. Raises `Refused` where the branch has not moved."""
    dialog = log.read()
    trees, branch, at = _branch(dialog, repo, onto)
    waiting = _approved(dialog.state.build)
    if waiting and _start(trees, dialog.state.build, waiting, at):
        take = command_on(log.path, "build", "merge")
        raise Refused(f"{branch} has not moved: what was approved stands on it", fix=f"take it over: {take}")
    return Takeover(branch, at, waiting)


def _branch(dialog: Dialog, repo: Path, onto: str) -> tuple[Worktrees, str, str]:
    """The worktrees of the build, the person's branch, the commit at which that is. Raises `Refused` without one."""
    from dialogd.tasks.worktrees import Worktrees

    trees, branch = Worktrees(repo, build=dialog.id), onto or rules_of_build(dialog).branch
    if not (at := trees.git.ref(f"refs/heads/{branch}")):
        raise Refused(f"{repo} has no branch {branch}", fix="name one that it has: --onto BRANCH")
    return trees, branch, at


def undoubted(log: LogFile, what: Takeover, *, anyway: bool) -> None:
    """Raise `Refused` for a merge of what `dialogd tasks verify` would refuse, unless the person has it `anyway`."""
    if what.doubts and not anyway:
        again = command_on(log.path, "build", "merge", "--anyway")
        is_red = any(task.commit == what.to and task.gate not in build.GREEN for task in what.approved)
        say = command_on(log.path, "say")
        mend = f"have one more task pass the gate ({say} …)" if is_red else "run the command that a reason names"
        raise Refused(
            f"`dialogd tasks verify --commit {what.to[:12]}` would refuse it: {one_line(what.doubts[0])}",
            fix=f"{mend}, or overrule it, which the file will say: {again}",
        )


def merge(log: LogFile, repo: Path, what: Takeover, *, anyway: bool = False) -> tuple[Dialog, Path | None]:
    """Take it over, and note it; gives the dialog and the checkout that came along, None for none.

    What speaks against it is overruled with `anyway`, and noted; else it is refused, with nothing done. So is what is
    not approved any more since it was looked at.
    """
    from dialogd.tasks.worktrees import Worktrees

    admitted(log, "build merge")
    undoubted(log, what, anyway=anyway)
    dialog = log.read()
    if _approved(dialog.state.build)[: len(what.approved)] != what.approved:
        again = command_on(log.path, "build", "merge")
        raise Refused("what was to be merged has changed since; nothing was merged", fix=f"look at it anew: {again}")
    trees, made = Worktrees(repo, build=dialog.id), dict(what.made)
    if what.by is not None:
        parent = what.start
        for task in what.new:  # until the branch moves they count for nothing
            message = _message(dialog, task, what.by)
            made[task.commit] = parent = trees.git.commit_as(what.by, task.tree, parent, message)
    where = trees.forward(what.branch, made[what.to])
    return merged(log, made, what.doubts), where


_VENDORS = {"claude": "anthropic.com", "gpt": "openai.com", "codex": "openai.com", "gemini": "google.com"}


def _message(dialog: Dialog, task: build.Task, by: Committer) -> str:
    """What the commit of a task says: what was asked for, who did it, and who answers for it."""
    title, whole = one_line(task.description, 72), one_line(task.description, LONGEST)
    said = (entry.frame.model for entry in reversed(dialog.entries) if entry.by == task.author and entry.frame)
    agent = dialog.header.agent(task.author)
    name = one_line(re.sub("[<>]", "", next(filter(None, said), agent.name if agent else task.author)))
    vendor = next((vendor for start, vendor in _VENDORS.items() if name.startswith(start)), "localhost")
    return "\n\n".join(filter(None, (
        title,
        whole if whole != title else "",
        "\n".join(f"- {one_line(one)}" for one in task.criteria),
        f"Dialogd-Task: {dialog.id}/{task.id}\nCo-authored-by: {name} <noreply@{vendor}>\nSigned-off-by: {by.words}\n",
    )))  # fmt: skip


@_act("build rebase")
def rebase(dialog: Dialog, commit: str) -> Draft | None:
    """Have all approved tasks carried to this commit, in their order, to be tested and reviewed anew: a turn.

    It opens a build again that had ended.
    """
    rules_of_build(dialog)
    known = dialog.state.build
    if busy := next((task for task in known.all if task.state in build.UNDER_WAY), None):
        raise Refused(f"task {busy.id} is under way", fix="wait for its end, or drop it: dialogd tasks drop")
    approved = _approved(known)
    if not approved:
        raise Refused(f"nothing can be carried: {_none_approved(known)}", fix=_ways(dialog))
    if approved[0].base == commit:
        return None
    mark = Mark("TASK", f"all | rebase | {commit}")
    after = _after(dialog, mark)
    return _turn_of(dialog, "", (mark, *_room(dialog, after, turn=True)), after.next_turns)


@_act("build merge")
def merged(dialog: Dialog, made: Mapping[str, str], overruled: Sequence[str] = ()) -> Draft | None:
    """Note by which commits the approved ones are in the person's branch, and what spoke against that, `overruled`."""
    against = one_line("; ".join(overruled), 2_000).replace("|", "/")
    although = f" | although {against}" if against else ""
    rules_of_build(dialog)
    new = [(task.id, made[task.commit]) for task in _approved(dialog.state.build) if task.commit in made]
    marks = [Mark("TASK", f"{ident} | merged | commit {commit}{although}") for ident, commit in new]
    return note_of(*marks) if marks else None


@_act("build pr")
def published(dialog: Dialog, number: int, request: build.Request) -> Draft | None:
    """Note the pull request that was opened for a commit of that task."""
    rules_of_build(dialog)
    task = dialog.state.build.of(number)
    if task is None or request in task.requests:
        return None
    known = f" | number {request.number}" if request.number is not None else ""
    return note_of(Mark("TASK", f"{task.id} | published | {request.url}{known} | commit {request.commit}"))


def leftovers(dialog: Dialog, repo: Path, named: str = "all") -> tuple[Worktrees, Iterator[Leftover]]:
    """The worktrees of a build, and what its tasks that are merged or dropped have left there."""
    from dialogd.tasks.worktrees import Worktrees

    over = {task.number for task in tasks_named(dialog, named) if task.state in (build.MERGED, build.DROPPED)}
    trees, is_idle = Worktrees(repo, build=dialog.id), all(t.state in build.DONE for t in dialog.state.build.all)
    return trees, trees.leftovers(over, is_idle=is_idle)


def clean_up(log: LogFile, repo: Path, named: str) -> Dialog:
    """Remove what those of these tasks have left that are merged or dropped. Raises `Refused` for what has to stay."""
    admitted(log, "tasks clean")
    trees, found = leftovers(dialog := log.read(), repo, named)
    for one in found:
        trees.clear(one)
    return dialog


@_act("build --continue")
def carry_on(dialog: Dialog, budget: str = "") -> Draft | None:
    """Have a build go on that was stopped, or whose task could not be gone on with; with another budget if wanted."""
    rules_of_build(dialog)
    state = dialog.state
    failed = [task.id for task in state.build.all if task.state == build.ERROR]
    marks = ((Mark("TASK", f"{', '.join(failed)} | retry"),) if failed else ()) + _budget_mark(budget)
    if state.outcome is None:
        return note_of(*marks) if marks else None
    if state.outcome.is_complete:
        raise Refused(
            f"cannot continue: the build is {lifecycle.in_words(dialog)}",
            fix='look at it: dialogd tasks; ask for more: dialogd say "…"; take it over: dialogd build merge',
        )
    after = _after(dialog, *marks)
    return _turn_of(dialog, "Go on.", (*marks, *_room(dialog, after, turn=True)), after.next_turns)


def rules_of_build(dialog: Dialog) -> Build:
    """The rules of a build. Raises `Refused` for a dialog that is none."""
    if (rules := dialog.state.build.rules) is None:
        raise Refused("this dialog is no build: it has no tasks", fix="begin one: dialogd build GOAL --repo DIR")
    return rules


def tasks_named(dialog: Dialog, named: str) -> list[build.Task]:
    """The tasks that these numbers mean: `001, 3`; `all`. Raises `BadInput` for one that is none."""
    known = dialog.state.build
    if named.strip().casefold() == "all":
        return list(known.all)
    words = re.split(r"[\s,]+", named.strip(" ,"))
    found = [known.of(int(word)) if re.fullmatch(r"\d{1,6}", word) else None for word in words]
    if None in found:
        ids = ", ".join(task.id for task in known.all)
        strange = words[found.index(None)][:60]
        fix = f"name one of: {ids}" if ids else "wait for them: none is proposed yet"
        raise BadInput(f"there is no task {strange!r}" if strange else "no task is named", fix=fix)
    numbers = {task.number for task in found if task is not None}
    return [task for task in known.all if task.number in numbers]


def _waiting(dialog: Dialog, act: str, able: Set[str], unsaid: Collection[int]) -> list[build.Task]:
    """The tasks that wait for this act, or else those of `unsaid`. Raises `Refused` for none."""
    known = dialog.state.build.all
    found = [task for task in known if task.state in able] or [t for t in known if t.number in unsaid]
    if not found:
        raise Refused(f"no task waits for you to {act} it", fix=_ways(dialog))
    return found


def _ways(dialog: Dialog) -> str:
    """The command for the tasks as they stand."""
    found = build.ways(dialog.state.build, "") if dialog.state.outcome is None else ()
    return found[0] if found else "see how they stand: dialogd tasks"


def _room(dialog: Dialog, after: build.Tasks, *, turn: bool = False) -> tuple[Mark, ...]:
    """The LIMIT that leaves room for every attempt of every task, beside a `turn` of the person's; () where it is."""
    used = 0 if dialog.state.outcome else dialog.state.counted
    most = used + turn + build.most_turns(after)
    return (Mark("LIMIT", f"max_turns {most}"),) if most > dialog.state.limits.max_turns else ()
