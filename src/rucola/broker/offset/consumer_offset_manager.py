"""How far each group has consumed each queue (RocketMQ 5.3.3, ``ConsumerOffsetManager``). Event loop only.

The manager stores the values that clients send: the next queue offset that the group wants. The values reach
``consumerOffset.json`` every ``flushConsumerOffsetInterval`` and when the broker stops, not with each commit. A thread
writes them. With ``enableLmq`` the file is ``lmqConsumerOffset.json``, and groups that begin with ``%LMQ%`` have a
table of their own in it (``LmqConsumerOffsetManager``). RocketMQ without ``enableLmq`` reads only the first file, and
with it only the second; so a broker with light queues writes both, and reads both. Offsets in lite topics are elsewhere
(``lite.offsets``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from rucola.common.data_version import DataVersion
from rucola.common.key_builder import LITE_PREFIX, topic_at_group
from rucola.formats.tables import consumer_offset_pieces, decode_consumer_offsets
from rucola.remoting.fairness.steps import Steps
from rucola.runtime.logs import event
from rucola.runtime.table_writer import Keep, Pieces

if TYPE_CHECKING:
    from rucola.broker.lite.offsets import LiteOffsets

logger = logging.getLogger(__name__)

VERSION_STEP = 500
"""``consumerOffsetUpdateVersionStep``: number of commits between two versions."""
LITE_EXPORTED_MAX = 100_000
"""Largest number of offsets in lite topics that a clean stop writes for RocketMQ; 10 MB."""
_LEAD = 1_000_000
"""By how much the version of an acting master grows at the first commit: the master that returns has taken more steps
since its table was copied, and RocketMQ's takes only a table that is not older than its own.
"""


class ConsumerOffsetManager:
    """Maps ``topic@group`` and queue id to the consumer offset.

    Args:
        keep: creates the writer of ``consumerOffset.json``.
        wall_ms: the wall clock, in ms, which dates changes.
        light: whether the file has the separate table for ``%LMQ%`` groups.
        version_step: number of commits between two versions; 0 if only resets and removals make a new one. Then the
            version tells whether a slave knows the last of these (``take``).
        lite: the offsets in lite topics; None if the store has none.
        keep_plain: creates the writer of ``consumerOffset.json`` if ``keep`` creates that of the other file.
    """

    def __init__(
        self,
        keep: Keep,
        wall_ms: Callable[[], int],
        light: bool = False,
        version_step: int = VERSION_STEP,
        lite: LiteOffsets | None = None,
        keep_plain: Keep | None = None,
    ) -> None:
        self.lite = lite
        self._kept = keep(self._snapshot, self._written)
        self._kept_plain = None if keep_plain is None else keep_plain(self._plain_snapshot, self._written)
        self._wall_ms = wall_ms
        self._light = light
        self._commits, self._version_step = 0, version_step
        self._leads = False
        """Whether the next commit is the first one at an acting master."""
        self._listeners: list[Callable[[], None]] = []
        self._changed = False
        self._exported: dict[str, dict[int, int]] = {}
        self._followed: Mapping[str, Mapping[int, int]] = {}
        """The master's table, as it was copied last; only on a slave."""
        self.data_version = DataVersion(0, wall_ms(), 0)
        self.table: dict[str, dict[int, int]] = {}
        self.clamped = 0
        """Number of offsets that ``clamp`` changed since start-up."""
        self.pulled: dict[tuple[str, str, int], int] = {}
        """The next offset in the last response to a pull of a group, by group, topic and queue id. Only in memory."""

    def load(self, text: bytes | None) -> None:
        """Loads ``consumerOffset.json``.

        Raises:
            FormatError: the text is not a table of offsets.
        """
        if text is not None:
            self.data_version, self.table = decode_consumer_offsets(text)
            if self.lite is not None and self.lite.take_table(self.data_version, self.table):
                self._changed = True

    def load_plain(self, text: bytes | None) -> None:
        """Loads ``consumerOffset.json`` after ``lmqConsumerOffset.json``: a broker without light queues may have used
        the store since. The newer table counts. RocketMQ does not date each commit; of tables with one date, the larger
        offset counts.

        Raises:
            FormatError: the text is not a table of offsets.
        """
        if text is None:
            return
        version, table = decode_consumer_offsets(text)
        known = self.data_version
        if (version.timestamp_ms, version.counter) < (known.timestamp_ms, known.counter):
            return
        if self.lite is not None and self.lite.take_table(version, table):
            self._changed = True  # written without them; otherwise they would count again at the next start
        is_newer = version != known
        for key, queues in table.items():
            mine = self.table.setdefault(key, {})
            for queue_id, consumer_offset in queues.items():
                if is_newer or consumer_offset > mine.get(queue_id, -1):
                    mine[queue_id] = consumer_offset
                    self._changed = True
        self.data_version = version

    def commit(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> None:
        """Commits ``consumer_offset`` as the group's progress in the queue. Does nothing for a lite topic that does not
        exist, or for another queue of it than 0.
        """
        if self.lite is not None and topic.startswith(LITE_PREFIX):
            if queue_id == 0:
                self.lite.commit_topic(group, topic, consumer_offset)
            return
        key = topic_at_group(topic, group)
        queues = self.table.get(key)
        if queues is None:
            queues = self.table[key] = {}
        queues[queue_id] = consumer_offset
        self._changed = True
        self._commits += 1
        if self._version_step and self._commits % self._version_step == 0:
            self.data_version = self.data_version.next(self._wall_ms())
        if self._leads:
            self._leads = False
            version = self.data_version
            self.data_version = DataVersion(version.state_version, self._wall_ms(), version.counter + _LEAD)
        for listener in self._listeners:
            listener()

    def follow(self, version: DataVersion, table: Mapping[str, Mapping[int, int]]) -> Steps[None]:
        """Takes over the progress that the master has, in steps.

        Clients may have committed offsets here while the master was away. Such an offset stays if it is larger than the
        master's, unless the master's was set back since the last copy. What the master has removed since then is
        removed here. RocketMQ overwrites all offsets, and removes none.

        Args:
            version: the master's version of the table.
            table: the master's offsets by ``topic@group`` and queue.
        """
        for key in self._followed.keys() - table.keys():
            ours = self.table.get(key, {})
            for queue_id, known in self._followed[key].items():
                if ours.get(queue_id) == known:
                    del ours[queue_id]
                    self._changed = True
            if not ours:
                self.table.pop(key, None)
            yield
        for key, theirs in table.items():
            self._follow_one(key, theirs)
            yield
        self._followed = table
        self.data_version = version

    def _follow_one(self, key: str, theirs: Mapping[int, int]) -> None:
        before, ours = self._followed.get(key, {}), self.table.setdefault(key, {})
        for queue_id, offset in theirs.items():
            own, known = ours.get(queue_id), before.get(queue_id)
            is_own = own is not None and own != known  # committed here
            was_set_back = known is not None and offset < known
            if own != offset and (own is None or not is_own or was_set_back or offset > own):
                ours[queue_id] = offset
                self._changed = True

    def lead(self, acts: bool) -> None:
        """Makes the table newer than the master's at the next commit, if this slave begins to act; else no longer."""
        self._leads = acts

    def take(
        self, version: DataVersion, table: Mapping[str, Mapping[int, int]], exists: Callable[[str, str], bool]
    ) -> Steps[bool]:
        """Takes over what a slave has that may have acted, in steps: of each offset the larger one. RocketMQ takes
        smaller ones, too.

        Args:
            version: the slave's version of the table.
            table: the slave's offsets by ``topic@group`` and queue.
            exists: returns whether there are a topic and a group; a slave has no others than its master.

        Returns:
            Whether the table was taken over: False if it is older, and may lack a reset.
        """
        if version.age < self.data_version.age:
            return False
        for key, theirs in table.items():
            topic, _, group = key.rpartition("@")
            if key in self.table or exists(topic, group):
                self._take_larger(self.table.setdefault(key, {}), theirs)
            yield
        self.data_version = version
        return True

    def _take_larger(self, ours: dict[int, int], theirs: Mapping[int, int]) -> None:
        for queue_id, offset in theirs.items():
            if offset > ours.get(queue_id, -1):
                ours[queue_id] = offset
                self._changed = True

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` after every commit."""
        self._listeners.append(listener)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The group's consumer offset; None if it never committed one."""
        if self.lite is not None and topic.startswith(LITE_PREFIX):
            return self.lite.query_topic(group, topic) if queue_id == 0 else None
        queues = self.table.get(topic_at_group(topic, group))
        return None if queues is None else queues.get(queue_id)

    def query_pulled(self, group: str, topic: str, queue_id: int) -> int:
        """The offset after the last message that the group was given or has consumed; 0 if there was none."""
        consumed = self.query(group, topic, queue_id) or 0
        return max(self.pulled.get((group, topic, queue_id), 0), consumed, 0)

    def reset(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> None:
        """Sets the offset, and forgets up to where the group was given messages. ``OffsetResets`` tells its clients."""
        self.commit(group, topic, queue_id, consumer_offset)
        self.data_version = self.data_version.next(self._wall_ms())
        self.pulled.pop((group, topic, queue_id), None)

    def clamp(self, range_of: Callable[[str, int], tuple[int, int]]) -> int:
        """Sets every offset that lies beyond an end of its queue to that end. This is needed after a crash.

        Args:
            range_of: returns minimum and maximum offset of a queue.

        Returns:
            The number of changed offsets, which is also added to ``clamped``.
        """
        before = self.clamped
        for key, queues in self.table.items():
            topic = key.rpartition("@")[0]
            for queue_id, consumer_offset in queues.items():
                low, high = range_of(topic, queue_id)
                if not low <= consumer_offset <= high:
                    queues[queue_id] = nearest = min(max(consumer_offset, low), high)
                    self.clamped += 1
                    self._changed = True
                    event(
                        logger,
                        logging.WARNING,
                        "consumer offset outside of its queue",
                        key=key,
                        queue_id=queue_id,
                        consumer_offset=consumer_offset,
                        corrected=nearest,
                    )
        return self.clamped - before

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have consumed a topic."""
        if self.lite is not None and topic.startswith(LITE_PREFIX):
            return list(self.lite.offsets_of_topic(topic))
        return [key[len(topic) + 1 :] for key in self.table if key.startswith(topic + "@")]

    def queues_begun(self, topic: str) -> dict[str, set[int]]:
        """The queues of a topic that each group has begun to read."""
        begun: dict[str, set[int]] = {}
        if self.lite is not None and topic.startswith(LITE_PREFIX):
            begun = {group: {0} for group, offset in self.lite.offsets_of_topic(topic).items() if offset > 0}
        prefix = topic_at_group(topic, "")
        for key, queues in self.table.items():
            if key.startswith(prefix):
                begun[key[len(prefix) :]] = {queue_id for queue_id, offset in queues.items() if offset > 0}
        for (group, pulled_topic, queue_id), offset in self.pulled.items():
            if pulled_topic == topic and offset > 0:
                begun.setdefault(group, set()).add(queue_id)
        return begun

    def topics_of(self, group: str) -> list[str]:
        """Topics that a group has consumed, without lite topics."""
        return [key.rpartition("@")[0] for key in self.table if key.rpartition("@")[2] == group]

    def copied_table(self) -> dict[str, dict[int, int]]:
        """A copy of the table, which a thread may use."""
        return {key: queues.copy() for key, queues in self.table.items()}

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copies the progress of group ``source`` in ``topic`` to group ``target``."""
        if self.lite is not None and topic.startswith(LITE_PREFIX):
            offset = self.lite.query_topic(source, topic)
            if offset is not None:
                self.lite.commit_topic(target, topic, offset)
            return
        for queue_id, consumer_offset in self.table.get(topic_at_group(topic, source), {}).items():
            self.commit(target, topic, queue_id, consumer_offset)

    def remove_group(self, group: str) -> None:
        """Forgets a deleted group."""
        if self.lite is not None:
            self.lite.forget_group(group)
        self._remove(lambda key: key.endswith("@" + group))
        self.pulled = {where: pulled for where, pulled in self.pulled.items() if where[0] != group}

    def remove_topic(self, topic: str) -> None:
        """Forgets a deleted topic."""
        if self.lite is not None and topic.startswith(LITE_PREFIX):
            self.lite.forget_topic(topic)
        self._remove(lambda key: key.startswith(topic + "@"))
        self.pulled = {where: pulled for where, pulled in self.pulled.items() if where[1] != topic}

    def persist(self) -> asyncio.Future[None] | None:
        """Requests a write of the table if it changed since the last write. Returns a future that is done when the
        table is written, or None if nothing changed.
        """
        if not self._changed:
            return None
        self._changed = False
        if self._kept_plain is not None:
            self._kept_plain.changed()  # the same thread writes it, before the other one
        return self._kept.changed()

    def export_lite(self) -> None:
        """Lets the next write of the table include the offsets in lite topics, for RocketMQ, unless there are very
        many. For a clean stop.
        """
        if self.lite is None or not 0 < len(self.lite) <= LITE_EXPORTED_MAX:
            return
        self.data_version = self.data_version.next(self._wall_ms())
        self._exported = self.lite.table()
        self._changed = True
        self.lite.note_written(self.data_version)

    def _snapshot(self) -> Pieces:
        return consumer_offset_pieces(self.data_version, self.copied_table() | self._exported, self._light)

    def _plain_snapshot(self) -> Pieces:
        return consumer_offset_pieces(self.data_version, self.copied_table())

    def _written(self, error: Exception | None) -> None:
        self._changed = self._changed or error is not None

    def _remove(self, matches: Callable[[str], bool]) -> None:
        removed = [key for key in self.table if matches(key)]
        for key in removed:
            del self.table[key]
        if removed:
            self._changed = True
            self.data_version = self.data_version.next(self._wall_ms())


def topics_by_group(keys: Iterable[str]) -> dict[str, list[str]]:
    """Topics that each group has consumed, from ``keys`` of the form ``topic@group``."""
    topics: dict[str, list[str]] = {}
    for key in keys:
        topic, _, group = key.rpartition("@")
        topics.setdefault(group, []).append(topic)
    return topics
