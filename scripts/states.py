"""Every state of the page and of Home, brought about for a picture of it: `screenshots.py --only states` takes them.

The dialogs were written for these pictures; real daemons hold them, and no model is asked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import own_python

from dialogd.errors import BackendError
from dialogd.protocol.build import ERROR, Due
from dialogd.store.disk import StateDir
from dialogd.store.registry import Registry
from tests.memory.shelf import Shelf
from tests.plans.ends import ROOMS, file_of
from tests.plans.scenes import CLEANUP, FILES, FOR_POSTGRES, POSTGRES, QUESTION, setup, with_costs
from tests.server.daemon_process import Room
from tests.support.past import Past
from tests.support.room import Room as Table
from tests.support.room import opening
from tests.support.standin import Say, Use
from tests.tasks.site import Site
from tests.turns.test_tools import World

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ROOT = own_python.REPOSITORY
Serve = Callable[[dict[str, str], Path], AbstractContextManager[str]]
WIDE, MIDDLE, PHONE = (1440, 900), (1024, 720), (390, 844)
TOPIC = "Topic: Where should user sessions live?"


@dataclass
class Studio:
    """A browser, a folder in which the dialogs lie, and the pictures taken so far, by name."""

    browser: Browser
    folder: Path
    serve: Serve  # Home, from an environment and a state directory
    pictures: dict[str, bytes] = field(default_factory=dict)

    def room(self, name: str) -> Path:
        """A fresh folder for a dialog."""
        folder = self.folder / name
        folder.mkdir()
        return folder

    @contextmanager
    def page(self, url: str, size: tuple[int, int], scheme: str = "light") -> Iterator[Page]:
        """That address in a window of that size."""
        is_phone = size == PHONE
        context = self.browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, has_touch=is_phone,
            is_mobile=is_phone, reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        page = context.new_page()
        page.goto(url, wait_until="domcontentloaded")
        yield page
        context.close()

    def take(self, page: Page, name: str, of: Locator | None = None, *, whole: bool = False) -> None:
        """A picture of the window, or of one element, once nothing moves any more."""
        page.wait_for_timeout(700)
        self.pictures[name] = of.screenshot() if of else page.screenshot(full_page=whole)
        print(name, flush=True)


def url(room: Room, agent: str = "A") -> str:
    """The address of a daemon's page."""
    return f"http://localhost:{room[agent].port}/"


def cast(*agents: str, names: Sequence[str] = (), **options: Any) -> str:
    """The beginning of a dialog, its agents with names of their own."""
    text = opening(*agents, **{"keys": [TOPIC], "question": QUESTION, **options})
    for agent, name in zip(agents, names, strict=False):
        text = text.replace(f"{agent} = Claude {agent} ", f"{agent} = {name} {agent} ")
    return text


@contextmanager
def held(studio: Studio, name: str, table: Table, up: str = "") -> Iterator[Room]:
    """Daemons at a dialog that has come this far; `up` are those that run, all without."""
    agents = [agent.id for agent in table.dialog.header.agents]
    with Room(studio.room(name), "".join(agents)) as room:
        data = with_costs(table.dialog, table.paper.data)
        for seat, who in enumerate(agents):
            data = data.replace(
                f"http://localhost:{3001 + seat}".encode(), f"http://localhost:{room[who].port}".encode()
            )
        room.file.write_bytes(data)
        room.start(up or agents)
        yield room


def at_now(table: Table) -> Table:
    """The dialog, which goes on now."""
    beginning = datetime.fromisoformat(table.paper.at) - timedelta(seconds=table.paper.now)
    table.paper.now = (datetime.now(UTC) - beginning).total_seconds() - 600
    return table


def turns(table: Table, *agents: str) -> Table:
    """The dialog, after these have spoken, a minute each."""
    at_now(table)
    for agent in agents:
        table.advance(55)
        table.step(agent)
    return table


# -- Five agents ------------------------------------------------------------------------------------------------------

