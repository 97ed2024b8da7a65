"""How a dialog stands, in words and by its own rules: rows for people, facts for programs; `dialogd status`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from dialogd.cli import options
from dialogd.cli.options import Text, daemons, healths, line, option
from dialogd.config import Settings, command_on, file_flag
from dialogd.errors import DialogdError, NotRunning
from dialogd.person import taken_out
from dialogd.protocol import board, lifecycle, questions
from dialogd.protocol.build import APPROVED, MERGED, listed, red, tested
from dialogd.protocol.certificate import where
from dialogd.protocol.decide import Clock, Wait, decide, time_left
from dialogd.protocol.fold import strikes, vetoes
from dialogd.protocol.lifecycle import convergence, signals
from dialogd.protocol.model import ANY, USER, Outcome
from dialogd.protocol.state import Dialog, budget_standing
from dialogd.protocol.text import in_words, many, places
from dialogd.store.disk import StateDir
from dialogd.store.logfile import LogFile, wall_time
from dialogd.store.registry import Running
from dialogd.views import standing
from dialogd.views.builds import doing


def exit_code(outcome: Outcome | None) -> int:
    """0 for a dialog that goes on, or ended as its rule decides; 1 for one that ended in an error, 4 for other ends."""
    if outcome is None or outcome.is_agreed:
        return 0
    return 1 if outcome.failed else 4


@dataclass(frozen=True, slots=True)
class Situation:
    """A dialog that stands in its file, and what runs on it.

    `healths` are by agent id, None for a daemon that is registered and does not answer; `state` is where it is kept how
    they were started.
    """

    dialog: Dialog
    file: Path
    running: tuple[Running, ...]
    healths: Mapping[str, dict[str, Any] | None]
    state: StateDir
    is_starting: bool = False

    @classmethod
    def of(cls, settings: Settings, file: Path, dialog: Dialog, *, is_starting: bool = False) -> Situation:
        """The dialog in that file with the daemons that run on it, and what each says of itself, asked all at once."""
        said, state = healths(daemons(settings, file)), StateDir(settings.state_dir)
        return cls(dialog, file, tuple(said), {one.id: answer for one, answer in said.items()}, state, is_starting)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The agents that sit on other machines."""
        return options.elsewhere(self.state, self.file, self.dialog)

    def stands(self, end: str = "") -> standing.Running:
        """What runs on it, in a word and in a sentence; `end` says how it ended, where it did."""
        return standing.running(self.dialog, self.healths, is_starting=self.is_starting, end=end)

    @property
    def phase(self) -> str:
        """The dialog in one word."""
        return standing.phase(self.dialog, thinking=any(map(self.working, self.healths)))

    def reasons(self) -> tuple[str, ...]:
        """Why the dialog stands where it stands, one sentence each; never empty."""
        if self.dialog.state.outcome is not None:
            return (ended(self.dialog),)
        busy, timeout_of = {}, self.dialog.state.limits.timeout_of
        for agent in self.healths:
            if work := self.working(agent):
                since = in_words(round(float(work.get("seconds") or 0.0)))
                most = in_words(timeout_of(agent))
                busy[agent] = f"{agent} thinks about turn {work.get('turn')} since {since} (at most {most})"
        if (held := self._held()) is not None:
            return (self._words(held), *busy.values())
        return (*busy.values(), *(self._idle(who) for who in self.dialog.state.owing if who not in {USER, *busy}))

    def _held(self) -> Wait | None:
        """What keeps everybody from going on; None when an agent may."""
        agents, rest = [agent.id for agent in self.dialog.header.agents], 0.0
        me = next((who for who in self.dialog.state.owing if who in agents), agents[0])
        with suppress(OSError):
            rest = max(time.time() - self.file.stat().st_mtime, 0.0)  # seconds since the file was last written
        action = decide(self.dialog, me, Clock(zone=datetime.astimezone, rest=rest))
        return action if isinstance(action, Wait) else None

    def _words(self, held: Wait) -> str:
        """It in words: first which agent's failure gave the turn to the person, and what they can do."""
        failures = self.dialog.last.failures if self.dialog.last and held.status == "waiting_for_user" else ()
        said = (f"{who} failed: {why} ({fix}); `dialogd retry {who}` asks it once more" for who, why, fix in failures)
        failure = line(next(said, ""))
        is_all = failure and not self.dialog.state.questions.open
        return failure if is_all else "; ".join(filter(None, (failure, line(held.reason))))

    def working(self, agent: str) -> dict[str, Any] | None:
        """The `turn` that agent works on and for how many `seconds`; None when it does not, or the turn is written."""
        work = (self.healths.get(agent) or {}).get("working_on")
        return work if work and work["turn"] > self.dialog.state.number else None

    def _idle(self, agent: str) -> str:
        """Why that agent owes a turn and does not work on it."""
        if agent == ANY:
            return "any agent may speak"
        answer, daemon = self.healths.get(agent), next((one for one in self.running if one.id == agent), None)
        if answer is not None:
            waiting = answer.get("waiting")
            if isinstance(waiting, dict) and waiting.get("status") not in ("starting", "not_my_turn"):
                return f"waiting for {agent}: {line(str(waiting.get('reason')))}"
            if does := doing(self.dialog.state.build, agent, is_writing=False):
                return f"{agent} {does}"
            return f"waiting for {agent}, which is about to reply"
        if daemon is not None:
            return f"waiting for {agent}; its daemon (pid {daemon.pid}) does not answer"
        if agent in self.elsewhere:
            return f"waiting for {agent}, on another machine"
        again = started_again(self.dialog, self.file, agent, self.state, is_alone=not self.running)
        return f"waiting for {agent}; its daemon does not run: {again}"

    def calls(self) -> list[dict[str, Any]]:
        """The calls of tools that wait for the person, as the daemons told them."""
        return [call for answer in self.healths.values() if answer for call in answer.get("calls") or ()]

    def needs_person(self) -> str:
        """What the person is asked, in words; "" while an agent can go on by itself."""
        state, held = self.dialog.state, self._held()
        if held is None or held.status not in ("waiting_for_user", "unknown_turn", "damaged", "no_turn_yet"):
            return ""
        if state.questions.text:
            words = questions.waiting(self.dialog, wall_time(), datetime.astimezone)
            return line(f"{state.questions.asker} asks you: {words}" if len(state.questions.askers) == 1 else words)
        failed = self.dialog.last is not None and self.dialog.last.failures
        return "step mode: it is your turn" if state.hand.step and not failed else self._words(held)


