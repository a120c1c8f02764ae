"""Counts and finds messages of any number of stores, segment by segment, so that segments can be read in parallel.

Nothing is changed, and brokers may use the stores: each store is read up to the end that its log had when the work
began. Damaged parts are skipped.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.key_builder import DLQ_GROUP_TOPIC_PREFIX
from rucola.common.message_const import DLQ_ORIGIN_TOPIC, RETRY_TOPIC
from rucola.common.sysflag import PREPARED_BIT
from rucola.errors import FormatError
from rucola.formats.message_id import parse_offset_message_id
from rucola.formats.properties import decode_properties
from rucola.formats.tables import decode_consumer_offsets, decode_subscription_groups
from rucola.runtime.files import Files
from rucola.store.inspect.search import MessageQuery, has_index, search_index
from rucola.store.log.mapped_file import MappedFile
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.offline.rows import SegmentRows
from rucola.store.places import hold_store
from rucola.store.verify.findings import Findings
from rucola.store.verify.log import LogCheck

HOUR_MS = 3_600_000
RETRY_MAX_TIMES = 16
USED_UP, REFUSED = "retries used up", "refused by the consumer"
_DLQ = DLQ_GROUP_TOPIC_PREFIX.encode()


class SegmentPart(NamedTuple):
    """A segment to read.

    Attributes:
        store: directory of the store.
        end: physical offset after the last record of the store when the work began.
    """

    store: str
    path: str
    start: int
    size: int
    end: int


class Tally(NamedTuple):
    """Counts messages that have the same topic, queue, tag and hour of their store time (``hour_ms``: start of the hour
    in ms).
    """

    store: str
    topic: str
    queue_id: int
    tag: str
    hour_ms: int
    messages: int
    bytes: int


class DeadLetters(NamedTuple):
    """Number of a group's dead letters that have the same topic of origin and the same reason."""

    store: str
    group: str
    topic: str
    reason: str
    messages: int


@dataclass(frozen=True)
class Lag:
    """Progress of a group in one queue."""

    store: str
    group: str
    topic: str
    queue_id: int
    consumer_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """Number of messages that the group has not consumed."""
        return max(self.max_offset - self.consumer_offset, 0)


def segments_of(stores: Iterable[str], files: Files | None = None) -> list[SegmentPart]:
    """Returns those segments of ``stores`` that hold records.

    Raises:
        StoreDamagedError: a directory holds no store, or a file of its log is not a segment.
    """
    found = []
    for path in stores:
        store = OfflineStore(path, files)
        end = store.end_offset()
        found += [SegmentPart(store.path, *segment, end) for segment in store.log_segments() if segment[1] < end]
        store.close()
    return found


def find_in(part: SegmentPart, wanted: MessageQuery, files: Files | None = None) -> Iterator[SegmentRows]:
    """Yields the matching messages of a segment, in the order of the log."""
    for file, table, rows in _batches(files or Files(), part):
        chosen = wanted.choose(file.map.view, table, rows)
        if chosen:
            yield SegmentRows(file.map.view, table, chosen)


def find(
    stores: Sequence[str], wanted: MessageQuery, by_index: bool = True, files: Files | None = None
) -> Iterator[tuple[str, SegmentRows]]:
    """Yields store and rows of all matching messages; finds them through the index if a key is wanted, else by reading
    the whole log. The rows are valid until the next ones are requested.

    Args:
        by_index: whether to trust the index.
    """
    files = files or Files()
    for path in stores:
        store = OfflineStore(path, files)
        try:
            if wanted.key is not None and by_index and has_index(store, files):
                yield from ((store.path, rows) for rows in search_index(store, files, wanted))
                continue
        finally:
            store.close()
        for part in segments_of([path], files):
            yield from ((part.store, rows) for rows in find_in(part, wanted, files))


def find_id(stores: Sequence[str], message_id: str) -> Iterator[tuple[str, SegmentRows]]:
    """Yields the message with an offset message id, from each store that has it; the id contains broker and physical
    offset.

    Raises:
        ValueError: the text is not an offset message id.
    """
    wanted = parse_offset_message_id(message_id)
    for path in stores:
        store = OfflineStore(path)
        rows = store.rows_at(wanted.physical_offset)
        if rows is not None:
            at = rows.table[RecordColumn.STORE_HOST_POS]
            if bytes(rows.view[at : at + len(wanted.store_host)]) == wanted.store_host:
                yield store.path, rows
        store.close()


