"""Checks the log, queues, index, checkpoint and tables of a store, and compares them with each other. The check changes
no byte of the store.

One walk over the log (``log``) provides the records for all checks (``queues``, ``batch_queues``, ``index``). Entries
that belong to no record are checked afterwards. A store in use is checked up to the end that its log had when the
check began; later writes cause no findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rucola.errors import ForeignEntryError, StoreDamagedError
from rucola.formats.segment_name import is_segment_name, segment_name
from rucola.runtime.files import Files
from rucola.store.log.multi_path import log_directories
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.places import foreign_entries, hold_store
from rucola.store.recovery.checksum_stretches import as_pairs, known_stretches
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.watermark import WatermarkFile
from rucola.store.topic_deletion import TopicDeletion
from rucola.store.verify.batch_queues import BatchQueueChecks
from rucola.store.verify.checkpoint import CheckpointCheck
from rucola.store.verify.fields import FieldChecks
from rucola.store.verify.findings import LISTED_MAX, Finding, FindingKind, Findings
from rucola.store.verify.identities import RecordIdentities
from rucola.store.verify.index import IndexChecks
from rucola.store.verify.lite import LiteCheck
from rucola.store.verify.log import LogCheck, load_segments
from rucola.store.verify.queue_ext import ExtUnits
from rucola.store.verify.queues import QueueChecks
from rucola.store.verify.tables import check_tables

Progress = Callable[[int, int], None]
"""Called with the number of bytes checked and the total number of bytes."""

_QUEUES_ASKED = 64
"""Largest number of queues whose files are examined to determine the length of a queue segment; the most frequent
length is used.
"""


_SEGMENTS_MAX = 64
"""Largest number of segments by which a sound entry may point beyond the log; an entry that points further counts as
damaged.
"""


@dataclass(frozen=True)
class VerifyReport:
    """The result of a check.

    Attributes:
        path: path of the store.
        records: number of records in the log.
        log_end: physical offset after the last record.
        units: number of queue units that agree with their records.
        index_entries: number of entries in all index files.
        tables: number of files read in ``config``.
        affected: number of intact entries of queues and index whose records lie in damaged parts of the log.
        counts: number of findings by kind.
        findings: the listed findings; of a very frequent kind, only the first ones are listed.
        notes: remarks that are not faults.
    """

    path: str
    records: int
    log_end: int
    units: int
    index_entries: int
    tables: int
    affected: int
    counts: dict[FindingKind, int]
    findings: list[Finding]
    notes: list[str]

    @property
    def clean(self) -> bool:
        """True if there are no findings."""
        return not self.counts


def verify(
    path: str,
    files: Files | None = None,
    progress: Progress = lambda _done, _total: None,
    commit_log_path: str | None = None,
    locked_here: bool = False,
) -> VerifyReport:
    """Checks the store in ``path``.

    Args:
        locked_here: whether the caller holds the lock of the store, so that no broker uses it.
        commit_log_path: the directory of the log if it is not in the store; several directories are separated by `,`.

    Raises:
        StoreDamagedError: there is no store.
        DiskError: a file cannot be read.
    """
    files = files if files is not None else Files()
    root = files.expand(path)
    hold_store(files, root, *log_directories(files, root, commit_log_path))
    parts = ("commitlog", "consumequeue", "batchconsumequeue", "index", "config", "checkpoint")
    if not any(files.exists(f"{root}/{part}") for part in parts):
        raise StoreDamagedError(root, 0, "no store here: none of " + ", ".join(parts), "give the path of a store")
    found = Findings(root)
    foreign = foreign_entries(files, root)
    for place, kind in foreign.items():
        found.add(FindingKind.STRAY_FILE, place, 0, f"{kind}; a store has only files and directories")
    try:
        live = not locked_here and files.lock_held(root)
        return _StoreCheck(root, files, progress, commit_log_path, live, found).run()
    except ForeignEntryError:
        if not foreign:
            raise
        found.note("the check ended early, because what is neither a file nor a directory is never opened")
        return VerifyReport(root, 0, 0, 0, 0, 0, found.affected, found.counts, found.listed(), found.notes)


class _StoreCheck:
    """One check of a store, in three steps: opens the parts, walks the log past all of them, compares what remains."""

    def __init__(
        self, root: str, files: Files, progress: Progress, commit_log_path: str | None, live: bool, found: Findings
    ) -> None:
        self._root = root
        self._files = files
        self._found = found
        self._live = live
        self._watermark = WatermarkFile(files, root).read()
        unclean = files.exists(f"{root}/abort")
        if live:
            found.note("a broker is using the store: only records that were complete when the check began are checked")
        elif unclean:
            found.note("the store was not stopped (file 'abort' exists): the next start recovers it")
        self._directory, *others = log_directories(files, root, commit_log_path)
        segments = load_segments(files, self._directory, found, others=others)
        total = segments[-1].end - segments[0].start if segments else 0
        end = _live_end(files, root, commit_log_path) if live else -1
        stretches = as_pairs(known_stretches(segments, self._watermark))
        self._log = log = LogCheck(segments, found, unclean, end, lambda done: progress(done, total), stretches)
        gaps = files.exists(f"{root}/quarantine/gaps.json")
        _note_gaps(files, root, found)
        self._checkpoint = CheckpointCheck(files, f"{root}/checkpoint", found, log, gaps, live)
        self._fields = FieldChecks(found, log)
        self._identities = identities = RecordIdentities(found, log, self._leads_to)
        dispatched = self._watermark.queues_offset if self._watermark is not None else 0
        directory = f"{root}/batchconsumequeue"
        self._batch = BatchQueueChecks(files, directory, found, log, identities, live=live, dispatched=dispatched)
        self._ext = ExtUnits(files, f"{root}/consumequeue_ext", found)
        self._names = _queue_names(files, root)
        self._queues = QueueChecks(
            files,
            f"{root}/consumequeue",
            found,
            log,
            identities,
            _queue_segment_bytes(files, root, self._names),
            self._batch,
            self._ext,
            live=live,
            dispatched=dispatched,
            deleted=_deleted_topics(files, root),
        )
        self._lite = LiteCheck(files, root, found, log, dispatched, live)
        self._index = IndexChecks(files, f"{root}/index", found, log, identities, live, unclean)

    def _leads_to(self, topic: bytes, queue_id: int, queue_offset: int, place: tuple[int, int]) -> bool:
        queues = self._batch if topic in self._batch.topics else self._queues
        return queues.leads_to(topic, queue_id, queue_offset, place)

    def run(self) -> VerifyReport:
        """Checks the store."""
        try:
            self._walk_log()
            self._finish_parts()
            tables = self._check_tables()
        finally:
            for part in (self._log, self._queues, self._batch, self._ext, self._index):
                part.close()
        found = self._found
        units = self._queues.units + self._batch.units + self._lite.units
        listed = found.affected, found.counts, found.listed(), found.notes
        return VerifyReport(self._root, self._log.records, self._log.end, units, self._index.entries, tables, *listed)

    def _walk_log(self) -> None:
        """Shows each record to all checks."""
        log = self._log
        for file, table, rows in log.batches():
            self._checkpoint.rows(table, rows)
            self._fields.rows(file, table, rows)
            self._queues.rows(file, table, rows)
            self._lite.rows(file, table, rows)
            self._index.rows(file, table, rows)
        watermark = self._watermark
        if watermark is not None and not self._live and log.end < watermark.flushed_offset:
            detail = f"the log ends at physical offset {log.end}, it was synced up to {watermark.flushed_offset}"
            self._found.add(FindingKind.LOG_SHORT, self._directory, log.end, detail)

    def _finish_parts(self) -> None:
        """Checks entries that belong to no record, and what the parts say of each other."""
        queues, batch, root = self._queues, self._batch, self._root
        queues.finish(self._names)
        batch.finish()
        self._lite.finish()
        self._identities.finish()
        self._index.finish()
        named_end = max(queues.named_end, batch.named_end)
        _check_last_segments(self._found, self._log, self._directory, named_end, self._live)
        self._checkpoint.finish()
        index_ms = self._checkpoint.index_ms
        if index_ms and not self._live and not self._files.list_files(f"{root}/index"):
            detail = f"there is no index file, but the checkpoint has the end time of one: {index_ms}"
            self._found.add(FindingKind.KEYS_MISSING, f"{root}/index", 0, detail)

    def _check_tables(self) -> int:
        """Checks the tables in ``config``; returns their number."""
        queues, batch = self._queues.queues, self._batch.queues
        ends = {name: queue.next for name, queue in queues.items() if queue.next >= 0}
        ends |= {name: queue.next for name, queue in batch.items() if queue.next >= 0}
        topics = {topic for topic, _ in (*self._names, *queues, *batch)}
        return check_tables(self._files, f"{self._root}/config", self._found, ends, len(topics), self._live)


def _note_gaps(files: Files, root: str, found: Findings) -> None:
    """Notes the gaps of the log: a repair has removed damaged records, or a copy of a master's log has passed over
    them.
    """
    try:
        gaps = Quarantine(files, root).gaps()
    except StoreDamagedError as error:
        found.note(str(error))
        return
    for gap in gaps[:LISTED_MAX]:
        found.note(f"physical offsets {gap.start} to {gap.end}: messages are lost, their bytes are in quarantine/")


def _check_last_segments(found: Findings, log: LogCheck, directory: str, named_end: int, live: bool) -> None:
    """Reports segments missing at the end of the log: queue entries point beyond the last existing segment, which is
    full.
    """
    length, first = log.segment_bytes, log.segments_end
    if live or not length or not log.is_blank(log.end) or not first < named_end <= first + _SEGMENTS_MAX * length:
        return
    count = -(-(named_end - first) // length)
    detail = f"{count} segments from here on are missing, although queues point into them"
    found.add(FindingKind.SEGMENT_MISSING, f"{directory}/{segment_name(first)}", 0, detail)


def _live_end(files: Files, root: str, commit_log_path: str | None) -> int:
    store = OfflineStore(root, files, commit_log_path)
    try:
        return store.end_offset()
    finally:
        store.close()


def _deleted_topics(files: Files, root: str) -> dict[bytes, int]:
    deletion = TopicDeletion(files, root)
    deletion.load()
    return deletion.ends


def _queue_names(files: Files, root: str) -> list[tuple[bytes, int]]:
    """Returns topic and queue id of every queue directory."""
    return [
        (topic.encode("utf-8", "surrogateescape"), int(name))
        for topic in files.list_directories(f"{root}/consumequeue")
        for name in files.list_directories(f"{root}/consumequeue/{topic}")
        if name.isascii() and name.isdigit() and int(name) < 1 << 31
    ]


def _queue_segment_bytes(files: Files, root: str, names: list[tuple[bytes, int]]) -> int:
    """Returns the length of the queue segments; 0 if there are no segments."""
    lengths: Counter[int] = Counter()
    for topic, queue_id in names[:_QUEUES_ASKED]:
        directory = f"{root}/consumequeue/{topic.decode('utf-8', 'surrogateescape')}/{queue_id}"
        lengths.update(files.list_sizes(directory, is_segment_name).values())
    return lengths.most_common(1)[0][0] if lengths else 0
