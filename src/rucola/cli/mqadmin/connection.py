"""Commands that show which clients are connected to brokers, and their status."""

from __future__ import annotations

from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Topic
from rucola.cli.mqadmin.target import Broker, command
from rucola.client.admin import AdminClient, unless
from rucola.common.mq_version import version_name
from rucola.errors import ClientError
from rucola.protocol.bodies.connections import Connection, ConsumerConnection
from rucola.protocol.codes import ResponseCode

_COLUMNS = ["ClientId", "ClientAddr", "Language", "Version"]


def _rows(connections: list[Connection]) -> list[list[object]]:
    return [[c.client_id, c.client_addr, c.language, version_name(c.version)] for c in connections]


async def _consumers(admin: AdminClient, group: str, broker: str | None) -> list[tuple[str, ConsumerConnection]]:
    """The brokers on which a group is online, each with the group's consumers.

    Raises:
        ClientError: no consumer is online.
    """
    if broker is not None:
        addresses = [broker]
    else:
        addresses = [data.broker_addrs[min(data.broker_addrs)] for data in await admin.brokers_of_group(group)]
    found = []
    for address in addresses:
        call = admin.api.consumer_connection(address, group)
        connection = await unless(ResponseCode.CONSUMER_NOT_ONLINE, call)
        if connection is not None:
            found.append((address, connection))
    if not found:
        raise ClientError(f"no consumer of the group {group} is online")
    return found


@command("consumerConnection")
async def consumer_connection(
    admin: AdminClient,
    group: Annotated[str, typer.Option("-g", "--consumerGroup", help="Consumer group.", show_default=False)],
    broker: Broker = None,
) -> None:
    """Show the consumers of a group and their subscriptions."""
    found = await _consumers(admin, group, broker)
    clients = {client.client_id: client for _, connection in found for client in connection.connection_set}
    output.table(_COLUMNS, _rows(list(clients.values())))
    connection = found[0][1]
    subscriptions = sorted(connection.subscription_table.values(), key=lambda data: data.topic)
    output.table(["Topic", "SubExpression"], [[data.topic, data.sub_string] for data in subscriptions])
    output.facts(
        {
            "ConsumeType": connection.consume_type,
            "MessageModel": connection.message_model,
            "ConsumeFromWhere": connection.consume_from_where,
        }
    )


@command("consumerStatus")
async def consumer_status(
    admin: AdminClient,
    group: Annotated[str, typer.Option("-g", "--consumerGroup", help="Consumer group.", show_default=False)],
    client_id: Annotated[str | None, typer.Option("-i", "--clientId", help="Only this client.")] = None,
    broker: Broker = None,
    jstack: Annotated[bool, typer.Option("-s", "--jstack", help="Include the client's threads.")] = False,
) -> None:
    """Show the status that consumers report."""
    asked = set()
    for address, connection in await _consumers(admin, group, broker):
        for client in connection.connection_set:
            if client.client_id in asked or client_id not in (None, client.client_id):
                continue
            asked.add(client.client_id)
            info = await admin.api.running_info(address, group, client.client_id, jstack)
            output.say(f"{client.client_id}  {version_name(client.version)}", clientId=client.client_id)
            properties = info.get("properties")
            output.facts(dict(sorted(properties.items())) if isinstance(properties, dict) else {})
            queues = info.get("mqTable")
            if isinstance(queues, dict):
                rows = [[*dict(key).values(), state.get("commitOffset")] for key, state in sorted(queues.items())]
                output.table(["Broker Name", "QID", "Topic", "Consumer Offset"], rows)
            if jstack and info.get("jstack"):
                output.say(str(info["jstack"]), jstack=info["jstack"])
    if not asked:
        raise ClientError(f"client {client_id} is not online")


@command("producerConnection")
async def producer_connection(
    admin: AdminClient,
    group: Annotated[str, typer.Option("-g", "--producerGroup", help="Producer group.", show_default=False)],
    topic: Topic,
) -> None:
    """Show the producers of a group for a topic."""
    clients: dict[str, Connection] = {}
    for data in await admin.brokers_of(topic):
        call = admin.api.producer_connection(data.broker_addrs[min(data.broker_addrs)], group)
        connection = await unless(ResponseCode.SYSTEM_ERROR, call)
        for client in connection.connection_set if connection is not None else ():
            clients[client.client_id] = client
    if not clients:
        raise ClientError(f"no producer of the group {group} is online")
    output.table(_COLUMNS, _rows(list(clients.values())))


@command("producer")
async def producer(
    admin: AdminClient,
    broker: Annotated[str, typer.Option("-b", "--broker", help="Broker, host:port.", show_default=False)],
) -> None:
    """Show all producers of a broker."""
    table = (await admin.api.producers(broker)).data
    rows = [
        [
            group,
            p.client_id,
            p.remote_ip,
            p.language,
            version_name(p.version),
            output.time_text(p.last_update_timestamp),
        ]
        for group, listed in sorted(table.items())
        for p in listed
    ]
    output.table(["Group", "ClientId", "ClientAddr", "Language", "Version", "Last Heartbeat"], rows)