OFFLINE = "Should documents be edited offline in version 2?"
FIVE = dict(
    zip(
        "ABCDE",
        (
            """Reading offline solves most of it: of the last 400 complaints, 290 were
about a document that could not be *opened* in a train.

- The last 200 documents are kept on the device, 40 MB at most.
- Editing waits for the network and says so.

[PROPOSAL: Version 2 reads offline and edits online.]
[EVIDENCE: support/2026-q3.csv, label "offline"]
[CONFIDENCE: 0.7]""",
            """290 of 400 could not open a document. The other 110 had *written* something and lost it, and these
are the ones who left: 31 of 38 cancellations name it.

[OBJECTION: P1 keeps losing what people write without a network]
[PROPOSAL: Edits are queued on the device and merged by paragraph; authors settle clashes.]
[RE: 2, P1]
[CONFIDENCE: 0.8]""",
            """Both of you assume that a paragraph has a name. It has none: the server numbers them when a document
is saved, so a device without a network has nothing to merge by.

[OBJECTION: P2 merges by paragraphs, which have no ids before they are saved]
[EVIDENCE: api/documents/save.py, line 88]
[RE: 3, P2]
[CONFIDENCE: 0.9]""",
            """Then the order is clear. Ids made on the device are a change of a week, can go out alone,
and hurt nobody.

[CONCEDE: P1 is only the first half]
[QUESTION: Who owns the migration of the 9 million paragraphs that have numbers today?]
[RE: 4, P1, P2]
[CONFIDENCE: 0.6]""",
        ),
        strict=False,
    )
)
LAST_OF_FIVE = """The migration is the billing team's old trick: new ids beside the old numbers, filled in as documents
are opened. After a quarter 97 % are done, and the rest runs in one night.

With that I can put the pieces together: """


def offline() -> Table:
    """The dialog of five, after four have spoken."""
    names = ("Claude", "Codex", "Gemini", "Grok", "Qwen")
    text = cast("A", "B", "C", "D", "E", names=names, keys=[f"Topic: {OFFLINE}"], question=OFFLINE)
    return turns(Table(text, **{who: [said] for who, said in FIVE.items()}), *"ABCD")


def five(studio: Studio) -> None:
    """Five agents at one table, the fifth is writing."""
    with held(studio, "five", offline()) as room:
        with studio.page(url(room), WIDE) as page:
            room.minds["E"].call(1).say(LAST_OF_FIVE)
            page.get_by_text("With that I can put").wait_for()
            studio.take(page, "five-1440")
            for tab in ("Positions", "Flow"):
                page.get_by_role("tab", name=tab).click()
                page.wait_for_timeout(700)
                studio.take(page, f"panel-five-{tab.lower()}", page.locator("#panels"))
        with studio.page(url(room), PHONE) as page:
            page.get_by_text("With that I can put").wait_for()
            studio.take(page, "five-390")


# -- Two agents, from the first second on -----------------------------------------------------------------------------


def beginning(studio: Studio) -> None:
    """No dialog yet; one that waits for Start; the first words."""
    with Room(studio.room("beginning"), "AB") as room:
        room.start()
        with studio.page(url(room), PHONE) as phone, studio.page(url(room), MIDDLE) as page:
            studio.take(phone, "nothing-390")
            room.begin("Where should user sessions live?", "A")
            page.locator("#start").wait_for()
            studio.take(page, "start-1024")
            studio.take(phone, "start-390")


def middle(studio: Studio) -> None:
    """A proposal and an objection stand, and somebody writes; what a turn offers; Search, More, Help."""
    table = turns(
        Table(cast("A", "B", names=("Claude", "Codex"), more=setup("objections = true")), A=[POSTGRES], B=[CLEANUP]),
        *"AB",
    )
    with held(studio, "middle", table) as room:
        words = "B is right: I had counted the reads and not the leftovers. **Thirty days**, as the login page says. "
        room.minds["A"].call(1).say(words)
        with studio.page(url(room), WIDE, "dark") as page:
            page.get_by_text("as the login page says").wait_for()
            studio.take(page, "writing-1440-dark")
        with studio.page(url(room), MIDDLE) as page:
            page.locator("#more-open").click()
            page.locator("#more summary").nth(2).click()
            studio.take(page, "more-1024")
            page.keyboard.press("Escape")
            page.locator("#find-open").click()
            page.keyboard.type("rows")
            page.wait_for_timeout(800)
            studio.take(page, "search-1024")
            page.keyboard.press("Escape")
            page.keyboard.press("Escape")
            page.locator("#help-open").click()
            studio.take(page, "help-1024")
            page.keyboard.press("Escape")
            page.locator("#say-text").fill("How long is a backup kept?")
            page.locator("#t3").hover()
            studio.take(page, "interrupt-1024")
        with studio.page(url(room), PHONE, "dark") as page:
            page.get_by_text("as the login page says").wait_for()
            studio.take(page, "writing-390-dark")
            page.locator("#more-open").click()
            studio.take(page, "more-390-dark")
            page.keyboard.press("Escape")
            page.locator("#panels-open").click()
            studio.take(page, "details-390-dark")


