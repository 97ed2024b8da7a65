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
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dialogd.cli.terminal import width
from dialogd.protocol.model import Draft, Mark
from dialogd.store.journal import PERSON
from dialogd.store.logfile import Addition, LogFile
from tests.cli.command import PATIENCE, Commands, until
from tests.server.daemon_process import Room

# What dialogd itself sends to a terminal: colours, the live line, the cursor, pasting.
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[J|\x1b\[\?25[lh]|\x1b\[\?2004[lh]")
STEERING = re.compile("[\x00-\x06\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
CORPUS = (
    "\x1b]0;title\x07", "\x1b]52;c;ZXZpbA==\x07", "\x1b]8;;http://evil/\x1b\\link\x1b]8;;\x1b\\", "\x1b[2J\x1b[H",
    "\x1b[6n", "\x1b[?1049h", "\x1bP$q\"p\x1b\\", "\x1bc", "\x9b31m", "\x9d0;evil\x9c", "\x90q\x9c", "\u202egnp.exe",
    "\u2066x\u2069", "\x0e\x0f", "\x05", "a\rb", "\x1b[201~", "\u2028", "\x7f\x08",
)  # fmt: skip


class Window:
    """A command in a pseudo terminal of its own. `seen` is everything that it has sent to it."""

    def __init__(self, dialogd: Commands, words: list[str], columns: int = 80, **environment: str) -> None:
        self.screen, self.terminal = pty.openpty()
        self.resize(columns)
        self.before = termios.tcgetattr(self.terminal)
        self.process = subprocess.Popen(
            dialogd.words(words),
            cwd=dialogd.folder,
            env={**dialogd.environment, **environment},
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - no thread of this process holds a lock that the child needs
        )
        os.set_blocking(self.screen, False)
        self._bytes = bytearray()

    def resize(self, columns: int, rows: int = 24) -> None:
        """Make the terminal so wide; the kernel tells the process."""
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def seen(self) -> str:
        """What came so far."""
        with suppress(BlockingIOError, OSError):
            while data := os.read(self.screen, 65536):
                self._bytes += data
        return self._bytes.decode("utf-8", "replace")

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.screen, text.encode())

    def until(self, text: str) -> None:
        """Wait until it has shown this."""
        until(lambda: text in self.seen, repr(text), lambda: repr(self.seen[-3000:]))

    def lives(self) -> list[str]:
        """Every live line that was drawn, without its style."""
        drawn = re.findall(r"\r\x1b\[J([^\r\n]+)(?=\r)", self.seen)
        return [text for text in (OWN.sub("", found) for found in drawn) if text]

    def now(self, text: str) -> None:
        """Wait until the live line of this moment has this in it."""
        until(lambda: self.lives() and text in self.lives()[-1], repr(text), lambda: repr(self.seen[-3000:]))

    def end(self) -> int:
        """Wait for the end; the exit code. The terminal is as it was."""
        code = self.process.wait(PATIENCE)
        assert termios.tcgetattr(self.terminal) == self.before
        assert self.seen.rfind("\x1b[?25l") <= self.seen.rfind("\x1b[?25h"), "the cursor stays hidden"
        assert self.seen.rfind("\x1b[?2004h") <= self.seen.rfind("\x1b[?2004l"), "pasting stays bracketed"
        return code

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.terminal)
        os.close(self.screen)


def _own_terminal() -> None:
    """Make the pseudo terminal on stdin the controlling terminal, as a shell's window is."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def window(dialogd: Commands, *words: str, columns: int = 80, **environment: str) -> Iterator[Window]:
    """`dialogd WORDS` in a terminal."""
    opened = Window(dialogd, list(words or ("watch",)), columns, **environment)
    try:
        yield opened
    finally:
        opened.close()


def agent_turn(
    log: LogFile, body: str, *marks: Mark, turn: tuple[str, ...] = ("B",), by: str = "A", **more: str
) -> None:
    """What an agent's daemon would write."""

    def make(dialog: object) -> Addition:
        frame = (("re", "1"), ("at", "2026-11-21T19:00:07Z"), *more.items())
        return Addition(Draft(by, f"Claude {by}", log.read().state.number + 1, body, marks, turn, frame))

    log.append(make, log.journals.of(PERSON))


def marks(dialogd: Commands) -> list[str]:
    """The marks of the person's notes, in order."""
    return [str(mark) for entry in dialogd.log.read().entries if not entry.is_turn for mark in entry.marks]


def test_the_keys_do_what_the_commands_do(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    with window(dialogd) as terminal:
        terminal.now("waiting for A; its daemon does not run")
        terminal.type("?")
        terminal.until("say something")
        acts = (("p", "[PAUSED]"), ("p", "[RESUMED]"), ("k", "[SKIP: A]"), ("r", "[RETRY: B]"))
        for (key, written), shown in zip(acts, ("Paused", "Resumed", "Skip: A", "Retry: B"), strict=True):
            terminal.type(key)
            until(lambda written=written: marks(dialogd)[-1:] == [written], written, lambda: repr(terminal.seen))  # type: ignore[misc]
            terminal.until(f"▸ {shown}")
        terminal.type("x")
        terminal.now("stop the dialog? y/n")
        terminal.type("n")
        terminal.now("waiting for B")
        assert len(marks(dialogd)) == 4
        terminal.type("x")
        terminal.now("stop the dialog? y/n")
        terminal.type("y")
        assert terminal.end() == 4
        assert "▸ Stopped: dialogd stop" in terminal.seen


@pytest.mark.slow
def test_what_is_typed_survives_turns_that_arrive(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    with window(dialogd) as terminal:
        terminal.now("waiting for A")
        terminal.type("s")
        terminal.now("say> ")
        terminal.type("Mind thé 漢字x")
        terminal.now("say> Mind thé 漢字x")
        agent_turn(dialogd.log, "Tabs, I say.")
        terminal.until("Tabs, I say.")
        terminal.now("say> Mind thé 漢字x")
        terminal.type("\x7f\x1b[D\x1b[D\x7f\x1b[F!\r")  # x and é's neighbour go
        terminal.until("Turn 3 · User")
        assert dialogd.log.read().entries[-1].body == "Mind thé漢字!"
        terminal.type("s")
        terminal.now("say> ")
        terminal.type("never said\x1b")
        terminal.now("waiting for")
        terminal.type("s\x1b[200~one\rtwo\x1b[201~")
        terminal.now("say> one⏎two")
        terminal.type("\x01@B \r")
        terminal.until("Turn 4 · User")
        last = dialogd.log.read().entries[-1]
        assert (last.body, last.turn) == ("one\ntwo", ("B",))
        terminal.type("q")
        assert terminal.end() == 0
    assert "never said" not in dialogd.file.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_question_rings_and_is_answered(dialogd: Commands) -> None:
    with window(dialogd) as terminal:
        terminal.now("waiting for ")
        dialogd.begin("Tabs?")
        terminal.now("waiting for A; its daemon does not run")
        facts = {"ms": "6120", "model": "m-1", "in": "812", "out": "240", "usd": "0.0061"}
        agent_turn(dialogd.log, "Hm.\x1b[31m", Mark("QUESTION_FOR_USER", "soft or hard?"), turn=("USER",), **facts)
        terminal.until("your turn: A asks you: soft or hard?")
        assert f'press a, or dialogd say --file {dialogd.file} "…"' in " ".join(terminal.seen.split())
        assert "\a" in terminal.seen
        assert "\x1b[1;36mTurn 2 · Claude A\x1b[0m" in terminal.seen
        assert "6.1 s · 812 in, 240 out · $0.0061 · m-1" in terminal.seen
        dialogd.file.chmod(0o666)
        terminal.type("asoft\r")
        terminal.until("chmod")
        dialogd.file.chmod(0o600)
        terminal.now("answer> soft")
        terminal.type("\r")
        until(lambda: dialogd.log.read().state.number == 3, "the answer", lambda: repr(terminal.seen[-2000:]))
        terminal.until("Turn 3 · User")
        terminal.type("\x03")
        assert terminal.end() == 130


@pytest.mark.slow
def test_every_way_out_gives_the_terminal_back(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    before = dialogd.file.read_bytes()
    with window(dialogd) as terminal:
        terminal.now("waiting for A")
        terminal.type("shalf a wo")
        terminal.now("say> half a wo")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        assert "not sent: half a wo" in terminal.seen
    assert dialogd.file.read_bytes() == before


def test_nothing_that_agents_write_steers_the_terminal(dialogd: Commands) -> None:
    evil = " ".join(CORPUS)
    dialogd.begin("Tabs?")
    text = dialogd.file.read_text(encoding="utf-8").replace("Tabs?", f"Tabs? {evil}", 1)
    dialogd.file.write_text(text.replace("A = ", f"A = {evil} "), encoding="utf-8")
    agent_turn(dialogd.log, evil, Mark("PROPOSAL", evil.replace("\n", " "), "P1"), model=evil.replace(" ", ""))
    agent_turn(dialogd.log, evil, Mark("QUESTION_FOR_USER", evil), turn=("USER",), by="B")
    with window(dialogd) as terminal:
        terminal.until("your turn:")
        terminal.type(f"s\x1b[200~{evil.replace(chr(27) + '[201~', '')}\x1b[201~")
        terminal.now("say> ")
        terminal.type("\x03")
        terminal.end()
        assert STEERING.search(OWN.sub("", terminal.seen)) is None


@pytest.mark.slow
def test_without_colours_there_are_none_and_a_dumb_terminal_gets_text(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    agent_turn(dialogd.log, "Tabs.")
    with window(dialogd, NO_COLOR="1") as terminal, window(dialogd, TERM="dumb") as dumb:
        terminal.now("waiting for B")
        assert not re.search(r"\x1b\[[0-9;]*m", terminal.seen)
        dumb.until("-- waiting for B")
        assert "\x1b" not in dumb.seen
        for one in (terminal, dumb):
            one.process.send_signal(signal.SIGINT)
            assert one.end() == 130


@pytest.mark.slow
def test_what_is_being_written_is_on_the_live_line_and_the_turn_comes_once(dialogd: Commands, tmp_path: Path) -> None:
    (folder := tmp_path / "room").mkdir()
    with Room(folder) as room:
        room.open("AB")
        own = {"DIALOGD_FILE": str(room.file), "DIALOGD_STATE_DIR": str(room.state_dir)}
        with window(dialogd, columns=100, **own) as terminal:
            terminal.until("Turn 1 · User")
            typing = room.think("A")
            terminal.now("A thinks about turn 2, 0:0")
            typing.say("I would keep them in 漢字 tables, now ")
            terminal.now("A writes turn 2, 0:0")
            terminal.now(" words · “I would keep them in 漢字 tables, now”")
            for columns in (60, 40, 20):
                terminal.resize(columns)
                until(
                    lambda columns=columns: width(terminal.lives()[-1]) < columns,  # type: ignore[misc]
                    f"a line for {columns}",
                    lambda: repr(terminal.lives()[-3:]),
                )
                assert terminal.lives()[-1].startswith("A writes turn 2")
            terminal.resize(100)
            typing.end("at least.\n")
            terminal.until("Turn 2 · Claude A")
            assert terminal.seen.count("Turn 2 · Claude A") == 1
            terminal.type("q")
            assert terminal.end() == 0


# -- a terminal as people use it -------------------------------------------------------------------------------------


class Tmux:
    """A tmux server of one's own, with one window and a shell in it."""

    def __init__(self, dialogd: Commands) -> None:
        self.socket = str(dialogd.folder / "tmux")
        environment = {**dialogd.environment, "PS1": "$ ", "SHELL": "/bin/sh"}
        environment.pop("COLUMNS")
        words = ["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "bash --norc --noprofile"]
        subprocess.run(["tmux", "-S", self.socket, *words], env=environment, cwd=dialogd.folder, check=True)

    def __call__(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-S", self.socket, *words], capture_output=True, text=True, check=False)
        return done.stdout

    def type(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self("send-keys", *keys)

    def resize(self, columns: int) -> None:
        """Make the window so wide."""
        self("resize-window", "-x", str(columns), "-y", "24")

    @property
    def lines(self) -> list[str]:
        """What stands on the screen and above it, wrapped lines whole, blank ones left out."""
        return [line.rstrip() for line in self("capture-pane", "-p", "-J", "-S", "-500").split("\n") if line.strip()]

    def until(self, text: str) -> None:
        """Wait until the last line has this in it."""
        until(lambda: self.lines and text in self.lines[-1], repr(text), lambda: "\n".join(self.lines))

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


@pytest.mark.slow
def test_in_tmux_a_resize_leaves_no_smear_and_ctrl_z_and_ctrl_c_a_clean_shell(dialogd: Commands, tmux: Tmux) -> None:
    dialogd.begin("Tabs?")
    said = "漢字かな混じり文 with 🎉 and é in it, so that it is wide: " * 2
    agent_turn(dialogd.log, said.strip(), turn=("USER",))
    tmux.type(shlex.join(dialogd.words(["watch"])), "Enter")
    tmux.until("? help")
    for columns in (40, 20, 33, 100, 25, 80):
        tmux.resize(columns)
        tmux.until("waiting for the p")
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            whole = tmux.lines
            assert sum(line.startswith("waiting for the") for line in whole) == 1, whole
    assert sum("漢字かな" in line for line in tmux.lines) == 1
    tmux.type("s", "half ")
    tmux.until("say> half")
    agent_turn(dialogd.log, "Another turn.", turn=("USER",), by="B")
    until(lambda: "  Another turn." in tmux.lines, "the turn", lambda: "\n".join(tmux.lines))
    tmux.until("say> half")
    tmux.type("C-z")
    until(lambda: any("Stopped" in line for line in tmux.lines), "the shell", lambda: "\n".join(tmux.lines))
    assert not any(line.startswith("say>") for line in tmux.lines)
    tmux.type("stty -a | grep -ow -e '-icanon' -e '-echo'; echo cooked", "Enter")
    until(lambda: "cooked" in tmux.lines, "the settings", lambda: "\n".join(tmux.lines))
    assert "-icanon" not in tmux.lines
    tmux.type("fg", "Enter")
    tmux.until("say> half")
    tmux.type("C-c")
    until(lambda: tmux.lines[-1] == "$", "the shell", lambda: "\n".join(tmux.lines))
    tmux.type("echo $?", "Enter")
    until(lambda: "130" in tmux.lines, "the exit code", lambda: "\n".join(tmux.lines))