def started_again(dialog: Dialog, file: Path, agent: str, state: StateDir, *, is_alone: bool) -> str:
    """The command that starts that agent's daemon again; of a build of which no daemon runs, all of them."""
    from dialogd.backends.seats import start_again  # reads all backends: only where a daemon is gone

    if dialog.state.build and is_alone:
        return lifecycle.continued(dialog, file_flag(file))
    return start_again(state, file, dialog.id, agent)


MOST_SHOWN = 400  # characters of a call's arguments


def may_call(call: Mapping[str, Any], file: Path) -> str:
    """What a call that waits for the person is about, and how it is answered."""
    words = command_on(file, "approve", str(call.get("call")))
    arguments = str(call.get("arguments"))
    rest = len(arguments) - MOST_SHOWN
    more = f" … ({rest:,} more characters: see the page, or `dialogd status --json`)" if rest > 0 else ""
    what = f"{call.get('tool')} {arguments[:MOST_SHOWN]}{more}"
    left = in_words(round(float(call.get("seconds") or 0.0)))
    return line(f"{call.get('agent')} wants to call {what}; {left} left: {words}, or with --refuse")


def ended(dialog: Dialog) -> str:
    """How it ended, in words: those of the plan, of exports and of the pages."""
    from dialogd.views.plan import YOU, Plan

    return line(f"ended, {Plan(dialog, person=YOU).headline}")


