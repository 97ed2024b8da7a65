"""A session that holds a seat is not the person: what it may do, and what is refused, through every door."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from dialogd import person
from dialogd.backends.command import confined, missing
from dialogd.backends.seats import Cast, Seat
from dialogd.errors import Refused
from dialogd.protocol.model import USER
from dialogd.store.registry import Caller, Running, asked_by, read_key, seat_of, start_of
from dialogd.views.flow import flow
from dialogd.views.plan import Plan
from tests.cli.command import Commands
from tests.support.forked import fork
from tests.support.pair import Pair
from tests.support.room import Room, opening
from tests.support.session import DIALOGD, Shell, variables

ALONE = "is for the person alone"


@contextmanager
def seated(dialogd: Commands, key: str, agent: str = "B", file: Path | None = None) -> Iterator[None]:
    """List a process that plays the daemon of that seat and session as running."""
    daemon = subprocess.Popen(["sleep", "600"])
    running = Running(agent, 1, str(file or dialogd.file), daemon.pid, psutil.Process(daemon.pid).create_time())
    (dialogd.state.registry / f"1-{agent}.json").write_text(json.dumps(asdict(replace(running, session=key))))
    try:
        yield
    finally:
        daemon.kill()
        daemon.wait()


@contextmanager
def process(**environment: str) -> Iterator[int]:
    """A process with these variables, which can be read once its program runs: it has answered by then."""
    variables, pipe = {**os.environ, **environment}, subprocess.PIPE
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, env=variables, bufsize=0) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(b".")
        child.stdout.read(1)
        yield child.pid


def this_process() -> str:
    """The key of a session that all commands of these tests run in."""
    return f"claude:{os.getpid()}:{start_of(os.getpid())}"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Pair, Shell, Shell]]:
    """A daemon of the live seat B, the session that holds it, and a terminal of the person's."""
    environment = variables(tmp_path, tmp_path / "dialog.md", tmp_path / "state")
    with (
        Shell(tmp_path, environment) as session,
        Shell(tmp_path, environment) as terminal,
        Pair(tmp_path, backend="live", flags={"B": ["--session", session.key]}, launch=fork) as pair,
    ):
        pair.start("B")
        pair.begin("Tabs or spaces?")
        yield pair, session, terminal


def test_acts_of_the_person_are_refused_from_a_seat_and_others_say_whose_they_are(dialogd: Commands) -> None:
    log = dialogd.begin("Tabs?")
    before = dialogd.file.read_bytes()
    alone = [
        ["say", "Use tabs."], ["say", "--note", "--budget", "$4", "More."], ["say", "--proposal", "Tabs"], ["approve"],
        ["reject", "No."], ["veto", "P1"], ["strike", "1"], ["limit", "max_turns", "40"], ["invite", "C"],
        ["leave", "A"], ["step", "on"], ["skip", "A"], ["retry", "A"], ["restore"], ["floor"], ["pass"],
    ]  # fmt: skip
    with seated(dialogd, this_process()):
        for words, done in zip(alone, dialogd.all(alone), strict=True):
            assert (done.code, ALONE in done.err, "holds seat B" in done.err) == (1, True, True), (words, done)
            assert "fix: do it in a terminal of your own" in done.err
        assert "dialogd live reply" in dialogd("say", "Use tabs.").err
        assert ALONE in dialogd("outcome", log.read().id, "worked", "It did.").err
        assert dialogd.file.read_bytes() == before
        open_ = [["pause"], ["say", "--note", "B looks into it.\n[APPROVED]"], ["resume"]]
        for words in open_:
            assert dialogd(*words).code == 0, words
        status = dialogd("status")
        stopped = dialogd("stop", "--file", str(dialogd.file))
    assert stopped.code == 0
    entries = log.read().entries[1:]
    assert [(one.by, one.via, one.name, *(m.name for m in one.marks)) for one in entries] == [
        (USER, "B", "B's session", "PAUSED"), (USER, "B", "B's session"), (USER, "B", "B's session", "RESUMED"),
        (USER, "B", "B's session", "STOPPED"),
    ]  # fmt: skip
    assert "not you" in status.out
    assert dialogd("verify").code == 0


