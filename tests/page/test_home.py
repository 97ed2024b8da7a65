"""Home in a real browser: what runs, what waits, what was, and the form that starts a dialog."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Response, Route, expect

from dialogd.backends.command import missing
from dialogd.store.disk import StateDir
from dialogd.store.registry import Registry, process_started
from tests.memory.shelf import LICENSE, RETRIES, SESSIONS, STOPPED, Shelf, past
from tests.page.browser import Visitor, open_visitor
from tests.page.payloads import VECTORS, bodies, names
from tests.page.test_looks import barriers
from tests.server.daemon_process import Room, send
from tests.support import open_sessions
from tests.support.forked import fork
from tests.support.minds import consensus
from tests.support.pair import Daemon, until
from tests.support.room import Room as Table
from tests.support.room import opening
from tests.support.standin import StandIn

LOOKS = [(theme, width) for theme in ("light", "dark") for width in (1440, 1024, 390)]
WEIGHT = 150_000  # bytes of the page with all that it loads


class Home:
    """Home as a person's own, in an empty state directory, with nothing on PATH that could answer."""

    def __init__(self, folder: Path, more: Mapping[str, str]) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        (folder / "bin").mkdir()
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("DIALOGD_", "CLAUDE_"))}
        self.environment = {
            **kept,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "PATH": str(folder / "bin"),
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "DIALOGD_STATE_DIR": str(self.state_dir),
            "DIALOGD_FILE": str(folder / "dialog.md"),  # what lies at the usual place of this machine is not listed
            "DIALOGD_PLAN": "0",
            "DIALOGD_PACE": "0",
            "OLLAMA_HOST": "127.0.0.1:1",
            **more,
        }
        # Bound, so that nobody else is given it; not listened on, so that Home may.
        self.reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port = int(self.reserved.getsockname()[1])
        words = ["open", "--foreground", "--port", str(self.port)]
        self.process = Daemon(
            "home", self.port, lambda output: fork(words, self.environment, folder, output), folder / "home.out"
        )

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://localhost:{self.port}/"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process.start()

        def answers() -> bool:
            with suppress(OSError):
                return self.process.ask("GET", "/health", seconds=20.0)[0] == 200
            return False

        until(answers, "Home to answer", why=lambda: self.process.said)

    def close(self) -> None:
        """End it, what it began, and then every daemon: those that began them would start them again."""
        for began in StateDir(self.state_dir).sessions.glob("*.json"):
            known = json.loads(began.read_text(encoding="utf-8"))
            if process_started(known["pid"]) == known["created"]:
                os.kill(known["pid"], signal.SIGKILL)
        for daemon in Registry(StateDir(self.state_dir)).running():
            with suppress(ProcessLookupError):
                os.kill(daemon.pid, signal.SIGKILL)
        if self.process.running:
            self.process.kill()
        self.reserved.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Home on a machine where nobody can answer but a rehearsal."""
    home = Home(tmp_path, {})
    home.start()
    yield home
    home.close()


def test_who_comes_for_the_first_time_is_told_what_this_is(home: Home, visitor: Visitor) -> None:
    page = visitor.visit(home.url)
    expect(page.locator("#welcome")).to_be_visible()
    said = page.locator("#welcome > p").inner_text()
    assert said.count(". ") + said.endswith(".") == 2, said
    rehearse = page.get_by_role("button", name="Rehearse this question")
    expect(page.locator("[data-field=question]").locator(rehearse)).to_be_visible()
    expect(page.locator("#question")).to_be_focused()
    for empty in ("#waiting", "#running", "#past"):
        expect(page.locator(empty)).to_be_hidden()


def test_without_a_model_the_question_and_its_rehearsal_come_first_on_every_visit(
    home: Home, room: Room, visitor: Visitor
) -> None:
    room.open("AB", turn="USER")
    page = visitor.visit(home.url)
    expect(page.locator("#waiting")).to_be_visible()
    expect(page.locator("[data-field=question] #rehearse-go")).to_have_text("Rehearse this question")
    shown = page.locator("main > section:visible").evaluate_all("all => all.map((one) => one.id)")
    assert shown[0] == "new", shown
    expect(page.locator("#go")).to_be_hidden()
    missing = page.locator("#missing")
    expect(missing).not_to_have_attribute("open", "")
    missing.locator("summary").click()
    expect(missing).to_contain_text("npm install -g @anthropic-ai/claude-code")
    fake = home.folder / "bin" / "claude"
    fake.write_text('#!/bin/sh\necho "2.1.330 (Claude Code)"\n')
    fake.chmod(0o755)
    missing.get_by_role("button", name="Check again").click()
    expect(missing).to_contain_text("claude 2.1.330, not logged in")
    expect(page.locator("#checked")).to_have_text("Nothing new is here.")
    page.locator("#question").fill("Tabs, or the spaces of Xyzzy?")
    page.locator("#question").press("Control+Enter")
    expect(page.locator("#topic")).to_contain_text("Tabs, or the spaces of Xyzzy?")
    expect(page.locator("#live")).to_contain_text("Rehearsal")
    page.locator("#say-text").fill("What about cost?")
    expect(page.locator("#say-send")).to_contain_text("interrupts")


def test_home_weighs_little(home: Home, visitor: Visitor) -> None:
    """The page with everything that it loads is below 150 kB, and all of it comes from Home."""
    loaded: list[Response] = []

    def note(response: Response) -> None:
        loaded.append(response)

    visitor.context.on("response", note)
    page = visitor.visit(home.url)
    expect(page.locator("#rehearse-go")).to_be_visible()
    page.wait_for_load_state("networkidle")
    own = [one for one in loaded if one.url.startswith(home.url)]
    sizes = {one.url: len(one.body()) for one in own}
    print(sizes)
    assert own == loaded
    assert any(url.endswith("/home/home.js") for url in sizes)
    assert sum(sizes.values()) < WEIGHT


def test_what_was_typed_survives_loading_the_page_again(home: Home, visitor: Visitor) -> None:
    page = visitor.visit(home.url)
    expect(page.locator("#question")).to_be_focused()
    page.locator("#question").fill("Tabs or spaces?")
    page.locator("#fold-limits summary").click()
    page.locator("#max_time").fill("30m")
    page.locator("#unattended").check()
    page.reload()
    expect(page.locator("#question")).to_have_value("Tabs or spaces?")
    expect(page.locator("#limits-now")).to_contain_text("30m in all")
    expect(page.locator("#max_time")).to_have_value("30m")
    expect(page.locator("#unattended")).to_be_checked()


def test_a_problem_stands_at_its_field(served: Home, visitor: Visitor) -> None:
    page = visitor.visit(served.url)
    expect(page.locator("#question")).to_be_focused()
    for _ in range(2):
        page.locator("#cards [aria-pressed=true]").first.click()
    page.locator("#go").click()
    expect(page.locator("#question-problem")).to_contain_text("Write what they should discuss")
    expect(page.locator("#question")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#question")).to_be_focused()
    page.locator("#question").fill("Tabs or spaces?")
    page.locator("#go").click()
    expect(page.locator("#agents-problem")).to_contain_text("Choose who takes part")
    page.locator("#fold-limits summary").click()
    page.locator("#max_turns").fill("many")
    page.locator("#fold-limits summary").click()
    page.locator("#go").click()
    expect(page.locator("#max_turns-problem")).to_contain_text("“many” is no number of turns")
    expect(page.locator("#max_turns")).to_be_focused()  # unfolded for that
    expect(page.locator("#max_turns")).to_have_value("many")
    expect(page.locator("#question-problem")).to_be_empty()
    expect(page.locator("#question")).to_have_value("Tabs or spaces?")


def unfold(page: Page) -> None:
    """Open all that is folded."""
    for fold in page.locator("main details").all():
        fold.evaluate("fold => fold.open = true")


def looks(browser: Browser) -> Iterator[Visitor]:
    """A person with each theme at each width, one after the other."""
    for theme, width in LOOKS:
        visitor = open_visitor(browser, bypass_csp=True, color_scheme=theme, viewport={"width": width, "height": 844})
        yield visitor
        visitor.context.close()
        visitor.is_clean()


def is_within(page: Page) -> bool:
    """True while nothing reaches over the edge of the window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def test_axe_finds_nothing_at_the_first_visit(home: Home, browser: Browser) -> None:
    for visitor in looks(browser):
        page = visitor.visit(home.url)
        expect(page.locator("#welcome")).to_be_visible()
        expect(page.locator("#limits-now")).to_contain_text("turns")
        assert barriers(page) == []
        unfold(page)
        page.locator("#max_turns").fill("many")
        expect(page.locator("#max_turns-problem")).not_to_be_empty()
        assert barriers(page) == []
        assert is_within(page)


