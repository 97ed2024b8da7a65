"""A git remote keeps the contract, against a real `git daemon`, and is told what it has to be told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dialogd.store.engine import Engine, Place, open_engine
from tests.engines.contract import EngineContract
from tests.support.gitdaemon import GitDaemon


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person whose git and ssh know nothing."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[GitDaemon]:
    with GitDaemon(tmp_path / "host") as daemon:
        yield daemon


class TestGitRemote(EngineContract):
    ROUNDS = 3
    HAS_NOTICES = HAS_LEASES = False

    @pytest.fixture
    def url(self, daemon: GitDaemon) -> str:
        return daemon.url

    @pytest.fixture
    def losing(self, daemon: GitDaemon) -> Callable[[Place], Engine]:
        def opened(place: Place) -> Engine:
            daemon.lose_next_answer()
            return open_engine(place)

        return opened
