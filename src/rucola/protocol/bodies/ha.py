"""Lag of slaves behind their master (``protocol.md`` 2.8; request 907)."""

from __future__ import annotations

from dataclasses import field

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.bodies.body import Body


@late_dataclass
class HAClientRuntimeInfo(Body):
    """State of a slave's connection to its master; empty on a master."""

    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_addr: str | None = None
    master_flush_offset: int = 0
    max_offset: int = 0
    transferred_byte_in_second: int = 0


@late_dataclass
class HAConnectionRuntimeInfo(Body):
    """State of one slave, as its master sees it."""

    addr: str
    diff: int = 0
    in_sync: bool = False
    slave_ack_offset: int = 0
    transfer_from_where: int = 0
    transferred_byte_in_second: int = 0


@late_dataclass
class HARuntimeInfo(Body):
    """Response to 907 (GET_BROKER_HA_STATUS)."""

    master_commit_log_max_offset: int = 0
    master: bool = True
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)
