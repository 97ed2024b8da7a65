"""Home answers its own page and its own person; nothing that is sent to it is ever run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.home.conftest import Home
from tests.server.serving import PAIRS, assert_carries_nothing, request
from tests.support.cases import cases

START = {"question": "Tabs or spaces?", "rehearsal": True}


def nothing_began(home: Home) -> bool:
    """True while no dialog was begun."""
    return not list(home.commands.state.sessions.iterdir()) and not home.commands.daemons()


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3001"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},
        {"host": "evil.example"},
        {"host": "localhost:80"},
        {"host": "localhost.evil.example:2999"},
    ],
    ids=lambda headers: " ".join(f"{name} {value}" for name, value in headers.items()),
)
def test_a_page_of_elsewhere_can_neither_read_nor_start_anything(shared: Home, headers: Mapping[str, str]) -> None:
    for path in ("/dialogs", "/choices", "/past/x", "/home/home.js", "/health"):
        assert shared.ask(path, **headers).status == 403, path
    for path in ("/start", "/estimate", "/context", "/share", "/join", "/build/rehearse"):
        found = shared.ask(path, START, **headers)
        assert (found.status, found.headers["content-type"]) == (403, "application/problem+json"), path
        assert found.problem["fix"]
    assert nothing_began(shared)


@pytest.mark.slow
@cases("pair", PAIRS)
def test_a_refused_request_starts_nothing_by_the_one_behind_it(shared: Home, pair: str) -> None:
    start = request(shared.port, "POST /start", "Content-Type: application/json", body=json.dumps(START).encode())
    assert_carries_nothing(shared.port, pair, start)
    assert nothing_began(shared)


def test_a_form_starts_nothing(shared: Home) -> None:
    form = b"question=Tabs&rehearsal=true"
    kinds = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain")
    for kind in kinds:
        for raw in (form, json.dumps(START).encode()):
            assert shared.ask("/start", raw=raw, content_type=kind).status in (400, 422), kind
            sent = shared.ask("/start", raw=raw, content_type=kind, origin="http://evil.example")
            assert sent.status == 403
    assert shared.ask("/start?question=Tabs", method="GET").status == 405
    assert nothing_began(shared)


def agent(**more: object) -> dict[str, object]:
    """A form with one agent."""
    return {"agents": [{"backend": "gpt", **more}]}


WRONG: dict[str, list[dict[str, object]]] = {
    "question": [{"question": text} for text in (" \n ", "\u200b \u2060\n\u200d\ufeff", "Tabs\0or spaces?")],
    "template": [
        {"template": name}
        for name in ("no-such", "../../etc/passwd", "/etc/passwd", "pair; touch ran", "$(touch ran)", "--file=/tmp/x")
    ],
    "agents.0.backend": [
        agent(backend=name)
        for name in ("command:touch ran", "acp:touch ran", "command", "live", "rehearsal:fail", "gpt:x", "gpt@/", "no")
    ],
    "agents.0.model": [
        {"agents": [{"model": "x"}]},
        *(agent(model=name) for name in ("; touch ran", "--dangerously-skip-permissions", "$(touch ran)", "x@/etc")),
        agent(model="x\n--command=touch ran"),
    ],
    "agents.0.project": [agent(project=path) for path in ("no/full/path", "/no/such/folder", "/tmp; touch ran")],
    "agents.0.session": [{"agents": [{"session": key}]} for key in ("claude:1:1", "$(touch ran)")],
    "project": [{"project": path} for path in ("/etc/passwd", "$(touch ran)")],
    "budget": [{"budget": "a lot"}],
    "timeout": [{"timeout": "--stay"}],
    "max_time": [{"max_time": "soon"}],
    "max_turns": [{"max_turns": 0}],
    "context.0": [{"context": ["/etc/no-such"]}],
    "context.1": [{"context": ["fine.txt", "picture.png"]}],
    "command": [{"command": "touch ran"}],
    "agents.0.command": [agent(command="touch ran")],
    "agents.0.base_url": [agent(base_url="http://evil.example")],
}


@pytest.mark.slow
@pytest.mark.parametrize("field", WRONG)
def test_what_is_not_offered_is_refused_at_its_field(shared: Home, field: str) -> None:
    (shared.commands.folder / "fine.txt").write_text("fine\n")
    (shared.commands.folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    for asked in WRONG[field]:
        for path in ("/start", "/estimate"):
            found = shared.ask(path, {"question": "Tabs or spaces?", **asked})
            assert found.status in (400, 409, 422), (asked, found.text)
            assert (found.problem["field"], bool(found.problem["fix"])) == (field, True), (asked, found.text)
    assert nothing_began(shared)
    assert not (shared.commands.folder / "ran").exists()


def test_a_template_that_seats_a_program_is_not_started_from_the_page(shared: Home) -> None:
    folder = shared.commands.folder / ".dialogd" / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    text = "---\nname: sly\n---\n# Sly\n\n## Agents\n\n### One\n**Backend:** command:touch ran\n\n### Two\n- Duty\n"
    (folder / "sly.md").write_text(text)
    try:
        found = shared.ask("/start", {"question": "Tabs?", "template": "sly"})
    finally:
        (folder / "sly.md").unlink()
    assert found.status >= 400, found.text
    assert nothing_began(shared)
    assert not (shared.commands.folder / "ran").exists()


@pytest.fixture
def tree(shared: Home) -> Path:
    """Folders of the person's own: with hidden ones, with links in and out."""
    top = shared.commands.folder / "own"
    if not top.exists():
        (top / "shop" / "src").mkdir(parents=True)
        (top / "Admin").mkdir()
        (top / ".secret").mkdir()
        (top / ".secret" / "note.txt").write_text("hidden")
        (top / "out").symlink_to("/etc")
        (top / "in").symlink_to(top / "shop")
        (top / "note.txt").write_text("a note\n")
        (top / "linked.txt").symlink_to("/etc/passwd")
        (top / ".env").write_text("KEY=1")
        (top / "new\nline").mkdir()
    return top


