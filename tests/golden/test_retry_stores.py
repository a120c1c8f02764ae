"""Directories of stopped and killed brokers, with messages that consumers sent back: each waiting message is delivered
once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.brokers import run
from tests.golden.broker_case import broker_of

from rucola.broker import Broker
from rucola.formats.message import decode_messages

GROUP, TOPIC = "G_store", "T_store"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
PENDING = "failed just now"


def held(broker: Broker, topic: str) -> list[tuple[str, int]]:
    """Returns the bodies in a topic's only queue, and how often each was tried."""
    store = broker.store
    views = store.get_message(topic.encode(), 0, 0, 32, 1 << 20).views
    return [(message.body.decode(), message.reconsume_times) for message in decode_messages(b"".join(views))]


@pytest.mark.parametrize("name", ["retry_clean", "retry_killed"])
def test_due_messages_come_once(name: str, tmp_path: Path) -> None:
    async def work() -> None:
        broker, _ = broker_of(name, tmp_path)
        await broker.start()
        try:
            for _ in range(600):
                if len(held(broker, RETRY)) > 2:
                    break
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            assert held(broker, RETRY) == [("fails for good", 1), ("failed once", 1), (PENDING, 1)]
            assert [body for body, _ in held(broker, DEAD)] == ["fails for good", "refused at once"]
            assert held(broker, TOPIC)[5:] == [("not read yet", 0)]
            assert broker.offsets.query(GROUP, TOPIC, 0) == 5
            assert broker.offsets.query(GROUP, RETRY, 0) == 1
        finally:
            await broker.shutdown()

    run(work())
