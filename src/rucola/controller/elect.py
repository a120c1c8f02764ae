"""Who becomes the master (RocketMQ 5.3.3, ``DefaultElectPolicy``). Pure functions.

The reference compares offsets by an ``int`` difference, which overflows from 2 GiB on; here they are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from rucola.controller.group import BrokerGroup


class BrokerLiveInfo(NamedTuple):
    """What a broker's last heartbeats said.

    Attributes:
        epoch: the last epoch of its log; -1 if it has none.
        max_offset: physical offset of the end of its log.
        election_priority: smaller ones are preferred among equals.
    """

    epoch: int = -1
    max_offset: int = -1
    election_priority: int = (1 << 31) - 1


class Liveness(Protocol):
    """Which brokers live, as the controller sees it."""

    def is_alive(self, group: BrokerGroup, broker_id: int) -> bool:
        """Whether the broker is not known to be dead."""

    def info(self, group: BrokerGroup, broker_id: int) -> BrokerLiveInfo | None:
        """What the broker has said of itself; None if it has not been heard within its time."""


def elect(group: BrokerGroup, live: Liveness, preferred: int | None, unclean: bool) -> int | None:
    """Returns the id of the master: the old one if it lives, a new one, or None if nobody may become it.

    Args:
        group: the group, which has had a master before.
        live: who lives.
        preferred: the only broker that may replace the old master; None for the best one.
        unclean: whether brokers that are not in sync may become the master, which loses messages.
    """
    found = _try_elect(group, group.sync_state_set, live, preferred)
    return _try_elect(group, group.members, live, preferred) if found is None and unclean else found


def epoch_after(group: BrokerGroup, live: Liveness) -> int:
    """The epoch of the next election. It is also larger than all epochs in the logs of the members: those of a group
    whose data were removed, or brought back from an old copy of etcd, would refuse a smaller one.
    """
    heard = [found.epoch for one in group.members if (found := live.info(group, one)) is not None]
    return max(group.master_epoch, *(epoch for epoch in heard if epoch < (1 << 31) - 1), 0) + 1


def _try_elect(group: BrokerGroup, broker_ids: Iterable[int], live: Liveness, preferred: int | None) -> int | None:
    alive = [one for one in broker_ids if live.is_alive(group, one)]
    if group.master_broker_id in alive and preferred in (None, group.master_broker_id):
        return group.master_broker_id
    heard = {one: found for one in alive if (found := live.info(group, one)) is not None}
    if preferred is not None:
        return preferred if preferred in heard else None
    return min(heard, key=lambda one: _rank(one, heard[one]), default=None)


def _rank(broker_id: int, info: BrokerLiveInfo) -> tuple[int, int, int, int]:
    return -info.epoch, -info.max_offset, info.election_priority, broker_id
