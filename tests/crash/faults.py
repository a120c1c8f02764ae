"""The faults of the fault sweeps: how calls to the disk fail, or end the process."""

from __future__ import annotations

import errno
from collections.abc import Collection
from random import Random

from tests.crash.workloads import WORKLOADS

from rucola.store.config import MessageStoreConfig
from rucola.testing.fault_plan import ANY_CALL, NEEDS_DESCRIPTOR, NEEDS_MEMORY, NEEDS_SPACE, READS, FaultPlan
from rucola.testing.store_life import StoreLife, empty_disk

FAULTS = {
    "EIO once": (False, errno.EIO, ANY_CALL),
    "EIO for ever": (True, errno.EIO, ANY_CALL),
    "ENOSPC once": (False, errno.ENOSPC, NEEDS_SPACE),
    "ENOSPC for ever": (True, errno.ENOSPC, NEEDS_SPACE),
    "EMFILE once": (False, errno.EMFILE, NEEDS_DESCRIPTOR),
    "EMFILE for ever": (True, errno.EMFILE, NEEDS_DESCRIPTOR),
    "ENOMEM once": (False, errno.ENOMEM, NEEDS_MEMORY),
    "ENOMEM for ever": (True, errno.ENOMEM, NEEDS_MEMORY),
    "EIO reading once": (False, errno.EIO, READS),
    "EIO reading for ever": (True, errno.EIO, READS),
    "kill": (False, 0, ANY_CALL),
}
FULL_DISK = (True, errno.ENOSPC, NEEDS_SPACE)


def plan(fault: str, nth: int) -> FaultPlan:
    """Returns the plan in which ``fault`` affects the ``nth`` of the calls that it can affect."""
    return FaultPlan(nth, *FAULTS[fault])


def calls(workload: str, config: MessageStoreConfig, seed: int) -> int:
    """Returns the smallest number of disk calls that the workload makes if nothing fails."""
    life = StoreLife(empty_disk(), config)
    WORKLOADS[workload](life, Random(seed))
    return life.disk.steps


def calls_of(kinds: Collection[str], workload: str, config: MessageStoreConfig, seed: int) -> int:
    """Returns the smallest number of calls of these kinds that the workload makes if nothing fails."""
    life, counted = StoreLife(empty_disk(), config), FaultPlan(0, kinds=kinds)
    life.disk.faults = counted
    WORKLOADS[workload](life, Random(seed))
    return counted.count
