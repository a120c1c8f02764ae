"""A commit log in several directories: where segments go, how they are found, and full disks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import SEGMENT, everything, fill, message, opened, sync_config, with_topics

from rucola.errors import ConfigError, DiskFullError, StoreDamagedError
from rucola.formats.segment_name import segment_name
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.log.multi_path import MultiPathSegmentList
from rucola.store.message_store import MessageStore
from rucola.store.offline.hexdump import Hexdump
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.results import PutMessageStatus
from rucola.store.verify.check import verify
from rucola.testing.clock import ManualClock


def paths(tmp_path: Path, names: str = "abc") -> str:
    return ",".join(str(tmp_path / "disks" / name) for name in names)


def placed(tmp_path: Path) -> dict[int, str]:
    """Returns the name of each segment's directory, by number of the segment."""
    files = (file for file in (tmp_path / "disks").glob("*/*") if file.is_file())
    return {int(file.name) // SEGMENT: file.parent.name for file in files}


def queue(names: Sequence[str], read_only: Sequence[str] = ()) -> MultiPathSegmentList:
    return MultiPathSegmentList(Files(), names, read_only, 100)


@pytest.mark.parametrize(
    ("names", "read_only", "full", "expected"),
    [
        # Values of MultiPathSegmentList#tryCreateMappedFile, RocketMQ 5.3.3.
        (("/b", "/a", "/c"), (), (), ["/a", "/b", "/c", "/a"]),
        (("/b", "/a", "/c"), ("/a",), (), ["/b", "/c", "/b", "/c"]),
        (("/b", "/a", "/c"), (), ("/b",), ["/a", "/c", "/a", "/c"]),
        (("/b", "/a", "/c"), ("/a",), ("/b", "/c"), ["/b", "/c", "/b", "/c"]),
        (("/a",), ("/z",), ("/a",), ["/a", "/a", "/a", "/a"]),
    ],
)
def test_segments_go_in_turn_to_the_directories_that_may_get_one(
    names: Sequence[str], read_only: Sequence[str], full: Sequence[str], expected: list[str]
) -> None:
    log = queue(names, read_only)
    log.full_paths = frozenset(full)
    assert [log.candidates(number * 100)[0] for number in range(4)] == expected


def test_a_store_on_three_directories_is_stopped_and_started(tmp_path: Path) -> None:
    options = {"store_path_commit_log": paths(tmp_path)}
    store = opened(tmp_path / "store", **options)
    fill(store, 900)
    before = everything(store)
    end = store.max_offset
    store.shutdown()
    where = placed(tmp_path)
    assert len(where) >= 4
    assert where == {number: "abc"[number % 3] for number in where}
    store = opened(tmp_path / "store", **options)
    assert not store.recovered and store.max_offset == end
    assert everything(store) == before
    store.shutdown()


def test_a_store_that_was_one_directory_goes_on_in_others_and_back(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", store_path_commit_log=paths(tmp_path, "b"))
    fill(store, 500)
    store.shutdown()
    more = {"store_path_commit_log": paths(tmp_path), "read_only_commit_log_store_paths": paths(tmp_path, "b")}
    store = opened(tmp_path / "store", **more)
    known = placed(tmp_path)
    assert set(known.values()) == {"b"}
    fill(store, 500, first=500)
    before = everything(store)
    store.shutdown()
    added = {number: name for number, name in placed(tmp_path).items() if number not in known}
    assert added and added == {number: "ac"[number % 2] for number in added}
    # A directory listed as read-only need not be listed in ``storePathCommitLog`` as well.
    rest = {"store_path_commit_log": paths(tmp_path, "ac"), "read_only_commit_log_store_paths": paths(tmp_path, "b")}
    store = opened(tmp_path / "store", **rest)
    assert everything(store) == before
    store.shutdown()


def test_a_killed_store_is_recovered_and_its_tail_cut(tmp_path: Path) -> None:
    options = {"store_path_commit_log": paths(tmp_path, "ab")}
    config = sync_config(tmp_path / "store", **options)
    store = MessageStore(config, Files(), ManualClock(step_ms=1))
    store.load()
    store.start()
    fill(store, 300)
    end = store.max_offset
    segment = tmp_path / "disks" / "ab"[end // SEGMENT % 2] / segment_name(end - end % SEGMENT)
    shutil.copytree(tmp_path, tmp_path.parent / "killed", ignore=shutil.ignore_patterns("lock"))
    store.shutdown()
    killed = tmp_path.parent / "killed"
    copy = killed / segment.relative_to(tmp_path)
    content = bytearray(copy.read_bytes())
    content[end % SEGMENT : end % SEGMENT + 20] = b"what a crash has left"[:20]
    copy.write_bytes(content)
    (killed / "disks" / "ab"[(end // SEGMENT + 1) % 2] / segment_name(end - end % SEGMENT + SEGMENT)).write_bytes(
        bytes(SEGMENT)
    )
    store = opened(killed / "store", store_path_commit_log=paths(killed, "ab"))
    assert store.recovered and store.max_offset == end
    assert sum(map(len, everything(store).values())) == 300
    assert copy.read_bytes()[end % SEGMENT :] == bytes(SEGMENT - end % SEGMENT)
    store.shutdown()


def test_the_same_segment_twice_and_a_missing_directory_are_damage(tmp_path: Path) -> None:
    options = {"store_path_commit_log": paths(tmp_path, "ab")}
    store = opened(tmp_path / "store", **options)
    fill(store, 600)
    store.shutdown()
    (tmp_path / "disks" / "b").rename(tmp_path / "disks" / "elsewhere")
    with pytest.raises(StoreDamagedError, match="is missing"):
        opened(tmp_path / "store", **options)
    (tmp_path / "disks" / "elsewhere").rename(tmp_path / "disks" / "b")
    shutil.copy(tmp_path / "disks" / "a" / segment_name(0), tmp_path / "disks" / "b")
    with pytest.raises(StoreDamagedError, match="holds the same segment"):
        opened(tmp_path / "store", **options)
    found = verify(with_topics(tmp_path / "store"), commit_log_path=options["store_path_commit_log"]).findings
    assert [str(one.kind) for one in found] == ["stray_file"]


class _Space(Files):
    """Files on several disks; ``used`` is the usage of each disk in percent; disks in ``out`` have no space left."""

    def __init__(self) -> None:
        self.used = dict.fromkeys("abc", 10)
        self.out: set[str] = set()

    def disk_usage(self, path: str) -> tuple[int, int]:
        used = self.used.get(Path(path).name, 0)
        return used, 100 - used

    def create_segment(self, path: str, *arguments: Any) -> None:
        if Path(path).parent.name in self.out:
            raise DiskFullError(path, "allocate", "no space")
        super().create_segment(path, *arguments)


def look(store: MessageStore, clock: ManualClock) -> None:
    clock.advance(61_000)
    store._keeper._work()
    store.dispatch()
    store._keeper._work()


def test_a_full_disk_gets_no_segment_and_the_emptiest_decides(tmp_path: Path) -> None:
    files, clock = _Space(), ManualClock(step_ms=1)
    store = opened(tmp_path / "store", files, clock, store_path_commit_log=paths(tmp_path))
    store._keeper.end()
    files.used |= {"a": 99, "b": 86}
    look(store, clock)
    assert {Path(path).name for path in store._log.segments.full_paths} == {"a", "b"}
    fill(store, 900)
    assert store.stats.forced_segments == 0
    assert {name for number, name in placed(tmp_path).items() if number > 1} == {"c"}
    files.used |= {"b": 95, "c": 91}
    look(store, clock)
    assert store.put_message(message(1)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    files.used = dict.fromkeys("abc", 10)
    look(store, clock)
    assert not store._log.segments.full_paths
    assert store.put_message(message(1)).status is PutMessageStatus.PUT_OK
    store.shutdown()


def test_a_disk_without_space_is_passed_over(tmp_path: Path) -> None:
    files = _Space()
    files.out = {"a", "c"}
    store = opened(tmp_path / "store", files, store_path_commit_log=paths(tmp_path))
    fill(store, 600)
    store.shutdown()
    assert set(placed(tmp_path).values()) == {"b"}


def test_expired_segments_go_from_every_directory(tmp_path: Path) -> None:
    files, clock = _Space(), ManualClock(step_ms=1)
    store = opened(tmp_path / "store", files, clock, store_path_commit_log=paths(tmp_path))
    fill(store, 1200)
    store._flush.flush()
    store._keeper.end()
    store._keeper.sync_queues()
    before = placed(tmp_path)
    files.used = dict.fromkeys("abc", 86)
    look(store, clock)
    look(store, clock)
    after = placed(tmp_path)
    assert min(after) == store.min_offset // SEGMENT > 2
    assert set(before) - set(after) == set(range(min(after)))
    store.shutdown()


def test_the_offline_reader_finds_what_the_store_has(tmp_path: Path) -> None:
    options = {"store_path_commit_log": paths(tmp_path)}
    store = opened(tmp_path / "store", **options)
    results = fill(store, 700)
    live = OfflineStore(str(tmp_path / "store"), commit_log_path=options["store_path_commit_log"])
    assert live.end_offset() == store.max_offset
    live.close()
    store.shutdown()
    offline = OfflineStore(str(tmp_path / "store"), commit_log_path=options["store_path_commit_log"])
    assert [Path(path).parent.name for path, _, _ in offline.log_segments()][:4] == list("abca")
    found = {m.physical_offset for topic in ("T0", "T1") for q in (0, 1) for m in offline.messages(topic, q, 0, 999)}
    assert found == {result.physical_offset for result in results}
    offline.close()
    report = verify(with_topics(tmp_path / "store"), commit_log_path=options["store_path_commit_log"])
    assert report.clean and report.records == 700
    dump = Hexdump(Files(), str(tmp_path / "store"), options["store_path_commit_log"]).record(SEGMENT)
    assert Path(dump.path) == tmp_path / "disks" / "b" / segment_name(SEGMENT)


@pytest.mark.parametrize("read_only", ["/a", "/a,/b,/c", " /a , "])
def test_a_log_that_may_go_nowhere_is_refused(read_only: str) -> None:
    with pytest.raises(ConfigError, match="readOnlyCommitLogStorePaths"):
        MessageStoreConfig(store_path_commit_log="/a", read_only_commit_log_store_paths=read_only)


def test_damage_is_served_around_in_whichever_directory_it_is(tmp_path: Path) -> None:
    options = {"store_path_commit_log": paths(tmp_path, "ab")}
    store = opened(tmp_path / "store", **options)
    results = fill(store, 600)
    store.shutdown()
    hit = next(result for result in results if result.physical_offset > SEGMENT + 100)
    segment = tmp_path / "disks" / "b" / segment_name(SEGMENT)
    content = bytearray(segment.read_bytes())
    content[hit.physical_offset % SEGMENT + 100] ^= 1
    segment.write_bytes(content)
    stray = tmp_path / "disks" / "b" / segment_name(SEGMENT + 7)
    stray.write_text("not a segment")
    (tmp_path / "store" / "abort").write_text("1")
    (tmp_path / "store" / "rucola-watermark").unlink()
    (tmp_path / "store" / "checkpoint").unlink()
    store = opened(tmp_path / "store", quarantine=True, **options)
    assert not stray.exists() and list((tmp_path / "store" / "quarantine").glob(f"b-{stray.name}"))
    store.shutdown()
