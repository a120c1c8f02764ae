"""The kernels that dispatch many records in one call, in both forms, compared with dispatch record by record."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from tests.kernels import kernel
from tests.unit.store.stores import message

from rucola.common.columns import new_table
from rucola.formats.checksum import crc32
from rucola.formats.consume_queue import UNIT
from rucola.formats.index_file import index_file_bytes
from rucola.formats.message import encode_message, walk_records

BASE = 1 << 33


def log(count: int, queues: int, seed: int = 1) -> tuple[bytes, array[int], list[list[int]]]:
    """Returns a piece of a log, the table of its records, and for each record a list: queue id, queue offset, position,
    size, sysFlag.
    """
    random = Random(seed)
    next_offsets, data, facts = [random.randrange(1000) for _ in range(queues)], bytearray(), []
    for number in range(count):
        sent = message(number, queue_id=random.randrange(queues), size=random.randrange(50))
        sent.sys_flag = random.choice([0, 0, 0, 4, 8, 12])
        record = bytearray(encode_message(sent, BASE + len(data), next_offsets[sent.queue_id], 1000 + number, bytes(8)))
        record[12:16] = sent.queue_id.to_bytes(4, "big")
        facts.append([sent.queue_id, next_offsets[sent.queue_id], len(data), len(record), sent.sys_flag])
        if not sent.sys_flag & 4:
            next_offsets[sent.queue_id] += 1
        data += record
    table = new_table(count)
    rows, _, _ = walk_records(data, memoryview(data), 0, len(data), BASE, table, count, crc32, 0)
    assert rows == count
    return bytes(data), table, facts


def test_units_of_one_queue(form: str) -> None:
    queue = kernel("formats._queue_cy", form)
    _, table, facts = log(300, 3)
    for queue_id in range(4):
        mine = [fact for fact in facts[10:290] if fact[0] == queue_id and not fact[4] & 4]
        out = bytearray(280 * 20)
        first = mine[0][1] if mine else 0
        count, tags_code, same = queue.gather_units(table, 10, 290, queue_id, first, BASE, out)
        assert count == len(mine)
        for n, (_, _, position, size, _) in enumerate(mine):
            physical_offset, got_size, code = UNIT.unpack(out, 20 * n)
            assert (physical_offset, got_size) == (BASE + position, size)
            assert n < len(mine) - 1 or code == tags_code
        assert same is (len(mine) == 0)
        if mine:
            assert queue.gather_units(table, 10, 290, queue_id, first + 1, BASE, out)[0] == -1


@pytest.mark.parametrize(("numbers", "same"), [((0,), True), ((0, 3, 6), True), ((0, 3, 1), False), ((), True)])
def test_whether_all_have_one_tag_is_told(numbers: tuple[int, ...], same: bool, form: str) -> None:
    queue = kernel("formats._queue_cy", form)
    data = b"".join(encode_message(message(number), 0, n, 1, bytes(8)) for n, number in enumerate(numbers))
    table = new_table(3)
    rows, _, _ = walk_records(data, memoryview(data), 0, len(data), 0, table, 3, crc32, 0)
    out = bytearray(60)
    count, _, got = queue.gather_units(table, 0, rows, 0, 0, BASE, out)
    assert (count, got) == (len(numbers), same)


def test_unit_rows_and_room_are_checked(form: str) -> None:
    queue = kernel("formats._queue_cy", form)
    _, table, _ = log(5, 1)
    for first, last, room in ((-1, 3, 100), (0, 6, 200), (3, 2, 100), (0, 5, 99)):
        with pytest.raises(ValueError, match=r"rows|fit"):
            queue.gather_units(table, first, last, 0, 0, BASE, bytearray(room))


@pytest.mark.parametrize("entry_max", [1000, 37])
def test_keys_of_many_records(entry_max: int, form: str) -> None:
    index = kernel("formats._index_cy", form)
    data, table, facts = log(200, 2)
    slots = 50
    size = index_file_bytes(slots, entry_max)
    ours, theirs, full = [bytearray(size)], [bytearray(size)], 0
    row = done = 0
    while row < 200:
        row, done = index.put_rows(ours[-1], slots, entry_max, data, table, row, 200, BASE, BASE + facts[20][2], done)
        if row < 200:
            ours.append(bytearray(size))
            full += 1
    for number, (_, _, position, _, sys_flag) in enumerate(facts):
        if number < 20 or sys_flag & 12 == 12:
            continue
        for key in (b"ID%08d" % number, b"key-%d" % number, b"all"):
            arguments = (slots, entry_max, b"TopicTest", key, 0, len(key), BASE + position, 1000 + number)
            if not index.put_key(theirs[-1], *arguments):
                theirs.append(bytearray(size))
                assert index.put_key(theirs[-1], *arguments)
    assert ours == theirs
    assert (full > 0) is (entry_max == 37)


def test_index_rows_are_checked(form: str) -> None:
    index = kernel("formats._index_cy", form)
    data, table, _ = log(5, 1)
    file = bytearray(index_file_bytes(5, 50))
    for first, last in ((-1, 2), (0, 6), (3, 2)):
        with pytest.raises(ValueError, match="rows"):
            index.put_rows(file, 5, 50, data, table, first, last, BASE, 0)
    with pytest.raises(ValueError, match="do not hold"):
        index.put_rows(file, 5, 51, data, table, 0, 5, BASE, 0)
    with pytest.raises(ValueError, match="outside"):
        index.put_rows(file, 5, 50, data[:100], table, 0, 5, BASE, 0)