def test_who_looks_is_told_when_home_has_ended(home: Home, visitor: Visitor) -> None:
    page = visitor.visit(home.url)
    expect(page.locator("#question")).to_be_focused()
    page.locator("#question").fill("Tabs or spaces?")
    visitor.expected = ("ERR_CONNECTION_REFUSED",)
    home.process.kill()
    expect(page.locator("#gone")).to_contain_text("dialogd open")
    expect(page.locator("#question")).to_have_value("Tabs or spaces?")
    home.start()
    expect(page.locator("#gone")).to_be_hidden()


# -- The lists --------------------------------------------------------------------------------------------------------


def row(page: Page, section: str, topic: str) -> Any:
    """A dialog in one of the lists."""
    return page.locator(f"#{section} .dialogs > li").filter(has_text=topic)


def test_who_waits_stands_at_the_top(home: Home, room: Room, visitor: Visitor) -> None:
    room.open("AB")
    typing = room.think()
    page = visitor.visit(home.url)
    expect(row(page, "running", "Tabs or spaces?")).to_contain_text("Claude A is writing")
    expect(page.locator("#waiting")).to_be_hidden()
    expect(page.locator("#welcome")).to_be_hidden()
    typing.end("It depends.\n\n[QUESTION_FOR_USER: How many users are there?]\n")
    waiting = row(page, "waiting", "Tabs or spaces?")
    expect(waiting).to_contain_text("How many users are there?")
    expect(page.locator("#said")).to_have_text("1 dialog waits for you")
    expect(page).to_have_title("(1) dialogd")
    waiting.get_by_role("link").click()
    expect(page).to_have_url(f"http://localhost:{room.a.port}/")
    assert send(room.a, "POST /say", {"text": "About a million."}).status < 300
    page.go_back()
    expect(row(page, "running", "Tabs or spaces?")).to_be_visible()
    expect(page.locator("#waiting")).to_be_hidden()
    expect(page).to_have_title("dialogd")