def test_without_a_seat_nothing_changes(dialogd: Commands) -> None:
    log = dialogd.begin("Tabs?")
    assert dialogd("limit", "max_turns", "40").code == 0
    other = subprocess.Popen(["sleep", "600"])
    try:
        with seated(dialogd, f"claude:{other.pid}:{start_of(other.pid)}"):
            assert dialogd("limit", "max_turns", "41").code == 0
    finally:
        other.kill()
        other.wait()
    with seated(dialogd, f"claude:{os.getpid()}:7"):  # its pid was given to this process
        assert dialogd("limit", "max_turns", "42").code == 0
    assert [entry.via for entry in log.read().entries[1:]] == ["", "", ""]


def test_a_seat_elsewhere_counts_too(dialogd: Commands) -> None:
    log = dialogd.begin("Tabs?")
    with seated(dialogd, this_process(), file=dialogd.folder / "other.md"):
        refused = dialogd("limit", "max_turns", "40")
        assert (refused.code, f"of the dialog at {dialogd.folder / 'other.md'}" in refused.err) == (1, True)
        assert dialogd("pause").code == 0
    assert [(one.via, one.name) for one in log.read().entries[1:]] == [("OTHER", "a session seated in another dialog")]


def test_no_seat_speaks_for_another_or_puts_another_dialog_there(dialogd: Commands) -> None:
    log = dialogd.begin("Tabs?")
    before = dialogd.file.read_bytes()
    program = ["--backend", "command", "--command", "echo no"]
    refused = [
        ["start", "A", "--port", "0", *program], ["start", "A", "--port", "0", "--detach", *program],
        ["live", "join", "A", "--session", "shop"], ["live", "join", "B", "--session", "shop"],
        ["new", "Spaces?", "--replace"],
        ["run", "Spaces?", "--agents", "rehearsal,rehearsal", "--file", str(dialogd.file), "--replace"],
    ]  # fmt: skip
    with seated(dialogd, this_process()):
        for words, done in zip(refused, dialogd.all(refused), strict=True):
            said = (done.code, ALONE in done.err or "daemons run on" in done.err, "terminal of your own" in done.err)
            assert said == ((3, True, False) if words[0] == "run" else (1, True, True)), (words, done)
        assert "start another agent" in dialogd("start", "A", "--port", "0", *program).err
        assert dialogd.file.read_bytes() == before
        assert len(dialogd.daemons()) == 1
        person.stop(dialogd.log, "enough")
        ended = dialogd.file.read_bytes()
        again = dialogd("new", "Spaces?")
        assert (again.code, ALONE in again.err) == (1, True)
        assert dialogd.file.read_bytes() == ended
    with seated(dialogd, this_process(), file=dialogd.folder / "other.md"):
        assert dialogd("new", "Spaces?").code == 0
        open_ = dialogd("new", "Tabs?", "--replace")
        assert (open_.code, ALONE in open_.err) == (1, True)
    assert log.read().header.topic == "Spaces?"


@pytest.mark.slow
def test_a_bare_stop_of_a_seat_stops_its_own_dialog_alone(dialogd: Commands) -> None:
    log, own = dialogd.begin("Tabs?"), dialogd.begin("Spaces?", "own.md")
    other = subprocess.Popen(["sleep", "600"])
    try:
        with (
            seated(dialogd, f"claude:{other.pid}:{start_of(other.pid)}", "A"),
            seated(dialogd, this_process(), file=own.path),
        ):
            done = dialogd("stop")
            assert (done.code, "only its own dialog" in done.err, str(log.path) in done.out) == (0, True, False), done
            assert [daemon.id for daemon in dialogd.daemons()] == ["A"]
    finally:
        other.kill()
        other.wait()
    ended = own.read().state.outcome
    assert (ended.name, own.read().entries[-1].via) == ("STOPPED", "B")
    assert log.read().state.outcome is None


def test_from_a_seat_no_dialog_goes_on_without_the_person(dialogd: Commands) -> None:
    log = dialogd.begin("Tabs?")
    Cast(log.read().id, (Seat("A", "rehearsal"), Seat("B", "rehearsal"))).save(dialogd.state, dialogd.file)
    before = dialogd.file.read_bytes()
    words = ["run", "--continue", str(dialogd.file), "--unattended", "--plan", "no"]
    with seated(dialogd, this_process(), file=dialogd.folder / "other.md"):
        refused = dialogd(*words)
        assert (refused.code, ALONE in refused.err, len(dialogd.daemons())) == (1, True, 1), refused
    with seated(dialogd, this_process()):
        assert dialogd(*words).code == 3
        assert len(dialogd.daemons()) == 1
    assert dialogd.file.read_bytes() == before


