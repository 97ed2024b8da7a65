"""What it costs that a dialog lies elsewhere: on PostgreSQL or in a git remote, beside the same dialog in a local file.

Two daemons (rehearsal, pace 0, every entry signed), each with a home, a state directory and a file of its own, hold one
dialog, at no distance and behind a proxy that makes a round trip as long as asked. An observer of both files notes when
an entry stands in each: from one turn to the next is a turn, from its writer's file to the other one is how far the
other is behind. Then many dialogs on one PostgreSQL, with simulated writers. docs/performance.md explains the tables.
"""

from __future__ import annotations

import argparse
import heapq
import os
import platform
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import own_python  # another Python is told which one to use
import psutil
from bench_stamps import Stamps
from bench_turns import DIALOG, Host, Pair, call, environment, load

from dialogd.store.engine import Place, open_engine
from tests.support import postgres
from tests.support.gitdaemon import GitDaemon
from tests.support.machines import Cast, Files
from tests.support.proxy import Proxy

SPOKEN = re.compile(rb"^## Turn \d+ \xe2\x80\x94 Claude ([AB])\n<!-- dialogd ", re.M)
WARM_UP = 6  # turns that do not count
DATABASE = "bench"
CONNECTIONS = 16
ENTRY = os.urandom(300).hex().encode()  # 600 bytes
SIGNATURE = "U" * 298  # its length; the server does not look at it


class Apart(Pair):
    """Two daemons on two machines, as far as they know."""

    def __init__(self, here: Files, there: Files) -> None:
        super().__init__(here.file, own_python.REPOSITORY)
        self.machines = (here, there)

    def __enter__(self) -> Self:
        for me, machine, port in zip("AB", self.machines, self.ports, strict=True):
            words = ["start", me, "--port", str(port), *self.flags, "--file", str(machine.file)]
            variables = {**environment(self.source, machine.folder), "HOME": str(machine.folder)}
            with (self.file.parent / f"{me}.log").open("wb") as log:
                command = [sys.executable, "-m", "dialogd", *words]
                self.processes.append(psutil.Popen(command, stdout=log, stderr=log, cwd=machine.folder, env=variables))
        self.until(lambda: all(call(port, "GET", "/health") for port in self.ports), "both daemons answer")
        return self


@dataclass(frozen=True, slots=True)
class Held:
    """What a dialog showed, in seconds: from turn to turn, the other file behind, CPU per turn of all of both."""

    turns: Sequence[float]
    behind: Sequence[float]
    cpu: float

    def row(self, what: str, local: Held) -> str:
        """The line of the table, beside the local file."""
        each, least = statistics.fmean(self.turns), statistics.fmean(local.turns)
        behind = "".join(f"{value * 1e3:>9.1f}" for value in _spread(self.behind, 0.5, 0.95)) or f"{'-':>9}{'-':>9}"
        figures = f"{1 / each:>9.2f}{each * 1e3:>9.1f}{each / least:>9.1f}{behind}{self.cpu * 1e3:>9.1f}"
        return f"{what:<32}{figures}{len(self.turns):>7}"


TITLE = f"{'':<32}  turns/s  ms each    ratio   behind  and 95   CPU ms      n"


def hold(pair: Pair, files: Sequence[Path], seconds: float) -> Held:
    """Hold a dialog for so long."""
    with Stamps(files[0]) as one, Stamps(files[-1]) as other:
        call(pair.ports[0], "POST", "/notify")
        pair.until_turn(WARM_UP)
        begun, cpu = time.monotonic_ns(), _cpu(pair)
        time.sleep(seconds)
        ended, used = time.monotonic_ns(), _cpu(pair) - cpu
        data = files[0].read_bytes()
    seen, behind = [], []
    for match in SPOKEN.finditer(data):
        moments = [_moment(stamps, match.start()) for stamps in (one, other)]
        if None in moments or not begun <= moments[0] <= ended:
            continue
        seen.append(moments[0] / 1e9)
        mine, theirs = moments if match[1] == b"A" else moments[::-1]
        behind.append(max(0, theirs - mine) / 1e9)  # the other one may be the first to hear that it was appended
    if len(seen) < 3:
        raise RuntimeError(
            f"{len(seen)} turns in {seconds:g} s; A said:\n{(files[0].parent / 'A.log').read_text()[-2000:]}"
        )
    return Held([b - a for a, b in pairwise(seen)], behind if files[0] != files[-1] else (), used / len(seen))


