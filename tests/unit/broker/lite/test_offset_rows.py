"""The table of offsets in columns."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from rucola.broker.lite.offset_rows import PARTS, OffsetRows
from rucola.formats.lite_offsets import NO_OFFSET


@pytest.mark.parametrize("seed", range(3))
def test_it_is_a_map(seed: int) -> None:
    random = Random(seed)
    live = {1, 2, 3}
    rows, model = OffsetRows(live.__contains__), dict[int, int]()
    rows.reserve((0, 3000, 100_000)[seed])
    for _ in range(20_000):
        key = random.randrange(1, 4) << 32 | random.randrange(2000)
        action = random.randrange(10)
        if action < 6:
            model[key] = random.randrange(1 << 40)
            assert rows.put(key, model[key], partial(int, -key)) == -key
        elif action < 8:
            assert rows.drop(key) == (-key if model.pop(key, None) is not None else None)
        elif action < 9:
            rows.sweep(random.randrange(PARTS))
        assert rows.get(key) == model.get(key, NO_OFFSET)
    assert rows.count == len(model)
    found = {key: offset for part in range(PARTS) for key, _, offset in rows.rows(part)}
    assert found == model
    live.discard(2)
    for part in range(PARTS):
        rows.sweep(part)
    left = {key for key in model if key >> 32 != 2}
    assert rows.count == len(left)
    assert {key for part in range(PARTS) for key, _, _ in rows.rows(part)} == left


def test_a_key_has_the_hash_of_its_present_name() -> None:
    rows = OffsetRows(lambda _: True)
    rows.put(1 << 32 | 7, 5, lambda: 100)
    assert rows.drop(1 << 32 | 7) == 100
    assert rows.drop(1 << 32 | 7) is None
    assert rows.put(1 << 32 | 7, 6, lambda: 200) == 200
    assert rows.put(1 << 32 | 7, 8, lambda: 300) == 200


def test_an_entry_takes_few_bytes() -> None:
    rows = OffsetRows(lambda _: True)
    for number in range(20_000):
        rows.put(1 << 32 | number, 1, lambda: 1)
    assert rows.memory_bytes() < 20_000 * 70
    for number in range(20_000):
        rows.drop(1 << 32 | number)
    for part in range(PARTS):
        rows.sweep(part)
    assert rows.memory_bytes() < 100_000 and rows.count == 0
