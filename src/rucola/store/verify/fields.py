"""Checks fields of a record that are stored nowhere else in the store: reports impossible values.

The checks matter for records whose fields no checksum covers. RocketMQ writes such records by default.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.kernel_columns import (
    RECORD_BORN_HOST_POS,
    RECORD_PREPARED_TRANSACTION_OFFSET,
    RECORD_RECONSUME_TIMES,
    RECORD_STORE_HOST_POS,
    RECORD_SYS_FLAG,
)
from rucola.common.message_const import INNER_NUM
from rucola.common.sysflag import COMPRESSION_MASK, MessageSysFlag
from rucola.formats.compression import is_compressed
from rucola.formats.message import CHECK_ALL
from rucola.formats.properties import decode_properties
from rucola.store.log.mapped_file import MappedFile
from rucola.store.verify.findings import FindingKind, Findings
from rucola.store.verify.log import LogCheck

_V4_BYTES = 8
_V6_BYTES = 20
_PORT_BYTES = 4
_PORT_MAX = 65_535
_KNOWN_FLAGS = COMPRESSION_MASK | sum(MessageSysFlag)
_USUAL_FLAGS = frozenset(state | tags for state in range(0, 16, 4) for tags in (0, int(MessageSysFlag.MULTI_TAGS)))
"""Flags that need no check: the state of a transaction, and whether the topic allows several tags."""
Fault = tuple[FindingKind, str]


class FieldChecks:
    """Checks all records of a log.

    Args:
        log: the log that is checked; the caller passes its records to ``rows``, in order.
    """

    def __init__(self, found: Findings, log: LogCheck) -> None:
        self._found = found
        self._log = log
        self._sound_hosts: set[bytes] = set()

    def rows(self, file: MappedFile, table: array[int], rows: int) -> None:
        """Checks records of the log, in order."""
        end = rows * ROW_WIDTH
        usual = (
            _USUAL_FLAGS.issuperset(table[RECORD_SYS_FLAG:end:ROW_WIDTH])
            and min(table[RECORD_RECONSUME_TIMES:end:ROW_WIDTH]) >= 0
            and not any(table[RECORD_PREPARED_TRANSACTION_OFFSET:end:ROW_WIDTH])
            and self._check_hosts(file.map.view, table, end)
        )
        if usual:
            return
        for base in range(0, end, ROW_WIDTH):
            for kind, detail in self._faults(file, table[base : base + ROW_WIDTH]):
                # A record that does not match its checksums is already reported.
                if self._log.row_at(file.start + table[base], CHECK_ALL) is not None:
                    self._found.add(kind, file.path, table[base], detail)

    def _check_hosts(self, view: memoryview, table: array[int], end: int) -> bool:
        """Returns whether all hosts have valid ports. All hosts must have IPv4 addresses. Hosts that an earlier call
        found valid are not checked again.
        """
        for column in (RECORD_BORN_HOST_POS, RECORD_STORE_HOST_POS):
            hosts = {bytes(view[at : at + _V4_BYTES]) for at in table[column:end:ROW_WIDTH]} - self._sound_hosts
            if any(_port(host) > _PORT_MAX for host in hosts):
                return False
            self._sound_hosts |= hosts
        return True

    def _faults(self, file: MappedFile, row: array[int]) -> Iterator[Fault]:
        view, flags = file.map.view, row[RECORD_SYS_FLAG]
        for column, bit, name in (
            (RECORD_BORN_HOST_POS, MessageSysFlag.BORN_HOST_V6, "born"),
            (RECORD_STORE_HOST_POS, MessageSysFlag.STORE_HOST_V6, "store"),
        ):
            size = _V6_BYTES if flags & bit else _V4_BYTES
            port = _port(view[row[column] : row[column] + size])
            if port > _PORT_MAX:
                yield FindingKind.HOST, f"the record states port {port} of the {name} host"
        problem = _flag_problem(view, row)
        if problem:
            yield FindingKind.SYS_FLAG, f"the record states sysFlag 0x{flags & 0xFFFFFFFF:X}: {problem}"
        if row[RECORD_RECONSUME_TIMES] < 0:
            yield FindingKind.RECONSUME_TIMES, f"the record states {row[RECORD_RECONSUME_TIMES]} redeliveries"
        prepared = row[RECORD_PREPARED_TRANSACTION_OFFSET]
        if prepared < 0 or (prepared and not flags & MessageSysFlag.TRANSACTION_COMMIT):
            detail = (
                f"the record names a half message at physical offset {prepared}, but neither commits nor rolls back"
            )
            yield FindingKind.PREPARED_OFFSET, detail


def _port(host: bytes | memoryview) -> int:
    return int.from_bytes(host[-_PORT_BYTES:], "big")


def _flag_problem(view: memoryview, row: array[int]) -> str:
    """Returns what is wrong with ``sysFlag``; empty if nothing is."""
    flags = row[RECORD_SYS_FLAG]
    compressed = flags & (MessageSysFlag.COMPRESSED | COMPRESSION_MASK)
    if flags & ~_KNOWN_FLAGS:
        return "some of its bits have no meaning"
    if compressed:
        start = row[RecordColumn.BODY_POS]
        if not is_compressed(view[start : start + row[RecordColumn.BODY_LEN]], flags):
            return "the body is not compressed in this way"
    if flags & MessageSysFlag.NEED_UNWRAP and not flags & MessageSysFlag.INNER_BATCH:
        return "NEED_UNWRAP is set, but the record is not a batch"
    if flags & MessageSysFlag.INNER_BATCH and INNER_NUM not in _properties(view, row):
        return f"a batch without property {INNER_NUM}"
    return ""


def _properties(view: memoryview, row: array[int]) -> dict[str, str]:
    start = row[RecordColumn.PROPERTIES_POS]
    return decode_properties(view[start : start + row[RecordColumn.PROPERTIES_LEN]])
