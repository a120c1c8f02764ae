"""A cluster with a live consumer and producer, for tests of administration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.brokers import Cluster, properties_text

from rucola.common.topic_config import TopicConfig
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient

CLIENT_ID = "10.0.0.9@1#2"


class Administered:
    """A cluster with topic T_live: two queues of four messages, half of them consumed by G_live."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.told: list[RemotingCommand] = []
        """Requests that the broker sent to the consumer."""
        self.consumer = RemotingClient()
        for code, body in (
            (RequestCode.GET_CONSUMER_RUNNING_INFO, b'{"properties":{"PROP_CLIENT_VERSION":"V5_3_3"}}'),
            (RequestCode.CONSUME_MESSAGE_DIRECTLY, b'{"consumeResult":"CR_SUCCESS"}'),
        ):
            self.consumer.register_processor(code, self._taker(body))
        self.message_id = ""

    def _taker(self, body: bytes) -> Any:
        def take(_address: str, command: RemotingCommand) -> RemotingCommand:
            self.told.append(command)
            return command.answer(0, body=body)

        return take

    async def fill(self) -> None:
        cluster = self.cluster
        await cluster.broker.topics.update(TopicConfig("T_live", 2, 2, 6))
        await self.beat()
        for number in range(8):
            text = properties_text(UNIQ_KEY=f"U{number}", KEYS=f"live{number}", TAGS="TagA", WAIT="true")
            answer = await cluster.send("T_live", f"message {number}".encode(), text, queue_id=number % 2)
            self.message_id = self.message_id or answer.ext_fields["msgId"]
        for queue_id in (0, 1):
            cluster.broker.offsets.commit("G_live", "T_live", queue_id, 2)

    async def beat(self, version: int = 479) -> None:
        names = ("T_live", "%RETRY%G_live")
        consumer = ConsumerData("G_live", subscription_data_set=[SubscriptionData(name, "*") for name in names])
        data = HeartbeatData(CLIENT_ID, [ProducerData("G_live_P")], [consumer])
        beat = RemotingCommand(34, body=data.encode(), version=version)
        await self.consumer.invoke(self.cluster.broker.address, beat, 5000)

    async def ask(self, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
        return await self.cluster.ask(code, {name: str(value) for name, value in fields.items()}, body)

    async def ask_namesrv(self, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        command = RemotingCommand(code, ext_fields=fields, body=body)
        return await self.cluster.client.invoke(self.cluster.namesrv.address, command, 5000)


@asynccontextmanager
async def administered(store: Path, **options: Any) -> AsyncIterator[Administered]:
    async with Cluster(store, **options) as cluster:
        found = Administered(cluster)
        try:
            await found.fill()
            yield found
        finally:
            await found.consumer.close()
