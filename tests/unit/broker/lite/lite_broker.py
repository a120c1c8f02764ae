"""A stepped broker with lite topics."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar, cast

from tests.unit.broker.stepped import Asked, SteppedBroker

from rucola.broker.lite.attributes import BIND_TOPIC
from rucola.broker.lite.offsets import LiteOffsets
from rucola.broker.processor.topic_manage import TopicManageProcessor
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.protocol.bodies import Body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.store.lite.lite_topics import LiteTopics

T = TypeVar("T")
PARENT, GROUP = "Parent", "readers"


class LiteBroker(SteppedBroker):
    """It has the parent ``Parent`` and the group ``readers``, which reads its lite topics.

    Args:
        options: options of the broker, by field.
        stores: options of its store.
    """

    def __init__(self, stores: dict[str, Any] | None = None, **options: Any) -> None:
        self._options, self._stores = options, stores or {}
        super().__init__()
        self.parent(PARENT)
        self.group(GROUP, PARENT)

    def open(self) -> None:
        self.config = replace(self.config, **{"enable_lmq": True, "enable_multi_dispatch": True} | self._stores)
        self.options = replace(self.options, **self._options)
        super().open()

    def parent(self, topic: str, queues: int = 4, **attributes: str) -> None:
        """Creates the parent of lite topics."""
        attributes = {MESSAGE_TYPE: "LITE"} | {name.replace("_", "."): value for name, value in attributes.items()}
        self.broker.topics.update_all([TopicConfig(topic, queues, queues, attributes=attributes)])
        self._happen()

    def group(self, group: str, parent: str, **attributes: str) -> None:
        """Creates a group that reads lite topics."""
        attributes = {BIND_TOPIC: parent} | {name.replace("_", "."): value for name, value in attributes.items()}
        self.broker.groups.update(SubscriptionGroupConfig(group, attributes=attributes))
        self._happen()

    def send_lite(self, lite: str, topic: str = PARENT, queue_id: int = 0, **properties: str) -> Asked:
        return self.send(topic, b"body", queue_id, **{"__LITE_TOPIC": lite} | properties)

    @property
    def topics(self) -> LiteTopics:
        assert self.broker.store.lite is not None
        return self.broker.store.lite

    @property
    def offsets(self) -> LiteOffsets:
        assert self.broker.services.lite_offsets is not None
        return self.broker.services.lite_offsets

    def id(self, lite: str, parent: str = PARENT) -> int:
        return self.topics.names.find(f"{parent}${lite}".encode())

    def range(self, lite: str, parent: str = PARENT) -> tuple[int, int]:
        """Offsets of the oldest message of a lite topic, and after the newest."""
        self.broker.store.dispatch()
        return self.broker.store.queue_range(f"%LMQ%${parent}${lite}".encode(), 0)

    def work(self, steps: Coroutine[Any, Any, T]) -> T:
        """Runs what would be a task of the loop; returns its result."""
        while True:
            asyncio._set_running_loop(cast(Any, self.loop))
            try:
                steps.send(None)
            except StopIteration as end:
                return cast(T, end.value)
            finally:
                asyncio._set_running_loop(None)
            self._happen()

    def look(self) -> None:
        """Looks for lite topics whose time is over."""
        life = self.broker.running.lite_life
        assert life is not None
        self.broker.store.dispatch()
        self.work(life.look())
        self.settle()

    def delete(self, topic: str) -> RemotingCommand:
        """Deletes a topic by request."""
        services, running = self.broker.services, self.broker.running
        processor = TopicManageProcessor(services, running.hold, running.lite_life)
        command = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, 1, ext_fields={"topic": topic})
        answer = processor.delete_topic(self.connection, command)
        self._happen()
        if isinstance(answer, Coroutine):
            answer = self.work(answer)
        self.settle()
        return cast(RemotingCommand, answer.result() if isinstance(answer, asyncio.Future) else answer)

    def settle(self) -> None:
        """Lets deletions take effect."""
        self.broker.store.dispatch()
        self.keep()
        self.broker.store.dispatch()

    def ask_body(self, code: int, body: type[Body], fields: dict[str, object]) -> Any:
        """Sends a request that succeeds; returns the body of the response."""
        answer = self.request(code, fields).answer
        assert answer is not None and answer.code == 0, answer
        return body.decode(answer.body)
