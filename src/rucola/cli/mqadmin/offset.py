"""Commands for the offsets of consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Cluster, Switch, Topic, switch, time_ms
from rucola.cli.mqadmin.target import command
from rucola.client.admin import AdminClient, unless
from rucola.common.key_builder import RETRY_GROUP_TOPIC_PREFIX, is_retry_topic
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError
from rucola.protocol.codes import ResponseCode

_END = -1


@command("consumerProgress")
async def consumer_progress(
    admin: AdminClient,
    group: Annotated[str | None, typer.Option("-g", "--groupName", help="Group. [default: all]")] = None,
    topic: Annotated[str | None, typer.Option("-t", "--topicName", help="Only this topic.")] = None,
) -> None:
    """Show the offsets and lag of consumer groups."""

    if group is not None:
        await _progress_of(admin, group, topic)
    else:
        await _progress_of_all(admin)


@command("resetOffsetByTime")
async def reset_offset_by_time(
    admin: AdminClient,
    group: Annotated[str, typer.Option("-g", "--group", help="Consumer group.", show_default=False)],
    topic: Topic,
    timestamp: Annotated[
        str, typer.Option("-s", "--timestamp", help="now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS", show_default=False)
    ],
    force: Annotated[Switch, typer.Option("-f", "--force", help="Also move offsets forward: true or false.")] = None,
    broker: Annotated[str | None, typer.Option("-b", "--broker", help="Only this broker, host:port; needs -q.")] = None,
    queue_id: Annotated[int | None, typer.Option("-q", "--queue", help="Only this queue; needs -b.", min=0)] = None,
    consumer_offset: Annotated[
        int | None, typer.Option("-o", "--offset", help="New offset, used instead of the time; needs -b and -q.", min=0)
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "-c", "--cluster", help="Only this cluster. For a light queue, give a topic on the same brokers instead."
        ),
    ] = None,
) -> None:
    """Reset a group's offsets to a time, or its offset in one queue to a given offset."""
    moment_ms = time_ms("-s", timestamp)
    if (broker is None) is not (queue_id is None):
        raise ConfigError("-b, -q", "only one of them", "both for one queue, or neither for all queues")
    if broker is None or queue_id is None:
        if consumer_offset is not None:
            raise ConfigError("-o", str(consumer_offset), "an offset only together with -b and -q")
        await _reset(admin, group, topic, moment_ms, switch("-f", force, True), cluster)
        return

    queue = MessageQueue(topic, "", queue_id)
    target = consumer_offset
    if target is None:
        target = await admin.api.search_offset(broker, queue, moment_ms)
    await admin.reset_queue_offset(broker, group, queue, target)
    output.say(f"reset consumer offset to {target}", broker=broker, queueId=queue_id, offset=target)


@command("skipAccumulatedMessage")
async def skip_accumulated_message(
    admin: AdminClient,
    group: Annotated[str, typer.Option("-g", "--group", help="Consumer group.", show_default=False)],
    topic: Topic,
    force: Annotated[Switch, typer.Option("-f", "--force", help="true or false.")] = None,
    cluster: Cluster = None,
) -> None:
    """Reset a group's offsets to the end of the queues."""
    await _reset(admin, group, topic, _END, switch("-f", force, True), cluster)


@command("cloneGroupOffset")
async def clone_group_offset(
    admin: AdminClient,
    source: Annotated[str, typer.Option("-s", "--srcGroup", help="Group to copy from.", show_default=False)],
    target: Annotated[str, typer.Option("-d", "--destGroup", help="Group to copy to.", show_default=False)],
    topic: Topic,
    offline: Annotated[
        Switch, typer.Option("-o", "--offline", help="true or false; has no effect, as in RocketMQ's tool.")
    ] = None,
) -> None:
    """Copy the offsets of one group to another."""
    switch("-o", offline, False)

    count = await admin.clone_offsets(source, target, topic)
    output.say(
        f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}], {count} queues",
        source=source,
        target=target,
        topic=topic,
        queues=count,
    )


async def _progress_of(admin: AdminClient, group: str, topic: str | None) -> None:
    stats = await admin.consume_stats(group, topic)
    rows = [
        [
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            wrapper.broker_offset,
            wrapper.consumer_offset,
            wrapper.broker_offset - wrapper.consumer_offset,
            wrapper.inflight,
            output.time_text(wrapper.last_timestamp),
        ]
        for queue, wrapper in sorted(stats.offset_table.items())
    ]
    columns = ["Topic", "Broker Name", "QID", "Broker Offset", "Consumer Offset", "Diff", "Inflight", "LastTime"]
    output.table(columns, rows)
    total, inflight = stats.total_diff(), stats.inflight_diff()
    output.say(
        f"Consume TPS: {stats.consume_tps:.2f}\nConsume Diff Total: {total}\nConsume Inflight Total: {inflight}",
        consumeTps=stats.consume_tps,
        diffTotal=total,
        inflightTotal=inflight,
    )


async def _progress_of_all(admin: AdminClient) -> None:
    rows = []
    for name in sorted(filter(is_retry_topic, await admin.topic_list())):
        known = name.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
        stats = await admin.consume_stats(known)
        count, version, kind, model = 0, "OFFLINE", "", ""
        for data in await admin.brokers_of(name):
            address = data.broker_addrs[min(data.broker_addrs)]
            call = admin.api.consumer_connection(address, known)
            connection = await unless(ResponseCode.CONSUMER_NOT_ONLINE, call)
            if connection is not None and connection.connection_set:
                count = len(connection.connection_set)
                version = str(min(client.version for client in connection.connection_set))
                kind, model = connection.consume_type, connection.message_model
        rows.append([known, count, version, kind, model, stats.consume_tps, stats.total_diff()])
    output.table(["Group", "Count", "Version", "Type", "Model", "TPS", "Diff Total"], rows)


async def _reset(
    admin: AdminClient, group: str, topic: str, timestamp_ms: int, force: bool, cluster: str | None
) -> None:
    _show_offsets(await admin.reset_offsets(group, topic, timestamp_ms, force, cluster))


def _show_offsets(table: dict[MessageQueue, int]) -> None:
    rows = [[queue.broker_name, queue.queue_id, offset] for queue, offset in sorted(table.items())]
    output.table(["brokerName", "queueId", "offset"], rows)
