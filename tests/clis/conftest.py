"""Worlds for coding agents; a test whose agent is not installed is skipped, with the reason."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dialogd.backends import kind_of
from tests.clis.rig import PATH, World

PROGRAMS = {"claude-code": "claude", "codex": "codex", "gemini": "gemini", "opencode": "opencode"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.clis)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where dialogd's own folders lie: each program is proved once for all tests."""
    return tmp_path_factory.mktemp("states")


def make_world(name: str, tmp_path: Path, states: Path) -> World:
    program = PROGRAMS[name]
    if shutil.which(program, path=PATH) is None:
        flag = "" if program in ("claude", "codex") else f' CLIS="{program}"'
        pytest.skip(f"{program} is not installed: `make test-clis{flag}` brings it")
    assert kind_of(name)
    world = World(name, tmp_path / "home", tmp_path / "project", states / f"{tmp_path.name}-{name}")
    for folder in (world.home, world.project, world.state):
        folder.mkdir(mode=0o700)
    return world


@pytest.fixture(params=["claude-code", "codex"])
def world(request: pytest.FixtureRequest, tmp_path: Path, states: Path) -> World:
    return make_world(request.param, tmp_path, states)


@pytest.fixture(params=list(PROGRAMS))
def every(request: pytest.FixtureRequest, tmp_path: Path, states: Path) -> World:
    """The same, for those that cost more to install too."""
    return make_world(request.param, tmp_path, states)


@pytest.fixture
def claude(tmp_path: Path, states: Path) -> World:
    return make_world("claude-code", tmp_path, states)


@pytest.fixture
def codex(tmp_path: Path, states: Path) -> World:
    return make_world("codex", tmp_path, states)
