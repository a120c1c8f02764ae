"""The permissions that each request needs: the only table that assigns rules to request codes (security.md S-39, S-40).

A code without an entry is for administrators only. ``tools/acl_table.py`` generates the table in ``docs/security.md``
from here. Source: protocol.md 6.1. These rules are stricter than RocketMQ, which checks nothing for most codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rucola.broker.acl.permission import ANY, NOTHING, PUB, RETRY_PREFIX, SUB, Resource, group, topic
from rucola.common.key_builder import REPLY_TOPIC_SUFFIX, lite_parts
from rucola.common.lite_topics import LITE_ENTRIES_MAX
from rucola.errors import FormatError
from rucola.protocol import fastjson
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand

TopicAt = Callable[[int], str | None]
"""Returns the topic of the message at a physical offset (for a half message, its real topic); None if there is no
message.
"""

_WORDS = {PUB: "PUB", SUB: "SUB", ANY: "PUB or SUB"}


@dataclass(frozen=True, slots=True)
class Topic:
    """A requirement: permission for the topic that is named in an ext field."""

    field: str
    needed: int

    def resources(self, command: RemotingCommand, topic_at: TopicAt) -> Iterator[Resource]:
        """The topic. If the request names no topic, no rule can allow it."""
        name = command.ext_fields.get(self.field)
        yield topic(name, self.needed) if name else NOTHING

    def example(self) -> tuple[Resource, ...]:
        """The rights that a typical request needs, for the documentation."""
        return (topic("example", self.needed),)

    def __str__(self) -> str:
        return f"{_WORDS[self.needed]} on topic `{self.field}`"


@dataclass(frozen=True, slots=True)
class ReplyTopic:
    """A requirement: permission for the topic of replies, which is named in an ext field. The broker passes a reply on
    to a client of any account, so permission for another topic does not suffice.
    """

    field: str

    def resources(self, command: RemotingCommand, topic_at: TopicAt) -> Iterator[Resource]:
        """The topic. If it is not for replies, no rule can allow the request."""
        name = command.ext_fields.get(self.field, "")
        yield topic(name, PUB) if name.endswith(REPLY_TOPIC_SUFFIX) else NOTHING

    def example(self) -> tuple[Resource, ...]:
        """The rights that a typical request needs, for the documentation."""
        return (topic(f"example{REPLY_TOPIC_SUFFIX}", PUB),)

    def __str__(self) -> str:
        return f"PUB on reply topic `{self.field}`"


@dataclass(frozen=True, slots=True)
class Group:
    """A requirement: permission for the consumer group that is named in an ext field. An ``optional`` field may be
    missing.
    """

    field: str
    optional: bool = False

    def resources(self, command: RemotingCommand, topic_at: TopicAt) -> Iterator[Resource]:
        """The group; no requirement if it is optional and missing."""
        name = command.ext_fields.get(self.field, "")
        if name:
            yield group(name)
        elif not self.optional:
            yield NOTHING

    def example(self) -> tuple[Resource, ...]:
        """The rights that a typical request needs, for the documentation."""
        return () if self.optional else (group("example"),)

    def __str__(self) -> str:
        return f"SUB on group `{self.field}`" + (" if given" if self.optional else "")


@dataclass(frozen=True, slots=True)
class PoppedTopic:
    """A requirement: permission for the topic to which a popped message was sent. The ext field ``topic`` names this
    topic, or a retry topic whose name contains it: ``%RETRY%group_topic`` or ``%RETRY%group+topic``.

    Such a name could also belong to the retry topic of another group. Therefore this requirement is used only for
    requests about messages that the group itself popped.
    """

    def resources(self, command: RemotingCommand, topic_at: TopicAt) -> Iterator[Resource]:
        """The topic to which the message was sent."""
        name = command.ext_fields.get("topic", "")
        prefix = RETRY_PREFIX + command.ext_fields.get("consumerGroup", "")
        if name.startswith((f"{prefix}_", f"{prefix}+")):
            name = name[len(prefix) + 1 :]
        yield topic(name, SUB) if name else NOTHING

    def example(self) -> tuple[Resource, ...]:
        """The rights that a typical request needs, for the documentation."""
        return (topic("example", SUB),)

    def __str__(self) -> str:
        return "SUB on topic `topic`; if it is the group's retry topic, on the original topic instead"


@dataclass(frozen=True, slots=True)
class MessageAt:
    """A requirement: permission for the topic of a stored message, whose physical offset stands in an ext field. The
    topic that the request names does not count.
    """

    field: str
    needed: int

    def resources(self, command: RemotingCommand, topic_at: TopicAt) -> Iterator[Resource]:
        """The topic of the message. If there is no message, no rule can allow the request."""
        text = command.ext_fields.get(self.field, "")
        name = topic_at(int(text)) if text.isascii() and text.isdigit() and len(text) < 20 else None
        yield NOTHING if name is None else topic(name, self.needed)

    def example(self) -> tuple[Resource, ...]:
        """The rights that a typical request needs, for the documentation."""
        return (topic("example", self.needed),)

    def __str__(self) -> str:
        return f"{_WORDS[self.needed]} on the topic of the message at `{self.field}`"


@dataclass(frozen=True, slots=True)
class InBody:
    """A requirement: permission for the groups and topics that are named in the body."""

    read: Callable[[Mapping[str, Any]], Iterator[Resource]]
    text: str

    def resources(self, command: RemotingCommand, topic_at: TopicAt) -> Iterator[Resource]:
        """All resources that are named in the body.

        Raises:
            FormatError: the body cannot be read, so the resources that it names are unknown.
        """
        body = fastjson.loads(command.body)
        if not isinstance(body, dict):
            raise FormatError("body", 0, "an object", type(body).__name__)
        yield from self.read(body)

    def example(self) -> tuple[Resource, ...]:
        """The rights that a typical request needs, for the documentation."""
        return group("example"), topic("example", SUB)

    def __str__(self) -> str:
        return self.text


def _heartbeat(body: Mapping[str, Any]) -> Iterator[Resource]:
    for consumer in _objects(body, "consumerDataSet"):
        yield group(_text(consumer, "groupName"))
        for subscription in _objects(consumer, "subscriptionDataSet"):
            yield topic(_text(subscription, "topic"), SUB)


def _client_config(body: Mapping[str, Any]) -> Iterator[Resource]:
    yield group(_text(body, "group"))
    subscription = body.get("subscriptionData")
    yield topic(_text(subscription if isinstance(subscription, dict) else {}, "topic"), SUB)


def _queues(body: Mapping[str, Any]) -> Iterator[Resource]:
    yield group(_text(body, "consumerGroup"))
    for queue in _objects(body, "mqSet"):
        yield topic(_text(queue, "topic"), SUB)


def _assignment(body: Mapping[str, Any]) -> Iterator[Resource]:
    yield group(_text(body, "consumerGroup"))
    yield topic(_text(body, "topic"), SUB)


def _acks(body: Mapping[str, Any]) -> Iterator[Resource]:
    for ack in _objects(body, "acks"):
        yield group(_text(ack, "c"))
        name = _text(ack, "t")
        lite = lite_parts(name)
        yield topic(name if lite is None else lite[0], SUB)


def _lite(body: Mapping[str, Any]) -> Iterator[Resource]:
    entries = _objects(body, "subscriptionSet")
    if len(entries) > LITE_ENTRIES_MAX:
        raise FormatError("body", 0, f"at most {LITE_ENTRIES_MAX} entries in subscriptionSet", f"{len(entries)}")
    for entry in entries:
        yield group(_text(entry, "group"))
        yield topic(_text(entry, "topic"), SUB)


def _objects(body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    values = body.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise FormatError("body", 0, f"a list of objects as the value of {key}", type(values).__name__)
    return values


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key, "")
    return value if isinstance(value, str) else ""


Need = Topic | ReplyTopic | PoppedTopic | Group | MessageAt | InBody
ADMIN: None = None
"""Entry of codes that only administrators may send. This has the same effect as a missing entry, but states the intent.
"""

_PULL = (Topic("topic", SUB), Group("consumerGroup"))
_POPPED = (PoppedTopic(), Group("consumerGroup"))

REQUIREMENTS: Mapping[int, tuple[Need, ...] | None] = {
    RequestCode.SEND_MESSAGE: (Topic("topic", PUB),),
    RequestCode.SEND_MESSAGE_V2: (Topic("b", PUB),),
    RequestCode.SEND_BATCH_MESSAGE: (Topic("b", PUB),),
    RequestCode.SEND_REPLY_MESSAGE: (ReplyTopic("topic"),),
    RequestCode.SEND_REPLY_MESSAGE_V2: (ReplyTopic("b"),),
    RequestCode.RECALL_MESSAGE: (Topic("topic", PUB),),
    RequestCode.END_TRANSACTION: (MessageAt("commitLogOffset", PUB),),
    RequestCode.CONSUMER_SEND_MSG_BACK: (Group("group"), MessageAt("offset", SUB)),
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.POP_MESSAGE: _PULL,
    RequestCode.PEEK_MESSAGE: _PULL,
    RequestCode.ACK_MESSAGE: _POPPED,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _POPPED,
    RequestCode.NOTIFICATION: _PULL,
    RequestCode.POP_LITE_MESSAGE: _PULL,
    RequestCode.LITE_SUBSCRIPTION_CTL: (InBody(_lite, "SUB on the group and parent topic of every entry"),),
    RequestCode.POLLING_INFO: _PULL,
    RequestCode.BATCH_ACK_MESSAGE: (InBody(_acks, "SUB on every group and topic of its acknowledgements"),),
    RequestCode.QUERY_ASSIGNMENT: (InBody(_assignment, "SUB on its group and topic"),),
    RequestCode.QUERY_MESSAGE: (Topic("topic", SUB),),
    RequestCode.VIEW_MESSAGE_BY_ID: (MessageAt("offset", SUB),),
    RequestCode.QUERY_CONSUMER_OFFSET: _PULL,
    RequestCode.UPDATE_CONSUMER_OFFSET: _PULL,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (Topic("topic", ANY),),
    RequestCode.GET_MAX_OFFSET: (Topic("topic", ANY),),
    RequestCode.GET_MIN_OFFSET: (Topic("topic", ANY),),
    RequestCode.GET_EARLIEST_MSG_STORETIME: (Topic("topic", ANY),),
    RequestCode.GET_TOPIC_CONFIG: (Topic("topic", ANY),),
    RequestCode.HEART_BEAT: (InBody(_heartbeat, "SUB on every consumer group and subscribed topic"),),
    RequestCode.CHECK_CLIENT_CONFIG: (InBody(_client_config, "SUB on its group and topic"),),
    RequestCode.UNREGISTER_CLIENT: (Group("consumerGroup", optional=True),),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (Group("consumerGroup"),),
    RequestCode.LOCK_BATCH_MQ: (InBody(_queues, "SUB on its group and the topics of its queues"),),
    RequestCode.UNLOCK_BATCH_MQ: (InBody(_queues, "SUB on its group and the topics of its queues"),),
    # Administrators only: requests that show whole tables or other clients' connections, or change what others see.
    RequestCode.UPDATE_AND_CREATE_TOPIC: ADMIN,
    RequestCode.DELETE_TOPIC_IN_BROKER: ADMIN,
    RequestCode.GET_ALL_TOPIC_CONFIG: ADMIN,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ADMIN,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ADMIN,
    RequestCode.UPDATE_BROKER_CONFIG: ADMIN,
    RequestCode.GET_BROKER_CONFIG: ADMIN,
    RequestCode.GET_BROKER_RUNTIME_INFO: ADMIN,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ADMIN,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ADMIN,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ADMIN,
    RequestCode.GET_BROKER_LITE_INFO: ADMIN,
    RequestCode.GET_PARENT_TOPIC_INFO: ADMIN,
    RequestCode.GET_LITE_TOPIC_INFO: ADMIN,
    RequestCode.GET_LITE_CLIENT_INFO: ADMIN,
    RequestCode.GET_LITE_GROUP_INFO: ADMIN,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: ADMIN,
    RequestCode.DELETE_ACL_CONFIG: ADMIN,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: ADMIN,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ADMIN,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: ADMIN,
    RequestCode.AUTH_CREATE_USER: ADMIN,
    RequestCode.AUTH_UPDATE_USER: ADMIN,
    RequestCode.AUTH_DELETE_USER: ADMIN,
    RequestCode.AUTH_GET_USER: ADMIN,
    RequestCode.AUTH_LIST_USER: ADMIN,
    RequestCode.AUTH_CREATE_ACL: ADMIN,
    RequestCode.AUTH_UPDATE_ACL: ADMIN,
    RequestCode.AUTH_DELETE_ACL: ADMIN,
    RequestCode.AUTH_GET_ACL: ADMIN,
    RequestCode.AUTH_LIST_ACL: ADMIN,
}


def refusal(need: Need, resource: Resource) -> str:
    """Why a request is refused that needs ``resource``. A refusal must tell neither whether there is a message at an
    offset nor its topic.
    """
    if isinstance(need, MessageAt):
        return "access denied: no permission for a message at this offset"
    return f"access denied: no permission for {resource.kind}:{resource.name}"


def describe(code: int) -> str:
    """Describes the rule for request ``code`` in words."""
    needs = REQUIREMENTS.get(code)
    return "administrator" if needs is None else "; ".join(map(str, needs))
