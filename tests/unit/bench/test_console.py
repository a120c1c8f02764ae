"""The figures of ``bench.console``: only a full run measures, but what is computed here must be right."""

from __future__ import annotations

from bench.console import Size, p95
from bench.load_crowd import GROUPS_EACH, heartbeat_of

from rucola.protocol.bodies.heartbeat import HeartbeatData
from rucola.protocol.command import decode_frame


def test_p95_is_exceeded_by_one_of_twenty_at_most() -> None:
    assert p95([1.0] * 19 + [9.0]) == 1.0
    assert p95([1.0] * 18 + [8.0, 9.0]) == 8.0
    assert p95([3.0]) == 3.0


def test_clients_share_the_groups_of_the_tables() -> None:
    size = Size()
    members = size.connections * GROUPS_EACH // size.groups
    last = HeartbeatData.decode(decode_frame(heartbeat_of(size.connections - 1, members)).body)
    assert last.consumer_data_set[-1].group_name == f"group{size.groups - 1:05d}"
