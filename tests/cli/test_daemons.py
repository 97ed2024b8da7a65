"""Daemons as the command line starts, asks and ends them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from pathlib import Path

import pytest

from dialogd.backends.seats import Cast, Seat
from dialogd.cli.create import free_ports
from dialogd.cli.options import ask
from dialogd.protocol.grammar import parse
from dialogd.store.registry import Registry
from tests.cli.command import PATIENCE, Commands, until
from tests.support.pair import a_second
from tests.support.room import opening


@pytest.mark.slow
def test_a_daemon_that_finds_nobody_takes_no_seat_beside_a_real_agent(dialogd: Commands) -> None:
    alone, other = dialogd.folder / "alone.md", dialogd.folder / "other.md"
    backends = [(alone, "A", "command"), (other, "A", "rehearsal")]
    for file, agent, backend in backends:
        words = ["start", agent, "--port", "0", "--file", str(file), "--backend", backend, "--detach"]
        done = dialogd(*words, *(("--command", "cat") if backend == "command" else ()))
        assert done.code == 0, done.err
    start = ["start", "B", "--port", "0", "--detach", "--file"]
    refused = dialogd(*start, str(alone), DIALOGD_BACKEND="auto")
    assert (refused.code, "nobody is there for B, and scripted lines take no seat" in refused.err) == (2, True)
    for file, named in ((other, "auto"), (alone, "rehearsal")):
        assert dialogd(*start, str(file), DIALOGD_BACKEND=named).code == 0
    assert dialogd("stop").code == 0


def test_two_detached_daemons_hold_a_dialog_that_new_sets_going(dialogd: Commands) -> None:
    a, b = map(str, free_ports(2))
    started = dialogd.all(
        [["start", "A", "--detach", "--port", a, "--peer", b, "--pace", "0"],
         ["start", "B", "--detach", "--port", b, "--peer", f"A=localhost:{a}", "--pace", "0"]]
    )  # fmt: skip
    pids = {daemon.id: daemon.pid for daemon in dialogd.daemons()}
    for done, agent, port in zip(started, "AB", (a, b), strict=True):
        assert (done.code, done.out.split(", log ")[0]) == (0, f"{agent} runs: pid {pids[agent]}, port {port}")
    nothing, everyone = dialogd.all([["status"], ["status", "--all", "--json"]])
    assert (nothing.code, f"; waiting for one: A on port {a}, B on port {b}\n" in nothing.err) == (3, True)
    assert [(row["id"], row["pid"], row["phase"]) for row in everyone.json] == [
        (agent, pids[agent], "no_dialog") for agent in "AB"
    ]
    new = dialogd("new", "Tabs?", "--go", "--json").json
    assert (new["notified"], [agent["url"] for agent in new["agents"]]) == (
        True,
        [f"http://localhost:{a}", f"http://localhost:{b}"],
    )
    watched = dialogd("watch", "--json")
    assert (watched.code, '"outcome": "CONSENSUS_REACHED"' in watched.out) == (0, True)
    assert dialogd("status", "--json").json["consensus_reached"] is True
    taken, seat = dialogd.all(
        [["start", "B", "--port", a, "--file", "other.md", "--detach"], ["start", "A", "--port", "0"]]
    )
    assert (taken.code, f"port {a} is taken by the dialogd daemon of agent A" in taken.err) == (3, True)
    assert (seat.code, "A already runs on" in seat.err) == (3, True)
    logs, facts = dialogd.all([["logs", "a", "-n", "500"], ["logs", "B", "-n", "1", "--json"]])
    assert re.search("appended turn [23] in", logs.out)
    assert (facts.json["running"], len(facts.json["lines"])) == (True, 1)
    stopped = dialogd("stop")
    assert (stopped.code, stopped.out.count(" stopped\n"), dialogd.daemons()) == (0, 2, ())
    assert Path(stopped.out.strip().rpartition(" ")[2]).read_bytes() == dialogd.file.read_bytes()
    assert re.search("appended turn [23] in", dialogd("logs", "A").out)


@pytest.mark.slow
def test_a_daemon_waits_for_a_dialog_in_an_empty_file(dialogd: Commands) -> None:
    dialogd.file.write_text("Buy milk.\n")
    assert dialogd("start", "A", "--detach", "--port", "0").code == 1
    dialogd.file.write_text("")
    assert dialogd("start", "A", "--detach", "--port", "0", "--pace", "0").code == 0
    dialogd.file.write_text("# Tabs?\n\n## Turn 1 — User\n\nTabs or spaces?\n\nTURN: A\n")
    (daemon,) = dialogd.daemons()
    assert ask(daemon.port, "POST", "/notify", seconds=PATIENCE) == (202, {"status": "accepted"})
    until(lambda: "## Turn 2 — " in dialogd.file.read_text(encoding="utf-8"), "a reply")
    dialogd("stop")


@pytest.mark.slow
def test_stop_ends_a_call_in_flight_and_kills_a_daemon_that_hangs(dialogd: Commands) -> None:
    a, b = map(str, free_ports(2))
    dialogd.begin("Tabs?")
    slow = ["--backend", "rehearsal:slow=600", "--pace", "0", "--detach"]
    for done in dialogd.all([["start", "A", "--port", a, "--peer", b, *slow], ["start", "B", "--port", b, *slow]]):
        assert done.code == 0, done.err

    def phase() -> str:
        return str(dialogd("status", "--json").json["phase"])

    assert dialogd("say", "Begin").out == "turn 2 is yours; A owes the next turn\n"
    until(lambda: phase() == "thinking", "A to think")
    assert "A thinks about turn 3 since " in dialogd("status").out
    assert dialogd("say", "Rather you", "--to", "B").code == 0
    until(lambda: "B thinks about turn 4" in dialogd("status").out, "B to think instead")
    frozen = next(daemon for daemon in dialogd.daemons() if daemon.id == "A")
    os.kill(frozen.pid, signal.SIGSTOP)
    assert "A        Claude A, pid" in dialogd("status").out
    began = time.monotonic()
    stopped = dialogd("stop", "--file", str(dialogd.file))
    assert (stopped.code, dialogd.daemons()) == (0, ())
    assert f"A (pid {frozen.pid}, port {a}) did not answer and was killed\n" in stopped.out
    assert time.monotonic() - began < 6 * a_second()
    outcome = parse(dialogd.file.read_bytes()).state.outcome
    assert (outcome.name if outcome else "") == "STOPPED"


def test_a_daemon_on_a_port_of_its_own_is_nothing_to_warn_of(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    (port,) = free_ports(1)
    started = dialogd("start", "A", "--detach", "--port", str(port))
    assert (started.code, "warning" in started.err) == (0, False), started.err
    answer = ask(port, "GET", "/health", seconds=PATIENCE)
    assert answer[1]["warnings"] == []
    assert "warning" not in Path(dialogd.daemons()[0].log).read_text(encoding="utf-8")
    assert dialogd("stop").code == 0


def test_a_new_dialog_beside_a_running_one_has_ports_and_hints_of_its_own(dialogd: Commands) -> None:
    registry = Registry(dialogd.state)
    other = dialogd.folder / "other.md"
    with registry.entry("A", 3001, other, other):
        done = dialogd("new", "Tabs?")
    assert (done.code, done.err) == (0, "")
    agents = parse(dialogd.file.read_bytes()).header.agents
    port = int(agents[0].url.rpartition(":")[2])
    assert port > 3002
    assert agents[1].url == "http://localhost:3002"
    assert f"dialogd start A --port {port} " in done.out
    assert f"curl -X POST http://localhost:{port}/notify" in done.out
    assert "3001" not in done.out


@pytest.mark.slow
def test_a_daemon_names_those_of_its_family_that_run_already(dialogd: Commands) -> None:
    dialogd.file.write_text(opening("A", "B", "C"), encoding="utf-8")
    dialogd.file.chmod(0o600)
    key = {"ANTHROPIC_API_KEY": "sk-ant-test-000000000000", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    ports = [str(port) for port in free_ports(3)]
    backends = [("A", "anthropic"), ("B", "rehearsal"), ("C", "anthropic")]
    said = []
    for (who, backend), port in zip(backends, ports, strict=True):
        done = dialogd("start", who, "--detach", "--backend", backend, "--port", port, **key)
        assert done.code == 0, done.err
        said.append(re.findall(r"warning: (.*) are of one family", done.err))
    assert said == [[], [], ["A and C"]]
    assert dialogd("stop").code == 0


@pytest.mark.slow
def test_a_command_that_is_advised_works_when_it_is_pasted(dialogd: Commands) -> None:
    file = dialogd.begin("Tabs?", "a b.md").path
    seats = (Seat("A", "rehearsal:deadlock", port=3001), Seat("B", "rehearsal", port=3002))
    Cast(parse(file.read_bytes()).id, seats).save(dialogd.state, file)
    command = f"dialogd start A --backend rehearsal:deadlock --file '{file}'"
    said, shown = dialogd.all([["pass", "--file", str(file)], ["status", "--file", str(file)]])
    assert f"(not running: {command})" in said.out
    assert f"waiting for A; its daemon does not run: {command}\n" in shown.out
    started = dialogd(*shlex.split(command)[1:], "--port", "0", "--detach")
    assert (started.code, [daemon.file for daemon in dialogd.daemons()]) == (0, [str(file)]), started.err


@pytest.mark.slow
def test_a_daemon_that_died_is_started_again_as_it_was(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    secret = "sk-ant-api03-" + "A" * 40
    own = [
        "--port",
        "0",
        "--backend",
        "rehearsal:slow=600",
        "--pace",
        "0.5",
        "--plan",
        "no",
        "--role",
        f"critic {secret}",
    ]
    done = dialogd("start", "A", *own, "--detach", DIALOGD_BACKEND="")
    assert done.code == 0, done.err
    (daemon,) = dialogd.daemons()
    assert dialogd.start_line("A") not in dialogd("status").out
    os.kill(daemon.pid, signal.SIGKILL)
    until(lambda: not daemon.is_alive(), "its end")
    again = f"dialogd start A --port 0 --backend rehearsal:slow=600 --pace 0.5 --plan no --file {dialogd.file}"
    for said in (dialogd("status").out, dialogd("say", "And spaces?").out):
        assert again in said
    for log in dialogd.state.logs.glob("*.log"):
        log.unlink()
    assert again in dialogd("logs", "A").err
    kept = dialogd.state.dialog(dialogd.file) / "start-A.json"
    assert secret not in kept.read_text(encoding="utf-8")
    assert kept.stat().st_mode & 0o777 == 0o600
    restarted = dialogd(*shlex.split(again)[1:], "--detach")
    assert restarted.code == 0, restarted.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGHUP, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_daemon_that_a_signal_ends_says_so_and_ends_in_order(dialogd: Commands, number: signal.Signals) -> None:
    dialogd.begin("Tabs?")
    with dialogd.background("start", "A", "--port", "0") as process:
        until(dialogd.daemons, "the daemon", lambda: dialogd.output)
        (daemon,) = dialogd.daemons()
        until(lambda: "listening on port" in dialogd.output, "it to listen", lambda: dialogd.output)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0, dialogd.output
    log = Path(daemon.log).read_text(encoding="utf-8")
    assert f"ended by {number.name}" in log
    assert "stopped: 0 turns written" in log.rstrip().split("\n")[-1]
    assert not [*dialogd.state.registry.glob("*.json")]


@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_what_a_daemon_keeps_is_refused_at_its_start_where_it_leads_elsewhere(dialogd: Commands, kind: str) -> None:
    journals = dialogd.begin("Tabs?").journals.folder
    port = str(free_ports(1)[0])
    victim, folder = dialogd.folder / "victim", dialogd.folder / "folder"
    victim.write_bytes(b"mine")
    folder.mkdir()
    for place in (
        dialogd.state.logs / f"A-{port}.log",
        dialogd.state.logs / f"A-{dialogd.state.dialog(dialogd.file).name}.out",
        journals / "A.journal",
        journals / "B.journal",
        dialogd.file.with_name("dialog.md.d"),
        journals,
    ):
        aside = place.with_name("aside")
        if place.exists():
            place.rename(aside)
        if kind == "a pipe":
            os.mkfifo(place, 0o600)
        else:
            place.symlink_to(victim if place.suffix in (".log", ".out", ".journal") else folder)
        done = dialogd("start", "A", "--port", port, *(["--detach"] if place.suffix == ".out" else []))
        assert (done.code, str(place) in done.err, "fix: move it away" in done.err) == (1, True, True), place
        place.unlink()
        if aside.exists():
            aside.rename(place)
    assert (victim.read_bytes(), list(folder.iterdir()), dialogd.daemons()) == (b"mine", [], ())