def waiting(studio: Studio) -> None:
    """Paused; and no daemon answers any more."""
    table = turns(Table(cast("A", "B", names=("Claude", "Codex")), A=[POSTGRES], B=[CLEANUP]), *"AB")
    with held(studio, "waiting", table) as room:
        room.minds["A"].call(1).say("B is right: I had counted the reads and not the leftovers. ")
        room.a.ask("POST", "/pause")
        with studio.page(url(room), MIDDLE, "dark") as page:
            page.get_by_role("button", name="Resume").wait_for()
            studio.take(page, "paused-1024-dark")
        room.a.ask("POST", "/resume")
        with studio.page(url(room), MIDDLE) as page:
            page.locator('#agents [data-agent="B"]').wait_for()
            page.wait_for_timeout(1500)
            room.b.kill()
            room.a.kill()
            page.locator("#banner a").wait_for()
            studio.take(page, "gone-1024")


def asked(studio: Studio) -> None:
    """A question to the person, with its deadline and what counts without an answer."""
    question = "[QUESTION_FOR_USER: May people be logged out every night? | in 2h | default: no, they stay signed in]"
    line = CLEANUP.replace("[QUESTION: how long may a session live?]", "").replace("[CONFIDENCE: 0.6]", question)
    text = cast("A", "B", names=("Claude", "Grok"), more=setup("question_defaults = true"))
    table = turns(Table(text, A=[POSTGRES], B=[line]), *"AB")
    with held(studio, "asked", table) as room:
        for size, scheme in ((MIDDLE, "light"), (PHONE, "dark")):
            with studio.page(url(room), size, scheme) as page:
                page.locator("#question").wait_for()
                studio.take(page, f"question-{size[0]}{'-dark' * (scheme == 'dark')}")


def failed(studio: Studio) -> None:
    """An agent's call has failed: ask it again, or pass over it."""
    refused = BackendError(
        "the service is overloaded (529)", fix="it is asked again by itself; or Retry", kind="overloaded"
    )
    text = cast("A", "B", names=("Claude", "Grok"))
    table = turns(Table(text, A=[POSTGRES], B=[refused, refused, refused]), "A", "B", "B", "B")
    with held(studio, "failed", table) as room:
        for size, scheme in ((MIDDLE, "dark"), (PHONE, "light")):
            with studio.page(url(room), size, scheme) as page:
                page.wait_for_timeout(1500)
                studio.take(page, f"error-{size[0]}{'-dark' * (scheme == 'dark')}")


def approval(studio: Studio) -> None:
    """A tool that an agent may call only if the person approves."""
    folder = studio.room("approval")
    with World(folder, Use("tickets__quote", {"text": "people were logged out"}), Say("Four."), tools="") as world:
        world.pair.begin("Where should user sessions live?")
        world.pair.start("AB")
        with studio.page(f"http://localhost:{world.pair['B'].port}/", MIDDLE) as page:
            world.pair.notify("A")
            page.locator("#calls").wait_for()
            studio.take(page, "tool-1024")


WITHOUT = "[VOTE: P2 approve | nothing to run]\n"  # who proposes is for it


def council(studio: Studio) -> None:
    """A round in which nobody may read the others before all have answered; a vote."""
    more = setup('sealed = true\norder = "parallel"\nverdict = "vote"')
    text = cast("A", "B", "C", names=("Claude", "Codex", "Gemini"), more=more, turn="A, B, C")
    table = turns(Table(text, A=[POSTGRES], B=[FILES]), "A", "B")
    with held(studio, "sealed", table) as room:
        room.notify("C")
        room.minds["C"].call(1).say("I would first ask what a lost session costs us.")
        with studio.page(url(room, "C"), MIDDLE) as page:
            page.locator('[data-mark="SEALED"]').nth(1).wait_for()
            studio.take(page, "sealed-1024")
    more = setup('verdict = "vote"\norder = "round-robin"\nquorum = 1.0')
    text = cast("A", "B", "C", names=("Claude", "Codex", "Gemini"), more=more)
    table = turns(Table(text, A=[POSTGRES], B=[FILES.replace(WITHOUT, "")], C=[FOR_POSTGRES]), *"ABC")
    with held(studio, "vote", table) as room, studio.page(url(room), WIDE) as page:
        page.locator("#t4").wait_for()
        studio.take(page, "vote-1440")


