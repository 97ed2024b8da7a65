"""What the tests of backends share."""

from __future__ import annotations

import pytest

from dialogd.backends import Request
from tests.support.backend_contract import BackendContract


@pytest.fixture
def request_() -> Request:
    return BackendContract().request()
