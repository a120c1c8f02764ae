"""Commands for consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Group, Switch, json_list, switch
from rucola.cli.mqadmin.target import Target, command
from rucola.client.admin import AdminClient
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.errors import ClientError, ConfigError
from rucola.protocol.bodies.pop import SetMessageRequestModeRequestBody


@command("updateSubGroup")
async def update_sub_group(
    target: Target,
    group: Group,
    consume_enable: Annotated[Switch, typer.Option("-s", "--consumeEnable", help="true or false.")] = None,
    from_min: Annotated[Switch, typer.Option("-m", "--consumeFromMinEnable", help="true or false.")] = None,
    broadcast: Annotated[Switch, typer.Option("-d", "--consumeBroadcastEnable", help="true or false.")] = None,
    orderly: Annotated[Switch, typer.Option("-o", "--consumeMessageOrderly", help="true or false.")] = None,
    retry_queues: Annotated[int, typer.Option("-q", "--retryQueueNums", min=0)] = 1,
    retry_max: Annotated[int, typer.Option("-r", "--retryMaxTimes", min=-1)] = 16,
    broker_id: Annotated[int, typer.Option("-i", "--brokerId", min=0)] = 0,
    slow_broker: Annotated[int, typer.Option("-w", "--whichBrokerWhenConsumeSlowly", min=0)] = 1,
    notify: Annotated[Switch, typer.Option("-a", "--notifyConsumerIdsChanged", help="true or false.")] = None,
    attributes: Annotated[str, typer.Option("--attributes", help="+key=value,-key")] = "",
) -> None:
    """Create or change a consumer group on a broker or on a cluster.

    As in RocketMQ's tool, -m and -d are false unless given.
    """
    config = SubscriptionGroupConfig(
        group,
        consume_enable=switch("-s", consume_enable, True),
        consume_from_min_enable=switch("-m", from_min, False),
        consume_broadcast_enable=switch("-d", broadcast, False),
        consume_message_orderly=switch("-o", orderly, False),
        retry_queue_nums=retry_queues,
        retry_max_times=retry_max,
        broker_id=broker_id,
        which_broker_when_consume_slowly=slow_broker,
        notify_consumer_ids_changed_enable=switch("-a", notify, True),
        attributes=dict(change.partition("=")[::2] for change in attributes.split(",") if change),
    )

    await target.change(
        lambda address: target.admin.api.change_group(address, config),
        lambda address: f"create subscription group to {address} success.",
        group=group,
    )


@command("updateSubGroupList")
async def update_sub_group_list(
    target: Target,
    path: Annotated[
        str,
        typer.Option("-f", "--filename", help="File with a JSON list of SubscriptionGroupConfig.", show_default=False),
    ],
) -> None:
    """Create or change many consumer groups."""
    configs = json_list(path, "SubscriptionGroupConfig", SubscriptionGroupConfig.from_dict)

    await target.change(
        lambda address: target.admin.api.change_groups(address, configs),
        lambda address: (
            f"submit batch of subscription group config to {address} success, please check the result later."
        ),
        groups=len(configs),
    )


@command("setConsumeMode")
async def set_consume_mode(
    target: Target,
    topic: Annotated[str, typer.Option("-t", "--topicName", help="Topic.", show_default=False)],
    group: Group,
    mode: Annotated[str, typer.Option("-m", "--mode", help="PULL or POP.", show_default=False)],
    share: Annotated[
        int, typer.Option("-q", "--popShareQueueNum", help="Number of queues that consumers share.", min=0)
    ] = 0,
) -> None:
    """Set whether a group pulls or pops a topic."""
    if mode not in ("PULL", "POP"):
        raise ConfigError("-m", mode, "PULL or POP")

    await target.change(
        lambda address: target.admin.api.set_request_mode(
            address, SetMessageRequestModeRequestBody(topic, group, mode, share)
        ),
        lambda address: f"set consume mode to {address} success.",
        mode=mode,
    )


@command("deleteSubGroup")
async def delete_sub_group(
    target: Target,
    group: Group,
    remove_offset: Annotated[
        Switch,
        typer.Option(
            "-r", "--removeOffset", help="Also delete the group's offsets, retry topic and dead-letter topic."
        ),
    ] = None,
) -> None:
    """Delete a consumer group from a broker or from a cluster."""
    clean = switch("-r", remove_offset, False)

    await target.change(
        lambda address: target.admin.delete_group(address, group, clean),
        lambda address: f"delete subscription group [{group}] from broker [{address}] success.",
        group=group,
    )


@command("getConsumerConfig")
async def get_consumer_config(admin: AdminClient, group: Group) -> None:
    """Show the configuration of a consumer group on each broker."""
    found = False
    for address in await admin.masters(None, None):
        config = (await admin.api.all_groups(address)).get(group)
        if config is not None:
            found = True
            output.facts({"broker": address, **config.to_dict()})
    if not found:
        raise ClientError(f"no broker knows the group {group}")
