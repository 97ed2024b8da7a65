"""`dialogd status`: how a dialog stands, and which daemons run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from dialogd.agent.clock import local
from dialogd.backends.service import Hold, holds
from dialogd.cli import options
from dialogd.cli.client import daemons, healths
from dialogd.cli.situation import Situation, allowance, facts, next_step, procedure_rows, result, signal_row
from dialogd.cli.terminal import line
from dialogd.config import Settings, file_words
from dialogd.errors import NotRunning
from dialogd.person import now, taken_out
from dialogd.protocol import lifecycle, questions
from dialogd.protocol.interventions import strikes, vetoes
from dialogd.protocol.model import USER
from dialogd.protocol.money import standing
from dialogd.protocol.signals import assessed, signals
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import places
from dialogd.store.folders import StateDir
from dialogd.store.registry import Running

AwayOption = Annotated[
    bool, typer.Option("--away", help="What happened since you last spoke instead: needed of you, decided, proposed …")
]
Since = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="The same, since then: a turn (7), how long ago (2h), yesterday, a time."),
]
All = Annotated[bool, typer.Option("--all", help="List every daemon of yours, whatever its file.")]


def status(
    path: options.FileArgument = None,
    file: options.FileOption = None,
    is_away: AwayOption = False,
    since: Since = None,
    every: All = False,
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
    if is_away or since is not None:
        _missed(settings, since, json=json)
        return
    running, state = daemons(settings, settings.file), StateDir(settings.state_dir)
    try:
        log = options.log_of(settings)
        dialog = options.dialog_at(log)
    except NotRunning as error:
        waiting = ", ".join(f"{daemon.id} on port {daemon.port}" for daemon in running)
        others = dict.fromkeys(Path(daemon.file) for daemon in daemons(settings) if daemon not in running)
        looks = "; ".join(shlex.join(["dialogd", "status", *file_words(file)]) for file in others)
        fix = f"look at those that run: {looks}; or {error.fix}" if others else error.fix
        raise NotRunning(f"{error}" + (f"; waiting for one: {waiting}" if waiting else ""), fix=fix) from None
    situation, told = Situation.of(dialog, settings.file, running, state), holds(state.agents)
    missing = taken_out(log.journals.lost(dialog), settings.file)
    typed = takewhile(lambda entry: entry.frame is None or not entry.is_turn, reversed(dialog.entries))
    notices = [entry.notice for entry in reversed([*typed])]  # of what was typed since the last turn by a daemon
    warnings = [*filter(None, [missing, *dialog.header.warnings, *notices])]
    options.answer(_facts(situation, told, warnings), _lines(situation, told, warnings), json=json)


def _missed(settings: Settings, since: str | None, *, json: bool) -> None:
    """What happened while the person was away; from the marks of the dialog, without a model."""
    from dialogd.views.digest import as_text, away, last_word, since_turn

    dialog = options.dialog_at(options.log_of(settings))
    turn = last_word(dialog)
    if since is not None:
        turn = since_turn(dialog, since, datetime.now().astimezone().isoformat(), local)
    news = away(dialog, turn, local)
    text = as_text(news, width=max(get_terminal_size((100, 24)).columns, 40))
    options.answer({"file": str(settings.file), "dialog": dialog.id, **asdict(news)}, [text], json=json)


def _daemon(daemon: Running, answer: dict[str, Any] | None) -> dict[str, object]:
    return {
        "id": daemon.id,
        "url": daemon.url,
        "port": daemon.port,
        "pid": daemon.pid,
        "file": daemon.file,
        "log": daemon.log,
        "phase": answer.get("phase") if answer else "no answer",
        "health": answer,
    }


def _facts(situation: Situation, told: Sequence[Hold], warnings: Sequence[str]) -> dict[str, object]:
    dialog, state = situation.dialog, situation.dialog.state
    end = {key: getattr(state.outcome, key) for key in ("name", "by", "entry", "reason")} if state.outcome else None
    return {
        "file": str(situation.file),
        "dialog": dialog.id,
        "topic": dialog.header.topic,
        "rehearsal": dialog.is_rehearsed,
        "phase": situation.phase,
        "lifecycle": lifecycle.phase(dialog),
        "allowed": list(lifecycle.allowed(dialog)),
        "turn": state.number,
        "max_turns": state.limits.max_turns,
        "turns_counted": state.counted,
        "turn_of": list(state.owing),
        "outcome": end,
        "consensus_reached": end is not None and end["name"] == "CONSENSUS_REACHED",
        "approved": bool(state.approved),
        "questions": questions.facts(dialog),
        "waiting": list(situation.reasons()),
        "needs_person": situation.needs_person(),
        "agents": [
            {
                "id": a.id,
                "name": a.name,
                "url": a.url,
                "state": "absent" if a.id in state.absent else "present",
                "why": lifecycle.why_absent(dialog, a.id),
            }
            for a in dialog.header.agents
        ],
        "daemons": [_daemon(daemon, situation.healths.get(daemon.id)) for daemon in situation.daemons],
        "holds": [{"host": hold.host, "seconds": round(hold.left)} for hold in told],
        "signals": [{"kind": s.kind, "text": s.text, "agents": list(s.agents)} for s in signals(dialog) if end is None],
        "convergence": assessed(dialog),
        "rules": facts(dialog, now()),
        "struck": sorted(state.hand.struck),
        "vetoed": list(state.table.vetoed),
        "left": [agent.id for agent in state.hand.left],
        "step": state.hand.step,
        "unattended": dialog.header.is_unattended,
        "warnings": list(warnings),
        "secrets_redacted": _secrets(dialog),
    }


def _secrets(dialog: Dialog) -> int:
    """How many places of what agents and daemons wrote into the file are redacted."""
    written = (entry for entry in dialog.entries if entry.frame is not None and entry.by != USER)
    return sum(places("\n".join((entry.body, *map(str, entry.marks)))) for entry in written)


def _lines(situation: Situation, told: Sequence[Hold], warnings: Sequence[str]) -> Iterator[str]:
    dialog, state = situation.dialog, situation.dialog.state
    is_over, at = state.outcome is not None, now()
    left = max(state.limits.max_turns - state.counted, 0)
    whose = "" if is_over else f", next: {', '.join(state.owing) or 'nobody'}"
    rows = [
        ("file", f"{situation.file} (dialog {dialog.id})"),
        *([("", "REHEARSAL: no model is asked; what comes of it is no memory")] if dialog.is_rehearsed else []),
        ("turns", f"turn {state.turns_in_words} ({left} left){whose}"),
        ("state", f"{situation.phase} ({allowance(dialog)})"),
        *(("", reason) for reason in situation.reasons()),
        *(("question", text) for text in questions.rows(dialog, at, local) if not is_over),
        *result(dialog),
        *procedure_rows(dialog, at),
        *_by_hand(dialog),
        *(_agent_row(situation, agent.id, agent.name) for agent in dialog.header.agents),
        *([("secrets", f"{hidden} redacted in the file")] if (hidden := _secrets(dialog)) else []),
        *(("wait", f"{hold.host} {hold.words}: agents on that key hold back") for hold in told),
        *([("budget", spent)] if (spent := standing(state)) else []),
        *signal_row(dialog),
        *(("noticed", signal.text) for signal in signals(dialog) if not is_over),
        *(("warning", warning) for warning in warnings),
    ]
    if step := next_step(dialog, situation.file, is_running=bool(situation.daemons)):
        rows.append(("next", step))
    if situation.needs_person():
        rows.append(("answer", f'{shlex.join(["dialogd", "say", *file_words(situation.file)])} "…"'))
    yield line(dialog.header.topic) or "(without a topic)"
    yield from (f"  {label:8} {line(text)}" for label, text in rows)


def _agent_row(situation: Situation, agent: str, name: str) -> tuple[str, str]:
    why = lifecycle.why_absent(situation.dialog, agent)
    absent = f", absent: {why}" if why else ""
    daemon = next((daemon for daemon in situation.daemons if daemon.id == agent), None)
    if daemon is None:
        return agent, f"{name}, not running{absent}"
    answer = situation.healths.get(agent)
    if answer is None:
        return agent, f"{name}, pid {daemon.pid}, does not answer{absent}"
    return agent, f"{name}, {daemon.url}, pid {daemon.pid}, {answer.get('backend')}, {answer.get('phase')}{absent}"


def _by_hand(dialog: Dialog) -> Iterator[tuple[str, str]]:
    """What the person withdrew, ruled out or set: a label and words."""
    for strike_ in strikes(dialog).values():
        yield "struck", line(strike_.in_words)
    for ref, reason in vetoes(dialog).items():
        yield "vetoed", line(f"{ref}{reason and f': {reason}'}")
    if gone := ", ".join(agent.id for agent in dialog.state.hand.left):
        yield "left", gone
    if dialog.header.is_unattended:
        yield "person", "absent: nothing waits for you"
    if dialog.state.hand.step:
        yield "step", "on: every turn passes to you; dialogd pass, dialogd step off"
