"""The checks of requests about lite topics, with RocketMQ's order and remarks (5.5.0)."""

from __future__ import annotations

from rucola.broker.lite.attributes import LiteGroup, is_parent, lite_group
from rucola.broker.pop.checks import no_topic
from rucola.broker.refusals import FAQ
from rucola.broker.services import BrokerServices
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError
from rucola.formats.light_queue import is_lite, lite_topic
from rucola.protocol.codes import ResponseCode

CLIENT_ID_MAX = 1024
"""Characters of a client id."""
ATTEMPT_ID_MAX = 256
"""Characters of an attempt id, which the broker keeps as long as the lease; those of clients have 36."""
_NAME_BYTES_MAX = 255 - len(lite_topic(b""))


def check_parent(services: BrokerServices, topic: str) -> None:
    """Refuses topics that have no lite topics, or may not be read.

    Raises:
        BrokerError: TOPIC_NOT_EXIST, NO_PERMISSION or INVALID_PARAMETER.
    """
    config = services.topics.get(topic)
    if config is None:
        raise no_topic(topic)
    if not config.perm & PermName.READ:
        raise BrokerError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
    if not is_parent(config):
        raise BrokerError(ResponseCode.INVALID_PARAMETER, f"the topic[{topic}] message type not match")


def reading_settings(services: BrokerServices, group: str, topic: str) -> LiteGroup:
    """Returns how a group reads the lite topics of a parent.

    Raises:
        BrokerError: SUBSCRIPTION_GROUP_NOT_EXIST; NO_PERMISSION, consumption is disabled; INVALID_PARAMETER, it is
            bound to another topic, or to none.
    """
    config = services.groups.table.get(group)
    if config is None:
        raise BrokerError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist, {FAQ}"
        )
    if not config.consume_enable:
        raise BrokerError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
    settings = lite_group(config)
    if settings is None or settings.bind_topic != topic:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {group}")
    return settings


def name_of(parent: str, lite: str) -> bytes | None:
    """Returns the name ``<parent>$<lite>``; None if no lite topic can have it."""
    name = f"{parent}${lite}".encode("utf-8", "surrogateescape")
    return name if len(name) <= _NAME_BYTES_MAX and is_lite(lite_topic(name)) else None
