"""When the rows of a Delta table came: each commit with its time and its rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ["queueId", "queueOffset", "storeTimestamp", "body"]


class Commit(NamedTuple):
    """A commit that appended rows.

    Attributes:
        at_s: when it was written: since then, readers of the table see the rows. Seconds of the system's clock.
        paths: its data files.
    """

    at_s: float
    paths: list[Path]


class Arrivals(NamedTuple):
    """All rows of a table, one element each.

    Attributes:
        places: queue id, queue offset and number of the message.
        stored_s: store time in seconds of the system's clock.
        arrived_s: time of the row's commit.
    """

    places: Counter[tuple[int, int, int]]
    stored_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    arrived_s: np.ndarray[tuple[int], np.dtype[np.float64]]

    def delays_s(self, begin_s: float, end_s: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Seconds from store to commit of the rows stored in ``[begin_s, end_s)``, the shortest first."""
        chosen = (self.stored_s >= begin_s) & (self.stored_s < end_s)
        return np.sort((self.arrived_s - self.stored_s)[chosen])


def commits(table: Path, newest_first: bool = False) -> Iterator[Commit]:
    """Yields the commits of a table in their order."""
    for path in sorted((table / "_delta_log").glob("*[0-9].json"), reverse=newest_first):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        yield Commit(path.stat().st_mtime, [table / action["add"]["path"] for action in actions if "add" in action])


def newest_stored_s(table: Path) -> float:
    """Store time in seconds of the newest row in the newest commit with rows; 0 without one."""
    for commit in commits(table, newest_first=True):
        times = [pq.read_table(path, columns=["storeTimestamp"]).column(0) for path in commit.paths]
        if times:
            return max(float(_seconds(column).max()) for column in times)
    return 0.0


def arrivals(table: Path) -> Arrivals:
    """Reads the whole table."""
    places: Counter[tuple[int, int, int]] = Counter()
    stored, arrived = [np.empty(0)], [np.empty(0)]
    for commit in commits(table):
        for path in commit.paths:
            rows = pq.read_table(path, columns=COLUMNS)
            numbers = [int(body) for body in rows["body"].to_pylist()]
            places.update(zip(rows["queueId"].to_pylist(), rows["queueOffset"].to_pylist(), numbers, strict=True))
            stored.append(_seconds(rows["storeTimestamp"]))
            arrived.append(np.full(len(rows), commit.at_s))
    return Arrivals(places, np.concatenate(stored), np.concatenate(arrived))


def _seconds(times: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    micros: np.ndarray[tuple[int], np.dtype[np.float64]] = times.cast(pa.int64()).to_numpy() / 1e6
    return micros
