"""The audit log: who changed what, when, and with which result.

The file ``audit.jsonl`` has two lines for each change: ``began`` is synced before the first request of the change, and
``ended`` has the result. A line ``began`` without ``ended`` means that the console was killed meanwhile: what happened
then is unknown. When a file is full, it becomes ``audit.1.jsonl``, and so on up to ``FILES_MAX``. Nothing in the
console changes or removes a line otherwise. Source: reliability.md, an acknowledged change is durable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rucola.common.json_library import orjson
from rucola.errors import DiskError
from rucola.runtime.clock import Clock

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
FILES_MAX: Final = 8
LINE_BYTES_MAX: Final = 64 * 1024
_TAIL_BYTES: Final = 512 * 1024


class AuditLog:
    """The audit log in one directory. One thread at a time; its calls wait for the disk.

    Args:
        directory: an existing directory that no other console uses.
    """

    def __init__(self, directory: str, clock: Clock, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._directory = directory
        self._clock = clock
        self._file_bytes_max = file_bytes_max
        self._number = 0

    def begin(self, account: str, peer: str, cluster: str, change: str, what: Mapping[str, Any]) -> str:
        """Writes and syncs the line before a change; returns the change's id.

        Args:
            account: who changes; empty without an account.
            peer: address of the visitor.
            change: kind of the change.
            what: what the change will do, as it was shown.

        Raises:
            DiskError: the line cannot be made durable. Then the change must not be made.
        """
        self._number += 1
        identity = f"{self._clock.wall_ms()}-{os.getpid()}-{self._number}"
        entry = {"id": identity, "event": "began", "account": account, "peer": peer, "cluster": cluster}
        self._append({**entry, "change": change, "what": dict(what)})
        return identity

    def end(self, identity: str, results: list[dict[str, Any]]) -> None:
        """Writes and syncs the results of a change.

        Raises:
            DiskError: the line cannot be written.
        """
        self._append({"id": identity, "event": "ended", "results": results})

    def latest(self, count: int) -> list[dict[str, Any]]:
        """The newest changes, newest first: the line ``began`` with the ``results`` of its end, None if there is none.

        Raises:
            DiskError: a file cannot be read.
        """
        ended: dict[str, Any] = {}
        found: list[dict[str, Any]] = []
        for line in self._backwards():
            try:
                entry = orjson.loads(line)
                if entry["event"] == "ended":
                    ended[entry["id"]] = entry
                    continue
                end = ended.pop(entry["id"], None)
                entry["results"] = None if end is None else end["results"]
            except (ValueError, KeyError, TypeError):  # torn by a power cut, or not ours
                continue
            found.append(entry)
            if len(found) == count:
                break
        return found

    def _append(self, entry: dict[str, Any]) -> None:
        line = orjson.dumps({"time_ms": self._clock.wall_ms(), **entry})
        if len(line) > LINE_BYTES_MAX:
            short = {key: value for key, value in entry.items() if key not in ("what", "results")}
            line = orjson.dumps({"time_ms": self._clock.wall_ms(), **short, "cut": len(line)})
        path = self._path(0)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
                data = (b"\n" if torn else b"") + line + b"\n"
                if os.write(descriptor, data) != len(data):
                    raise OSError(28, "No space left on device")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if size == 0:
                self._sync_directory()
            if size + len(data) >= self._file_bytes_max:
                self._rotate()
        except OSError as error:
            raise DiskError(path, "append to the audit log", error.strerror or str(error)) from error

    def _rotate(self) -> None:
        for number in range(FILES_MAX - 1, 0, -1):
            older = Path(self._path(number - 1))
            if older.exists():
                older.replace(self._path(number))
        self._sync_directory()

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _backwards(self) -> Iterator[bytes]:
        """The newest lines of each file, newest first."""
        for number in range(FILES_MAX):
            path = self._path(number)
            try:
                with Path(path).open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    file.seek(max(size - _TAIL_BYTES, 0))
                    lines = file.read().split(b"\n")
            except FileNotFoundError:
                return
            except OSError as error:
                raise DiskError(path, "read", error.strerror or str(error)) from error
            yield from reversed(lines[1:] if size > _TAIL_BYTES else lines)

    def _path(self, number: int) -> str:
        return f"{self._directory}/audit.{number}.jsonl" if number else f"{self._directory}/audit.jsonl"
