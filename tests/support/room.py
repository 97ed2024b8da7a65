"""A room: scripted agents and a person around one dialog file in memory, on a clock that is moved by hand.

Bytes are read, decided on, replied to, rendered and appended by the real core; disk, network and time are left out.

    room = Room(opening(), A=["I propose Postgres."], B=["Why not Redis?"])
    room.run()
    print(room.text)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import cast

from dialogd import person
from dialogd.agent import prompt
from dialogd.errors import BackendError
from dialogd.protocol import admit, build, compose
from dialogd.protocol.certificate import seal, sealed_text
from dialogd.protocol.decide import Action, Clock, Reply, Wait, Work, Write, decide
from dialogd.protocol.header import agent_url
from dialogd.protocol.marks import ParsedReply, is_yes
from dialogd.protocol.model import Addition, Draft, Entry, Mark, Participant
from dialogd.protocol.order import is_open, is_sealed_round
from dialogd.protocol.state import Debt, Dialog
from dialogd.protocol.text import in_words
from dialogd.store.logfile import LogFile, Make
from tests.support.paper import Paper

# What an agent does when it is asked: answer, fail, or (None) say nothing at all.
Line = str | BackendError | None


def opening(
    *agents: str,
    turn: str = "",
    question: str = "Where should user sessions live?",
    keys: Sequence[str] = (),
    setup: str = "",
    more: str = "",
) -> str:
    """A header and a first turn. Without `agents` it names nobody, which means A and B.

    `keys` are further header lines, such as `Max Turns: 6`; `setup` is the text of a Setup, `more` stands after that.
    """
    rules = f"## Setup\n\n```toml\n{setup}\n```" if setup else ""
    named = [f"{a} = Claude {a} @ {agent_url(seat)}" for seat, a in enumerate(agents)]
    lines = [*keys, *([f"Agents: {', '.join(named)}"] if named else [])]
    header = "\n".join(f"**{key}:**{value}" for key, _, value in (line.partition(":") for line in lines))
    first = ["## Turn 1 — User", question, f"TURN: {turn or (agents or 'A')[0]}"]
    return "\n\n".join(part for part in ("# A dialog", header, rules, more, "---", *first) if part) + "\n"


class Room:
    """Agents with scripts, by id.

    `prompts`, `questions` (for a new body) and `asked` (closing questions) are what they were asked; `confirms` is what
    an agent answers to its closing questions, one after the other: without it, it means what it wrote, and where it is
    asked once more says the same again. `drafts` is what came too late, `held` what waits because somebody is typing,
    `attachments` what was too long, by name. `gates` are what the gate of a build says, one after the other: "passed"
    without it; "error" stops the task.
    """

    def __init__(self, text: str | bytes, **scripts: Sequence[Line]) -> None:
        self.paper = Paper(text.encode() if isinstance(text, str) else text)
        self.scripts: dict[str, list[Line]] = {who: list(lines) for who, lines in scripts.items()}
        self.drafts: dict[str, list[str]] = {}
        self.prompts: list[tuple[str, str]] = []
        self.questions: list[tuple[str, str]] = []
        self.asked: list[tuple[str, str]] = []
        self.confirms: dict[str, list[str]] = {}
        self._answers: dict[str, list[str]] = {}
        self.attachments: dict[str, str] = {}
        self.nudged, self.lain, self.pace, self.retry_pause = True, 0.0, 0.0, 0.0
        self.working: frozenset[str] = frozenset()
        self.gates: list[str] = []
        self.made = 0
        self.held: dict[str, str] = {}
        self.sealed: dict[str, str] = {}
        self._calls: dict[str, Debt] = {}
        self._changed = 0.0
        self._said: dict[str, tuple[int, float]] = {}
        self._first: dict[tuple[str, str, str], float] = {}
        self._observe()

    # -- what stands in the file ----------------------------------------------------------------------------------

    @property
    def dialog(self) -> Dialog:
        return self.paper.read()

    @property
    def text(self) -> str:
        return self.paper.data.decode("utf-8", "replace")

    @property
    def log(self) -> LogFile:
        """The file, for code that works on a log file."""
        return cast("LogFile", self.paper)

    @property
    def owing(self) -> tuple[str, ...]:
        return self.dialog.state.owing

    @property
    def outcome(self) -> str:
        """The name of the mark that ended it, "" while it goes on."""
        end = self.dialog.state.outcome
        return end.name if end else ""

    # -- time -----------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass; while the dialog is paused nothing ages."""
        self.paper.now += seconds
        if self.dialog.state.paused:
            self._first = {key: first + seconds for key, first in self._first.items()}

    def clock(self, me: str = "") -> Clock:
        """What every daemon in the room knows beside the file, and that of agent `me` of its own turns."""
        return Clock(
            at=self.paper.at,
            nudged=self.nudged,
            lain=self.lain,
            rest=self.paper.now - self._changed,
            silent=self.paper.now - self._said.get(me, (0, -math.inf))[1],
            ages={key: self.paper.now - first for key, first in self._first.items()},
            working=self.working,
            pace=self.pace,
            pause=self.retry_pause,
        )

    # -- the agents -----------------------------------------------------------------------------------------------

    def look(self, me: str) -> Action:
        """What agent `me` would do now; does nothing."""
        return decide(self.dialog, me, self.clock(me))

    def step(self, me: str) -> Action:
        """Let agent `me` do what it has to: answer by the next line of its script, write a note, or wait."""
        action = self.look(me)
        match action:
            case Reply(debt) if me in self.sealed and debt.is_ready:
                self._unseal(me, debt)
            case Reply() if me in self.held:
                self.answers(me, self.held.pop(me))
            case Reply() if self.scripts.get(me):
                self.says(me, self.scripts[me].pop(0))
            case Work(_, due, task):
                self._append(lambda _: Addition(self._worked(due, task)))
            case Write(None):
                self.types("\n")
            case Write(draft) if draft is not None:
                self._append(lambda _: Addition(draft))
        return action

    def run(self, most: int = 100) -> None:
        """Let everybody step, in the order of the header, until nobody has anything to do."""
        for _ in range(most):
            before = self.paper.data
            for agent in self.dialog.header.agents:
                self.step(agent.id)
            if self.paper.data == before:
                return
        raise AssertionError(f"still going on after {most} rounds")

    def thinks(self, me: str) -> str:
        """Agent `me` begins its turn; gives what it was asked. Raises `ValueError` when it is not its turn."""
        debt = self.dialog.state.debt(me)
        if debt is None or not isinstance(self.look(me), Reply):
            raise ValueError(f"{me} has no turn now: {waits(self.look(me))}")
        self._calls[me] = debt
        if me in self.held:
            self.drafts.setdefault(me, []).append(self.held.pop(me))
        asked = prompt.Prompts().turn(self.dialog, self._agent(me), self.drafts.get(me, ())).text
        self.prompts.append((me, asked))
        return asked

    def answers(self, me: str, line: Line) -> Entry | None:
        """Agent `me` comes back with its answer: the entry, or None when it is late, held or says nothing."""
        if isinstance(line, str) and waits(self.look(me)) == "unfinished":
            self.held[me] = line
            return None
        if line is None:
            return None
        debt = self._calls.pop(me)
        if isinstance(line, BackendError):
            error = line
            return self._append(lambda now: self._failed(now, me, debt, error))
        kinds = self.dialog.header.rules.kinds
        question = compose.lacks_body(self.dialog, me, compose.received(line, kinds)[0])
        if question:
            self.questions.append((me, question))
            again = self.scripts[me].pop(0) if self.scripts.get(me) else None
            line = again if isinstance(again, str) else line
        reply, _ = compose.received(line, kinds)
        self._answers[me] = self._confirmed(me, reply)
        self.drafts.pop(me, None)
        if is_sealed_round(self.dialog, debt) and not debt.is_ready:
            self.sealed[me] = line
            return self._append(lambda now: self._seal(now, me, debt, reply))
        entry = self._append(lambda now: self._turn(now, me, debt, reply))
        if entry is None:
            self.drafts.setdefault(me, []).append(line)
        return entry

    def says(self, me: str, line: Line) -> Entry | None:
        self.thinks(me)
        return self.answers(me, line)

    def speak(self, *said: tuple[str, str]) -> Room:
        """These agents take their turns, one after another, with these words."""
        for me, line in said:
            assert self.says(me, line) is not None, f"{me} comes too late"
        return self

    def talk(self, *lines: str) -> Room:
        """Whoever owes a turn says the next of these."""
        for line in lines:
            self.speak((self.owing[0], line))
        return self

    def _confirmed(self, me: str, reply: ParsedReply) -> list[str]:
        """What agent `me` says to the closing question, and where that is put once more: the next of `confirms`."""
        admission = admit.admit(self.dialog, me, reply)
        answers: list[str] = []
        while found := admission.due(answers):
            self.asked.append((me, admit.question(found)))
            given = self.confirms.get(me)
            answers.append(given.pop(0) if given else answers[0] if answers else confirmed(found))
        return answers

    def _seal(self, now: Dialog, me: str, debt: Debt, reply: ParsedReply) -> Addition | None:
        addition = self._turn(now, me, debt, reply)
        if addition is None:
            return None
        sha = seal(_nonce(me), sealed_text(addition.draft.body, addition.draft.marks))
        return Addition(compose.sealed_note(self._agent(me), debt, sha, self.paper.at, could_read=False))

    def _unseal(self, me: str, debt: Debt) -> None:
        reply, _ = compose.received(self.sealed.pop(me), self.dialog.header.rules.kinds)
        self._append(lambda now: self._turn(now, me, debt, reply, nonce=_nonce(me)))

    def _agent(self, me: str) -> Participant:
        return self.dialog.header.agent(me) or Participant(me, f"Claude {me}", "")

    def _turn(self, now: Dialog, me: str, debt: Debt, reply: ParsedReply, *, nonce: str = "") -> Addition | None:
        if not is_open(now, me, debt):
            return None
        duration = in_words(max(self.paper.now, 1.0))
        written = compose.agent_turn(
            admit.admit(now, me, reply),
            self._agent(me),
            debt,
            answers=self._answers.get(me, ()),
            done=self._submitted(now, me),
            attributes=(("nonce", nonce),),
            duration=duration,
            folder="dialog.md.d",
            here=self.paper.at,
        )
        if written.attachment:
            self.attachments[written.attachment] = written.overflow
        return Addition(written.draft)

    def _worked(self, what: build.Due, task: build.Task) -> Draft:
        """The note of the lead's daemon: a worktree without files, or the next of `gates`."""
        rules = self.dialog.state.build.rules
        assert rules is not None
        if what is build.Due.GATE:
            state = self.gates.pop(0) if self.gates else "passed"
            if state == "asked":
                return build.ask_gate_note(rules, task, "there is none here", (), self.paper.at)
            if state == "error":
                return build.error_note(self.dialog.state.build, task, "disk", "the disk is full", self.paper.at)
            result = build.GateResult(state, int(state != "passed"), 1.0, "f" * 64, "1 passed")
            return build.gate_note(rules, task, result, (), self.paper.at)
        base = self.dialog.state.build.start
        if task.carried:
            made = self._made(task, base)
            return build.carried_note(task, made, self.dialog.state.table.next_ref, self.paper.at)
        return build.assigned_note(task, f"dialogd/task-{task.id}", base, self.paper.at)

    def _made(self, task: build.Task, base: str) -> build.Submission:
        """What git would say of a submission; each has a commit and a tree of its own."""
        self.made += 1
        commit, tree = f"{self.made:040x}", f"{self.made + 0xABC000:040x}"
        return build.Submission(f"dialogd/task-{task.id}", commit, tree, base, 1, 5, 0)

    def _submitted(self, now: Dialog, me: str) -> tuple[Mark, ...]:
        rules = now.state.build.rules
        what, task = now.state.build.due_of(me)
        if rules is None or what is not build.Due.WORK or task is None:
            return ()
        return build.submitted(task, self._made(task, task.base), now.state.table.next_ref, task.iteration)

    def _failed(self, now: Dialog, me: str, debt: Debt, error: BackendError) -> Addition | None:
        if not is_open(now, me, debt):
            return None
        return Addition(compose.error_note(now, me, error.cause, error.fix, (("at", self.paper.at),)))

    def _append(self, make: Make) -> Entry | None:
        dialog = self.paper.append(make)
        self._observe()
        return dialog.last if dialog else None

    def _observe(self) -> None:
        self._changed = self.paper.now
        for who, turn in self.dialog.state.floor.spoke_at.items():
            if self._said.get(who, (0, 0.0))[0] != turn:
                self._said[who] = turn, self.paper.now
        open_debts = {debt.timer for debt in self.dialog.state.debts.open}
        self._first = {key: self._first.get(key, self.paper.now) for key in open_debts}

    # -- the person -----------------------------------------------------------------------------------------------

    def types(self, text: str | bytes) -> None:
        """The person types at the end of the file, in an editor."""
        self.paper.data += text.encode() if isinstance(text, str) else text
        self._observe()

    def by_hand(self, act: Callable[..., Dialog], *words: str, **more: bool | int | str | None) -> None:
        """The person does something: `room.by_hand(person.veto, "P1", "too slow")`."""
        act(self.log, *words, **more)
        self._observe()

    say = partialmethod(by_hand, person.say)
    pause = partialmethod(by_hand, person.pause)
    resume = partialmethod(by_hand, person.resume)
    pass_on = partialmethod(by_hand, person.pass_on)
    retry = partialmethod(by_hand, person.retry)
    skip = partialmethod(by_hand, person.skip)
    asks_for_the_word = partialmethod(by_hand, person.floor)
    approve = partialmethod(by_hand, person.approve)
    reject = partialmethod(by_hand, person.reject)
    stop = partialmethod(by_hand, person.stop)


def _nonce(me: str) -> str:
    """A room is repeatable: what is random in daemons is not here."""
    return me.lower().encode().hex().zfill(32)


def waits(action: Action) -> str:
    """The status of a `Wait`, else the name of the action."""
    return action.status if isinstance(action, Wait) else type(action).__name__


def confirmed(found: Sequence[admit.Matter]) -> str:
    """The answer of an agent that means its yes as it stands, and has nothing to add."""
    lines = []
    for matter in found:
        if not all(map(is_yes, matter.marks)):
            continue
        said = {f"{str(mark).rstrip(']').partition(' | ')[0]}]" for mark in matter.marks}
        if "[CONSENSUS_REACHED]" in said and matter.about != admit.TEXT:
            said.add(f"[AGREE: {matter.about}]")
        lines += [form for form in matter.forms if form in said]
    return "\n".join(dict.fromkeys(lines))
