"""What dialogd adds to each turn, how it idles and how fast it starts, beside what this machine can do at the least.

Two daemons (rehearsal, pace 0, fsync on, HTTP between them) hold one long dialog. A turn lasts from the moment its
predecessor stands in the file to the moment it does; an observer notes these moments (bench_stamps.py). The limit
(bench_limit.py) is measured the same way in pauses of the same dialog. docs/performance.md explains the table.
"""

from __future__ import annotations

import argparse
import http.client
import os
import platform
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import own_python  # another Python is told which one to use
import psutil
from bench_limit import limit
from bench_stamps import Spread, Stamps

ROOT = own_python.REPOSITORY
HEADING = re.compile(rb"^## Turn (\d+) \xe2\x80\x94 [^\n]*\n<!-- dialogd ", re.M)
PATIENCE = 60.0  # seconds without any progress
APART = 100  # turns between two windows that leave room for a pause
DIALOG = """# Overhead

**Topic:** Where should user sessions live?
**Max Turns:** 100000
**Max Size:** 60 MB

---

## Turn 1 — User

Discuss.

TURN: A
"""


def environment(source: Path, folder: Path) -> dict[str, str]:
    """An environment in which the checkout `source` runs, with its state in `folder` and no settings of the user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DIALOGD_", "CLAUDE_"))}
    return {**kept, "PYTHONPATH": str(source.resolve()), "DIALOGD_STATE_DIR": str(folder / "state")}


def call(port: int, method: str, path: str) -> bytes:
    """One request to a daemon; raises `OSError` when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path)
        return connection.getresponse().read()
    finally:
        connection.close()


