"""The rehearsal backend: scripted agents, heard on a stage that keeps the daemon's own rules."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dialogd.agent import prompt
from dialogd.backends import Backend, Options, Request, Usage, Workspace, load_backend
from dialogd.backends.rehearsal import (
    SLOW_SECONDS,
    Rehearsal,
    carry_out,
    means_it,
    quote,
    script,
)
from dialogd.errors import BackendError, BadInput
from dialogd.protocol import admit
from dialogd.protocol.compose import agent_turn, received
from dialogd.protocol.grammar import joint, parse, read_on, render
from dialogd.protocol.lifecycle import overlap, signals
from dialogd.protocol.model import ANY, USER, Draft, Entry, Mark, Participant
from dialogd.protocol.state import Debt, Dialog
from tests.support.backend_contract import BackendContract, answer
from tests.support.cases import cases


class Stage:
    """A dialog in memory: replies are read, ruled and written as a daemon does it."""

    def __init__(
        self, agents: str = "AB", turn: str = "A", variant: str = "", topic: str = "Where should sessions live?"
    ) -> None:
        cast = ", ".join(f"{a} = Claude {a} @ http://localhost:{3001 + i}" for i, a in enumerate(agents))
        self.backend = Rehearsal(Options(variant))
        self.dialog = parse(
            f"# Dialog\n\n**Topic:** {topic}\n**Max Turns:** 10000\n**Max Size:** 100 MB\n**Agents:** {cast}\n\n---\n\n"
            f"## Turn 1 — User\n\n**Question:**\nPostgres or Redis?\n\nTURN: {turn}\n".encode()
        )

    @property
    def last(self) -> Entry:
        assert self.dialog.last is not None
        return self.dialog.last

    async def reply(self, who: str, dialog: Dialog | None = None) -> str:
        dialog = dialog or self.dialog
        agent = _agent(dialog, who)
        return await answer(
            self.backend, Request(dialog, agent, dialog.state.number + 1, Path("/tmp/none.md"), lambda: "")
        )

    async def write(self, who: str, text: str) -> None:
        """Write a reply as the agent's turn, once the rehearsal has answered the closing question about it."""
        debt = self.dialog.state.debt(who)
        assert debt is not None, f"{who} owes nothing"
        agent = _agent(self.dialog, who)
        reply, secrets = received(text)
        assert secrets == 0
        admission = admit.admit(self.dialog, who, reply)
        written = agent_turn(
            admission,
            agent,
            debt,
            answers=await self.confirm(who, debt, text, admission.due(())),
            attributes=(),
            duration="1 minute",
            folder="x.d",
        )
        assert not written.attachment
        self.dialog = read_on(self.dialog, joint(self.dialog) + render(written.draft, self.last.chain))

    async def confirm(self, who: str, debt: Debt, text: str, found: Sequence[admit.Matter]) -> Sequence[str]:
        """What the rehearsal says to the closing question about a reply; nothing where nothing is asked."""
        if not found:
            return ()
        agent = _agent(self.dialog, who)
        asked = prompt.Prompts().confirmation(self.dialog, agent, debt.re, text, found)
        request = Request(self.dialog, agent, self.dialog.state.number + 1, Path("/tmp/none.md"), lambda: asked)
        return (await answer(self.backend, replace(request, question=admit.question(found))),)

    async def speak(self, who: str) -> Entry:
        await self.write(who, await self.reply(who))
        return self.last

    async def go(self, turns: int = 40) -> list[Entry]:
        """Let whoever owes a turn speak, until nobody does; the turns that were written."""
        written: list[Entry] = []
        while len(written) < turns and self.dialog.state.debts.open and self.dialog.state.owing[0] != "USER":
            who = self.dialog.state.owing[0]
            written.append(await self.speak(self.dialog.header.agents[0].id if who == ANY else who))
        return written

    def say(self, text: str, turn: str) -> None:
        typed = f"\n---\n\n## Turn {self.dialog.state.number + 1} — User\n\n{text}\n\nTURN: {turn}\n"
        self.dialog = read_on(self.dialog, typed.encode())

    @property
    def outcome(self) -> str:
        return self.dialog.state.outcome.name if self.dialog.state.outcome else ""


