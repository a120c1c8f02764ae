"""The file that describes the result of a task, with checksums of itself and of all files that the task wrote.

A result may be read long after it was written, when interrupted work goes on: after a power cut, on a bad disk, or in a
store that somebody else has sent. Nothing that is made from it is compared with the log again. So a result counts only
if every byte of it is as its task wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rucola.errors import StoreError
from rucola.formats.checksum import crc32
from rucola.formats.config_json import UNREADABLE_JSON
from rucola.runtime.files import Files

_PIECE = 4 << 20


def write_result(files: Files, staging: str, name: str, result: dict[str, Any]) -> None:
    """Writes ``NAME.json``, which makes the result of the attempt ``name`` count."""
    made = {
        path: [files.size(f"{staging}/{path}"), _checksum(files, f"{staging}/{path}")]
        for path in _made(files, staging, name)
    }
    text = json.dumps({"result": result, "files": made})
    files.replace_file(f"{staging}/{name}.json", json.dumps([crc32(text.encode()), text]).encode())


def read_result(files: Files, path: str) -> tuple[dict[str, Any], dict[str, list[int]]] | None:
    """Returns a result, and length and checksum of each file that the task wrote; None if it is not as written."""
    try:
        checksum, text = json.loads(files.read_file(path) or b"")
        if crc32(text.encode()) != checksum:
            return None
        fields = json.loads(text)
        return dict(fields["result"]), dict(fields["files"])
    except UNREADABLE_JSON:
        return None


def is_whole(files: Files, staging: str, name: str, moved: str = "") -> bool:
    """Whether the result in the file ``name`` and all files of it are as they were written.

    Args:
        moved: the directory to which the files may have been moved already.
    """
    found = read_result(files, f"{staging}/{name}")
    if found is None:
        return False
    try:
        for path, (size, checksum) in found[1].items():
            place = f"{staging}/{path}"
            if moved and not files.exists(place):
                place = f"{moved}/{path.rpartition('/')[2]}"
            if files.length(place) != size or _checksum(files, place) != checksum:
                return False
    except (StoreError, ValueError, TypeError):
        return False
    return True


def _made(files: Files, staging: str, name: str) -> Iterator[str]:
    """Yields the paths, below ``staging``, of all files of an attempt."""
    yield from (
        found for found in files.list_files(staging) if found.startswith(f"{name}.") and found != f"{name}.json"
    )
    directories = [name]
    while directories:
        directory = directories.pop()
        yield from (f"{directory}/{found}" for found in files.list_files(f"{staging}/{directory}"))
        directories += [f"{directory}/{found}" for found in files.list_directories(f"{staging}/{directory}")]


def _checksum(files: Files, path: str) -> int:
    checksum, position = 0, 0
    while piece := files.read_at(path, position, _PIECE):
        checksum, position = crc32(checksum.to_bytes(4, "big") + piece), position + len(piece)
    return checksum