def free_port() -> int:
    """A port below those that the system gives to clients: one of them could take it before the daemon does."""
    while True:
        port = random.randint(20_000, 31_999)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class Pair:
    """Two daemons at one dialog, started with these flags."""

    file: Path
    source: Path
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    processes: list[psutil.Popen] = field(default_factory=list)
    flags: Sequence[str] = ("--backend", "rehearsal:endless", "--pace", "0")

    def command(self, me: str, port: int, peer: str, other: int) -> list[str]:
        """How a daemon is started."""
        words = ["start", me, "--port", str(port), "--peer", f"{peer}=http://127.0.0.1:{other}", *self.flags]
        return [sys.executable, "-m", "dialogd", *words, "--file", str(self.file)]

    def __enter__(self) -> Self:
        a, b = self.ports
        folder = self.file.parent
        for me, port, peer, other in (("A", a, "B", b), ("B", b, "A", a)):
            with (folder / f"{me}.log").open("wb") as log:
                command, variables = self.command(me, port, peer, other), environment(self.source, folder)
                self.processes.append(psutil.Popen(command, stdout=log, stderr=log, cwd=folder, env=variables))
        self.until(lambda: all(call(port, "GET", "/health") for port in self.ports), "both daemons answer")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(10)

    def until(self, done: Callable[[], bool], what: str, every: float = 0.02) -> None:
        """Look every so many seconds. `RuntimeError`: a daemon has ended, or for a minute nothing happened."""
        deadline, size = time.monotonic() + PATIENCE, 0
        while True:
            with suppress(OSError):
                if done():
                    return
            if self.file.stat().st_size != size:
                deadline, size = time.monotonic() + PATIENCE, self.file.stat().st_size
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                said = (self.file.parent / "A.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"waited in vain until {what}; A said:\n{said}")
            time.sleep(every)

    def until_turn(self, number: int, every: float = 0.02) -> None:
        """Wait until that turn is written, looking every so many seconds."""
        self.until(lambda: self.last_turn() >= number, f"turn {number} is written", every)

    def pause(self) -> None:
        """Pause the dialog and wait until the turn under way is written."""
        call(self.ports[0], "POST", "/pause")
        sizes: list[int] = []

        def rests() -> bool:
            sizes.append(self.file.stat().st_size)
            return len(sizes) > 15 and len(set(sizes[-15:])) == 1

        self.until(rests, "the dialog rests")

    def last_turn(self) -> int:
        """The number of the last turn in the file."""
        with self.file.open("rb") as opened:
            opened.seek(max(0, self.file.stat().st_size - 8192))
            found = HEADING.findall(opened.read())
        return int(found[-1]) if found else 1

    def cpu(self) -> float:
        """Seconds of CPU that both have used."""
        times = [process.cpu_times() for process in self.processes]
        return sum(one.user + one.system for one in times)

    def idle(self, seconds: float) -> str:
        """What each costs while nothing happens, in words."""
        before = [process.cpu_times() for process in self.processes]
        time.sleep(seconds)
        words = []
        for process, then in zip(self.processes, before, strict=True):
            now = process.cpu_times()
            share = (now.user + now.system - then.user - then.system) / seconds
            words.append(f"{share:.2%} CPU, {process.memory_info().rss / 1e6:.0f} MB")
        return "; ".join(words)


@dataclass(slots=True)
class Window:
    """The turns around one length of the dialog, and the machine's limit right before and after them."""

    length: int
    turns: list[int] = field(default_factory=list)
    least: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # ms per turn of both daemons, while these turns were taken
    lost: int = 0  # turns that the observer did not see by themselves
    spans: list[tuple[int, int]] = field(default_factory=list)  # nanoseconds, and the turns that the file has of them

    @property
    def last(self) -> int:
        """The last turn that counts; `length` is the first. A stretch that is short while the dialog is."""
        return self.length + min(200, max(20, self.length * 5)) - 1

    def row(self) -> str:
        """The line of the table."""
        turn, least = Spread.of(self.turns), Spread.of(self.least)
        per_second = sum(turns for _, turns in self.spans) * 1e9 / sum(time for time, _ in self.spans)
        return (
            f"{self.length:>7,} {turn.p50:>9.2f} {turn.p99:>9.2f} {per_second:>9,.0f} {least.p50:>11.3f}"
            f" {least.p99:>11.3f} {turn.p50 / least.p50:>8.1f} {statistics.median(self.cpu):>9.2f} {turn.count:>6}"
        )


TITLE = "  turn    p50 ms    p99 ms   turns/s   limit p50   limit p99    ratio    CPU ms      n"


def stretches(windows: Sequence[Window]) -> list[list[Window]]:
    """The windows between two pauses: neighbours that lie close together are held in one go."""
    found: list[list[Window]] = []
    for window in windows:
        if found and window.length - found[-1][-1].last < APART:
            found[-1].append(window)
        else:
            found.append([window])
    return found


def hold(pair: Pair, windows: Sequence[Window], limit_turns: int) -> None:
    """Hold one dialog through all windows, adding what it shows to them."""
    folder = pair.file.parent
    with Stamps(pair.file) as stamps:
        least = limit(folder, limit_turns)
        call(pair.ports[0], "POST", "/notify")
        for stretch in stretches(windows):
            for window in stretch:
                pair.until_turn(window.length)
                begun, cpu = pair.last_turn(), pair.cpu()
                pair.until_turn(window.last + 1)
                window.cpu.append((pair.cpu() - cpu) * 1000 / (pair.last_turn() - begun))
            pair.pause()
            after = limit(folder, limit_turns)
            for window in stretch:
                window.least += [*least, *after]
            least = after
            call(pair.ports[0], "POST", "/resume")
        pair.pause()
    starts = {int(match[1]): match.start() for match in HEADING.finditer(pair.file.read_bytes())}
    for window in windows:
        offsets = [starts[number] for number in range(window.length - 1, window.last + 1)]
        seen = stamps.between(offsets)
        window.turns += seen
        window.lost += len(offsets) - 1 - len(seen)
        window.spans.append((stamps.span(offsets[0], offsets[-1]), len(offsets) - 1))


def start_up(source: Path, words: Sequence[str], times: int) -> float:
    """Seconds until a command of the command line has answered; the middle of some."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        variables = environment(source, Path(folder))
        for _ in range(times):
            begun = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "dialogd", *words], cwd=folder, env=variables, capture_output=True, check=False
            )
            found.append(time.perf_counter() - begun)
    return statistics.median(found)


def load() -> str:
    """How busy the machine is, in words."""
    idle = 1 - psutil.cpu_percent(1) / 100
    return f"load {os.getloadavg()[0]:.2f}, idle {idle:.0%}"


class Host:
    """How much of the CPU a virtual machine's host keeps for others: while it does, nothing can be said about it."""

    def __init__(self) -> None:
        self.then = psutil.cpu_times()

    def __str__(self) -> str:
        now = psutil.cpu_times()
        stolen = getattr(now, "steal", 0.0) - getattr(self.then, "steal", 0.0)
        used = now.user + now.system - self.then.user - self.then.system
        return f"taken by the host {stolen / max(stolen + used, 0.01):.0%}"


def measure(options: argparse.Namespace) -> None:
    """Measure and print what was asked for."""
    windows = [Window(length) for length in sorted(options.lengths)]
    host = Host()
    cores = f"{psutil.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    print(f"{cores}; before: {load()}")
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            file = Path(name) / "dialog.md"
            file.write_text(DIALOG, encoding="utf-8")
            with Pair(file, options.source) as pair:
                if options.idle and number == 0:
                    print(f"idle, before the first turn ({options.idle:g} s): {pair.idle(options.idle)}")
                hold(pair, windows, options.limit_turns)
                if options.idle and number == options.rounds - 1:
                    print(f"idle, after {windows[-1].last:,} turns ({options.idle:g} s): {pair.idle(options.idle)}")
    for words in (["--help"], ["status"]) if options.starts else ():
        print(f"dialogd {' '.join(words)}: {start_up(options.source, words, options.starts):.2f} s")
    print(f"after: {load()}, {host}\n\n{TITLE}")
    for window in windows:
        print(window.row())
    if lost := sum(window.lost for window in windows):
        print(f"\n{lost} turns were not seen by themselves: they count in turns/s alone")
    growth = Spread.of(windows[-1].turns).p50 / Spread.of(windows[0].turns).p50
    print(f"\nfrom turn {windows[0].length:,} to turn {windows[-1].length:,}: × {growth:.2f}")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="one short dialog: a look, not a measurement")
    add("--lengths", type=lambda text: [int(part) for part in text.split(",")], metavar="N,N", help="10,100,1000,5000")
    add("--rounds", type=int, metavar="N", help="dialogs to hold, one after another (3)")
    add("--limit-turns", type=int, metavar="N", help="turns of the limit in each pause (1000)")
    add("--idle", type=float, metavar="SECONDS", help="how long to look at idle daemons (10; 0: not at all)")
    add("--starts", type=int, metavar="N", help="how often to start the command line (5; 0: never)")
    add("--folder", type=Path, help="where the dialog lies, to measure another disk (the temporary folder)")
    add("--source", type=Path, default=ROOT, help="the checkout to measure (this one)")
    full = {"lengths": [10, 100, 1000, 5000], "rounds": 3, "limit_turns": 1000, "idle": 10.0, "starts": 5}
    short = {"lengths": [10, 100, 300], "rounds": 1, "limit_turns": 300, "idle": 2.0, "starts": 1}
    options = parser.parse_args()
    for name, value in (short if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    measure(options)


if __name__ == "__main__":
    main()
