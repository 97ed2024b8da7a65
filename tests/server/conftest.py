"""The guarded site that most tests of the server share."""

from collections.abc import Iterator

import pytest

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
