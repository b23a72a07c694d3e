"""What tests with real processes share: one embedded Redis for the whole run."""

from collections.abc import Iterator

import pytest

import redis_support
from dualpath.scheduler.stores.embedded import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """Shared, so leave its settings and scripts as they were; a test that kills or fills a server starts its own."""
    with redis_support.running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def cell() -> str:
    return redis_support.fresh_cell()