# -- The end ----------------------------------------------------------------------------------------------------------


def ends(studio: Studio) -> None:
    """Each kind of end on a phone; an agreement and a deadlock on a wide screen, with what stands beside them."""
    for kind in ROOMS:
        agents = "ABC" if kind in ("judge", "vote") else "AB"
        with Room(studio.room(f"end-{kind}"), agents) as room:
            room.file.write_bytes(file_of(kind, **{who: daemon.port for who, daemon in room.daemons.items()}))
            room.start()
            with studio.page(url(room), PHONE, "dark" if kind in ("approved", "budget") else "light") as page:
                page.locator("#outcome .because").wait_for()
                studio.take(page, f"end-{kind}-390")
            if kind in ("consensus", "deadlock"):
                with studio.page(url(room), WIDE, "dark" if kind == "deadlock" else "light") as page:
                    page.locator("#outcome .because").wait_for()
                    studio.take(page, f"end-{kind}-1440")
                    for tab in ("Positions", "Flow", "Result", "History") if kind == "consensus" else ():
                        page.get_by_role("tab", name=tab).click()
                        page.wait_for_timeout(700)
                        studio.take(page, f"panel-{tab.lower()}", page.locator("#panels"))
            if kind == "consensus":
                with studio.page(url(room), MIDDLE) as page:
                    page.locator("#outcome .because").wait_for()
                    page.locator("#reject-open").click()
                    studio.take(page, "end-reject-1024")


def stopped(studio: Studio) -> None:
    """What a page says that has stopped the dialog, and whose daemons are gone with it."""
    table = turns(Table(cast("A", "B", names=("Claude", "Codex")), A=[POSTGRES], B=[CLEANUP]), *"AB")
    windows = (MIDDLE, "light"), (PHONE, "dark")
    with held(studio, "stopped", table) as room, ExitStack() as stack:
        page, phone = (stack.enter_context(studio.page(url(room), *window)) for window in windows)
        room.minds["A"].call(1).say("B is right: I had counted the ")
        page.get_by_text("B is right:").wait_for()
        page.locator("#stop").click()
        page.locator("#stop-reason").fill("We look at it again in spring")
        studio.take(page, "stop-1024")
        page.get_by_role("button", name="Stop it").click()
        room.until(lambda: not room.a.running and not room.b.running, "both daemons to end")
        page.wait_for_timeout(2500)
        studio.take(page, "stopped-1024")
        studio.take(phone, "stopped-390-dark")


# -- A build ----------------------------------------------------------------------------------------------------------

