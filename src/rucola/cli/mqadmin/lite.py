"""Commands for lite topics (RocketMQ 5.5.0, package ``lite``; ``liteTopicList`` is Rucola's own)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.target import AnyTarget, command
from rucola.client.admin import AdminClient
from rucola.common.lite_topics import lite_queue_topic
from rucola.errors import BrokerError
from rucola.protocol.bodies.lite import LiteLagInfo
from rucola.protocol.bodies.statistics import TopicOffset
from rucola.protocol.headers.lite import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    ListLiteTopicsRequestHeader,
)

Parent = Annotated[str, typer.Option("-p", "--parentTopic", help="Parent topic.", show_default=False)]
Lite = Annotated[str, typer.Option("-l", "--liteTopic", help="Lite topic.", show_default=False)]
LiteGroup = Annotated[str, typer.Option("-g", "--group", help="Consumer group.", show_default=False)]
B = TypeVar("B")
_PAGE = 1000
_TOP = 20


async def _of_each(
    admin: AdminClient, parent: str, ask: Callable[[str], Awaitable[B]]
) -> list[tuple[str, B | BrokerError]]:
    """What each broker of the parent answers; a refusal takes the place of an answer."""
    found: list[tuple[str, B | BrokerError]] = []
    for data in await admin.brokers_of(parent):
        try:
            found.append((data.broker_name, await ask(data.broker_addrs[min(data.broker_addrs)])))
        except BrokerError as error:
            found.append((data.broker_name, error))
    if found and all(isinstance(answer, BrokerError) for _, answer in found):
        refusal = found[0][1]
        assert isinstance(refusal, BrokerError)
        raise refusal
    return found


def _time(wall_ms: int, absent: str = "N/A") -> str:
    return output.time_text(wall_ms) if wall_ms > 0 else absent


@command("getBrokerLiteInfo")
async def broker_lite_info(
    target: AnyTarget,
    details: Annotated[bool, typer.Option("-d", "--showDetail", help="Show parents and groups.")] = False,
) -> None:
    """Show how many lite topics and subscriptions the brokers have."""
    rows = []
    infos = [(address, await target.admin.api.broker_lite_info(address)) for address in await target.masters()]
    for address, info in infos:
        rows.append(
            [
                address,
                info.store_type,
                info.max_lmq_num,
                info.current_lmq_num,
                info.lite_subscription_count,
                info.order_info_count,
                info.cq_table_size,
                info.offset_table_size,
                info.event_map_size,
            ]
        )
    output.table(
        [
            "Broker",
            "Store Type",
            "Max LMQ",
            "Current LMQ",
            "Subscription Count",
            "Order Info Count",
            "CQ Table Size",
            "Offset Table Size",
            "Event Map Size",
        ],
        rows,
    )
    if details:
        parents: list[list[object]] = []
        for address, info in infos:
            for parent, ttl in sorted((info.topic_meta or {}).items()):
                groups = " ".join(sorted((info.group_meta or {}).get(parent, ())))
                parents.append([address, parent, ttl, groups])
        output.table(["Broker", "Parent Topic", "TTL", "Groups"], parents)


@command("getParentTopicInfo")
async def parent_topic_info(admin: AdminClient, parent: Parent) -> None:
    """Show a parent topic: time to live in minutes, number of lite topics, groups."""
    rows: list[list[object]] = []
    for name, info in await _of_each(admin, parent, lambda at: admin.api.parent_topic_info(at, parent)):
        if isinstance(info, BrokerError):
            rows.append([name, "error", "", "", str(info)])
        else:
            groups = " ".join(sorted(info.groups or ()))
            rows.append([name, info.ttl, info.lite_topic_count, info.lmq_num, groups])
    output.table(["Broker Name", "TTL", "Lite Count", "LMQ Num", "Groups"], rows)


@command("getLiteTopicInfo")
async def lite_topic_info(
    admin: AdminClient,
    parent: Parent,
    lite_topic: Lite,
    clients: Annotated[bool, typer.Option("-s", "--showSubClient", help="Show who reads it.")] = False,
) -> None:
    """Show offsets and readers of a lite topic."""
    rows: list[list[object]] = []
    readers: list[list[object]] = []
    for name, info in await _of_each(admin, parent, lambda at: admin.api.lite_topic_info(at, parent, lite_topic)):
        if isinstance(info, BrokerError):
            rows.append([name, "error", "", str(info), "", ""])
            continue
        offset, subscribers = info.topic_offset, info.subscriber or []
        offset = offset or TopicOffset(0, 0, 0)
        last = _time(offset.last_update_timestamp, "-")
        rows.append([name, offset.min_offset, offset.max_offset, last, info.sharding_to_broker, len(subscribers)])
        readers += [[name, reader.client_id, reader.group] for reader in subscribers]
    output.table(["Broker Name", "Min Offset", "Max Offset", "Last Update", "Sharding", "Sub Client Count"], rows)
    if clients:
        output.table(["Broker Name", "Client Id", "Group"], readers)


@command("getLiteClientInfo")
async def lite_client_info(
    admin: AdminClient,
    parent: Parent,
    group: LiteGroup,
    client_id: Annotated[str, typer.Option("-c", "--clientId", help="Client id.", show_default=False)],
    names: Annotated[bool, typer.Option("-s", "--showDetail", help="Show its lite topics.")] = False,
) -> None:
    """Show what a client reads, and when it was last heard of."""
    header = GetLiteClientInfoRequestHeader(parent, group, client_id, _PAGE)
    rows: list[list[object]] = []
    topics: list[list[object]] = []
    for name, info in await _of_each(admin, parent, lambda at: admin.api.lite_client_info(at, header)):
        if isinstance(info, BrokerError):
            rows.append([name, "error", "", str(info)])
            continue
        count = info.lite_topic_count if info.lite_topic_count >= 0 else "N/A"
        rows.append([name, count, _time(info.last_access_time), _time(info.last_consume_time)])
        topics += [[name, topic] for topic in sorted(info.lite_topic_set or ())]
    output.table(["Broker", "Lite Topic Count", "Last Access Time", "Last Consume Time"], rows)
    if names:
        output.table(["Broker", "Lite Topic"], topics)


@command("getLiteGroupInfo")
async def lite_group_info(
    admin: AdminClient,
    parent: Parent,
    group: LiteGroup,
    lite_topic: Annotated[str, typer.Option("-l", "--liteTopic", help="Only this lite topic.")] = "",
    top: Annotated[int, typer.Option("-k", "--topK", help="Number of lite topics in each list.", min=1)] = _TOP,
) -> None:
    """Show how far a group is behind, and in which lite topics most."""
    header = GetLiteGroupInfoRequestHeader(group, lite_topic or None, top)
    rows: list[list[object]] = []
    by_lag: list[LiteLagInfo] = []
    by_time: list[LiteLagInfo] = []
    total, earliest = 0, 0
    for name, info in await _of_each(admin, parent, lambda at: admin.api.lite_group_info(at, header)):
        if isinstance(info, BrokerError):
            rows.append([name, "error", "", "", str(info)])
            continue
        total += max(info.total_lag_count, 0)
        at_ms = info.earliest_unconsumed_timestamp
        earliest = min(earliest or at_ms, at_ms) if at_ms > 0 else earliest
        by_lag += info.lag_count_top_k or []
        by_time += info.lag_timestamp_top_k or []
        wrapper = info.lite_topic_offset_wrapper
        if wrapper is not None:
            lag = wrapper.broker_offset - wrapper.consumer_offset
            rows.append([name, wrapper.broker_offset, wrapper.consumer_offset, lag, _time(wrapper.last_timestamp, "-")])
    if rows:
        output.table(["Broker Name", "Broker Offset", "Consume Offset", "Lag Count", "Last Update"], rows)
    output.facts({"Total Lag Count": total, "Min Unconsumed Timestamp": _time(earliest, "-")})
    if not lite_topic:
        by_lag.sort(key=lambda row: -row.lag_count)
        by_time.sort(key=lambda row: row.earliest_unconsumed_timestamp)
        for title, lags in (("Most Messages", by_lag), ("Waiting Longest", by_time)):
            lines = [
                [number, row.lite_topic, row.lag_count, _time(row.earliest_unconsumed_timestamp, "-")]
                for number, row in enumerate(lags[:top], 1)
            ]
            output.table([title, "Lite Topic", "Lag Count", "Unconsumed Timestamp"], lines)


@command("triggerLiteDispatch")
async def trigger_lite_dispatch(
    admin: AdminClient,
    parent: Parent,
    group: LiteGroup,
    client_id: Annotated[str, typer.Option("-c", "--clientId", help="Only this client.")] = "",
    broker: Annotated[str, typer.Option("-b", "--brokerName", help="Only this broker.")] = "",
) -> None:
    """Let the brokers look through the lite topics of a group's clients for messages."""
    for data in await admin.brokers_of(parent):
        if broker in ("", data.broker_name):
            address = data.broker_addrs[min(data.broker_addrs)]
            await admin.api.trigger_lite_dispatch(address, group, client_id or None)
            output.say(f"trigger lite dispatch on {data.broker_name} success.", broker=data.broker_name, group=group)


