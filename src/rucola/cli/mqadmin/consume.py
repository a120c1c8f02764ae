"""Commands that read messages of queues: ``printMsg``, ``printMsgByQueue``, ``consumeMessage``."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Switch, Topic, switch, time_ms
from rucola.cli.mqadmin.target import command
from rucola.client.admin import AdminClient
from rucola.common.hosts import host_text
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError
from rucola.formats.inner_batch import decode_single_messages
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.runtime.clock import SystemClock

_PULL_SUBSCRIPTION = 4
_PULL_MESSAGES = 32
_TIMEOUT_MS = 10_000
_TOOLS_GROUP = "TOOLS_CONSUMER"

Charset = Annotated[str, typer.Option("-c", "--charsetName", help="Charset of the bodies.")]
Expression = Annotated[str, typer.Option("-s", "--subExpression", help="TagA || TagB")]
Begin = Annotated[str | None, typer.Option("-b", "--beginTimestamp", help="Milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS")]
End = Annotated[str | None, typer.Option("-e", "--endTimestamp", help="Milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS")]
PrintBody = Annotated[Switch, typer.Option("-d", "--printBody", help="true or false.")]


@command("printMsg")
async def print_msg(
    admin: AdminClient,
    topic: Topic,
    charset: Charset = "UTF-8",
    expression: Expression = "*",
    begin: Begin = None,
    end: End = None,
    print_body: PrintBody = None,
    parent: Annotated[
        str | None,
        typer.Option(
            "-l", "--lmqParentTopic", help="For a light queue, which has no route: a topic on the same brokers."
        ),
    ] = None,
) -> None:
    """Print all messages of a topic."""
    charset = _known_charset(charset)
    bodies = switch("-d", print_body, True)

    for queue, address in await admin.readable_queues(topic, parent):
        first, last = await _range(admin, address, queue, begin, end)
        output.say(f"minOffset={first}, maxOffset={last}, {_queue_text(queue)}")
        async for message in _messages(admin, address, queue, first, last, expression):
            _print_message(message, charset, bodies)
        output.say(f"{_queue_text(queue)} print msg finished. offset={last}\n{'-' * 56}")


@command("printMsgByQueue")
async def print_msg_by_queue(
    admin: AdminClient,
    topic: Topic,
    broker_name: Annotated[str, typer.Option("-a", "--brokerName", help="Broker of the queue.", show_default=False)],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", help="Queue.", min=0, show_default=False)],
    charset: Charset = "UTF-8",
    expression: Expression = "*",
    begin: Begin = None,
    end: End = None,
    print_messages: Annotated[Switch, typer.Option("-p", "--printMsg", help="true or false.")] = None,
    print_body: PrintBody = None,
    by_tag: Annotated[Switch, typer.Option("-f", "--calculate", help="Count messages by tag: true or false.")] = None,
) -> None:
    """Print the messages of a queue, or count them by tag."""
    charset = _known_charset(charset)
    shown, bodies = switch("-p", print_messages, False), switch("-d", print_body, False)
    counted = switch("-f", by_tag, False)

    queue, address = MessageQueue(topic, broker_name, queue_id), await admin.broker_address(broker_name)
    first, last = await _range(admin, address, queue, begin, end)
    tags: Counter[str] = Counter()
    async for message in _messages(admin, address, queue, first, last, expression):
        if message.tags:
            tags[message.tags] += 1
        if shown:
            _print_message(message, charset, bodies)
    if counted:
        for tag, count in tags.most_common():
            output.say(f"Tag: {tag:<30} Count: {count}", tag=tag, count=count)


@command("consumeMessage")
async def consume_message(
    admin: AdminClient,
    topic: Topic,
    broker_name: Annotated[str | None, typer.Option("-b", "--brokerName", help="Only this broker.")] = None,
    queue_id: Annotated[int | None, typer.Option("-i", "--queueId", help="Only this queue.", min=0)] = None,
    queue_offset: Annotated[
        int | None, typer.Option("-o", "--offset", help="Start at this queue offset.", min=0)
    ] = None,
    group: Annotated[str, typer.Option("-g", "--consumerGroup", help="Consumer group.")] = _TOOLS_GROUP,
    begin: Annotated[str | None, typer.Option("-s", "--beginTimestamp", help="Same as for printMsg.")] = None,
    end: Annotated[str | None, typer.Option("-e", "--endTimestamp", help="Same as for printMsg.")] = None,
    count: Annotated[int, typer.Option("-c", "--MessageNumber", help="Number of messages.", min=1)] = 128,
) -> None:
    """Read messages as a consumer group would, without changing the group's offsets."""
    if queue_id is not None and broker_name is None:
        raise ConfigError("-b", "", "the broker's name, because -i is given")
    if queue_offset is not None and queue_id is None:
        raise ConfigError("-i", "", "the queue id, because -o is given")
    now_ms = SystemClock().wall_ms()
    for option, text in (("-s", begin), ("-e", end)):
        if text is not None and time_ms(option, text) > now_ms:
            raise ConfigError(option, text, "a time before now")

    left = count
    for queue, address in await admin.readable_queues(topic):
        if broker_name not in (None, queue.broker_name) or queue_id not in (None, queue.queue_id) or left == 0:
            continue
        first, last = await _range(admin, address, queue, begin, end)
        first = max(first, queue_offset or 0)
        if last - first > left:
            output.say(f"The older {left} message of the {queue.queue_id} queue will be provided")
        async for message in _messages(admin, address, queue, first, min(last, first + left), "*", group):
            output.say("Consume ok")
            _print_message(message, "utf-8", True)
            left -= 1


