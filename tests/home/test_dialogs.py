"""Dialogs from Home: begun, followed, ended, left alone, found again. Over HTTP, with real processes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from dialogd.cli.options import ask
from dialogd.protocol.grammar import parse
from dialogd.store.registry import process_started
from tests.cli.command import PATIENCE, until
from tests.home.conftest import Home, fetch
from tests.support import open_sessions
from tests.support.minds import consensus, curious
from tests.support.open_sessions import Claude
from tests.support.pair import a_second
from tests.support.past import BEGAN, Past
from tests.support.standin import StandIn


def ended(home: Home, dialog: str) -> dict[str, object]:
    """Wait until that dialog has ended; its row."""
    until(lambda: home.row(dialog)["state"] == "ended", "the end", lambda: json.dumps(home.row(dialog)))
    return home.row(dialog)


def page_of(file: Path) -> int:
    """The port of the first agent, as the file says."""
    return int(parse(file.read_bytes()).header.agents[0].url.rpartition(":")[2])


def kept(home: Home, *past: Past) -> None:
    """Fill the archive with these dialogs."""
    for one in past:
        data = one.file()
        name = f"{one.topic.lower().replace(' ', '-')}-{one.id}-{hashlib.sha256(data).hexdigest()[:8]}.md"
        (home.commands.state.archive / name).write_bytes(data)


@contextmanager
def opened(folder: Path, linger: str = "60 seconds", **environment: str) -> Iterator[Home]:
    """A Home of its own, which is ended with all that it began."""
    home = Home(folder, linger, **environment)
    try:
        home.open()
        yield home
    finally:
        home.close()


@pytest.mark.slow
def test_a_rehearsal_from_home_end_to_end(home: Home) -> None:
    home.open()
    estimate = home.ask("/estimate", {"question": "Tabs or spaces?", "rehearsal": True})
    assert estimate["words"] == "nothing by the token"
    begun = home.start(rehearsal=True, max_turns=9)
    assert begun.status == 201, begun.text
    row = home.row(begun["id"])
    assert (row["topic"], row["file"], row["rehearsal"]) == ("Tabs or spaces?", begun["file"], True)
    assert row["state"] in ("starting", "running", "ended")
    assert [one["id"] for one in row["agents"]] == ["A", "B"]
    over = ended(home, begun["id"])
    assert (over["outcome"], over["cost"]) == ("CONSENSUS_REACHED", "nothing")
    assert str(over["words"]).startswith("agreed: ")
    assert not over["waits_for_you"]
    text = Path(begun["file"]).read_text()
    assert "**Max Turns:** 9" in text
    read = home.ask(str(over["past"]))
    assert read.status == 200
    assert "Tabs or spaces?" in read.text
    assert "<script" not in read.text
    assert "default-src 'none'" in read.headers["content-security-policy"]
    (only,) = home.dialogs("?search=spaces")
    assert only["id"] == begun["id"]


def working_on(file: Path) -> list[int]:
    """The processes that were started with that dialog file."""
    found = psutil.process_iter(["cmdline"])
    return [one.pid for one in found if one.info["cmdline"] and str(file) in one.info["cmdline"]]


@pytest.mark.slow
def test_a_rehearsal_of_a_build_from_home(home: Home) -> None:
    """Where no sandbox is: untested, and it says so. What it leaves and what removes that stands in its first turn."""
    for name in ("git", "python3"):
        (home.commands.folder / "bin" / name).symlink_to(str(shutil.which(name)))
    home.open()
    begun = home.ask("/build/rehearse", {})
    assert begun.status == 201, begun.text
    page = urlsplit(str(begun["url"])).port
    assert page is not None
    until(lambda: home.row(begun["id"])["waits_for_you"], "the tasks", lambda: json.dumps(home.row(begun["id"])))
    (folder,), file = home.commands.folder.glob("dialogd-rehearsal-*"), Path(begun["file"])
    first = parse(file.read_bytes()).entries[0].body
    assert f"lie in {folder} and {file}; remove them with: rm -r {folder} {file}\n" in first
    assert "REHEARSAL: no model is asked and nothing is paid" in first
    assert "`bwrap`) is not on PATH: it goes on untested" in first
    assert home.row(begun["id"])["rehearsal"]
    assert fetch(page, "/tasks", {"act": "confirm"}).status == 200
    over = ended(home, begun["id"])
    assert (over["outcome"], over["cost"]) == ("DECIDED", "nothing")
    assert "2 of 2 tasks approved" in str(over["words"])
    until(lambda: bool([*folder.glob("*plan*.md")]), "the plan", lambda: str([*folder.iterdir()]))
    assert file.read_text().count("| untested |") == 3
    assert home.commands("stop", "--file", str(file)).code == 0
    until(lambda: not working_on(file), "the end of the command that held it", lambda: str(working_on(file)))
    assert subprocess.run(["rm", "-r", folder, file], check=True).returncode == 0


@pytest.mark.slow
def test_a_rehearsal_of_a_build_says_what_it_lacks_and_leaves_nothing(home: Home) -> None:
    home.open()
    refused = home.ask("/build/rehearse", {})
    assert (refused.status, "git" in refused.problem["detail"]) == (409, True)
    assert refused.problem["fix"]
    assert not [*home.commands.folder.glob("dialogd-rehearsal-*")]


@pytest.mark.slow
def test_daemons_outlive_home_are_listed_by_the_next_and_end_a_while_after_their_dialog(tmp_path: Path) -> None:
    with opened(tmp_path, linger="45 seconds") as home:
        begun = home.start(rehearsal=True)
        home.kill()
        file = Path(begun["file"])
        port = page_of(file)
        until(lambda: "[CONSENSUS_REACHED]" in file.read_text().partition("## Turn 2")[2], "the end", file.read_text)
        health = ask(port, "GET", "/health", seconds=PATIENCE)
        assert health is not None
        assert health[0] == 200
        home.open()
        row = home.row(begun["id"])
        assert (row["state"], row["url"]) == ("ended", f"http://localhost:{port}/")
        until(lambda: not home.row(begun["id"])["url"], "the daemons' end")
        until(lambda: not home.commands.daemons(), "the end of the last of them")
        for known in home.commands.state.sessions.glob("*.json"):
            pid = json.loads(known.read_text())["pid"]
            until(lambda pid=pid: process_started(pid) is None, "the end of what ran them")


@pytest.mark.slow
def test_a_dialog_of_two_services_is_estimated_and_held(tmp_path: Path) -> None:
    with StandIn(consensus) as server:
        keys = {
            "ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef",
            "ANTHROPIC_BASE_URL": server.url,
            "XAI_API_KEY": "xai-test-0123456789abcdef",
            "XAI_BASE_URL": f"{server.url}/v1",
        }
        with opened(tmp_path, **keys) as home:
            choices = home.ask("/choices").json
            offered = {one["id"]: one for one in choices["backends"]}
            assert {"command", "acp", "live", "rehearsal"}.isdisjoint(offered)
            assert offered["anthropic"]["ready"]
            assert offered["anthropic"]["pays"] == "paid by the key in ANTHROPIC_API_KEY"
            assert "sees the dialog" in offered["anthropic"]["sees"]
            assert not offered["codex"]["ready"]
            assert offered["codex"]["why_not"]
            assert choices["defaults"]["agents"] == ["anthropic", "grok"]
            assert {"pair", "council", "debate"} <= {one["name"] for one in choices["templates"]}
            asked = {"agents": [{"backend": "anthropic"}, {"backend": "grok", "model": "grok-4.7"}], "max_turns": 12}
            estimate = home.ask("/estimate", {"question": "Tabs?", **asked})
            assert "for 12 turns" in estimate["words"]
            assert any("no budget is given" in note for note in estimate["notes"])
            begun = home.start(**asked, budget="$1.00", template="pair")
            row = ended(home, begun["id"])
            assert row["outcome"] == "CONSENSUS_REACHED"
            assert str(row["cost"]).removeprefix("about ").startswith("$")
            text = Path(begun["file"]).read_text()
            assert "**Budget:** $1.00" in text
            assert not any(key in text + json.dumps(row) for key in keys.values() if "test" in key)


@pytest.mark.slow
def test_a_model_on_this_machine_is_found_and_its_dialog_carried_through(tmp_path: Path) -> None:
    with (
        StandIn(curious, models=("qwen3:8b", "llama3.2")) as server,
        opened(tmp_path, OLLAMA_HOST=server.url.removeprefix("http://")) as home,
    ):
        choices = home.ask("/choices").json
        (ready,) = (one for one in choices["backends"] if one["ready"])
        assert (ready["id"], ready["pays"]) == ("ollama", "nobody pays")
        assert "nobody outside this machine" in ready["sees"]
        assert choices["defaults"]["agents"] == ["ollama", "ollama"]
        agents = [{"backend": "ollama"}, {"backend": "ollama", "model": "llama3.2"}]
        estimate = home.ask("/estimate", {"question": "Tabs?", "agents": agents})
        assert estimate["words"].startswith("nothing"), estimate.text
        begun = home.start(agents=agents)
        home.carry_through(begun["id"])
        assert {seen.key for seen in server.calls} <= {"", "none"}
        assert {seen.model for seen in server.calls} == {"qwen3:8b", "llama3.2"}


@pytest.mark.slow
def test_a_dialog_whose_agents_are_gone_goes_on(home: Home) -> None:
    home.commands.environment["DIALOGD_PACE"] = "1"
    home.open()
    begun = home.start(rehearsal=True)
    file = Path(begun["file"])
    until(lambda: "## Turn 2" in file.read_text(), "a turn", file.read_text)
    runs = json.loads(file.with_suffix(".json").read_text())["pid"]
    for pid in (runs, *(daemon.pid for daemon in home.commands.daemons())):
        os.kill(pid, signal.SIGKILL)
    until(lambda: home.row(begun["id"])["state"] == "asleep", "its sleep", lambda: json.dumps(home.row(begun["id"])))
    gone = home.ask("/continue", {"dialog": begun["id"]})
    assert gone.status == 201, gone.text
    assert gone["id"] == begun["id"]
    assert ended(home, begun["id"])["outcome"] == "CONSENSUS_REACHED"
    over = home.ask("/continue", {"dialog": begun["id"]})
    assert (over.status, bool(over.problem["fix"])) == (409, True)


@pytest.mark.slow
def test_a_dialog_that_nobody_knows_the_cast_of_says_how_to_start_it(home: Home) -> None:
    home.open()
    home.commands.begin("Where do sessions live?")
    (row,) = home.dialogs()
    found = home.ask("/continue", {"dialog": row["id"]})
    assert (found.status, "nobody knows who played" in found.problem["detail"]) == (409, True), found.text
    assert "dialogd start A" in found.problem["fix"]
    assert home.ask("/continue", {"dialog": "../../etc/passwd"}).status == 409
    assert home.ask("/continue", {"dialog": row["id"]}, origin="http://evil.example").status == 403


@pytest.mark.slow
def test_what_run_refuses_is_told_with_its_fix_and_leaves_nothing(home: Home) -> None:
    home.open()
    found = home.start(agents=[{"backend": "codex"}, {"backend": "codex"}])
    assert found.status == 409, found.text
    assert "codex cannot be used here" in found.problem["detail"]
    assert found.problem["fix"] == "npm install -g @openai/codex"
    assert home.dialogs() == []


@pytest.mark.slow
def test_a_start_that_is_repeated_with_its_key_begins_one_dialog(home: Home) -> None:
    home.open()
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: home.start(rehearsal=True, key="k-1"), range(2))
    assert first.status == second.status == 201, first.text + second.text
    assert first.json == second.json
    assert len(home.dialogs()) == 1
    other = home.start(rehearsal=True, key="k-1", max_turns=9)
    problem = other.json_of("application/problem+json")
    assert (other.status, problem["field"]) == (409, "key")
    assert "new key" in problem["fix"]
    assert len({home.start(rehearsal=True)["id"] for _ in range(2)}) == 2


@pytest.mark.slow
def test_a_home_that_is_killed_amid_a_start_leaves_the_question_nowhere_else_and_the_next_begins_nothing_twice(
    home: Home,
) -> None:
    home.open()
    asked = {"question": "Tabs, or the spaces of Xyzzy?", "rehearsal": True, "key": "k-1"}
    sessions = home.commands.state.sessions
    with ThreadPoolExecutor() as pool:
        pool.submit(home.ask, "/start", asked)
        until(lambda: list(sessions.glob("dialog-*")), "the beginning")
        home.kill()
    until(lambda: list(sessions.glob("*.md")), "the dialog")
    holding = [path for path in sessions.iterdir() if path.is_file() and b"Xyzzy" in path.read_bytes()]
    assert {path.suffix for path in holding} <= {".md", ".out"}, holding
    home.open()
    begun = home.ask("/start", asked)
    assert begun.status == 201, begun.text
    assert [str(path) for path in sessions.glob("*.md")] == [begun["file"]]
    assert begun["id"] in {row["id"] for row in home.dialogs()}


@pytest.mark.slow
def test_a_context_file_goes_along_without_its_secrets(home: Home) -> None:
    home.open()
    key = "sk-ant-api03-" + "a1B2" * 20
    (home.commands.folder / "notes.txt").write_text(f"two users\n{key}\n")
    asked = {"paths": ["notes.txt"]}
    (shown,) = home.ask("/context", asked)["files"]
    begun = home.start(rehearsal=True, context=["notes.txt"], unattended=True)
    text = Path(begun["file"]).read_text()
    assert "two users" in text
    assert "notes.txt" in text
    assert key not in text
    assert str(shown["text"]).split("\n")[1] in text
    assert "absent" in text.partition("## Turn 1")[0]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Claude]:
    """An open session of Claude Code."""
    (tmp_path / "config-claude").mkdir(mode=0o700)
    (tmp_path / "shop").mkdir()
    with open_sessions.claude(tmp_path / "config-claude", tmp_path / "shop") as one:
        yield one


@pytest.mark.slow
def test_a_session_is_asked_and_told_nothing_before_it_agrees(session: Claude, tmp_path: Path) -> None:
    with opened(tmp_path, CLAUDE_CONFIG_DIR=str(session.home)) as home:
        (one,) = home.ask("/choices")["sessions"]
        assert (one["program"], one["name"], one["idle"], one["seat"]) == ("Claude Code", "shop-3f", True, "")
        assert one["project"] == str(tmp_path / "shop")
        secret = "Which colour do we paint the vault?"
        begun = home.ask("/start", {"question": secret, "agents": [{"session": one["key"]}, {"backend": "grok"}]})
        assert begun.status == 409  # grok is not here: nobody was asked
        assert session.knocks() == []
        asked = {"question": secret, "agents": [{"session": one["key"]}], "template": "pair"}
        begun = home.ask("/start", asked)
        assert begun.status == 201, begun.text
        until(lambda: any("asked to take part" in knock for knock in session.knocks()), "the question")
        assert not any("vault" in knock for knock in session.knocks())
        assert "The seat of A is an open session of Claude Code" in Path(begun["file"]).read_text()
        (held,) = home.ask("/choices")["sessions"]
        assert held["seat"].startswith("A in ")
        again = home.ask("/start", asked)
        assert (again.status, again.problem["field"]) == (409, "agents.0.session")
        done = session.run(home.commands.words(["live", "accept"]), home.commands.environment, home.commands.folder)
        assert done.code == 0, done.err
        turn = session.run(home.commands.words(["live", "turn"]), home.commands.environment, home.commands.folder)
        assert "vault" in turn.out


@pytest.mark.slow
def test_a_session_that_holds_a_seat_asks_no_other_and_builds_nothing_by_home(session: Claude, tmp_path: Path) -> None:
    with opened(tmp_path, CLAUDE_CONFIG_DIR=str(session.home)) as home:
        home.commands.begin("Tabs or spaces?")
        with open_sessions.claude(session.home, tmp_path / "shop", "other-11"):
            environment = home.commands.environment | {"DIALOGD_PORT": "0"}
            joined = session.run(home.commands.words(["live", "join", "B"]), environment, home.commands.folder)
            assert joined.code == 0, joined.err
            free = next(one for one in home.ask("/choices")["sessions"] if not one["seat"])
            build = {"dialog": "3f9a1c", "repo": str(tmp_path), "gate": "true"}
            start = {"question": "Tabs?", "agents": [{"session": free["key"]}]}
            rehearsed: tuple[str, dict[str, object]] = ("/build/rehearse", {})
            for path, asked in (("/start", start), ("/build", build), ("/build/look", build), rehearsed):
                program = (
                    "import http.client, sys\n"
                    f"c = http.client.HTTPConnection('localhost', {home.port})\n"
                    f"c.request('POST', '{path}', {json.dumps(asked)!r}, {{'Content-Type': 'application/json'}})\n"
                    "r = c.getresponse(); print(r.status, r.read().decode())\n"
                )
                words = [home.commands.words([])[0], "-c", program]
                said = session.run(words, environment, home.commands.folder)
                assert said.out.startswith("409 "), said
                assert "holds seat B" in said.out


@pytest.mark.slow
def test_a_dialog_that_waits_for_the_person_comes_first_and_says_why(home: Home) -> None:
    home.open()
    log = home.commands.begin("Where do sessions live?")
    kept(home, Past("0ld000", "Paper or screen", "Which?", ["Paper."], "We print it."))
    asleep, past = home.dialogs()
    assert (asleep["state"], asleep["waits_for_you"], asleep["url"]) == ("asleep", False, "")
    assert (past["id"], past["state"], past["words"]) == ("0ld000", "ended", "agreed: We print it.")
    assert [one["name"] for one in past["agents"]] == ["Claude A", "Claude B"]
    environment = {"DIALOGD_BACKEND": "rehearsal"}
    with home.commands.background("start", "A", "--port", "0", **environment):
        until(lambda: home.dialogs()[0]["state"] == "waiting", "the daemon", lambda: json.dumps(home.dialogs()[0]))
        first = home.dialogs()[0]
        assert first["waits_for_you"]
        assert "has not begun" in first["words"]
        assert first["url"].startswith("http://localhost:")
        assert [row["id"] for row in home.dialogs("?state=open")] == [first["id"]]
        assert [row["id"] for row in home.dialogs("?state=ended")] == ["0ld000"]
        assert home.dialogs("?state=asleep") == []
        assert home.ask("/dialogs?state=odd").status == 400
    assert log.path.exists()


def test_what_was_said_is_found_in_a_dialog_that_has_not_ended(home: Home) -> None:
    home.open()
    home.commands.begin("Colours")
    with home.commands.file.open("a", encoding="utf-8") as file:
        file.write(f"\n---\n\n## Turn 2 — Claude A\n\n{'So many words. ' * 20}The Vault is blue.\n\nTURN: B\n")
    (found,) = home.dialogs("?search=BLUE%20vault")
    assert (found["state"], found["topic"]) == ("asleep", "Colours")
    assert found["found"].startswith("…")
    assert found["found"].endswith("The Vault is blue.")
    assert home.dialogs("?search=green%20vault") == []


def test_the_past_is_searched_by_title_by_name_and_by_what_was_said(home: Home) -> None:
    home.open()
    kept(
        home,
        Past("aa0001", "Sessions in Postgres", "Where?", ["A queue drains at midnight."], "Postgres it is."),
        Past(
            "aa0002", "Colours of the vault", "Which?", ["Sessions are no matter here."], "Blue.", BEGAN + timedelta(1)
        ),
        Past("aa0003", "Lunch", "What?", ["Soup."]),
    )
    assert [row["id"] for row in home.dialogs()] == ["aa0002", "aa0001", "aa0003"]
    found = home.dialogs("?search=sessions")
    assert [row["id"] for row in found] == ["aa0001", "aa0002"]
    assert "Sessions are no matter" in found[1]["found"]
    assert [row["id"] for row in home.dialogs("?search=midnight%20queue")] == ["aa0001"]
    assert home.dialogs("?search=nobody-said-this") == []
    assert home.dialogs("?search=%22%28%2A%20OR%20") == []
    read = home.ask(found[0]["past"])
    assert "A queue drains at midnight." in read.text
    for odd in ("/past/..%2f..%2fetc%2fpasswd", "/past/%2e%2e", "/past/nothing", "/past/%00", "/past/aa"):
        assert home.ask(odd).status in (400, 404), odd


@pytest.mark.slow
def test_five_hundred_past_dialogs_are_listed_fast_and_by_pages(home: Home) -> None:
    home.open()
    kept(
        home,
        *(
            Past(f"{number:06x}", f"Question {number}", "Which?", ["One.", "Two."], "One.", BEGAN + timedelta(number))
            for number in range(500)
        ),
    )
    home.commands.begin("It goes on")
    home.dialogs()
    began = time.monotonic()
    home.dialogs()
    assert time.monotonic() - began < 0.5 * a_second()
    seen: list[str] = []
    after, more = 0, True
    while more:
        page = home.ask(f"/dialogs?after={after}")
        seen += [row["id"] for row in page["dialogs"]]
        after, more = page["after"], page["more"]
    assert len(seen) == len(set(seen)) == 501


def test_a_file_that_is_no_dialog_or_cannot_be_read_disturbs_no_list(home: Home) -> None:
    home.open()
    folder = home.commands.state.sessions
    for name, text in (("dialog-a.md", "no dialog"), ("dialog-b.md", "")):
        (folder / name).write_text(text)
    for number, name in enumerate(("dialog-a", "dialog-b", "dialog-gone")):
        known = {"file": str(folder / f"{name}.md"), "pid": os.getpid(), "created": 1.0 + number, "output": ""}
        (folder / f"{name}.json").write_text(json.dumps(known))
    (folder / "dialog-c.json").write_text("{")
    home.commands.file.write_text("no dialog either")
    assert home.dialogs() == []
    with suppress(FileNotFoundError):
        home.commands.file.unlink()
