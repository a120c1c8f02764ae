"""The console's own figures over time: one value a minute for each series, in an SQLite file.

A row holds one hour of a series: 60 numbers of 4 bytes, NaN where nothing is known. The figures are bounded in age and
in bytes; the oldest hours go first. Nothing depends on them: if the file is damaged, it is set aside and a new one
begins.

All calls wait for the disk and belong to one thread.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rucola.console import memberships
from rucola.errors import DiskError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

DAYS_MAX: Final = 30
BYTES_MAX: Final = 50 * 1024 * 1024
SERIES_MAX: Final = 20_000
"""Largest number of series in one hour; further ones are left out."""
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_EMPTY: Final = array("f", [math.nan] * 60)
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (owner, name)
);
CREATE TABLE IF NOT EXISTS hours (
    hour INTEGER NOT NULL, series INTEGER NOT NULL, minutes BLOB NOT NULL, PRIMARY KEY (hour, series)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_series ON hours (series, hour);
"""


class History:
    """The figures in ``directory``.

    Args:
        directory: an existing directory that no other console uses.
        bytes_max: largest size of the file.

    Attributes:
        members: the members of groups, in the same file.
    """

    def __init__(self, directory: str, bytes_max: int = BYTES_MAX) -> None:
        self._path = f"{directory}/history.sqlite"
        self._bytes_max = bytes_max
        self._current: dict[tuple[str, str], array[float]] = {}
        """Minutes of the current hour, by owner and name."""
        self._hour = -1
        self._database = self._opened()
        self.members = memberships.Memberships(self._database, self._path)

    def add(self, owner: str, time_ms: int, values: Mapping[str, float]) -> None:
        """Stores the values of one minute; a later value of the same minute replaces the earlier one.

        Args:
            owner: cluster and account that saw the values; only the same owner sees them again.
            time_ms: when they were seen.
            values: by name of the series.

        Raises:
            DiskError: the values cannot be stored.
        """
        hour, minute = time_ms // _HOUR_MS, time_ms % _HOUR_MS // _MINUTE_MS
        if hour != self._hour:
            self._current.clear()
            self._hour = hour
        try:
            with self._database:
                for name, value in values.items():
                    minutes = self._minutes(owner, name, hour)
                    if minutes is not None:
                        minutes[minute] = value
                        self._store(owner, name, hour, minutes)
            self._shrink(hour)
        except sqlite3.Error as error:
            raise DiskError(self._path, "store figures", str(error)) from error

    def read(self, owner: str, name: str, begin_ms: int, end_ms: int) -> list[tuple[int, float | None]]:
        """The values of a series by minute: time in ms and value, None where it is not known. Minutes before the first
        value are left out.

        Raises:
            DiskError: the file cannot be read.
        """
        query = (
            "SELECT hour, minutes FROM hours JOIN series ON series.id = hours.series "
            "WHERE owner = ? AND name = ? AND hour BETWEEN ? AND ? ORDER BY hour"
        )
        try:
            rows = self._database.execute(query, (owner, name, begin_ms // _HOUR_MS, end_ms // _HOUR_MS)).fetchall()
        except sqlite3.Error as error:
            raise DiskError(self._path, "read figures", str(error)) from error
        by_hour = {hour: array("f", minutes) for hour, minutes in rows}
        found: list[tuple[int, float | None]] = []
        for hour in range(min(by_hour, default=0), max(by_hour, default=-1) + 1):
            for minute, value in enumerate(by_hour.get(hour, _EMPTY)):
                time_ms = hour * _HOUR_MS + minute * _MINUTE_MS
                if begin_ms <= time_ms <= end_ms and (found or not math.isnan(value)):
                    found.append((time_ms, None if math.isnan(value) else value))
        while found and found[-1][1] is None:
            found.pop()
        return found

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise DiskError(self._path, "open", str(error)) from error
            aside = f"{self._path}.damaged"
            event(logger, logging.WARNING, "figures of the console are damaged, set aside", path=aside, error=error)
            Path(self._path).replace(aside)
            for suffix in ("-wal", "-shm"):
                Path(self._path + suffix).unlink(missing_ok=True)
            return self._open()

    def _open(self) -> sqlite3.Connection:
        # The console has one thread for the figures, but closes them from another one after the first has ended.
        database = sqlite3.connect(self._path, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA auto_vacuum = FULL")
            database.executescript(_SCHEMA + memberships.SCHEMA)
            database.execute("SELECT count(*) FROM series").fetchone()
            Path(self._path).chmod(0o600)
        except BaseException:
            database.close()
            raise
        return database

    def _minutes(self, owner: str, name: str, hour: int) -> array[float] | None:
        """The minutes of a series in the current hour; None if there are too many series."""
        minutes = self._current.get((owner, name))
        if minutes is not None:
            return minutes
        if len(self._current) >= SERIES_MAX:
            return None
        row = self._database.execute(
            "SELECT minutes FROM hours JOIN series ON series.id = series WHERE owner = ? AND name = ? AND hour = ?",
            (owner, name, hour),
        ).fetchone()
        minutes = array("f", _EMPTY if row is None else row[0])
        self._current[owner, name] = minutes
        return minutes

    def _store(self, owner: str, name: str, hour: int, minutes: array[float]) -> None:
        execute = self._database.execute
        execute("INSERT OR IGNORE INTO series (owner, name) VALUES (?, ?)", (owner, name))
        execute(
            "INSERT OR REPLACE INTO hours SELECT ?, id, ? FROM series WHERE owner = ? AND name = ?",
            (hour, minutes.tobytes(), owner, name),
        )

    def _shrink(self, hour: int) -> None:
        """Removes the oldest hours beyond the limits of age and bytes."""
        execute = self._database.execute
        with self._database:
            execute("DELETE FROM hours WHERE hour <= ?", (hour - DAYS_MAX * 24,))
        while self._size() > self._bytes_max:
            with self._database:
                oldest = execute("SELECT min(hour) FROM hours").fetchone()[0]
                if oldest is None or oldest >= hour:
                    return
                execute("DELETE FROM hours WHERE hour = ?", (oldest,))
                execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM hours)")

    def _size(self) -> int:
        pages, size = (self._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        free = self._database.execute("PRAGMA freelist_count").fetchone()[0]
        return int((pages - free) * size)
