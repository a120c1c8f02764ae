"""Cuts the end of a log on purpose: a copy whose master has lost its newest messages drops them, too.

The cut is one step, whatever interrupts it. Its plan is the file ``rucola-cut`` beside the segments; once it is there,
every start finishes the cut, before anything else happens to the store:

1. the watermark goes down to the cut, and is synced, so that what follows is no damage;
2. the bytes behind the cut go to ``quarantine/``, or, if there are too many, only their length and digest; the plan
   then says so, because the next step destroys them;
3. later segments are removed, newest first; the rest of the last one is filled with zeros; gaps behind the cut are
   forgotten;
4. recovery syncs the log, and brings queues, index and deleted topics down to its end; offsets in ``config/`` that
   point beyond their queues go down, too, and timers go to ``quarantine/``;
5. behind a controller, the file of epochs gets those of the bytes that are left;
6. the plan is removed.

While the plan lies there, a broker of RocketMQ does not start: the name is no number.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

from rucola.errors import StoreDamagedError
from rucola.formats.auto_switch import EpochEntry, first_disorder
from rucola.formats.config_json import UNREADABLE_JSON
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.segment_list import CUT_PLAN
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.recovery.marks import StoreMarks
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.watermark import Watermark

logger = logging.getLogger(__name__)
_PIECE_BYTES = 1 << 20
_REASON: Final = "the master has other records from here on"
_PROGRESS: Final = ("timerwheel", "timerlog", "config/timercheck", "config/timermetrics", "rucola-pop-acks")
"""What a broker noted about messages that may be gone; it makes them again from the log."""


@dataclass(frozen=True)
class CutPlan:
    """The content of ``rucola-cut``.

    Attributes:
        cut_offset: physical offset of the new end of the log, the end of a record.
        kept_bytes_max: largest number of bytes that are kept in ``quarantine/``.
        is_kept: whether step 2 is done.
        epochs: the epochs that the log has afterwards; None for those of now that begin before the cut.
    """

    cut_offset: int
    kept_bytes_max: int
    is_kept: bool = False
    epochs: tuple[EpochEntry, ...] | None = None

    @classmethod
    def decode(cls, content: bytes, path: str) -> CutPlan:
        """Decodes the file.

        Raises:
            StoreDamagedError: it is no plan.
        """
        try:
            plan = json.loads(content)
            epochs = plan.get("epochs")  # plans of older versions have none
            entries = None if epochs is None else tuple(EpochEntry(int(epoch), int(start)) for epoch, start in epochs)
            found = cls(int(plan["cut_offset"]), int(plan["kept_bytes_max"]), plan["is_kept"] is True, entries)
            if entries is not None and first_disorder(entries) >= 0:
                raise ValueError("epochs out of order")
            if min(found.cut_offset, found.kept_bytes_max) < 0:
                raise ValueError("a number below 0")
            return found
        except UNREADABLE_JSON as error:
            raise StoreDamagedError(path, 0, f"not the plan of a cut ({error})", "restore the file") from None

    def encode(self) -> bytes:
        """Returns the content of the file."""
        return json.dumps(asdict(self)).encode()


def plan_cut(files: Files, directory: str, plan: CutPlan) -> None:
    """Decides a cut: the next start makes it.

    Args:
        directory: the first directory of the log's segments.

    Raises:
        DiskError: it is unknown whether the next start will make it.
    """
    files.replace_file(f"{directory}/{CUT_PLAN}", plan.encode())


class LogCut:
    """Makes a planned cut while a store is opened: first ``begin``, then, after recovery, ``finish``.

    Args:
        root: the store's directory.
        log: the log, whose segments are loaded.
    """

    def __init__(self, files: Files, root: str, log: LogReader, marks: StoreMarks, quarantine: Quarantine) -> None:
        self._files = files
        self._root = root
        self._log = log
        self._marks = marks
        self._quarantine = quarantine
        self._path = f"{log.segments.path}/{CUT_PLAN}"
        content = files.read_file(self._path)
        self._plan = None if content is None else CutPlan.decode(content, self._path)

    def begin(self) -> None:
        """Does steps 1 to 3; nothing without a plan.

        Raises:
            DiskError: the disk is full or fails; the next start goes on.
            StoreDamagedError: the list of gaps cannot be read.
        """
        plan = self._plan
        if plan is None:
            return
        cut = plan.cut_offset
        self._lower_watermark(cut)
        surplus = self._surplus(cut)
        if not plan.is_kept:
            self._keep(surplus, plan)
            plan_cut(self._files, self._log.segments.path, replace(plan, is_kept=True))
        self._log.segments.remove_after(cut)
        file = self._log.segments.find(cut)
        if file is not None:
            file.zero(cut - file.start)
        self._quarantine.forget_gaps(cut)
        event(logger, logging.WARNING, "log cut behind the last record that the master has", end_offset=cut)

    def finish(self, queues: ConsumeQueueStore) -> None:
        """Does the rest of step 4, and steps 5 and 6; nothing without a plan.

        Args:
            queues: the queues, which recovery has cut.

        Raises:
            DiskError: the disk is full or fails; the next start does it again.
        """
        if self._plan is None:
            return
        # Imported only here, because hardly any start cuts a log.
        from rucola.store.ha.epoch_store import EpochStore
        from rucola.store.ha.epochs import EpochList
        from rucola.store.recovery.offset_cut import lower_offsets

        lower_offsets(self._files, f"{self._root}/config", queues)
        for name in _PROGRESS:
            if self._files.exists(path := f"{self._root}/{name}"):
                self._quarantine.move(path, name.rpartition("/")[2], "the log was cut")
        epochs = EpochStore(self._files, self._root)
        epochs.load()
        known = self._plan.epochs
        epochs.write(epochs.epochs.cut(self._plan.cut_offset) if known is None else EpochList(known))
        self._files.remove(self._path)
        self._files.sync_directory(self._log.segments.path)

    def _lower_watermark(self, cut: int) -> None:
        before = self._marks.watermark.read()
        if before is None:
            # Without one, recovery would take a part of the log that was removed for damage.
            self._marks.watermark.write(Watermark(min(self._log.min_offset, cut), 0))
            return
        writers = tuple(mark for mark in before.writers if mark.physical_offset < cut)
        flushed, queues = min(before.flushed_offset, cut), min(before.queues_offset, cut)
        self._marks.watermark.write(Watermark(flushed, queues, writers=writers))

    def _surplus(self, cut: int) -> list[tuple[MappedFile, int, int]]:
        """Returns each segment with bytes behind the cut, and the positions between which they lie."""
        found = []
        for file in self._log.segments.files:
            start = max(cut - file.start, 0)
            if start < file.size and (end := file.data_end(start)) > start:
                found.append((file, start, end))
        return found

    def _keep(self, surplus: list[tuple[MappedFile, int, int]], plan: CutPlan) -> None:
        total = sum(end - start for _, start, end in surplus)
        is_kept = total <= plan.kept_bytes_max
        for file, start, end in surplus:

            def pieces(file: MappedFile = file, start: int = start, end: int = end) -> Iterator[bytes]:
                for at in range(start, end, _PIECE_BYTES):
                    yield file.map.read(at, min(_PIECE_BYTES, end - at))

            self._quarantine.keep_long(file.start + start, pieces, is_kept, _REASON)
        if not is_kept:
            event(
                logger,
                logging.ERROR,
                "more bytes than quarantine may keep, only their digests are kept",
                physical_offset=plan.cut_offset,
                length=total,
                kept_bytes_max=plan.kept_bytes_max,
            )
