"""Rebuilds the consume queues and index files of a store from its log, in parallel.

====== ============================ ==================================================================================
step   one task for each            writes
====== ============================ ==================================================================================
scan   segment of the log           the units and keys of its records (``rebuild_scan``)
queues group of queues              their files (``rebuild_layout``)
index  index file                   that file; the number of keys per file is fixed, so it is known which keys go where
====== ============================ ==================================================================================

Everything is written below ``rebuild`` in the store's directory (``staged``). A rebuild that is started again skips
finished tasks. At the end the new directories replace the old ones (``publish``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rucola.errors import StoreDamagedError
from rucola.formats.index_file import KEY
from rucola.runtime.files import Files
from rucola.store.doctor.journal import Journal
from rucola.store.doctor.publish import LITE, PARTS, Exchange
from rucola.store.doctor.rebuild_job import RebuildJob, find_job
from rucola.store.doctor.rebuild_layout import (
    INDEX_NAME,
    FileRun,
    IndexWork,
    LayoutResult,
    QueueLayout,
    QueueWork,
    lay_out_index,
)
from rucola.store.doctor.rebuild_lite import build_lite
from rucola.store.doctor.rebuild_scan import ScanResult, SegmentScan
from rucola.store.doctor.staged import Progress, Runner, Staged, run_serially
from rucola.store.index.index_service import next_name
from rucola.store.log.multi_path import log_directories
from rucola.store.places import check_replaceable, hold_store

SCAN, QUEUES, INDEX = "scan", "queues", "index"
_GROUPS = 16
"""Largest number of tasks that lay out queues. A queue is never divided between tasks, so tasks may differ in length.
If there are more tasks than CPUs, a CPU that finishes a short task starts another one.
"""
_STAGING = "rebuild"


@dataclass(frozen=True)
class RebuildReport:
    """The result of a rebuild.

    Attributes:
        root: the store's directory.
        log_bytes: length of the log.
        segments: number of segments read.
        records: number of records in the log.
        queues: number of queues written.
        units: number of entries in all queues.
        keys: number of keys in all index files.
        index_files: number of index files.
        lite_topics: number of lite topics; 0 if they have consume queues.
        skipped: number of entries of light queues that are left out, because their name or queue offset is impossible.
        resumed: number of tasks whose results came from an interrupted rebuild.
        published: whether the new files are in place.
    """

    root: str
    log_bytes: int
    segments: int
    records: int
    queues: int
    units: int
    keys: int
    index_files: int
    lite_topics: int
    skipped: int
    resumed: int
    published: bool


def task(files: Files, phase: str, staging: str, number: int, name: str) -> dict[str, Any]:
    """Runs one task of a rebuild; writes below ``staging`` under ``name``, and returns the result.

    Raises:
        StoreDamagedError: the log is damaged.
        DiskError: a file cannot be read or written.
    """
    job = RebuildJob.from_json(files.read_file(f"{staging}/job.json") or b"")
    result: ScanResult | LayoutResult
    if phase == SCAN:
        result = SegmentScan(files, job, number, f"{staging}/{name}").run()
    else:
        work = json.loads(files.read_file(f"{staging}/{phase}.work") or b"")[number]
        # An earlier attempt with the same name was interrupted.
        files.remove_tree(f"{staging}/{name}")
        if phase == QUEUES:
            result = QueueLayout(files, job, f"{staging}/{name}").run([QueueWork.from_dict(one) for one in work])
        else:
            result = lay_out_index(files, job, IndexWork(**work), f"{staging}/{name}")
    return result.to_dict()


def rebuild(
    root: str,
    run: Runner = run_serially,
    options: Mapping[str, str] | None = None,
    commit_log_path: str | None = None,
    progress: Progress = lambda _phase, _done, _all: None,
    dry_run: bool = False,
    files: Files | None = None,
) -> RebuildReport:
    """Rebuilds queues and index of the store in ``root``. Nobody else may use the store during the rebuild.

    Args:
        run: runs the tasks.
        options: entries of the broker's configuration.
        commit_log_path: the directories of the log, separated by `,`, if they are not in the store.
        dry_run: whether to write nothing, and only count what would be read.

    Raises:
        StoreLockedError: a broker uses the store.
        StoreDamagedError: the log is damaged, or there is no store; the queues and the index are as before.
        DiskError: a file cannot be written; the queues and the index are as before, or the next call finishes their
            replacement.
    """
    files = files if files is not None else Files()
    root = files.expand(root)
    log_path = (options or {}).get("storePathCommitLog") or commit_log_path
    hold_store(files, root, *log_directories(files, root, log_path))
    if dry_run:
        return _report(find_job(files, root, options, commit_log_path), [], [], [], 0)
    lock = files.lock_directory(root)
    try:
        rebuilding = Rebuild(files, root, run, progress)
        rebuilding.finish_exchange(log_path)
        return rebuilding.run(find_job(files, root, options, commit_log_path))
    finally:
        lock.release()


def build_first(
    files: Files, root: str, run: Runner, options: Mapping[str, str], progress: Progress, lite_sources: Sequence[str]
) -> None:
    """Builds queues and index of a new store, which has only a log; see ``rebuild``.

    Args:
        lite_sources: see ``find_job``.

    Raises:
        StoreDamagedError: the log is damaged.
        DiskError: a file cannot be written.
    """
    hold_store(files, root)
    lock = files.lock_directory(root)
    try:
        rebuilding = Rebuild(files, root, run, progress)
        rebuilding.finish_exchange(None)
        rebuilding.run(find_job(files, root, options, lite_sources=lite_sources))
    finally:
        lock.release()


class Rebuild:
    """One run of a rebuild; the caller holds the store's lock.

    Attributes:
        new: directory of the new parts, written by ``build``.
    """

    def __init__(self, files: Files, root: str, run: Runner, progress: Progress) -> None:
        self._files = files
        self._root = root
        self._staging = f"{root}/{_STAGING}"
        self.new = f"{self._staging}/new"
        self._staged = Staged(files, self._staging, task, run, progress)

    def finish_exchange(self, commit_log_path: str | None) -> None:
        """Finishes a replacement of queues and index that was interrupted."""
        exchange = self._exchange(log_directories(self._files, self._root, commit_log_path)[0])
        if exchange.was_begun():
            exchange.finish()
            self.clear()

    def run(self, job: RebuildJob) -> RebuildReport:
        """Builds and publishes."""
        check_replaceable(self._files, self._root, (*PARTS, LITE))
        report, parts = self.build(job)
        Journal.close(self._files, self._root)  # the old bytes of a repair do not fit the new files
        exchange = self._exchange(job.directories[0])
        exchange.begin(parts, job.end)
        exchange.finish()
        self.clear()
        return replace(report, published=True)

    def build(self, job: RebuildJob) -> tuple[RebuildReport, list[str]]:
        """Builds the new files below ``new``; returns the parts that were built."""
        moved = any(self._files.exists(f"{self._staging}/{name}") for name in ("new", "old"))
        self._staged.prepare(job.to_json(), moved)
        with self._staged.trusting_results():
            return self._build(job)

    def _build(self, job: RebuildJob) -> tuple[RebuildReport, list[str]]:
        scans = [ScanResult.from_dict(fields) for fields in self._staged.run_phase(SCAN, len(job.segments))]
        layouts = self._make(QUEUES, [[asdict(one) for one in group] for group in self._queue_groups(scans)])
        parts = [part for part in PARTS if part != "index"]
        indexes: list[LayoutResult] = []
        if job.config.message_index_enable:
            parts.append("index")
            works = self._index_works(job, scans)
            indexes = self._make(INDEX, [asdict(one) for one in works])
            self._take_indexes(works, indexes)
        self._take_queues(layouts)
        report = _report(job, scans, layouts, indexes, self._staged.resumed)
        if job.lite:
            parts.append(LITE)
            self._files.make_directory(self.new)
            paths = [f"{self._staging}/{scan.lite}" for scan in scans]
            report = replace(report, lite_topics=build_lite(self._files, job, paths, self.new))
        return report, parts

    def clear(self) -> None:
        """Removes the working directory."""
        self._staged.clear()

    def _make(self, phase: str, items: list[Any]) -> list[LayoutResult]:
        return [LayoutResult(**fields) for fields in self._staged.run_items(phase, items)]

    # -- work of the second step ---------------------------------------------------------------------------------------

    def _queue_groups(self, scans: list[ScanResult]) -> list[list[QueueWork]]:
        """Returns the queues of all scans, in groups with about the same number of units each."""
        runs: dict[tuple[str, int, bool], list[FileRun]] = {}
        for scan in scans:
            for part in scan.queues:
                found = runs.setdefault((part.topic, part.queue_id, part.light), [])
                found += [FileRun(f"{self._staging}/{scan.units}", *run) for run in part.runs]
        work = [QueueWork(*name, found) for name, found in sorted(runs.items())]
        # A light queue may have the same name as a topic. Then the entries of both go to the same queue.
        both = {(one.topic, one.queue_id) for one in work if one.light} & {
            (one.topic, one.queue_id) for one in work if not one.light
        }
        if both:
            topic = sorted(both)[0][0]
            raise StoreDamagedError(self._root, 0, f"{topic!r} is a topic and a light queue", "start a broker instead")
        groups: list[list[QueueWork]] = [[] for _ in range(min(_GROUPS, len(work)))]
        sizes = [0] * len(groups)
        for one in sorted(work, key=lambda one: -one.count):
            smallest = sizes.index(min(sizes))
            groups[smallest].append(one)
            sizes[smallest] += one.count
        return groups

    def _index_works(self, job: RebuildJob, scans: list[ScanResult]) -> list[IndexWork]:
        """Returns the work for each index file; every file except the last becomes full."""
        size, total = job.config.max_index_num - 1, sum(scan.key_count for scan in scans)
        first_ms = next(scan.first_ms for scan in scans if scan.records)
        works = []
        for begin in range(0, max(total, 1), size):
            end_ms = end_offset = -1
            if begin:
                _, end_offset, end_ms = self._key(scans, begin - 1)
                first_ms = self._key(scans, begin)[2]
            works.append(IndexWork(self._pieces(scans, begin, min(begin + size, total)), end_ms, end_offset, first_ms))
        return works

    def _pieces(self, scans: list[ScanResult], begin: int, end: int) -> list[tuple[str, int, int]]:
        pieces, start = [], 0
        for scan in scans:
            first, last = max(begin - start, 0), min(end - start, scan.key_count)
            if first < last:
                pieces.append((f"{self._staging}/{scan.keys}", first, last))
            start += scan.key_count
        return pieces

    def _key(self, scans: list[ScanResult], number: int) -> tuple[int, int, int]:
        """Returns hash, physical offset and store time of a key."""
        ((path, first, _),) = self._pieces(scans, number, number + 1)
        hashed, physical_offset, stored_ms = KEY.unpack(self._files.read_at(path, first * KEY.size, KEY.size))
        return hashed, physical_offset, stored_ms

    # -- publication ---------------------------------------------------------------------------------------------------

    def _take_queues(self, layouts: list[LayoutResult]) -> None:
        files, new = self._files, f"{self._staging}/new"
        touched: set[str] = set()
        for layout in layouts:
            for part in PARTS[:-1]:
                source = f"{self._staging}/{layout.directory}/{part}"
                for topic in files.list_directories(source):
                    target = f"{new}/{part}/{topic}"
                    files.make_directory(target)
                    touched.add(target)
                    for queue_id in files.list_directories(f"{source}/{topic}"):
                        files.rename(f"{source}/{topic}/{queue_id}", f"{target}/{queue_id}")
        for target in sorted(touched):
            files.sync_directory(target)

    def _take_indexes(self, works: list[IndexWork], layouts: list[LayoutResult]) -> None:
        target, name = f"{self._staging}/new/index", ""
        self._files.make_directory(target)
        for work, layout in zip(works, layouts, strict=True):
            name = next_name(work.first_ms, name)
            self._files.rename(f"{self._staging}/{layout.directory}/index/{INDEX_NAME}", f"{target}/{name}")
        self._files.sync_directory(target)

    def _exchange(self, mark_directory: str) -> Exchange:
        return Exchange(self._files, self._root, mark_directory, self._staging)


def _report(
    job: RebuildJob,
    scans: list[ScanResult],
    layouts: list[LayoutResult],
    indexes: list[LayoutResult],
    resumed: int,
) -> RebuildReport:
    return RebuildReport(
        root=job.root,
        log_bytes=job.log_bytes,
        segments=len(job.segments),
        records=sum(scan.records for scan in scans),
        queues=sum(layout.queues for layout in layouts),
        units=sum(layout.units for layout in layouts),
        keys=sum(index.keys for index in indexes),
        index_files=len(indexes),
        lite_topics=0,
        skipped=sum(scan.skipped for scan in scans),
        resumed=resumed,
        published=False,
    )
