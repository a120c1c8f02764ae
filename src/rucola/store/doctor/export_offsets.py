"""Writes the offsets of groups in lite topics to RocketMQ's table ``lmqConsumerOffset.json``. A clean stop writes them
only if they are not too many.
"""

from __future__ import annotations

from rucola.common.data_version import DataVersion
from rucola.common.key_builder import topic_at_group
from rucola.errors import FormatError, StoreDamagedError
from rucola.formats.light_queue import lite_topic
from rucola.formats.lite_offsets import (
    FILE_NAME,
    ROW_FIELDS,
    OffsetBatch,
    OffsetTable,
    batches_in,
    decode_base,
    hash_of,
)
from rucola.formats.tables import consumer_offset_pieces, decode_consumer_offsets
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.lite.lite_names import LiteNames
from rucola.store.lite.lite_topics import DIRECTORY
from rucola.store.places import hold_store

_FILE_BYTES_MAX = 64 << 30
_TABLE = "lmqConsumerOffset.json"
_ADVICE = "start a broker on the store, and stop it"


def export_offsets(path: str, files: Files | None = None) -> int:
    """Adds the offsets in lite topics of a store that was stopped cleanly to the table; returns their number.

    Raises:
        StoreLockedError: a process uses the store.
        StoreDamagedError: the store was not stopped cleanly, or a file is damaged.
        DiskError: the table cannot be written; it is the old one.
    """
    files = files if files is not None else Files()
    root = hold_store(files, files.expand(path))
    lock = files.lock_directory(root)
    try:
        if files.exists(f"{root}/abort"):
            raise StoreDamagedError(root, 0, "the store was not stopped cleanly", _ADVICE)
        return _export(files, root)
    finally:
        lock.release()


def _export(files: Files, root: str) -> int:
    base = f"{root}/config/{FILE_NAME}"
    try:
        found = _offsets(files, base)
        if not found:
            return 0
        text = files.read_file(f"{root}/config/{_TABLE}")
        version, table = (DataVersion(), {}) if text is None else decode_consumer_offsets(text)
    except FormatError as error:
        raise StoreDamagedError(f"{root}/config/{error.what}", error.position, str(error), _ADVICE) from error
    names = LiteNames(files, f"{root}/{DIRECTORY}/names", 0)
    names.load()
    count = 0
    for (group, lite_id), (name_hash, offset) in found.items():
        name = names.name(lite_id) if lite_id < len(names) else b""
        if name and hash_of(name) == name_hash:
            table[topic_at_group(lite_topic(name).decode("utf-8", "surrogateescape"), group)] = {0: offset}
            count += 1
    version = version.next(SystemClock().wall_ms())
    files.replace_file(f"{root}/config/{_TABLE}", consumer_offset_pieces(version, table, light=True))
    return count


def _offsets(files: Files, base: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns hash and offset by group and id; later rows replace earlier ones."""
    content = files.read_file(base, _FILE_BYTES_MAX)
    table = None if content is None else decode_base(content)
    generation = 0 if table is None else table.generation
    journal = files.read_file(f"{base}.{generation}", _FILE_BYTES_MAX) or b""
    sources: list[OffsetTable | OffsetBatch] = [] if table is None else [table]
    sources += batches_in(journal, generation)
    groups: dict[int, str] = {}
    for source in sources:
        groups.update(source.groups)
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for source in sources:
        rows = source.rows
        for key, name_hash, offset in zip(rows[::ROW_FIELDS], rows[1::ROW_FIELDS], rows[2::ROW_FIELDS], strict=True):
            if group := groups.get(key >> 32, ""):
                found[group, key & 0xFFFFFFFF] = name_hash, offset
    return {key: row for key, row in found.items() if row[1] >= 0}
