"""Creates, changes, lists and deletes topics by request (RocketMQ 5.3.3, ``AdminBrokerProcessor``; requests 17, 18, 21,
215, 305, 316, 351).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING

from rucola.broker.processor.responses import success
from rucola.broker.processor.whole_table import Encode, WholeTable
from rucola.broker.pull.request import PullRequestHold
from rucola.broker.registration import answer_when_told
from rucola.broker.services import BrokerServices
from rucola.broker.topic.topic_attributes import change_topic_attributes
from rucola.broker.topic.topic_removal import TopicRemoval
from rucola.broker.topic.topic_validator import system_names, validate_topic
from rucola.common.key_builder import SYSTEM_TOPICS, is_light_queue, is_system_topic, lite_parts
from rucola.common.topic_config import MESSAGE_TYPE, MIXED, TopicConfig, TopicFilterType
from rucola.errors import BrokerError
from rucola.protocol import fastjson
from rucola.protocol.bodies.configs import CreateTopicListRequestBody
from rucola.protocol.bodies.registration import TopicConfigSerializeWrapper
from rucola.protocol.bodies.topic_list import TopicList
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.admin import CreateTopicRequestHeader, DeleteTopicRequestHeader, TopicRequestHeader
from rucola.remoting.fairness.steps import Steps, in_turns
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel

if TYPE_CHECKING:
    from rucola.broker.lite.life import LiteLife

QUEUES_MAX = 4096
"""Largest number of queues of a topic. It is limited because pops, resets and assignments process all queues of a topic
without a pause, at 20 µs each.
"""


class TopicManageProcessor:
    """Manages topics."""

    def __init__(self, services: BrokerServices, hold: PullRequestHold, lite: LiteLife | None = None) -> None:
        self._lite = lite
        self._store = services.store
        self._topics = services.topics
        self._offsets = services.offsets
        self._removal = TopicRemoval(services, hold)
        self._whole = WholeTable(self._copy, lambda: self._topics.data_version)
        self._cleaning = asyncio.Lock()
        config = self._config = services.config
        self._system_names = system_names(config.broker_cluster_name, config.broker_name)
        if config.trace_topic_enable:
            self._system_names |= {config.msg_trace_topic_name}

    def update_topic(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 17: creates or changes a topic; answers when each name server is told or unreachable."""
        header = CreateTopicRequestHeader.from_ext_fields(command.ext_fields)
        if header.topic_filter_type not in TopicFilterType.__members__:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"unknown topicFilterType {header.topic_filter_type}")
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            TopicFilterType[header.topic_filter_type],
            header.topic_sys_flag or 0,
            header.order,
        )
        self._check(config)
        known = self._topics.get(header.topic)
        attributes = change_topic_attributes(known.attributes if known else None, header.attributes or "")
        return self._store_topics(command, [replace(config, attributes=attributes)])

    def update_topics(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 18: creates or changes several topics, all or none."""
        configs = CreateTopicListRequestBody.decode(command.body).topic_config_list
        changed = []
        for config in configs:
            self._check(config)
            known = self._topics.get(config.topic_name)
            # The request may repeat attributes that the topic already has; these do not count as changes, so even
            # unchangeable ones are accepted. A key may begin with "+", as on the command line.
            wanted = {key.removeprefix("+"): value for key, value in config.attributes.items()}
            old = dict(known.attributes) if known else {}
            changes = ",".join(f"+{key}={value}" for key, value in wanted.items() if old.get(key) != value)
            changed.append(replace(config, attributes=change_topic_attributes(old if known else None, changes)))
        return self._store_topics(command, changed)

    def delete_topic(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 215: deletes a topic together with its POP retry topics, whose names may be of version 1 or 2. The
        response waits until the deletion is synced.
        """
        topic = DeleteTopicRequestHeader.from_ext_fields(command.ext_fields).topic
        self._refuse_system_topic(topic)
        if self._topics.get(topic) is None and not is_light_queue(topic):
            validate_topic(topic)
        retry_topics = [
            name
            for group in self._offsets.groups_of(topic)
            for name in (f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}")
            if self._topics.get(name) is not None
        ]
        written = [future for name in (topic, *retry_topics) for future in self._removal.remove(name)]
        answer = answer_when_told(success(command), written)
        if self._lite is None or not self._lite.has_of(topic):
            return answer
        return self._lite_removed(self._lite, topic, answer)

    @staticmethod
    async def _lite_removed(lite: LiteLife, topic: str, answer: Answer | Awaitable[Answer]) -> Answer:
        """Removes the lite topics of a deleted parent, or the offsets and readers of a deleted lite topic."""
        if (parts := lite_parts(topic)) is not None:
            lite.remove(["$".join(parts).encode("utf-8", "surrogateescape")])
        await in_turns(lite.remove_parent(topic.encode("utf-8", "surrogateescape")))
        await lite.written()
        return await answer if isinstance(answer, Awaitable) else answer

    def all_topics(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 21: all topics in one response, even if the request asks for pages, as in RocketMQ."""
        return self._whole.answer(command)

    def _copy(self) -> Encode:
        return TopicConfigSerializeWrapper(self._topics.table.copy(), self._topics.data_version).encode

    def topic_config(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 351: a topic's configuration."""
        topic = TopicRequestHeader.from_ext_fields(command.ext_fields).topic
        config = self._topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(config.to_dict()))

    def system_topics(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 305: the system topics."""
        own = [name for name in self._topics.table if self._is_system_topic(name)]
        return success(command, None, TopicList(sorted({*SYSTEM_TOPICS, *self._system_names, *own})))

    async def clean_unused(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 316: removes the queues of topics that are no longer in the table. One such request runs at a time;
        other requests are served in between.
        """
        async with self._cleaning:
            written = await in_turns(self._clean(await asyncio.to_thread(self._store.topics_with_queues)))
            await asyncio.gather(*written)
        return success(command)

    def _clean(self, topics: set[bytes]) -> Steps[list[asyncio.Future[None]]]:
        written: set[asyncio.Future[None]] = set()
        for topic in topics:
            name = topic.decode("utf-8", "surrogateescape")
            if self._topics.get(name) is None and not self._is_system_topic(name) and not is_light_queue(name):
                written.update(future for future in self._removal.remove(name) if future is not None)
            yield
        return list(written)

    def _check(self, config: TopicConfig) -> None:
        """Refuses topic configurations that no request may set."""
        self._refuse_system_topic(config.topic_name)
        validate_topic(config.topic_name)
        queues = (config.read_queue_nums, config.write_queue_nums)
        if not all(0 <= number <= QUEUES_MAX for number in queues) or not 0 <= config.perm <= 15:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"queues {queues} and perm {config.perm}: 0 to {QUEUES_MAX} queues and a perm of 0 to 15 are allowed",
            )

    def _store_topics(self, command: RemotingCommand, configs: list[TopicConfig]) -> Answer | Awaitable[Answer]:
        for config in configs:
            if config.attributes.get(MESSAGE_TYPE) == MIXED and not self._config.enable_mixed_message_type:
                raise BrokerError(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        changed = [config for config in configs if config != self._topics.get(config.topic_name)]
        # A topic that looks unchanged may have been changed by an earlier request that still waits for its response.
        told = [self._topics.registering(config.topic_name) for config in configs]
        if changed:
            told.append(self._topics.update_all(changed))
        return answer_when_told(success(command), told)

    def _is_system_topic(self, topic: str) -> bool:
        return is_system_topic(topic) or topic in self._system_names

    def _refuse_system_topic(self, topic: str) -> None:
        if self._is_system_topic(topic):
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
