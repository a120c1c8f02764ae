"""Tests client, ephemeral broker and offline reader without any feature that only Linux has; see ``forced``.

``make campaign NAME=fallbacks`` also runs most of their unit tests in this way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCENE = """
import tests.fallbacks.forced
import json, os, sys
from rucola import Message
from rucola.sync import Producer, PushConsumer
from rucola.store.inspect.summary import queue_ranges
from rucola.store.offline.offline_store import OfflineStore
from rucola.testing.rocketmq import RocketMQ

with RocketMQ() as rocketmq:
    with Producer("pg", rocketmq.namesrv) as producer:
        producer.send_many([Message("t", b"%d" % number) for number in range(100)])
    rocketmq.kill()
    rocketmq.start()
    consumed = []
    with PushConsumer("cg", rocketmq.namesrv) as consumer:
        consumer.subscribe("t")
        for message in consumer:
            consumed.append(int(message.body))
            if len(consumed) == 100:
                break
    rocketmq.stop()
    store = OfflineStore(rocketmq.store)
    stored = sum(queue.max_offset - queue.min_offset for queue in queue_ranges(store, "t"))
    store.close()
    kernel = sys.modules["rucola.formats._message_cy"].__file__
    here = [name for name in ("fcntl", "resource", "uvloop", "isal") if name in sys.modules]
    print(json.dumps([sorted(consumed), kernel.rpartition(".")[2], here, stored]))
"""


def test_client_broker_and_offline_reader_work_without_what_only_linux_has() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCENE],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.stdout.strip() == f'[{list(range(100))}, "py", [], 100]', ran.stdout + ran.stderr
