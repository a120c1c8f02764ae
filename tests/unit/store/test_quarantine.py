"""``quarantine``: a store with damage in the synced part of the log is served without that part, and no byte is
lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.plain_log import find_sound, read_directory
from tests.reading import pulled
from tests.unit.store.stores import SEGMENT, config, contents, crashed, fill, message, opened, snapshot

from rucola.errors import StoreDamagedError
from rucola.formats.message import MAGIC_V1, decode_message
from rucola.runtime.files import FILE_BYTES_MAX, Files
from rucola.store.log.log_reader import Gap
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.repair import FILLER_BYTES_MIN, filler
from rucola.store.recovery.watermark import Watermark, WatermarkFile
from rucola.store.results import GetMessageStatus, PutMessageStatus
from rucola.testing.clock import ManualClock

COUNT = 900
MAGIC = MAGIC_V1.to_bytes(4, "big", signed=True)
QUEUES = [("T0", 0), ("T0", 1), ("T1", 0), ("T1", 1)]
Served = dict[tuple[str, int], dict[int, bytes]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a killed store with some segments, all known to be synced."""
    base = tmp_path_factory.mktemp("whole")
    store = opened(base / "live")
    fill(store, COUNT)
    end = store.max_offset
    image = crashed(store, base / "live", base / "image")
    WatermarkFile(Files(), str(image)).write(Watermark(end, 0))
    return image


@pytest.fixture
def image(whole: Path, tmp_path: Path) -> Path:
    snapshot(whole, tmp_path / "image")
    return tmp_path / "image"


def served(path: Path, store: MessageStore | None = None) -> Served:
    opened_here = store or opened(path, quarantine=True)
    found = {name: pulled(opened_here, *name) for name in QUEUES}
    if store is None:
        opened_here.shutdown()
    return found


def places(path: Path) -> list[int]:
    return [record.physical_offset for record in read_directory(path / "commitlog", SEGMENT).records]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with (path / "commitlog" / f"{offset - offset % SEGMENT:020d}").open("r+b") as file:
        file.seek(offset % SEGMENT)
        file.write(data)


def one_record(path: Path) -> None:
    overwrite(path, places(path)[100] + 95, b"\xff\xfe")


def what_looks_like_records(path: Path) -> None:
    place = places(path)[100]
    overwrite(path, place, b"\xff" * 8)
    overwrite(path, place + 120, (64).to_bytes(4, "big") + MAGIC * 3)


def two_records(path: Path) -> None:
    for place in [places(path)[number] for number in (100, 300)]:
        overwrite(path, place + 95, b"\xff\xfe")


def neighbours(path: Path) -> None:
    for place in places(path)[100:103]:
        overwrite(path, place, b"\xff" * 8)


def end_of_a_segment(path: Path) -> None:
    overwrite(path, SEGMENT - 5000, b"\xff" * 5000)