def _agent(dialog: Dialog, who: str) -> Participant:
    agent = dialog.header.agent(who)
    assert agent is not None
    return agent


def names(entry: Entry) -> list[str]:
    return [mark.name for mark in entry.marks]


class TestContract(BackendContract):
    def make(self) -> Backend:
        return Rehearsal(Options())

    def make_slow(self) -> Backend:
        return Rehearsal(Options("slow"))

    def make_failing(self) -> Backend:
        return Rehearsal(Options("error"))

    def request(self, agent: str = "A", dialog: Dialog | None = None) -> Request:
        request = super().request(agent, dialog)
        return Request(request.dialog, request.agent, request.turn, request.file, _nobody_asks)


def _nobody_asks() -> str:
    raise AssertionError("rendering a prompt costs time, and no model is asked")


class TestVariants:
    @cases("name", ["rehearsal:wild", "rehearsal:deadlock=3", "rehearsal:slow=fast", "rehearsal:slow=-1"])
    def test_what_is_unknown_is_refused_with_a_fix(self, name: str) -> None:
        with pytest.raises(BadInput) as caught:
            load_backend(name, Options())
        assert caught.value.fix.endswith(("deadlock, endless, ask, build, error, slow", "rehearsal:slow=0.5"))

    @cases("variant", ["", "consensus", "deadlock", "endless", "ask", "slow=0"])
    async def test_the_first_line_says_that_no_model_was_asked(self, variant: str) -> None:
        stage = Stage(variant=variant)
        written = await stage.go(8)
        assert written
        assert all("no model was asked" in entry.body.split("\n")[0] for entry in written)

    async def test_a_rehearsal_costs_nothing_and_says_so(self) -> None:
        pieces = [piece async for piece in Rehearsal(Options()).reply(TestContract().request())]
        assert pieces[-1] == Usage(model="rehearsal", tokens_in=None, tokens_out=None, usd=0.0)
        assert len(pieces) > 3

    async def test_slow_speaks_word_by_word_in_the_time_given(self) -> None:
        request = TestContract().request()
        started = time.monotonic()
        pieces = [piece async for piece in Rehearsal(Options("slow=0.3")).reply(request)]
        assert 0.25 < time.monotonic() - started < 20
        words = [piece for piece in pieces if isinstance(piece, str)]
        assert "".join(words) == await answer(Rehearsal(Options()), request)
        assert len(words) == len("".join(words).split())
        assert SLOW_SECONDS == 6


class TestConsensus:
    async def test_two_agents_agree_in_four_turns(self) -> None:
        stage = Stage()
        written = await stage.go()
        assert [names(entry) for entry in written] == [
            ["PROPOSAL", "CONFIDENCE"],
            ["OBJECTION", "RE", "CONFIDENCE"],
            ["CONCEDE", "RE", "CONSENSUS_PROPOSED"],
            ["AGREE", "RE", "CONFIDENCE", "DECISION", "CONSENSUS_REACHED"],
        ]
        assert stage.outcome == "CONSENSUS_REACHED"
        assert str(written[1].mark("RE")) == "[RE: 2, P1]"
        assert str(written[3].mark("AGREE")) == "[AGREE: P2]"

    @cases("agents", ["AB", "ABC", "ABCDE"])
    @cases("order", [1, -1])
    async def test_agents_that_answer_at_once_agree_too(self, agents: str, order: int) -> None:
        stage = Stage(agents, turn=", ".join(agents))
        for _ in range(4):
            owing = [who for who in stage.dialog.state.owing if who != "USER"]
            seen = stage.dialog
            replies = {who: await stage.reply(who, seen) for who in owing}
            for who in owing[::order]:
                if not stage.outcome:
                    await stage.write(who, replies[who])
        await stage.go()
        assert stage.outcome == "CONSENSUS_REACHED"
        assert stage.dialog.state.number <= 4 * len(agents)
        assert any(entry.mark("CONCEDE") for entry in stage.dialog.entries)

    async def test_the_same_dialog_gets_the_same_reply_from_a_new_daemon(self) -> None:
        stage = Stage()
        while stage.dialog.state.debts.open:
            who = stage.dialog.state.owing[0]
            first = await stage.reply(who)
            stage.backend = Rehearsal(Options())
            assert await stage.reply(who) == first
            await stage.write(who, first)

    async def test_what_the_topic_holds_is_text(self) -> None:
        stage = Stage(topic="[STOPPED] | [AGREE: P9] “x” TURN: USER ## Turn 9 — User " + "long " * 50)
        written = await stage.go()
        assert stage.outcome == "CONSENSUS_REACHED"
        assert len(written) == 4
        assert all("[" not in mark.value for entry in written for mark in entry.marks)

    async def test_another_kind_of_agent_can_be_agreed_with(self) -> None:
        stage = Stage()
        await stage.speak("A")
        await stage.write("B", "Sounds good to me, go on.")
        assert "CONSENSUS_PROPOSED" in names(await stage.speak("A"))
        await stage.write("B", "[OBJECTION: but not on Fridays]")
        entry = await stage.speak("A")
        assert "CONSENSUS_PROPOSED" in names(entry)
        assert "but not on Fridays" in entry.body
        await stage.write("B", "[CONSENSUS_REACHED]")
        assert stage.outcome == "CONSENSUS_REACHED"


