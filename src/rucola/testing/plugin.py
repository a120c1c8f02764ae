"""The pytest plugin with the fixtures ``rocketmq`` and ``rocketmq_session``: a RocketMQ for tests.

pytest finds it by its entry point. All other modules are imported by the first test that uses a fixture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rucola.testing.rocketmq import RocketMQ


class _PlainImports(MetaPathFinder):
    """Finds Rucola's modules before pytest does, so that pytest does not rewrite their assert statements.

    pytest parses and rewrites all modules of a package that has a plugin, including those that a server imports on its
    own thread. Python 3.11.0 to 3.11.7 and 3.12.0 to 3.12.1 fail if two threads parse at the same time.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith("rucola.") else None


def pytest_configure(config: pytest.Config) -> None:
    """Prevents pytest from rewriting Rucola's modules."""
    finder = _PlainImports()
    sys.meta_path.insert(0, finder)
    config.add_cleanup(lambda: sys.meta_path.remove(finder))


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
