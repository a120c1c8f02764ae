"""Tells brokers that the smallest id of their group is another (RocketMQ 5.3.3, ``notifyMinBrokerIdChanged``).

The requests are oneway and unsigned: a broker with access control refuses them, and so does one that is gone. Each
broker asks for its group every second, so a lost notice costs a second. Event loop only.
"""

from __future__ import annotations

import logging

from rucola.namesrv.route_info import MinBrokerIdChange
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.route import NotifyMinBrokerIdChangeRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class MinBrokerIdNotices:
    """Sends the notices."""

    def __init__(self) -> None:
        self._client = RemotingClient()
        self._is_closed = False

    def send(self, change: MinBrokerIdChange) -> None:
        """Tells the brokers that ``change`` names; does nothing after ``close``, when the server's connections end."""
        if self._is_closed:
            return
        event(
            logger,
            logging.INFO,
            "smallest broker id changed",
            broker=change.broker_name,
            id=change.min_broker_id,
            address=change.min_broker_address,
        )
        header = NotifyMinBrokerIdChangeRequestHeader(
            change.min_broker_id,
            change.broker_name,
            change.min_broker_address,
            change.offline_address or None,
            change.ha_address or None,
        )
        for address in change.told:
            command = RemotingCommand(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ext_fields=header.to_ext_fields())
            self._client.invoke_oneway(address, command)

    async def close(self) -> None:
        """Closes the connections."""
        self._is_closed = True
        await self._client.close()