def _cpu(pair: Pair) -> float:
    """Seconds of CPU of both daemons and of the programs that they ran."""
    return sum(sum(process.cpu_times()[:4]) for process in pair.processes)


def _moment(stamps: Stamps, offset: int) -> int | None:
    look = bisect_right(stamps.sizes, offset)
    return stamps.times[look] if look < len(stamps.times) else None


def _spread(values: Sequence[float], *shares: float) -> list[float]:
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in shares] if ordered else []


@contextmanager
def far(target: Any, milliseconds: float) -> Iterator[Proxy]:
    """A proxy before it, with such a round trip."""
    with Proxy(target) as proxy:
        proxy.delay(milliseconds / 2)
        yield proxy


def shared(folder: Path, cast: Cast, urls: tuple[str, str], seconds: float) -> Held:
    """A dialog of two machines at an engine, whose URL differs by who asks."""
    name = os.urandom(16).hex()
    here = Files(folder / "here", cast, "Ada", "A", urls[0], name)
    there = Files(folder / "there", cast, "Bob", "B", urls[1], name)
    there.join(here.share(cast.opening(), "B"))
    with Apart(here, there) as pair:
        return hold(pair, (here.file, there.file), seconds)


def turns(options: argparse.Namespace, folder: Path, cluster: postgres.Cluster) -> None:
    """One dialog, in all the ways."""
    cast = Cast(folder / "keys")
    (folder / "local").mkdir()
    file = folder / "local" / "dialog.md"
    file.write_text(DIALOG, encoding="utf-8")
    with Pair(file, own_python.REPOSITORY) as pair:
        local = hold(pair, (file,), options.seconds)
    print(f"\n{TITLE}\n{local.row('the local file', local)}", flush=True)
    for distance in options.distances:
        with far(cluster.socket, distance) as proxy:
            port = proxy.port if distance else 0
            urls = (cluster.url("ada", DATABASE, port=port), cluster.url("bob", DATABASE, port=port))
            held = shared(folder / f"postgres-{distance:g}", cast, urls, options.seconds)
        print(held.row(f"PostgreSQL, {distance:g} ms round trip", local), flush=True)
    for distance in options.distances:
        with GitDaemon(folder / f"git-{distance:g}") as git, far((git.host, git.port), distance) as proxy:
            url = git.url.replace(f":{git.port}/", f":{proxy.port}/") if distance else git.url
            held = shared(folder / f"git-{distance:g}", cast, (url, url), 4 * options.seconds)
        print(held.row(f"git remote, {distance:g} ms round trip", local), flush=True)


# -- Many dialogs -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Simulated:
    """A dialog without daemons: its log, as far as it was written."""

    name: str
    at: int = 0
    sha: str = field(default_factory=lambda: sha256().hexdigest())
    hashed: Any = field(default_factory=sha256)

    def turn(self, connection: Any) -> None:
        """Append an entry."""
        before, seat = self.sha, "A" if self.at else "USER"
        self.hashed.update(ENTRY)
        self.sha = self.hashed.hexdigest()
        values = (self.name, self.at, before, seat, ENTRY, self.sha, SIGNATURE, [], [])
        query = "SELECT dialogd.append(%s, %s, %s, %s, %b, %s, %s, %s::text[], %s::bytea[])"
        if connection.execute(query, values).fetchone() != (True,):
            raise RuntimeError(f"the log {self.name} has another writer")
        self.at += len(ENTRY)

    def fetch(self, connection: Any) -> None:
        """What the other side asks once it was told."""
        query = (
            'SELECT at, data, sha, seat, signature FROM dialogd.entry WHERE dialog = %s AND "end" >= %s ORDER BY "end"'
        )
        connection.execute(query, (self.name, self.at), binary=True).fetchall()