def test_earlier_dialogs_are_found_and_read(home: Home, tmp_path: Path, visitor: Visitor) -> None:
    shelf = Shelf(tmp_path)
    for one in (SESSIONS, RETRIES, LICENSE, STOPPED):
        shelf.put(one)
    page = visitor.visit(home.url)
    first = row(page, "past", SESSIONS.topic)
    expect(first).to_contain_text("Sessions live in Postgres")
    expect(first).to_contain_text("Mar 2")
    expect(first).to_contain_text("Claude A")
    expect(page.locator("#past .dialogs > li")).to_have_count(4)
    page.locator("#search").fill("turquoise")
    expect(page.locator("#past .dialogs > li")).to_have_count(1)
    expect(row(page, "past", STOPPED.topic)).to_contain_text("turquoise")
    page.locator("#search").fill("xylophone")
    expect(page.locator("#past-none")).to_have_text("No earlier dialog has these words.")
    page.locator("#search").fill("")
    expect(page.locator("#past .dialogs > li")).to_have_count(4)
    first.get_by_role("link").click()
    expect(page.locator("body")).to_contain_text("Sessions live in Postgres, for thirty days.")


def test_more_earlier_dialogs_come_when_asked_for(home: Home, tmp_path: Path, visitor: Visitor) -> None:
    shelf = Shelf(tmp_path)
    for number in range(1, 61):
        shelf.put(past(number, f"Topic {number:02}", "Yes."))
    page = visitor.visit(home.url)
    rows = page.locator("#past .dialogs > li")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(60)
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    assert len({one.inner_text() for one in page.locator("#past .row-title").all()}) == 60


