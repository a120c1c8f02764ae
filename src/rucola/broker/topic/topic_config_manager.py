"""The broker's topics (RocketMQ 5.3.3, ``TopicConfigManager``). Event loop only.

Every change raises the data version, is written to ``topics.json`` before the call returns, and is passed to the
listeners: the caches of the processors, and the registration with the name servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from rucola.broker.config import BrokerConfig
from rucola.broker.topic.topic_attributes import without_effect
from rucola.common.data_version import DataVersion
from rucola.common.key_builder import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_EVENT_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from rucola.common.sysflag import PermName
from rucola.common.topic_config import TopicConfig
from rucola.errors import DiskError
from rucola.formats.tables import decode_topics, encode_topics
from rucola.runtime.logs import event

_log = logging.getLogger(__name__)
_READ_WRITE = int(PermName.READ | PermName.WRITE)
_INHERIT = int(PermName.INHERIT)

Persist = Callable[[bytes], None]


class TopicConfigManager:
    """Topic → configuration.

    Args:
        persist: writes ``topics.json``; raises ``DiskError``.
        wall_ms: returns the time of a change.

    Attributes:
        before_create: called with the name of a topic that is created by a send; raises to prevent that.
    """

    def __init__(self, config: BrokerConfig, persist: Persist, wall_ms: Callable[[], int]) -> None:
        self._config = config
        self._persist = persist
        self._wall_ms = wall_ms
        self._listeners: list[Callable[[], None]] = []
        self._registration: Callable[[TopicConfig], asyncio.Future[None]] | None = None
        self._registering: dict[str, asyncio.Future[None]] = {}
        self.before_create: Callable[[str], None] | None = None
        self.data_version = DataVersion(0, wall_ms(), 0)
        self.table: dict[str, TopicConfig] = {topic.topic_name: topic for topic in _initial_topics(config)}

    def load(self, text: bytes | None) -> None:
        """Loads ``topics.json``. System topics that the file does not name stay.

        Raises:
            FormatError: the text is not a table of topics.
        """
        if text is None:
            return
        version, table = decode_topics(text)
        self.data_version = version
        for name, topic in table.items():
            if without := without_effect(topic.attributes):
                event(_log, logging.WARNING, "attributes without effect here", topic=name, attributes=",".join(without))
        inherited = self.table.get(AUTO_CREATE_TOPIC_KEY_TOPIC)
        self.table.update(table)
        # Whether topics are created automatically is decided by this start, not by the start that wrote the file.
        if inherited is not None:
            self.table[AUTO_CREATE_TOPIC_KEY_TOPIC] = inherited
        else:
            self.table.pop(AUTO_CREATE_TOPIC_KEY_TOPIC, None)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` after every change."""
        self._listeners.append(listener)

    def on_register(self, registration: Callable[[TopicConfig], asyncio.Future[None]]) -> None:
        """Registers topics through ``registration``; its future ends when the name servers have answered or cannot."""
        self._registration = registration

    def get(self, topic: str) -> TopicConfig | None:
        """Configuration of a topic; None if there is no such topic."""
        return self.table.get(topic)

    def update(self, config: TopicConfig) -> asyncio.Future[None] | None:
        """Creates or changes a topic; returns the running registration. See ``update_all``."""
        registrations = self.update_all([config])
        return registrations[0] if registrations else None

    def update_all(self, configs: Sequence[TopicConfig]) -> list[asyncio.Future[None]]:
        """Creates or changes topics; returns the running registrations.

        Raises:
            DiskError: they cannot be written; nothing was changed. Otherwise a crash could remove a topic with
                messages.
        """
        before = {config.topic_name: self.table.get(config.topic_name) for config in configs}
        self.table.update({config.topic_name: config for config in configs})
        try:
            self._changed()
        except DiskError:
            for name, config in before.items():
                if config is None:
                    del self.table[name]
                else:
                    self.table[name] = config
            raise
        return [self._register(config) for config in configs] if self._registration is not None else []

    def registering(self, topic: str) -> asyncio.Future[None] | None:
        """The running registration of a topic; None when the name servers have answered."""
        return self._registering.get(topic)

    def raise_version(self) -> DataVersion:
        """Raises the data version without a change, because name servers ignore data with a version that they already
        have.
        """
        self.data_version = self.data_version.next(self._wall_ms())
        return self.data_version

    def delete(self, topic: str) -> bool:
        """Removes a topic; returns whether it existed. Name servers learn of it with the next registration."""
        if self.table.pop(topic, None) is None:
            return False
        self._changed()
        return True

    def create_on_send(
        self, topic: str, default_topic: str, queue_nums: int
    ) -> tuple[TopicConfig, asyncio.Future[None] | None] | None:
        """Creates ``topic`` after the model of ``default_topic``, for the first send to it.

        Args:
            queue_nums: number of queues that the producer wants; limited to that of the model.

        Returns:
            The topic and its running registration; None if the model does not allow it.

        Raises:
            BrokerError: the account has reached its limit.
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
        """The retry or dead-letter topic of a group; created if missing, with its registration while that is running.

        Raises:
            DiskError: it cannot be written. The next call finds it, since a group in use has these topics.
        """
        known = self.table.get(topic)
        if known is not None:
            return known, self._registering.get(topic)
        config = TopicConfig(topic, queue_nums, queue_nums, _READ_WRITE)
        try:
            return config, self.update(config)
        except DiskError:
            self.table[topic] = config
            raise

    def _register(self, config: TopicConfig) -> asyncio.Future[None]:
        assert self._registration is not None
        topic, registration = config.topic_name, self._registration(config)
        self._registering[topic] = registration

        def ended(_: asyncio.Future[None]) -> None:
            if self._registering.get(topic) is registration:
                del self._registering[topic]

        registration.add_done_callback(ended)
        return registration

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._wall_ms())
        self._persist(encode_topics(self.data_version, self.table))
        for listener in self._listeners:
            listener()


def describe(config: TopicConfig) -> str:
    """Describes a topic in the words of the reference's error texts."""
    perm = "".join(letter if config.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
    attributes = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={'true' if config.order else 'false'}, "
        f"attributes={{{attributes}}}]"
    )


def _initial_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Topics that exist from the start. The first change writes them to the file (protocol.md 3.1)."""

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
        topic(f"{cluster}_REPLY_TOPIC", 1),
        topic(f"rmq_sys_REVIVE_LOG_{cluster}", 8),
        topic(f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, _INHERIT),
        topic(TRANS_HALF_TOPIC, 1),
        topic(TRANS_OP_HALF_TOPIC, 1),
        topic(TIMER_TOPIC, 1),
    ]
    if config.auto_create_topic_enable:
        topics.append(topic(AUTO_CREATE_TOPIC_KEY_TOPIC, config.default_topic_queue_nums, _READ_WRITE | _INHERIT))
    if config.trace_topic_enable:
        topics.append(topic(config.msg_trace_topic_name, 1))
    return topics