def write(dialogs: Sequence[Simulated], connection: Any, thinking: float, until: float, puts: list[float]) -> None:
    """Be the writers of these dialogs: each has its next turn so many seconds after the last one."""
    due = [(time.monotonic() + random.uniform(0, thinking), number) for number in range(len(dialogs))]
    heapq.heapify(due)
    while due and due[0][0] < until:
        at, number = heapq.heappop(due)
        time.sleep(max(0.0, at - time.monotonic()))
        dialogs[number].turn(connection)
        puts.append(time.monotonic() - at)  # with the time until the connection was free
        dialogs[number].fetch(connection)
        if time.monotonic() >= until:
            return
        heapq.heappush(due, (time.monotonic() + thinking, number))


def many(cluster: postgres.Cluster, count: int, thinking: float, seconds: float) -> str:
    """So many dialogs at once: a line of the table."""
    import psycopg

    dialogs = [Simulated(os.urandom(16).hex()) for _ in range(count)]
    open_ = [psycopg.connect(cluster.url("ada", DATABASE), autocommit=True) for _ in range(min(CONNECTIONS, count))]
    try:
        for dialog in dialogs:
            place = Place(cluster.url("ada", DATABASE), dialog.name, Path(), "bench", ("A", "B", "USER"), is_new=True)
            open_engine(place).close()
            dialog.turn(open_[0])
        for number, connection in enumerate(open_):
            for dialog in dialogs[number :: len(open_)]:
                connection.execute(f"LISTEN dialogd_{dialog.name}")
        puts: list[list[float]] = [[] for _ in open_]
        server = [psutil.Process(connection.info.backend_pid) for connection in open_]
        before, mine, begun = _used(server), time.process_time(), time.monotonic()
        threads = [
            threading.Thread(
                target=write, args=(dialogs[n :: len(open_)], connection, thinking, begun + seconds, puts[n])
            )
            for n, connection in enumerate(open_)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, there, here = time.monotonic() - begun, _used(server) - before, time.process_time() - mine
        memory = statistics.fmean(process.memory_full_info().uss for process in server) / 1e6
    finally:
        for connection in open_:
            connection.close()
    every = [put for some in puts for put in some]
    p50, p99 = (value * 1e3 for value in _spread(every, 0.5, 0.99))
    busy = f"{here / took:>9.0%}{there / took:>9.0%}"
    return f"{count:>7,}{thinking:>11g}{len(every) / took:>9,.0f}{p50:>9.1f}{p99:>9.1f}{busy}{memory:>8.1f}"


MANY = "dialogs  thinks, s  turns/s   put 50   and 99   client   server      MB"


def _used(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="a look, not a measurement")
    add("--seconds", type=float, metavar="S", help="how long each is measured, git four times as long (20; quick: 5)")
    add("--distances", type=_figures, default=[0, 40], metavar="MS,MS", help="round trips (0,40)")
    add("--dialogs", type=_figures, default=[1, 100, 1000], metavar="N,N", help="how many at once (1,100,1000)")
    add("--only", choices=("turns", "many"), help="one of the two tables")
    add("--folder", type=Path, help="where everything lies, to measure another disk (the temporary folder)")
    options = parser.parse_args()
    options.seconds = options.seconds or (5.0 if options.quick else 20.0)
    host = Host()
    cores = f"{psutil.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    with postgres.started() as cluster, tempfile.TemporaryDirectory(dir=options.folder) as name:
        cluster.new_database(DATABASE)
        (version,) = cluster.sql("SHOW server_version")[0]
        print(f"{cores}, PostgreSQL {version}; before: {load()}")
        if options.only != "many":
            turns(options, Path(name), cluster)
        if options.only != "turns":
            print(f"\n{MANY}", flush=True)
            for count, thinking in [*((int(n), 0.0) for n in options.dialogs), (int(max(options.dialogs)), 5.0)]:
                print(many(cluster, count, thinking, options.seconds), flush=True)
    print(f"\nafter: {load()}, {host}")


def _figures(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
