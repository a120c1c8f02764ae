"""Messages that can never be processed: what becomes of them, and where a waiting message goes.

A store may hold such messages whatever the gate refuses today: older versions let them in, and other brokers write
stores too. One of them must not stop the messages behind it, so whoever meets it sets it aside: passes over it, counts
it, and names it in the log once. The message stays in the log, where it can be looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rucola.broker.topic.internal_topics import only_broker_writes
from rucola.common.key_builder import REVIVE_TOPIC_PREFIX
from rucola.common.message_const import REAL_QID, REAL_TOPIC
from rucola.common.numbers import number_in
from rucola.errors import FormatError
from rucola.runtime.logs import event
from rucola.store.queue.consume_queue_store import QUEUE_ID_MAX
from rucola.store.queue.queue_factory import is_topic_directory
from rucola.store.stats import StoreStats

logger = logging.getLogger(__name__)


def set_aside(stats: StoreStats, work: str, physical_offset: int, error: object) -> None:
    """Counts and names a message that ``work`` passes over."""
    stats.set_aside_messages += 1
    event(
        logger,
        logging.ERROR,
        "message set aside",
        work=work,
        physical_offset=physical_offset,
        error=ascii(str(error))[1:-1],
    )


def destination(properties: Mapping[str, str], revives: bool = False) -> tuple[bytes, int]:
    """Topic and queue to which a waiting message goes, from its properties ``REAL_TOPIC`` and ``REAL_QID``.

    Args:
        revives: whether the message may be a record of the revive topic.

    Raises:
        FormatError: the properties are missing or name no place to which clients may send.
    """
    name = properties.get(REAL_TOPIC, "")
    topic = name.encode(errors="replace")
    queue_id = number_in(properties.get(REAL_QID, ""), 0, QUEUE_ID_MAX - 1)
    if not is_topic_directory(topic) or (
        only_broker_writes(name) and not (revives and name.startswith(REVIVE_TOPIC_PREFIX))
    ):
        raise FormatError("waiting message", 0, "a topic in REAL_TOPIC", ascii(name[:64]))
    if queue_id is None:
        raise FormatError("waiting message", 0, "a queue in REAL_QID", ascii(properties.get(REAL_QID, "")[:32]))
    return topic, queue_id
