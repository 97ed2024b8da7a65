"""The benchmarks run from end to end and print what docs/performance.md and docs/results.md explain."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres import program
from tests.tasks.site import BWRAP

REPOSITORY = Path(__file__).resolve().parents[2]
IN_ITS_WORDS = (
    "what did we decide about user sessions?",
    "tabs or spaces?",
    "how is the public API versioned?",
    "what is the retry policy for the payment provider?",
    "do we use an external service for feature flags?",
    "what rate limit do anonymous visitors have?",
    "which license did we choose for the client library?",
    "are migrations written by hand?",
    "when are image thumbnails made?",
    "monorepo for mobile apps?",
)
ROW = re.compile(r"^ +(\d+) +[\d.]+ +[\d.]+ +[\d,]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +(\d+)$", re.MULTILINE)


def bench(*options: str, script: str = "bench_turns.py") -> str:
    """What the benchmark prints."""
    command = [sys.executable, str(REPOSITORY / "scripts" / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_bench_measures_turns_beside_the_limit() -> None:
    said = bench("--lengths", "4,9", "--rounds", "1", "--limit-turns", "40", "--idle", "0.2", "--starts", "1")
    rows = {int(turn): int(seen) for turn, seen in ROW.findall(said)}
    lost = sum(int(count) for count in re.findall(r"(\d+) turns were not seen", said))
    assert list(rows) == [4, 9]
    assert sum(rows.values()) + lost == 65
    for figure in (
        "load ",
        "idle, before the first turn",
        "idle, after 53 turns",
        "dialogd --help:",
        "from turn 4 to",
    ):
        assert figure in said


@pytest.mark.slow
def test_the_bench_of_typed_dialogs_has_a_row_for_each_kind() -> None:
    said = bench("--lengths", "30", "--times", "2", script="bench_hand.py")
    rows = [line.split() for line in said.splitlines() if line.startswith(("framed", "by hand"))]
    assert [row[0] for row in rows] == ["framed", "by"]
    assert all(float(figure) > 0 for row in rows for figure in row[-4:])


@pytest.mark.slow
def test_ten_quick_turns_take_no_longer_by_default() -> None:
    said = bench("--times", "1", script="bench_pace.py")
    usual, quick = (line.split() for line in said.splitlines() if line.startswith(("by default", "--pace 0")))
    assert float(quick[-1]) == 1
    assert float(usual[-1]) < 2  # a pause of one second would make it 3


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(BWRAP), reason=f"needs a sandbox: {BWRAP}")
def test_the_bench_of_a_build_has_each_round_beside_the_same_work_alone() -> None:
    said = bench("--tasks", "2", "--times", "1", "--files", "10", script="bench_build.py")
    rows = [line.split() for line in said.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1", "2", "all"]
    assert all(float(figure) for row in rows for figure in row[1:])


@pytest.mark.slow
@pytest.mark.skipif(not program("initdb"), reason="initdb is not installed (package postgresql)")
def test_the_bench_of_machines_has_each_engine_beside_the_file_and_many_dialogs() -> None:
    said = bench("--seconds", "3", "--distances", "0", "--dialogs", "50", script="bench_machines.py")
    rows = re.findall(
        r"^(the local file|PostgreSQL, 0|git remote, 0).* +([\d.]+) +([\d.]+|-) +([\d.]+|-) .*$", said, re.M
    )
    assert [row[0] for row in rows] == ["the local file", "PostgreSQL, 0", "git remote, 0"]
    assert re.search(r"^ +50 +0 +[\d,]+ ", said, re.M)
    assert re.search(r"^ +50 +5 +\d+ ", said, re.M)


@pytest.mark.slow
def test_the_bench_of_peers_measures_what_is_here_and_says_what_is_not(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.touch()  # no folder can be made there
    said = bench("--turns", "20", "--only", "autogen,naive", "--cache", str(cache), script="bench_peers.py")
    table = said.partition("p50 ms")[2]
    assert re.search(r"^dialogd, two daemons.* +\d+\.\d\d +\d+\.\d\d$", table, re.M)
    assert re.search(r"^naive daemons.* +\d+\.\d\d +\d+\.\d\d$", table, re.M)
    assert re.search(r"^AutoGen.* not measured: ", table, re.M)


@pytest.mark.slow
def test_the_bench_of_an_api_counts_sending_apart() -> None:
    said = bench("--lengths", "4,12", "--turns", "6", "--sends", "5", script="bench_api.py")
    rows = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +(-?[\d.]+)$", said, re.M)
    assert [row[0] for row in rows] == ["4", "12"]
    assert float(rows[0][1]) < float(rows[1][1])  # the whole dialog is sent each time
    for _, _, both, sending, rest in rows:
        assert abs(float(both) - float(sending) - float(rest)) < 0.011
        assert float(sending) > 0


def test_writes_that_the_observer_did_not_see_are_counted_as_lost(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); from bench_stamps import Stamps\n"
        "stamps = Stamps(Path(sys.argv[2]))\n"
        "stamps.times, stamps.sizes = [0, 5, 9, 20, 26], [0, 10, 20, 40, 50]\n"
        "print(stamps.between([0, 10, 20, 30, 40]), stamps.between([0, 10, 50]))\n"
        "print(stamps.span(0, 40), stamps.span(0, 50))"
    )
    (tmp_path / "file").touch()
    command = [sys.executable, "-c", script, str(REPOSITORY / "scripts"), str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert (done.stdout, done.stderr) == ("[4, 6] [4]\n21 21\n", "")


@pytest.mark.slow
def test_the_bench_of_recall_finds_what_is_asked_in_the_decisions_words() -> None:
    facts = json.loads(bench("--quick", "--json", script="bench_recall.py"))
    assert (facts["turns"] // 100, len(facts["questions"])) == (10, 20)
    ranks = dict(zip(facts["questions"], facts["ranks"], strict=True))
    own = [ranks[question] for question in IN_ITS_WORDS]
    assert own.count(1) >= 9
    assert all(rank is None or 1 <= rank <= 20 for rank in ranks.values())
    assert facts["first"] == list(ranks.values()).count(1)


@pytest.mark.slow
def test_another_python_is_told_which_one_to_use() -> None:
    for path in (REPOSITORY / "scripts").glob("*.py"):
        if path.stem in ("own_python", "bench_limit", "bench_stamps"):
            continue
        command = [sys.executable, "-S", str(path), "--help"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180, env=environment)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 3), path
        assert f"fix: {REPOSITORY / '.venv' / 'bin' / 'python'} {path}\n" in done.stderr


def test_the_bench_explains_its_options() -> None:
    assert "--quick" in bench("--help")
