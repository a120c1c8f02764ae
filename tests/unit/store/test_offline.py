"""A store directory read by another process: after a stop, after a kill, written by RocketMQ, and while it is
in use.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.unit.store.stores import SEGMENT, contents, everything, fill, message, opened, snapshot

from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.inspect.summary import queue_infos
from rucola.store.offline.offline_store import OfflineStore, OffsetRange
from rucola.store.results import Boundary


def test_it_sees_what_the_store_sees_and_changes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    results = fill(store, 700)
    seen = everything(store)
    store.shutdown()
    before = contents(tmp_path)
    offline = OfflineStore(str(tmp_path))
    assert offline.end_offset() == results[-1].physical_offset + results[-1].size
    assert offline.min_offset() == 0
    assert offline.topics() == ["T0", "T1"]
    assert offline.queues("T1") == [0, 1]
    assert offline.queue_ranges() == [OffsetRange(topic, q, 0, 175) for topic in ("T0", "T1") for q in (0, 1)]
    for (topic, queue_id), expected in seen.items():
        got = [
            (found.physical_offset, found.store_timestamp_ms, found.body)
            for found in offline.messages(topic.decode(), queue_id, 0, 1000)
        ]
        assert got == expected
    assert [found.queue_offset for found in offline.messages("T0", 1, 40, 43)] == [40, 41, 42]
    at = results[400].store_timestamp_ms
    assert offline.offset_by_time("T0", 0, at) == results[400].queue_offset
    assert offline.offset_by_time("T0", 0, at - 1, Boundary.UPPER) == results[400].queue_offset - 1
    found = offline.message_at(results[5].physical_offset)
    assert found is not None and found.body == message(5, size=85).body
    assert offline.message_at(results[5].physical_offset + 1) is None
    offline.close()
    assert contents(tmp_path) == before


def test_plans_are_plain_values(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 700)
    store.shutdown()
    offline = OfflineStore(str(tmp_path))
    segments, files = offline.log_segments(), offline.queue_files("T0", 0)
    assert pickle.loads(pickle.dumps((segments, files))) == (segments, files)
    assert [(start, size) for _, start, size in segments] == [(i * SEGMENT, SEGMENT) for i in range(len(segments))]
    assert [(first, count) for _, first, count in files] == [(0, 100), (100, 100)]
    path, first, _ = files[1]
    (_, physical_offset, size, tags_code) = next(offline.units("T0", 0, 100, 101))
    unit = Path(path).read_bytes()[(100 - first) * 20 :][:20]
    assert unit == physical_offset.to_bytes(8, "big") + size.to_bytes(4, "big") + tags_code.to_bytes(8, "big")


def test_a_running_store_can_be_read_and_followed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 100)
    offline = OfflineStore(str(tmp_path))
    assert offline.end_offset() == store.max_offset
    assert offline.queue_range("T0", 0).max_offset == 25
    fill(store, 300, first=100)
    assert offline.refresh() == store.max_offset
    assert offline.queue_range("T0", 0).max_offset == 100
    store.shutdown()


@pytest.mark.parametrize("watermark", [True, False])
def test_a_torn_tail_is_not_seen(watermark: bool, tmp_path: Path) -> None:
    store = opened(tmp_path / "live")
    results = fill(store, 100)
    snapshot(tmp_path / "live", tmp_path / "image")
    store.shutdown()
    if not watermark:
        (tmp_path / "image" / "rucola-watermark").unlink()
    last = results[-1]
    with (tmp_path / "image" / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(last.physical_offset + last.size - 30)
        file.write(b"\xff")
    offline = OfflineStore(str(tmp_path / "image"))
    assert offline.end_offset() == last.physical_offset
    assert sum(found.max_offset for found in offline.queue_ranges()) == 99


def test_damage_is_named_and_unknown_queues_are_empty(tmp_path: Path) -> None:
    store = opened(tmp_path)
    results = fill(store, 20, topics=1, queues=1)
    store.shutdown()
    log = tmp_path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(results[7].physical_offset + 100)
        file.write(b"\xff")
    offline = OfflineStore(str(tmp_path))
    with pytest.raises(StoreDamagedError) as caught:
        list(offline.messages("T0", 0, 0, 20))
    assert (caught.value.path, caught.value.position) == (str(log), results[7].physical_offset)
    assert offline.queue_range("None", 0) == OffsetRange("None", 0, 0, 0)
    assert list(offline.messages("None", 0, 0, 9)) == offline.queue_files("None", 0) == []
    with pytest.raises(StoreDamagedError, match="no store here"):
        OfflineStore(str(tmp_path / "index"))


def test_ranges_of_many_queues_take_one_look_at_the_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(tmp_path)
    fill(writer, 60, topics=20, queues=3)
    writer.shutdown()
    looks: list[str] = []
    listed = Files.list_own_directories
    monkeypatch.setattr(Files, "list_own_directories", lambda files, path: looks.append(path) or listed(files, path))
    store = OfflineStore(str(tmp_path))
    looks.clear()
    found = store.queue_ranges()
    assert [(one.topic, one.queue_id) for one in found] == sorted((f"T{n}", q) for n in range(20) for q in range(3))
    assert len(looks) <= 42  # two for each topic, however many there are
    assert [info.range for info in queue_infos(store)] == found
    assert len(looks) <= 84
    assert [info.range for info in queue_infos(store, "T3")] == [one for one in found if one.topic == "T3"]
    store.close()