@pytest.mark.parametrize(
    "path", ["out", "in", "out/ssl", ".secret", "shop/../.secret", "shop/../../..", "linked.txt", ".env", "no-such"]
)
def test_no_path_leads_to_what_hides_or_lies_elsewhere(shared: Home, tree: Path, path: str) -> None:
    file = f"{path}/note.txt" if path.startswith((".secret", "shop")) else path
    (along,) = shared.ask("/context", {"project": str(tree), "paths": [file]})["files"]
    assert along["refused"], along
    assert along["fix"]
    assert along["text"] == ""
    for asked in ({"project": f"{tree}/{path}"}, {"context": [f"{tree}/{path}"]}):
        assert shared.start(rehearsal=True, **asked).status in (400, 409)
    assert nothing_began(shared)


def test_relative_paths_and_paths_of_other_users_are_refused(shared: Home, tree: Path) -> None:
    statuses = [
        shared.ask("/estimate", {**START, "project": path}).status for path in ("own", "~root", "/root", "/etc")
    ]
    assert statuses[:2] == [400, 400]
    assert os.geteuid() == 0 or (statuses[2] in (400, 409) and statuses[3] == 409)


def test_a_file_is_shown_as_it_would_go_along(shared: Home, tree: Path) -> None:
    key = "sk-ant-api03-" + "a1B2" * 20
    (tree / "shop" / "config.txt").write_text(f"port = 1\nkey = {key}\nrest\n")
    (tree / "shop" / "long.txt").write_text("0123456789\n" * 60_000)
    (tree / "shop" / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tree / "shop" / "latin.txt").write_bytes("Größe".encode("latin-1"))
    asked = {"project": str(tree / "shop"), "paths": ["config.txt", "long.txt", "picture.png", "latin.txt", "gone.txt"]}
    config, long, picture, latin, gone = shared.ask("/context", asked)["files"]
    assert key not in json.dumps(config)
    assert "port = 1\n" in config["text"]
    assert config["text"].endswith("rest\n")
    assert (config["secrets"], config["cut"], config["refused"]) == (1, False, "")
    assert long["cut"]
    assert long["size"] == 660_000
    assert 0 < len(long["text"]) < 660_000
    assert long["text"].endswith("9\n")
    assert ("not text" in picture["refused"], "UTF-8" in latin["refused"]) == (True, True)
    assert gone["refused"]
    assert all(one["fix"] for one in (picture, latin, gone))


def test_files_that_are_too_large_together_are_refused_together(shared: Home, tree: Path) -> None:
    names = [f"big-{number}.txt" for number in range(9)]
    for name in names:
        (tree / name).write_text("0123456789\n" * 9_000)
    found = shared.ask("/context", {"project": str(tree), "paths": names})
    assert "together" in found["refused"]
    assert found["fix"]
    assert not any(one["refused"] for one in found["files"])


DAMAGED = ("[1]", '"x"', "null", "nonsense", "[" * 9_000, '{"file": 5, "pid": 1, "created": 1}')


TORN = {
    "dialogs/somewhere/cast.json": ['{"seats": 5}', '{"seats": null}', '{"seats": [{"project": [1]}, 1]}'],
    "sessions/dialog-x.json": [
        f'{{"file": "{file}", "pid": {pid}, "created": 1}}'
        for file, pid in (("/etc/passwd", -1), ("", 1), ("/no/such", "Infinity"))
    ],
    "running/x.json": [],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place", TORN)
def test_a_damaged_file_of_the_state_directory_takes_neither_the_list_nor_the_form(shared: Home, place: str) -> None:
    path = shared.commands.state.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    for text in (*DAMAGED, *TORN[place]):
        path.write_text(text)
        try:
            assert [shared.ask(route).status for route in ("/dialogs", "/choices")] == [200, 200], text[:60]
        finally:
            path.unlink(missing_ok=True)