GOAL = "Retry failed payment calls"
SHOP_PLAN = """The call to the payment service is made in one place, so the first task is the base of the other two.

[TASK_PROPOSED: Retry a failed payment call | three attempts within 20 seconds; the idempotency key stays the same; a test shows both | none | 2 h]
[TASK_PROPOSED: Tell the customer that the payment is being tried again | one sentence on the page of the order; a screen reader says it once | after 1 | 1 h]
[TASK_PROPOSED: Write every attempt to the log | time, order and attempt, without the card; a test shows it | after 1 | 1 h]"""  # noqa: E501
PAYMENTS = """import uuid


def pay(order, call, attempts=3):
    for attempt in range(attempts):
        try:
            return call(order, key=uuid.uuid4().hex)
        except OSError:
            if attempt == attempts - 1:
                raise
"""
CALLS = """import time
import unittest

import payments


class Calls(unittest.TestCase):
    def test_it_is_tried_again(self):
        calls = []

        def call(order, key):
            calls.append(key)
            if len(calls) < 3:
                time.sleep(3)
                raise OSError
            return "paid"

        self.assertEqual(payments.pay("o-1", call), "paid")
"""
KEPT = PAYMENTS.replace("    for attempt", "    key = uuid.uuid4().hex\n    for attempt").replace(
    "key=uuid.uuid4().hex", "key=key"
)
MENDED = (
    CALLS.replace("                time.sleep(3)\n", "")
    .replace('"paid")\n', '"paid")\n        self.assertEqual(len(set(calls)), 1)\n')
    .replace("import time\n", "")
)
PAGE = "def shown(state):\n    return {1: 'We are trying your payment again.'}.get(state, '')\n"
LOGGED = "import logging\n\n\ndef attempt(order, number):\n    logging.info('%s attempt %d', order, number)\n"
POINTS = "[SCORE: code quality {} | test coverage {} | security {} | documentation {} | acceptance criteria {}]"
FIRST_REVIEW = f"""It is tried again, but each attempt makes a key of its own: a call that was slow and not lost is paid twice.

[FINDING: high | correctness | payments.py | 7 | a new idempotency key for every attempt: a customer may pay twice | make the key once, before the loop]
[FINDING: medium | tests | test_payments.py | 15 | the test sleeps six seconds | leave the clock out of it]
[FINDING: low | documentation | payments.py | 4 | nothing says what is raised in the end |]
{POINTS.format(17, 12, 14, 5, 13)}
[DECIDE: REF reject | the key must stay the same]"""  # noqa: E501
SECOND_REVIEW = f"""The key is made once now, and the test says so.

[RESOLVED: 1 | made before the loop]
[RESOLVED: 2 | the test takes no time]
{POINTS.format(22, 18, 19, 6, 24)}
[DECIDE: REF approve]"""
NOT_SAID = f"""A screen reader says nothing: the sentence changes, and nothing announces it.

[FINDING: high | accessibility | page.py | 2 | the sentence is not announced | put it in a live region]
{POINTS.format(18, 10, 18, 5, 10)}
[DECIDE: REF reject | nobody who does not see it learns of it]"""
BUILT = """Failed payment calls are tried again, three times and with one key, and every attempt is in the log.

- The customer reads that it is being tried again; it is not announced to screen readers, which you accepted.
- Nothing tested the log: there was no sandbox at that moment."""
SHOP_SCRIPT = {
    "plan": SHOP_PLAN,
    "001.1": {
        "payments.py": PAYMENTS,
        "test_payments.py": CALLS,
        "say": "Three attempts, and a test that fails twice.",
    },
    "review 001.1": FIRST_REVIEW,
    "001.2": {"payments.py": KEPT, "test_payments.py": MENDED},
    "review 001.2": SECOND_REVIEW,
    **{f"002.{n}": {"page.py": PAGE + "\n" * n} for n in (1, 2, 3)},
    **{f"review 002.{n}": NOT_SAID for n in (1, 2, 3)},
    "003.1": {"log.py": LOGGED},
    "review 003.1": f"{POINTS.format(20, 14, 20, 9, 23)}\n[DECIDE: REF approve]",
    "summary": BUILT,
}


class Shop(Site):
    """The build of the pictures. `bwrap` is one that can be broken."""

    def __init__(self, folder: Path) -> None:
        self.box = folder / "bin" / "bwrap"
        self.box.parent.mkdir()
        self.box.write_text("#!/bin/sh\n" + f'exec {shutil.which("bwrap")} "$@"\n')
        self.box.chmod(0o755)
        path = {"PATH": f"{self.box.parent}:{os.environ['PATH']}"}
        super().__init__(folder, SHOP_SCRIPT, gate="python3 -m unittest -q", environment=path)

    def opening(self, question: str, turn: str = "", setup: str = "", **keys: object) -> str:
        """With names as `dialogd build` gives them."""
        text = super().opening(GOAL, turn, setup, **keys)
        return text.replace("M = Claude M", "M = Moderator").replace("L = Claude L", "L = Tech Lead")

    def breaks(self) -> None:
        """No sandbox from now on."""
        self.box.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")


def course(shop: Shop) -> Iterator[str]:
    """Plays the build, and stops at each of its states."""
    shop.open()
    shop.until_due(Due.CONFIRM)
    yield "proposed"
    shop.waits_at("work 001.1", "review 001.1", "work 001.2")
    shop.types("[TASK: all | confirmed]")
    shop.until_asked("work 001.1")
    yield "work"
    shop.waits_at("review 001.1", "work 001.2")
    shop.until_due(Due.GATE)
    yield "gate"
    shop.until_asked("review 001.1")
    yield "review"
    shop.waits_at("work 001.2")
    shop.until_asked("work 001.2")
    yield "changes"
    shop.waits_at()
    shop.until_due(Due.STUCK)
    yield "stuck"
    aside = (shop.repo / ".git").rename(shop.repo / "aside")
    shop.types("[TASK: 002 | accepted]")
    shop.until(lambda: shop.tasks[2].state == ERROR, "an error")
    yield "error"
    aside.rename(shop.repo / ".git")
    shop.waits_at("work 003.1")
    shop.types("[TASK: 003 | retry]")
    shop.until_asked("work 003.1")
    shop.breaks()
    shop.waits_at()
    shop.until_due(Due.ALLOW)
    yield "asks"
    shop.types("[GATE: 003 | untested]")
    shop.until_end()
    yield "ended"