@pytest.mark.slow
def test_what_is_no_act_in_the_dialog_is_not_refused(dialogd: Commands) -> None:
    with seated(dialogd, this_process(), file=dialogd.folder / "other.md"):
        assert dialogd("new", "Tabs?").code == 0
        assert dialogd("start", "A", "--detach", "--port", "0", "--pace", "0").code == 0
        assert (
            dialogd("run", "Spaces?", "--agents", "rehearsal,rehearsal", "--file", "held.md", "--plan", "no").code == 0
        )


@pytest.mark.slow
def test_ways_around_it(live: tuple[Pair, Shell, Shell]) -> None:
    """Children, orphans and those in a session of their own are known, down to what leaves everything behind."""
    pair, session, terminal = live

    def limit(turns: int) -> str:
        return f"{DIALOGD} limit max_turns {turns}"

    held = session.all(
        f"{DIALOGD} approve",
        f"sh -c {shlex.quote(f'sh -c {shlex.quote(limit(31))} && true')}",
        f"env -i {_bare(pair)} {limit(32)}",
    )
    gone = session.orphans(("-", limit(33)), ("setsid", limit(34)), ("bare", limit(35)))
    for came in [*held, *gone]:
        assert (came.code, ALONE in came.out) == (1, True), came
    dialog = pair.dialog()
    assert len(dialog.entries) == 1
    # Nothing is left that leads to the session: any other program of the user looks the same.
    assert [came.code for came in session.orphans(("setsid,bare", limit(36)))] == [0]
    assert [came.code for came in terminal.orphans(("setsid", limit(37)))] == [0]
    assert terminal.run(limit(38)).code == 0
    dialog = pair.dialog()
    assert [entry.via for entry in dialog.entries[1:]] == ["", "", ""]


