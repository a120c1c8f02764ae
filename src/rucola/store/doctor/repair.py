"""Repairs a damaged store in place, with an undo journal (``journal``).

The findings of ``verify`` determine what is changed:

* A record with one flipped bit is corrected if there is exactly one bit whose flip makes lengths, physical offset and
  checksums of the record right. With a checksum over the whole record, as Rucola writes it, the correction is certain.
* The size field of a blank record is computed from the record's position.
* Queues with findings get the bytes that a rebuild produces. Only bytes that differ are written; units of expired
  records are kept.
* An index with findings is moved out of the way and replaced by a rebuilt one.
* Fields of the checkpoint that cannot be right are set to 0, so that the broker trusts less of the store and checks
  more.

All other damage stays as it is and is reported. Such a store must be restored from a copy, or needs ``salvage`` or a
start-up with ``--quarantine``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rucola.common.columns import RecordColumn, new_table
from rucola.errors import StoreDamagedError
from rucola.formats.checkpoint import CHECKPOINT
from rucola.formats.checksum import crc32
from rucola.formats.consume_queue import PRE_FILL_UNIT, UNIT, UNIT_BYTES
from rucola.formats.message import BLANK, CHECK_ALL, CHECK_CRC_NAME, MAGIC_BLANK, walk_records
from rucola.formats.segment_name import segment_start
from rucola.runtime.files import Files
from rucola.store.doctor.journal import Journal
from rucola.store.doctor.publish import LITE
from rucola.store.doctor.rebuild import Rebuild
from rucola.store.doctor.rebuild_job import RebuildJob, find_job
from rucola.store.doctor.staged import Progress, Runner, run_serially
from rucola.store.places import check_replaceable, hold_store, is_directory_name
from rucola.store.verify.check import VerifyReport, verify
from rucola.store.verify.findings import Finding, FindingKind

CORRECTED_BYTES_MAX = 16 * 1024
"""Largest size in bytes of a record that is searched for a flipped bit."""
_RECORD = (FindingKind.RECORD, FindingKind.RECORD_CRC, FindingKind.BODY_CRC, FindingKind.PHYSICAL_OFFSET)
_INDEX = (FindingKind.INDEX_HEADER, FindingKind.INDEX_CHAIN, FindingKind.INDEX_ENTRY, FindingKind.KEYS_MISSING)
_QUEUES = ("consumequeue", "batchconsumequeue", "consumequeue_ext")
_BLOCK = 64 * 1024


@dataclass(frozen=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        root: the store's directory.
        found: number of findings before the repair.
        records_corrected: number of records of the log in which a bit was flipped back.
        changes: number of changes; ``undo`` reverts all of them.
        changed_bytes: number of bytes replaced in place.
        left: number of findings after the repair; with ``dry_run``, the same as before.
        remaining: the findings after the repair, of each kind at most ``findings.LISTED_MAX``.
    """

    root: str
    found: int
    records_corrected: int
    changes: int
    changed_bytes: int
    left: int
    remaining: list[Finding]


def repair(
    root: str,
    run: Runner = run_serially,
    options: Mapping[str, str] | None = None,
    progress: Progress = lambda _phase, _done, _all: None,
    dry_run: bool = False,
    files: Files | None = None,
) -> RepairReport:
    """Repairs the store in ``root``, whose log lies in ``commitlog``. If a repair was interrupted, continues it.

    Args:
        run: runs the tasks of the rebuild.
        options: entries of the broker's configuration.
        dry_run: whether to change nothing, and only count what would be corrected in the log.

    Raises:
        StoreLockedError: a broker uses the store.
        StoreDamagedError: there is no store.
        DiskError: a file cannot be read or written; the repair can be continued or undone.
    """
    files = files if files is not None else Files()
    root = hold_store(files, root)
    if dry_run:
        before = verify(root, files)
        corrected = sum(1 for _ in _log_changes(files, root, before.findings))
        return _report(root, before, corrected, None, before)
    lock = files.lock_directory(root)
    try:
        before = verify(root, files, locked_here=True)
        damaged = _damaged_parts(before.findings)
        check_replaceable(files, root, damaged | {part.partition("/")[0] for part in damaged})
        journal = Journal.begin(files, root)
        corrected = 0
        for path, position, content in list(_log_changes(files, root, before.findings)):
            journal.write(path, position, content)
            corrected += 1
        after_log = verify(root, files, locked_here=True) if corrected else before
        parts = _damaged_parts(after_log.findings)
        # A repair was interrupted after it had moved the index or the lite topics away.
        parts |= {path for path in journal.moved() if path in ("index", LITE) and not files.exists(f"{root}/{path}")}
        if parts:
            _replace(files, root, journal, parts, Rebuild(files, root, run, progress), options)
        # If the end of the log is missing, it may be restored, and the times are its own.
        if FindingKind.LOG_SHORT not in after_log.counts and files.exists(f"{root}/checkpoint"):
            _reset_checkpoint(journal, after_log.findings)
        after = verify(root, files, locked_here=True)
        journal.finish(after.log_end)
        return _report(root, before, corrected, journal, after)
    finally:
        lock.release()