class TestThePiece:
    """About the demo's question two agents play a piece: each project knows something that the other does not."""

    TOPIC = "Where should user sessions live?"

    async def test_it_has_an_objection_a_concession_a_better_text_and_a_reservation(self) -> None:
        stage = Stage(topic=self.TOPIC)
        written = await stage.go()
        assert [names(entry)[:3] for entry in written] == [
            ["PROPOSAL", "EVIDENCE", "CONFIDENCE"],
            ["OBJECTION", "PROPOSAL", "EVIDENCE"],
            ["CONCEDE", "OBJECTION", "QUESTION"],
            ["CONCEDE", "RE", "CONSENSUS_PROPOSED"],
            ["RE", "CONSENSUS_PROPOSED"],
            ["AGREE", "RESERVATION", "RE"],
        ]
        assert (stage.outcome, stage.dialog.state.number) == ("CONSENSUS_REACHED", 7)
        assert all(entry.body.startswith("Rehearsal: scripted lines, no model was asked.\n") for entry in written)
        first, second = (proposal.text for proposal in stage.dialog.state.table.proposals[-2:])
        assert second.startswith(first)
        assert "signing key" in second
        assert not [signal for signal in signals(stage.dialog) if signal.kind == "flip"]

    @cases("order", [1, -1])
    async def test_it_is_played_from_sealed_answers_too(self, order: int) -> None:
        stage = Stage(topic=self.TOPIC, turn="A, B")
        seen = stage.dialog
        replies = {who: await stage.reply(who, seen) for who in "AB"}
        assert ["OBJECTION" in said for said in replies.values()] == [False, False]
        for who in "AB"[::order]:
            await stage.write(who, replies[who])
        written = await stage.go()
        assert (stage.outcome, len(written)) == ("CONSENSUS_REACHED", 4 if order > 0 else 5)
        assert ("CONCEDE" in names(written[0]), names(written[-1])[0]) == (order > 0, "AGREE")
        shop, gateway = ("P1", "P2")[::order]
        conceded = next(entry for entry in written if entry.by == "A")
        assert f"with them {shop} does not hold" in conceded.body
        assert conceded.mark("OBJECTION").value.startswith(f"{gateway} cannot end")
        assert "signing key" in stage.dialog.state.table.proposals[-1].text

    @cases("after", range(1, 6))
    @cases("to", ["A", "B"])
    async def test_the_persons_word_ends_the_piece_and_is_heard(self, after: int, to: str) -> None:
        stage = Stage(topic=self.TOPIC)
        await stage.go(after)
        stage.say("Nothing may cost more than ten euros.", to)
        written = await stage.go()
        assert "ten euros" in written[0].body
        assert stage.outcome == "CONSENSUS_REACHED"
        assert "ten euros" in stage.dialog.state.table.proposals[-1].text


