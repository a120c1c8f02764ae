"""The model of Kafka's layout finds records through its sparse indexes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from rucola.lab.kafka_model import (
    INDEX_INTERVAL_BYTES,
    OFFSET_ENTRY,
    TIME_ENTRY,
    WARM_BYTES,
    PartitionReader,
    PartitionWriter,
    SparseIndex,
)

RECORDS = 3000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "partition"
    writer = PartitionWriter(path)
    for number in range(RECORDS):
        writer.append(b"key%d" % number, bytes(500 + number % 400), 1000 + 10 * number)
    writer.sync()
    writer.close()
    return path


@pytest.fixture
def reader(directory: Path) -> Iterator[PartitionReader]:
    reader = PartitionReader(directory)
    yield reader
    reader.close()


def test_records_come_back_in_order(reader: PartitionReader) -> None:
    records = list(reader.records())
    assert [record.offset for record in records] == list(range(RECORDS))
    assert all(record.key == b"key%d" % record.offset for record in records)
    assert all(len(record.value) == 500 + record.offset % 400 for record in records)


@pytest.mark.parametrize("number", [0, 1, 7, 1499, RECORDS - 2, RECORDS - 1])
def test_found_by_offset_time_and_key(reader: PartitionReader, number: int) -> None:
    assert reader.at_offset(number).offset == number
    assert reader.at_time(1000 + 10 * number).offset == number
    assert reader.at_time(1000 + 10 * number - 9).offset == number
    assert reader.with_key(b"key%d" % number).offset == number


def test_indexes_are_sparse_and_their_entries_true(directory: Path, reader: PartitionReader) -> None:
    offsets = list(OFFSET_ENTRY.iter_unpack((directory / "0.index").read_bytes()))
    times = list(TIME_ENTRY.iter_unpack((directory / "0.timeindex").read_bytes()))
    log_bytes = (directory / "0.log").stat().st_size
    assert 0.75 * log_bytes < len(offsets) * INDEX_INTERVAL_BYTES <= log_bytes + INDEX_INTERVAL_BYTES
    positions = {record.offset: record.position for record in reader.records()}
    assert all(positions[offset] == position for offset, position in offsets)
    assert times == [(1000 + 10 * offset, offset) for offset, _ in offsets]
    gaps = [right[1] - left[1] for left, right in itertools.pairwise(offsets)]
    assert min(gaps) >= INDEX_INTERVAL_BYTES


class Watched(SparseIndex):
    """Records which entries a search reads."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, OFFSET_ENTRY)
        self.seen: set[int] = set()

    def _key(self, number: int) -> int:
        self.seen.add(number)
        return super()._key(number)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("target", [0, 3, 4, 79_999, 395_990, 399_996, 400_100])
def test_a_search_finds_the_entry_before(tmp_path: Path, warm: bool, target: int) -> None:
    path = tmp_path / "index"
    path.write_bytes(b"".join(OFFSET_ENTRY.pack(4 * number, number) for number in range(100_000)))
    index = Watched(path)
    number = min(target // 4, 99_999)
    assert index.entry_before(target, warm) == (4 * number, number)
    first_warm = 99_999 - WARM_BYTES // OFFSET_ENTRY.size
    if warm and number > first_warm:
        assert min(index.seen) >= first_warm
    if not warm and number > 0:
        assert 50_000 in index.seen
    index.close()
