"""Removes topics, with everything that the broker keeps about their consumers. Event loop only.

A topic that is created again under the same name must begin without the old one's progress, and its consumers must not
miss its first messages. These consumers may still run, and know only offsets of the old queues. Therefore:

- Each group that has read the topic gets a pending reset to 0 for each queue (``OffsetResets``), also over a restart.
- Waiting pulls are answered with PULL_OFFSET_MOVED and offset 0, waiting pops and notifications with TOPIC_NOT_EXIST.
- Consumer offsets, popped offsets and orderly pops are forgotten, also on the disk, before the deletion is confirmed.
"""

from __future__ import annotations

import asyncio

from rucola.broker.client.consumer_manager import BROADCASTING
from rucola.broker.offset.offset_resets import Reset
from rucola.broker.pull.request import PullRequestHold
from rucola.broker.services import BrokerServices


class TopicRemoval:
    """Removes topics.

    Args:
        hold: the pulls that wait for messages.
    """

    def __init__(self, services: BrokerServices, hold: PullRequestHold) -> None:
        self._store = services.store
        self._topics = services.topics
        self._offsets = services.offsets
        self._resets = services.resets
        self._consumers = services.consumers
        self._pops = services.pops
        self._hold = hold

    def remove(self, topic: str) -> list[asyncio.Future[None] | None]:
        """Removes a topic, its queues, and what its consumers have done.

        Returns:
            Futures that are done when the removal is synced. Before, a crash may bring the topic or its progress back.

        Raises:
            DiskError: it is unknown whether the queues are deleted; a restart or another call settles it.
            StoreDamagedError: ``topic`` cannot be the name of a directory.
        """
        queue_ids = self._queue_ids(topic)
        self._reset_consumers(topic, queue_ids)
        written = [self._resets.persist(), self._topics.delete(topic)]
        self._store.delete_topic(topic.encode("utf-8", "surrogateescape"))
        self._offsets.remove_topic(topic)
        written += [self._offsets.persist(), self._pops.topic_deleted(topic)]
        for queue_id in queue_ids:
            self._hold.end(topic.encode("utf-8", "surrogateescape"), queue_id)
        return written

    def _queue_ids(self, topic: str) -> set[int]:
        """The queues that the topic may have; also those that it had before their number was reduced."""
        config = self._topics.get(topic)
        count = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        return {*range(count), *self._store.queue_ids(topic.encode("utf-8", "surrogateescape"))}

    def _reset_consumers(self, topic: str, queue_ids: set[int]) -> None:
        for group, begun in self._offsets.queues_begun(topic).items():
            info = self._consumers.group(group)
            if info is not None and info.message_model == BROADCASTING:
                for queue_id in begun | queue_ids:
                    self._resets.add(group, topic, queue_id, Reset(0, set(info.client_ids())))
            else:
                for queue_id in begun:
                    self._resets.add(group, topic, queue_id, Reset(0))
