"""Real sessions of Claude Code, open in terminals, take seats: joined, knocked at, silent, killed, come back."""

from __future__ import annotations

import json
import random
import re
import shlex
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from dialogd.protocol.grammar import parse
from dialogd.protocol.state import Dialog
from tests.clis.conftest import make_world
from tests.clis.rig import World
from tests.clis.terminals import claude_environment, codex_environment, codex_session
from tests.support.pair import until
from tests.support.standin import Say, Seen, StandIn, Use
from tests.support.terminal import Terminal

SUMMARY = "## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"
ORDER = "Take the result."  # what its user tells a session to do
RULES = ("Bash(dialogd live turn:*)", "Bash(dialogd live reply:*)")
PATIENCE = 240.0  # seconds: three knocks take most of a minute


def last_said(seen: Seen) -> str:
    def texts(content: Any) -> Iterator[str]:
        if isinstance(content, str):
            yield content
        for block in content if isinstance(content, list) else ():
            yield from texts(block.get("text") or block.get("content") or "")

    messages = (seen.body or {}).get("messages") or [{"content": ""}]
    return "\n".join(texts(messages[-1]["content"]))


def bash(command: str) -> Use:
    return Use("Bash", {"command": command, "description": "dialogd"})


class Mind:
    """What the model of a session does: it runs what a knock says, and replies with the next of its texts.

    At `ORDER` it runs `dialogd approve`.

    A function among them is a call of its own instead of a reply.
    """

    def __init__(self, *replies: str | Callable[[], Use | Say]) -> None:
        self.replies = list(replies)
        self.results: list[str] = []
        self.heard: list[str] = []

    def __call__(self, seen: Seen) -> Say | Use:
        if not (seen.body or {}).get("tools"):
            return Say("A title")
        said = last_said(seen)
        self.heard += re.findall(r"^[0-9:]{8} dialogd.*", said, re.MULTILINE)
        if owed := re.search(r"is yours, as agent \w+.*?--debt ([\w-]+)", said):
            if "# One question about your reply" in said:
                text: str | Callable[[], Use | Say] = re.findall(r"`(\[[A-Z][^`]*)`", said)[0]
            else:
                text = self.replies.pop(0) if self.replies else "[PASS]"
            if not isinstance(text, str):
                return text()
            return bash(f"dialogd live reply --debt {owed[1]} <<'END'\n{text}\nEND")
        if said.rstrip().endswith(ORDER):
            return bash("dialogd approve")
        if re.search(r"dialogd[^:]*: (turn|a question)", said):
            return bash("dialogd live turn")
        self.results.append(said)
        return Say("Done.")


class Table:
    """One dialog, and terminals with sessions of Claude Code in projects of their own."""

    def __init__(self, folder: Path, states: Path, stack: ExitStack) -> None:
        self.folder, self._states, self._stack = folder, states, stack
        self.file = folder / "dialog.md"
        self._worlds: dict[str, World] = {}

    def environment(self, name: str, url: str) -> dict[str, str]:
        if name not in self._worlds:
            own = self.folder / f"{self.folder.name}-{name}"  # a name of its own among all tests
            own.mkdir()
            world = make_world("claude-code", own, self._states)
            self._worlds[name] = world
        paths = {"DIALOGD_STATE_DIR": str(self.folder / "state"), "DIALOGD_FILE": str(self.file)}
        return claude_environment(self._worlds[name], url, **paths)

    def session(self, name: str, mind: Mind, joins: str = "", rules: Sequence[str] = RULES) -> Terminal:
        """An open session; it joins as that agent, and is told by what rules it need not ask for its turns."""
        server = self._stack.enter_context(StandIn(mind))
        environment = self.environment(name, server.url)
        allowed = ["--allowedTools", *rules] if rules else []
        words = ["claude", "--permission-mode", "default", *allowed]
        terminal = Terminal(words, environment, self._worlds[name].project)
        self._stack.callback(terminal.close)
        terminal.until("shortcuts")
        if joins:
            terminal.type(f"!dialogd live join {joins}")
            terminal.until(f"this session is agent {joins} in a dialog")
            terminal.until(f"allow {' and '.join(RULES)}")
        return terminal

    def run(self, *words: str) -> str:
        """A command of the person's, in a terminal of their own."""
        terminal = Terminal([*words, "--file", str(self.file)], self.environment("A", ""), self.folder)
        try:
            until(lambda: terminal.has_ended, "its end", PATIENCE, lambda: terminal.text)
            return terminal.text
        finally:
            terminal.close()

    def dialogd(self, command: str) -> str:
        return self.run(str(Path(sys.executable).parent / "dialogd"), *shlex.split(command))

    def dialog(self) -> Dialog:
        return parse(self.file.read_bytes())

    def until(self, condition: Callable[[Dialog], object], what: str, seconds: float = PATIENCE) -> Dialog:
        until(lambda: condition(self.dialog()), what, seconds, lambda: self.file.read_text("utf-8")[-2500:])
        return self.dialog()

    def journal(self, agent: str) -> list[tuple[str, int]]:
        """The deliveries so far, in their order: none before the daemon has made its journal."""
        journals = (self.folder / "state").rglob(f"{agent}.journal")
        rows = [json.loads(row) for path in journals for row in path.read_text("utf-8").split("\n") if row]
        return [(row["what"], row["knocks"]) for row in rows if row["kind"] == "delivery"]


