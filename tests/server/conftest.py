"""What the tests of the server share: a guarded site, a room of two agents."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.daemon_process import Room, send
from tests.server.serving import Site, guarded, running
from tests.support.pair import Daemon


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


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """A daemon for all tests of a file that ask for nothing but an answer."""
    with Room(tmp_path_factory.mktemp("lasting")) as room:
        room.start("A")
        yield room


@pytest.fixture
def idle(lasting: Room) -> Daemon:
    """Its daemon, without a dialog."""
    lasting.file.unlink(missing_ok=True)
    assert send(lasting.a, "POST /notify").json["status"] == "no_dialog"
    return lasting.a
