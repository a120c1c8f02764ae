"""The pytest plugin: a RocketMQ for tests, by the fixtures ``rocketmq`` and ``rocketmq_session``.

pytest finds it by its entry point. Everything else is imported by the first test that asks for a fixture.
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
    """Name server and broker of this test alone (``rucola.testing.rocketmq.RocketMQ``)."""
    yield from _running(rocketmq_options)


@pytest.fixture(scope="session")
def rocketmq_session(rocketmq_options: Mapping[str, str]) -> Iterator[RocketMQ]:
    """Name server and broker of all tests that ask for it; they keep apart by the names of topics and groups."""
    yield from _running(rocketmq_options)


def _running(options: Mapping[str, str]) -> Iterator[RocketMQ]:
    from rucola.testing.rocketmq import RocketMQ

    with RocketMQ(options) as servers:
        yield servers
