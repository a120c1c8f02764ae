"""Reads the tables in ``config`` with their backups."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rucola.errors import FormatError
from rucola.formats.config_json import loads_object
from rucola.formats.tables import (
    decode_consumer_offsets,
    decode_delay_offsets,
    decode_subscription_groups,
    decode_topics,
)
from rucola.runtime.files import Files
from rucola.store.dispatch import SCHEDULE_TOPIC
from rucola.store.verify.findings import FindingKind, Findings

_JSON_WITHOUT_SUFFIX = ("timermetrics", "transactionMetrics")
_CONSUMER_OFFSETS = ("consumerOffset.json", "lmqConsumerOffset.json")
_DECODERS: Mapping[str, Callable[[bytes], object]] = {
    "topics.json": decode_topics,
    "subscriptionGroup.json": decode_subscription_groups,
    "consumerOffset.json": decode_consumer_offsets,
    "lmqConsumerOffset.json": decode_consumer_offsets,
    "delayOffset.json": decode_delay_offsets,
}

NextOffsets = Mapping[tuple[bytes, int], int]
"""Maps topic and queue id to the queue offset after the newest entry of that queue."""


def check_tables(
    files: Files, directory: str, found: Findings, next_offsets: NextOffsets, topics: int, live: bool
) -> int:
    """Reads every table in ``config``, and compares the offsets of consumers and delay levels with the queues.

    Args:
        topics: number of topics that have queues or messages.

    Returns:
        The number of files read.
    """
    names = [name for name in files.list_files(directory) if _is_table(name)]
    for name in names:
        table = _read(files, f"{directory}/{name}", name.removesuffix(".bak"), found)
        if name in _CONSUMER_OFFSETS and isinstance(table, tuple) and not live:
            _check_consumers(f"{directory}/{name}", table[1], found, next_offsets)
        if name == "delayOffset.json" and isinstance(table, tuple) and not live:
            _check_levels(f"{directory}/{name}", table[1], found, next_offsets)
    for name in names:
        main = name.removesuffix(".bak")
        if main not in names and not live:
            found.add(FindingKind.TABLE, f"{directory}/{main}", 0, f"there is no such file, but there is {name}")
    if topics and not live and not {"topics.json", "topics.json.bak"}.intersection(names):
        _add_lost_topics(files, directory, found, topics)
    return len(names)


def _add_lost_topics(files: Files, directory: str, found: Findings, topics: int) -> None:
    """Adds what a broker will not know after its next start; names the directory if that is what is missing."""
    if files.exists(directory):
        path, missing, lost = f"{directory}/topics.json", "file", "knows none of them"
    else:
        path, missing, lost = directory, "directory", "knows none of them, and no group and no consumer offset"
    detail = f"there is no such {missing}, but there are {topics} topics with queues or messages; the next start {lost}"
    found.add(FindingKind.TABLE, path, 0, detail)


def _is_table(name: str) -> bool:
    main = name.removesuffix(".bak")
    return main.endswith(".json") or main in _JSON_WITHOUT_SUFFIX


def _read(files: Files, path: str, name: str, found: Findings) -> object:
    """Returns the table; None if it cannot be read."""
    text = files.read_file(path)
    if text is None:
        return None  # The file is being replaced at this moment.
    try:
        return _DECODERS[name](text) if name in _DECODERS else loads_object(text, name)
    except FormatError as error:
        detail = "the file is empty" if not text else f"expected {error.expected}, got {error.got}"
        found.add(FindingKind.TABLE, path, error.position, detail)
    return None


def _check_consumers(
    path: str, table: Mapping[str, Mapping[int, int]], found: Findings, next_offsets: NextOffsets
) -> None:
    for key, queues in table.items():
        topic, _, group = key.partition("@")
        for queue_id, consumer_offset in queues.items():
            end = next_offsets.get((topic.encode("utf-8", "surrogateescape"), queue_id))
            if end is not None and consumer_offset > end:
                detail = (
                    f"group {group} is at queue offset {consumer_offset} of {topic}/{queue_id}, which ends at {end}"
                )
                found.add(FindingKind.OFFSET_AHEAD, path, 0, detail)


def _check_levels(path: str, table: Mapping[int, int], found: Findings, next_offsets: NextOffsets) -> None:
    for level, queue_offset in table.items():
        end = next_offsets.get((SCHEDULE_TOPIC, level - 1))
        if end is not None and queue_offset > end:
            detail = f"delay level {level} is at queue offset {queue_offset} of its queue, which ends at {end}"
            found.add(FindingKind.OFFSET_AHEAD, path, 0, detail)
