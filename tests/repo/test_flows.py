"""Through how many modules a flow runs, against the data file beside this one: a door that is one stays one."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.pair import Pair, Process, until

FLOWS = tomllib.loads(Path(__file__).with_name("flows.toml").read_text(encoding="utf-8"))
WINDOWS = 5  # of a request: what an idle daemon does beside it is not in all of them


def noted(out: Path) -> list[set[str]]:
    lines = out.read_text(encoding="utf-8").split("\n")[:-1] if out.exists() else []
    return [set(json.loads(line)) for line in lines]


class Watched(Pair):
    """A pair whose daemons note which modules run."""

    def since(self, agent: str) -> set[str]:
        """What that agent's daemon has run since the last look."""
        out = self.folder / f"{agent}.flows"
        before = len(noted(out))
        os.kill(self[agent].pid, signal.SIGUSR1)
        until(lambda: len(noted(out)) > before, "the daemon to write what it ran")
        return noted(out)[-1]


def launch(words: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path) -> Process:
    agent = next(word for word in words[1:] if len(word) == 1)
    out = folder / f"{agent}.flows"
    command = [sys.executable, "-m", "tests.support.traced", str(out), *words]
    root = str(Path(__file__).resolve().parents[2])
    with output.open("ab") as to:
        return subprocess.Popen(
            command, env={**environment, "PYTHONPATH": root}, cwd=folder, stdin=subprocess.DEVNULL, stdout=to,
            stderr=to, start_new_session=True,
        )  # fmt: skip


@pytest.fixture
def pair(tmp_path: Path) -> Watched:
    return Watched(tmp_path, launch=launch, environment={"DIALOGD_POLL": "60"})


def test_a_flow_runs_through_no_more_modules_than_it_may(pair: Watched) -> None:
    found: dict[str, set[str]] = {}
    with pair:
        pair.start("A")
        pair.begin("Where should user sessions live?", turn="A")
        until(lambda: (pair["A"].health() or {}).get("dialog"), "A to read the dialog")
        pair.since("A")
        windows = []
        for _ in range(WINDOWS):
            pair["A"].health()
            windows.append(pair.since("A"))
        found["health"] = set.intersection(*windows)
        address = http.client.HTTPConnection("127.0.0.1", pair["A"].port, timeout=60)
        pair.since("A")
        address.request("POST", "/notify?wait=true")
        address.getresponse().read()
        found["turn"] = pair.since("A")
        address.close()
        out = pair.folder / "pause.flows"
        words = ["pause", "--file", str(pair.file)]
        command = [sys.executable, "-m", "tests.support.traced", str(out), *words]
        root = str(Path(__file__).resolve().parents[2])
        subprocess.run(command, env={**pair.environment, "PYTHONPATH": root}, check=True, capture_output=True)
        found["pause"] = noted(out)[-1]
    heavier = {flow: (len(found[flow]), sorted(found[flow])) for flow, most in FLOWS.items() if len(found[flow]) > most}
    lines = [f"{flow}: {count}: {', '.join(names)}" for flow, (count, names) in heavier.items()]
    assert not lines, "\n".join(lines)