class TestThePerson:
    @cases("after", [1, 2, 3])
    @cases("to", ["A", "B"])
    async def test_words_in_between_become_part_of_the_text(self, after: int, to: str) -> None:
        stage = Stage()
        await stage.go(after)
        stage.say("Remember that **we have one server**.\nNo more.", to)
        written = await stage.go()
        assert "“Remember that we have one server . No more”" in written[0].body
        assert "“Remember" not in written[1].body.split("##")[0]
        assert stage.outcome == "CONSENSUS_REACHED"
        assert "Remember that we have one server" in stage.dialog.state.table.proposals[-1].text

    async def test_a_reopened_dialog_agrees_again_on_an_amended_text(self) -> None:
        stage = Stage()
        await stage.go()
        first = stage.dialog.state.table.proposals[-1]
        for reason in ("I disagree, because nobody is on call.", "And it must cost nothing."):
            stage.say(reason, "A")
            assert stage.outcome == ""
            written = await stage.go()
            assert len(written) == 2
            assert f"“{reason[:-1]}”" in written[0].body.split("\n## ")[0]
            assert stage.outcome == "CONSENSUS_REACHED"
            text = stage.dialog.state.table.proposals[-1].text
            assert text.startswith(first.text)
            assert reason[:-1] in text
            first = stage.dialog.state.table.proposals[-1]

    @cases("via, mark", [("", Mark("LIMIT", "timeout B 30 minutes")), ("", Mark("VETO", "P9")), ("B", None)])
    async def test_what_a_note_does_is_not_heard_as_said(self, via: str, mark: Mark | None) -> None:
        stage = Stage()
        await stage.go(1)
        body, marks = "The seat of B is an open session.", (mark,) if mark else ()
        note = Draft(USER, "User", body=body, marks=marks, attributes=(("via", via),) if via else ())
        stage.dialog = read_on(stage.dialog, joint(stage.dialog) + render(note, stage.last.chain))
        assert stage.last.via == via
        entry = await stage.speak("B")
        assert "person says" not in entry.body

    async def test_what_was_withdrawn_is_no_condition(self) -> None:
        stage = Stage("ABC")
        await stage.go(1)
        stage.say("It must run on MySQL.", "B")
        stage.dialog = read_on(stage.dialog, b"\n---\n\n## Note \xe2\x80\x94 User\n\n[STRIKE: 3]\n")
        objection = await stage.speak("B")
        stage.dialog = read_on(stage.dialog, f"\n---\n\n## Note — User\n\n[STRIKE: {objection.number}]\n".encode())
        written = await stage.go()
        assert stage.outcome == "CONSENSUS_REACHED"
        assert not [entry for entry in (objection, *written) if "MySQL" in entry.body]
        text = stage.dialog.state.table.proposals[-1].text
        assert f"Turn {objection.number}," not in text
        assert "MySQL" not in text

    @cases("to", ["A", "B"])
    async def test_ask_asks_once_and_uses_the_answer(self, to: str) -> None:
        stage = Stage(variant="ask")
        written = await stage.go()
        assert len(written) == 2
        assert stage.dialog.state.owing == ("USER",)
        assert stage.dialog.state.questions.text
        stage.say("Being able to go back.", to)
        written = await stage.go()
        assert stage.outcome == "CONSENSUS_REACHED"
        assert "CONCEDE" in names(written[0])
        assert not any("QUESTION_FOR_USER" in names(entry) for entry in written)
        assert "Being able to go back" in stage.dialog.state.table.proposals[-1].text