@pytest.fixture
def room(tmp_path: Path, states: Path) -> Iterator[Table]:
    with ExitStack() as stack:
        room = Table(tmp_path, states, stack)
        room.environment("A", "")
        room.dialogd('new "Where should sessions live?" --first A')
        text = room.file.read_text("utf-8")
        for usual in ("3001", "3002"):  # another test may have them
            text = text.replace(f"localhost:{usual}", f"localhost:{free_port()}")
        room.file.write_text(text, "utf-8")
        stack.callback(room.dialogd, "stop")
        yield room


def free_port() -> int:
    """A port that nobody has, below those that the system gives to clients."""
    while True:
        port = random.randint(20_000, 31_999)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def spoken(dialog: Dialog) -> Sequence[tuple[int, str]]:
    return [(turn.number, turn.by) for turn in dialog.turns if turn.by != "USER"]


def test_two_open_sessions_agree(room: Table) -> None:
    minds = {
        "A": Mind("I count the sessions first.", f"They are small.\n\n{SUMMARY}"),
        "B": Mind("What is the peak?", "It holds at that peak.\n\n[AGREE: P1 | measured]"),
    }
    for agent, mind in minds.items():
        room.session(agent, mind, agent)
    room.dialogd("say 'Please decide.' --to A")
    dialog = room.until(lambda d: d.state.outcome, "an end")
    assert dialog.state.outcome.name == "CONSENSUS_REACHED"
    assert [by for _, by in spoken(dialog)][:4] == ["A", "B", "A", "B"]
    knocks = [turn.frame.knocks for turn in dialog.turns if turn.frame and turn.by in ("A", "B")]
    assert all(int(knocked) >= 1 for knocked in knocks)
    for agent in "AB":
        counted = Counter(what for what, _ in room.journal(agent))
        assert set(counted) == {"knocked", "opened", "replied"}
        assert len(minds[agent].heard) == counted["knocked"] >= counted["opened"] == counted["replied"]
        assert counted["replied"] >= [by for _, by in spoken(dialog)].count(agent) > 0
    assert "write access to" in room.file.read_text("utf-8")


