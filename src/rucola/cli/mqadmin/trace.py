"""``queryMsgTraceById``: the history of a message, from the trace records of its producer and consumers."""

from __future__ import annotations

from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.target import command
from rucola.client.admin import AdminClient
from rucola.common.hosts import host_text
from rucola.common.key_builder import TRACE_TOPIC
from rucola.protocol.trace import TraceRecord, TraceType, decode_trace

_REST = ["#ClientHost", "#SendTime", "#CostTimes", "#Status"]


@command("queryMsgTraceById")
async def query_msg_trace_by_id(
    admin: AdminClient,
    message_id: Annotated[str, typer.Option("-i", "--msgId", help="Unique id of the message.", show_default=False)],
    topic: Annotated[str, typer.Option("-t", "--traceTopic", help="Topic of the trace messages.")] = TRACE_TOPIC,
    begin: Annotated[int, typer.Option("-b", "--beginTimestamp", help="Stored at or after, in ms.", min=0)] = 0,
    end: Annotated[int, typer.Option("-e", "--endTimestamp", help="Stored at or before, in ms.")] = (1 << 63) - 1,
    most: Annotated[int, typer.Option("-c", "--maxNum", help="Maximum number of trace messages.", min=1)] = 64,
) -> None:
    """Show who sent and consumed a message, when, and with what result."""
    sent: list[list[object]] = []
    consumed: dict[str, list[list[object]]] = {}
    for message in await admin.messages_by_key(topic, message_id, False, most, begin, end):
        host = host_text(message.born_host).rpartition(":")[0]
        for record in decode_trace(message.body.decode("utf-8", "replace")):
            if record.msg_id != message_id:
                continue
            if record.trace_type is TraceType.PUB:
                sent.append(_row("Pub", host, record))
            elif record.trace_type is TraceType.SUB_AFTER:
                consumed.setdefault(record.group, []).append(_row("Sub", host, record))
    if sent:
        output.table(["#Type", "#ProducerGroup", *_REST], sent)
    for rows in consumed.values():
        output.table(["#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", *_REST[2:]], rows)


def _row(kind: str, host: str, record: TraceRecord) -> list[object]:
    moment = output.time_text(record.timestamp_ms).partition(",")[0]
    return [kind, record.group, host, moment, f"{record.cost_ms}ms", "success" if record.success else "failed"]
