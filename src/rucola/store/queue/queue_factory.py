"""Creates the queue objects: knows which kind of queue a topic has and where its files are.

=================== ==========================================================================================
directory           queues
=================== ==========================================================================================
consumequeue        ``ConsumeQueue``: topics that are not of type BatchCQ, and light queues
consumequeue_ext    the extension of these queues, with ``enableConsumeQueueExt``: ``ExtendedConsumeQueue``
batchconsumequeue   ``BatchConsumeQueue``: topics with the attribute ``queue.type=BatchCQ``
=================== ==========================================================================================

Each directory contains ``{topic}/{queueId}/``. A topic with an existing directory keeps the kind of queue of that
directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from rucola.common.key_builder import LMQ_PREFIX
from rucola.common.numbers import INT32_MAX
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.batch_consume_queue import BATCH_UNIT_BYTES, decode_batch_unit
from rucola.formats.consume_queue import UNIT, UNIT_BYTES
from rucola.formats.segment_name import is_segment_name, segment_name
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.log.log_reader import LogReader
from rucola.store.log.segment_list import Place, SegmentList
from rucola.store.queue.batch_consume_queue import BatchConsumeQueue
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.queue.consume_queue_ext import ConsumeQueueExt, ExtendedConsumeQueue
from rucola.store.queue.placement import Placement

_QUEUE_OFFSET_MAX = 1 << 48
_NAME_BYTES_MAX = 255
"""Largest length in bytes of the name of a directory."""
_LIGHT = LMQ_PREFIX.encode()

IsBatchTopic = Callable[[bytes], bool | None]


@dataclass(frozen=True)
class QueueOptions:
    """Options for each kind of queue.

    Attributes:
        segment_bytes: length in bytes of the segments of consume queues.
        batch_segment_bytes: length in bytes of the segments of batch consume queues, a multiple of 46.
        ext_segment_bytes: length in bytes of the segments of extensions.
        extending: whether records get a unit in the extension of their queue.
        is_batch_topic: returns whether the type of a topic is BatchCQ; None for an unknown topic.
    """

    segment_bytes: int
    batch_segment_bytes: int
    ext_segment_bytes: int
    extending: bool = False
    is_batch_topic: IsBatchTopic | None = None

    @classmethod
    def of(cls, config: MessageStoreConfig, is_batch_topic: IsBatchTopic | None) -> QueueOptions:
        """Returns the queue options that a configuration contains."""
        return cls(
            config.consume_queue_segment_bytes,
            config.batch_consume_queue_segment_bytes,
            config.mapped_file_size_consume_queue_ext,
            config.enable_consume_queue_ext,
            is_batch_topic,
        )


class QueueFactory:
    """Creates the queues of a store, on the thread that owns them.

    Args:
        root: the store's directory.
        log: the log to which the units point.
        writable: False opens for reading only.
        on_map: called with a queue whenever one of its segments has been mapped. Segments of batch queues and of queues
            with an extension are not counted, and stay mapped. There are few such queues, and ``ConsumeQueue.park``
            does not take account of extensions and batch units.

    Attributes:
        options: the options for each kind of queue.
        placement: the ``Placement`` that all queues of the store share.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        log: LogReader,
        options: QueueOptions,
        writable: bool,
        on_map: Callable[[ConsumeQueue], None] | None = None,
    ) -> None:
        self.options = options
        self._files = files
        self._path = f"{root}/consumequeue"
        self._batch_path = f"{root}/batchconsumequeue"
        self._ext_path = f"{root}/consumequeue_ext"
        self._log = log
        self._writable = writable
        self._on_map = on_map
        self.placement = Placement(log, self.raw_unit, self._queues_like)
        self._batch: dict[bytes, bool] = {}
        self._by_record: dict[bytes, bool] = {}
        self._present: dict[str, bool] = {}
        self._checked: dict[str, list[Place]] = {}

    def is_batch(self, topic: bytes) -> bool:
        """Whether the queues of ``topic`` are batch consume queues."""
        known = self._batch.get(topic)
        return self._decide(topic) if known is None else known

    def segment_bytes(self, topic: bytes) -> int:
        """Returns the length in bytes of the segments of the queues of ``topic``."""
        return self.options.batch_segment_bytes if self.is_batch(topic) else self.options.segment_bytes

    def by_record(self, topic: bytes) -> bool:
        """Whether the queues of ``topic`` get their records one by one, through ``ConsumeQueue.put_record``."""
        known = self._by_record.get(topic)
        if known is None:
            extended = self.options.extending and not topic.startswith(_LIGHT)
            known = self._by_record[topic] = extended or self.is_batch(topic)
        return known

    def forget(self, topic: bytes) -> None:
        """Forgets the kind of a deleted topic, because a new topic with that name may be of a different kind."""
        self._batch.pop(topic, None)
        self._by_record.pop(topic, None)

    def make(self, topic: bytes, queue_id: int) -> ConsumeQueue:
        """Returns the queue object, which is not opened yet."""
        files, options, directory = self._files, self.options, self.directory(topic, queue_id)
        # The kind is remembered only for topics with a queue object, because clients may ask for any topic.
        self._batch[topic] = batch = self.is_batch(topic)
        if batch:
            self._present[self._batch_path] = True
            return BatchConsumeQueue(
                files,
                directory,
                options.batch_segment_bytes,
                topic,
                queue_id,
                self._log,
                self.placement,
                self._writable,
            )
        ext_name = f"{self.name(topic)}/{queue_id}"
        extending = options.extending and not topic.startswith(_LIGHT)
        if not extending and not self._exists(self._ext_path, ext_name):
            queue = ConsumeQueue(
                files,
                directory,
                options.segment_bytes,
                topic,
                queue_id,
                self._log,
                self.placement,
                self._writable,
                self._on_map,
            )
            queue.segments.expect(self._checked.pop(directory, None))
            return queue
        return ExtendedConsumeQueue(
            files,
            directory,
            options.segment_bytes,
            topic,
            queue_id,
            self._log,
            self.placement,
            self._writable,
            ConsumeQueueExt(files, f"{self._ext_path}/{ext_name}", options.ext_segment_bytes, self._writable),
            extending,
        )

    def _exists(self, path: str, name: str) -> bool:
        """Whether directory ``path`` of batch queues or extensions has this directory. While a store is open for
        writing, nobody else makes the first one.
        """
        if not self._writable or (is_present := self._present.get(path)) is None:
            is_present = self._present[path] = self._files.exists(path)
        return is_present and self._files.exists(f"{path}/{name}")

    def can_hold(self, topic: bytes, queue_id: int) -> bool:
        """Whether a queue with this topic and id can exist. A damaged record may state impossible values."""
        return 0 <= queue_id <= INT32_MAX and is_topic_directory(topic)

    def raw_unit(self, topic: bytes, queue_id: int, queue_offset: int) -> tuple[int, int]:
        """Returns the physical offset and the size that a unit holds; zeros if there is no such unit.

        The queue need not be open: the file is read, not mapped. A unit for several messages is found by the queue
        offset of its first message.
        """
        if not self.can_hold(topic, queue_id) or not 0 <= queue_offset < _QUEUE_OFFSET_MAX:
            return 0, 0
        name = self.name(topic)
        with suppress(DiskError):
            if self._files.exists(f"{self._batch_path}/{name}/{queue_id}"):
                return self._raw_batch_unit(f"{self._batch_path}/{name}/{queue_id}", queue_offset)
            position, segment_bytes = queue_offset * UNIT_BYTES, self.options.segment_bytes
            path = f"{self._path}/{name}/{queue_id}/{segment_name(position - position % segment_bytes)}"
            if self._files.length(path) == segment_bytes:
                return UNIT.unpack(self._files.read_at(path, position % segment_bytes, UNIT_BYTES))[:2]
        return 0, 0

    def _raw_batch_unit(self, directory: str, queue_offset: int) -> tuple[int, int]:
        segment_bytes = self.options.batch_segment_bytes
        for name, size in self._files.list_sizes(directory, is_segment_name).items():
            low, high = 0, size // BATCH_UNIT_BYTES if size == segment_bytes else 0
            while low < high:
                middle = (low + high) // 2
                data = self._files.read_at(f"{directory}/{name}", middle * BATCH_UNIT_BYTES, BATCH_UNIT_BYTES)
                unit = decode_batch_unit(memoryview(data), 0)
                if unit.valid and unit.base_offset == queue_offset:
                    return unit.physical_offset, unit.size
                low, high = (middle + 1, high) if unit.valid and unit.base_offset < queue_offset else (low, middle)
        return 0, 0

    def _queues_like(self, topic: bytes, queue_id: int) -> Iterator[tuple[bytes, int]]:
        """Yields the topic's existing queues with other ids and, for every other topic, the queue with the same id,
        which need not exist.
        """
        for path in (self._path, self._batch_path):
            for name in self.queue_directories(f"{path}/{self.name(topic)}"):
                if int(name) != queue_id:
                    yield topic, int(name)
            for other in self._files.list_own_directories(path):
                other_topic = other.encode("utf-8", "surrogateescape")
                if other_topic != topic:
                    yield other_topic, queue_id

    def names(self) -> Iterator[tuple[bytes, int]]:
        """Yields topic and queue id of every queue directory."""
        for path in (self._path, self._batch_path):
            yield from self._names(path)

    def topic_names(self) -> set[bytes]:
        """Returns every topic with a directory."""
        names = [name for path in (self._path, self._batch_path) for name in self._files.list_own_directories(path)]
        return {name.encode("utf-8", "surrogateescape") for name in names}

    def topics(self) -> Iterator[tuple[bytes, str]]:
        """Yields name and directory of every topic with a directory."""
        for path in (self._path, self._batch_path):
            for name in self._files.list_own_directories(path):
                yield name.encode("utf-8", "surrogateescape"), f"{path}/{name}"

    def queue_directories(self, directory: str) -> list[str]:
        """Returns the names of the queue directories in a topic's directory."""
        return list(filter(is_queue_directory, self._files.list_own_directories(directory)))

    def directories(self) -> Iterator[str]:
        """Yields every directory of the queues, outer directories first."""
        for path in (self._path, self._batch_path, self._ext_path):
            if path != self._path and not self._files.exists(path):
                continue
            yield path
            for _, directory, queues in self._topics(path):
                yield directory
                for name in queues:
                    yield f"{directory}/{name}"

    def check(self) -> None:
        """Checks the names and lengths of all queue files, without opening or changing a file. In a store that is open
        for writing, the files of a queue are not listed again if the queue is opened before ``forget_checked``. Call
        that after directories were moved.

        Raises:
            StoreDamagedError: a file is not a segment of the length that its kind of queue requires.
        """
        options = self.options
        for path, segment_bytes in (
            (self._path, options.segment_bytes),
            (self._batch_path, options.batch_segment_bytes),
            (self._ext_path, options.ext_segment_bytes),
        ):
            for topic, queue_id in self._names(path):
                directory = f"{path}/{self.name(topic)}/{queue_id}"
                queue = SegmentList(self._files, directory, segment_bytes, writable=False)
                places = queue.places()
                queue.expect(places)
                queue.load()
                if self._writable and path == self._path:
                    self._checked[directory] = places

    def forget_checked(self) -> None:
        """Lets each queue list its files when it is opened."""
        self._checked.clear()
        self._present.clear()

    def check_types(self) -> None:
        """Checks, as RocketMQ does at start-up, that every batch queue belongs to a topic of type BatchCQ.

        Raises:
            StoreDamagedError: a topic with batch queues is of a different type, or has other consume queues too.
        """
        asked = self.options.is_batch_topic
        for name in self._files.list_own_directories(self._batch_path):
            path = f"{self._batch_path}/{name}"
            if self._files.exists(f"{self._path}/{name}"):
                raise StoreDamagedError(
                    path, 0, "the topic has queues in consumequeue too", "move one of the two directories away"
                )
            if asked is not None and asked(name.encode("utf-8", "surrogateescape")) is False:
                raise StoreDamagedError(
                    path, 0, "the topic's type is not BatchCQ", "restore config/topics.json, or move the directory away"
                )

    def directory(self, topic: bytes, queue_id: int) -> str:
        """Returns the directory in which the files of a queue are, or would be."""
        return f"{self.topic_directory(topic)}/{queue_id}"

    def topic_directory(self, topic: bytes) -> str:
        """Returns the path of a topic's queues, whether they exist or not.

        Raises:
            StoreDamagedError: ``topic`` cannot be the name of a directory.
        """
        name = self.name(topic)
        return f"{self._batch_path if self.is_batch(topic) else self._path}/{name}"

    def name(self, topic: bytes) -> str:
        """Returns the topic as a directory name.

        Raises:
            StoreDamagedError: ``topic`` cannot be the name of a directory.
        """
        name = topic.decode("utf-8", "surrogateescape")
        if not is_topic_directory(topic):
            raise StoreDamagedError(
                self._path, 0, f"{name!r} cannot be the directory of a topic", "use another topic name"
            )
        return name

    def _decide(self, topic: bytes) -> bool:
        if topic.startswith(_LIGHT):
            return False
        name, asked = self.name(topic), self.options.is_batch_topic
        known = asked(topic) if asked is not None else None
        if known is None:
            return self._exists(self._batch_path, name)
        return known and not self._files.exists(f"{self._path}/{name}")

    def _names(self, path: str) -> Iterator[tuple[bytes, int]]:
        for topic, _, queues in self._topics(path):
            for name in queues:
                yield topic, int(name)

    def _topics(self, path: str) -> Iterator[tuple[bytes, str, list[str]]]:
        for name in self._files.list_own_directories(path):
            directory = f"{path}/{name}"
            yield name.encode("utf-8", "surrogateescape"), directory, self.queue_directories(directory)


def is_queue_directory(name: str) -> bool:
    """Whether a directory with this name in that of a topic is one of a queue."""
    return name.isdigit() and name.isascii() and int(name) <= INT32_MAX


def is_topic_directory(topic: bytes) -> bool:
    """Whether ``topic`` can be the name of a directory. Names from stored messages are checked with it."""
    return (
        topic not in (b"", b".", b"..")
        and len(topic) <= _NAME_BYTES_MAX
        and not any(char in topic for char in (b"/", b"\\", b"\0"))
    )
