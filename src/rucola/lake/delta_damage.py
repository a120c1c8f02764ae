"""What a power cut leaves of the log of a Delta table on a local disk, and the way out.

delta-rs does not sync what it writes. It reads an empty file of a commit as a commit without changes, so the next
commit would stand on a lost one.
"""

from __future__ import annotations

import json
import re

from rucola.errors import FormatError
from rucola.places.place import Place

_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
PARQUET_END = b"PAR1"


def check_newest(place: Place, log: str, version: int) -> None:
    """Checks that the newest commit of a table is whole.

    Raises:
        FormatError: it is torn. No run has said that it is in the table, because it says so only after a sync.
    """
    if (error := _torn_commit(place, log, version)) is not None:
        raise error


def damage(place: Place, log: str) -> FormatError | None:
    """What is wrong with a log that cannot be read; None if it is not the work of a power cut."""
    names = [one.path.rpartition("/")[2] for one in place.list_files(log)]
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        content = place.read(f"{log}/{match[0]}") or b""
        if not content.endswith(PARQUET_END):
            return FormatError(
                "checkpoint of a Delta table", len(content),
                f"a whole file; after a power cut, remove it and _last_checkpoint, since all commits are in {log}",
                "a torn one", f"{place.root}/{log}/{match[0]}",
            )  # fmt: skip
    newest = max((int(match[1]) for match in map(_COMMIT.fullmatch, names) if match), default=-1)
    return None if newest < 0 else _torn_commit(place, log, newest)


def _torn_commit(place: Place, log: str, version: int) -> FormatError | None:
    path = f"{log}/{version:020}.json"
    content = place.read(path)
    if content is None:  # the table begins with a checkpoint
        return None
    if _is_whole(content):
        return None
    return FormatError(
        "newest commit of a Delta table", len(content),
        "a line of JSON for each change; after a power cut, remove this file: no run has said that the commit is made",
        "a torn file", f"{place.root}/{path}",
    )  # fmt: skip


def _is_whole(content: bytes) -> bool:
    """Whether every line is there: the last one of our commits is the application transaction."""
    try:
        actions = [json.loads(line) for line in content.splitlines()]
        is_ours = any("rucola.action" in one.get("commitInfo", {}) for one in actions)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False
    return bool(actions) and (not is_ours or any("txn" in one for one in actions))