async def _range(
    admin: AdminClient, address: str, queue: MessageQueue, begin: str | None, end: str | None
) -> tuple[int, int]:
    """Returns the first queue offset, and the queue offset after the last one."""
    first, last = await admin.api.min_offset(address, queue), await admin.api.max_offset(address, queue)
    if begin is not None:
        first = await admin.api.search_offset(address, queue, time_ms("-b", begin))
    if end is not None:
        last = await admin.api.search_offset(address, queue, time_ms("-e", end))
    return first, last


async def _messages(
    admin: AdminClient,
    address: str,
    queue: MessageQueue,
    first: int,
    last: int,
    expression: str,
    group: str = _TOOLS_GROUP,
) -> AsyncIterator[MessageExt]:
    wanted = None if "*" in expression else {tag.strip() for tag in expression.split("||")}
    while first < last:
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=first,
            max_msg_nums=min(_PULL_MESSAGES, last - first),
            sys_flag=_PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=expression,
            expression_type="TAG",
        )
        answer = await admin.api.pull_message(address, header, _TIMEOUT_MS)
        for message in decode_single_messages(answer.body, first) if answer.body else []:
            message.broker_name = queue.broker_name
            if message.queue_offset < last and (wanted is None or message.tags in wanted):
                yield message
        if answer.header.next_begin_offset <= first:
            return  # the messages have expired and the queue is empty
        first = answer.header.next_begin_offset


def _known_charset(name: str) -> str:
    try:
        "".encode(name)
    except LookupError:
        raise ConfigError("-c", name, "a charset, for example UTF-8 or GBK") from None
    return name


def _queue_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _print_message(message: MessageExt, charset: str, bodies: bool) -> None:
    body = message.body.decode(charset, "replace") if bodies else "NOT PRINT BODY"
    output.say(
        f"MSGID: {message.msg_id} {message_text(message)} BODY: {body}",
        msgId=message.msg_id,
        topic=message.topic,
        brokerName=message.broker_name,
        queueId=message.queue_id,
        queueOffset=message.queue_offset,
        storeTimestamp=message.store_timestamp_ms,
        properties=message.properties,
        body=body,
    )


def message_text(message: MessageExt) -> str:
    """A message in the form of RocketMQ's ``MessageExt#toString``."""
    properties = ", ".join(f"{name}={value}" for name, value in message.properties.items())
    return (
        f"MessageExt [brokerName={message.broker_name}, queueId={message.queue_id}, storeSize={message.store_size}, "
        f"queueOffset={message.queue_offset}, sysFlag={message.sys_flag}, bornTimestamp={message.born_timestamp_ms}, "
        f"bornHost=/{host_text(message.born_host)}, storeTimestamp={message.store_timestamp_ms}, "
        f"storeHost=/{host_text(message.store_host)}, msgId={message.msg_id}, "
        f"commitLogOffset={message.physical_offset}, bodyCRC={message.body_crc}, "
        f"reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={message.prepared_transaction_offset}, "
        f"toString()=Message{{topic='{message.topic}', flag={message.flag}, properties={{{properties}}}, "
        f"body={_signed(message.body)}, transactionId='{message.uniq_key or 'null'}'}}]"
    )


def _signed(body: Iterable[int]) -> str:
    """Bytes in the form in which Java prints them, as signed numbers."""
    return f"[{', '.join(str(byte - 256 if byte > 127 else byte) for byte in body)}]"
