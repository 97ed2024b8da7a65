"""Whole conversations as text: what everybody does, and the file that comes of it, byte by byte.

A file of `golden/` is a script, a line `----`, what was refused or decided on the way, and the dialog file. After a
change that is meant, `UPDATE_GOLDENS=1 pytest tests/protocol/test_golden.py` writes them anew: read the difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from dialogd import person
from dialogd.errors import BackendError, DialogdError
from dialogd.protocol.decide import Reply, Stop, Wait, Write
from dialogd.protocol.grammar import parse
from tests.support.cases import cases
from tests.support.room import Room, opening

GOLDEN = Path(__file__).with_name("golden")
SCRIPTS = sorted(path.name for path in GOLDEN.glob("*.txt"))
UPDATE = bool(os.environ.get("UPDATE_GOLDENS"))

COMMAND = re.compile(r"(\w[\w ]*?)(?:: (.*))?")


def commands(script: str) -> Iterator[tuple[str, str]]:
    """The script's commands; lines indented by two go on with the text of the command above them."""
    for block in re.split(r"\n(?=\S)", script.strip()):
        match = COMMAND.fullmatch(block.split("\n")[0])
        if match:
            yield match[1], "\n".join([match[2] or "", *(line[2:] for line in block.split("\n")[1:])]).strip("\n")


def begun(script: str) -> Room:
    """A room with the header and the question that the script asks for."""
    given: dict[str, list[str]] = {}
    for name, text in commands(script):
        given.setdefault(name, []).append(text)
    agents = ", ".join(given.get("agents", ["A, B"])).split(", ")
    question = given.get("question", ["Where should user sessions live?"])[0]
    setup = "".join(f"## Setup\n\n```toml\n{text}\n```" for text in given.get("setup", []))
    return Room(
        opening(*agents, turn=given.get("turn", [""])[0], question=question, keys=given.get("header", []), more=setup)
    )


def decided(room: Room, me: str) -> str:
    """What agent `me` does when it looks; notes are written, replies are left to the script."""
    match room.look(me):
        case Wait(status, reason):
            return f"{me} waits, {status}: {reason}"
        case Stop(outcome):
            return f"{me} stops: {outcome.name} {outcome.reason}".rstrip()
        case Reply(debt) if me in room.sealed and debt.is_ready:
            room.step(me)
            return f"{me} sends the answer it sealed"
        case Reply() if me in room.held:
            room.step(me)
            return f"{me} sends the reply it held"
        case Reply(debt):
            return f"{me} is to answer turn {debt.re}"
        case Write(_, reason):
            room.step(me)
            return f"{me} writes a note: {reason}"


def played(room: Room, name: str, text: str) -> str:
    """Carry out one command; gives what is worth a line above the file, or ""."""
    who, _, what = name.partition(" ")
    if who in ("agents", "header", "setup", "question", "turn"):
        return ""
    if who == "after":
        room.advance(float(what.split()[0]))
    elif what == "looks":
        return decided(room, who)
    elif what in ("corrects", "confirms", "asks for the floor"):
        prepared(room, who, what, text)
    elif what in ("", "thinks", "answers", "fails"):
        return replied(room, who, what, text)
    else:
        acted(room, what, text)
    return ""


def replied(room: Room, who: str, what: str, text: str) -> str:
    """What an agent does with its turn; gives what is worth a line above the file, or ""."""
    if what in ("", "thinks"):
        room.thinks(who)
        return f"{who} had written, and not sent: {text}" if not what and room.answers(who, text) is None else ""
    if what == "fails":
        room.answers(who, BackendError(text, fix="look at its log"))
    elif room.answers(who, text) is None:
        return f"{who} holds its reply" if who in room.held else f"{who} comes too late; kept as a draft"
    return ""


def prepared(room: Room, who: str, what: str, text: str) -> None:
    """What an agent will write anew, or answer to its closing question; or that it asks for the floor."""
    if what == "corrects":
        room.scripts[who] = [text]
    elif what == "confirms":
        room.confirms[who] = [text]
    else:
        room.asks_for_the_word(who)


def acted(room: Room, what: str, text: str) -> None:
    """What the person does."""
    verb, _, target = what.partition(" ")
    acts = {
        "vetoes": lambda: room.by_hand(person.veto, target, text),
        "strikes": lambda: room.by_hand(person.strike, target, text),
        "suggests": lambda: room.by_hand(person.say, text, proposal=True, instead=target),
        "invites": lambda: room.by_hand(person.invite, text or target),
        "lets": lambda: room.by_hand(person.leave, target.removesuffix(" leave"), text),
        "steps": lambda: room.by_hand(person.step, on=target == "on"),
        "says": lambda: room.say(text, to=target.removeprefix("to ")),
        "grants": lambda: room.say(text, turns=int(target)),
        "notes": lambda: room.say(text, note=True),
        "types": lambda: room.types(f"\n{text}\n"),
        "pauses": room.pause,
        "resumes": room.resume,
        "stops": lambda: room.stop(text),
        "passes": room.pass_on,
        "skips": lambda: room.skip(target),
        "retries": lambda: room.retry(target),
        "approves": room.approve,
        "rejects": lambda: room.reject(text),
    }
    acts[verb]()


def asked_back(room: Room, before: tuple[int, int]) -> str:
    """What an agent was asked about its reply since then."""
    anew = (f"> {who} is asked to write anew: {question}\n" for who, question in room.questions[before[0] :])
    about = (f"> {who} is asked: {' '.join(question.split())}\n" for who, question in room.asked[before[1] :])
    return "".join((*anew, *about))


def run(script: str) -> tuple[str, Room]:
    """Play a script; gives what it comes to as text, and the room."""
    room, remarks = begun(script), []
    for name, text in commands(script):
        asked = len(room.questions), len(room.asked)
        try:
            remark = played(room, name, text)
        except (DialogdError, ValueError) as error:
            remark = f"refused: {error}"
        remarks += [f"> {remark}\n"] if remark else []
        remarks.append(asked_back(room, asked))
        room.advance(1)
    return "".join([*remarks, "====\n", room.text]), room


@cases("name", SCRIPTS)
def test_a_conversation_leaves_the_file_that_was_reviewed(name: str) -> None:
    path = GOLDEN / name
    script, _, expected = path.read_bytes().decode().partition("\n----\n")
    result, room = run(script)
    if UPDATE:
        path.write_bytes(f"{script}\n----\n{result}".encode())
        return
    assert result == expected
    assert parse(room.paper.data) == room.dialog
    assert all(entry.linked for entry in room.dialog.entries)
