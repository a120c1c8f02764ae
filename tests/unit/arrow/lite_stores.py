"""A store with a parent topic whose messages are in lite topics, for tests of readers."""

from __future__ import annotations

from pathlib import Path

from tests.unit.store.stores import HOST, opened

from rucola.common.message import StoreMessage
from rucola.store.message_store import MessageStore

COUNT = 240


def opened_lite(path: Path) -> MessageStore:
    return opened(path, enable_lmq=True, enable_multi_dispatch=True)


def put(store: MessageStore, number: int, name: str | None, topic: bytes = b"Parent") -> None:
    properties = f"KEYS\x01k{number}\x02TAGS\x01T{number % 3}\x02"
    if name is not None:
        properties += f"__LITE_TOPIC\x01{name}\x02INNER_MULTI_DISPATCH\x01%LMQ%${topic.decode()}${name}\x02"
    store.put_message(StoreMessage(topic, number % 2, b"%d" % number, properties.encode(), 1, HOST))


def name_of(number: int) -> str | None:
    """Every fourth message is in no lite topic."""
    return None if number % 4 == 3 else f"s{number % 10}" if number % 5 else "größe"


def filled(path: Path) -> MessageStore:
    store = opened_lite(path)
    for number in range(COUNT):
        put(store, number, name_of(number))
        if number % 8 == 0:
            put(store, number, "s1", b"Other")
    store.dispatch()
    return store
