"""Dialogs that a person starts from Home with what is installed here, and takes home: over HTTP, and in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clis.rig import KEY, PATH
from tests.home.conftest import Home
from tests.page.browser import launched, open_visitor, program
from tests.support.minds import ANSWER, QUESTION, curious
from tests.support.pair import until
from tests.support.standin import StandIn

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE = 300.0  # seconds: agents of several hundred MB, and a trial of each before its first turn
SOON = PATIENCE * 1000  # the same, as a browser counts
TOPIC = "Where should user sessions live?"


@dataclass(frozen=True)
class Desk:
    """A machine with Claude Code, Codex and Ollama: Home, two projects of the person, and who is asked behind it."""

    home: Home
    shop: Path
    bank: Path
    server: StandIn

    @property
    def agents(self) -> dict[str, str]:
        return {"claude-code": str(self.shop), "codex": str(self.bank)}

    @property
    def read(self) -> str:
        """All that models were sent."""
        return "\n".join(seen.prompt for seen in self.server.calls)

    def is_untouched(self) -> bool:
        return {path.name: path.read_text() for folder in (self.shop, self.bank) for path in folder.iterdir()} == NOTES


NOTES = {"CLAUDE.md": "The shop keeps its sessions in s_17.\n", "AGENTS.md": "The bank keeps its sessions in s_23.\n"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Home, open; the agents' trials are shared by all tests here."""
    for name in ("claude", "codex"):
        if shutil.which(name, path=PATH) is None:
            pytest.skip(f"{name} is not installed: `make test-clis` brings it")
    folder = tmp_path_factory.mktemp("desk")
    shop, bank = folder / "shop", folder / "bank"
    for project, (name, text) in zip((shop, bank), NOTES.items(), strict=True):
        project.mkdir()
        (project / name).write_text(text)
    with StandIn(curious, models=("qwen3:8b",)) as server:
        services = {
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": server.url,
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OLLAMA_HOST": server.url.removeprefix("http://"),
        }
        home = Home(folder, linger="10 minutes", PATH=PATH, **services)
        try:
            home.open()
            yield Desk(home, shop, bank, server)
        finally:
            home.close()


def test_both_coding_agents_are_found_started_answered_approved_and_exported(desk: Desk) -> None:
    home = desk.home
    offered = {one["id"]: one for one in home.ask("/choices")["backends"]}
    for name in (*desk.agents, "ollama"):
        assert offered[name]["ready"], offered[name]
    agents = [{"backend": name, "project": project} for name, project in desk.agents.items()]
    estimate = home.ask("/estimate", {"question": TOPIC, "agents": agents})
    assert estimate["words"]
    begun = home.start(question=TOPIC, agents=agents, budget="$2")
    assert begun.status == 201, begun.text
    row = home.carry_through(begun["id"], PATIENCE)
    assert "keeps its sessions in s_17" in desk.read
    assert "keeps its sessions in s_23" in desk.read
    assert desk.is_untouched()
    assert KEY not in Path(row["file"]).read_text(encoding="utf-8")
    assert set(desk.agents.values()) <= set(home.ask("/choices")["projects"])


def test_a_person_at_the_page_seats_all_of_them_and_takes_the_result_home(desk: Desk) -> None:
    if not program():
        pytest.skip("no Chromium on PATH: Debian, Ubuntu: apt install chromium")
    from playwright.sync_api import expect

    with launched() as browser:
        visitor = open_visitor(browser)
        page = visitor.visit(desk.home.url)
        seat(page, *desk.agents, "ollama")
        page.locator("#question").fill(TOPIC)
        page.locator("#fold-project > summary").click()
        for number, project in enumerate(desk.agents.values()):
            page.locator(f"#project-{number}").fill(project)
        page.locator("#go").click()
        expect(page).not_to_have_url(desk.home.url, timeout=SOON)
        expect(page.locator("#question-text")).to_contain_text(QUESTION, timeout=SOON)
        page.locator("#say-text").fill(ANSWER)
        page.locator("#say-text").press("Enter")
        card = page.locator("#outcome")
        expect(card).to_contain_text(ANSWER, timeout=SOON)
        card.get_by_role("button", name="Approve", exact=True).click()
        expect(card.locator("h2")).to_contain_text("approved by you", timeout=SOON)
        with page.expect_download(timeout=SOON) as saved:
            card.get_by_role("link", name="Markdown").click()
        assert ANSWER in saved.value.path().read_text(encoding="utf-8")
        visitor.visit(desk.home.url)
        listed = page.locator("#past .dialogs > li").filter(has_text="Local C")
        expect(listed).to_contain_text(ANSWER, timeout=SOON)
        visitor.context.close()
        visitor.is_clean()
    until(desk.is_untouched, "projects as they were")


def seat(page: Page, *backends: str) -> None:
    """Seat these, in this order, and nobody else."""
    from playwright.sync_api import expect

    seated = page.locator("#cards [aria-pressed=true]")
    expect(seated).not_to_have_count(0, timeout=SOON)
    while seated.count():
        seated.first.click()
    for name in backends:
        page.locator(f"#cards [data-backend={name}]").click()
    expect(page.locator("#seats > li")).to_have_count(len(backends))