def undo(root: str) -> int:
    """Reverts the newest repair, even if it was interrupted; returns the number of changes.

    Raises:
        StoreLockedError: a broker uses the store.
        StoreDamagedError: there is no repair to revert, or messages were stored after it.
    """
    files = Files()
    root = hold_store(files, root)
    lock = files.lock_directory(root)
    try:
        journal = Journal.newest(files, root)
        if journal is None:
            advice = (
                "the store was used after the repair" if Journal.closed(files, root) else "nothing was repaired here"
            )
            raise StoreDamagedError(f"{root}/repair", 0, "there is no repair to revert", advice)
        log_end = journal.log_end
        if log_end is not None and verify(root, files, locked_here=True).log_end != log_end:
            problem = f"the log no longer ends at {log_end}, where it ended after the repair"
            raise StoreDamagedError(
                journal.path, 0, problem, "the store was used after the repair; repair it again instead"
            )
        return journal.undo()
    finally:
        lock.release()


def _report(
    root: str, before: VerifyReport, corrected: int, journal: Journal | None, after: VerifyReport
) -> RepairReport:
    changes, changed = (0, 0) if journal is None else (journal.changes, journal.changed_bytes)
    found, left = sum(before.counts.values()), sum(after.counts.values())
    return RepairReport(root, found, corrected, changes, changed, left, after.findings)


# -- the log -----------------------------------------------------------------------------------------------------------


def _log_changes(files: Files, root: str, findings: Sequence[Finding]) -> Iterator[tuple[str, int, bytes]]:
    """Yields file, position and correct bytes for each part of the log that can be corrected."""
    for finding in findings:
        directory, _, name = finding.file.rpartition("/")
        start = segment_start(name)
        if directory != "commitlog" or start is None:
            continue
        path = f"{root}/{finding.file}"
        if finding.kind is FindingKind.BLANK:
            right = BLANK.pack(files.size(path) - finding.position, MAGIC_BLANK)
            yield finding.file, finding.position, right
        elif finding.kind in _RECORD:
            data = files.read_at(path, finding.position, CORRECTED_BYTES_MAX)
            blank = BLANK.pack(files.size(path) - finding.position, MAGIC_BLANK)
            if _bits_between(data[: BLANK.size], blank) == 1:
                yield finding.file, finding.position, blank
                continue
            bit = flipped_bit(data, start + finding.position)
            if bit >= 0:
                at = bit // 8
                yield finding.file, finding.position + at, bytes([data[at] ^ 128 >> bit % 8])


def _bits_between(one: bytes, other: bytes) -> int:
    """Returns the number of bits in which two byte strings differ; -1 if their lengths differ."""
    if len(one) != len(other):
        return -1
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count()


