"""`dialogd watch` in a real terminal: its keys, its live line, its end; what agents write steers nothing."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dialogd.protocol.model import Mark
from tests.cli.command import PATIENCE, Commands, until
from tests.cli.test_watch import agent_turn
from tests.server.daemon_process import Room

# What dialogd itself sends to a terminal: colours, the cursor, pasting, wrapping, erasing to the end.
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[[0-9]*[ABCDK]|\x1b\[0?J|\x1b\[\?(?:25|2004|7|12|1)[lh]|\x08")
STEERING = re.compile("[\x00-\x06\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
CORPUS = (
    "\x1b]0;title\x07", "\x1b]52;c;ZXZpbA==\x07", "\x1b]8;;http://evil/\x1b\\link\x1b]8;;\x1b\\", "\x1b[2J\x1b[H",
    "\x1b[6n", "\x1b[?1049h", "\x1bP$q\"p\x1b\\", "\x1bc", "\x9b31m", "\x9d0;evil\x9c", "\x90q\x9c", "\u202egnp.exe",
    "\u2066x\u2069", "\x0e\x0f", "\x05", "a\rb", "\x1b[201~", "\u2028", "\x7f\x08",
)  # fmt: skip


class Tmux:
    """A tmux server of one's own, with one window and a shell in it."""

    def __init__(self, dialogd: Commands) -> None:
        self.socket = str(dialogd.folder / "tmux")
        environment = {**dialogd.environment, "PS1": "$ ", "SHELL": "/bin/sh"}
        environment.pop("COLUMNS")
        words = ["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "bash --norc --noprofile"]
        subprocess.run(["tmux", "-S", self.socket, *words], env=environment, cwd=dialogd.folder, check=True)
        self._before = ""

    def __call__(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-S", self.socket, *words], capture_output=True, text=True, check=False)
        return done.stdout

    def type(self, *keys: str) -> None:
        """Press keys, by tmux's names: what is waited for next is shown after that."""
        self._before = self._text
        self("send-keys", *keys)

    def clear(self) -> None:
        """Empty the screen and what stands above it: what is waited for next is new."""
        self.type("clear", "Enter")
        until(lambda: self.lines == ["$"], "an empty screen", lambda: "\n".join(self.lines))
        self("clear-history")

    def resize(self, columns: int) -> None:
        """Make the window so wide."""
        self("resize-window", "-x", str(columns), "-y", "24")

    @property
    def lines(self) -> list[str]:
        """What stands on the screen and above it, wrapped lines whole, blank ones left out."""
        return [line.rstrip() for line in self("capture-pane", "-p", "-J", "-S", "-500").split("\n") if line.strip()]

    @property
    def _text(self) -> str:
        return " ".join(" ".join(self.lines).split())

    def until(self, text: str) -> None:
        """Wait until it shows this once more than when something was typed last, however it is wrapped."""
        before = self._before.count(text)
        until(lambda: self._text.count(text) > before, f"another {text!r}", lambda: "\n".join(self.lines))

    def now(self, text: str) -> None:
        """Wait until the last line has this in it."""
        until(lambda: self.lines and text in self.lines[-1], repr(text), lambda: "\n".join(self.lines))

    def run(self, dialogd: Commands, *words: str) -> None:
        """Type a command of dialogd."""
        self.type(shlex.join(dialogd.words([*words])), "Enter")

    def ended(self, code: int) -> None:
        """Wait for the shell's prompt; the command ended with that code, and the terminal is as it was."""
        until(lambda: self.lines[-1:] == ["$"], "the shell", lambda: "\n".join(self.lines))
        before = self.lines.count(f"code {code}")
        self.type("echo code $? $(stty -a | grep -ow -e '-icanon' -e '-echo')", "Enter")
        until(lambda: self.lines.count(f"code {code}") > before, "the exit code", lambda: "\n".join(self.lines))

    def close(self) -> None:
        """End it, with all that runs in it."""
        self("kill-server")


@pytest.fixture
def tmux(dialogd: Commands) -> Iterator[Tmux]:
    """A real terminal emulator."""
    if shutil.which("tmux") is None or shutil.which("bash") is None:
        pytest.skip("tmux or bash is not installed")
    server = Tmux(dialogd)
    try:
        yield server
    finally:
        server.close()


def marks(dialogd: Commands) -> list[str]:
    """The marks of the person's notes, in order."""
    return [str(mark) for entry in dialogd.log.read().entries if not entry.is_turn for mark in entry.marks]


@pytest.mark.slow
def test_the_keys_do_what_the_commands_do(dialogd: Commands, tmux: Tmux) -> None:
    dialogd.begin("Tabs?")
    tmux.run(dialogd, "watch")
    tmux.now("waiting for A; its daemon does not run")
    tmux.type("?")
    tmux.until("say something")
    acts = {
        "[PAUSED]": ("p", "You paused"), "[RESUMED]": ("p", "go on."), "[SKIP: A]": ("k", "You passed over Claude A"),
        "[RETRY: B]": ("r", "You asked Claude B again"),
    }  # fmt: skip
    for written, (key, told) in acts.items():
        tmux.type(key)
        until(lambda written=written: marks(dialogd)[-1:] == [written], written, lambda: "\n".join(tmux.lines))  # type: ignore[misc]
        tmux.until(told)
    tmux.type("x")
    tmux.now("stop the dialog? y/n")
    tmux.type("n")
    tmux.now("waiting for B")
    assert len(marks(dialogd)) == 4
    tmux.type("x")
    tmux.now("stop the dialog? y/n")
    tmux.type("y")
    tmux.ended(4)
    assert "stopped" in " ".join(tmux.lines)


@pytest.mark.slow
def test_what_is_typed_survives_turns_that_arrive(dialogd: Commands, tmux: Tmux) -> None:
    dialogd.begin("Tabs?")
    tmux.run(dialogd, "watch")
    tmux.now("waiting for A")
    tmux.type("s", "Mind thé 漢字x")
    tmux.now("say> Mind thé 漢字x")
    agent_turn(dialogd.log, "Tabs, I say.")
    tmux.until("Tabs, I say.")
    tmux.now("say> Mind thé 漢字x")
    tmux.type("BSpace", "!", "Enter")
    tmux.until("Turn 3 · User")
    assert dialogd.log.read().entries[-1].body == "Mind thé 漢字!"
    tmux.type("s", "never said")
    tmux.now("say> never said")
    tmux.type("Escape")
    tmux.now("waiting for")
    tmux.type("s", "@B ")
    tmux("set-buffer", "one\rtwo")
    tmux("paste-buffer", "-p", "-r")
    tmux.now("two")
    tmux.type("Enter")
    tmux.until("Turn 4 · User")
    last = dialogd.log.read().entries[-1]
    assert (last.body, last.turn) == ("one\ntwo", ("B",))
    tmux.type("q")
    tmux.ended(0)
    assert "never said" not in dialogd.file.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_question_is_answered_and_what_is_refused_is_not_lost(dialogd: Commands, tmux: Tmux) -> None:
    tmux.run(dialogd, "watch")
    tmux.now("waiting for ")
    dialogd.begin("Tabs?")
    tmux.now("waiting for A; its daemon does not run")
    facts = {"at": "2026-11-21T19:00:07Z", "model": "m-1", "in": "812", "out": "240", "usd": "0.0061"}
    agent_turn(dialogd.log, "Hm.\x1b[31m", Mark("QUESTION_FOR_USER", "soft or hard?"), turn=("USER",), **facts)
    tmux.until("your turn: A asks you: soft or hard?")
    tmux.until("answer: press a, or dialogd say --file")
    tmux.until("0.0 s · 812 in, 240 out · $0.0061 · m-1")
    dialogd.file.chmod(0o666)
    tmux.type("a", "soft", "Enter")
    tmux.until("chmod")
    dialogd.file.chmod(0o600)
    tmux.now("answer> soft")
    tmux.type("Enter")
    tmux.until("Turn 3 · User")
    tmux.type("C-c")
    tmux.ended(130)


def test_nothing_that_agents_write_steers_the_terminal(dialogd: Commands) -> None:
    """And a signal gives the terminal back, with what was typed."""
    evil = " ".join(CORPUS)
    dialogd.begin("Tabs?")
    text = dialogd.file.read_text(encoding="utf-8").replace("Tabs?", f"Tabs? {evil}", 1)
    dialogd.file.write_text(text.replace("A = ", f"A = {evil} "), encoding="utf-8")
    agent_turn(dialogd.log, evil, Mark("PROPOSAL", evil.replace("\n", " "), "P1"), model=evil.replace(" ", ""))
    agent_turn(dialogd.log, evil, Mark("QUESTION_FOR_USER", evil), turn=("USER",), by="B")
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before, seen = termios.tcgetattr(terminal), bytearray()

    def shown() -> str:
        with suppress(BlockingIOError, OSError):
            while data := os.read(screen, 65536):
                seen.extend(data)
        return seen.decode("utf-8", "replace")

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    os.set_blocking(screen, False)
    process = subprocess.Popen(
        dialogd.words(["watch"]), cwd=dialogd.folder, env=dialogd.environment,
        stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=own_terminal,  # noqa: PLW1509
    )  # fmt: skip
    try:
        until(lambda: "your turn:" in shown(), "the question", lambda: repr(shown()[-3000:]))
        assert "\a" in shown()
        os.write(screen, f"s\x1b[200~{evil.replace(chr(27) + '[201~', '')}\x1b[201~half".encode())
        until(lambda: "say> \ufffd]0;title" in OWN.sub("", shown()), "what is typed", lambda: repr(shown()[-3000:]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
        assert termios.tcgetattr(terminal) == before
        assert "half" in shown().partition("not sent: ")[2]
        assert STEERING.search(OWN.sub("", shown())) is None
        assert shown().rfind("\x1b[?25l") <= shown().rfind("\x1b[?25h"), "the cursor stays hidden"
        assert shown().rfind("\x1b[?2004h") <= shown().rfind("\x1b[?2004l"), "pasting stays bracketed"
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(screen)


@pytest.mark.slow
def test_what_is_being_written_is_on_the_live_line_and_the_turn_comes_once(
    dialogd: Commands, tmux: Tmux, tmp_path: Path
) -> None:
    (folder := tmp_path / "room").mkdir()
    with Room(folder) as room:
        room.open("AB")
        tmux.type(f"export DIALOGD_FILE={room.file} DIALOGD_STATE_DIR={room.state_dir}", "Enter")
        tmux.run(dialogd, "watch")
        tmux.until("Turn 1 · User")
        typing = room.think("A")
        tmux.now("A thinks about turn 2, 0:0")
        typing.say("I would keep them in 漢字 tables, now ")
        tmux.now("A writes turn 2, 0:0")
        for columns in (60, 40, 20, 80):
            tmux.resize(columns)
            tmux.now("A writes turn 2")
        typing.end("at least.\n")
        tmux.until("Turn 2 · Claude A")
        assert sum("Turn 2 · Claude A" in line for line in tmux.lines) == 1
        tmux.type("q")
        tmux.ended(0)


@pytest.mark.slow
def test_a_resize_leaves_no_smear_and_ctrl_z_a_clean_shell(dialogd: Commands, tmux: Tmux) -> None:
    dialogd.begin("Tabs?")
    said = "漢字かな混じり文 with 🎉 and é in it, so that it is wide: " * 2
    agent_turn(dialogd.log, said.strip(), turn=("USER",))
    tmux.run(dialogd, "watch")
    tmux.now("? help")
    whole = tmux.lines[-1]

    def is_drawn_anew(columns: int) -> bool:
        cut = whole if len(whole) < columns else f"{whole[: columns - 2].rstrip()}…"
        return [line for line in tmux.lines if line.startswith("waiting for the")] == [cut]

    for columns in (40, 33, 45, 80):
        tmux.resize(columns)
        until(lambda: is_drawn_anew(columns), "one line", lambda: "\n".join(tmux.lines))  # noqa: B023
    tmux.type("s", "half ")
    tmux.now("say> half")
    tmux.type("C-z")
    until(lambda: any("Stopped" in line for line in tmux.lines), "the shell", lambda: "\n".join(tmux.lines))
    tmux.type("stty -a | grep -ow -e '-icanon' -e '-echo'; echo cooked", "Enter")
    until(lambda: "cooked" in tmux.lines, "the settings", lambda: "\n".join(tmux.lines))
    assert "-icanon" not in tmux.lines
    tmux.type("fg", "Enter")
    tmux.now("say> half")
    tmux.type("C-c")
    tmux.ended(130)
