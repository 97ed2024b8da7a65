"""Ten turns of agents that answer in 0.2 s: as `dialogd start` holds them by default, beside `--pace 0`.

Two daemons (`command`) hold a dialog; it counts from the notify until the tenth reply stands in the file, which is
looked at every 2 ms. Both ways take turns, so that a machine that grows busy disturbs both alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import own_python  # another Python is told which one to use
from bench_turns import DIALOG, Host, Pair, call, load

AGENT = ("--backend", "command", "--command", "sh -c 'sleep 0.2; echo There is more to say of that.'")
TURNS = 10


def held(source: Path, *flags: str) -> float:
    """Seconds that the turns of one dialog take."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "dialog.md"
        file.write_text(DIALOG, encoding="utf-8")
        with Pair(file, source, flags=(*AGENT, *flags)) as pair:
            begun = time.perf_counter()
            call(pair.ports[0], "POST", "/notify")
            pair.until_turn(TURNS + 1, every=0.002)
            return time.perf_counter() - begun


def row(what: str, seconds: Sequence[float], least: float) -> str:
    """A line of the table."""
    middle = statistics.median(seconds)
    return f"{what:<12} {middle:>9.2f} {min(seconds):>9.2f} {max(seconds):>9.2f} {middle / least:>9.2f}"


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--times", type=int, default=5, metavar="N", help="dialogs of each kind (5)")
    add("--source", type=Path, default=own_python.REPOSITORY, help="the checkout to measure (this one)")
    options = parser.parse_args()
    host = Host()
    print(f"before: {load()}\n\n{'':<12} {'p50 s':>9} {'min s':>9} {'max s':>9} {'ratio':>9}")
    both = [(held(options.source), held(options.source, "--pace", "0")) for _ in range(options.times)]
    usual, quick = zip(*both, strict=True)
    least = statistics.median(quick)
    print(f"{row('by default', usual, least)}\n{row('--pace 0', quick, least)}\n\nafter: {load()}, {host}")


if __name__ == "__main__":
    main()
