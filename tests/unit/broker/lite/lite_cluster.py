"""A broker with lite topics behind a socket, and requests about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.brokers import Cluster, properties_text

from rucola.broker.lite.attributes import BIND_TOPIC
from rucola.broker.lite.delivery import LiteDelivery
from rucola.common.message import StoreMessage
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.formats.message import decode_messages
from rucola.protocol import fastjson
from rucola.protocol.command import RemotingCommand
from rucola.runtime.clock import SystemClock

POP_LITE, SUBSCRIBE, NOTIFY, DISPATCH, ACK, CHANGE, BATCH_ACK = 200070, 200071, 200073, 200079, 200051, 200053, 200151
SUCCESS, POLLING_FULL, POLLING_TIMEOUT = 0, 209, 210
PARENT, GROUP = "Parent", "readers"


class LiteCluster(Cluster):
    """It has the parent ``Parent`` and the group ``readers``."""

    def __init__(self, store: Path, **options: Any) -> None:
        stores = {"enable_lmq": True, "enable_multi_dispatch": True} | options.pop("stores", {})
        super().__init__(store, stores=stores, **options)

    async def __aenter__(self) -> LiteCluster:
        await super().__aenter__()
        self.parent(PARENT)
        self.group(GROUP)
        return self

    @property
    def delivery(self) -> LiteDelivery:
        return self.broker.running.lite_delivery()

    def parent(self, topic: str, **attributes: str) -> None:
        self.broker.topics.update_all([TopicConfig(topic, 4, 4, attributes={MESSAGE_TYPE: "LITE"} | attributes)])

    def group(self, group: str, parent: str = PARENT, consume_enable: bool = True, **attributes: str) -> None:
        """Creates a group that reads lite topics; an attribute's name has ``_`` instead of ``.``."""
        texts = {f"lite.{name.replace('_', '.')}": value for name, value in attributes.items()}
        self.broker.groups.update(
            SubscriptionGroupConfig(group, consume_enable=consume_enable, attributes={BIND_TOPIC: parent} | texts)
        )

    def put(self, lite: str, *bodies: str, parent: str = PARENT) -> None:
        """Stores messages of a lite topic."""
        texts = {"__LITE_TOPIC": lite, "INNER_MULTI_DISPATCH": f"%LMQ%${parent}${lite}"}
        for body in bodies:
            properties = properties_text(**texts).encode()
            host = bytes(4) + (10911).to_bytes(4, "big")
            self.broker.store.put_message(StoreMessage(parent.encode(), 0, body.encode(), properties, 0, host))

    async def subscribe(
        self, action: str, *lites: str, client: str = "c", group: str = GROUP, topic: str = PARENT, **more: Any
    ) -> RemotingCommand:
        entry = {"action": action, "clientId": client, "group": group, "topic": topic, "liteTopicSet": lites} | more
        return await self.ask(SUBSCRIBE, body=fastjson.dumps({"subscriptionSet": [entry]}))

    async def add(self, *lites: str, **more: Any) -> None:
        assert (await self.subscribe("PARTIAL_ADD", *lites, **more)).code == SUCCESS

    async def pop(self, client: str = "c", poll_ms: int = 0, **changes: Any) -> RemotingCommand:
        fields = {
            "clientId": client,
            "consumerGroup": GROUP,
            "topic": PARENT,
            "maxMsgNum": 32,
            "invisibleTime": 60_000,
            "pollTime": poll_ms,
            "bornTime": SystemClock().wall_ms(),
        } | changes
        return await self.ask(POP_LITE, {name: str(value) for name, value in fields.items()}, timeout_ms=90_000)

    async def take(self, client: str = "c", poll_ms: int = 0, **changes: Any) -> list[str]:
        """Pops; returns the bodies."""
        return bodies(await self.pop(client, poll_ms, **changes))

    async def ack(self, answer: RemotingCommand, lite: str, number: int, /, **changes: Any) -> RemotingCommand:
        return await self.ask(ACK, receipt_fields(answer, lite, number) | changes)

    async def change(self, answer: RemotingCommand, lite: str, number: int, /, **changes: Any) -> RemotingCommand:
        return await self.ask(CHANGE, receipt_fields(answer, lite, number) | {"invisibleTime": "1000"} | changes)


def receipt_fields(answer: RemotingCommand, lite: str, offset: int) -> dict[str, str]:
    fields = answer.ext_fields
    return {
        "consumerGroup": GROUP,
        "topic": PARENT,
        "queueId": "0",
        "offset": str(offset),
        "liteTopic": lite,
        "extraInfo": f"0 {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 broker-a 0 {offset}",
    }


def bodies(answer: RemotingCommand) -> list[str]:
    assert answer.code in (SUCCESS, POLLING_TIMEOUT), (answer.code, answer.remark)
    return [message.body.decode() for message in decode_messages(answer.body)]


def counts(answer: RemotingCommand) -> str:
    return answer.ext_fields["orderCountInfo"]
