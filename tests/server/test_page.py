"""The page's routes: what it is made of, which entries it gets, what its head is told, and what nobody else may."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dialogd.backends.seats import Cast, Seat
from dialogd.errors import BackendError
from dialogd.protocol.grammar import parse
from dialogd.server.page import probe_policy
from dialogd.server.page_entries import as_shown, cast, changed, presentable
from dialogd.store.disk import StateDir
from tests.server.daemon_process import Answer, Room, send
from tests.server.serving import Site, ask, assert_refused, request
from tests.support.cases import cases
from tests.support.room import Room as Paper
from tests.support.room import opening

PARTS = ("app.js", "app.css", "bars.css", "panels.js", "panels.css", "end.js", "end.css", "icon.svg")
LINK = re.compile(r"""(?:src|href)\s*=\s*"([^"]*)\"""")
HOSTILE = "<script src=https://example.org/x.js></script><img src=//example.org/x.png onerror=alert(1)>"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """A's daemon, and B's that does not run, before a dialog with a turn of each kind."""
    with Room(tmp_path_factory.mktemp("page")) as room:
        room.start("A")
        text = room.opening(f"Tabs {HOSTILE}?", "A")
        room.file.write_text(f"{text}\n---\n\n## Turn 2 — Claude A\n\n{HOSTILE}\n\n[PROPOSAL: tabs]\n\nTURN: USER\n")
        room.until(lambda: (room.a.health() or {}).get("turn") == 2, "A to read the dialog")
        yield room


class Elements(HTMLParser):
    """Every element of a page, with its attributes, and how the headings are nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of that kind."""
        return [attributes for name, attributes in self.found if name == tag]


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_page_loads_its_own_parts_and_runs_nothing_of_an_agents(room: Room) -> None:
    answer = send(room.a, "GET /")
    page = answer.body.decode()
    elements = Elements(page)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert [one["src"] for one in elements.all("script")] == [f"/page/{name}.js" for name in ("app", "panels", "end")]
    assert not {"img", "style", "iframe", "object", "base"} & {tag for tag, _ in elements.found}
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert not [attributes for _, attributes in elements.found if "style" in attributes]
    loaded = {link for link in LINK.findall(page) if not link.startswith(("#", "/export/", "/page/home"))}
    assert loaded == {f"/page/{name}" for name in PARTS}
    assert "&lt;script src=https://example.org/x.js&gt;" in page
    # It can be read without its scripts; a mark of a hand-written turn is shown once, as a mark.
    for words in ("Claude A", "Claude B", "It is your turn.", "Turn 2", "You", "proposed"):
        assert words in page
    assert ('<div class="block-text value"><p>tabs</p>' in page, "[PROPOSAL: tabs]" in page) == (True, False)
    rules = rules_of(answer)
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    asks = ("script-src", "style-src", "form-action", "worker-src", "connect-src")
    assert {rules[name] for name in asks} == {"'self'"}
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"


def test_every_part_of_the_page_is_served_and_nothing_beside_it(room: Room) -> None:
    for name in PARTS:
        answer = send(room.a, f"GET /page/{name}")
        kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(rb"https?://(?!www\.w3\.org/)", answer.body)
    for path in ("page.html", "", "..%2fpage.py", "../page.py", "%2e%2e/app.py", "static/app.js"):
        assert send(room.a, f"GET /page/{path}").status == 404


def rules_of(answer: Answer) -> dict[str, str]:
    """The policy of an answer, by directive."""
    policy = answer.headers["content-security-policy"]
    return dict(rule.strip().split(" ", 1) for rule in policy.split(";"))


def test_what_looks_for_a_living_daemon_may_ask_those_that_there_are_now(room: Room) -> None:
    answer = send(room.a, "GET /page/probe.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    assert rules_of(answer) == {"default-src": "'none'", "connect-src": f"http://127.0.0.1:{room.b.port}"}
    hostile = ["http://127.0.0.1:1; script-src *", "http://127.0.0.1:*", "javascript:1 'unsafe-inline'", "http://x:²"]
    policy = {"content-security-policy": "default-src 'none'; connect-src 'none'"}
    assert probe_policy("localhost:3001", hostile) == probe_policy("localhost:3001", []) == policy


# -- entries ---------------------------------------------------------------------------------------------------------


def test_entries_are_paged_in_both_directions(room: Room) -> None:
    everything = send(room.a, "GET /page/entries").json
    one, two = everything["entries"]
    assert (everything["total"], everything["anchor"], one["index"], two["number"]) == (2, "", 0, 2)
    assert send(room.a, "GET /page/entries?limit=1").json["entries"] == [two]
    after = send(room.a, "GET /page/entries?after=0").json
    assert (after["entries"], after["anchor"]) == ([two], one["chain"])
    assert send(room.a, "GET /page/entries?after=-1&limit=1").json["entries"] == [one]
    assert send(room.a, "GET /page/entries?before=1").json["entries"] == [one]
    assert send(room.a, "GET /page/entries?after=7").json["entries"] == []
    assert send(room.a, "GET /page/entries?before=99").json["entries"] == [one, two]
    for wrong in ("after=-2", "before=-1", "limit=0", "limit=100000", "after=x"):
        assert send(room.a, f"GET /page/entries?{wrong}").problem["status"] == 422


def test_an_entry_says_all_that_is_shown_of_it() -> None:
    paper = Paper(opening("A", "B"), A=["I think **so**.\n\n[PROPOSAL: tabs]\n[CONFIDENCE: 0.8]"], B=["No."])
    paper.run(2)
    shown = as_shown(paper.dialog.entries[1], 1, cast(paper.dialog))
    assert (shown["number"], shown["condition"], shown["version"], shown["failed"]) == (2, "sound", "", [])
    assert "I think <strong>so</strong>." in shown["html"]
    assert 'id="t2"' in shown["html"]
    assert "agent-0" in shown["html"]
    assert "next:" not in shown["html"]
    three = Paper(opening("A", "B", "C"), A=["I think so."])
    three.step("A")
    assert "next: Claude B" in as_shown(three.dialog.entries[1], 1, cast(three.dialog))["html"]


@cases("agents", [8, 11])
def test_every_agent_has_a_colour_of_its_own_and_keeps_it(agents: int) -> None:
    ids = [chr(ord("A") + seat) for seat in range(agents)]
    players = cast(Paper(opening(*ids)).dialog)
    tones = [players.tone(who) for who in ids]
    assert tones == [f"agent-{seat % 10}" for seat in range(agents)]
    left = opening(*ids) + "\n---\n\n## Note — User\n\n[LEAVE: A]\n\nTURN: B\n"
    assert cast(parse(left.encode())).tone("B") == "agent-1"
    assert (players.tone("USER"), players.tone("SYSTEM"), players.tone("Z")) == ("person", "system", "system")


def test_what_is_odd_about_an_entry_is_said_and_noticed() -> None:
    paper = Paper(opening("A", "B"), A=["I think so."], B=["No."])
    paper.run(2)
    edited = parse(paper.text.replace("I think so.", "I think not.").encode())
    shown = as_shown(edited.entries[1], 1, cast(edited))
    assert shown["condition"] == "edited"
    assert "Edited after it was written" in shown["html"]
    assert changed(edited)[1]["1"] == shown["version"] != ""
    again = parse(paper.text.replace("I think so.", "I think nothing.").encode())
    assert changed(again)[1]["1"] != shown["version"]
    assert "1" not in changed(paper.dialog)[1]


PRESENTED = {
    "headings come in order": ("<h1>a</h1><h4>b</h4><h2>c</h2>", "<h4>a</h4><h5>b</h5><h5>c</h5>"),
    "an empty heading goes": ("<h2></h2><p>x</p>", "<p>x</p>"),
    "code is a box": ("<pre><code>x</code></pre>", '<div class="code"><pre tabindex="0"><code>x</code></pre></div>'),
    "an empty link goes": ('<p><a href="x" rel="y"></a>z</p>', "<p>z</p>"),
    "an empty head cell is a cell": ("<th></th>", "<td></td>"),
    "links outside open elsewhere": ('<a href="https://x/">y</a>', '<a target="_blank" href="https://x/">y</a>'),
    "links inside stay": ('<a href="#t3">y</a>', '<a href="#t3">y</a>'),
}


@cases(("html", "presented"), PRESENTED.values())
def test_what_was_rendered_becomes_a_part_of_the_page(html: str, presented: str) -> None:
    assert presentable(html) == presented


# -- the state -------------------------------------------------------------------------------------------------------


def agent(state: dict[str, Any], who: str) -> dict[str, Any]:
    """One agent of the state."""
    return next(one for one in state["agents"] if one["id"] == who)


def test_an_agent_that_is_absent_is_shown_so(tmp_path: Path) -> None:
    with Room(tmp_path) as room:
        down = BackendError("exit code 1", fix="look at its log")
        paper = Paper(room.opening("Tabs?", "A"), A=["One."], B=[down, down])
        paper.run()
        room.file.write_bytes(paper.paper.data)
        room.start("A")
        room.until(lambda: (room.a.health() or {}).get("turn") == 2, "A to read the dialog")
        state = send(room.a, "GET /page/state").json
        b = agent(state, "B")
        assert (b["state"], b["failed"]) == ("absent", True)
        assert b["reason"] == "failed or stalled twice in succession (exit code 1): nobody waits for it"
        assert (state["words"], state["needed"]) == ("It is your turn.", "Write below, or let the next agent speak.")


def test_the_state_has_everything_that_the_head_shows(room: Room) -> None:
    state = send(room.a, "GET /page/state").json
    assert (state["phase"], state["words"], state["turn_of"]) == ("waiting_for_user", "It is your turn.", ["USER"])
    assert state["needed"] == "Write below, or let the next agent speak."
    assert (agent(state, "A")["alive"], agent(state, "A")["own"], agent(state, "A")["seat"]) == (True, True, 0)
    assert (agent(state, "B")["alive"], agent(state, "B")["state"]) == (False, "stopped")
    start = agent(state, "B")["start"]
    assert (agent(state, "B")["reason"].endswith(f": {start}"), start.startswith("dialogd start B ")) == (True, True)
    assert start == f"dialogd start B --file {room.file}"
    as_it_was = agent(state, "A")["start"]
    assert as_it_was.startswith(f"dialogd start A --port {room.a.port} --backend command --command ")
    assert as_it_was.endswith(f" --file {room.file}")
    seats = (Seat("A", "command", command="./think.sh -v"), Seat("B", "rehearsal:deadlock", project="/a b"))
    for dialog, flags in ((state["dialog"], "--backend rehearsal:deadlock --project '/a b' "), ("another", "")):
        Cast(dialog, seats).save(StateDir(room.state_dir), room.file)
        now = state_of(room.a)
        assert agent(now, "B")["start"] == f"dialogd start B {flags}--file {room.file}"
        assert agent(now, "A")["start"] == as_it_was
    assert agent(state, "B")["url"] == f"http://127.0.0.1:{room.b.port}"
    turns = next(left for left in state["left"] if left["name"] == "turns")
    assert (turns["limit"], turns["left"], turns["words"]) == (20, 18, "18 of 20 turns left")
    assert "say" in state["allowed"]


def test_the_state_says_who_thinks_since_when(tmp_path: Path) -> None:
    with Room(tmp_path) as room:
        room.open("AB")
        call = room.think()
        for daemon in (room.a, room.b):
            room.until(lambda daemon=daemon: state_of(daemon)["phase"] == "thinking", "A to think")
            state = state_of(daemon)
            assert state["words"] == "Claude A is writing."
            assert agent(state, "A")["turn"] == 2
            assert 0 <= agent(state, "A")["since"] < 60
        call.end("I need to know.\n\n[QUESTION_FOR_USER: How many users?]\n")
        room.until(lambda: state_of(room.a)["questions"], "the question")
        (asked,) = state_of(room.a)["questions"]
        assert (asked["text"], asked["asker"], asked["name"]) == ("How many users?", "A", "Claude A")
        send(room.a, "POST /say", {"text": "Never mind."})
        room.minds["A"].call(2)
        send(room.b, "POST /stop", {"hop": 1, "reason": "lunch"})
        room.until(lambda: (state_of(room.a)["outcome"] or {}).get("kind") == "stopped", "the end")
        ended = state_of(room.a)["outcome"]
        assert (ended["words"], ended["reason"]) == ("The dialog was stopped.", "lunch")


def state_of(daemon: Any) -> dict[str, Any]:
    """The state that a daemon's page gets."""
    return dict(send(daemon, "GET /page/state").json)