SEEN = {
    "proposed": ((WIDE, "light"), (PHONE, "light")),
    "gate": ((MIDDLE, "light"),),
    "changes": ((WIDE, "dark"),),
    "stuck": ((WIDE, "light"), (PHONE, "dark")),
    "error": ((MIDDLE, "dark"),),
    "asks": ((PHONE, "light"),),
    "ended": ((WIDE, "light"), (PHONE, "dark")),
}


def build(studio: Studio) -> None:
    """A build in each of its states, a task with its diff, and the sheet of the merge."""
    with Shop(studio.room("build")) as shop:
        for state in course(shop):
            for size, scheme in SEEN.get(state, ()):
                name = f"{size[0]}{'-dark' * (scheme == 'dark')}"
                with studio.page(f"http://localhost:{shop['M'].port}/", size, scheme) as page:
                    page.locator("#phase-words").get_by_text("task").wait_for()
                    studio.take(page, f"build-{state}-{name}")
                    if state == "ended":
                        page.locator("#outcome [data-do=takeover]").click()
                        page.locator("#takeover h2").wait_for()
                        studio.take(page, f"build-merge-{name}")


# -- Home -------------------------------------------------------------------------------------------------------------

PAST = (
    Past("d00001", "Retry policy for payment calls", "How often do we retry?", ("Three times, with a key.",),
         "Payment calls are retried three times within 20 seconds, always with the same idempotency key."),
    Past("d00002", "License of the client library", "Which license?", ("MIT asks for the least.",),
         "The client library is under the MIT license; the server stays under AGPL."),
    Past("d00003", "Logo colour", "Blue or green?",
         ("Blue is calm.", "Green looks like our rival, and turquoise like nobody's.")),
)  # fmt: skip


SHOP = """# Sessions today

One row each, in the table `sessions`, for 30 days.
The gateway asks for them 1,900 times a second.

SUPPORT_KEY=sk-ant-api03-{key}
"""
ASKED = "Should the shop own user sessions, or the gateway? We have two weeks and one engineer."


def home(studio: Studio) -> None:
    """The first visit; lists with a dialog that waits and one that runs; the form filled, a file shown; a search."""
    folder = studio.room("home")
    project = studio.room("shop")
    (project / "sessions.md").write_text(SHOP.format(key="Ab1" * 30))
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("DIALOGD_", "CLAUDE_"))}
    environment = {**kept, "PYTHONPATH": str(ROOT)}
    with studio.serve(environment, folder / "fresh") as address:
        for size in (WIDE, PHONE):
            with studio.page(address, size) as page:
                page.locator("#go:enabled").wait_for()
                studio.take(page, f"home-first-{size[0]}")
    shelf = Shelf(folder)
    for one in PAST:
        shelf.put(one)
    question = "[QUESTION_FOR_USER: May people be logged out every night? | in 2h | default: no]"
    asks = CLEANUP.replace("[CONFIDENCE: 0.6]", question)
    waits = turns(Table(cast("A", "B", names=("Claude", "Codex")), A=[POSTGRES], B=[asks]), *"AB")
    with held(studio, "waits", waits) as first, held(studio, "runs", offline()) as second:
        second.minds["E"].call(1).say("The migration is ")
        listed = Registry(StateDir(folder / "state")).folder
        listed.mkdir(parents=True, exist_ok=True, mode=0o700)
        for entry in (
            entry for room in (first, second) for entry in Registry(StateDir(room.state_dir)).folder.iterdir()
        ):
            (listed / entry.name).touch(0o600)
            (listed / entry.name).write_bytes(entry.read_bytes())
        with studio.serve(environment, folder / "state") as address:
            for size, scheme in ((WIDE, "light"), (WIDE, "dark"), (PHONE, "light")):
                with studio.page(address, size, scheme) as page:
                    ask(page)
                    studio.take(page, f"home-{size[0]}{'-dark' * (scheme == 'dark')}", whole=size != PHONE)
            with studio.page(address, (MIDDLE[0], 1800)) as page:
                ask(page)
                unfold(studio, page, project)


