"""After a crash, recovery repairs old queue entries that lead to no record, and writes no wrong entries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.stores import contents, crashed, fill, message, read, snapshot
from tests.unit.store.stores import opened as opened_with
from tests.unit.store.test_damaged_queues import flip

from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore
from rucola.store.recovery import queue_mend
from rucola.store.recovery.watermark import Watermark, WatermarkFile

COUNT = 40
T = b"T0"
QUEUE = Path("consumequeue") / "T0" / "0" / f"{0:020d}"
LOG = Path("commitlog") / f"{0:020d}"
Damage = Callable[[Path, int], None]


def opened(path: Path) -> MessageStore:
    """Opens a store with several log segments; after a crash, recovery checks all records only in the last segment."""
    return opened_with(path, mapped_file_size_commit_log=8192, enabled_append_prop_crc=False)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Makes a killed store whose watermark is at its end and whose records have no checksum; returns its path and the
    physical offsets of the messages in one queue.
    """
    base = tmp_path_factory.mktemp("killed")
    store = opened(base / "live")
    places = [one.physical_offset for one in fill(store, 2 * COUNT, queues=1)[::2]]
    end = store.max_offset
    image = crashed(store, base / "live", base / "image")
    WatermarkFile(Files(), str(image)).write(Watermark(end, end, queue_count=2))
    return image, places


@pytest.fixture
def image(killed: tuple[Path, list[int]], tmp_path: Path) -> Path:
    snapshot(killed[0], tmp_path / "image")
    return tmp_path / "image"


def zeroed(path: Path, number: int) -> None:
    data = bytearray((path / QUEUE).read_bytes())
    data[20 * number : 20 * number + 20] = bytes(20)
    (path / QUEUE).write_bytes(data)


def elsewhere(path: Path, number: int) -> None:
    flip(path / QUEUE, 20 * number + 6, 2)


def of_another_size(path: Path, number: int) -> None:
    flip(path / QUEUE, 20 * number + 10, 1)


def before_the_log(path: Path, number: int) -> None:
    flip(path / QUEUE, 20 * number, 128)


@pytest.mark.few
@pytest.mark.parametrize("number", [0, 1, COUNT // 2, COUNT - 1])
@pytest.mark.parametrize("damage", [zeroed, elsewhere, of_another_size, before_the_log])
def test_an_entry_that_leads_nowhere_is_written_again(damage: Damage, number: int, image: Path) -> None:
    whole = (image / QUEUE).read_bytes()
    damage(image, number)
    store = opened(image)
    assert [found.queue_offset for found in read(store, T, 0)] == list(range(COUNT))
    assert store.put_message(message(99, T)).queue_offset == COUNT
    store.shutdown()
    assert (image / QUEUE).read_bytes()[: 20 * COUNT] == whole[: 20 * COUNT]


def test_a_clean_start_and_one_with_whole_entries_write_none(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    search = queue_mend.QueueMend.run
    monkeypatch.setattr(
        queue_mend.QueueMend, "run", lambda self, *part: (searched.append(search(self, *part)), searched[-1])[1]
    )
    before = contents(image)
    for _ in range(2):
        opened(image).shutdown()
    assert searched == [0]
    assert contents(image)[str(QUEUE)] == before[str(QUEUE)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_record_that_names_the_entry_of_another_does_not_get_it(
    lost: bool, image: Path, killed: tuple[Path, list[int]]
) -> None:
    """The damaged record 5 contains the queue offset of record 7. In one case, record 7 is damaged, too."""
    places = killed[1]
    flip(image / LOG, places[5] + 27, 5 ^ 7)
    if lost:
        flip(image / LOG, places[7] + 90, 1)
    zeroed(image, 7)
    whole = (image / QUEUE).read_bytes()
    store = opened(image)
    store.shutdown()
    after = (image / QUEUE).read_bytes()
    assert after[: 20 * 7] == whole[: 20 * 7] and after[20 * 8 :] == whole[20 * 8 :]
    assert int.from_bytes(after[20 * 7 : 20 * 7 + 8], "big") == (0 if lost else places[7])


@pytest.mark.parametrize("also", [7, 9])
def test_a_record_outside_its_neighbours_gets_no_entry(also: int, image: Path, killed: tuple[Path, list[int]]) -> None:
    """The damaged record 9 contains queue offset 7. Entry 7 is missing, and in one case entry 9, too."""
    flip(image / LOG, killed[1][9] + 27, 9 ^ 7)
    for number in {7, also}:
        zeroed(image, number)
    opened(image).shutdown()
    assert (image / QUEUE).read_bytes()[140:160] == bytes(20)


def test_a_record_with_an_entry_gets_no_other(image: Path, killed: tuple[Path, list[int]]) -> None:
    """The damaged record 5 contains queue offset 1. Entry 1 is missing, and so is entry 2, which would
    show the damage.
    """
    flip(image / LOG, killed[1][5] + 27, 5 ^ 1)
    zeroed(image, 1)
    zeroed(image, 2)
    opened(image).shutdown()
    assert (image / QUEUE).read_bytes()[20:40] == bytes(20)


def test_a_body_that_does_not_match_its_checksum_gives_no_entry(image: Path, killed: tuple[Path, list[int]]) -> None:
    flip(image / LOG, killed[1][3] + 88, 1)
    zeroed(image, 3)
    opened(image).shutdown()
    assert (image / QUEUE).read_bytes()[60:80] == bytes(20)


def test_the_search_is_limited(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_mend, "_RUNS_MAX", 0)
    monkeypatch.setattr(queue_mend, "ROWS_MAX", 8)
    zeroed(image, 1)
    zeroed(image, COUNT - 2)
    opened(image).shutdown()
    data = (image / QUEUE).read_bytes()
    assert data[20:40] != bytes(20) and data[20 * (COUNT - 2) : 20 * (COUNT - 1)] == bytes(20)
