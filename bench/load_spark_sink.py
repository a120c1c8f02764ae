"""Load program: a Spark session that writes rows to a topic.

Arguments: name server, number of rows in a round, bytes of a body, settings of the session as ``name=value``. Each line
on standard input is one round:

    sink            ``df.write.format("rocketmq")``
    foreach         ``df.foreachPartition`` with a ``rucola.sync.Producer`` that submits row by row and flushes
    position        like ``sink``, with rows that have a source position and therefore ids

An output line also has ``cpu_seconds``: CPU time of the session and of the Python processes below it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.load_spark import tree_cpu_seconds
from rucola.common.message import Message
from rucola.spark.session import local_session
from rucola.sync import Producer

if TYPE_CHECKING:
    from pyspark.sql import Row

TOPIC = "bench-sink"
POSITION = ("'in' AS topic", "'broker-a' AS brokerName", "cast(id % 8 AS int) AS queueId", "id AS queueOffset")


class SendRows:
    """Sends rows in a loop and checks the results, as a user without the sink would do."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv

    def __call__(self, rows: Iterator[Row]) -> None:
        """Sends the rows of one partition."""
        with Producer("bench-foreach", self._namesrv) as producer:
            answers = [producer.submit(Message(TOPIC, bytes(row.body))) for row in rows]
            for answer in answers:
                answer.result()


def main(namesrv: str, rows: str, body_bytes: str, *settings: str) -> None:
    """Starts a session, runs rounds, and ends it."""
    session = local_session("bench", **dict(setting.split("=", 1) for setting in settings))
    body = f"cast(repeat('x', {int(body_bytes)}) AS binary) AS body"
    try:
        print("{}", flush=True)
        for line in sys.stdin:
            cpu, start = tree_cpu_seconds(os.getpid()), time.perf_counter()
            ids = session.range(0, int(rows), 1, 2)
            if line.strip() == "foreach":
                ids.selectExpr(body).foreachPartition(SendRows(namesrv))
            else:
                made = ids.selectExpr(body, *(POSITION if line.strip() == "position" else ()))
                made.write.format("rocketmq").options(nameServer=namesrv, topic=TOPIC).mode("append").save()
            seconds = time.perf_counter() - start
            cpu = tree_cpu_seconds(os.getpid()) - cpu
            print(json.dumps({"messages": int(rows), "failed": 0, "seconds": seconds, "cpu_seconds": cpu}), flush=True)
    finally:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
