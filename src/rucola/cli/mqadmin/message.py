"""Commands for messages and queues."""

from __future__ import annotations

from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Topic
from rucola.cli.mqadmin.target import command
from rucola.client.admin import AdminClient
from rucola.common.hosts import host_text
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError, ConfigError
from rucola.formats.inner_batch import decode_single_messages
from rucola.formats.message import decode_message
from rucola.formats.message_id import offset_message_id, parse_offset_message_id
from rucola.protocol.headers.admin import QueryConsumeQueueRequestHeader
from rucola.protocol.headers.pull import PullMessageRequestHeader

_PULL_SUBSCRIPTION = 4
_TIMEOUT_MS = 10_000


@command("queryMsgById")
async def query_msg_by_id(
    admin: AdminClient,
    topic: Topic,
    message_id: Annotated[str, typer.Option("-i", "--msgId", help="Offset id of the message.", show_default=False)],
) -> None:
    """Show a message by its offset message id, which holds its location."""
    try:
        place = parse_offset_message_id(message_id)
    except ValueError as error:
        raise ConfigError("-i", message_id, f"an offset message id ({error})") from None

    record = await admin.api.view_message(host_text(place.store_host), place.physical_offset, _TIMEOUT_MS)
    message = decode_message(record)
    if message.topic != topic:
        raise ClientError(f"the message belongs to topic {message.topic}")
    _show(message)


@command("queryMsgByKey")
async def query_msg_by_key(
    admin: AdminClient,
    topic: Topic,
    key: Annotated[str, typer.Option("-k", "--msgKey", help="Key of the message.", show_default=False)],
    begin: Annotated[int, typer.Option("-b", "--beginTimestamp", help="Stored at or after, in ms.", min=0)] = 0,
    end: Annotated[int, typer.Option("-e", "--endTimestamp", help="Stored at or before, in ms.")] = (1 << 63) - 1,
    most: Annotated[int, typer.Option("-c", "--maxNum", help="Maximum number of messages.", min=1)] = 64,
) -> None:
    """List messages with a key."""
    messages = await admin.messages_by_key(topic, key, False, most, begin, end)
    if not messages:
        raise ClientError(f"no message of topic {topic} has the key {key}")
    rows = [[_unique_id(message), message.queue_id, message.queue_offset] for message in messages]
    output.table(["Message ID", "QID", "Offset"], rows)


@command("queryMsgByUniqueKey")
async def query_msg_by_unique_key(
    admin: AdminClient,
    topic: Topic,
    message_id: Annotated[str, typer.Option("-i", "--msgId", help="Unique id of the message.", show_default=False)],
    show_all: Annotated[
        bool, typer.Option("-a", "--showAll", help="Show all messages with the id, not only the first.")
    ] = False,
) -> None:
    """Show a message by its unique id, which its producer created."""
    messages = await admin.messages_by_key(topic, message_id, True)
    if not messages:
        raise ClientError(f"no message of topic {topic} has the id {message_id}")
    for message in messages if show_all else messages[:1]:
        _show(message)


@command("queryMsgByOffset")
async def query_msg_by_offset(
    admin: AdminClient,
    topic: Topic,
    broker_name: Annotated[str, typer.Option("-b", "--brokerName", help="Broker of the queue.", show_default=False)],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", help="Queue.", min=0, show_default=False)],
    queue_offset: Annotated[int, typer.Option("-o", "--offset", help="Queue offset.", min=0, show_default=False)],
) -> None:
    """Show a message by its queue offset."""
    address = await admin.broker_address(broker_name)
    header = PullMessageRequestHeader(
        "TOOLS_CONSUMER", topic, queue_id, queue_offset, 1, _PULL_SUBSCRIPTION, 0, 0, 0, "*"
    )
    answer = await admin.api.pull_message(address, header, _TIMEOUT_MS)
    messages = decode_single_messages(answer.body, queue_offset) if answer.body else []
    if not messages or messages[0].queue_offset != queue_offset:
        queue = MessageQueue(topic, broker_name, queue_id)
        low, high = await admin.api.min_offset(address, queue), await admin.api.max_offset(address, queue)
        raise ClientError(f"no message at offset {queue_offset}; the queue has {low} to {high}")
    _show(messages[0])


@command("queryCq")
async def query_cq(
    admin: AdminClient,
    topic: Topic,
    queue_id: Annotated[int, typer.Option("-q", "--queue", help="Queue.", min=0, show_default=False)],
    index: Annotated[int, typer.Option("-i", "--index", help="First queue offset.", min=0, show_default=False)],
    broker: Annotated[str, typer.Option("-b", "--broker", help="Broker, host:port.", show_default=False)],
    count: Annotated[int, typer.Option("-c", "--count", help="Number of units.", min=1)] = 10,
    group: Annotated[str | None, typer.Option("-g", "--consumer", help="Include this group's subscription.")] = None,
) -> None:
    """Show units of a consume queue."""
    header = QueryConsumeQueueRequestHeader(topic, queue_id, index, count, group)
    body = await admin.api.consume_queue(broker, header)
    facts: dict[str, object] = {"minQueueIndex": body.min_queue_index, "maxQueueIndex": body.max_queue_index}
    if body.subscription_data is not None:
        facts["subscription"] = body.subscription_data.sub_string
    output.facts(facts)
    first = max(index, body.min_queue_index)
    rows = [
        [first + number, unit.physic_offset, unit.physic_size, unit.tags_code]
        for number, unit in enumerate(body.queue_data)
    ]
    output.table(["Index", "PhysicOffset", "PhysicSize", "TagsCode"], rows)


def _unique_id(message: MessageExt) -> str:
    return message.properties.get("UNIQ_KEY") or offset_message_id(message.store_host, message.physical_offset)


def _show(message: MessageExt) -> None:
    output.facts(
        {
            "OffsetID": offset_message_id(message.store_host, message.physical_offset),
            "Topic": message.topic,
            "Tags": message.properties.get("TAGS", ""),
            "Keys": message.properties.get("KEYS", ""),
            "Queue ID": message.queue_id,
            "Queue Offset": message.queue_offset,
            "CommitLog Offset": message.physical_offset,
            "Reconsume Times": message.reconsume_times,
            "Born Timestamp": output.time_text(message.born_timestamp_ms),
            "Store Timestamp": output.time_text(message.store_timestamp_ms),
            "Born Host": host_text(message.born_host),
            "Store Host": host_text(message.store_host),
            "System Flag": message.sys_flag,
            "Properties": ", ".join(f"{name}={value}" for name, value in message.properties.items()),
            "Message Body": message.body.decode("utf-8", "backslashreplace"),
        }
    )
