"""Full garbage collections of a server examine each object once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from rucola.runtime import collector
from rucola.runtime.collector import freeze_survivors


class Node:
    def __init__(self) -> None:
        self.other: Node | None = None


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(collector._freeze)


def test_survivors_are_not_looked_at_again() -> None:
    freeze_survivors()
    kept = [Node() for _ in range(1000)]
    gc.collect(1)
    assert any(each is kept[0] for each in gc.get_objects())
    gc.collect()
    assert not any(each is kept[0] for each in gc.get_objects())
    assert gc.get_count()[2] == 0 and gc.isenabled()
    ended = weakref.ref(kept[0])
    kept.clear()
    assert ended() is None


def test_full_collections_come_before_there_is_much_to_look_at() -> None:
    freeze_survivors()
    gc.collect()
    before, largest = len(gc.get_objects()), 0
    kept = []
    for _ in range(100):
        kept += [Node() for _ in range(1000)]
        largest = max(largest, len(gc.get_objects()) - before)
    assert len(kept) == 100_000 and largest < 60_000


def test_garbage_is_still_found() -> None:
    freeze_survivors()
    freeze_survivors()
    assert gc.callbacks.count(collector._freeze) == 1
    one, two = Node(), Node()
    one.other, two.other = two, one
    found = weakref.ref(one)
    del one, two
    gc.collect()
    assert found() is None
