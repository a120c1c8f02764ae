"""``haStatus``: how far slaves lag behind their master."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.target import Target, command
from rucola.client.admin import AdminClient

_COLUMNS = ["#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status", "#TransferFromWhere"]


@command("haStatus")
async def ha_status(
    target: Target,
    interval_s: Annotated[
        int | None, typer.Option("-i", "--interval", help="Repeat, with this many seconds in between.", min=1)
    ] = None,
) -> None:
    """Show a master's slaves, or a slave's master."""
    while True:
        for address in await target.masters():
            await _show(target.admin, address)
        if interval_s is None:
            return
        await asyncio.sleep(interval_s)


async def _show(admin: AdminClient, address: str) -> None:
    found = await admin.api.ha_status(address)
    if not found.master:
        link = found.ha_client_runtime_info
        output.facts(
            {
                "#MasterAddr": link.master_addr,
                "#CommitLogMaxOffset": link.max_offset,
                "#TransferSpeed(KB/s)": link.transferred_byte_in_second / 1024,
                "#LastReadTime": output.time_text(link.last_read_timestamp),
                "#LastWriteTime": output.time_text(link.last_write_timestamp),
                "#MasterFlushOffset": link.master_flush_offset,
            }
        )
        return
    output.facts(
        {
            "#MasterAddr": address,
            "#MasterCommitLogMaxOffset": found.master_commit_log_max_offset,
            "#SlaveNum": len(found.ha_connection_info),
            "#InSyncSlaveNum": found.in_sync_slave_nums,
        }
    )
    rows = [
        [
            slave.addr,
            slave.slave_ack_offset,
            slave.diff,
            slave.transferred_byte_in_second / 1024,
            "OK" if slave.in_sync else "Fall Behind",
            slave.transfer_from_where,
        ]
        for slave in found.ha_connection_info
    ]
    output.table(_COLUMNS, rows)
