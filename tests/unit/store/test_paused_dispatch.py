"""A dispatch that ends early because it has mapped many queue segments."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.stores import message, opened

from rucola.errors import TooManyFilesError
from rucola.formats.message import ROWS_MAX
from rucola.store.results import GetMessageStatus, PutMessageStatus

TOPICS = 60
MAPS_MAX = 8


@pytest.mark.parametrize("queues", [1, 3])
def test_a_dispatch_maps_few_segments_and_continues_where_it_ended(tmp_path: Path, queues: int) -> None:
    """Before the fix, sends to 500 topics that were not in use made one turn of the event loop take 0.4 s."""
    store = opened(tmp_path)
    count = TOPICS * queues * 2
    for number in range(count):
        put = store.put_message(message(number, b"T%d" % (number % TOPICS), number // TOPICS % queues))
        assert put.status is PutMessageStatus.PUT_OK
    dispatched, mapped = [], []
    while True:
        before = store._queues.maps_made
        dispatched.append(store.dispatch(MAPS_MAX))
        mapped.append(store._queues.maps_made - before)
        if not store.dispatch_paused:
            break
        assert store.dispatch_behind_bytes > 0
    assert store.dispatch_behind_bytes == 0 and sum(dispatched) == count
    assert sum(mapped) == TOPICS * queues and set(mapped[:-1]) == {MAPS_MAX}
    for number in range(TOPICS * queues):
        topic, queue_id = b"T%d" % (number % TOPICS), number // TOPICS % queues
        found = store.get_message(topic, queue_id, 0, 32, 1 << 20)
        assert (found.status, found.message_count) == (GetMessageStatus.FOUND, 2)
        assert len(store.query_by_key(topic, b"key-%d" % number, 32, 0, 1 << 62).views) == 1
    store.shutdown()


def test_a_dispatch_without_a_limit_goes_to_the_end(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(TOPICS):
        store.put_message(message(number, b"T%d" % number))
    store.dispatch(MAPS_MAX)
    assert store.dispatch_paused and store.dispatch_behind_bytes > 0
    assert store.dispatch() == TOPICS - MAPS_MAX and not store.dispatch_paused
    store.shutdown()


def test_an_append_to_an_unmapped_queue_is_awaited_until_it_is_dispatched(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert not store.maps_awaited
    for number in range(MAPS_MAX + 1):
        store.put_message(message(number, b"T%d" % number))
    assert store.maps_awaited, "no queue has a file yet"
    store.dispatch(MAPS_MAX)
    assert store.dispatch_paused and store.maps_awaited
    store.dispatch(MAPS_MAX)
    assert not store.maps_awaited
    store.put_message(message(0, b"T0"))
    assert not store.maps_awaited, "the queue is mapped"
    store.put_message(message(0, b"T0", 1))
    assert store.maps_awaited, "the topic's other queue is not"
    store.dispatch()
    store._queues.free_descriptors()
    store.put_message(message(1, b"T0"))
    assert store.maps_awaited, "the queue was unmapped"
    store.shutdown()


def test_a_dispatch_that_failed_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, each send would try it again while the process has no descriptors left."""
    store = opened(tmp_path)
    store.put_message(message(0, b"T0"))
    assert store.maps_awaited
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise TooManyFilesError("consumequeue", "open", "too many open files")

        patch.setattr(store._queues, "get", refuse)
        assert store.dispatch() == 0 and not store.maps_awaited
    assert store.dispatch() == 1
    store.shutdown()


@pytest.mark.parametrize("per_queue", [1, 6])
def test_a_dispatch_maps_few_queues_of_one_topic(tmp_path: Path, per_queue: int) -> None:
    """Before the fix, messages to all queues of a new topic with 4,096 queues made one turn of the event loop take
    3.5 s of processor time, because the number of maps was looked at only between two topics of a batch.
    """
    store = opened(tmp_path)
    queues = 100
    for number in range(queues * per_queue):
        put = store.put_message(message(number, b"T", number % queues))
        assert put.status is PutMessageStatus.PUT_OK
    mapped = []
    while store.dispatch_behind_bytes:
        before = store._queues.maps_made
        store.dispatch(MAPS_MAX)
        assert store.dispatch_paused == store.maps_awaited == bool(store.dispatch_behind_bytes)
        mapped.append(store._queues.maps_made - before)
    assert sum(mapped) == queues and max(mapped) == MAPS_MAX
    for queue_id in range(queues):
        assert store.get_message(b"T", queue_id, 0, 32, 1 << 20).message_count == per_queue
    store.put_message(message(0, b"T"))
    assert store.dispatch(MAPS_MAX) == 1 and not store.dispatch_paused, "all queues are mapped"
    store.shutdown()


def test_a_dispatch_ends_after_a_number_of_messages(tmp_path: Path) -> None:
    """Before the fix, the messages of one large batch became visible in one turn of 50 ms."""
    store = opened(tmp_path)
    store.put_message(message(0, b"T"))
    store.dispatch()
    count = 4 * ROWS_MAX
    for number in range(count):
        store.put_message(message(number, b"T"))
    done = store.dispatch(rows_max=ROWS_MAX + 1)
    assert ROWS_MAX < done < ROWS_MAX * 2 and done == store.max_queue_offset(b"T", 0) - 1
    assert store.dispatch_paused and not store.maps_awaited, "nothing must be mapped for the rest"
    assert store.dispatch(rows_max=count - done) == count - done
    assert not store.dispatch_paused, "nothing is left"
    store.shutdown()


def test_a_dispatch_that_ends_after_a_number_of_messages_still_awaits_maps(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(2 * ROWS_MAX):
        store.put_message(message(number, b"T"))
    store.put_message(message(0, b"new"))
    store.dispatch(rows_max=1)
    assert store.dispatch_paused and store.maps_awaited
    store.shutdown()