def flipped_bit(data: bytes, physical_offset: int) -> int:
    """Returns the only bit whose flip turns the bytes at ``physical_offset`` into a valid record; -1 if there is no
    such bit, or more than one.

    The end of the record must be confirmed: another record, a blank record or zeros follow directly, or the data ends
    less than 8 bytes later.
    """
    content, table = bytearray(data), new_table(2)
    view = memoryview(content)
    size = _likely_size(data)
    found = -1
    for bit in range(8 * min(size, len(data))):
        content[bit // 8] ^= 128 >> bit % 8
        check = CHECK_ALL | CHECK_CRC_NAME
        rows, _, _ = walk_records(content, view, 0, len(content), physical_offset, table, 1, crc32, check)
        right = rows == 1 and _is_certain(content, table[RecordColumn.RECORD_SIZE], physical_offset)
        content[bit // 8] ^= 128 >> bit % 8
        if right:
            if found >= 0:
                return -1
            found = bit
    return found


def _likely_size(data: bytes) -> int:
    """Returns how many bytes of ``data`` may hold the flipped bit: all bytes up to the next record, which is recognized
    by its magic code.
    """
    for at in range(91, len(data) - BLANK.size):
        if data[at + 4 : at + 7] == b"\xda\xa3\x20" or data[at + 4 : at + 8] == b"\xcb\xd4\x31\x94":
            return at
    return len(data)


def _is_certain(content: bytearray, size: int, physical_offset: int) -> bool:
    """Whether the bytes right after a record of ``size`` bytes are another record, a blank record or zeros.

    If fewer than 8 bytes follow, they cannot be checked and count as right.
    """
    if size + BLANK.size > len(content):
        return size <= len(content)
    length, magic = BLANK.unpack(content, size)
    if magic == MAGIC_BLANK or (length == 0 and magic == 0):
        return True
    offset = int.from_bytes(content[size + 28 : size + 36], "big")
    return content[size + 4 : size + 7] == b"\xda\xa3\x20" and offset == physical_offset + size


# -- queues, index, checkpoint -----------------------------------------------------------------------------------------


def _damaged_parts(findings: Sequence[Finding]) -> set[str]:
    """Returns the directories of queues with findings, and ``index`` and ``rucola-lite`` if they have findings."""
    parts = {"index"} if any(finding.kind in _INDEX for finding in findings) else set[str]()
    if any(finding.kind is FindingKind.LITE_TOPICS for finding in findings):
        parts.add(LITE)
    for finding in findings:
        pieces = finding.file.split("/")
        # The topic comes from a record, and may be no name of a directory.
        if pieces[0] in _QUEUES and len(pieces) >= 3 and is_directory_name(pieces[1]):
            parts.add("/".join(pieces[:3]))
    return parts


def _replace(
    files: Files,
    root: str,
    journal: Journal,
    parts: set[str],
    rebuild: Rebuild,
    options: Mapping[str, str] | None,
) -> None:
    """Replaces ``parts`` (queues, index, lite topics) with what a rebuild makes. Does nothing if the log is damaged."""
    with suppress(StoreDamagedError):
        job = find_job(files, root, options)
        rebuild.build(job)
        for part in sorted(parts):
            if part in ("index", LITE):
                if files.exists(f"{root}/{part}"):
                    journal.move_away(part)
                if files.exists(f"{rebuild.new}/{part}"):
                    journal.take(f"{rebuild.new}/{part}", part)
            else:
                _replace_queue(files, root, journal, part, rebuild.new, job)
    rebuild.clear()


def _replace_queue(files: Files, root: str, journal: Journal, part: str, new: str, job: RebuildJob) -> None:
    old_sizes, new_sizes = files.list_sizes(f"{root}/{part}"), files.list_sizes(f"{new}/{part}")
    first = min(new_sizes, default="")
    for name, size in old_sizes.items():
        expired = segment_start(name) is not None and name < first and size in new_sizes.values()
        if size != new_sizes.get(name, -1) and not expired:
            journal.move_away(f"{part}/{name}")
    for name, size in new_sizes.items():
        source, path = f"{new}/{part}/{name}", f"{part}/{name}"
        if old_sizes.get(name) != size:
            journal.take(source, path)
            continue
        for position in range(0, size, _BLOCK):
            count = min(_BLOCK, size - position)
            right, there = files.read_at(source, position, count), files.read_at(f"{root}/{path}", position, count)
            if part.startswith("consumequeue/"):
                right = _with_expired(right, there, position, job.segments[0][1])
            for at, content in _differences(there, right):
                journal.write(path, position + at, content)


def _with_expired(right: bytes, there: bytes, position: int, log_start: int) -> bytes:
    """Returns the rebuilt bytes, ``right``, with the units of expired records from the existing bytes, ``there``. Only
    pre-filled units, which point to no record, are replaced.
    """
    merged = bytearray(right)
    first = -position % UNIT_BYTES
    for at in range(first, len(right) - UNIT_BYTES + 1, UNIT_BYTES):
        unit = there[at : at + UNIT_BYTES]
        if right[at : at + UNIT_BYTES] == PRE_FILL_UNIT and 0 <= UNIT.unpack(unit)[0] < log_start:
            merged[at : at + UNIT_BYTES] = unit
    return bytes(merged)


def _differences(there: bytes, right: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields position and correct bytes of each range in which bytes differ; ranges at most a unit apart are joined."""
    if there == right:
        return
    different = [at for at, (old, new) in enumerate(zip(there, right, strict=True)) if old != new]
    begin = last = different[0]
    for at in different[1:]:
        if at - last > UNIT_BYTES:
            yield begin, right[begin : last + 1]
            begin = at
        last = at
    yield begin, right[begin : last + 1]


def _reset_checkpoint(journal: Journal, findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.kind is FindingKind.CHECKPOINT and finding.position < CHECKPOINT.size and finding.position % 8 == 0:
            # A finding about a wrong file length has the position of the file's end, where nothing can be replaced.
            with suppress(StoreDamagedError):
                journal.write("checkpoint", finding.position, bytes(8))
