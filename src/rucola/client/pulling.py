"""Pulls for consumers: selects the broker, builds the request, decodes the response.

Source: RocketMQ 5.3.3, ``PullAPIWrapper``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rucola.client.instance import ClientInstance
from rucola.client.message_selector import ExpressionType
from rucola.client.pull_result import PullStatus
from rucola.client.received import PullOrigin, ReceivedMessage
from rucola.client.subscription import selected
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.sysflag import PullSysFlag
from rucola.errors import BrokerError, RemotingError, RucolaError
from rucola.protocol.bodies.heartbeat import SubscriptionData
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.remoting.api import RemotingApi

_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}
_MASTER_ID = 0
_LITE = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL)
_SUSPEND = int(PullSysFlag.SUSPEND)
_COMMIT = int(PullSysFlag.COMMIT_OFFSET)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)


class Pulled(NamedTuple):
    """Result of a pull.

    Attributes:
        status: outcome of the pull.
        next_begin_offset: queue offset to pull from next.
        messages: messages that match the subscription; may be empty even if the status is FOUND.
    """

    status: PullStatus
    next_begin_offset: int
    messages: Sequence[MessageExt]


class Puller:
    """Pulls messages for one group.

    Args:
        instance: the client.
        api: sends the requests.
        group: the consumer group.
        max_messages: largest number of messages per pull.
        suspend_ms: how long brokers hold a pull that finds no message.
        timeout_ms: timeout of a pull.
        lite: whether the consumer is a lite pull consumer, whose pulls always include the subscription.
        post_subscription: whether the pulls of a push consumer include the subscription.
    """

    def __init__(
        self,
        instance: ClientInstance,
        api: RemotingApi,
        group: str,
        max_messages: int,
        suspend_ms: int,
        timeout_ms: int,
        *,
        lite: bool = False,
        post_subscription: bool = False,
    ) -> None:
        self._instance, self._api, self._group = instance, api, group
        self._max_messages, self._suspend_ms, self._timeout_ms = max_messages, suspend_ms, timeout_ms
        self._lite = lite
        self._post_subscription = post_subscription or lite
        self._suggested: dict[MessageQueue, int] = {}
        self._without_lite: set[str] = set()

    async def pull(
        self, queue: MessageQueue, queue_offset: int, subscription: SubscriptionData, commit_offset: int | None = None
    ) -> Pulled:
        """Pulls once; the broker waits if there are no messages.

        Args:
            queue: the queue.
            queue_offset: first queue offset to read.
            subscription: the filter.
            commit_offset: the group's consumer offset, for the broker to store.

        Raises:
            BrokerError: the broker refuses.
            RemotingError: the broker cannot be reached, or does not respond in time.
            ClientError: no route leads to the broker.
            FormatError: the response does not contain valid records.
        """
        routes = self._instance.routes
        await routes.route(queue.topic)
        address = routes.broker(queue.broker_name, self._suggested.get(queue, _MASTER_ID))
        commits = commit_offset is not None and routes.brokers[queue.broker_name].get(_MASTER_ID) == address
        header = self._header(queue, queue_offset, subscription, commit_offset if commits else None)
        lite = self._lite and queue.broker_name not in self._without_lite
        try:
            answer = await self._api.pull_message(address, header, self._timeout_ms, lite)
        except BrokerError as error:
            if not lite or error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            # brokers before 5.0 know no LITE_PULL_MESSAGE, only PULL_MESSAGE with the flag LITE_PULL
            self._without_lite.add(queue.broker_name)
            return await self.pull(queue, queue_offset, subscription, commit_offset)
        except RemotingError:
            self._suggested.pop(queue, None)
            if routes.refresh_wanted(queue.topic):
                self._instance.keep(self._refresh(queue.topic))
            raise
        found = answer.header
        self._suggested[queue] = found.suggest_which_broker_id
        messages: Sequence[MessageExt] = ()
        if answer.body and answer.code == ResponseCode.SUCCESS:
            origin = PullOrigin(queue.broker_name, found.min_offset, found.max_offset)
            messages = selected(ReceivedMessage.of_records(answer.body, origin, queue_offset), subscription)
        return Pulled(_STATUS[answer.code], found.next_begin_offset, messages)

    def forget(self, queue: MessageQueue) -> None:
        """Removes the state of a queue that is no longer pulled."""
        self._suggested.pop(queue, None)

    def _header(
        self, queue: MessageQueue, queue_offset: int, subscription: SubscriptionData, commit_offset: int | None
    ) -> PullMessageRequestHeader:
        sys_flag = _LITE if self._lite else _SUSPEND
        if commit_offset is not None:
            sys_flag |= _COMMIT
        if self._post_subscription:
            sys_flag |= _SUBSCRIPTION
        return PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=self._max_messages,
            sys_flag=sys_flag,
            commit_offset=commit_offset or 0,
            suspend_timeout_millis=self._suspend_ms,
            sub_version=0
            if self._lite and subscription.expression_type == ExpressionType.TAG
            else subscription.sub_version,
            subscription=subscription.sub_string if self._post_subscription else None,
            expression_type=subscription.expression_type,
            broker_name=queue.broker_name,
        )

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.routes.refresh(topic)
        except RucolaError:
            return  # the old route stays, and the next pull reports the error
