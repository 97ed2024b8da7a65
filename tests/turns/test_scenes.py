"""Scenes of an agent's turn around a real file and journal, as they are written in `scenes/`: what is bought and kept.

    == title                          a scene; `dialog` begins it anew within one
    key **Budget:** $0.10 · turn A, B a line of the header; whom the first turn names
    price 10/20/1 · room 1500 · cap 0.001 · costs nothing · digest · answers call || call
                                      of the mind that is asked next (`price none`: nobody knows it; `free`)
    A: call || call                   A's daemon starts anew and steps, its mind says this at each call
    A again                           it does so with the same mind
    while asked 2: say                the person says something (`stop`, `pause`) at the second call (`speaking`: in it)
    refusing 3                        the journal refuses to be written to for three steps, then no more
    table · talk 8 · retry A · say words -> A · in vain 0.04
                                      A puts a text to the vote; so many long turns; the person; what was spent before

A call is what comes after each other, with ` ; ` between: text (`\\n` begins a line), `+1000/100` tokens in and out
(`~` an estimate, `$0.7` its price, `c800` read from a cache), `+` the usual 1000/100, `~20` seconds, `!wrong` an error.

What is looked at: `account 1 1000 100 0.012` of the last frame, `spent 0.024` by A, `asked 2` calls of the mind, of
them `questions 1`, `body words`, `marks DIGEST`, `error words`, `drafts text || text`, `ends budget` (nothing: it goes
on), `reason words`, `owes A`, `journal reply intent done`, `allowance 1 0.5 100000`, `prompt 2 has words` (`lacks`),
`signed`, `refused`: B's turn stands, with its words, and its yes counts, or does not.
"""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from dialogd import person
from dialogd.agent.turn import Behavior
from dialogd.backends import FREE, Price, Usage
from dialogd.errors import BackendError, DialogdError
from dialogd.protocol.state import Dialog
from tests.logfile.files import log_of
from tests.protocol.test_closing import TEXT
from tests.protocol.test_scenes import scenes
from tests.turns.minds import (
    BUSY,
    DEAR,
    SAID,
    WRONG,
    Line,
    Mind,
    agent_with,
    dialog_in,
    interrupted,
    journal_refusing,
    step,
)

ERRORS = {
    "busy": BUSY,
    "wrong": WRONG,
    "empty": BackendError("no text came", fix="ask again", kind="empty"),
    "refusal": BackendError("refused", fix="ask otherwise", kind="refusal"),
    "cut": BackendError("cut off", fix="ask again", partial="Half a reply", kind="cut"),
    "whole": BackendError("asked for a tool", fix="ask again", partial="The whole reply.", is_whole=True),
}
ACTS = {"say": person.say, "stop": person.stop, "pause": lambda log, _: person.pause(log)}
LONG = "Sessions and their cost. " * 60


def line_of(text: str) -> Line:
    """What a mind says, uses, or fails with."""
    if used := re.fullmatch(r"\+(~?)(?:(\d+)/(\d+))?(?: c(\d+))?(?: \$([\d.]+))?", text):
        if not used[2]:
            return SAID
        usd = float(used[5]) if used[5] else None
        return Usage("m-1", int(used[2]), int(used[3]), cached=int(used[4] or 0), usd=usd, estimated=bool(used[1]))
    if text.startswith("!"):
        return ERRORS[text[1:]]
    return float(text[1:]) if re.fullmatch(r"~[\d.]+", text) else text.encode().decode("unicode_escape")


def calls_of(text: str) -> list[list[Line]]:
    """The calls of a mind; of none nothing."""
    return [[line_of(part) for part in call.split(" ; ") if part] for call in text.split(" || ")] if text else []


