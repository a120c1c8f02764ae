"""The changes that were made through this console, newest first. Only who may change something sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rucola.common.json_library import orjson
from rucola.console.views.listing import NoQuery
from rucola.console.visit import Visit

COUNT = 200


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A change.

    Attributes:
        results: what became of each part; None if the console ended before it knew.
    """

    id: str
    time_ms: int
    account: str
    peer: str
    change: str
    what: Mapping[str, str]
    results: tuple[Mapping[str, str], ...] | None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """The newest changes in this cluster by the visitor's account."""

    rows: tuple[AuditRow, ...]


async def audit(visit: Visit, _query: NoQuery) -> AuditPage:
    """The newest changes."""
    entries = await visit.audited(COUNT)
    mine = [one for one in entries if one.get("cluster") == visit.cluster and one.get("account") == visit.account.name]
    return AuditPage(
        tuple(
            AuditRow(
                str(one.get("id", "")),
                int(one.get("time_ms", 0)),
                str(one.get("account", "")),
                str(one.get("peer", "")),
                str(one.get("change", "")),
                _texts(one.get("what")),
                None if one.get("results") is None else tuple(_texts(result) for result in one["results"]),
            )
            for one in mine
        )
    )


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(key): one if isinstance(one, str) else orjson.dumps(one).decode() for key, one in value.items()}
