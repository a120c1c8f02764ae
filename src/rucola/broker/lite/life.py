"""Removes lite topics: after their time to live, and with their parent (RocketMQ 5.5.0, ``LiteLifecycleManager``).

A lite topic expires a time after its newest message; who has read it does not count. With it go its messages, the
offsets of groups, and who reads it. The next message of its name makes it again; its offsets go on, because records of
its former life may still be in the log. When the log has none of them any more, the name goes, too, and a lite topic of
that name begins at offset 0.

Event loop only. All work is done in steps: looking at a million names takes a third of a second of processor time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rucola.broker.config import BrokerConfig
from rucola.broker.lite.attributes import expiration_minutes
from rucola.broker.lite.offsets import LiteOffsets
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.key_builder import lite_parts
from rucola.remoting.fairness.steps import Steps, in_turns
from rucola.runtime.logs import event
from rucola.store.lite.lite_topics import LiteTopics
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)
_NAMES_A_STEP = 64
_FIRST: Final[int | None] = 0
UNKNOWN_TIMES_MAX = 5
"""A lite topic whose newest message has no store time is removed when more looks than these have found it so."""
Forgotten = Callable[[int], None]


class LiteLife:
    """The end of the lite topics of one broker.

    Args:
        topics: the lite topics of ``store``.
        forgotten: called with the id of each lite topic that is removed.
        monotonic: returns a time in seconds that never goes back.

    Attributes:
        removed: number of lite topics that were removed since the start.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: LiteTopics,
        parents: TopicConfigManager,
        offsets: LiteOffsets,
        forgotten: Forgotten,
        monotonic: Callable[[], float],
    ) -> None:
        self.removed = 0
        self._config = config
        self._store = store
        self._topics = topics
        self._parents = parents
        self._offsets = offsets
        self._forgotten = forgotten
        self._monotonic = monotonic
        self._began_s = monotonic()
        self._dropped_to = -1
        self._looked_to: dict[bytes, int] = {}
        """For each parent that was deleted, up to which physical offset the look has removed its lite topics."""
        self._unknown: dict[int, int] = {}
        """For each lite topic without a store time, how many looks have found it so."""

    async def look(self) -> None:
        """Removes the lite topics whose time is over, and names that nothing recalls any more."""
        await in_turns(self.remove_of_deleted())
        if (self._monotonic() - self._began_s) * 1000 >= self._config.min_lite_ttl_ms:
            count = await in_turns(self._expire())
            if count:
                event(logger, logging.INFO, "lite topics expired", count=count)
        if self._topics.gone_to != self._dropped_to:
            self._dropped_to = self._topics.gone_to
            await self._drop_names()

    def _expire(self) -> Steps[int]:
        minutes: dict[bytes, int] = {}
        for parent in self._topics.parents():
            config = self._parents.get(parent.decode("utf-8", "surrogateescape"))
            minutes[parent] = -1 if config is None else expiration_minutes(config)
        looked_at: dict[int, int] = {}
        before, first = self.removed, _FIRST
        while first is not None:
            found = self._topics.expired(minutes, self._config.min_lite_ttl_ms, self._store.now_ms(), first)
            yield
            for start in range(0, len(found.names), _NAMES_A_STEP):
                names = found.names[start : start + _NAMES_A_STEP]
                self.remove([name for name in names if self._is_over(name, minutes, looked_at)])
                yield
            first = found.following
        self._unknown = looked_at
        return self.removed - before

    def _is_over(self, name: bytes, minutes: Mapping[bytes, int], looked_at: dict[int, int]) -> bool:
        """Whether the time of a lite topic is over still, as other requests were served since it was found."""
        name_id = self._topics.names.find(name)
        if name_id < 0 or self._topics.has_waiting(name):
            return False
        time_ms = self._topics.columns.times[name_id] * 1000
        if time_ms == 0:
            looked_at[name_id] = self._unknown.get(name_id, 0) + 1
            return looked_at[name_id] > UNKNOWN_TIMES_MAX
        ttl_ms = max(minutes[name.partition(b"$")[0]] * 60_000, self._config.min_lite_ttl_ms)
        return time_ms < self._store.now_ms() - ttl_ms

    def remove(self, names: Iterable[bytes]) -> None:
        """Removes lite topics, a few at a time.

        Raises:
            DiskFullError: no space; some of them may be removed.
        """
        names = list(names)
        self._store.delete_lite(names)
        self._forget(names)

    def _forget(self, names: Iterable[bytes]) -> None:
        """Forgets the offsets and readers of lite topics whose messages are deleted."""
        for name in names:
            name_id = self._topics.names.find(name)
            if name_id >= 0:
                self._offsets.forget(name_id)
                self._forgotten(name_id)
                self.removed += 1

    async def written(self) -> None:
        """Waits until the offsets that were forgotten are off the disk."""
        future = self._offsets.persist()
        if future is not None:
            await future

    def has_of(self, topic: str) -> bool:
        """Whether a topic is the parent of lite topics with messages, or the light queue of a lite topic."""
        parent = topic.encode("utf-8", "surrogateescape")
        return lite_parts(topic) is not None or self._topics.parents().get(parent, 0) > 0

    def remove_parent(self, parent: bytes) -> Steps[None]:
        """Removes all lite topics of a parent that is deleted; messages that arrive meanwhile may make new ones.

        Raises:
            DiskFullError: no space; some of them may be removed.
        """
        first = _FIRST
        while first is not None:
            found = self._topics.names_of(parent, first)
            yield
            for start in range(0, len(found.names), _NAMES_A_STEP):
                self.remove(found.names[start : start + _NAMES_A_STEP])
                yield
            first = found.following

    def remove_of_deleted(self) -> Steps[None]:
        """Removes what is older than the deletion of its parent, if a restart interrupted that, or if this broker was a
        slave. Looks once at each deletion: later, dispatch itself passes over the old messages.
        """
        for parent, count in self._topics.parents().items():
            end = self._store.deleted_to(parent)
            first = _FIRST if count and end > self._looked_to.get(parent, 0) else None
            while first is not None:
                found = self._topics.names_of(parent, first)
                yield
                for start in range(0, len(found.names), _NAMES_A_STEP):
                    names = found.names[start : start + _NAMES_A_STEP]
                    self._forget(self._store.delete_lite_of(parent, names))
                    yield
                first = found.following
            self._looked_to[parent] = end

    async def _drop_names(self) -> None:
        """Forgets names whose messages are deleted and of which the log has no record any more. What is known of
        offsets must be off the disk before: a lite topic of that name begins at 0, and an offset would hide its first
        messages.
        """
        first = _FIRST
        while first is not None:
            found = self._topics.forgettable(first)
            first = found.following
            ids = [name_id for name_id in map(self._topics.names.find, found.names) if name_id >= 0]
            for name_id in ids:
                self._offsets.forget(name_id)
                self._forgotten(name_id)
            if ids:
                await self.written()
            self._topics.forget([name for name in found.names if not self._has_offset(name)])
            await asyncio.sleep(0)

    def _has_offset(self, name: bytes) -> bool:
        name_id = self._topics.names.find(name)
        return name_id >= 0 and self._offsets.has_any(name_id)
