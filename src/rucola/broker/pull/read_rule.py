"""Which broker a consumer is told to pull from next, and how a slave answers a pull that finds nothing (RocketMQ 5.3.3,
``DefaultPullMessageResultHandler#composeResponseHeader``, ``DefaultMessageStore#nextOffsetCorrection``).

A slave may lag behind its master. So it never says that there is no message, or that an offset is wrong: it sends the
consumer to the master, and to the same offset. A consumer that cannot reach the master comes back at once. RocketMQ
answers it at once, again and again; here it waits for a message as long as the slave itself does not reach the master.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rucola.broker.config import BrokerConfig
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.store.results import GetMessageResult, GetMessageStatus

MASTER = 0
WAIT_S = 1.0
"""Longest wait of a pull at a slave that does not reach its master. The consumer then looks for the master."""
_MOVED_ON = frozenset({GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING})
"""Statuses whose next offset is behind messages that were looked at."""
_KNOWN = frozenset({GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_FOUND_NULL})
"""Statuses that say the same on a slave: it keeps what its master keeps."""


class ReadRule:
    """The rule of one broker.

    Args:
        groups: the groups, each of which names the brokers that it reads from.
        is_linked: on a slave, returns whether it reaches its master; None on a master.
        acts: returns whether a slave acts for its master.
    """

    def __init__(
        self,
        config: BrokerConfig,
        groups: SubscriptionGroupManager,
        is_linked: Callable[[], bool] | None,
        acts: Callable[[], bool] = lambda: False,
    ) -> None:
        self._reads, self._checks_offsets = config.slave_read_enable, config.offset_check_in_slave
        self._groups = groups
        self._is_linked = is_linked
        self._acts = acts
        self.is_slave = is_linked is not None

    @property
    def sends_to_master(self) -> bool:
        """Whether a pull that finds nothing is sent to the master: on a slave that does not act."""
        return self.is_slave and not self._acts()

    def broker_for(self, group: str, result: GetMessageResult) -> int:
        """Returns the number of the broker from which a group that was given messages should pull next."""
        if not self._reads or self._acts():
            return MASTER  # routes show an acting slave as the master
        known = self._groups.table.get(group)
        if result.suggest_slave:
            return 1 if known is None else known.which_broker_when_consume_slowly
        return MASTER if known is None or self.is_slave else known.broker_id

    def may_wait(self, result: GetMessageResult) -> bool:
        """Whether a pull at a slave that found nothing may wait for a message."""
        return self._is_linked is not None and not self._is_linked() and result.status not in _MOVED_ON

    def of_acting(self, queue_offset: int, result: GetMessageResult) -> GetMessageResult:
        """Returns what a slave that acts answers to a pull at ``queue_offset`` that found nothing. What lies behind the
        end of its queue may be on the master, so the offset stays.
        """
        if result.status in _MOVED_ON or result.status in _KNOWN:
            return result
        return replace(result, status=GetMessageStatus.OFFSET_OVERFLOW_ONE, next_offset=queue_offset)

    def elsewhere(self, queue_offset: int, result: GetMessageResult) -> GetMessageResult:
        """Returns what a slave answers to a pull at ``queue_offset`` that found nothing."""
        if self._checks_offsets or result.status in _MOVED_ON or result.status is GetMessageStatus.OFFSET_FOUND_NULL:
            return result
        return replace(result, next_offset=queue_offset)
