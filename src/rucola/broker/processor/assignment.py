"""Assigns queues to clients, for pulls or pops (RocketMQ 5.3.3, ``QueryAssignmentProcessor``; requests 400 to 402)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from rucola.broker.client.consumer_manager import BROADCASTING, ConsumerManager
from rucola.broker.config import BrokerConfig
from rucola.broker.pop.allocate import STRATEGIES, allocate, allocate_for_pop
from rucola.broker.pop.request_mode import POP, PULL, RequestMode, RequestModeManager
from rucola.broker.processor.responses import success
from rucola.broker.registration import answer_when_told
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.broker.topic_queues import TopicQueues
from rucola.common.key_builder import is_retry_topic
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError
from rucola.protocol import fastjson
from rucola.protocol.bodies.pop import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.fairness.resumed import Resumed
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel


class AssignmentProcessor:
    """Serves queue assignments."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        consumers: ConsumerManager,
        modes: RequestModeManager,
        topic_queues: TopicQueues,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._modes = modes
        self._topic_queues = topic_queues
        self._resumed = Resumed()

    def query(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 400: the queues of a client."""
        body = QueryAssignmentRequestBody.decode(command.body)
        kept = self._topic_queues.known(body.topic)
        return self._when_found(command, body) if kept is None else self._assignment(command, body, kept.queues)

    async def _when_found(self, command: RemotingCommand, body: QueryAssignmentRequestBody) -> RemotingCommand:
        queues = await self._topic_queues.find(body.topic)
        await self._resumed.turn()
        return self._assignment(command, body, queues)

    def _assignment(
        self, command: RemotingCommand, body: QueryAssignmentRequestBody, queues: list[MessageQueue] | None
    ) -> RemotingCommand:
        mode = self._modes.get(body.topic, body.consumer_group)
        if mode is None:
            # A consumer's own retry topic is always pulled, even if the group pops its topics.
            usual = PULL if is_retry_topic(body.topic) else self._config.default_message_request_mode
            mode = RequestMode(usual, self._config.default_pop_share_queue_num)
        answer = QueryAssignmentResponseBody()
        if queues is not None and body.message_model != BROADCASTING:
            queues = self._allocated(body, queues, mode)
        if queues is not None:
            answer.message_queue_assignments = [MessageQueueAssignment(queue, mode.mode) for queue in queues]
        return success(command, body=answer)

    def set_mode(self, channel: Channel, command: RemotingCommand) -> Answer | asyncio.Future[Answer]:
        """Request 401: sets whether a group pulls or pops a topic.

        Raises:
            BrokerError: the topic or the group does not exist, or the topic is a retry topic.
        """
        body = SetMessageRequestModeRequestBody.decode(command.body)
        if is_retry_topic(body.topic):
            raise BrokerError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._topics.get(body.topic) is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        if self._groups.find(body.consumer_group) is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if body.mode not in (PULL, POP):
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"mode {body.mode[:32]} is neither PULL nor POP")
        mode = RequestMode(body.mode, body.pop_share_queue_num)
        return answer_when_told(success(command), [self._modes.set(body.topic, body.consumer_group, mode)])

    def all_modes(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 402: all modes that were set with request 401, for slaves."""
        return command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(self._modes.to_dict()))

    def _allocated(
        self, body: QueryAssignmentRequestBody, queues: list[MessageQueue], mode: RequestMode
    ) -> list[MessageQueue] | None:
        info = self._consumers.group(body.consumer_group)
        if info is None or body.strategy_name not in STRATEGIES:
            return None
        client_ids = sorted(info.client_ids())
        if mode.mode == POP:
            return allocate_for_pop(body.strategy_name, body.client_id, queues, client_ids, mode.share)
        return allocate(body.strategy_name, body.client_id, queues, client_ids)