def test_without_a_dialog_the_page_says_where_one_would_be(tmp_path: Path) -> None:
    with Room(tmp_path) as room:
        room.start("A")
        assert str(room.file) in send(room.a, "GET /").body.decode()
        state = state_of(room.a)
        assert (state["phase"], state["dialog"], state["agents"]) == ("no_dialog", "", [])
        assert send(room.a, "GET /page/entries").json["total"] == 0
        room.file.write_text("This is no dialog.\n")
        assert "dialog" in state_of(room.a)["problem"]


# -- the guard -------------------------------------------------------------------------------------------------------

ARRIVAL = ("Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
PROBE = ("Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: empty")


def test_a_window_may_come_to_the_page_from_another_daemons_page(site: Site) -> None:
    assert ask(site.port, request(site.port, "GET /", *ARRIVAL)).status == 200
    assert site.hits == ["page"]


@cases(
    ("line", "headers"),
    [
        ("GET /health", ARRIVAL),
        ("GET /?x=1", ARRIVAL),
        ("GET //", ARRIVAL),
        ("GET /%2e", ARRIVAL),
        ("POST /notify", ARRIVAL),
        ("POST /", ARRIVAL),
        ("GET /events", ARRIVAL),
        ("GET /", (*ARRIVAL, "Origin: http://localhost:1")),
        ("GET /", (*ARRIVAL, "Sec-Fetch-Site: none")),
        ("GET /", ("Sec-Fetch-Site: cross-site", *ARRIVAL[1:])),
        ("GET /", (*ARRIVAL[:2], "Sec-Fetch-Dest: iframe")),
        ("GET /", (*ARRIVAL[:2], "Sec-Fetch-Dest: embed")),
        ("GET /", (ARRIVAL[0], "Sec-Fetch-Mode: cors", ARRIVAL[2])),
        ("GET /", PROBE),
        ("GET /", ARRIVAL[:1]),
        ("GET /health", PROBE),
    ],
)
def test_nothing_else_of_another_page_is_served(site: Site, line: str, headers: tuple[str, ...]) -> None:
    assert_refused(ask(site.port, request(site.port, line, *headers)), 403)
    assert not site.hits


def test_another_daemons_page_can_feel_that_somebody_answers(site: Site) -> None:
    felt = ask(site.port, request(site.port, "GET /health", *PROBE))
    assert (felt.status, felt.headers["cross-origin-resource-policy"]) == (403, "same-site")
    for line, headers in (
        ("GET /dialog", PROBE),
        ("POST /health", PROBE),
        ("GET /health", ("Sec-Fetch-Site: cross-site", *PROBE[1:])),
        ("GET /health", (*PROBE[:2], "Sec-Fetch-Dest: script")),
    ):
        other = ask(site.port, request(site.port, line, *headers))
        assert (other.status, other.headers["cross-origin-resource-policy"]) == (403, "same-origin")
