"""Commands for topics."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import (
    Broker,
    Cluster,
    Namesrv,
    Switch,
    Topic,
    administer,
    app,
    json_list,
    named,
    one_of,
    switch,
    tell_brokers,
)
from rucola.client.admin import ORDER_TOPIC_CONFIG, AdminClient
from rucola.common.topic_config import TopicConfig
from rucola.errors import ConfigError
from rucola.protocol.codes import RequestCode


@app.command("topicList")
def topic_list(
    namesrv: Namesrv,
    cluster_model: Annotated[bool, typer.Option("-c", "--clusterModel", help="Show cluster and groups.")] = False,
) -> None:
    """List all topics."""

    async def work(admin: AdminClient) -> None:
        names = sorted(await admin.topic_list())
        if not cluster_model:
            output.table(["Topic"], [[name] for name in names])
            return
        rows = []
        for name in names:
            for data in await admin.brokers_of(name):
                groups = await admin.api.groups_of_topic(data.broker_addrs[min(data.broker_addrs)], name)
                rows += [[data.cluster, name, group] for group in groups or [""]]
        output.table(["Cluster Name", "Topic", "Consumer Group"], rows)

    administer(namesrv, work)


@app.command("topicClusterList")
def topic_cluster_list(namesrv: Namesrv, topic: Topic) -> None:
    """Show the clusters that serve a topic."""

    async def work(admin: AdminClient) -> None:
        clusters = {data.cluster for data in await admin.brokers_of(topic)}
        output.table(["Cluster"], [[name] for name in sorted(clusters)])

    administer(namesrv, work)


@app.command("topicRoute")
def topic_route(
    namesrv: Namesrv,
    topic: Topic,
    as_list: Annotated[bool, typer.Option("-l", "--list", help="Print a table.")] = False,
) -> None:
    """Show the route of a topic: the name server's JSON, or a table."""

    async def work(admin: AdminClient) -> None:
        route = await admin.route(topic)
        if not as_list and not output.JSON.get():
            output.document(route.to_dict())
            return
        brokers = {data.broker_name: data for data in route.broker_datas}
        rows = []
        for queues in sorted(route.queue_datas, key=lambda data: data.broker_name):
            data = brokers.get(queues.broker_name)
            addresses = data.broker_addrs if data is not None else {}
            rows.append(
                [
                    data.cluster if data is not None else "",
                    queues.broker_name,
                    " ".join(f"{number}:{address}" for number, address in sorted(addresses.items())),
                    queues.read_queue_nums,
                    queues.write_queue_nums,
                    queues.perm,
                ]
            )
        output.table(["Cluster", "Broker", "Addresses", "Read Queues", "Write Queues", "Perm"], rows)

    administer(namesrv, work)


@app.command("topicStatus")
def topic_status(namesrv: Namesrv, topic: Topic) -> None:
    """Show minimum and maximum offsets of a topic's queues."""

    async def work(admin: AdminClient) -> None:
        offsets = await admin.topic_offsets(topic)
        rows = [
            [
                queue.broker_name,
                queue.queue_id,
                offset.min_offset,
                offset.max_offset,
                output.time_text(offset.last_update_timestamp),
            ]
            for queue, offset in sorted(offsets.items())
        ]
        output.table(["Broker Name", "QID", "Min Offset", "Max Offset", "Last Updated"], rows)

    administer(namesrv, work)


@app.command("updateTopic")
def update_topic(
    namesrv: Namesrv,
    topic: Topic,
    broker: Broker = None,
    cluster: Cluster = None,
    read_queues: Annotated[int, typer.Option("-r", "--readQueueNums", min=0)] = 8,
    write_queues: Annotated[int, typer.Option("-w", "--writeQueueNums", min=0)] = 8,
    perm: Annotated[int, typer.Option("-p", "--perm", help="2 write, 4 read, 6 both.", min=0, max=15)] = 6,
    order: Annotated[Switch, typer.Option("-o", "--order", help="An ordered topic: true or false.")] = None,
    unit: Annotated[Switch, typer.Option("-u", "--unit", help="A unit topic: true or false.")] = None,
    has_unit_sub: Annotated[Switch, typer.Option("-s", "--hasUnitSub", help="true or false.")] = None,
    attributes: Annotated[str, typer.Option("-a", "--attributes", help="+key=value,-key")] = "",
) -> None:
    """Create or change a topic on a broker or on a cluster."""
    one_of(broker, cluster)
    ordered = switch("-o", order, False)
    flags = switch("-u", unit, False) | switch("-s", has_unit_sub, False) << 1
    config = TopicConfig(topic, read_queues, write_queues, perm, topic_sys_flag=flags, order=ordered)

    async def work(admin: AdminClient) -> None:
        for address in await admin.masters(broker, cluster):
            await admin.api.change_topic(address, config, attributes)
            output.say(f"create topic to {address} success.", topic=topic, broker=address)
        if ordered:
            info = await admin.cluster_info()
            names = sorted(info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster])
            if broker is not None:
                names = [name for name in names if broker in info.broker_addr_table[name].broker_addrs.values()]
            value = ";".join(f"{name}:{write_queues}" for name in names)
            await admin.on_name_servers(
                lambda address: admin.api.put_kv_config(address, ORDER_TOPIC_CONFIG, topic, value)
            )

    administer(namesrv, work)


