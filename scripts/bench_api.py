"""What a turn costs with a backend that sends the whole dialog: two daemons on a model API, before a stand-in for it.

CPU time per turn of both daemons around some lengths, and apart from it what encoding and sending the request costs by
itself: the same request, sent by the service's own library from a process that does nothing else.

    python scripts/bench_api.py [--lengths 20,400] [--turns 100] [--sends 100]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import own_python  # another Python is told which one to use
from bench_turns import DIALOG, Host, Pair, call, environment, load

from tests.support.standin import Say, Seen, StandIn

KEY = "sk-ant-test-000000000000"
SENTENCE = "Sessions stay where they are, because moving them costs more than it brings to anybody. "


class ApiPair(Pair):
    """Two daemons whose agents are asked by API."""

    def command(self, me: str, port: int, peer: str, other: int) -> list[str]:
        """How a daemon is started."""
        words = super().command(me, port, peer, other)
        words[words.index("rehearsal:endless")] = "anthropic"
        return [*words, "--model", "claude-opus-5-5", "--price", "free"]


def answer(seen: Seen) -> Say:
    """A turn of 320 characters that says something new each time."""
    return Say(f"Point {seen.number}. {SENTENCE * 3}What speaks against point {seen.number - 1}?")


async def send(url: str, request: dict[str, Any], times: int) -> float:
    """CPU milliseconds that the service's library takes for one such request."""
    from anthropic import AsyncAnthropic

    request = {name: value for name, value in request.items() if name != "stream"}
    async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        begun = 0.0
        for number in range(times + 5):
            if number == 5:  # the first ones import and connect
                begun = time.process_time()
            async with client.messages.stream(**request) as stream:
                await stream.get_final_message()
        return (time.process_time() - begun) * 1000 / times


def alone(url: str, seen: Seen, times: int, folder: Path) -> float:
    """The same, measured in a process of its own."""
    path = folder / "request.json"
    path.write_text(json.dumps(seen.body))
    command = [sys.executable, __file__, "--send", str(path), "--url", url, "--sends", str(times)]
    variables = environment(own_python.REPOSITORY, folder)
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout)


def measure(lengths: Sequence[int], turns: int, sends: int) -> None:
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
                begun, cpu, first = pair.last_turn(), pair.cpu(), len(server.calls)
                pair.until_turn(length + turns)
                spent = (pair.cpu() - cpu) * 1000 / (pair.last_turn() - begun)
                seen = server.calls[(first + len(server.calls)) // 2]
                pair.pause()
                sent = alone(server.url, seen, sends, folder)
                own.append(spent - sent)
                size = len(json.dumps(seen.body)) / 1000
                print(f"{length:>7} {size:>11.1f} {spent:>8.2f} {sent:>8.2f} {spent - sent:>8.2f}", flush=True)
                call(pair.ports[0], "POST", "/resume")
    print(f"\ndialogd's own part, from turn {lengths[0]} to turn {lengths[-1]}: × {own[-1] / own[0]:.2f}")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="20,400", help="turns from which it is measured (20,400)")
    parser.add_argument("--turns", type=int, default=100, help="turns that are measured from there on (100)")
    parser.add_argument("--sends", type=int, default=100, help="requests that are sent by themselves (100)")
    parser.add_argument("--send", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        print(asyncio.run(send(options.url, json.loads(options.send.read_text()), options.sends)))
        return
    host = Host()
    print(f"before: {load()}")
    measure([int(length) for length in options.lengths.split(",")], options.turns, options.sends)
    print(f"after: {load()}, {host}")


if __name__ == "__main__":
    main()