def ask(page: Page) -> None:
    """Type a question, once the lists are there."""
    page.locator("#go:enabled").wait_for()
    page.locator("#waiting li").wait_for()
    page.locator("#question").fill(ASKED)
    page.wait_for_timeout(900)  # until the estimate is there


def unfold(studio: Studio, page: Page, project: Path) -> None:
    """A file that goes along, the templates, a search."""
    page.locator("#fold-project > summary").click()
    page.locator("#project").fill(str(project))
    page.locator("#context-path").fill("sessions.md")
    page.locator("#context-path").press("Enter")
    page.locator("#context-files pre").wait_for()
    studio.take(page, "home-context-1024", page.locator("#fold-project"))
    page.locator("#fold-template > summary").click()
    studio.take(page, "home-template-1024", page.locator("#fold-template"))
    page.locator("#search").fill("turquoise")
    page.wait_for_timeout(900)
    studio.take(page, "home-search-1024", page.locator("#past"))


# What the documents show of each: a picture, the states on it, how many in a row, at which part of their size.
Sheets = dict[str, tuple[tuple[str, ...], int, float]]
AGREED = ("consensus", "approved", "rejected", "judge", "vote", "unattended", "rehearsal")
SHEETS: tuple[tuple[Callable[[Studio], None], Sheets], ...] = (
    (beginning, {"looks-beginning": (("start-1024", "start-390", "nothing-390"), 3, 0.8)}),
    (middle, {
        "looks-writing": (("writing-1440-dark", "writing-390-dark"), 2, 0.85),
        "looks-acts": (("interrupt-1024", "more-1024", "search-1024", "help-1024"), 2, 0.85),
        "looks-sheets": (("more-390-dark", "details-390-dark"), 2, 0.85),
    }),
    (waiting, {
        "looks-waits": (("paused-1024-dark", "gone-1024"), 2, 0.85),
    }),
    (asked, {"looks-question": (("question-1024", "question-390-dark"), 2, 0.85)}),
    (failed, {"looks-error": (("error-1024-dark", "error-390"), 2, 0.85)}),
    (approval, {"looks-tool": (("tool-1024",), 1, 1.0)}),
    (council, {"looks-council": (("sealed-1024", "vote-1440"), 2, 0.85)}),
    (five, {"looks-five": (("five-1440", "five-390"), 2, 0.85),
            "looks-five-panels": (("panel-five-positions", "panel-five-flow"), 2, 0.85)}),
    (ends, {
        "looks-end": (("end-consensus-1440", "end-consensus-390"), 2, 0.85),
        "looks-deadlock": (("end-deadlock-1440", "end-deadlock-390"), 2, 0.85),
        "looks-ends-agreed": (tuple(f"end-{kind}-390" for kind in AGREED[1:]), 6, 0.7),
        "looks-ends-open": (tuple(f"end-{kind}-390" for kind in ROOMS if kind not in (*AGREED, "deadlock")), 5, 0.7),
        "looks-reject": (("end-reject-1024",), 1, 1.0),
        "looks-panels": (("panel-positions", "panel-flow", "panel-result", "panel-history"), 4, 0.9),
    }),
    (build, {
        "build-tasks": (("build-proposed-1440", "build-proposed-390"), 2, 0.85),
        "build-review": (("build-changes-1440-dark", "build-gate-1024"), 2, 0.85),
        "build-needed": (("build-stuck-1440", "build-stuck-390-dark", "build-asks-390"), 3, 0.8),
        "build-error": (("build-error-1024-dark",), 1, 0.8),
        "build-end": (("build-ended-1440", "build-ended-390-dark"), 2, 0.85),
        "build-merge": (("build-merge-1440", "build-merge-390-dark"), 2, 0.85),
    }),
    (stopped, {"looks-stopped": (("stop-1024", "stopped-1024", "stopped-390-dark"), 3, 0.8)}),
    (home, {
        "home-light": (("home-1440",), 1, 1.0),
        "home-dark": (("home-1440-dark",), 1, 0.8),
        "home-first": (("home-first-1440", "home-first-390"), 2, 0.85),
        "home-phone": (("home-390",), 1, 1.0),
        "home-forms": (("home-context-1024", "home-template-1024", "home-search-1024"), 3, 0.8),
    }),
)  # fmt: skip
