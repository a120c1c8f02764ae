"""Who was in a group when, and read which queues: kept in the file of the figures.

A row is stored when a group's members or their queues change. Another table has the spans in which the console looked,
because between them nothing is known. Rows are bounded for a group and in all; the oldest go first.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rucola.common.json_library import orjson
from rucola.errors import DiskError

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS memberships (
    owner TEXT NOT NULL, name TEXT NOT NULL, time_ms INTEGER NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (owner, name, time_ms)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS memberships_by_time ON memberships (time_ms);
CREATE TABLE IF NOT EXISTS looked (
    owner TEXT NOT NULL, begin_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL, PRIMARY KEY (owner, begin_ms)
) WITHOUT ROWID;
"""
ROWS_OF_GROUP_MAX: Final = 300
ROWS_MAX: Final = 5_000
STATE_BYTES_MAX: Final = 4_096
LOOK_GAP_MS: Final = 180_000
"""A longer pause between two looks is a gap."""
AGE_MS_MAX: Final = 30 * 24 * 3_600_000

Membership = Mapping[str, tuple[str, ...] | None]
"""The queues of each member, ``TOPIC BROKER QUEUE``; None if it does not tell."""


@dataclass(frozen=True, slots=True)
class MemberHistory:
    """What is known of a group.

    Attributes:
        rows: time in ms and the members from then on, oldest first; the first one may be older than was asked for.
        looked: spans in ms in which the console looked.
    """

    rows: Sequence[tuple[int, Membership]]
    looked: Sequence[tuple[int, int]]


class Memberships:
    """The table. All calls wait for the disk and belong to the thread of the figures.

    Args:
        database: the open file.
        path: its name, for errors.
    """

    def __init__(self, database: sqlite3.Connection, path: str) -> None:
        self._database, self._path = database, path

    def add(self, owner: str, time_ms: int, states: Mapping[str, bytes]) -> None:
        """Stores the members of groups that have changed, and that the console looked now.

        Args:
            owner: cluster and account that saw it; only the same owner sees it again.
            states: by name of the group, see ``packed``.

        Raises:
            DiskError: it cannot be stored.
        """
        execute = self._database.execute
        try:
            with self._database:
                self._note_look(owner, time_ms)
                for name, state in states.items():
                    execute("INSERT OR REPLACE INTO memberships VALUES (?, ?, ?, ?)", (owner, name, time_ms, state))
                    execute(
                        "DELETE FROM memberships WHERE owner = ? AND name = ? AND time_ms <= (SELECT time_ms "
                        "FROM memberships WHERE owner = ? AND name = ? ORDER BY time_ms DESC LIMIT 1 OFFSET ?)",
                        (owner, name, owner, name, ROWS_OF_GROUP_MAX),
                    )
                if states:
                    self._shrink(time_ms)
        except sqlite3.Error as error:
            raise DiskError(self._path, "store members", str(error)) from error

    def latest(self, owner: str) -> dict[str, bytes]:
        """The newest state of each group.

        Raises:
            DiskError: the file cannot be read.
        """
        query = (
            "SELECT name, state FROM memberships AS one WHERE owner = ? AND time_ms = "
            "(SELECT max(time_ms) FROM memberships WHERE owner = one.owner AND name = one.name)"
        )
        return dict(self._read(query, (owner,)))

    def read(self, owner: str, name: str, begin_ms: int) -> MemberHistory:
        """What is known of a group since ``begin_ms``.

        Raises:
            DiskError: the file cannot be read.
        """
        rows = self._read(
            "SELECT time_ms, state FROM memberships WHERE owner = ? AND name = ? AND time_ms >= coalesce((SELECT "
            "max(time_ms) FROM memberships WHERE owner = ? AND name = ? AND time_ms <= ?), 0) ORDER BY time_ms",
            (owner, name, owner, name, begin_ms),
        )
        looked = self._read(
            "SELECT begin_ms, end_ms FROM looked WHERE owner = ? AND end_ms >= ? ORDER BY begin_ms", (owner, begin_ms)
        )
        return MemberHistory([(time_ms, unpacked(state)) for time_ms, state in rows], looked)

    def _note_look(self, owner: str, time_ms: int) -> None:
        execute = self._database.execute
        # Spans in the future are those of a clock that was set back since.
        execute("DELETE FROM looked WHERE owner = ? AND end_ms > ?", (owner, time_ms))
        (last,) = execute("SELECT max(end_ms) FROM looked WHERE owner = ?", (owner,)).fetchone()
        if last is not None and time_ms - last <= LOOK_GAP_MS:
            execute("UPDATE looked SET end_ms = ? WHERE owner = ? AND end_ms = ?", (time_ms, owner, last))
        else:
            execute("INSERT OR REPLACE INTO looked VALUES (?, ?, ?)", (owner, time_ms, time_ms))

    def _shrink(self, time_ms: int) -> None:
        execute = self._database.execute
        execute("DELETE FROM looked WHERE end_ms < ?", (time_ms - AGE_MS_MAX,))
        execute("DELETE FROM memberships WHERE time_ms < ?", (time_ms - AGE_MS_MAX,))
        (count,) = execute("SELECT count(*) FROM memberships").fetchone()
        if count > ROWS_MAX:
            execute(
                "DELETE FROM memberships WHERE (owner, name, time_ms) IN "
                "(SELECT owner, name, time_ms FROM memberships ORDER BY time_ms LIMIT ?)",
                (count - ROWS_MAX,),
            )

    def _read(self, query: str, values: tuple[object, ...]) -> list[Any]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise DiskError(self._path, "read members", str(error)) from error


def packed(members: Membership) -> bytes:
    """A group's members as at most ``STATE_BYTES_MAX`` bytes: what is too long loses its queues, then its last members.
    Equal members give equal bytes.
    """
    names = sorted(members)
    state = _packed({name: members[name] for name in names})
    if len(state) > STATE_BYTES_MAX:
        state = _packed(dict.fromkeys(names))
    while len(state) > STATE_BYTES_MAX:
        names = names[: len(names) * 3 // 4]
        state = _packed(dict.fromkeys(names))
    return state


def unpacked(state: bytes) -> Membership:
    """The members in ``state``; nobody if it is damaged."""
    try:
        found = orjson.loads(zlib.decompressobj().decompress(state, 1 << 20))
        return {name: None if queues is None else tuple(queues) for name, queues in found.items()}
    except (ValueError, TypeError, AttributeError, zlib.error):
        return {}


def _packed(members: Membership) -> bytes:
    return zlib.compress(orjson.dumps(members))
