"""What the other brokers of a group and the name servers tell this one (RocketMQ 5.3.3, ``AdminBrokerProcessor``;
requests 905, 906).

Without access control, whoever reaches the port may send them. So request 905 only makes the broker ask the name
servers at once. Request 906 makes a slave look for its master at another address: one that follows its master does not
listen, and what it finds there must have the same log before anything is taken from it.
"""

from __future__ import annotations

import logging

from rucola.broker.processor.responses import success
from rucola.broker.running_services import RunningServices
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.route import ExchangeHAInfoRequestHeader, NotifyMinBrokerIdChangeRequestHeader
from rucola.remoting.server import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class BrokerGroupProcessor:
    """Listens to the others of the group."""

    def __init__(self, running: RunningServices) -> None:
        self._running = running

    async def min_id_changed(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 905, from a name server: the smallest number that lives is another."""
        NotifyMinBrokerIdChangeRequestHeader.from_ext_fields(command.ext_fields)
        if self._running.group is not None:
            await self._running.group.look()
        return success(command)

    def exchange(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 906: a master tells this slave its addresses, or a slave asks this master for them."""
        header = ExchangeHAInfoRequestHeader.from_ext_fields(command.ext_fields)
        running = self._running
        if not header.master_ha_address:
            if running.slave is not None:
                return success(command, ExchangeHAInfoRequestHeader())
            own = running.master_addresses()
            end = running.services.store.max_offset
            return success(command, ExchangeHAInfoRequestHeader(own.ha or None, end, own.broker))
        if running.slave is not None and not running.slave.is_linked:
            event(
                logger,
                logging.INFO,
                "told of a master",
                peer=channel.remote_address,
                address=header.master_ha_address,
                broker=header.master_address,
            )
            follower = running.slave if running.acting is None else running.acting
            follower.told(header.master_ha_address, header.master_address or "")
        return success(command)