def count_in(part: SegmentPart) -> tuple[list[Tally], list[DeadLetters]]:
    """Counts the messages of a segment; half messages and other records that belong to no queue are left out."""
    files = Files()
    messages: Counter[tuple[bytes, int, bytes, int]] = Counter()
    sizes: Counter[tuple[bytes, int, bytes, int]] = Counter()
    dead: Counter[tuple[str, str, str]] = Counter()
    reason = _reasons(files, part.store)
    for file, table, rows in _batches(files, part):
        view = file.map.view
        for row in range(0, rows * ROW_WIDTH, ROW_WIDTH):
            if table[row + RecordColumn.SYS_FLAG] & PREPARED_BIT:
                continue
            at, tag_at = table[row + RecordColumn.TOPIC_POS], table[row + RecordColumn.TAGS_POS]
            topic = bytes(view[at : at + table[row + RecordColumn.TOPIC_LEN]])
            tag = bytes(view[tag_at : tag_at + max(table[row + RecordColumn.TAGS_LEN], 0)])
            hour_ms = table[row + RecordColumn.STORE_TIMESTAMP] // HOUR_MS * HOUR_MS
            key = topic, table[row + RecordColumn.QUEUE_ID], tag, hour_ms
            messages[key] += 1
            sizes[key] += table[row + RecordColumn.RECORD_SIZE]
            if topic.startswith(_DLQ):
                dead[reason(topic, view, table, row)] += 1
    tallies = [
        Tally(part.store, _text(topic), queue_id, _text(tag), hour_ms, count, sizes[topic, queue_id, tag, hour_ms])
        for (topic, queue_id, tag, hour_ms), count in sorted(messages.items())
    ]
    return tallies, [DeadLetters(part.store, *key, count) for key, count in sorted(dead.items())]


def lags(path: str, files: Files | None = None) -> list[Lag]:
    """Returns the progress of all groups in the queues of a store; nothing if the store has no table of offsets."""
    files = files or Files()
    store = OfflineStore(path, files)
    found = []
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        text = files.read_file(f"{store.path}/config/{name}")
        table = decode_consumer_offsets(text)[1] if text else {}
        for key, queues in table.items():
            topic, _, group = key.partition("@")
            for queue_id, consumer_offset in sorted(queues.items()):
                end = store.queue_range(topic, queue_id).max_offset
                found.append(Lag(store.path, group, topic, queue_id, consumer_offset, end))
        store.release_queues()
    store.close()
    return found


def merged(tallies: Iterable[Tally], by: Sequence[str]) -> list[Tally]:
    """Returns one tally for each combination of values in the fields ``by``, with the sums of messages and bytes. The
    remaining fields are empty, or -1 if they are numbers.
    """
    sums: dict[Tally, tuple[int, int]] = {}
    for tally in tallies:
        key = Tally(
            tally.store if "store" in by else "",
            tally.topic if "topic" in by else "",
            tally.queue_id if "queue_id" in by else -1,
            tally.tag if "tag" in by else "",
            tally.hour_ms if "hour_ms" in by else -1,
            0,
            0,
        )
        messages, size = sums.get(key, (0, 0))
        sums[key] = messages + tally.messages, size + tally.bytes
    return [key._replace(messages=messages, bytes=size) for key, (messages, size) in sorted(sums.items())]


def _batches(files: Files, part: SegmentPart) -> Iterator[tuple[MappedFile, array[int], int]]:
    files.hold(part.path.rpartition("/")[0])
    file = MappedFile(files, part.path, part.start, part.size, False, 0)
    log = LogCheck([file], Findings(part.store), unclean=False, live_end=min(part.end, file.end))
    try:
        yield from log.batches()
    finally:
        log.close()


Reason = Callable[[bytes, memoryview, "array[int]", int], tuple[str, str, str]]


def _reasons(files: Files, store: str) -> Reason:
    """Returns a function that returns the group, the topic of origin and the reason of a dead letter."""
    text = files.read_file(f"{hold_store(files, store)}/config/subscriptionGroup.json")
    limits: Mapping[str, int] = {}
    if text:
        try:
            limits = {name: group.retry_max_times for name, group in decode_subscription_groups(text).groups.items()}
        except FormatError:
            limits = {}  # A damaged ``subscriptionGroup.json`` is ignored here; ``verify`` reports it.

    def reason(topic: bytes, view: memoryview, table: array[int], row: int) -> tuple[str, str, str]:
        group = _text(topic[len(_DLQ) :])
        at = table[row + RecordColumn.PROPERTIES_POS]
        properties = decode_properties(view[at : at + table[row + RecordColumn.PROPERTIES_LEN]])
        origin = properties.get(DLQ_ORIGIN_TOPIC) or properties.get(RETRY_TOPIC) or ""
        times = table[row + RecordColumn.RECONSUME_TIMES]
        return group, origin, USED_UP if times >= limits.get(group, RETRY_MAX_TIMES) else REFUSED

    return reason


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
