"""The job of a rebuild of queues and index: a store and its options. Tasks on other machines can read the job as JSON.

The job is determined once; until the rebuild ends, nobody may write to the store. File lengths come from the existing
files; for queues and index, the configuration takes precedence. The kinds of queues come from the existing directories
and the topic table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rucola.common.columns import WalkStop, new_table
from rucola.common.key_builder import is_light_queue
from rucola.common.numbers import INT64_MAX
from rucola.common.options import options_of, parse_options
from rucola.errors import StoreDamagedError
from rucola.formats.index_file import is_index_name
from rucola.formats.tables import decode_topics
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig, in_todays_words
from rucola.store.doctor.end_check import check_end, end_of_recovery
from rucola.store.lite.lite_topics import DIRECTORY as LITE_DIRECTORY
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.multi_path import log_directories
from rucola.store.offline.offline_store import OfflineStore, queue_lengths
from rucola.store.queue.queue_factory import QueueOptions
from rucola.store.recovery.marks import StoreMarks
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.topic_deletion import TopicDeletion
from rucola.store.verify.index import index_geometry

_TEXT_ERRORS = "surrogateescape"
_LIGHT_OPTIONS = ("enableLmq", "enableMultiDispatch")


@dataclass(frozen=True)
class RebuildJob:
    """A store to be rebuilt.

    Attributes:
        root: the store's directory.
        directories: directories of the commit log.
        segments: path, physical offset of the first byte, and length of each segment with records, oldest first.
        end: physical offset after the last record.
        modified_ms: times of the last change of the segments.
        options: the store's options, by RocketMQ's keys.
        batch_topics: for each topic whose kind of queues is known, whether they are batch consume queues.
        deleted: for each deleted topic, the physical offset below which its records belong to no queue.
        gaps: physical offsets of the start and the end (excluded) of each part of the log whose messages were lost.
        trusted_to: see ``Placement.trusted_to``.
        lite: whether lite topics get their own directory (``rebuild_lite``) instead of consume queues.
        lite_sources: stores whose lite topics tell starts and next offsets.
    """

    root: str
    directories: list[str]
    segments: list[tuple[str, int, int]]
    end: int
    modified_ms: list[int]
    options: dict[str, str]
    batch_topics: dict[str, bool]
    deleted: dict[str, int]
    gaps: list[tuple[int, int]]
    trusted_to: int
    lite: bool = False
    lite_sources: list[str] = field(default_factory=list)

    @property
    def config(self) -> MessageStoreConfig:
        """The store's configuration."""
        return parse_options(MessageStoreConfig, self.options)

    @property
    def log_bytes(self) -> int:
        """Number of bytes in the log up to its end."""
        return self.end - self.segments[0][1]

    def queue_options(self) -> QueueOptions:
        """Options for the queues to be written. Units in consume queue extensions get no filter bit map, because the
        filters in use when the messages were stored are unknown.
        """
        return QueueOptions.of(self.config, self._is_batch_topic)

    def deleted_to(self) -> dict[bytes, int]:
        """Returns ``deleted`` with topics as bytes."""
        return {topic.encode("utf-8", _TEXT_ERRORS): end for topic, end in self.deleted.items()}

    def to_json(self) -> str:
        """Returns the job as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> RebuildJob:
        """Reads a job that ``to_json`` wrote."""
        fields = json.loads(text)
        fields["segments"] = [(path, start, size) for path, start, size in fields["segments"]]
        fields["gaps"] = [(start, end) for start, end in fields["gaps"]]
        return cls(**fields)

    def _is_batch_topic(self, topic: bytes) -> bool | None:
        return self.batch_topics.get(topic.decode("utf-8", _TEXT_ERRORS))


def find_job(
    files: Files,
    root: str,
    options: Mapping[str, str] | None = None,
    commit_log_path: str | None = None,
    lite_sources: Sequence[str] = (),
) -> RebuildJob:
    """Returns the job that rebuilds a store. Nobody may write to the store from this call until the rebuild ends.

    Args:
        root: absolute path of the store.
        options: entries of the broker's configuration; keys that are not the store's are ignored.
        commit_log_path: the directories of the log, separated by `,`, if they are not in the store.
        lite_sources: further stores whose lite topics tell starts and next offsets.

    Raises:
        StoreDamagedError: there is no store, or the log has no records, or a file of the log is not a segment, or the
            log ends too early (``check_end``).
        ConfigError: an option has an invalid value.
    """
    known = {entry.key for entry in options_of(MessageStoreConfig)}
    given = {key: value for key, value in in_todays_words(options or {}).items() if key in known}
    commit_log_path = commit_log_path or given.get("storePathCommitLog") or None
    deletion = TopicDeletion(files, root)
    deletion.load()
    marks = StoreMarks(files, root)
    watermark = marks.watermark.read()
    store = OfflineStore(root, files, commit_log_path)
    try:
        end = store.end_offset()
        if watermark is None and marks.in_use:
            # RocketMQ was killed, so the log ends where recovery would find its end.
            end = end_of_recovery(files, root, store, marks)
        else:
            check_end(store, end, 0 if watermark is None else watermark.flushed_offset)
        segments = [segment for segment in store.log_segments() if segment[1] < end]
        found = options_of_files(files, root)
    finally:
        store.close()
    found |= given | {"storePathRootDir": root}
    directories = log_directories(files, root, commit_log_path)
    if not segments:
        raise StoreDamagedError(directories[0], 0, "the log has no records", "nothing can be rebuilt from it")
    _check_first(files, segments[0])
    found["mappedFileSizeCommitLog"] = str(segments[0][2])
    job = RebuildJob(
        root,
        directories,
        segments,
        end,
        [files.modified_ms(path) for path, _, _ in segments],
        found,
        _kinds(files, root),
        {topic.decode("utf-8", _TEXT_ERRORS): offset for topic, offset in deletion.ends.items()},
        [(gap.start, gap.end) for gap in Quarantine(files, root).gaps()],
        INT64_MAX if watermark is None else watermark.queues_offset,
        *_lite(files, root, found, watermark is not None, lite_sources),
    )
    _ = job.config  # an invalid option ends the rebuild here
    return job


def _check_first(files: Files, segment: tuple[str, int, int]) -> None:
    """Checks that the log begins with a record, because there is no other way to find the first record.

    Raises:
        StoreDamagedError: the log does not begin with a record.
    """
    path, start, size = segment
    file = MappedFile(files, path, start, size, False, 0)
    rows, _, stop = CheckedWalk(new_table(1)).walk(file, 0, 0)
    file.close()
    if not rows and stop != WalkStop.BLANK:
        raise StoreDamagedError(path, 0, "the log does not begin with a record", "salvage the store")


def options_of_files(files: Files, root: str) -> dict[str, str]:
    """Returns the options that follow from existing files of queues and index."""
    found = queue_lengths(files, root)
    for name, size in files.list_sizes(f"{root}/index", is_index_name).items():
        file = MappedFile(files, f"{root}/index/{name}", 0, size, False, 0)
        geometry = index_geometry(file) if size else None
        file.close()
        if geometry is not None:
            found["maxHashSlotNum"], found["maxIndexNum"] = geometry
            break
    enabled: list[str] = []
    if files.list_directories(f"{root}/consumequeue_ext"):
        enabled.append("enableConsumeQueueExt")
    if files.exists(f"{root}/{LITE_DIRECTORY}") or any(
        is_light_queue(name) for name in files.list_directories(f"{root}/consumequeue")
    ):
        enabled += _LIGHT_OPTIONS
    return {key: str(value) for key, value in found.items()} | dict.fromkeys(enabled, "true")


def _lite(
    files: Files, root: str, options: Mapping[str, str], is_ours: bool, sources: Sequence[str]
) -> tuple[bool, list[str]]:
    """Whether lite topics get their own directory, and which stores have one. In a store of RocketMQ they stay consume
    queues, because RocketMQ may open it again.
    """
    known = [source for source in (root, *sources) if files.exists(f"{source}/{LITE_DIRECTORY}")]
    is_on = all(options.get(key) == "true" for key in _LIGHT_OPTIONS)
    return bool(known) or (is_ours and is_on), known


def _kinds(files: Files, root: str) -> dict[str, bool]:
    """Returns, for each known topic, whether its queues are batch consume queues. An existing directory takes
    precedence over the topic table.
    """
    text = files.read_file(f"{root}/config/topics.json")
    kinds = {name: topic.is_batch_queue for name, topic in decode_topics(text)[1].items()} if text else {}
    for directory, batch in (("batchconsumequeue", True), ("consumequeue", False)):
        kinds |= dict.fromkeys(files.list_directories(f"{root}/{directory}"), batch)
    return kinds
