"""Tells brokers who their master is now (RocketMQ 5.3.3, ``ControllerManager.notifyBrokerRoleChanged``; request 1008).

The requests are oneway. Each broker also asks for its master every 5 seconds, so a lost notice costs that long. Event
loop only.
"""

from __future__ import annotations

import logging

from rucola.controller.elect import Liveness
from rucola.controller.group import BrokerGroup
from rucola.controller.replicas_info import master_header
from rucola.protocol.bodies.controller import SyncStateSet
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class RoleNotices:
    """Sends the notices.

    Args:
        options: account and TLS of the connections to brokers.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._client = RemotingClient(options)
        self._is_closed = False

    def send(self, group: BrokerGroup, live: Liveness) -> None:
        """Tells the members of a group that live; does nothing if there is no master, or after ``close``."""
        master = group.master_broker_id
        if master is None or self._is_closed:
            return
        event(
            logger,
            logging.INFO,
            "broker has become the master",
            group=group.broker_name,
            id=master,
            address=group.master_address,
            epoch=group.master_epoch,
        )
        body = SyncStateSet(group.sync_state_set, group.sync_state_set_epoch).encode()
        fields = master_header(group).to_ext_fields()
        for broker_id, member in group.members.items():
            if live.info(group, broker_id) is not None:
                command = RemotingCommand(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext_fields=dict(fields), body=body)
                self._client.invoke_oneway(member.address, command)

    async def close(self) -> None:
        """Closes the connections."""
        self._is_closed = True
        await self._client.close()
