"""Scenes of whole dialogs, as they are written in `scenes/`: who says and does what, and what it comes to.

    == title                         a scene; `room` begins it anew within one
    room ABC turn A, B               its agents, and whom the first turn names
    key Max Turns: 8                 a line of its header; `setup …` one of its Setup
    A: words                         A takes its turn with these words (`\\n` begins a line); `A!` fails
    A? · A> words · A>> words        A begins to think; it comes back (`A!>` with an error); it comes back too late
    say words -> C · note words      the person speaks, to C; `type …` writes at the end of the file
    script A words || words          what A says whenever it is asked, by `step A` and `run`
    skip A, retry A, pause, resume, stop, pass, approve, leave B, floor USER, step A, run, wait 360
    no skip A | owes no turn         it is refused, and why

What is looked at: `owes A B`, `spoke uAB`, `looks A=Reply B=paused`, `told B why`, `ends STOPPED` (nothing: it goes on)
`signed AB` (`-`: no text), `decided P1=approved`, `refused …`, `reason …`, `asks …`, `file …` (a part of the words),
`failed A`; of a build `due WORK`, `tasks approved dropped`, `iterations 1 3`, `sound`: the file follows from itself.

Before the first scene `let name words` names words: `{name}`, or `{name P1}` where `@` stands for what is named; of
several lines with ` ;; ` between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dialogd import person
from dialogd.errors import BackendError, Refused
from dialogd.protocol.certificate import faults
from dialogd.protocol.model import USER
from tests.support.cases import cases
from tests.support.room import Room, opening, waits

BROKEN = BackendError("exit code 1", fix="look at its log")
SCENES = Path(__file__).with_name("scenes")


class Scene:
    """The room of a scene; its agents have something to say whenever they are asked."""

    def __init__(self) -> None:
        self.agents, self.turn, self.keys, self.setup = "AB", "", list[str](), list[str]()
        self.made: Room | None = None

    @property
    def room(self) -> Room:
        if self.made is None:
            text = opening(*self.agents, turn=self.turn, keys=self.keys, setup="\n".join(self.setup))
            self.made = Room(text, **{me: [f"{me} says {n}" for n in range(20)] for me in self.agents})
        return self.made

    def play(self, line: str) -> None:
        """Do, or look at, what the line says."""
        if said := re.fullmatch(r"([A-Z])(:|!>|!|\?|>>|>) ?(.*)", line):
            self.agent(said[1], said[2], said[3].replace("\\n", "\n"))
            return
        word, _, rest = line.partition(" ")
        rest = rest.replace("\\n", "\n")
        match word:
            case "room":
                self.__init__()  # type: ignore[misc]
                self.agents, _, self.turn = rest.partition(" turn ")
            case "key" | "setup":
                (self.keys if word == "key" else self.setup).append(rest)
            case "script":
                lines = rest[2:].split(" || ") if rest[2:] else []
                self.room.scripts[rest[0]] = [{"!": BROKEN, "~": None}.get(line, line) for line in lines]
            case "confirms":
                self.room.confirms[rest[0]] = rest[2:].split(" || ")
            case "gates":
                self.room.gates = rest.split()
            case "known" | "unknown" | "lain":  # whether a notify came, and how long the file lay still
                self.room.nudged, self.room.lain = word == "known", float(rest or 0)
            case "no":
                act, why = rest.split(" | ")
                with pytest.raises(Refused, match=why):
                    self.act(*act.split(" ", 1))
            case _ if hasattr(self, f"see_{word}"):
                getattr(self, f"see_{word}")(rest)
            case _:
                self.act(word, rest)

    def agent(self, me: str, how: str, text: str) -> None:
        room = self.room
        match how:
            case ":":
                assert room.says(me, text) is not None, f"{me} comes too late"
            case "!":
                room.says(me, BROKEN)
            case "!>":
                room.answers(me, BROKEN)
            case "?":
                room.thinks(me)
            case ">":
                assert room.answers(me, text) is not None, f"{me} comes too late"
            case ">>":
                assert room.answers(me, text) is None, f"{me} is not too late"

    def act(self, word: str, rest: str = "") -> None:
        room, (text, _, to) = self.room, rest.partition(" -> ")
        acts = {
            "say": lambda: room.say(text, to=to),
            "note": lambda: room.say(rest, note=True),
            "type": lambda: room.types(f"\n{rest}\n"),
            "pass": room.pass_on,
            "accept": lambda: room.by_hand(person.tasks, "accept"),
            "leave": lambda: room.by_hand(person.leave, rest),
            "rebase": lambda: room.by_hand(person.rebase, rest),
            "floor": lambda: room.asks_for_the_word(rest),
            "wait": lambda: room.advance(float(rest)),
            "step": lambda: [room.step(me) for me in rest],
            **{name: lambda name=word: getattr(room, name)() for name in ("pause", "resume", "approve", "run")},
            **{name: lambda name=word: getattr(room, name)(rest) for name in ("skip", "retry", "stop")},
        }
        acts[word]()

    def see_owes(self, rest: str) -> None:
        assert " ".join(self.room.owing) == rest

    def see_spoke(self, rest: str) -> None:
        assert "".join("u" if entry.by == USER else entry.by for entry in self.room.dialog.turns) == rest

    def see_looks(self, rest: str) -> None:
        wanted = dict(part.split("=") for part in rest.split())
        assert {me: waits(self.room.look(me)) for me in wanted} == wanted

    def see_told(self, rest: str) -> None:
        assert rest[2:] in getattr(self.room.look(rest[0]), "reason", "")

    def see_ends(self, rest: str) -> None:
        assert self.room.outcome == rest

    def see_signed(self, rest: str) -> None:
        standing = self.room.dialog.state.table.standing
        assert ("".join(who for who, _ in standing.signers) if standing else "-") == rest

    def see_decided(self, rest: str) -> None:
        decisions = self.room.dialog.state.table.decisions
        assert " ".join(f"{found.ref}={found.outcome}" for found in decisions) == rest

    def see_refused(self, rest: str) -> None:
        marks = [mark.value for entry in self.room.dialog.entries for mark in entry.all("REFUSED")]
        assert any(rest in value for value in marks), marks

    def see_reason(self, rest: str) -> None:
        end = self.room.dialog.state.outcome
        assert end is not None
        assert rest in end.reason

    def see_asks(self, rest: str) -> None:
        assert rest in self.room.dialog.state.questions.text

    def see_file(self, rest: str) -> None:
        assert rest in self.room.text

    def see_lacks(self, rest: str) -> None:
        assert rest not in self.room.text

    def see_prompted(self, rest: str) -> None:
        assert any(rest in text for _, text in self.room.prompts)

    def see_asked(self, rest: str) -> None:
        assert rest in self.room.asked[-1][1]

    def see_due(self, rest: str) -> None:
        what = self.room.dialog.state.build.steps[0].due
        assert what is not None
        assert what.name == rest

    def see_tasks(self, rest: str) -> None:
        assert " ".join(task.state for task in self.room.dialog.state.build.all) == rest

    def see_iterations(self, rest: str) -> None:
        assert " ".join(str(task.iteration) for task in self.room.dialog.state.build.all) == rest

    def see_sound(self, _: str) -> None:
        assert list(map(str, faults(self.room.paper.data))) == []

    def see_failed(self, rest: str) -> None:
        assert " ".join(sorted(self.room.dialog.state.debts.failed)) == rest


def scenes(folder: Path = SCENES) -> Iterator[tuple[str, list[str]]]:
    """Each scene's title, with its file, and its lines."""
    for path in sorted(folder.glob("*.txt")):
        head, *found = path.read_text(encoding="utf-8").split("\n== ")
        words: dict[str, str] = {}
        for line in head.split("\n"):
            if line.startswith("let "):
                _, name, text = line.split(" ", 2)
                words[name] = _said(text, words)
        for scene in found:
            title, *lines = scene.rstrip().split("\n")
            said = ((line, _said(line, words)) for line in lines if line.strip())
            each = (text.split(" ;; ") if line.startswith("{") else [text] for line, text in said)
            yield f"{path.stem}: {title}", [line for lines in each for line in lines]


def _said(line: str, words: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)(?: (\w+))?\}", lambda named: words[named[1]].replace("@", named[2] or "@"), line)


@cases(("title", "lines"), scenes())
def test_every_scene_goes_as_it_is_written(title: str, lines: list[str]) -> None:
    scene = Scene()
    for number, line in enumerate(lines, 1):
        try:
            scene.play(line)
        except BaseException as error:
            error.add_note(f"{title}, line {number}: {line}")
            raise
    found = [str(fault) for fault in faults(scene.room.paper.data)] if scene.made is not None else []
    assert not found, f"{title}: verify, and every mirror, would refuse {found}"
