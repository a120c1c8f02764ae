"""Commands that send messages: ``sendMessage``, ``checkMsgSendRT``, ``sendMsgStatus``, ``clusterRT``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Namesrv, Switch, Topic, app, client_config, settings, switch
from rucola.client.admin import AdminClient
from rucola.client.config import ProducerConfig
from rucola.client.producer import Producer
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError, ConfigError, RucolaError
from rucola.protocol.command import FRAME_BYTES_MAX
from rucola.runtime.clock import SystemClock

_GROUP = "TOOLS_PRODUCER"

Amount = Annotated[int, typer.Option("-a", "--amount", help="Number of messages.", min=1)]
Size = Annotated[int, typer.Option("-s", "--size", help="Size of a body in bytes.", min=1, max=FRAME_BYTES_MAX)]


@app.command("sendMessage")
def send_message(
    namesrv: Namesrv,
    topic: Topic,
    body: Annotated[str, typer.Option("-p", "--body", help="Text of the message.", show_default=False)],
    keys: Annotated[str | None, typer.Option("-k", "--key", help="Keys, separated by spaces.")] = None,
    tags: Annotated[str | None, typer.Option("-c", "--tags", help="Tag.")] = None,
    broker_name: Annotated[str | None, typer.Option("-b", "--broker", help="Broker to send to.")] = None,
    queue_id: Annotated[int | None, typer.Option("-i", "--qid", help="Queue of the broker; needs -b.", min=0)] = None,
    trace: Annotated[Switch, typer.Option("-m", "--msgTraceEnable", help="true or false.")] = None,
) -> None:
    """Send a message."""
    if queue_id is not None and broker_name is None:
        raise ConfigError("-b", "", "the broker's name, because -i is given")
    queue = MessageQueue(topic, broker_name, queue_id) if broker_name is not None and queue_id is not None else None

    async def work(producer: Producer) -> None:
        result = await producer.send(Message(topic, body.encode(), tags, keys), queue)
        sent = result.message_queue
        columns = ["#Broker Name", "#QID", "#Send Result", "#MsgId"]
        output.table(columns, [[sent.broker_name, sent.queue_id, result.status.value, result.msg_id]])

    _produce(namesrv, work, switch("-m", trace, False))


@app.command("checkMsgSendRT")
def check_msg_send_rt(namesrv: Namesrv, topic: Topic, amount: Amount = 100, size: Size = 128) -> None:
    """Measure the duration of sends to the queues of a topic, in ms."""

    async def work(producer: Producer) -> None:
        queues = await producer.message_queues(topic)
        chosen = [queues[number % len(queues)] for number in range(amount)]
        outcomes = [await _timed(producer, Message(topic, b"a" * size), queue) for queue in chosen]
        rows = [
            [queue.broker_name, queue.queue_id, sent, round(took_ms)]
            for queue, (sent, took_ms) in zip(chosen, outcomes, strict=True)
        ]
        output.table(["#Broker Name", "#QID", "#Send Result", "#RT"], rows)
        average = _average([took_ms for _, took_ms in outcomes])
        output.say(f"Avg RT: {average:.2f}", averageRt=average)

    _produce(namesrv, work)


@app.command("sendMsgStatus")
def send_msg_status(
    namesrv: Namesrv,
    broker_name: Annotated[
        str, typer.Option("-b", "--brokerName", help="Broker name; also the name of the topic to send to.")
    ],
    size: Annotated[
        int, typer.Option("-s", "--messageSize", help="Size of a body in bytes.", min=1, max=FRAME_BYTES_MAX)
    ] = 128,
    count: Annotated[int, typer.Option("-c", "--count", help="Number of messages.", min=1)] = 50,
) -> None:
    """Send to the topic named after a broker, and show the result of each send."""
    body = b"hello jodie" * math.ceil(size / 11)

    async def work(producer: Producer) -> None:
        clock = SystemClock()
        await producer.send(Message(broker_name, b"hello jodie" * 2))
        for _ in range(count):
            began = clock.monotonic()
            result = await producer.send(Message(broker_name, body))
            took_ms, queue = round((clock.monotonic() - began) * 1000), result.message_queue
            output.say(
                f"rt={took_ms}ms, SendResult=SendResult [sendStatus={result.status.value}, msgId={result.msg_id}, "
                f"offsetMsgId={result.offset_msg_id}, messageQueue=MessageQueue [topic={queue.topic}, "
                f"brokerName={queue.broker_name}, queueId={queue.queue_id}], queueOffset={result.queue_offset}]",
                rt=took_ms,
                sendStatus=result.status.value,
                msgId=result.msg_id,
                offsetMsgId=result.offset_msg_id,
                queueOffset=result.queue_offset,
            )

    _produce(namesrv, work)


@app.command("clusterRT")
def cluster_rt(
    namesrv: Namesrv,
    amount: Amount = 100,
    size: Size = 128,
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="Cluster. [default: all]")] = None,
    as_log: Annotated[Switch, typer.Option("-p", "--print log", help="One line per broker: true or false.")] = None,
    room: Annotated[str, typer.Option("-m", "--machine room", help="Machine room to print with -p.")] = "noname",
    interval_s: Annotated[int, typer.Option("-i", "--interval", help="Seconds between rounds.", min=0)] = 10,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Number of rounds. [default: until stopped]")] = None,
) -> None:
    """Repeatedly measure the average duration of sends to each broker, in ms."""
    logged = switch("-p", as_log, False)

    async def measure(producer: Producer, name: str, broker_name: str) -> None:
        outcomes = [await _timed(producer, Message(broker_name, b"a" * size)) for _ in range(amount)]
        average = _average([took_ms for _, took_ms in outcomes])
        good = sum(sent for sent, _ in outcomes)
        if logged:
            now = output.time_text(SystemClock().wall_ms()).partition(",")[0]
            output.say(f"{now}|{room}|{name}|{broker_name}|{average:.0f}", cluster=name, broker=broker_name, rt=average)
        else:
            columns = ["#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount"]
            output.table(columns, [[name, broker_name, average, good, amount - good]])

    async def work(producer: Producer) -> None:
        async with AdminClient(namesrv, config=client_config()) as admin:
            info = await admin.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            raise ClientError(f"cluster {cluster} does not exist")
        done = 0
        while True:
            for name in sorted(info.cluster_addr_table) if cluster is None else [cluster]:
                for broker_name in sorted(info.cluster_addr_table[name]):
                    await measure(producer, name, broker_name)
            done += 1
            if done == rounds:
                return
            await asyncio.sleep(interval_s)

    _produce(namesrv, work)


def _produce(namesrv: str, work: Callable[[Producer], Awaitable[None]], trace: bool = False) -> None:
    async def session() -> None:
        config = ProducerConfig(**settings(client_config()) | {"enable_trace": trace})
        async with Producer(_GROUP, namesrv, config) as producer:
            await work(producer)

    asyncio.run(session())


async def _timed(producer: Producer, message: Message, queue: MessageQueue | None = None) -> tuple[bool, float]:
    """Whether a send succeeded, and its duration in ms."""
    clock = SystemClock()
    began = clock.monotonic()
    try:
        await producer.send(message, queue)
        sent = True
    except RucolaError:
        sent = False
    return sent, (clock.monotonic() - began) * 1000


def _average(times_ms: list[float]) -> float:
    """The average without the first send, which opens connections."""
    later = times_ms[1:]
    return sum(later) / len(later) if later else 0.0