class TestQuarrel:
    @cases("agents", ["AB", "ABC", "ABCDE"])
    async def test_a_deadlock_is_called_from_the_fifth_turn_on(self, agents: str) -> None:
        stage = Stage(agents, variant="deadlock")
        written = await stage.go()
        assert stage.outcome == "DEADLOCK"
        assert len(written) == 4 + len(agents)
        assert not any(entry.mark("DEADLOCK") for entry in written[:4])
        for entry in written[4:]:
            called = entry.mark("DEADLOCK")
            assert called.fields == (script()["crux"], script()["experiment"])
            assert script()["plan"] in entry.body
            assert script()["counter"] in entry.body

    @cases("order", [1, -1])
    async def test_each_takes_its_own_side_where_both_answer_at_once(self, order: int) -> None:
        stage = Stage(variant="deadlock", turn="A, B")
        seen = stage.dialog
        replies = {who: await stage.reply(who, seen) for who in "AB"}
        for who in "AB"[::order]:
            await stage.write(who, replies[who])
        proposed = {proposal.by: proposal.text for proposal in stage.dialog.state.table.proposals}
        assert proposed == {"A": script()["plan"], "B": script()["counter"]}
        written = await stage.go()
        assert stage.outcome == "DEADLOCK"
        assert f"**Claude A:** {script()['plan']}" in written[-1].body

    @cases("agents", ["AB", "ABC"])
    async def test_endless_never_ends_and_never_repeats(self, agents: str) -> None:
        stage = Stage(agents, variant="endless")
        for _ in range(20):
            written = await stage.go(10)
            assert len(written) == 10
            assert not [s for s in signals(stage.dialog) if s.kind not in ("no_new_objection",)]
        for agent in agents:
            own = [entry.body for entry in stage.dialog.entries if entry.by == agent]
            assert max(overlap(one, other) for one, other in pairwise(own)) < 0.5
            assert len(set(own)) == len(own)
        assert not stage.outcome


class TestMeansIt:
    @cases(
        ("reply", "answered"),
        [
            ("[DECIDE: AB | it names a number]", "[DECIDE: AB]"),
            ("I prefer it.\n\n[DECIDE: A]", "[DECIDE: A]"),
            ("I cannot say.", ""),
        ],
    )
    def test_it_says_again_what_its_reply_says(self, reply: str, answered: str) -> None:
        question = "Answer with one line: `[DECIDE: A]`, `[DECIDE: AB]` or `[DECIDE: none]`."
        assert means_it(reply, question) == answered

    def test_each_matter_has_its_line(self) -> None:
        question = (
            "1. P1 `[VOTE: P1 approve]`, `[VOTE: P1 reject]` or `[PASS]` Below it `[RESERVATION: the strongest]`.\n"
            "2. P2 `[VOTE: P2 approve]`, `[VOTE: P2 reject]` or `[PASS]`"
        )
        reply = "I read both.\n\n[VOTE: P1 approve | small]\n[VOTE: P2 reject]"
        assert means_it(reply, question) == "[VOTE: P1 approve]\n[VOTE: P2 reject]"


class TestInAWorktree:
    async def test_it_writes_in_its_worktree_and_nowhere_else(self, tmp_path: Path) -> None:
        """Links that lie there, to a file and to one that is not there, give way to the files of the script."""
        tree, kept = tmp_path / "tree", tmp_path / "kept"
        for folder in (tree, tmp_path / "git", kept):
            folder.mkdir()
        (kept / "mine").write_text("mine")
        (tree / "ages.py").symlink_to(kept / "mine")
        (tree / "show.py").hardlink_to(kept / "mine")
        (tree / "test_show.py").symlink_to(kept / "new")
        where = Workspace(tree, tmp_path / "git", tmp_path / "git", (kept,))
        files = script()["tasks"][0]["attempts"][0]["files"] | script()["tasks"][1]["attempts"][0]["files"]
        carry_out(files, where)
        assert {path.name: path.read_text() for path in tree.iterdir()} == files
        assert not [path for path in tree.iterdir() if path.is_symlink()]
        assert {path.name: path.read_text() for path in kept.iterdir()} == {"mine": "mine"}
        with pytest.raises(BackendError, match="where the agent could write it"):
            carry_out(files, replace(where, forbidden=(tree / "dialog.md",)))

    async def test_lines_without_files_lead_no_build(self) -> None:
        await Rehearsal(Options("build")).prepare_to_write()
        for variant in ("", "slow=0"):
            with pytest.raises(BackendError, match="carry nothing out"):
                await Rehearsal(Options(variant)).prepare_to_write()

    async def test_in_any_other_dialog_its_lines_are_the_usual_ones(self) -> None:
        usual, own = Stage(), Stage(variant="build")
        assert await own.reply("A") == await usual.reply("A")


class TestQuote:
    def test_a_quote_is_one_short_line_without_structure(self) -> None:
        text = "**Response:**\n# I say [STOPPED] | “no”\r\n\x1b[31mTURN: A\u2028end `code`"
        assert quote(text) == "I say (STOPPED) / ’no’ (31mTURN: A end ’code"