# -- Start ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Home]:
    """Home where keys of two services are set; both are the stand-in, whose agents agree after some turns."""
    with StandIn(consensus) as server:
        keys = {"ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef", "XAI_API_KEY": "xai-test-0123456789abcdef"}
        home = Home(tmp_path, {**keys, "ANTHROPIC_BASE_URL": server.url, "XAI_BASE_URL": f"{server.url}/v1"})
        home.start()
        yield home
        home.close()


@pytest.fixture
def working(tmp_path: Path) -> Iterator[tuple[Home, Path]]:
    """Home where one program answers for everybody and plans a task, and a repository beside it."""
    plans = tmp_path / "plans.sh"
    plans.write_text("#!/bin/sh\ncat > /dev/null\necho '[TASK_PROPOSED: read ages | works | none | 1 h]'\n")
    plans.chmod(0o755)
    code = tmp_path / "code"
    who = ["-c", "user.name=P", "-c", "user.email=p@localhost", "-c", "init.defaultBranch=main"]
    for words in (["init", "--quiet", str(code)], ["-C", str(code), "commit", "--quiet", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", *who, *words], check=True)
    names = {"DIALOGD_BACKEND": "command", "DIALOGD_COMMAND": str(plans), "PATH": f"{tmp_path / 'bin'}:{os.defpath}"}
    home = Home(tmp_path, names)
    home.start()
    yield home, code
    home.close()


@pytest.mark.skipif(bool(missing()), reason=f"no sandbox here: {missing()}")
def test_what_was_decided_is_carried_out_from_its_form(working: tuple[Home, Path], visitor: Visitor) -> None:
    visitor.expected = ("400", "409")
    home, code = working
    agreed = "## Consensus Summary\n\nRead the ages.\n\n[CONSENSUS_REACHED]"
    table = Table(opening("A", "B", keys=["Topic: Read ages", "Dialog: 3f9a1c"]), A=[agreed], B=["[AGREE: P1]"])
    table.run()
    archive = home.state_dir / "archive"
    archive.mkdir(mode=0o700)
    file = archive / "read-ages-3f9a1c-00000000.md"
    file.write_bytes(table.paper.data)
    page = visitor.visit(f"{home.url}#build=3f9a1c")
    form, would = page.locator("#carry-form"), page.locator("#carry-would")
    expect(page.locator("#carry")).to_contain_text("Read ages")
    form.locator("#repo").fill("/nowhere")
    form.get_by_role("button", name="See what it would be").click()
    expect(page.locator("#repo-problem")).to_contain_text("cannot be looked at")
    form.locator("#repo").fill(str(code))
    form.locator("#gate").fill("true")
    form.get_by_label("Tech leads that work side by side").fill("2")
    if not missing():
        form.locator("#setup").fill("echo ready")
        form.get_by_label("It may use the network").check()
    form.get_by_role("button", name="See what it would be").click()
    expect(page.locator("#carry-problem")).to_contain_text("you have not approved")
    table.approve()
    file.write_bytes(table.paper.data)
    form.get_by_role("button", name="See what it would be").click()
    for words in (
        "L (Tech Lead): command",
        "A (Tech Lead 2): command",
        f"{code}: from main at",
        "gate    true",
        "turns   at most",
        "" if missing() else "with the network",
    ):
        expect(would).to_contain_text(words)
    form.locator("#gate").fill("false")
    expect(would).to_be_hidden()  # what is begun is what was seen
    form.locator("#gate").fill("true")
    form.get_by_role("button", name="See what it would be").click()
    form.get_by_role("button", name="Start it").click()
    page.wait_for_url(lambda url: not url.startswith(home.url))
    expect(page.locator("#topic")).to_contain_text("Read ages")
    expect(page.locator("#build-asks")).to_be_visible()


def tab_to(page: Page, wanted: str, most: int = 120) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(most):
        if page.evaluate("wanted => document.activeElement?.matches(wanted) ?? false", wanted):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{most} times Tab did not reach {wanted}")


def test_a_rehearsal_is_one_click_and_clearly_one(home: Home, visitor: Visitor) -> None:
    page = visitor.visit(home.url)
    page.get_by_role("button", name="Rehearse this question").click()
    expect(page).not_to_have_url(home.url)
    expect(page.locator("#topic")).to_contain_text("Where should user sessions live")
    page.goto(home.url)
    listed = page.locator(".dialogs > li")
    expect(listed).to_have_count(1)
    expect(listed.locator(".tag")).to_have_text("rehearsal")
    expect(page.locator("#welcome")).to_be_hidden()


@pytest.fixture
def equipped(tmp_path: Path) -> Iterator[Home]:
    """Home with what a build's rehearsal needs: git, Python, a sandbox."""
    home = Home(tmp_path, {"PATH": f"{tmp_path / 'bin'}:{os.defpath}", "TMPDIR": str(tmp_path)})
    home.start()
    yield home
    home.close()


@pytest.mark.skipif(bool(missing()), reason=f"no sandbox here: {missing()}")
def test_a_rehearsal_of_a_build_is_one_click_and_clearly_one(equipped: Home, visitor: Visitor) -> None:
    page = visitor.visit(equipped.url)
    page.get_by_role("button", name="Rehearse a build").click()
    page.wait_for_url(lambda url: not url.startswith(equipped.url))
    page.locator("#build-asks").get_by_role("button", name="Confirm all").click()
    expect(page.locator("#conversation")).to_contain_text("remove them with: rm -r")
    expect(page.locator("#live")).to_contain_text("Rehearsal")
    expect(page.get_by_role("button", name="Merge …").first).to_be_visible(timeout=60_000)
    page.goto(equipped.url)
    expect(page.locator(".dialogs > li .tag")).to_have_text("rehearsal")
    expect(page.locator(".dialogs > li")).to_contain_text("Read ages safely, and print them")


def test_the_rehearsal_is_shown_only_where_it_stays(home: Home, visitor: Visitor) -> None:
    page = visitor.page
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/choices", hold)
    visitor.visit(home.url)
    expect(page.locator("#welcome")).to_be_visible()
    expect(page.locator("#rehearse")).to_be_hidden()
    held[0].continue_()
    expect(page.locator("[data-field=question] #rehearse")).to_be_visible()


def test_by_the_keyboard_alone_from_the_question_to_the_result(served: Home, visitor: Visitor) -> None:
    page = visitor.visit(served.url)
    expect(page.locator("#question")).to_be_focused()
    expect(page.locator("#cards [aria-pressed=true]")).to_have_count(2)
    expect(page.locator("#cards")).to_contain_text("paid by the key in ANTHROPIC_API_KEY")
    page.keyboard.type("Where should user sessions live?")
    expect(page.locator("#estimate")).to_contain_text("$")
    before = page.locator("#estimate").inner_text()
    tab_to(page, "#fold-limits summary")
    page.keyboard.press("Enter")
    tab_to(page, "#max_turns")
    page.keyboard.type("6")
    expect(page.locator("#estimate")).not_to_have_text(before)
    expect(page.locator("#estimate")).to_contain_text("for 6 turns")
    expect(page.locator("#limits-now")).to_contain_text("6 turns")
    tab_to(page, "#go")
    page.keyboard.press("Enter")
    expect(page).not_to_have_url(served.url)
    expect(page.locator("#topic")).to_contain_text("Where should user sessions live?")
    expect(page.get_by_role("button", name="Approve", exact=True).locator("visible=true").first).to_be_visible()
    name = page.get_by_role("button", name="Approve", exact=True).locator("visible=true").first
    name.evaluate("button => button.dataset.wanted = 'yes'")
    tab_to(page, "[data-wanted=yes]", 300)
    page.keyboard.press("Enter")
    registered = Registry(StateDir(served.state_dir)).running()
    file = Path(registered[0].file)
    until(lambda: "[APPROVED]" in file.read_text(encoding="utf-8"), "the approval")


def test_keys_that_are_held_down_start_one_dialog(served: Home, visitor: Visitor) -> None:
    page, asked = visitor.visit(served.url), list[str]()
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/start") else None)
    expect(page.locator("#cards [aria-pressed=true]")).to_have_count(2)
    page.keyboard.type("Tabs or spaces?")
    for _ in range(3):
        page.keyboard.press("Control+Enter")
    expect(page).not_to_have_url(served.url)
    assert len(asked) == 1


def test_a_refused_start_keeps_what_was_typed(served: Home, tmp_path: Path, visitor: Visitor) -> None:
    visitor.expected = ("status of 4",)
    page = visitor.visit(served.url)
    page.locator("#question").fill("Tabs or spaces?")
    unfold(page)
    page.locator("#project").fill(str(tmp_path / "nowhere"))
    page.locator("#fold-project > summary").click()
    page.locator("#go").click()
    expect(page.locator("#project-problem")).to_contain_text("nowhere")
    expect(page.locator("#project")).to_be_focused()
    page.reload()
    expect(page.locator("#question")).to_have_value("Tabs or spaces?")
    page.locator("#fold-project > summary").click()
    page.locator("#project").fill("")
    page.locator("#fold-limits > summary").click()
    for name, text in (("budget", "a lot"), ("timeout", "soon"), ("max_time", "later")):
        page.locator(f"#{name}").fill(text)
        expect(page.locator(f"#{name}-problem")).to_contain_text(text)
        page.locator(f"#{name}").fill("")
        expect(page.locator(f"#{name}-problem")).to_be_empty()
    page.locator("#go").click()
    expect(page).not_to_have_url(served.url)


def test_a_template_says_how_many_it_is_for(served: Home, visitor: Visitor) -> None:
    page = visitor.visit(served.url)
    page.locator("#fold-template > summary").click()
    option = page.locator(".option").filter(has_text="Architecture debate")
    expect(option.locator(".sentence")).to_contain_text("Three positions")
    option.click()
    expect(page.locator("#cast-fit")).to_contain_text("exactly 3, and 2 take part so far")
    page.locator("#cast-fit").get_by_role("button", name="Make it 3").click()
    expect(page.locator("#seats > li")).to_have_count(3)
    expect(page.locator("#seats > li").last).to_contain_text("Operator")
    expect(page.locator("#cast-fit")).to_be_hidden()
    page.locator("#seats").get_by_role("button", name="One more").first.press("Enter")
    expect(page.locator("#seats > li:nth-child(2) [data-do=again]")).to_be_focused()
    expect(page.locator("#cast-fit")).to_contain_text("exactly 3, and 4 take part so far")
    page.locator("#question").fill("Redis or Postgres?")
    page.locator("#go").click()
    expect(page.locator("#agents-problem")).to_contain_text("exactly 3")
    page.locator("#seats").get_by_role("button", name="Remove").first.click()
    expect(page.locator("#cast-fit")).to_be_hidden()
    expect(page.locator("#template-now")).to_contain_text("Architecture debate")


def test_a_context_file_is_shown_as_it_goes_along(served: Home, tmp_path: Path, visitor: Visitor) -> None:
    project = tmp_path / "project"
    project.mkdir()
    key = "sk-ant-api03-" + "Ab1" * 30
    (project / "design.md").write_text(f"# Design\n\nSessions live in Redis.\n\nkey = {key}\n")
    page = visitor.visit(served.url)
    page.locator("#fold-project > summary").click()
    page.locator("#project").fill(str(project))
    page.locator("#context-path").fill("design.md")
    page.locator("#context-path").press("Enter")
    shown = page.locator("#context-files pre")
    expect(shown).to_contain_text("Sessions live in Redis.")
    expect(page.locator("#context-files")).to_contain_text("1 secret taken out")
    assert key not in page.content()
    page.locator("#context-path").fill("nowhere.md")
    page.locator("#context-path").press("Enter")
    expect(page.locator("#context-problem")).to_contain_text("nowhere.md")
    page.reload()
    expect(page.locator("#project-now")).to_have_text("project · 1 file")
    page.locator("#fold-project > summary").click()
    expect(page.locator("#context-files > li")).to_have_count(1)
    page.locator("#question").fill("Where should user sessions live?")
    page.locator("#go").click()
    expect(page).not_to_have_url(served.url)
    file = Path(Registry(StateDir(served.state_dir)).running()[0].file)
    text = file.read_text(encoding="utf-8")
    assert "Sessions live in Redis." in text
    assert key not in text


def test_an_open_session_is_asked_to_take_a_seat(tmp_path: Path, visitor: Visitor) -> None:
    (tmp_path / "shop").mkdir()
    with open_sessions.claude(tmp_path / "config-claude", tmp_path / "shop") as session, StandIn(consensus) as server:
        more = {"CLAUDE_CONFIG_DIR": str(session.home), "XAI_API_KEY": "xai-test-0123456789abcdef"}
        home = Home(tmp_path, {**more, "XAI_BASE_URL": f"{server.url}/v1"})
        home.start()
        try:
            page = visitor.visit(home.url)
            page.locator("#sessions > summary").click()
            card = page.locator("#sessions .card")
            expect(card).to_contain_text("Claude Code")
            expect(card).to_contain_text(str(tmp_path / "shop"))
            seats = page.locator("#seats > li")
            expect(seats).to_have_count(2)  # Grok twice, as `auto` would
            page.locator("#cards .card").click()
            expect(seats).to_have_count(0)
            card.click()
            page.locator("#cards .card").click()
            expect(seats).to_have_count(2)
            expect(seats.last).to_contain_text("Grok")
            page.locator("#question").fill("Who owns the user sessions?")
            page.locator("#go").click()
            expect(page).not_to_have_url(home.url)
            until(lambda: any("asked to take part" in knock for knock in session.knocks()), "the session to be asked")
        finally:
            visitor.page.close()  # it would look for the daemons that go
            home.close()


# -- What others wrote is text ----------------------------------------------------------------------------------------


def is_unharmed(page: Page) -> None:
    """No script of theirs ran, and nothing of theirs is more than text."""
    assert page.evaluate("window.hacked") is None
    bad = "script, img, iframe, object, embed, style, link, meta, base, form[action], video, audio, svg, math"
    assert page.eval_on_selector_all(f"body :is({bad})", "all => all.map(one => one.outerHTML.slice(0, 200))") == []
    links = page.eval_on_selector_all("a", "all => all.map(one => one.getAttribute('href'))")
    assert [link for link in links if not link.startswith(("#", "/past/", "http://localhost:"))] == []
    handlers = page.evaluate(
        """[...document.querySelectorAll('*')].filter(
            one => [...one.attributes].some(a => /^on|^style$|^ping$/i.test(a.name))).length"""
    )
    assert handlers == 0


def test_hostile_dialogs_are_text_in_the_lists(home: Home, tmp_path: Path, visitor: Visitor) -> None:
    shelf = Shelf(tmp_path)
    for number, text in enumerate(names(), 1):
        shelf.put(past(number, text, text, text))
    page = visitor.visit(home.url)
    expect(page.locator("#past .dialogs > li")).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#past .dialogs > li")).to_have_count(len(names()))
    titles = page.locator("#past .row-title").all_inner_texts()
    assert sum("window.hacked" in title for title in titles) > 30
    is_unharmed(page)
    page.locator("#search").fill("window.hacked")
    expect(page.locator("#past .dialogs > li").first).to_contain_text("window.hacked")
    is_unharmed(page)


def test_a_hostile_dialog_that_runs_is_text(home: Home, room: Room, visitor: Visitor) -> None:
    topic, name, other = VECTORS[0], VECTORS[3], '"><img src=x onerror=window.hacked=1>'
    agents = f"A = {name} @ {room.url('A')}, B = {other} @ {room.url('B')}"
    text = room.opening(topic, "A", agents=agents)
    asked = f"[QUESTION_FOR_USER: {other}]"
    room.file.write_text(f"{text}\n---\n\n## Turn 2 — {name}\n\nHello.\n\n{asked}\n\nTURN: USER\n")
    room.start("A")
    page = visitor.visit(home.url)
    listed = page.locator(":is(#waiting, #running) .dialogs > li")
    expect(listed).to_have_count(1)
    expect(listed.locator(".row-title")).to_contain_text(topic[:20])
    is_unharmed(page)


def test_hostile_words_in_the_form_are_text(served: Home, tmp_path: Path, visitor: Visitor) -> None:
    visitor.expected = ("status of 4",)
    project = tmp_path / "project"
    project.mkdir()
    files = [text for text in names() if "/" not in text]
    for name in files:
        (project / name).write_text(f"{name}\n")
    (project / "all.md").write_text("\n\n".join(bodies()[:100]))
    page = visitor.visit(served.url)
    unfold(page)
    page.locator("#project").fill(str(project))
    page.locator("#context-path").fill("all.md")
    page.locator("#context-path").press("Enter")
    expect(page.locator("#context-files pre")).to_contain_text("window.hacked")
    for name in files:
        page.locator("#context-path").fill(name)
        page.locator("#context-path").press("Enter")
        expect(page.locator("#context-path")).to_have_value("")
    expect(page.locator("#context-files > li")).to_have_count(len(files) + 1)
    is_unharmed(page)
    for text in names():
        page.locator("#question").fill(text)
        page.locator("#budget").fill(text)
        expect(page.locator("#budget-problem")).to_contain_text(text[:10])
    is_unharmed(page)
    page.locator("#budget").fill("")
    for text in (VECTORS[0], VECTORS[3]):
        page.locator("#context-path").fill(f"nowhere/{text}")
        page.locator("#context-path").press("Enter")
        expect(page.locator("#context-problem")).to_contain_text(text)
        page.locator("#project").fill(f"/nowhere/{text}")
        expect(page.locator("#project-problem")).to_contain_text(text)
        is_unharmed(page)
        page.locator("#project").fill(str(project))


def test_axe_finds_nothing_in_a_full_home(served: Home, room: Room, tmp_path: Path, browser: Browser) -> None:
    shelf = Shelf(tmp_path)
    for one in (SESSIONS, RETRIES, STOPPED):
        shelf.put(one)
    (tmp_path / "design.md").write_text("# Design\n\n" + "a-very-long-path/" * 40)
    room.open("AB")
    for visitor in looks(browser):
        page = visitor.visit(served.url)
        expect(page.locator("#past .dialogs > li")).to_have_count(3)
        expect(page.locator("#estimate")).not_to_be_empty()
        unfold(page)
        page.locator("#project").fill(str(tmp_path))
        page.locator("#context-path").fill("design.md")
        page.locator("#context-path").press("Enter")
        expect(page.locator("#context-files pre")).to_be_visible()
        assert barriers(page) == []
        assert is_within(page)