def next_step(dialog: Dialog, file: Path, *, is_running: bool = False) -> str:
    """What the person can do about an end, as commands; "" while it goes on, or once they took the result,
    which of a build is also merged.

    `is_running` says that its daemons are still there.
    """
    state, named = dialog.state, f" --file {shlex.quote(str(file))}"
    merge = onwards(dialog, file) if state.build else ""
    is_merged = any(task.state == MERGED for task in state.build.all) if state.build else False
    if state.outcome is None or (not merge and (state.approved or is_merged)):
        return ""
    bad = red(state.build)
    takes = f"{merge} takes it over" + (f" ({bad.id}: {tested(bad)}, which only --anyway overrules)" if bad else "")
    if state.approved:
        return takes
    go_on = "" if is_running else f" and {lifecycle.continued(dialog, named)}"
    if state.outcome.is_agreed:
        return f'{takes if merge else f"dialogd approve{named}"}, or dialogd reject "why"{named}{go_on}'
    what = f"{state.outcome.name} {state.outcome.reason}".lower()
    more = " --budget AMOUNT" if what.startswith(("budget", "stopped budget")) else ""
    first = f"dialogd limit max_size 2MB{named}, then " if what.startswith(("max_size", "stopped size")) else ""
    again = f'dialogd say "…"{more}{named}{go_on} opens it again'
    if state.build and not state.outcome.is_deadlock:
        again = f"{lifecycle.continued(dialog, f'{more}{named}')} goes on"
    taken = f"; {merge} takes over what is approved" if merge else ""
    return f"dialogd plan{named} says where it stands; {first}{again}{taken}"


def onwards(dialog: Dialog, file: Path) -> str:
    """How what was agreed is carried out, or what was built is taken over; "" where there is nothing of either."""
    if dialog.state.build:
        ready = any(task.state == APPROVED for task in dialog.state.build.all)
        anyway = ["--anyway"] if red(dialog.state.build) else []
        return command_on(file, "build", "merge", *anyway) if ready else ""
    if dialog.is_rehearsed:
        return ""
    once = "" if dialog.state.approved else ", once you have approved it"
    return f"dialogd build --from {dialog.id} --repo DIR carries it out{once}"


# -- `dialogd status` -------------------------------------------------------------------------------------------------

LATEST = 3  # decisions that are shown; all of them are among the facts


def procedure(dialog: Dialog, at: str) -> dict[str, Any]:
    """How it comes to its decision, for programs: `time_left` in seconds, null without a limit. `at` is now."""
    state, rules, opened, decisions = dialog.state, dialog.header.rules, board.reopenings(dialog), []
    for made in state.table.decisions:
        stands = board.as_of_now(opened, made.entry, made.outcome, made.reason)
        why = "; ".join(filter(None, (stands.reason, stands.superseded and f"superseded: {stands.superseded}")))
        decisions.append(
            {"ref": made.ref, "outcome": stands.outcome, "method": made.method, "evidence": made.evidence,
             "reason": why, "entry": made.entry}
        )  # fmt: skip
    sealed = list(dict.fromkeys(seal.agent for seal in state.debts.seals))
    left, done, phase = None if state.outcome else time_left(dialog, at), state.floor.rounds, None
    # After the end it is that of the last whole round, for what was to follow never began.
    if (index := rules.phase(done if state.outcome is None else max(done - 1, 0))) >= 0:
        one = rules.phases[index]
        phase = {"number": index + 1, "of": len(rules.phases), "name": one.name, "description": one.description}
    return {
        "template": rules.template, "order": rules.order, "verdict": rules.verdict, "phase": phase,
        "rounds": done, "max_rounds": state.limits.max_rounds,
        "polls": [
            {
                "ref": poll.ref, "turn": poll.turn,
                "votes": [{**asdict(one), "weight": rules.weight([one.agent])} for one in poll.ballots],
                "missing": [who for who in dialog.header.voters if all(one.agent != who for one in poll.ballots)],
            }
            for poll in state.polls.open
        ],
        "decisions": decisions, "escalated": state.escalation.to, "escalation": state.escalation.why,
        "sealed": sealed, "unsealed": [who for who in state.owing if who not in sealed] if sealed else [],
        "queue": list(state.floor.queue),
        "blocking": [[one.number, one.by, one.task] for one in state.table.blocking], "closing": state.closing,
        "time_left": None if left is None else max(left, 0.0),
    }  # fmt: skip


