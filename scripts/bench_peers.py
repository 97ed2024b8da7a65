"""What a turn costs here and in other frameworks: AutoGen, LangGraph with SQLite, a2a-sdk, a naive daemon, dialogd.

One run, one table: the middle of the time from one turn to the next, and the CPU time of all processes per turn, around
turns 20, 200 and 1,000. All say what dialogd's rehearsal said in the same turn; no model is asked, no key is needed.
Each framework has an environment of its own, made on demand by uv, or venv and pip. docs/performance.md says more.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import own_python  # another Python is told which one to use
from bench_stamps import Stamps
from bench_turns import DIALOG, HEADING, Host, Pair, call, free_port, load

from dialogd.protocol import grammar

HERE = own_python.REPOSITORY / "scripts" / "peers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dialogd" / "peers"
LENGTHS = (20, 200, 1000)


@dataclass(frozen=True, slots=True)
class Peer:
    """A framework: what it is in words, its program, whether that runs twice, and the packages it needs."""

    name: str
    does: str
    program: str
    is_pair: bool = False
    packages: tuple[str, ...] = ()


PEERS = (
    Peer("autogen", "AutoGen round robin, one process, keeps nothing", "autogen.py", False, ("autogen-agentchat",)),
    Peer(
        "langgraph",
        "LangGraph, an invoke per turn, SQLite, one process",
        "langgraph_sqlite.py",
        False,
        ("langgraph", "langgraph-checkpoint-sqlite"),
    ),
    Peer("a2a", "a2a-sdk, two servers, keeps nothing", "a2a_pair.py", True, ("a2a-sdk[http-server]", "uvicorn")),
    Peer("naive", "naive daemons: read all, rewrite all, no lock, no flush", "naive.py", True),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Around one length: the middle of the turns and the CPU time per turn of all processes, in milliseconds."""

    p50: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.p50:>9.2f} {self.cpu:>9.2f}"


def environment(peer: Peer, cache: Path) -> tuple[Path, str]:
    """The Python of that framework's own environment, and its versions; raises `RuntimeError` where none can be."""
    if not peer.packages:
        return Path(sys.executable), f"Python {platform.python_version()}"
    folder = cache / f"{peer.name}-{sys.version_info.major}.{sys.version_info.minor}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        uv, base = shutil.which("uv"), getattr(sys, "_base_executable", sys.executable)
        made = [uv, "venv", "-q", "--python", base, str(folder)] if uv else [base, "-m", "venv", str(folder)]
        install = [uv, "pip", "install", "-q", "--python"] if uv else []
        install += [str(python)] if uv else [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        for command in (made, [*install, *peer.packages]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError((done.stderr.strip() or f"exit {done.returncode}").rpartition("\n")[2])
        ready.touch()
    names = [package.partition("[")[0] for package in peer.packages]
    script = f"import importlib.metadata as m; print(', '.join(f'{{n}} {{m.version(n)}}' for n in {names}))"
    return python, subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def window(length: int) -> range:
    """The turns around one length."""
    return range(length // 2 if length <= 20 else length - min(100, length // 10), length + 1)


def measured(peer: Peer, python: Path, replies: Sequence[str], turns: int) -> list[Cost]:
    """Let the peer hold its dialog; its costs around each length that it reaches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "replies.json").write_text(json.dumps(list(replies)), encoding="utf-8")
        (folder / "naive.md").write_text("# Dialog\n\nDiscuss.\n\nTURN: A\n", encoding="utf-8")
        a, b = free_port(), free_port()
        each = [["A", str(a), str(b)], ["B", str(b), str(a)]] if peer.is_pair else [[]]
        variables = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        with (folder / "said").open("wb") as said:
            command = [str(python), str(HERE / peer.program), str(folder), str(turns)]
            running = [
                subprocess.Popen([*command, *more], stdout=said, stderr=said, cwd=folder, env=variables)
                for more in each
            ]
            codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError((folder / "said").read_text(errors="replace").strip().rpartition("\n")[2])
        return costs([json.loads(file.read_text()) for file in folder.glob("notes-*.json")], turns)


def costs(notes: Sequence[Sequence[Sequence[int]]], turns: int) -> list[Cost]:
    """What the notes of all its processes come to."""
    moments = {turn: at for rows in notes for turn, at, _ in rows}
    found = []
    for length in LENGTHS:
        if length > turns:
            break
        around = window(length)
        times = [moments[turn] for turn in around]
        cpu = 0.0
        for rows in notes:
            inside = [row for row in rows if row[0] in around]
            cpu += (inside[-1][2] - inside[0][2]) / (inside[-1][0] - inside[0][0])
        found.append(Cost(statistics.median(b - a for a, b in pairwise(times)) / 1e6, cpu / 1e6))
    return found


def dialogd(source: Path, turns: int) -> tuple[list[Cost], list[str]]:
    """Two daemons as `dialogd start` starts them; their costs, and what they said."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "dialog.md"
        file.write_text(DIALOG, encoding="utf-8")
        file.chmod(0o600)
        used: list[float] = []
        with Pair(file, source) as pair, Stamps(file) as stamps:
            call(pair.ports[0], "POST", "/notify")
            for length in (length for length in LENGTHS if length <= turns):
                pair.until_turn(window(length)[0])
                begun, cpu = pair.last_turn(), pair.cpu()
                pair.until_turn(window(length)[-1])
                used.append((pair.cpu() - cpu) * 1000 / max(1, pair.last_turn() - begun))
            pair.pause()
        data = file.read_bytes()
    starts = {int(match[1]): match.start() for match in HEADING.finditer(data)}
    found = []
    for length, cpu in zip(LENGTHS, used, strict=False):
        times = stamps.between([starts[number] for number in window(length)])
        found.append(Cost(statistics.median(times) / 1e6, cpu))
    return found, [entry.body for entry in grammar.parse(data).turns if entry.frame is not None]


def row(name: str, found: Sequence[Cost]) -> str:
    """The line of the table."""
    return f"{name:<58}" + "".join(map(str, found))


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--turns", type=int, default=1000, metavar="N", help="how long the dialogs are (1000)")
    add("--only", type=lambda text: text.split(","), metavar="NAMES", help="autogen,langgraph,a2a,naive")
    add("--cache", type=Path, default=CACHE, help=f"where the environments are kept ({CACHE})")
    add("--source", type=Path, default=own_python.REPOSITORY, help="the checkout to measure (this one)")
    options = parser.parse_args()
    if options.turns < LENGTHS[0]:
        parser.error(f"--turns: at least {LENGTHS[0]}")
    host = Host()
    print(f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}; before: {load()}")
    found, replies = dialogd(options.source, options.turns)
    rows = [row("dialogd, two daemons, durable before it is told", found)]
    print(
        f"dialogd {importlib.metadata.version('dialogd')}; {statistics.mean(map(len, replies)):.0f} characters a turn"
    )
    for peer in PEERS:
        if options.only and peer.name not in options.only:
            continue
        try:
            python, versions = environment(peer, options.cache)
            print(f"{peer.name}: {versions}")
            rows.append(row(peer.does, measured(peer, python, replies, options.turns)))
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            rows.append(f"{peer.does:<58} not measured: {error}")
    lengths = [length for length in LENGTHS if length <= options.turns]
    print(f"after: {load()}, {host}\n\n{'':<58}" + "".join(f"{f'turn {length:,}':>19}" for length in lengths))
    print(f"{'':<58}" + "".join(f"{'p50 ms':>9}{'CPU ms':>10}" for _ in lengths))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
