"""What the tests of backends share."""

from __future__ import annotations

from pathlib import Path

import pytest

from dialogd.backends import Request
from tests.backends.toy_cli import Bench, bench, install
from tests.support.backend_contract import BackendContract


@pytest.fixture
def request_() -> Request:
    return BackendContract().request()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy, installed once: it is proved once, too."""
    return install(tmp_path_factory.mktemp("toy") / "bin")


@pytest.fixture
def toy(installed: Path, tmp_path: Path) -> Bench:
    return bench(installed, tmp_path)
