"""What a turn costs with a backend that sends the whole dialog: two daemons on a model API, before a stand-in for it.

CPU time per turn of both daemons around some lengths, and apart from it what the service's own library takes of that to
encode the request, send it and read the stream. That is measured where it happens, step by step, in the daemon's own
thread: by itself, with a small memory and warm caches, the library is up to twice as fast.

    python scripts/bench_api.py [--lengths 20,400] [--turns 100]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Generator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import own_python  # another Python is told which one to use
from bench_turns import DIALOG, Host, Pair, call, load

from tests.support.standin import Say, Seen, StandIn

KEY = "sk-ant-test-000000000000"
SENTENCE = "Sessions stay where they are, because moving them costs more than it brings to anybody. "


class ApiPair(Pair):
    """Two daemons whose agents are asked by API."""

    def command(self, me: str, port: int, peer: str, other: int) -> list[str]:
        """How a daemon is started."""
        python, *_ = words = super().command(me, port, peer, other)
        words[words.index("rehearsal:endless")] = "anthropic"
        meter = [python, __file__, "--daemon", str(self.file.parent / f"{me}.spent")]
        return [*meter, *words[3:], "--model", "claude-opus-5-5", "--price", "free"]

    def sending(self) -> float:
        """Seconds of CPU that both have spent in the service's library."""
        return sum(float((self.file.parent / f"{me}.spent").read_text()) for me in "AB")


def answer(seen: Seen) -> Say:
    """A turn of 320 characters that says something new each time."""
    return Say(f"Point {seen.number}. {SENTENCE * 3}What speaks against point {seen.number - 1}?")


class Metered:
    """An awaitable, with the CPU seconds that this thread spends in it added up in `spent`."""

    spent: ClassVar[float] = 0.0

    def __init__(self, awaited: Awaitable[Any]) -> None:
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        """Await it, one step after the other."""
        steps = self._awaited.__await__()
        step, given = steps.send, None
        while True:
            begun = time.thread_time()
            try:
                wanted = step(given)
            except StopIteration as end:
                return end.value
            finally:
                Metered.spent += time.thread_time() - begun
            try:
                step, given = steps.send, (yield wanted)
            except BaseException as error:
                step, given = steps.throw, error


class MeteredEvents:
    """The events of a stream, each of them metered."""

    def __init__(self, events: AsyncGenerator[Any, None]) -> None:
        self._events = events

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> Any:
        """The next event."""
        return await Metered(anext(self._events))

    async def aclose(self) -> None:
        """Close the stream."""
        await Metered(self._events.aclose())


def daemon(spent: Path, words: list[str]) -> None:
    """Run dialogd with these words; what its SDK has spent in all is written down after each call."""
    from anthropic.resources import AsyncMessages

    from dialogd.cli import main as dialogd

    create = AsyncMessages.create
    meter = os.open(spent, os.O_WRONLY | os.O_CREAT, 0o600)

    async def metered(self: AsyncMessages, **body: Any) -> Any:
        stream = await Metered(create(self, **body))
        stream._iterator = MeteredEvents(stream._iterator)
        os.pwrite(meter, f"{Metered.spent:20.9f}".encode(), 0)  # one write of a fixed length: never read in part
        return stream

    AsyncMessages.create = metered  # type: ignore[assignment, method-assign]
    sys.argv = ["dialogd", *words]
    dialogd()


def measure(lengths: Sequence[int], turns: int) -> None:
    """Hold one dialog through these lengths and print a row for each."""
    own: list[float] = []
    print(f"{'turn':>7} {'request kB':>11} {'CPU ms':>8} {'sending':>8} {'dialogd':>8}")
    with tempfile.TemporaryDirectory() as name, StandIn(answer) as server:
        folder = Path(name)
        file = folder / "dialog.md"
        file.write_text(DIALOG, encoding="utf-8")
        file.chmod(0o600)
        (folder / ".env").write_text(f"ANTHROPIC_API_KEY={KEY}\nANTHROPIC_BASE_URL={server.url}\n")
        with ApiPair(file, own_python.REPOSITORY) as pair:
            call(pair.ports[0], "POST", "/notify")
            for length in lengths:
                pair.until_turn(length)
                begun, cpu, sending, first = pair.last_turn(), pair.cpu(), pair.sending(), len(server.calls)
                pair.until_turn(length + turns)
                took = pair.last_turn() - begun
                spent, sent = (pair.cpu() - cpu) * 1000 / took, (pair.sending() - sending) * 1000 / took
                seen = server.calls[(first + len(server.calls)) // 2]
                own.append(spent - sent)
                size = len(json.dumps(seen.body)) / 1000
                print(f"{length:>7} {size:>11.1f} {spent:>8.2f} {sent:>8.2f} {spent - sent:>8.2f}", flush=True)
    print(f"\ndialogd's own part, from turn {lengths[0]} to turn {lengths[-1]}: × {own[-1] / own[0]:.2f}")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="20,400", help="turns from which it is measured (20,400)")
    parser.add_argument("--turns", type=int, default=100, help="turns that are measured from there on (100)")
    parser.add_argument("--daemon", type=Path, help=argparse.SUPPRESS)
    options, words = parser.parse_known_args()
    if options.daemon:
        daemon(options.daemon, words)
        return
    host = Host()
    print(f"before: {load()}")
    measure([int(length) for length in options.lengths.split(",")], options.turns)
    print(f"after: {load()}, {host}")


if __name__ == "__main__":
    main()
