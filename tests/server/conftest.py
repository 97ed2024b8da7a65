"""What the tests of the server share: a guarded site, a room of two agents."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.daemon_process import Room
from tests.server.serving import Site, guarded, running


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    """One guarded site for a whole file."""
    with running(guarded) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Site:
    """The guarded site, with no hits yet."""
    shared.hits.clear()
    return shared


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """Two agents, A and B; nobody runs yet."""
    with Room(tmp_path) as room:
        yield room
