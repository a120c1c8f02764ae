"""What a master does before it registers: it fetches from its slaves what happened while one of them acted.

Each slave of the group, in the order of numbers, is told where the master is (request 906). When it has connected to
the port for slaves, its consumer offsets and its progress of delays are fetched, and the larger ones are taken over.
Until all have answered, the broker is not registered and delivers no delayed message; consumers go on at the slave.
Event loop only.

Source: RocketMQ 5.3.3, ``BrokerPreOnlineService``; it also takes smaller offsets, and the progress of timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rucola.broker.ha.acting import MASTER_ID, MasterAddresses
from rucola.broker.ha.master import HaServer
from rucola.broker.outer_api import BrokerOuterApi
from rucola.broker.services import BrokerServices
from rucola.common.hosts import split_address
from rucola.errors import BrokerError, FormatError, RucolaError
from rucola.formats.tables import decode_consumer_offsets, decode_delay_offsets
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.headers.route import ExchangeHAInfoRequestHeader
from rucola.remoting.fairness.steps import in_turns
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
CONNECT_S: Final = 10.0
"""How long a slave that was told of the master may need to connect."""
AGAIN_S: Final = 1.0
"""Pause before the next attempt."""
_TICK_S = 0.05


class PreOnline:
    """One start of a master.

    Args:
        services: the broker's services; the store runs.
        api: calls name servers and slaves.
        server: the port for slaves.
        own: returns the addresses of this master.

    Attributes:
        waits_for: why the broker is not online yet, for people; empty once it is.
    """

    def __init__(
        self, services: BrokerServices, api: BrokerOuterApi, server: HaServer, own: Callable[[], MasterAddresses]
    ) -> None:
        self.waits_for = "not online: asks for the brokers of the group"
        self._services, self._api, self._server, self._own = services, api, server, own
        self._asked: set[int] = set()

    async def run(self) -> None:
        """Returns when every slave that lives was asked. Tries again and again: a slave that does not answer is one
        that lives no more, as soon as name servers forget it.
        """
        said = ""
        while True:
            try:
                if not (trouble := await self._ask_slaves()):
                    break
            except RucolaError as error:
                trouble = str(error)
            except Exception as error:  # noqa: BLE001 - a defect must not keep the broker out of the route unnoticed
                self._services.supervisor.failed("questions to slaves before the start", error)
                trouble = f"{type(error).__name__}: {error}"
            if trouble != said:
                said = trouble
                event(logger, logging.WARNING, "master not online yet, tried again", error=trouble)
            await asyncio.sleep(AGAIN_S)
        self.waits_for = ""
        event(logger, logging.INFO, "master goes online", slaves=len(self._asked))

    async def _ask_slaves(self) -> str:
        """Asks the slaves that were not asked yet; returns why that must be tried again, or an empty text.

        Raises:
            RucolaError: no name server answers, or a slave does not.
        """
        members = await self._api.members()
        for broker_id in sorted(members.keys() - self._asked - {MASTER_ID}):
            address = members[broker_id]
            self.waits_for = f"not online: waits for slave {broker_id} at {address}"
            try:
                if not await self._ask(address):
                    return f"slave {broker_id} at {address} has not connected within {CONNECT_S:.0f} s"
            except (BrokerError, FormatError) as error:
                if isinstance(error, BrokerError) and error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                # It is of a version in which no slave acts, or its tables cannot be read. Neither will change.
                event(logger, logging.WARNING, "slave cannot tell what it did", address=address, error=error)
            self._asked.add(broker_id)
        return ""

    async def _ask(self, address: str) -> bool:
        """Asks one slave; returns False if it does not connect."""
        services, own, before = self._services, self._own(), self._server.connections
        told = ExchangeHAInfoRequestHeader(own.ha, services.store.max_offset, own.broker)
        await self._api.exchange(address, told)
        if not await self._connects(split_address(address)[0], before):
            return False
        offsets = await self._api.table(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        delays = await self._api.table(address, RequestCode.GET_ALL_DELAY_OFFSET)
        version, table = await asyncio.to_thread(decode_consumer_offsets, offsets)
        services.store.dispatch()
        taken = await in_turns(services.offsets.take(version, table, self._exist))
        services.clamp_offsets()
        services.offsets.persist()
        delays_taken = services.schedule.take(*decode_delay_offsets(delays)) if delays else False
        event(
            logger,
            logging.INFO,
            "progress of a slave fetched",
            address=address,
            offsets="taken over" if taken else "older than here",
            delays="taken over" if delays_taken else "older than here",
        )
        return True

    def _exist(self, topic: str, group: str) -> bool:
        return group in self._services.groups.table and self._services.topics.get(topic) is not None

    async def _connects(self, host: str, before: int) -> bool:
        """Waits until the slave has connected; returns False if it takes too long.

        Args:
            host: where the slave is.
            before: number of connections of slaves before it was told of this master.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                while self._server.connections == before and not self._has_slave_at(host):
                    await asyncio.sleep(_TICK_S)
        except TimeoutError:
            return False
        return True

    def _has_slave_at(self, host: str) -> bool:
        return any(split_address(slave.address)[0] == host for slave in self._server.slaves)
