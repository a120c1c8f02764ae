"""A slave that acts for its master: what follows from its duty (``acting``). Event loop only.

It serves pulls whatever ``slaveReadEnable`` says. All that a slave stores or delivers for its master waits until the
master is back: it has no place to put it. RocketMQ puts due messages into the store of another master in the same
process, if there is one, or sends them to other brokers (``EscapeBridge``).

Source: RocketMQ 5.3.3, ``BrokerController#onMinBrokerChange``, ``AdminBrokerProcessor#updateBrokerHaInfo``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rucola.broker.ha.acting import ActingMaster, Duty, DutyChange
from rucola.broker.ha.slave import Slave
from rucola.broker.ha.slave_refusals import SlaveRefusals
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.outer_api import BrokerOuterApi
from rucola.broker.pull.request import PullRequestHold
from rucola.errors import RucolaError
from rucola.protocol.headers.route import ExchangeHAInfoRequestHeader
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class ActingSlave:
    """Does what the duty of a slave asks for.

    Args:
        broker_id: number of the slave.
        slave: follows the master.
        refusals: what the slave refuses.
        offsets: the consumer offsets.

    Attributes:
        api: asks the master for its addresses; set before ``members`` is called.
        hold: the pulls that wait; set before ``members`` is called.
    """

    api: BrokerOuterApi
    hold: PullRequestHold

    def __init__(self, broker_id: int, slave: Slave, refusals: SlaveRefusals, offsets: ConsumerOffsetManager) -> None:
        self._acting = ActingMaster(broker_id)
        self._slave, self._refusals, self._offsets = slave, refusals, offsets

    @property
    def acts(self) -> bool:
        """Whether the slave acts for its master."""
        return self._acting.duty is Duty.ACTS

    async def members(self, addresses: Mapping[int, str]) -> None:
        """Takes the brokers of the group that live, by their numbers."""
        change = self._acting.members(addresses)
        if change is None:
            return
        event(logger, logging.INFO, "duty of this slave changed", now=change.duty.value, before=change.before.value)
        self._refusals.act(self.acts)
        self._offsets.lead(self.acts)
        if change.duty is Duty.FOLLOWS:
            self.hold.end_all()
            await self._follow(change)
        else:
            self._slave.found("", "")

    def told(self, ha_address: str, broker_address: str) -> None:
        """A master that returns tells where it is. A slave that does not know yet that its group has a master copies
        the log only: its own tables are newer until the master has fetched the progress from them.
        """
        follows = self._acting.duty is Duty.FOLLOWS
        self._slave.told(ha_address, broker_address if follows else "")

    async def _follow(self, change: DutyChange) -> None:
        try:
            told = await self.api.exchange(change.master_address, ExchangeHAInfoRequestHeader())
        except RucolaError as error:  # the answer to the next registration tells it, too
            event(logger, logging.WARNING, "master does not tell its port for slaves", error=error)
        else:
            self._slave.told(told.master_ha_address or "", told.master_address or change.master_address)
