"""The broker's topics (RocketMQ 5.3.3, ``TopicConfigManager``). Event loop only.

Every change raises the data version and is reported at once to the listeners, which are the broker's caches. The change
is then written to ``topics.json`` together with other changes. After the write, new and changed topics are registered
with the name servers; the response to a request waits for the registration of the request's topics. If the write fails,
the changes of ``update_all`` are undone; deletions and the topics of ``create_for_group`` are not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rucola.broker.config import BrokerConfig
from rucola.broker.topic.topic_attributes import without_effect
from rucola.common.data_version import DataVersion
from rucola.common.key_builder import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    BENCHMARK_TOPIC,
    MEMBER_TOPIC_PREFIX,
    OFFSET_MOVED_EVENT_TOPIC,
    REPLY_TOPIC_SUFFIX,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from rucola.common.sysflag import PermName
from rucola.common.topic_config import TopicConfig
from rucola.errors import DiskError
from rucola.formats.tables import decode_topics, topic_pieces
from rucola.runtime.logs import event
from rucola.runtime.table_writer import Keep, Pieces, Undo

logger = logging.getLogger(__name__)
_READ_WRITE = int(PermName.READ | PermName.WRITE)
_INHERIT = int(PermName.INHERIT)

Register = Callable[[Sequence[TopicConfig]], asyncio.Future[None]]


@dataclass(slots=True)
class _Batch:
    """The changes of one write."""

    told: asyncio.Future[None]
    topics: dict[str, TopicConfig] = field(default_factory=dict)


class TopicConfigManager:
    """Maps each topic to its configuration.

    Args:
        keep: creates the writer of ``topics.json``.
        wall_ms: the wall clock, in ms, which dates changes.
        before_create: called with the name of a topic before a send creates it; raises an error to prevent the
            creation.
    """

    def __init__(
        self,
        config: BrokerConfig,
        keep: Keep,
        wall_ms: Callable[[], int],
        before_create: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._kept = keep(self._snapshot, self._written)
        self._wall_ms = wall_ms
        self._listeners: list[Callable[[], None]] = []
        self._register: Register | None = None
        self._registering: dict[str, asyncio.Future[None]] = {}
        self._open: _Batch | None = None
        self._writing: _Batch | None = None
        self._undo: Undo[TopicConfig] = Undo()
        self.before_create = before_create
        self.data_version = DataVersion(0, wall_ms(), 0)
        self.table: dict[str, TopicConfig] = {topic.topic_name: topic for topic in _initial_topics(config)}

    def load(self, text: bytes | None) -> None:
        """Loads ``topics.json``. Keeps the system topics that the file does not name.

        Raises:
            FormatError: the text is not a table of topics.
        """
        if text is None:
            return
        version, table = decode_topics(text)
        self.data_version = version
        for name, topic in table.items():
            if topic.attributes and (without := without_effect(topic.attributes)):
                event(
                    logger, logging.WARNING, "attributes without effect here", topic=name, attributes=",".join(without)
                )
        own = self.revive_topic
        if own not in table and any(name.startswith(REVIVE_TOPIC_PREFIX) for name in table):
            del self.table[own]  # see ``revive_topic``
        inherited = self.table.get(AUTO_CREATE_TOPIC_KEY_TOPIC)
        self.table.update(table)
        # The current options decide whether topics are created automatically. The options may have been different when
        # the file was written.
        if inherited is not None:
            self.table[AUTO_CREATE_TOPIC_KEY_TOPIC] = inherited
        else:
            self.table.pop(AUTO_CREATE_TOPIC_KEY_TOPIC, None)

    def is_same(self, version: DataVersion, table: Mapping[str, TopicConfig]) -> bool:
        """Whether a master's table is the one that is here. On a slave, a thread may ask."""
        return version == self.data_version and table == self.table

    def follow(self, version: DataVersion, table: dict[str, TopicConfig]) -> None:
        """Replaces the whole table by a master's, which becomes the manager's own. Whoever reads the old one in several
        turns still has the whole of it. Name servers are told with the next registration.
        """
        self.data_version, self.table = version, table
        for listener in self._listeners:
            listener()
        self._kept.changed()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` after every change."""
        self._listeners.append(listener)

    def on_register(self, register: Register | None) -> None:
        """Sets the function that registers changed topics with the name servers. The function returns a future, which
        completes when every name server has answered or has failed to answer in time.
        """
        self._register = register

    def get(self, topic: str) -> TopicConfig | None:
        """Configuration of a topic; None if there is no such topic."""
        return self.table.get(topic)

    @property
    def revive_topic(self) -> str:
        """The topic of the records of popped messages. It has the name of the cluster in which the store was first
        used: records may wait there, or be on their way there, when the cluster gets another name.
        """
        own = f"{REVIVE_TOPIC_PREFIX}{self._config.broker_cluster_name}"
        if own in self.table:
            return own
        return next((name for name in self.table if name.startswith(REVIVE_TOPIC_PREFIX)), own)

    def read_queue(self, topic: str, queue_id: int) -> int:
        """The queue of ``topic`` for a message that was to go to queue ``queue_id``: a different one if the topic has
        fewer queues now, because nobody reads a queue that does not exist. The messages of one queue stay together, in
        order.
        """
        config = self.table.get(topic)
        if config is None or queue_id < config.read_queue_nums or config.read_queue_nums <= 0:
            return queue_id
        return queue_id % config.read_queue_nums

    def update(self, config: TopicConfig) -> asyncio.Future[None]:
        """Creates or changes a topic; see ``update_all``."""
        return self.update_all([config])

    def update_all(self, configs: Sequence[TopicConfig]) -> asyncio.Future[None]:
        """Creates or changes topics.

        Returns:
            A future, which completes when the topics are synced and then registered with all name servers that could
            be reached. It fails with ``DiskError`` if the topics cannot be written. The change is then undone, because
            producers must not send to a topic that a crash would remove.
        """
        for config in configs:
            self._undo.note(config.topic_name, self.table.get(config.topic_name))
        return self._put(configs)

    def registering(self, topic: str) -> asyncio.Future[None] | None:
        """The future of the topic's last change; None once this future is done."""
        return self._registering.get(topic)

    def version_of_part(self, whole: DataVersion, parts_left: int) -> DataVersion:
        """Returns the data version of one part of the table, which is registered in several parts.

        A slave's table has its master's version, so its parts count up to it.

        Args:
            whole: version of the table when its registration began; a slave may have another table by now.
            parts_left: number of parts after this one.
        """
        if not self._config.is_slave:
            return self.raise_version()
        return replace(whole, counter=whole.counter - parts_left)

    def raise_version(self) -> DataVersion:
        """Raises the data version although no topic changed, because name servers ignore data with a version that they
        already have.
        """
        self.data_version = self.data_version.next(self._wall_ms())
        return self.data_version

    def delete(self, topic: str) -> asyncio.Future[None]:
        """Removes a topic, if it exists. Name servers learn of the deletion with the next registration.

        Returns:
            A future, which completes when the file no longer contains the topic. It fails with ``DiskError`` if the
            file cannot be written; the topic may then exist again after a crash.
        """
        self._undo.forget(topic)
        if self.table.pop(topic, None) is not None:
            self._changed()
        return self._kept.changed()

    def create_on_send(
        self, topic: str, default_topic: str, queue_nums: int
    ) -> tuple[TopicConfig, asyncio.Future[None]] | None:
        """Creates ``topic`` as a copy of ``default_topic``, for the first send to ``topic``.

        Args:
            queue_nums: number of queues that the producer wants; the topic gets at most as many as ``default_topic``.

        Returns:
            The topic and the future of its creation, see ``update_all``; None if ``default_topic`` does not exist or
            lacks the permission INHERIT.

        Raises:
            BrokerError: the account has reached its limit of topics and groups that are created at their first use.
        """
        pattern = self.table.get(default_topic)
        if pattern is None or not pattern.perm & _INHERIT:
            return None
        if self.before_create is not None:
            self.before_create(topic)
        queues = max(min(queue_nums, pattern.write_queue_nums), 1)
        config = replace(
            pattern,
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=pattern.perm & ~_INHERIT,
            attributes={},
        )
        return config, self.update(config)

    def create_for_group(self, topic: str, queue_nums: int) -> tuple[TopicConfig, asyncio.Future[None] | None]:
        """Creates a topic that the broker itself needs, such as a group's retry or dead-letter topic, unless the topic
        exists. Returns the topic and the future of its last change, as ``registering`` does.

        The topic stays in the table even if it cannot be written, because consumers must be able to continue when the
        disk is full. If a crash removes a retry topic, the group's next heartbeat creates it again.
        """
        known = self.table.get(topic)
        if known is not None:
            return known, self._registering.get(topic)
        config = TopicConfig(topic, queue_nums, queue_nums, _READ_WRITE)
        if self._config.is_slave:  # its master creates the topic, and the table is that of the master
            return config, None
        return config, self._put([config])

    def _put(self, configs: Sequence[TopicConfig]) -> asyncio.Future[None]:
        self._kept.changed()
        batch = self._open
        if batch is None:
            batch = self._open = _Batch(self._kept.new_future())
        for config in configs:
            self.table[config.topic_name] = batch.topics[config.topic_name] = config
            self._registering[config.topic_name] = batch.told
        self._changed()
        return batch.told

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._wall_ms())
        for listener in self._listeners:
            listener()

    def _snapshot(self) -> Pieces:
        self._undo.begin()
        if self._writing is None:
            self._writing = self._open
        elif self._open is not None:
            self._writing.topics.update(self._open.topics)
            self._writing.told.add_done_callback(partial(_end, self._open.told))
        self._open = None
        return topic_pieces(self.data_version, self.table.copy())

    def _written(self, error: Exception | None) -> None:
        if self._undo.end(self.table, error is not None):
            self._changed()
        batch, self._writing = self._writing, None
        if batch is None:
            return
        batch.told.add_done_callback(partial(self._told, batch))
        if error is not None:
            batch.told.set_exception(error)
            return
        there = [topic for name, topic in batch.topics.items() if self.table.get(name) is topic]
        if self._register is None or not there:
            batch.told.set_result(None)
        else:
            self._register(there).add_done_callback(partial(_end, batch.told))

    def _told(self, batch: _Batch, told: asyncio.Future[None]) -> None:
        for topic in batch.topics:
            if self._registering.get(topic) is told:
                del self._registering[topic]


def _end(told: asyncio.Future[None], source: asyncio.Future[None]) -> None:
    """Completes ``told`` when ``source`` is done. A failed registration counts as a success; the error of a failed
    write is passed on.
    """
    if told.done():
        return
    error = None if source.cancelled() else source.exception()
    if isinstance(error, DiskError):
        told.set_exception(error)
    else:
        told.set_result(None)


def describe(config: TopicConfig) -> str:
    """Describes a topic in the words of RocketMQ's error texts."""
    perm = "".join(letter if config.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
    attributes = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={'true' if config.order else 'false'}, "
        f"attributes={{{attributes}}}]"
    )


def _initial_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Topics that exist in a new store. The first change writes them to the file (protocol.md 3.1)."""

    def topic(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
        return TopicConfig(name, queues, queues, perm)

    cluster, broker = config.broker_cluster_name, config.broker_name
    topics = [
        topic(SELF_TEST_TOPIC, 1),
        topic(BENCHMARK_TOPIC, 1024),
        topic(cluster, 16, _INHERIT | (_READ_WRITE if config.cluster_topic_enable else 0)),
        topic(broker, 1, _INHERIT | (_READ_WRITE if config.broker_topic_enable else 0)),
        topic(OFFSET_MOVED_EVENT_TOPIC, 1),
        topic(SCHEDULE_TOPIC, 18),
        topic(f"{cluster}{REPLY_TOPIC_SUFFIX}", 1),
        topic(f"{REVIVE_TOPIC_PREFIX}{cluster}", 8),
        topic(f"{MEMBER_TOPIC_PREFIX}{broker}", 1, _INHERIT),
        topic(TRANS_HALF_TOPIC, 1),
        topic(TRANS_OP_HALF_TOPIC, 1),
        topic(TIMER_TOPIC, 1),
    ]
    if config.auto_create_topic_enable:
        topics.append(topic(AUTO_CREATE_TOPIC_KEY_TOPIC, config.default_topic_queue_nums, _READ_WRITE | _INHERIT))
    if config.trace_topic_enable:
        topics.append(topic(config.msg_trace_topic_name, 1))
    return topics
