"""How a dialog stands, in words: what the file says, and what its daemons say they are doing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dialogd.agent.clock import local
from dialogd.cli.client import health, in_parallel
from dialogd.cli.terminal import line
from dialogd.person import now
from dialogd.protocol import asked
from dialogd.protocol.decide import Clock, Wait, decide
from dialogd.protocol.model import ANY, USER
from dialogd.protocol.state import Dialog, Outcome
from dialogd.protocol.units import in_words
from dialogd.registry import Running
from dialogd.seats import start_again
from dialogd.state import StateDir


def exit_code(outcome: Outcome | None) -> int:
    """0 for a dialog that goes on, or ended as its rule decides; 1 for one that ended in an error, 4 for other ends."""
    if outcome is None or outcome.name in AGREED:
        return 0
    return 1 if outcome.failed else 4


@dataclass(frozen=True, slots=True)
class Situation:
    """A dialog and the health of its daemons, by agent id; None for one that is registered and does not answer.

    `state` is where it is kept how they were started.
    """

    dialog: Dialog
    file: Path
    daemons: tuple[Running, ...]
    healths: Mapping[str, dict[str, Any] | None]
    state: StateDir

    @classmethod
    def of(cls, dialog: Dialog, file: Path, daemons: Iterable[Running], state: StateDir) -> Situation:
        """Ask every daemon of the dialog, all at once."""
        running = tuple(daemons)
        answers = zip(running, in_parallel(health, running), strict=True)
        return cls(dialog, file, running, {daemon.id: answer for daemon, answer in answers}, state)

    @property
    def owing(self) -> tuple[str, ...]:
        """The agents that owe a turn."""
        return tuple(who for who in self.dialog.state.owing if who != USER)

    @property
    def phase(self) -> str:
        """One word for programs: waiting, thinking, paused, waiting_for_user, ended, error."""
        state = self.dialog.state
        if state.outcome is not None:
            return "error" if state.outcome.failed else "ended"
        if any(answer and answer.get("working_on") for answer in self.healths.values()):
            return "thinking"
        if state.paused:
            return "paused"
        return "waiting" if self.owing else "waiting_for_user"

    @property
    def turn_of(self) -> tuple[str, ...]:
        """Whose turn it is, the person included."""
        return self.dialog.state.owing

    def reasons(self) -> tuple[str, ...]:
        """Why the dialog stands where it stands, one sentence each; never empty."""
        state = self.dialog.state
        if state.outcome is not None:
            return (ended(state.outcome),)
        held = self._held()
        busy = {agent: text for agent in self.healths if (text := self._thinking(agent))}
        if held is not None:
            return (self._words(held), *busy.values())
        return (*busy.values(), *(self._idle(agent) for agent in self.owing if agent not in busy))

    def _held(self) -> Wait | None:
        """What keeps everybody from going on; None when an agent may."""
        agents = [agent.id for agent in self.dialog.header.agents]
        me = next((who for who in self.owing if who in agents), agents[0])
        action = decide(self.dialog, me, Clock(zone=local, rest=_rest(self.file)))
        return action if isinstance(action, Wait) else None

    def _words(self, held: Wait) -> str:
        failure = self._failure() if held.status == "waiting_for_user" else ""
        if failure and not self.dialog.state.questions:
            return failure
        return "; ".join(filter(None, (failure, line(held.reason))))

    def _failure(self) -> str:
        """Which agent's failure gave the turn to the person, and what they can do."""
        last = self.dialog.last
        mark = last.mark("AGENT_ERROR") if last else None
        if mark is None:
            return ""
        agent, cause, fix = (*mark.fields, "", "")[:3]
        return line(f"{agent} failed: {cause} ({fix}); `dialogd retry {agent}` asks it once more")

    def _thinking(self, agent: str) -> str:
        """Since when that agent works, and how long it may; "" when it does not."""
        work = (self.healths.get(agent) or {}).get("working_on")
        if not isinstance(work, dict):
            return ""
        timeout = self.dialog.state.limits.timeout
        since = in_words(round(float(work.get("seconds") or 0.0)))
        return f"{agent} thinks about turn {work.get('turn')} since {since} (at most {in_words(timeout)})"

    def _idle(self, agent: str) -> str:
        """Why that agent owes a turn and does not work on it."""
        if agent == ANY:
            return "any agent may speak"
        answer = self.healths.get(agent)
        if answer is None:
            daemon = next((daemon for daemon in self.daemons if daemon.id == agent), None)
            if daemon is not None:
                return f"waiting for {agent}; its daemon (pid {daemon.pid}) does not answer"
            again = start_again(self.state, self.file, self.dialog.id, agent)
            return f"waiting for {agent}; its daemon does not run: {again}"
        waiting = answer.get("waiting")
        if isinstance(waiting, dict) and waiting.get("status") not in ("starting", "not_my_turn"):
            return f"waiting for {agent}: {line(str(waiting.get('reason')))}"
        return f"waiting for {agent}, which is about to reply"

    def needs_person(self) -> str:
        """What the person is asked, in words; "" while an agent can go on by itself."""
        state, held = self.dialog.state, self._held()
        if held is None or held.status not in ("waiting_for_user", "unknown_turn", "damaged", "no_turn_yet"):
            return ""
        if state.question:
            words = asked.waiting(self.dialog, now(), local)
            return line(f"{state.asker} asks you: {words}" if len(state.askers) == 1 else words)
        if self.dialog.state.step and not self._failure():
            return "step mode: it is your turn"
        return self._words(held)

    def turn_line(self) -> str:
        """How many turns there are and how many may be."""
        state = self.dialog.state
        left = max(state.limits.max_turns - state.counted, 0)
        return f"turn {state.turns_in_words} ({left} left)"


def ended(outcome: Outcome) -> str:
    """How it ended, in words."""
    reason = f": {outcome.reason}" if outcome.reason else ""
    return line(f"ended with {outcome.name}{reason}")


AGREED = ("CONSENSUS_REACHED", "DECIDED")


def next_step(dialog: Dialog, file: Path, *, is_running: bool = False) -> str:
    """What the person can do about an end, as commands; "" while it goes on, or once they took the result.

    `is_running` says that its daemons are still there.
    """
    outcome, named = dialog.state.outcome, f" --file {shlex.quote(str(file))}"
    if outcome is None or dialog.state.approved:
        return ""
    go_on = "" if is_running else f" and dialogd run --continue{named}"
    if outcome.name in AGREED:
        return f'dialogd approve{named}, or dialogd reject "why"{named}{go_on}'
    what = f"{outcome.name} {outcome.reason}".lower()
    more = " --budget AMOUNT" if what.startswith(("budget", "stopped budget")) else ""
    first = f"dialogd limit max_size 2MB{named}, then " if what.startswith(("max_size", "stopped size")) else ""
    return f'dialogd plan{named} says where it stands; {first}dialogd say "…"{more}{named}{go_on} opens it again'


def _rest(file: Path) -> float:
    """Seconds since the file was last written."""
    try:
        return max(time.time() - file.stat().st_mtime, 0.0)
    except OSError:
        return 0.0
