"""Home with somebody else, on another machine: what leaves this one, the line for the other side, and joining by it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from dialogd.protocol.grammar import parse
from dialogd.store.disk import StateDir
from dialogd.store.registry import Registry
from tests.page.browser import Visitor, open_visitor
from tests.page.test_home import Home, is_within
from tests.page.test_looks import barriers
from tests.support.machines import make_key
from tests.support.minds import consensus
from tests.support.pair import until
from tests.support.standin import StandIn

QUESTION = "Where should user sessions live?"


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[tuple[Home, Home]]:
    """The Homes of Ada, who has Claude, and of Bob, who has Grok: each with git and an SSH key, nothing else."""
    with StandIn(consensus) as server:
        claude = {"ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef", "ANTHROPIC_BASE_URL": server.url}
        grok = {"XAI_API_KEY": "xai-test-0123456789abcdef", "XAI_BASE_URL": f"{server.url}/v1"}
        both = [_home(tmp_path / name, more) for name, more in (("ada", claude), ("bob", grok))]
        yield both[0], both[1]
        for home in both:
            home.close()


def _home(folder: Path, more: dict[str, str]) -> Home:
    folder.mkdir()
    home = Home(folder, {**more, "GIT_CONFIG_NOSYSTEM": "1", "SSH_AUTH_SOCK": ""})
    for name in ("git", "ssh-keygen"):
        (folder / "bin" / name).symlink_to(str(shutil.which(name)))
    make_key(folder / ".ssh" / "id_ed25519", folder.name)
    home.start()
    return home


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """The address of the repository that both reach."""
    subprocess.run(["git", "init", "--quiet", "--bare", "log.git"], cwd=tmp_path, check=True)
    return f"git+file://{tmp_path}/log.git"


def filled(page: Page, repository: str) -> None:
    """A dialog of Claude here and somebody else."""
    page.locator("#question").fill(QUESTION)
    expect(page.locator("#seats > li")).to_have_count(2)
    page.get_by_role("button", name="Remove B").click()
    page.get_by_label("With somebody else, on another computer").check()
    expect(page.locator("#seats > li").nth(1)).to_contain_text("Somebody else")
    page.locator("#engine").fill(repository)


def text(home: Home) -> str:
    """The dialog, as it stands there."""
    with suppress(IndexError, OSError):
        return Path(Registry(StateDir(home.state_dir)).running()[0].file).read_text(encoding="utf-8")
    return ""


def test_from_the_switch_to_a_result_that_both_have(
    homes: tuple[Home, Home], repository: str, visitor: Visitor, browser: Browser
) -> None:
    ada, bob = homes
    page = visitor.visit(ada.url)
    filled(page, repository)
    go = page.locator("#go")
    expect(go).to_have_text("See what leaves this computer")
    go.click()
    leaves = page.locator("#share-leaves")
    expect(leaves).to_contain_text("Whoever may read that repository can read it")
    expect(leaves).to_contain_text("Here: A; elsewhere: B")
    assert not list(Path(repository.removeprefix("git+file://")).glob("refs/heads/*"))
    expect(go).to_have_text("Share it and start")
    go.click()
    line = page.locator("#line-text")
    expect(line).to_contain_text("dialogd+git+file:///")
    said = line.inner_text()
    assert QUESTION not in said
    other = open_visitor(browser)
    there = other.visit(bob.url)
    there.locator("#join summary").click()
    there.locator("#join-line").fill(said)
    expect(there.locator("#join-agent")).to_contain_text("Grok")
    there.locator("#join-go").click()
    expect(there.locator("#topic")).to_have_text(QUESTION)
    expect(there.locator("#shared-seats")).to_contain_text("sits elsewhere")
    page.locator("#line-to").click()
    expect(page.locator("#topic")).to_have_text(QUESTION)
    until(lambda: "[CONSENSUS_REACHED]" in text(bob), "the result", why=lambda: text(ada))
    until(lambda: text(ada) == text(bob), "both to have it")
    assert {entry.by for entry in parse(text(ada).encode()).entries if entry.is_turn} == {"USER", "A", "B"}
    other.context.close()
    other.is_clean()


@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_in_its_form(homes: tuple[Home, Home], repository: str, browser: Browser, width: int) -> None:
    visitor = open_visitor(browser, bypass_csp=True, viewport={"width": width, "height": 900})
    page = visitor.visit(homes[0].url)
    filled(page, repository)
    page.locator("#go").click()
    expect(page.locator("#share-leaves")).to_be_visible()
    page.locator("#join summary").click()
    assert is_within(page)
    assert barriers(page) == []
    page.locator("#go").click()
    expect(page.locator("#line")).to_be_visible()
    assert is_within(page)
    assert barriers(page) == []
    visitor.context.close()
    visitor.is_clean()


def test_what_is_wrong_stands_at_its_field(homes: tuple[Home, Home], visitor: Visitor) -> None:
    page = visitor.visit(homes[0].url)
    filled(page, "")
    page.locator("#go").click()
    expect(page.locator("#engine-problem")).to_contain_text("Name what carries the dialog")
    visitor.expected = ("status of 400",)
    page.locator("#engine").fill("ftp://example.org/talks")
    page.locator("#go").click()
    expect(page.locator("#go")).to_have_text("Share it and start")
    page.locator("#go").click()
    expect(page.locator("#engine-problem")).to_contain_text("is no engine of shared dialogs")
    page.locator("#join summary").click()
    page.locator("#join-line").fill("dialogd+git+file:///nowhere")
    page.locator("#join-go").click()
    expect(page.locator("#line-problem")).to_contain_text("is no whole line")
