"""A log in PostgreSQL: the contract, who may do what, connections that fail, and what poolers do."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from dialogd.store.engine import Engine, Place, open_engine
from tests.engines.contract import EngineContract
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def database(cluster: Cluster) -> str:
    """An empty database, in which the first test's share makes the schema."""
    name = f"test_{secrets.token_hex(4)}"
    cluster.new_database(name)
    return name


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    with Proxy(cluster.socket) as proxy:
        yield proxy


class TestPostgres(EngineContract):
    @pytest.fixture
    def url(self, cluster: Cluster, database: str) -> str:
        return cluster.url("ada", database)

    @pytest.fixture
    def losing(self, cluster: Cluster, database: str, proxy: Proxy) -> Callable[[Place], Engine]:
        def opened(place: Place) -> Engine:
            from dataclasses import replace

            engine = open_engine(replace(place, url=cluster.url("ada", database, port=proxy.port)))
            proxy.lose_answers()
            return engine

        return opened
