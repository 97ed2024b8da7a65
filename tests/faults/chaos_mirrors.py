"""Chaos from a seed on two machines: daemons, network and server of a shared dialog fail while two people speak.

`tests.faults.chaos` plays it beside its own worlds. What came of it is judged by `shared.py`.
"""

from __future__ import annotations

import logging
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.shared import frames
from tests.faults.two import InPostgres, Two
from tests.support.machines import Cast
from tests.support.postgres import Cluster, started


class Mirrors:
    """One shared dialog under chaos: `run` plays it and gives what was wrong."""

    def __init__(self, folder: Path, seed: int, cluster: Cluster) -> None:
        self.random = random.Random(f"{seed} mirrors")
        self.cluster = cluster
        self.engine = InPostgres(folder, cluster)
        self.two = Two(folder, self.engine, Cast(folder / "keys"), self.random.choice([0.0, 0.05, 0.3]))
        self.counts: Counter[str] = Counter()
        self.done: list[str] = []
        self.said: dict[str, bool] = {}  # by word: whether its command said that it is written
        self.typed: dict[str, str] = {}  # by word: at whose machine
        self._began = time.monotonic()
        self._frozen: set[str] = set()
        self._words = 0

    def run(self, seconds: float) -> list[str]:
        """Play it; what was wrong."""
        with self.two:
            try:
                self.two.start()
                self._misbehave(seconds)
                self._heal()
                return self.two.end(None) + self._unsaid()
            except AssertionError as error:
                return [str(error)]
            finally:
                self.engine.close()

    def _misbehave(self, seconds: float) -> None:
        acts: list[tuple[int, Callable[[str], None]]] = [
            (6, self._kill), (3, self._freeze), (2, self._end), (3, self._cut), (3, self._cut_off), (2, self._delay),
            (2, self._lose), (1, self._kill_server), (4, self._say), (3, self._type), (2, self._hint),
        ]  # fmt: skip
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self.random.choice([0.02, 0.1, 0.3, 0.6]))
            act = self.random.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
            who = self.random.choice("AB")
            self.counts[act.__name__.lstrip("_")] += 1
            self.done.append(f"{time.monotonic() - self._began:7.3f} {act.__name__} {who}")
            self.two.kills += 1
            act(who)
            if self.random.random() < 0.5:
                self._restart()

    def _restart(self) -> None:
        for who in "AB":
            if who in self._frozen:
                self._frozen.discard(who)
                self.two.daemon(who).signal(signal.SIGCONT)
            if not self.two.daemon(who).running:
                self.two.daemon(who).start()

    def _kill(self, who: str) -> None:
        if self.two.daemon(who).running:
            self._frozen.discard(who)
            self.two.daemon(who).kill()

    def _end(self, who: str) -> None:
        if self.two.daemon(who).running and who not in self._frozen:
            self.two.daemon(who).terminate()

    def _freeze(self, who: str) -> None:
        if self.two.daemon(who).running:
            self._frozen.add(who)
            self.two.daemon(who).signal(signal.SIGSTOP)

    def _hint(self, who: str) -> None:
        if self.two.daemon(who).running and who not in self._frozen:
            self.two.daemon(who).health() and self.two.daemon(who).notify()

    def _cut(self, who: str) -> None:
        self.engine.proxies[who].cut()

    def _cut_off(self, who: str) -> None:
        self.engine.cut(who)
        time.sleep(self.random.choice([0.1, 0.5, 1.5]))
        self.engine.proxies[who].thaw()

    def _delay(self, who: str) -> None:
        self.engine.proxies[who].delay(self.random.choice([0, 5, 40, 200]))

    def _lose(self, who: str) -> None:
        self.engine.proxies[who].lose_answers()

    def _kill_server(self, who: str) -> None:
        self.cluster.kill()
        time.sleep(self.random.choice([0.0, 0.5]))
        self.cluster.start()

    def _word(self, who: str) -> str:
        self._words += 1
        return f"Word-of-{who}-{self._words}"

    def _say(self, who: str) -> None:
        self._thaw(who)  # it may hold the lock
        word, note = self._word(who), self.random.choice([["--note"], []])
        code, _ = self.two.machines[who].does("say", *note, f"Consider {word} too.", "--file", self._file(who))
        self.said[word] = code == 0

    def _thaw(self, who: str) -> None:
        if who in self._frozen:
            self._frozen.discard(who)
            self.two.daemon(who).signal(signal.SIGCONT)

    def _file(self, who: str) -> str:
        return str(self.two.files[who].file)

    def _type(self, who: str) -> None:
        word = self._word(who)
        with self.two.files[who].file.open("a") as file:
            file.write(f"\n{word}\n")
        self.typed[word] = who

    def _heal(self) -> None:
        for proxy in self.engine.proxies.values():
            proxy.delay(0)
            proxy.lose_answers(False)
        self._restart()
        for who in "AB":
            self.two.daemon(who).until_ready()
        before = max(map(self.two.number, "AB"))
        code, said = self.two.machines["A"].does("say", "Go on.", "--to", "B", "--file", self._file("A"))
        assert code == 0, said
        self.two.until(lambda: min(map(self.two.number, "AB")) >= before + 4, "both to go on")

    def _unsaid(self) -> list[str]:
        """Words of the people that are lost, or stand there twice."""
        log = Counter(self.engine.log().decode().split())
        found = [
            f"{word} stands {log[word]} times"
            for word, is_said in self.said.items()
            if log[word] > 1 or log[word] < is_said
        ]
        for word, who in self.typed.items():
            times = " ".join(self.two.files[who].typed).split().count(word)
            found += [f"{word}, which was typed, is kept {times} times"] if times != 1 else []
        return found


def play_mirrors(seed: int, seconds: float) -> str:
    """Play one seed; what was done, in words. Raises AssertionError, with where all is kept."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # connections end in the middle of everything
    folder = Path(tempfile.mkdtemp(prefix="dialogd-chaos-", dir="/tmp"))
    try:
        with started() as cluster:
            chaos = Mirrors(folder, seed, cluster)
            found = chaos.run(seconds)
            if found:
                kept = Path(tempfile.mkdtemp(prefix=f"dialogd-chaos-{seed}-mirrors-"))
                (folder / "done.txt").write_text("\n".join([*chaos.done, *found]) + "\n")
                shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.lock", ".s.*"))
                wrong = "\n".join(f"  {one}" for one in found[:20])
                raise AssertionError(f"seed {seed}, two machines: what is wrong\n{wrong}\nkept in {kept}")
            done = ", ".join(f"{count} {kind}" for kind, count in sorted(chaos.counts.items()))
            return f"sound; {len(frames(chaos.engine.log()))} entries; {done}"
    except pytest.skip.Exception as none:
        return f"not played: {none}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
