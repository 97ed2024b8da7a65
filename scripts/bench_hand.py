"""What a turn costs in a long dialog that was typed by hand, beside one whose entries have frames.

Two daemons are started at a file of so many turns; one stays (rehearsal, pace 0). The person types a turn below it, as
an editor appends it, and notifies nobody: it counts until the answer stands in the file, which is looked at every 2 ms.
docs/performance.md has the table.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import own_python  # another Python is told which one to use
from bench_turns import DIALOG, Host, Pair, load

TEXT = "A session store has to survive a restart, and two weeks of data make a choice last. " * 4


def typed(number: int, name: str, text: str, passes: str) -> str:
    """A turn as somebody types it who knows of no frames."""
    return f"\n---\n\n## Turn {number} — {name}\n\n{text}\n\nTURN: {passes}\n"


def by_hand(turns: int) -> bytes:
    """A dialog of so many turns, all typed: every tenth proposes something."""
    said = [DIALOG]
    for number in range(2, turns + 1):
        passes = "USER" if number == turns else "AB"[number % 2 == 0]
        text = TEXT + (f"\n\n[PROPOSAL: what turn {number} says]" if number % 10 == 0 else "")
        said.append(typed(number, f"Claude {'BA'[number % 2 == 0]}", text, passes))
    return "".join(said).encode()


def framed(turns: int) -> bytes:
    """The same, as daemons write it."""
    from dialogd.protocol.grammar import joint, parse, read_on, render
    from dialogd.protocol.model import Draft, Mark

    dialog = parse(DIALOG.encode())
    parts = [DIALOG.encode()]
    for number in range(2, turns + 1):
        me, other = ("A", "B") if number % 2 == 0 else ("B", "A")
        marks = (Mark("PROPOSAL", f"what turn {number} says", f"P{number}"),) if number % 10 == 0 else ()
        passes = "USER" if number == turns else other
        draft = Draft(me, f"Claude {me}", number, TEXT, marks, (passes,), (("re", str(number - 1)),))
        more = joint(dialog) + render(draft, dialog.last.chain if dialog.last else "")
        dialog = read_on(dialog, more)
        parts.append(more)
    return b"".join(parts)


def row(what: str, turns: int, times: int, source: Path) -> str:
    """Start, turns, memory of one file, as a line of the table."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "dialog.md"
        file.write_bytes({"by hand": by_hand, "framed": framed}[what](turns))
        begun = time.perf_counter()
        with Pair(file, source) as pair:
            started, found, number = time.perf_counter() - begun, [], turns
            other = pair.processes.pop()  # the person writes instead of B
            other.terminate()
            other.wait(10)
            for _ in range(times):
                with file.open("a", encoding="utf-8") as opened:
                    opened.write(typed(number + 1, "User", "And what of it?", "A"))
                begun, number = time.perf_counter(), number + 2
                pair.until_turn(number, every=0.002)
                found.append((time.perf_counter() - begun) * 1000)
            memory = pair.processes[0].memory_info().rss / 1e6
    return f"{what:<8} {turns:>6,} {started:>9.2f} {statistics.median(found):>9.1f} {max(found):>9.1f} {memory:>9.0f}"


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lengths", type=lambda text: [int(part) for part in text.split(",")], default=[2000, 5000], metavar="N,N")
    add("--times", type=int, default=11, metavar="N", help="turns to type at each length (11)")
    add("--source", type=Path, default=own_python.REPOSITORY, help="the checkout to measure (this one)")
    options = parser.parse_args()
    host = Host()
    print(f"before: {load()}\n\n{'':<8} {'turns':>6} {'start s':>9} {'p50 ms':>9} {'max ms':>9} {'MB':>9}")
    for turns in options.lengths:
        for what in ("framed", "by hand"):
            print(row(what, turns, options.times, options.source), flush=True)
    print(f"\nafter: {load()}, {host}")


if __name__ == "__main__":
    main()
