"""Commands for the offsets of consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Cluster, Namesrv, Switch, Topic, administer, app, switch, time_ms
from rucola.client.admin import AdminClient, unless
from rucola.common.key_builder import RETRY_GROUP_TOPIC_PREFIX, is_retry_topic
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError
from rucola.protocol.codes import ResponseCode

_END = -1


@app.command("consumerProgress")
def consumer_progress(
    namesrv: Namesrv,
    group: Annotated[str | None, typer.Option("-g", "--groupName", help="Group. [default: all]")] = None,
    topic: Annotated[str | None, typer.Option("-t", "--topicName", help="Only this topic.")] = None,
) -> None:
    """Show the offsets and lag of consumer groups."""

    async def one(admin: AdminClient, name: str) -> None:
        stats = await admin.consume_stats(name, topic)
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

    async def everyone(admin: AdminClient) -> None:
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

    async def work(admin: AdminClient) -> None:
        if group is not None:
            await one(admin, group)
        else:
            await everyone(admin)

    administer(namesrv, work)


@app.command("resetOffsetByTime")
def reset_offset_by_time(
    namesrv: Namesrv,
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
        _reset(namesrv, group, topic, moment_ms, switch("-f", force, True), cluster)
        return

    async def work(admin: AdminClient) -> None:
        queue = MessageQueue(topic, "", queue_id)
        target = consumer_offset
        if target is None:
            target = await admin.api.search_offset(broker, queue, moment_ms)
        await admin.reset_queue_offset(broker, group, queue, target)
        output.say(f"reset consumer offset to {target}", broker=broker, queueId=queue_id, offset=target)

    administer(namesrv, work)


@app.command("skipAccumulatedMessage")
def skip_accumulated_message(
    namesrv: Namesrv,
    group: Annotated[str, typer.Option("-g", "--group", help="Consumer group.", show_default=False)],
    topic: Topic,
    force: Annotated[Switch, typer.Option("-f", "--force", help="true or false.")] = None,
    cluster: Cluster = None,
) -> None:
    """Reset a group's offsets to the end of the queues."""
    _reset(namesrv, group, topic, _END, switch("-f", force, True), cluster)


@app.command("cloneGroupOffset")
def clone_group_offset(
    namesrv: Namesrv,
    source: Annotated[str, typer.Option("-s", "--srcGroup", help="Group to copy from.", show_default=False)],
    target: Annotated[str, typer.Option("-d", "--destGroup", help="Group to copy to.", show_default=False)],
    topic: Topic,
    offline: Annotated[
        Switch, typer.Option("-o", "--offline", help="true or false; has no effect, as in RocketMQ's tool.")
    ] = None,
) -> None:
    """Copy the offsets of one group to another."""
    switch("-o", offline, False)

    async def work(admin: AdminClient) -> None:
        count = await admin.clone_offsets(source, target, topic)
        output.say(
            f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}], {count} queues",
            source=source,
            target=target,
            topic=topic,
            queues=count,
        )

    administer(namesrv, work)


def _reset(namesrv: str, group: str, topic: str, timestamp_ms: int, force: bool, cluster: str | None) -> None:
    async def work(admin: AdminClient) -> None:
        table = await admin.reset_offsets(group, topic, timestamp_ms, force, cluster)
        _show_offsets(table)

    administer(namesrv, work)


def _show_offsets(table: dict[MessageQueue, int]) -> None:
    rows = [[queue.broker_name, queue.queue_id, offset] for queue, offset in sorted(table.items())]
    output.table(["brokerName", "queueId", "offset"], rows)
