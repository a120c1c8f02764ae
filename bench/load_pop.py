"""Load program that sends, pops and acknowledges messages of one queue, in lock step.

Arguments: broker address, topic. Each line on standard input, ``MESSAGES ACKNOWLEDGED``, starts one round, which prints
one JSON line. If ``ACKNOWLEDGED`` is 0, the popped messages stay invisible for ``LEFT_MS``. A latency is that of a pop.
"""

from __future__ import annotations

import sys
import time
from array import array

from bench.load_client import quantiles, say
from bench.load_lockstep import Work, prepared
from bench.lockstep import BROKER_NAME, Lockstep
from rucola.client.pop_receipt import PopReceipt, give_receipts
from rucola.formats.message import decode_messages
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pop import AckMessageRequestHeader, PopMessageRequestHeader, PopMessageResponseHeader

GROUP = "bench_pop"
WINDOW = 16
LEFT_MS, INVISIBLE_MS, POLL_MS = 24 * 3600 * 1000, 60_000, 5_000
"""How long messages without an acknowledgement stay invisible, how long the others do, and how long a pop waits."""


class Popping:
    """A producer and a consumer of one queue, over two connections."""

    def __init__(self, broker: str, prefix: str) -> None:
        self._producer, self._consumer = Lockstep(broker), Lockstep(broker)
        self._topic = f"{prefix}0"
        ((self._frames, _),) = prepared(prefix, Work(0, WINDOW, queues=1, body=256))
        self._latencies_ns = array("q")

    def round(self, messages: int, acknowledge: bool) -> dict[str, float]:
        """Sends and pops at least this many messages; returns what the line of output says."""
        self._latencies_ns = array("q")
        self._producer.begin()
        self._consumer.begin()
        start, popped = time.perf_counter(), 0
        while popped < messages:
            self._producer.send(self._frames, WINDOW)
            taken = 0
            while taken < WINDOW:
                taken += self._pop(acknowledge)
            popped += taken
        failed = self._producer.failed + self._consumer.failed
        facts = {"messages": popped, "failed": failed, "seconds": time.perf_counter() - start}
        return facts | quantiles(self._latencies_ns)

    def _pop(self, acknowledge: bool) -> int:
        """Pops messages, and acknowledges them if wanted; returns their number.

        Raises:
            ConnectionError: the broker gave none.
        """
        wait_ms = INVISIBLE_MS if acknowledge else LEFT_MS
        header = PopMessageRequestHeader(
            GROUP, self._topic, 0, WINDOW, wait_ms, POLL_MS, time.time_ns() // 1_000_000, 0, "TAG", "*"
        )
        start_ns = time.perf_counter_ns()
        answer = self._consumer.ask(RemotingCommand(RequestCode.POP_MESSAGE, 1, ext_fields=header.to_ext_fields()))
        self._latencies_ns.append(time.perf_counter_ns() - start_ns)
        if answer.code != ResponseCode.SUCCESS:
            raise ConnectionError(f"nothing was popped: {answer.code} {answer.remark}")
        messages = decode_messages(answer.body)
        if acknowledge:
            facts = PopMessageResponseHeader.from_ext_fields(answer.ext_fields)
            for message in messages:
                message.broker_name = BROKER_NAME
            give_receipts(messages, self._topic, facts)
            acks = [self._ack(PopReceipt.of(message)) for message in messages]
            self._consumer.send(b"".join(acks), len(acks))
        return len(messages)

    def _ack(self, receipt: PopReceipt) -> bytes:
        topic = receipt.real_topic(self._topic, GROUP)
        header = AckMessageRequestHeader(GROUP, topic, receipt.queue_id, receipt.text, receipt.queue_offset)
        return RemotingCommand(RequestCode.ACK_MESSAGE, 2, ext_fields=header.to_ext_fields()).encode()


def main(broker: str, prefix: str) -> None:
    """Runs rounds until the input ends."""
    popping = Popping(broker, prefix)
    say({"ready": 1})
    for line in sys.stdin:
        messages, acknowledged = map(int, line.split())
        say(popping.round(messages, bool(acknowledged)))


if __name__ == "__main__":
    main(*sys.argv[1:])