def procedure_rows(dialog: Dialog, at: str) -> Iterator[tuple[str, str]]:
    """The same in words; of a plain dialog only what has come up."""
    state, rules, now = dialog.state, dialog.header.rules, procedure(dialog, at)
    if state.build:
        yield "rules", "its tasks are carried out and reviewed"
    elif not rules.is_plain:
        phase = (
            f"; phase {now['phase']['number']} of {now['phase']['of']}, {now['phase']['name']}" if now["phase"] else ""
        )
        name, done = f"{rules.template}: " if rules.template else "", many(now["rounds"], "round")
        yield "rules", f"{name}order {rules.order}; verdict {rules.verdict}; {done} complete{phase}"
    if state.build:
        yield "tasks", ", ".join(f"{one.id} {one.state}" for one in listed(state.build)) or "none yet"
    elif state.outcome is None:
        if now["escalated"]:
            yield "decides", f"{_you(now['escalated'])}: {now['escalation']}".removesuffix(": ")
        for poll in now["polls"]:
            votes = ", ".join(f"{vote['agent']} {vote['choice']}" for vote in poll["votes"]) or "nobody yet"
            missing = f"; not yet: {', '.join(poll['missing'])}" if poll["missing"] else ""
            yield "vote", f"{poll['ref']}: {votes}{missing}"
    for made in now["decisions"][-LATEST:] if not state.build else ():
        reason = f"; {made['reason']}" if made["reason"] else ""
        yield "decided", f"{made['ref']} {made['outcome']} ({made['method']}): {made['evidence']}{reason}"
    if now["sealed"]:
        yield "sealed", ", ".join(now["sealed"])
    if now["queue"]:
        yield "in line", f"for the floor: {', '.join(map(_you, now['queue']))}"
    if now["time_left"] is not None:
        yield "time", f"{in_words(round(now['time_left']))} left of {in_words(state.limits.max_time or 0.0)}"


def _you(agent: str) -> str:
    return "you" if agent == USER else agent


AwayOption = Annotated[
    bool, typer.Option("--away", help="What happened since you last spoke instead: needed of you, decided, proposed …")
]
Since = Annotated[Text, option("WHEN", "The same, since then: a turn (7), how long ago (2h), yesterday, a time.")]
All = Annotated[bool, typer.Option("--all", help="List every daemon of yours, whatever its file.")]
Board = Annotated[bool, typer.Option("--board", help="What was contributed, proposed and decided instead.")]
Cost = Annotated[bool, typer.Option("--cost", help="What each agent has spent instead, and what is left.")]


def status(
    path: options.FileArgument = None,
    file: options.FileOption = None,
    is_away: AwayOption = False,
    since: Since = None,
    every: All = False,
    on_board: Board = False,
    cost: Cost = False,
    json: options.JsonOption = False,
) -> None:
    """Show how the dialog stands, or what you missed. Exit code 3 where there is no dialog.

    Whose turn it is, what everybody waits for, and the daemons.
    """
    settings = options.settings_for(path or file)
    if every:
        rows = [_daemon(daemon, answer) for daemon, answer in healths(daemons(settings)).items()]
        lines = [f"{row['id']:3} {row['url']}  pid {row['pid']}  {row['phase']}  {row['file']}" for row in rows]
        options.answer(rows, lines or ["no daemon runs"], json=json)
        return
    if on_board or cost or is_away or since is not None:
        from dialogd.cli import past, result

        if on_board:
            past.show_board(settings, json=json)
        elif cost:
            result.show_cost(settings, json=json)
        else:
            _missed(settings, since, json=json)
        return
    try:
        log = options.log_of(settings)
        dialog = options.dialog_at(log)
    except NotRunning as error:
        running = daemons(settings, settings.file)
        waiting = ", ".join(f"{daemon.id} on port {daemon.port}" for daemon in running)
        others = dict.fromkeys(Path(daemon.file) for daemon in daemons(settings) if daemon not in running)
        looks = "; ".join(command_on(file, "status") for file in others)
        fix = f"look at those that run: {looks}; or {error.fix}" if others else error.fix
        raise NotRunning(f"{error}" + (f"; waiting for one: {waiting}" if waiting else ""), fix=fix) from None
    shared: dict[str, Any] | None = None
    if dialog.state.hand.keys is not None:
        dialog, shared = _asked_now(log, dialog)
    situation = Situation.of(settings, settings.file, dialog)
    missing = taken_out(log.lost(dialog), settings.file)
    typed = takewhile(lambda entry: entry.frame is None or not entry.is_turn, reversed(dialog.entries))
    notices = [entry.notice for entry in reversed([*typed])]  # of what was typed since the last turn by a daemon
    warnings = [*filter(None, [missing, *dialog.header.warnings, *notices])]
    shown = [*_lines(situation, warnings), *(f"  {name:8} {line(text)}" for name, text in _shared_rows(shared) if text)]
    facts = _facts(situation, warnings) | ({"shared": shared} if shared is not None else {})
    options.answer(facts, shown, json=json)


