"""Commands for topics."""

from __future__ import annotations

from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Switch, Topic, json_list, named, switch
from rucola.cli.mqadmin.target import AnyTarget, Target, command
from rucola.client.admin import ORDER_TOPIC_CONFIG, AdminClient
from rucola.common.json_library import orjson
from rucola.common.topic_config import TopicConfig
from rucola.errors import ConfigError
from rucola.protocol.codes import RequestCode


@command("topicList")
async def topic_list(
    admin: AdminClient,
    cluster_model: Annotated[bool, typer.Option("-c", "--clusterModel", help="Show cluster and groups.")] = False,
) -> None:
    """List all topics."""
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


@command("topicClusterList")
async def topic_cluster_list(admin: AdminClient, topic: Topic) -> None:
    """Show the clusters that serve a topic."""
    clusters = {data.cluster for data in await admin.brokers_of(topic)}
    output.table(["Cluster"], [[name] for name in sorted(clusters)])


@command("topicRoute")
async def topic_route(
    admin: AdminClient,
    topic: Topic,
    as_list: Annotated[bool, typer.Option("-l", "--list", help="Print a table.")] = False,
) -> None:
    """Show the route of a topic: the name server's JSON, or a table."""
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


@command("topicStatus")
async def topic_status(admin: AdminClient, topic: Topic) -> None:
    """Show minimum and maximum offsets of a topic's queues."""
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


@command("updateTopic")
async def update_topic(
    target: Target,
    topic: Topic,
    read_queues: Annotated[int, typer.Option("-r", "--readQueueNums", min=0)] = 8,
    write_queues: Annotated[int, typer.Option("-w", "--writeQueueNums", min=0)] = 8,
    perm: Annotated[int, typer.Option("-p", "--perm", help="2 write, 4 read, 6 both.", min=0, max=15)] = 6,
    order: Annotated[Switch, typer.Option("-o", "--order", help="An ordered topic: true or false.")] = None,
    unit: Annotated[Switch, typer.Option("-u", "--unit", help="A unit topic: true or false.")] = None,
    has_unit_sub: Annotated[Switch, typer.Option("-s", "--hasUnitSub", help="true or false.")] = None,
    attributes: Annotated[str, typer.Option("-a", "--attributes", help="+key=value,-key")] = "",
) -> None:
    """Create or change a topic on a broker or on a cluster."""
    ordered = switch("-o", order, False)
    flags = switch("-u", unit, False) | switch("-s", has_unit_sub, False) << 1
    config = TopicConfig(topic, read_queues, write_queues, perm, topic_sys_flag=flags, order=ordered)

    await target.change(
        lambda address: target.admin.api.change_topic(address, config, attributes),
        lambda address: f"create topic to {address} success.",
        topic=topic,
    )
    if ordered:
        info = await target.admin.cluster_info()
        known = info.broker_addr_table
        names = sorted(known if target.cluster is None else info.cluster_addr_table[target.cluster])
        if target.broker is not None:
            names = [name for name in names if target.broker in known[name].broker_addrs.values()]
        value = ";".join(f"{name}:{write_queues}" for name in names)
        await target.admin.on_name_servers(
            lambda address: target.admin.api.put_kv_config(address, ORDER_TOPIC_CONFIG, topic, value)
        )


@command("updateTopicList")
async def update_topic_list(
    target: Target,
    path: Annotated[
        str, typer.Option("-f", "--filename", help="File with a JSON list of TopicConfig.", show_default=False)
    ],
) -> None:
    """Create or change many topics."""
    configs = json_list(path, "TopicConfig", TopicConfig.from_dict)

    await target.change(
        lambda address: target.admin.api.change_topics(address, configs),
        lambda address: f"submit batch of topic config to {address} success, please check the result later.",
        topics=len(configs),
    )


@command("allocateMQ")
async def allocate_mq(
    admin: AdminClient,
    topic: Topic,
    ips: Annotated[str, typer.Option("-i", "--ipList", help="Clients, separated by commas.", show_default=False)],
) -> None:
    """Show how the given clients would share the queues of a topic."""
    clients = named(ips)
    if not clients:
        raise ConfigError("-i", ips, "clients, separated by commas")

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


@command("updateTopicPerm")
async def update_topic_perm(
    target: Target,
    topic: Topic,
    perm: Annotated[int, typer.Option("-p", "--perm", help="2 write, 4 read, 6 both.", show_default=False)],
) -> None:
    """Change the permission of a topic."""
    if perm not in (2, 4, 6):
        raise ConfigError("-p", str(perm), "2, 4 or 6")

    for address in await target.masters():
        before = await target.admin.change_perm(address, topic, perm)
        output.say(
            f"update topic perm from {before.perm} to {perm} in {address} success.",
            topic=topic,
            broker=address,
            before=before.perm,
            after=perm,
        )


@command("deleteTopic")
async def delete_topic(
    admin: AdminClient,
    topic: Topic,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="Cluster.", show_default=False)],
) -> None:
    """Delete a topic from brokers and name servers."""
    await admin.delete_topic(topic, cluster)
    output.say(f"delete topic [{topic}] from cluster [{cluster}] success.", topic=topic, cluster=cluster)


@command("updateOrderConf")
async def update_order_conf(
    admin: AdminClient,
    topic: Topic,
    method: Annotated[str, typer.Option("-m", "--method", help="put, get or delete.", show_default=False)],
    order_conf: Annotated[str | None, typer.Option("-v", "--orderConf", help="broker:queues;broker:queues")] = None,
) -> None:
    """Set, show or delete the order configuration of a topic."""
    if method not in ("put", "get", "delete"):
        raise ConfigError("-m", method, "put, get or delete")
    if method == "put" and not order_conf:
        raise ConfigError("-v", "", "broker:queues, several separated by ;")

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


@command("cleanUnusedTopic")
async def clean_unused_topic(target: AnyTarget) -> None:
    """Remove the consume queues of topics that the brokers no longer have."""
    await target.change(
        lambda address: target.admin.api.clean(address, RequestCode.CLEAN_UNUSED_TOPIC),
        lambda address: f"clean unused topics of {address} success.",
    )
