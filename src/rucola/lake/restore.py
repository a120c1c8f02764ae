"""Restores the files of a commit log from a raw table, byte for byte.

The store is written beside the target and then renamed to it, so the target is a complete store or does not exist. An
existing store is never touched. Queues and index are not archived; they are rebuilt here from the log, because RocketMQ
5.5 rebuilds them at its start only for the last segments.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from rucola.common.names import is_plain_name
from rucola.errors import ConfigError, FormatError, StoreDamagedError
from rucola.formats.segment_name import segment_name
from rucola.lake.file_sizes import SIZES, read_sizes
from rucola.lake.raw_archiver import CONFIG
from rucola.lake.raw_rows import CONFIG_PART, DELETED_PART, LOG_PART, TAIL_PART
from rucola.lake.table_log import DataFile, TableLog
from rucola.lake.workers import Task, Workers, run_here
from rucola.places.place import Place
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.config import in_todays_words
from rucola.store.doctor import rebuild as doctor
from rucola.store.doctor.staged import Runner, run_serially
from rucola.store.topic_deletion import FILE_NAME as DELETED_TOPICS

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 4096
NAME_BYTES = 200
"""Largest part of the target's name, in bytes, in the name of the directory that becomes it."""

logger = logging.getLogger(__name__)


class RestoredFile(NamedTuple):
    """A segment of the restored log.

    Attributes:
        name: name of the segment file.
        size: length in bytes.
        sha256: SHA-256 of its content, as hexadecimal digits.
    """

    name: str
    size: int
    sha256: str


SEGMENT_BYTES_MAX = (1 << 31) - 1
"""Longest segment in bytes: ``mappedFileSizeCommitLog`` is a 32-bit integer."""
PHYSICAL_OFFSET_MAX = (1 << 63) - 1


def write_store(
    table: TableLog,
    target: str,
    workers: Workers = run_here,
    runner: Runner = run_serially,
    broker_name: str = "",
    rebuild: bool = True,
    options: Mapping[str, str] | None = None,
) -> list[RestoredFile]:
    """Writes a store directory with the archived log and configuration.

    Args:
        table: log of a raw table.
        target: directory of the new store; if it exists, it must be empty.
        workers: who writes; they must see ``target`` under this path.
        runner: who builds queues and index.
        broker_name: broker whose log is restored; may be empty if the table has only one log.
        rebuild: whether to build queues and index as well. If the log is damaged, the broker builds them instead.
        options: entries of the broker's configuration. The sizes of queue files and index files in it take precedence
            over those that the table has of the archived store.

    Raises:
        ConfigError: the table has no log of ``broker_name``, or ``target`` is not empty.
        FormatError: a part of the log is missing in the table, or a file of the table is damaged.
    """
    files = Files()
    target = files.expand(target)
    if files.list_files(target) or files.list_directories(target):
        raise _occupied(target)
    snapshot = table.snapshot()
    names = sorted({queue.broker_name for queue in snapshot.offsets.offsets})
    broker_name = _broker(table.place.root, names, broker_name)
    own = [one for one in snapshot.files.values() if one.partition["broker"] == broker_name]
    segments = _segments(one for one in own if one.partition["part"] in (LOG_PART, TAIL_PART))
    place = _hidden_name(target)
    try:
        files.make_directory(f"{place}/commitlog")
        files.hold(place)
        texts = workers(_segment_task(table.place, f"{place}/commitlog", segments), len(segments))
        for part, folder in ((CONFIG_PART, f"{place}/{CONFIG}"), (DELETED_PART, place)):
            _write_files(files, table.place, [one for one in own if one.partition["part"] == part], folder, part)
        if rebuild and segments:
            sizes = read_sizes(table.place, [one for one in own if one.partition["part"] == SIZES])
            _rebuild(place, runner, sizes | in_todays_words(options or {}))
        for directory in (f"{place}/commitlog", place):
            files.sync_directory(directory)
        if not files.publish_directory(place, target):
            raise _occupied(target)
    except BaseException:
        files.remove_tree(place)
        raise
    return [RestoredFile(*json.loads(text)) for text in texts]


def _hidden_name(target: str) -> str:
    """The directory beside ``target`` that becomes it; a long name is cut, since a name has at most 255 bytes."""
    directory, _, name = target.rpartition("/")
    return f"{directory}/{name.encode()[:NAME_BYTES].decode(errors='ignore')}.restoring-{uuid4().hex}"


def _rebuild(place: str, runner: Runner, options: Mapping[str, str]) -> None:
    """Builds queues and index of the store at ``place``; ignores store directories named in ``options``."""
    kept = {name: value for name, value in options.items() if not name.startswith("storePath")}
    try:
        doctor.rebuild(place, runner, kept)
    except StoreDamagedError as error:
        files = Files()
        for name in files.list_directories(place):
            if name not in ("commitlog", CONFIG):
                files.remove_tree(f"{place}/{name}")
        logger.warning(
            "the log was archived with damage, so queues and index are not built here; the broker builds them: %s",
            error,
        )


def _occupied(target: str) -> ConfigError:
    return ConfigError("target", target, "a directory that does not exist or is empty; no store is ever overwritten")


def _broker(root: str, names: Sequence[str], wanted: str) -> str:
    if wanted in names:
        return wanted
    if not wanted and len(names) == 1:
        return names[0]
    raise ConfigError("broker_name", wanted, f"one of the brokers in {root}: {', '.join(names) or 'none'}")


class _Segment(NamedTuple):
    """A segment to restore, and the data files that hold its parts."""

    start: int
    size: int
    paths: tuple[str, ...]
    is_last: bool
    """Whether this is the last segment. The table may lack the end of the last segment; the restored file then has
    zeros there.
    """


