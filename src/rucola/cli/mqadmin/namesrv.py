"""Commands for name servers, and statistics of all topics."""

from __future__ import annotations

from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.target import command
from rucola.client.admin import AdminClient, unless
from rucola.common.key_builder import is_dlq_topic, is_retry_topic, is_system_topic
from rucola.protocol.codes import ResponseCode

Namespace = Annotated[str, typer.Option("-s", "--namespace", help="Namespace.", show_default=False)]
Key = Annotated[str, typer.Option("-k", "--key", help="Key.", show_default=False)]
Value = Annotated[str, typer.Option("-v", "--value", help="Value.", show_default=False)]


@command("getNamesrvConfig")
async def get_namesrv_config(admin: AdminClient) -> None:
    """Show the options of the name servers."""
    for address in admin.namesrv_addresses:
        options = await admin.api.namesrv_config(address)
        output.facts({"name server": address, **dict(sorted(options.items()))})


@command("updateNamesrvConfig")
async def update_namesrv_config(admin: AdminClient, key: Key, value: Value) -> None:
    """Change an option of the name servers."""
    await admin.on_name_servers(lambda address: admin.api.change_namesrv_config(address, {key: value}))
    output.say(f"update name server config success! {key} : {value}", key=key, value=value)


@command("updateKvConfig")
async def update_kv_config(admin: AdminClient, namespace: Namespace, key: Key, value: Value) -> None:
    """Set a value in the name servers' configuration."""
    await admin.on_name_servers(lambda address: admin.api.put_kv_config(address, namespace, key, value))
    output.say("create or update kv config to namespace success.", namespace=namespace, key=key)


@command("deleteKvConfig")
async def delete_kv_config(admin: AdminClient, namespace: Namespace, key: Key) -> None:
    """Delete a value from the name servers' configuration."""
    await admin.on_name_servers(lambda address: admin.api.delete_kv_config(address, namespace, key))
    output.say("delete kv config from namespace success.", namespace=namespace, key=key)


@command("statsAll")
async def stats_all(
    admin: AdminClient,
    active: Annotated[bool, typer.Option("-a", "--activeTopic", help="Only topics with recent messages.")] = False,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.")] = None,
) -> None:
    """Show the message rates of all topics."""
    rows: list[list[object]] = []
    for name in sorted(await admin.topic_list()):
        if topic not in (None, name) or is_retry_topic(name) or is_dlq_topic(name) or is_system_topic(name):
            continue
        rows += [row for row in await _figures(admin, name) if not active or row[3] or row[4]]
    output.table(["Topic", "Consumer Group", "Accumulation", "InTPS", "OutTPS", "InMsg24Hour", "OutMsg24Hour"], rows)


async def _figures(admin: AdminClient, topic: str) -> list[list[object]]:
    brokers = [data.broker_addrs[min(data.broker_addrs)] for data in await admin.brokers_of(topic)]
    in_tps, in_day, groups = 0.0, 0, set()
    for address in brokers:
        puts = await unless(ResponseCode.SYSTEM_ERROR, admin.api.broker_stats(address, "TOPIC_PUT_NUMS", topic))
        if puts is not None:
            in_tps, in_day = in_tps + puts.stats_minute.tps, in_day + puts.stats_day.sum
        groups.update(await admin.api.groups_of_topic(address, topic))
    rows: list[list[object]] = []
    for group in sorted(groups - {topic}):
        out_tps, out_day, behind = 0.0, 0, 0
        for address in brokers:
            call = admin.api.broker_stats(address, "GROUP_GET_NUMS", f"{topic}@{group}")
            gets = await unless(ResponseCode.SYSTEM_ERROR, call)
            if gets is not None:
                out_tps, out_day = out_tps + gets.stats_minute.tps, out_day + gets.stats_day.sum
            behind += (await admin.api.consume_stats(address, group, topic)).total_diff()
        rows.append([topic, group, behind, in_tps, out_tps, in_day, out_day])
    return rows or [[topic, "", 0, in_tps, 0.0, in_day, 0]]