@pytest.mark.slow
def test_the_shell_that_a_session_was_started_from_is_the_persons(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    environment = variables(dialogd.folder, dialogd.file, dialogd.state.root)
    line = f"{DIALOGD} limit max_turns"
    with (
        Shell(dialogd.folder, environment) as terminal,
        Shell(dialogd.folder, environment, terminal) as session,
        seated(dialogd, session.key),
    ):
        gone, child, typed = (
            *session.orphans(("bare", f"{line} 31")), session.run(f"{line} 32"), terminal.run(f"{line} 33")
        )  # fmt: skip
    assert [(came.code, ALONE in came.out) for came in (gone, child, typed)] == [(1, True), (1, True), (0, False)]
    assert dialogd.log.read().state.limits.max_turns == 33


def _bare(pair: Pair) -> str:
    """The variables of a command with no others."""
    kept = variables(pair.folder, pair.file, pair.state_dir)
    return " ".join(f"{name}='{kept[name]}'" for name in ("PATH", "PYTHONPATH", "DIALOGD_FILE", "DIALOGD_STATE_DIR"))


def test_ways_around_it_over_http(live: tuple[Pair, Shell, Shell]) -> None:
    pair, session, terminal = live
    url = f"http://127.0.0.1:{pair['B'].port}"

    def post(path: str, body: str) -> str:
        return f"curl -sS -w '\\n%{{http_code}}' -X POST {url}{path} -d '{body}'"

    limits = [post("/limit", json.dumps({"name": "max_turns", "value": value})) for value in range(31, 36)]
    python = f'python3 -c \'import urllib.request as u; u.urlopen(u.Request("{url}/approve", b"", method="POST"))\''
    for came in [
        *session.all(
            limits[0],
            post("/say", '{"text": "Tabs."}'),
            post("/floor", ""),
            post("/step", '{"on": true}'),
            post("/approve-call", '{"call": "A-3f9a1c"}'),
        ),
        *session.orphans(("-", limits[1]), ("setsid", limits[2])),
    ]:
        assert came.out.endswith("\n409"), came
        assert ALONE in json.loads(came.out.rpartition("\n")[0])["detail"]
        assert "terminal of your own" in json.loads(came.out.rpartition("\n")[0])["fix"]
    assert "409" in session.run(python).out
    assert terminal.run(limits[4]).out.endswith("\n200")
    for path in ("/pause", "/resume"):
        assert session.run(post(path, "")).out.endswith("\n200")
    assert session.run(post("/notify", "")).code == 0
    pair.until(lambda: pair["B"].said.count("refused limit from B's session") == 3, "the lines in the log")
    stopped = session.run(post("/stop", '{"reason": "enough"}'))
    assert stopped.out.endswith("\n200")
    dialog = pair.dialog()
    assert [(one.via, *map(str, one.marks)) for one in dialog.entries[1:]] == [
        ("", "[LIMIT: max_turns 35]"), ("B", "[PAUSED]"), ("B", "[RESUMED]"), ("B", "[STOPPED: enough]"),
    ]  # fmt: skip


def test_who_cannot_be_found_out_is_not_the_person(dialogd: Commands) -> None:
    log = dialogd.begin("Tabs?")

    def act() -> None:
        asked_by(tuple)
        person.limit(log, "max_turns", "40")
        with seated(dialogd, "claude:1:1"):
            with pytest.raises(Refused, match="outside of a sandbox, was found"):
                person.limit(log, "max_turns", "41")
            person.pause(log)

    copy_context().run(act)
    assert [(one.via, one.name) for one in log.read().entries[1:]] == [("", "User"), ("UNKNOWN", "an unknown program")]


@pytest.mark.skipif(bool(missing()), reason=f"no sandbox here: {missing()}")
def test_what_runs_in_a_sandbox_is_not_the_person_also_where_nobody_holds_a_seat(tmp_path: Path) -> None:
    """As a setup may that uses the network, and that a command of the person's runs."""
    (room := tmp_path / "room").mkdir()
    with Pair(tmp_path, "AB") as pair:
        pair.begin("Tabs?")
        pair.start("A")
        url = f"http://127.0.0.1:{pair['A'].port}/limit"
        post = ["curl", "-sS", "-w", "\n%{http_code}", "-d", '{"name": "max_turns", "value": 31}', url]
        orphan = f"(setsid {shlex.join(post)} >said; touch done) & while [ ! -e done ]; do sleep 0.05; done; cat said"
        for words in (post, ["sh", "-c", orphan]):
            inside = confined(words, cwd=room, writable=[room], network=True)
            said = subprocess.run(inside, capture_output=True, text=True, check=True).stdout
            assert said.endswith("\n409"), said
            assert "no program of yours, outside of a sandbox, was found to ask for this" in said
        assert subprocess.run(post, capture_output=True, text=True, check=True).stdout.endswith("\n200")
        assert [str(mark) for entry in pair.dialog().entries for mark in entry.marks] == ["[LIMIT: max_turns 31]"]


def test_agents_and_the_plan_are_told_whose_it_was() -> None:
    room = Room(opening("A", "B"), A=["Tabs."], B=["Spaces."])
    room.step("A")
    room.paper.who = Caller(Running("B", 1, str(room.paper.path), 1, 0.0, session="codex:x"))
    room.by_hand(person.say, "Do as B says.", note=True)
    assert [one.from_agent for one in flow(room.dialog)] == ["User", "A", "B's session"]
    room.step("B")
    assert "## Note, by B's session, not by the person" in room.prompts[-1][1]
    room.by_hand(person.stop, "enough")
    assert Plan(room.dialog, "dialog.md").headline == "stopped by B's session before an agreement: enough"


def test_a_codex_thread_is_known_by_the_environment_of_its_commands(dialogd: Commands) -> None:
    running = Running("B", 1, str(dialogd.file), os.getpid(), 0.0, session="codex:0199-abc")
    for thread, found in (("0199-abc", running), ("0199-other", None)):
        with process(CODEX_THREAD_ID=thread) as pid:
            assert seat_of(pid, [running]) is found


def test_only_keys_are_read_as_keys() -> None:
    pid, start = os.getpid(), start_of(os.getpid())
    key = read_key(f"claude:{pid}:{start}")
    assert (key.pid, key.started, key.is_running) == (pid, start, True)
    assert (thread := read_key("codex:0199-abc")) is not None
    assert (thread.id, thread.pid) == ("0199-abc", 0)
    assert [read_key(text) for text in ("", "claude", "claude:1:2:3", "claude:-1:2", "a b:1")] == [None] * 5
    assert re.fullmatch(r"\d+", start)
