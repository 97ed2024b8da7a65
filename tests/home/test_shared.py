"""Sharing and joining by Home's routes: what is refused, where, and to whom."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_from_seats import ALONE, seated, this_process
from tests.home.conftest import Home
from tests.home.test_dialogs import opened
from tests.support.machines import make_key

SHARED = {"question": "Tabs or spaces?", "rehearsal": True, "elsewhere": ["B"]}
LINE = f"dialogd+git+file:///nowhere.git#dialog=0123456789abcdef,root={64 * '0'},seat=B"


def test_a_session_that_holds_a_seat_neither_shares_nor_joins(shared: Home) -> None:
    make_key(shared.commands.folder / ".ssh" / "id_ed25519")
    asked = {"/share": {**SHARED, "engine": "git+file:///nowhere.git"}, "/join": {"line": LINE}}
    with seated(shared.commands, this_process()):
        for path, body in asked.items():
            found = shared.ask(path, body)
            assert (found.status, ALONE in found.problem["detail"]) == (409, True), (path, found.text)


def test_what_is_wrong_is_said_at_its_field(shared: Home) -> None:
    wrong: list[tuple[str, dict[str, object], str]] = [
        ("/share", {**SHARED, "engine": ""}, "engine"),
        ("/share", {**SHARED, "engine": "git+file:///nowhere.git", "elsewhere": ["Q"]}, "engine"),
        ("/share", {**SHARED, "engine": "git+file:///nowhere.git", "budget": "a lot"}, "budget"),
        ("/join", {"line": "dialogd+git+file:///nowhere.git"}, "line"),
        ("/join", {"line": LINE}, "line"),
        ("/join", {"line": LINE, "backend": "command:touch ran"}, "agents.0.backend"),
    ]
    for path, body, field in wrong:
        found = shared.ask(path, body)
        assert found.status in (400, 409, 501, 507), (path, body, found.text)
        assert (found.problem["field"], bool(found.problem["fix"])) == (field, True), (body, found.text)
    assert not shared.commands.daemons()
    assert not (shared.commands.folder / "ran").exists()


def test_a_look_leaves_nothing_and_the_estimate_is_of_agents_here(tmp_path: Path) -> None:
    keys = {"ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef", "XAI_API_KEY": "xai-test-0123456789abcdef"}
    agents = [{"backend": "anthropic"}, {"backend": "grok"}]
    with opened(tmp_path, **keys) as home:
        make_key(home.commands.folder / ".ssh" / "id_ed25519")
        asked, state = {**SHARED, "engine": "git+file:///nowhere.git"}, home.commands.state
        before = {*state.sessions.iterdir(), *(state.root / "dialogs").glob("*")}
        found = home.ask("/share", asked)
        assert (found.status, "elsewhere: B" in found["lines"][1]) == (201, True), found.text
        assert home.ask("/share", {**asked, "sure": True}).status in (501, 507)
        assert {*state.sessions.iterdir(), *(state.root / "dialogs").glob("*")} == before
        both, mine = (
            home.ask("/estimate", {"question": "Tabs?", "agents": agents, "elsewhere": away})["words"]
            for away in ([], ["B"])
        )
    assert (", B $" in both, "B $" in mine, "(A $" in mine) == (True, False, True), (both, mine)
