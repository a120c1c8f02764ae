"""The sizes of a store's queue and index files in a raw table, so that a restored store gets files of the same sizes.

Queues and index are not archived. RocketMQ refuses queue files of another size than the configured one, so a restore
cannot choose sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rucola.common.options import parse_options
from rucola.errors import ConfigError, FormatError
from rucola.lake.table_log import DataFile
from rucola.places.place import Place
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.doctor.rebuild_job import options_of_files

SIZES = "sizes"
"""Kind of the row with the sizes, and of the data file that has only this row."""
_KEYS = frozenset(
    (
        *("mappedFileSizeConsumeQueue", "mapperFileSizeBatchConsumeQueue", "mappedFileSizeConsumeQueueExt"),
        *("maxHashSlotNum", "maxIndexNum", "enableConsumeQueueExt", "enableLmq", "enableMultiDispatch"),
    )
)
_BYTES_MAX = 4096


def sizes_of(files: Files, store: str, known: Mapping[str, str]) -> dict[str, str]:
    """Returns the options that follow from the files of a store, and those of ``known`` that no file tells now."""
    found = options_of_files(files, store)
    return {**known, **{key: value for key, value in found.items() if _are_sizes({key: value})}}


def encode_sizes(options: Mapping[str, str]) -> bytes:
    """Returns the content of the row."""
    return json.dumps(dict(sorted(options.items()))).encode()


def read_sizes(place: Place, parts: Iterable[DataFile]) -> dict[str, str]:
    """Returns the options in the data files of kind ``SIZES``; none in a table of an older version.

    Args:
        place: where the table is; it may come from somebody else.
        parts: the files of one broker.

    Raises:
        FormatError: the content is not what ``encode_sizes`` returns.
    """
    found: dict[str, str] = {}
    for one in parts:
        with place.parquet(one.path) as file:
            rows = file.read(columns=["record"]).to_pylist()
        for row in rows:
            found |= _decode(row["record"] or b"", one.path)
    return found


def _decode(content: bytes, path: str) -> dict[str, str]:
    try:
        options = json.loads(content) if len(content) <= _BYTES_MAX else None
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict) or not _are_sizes(options):
        raise FormatError("raw table", 0, "sizes of queue and index files", repr(content[:80]), path)
    return options


def _are_sizes(options: Mapping[str, Any]) -> bool:
    """Whether all of these are options in the table, with values that a configuration may have."""
    if not (_KEYS.issuperset(options) and all(isinstance(value, str) for value in options.values())):
        return False
    try:
        parse_options(MessageStoreConfig, options)
    except ConfigError:
        return False
    return True