class CodexMind:
    """What Codex's model does: it takes its turns by the tools of the MCP server, as the knock says."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)

    def __call__(self, seen: Seen) -> Say | Use:
        said = json.dumps((seen.body or {}).get("input", [])[-1:], ensure_ascii=False)
        if "task title" in said:
            return Say("A title")
        if not seen.tool_results:
            agent = re.search(r'wait_for_turn of the MCP server dialogd with agent=\\+"(\w+)', said)
            return self.call("wait_for_turn", {"agent": agent[1]}) if agent else Say("Hello.")
        owed = re.search(r'debt\\*":\s*\\*"([A-Z]-[0-9a-f]{8})', said)
        if owed and "# One question about your reply" in said:
            (text,) = re.findall(r"`(\[[A-Z][^`]*)`", said)[:1]
            return self.call("reply", {"debt": owed[1], "text": text})
        if owed:
            return self.call("reply", {"debt": owed[1], "text": self.replies.pop(0) if self.replies else "[PASS]"})
        return self.call("wait_for_turn", {"agent": "B", "wait": 1}) if "asked" in said else Say("Done.")

    @staticmethod
    def call(tool: str, arguments: dict[str, object]) -> Use:
        what = f"tools.mcp__dialogd__{tool}({json.dumps(arguments)})"
        return Use("exec", f"const r = await {what}; text(JSON.stringify(r.structuredContent ?? {{error: r}}))")


def test_claude_code_and_codex_agree(room: Table, codex: World) -> None:
    mind = CodexMind("What is the peak?", "It holds at that peak.\n\n[AGREE: P1 | measured]")
    with StandIn(mind) as server:
        paths = {name: room.environment("A", "")[name] for name in ("DIALOGD_STATE_DIR", "DIALOGD_FILE")}
        with codex_session(codex, codex_environment(codex, server.url, **paths)) as terminal:
            terminal.type("!dialogd live join B")
            terminal.until("this session is agent B in a dialog")
            room.session("A", Mind("I count the sessions first.", f"They are small.\n\n{SUMMARY}"), "A")
            room.dialogd("say 'Please decide.' --to A")
            dialog = room.until(lambda d: d.state.outcome, "an end", 2 * PATIENCE)
            assert dialog.state.outcome.name == "CONSENSUS_REACHED"
            assert {what for what, _ in room.journal("B")} == {"knocked", "opened", "replied"}


def test_a_session_that_was_killed_in_its_turn_comes_back(room: Table) -> None:
    busy = room.session("A", Mind(lambda: bash("dialogd live turn && sleep 60")), "A", (*RULES, "Bash(sleep:*)"))
    room.session("B", Mind("I agree to nothing yet."), "B")
    room.dialogd("say 'Please decide.' --to A")
    until(lambda: "opened" in str(room.journal("A")), "the turn to be opened", PATIENCE)
    busy.kill()
    until(lambda: "has ended" in room.file.read_text("utf-8"), "the loss to be noticed", PATIENCE)
    room.session("A", Mind("I am back."), "A")
    room.dialogd("retry A")
    dialog = room.until(lambda d: any(turn.body == "I am back." for turn in d.turns), "its turn")
    assert sum(turn.body == "I am back." for turn in dialog.turns) == 1


def test_a_session_at_a_permission_prompt_is_said_to_be_that(room: Table) -> None:
    terminal = room.session("A", Mind("They are small."), "A", rules=())
    room.dialogd("say 'Please decide.' --to A")
    told = "its session is waiting (permission prompt): look at that terminal"
    until(lambda: told in room.dialogd("status"), "the prompt in status", PATIENCE, lambda: room.dialogd("status"))
    room.until(lambda d: any(e.body.strip() == f"A: {told}." for e in d.entries if e.by == "SYSTEM"), "the note")
    assert room.journal("A")[0] == ("knocked", 1)
    assert "has not opened the turn" not in room.dialogd("status")
    terminal.press("\r")  # yes
    until(lambda: told not in room.dialogd("status") or terminal.press("\r"), "the answer", PATIENCE)
    room.until(lambda d: any(turn.body == "They are small." for turn in d.turns) or terminal.press("\r"), "its turn")


def test_a_session_cannot_approve(room: Table) -> None:
    mind = Mind(f"They are small.\n\n{SUMMARY}")
    inside = room.session("A", mind, "A", (*RULES, "Bash(dialogd approve:*)"))
    room.session("B", Mind("It fits.\n\n[AGREE: P1 | measured]"), "B")
    room.dialogd("say 'Please decide.' --to A")
    room.until(lambda d: d.state.outcome, "an end")
    inside.type(ORDER)
    until(lambda: any("error: " in said for said in mind.results), "the refusal", PATIENCE, lambda: str(mind.results))
    refused = next(said for said in mind.results if "error: " in said)
    assert "terminal" in refused
    assert "[APPROVED]" not in room.file.read_text("utf-8")
    room.dialogd("approve")
    assert "[APPROVED]" in room.file.read_text("utf-8")