@app.command("updateTopicList")
def update_topic_list(
    namesrv: Namesrv,
    path: Annotated[
        str, typer.Option("-f", "--filename", help="File with a JSON list of TopicConfig.", show_default=False)
    ],
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Create or change many topics."""
    one_of(broker, cluster)
    configs = json_list(path, "TopicConfig", TopicConfig.from_dict)

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.api.change_topics(address, configs),
        lambda address: f"submit batch of topic config to {address} success, please check the result later.",
        topics=len(configs),
    )


@app.command("allocateMQ")
def allocate_mq(
    namesrv: Namesrv,
    topic: Topic,
    ips: Annotated[str, typer.Option("-i", "--ipList", help="Clients, separated by commas.", show_default=False)],
) -> None:
    """Show how the given clients would share the queues of a topic."""
    clients = named(ips)
    if not clients:
        raise ConfigError("-i", ips, "clients, separated by commas")

    async def work(admin: AdminClient) -> None:
        queues = [queue for queue, _ in await admin.readable_queues(topic)]
        share, more = divmod(len(queues), len(clients))
        result, start = {}, 0
        for number, client in enumerate(clients):
            end = start + share + (number < more)
            result[client] = [
                {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
                for queue in queues[start:end]
            ]
            start = end
        output.say(orjson.dumps({"result": result}).decode(), result=result)

    administer(namesrv, work)


@app.command("updateTopicPerm")
def update_topic_perm(
    namesrv: Namesrv,
    topic: Topic,
    perm: Annotated[int, typer.Option("-p", "--perm", help="2 write, 4 read, 6 both.", show_default=False)],
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Change the permission of a topic."""
    one_of(broker, cluster)
    if perm not in (2, 4, 6):
        raise ConfigError("-p", str(perm), "2, 4 or 6")

    async def work(admin: AdminClient) -> None:
        for address in await admin.masters(broker, cluster):
            before = await admin.change_perm(address, topic, perm)
            output.say(
                f"update topic perm from {before.perm} to {perm} in {address} success.",
                topic=topic,
                broker=address,
                before=before.perm,
                after=perm,
            )

    administer(namesrv, work)


@app.command("deleteTopic")
def delete_topic(
    namesrv: Namesrv,
    topic: Topic,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="Cluster.", show_default=False)],
) -> None:
    """Delete a topic from brokers and name servers."""

    async def work(admin: AdminClient) -> None:
        await admin.delete_topic(topic, cluster)
        output.say(f"delete topic [{topic}] from cluster [{cluster}] success.", topic=topic, cluster=cluster)

    administer(namesrv, work)


@app.command("updateOrderConf")
def update_order_conf(
    namesrv: Namesrv,
    topic: Topic,
    method: Annotated[str, typer.Option("-m", "--method", help="put, get or delete.", show_default=False)],
    order_conf: Annotated[str | None, typer.Option("-v", "--orderConf", help="broker:queues;broker:queues")] = None,
) -> None:
    """Set, show or delete the order configuration of a topic."""
    if method not in ("put", "get", "delete"):
        raise ConfigError("-m", method, "put, get or delete")
    if method == "put" and not order_conf:
        raise ConfigError("-v", "", "broker:queues, several separated by ;")

    async def work(admin: AdminClient) -> None:
        if method == "get":
            value = await admin.ask_name_server(lambda address: admin.api.kv_config(address, ORDER_TOPIC_CONFIG, topic))
            output.say(f"get orderConf success. topic=[{topic}], orderConf=[{value or ''}]", topic=topic, value=value)
        elif method == "put":
            await admin.on_name_servers(
                lambda address: admin.api.put_kv_config(address, ORDER_TOPIC_CONFIG, topic, order_conf or "")
            )
            output.say(f"update orderConf success. topic=[{topic}], orderConf=[{order_conf}]", topic=topic)
        else:
            await admin.on_name_servers(lambda address: admin.api.delete_kv_config(address, ORDER_TOPIC_CONFIG, topic))
            output.say(f"delete orderConf success. topic=[{topic}]", topic=topic)

    administer(namesrv, work)


@app.command("cleanUnusedTopic")
def clean_unused_topic(namesrv: Namesrv, broker: Broker = None, cluster: Cluster = None) -> None:
    """Remove the consume queues of topics that the brokers no longer have."""

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.api.clean(address, RequestCode.CLEAN_UNUSED_TOPIC),
        lambda address: f"clean unused topics of {address} success.",
    )