def a_whole_segment(path: Path) -> None:
    overwrite(path, SEGMENT, bytes(range(256)) * (SEGMENT // 256))


def a_segment_that_is_gone(path: Path) -> None:
    (path / "commitlog" / f"{SEGMENT:020d}").unlink()


def a_segment_cut_short(path: Path) -> None:
    file = path / "commitlog" / f"{SEGMENT:020d}"
    file.write_bytes(file.read_bytes()[:20_000])


def a_segment_that_grew(path: Path) -> None:
    file = path / "commitlog" / f"{SEGMENT:020d}"
    file.write_bytes(file.read_bytes() * 10)


def a_strange_file(path: Path) -> None:
    (path / "commitlog" / f"{SEGMENT + 7:020d}").write_text("mine")


def the_last_segments(path: Path) -> None:
    for file in sorted((path / "commitlog").iterdir())[2:]:
        file.unlink()


def the_end(path: Path) -> None:
    for place in places(path)[-3::2]:
        overwrite(path, place, b"\xff" * 8)


def the_whole_log(path: Path) -> None:
    for file in (path / "commitlog").iterdir():
        file.unlink()


def a_queue_file(path: Path) -> None:
    file = path / "consumequeue" / "T0" / "1" / f"{0:020d}"
    file.write_bytes(file.read_bytes()[:-1])


def an_index_file(path: Path) -> None:
    file = min((path / "index").iterdir())
    file.write_bytes(file.read_bytes()[:-1])


DAMAGES: list[Callable[[Path], None]] = [
    one_record,
    what_looks_like_records,
    two_records,
    neighbours,
    end_of_a_segment,
    a_whole_segment,
    a_segment_that_is_gone,
    a_segment_cut_short,
    a_segment_that_grew,
    a_strange_file,
    the_last_segments,
    the_end,
    the_whole_log,
    a_queue_file,
    an_index_file,
]


@pytest.mark.few(7)
@pytest.mark.parametrize("damage", DAMAGES)
def test_everything_sound_is_served_and_offsets_are_never_used_again(
    damage: Callable[[Path], None], image: Path, whole: Path
) -> None:
    damage(image)
    sound = {
        record.physical_offset
        for file in (image / "commitlog").glob("[0-9]" * 20)
        for record in find_sound(file.read_bytes()[:SEGMENT], int(file.name))
    }
    before = contents(image)
    with pytest.raises(StoreDamagedError):
        opened(image)
    assert contents(image) == before
    store = opened(image, quarantine=True)
    expected: Served = {name: {} for name in QUEUES}
    ends = dict.fromkeys(QUEUES, 0)
    log = read_directory(whole / "commitlog", SEGMENT)
    for record in log.records:
        name = record.topic, record.queue_id
        ends[name] = record.queue_offset + 1
        if record.physical_offset in sound:
            expected[name][record.queue_offset] = record.data
    assert served(image, store) == expected
    assert bool(store.gaps) is (damage not in (a_segment_that_grew, a_strange_file, a_queue_file, an_index_file))
    for record in log.records[::50]:
        key = record.properties[b"UNIQ_KEY"]
        found = store.query_by_key(record.topic.encode(), key).views
        assert list(map(bytes, found)) == [record.data] * (record.physical_offset in sound)
    for topic, queue_id in QUEUES:
        put = store.put_message(message(7000, topic.encode(), queue_id))
        assert (put.status, put.queue_offset) == (PutMessageStatus.PUT_OK, ends[topic, queue_id])
        assert put.physical_offset >= log.end
        store.dispatch()
        result = store.get_message(topic.encode(), queue_id, put.queue_offset, 1, 1 << 20)
        assert result.status is GetMessageStatus.FOUND
        expected[topic, queue_id][put.queue_offset] = bytes(result.views[0])
    store.shutdown()
    # The log is whole again, so the option is no longer needed.
    store = opened(image)
    assert served(image, store) == expected
    store.shutdown()
    offline = OfflineStore(str(image))
    assert offline.end_offset() == places(image)[-1] + len(
        read_directory(image / "commitlog", SEGMENT).records[-1].data
    )
    offline.close()


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_byte_of_the_log_is_lost(damage: Callable[[Path], None], image: Path) -> None:
    damage(image)
    before = {name: data for name, data in contents(image).items() if name.startswith("commitlog/")}
    opened(image, quarantine=True).shutdown()
    after = contents(image)
    kept = {
        int(name[11:31]): data
        for name, data in after.items()
        if name.startswith("quarantine/0") and not name.endswith(".json")
    }
    moved = {data for name, data in after.items() if name.startswith("quarantine/commitlog")}
    for name, data in before.items():
        if data in moved:
            continue
        # A segment of zeros at the end may be removed, because it was only created in advance.
        now, start = bytearray(after.get(name, bytes(len(data)))), int(name[10:])
        for offset, part in kept.items():
            if start <= offset < start + SEGMENT:
                now[offset - start : offset - start + len(part)] = part
        assert len(data) == len(now), name
        changed = (n for n in range(0, len(data), 64) if data[n : n + 64] != now[n : n + 64])
        assert all(data[m] in (0, now[m]) for n in changed for m in range(n, min(n + 64, len(data)))), name


def test_a_start_cut_short_while_it_mends_ends_the_same(image: Path, tmp_path: Path) -> None:
    two_records(image)
    a_whole_segment(image)
    snapshot(image, tmp_path / "damaged")
    expected = served(image)

    class Dying(Files):
        """Ends the process before a file is replaced, or after a part of a record was overwritten."""

        def __init__(self, left: int) -> None:
            self.left = left

        def replace_file(self, path: str, content: bytes) -> None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            super().replace_file(path, content)

    steps = 0
    while True:
        path = tmp_path / f"cut{steps}"
        shutil.copytree(tmp_path / "damaged", path)
        store = MessageStore(config(path, quarantine=True), Dying(steps), ManualClock())
        try:
            store.load()
        except KeyboardInterrupt:
            assert served(path) == expected
            steps += 1
        else:
            store.shutdown()
            break
    assert steps >= 6


@pytest.mark.parametrize("text", ["[[1", "[" * 100_000, "[[1e999, 2]]", '[{"start": 1}]', "5", "[[1, 2, 3]]"])
def test_a_gap_list_that_cannot_be_read_refuses(text: str, image: Path) -> None:
    one_record(image)
    store = opened(image, quarantine=True)
    (gap,) = store.gaps
    assert gap == Gap(places(image)[100], places(image)[101])
    store.shutdown()
    (image / "quarantine" / "gaps.json").write_text(text)
    with pytest.raises(StoreDamagedError, match=r"gaps\.json"):
        opened(image, quarantine=True)


def test_a_sound_store_is_left_alone(tmp_path: Path) -> None:
    store = opened(tmp_path, quarantine=True)
    fill(store, 100)
    store.shutdown()
    before = contents(tmp_path)
    store = MessageStore(config(tmp_path, quarantine=True), Files(), ManualClock())
    store.load()
    assert store.gaps == []
    store.shutdown()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("size", [FILLER_BYTES_MIN, FILLER_BYTES_MIN + 1, 5000])
def test_a_filler_is_a_rolled_back_message_of_its_size(size: int) -> None:
    record = filler(size, 12345, 1_700_000_000_000)
    assert len(record) == size
    decoded = decode_message(record)
    assert (decoded.physical_offset, decoded.sys_flag & 12) == (12345, 12)


def test_bytes_of_a_whole_segment_are_compared_with_those_kept_before(tmp_path: Path) -> None:
    """A segment may be longer than what other files of a store may be."""
    kept = tmp_path / "quarantine" / f"{0:020d}"
    kept.parent.mkdir()
    kept.write_bytes(b"record")
    os.truncate(kept, FILE_BYTES_MAX + 1)
    Quarantine(Files(), str(tmp_path)).keep(0, b"record", 0, "a test")
    assert sorted(path.name for path in kept.parent.iterdir()) == [kept.name, f"{kept.name}.json"]
