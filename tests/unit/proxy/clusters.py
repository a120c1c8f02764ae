"""A name server, two brokers, and doors in front of them, all on the test's event loop; and clients of the doors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.unit.proxy.doors import DoorClient

from rucola.broker import Broker, BrokerConfig
from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.proxy import messages
from rucola.proxy.brokers import ServerRequest
from rucola.proxy.cluster import ClusterBrokers
from rucola.proxy.cluster_access import ClusterAccess
from rucola.proxy.door import DoorConfig, GrpcDoor
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.remoting.signer import RequestSigner
from rucola.runtime.clock import SystemClock
from rucola.runtime.supervision import Supervisor
from rucola.store.config import MessageStoreConfig

QUEUES = 4
LIMIT_S = 40.0


class Door:
    """One door.

    Attributes:
        brokers: its brokers.
    """

    brokers: ClusterBrokers

    def __init__(
        self, cluster: TwoBrokers, options: ClientOptions | None = None, access: ClusterAccess | None = None
    ) -> None:
        def make(asked: ServerRequest) -> ClusterBrokers:
            self.brokers = ClusterBrokers(cluster.namesrv.address, cluster.monotonic, asked, options, access)
            return self.brokers

        self.door = GrpcDoor(DoorConfig("127.0.0.1", 0), make, SystemClock(), Supervisor(), access)

    async def stop(self) -> None:
        await self.door.stop()
        await self.brokers.close()


class TwoBrokers:
    """The brokers ``a`` and ``b``; use it as ``async with``."""

    def __init__(self, path: Path, **broker: Any) -> None:
        self._path, self._options = path, broker
        self._later_s = 0.0
        self.brokers: dict[str, Broker] = {}
        self._doors: list[Door] = []
        self._clients: list[Client] = []

    def monotonic(self) -> float:
        """The clock of the doors' look-ups."""
        return time.monotonic() + self._later_s

    def later(self, seconds: float) -> None:
        """Moves this clock."""
        self._later_s += seconds

    async def __aenter__(self) -> Self:
        self.remoting = RemotingClient()
        self.api = AdminApi(self.remoting)
        self.namesrv = await self.name_server(0)
        await self.start("a")
        await self.start("b")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for client in self._clients:
            client.close()
        for door in self._doors:
            await door.stop()
        await self.remoting.close()
        for name in list(self.brokers):
            await self.stop(name)
        await self.namesrv.shutdown()

    def sign(self, signer: RequestSigner) -> None:
        """Has this object's own requests signed."""
        self.remoting = RemotingClient(ClientOptions(signer=signer))
        self.api = AdminApi(self.remoting)

    async def name_server(self, port: int) -> NameServer:
        server = NameServer(NamesrvConfig(listen_port=port))
        await server.start()
        return server

    async def start(self, name: str, port: int = 0) -> None:
        config = BrokerConfig(namesrv_addr=self.namesrv.address, broker_name=name, listen_port=port, **self._options)
        store = MessageStoreConfig(
            store_path_root_dir=str(self._path / name),
            mapped_file_size_commit_log=4 * 1024 * 1024,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=5_000,
            max_index_num=20_000,
        )
        broker = Broker(config, store)
        await broker.start()
        self.brokers[name] = broker

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).shutdown()

    async def create(self, topic: str, kind: str = "NORMAL", names: Sequence[str] = ("a", "b")) -> None:
        for name in names:
            config = TopicConfig(topic, QUEUES, QUEUES)
            await self.api.change_topic(self.brokers[name].address, config, f"+message.type={kind}")

    async def join(self, group: str, topic: str, in_order: bool = False) -> None:
        """Creates a group whose consumption of a topic begins at its first message."""
        for broker in self.brokers.values():
            await self.api.change_group(
                broker.address, SubscriptionGroupConfig(group, consume_message_orderly=in_order)
            )
            for queue_id in range(QUEUES if topic in broker.topics.table else 0):
                queue = MessageQueue(topic, broker.config.broker_name, queue_id)
                await self.api.update_consumer_offset(broker.address, group, queue, 0)

    def waiting_polls(self, name: str) -> int:
        """Number of polls that wait at a broker."""
        return len(self.brokers[name].services.pops.get().hold)

    async def stored(self, topic: str) -> dict[str, list[int]]:
        """Number of messages in each queue of each broker."""
        return {
            name: [
                await self.api.max_offset(broker.address, MessageQueue(topic, name, queue_id))
                for queue_id in range(QUEUES)
            ]
            for name, broker in self.brokers.items()
        }

    async def door(self, options: ClientOptions | None = None, access: ClusterAccess | None = None) -> Door:
        door = Door(self, options, access)
        self._doors.append(door)
        await door.door.start()
        return door

    async def client(self, door: Door | None = None, name: str = "me", secret: tuple[str, str] | None = None) -> Client:
        client = Client(name, secret)
        await client.connect((door or await self.door()).door.address)
        self._clients.append(client)
        return client


class Client(DoorClient):
    """A client with what these tests do often."""

    async def route(self, topic: str) -> Any:
        """Asks for the route of a topic."""
        address = messages.Address(host="front", port=1)
        endpoints = messages.Endpoints(scheme=messages.DOMAIN_NAME, addresses=[address])
        request = messages.QueryRouteRequest(topic=messages.Resource(name=topic), endpoints=endpoints)
        return await self.call("QueryRoute", request)

    async def end(self, topic: str, transaction_id: str, message_id: str, resolution: int) -> int:
        """Ends a transaction; returns the code."""
        request = messages.EndTransactionRequest(
            topic=messages.Resource(name=topic),
            transaction_id=transaction_id,
            message_id=message_id,
            resolution=resolution,
        )
        code: int = (await self.call("EndTransaction", request)).status.code
        return code


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Waits until ``check()`` gives True."""
    async with asyncio.timeout(LIMIT_S):
        while not await check():
            await asyncio.sleep(0.05)
