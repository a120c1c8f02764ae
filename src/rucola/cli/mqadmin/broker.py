"""Commands for clusters and brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Switch, switch
from rucola.cli.mqadmin.target import AnyTarget, Target, command
from rucola.client.admin import AdminClient
from rucola.protocol.codes import RequestCode

BrokerName = Annotated[str, typer.Option("-b", "--brokerName", help="Name of the broker.", show_default=False)]


@command("clusterList")
async def cluster_list(
    admin: AdminClient,
    more: Annotated[
        bool, typer.Option("-m", "--moreStats", help="Show how many messages came and went today and yesterday.")
    ] = False,
    cluster: Annotated[str | None, typer.Option("-c", "--clusterName", help="Only this cluster.")] = None,
) -> None:
    """List clusters and brokers with their load."""
    info = await admin.cluster_info()
    rows = []
    for name, brokers in sorted(info.cluster_addr_table.items()):
        if cluster not in (None, name):
            continue
        for broker in sorted(brokers):
            for number, address in sorted(info.broker_addr_table[broker].broker_addrs.items()):
                figures = await admin.api.runtime_info(address)
                rows.append([name, broker, number, *(_more(figures) if more else [address, *_state(figures)])])
    columns = ["Cluster Name", "Broker Name"]
    if more:
        columns += ["BID", "InTotalYest", "OutTotalYest", "InTotalToday", "OutTotalToday"]
    else:
        columns += ["BID", "Addr", "Version", "InTPS", "OutTPS", "Space", "ACTIVATED"]
    output.table(columns, rows)


@command("brokerStatus")
async def broker_status(target: Target) -> None:
    """Show the figures of a broker, or of all masters of a cluster."""
    for address in await target.masters():
        figures = await target.admin.api.runtime_info(address)
        output.facts({**({"broker": address} if target.broker is None else {}), **dict(sorted(figures.items()))})


@command("getBrokerConfig")
async def get_broker_config(target: Target) -> None:
    """Show the options of a broker, or of all masters of a cluster."""
    for address in await target.masters():
        options = await target.admin.api.broker_config(address)
        output.facts({**({"broker": address} if target.broker is None else {}), **dict(sorted(options.items()))})


@command("updateBrokerConfig")
async def update_broker_config(
    target: Target,
    key: Annotated[
        str,
        typer.Option(
            "-k",
            "--key",
            help="Name of the option; the error for an unknown name lists the options that can be changed.",
            show_default=False,
        ),
    ],
    value: Annotated[str, typer.Option("-v", "--value", help="New value of the option.", show_default=False)],
) -> None:
    """Change an option of a broker, or of all masters of a cluster."""
    await target.change(
        lambda address: target.admin.api.change_broker_config(address, {key: value}),
        lambda address: f"update broker config success, {address}",
        key=key,
        value=value,
    )


@command("wipeWritePerm")
async def wipe_write_perm(admin: AdminClient, broker_name: BrokerName) -> None:
    """On all name servers, remove the write permission of a broker's topics."""
    await _change_write_perm(admin, broker_name, "wipe", admin.api.wipe_write_perm)


@command("addWritePerm")
async def add_write_perm(admin: AdminClient, broker_name: BrokerName) -> None:
    """Undo wipeWritePerm."""
    await _change_write_perm(admin, broker_name, "add", admin.api.add_write_perm)


@command("cleanExpiredCQ")
async def clean_expired_cq(target: AnyTarget) -> None:
    """Remove expired files of the consume queues."""
    await _clean(target, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


@command("deleteExpiredCommitLog")
async def delete_expired_commit_log(target: AnyTarget) -> None:
    """Remove expired files of the commit log now."""
    await _clean(target, RequestCode.DELETE_EXPIRED_COMMITLOG)


@command("brokerConsumeStats")
async def broker_consume_stats(
    admin: AdminClient,
    broker: Annotated[str, typer.Option("-b", "--brokerAddr", help="Broker, host:port.", show_default=False)],
    level: Annotated[
        int, typer.Option("-l", "--level", help="Only queues with at least this many waiting messages.", min=0)
    ] = 0,
    order: Annotated[Switch, typer.Option("-o", "--order", help="Only ordered topics: true or false.")] = None,
) -> None:
    """Show the offsets and lag of all groups."""
    ordered_only = switch("-o", order, False)

    stats = await admin.api.all_consume_stats(broker, ordered_only)
    rows = []
    for entry in stats.consume_stats_list:
        for group, listed in sorted(entry.items()):
            for figures in listed:
                for queue, wrapper in sorted(figures.offset_table.items()):
                    diff = wrapper.broker_offset - wrapper.consumer_offset
                    if diff >= level:
                        offsets = [wrapper.broker_offset, wrapper.consumer_offset, diff]
                        last = output.time_text(wrapper.last_timestamp)
                        rows.append([queue.topic, group, queue.broker_name, queue.queue_id, *offsets, last])
    columns = ["Topic", "Group", "Broker Name", "QID", "Broker Offset", "Consumer Offset", "Diff", "LastTime"]
    output.table(columns, rows)
    output.say(f"Diff Total: {stats.total_diff}", diffTotal=stats.total_diff)


async def _clean(target: AnyTarget, code: RequestCode) -> None:
    await target.change(lambda address: target.admin.api.clean(address, code), lambda address: f"success, {address}")


def _state(figures: dict[str, str]) -> list[object]:
    """Version, messages per second in and out, disk usage, whether the broker accepts messages."""
    rates = [figures.get(name, "").split() for name in ("putTps", "getTransferredTps")]
    return [
        figures.get("brokerVersionDesc", ""),
        *[float(rate[0]) if rate else 0.0 for rate in rates],
        figures.get("commitLogDiskRatio", ""),
        figures.get("brokerActive", ""),
    ]


def _more(figures: dict[str, str]) -> list[int]:
    """Messages in and out, yesterday and today."""

    def growth(kind: str, start: str, end: str) -> int:
        return int(figures.get(f"{kind}{end}", 0)) - int(figures.get(f"{kind}{start}", 0))

    return [
        growth("msgPutTotal", "YesterdayMorning", "TodayMorning"),
        growth("msgGetTotal", "YesterdayMorning", "TodayMorning"),
        growth("msgPutTotal", "TodayMorning", "TodayNow"),
        growth("msgGetTotal", "TodayMorning", "TodayNow"),
    ]


async def _change_write_perm(
    admin: AdminClient, broker_name: str, change: str, call: Callable[[str, str], Awaitable[int]]
) -> None:
    for address in admin.namesrv_addresses:
        count = await call(address, broker_name)
        output.say(
            f"{change} write perm of broker[{broker_name}] in name server[{address}] OK, {count}",
            broker=broker_name,
            namesrv=address,
            topics=count,
        )