def _segments(files: Iterable[DataFile]) -> list[_Segment]:
    """The segments in log order; raises ``FormatError`` if a segment between two others is missing."""
    found: dict[int, list[DataFile]] = {}
    for one in files:
        found.setdefault(_number(one, "segment", PHYSICAL_OFFSET_MAX), []).append(one)
    segments: list[_Segment] = []
    for start, parts in sorted(found.items()):
        size = _number(parts[0], "segmentBytes", SEGMENT_BYTES_MAX)
        if segments and segments[-1].start + segments[-1].size != start:
            raise _gap(parts[0].path, segments[-1].start + segments[-1].size, start)
        segments.append(_Segment(start, size, tuple(one.path for one in parts), start == max(found)))
    return segments


def _number(file: DataFile, column: str, most: int) -> int:
    """Returns a partition value of a data file as a number."""
    text = file.partition[column]
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= most):
        raise FormatError("raw table", 0, f"a number up to {most} as {column}", repr(text[:40]), file.path)
    return int(text)


def _segment_task(place: Place, directory: str, segments: Sequence[_Segment]) -> Task:
    def write(number: int) -> str:
        return json.dumps(write_segment(place, directory, segments[number]))

    return write


def write_segment(place: Place, directory: str, wanted: _Segment) -> RestoredFile:
    """Writes one file of the log. Runs in tasks; several tasks for one segment write the same content.

    Raises:
        FormatError: a part of the segment is missing, or a page in a data file has a wrong checksum.
    """
    files = Files()
    files.hold(directory)
    name = segment_name(wanted.start)
    if not wanted.size:  # an empty file that a crash of the broker left, archived as it was
        files.write_file(f"{directory}/{name}", b"")
        return RestoredFile(name, 0, hashlib.sha256().hexdigest())
    hidden = f"{directory}/.{name}.{uuid4().hex}"
    files.create_segment(hidden, f"{hidden}.tmp", wanted.size)
    segment = files.map_file(hidden, wanted.size)
    try:
        written = _Written(wanted, place.root)
        for path in wanted.paths:
            with place.parquet(path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=["physicalOffset", "size", "record"]):
                    written.add(batch, segment, path)
        written.check()
        segment.sync()
        digest = hashlib.sha256(segment.view).hexdigest()
    finally:
        segment.close()
    files.rename(hidden, f"{directory}/{name}")
    return RestoredFile(name, wanted.size, digest)


class _Written:
    """The parts of a segment that were written so far. Rows may come in any order: other programs may have rewritten
    the table.
    """

    def __init__(self, wanted: _Segment, root: str) -> None:
        self._wanted = wanted
        self._root = root
        self._spans: list[tuple[int, int, str]] = []

    def add(self, batch: pa.RecordBatch, segment: FileMap, path: str) -> None:
        """Writes the rows of a batch into ``segment``.

        Raises:
            FormatError: a row does not lie in the segment, or has more bytes than it covers.
        """
        import numpy as np

        from rucola.arrow.buffers import numbers_of

        if not batch.num_rows:
            return
        base, size = self._wanted.start, self._wanted.size
        offsets, sizes = (numbers_of(batch.column(name), np.int64) for name in ("physicalOffset", "size"))
        places = offsets - base
        records = batch.column("record")
        ends = np.frombuffer(records.buffers()[1], np.int32, len(records) + 1, records.offset * 4)
        lengths = np.diff(ends)
        wrong = (offsets < base) | (places > size) | (sizes < lengths) | (sizes > size - places)
        if wrong.any():
            at = int(offsets[wrong][0])
            expected = f"a row in the {size} bytes of segment {base}, and no more bytes than its size"
            raise FormatError("raw table", at, expected, "another", f"{self._root}/{path}")
        content = memoryview(records.buffers()[2] or b"")
        stops = places + sizes
        breaks = np.flatnonzero(places[1:] != stops[:-1]) + 1
        firsts, lasts = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(places)])) - 1
        self._spans += [(int(places[one]), int(stops[other]), path) for one, other in zip(firsts, lasts, strict=True)]
        if len(firsts) == 1 and (lengths == sizes).all():
            segment.write(int(places[0]), content[int(ends[0]) : int(ends[-1])])
            return
        for place, start, end in zip(places.tolist(), ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            segment.write(place, content[start:end])

    def check(self) -> None:
        """Checks that each byte of the segment was written once. The end of the last segment may be missing.

        Raises:
            FormatError: a part of the segment is missing, or there is a part twice.
        """
        reached, base = 0, self._wanted.start
        for place, stop, path in sorted(self._spans):
            if place != reached:
                raise _gap(f"{self._root}/{path}", base + reached, base + place)
            reached = stop
        if reached != self._wanted.size and not self._wanted.is_last:
            raise _gap(f"{self._root}/{self._wanted.paths[-1]}", base + reached, base + self._wanted.size)


def _gap(path: str, expected: int, got: int) -> FormatError:
    return FormatError("raw table", expected, f"a row for physical offset {expected}", f"one for {got}", path)


def _write_files(files: Files, table: Place, parts: Iterable[DataFile], folder: str, part: str) -> None:
    """Writes files of ``config``, or the list of deleted topics, before queues are built from the log."""
    for one in parts:
        files.make_directory(folder)
        with table.parquet(one.path) as file:
            rows = file.read(columns=["name", "record"]).to_pylist()
        for row in rows:
            name, content = row["name"], row["record"]
            is_allowed = name == DELETED_TOPICS if part == DELETED_PART else name is not None and is_plain_name(name)
            if content is None or not is_allowed:
                raise FormatError("raw table", 0, f"the name and content of a file in {part}", repr(name), one.path)
            # The table does not tell who could read the file, and some hold passwords.
            files.write_file(f"{folder}/{name}", content, private=True)
