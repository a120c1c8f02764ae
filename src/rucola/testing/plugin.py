"""The pytest plugin with the fixtures ``rocketmq`` and ``rocketmq_session``: a RocketMQ for tests.

pytest finds it by its entry point. All other modules are imported by the first test that uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rucola.testing.rocketmq import RocketMQ


@pytest.fixture(scope="session")
def rocketmq_options() -> Mapping[str, str]:
    """Options of the broker, as in ``broker.conf``; a ``conftest.py`` overrides this fixture."""
    return {}


@pytest.fixture
def rocketmq(rocketmq_options: Mapping[str, str]) -> Iterator[RocketMQ]:
    """Name server and broker for one test (``rucola.testing.rocketmq.RocketMQ``)."""
    yield from _running(rocketmq_options)


@pytest.fixture(scope="session")
def rocketmq_session(rocketmq_options: Mapping[str, str]) -> Iterator[RocketMQ]:
    """Name server and broker shared by all tests that use this fixture; each test needs its own topics and groups."""
    yield from _running(rocketmq_options)


def _running(options: Mapping[str, str]) -> Iterator[RocketMQ]:
    from rucola.testing.rocketmq import RocketMQ

    with RocketMQ(options) as servers:
        yield servers