@command("liteTopicList")
async def lite_topic_list(
    admin: AdminClient,
    parent: Parent,
    prefix: Annotated[str, typer.Option("-x", "--prefix", help="How their names begin.")] = "",
    group: Annotated[str, typer.Option("-g", "--group", help="Show how far this group is behind.")] = "",
    most: Annotated[int, typer.Option("-m", "--maxCount", help="Show at most so many of each broker.", min=1)] = 100,
) -> None:
    """List lite topics of a parent, by how their names begin."""
    rows: list[list[object]] = []
    for data in await admin.brokers_of(parent):
        start, left = 0, most
        while start >= 0 and left > 0:
            header = ListLiteTopicsRequestHeader(parent, min(left, _PAGE), prefix or None, group or None, start)
            page = await admin.api.lite_topics(data.broker_addrs[min(data.broker_addrs)], header)
            for row in page.lite_topics:
                read = [row.consumer_offset, row.lag_count] if group else []
                name = lite_queue_topic(parent, row.lite_topic or "") if output.JSON.get() else row.lite_topic
                rows.append([data.broker_name, name, row.min_offset, row.max_offset, *read, _time(row.last_time, "-")])
            start, left = page.following, left - len(page.lite_topics)
    columns = ["Consume Offset", "Lag Count"] if group else []
    output.table(["Broker Name", "Lite Topic", "Min Offset", "Max Offset", *columns, "Last Update"], rows)
