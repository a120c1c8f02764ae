"""Decides whether a consumer may pull from a queue, and which messages of the queue match (RocketMQ 5.3.3,
``PullMessageProcessor``).

A consumer repeats its requests for the same queues. The decision is kept until topics, groups or subscriptions change,
so most pulls cost one look-up. A pull that filters by properties is checked each time, because its filter can change
while everything else stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from rucola.broker.client.consumer_manager import BROADCASTING, CONSUME_ACTIVELY
from rucola.broker.config import BrokerConfig
from rucola.broker.filter.consumer_filter_manager import SQL92
from rucola.broker.refusals import FAQ, topic_missing
from rucola.broker.services import BrokerServices
from rucola.broker.subscription.subscription_group_manager import is_system_group
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError, FormatError
from rucola.filter import sql
from rucola.filter.tag import parse_tags
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.remoting.channel import Channel

TAG = b"TAG"
_READ = int(PermName.READ)
_LITE = int(RequestCode.LITE_PULL_MESSAGE)
_CHEAP_EXPRESSION_BYTES = 2048
"""Compiling a longer expression takes more than a tenth of ``TURN_S``."""
_KEPT_MAX = 16_384
_KEPT_EXPRESSION_BYTES_MAX = 256
"""The decision on a pull with a longer expression is not kept, because a client may send a new expression each time."""


class RepeatedFields(NamedTuple):
    """The fields of a pull that are the same in the consumer's next pull from that queue.

    Attributes:
        code: request code, 11 or 361.
        sub_version: the oldest acceptable version of the group's subscription; None if the request has its own.
        expression, expression_type: the subscription in the request; both empty if it has none.
    """

    topic: bytes
    group: bytes
    queue_id: int
    code: int
    sub_version: int | None
    expression: bytes
    expression_type: bytes


@dataclass(slots=True, eq=False)
class Admission:
    """The part of a queue that a consumer may read."""

    consumer: tuple[str, str, int]
    """Group, topic, queue id."""
    queue: tuple[bytes, int]
    """Topic, queue id."""
    lite: bool = False
    """Whether only ``litePullMessageEnable`` permits it."""
    tag_codes: frozenset[int] | None = None
    """Tag codes that match; None matches everything."""
    expression: sql.SqlExpression | None = None
    """The SQL92 expression; if it is set, ``tag_codes`` is None."""
    version: int = -1
    """Version of topics, groups and subscriptions at the time of the check; -1 if it is unknown whether the check is
    still valid.
    """


class ForbiddenType(IntEnum):
    """Reasons to forbid a pull (RocketMQ 5.3.3)."""

    BROKER_FORBIDDEN = 1
    GROUP_FORBIDDEN = 2
    TOPIC_FORBIDDEN = 3
    BROADCASTING_DISABLE_FORBIDDEN = 4
    SUBSCRIPTION_FORBIDDEN = 5


class PullForbiddenError(BrokerError):
    """NO_PERMISSION for a pull, with the reason as a number for clients."""

    def __init__(self, forbidden_type: ForbiddenType, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.ext_fields = {"forbiddenType": str(int(forbidden_type))}


class NotCompiledError(Exception):
    """The expression of a pull must be compiled before the pull can be admitted.

    Attributes:
        text: the expression.
    """

    def __init__(self, text: str) -> None:
        super().__init__("expression is not compiled")
        self.text = text


class PullAdmissions:
    """Checks pulls and keeps the decisions. Event loop only."""

    def __init__(self, services: BrokerServices) -> None:
        self._config = services.config
        self._topics = services.topics
        self._groups = services.groups
        self._consumers = services.consumers
        self._filters = services.filters
        self._kept: dict[RepeatedFields, Admission] = {}
        self._expressions = services.expressions
        self._changes = 0
        services.topics.on_change(self._changed)
        services.groups.on_change(self._changed)

    def find(self, fields: RepeatedFields, channel: Channel) -> Admission:
        """Returns the part of a queue that a request on ``channel`` may read.

        Raises:
            BrokerError: the request is refused, with the reason.
            NotCompiledError: the request must wait until its expression is compiled.
        """
        admission = self._kept.get(fields)
        if admission is None or not self.stands(admission):
            admission = self._admit(fields, channel)
        if self._config.reject_pull_consumer_enable:
            self._refuse_active(admission.consumer[0], channel)
        return admission

    def stands(self, admission: Admission) -> bool:
        """Whether ``admission`` is still valid. For a filter by properties this is unknown, so the answer is False."""
        if admission.version != self._changes + self._consumers.changes:
            return False
        return self._config.lite_pull_message_enable or not admission.lite

    def _changed(self) -> None:
        self._changes += 1

    def _admit(self, fields: RepeatedFields, channel: Channel) -> Admission:
        """Runs every check; takes the group's subscription if the request has none of its own."""
        topic, group = _text(fields.topic), _text(fields.group)
        self._check(fields, group, topic, channel)
        queue_id = fields.queue_id
        admission = Admission((group, topic, queue_id), (topic.encode(), queue_id), fields.code == _LITE)
        if fields.sub_version is not None:
            self._take_subscribed(admission, fields.sub_version)
        elif fields.expression_type == TAG:
            if len(fields.expression) > _CHEAP_EXPRESSION_BYTES:
                channel.costly = True
            admission.tag_codes = _tag_codes(_text(fields.expression))
        else:
            admission.expression = self._sql_expression(fields.expression, fields.expression_type)
        if admission.expression is None:
            admission.version = self._changes + self._consumers.changes
            if len(fields.expression) <= _KEPT_EXPRESSION_BYTES_MAX:
                if len(self._kept) >= _KEPT_MAX:
                    self._kept.clear()
                self._kept[fields] = admission
        return admission

    def _check(self, fields: RepeatedFields, group: str, topic: str, channel: Channel) -> None:
        """Refuses invalid pulls; makes the checks in RocketMQ's order (protocol.md 3.4)."""
        config = self._config
        if not config.broker_permission & _READ:
            raise PullForbiddenError(
                ForbiddenType.BROKER_FORBIDDEN, f"the broker[{config.client_host}] pulling message is forbidden"
            )
        if fields.code == _LITE and not config.lite_pull_message_enable:
            raise PullForbiddenError(
                ForbiddenType.BROKER_FORBIDDEN, f"the broker[{config.client_host}] for lite pull consumer is forbidden"
            )
        group_config = self._groups.find(group)
        if group_config is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, {FAQ}",
            )
        if not group_config.consume_enable:
            raise PullForbiddenError(ForbiddenType.GROUP_FORBIDDEN, f"subscription group no permission, {group}")
        topic_config = self._topics.get(topic)
        if topic_config is None:
            raise topic_missing(topic)
        if not int(topic_config.perm) & _READ:  # the operators of enum members are slow
            raise PullForbiddenError(ForbiddenType.TOPIC_FORBIDDEN, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= fields.queue_id < topic_config.read_queue_nums:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{fields.queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{topic_config.read_queue_nums}] consumer:[{channel.remote_address}]",
            )

    def _refuse_active(self, group: str, channel: Channel) -> None:
        """Refuses pull consumers (CONSUME_ACTIVELY), except those that were registered before
        ``rejectPullConsumerEnable`` was set. Tools and members of push groups may pull.
        """
        info = self._consumers.group(group)
        if info is not None and (info.consume_type != CONSUME_ACTIVELY or channel in info.clients):
            return
        if not is_system_group(group):
            remark = "the consumer's group info not exist, or the pull consumer is rejected by server." + FAQ
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)

    def _take_subscribed(self, admission: Admission, sub_version: int) -> None:
        """Sets the filter of ``admission`` to that of the subscription in the group's heartbeats."""
        group, topic, _ = admission.consumer
        info = self._consumers.group(group)
        if info is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if info.message_model == BROADCASTING:
            config = self._groups.find(group) or SubscriptionGroupConfig(group)
            if not config.consume_broadcast_enable:
                raise PullForbiddenError(
                    ForbiddenType.BROADCASTING_DISABLE_FORBIDDEN,
                    f"the consumer group[{group}] can not consume by broadcast way",
                )
        forbidden = self._groups.forbidden
        if forbidden and forbidden.get(group, {}).get(topic, 0) & _READ:
            raise PullForbiddenError(
                ForbiddenType.SUBSCRIPTION_FORBIDDEN,
                f"the consumer group[{group}] is forbidden for topic[{topic}]",
            )
        subscription = info.subscriptions.get(topic)
        if subscription is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.sub_version < sub_version:
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if subscription.expression_type == TAG.decode():
            admission.tag_codes = None if subscription.sub_string == "*" else frozenset(subscription.code_set)
            return
        known = self._filters.get(topic, group)
        if known is None:
            raise BrokerError(ResponseCode.FILTER_DATA_NOT_EXIST, "the consumer's filter data does not exist" + FAQ)
        if known[0].client_version < sub_version:
            raise BrokerError(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's filter data is not latest")
        check_expression_type(self._config, subscription.expression_type)
        admission.expression = known[1]

    def _sql_expression(self, expression: bytes, expression_type: bytes) -> sql.SqlExpression | None:
        """The SQL92 expression in the pull.

        An expression that cannot be compiled matches every message, as in RocketMQ (protocol.md 5.3).
        """
        if not expression:
            raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
        check_expression_type(self._config, _text(expression_type))
        text = _text(expression)
        if self._expressions.must_wait([text]):
            raise NotCompiledError(text)
        try:
            return self._expressions.compile(text)
        except FormatError:
            return None


def _text(data: bytes) -> str:
    return str(data, "utf-8", "replace")


def _tag_codes(expression: str) -> frozenset[int] | None:
    """The tag codes of an expression; None if every message matches."""
    try:
        return parse_tags(expression)
    except FormatError:
        raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from None


def check_expression_type(config: BrokerConfig, expression_type: str) -> None:
    """Refuses types of filters that this broker does not serve.

    Raises:
        BrokerError: SYSTEM_ERROR, the type is unknown or ``enablePropertyFilter`` is off.
    """
    if not config.enable_property_filter or expression_type != SQL92:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {expression_type}"
        )
