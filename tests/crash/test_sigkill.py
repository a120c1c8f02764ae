"""SIGKILL while messages are appended: no acknowledged message is lost, and none is incomplete.

Each of four stores is killed twice (with ``--whole`` four times), and continues after each kill. The seed in the name
of the test determines the moment of a kill: after how many acknowledged messages, and how many milliseconds later.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from tests.crash.writer import body_of, config, properties_of
from tests.sizes import size

from rucola.common.message import MessageExt
from rucola.formats.message import decode_message, decode_messages
from rucola.formats.properties import decode_properties
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageStatus

ROUNDS = size(2, 4)
Acknowledged = dict[int, tuple[str, int, int, int]]
"""Topic, queue id, queue offset and physical offset of a message, by its number."""


def write_until_killed(path: Path, mode: str, index: str, seed: int, round_number: int) -> Acknowledged:
    """Runs the writer and kills it; returns the messages that the writer acknowledged. An incomplete last line is
    ignored.
    """
    random = Random(seed * 100 + round_number)
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.writer", str(path), mode, index, str(seed * 100 + round_number)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    lines = []
    try:
        for _ in range(random.randrange(1, 800)):
            lines.append(writer.stdout.readline())
        time.sleep(random.randrange(30) / 1000)
    finally:
        writer.kill()
    lines += writer.stdout.readlines()
    assert writer.wait(30) == -9, f"the writer ended by itself: {lines[-1:]}"
    writer.stdout.close()
    acknowledged: Acknowledged = {}
    for line in lines:
        if line.endswith("\n"):
            number, topic, queue_id, queue_offset, physical_offset = line.split()
            acknowledged[int(number)] = (topic, int(queue_id), int(queue_offset), int(physical_offset))
    return acknowledged


def read_queue(store: MessageStore, topic: bytes, queue_id: int) -> list[MessageExt]:
    messages: list[MessageExt] = []
    while True:
        result = store.get_message(topic, queue_id, len(messages), 32, 1 << 20)
        if result.status is not GetMessageStatus.FOUND:
            assert len(messages) == result.max_offset == store.max_queue_offset(topic, queue_id)
            return messages
        messages += [found for view in result.views for found in decode_messages(view)]


def check(store: MessageStore, acknowledged: Acknowledged, index: bool) -> None:
    seen: Acknowledged = {}
    for topic, queue_id in store.queue_names():
        for queue_offset, found in enumerate(read_queue(store, topic, queue_id)):
            number = int(found.properties["KEYS"][1:])
            assert (found.topic.encode(), found.queue_id, found.queue_offset) == (topic, queue_id, queue_offset)
            assert found.body == body_of(number)
            assert decode_properties(properties_of(number)).items() <= found.properties.items()
            assert number not in seen, "a message is there twice"
            seen[number] = (found.topic, queue_id, queue_offset, found.physical_offset)
            record = store.message_at(found.physical_offset)
            assert record is not None and len(record) == found.store_size
    assert acknowledged.items() <= seen.items(), f"lost: {sorted(acknowledged.keys() - seen.keys())[:10]}"
    if not index:
        return
    for number in sorted(acknowledged)[:: max(1, len(acknowledged) // 20)]:
        topic = acknowledged[number][0].encode()
        (view,) = store.query_by_key(topic, b"k%d" % number).views
        assert decode_message(view).physical_offset == acknowledged[number][3]


@pytest.mark.few
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize(("index", "seed"), [("index", 11), ("plain", 12)])
def test_nothing_acknowledged_is_lost(mode: str, index: str, seed: int, tmp_path: Path) -> None:
    acknowledged: Acknowledged = {}
    for round_number in range(ROUNDS):
        fresh = write_until_killed(tmp_path, mode, index, seed, round_number)
        assert fresh
        acknowledged |= fresh
        store = MessageStore(config(str(tmp_path), mode, index == "index"), Files(), SystemClock())
        store.load()
        try:
            check(store, acknowledged, index == "index")
        finally:
            if round_number % 2:  # after the other rounds, the next writer must recover the store again
                store.shutdown()
            else:
                store._close()