class Scene:
    """One dialog at a time, its agents each started anew for every turn."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.begin()

    def begin(self) -> None:
        """Forget all of the dialog before."""
        self.count += 1
        self.keys, self.turn, self.made = list[str](), "A", None
        self.anew()
        self.mind = Mind()

    def anew(self) -> None:
        """What is said of one mind holds for one."""
        self.price: Price | None = DEAR
        self.most: dict[str, Any] = {}
        self.options: dict[str, Any] = {}
        self.costs, self.refusals = True, 0
        self.interruption: tuple[str, str] | None = None

    @property
    def path(self) -> Path:
        if self.made is None:
            folder = self.folder / str(self.count)
            folder.mkdir()
            self.made = dialog_in(folder, *self.keys, turn=self.turn)
        return self.made

    @property
    def dialog(self) -> Dialog:
        return log_of(self.path).read()

    async def play(self, line: str) -> None:
        """Do, or look at, what the line says."""
        if said := re.fullmatch(r"([AB]):(?: (.*))?", line):
            self.mind = Mind(*calls_of(said[2] or ""), price=self.price, **self.most)
            self.mind.costs = self.costs
            await self.step(said[1])
            self.anew()
            return
        word, _, rest = line.partition(" ")
        match word:
            case "A" | "B":
                await self.step(word)
            case "dialog":
                self.begin()
            case "key":
                self.keys.append(rest)
            case "turn":
                self.turn = rest
            case "price":
                known = {"none": None, "free": FREE}
                self.price = known[rest] if rest in known else Price(*map(float, rest.split("/")))
            case "room":
                self.most["room"] = int(rest)
            case "answers":
                self.most["answers"] = calls_of(rest)
            case "cap":
                self.options["budget"] = float(rest)
            case "digest":
                self.options["digest"] = True
            case "costs":
                self.costs = False
            case "refusing":
                self.refusals = int(rest)
            case "while":
                when, act = rest.split(": ")
                self.interruption = (when, act)
            case "table":
                assert [p.ref for p in (await step(self.path, Mind((TEXT,)))).state.table.proposals] == ["P1"]
            case "talk":
                for number in range(int(rest)):
                    await step(self.path, Mind((LONG, Usage(tokens_in=1, tokens_out=1))), "AB"[number % 2])
            case "retry":
                person.retry(log_of(self.path), rest)
            case "say":
                text, _, to = rest.partition(" -> ")
                person.say(log_of(self.path), text, to=to)
            case "in":
                usage = {"calls": 1, "usd": float(rest.split()[1]), "usd_known": 1}
                log_of(self.path).journals.of("A").record("spent", usage=usage)
            case _:
                getattr(self, f"see_{word}")(rest)

    async def step(self, me: str) -> None:
        """The agent's daemon starts, takes a step, and ends."""
        self.me = me
        behavior = Behavior(pace=0.0, poll=0.05, retry_wait=0.001, **self.options)
        async with agent_with(self.path, self.mind, me, behavior) as agent:
            with journal_refusing(agent) if self.refusals else nullcontext():
                for _ in range(self.refusals):
                    with suppress(DialogdError):
                        await agent.step()
            if self.interruption is None:
                await agent.step()
                return
            when, act = self.interruption
            number = int(when.removeprefix("asked ")) if when != "speaking" else 0

            def is_time() -> bool:
                return len(self.mind.asked) == number if number else bool(agent.call and agent.call.parts)

            await interrupted(agent, is_time, ACTS[act], self.path)

    def see_account(self, rest: str) -> None:
        found = self.dialog.last.frame
        wanted = rest.split()
        said = (found.calls, found.tokens_in, found.tokens_out, found.usd)
        assert [one or "-" for one in said][: len(wanted)] == wanted

    def see_spent(self, rest: str) -> None:
        assert self.dialog.state.spent["A"].usd == pytest.approx(float(rest))

    def see_asked(self, rest: str) -> None:
        assert len(self.mind.asked) == int(rest)

    def see_questions(self, rest: str) -> None:
        assert sum(bool(request.question) for request in self.mind.requests) == int(rest)

    def see_body(self, rest: str) -> None:
        assert self.dialog.turns[-1].body == rest

    def see_marks(self, rest: str) -> None:
        assert {mark.name for entry in self.dialog.entries[1:] for mark in entry.marks} == set(rest.split())

    def see_error(self, rest: str) -> None:
        assert rest in str(self.dialog.last.mark("AGENT_ERROR"))

    def see_drafts(self, rest: str) -> None:
        assert "||".join(log_of(self.path).journals.of(self.me).drafts()) == rest.encode().decode("unicode_escape")

    def see_ends(self, rest: str) -> None:
        outcome = self.dialog.state.outcome
        assert (outcome.cause or outcome.name if outcome else "") == rest

    def see_reason(self, rest: str) -> None:
        assert rest in self.dialog.state.outcome.reason

    def see_owes(self, rest: str) -> None:
        assert " ".join(self.dialog.state.owing) == rest

    def see_journal(self, rest: str) -> None:
        records = log_of(self.path).journals.of(self.me).records()
        kinds = [record["kind"] for record in records]
        assert [kind for kind in kinds if kind not in ("calling", "spent") or kind in rest] == rest.split()

    def see_allowance(self, rest: str) -> None:
        number, usd, *tokens = rest.split()
        request = self.mind.requests[int(number) - 1]
        assert request.allowance == pytest.approx(float(usd))
        assert [request.tokens] == [int(one) for one in tokens] or not tokens

    def see_prompt(self, rest: str) -> None:
        number, how, words = rest.split(" ", 2)
        assert (words in self.mind.asked[int(number) - 1].text) == (how == "has")

    def see_signed(self, _: str) -> None:
        self.see_signature(is_signed=True)
        assert self.dialog.state.outcome is not None

    def see_refused(self, _: str) -> None:
        self.see_signature(is_signed=False)
        turn = self.dialog.turns[-1]
        assert "Fine, and here is why." in turn.body
        assert turn.mark("REFUSED").value.startswith("AGREE P1")

    def see_signature(self, *, is_signed: bool) -> None:
        turn = self.dialog.turns[-1]
        assert (turn.by, turn.mark("AGREE") is not None, self.dialog.state.debts.missed) == ("B", is_signed, {})
        assert all(entry.mark("AGENT_ERROR") is None for entry in self.dialog.entries)


ALL = list(scenes(Path(__file__).with_name("scenes")))


@pytest.mark.parametrize(("title", "lines"), ALL, ids=[title for title, _ in ALL])
async def test_a_turn_goes_as_it_is_written(tmp_path: Path, title: str, lines: list[str]) -> None:
    scene = Scene(tmp_path)
    for number, line in enumerate(lines, 1):
        try:
            await scene.play(line)
        except BaseException as error:
            error.add_note(f"{title}, line {number}: {line}")
            raise
