"""Fixtures and hooks for all tests."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests.few import mark_more
from tests.kernels import COMPILED, FORMS, KERNELS
from tests.leavings import nothing_left
from tests.places import use_memory
from tests.sizes import size, use_whole

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

_TOGETHER = ("tests/spark/", "tests/lake/")
"""Directories whose tests run in a single process, which starts the only Java process, or the only S3 server."""
_LONGEST_FIRST = (
    "spark/test_stream",
    "lake/",
    "scenario/test_consumer_faults",
    "fuzz/",
    "spark/",
    "crash/",
    "golden/test_exchanges",
    "scenario/",
    "unit/lab/",
    "unit/cli/",
    "examples/",
    "attack/",
    "unit/testing/",
    "unit/sql/",
    "unit/test_",
    "unit/sync/",
    "unit/lake/",
    "unit/demo/",
    "golden/",
    "unit/store/",
)
"""Files that begin first, because they take longest: their tests wait for processes while others compute."""


_OBJECTS_BETWEEN_COLLECTIONS = 20_000

_DISK_USED_MAX = 0.85
"""From here on a store removes segments before they expire (``diskSpaceCleanForciblyRatio``)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run tests that have two sizes at their whole size")


def pytest_configure(config: pytest.Config) -> None:
    _free_children()
    use_memory()
    use_whole(config.getoption("whole"))
    # No deadline: no test may depend on the speed of the machine; pytest-timeout ends a test that hangs.
    settings.register_profile("rucola", deadline=None, max_examples=size(30, 100))
    settings.load_profile("rucola")


def _free_children() -> None:
    """Keeps this run's options, and signals that ``nohup`` or ``&`` ignores, from the programs that tests start."""
    os.environ.pop("PYTEST_ADDOPTS", None)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        # A program inherits an ignored signal, but no handler.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


def pytest_sessionstart() -> None:
    """Ends the run if stores in the temporary directory would refuse messages: hundreds of tests would fail oddly."""
    place = tempfile.gettempdir()
    usage = shutil.disk_usage(place)
    used = usage.used / max(usage.used + usage.free, 1)
    if used > _DISK_USED_MAX:
        raise pytest.UsageError(
            f"{place} is on a disk of which {used:.0%} are used; the tests need one with at most "
            f"{_DISK_USED_MAX:.0%}: make space, or set TMPDIR"
        )


def pytest_report_header() -> str:
    if COMPILED == KERNELS:
        return f"kernels: {len(KERNELS)}, each tested compiled and interpreted"
    missing = sorted(set(KERNELS) - set(COMPILED))
    return f"kernels: tested interpreted only, not compiled are {', '.join(missing)}"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Freezes imported and collected objects, so that no garbage collection examines them again, and makes collections
    rarer: they took a tenth of the time of simulated stores.
    """
    gc.disable()
    try:
        _import_in_turn(session.config)
        return (yield)
    finally:
        _freeze()
        gc.enable()


def _import_in_turn(config: pytest.Config) -> None:
    """Lets each of several processes begin with other modules of tests, so that they do not all compile the same ones.

    What cannot be imported is reported by the collection, which tries again.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    root = config.rootpath
    paths = sorted(path for place in config.args for path in (root / place).rglob("test_*.py"))
    first = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in paths[first:] + paths[:first]:
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(root).with_suffix("").parts))


def _freeze() -> None:
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Keeps the tests of each file, and of some directories, in the same process."""
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            whole = [directory for directory in _TOGETHER if nodeid.startswith(directory)]
            return whole[0] if whole else super()._split_scope(nodeid)

        def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
            """Also forgets a file whose tests are complete: after each test, all that a process has are counted."""
            super().mark_test_complete(node, item_index, duration)
            files = self.assigned_work[node]
            name = self._split_scope(self.registered_collections[node][item_index])
            if all(files[name].values()):
                del files[name]

    return Together(config, log)


@pytest.hookimpl(tryfirst=True)  # the option -m then knows the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is left for ``make test-more``, and lets the files that take longest begin first."""
    mark_more(items)
    items.sort(key=lambda item: _order(item.nodeid.partition("::")[0].removeprefix("tests/")))


@cache
def _order(path: str) -> int:
    places = [place for place, start in enumerate(_LONGEST_FIRST) if path.startswith(start)]
    return places[0] if places else len(_LONGEST_FIRST)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Form of the kernels under test: ``"compiled"`` or ``"interpreted"``."""
    return str(request.param)


@pytest.fixture(autouse=True, scope="module")
def _module_leaves_nothing() -> Iterator[None]:
    """Fails a module whose fixtures leave a thread, task or process of the product, or an open store.

    What remains in memory after a module is in caches and remains for the rest of the run. It is frozen, too; otherwise
    each ``gc.collect()`` of a test takes a second. Small modules leave that to the next one. Some tests thaw all
    objects or change the threshold.
    """
    with nothing_left(tasks=False):
        yield
    if any(gc.get_count()[1:]) or gc.get_threshold()[0] != _OBJECTS_BETWEEN_COLLECTIONS:
        gc.collect()
        _freeze()


@pytest.fixture(autouse=True)
def _test_leaves_nothing(request: pytest.FixtureRequest, _module_leaves_nothing: None) -> Iterator[None]:
    """Fails a test that leaves a thread, task or process of the product, or an open store."""
    with nothing_left(tasks=request.node.get_closest_marker("ends_with_loop") is None):
        yield


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Restores the settings of logging, because tests of commands change them."""
    logger = logging.getLogger("rucola")
    before = logger.level, logger.propagate, logging.root.manager.disable
    yield
    if before != (logger.level, logger.propagate, logging.root.manager.disable):  # it empties the caches of all loggers
        logging.disable(before[2])
        logger.setLevel(before[0])
        logger.propagate = before[1]
