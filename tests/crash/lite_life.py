"""A store with lite topics, the offsets of a group in them, and their end by time, on a simulated disk: what a broker
does with them, without requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, cast

from tests.lite_ledger import NAMES, LiteLedger, lite_config, lite_message

from rucola.broker.config import BrokerConfig
from rucola.broker.lite.attributes import EXPIRATION
from rucola.broker.lite.life import LiteLife
from rucola.broker.lite.offsets import LiteOffsets
from rucola.common.topic_config import TopicConfig
from rucola.formats.light_queue import lite_topic
from rucola.remoting.fairness.steps import at_once
from rucola.runtime.supervision import Supervisor
from rucola.runtime.table_writer import TableWriter
from rucola.store.lite.lite_topics import LiteTopics
from rucola.testing.interleaver import Interleaver
from rucola.testing.manual_loop import ManualLoop
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import StoreLife

GROUP, PARENTS = "g", ("Parent", "Other")
SEGMENT_BYTES = 4096
CONFIG = BrokerConfig(broker_ip1="127.0.0.1", listen_port=10911, min_lite_ttl_ms=0)


class Parents:
    """The topics of a broker: parents whose lite topics live for a minute."""

    def get(self, topic: str) -> TopicConfig | None:
        return TopicConfig(topic, attributes={EXPIRATION: "1"}) if topic in PARENTS else None


class OffsetLedger:
    """What the disk may show as offset of the group in each lite topic; None is no offset.

    Attributes:
        possible: values since the last write that ended, the value of that write first.
    """

    def __init__(self) -> None:
        self.possible: dict[bytes, list[int | None]] = {}

    def newest(self) -> dict[bytes, int]:
        """Returns for each name how many values there are."""
        return {name: len(values) for name, values in self.possible.items()}

    def begin_with(self, found: dict[bytes, int]) -> None:
        """A process begins with these: what the one before had not written is lost, and no later write makes it up."""
        for name, values in self.possible.items():
            offset = found.get(name)
            if offset in values:
                del values[len(values) - values[::-1].index(offset) :]
            else:
                values[1:] = [offset]  # lowered, because its queue has lost its end

    def copy(self) -> OffsetLedger:
        other = OffsetLedger()
        other.possible = {name: values[:] for name, values in self.possible.items()}
        return other

    def note(self, name: bytes, value: int | None) -> None:
        self.possible.setdefault(name, [None]).append(value)

    def written(self, counts: dict[bytes, int]) -> None:
        """A write that began when there were so many values has ended."""
        for name, count in counts.items():
            del self.possible[name][: count - 1]


class LiteLives:
    """Processes that run one after another on one disk.

    Args:
        interleave: see ``StoreLife``.
        plant: changes each new process.

    Attributes:
        ledger, kept: what the disk must show.
        dropped: number of names that were forgotten.
        early: whether senders get their responses before the disk has their messages: a planted defect.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        sync: bool,
        interleave: Callable[[], Interleaver | None] = lambda: None,
        plant: Callable[[LiteLives], None] = lambda _: None,
    ) -> None:
        self.life = StoreLife(disk, lite_config(sync, SEGMENT_BYTES), interleave=interleave)
        self.ledger, self.kept = LiteLedger(), OffsetLedger()
        self._plant = plant
        self.running = False
        self.dropped = 0
        self.early = False
        self._requested: dict[bytes, int] | None = None

    def open(self) -> None:
        """Starts a process."""
        self.running = False
        self.life.load()
        store = self.life.store
        clock = self.life._clock
        writer = self.writer = TableWriter(Supervisor(), clock.monotonic)
        self.loop = ManualLoop(clock)
        writer.loop = cast(Any, self.loop)
        self.offsets = LiteOffsets(files_on(self.life.disk, self.life.interleaver), store.root, self.topics, writer)
        self.offsets.load()
        store.start()
        self.ends = LiteLife(
            CONFIG, store, self.topics, cast(Any, Parents()), self.offsets, lambda _: None, clock.monotonic
        )
        self.kept.begin_with(self.found())
        self._watch()
        self._plant(self)
        self.running = True

    def _watch(self) -> None:
        """Tells the ledger what ``ends`` does."""
        store, topics, offsets = self.life.store, self.topics, self.offsets
        delete, forget, drop, persist = store.delete_lite, topics.forget, offsets.forget, offsets.persist

        def deletes(names: Iterable[bytes]) -> int:
            starts = {name: store.max_queue_offset(lite_topic(name), 0) for name in names}
            for name, start in starts.items():
                self.ledger.asked.setdefault(name, set()).add(start)
            return delete(list(starts))

        def forgets(names: Iterable[bytes]) -> int:
            names = list(names)
            for name in names:
                self.dropped += 1
                self.ledger.dropped[name] = self.ledger.end
                self.ledger.asked.pop(name, None)
                self.ledger.deleted.pop(name, None)
                self.kept.possible[name] = [None]  # by now, or else the name would inherit an offset
            return forget(names)

        def drops(lite_id: int) -> None:
            self.kept.note(topics.names.name(lite_id), None)
            drop(lite_id)

        def persists() -> asyncio.Future[None] | None:
            newest, done = self.kept.newest(), persist()
            if done is not None:
                self._requested = newest
            return done

        store.delete_lite, topics.forget = deletes, forgets  # type: ignore[method-assign]
        offsets.forget, offsets.persist = drops, persists  # type: ignore[method-assign]

    @property
    def topics(self) -> LiteTopics:
        assert self.life.store.lite is not None
        return self.life.store.lite

    @property
    def acked_end(self) -> int:
        """Messages below this were acknowledged to their senders under SYNC_FLUSH."""
        if not self.running:
            return 0
        return self.life.store.max_offset if self.early else self.life.store.flushed_offset

    def send(self, random: Random, names: Iterable[bytes], size: int = 900) -> None:
        self.ledger.put(self.life.store, lite_message(random, names, size=size))

    def commit(self, name: bytes, consumer_offset: int) -> None:
        lite_id = self.topics.names.find(name)
        if lite_id >= 0:
            self.kept.note(name, consumer_offset)
            self.offsets.commit(GROUP, lite_id, consumer_offset)

    def persist(self) -> None:
        """Writes the offsets."""
        self.offsets.persist()
        self._write()

    def _write(self) -> None:
        """Writes what was requested."""
        requested, self._requested = self._requested, None
        if requested is not None:
            self.writer.write()
            self.loop.run()
            self.kept.written(requested)

    def turn(self) -> None:
        """Flushes and dispatches; deletions take effect."""
        self.life.flush()
        self.life.dispatch()
        self.life.keep()
        self.life.dispatch()
        self.ledger.settle(self.life.store)

    def look(self, milliseconds: int = 61_000) -> None:
        """Lets time pass, and removes what has expired."""
        self.life._clock.advance(milliseconds)
        self._work(self.ends.look())
        self.life.keep()
        self.life.dispatch()
        self.ledger.settle(self.life.store)

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        while True:
            asyncio._set_running_loop(cast(Any, self.loop))
            try:
                work.send(None)
            except StopIteration:
                return
            finally:
                asyncio._set_running_loop(None)
            self._write()

    def delete_parent(self, parent: bytes) -> None:
        """Deletes a parent, as a request does; some of its messages are in no queue so far."""
        for name in (name for name in NAMES if name.startswith(parent + b"$")):
            self.ledger.asked.setdefault(name, set()).add(self.topics.next_offset(lite_topic(name)))
        self.life.store.delete_topic(parent)
        at_once(self.ends.remove_parent(parent))

    def stop(self) -> None:
        """Stops cleanly."""
        self.offsets.finish()
        self.persist()
        self.life.store.shutdown()
        self.running = False

    def found(self) -> dict[bytes, int]:
        """Returns the offset of the group in each lite topic."""
        return {self.topics.names.name(lite_id): offset for rows in self.offsets.rows() for _, lite_id, offset in rows}

    def check_offsets(self) -> None:
        """Each offset was committed at or after the last write that ended; none is ahead of its queue, or of what was
        acknowledged since the lite topic began.
        """
        found = self.found()
        for name in {*found, *self.kept.possible}:
            possible, offset = self.kept.possible.get(name, [None]), found.get(name)
            end = self.topics.next_offset(lite_topic(name))
            is_lowered = offset == end and any(value is not None and value > end for value in possible)
            is_gone = offset is None and end == 0
            assert offset in possible or is_lowered or is_gone, (name, offset, possible, end)
            assert offset is None or offset <= end, (name, offset, end)