def _asked_now(log: LogFile, dialog: Dialog) -> tuple[Dialog, dict[str, Any]]:
    """A shared dialog with what its log has now, and how its mirror stands; {} where no log is known here."""
    if (mirror := log.mirror) is None:
        return dialog, {}
    said = ""
    try:
        dialog = log.pull()
    except (DialogdError, OSError) as error:
        said = str(error)
    shared = mirror.standing()
    mirror.close()
    came = [round(time.time() - one.stat().st_mtime, 1) for one in log.attachments.glob("signatures")]
    return dialog, {**shared, "problem": shared["problem"] or said, "came": max([0.0, *came])}


def _shared_rows(shared: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    if not shared:
        copy = "a copy of a shared dialog: with which log it goes on is not known here, so nothing leaves or comes"
        return () if shared is None else (("log", copy),)
    here, away = (", ".join(shared[where]) or "nobody" for where in ("here", "elsewhere"))
    since = f"nothing came for {in_words(round(shared['came']))}, and no answer now: {shared['problem']}"
    return (
        ("log", f"{shared['log']} ({shared['name']})"),
        ("seats", f"here: {here}; elsewhere: {away}; people: {', '.join(shared['people'])}"),
        ("alarm", f"{shared['problem']}; {shared['fix']}" if shared["alarm"] else ""),
        ("behind", since if shared["problem"] and not shared["alarm"] else ""),
        ("mirror", "" if shared["problem"] else "all of it is here, asked just now"),
        ("head", shared["words"]),
        ("typed", shared["typed"]),
    )


def _missed(settings: Settings, since: str | None, *, json: bool) -> None:
    """What happened while the person was away; from the marks of the dialog, without a model."""
    from dialogd.views.flow import as_text, away, last_word, since_turn

    dialog = options.dialog_at(options.log_of(settings))
    turn = last_word(dialog)
    if since is not None:
        turn = since_turn(dialog, since, datetime.now().astimezone().isoformat(), datetime.astimezone)
    news = away(dialog, turn, datetime.astimezone)
    text = as_text(news, width=max(get_terminal_size((100, 24)).columns, 40))
    facts = asdict(news)
    facts |= {"file": str(settings.file), "dialog": dialog.id, **facts.pop("items")}
    options.answer(facts, [text], json=json)


def _daemon(daemon: Running, answer: dict[str, Any] | None) -> dict[str, object]:
    known = {name: getattr(daemon, name) for name in ("id", "url", "port", "pid", "file", "log")}
    return {**known, "phase": answer.get("phase") if answer else "no answer", "health": answer}


def _facts(situation: Situation, warnings: Sequence[str]) -> dict[str, object]:
    dialog, state = situation.dialog, situation.dialog.state
    end = asdict(state.outcome) if state.outcome else None
    stands = standing.Standing(**standing.standing(dialog, thinking=situation.phase == "thinking"))
    agents = [
        {"id": a.id, "name": a.name, "url": a.url, "state": "absent" if a.id in state.absent else "present",
         "why": lifecycle.why_absent(dialog, a.id)}
        for a in dialog.header.agents
    ]  # fmt: skip
    return {
        **stands.model_dump(exclude={"question"}), "file": str(situation.file), "rehearsal": dialog.is_rehearsed,
        "max_turns": state.limits.max_turns, "turns_counted": state.counted, "outcome": end,
        "consensus_reached": state.outcome is not None and state.outcome.is_consensus,
        "waiting": list(situation.reasons()), "needs_person": situation.needs_person(), "calls": situation.calls(),
        "agents": agents, "daemons": [_daemon(one, situation.healths.get(one.id)) for one in situation.running],
        "rules": procedure(dialog, wall_time()), "struck": sorted(state.hand.struck),
        "vetoed": list(state.table.vetoed), "left": [agent.id for agent in state.hand.left], "step": state.hand.step,
        "unattended": dialog.header.is_unattended, "warnings": list(warnings),
        "secrets_redacted": _secrets(dialog),
        "from_sessions": [
            {"entry": e.id, "via": e.via, "marks": list(map(str, e.written))} for e in dialog.entries if e.via
        ],
    }  # fmt: skip


def _secrets(dialog: Dialog) -> int:
    """How many places of what agents and daemons wrote into the file are redacted."""
    written = (entry for entry in dialog.entries if entry.frame is not None and entry.by != USER)
    return sum(places("\n".join((entry.body, *map(str, entry.marks)))) for entry in written)


def _lines(situation: Situation, warnings: Sequence[str]) -> Iterator[str]:
    dialog, state = situation.dialog, situation.dialog.state
    is_over, at, near, hidden = state.outcome is not None, wall_time(), convergence(situation.dialog), _secrets(dialog)
    whose_turn = "" if is_over else f", next: {', '.join(state.owing) or 'nobody'}"
    is_near = near is not None and not is_over and not state.build  # iterations resemble one another
    rows = [
        ("file", f"{situation.file} (dialog {dialog.id})"),
        ("", "REHEARSAL: no model is asked; what comes of it is no memory" if dialog.is_rehearsed else None),
        ("turns", f"turn {state.turns_in_words} ({max(state.limits.max_turns - state.counted, 0)} left){whose_turn}"),
        ("state", f"{situation.phase} ({lifecycle.where(dialog)})"),
        *(("", reason) for reason in situation.reasons()),
        *(("question", text) for text in questions.rows(dialog, at, datetime.astimezone) if not is_over),
        *(("approve", may_call(call, situation.file)) for call in situation.calls()),
        *_by_hand(situation),
        *procedure_rows(dialog, at),
        *(_agent_row(situation, agent.id, agent.name) for agent in dialog.header.agents),
        ("secrets", f"{hidden} redacted in the file" if hidden else None),
        ("budget", budget_standing(state) or None),
        ("signals", f"convergence {near:.2f} (weak)" if is_near else None),
        *(("noticed", signal.text) for signal in signals(dialog)),
        *(("warning", warning) for warning in warnings),
        ("next", next_step(dialog, situation.file, is_running=bool(situation.running)) or None),
    ]
    if situation.needs_person():
        ways = lifecycle.answers(dialog, file_flag(situation.file))
        rows += zip(("answer", *("or" for _ in ways[1:])), ways, strict=True)
    yield line(dialog.header.topic) or "(without a topic)"
    yield from (f"  {label:8} {line(text)}" for label, text in rows if text is not None)


def _agent_row(situation: Situation, agent: str, name: str) -> tuple[str, str]:
    daemon = next((daemon for daemon in situation.running if daemon.id == agent), None)
    answer = situation.healths.get(agent)
    how = "on another machine" if agent in situation.elsewhere else "not running"
    if daemon is not None:
        how = f"pid {daemon.pid}, does not answer"
    if daemon is not None and answer is not None:
        how = f"{daemon.url}, pid {daemon.pid}, {answer.get('backend')}, {answer.get('phase')}"
    why = lifecycle.why_absent(situation.dialog, agent)
    return agent, f"{name}, {how}" + (f", absent: {why}" if why else "")


def _by_hand(situation: Situation) -> Iterator[tuple[str, str]]:
    """What the person took, withdrew, ruled out or set; what sessions that hold seats did by their hand, or tried."""
    dialog = situation.dialog
    note, before = dialog.entry(dialog.state.approved) if dialog.state.approved else None, board.rejected(dialog)
    if note is not None:
        yield "approved", f"by {_person(dialog, note.id)}{_when(note.at)}"
    if before is not None:
        by = f"{_person(dialog, before.by)}{_when(before.at)}"
        yield "rejected", f"what ended in {where(before.ended_in)}, by {by}: {before.reason}"
    yield from (("struck", strike.in_words) for strike in strikes(dialog).values())
    yield from (("vetoed", f"{ref}{reason and f': {reason}'}") for ref, reason in vetoes(dialog).items())
    if gone := ", ".join(agent.id for agent in dialog.state.hand.left):
        yield "left", gone
    if dialog.header.is_unattended:
        yield "person", "absent: nothing waits for you"
    if dialog.state.hand.step:
        yield "step", "on: every turn passes to you; dialogd pass, dialogd step off"
    if did := lifecycle.from_sessions(dialog):
        yield "not you", did[-1] + (f" ({len(did)} in all)" if len(did) > 1 else "")


def _person(dialog: Dialog, entry: str) -> str:
    """Who spoke in that entry of the person's hand: you, or in a shared dialog one of several by name."""
    found = dialog.entry(entry) if dialog.state.hand.keys is not None else None
    return found.name if found is not None else "you"


def _when(at: str) -> str:
    return f" on {at[:10]} at {at[11:16]} UTC" if at.endswith("Z") else ""
