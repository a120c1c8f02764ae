"""Lite topics in a store: reads, names, deletion, damage, logs that RocketMQ wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import HOST, config, with_topics
from tests.unit.store.stores import opened as opened_store

from rucola.common.message import StoreMessage
from rucola.errors import DiskError, DiskFullError
from rucola.formats.light_queue import is_lite, lite_topic
from rucola.formats.lite import LITE_UNIT_BYTES, decode_unit, encode_unit
from rucola.formats.tables import decode_consumer_offsets
from rucola.runtime.files import Files
from rucola.store.lite.lite_topics import LiteTopics
from rucola.store.lite.lite_units import LiteUnits
from rucola.store.log.log_reader import LogReader
from rucola.store.message_store import MessageStore
from rucola.store.recovery.offset_cut import lower_offsets
from rucola.store.results import Boundary, GetMessageStatus, PutMessageStatus
from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind
from rucola.testing.clock import ManualClock

S1 = lite_topic(b"Parent$s1")
LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}


def opened(path: Path, **options: Any) -> MessageStore:
    return opened_store(path, **(LIGHT | options))


def lite_of(store: MessageStore) -> LiteTopics:
    assert store.lite is not None
    return store.lite


def put(store: MessageStore, names: str, tag: str = "a", offsets: str = "", size: int = 20) -> None:
    """Appends a message in light queues; with ``offsets``, as a record of a broker that assigned them."""
    text = f"TAGS\x01{tag}\x02INNER_MULTI_DISPATCH\x01{names}\x02"
    if offsets:
        text += f"INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
    assigner, light = store._appender._assigner, not offsets
    assigner._light, before = light, assigner._light
    result = store.put_message(StoreMessage(b"Parent", 0, b"x" * size, text.encode(), 1, HOST))
    assigner._light = before
    assert result.status is PutMessageStatus.PUT_OK
    store.dispatch()


def name(number: int, parent: str = "Parent") -> str:
    return f"%LMQ%${parent}$s{number}"


def settle(store: MessageStore) -> None:
    """Does the work of the maintenance thread, which does not run, and lets deletions take effect."""
    store._keeper.sync_queues()
    store.dispatch()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    one = opened(tmp_path)
    one._keeper._worker.stop()
    yield one
    one.shutdown()


@pytest.mark.parametrize(
    ("topic", "lite"),
    [
        (b"%LMQ%$p$l", True),
        (b"%LMQ%$p$", False),
        (b"%LMQ%$$l", False),
        (b"%LMQ%$p$l$m", False),
        (b"%LMQ%p$l", False),
        (b"%LMQ%$p", False),
        (b"$p$l", False),
    ],
)
def test_names_of_lite_topics(topic: bytes, lite: bool) -> None:
    assert is_lite(topic) is lite


def test_reading_and_asking_create_nothing(store: MessageStore) -> None:
    assert store.queue_range(S1, 0) == (0, 0)
    assert store.get_message(S1, 0, 0, 1, 1000).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert lite_of(store).next_offset(S1) == 0
    assert lite_of(store).delete([b"Parent$s1"]) == 0
    assert lite_of(store).names_of(b"Parent").names == []
    assert len(lite_of(store).names) == 0
    assert not (Path(store.root) / "consumequeue").exists()


def test_bare_light_queues_stay_directories(store: MessageStore) -> None:
    put(store, f"%LMQ%bare,{name(1)}")
    assert (Path(store.root) / "consumequeue/%LMQ%bare/0").is_dir()
    assert not (Path(store.root) / f"consumequeue/{name(1)}").exists()
    assert store.queue_range(b"%LMQ%bare", 0) == store.queue_range(S1, 0) == (0, 1)


def test_arrivals_tell_the_next_offset_and_the_common_tag(store: MessageStore) -> None:
    store.take_arrivals()
    for number, tag in ((1, "a"), (1, "a"), (2, "a"), (2, "b")):
        put(store, name(number), tag)
    arrived = {topic: rest for topic, *rest in store.take_arrivals()}
    assert arrived[S1] == [0, 2, ord("a")]
    assert arrived[lite_topic(b"Parent$s2")] == [0, 2, None]
    assert store.take_arrivals() == []


def test_the_first_message_since_a_second_is_found_without_its_record(tmp_path: Path) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock=clock)
    store._keeper._worker.stop()
    for number in range(60):
        put(store, name(1))
        clock.advance(400 if number % 7 else 2600)
    queue = lite_of(store).queue(S1)
    assert queue is not None
    seconds = [store.store_time_at(S1, 0, offset) // 1000 for offset in range(60)]
    for second in range(seconds[0] - 1, seconds[-1] + 2):
        assert queue.offset_since(second) == next((at for at, one in enumerate(seconds) if one >= second), 60)
    lite_of(store).raise_next(b"Parent$s1", 70)
    assert queue.max_offset == 70
    assert queue.offset_since(seconds[-1] + 1) == 60, "offsets without messages are not earlier than any time"
    store.shutdown()


def test_a_long_queue_is_read_by_offset_tag_and_time(store: MessageStore) -> None:
    for number in range(300):
        put(store, name(1), "b" if number % 100 == 7 else "a")
        put(store, name(number % 5 + 2))
    for offset in (0, 1, 150, 299):
        result = store.get_message(S1, 0, offset, 4, 1 << 20)
        assert (result.status, result.next_offset) == (GetMessageStatus.FOUND, min(offset + 4, 300))
    result = store.get_message(S1, 0, 8, 4, 1 << 20, frozenset({ord("b")}))
    assert (result.message_count, store.get_message(S1, 0, 300, 1, 100).status) == (
        2,
        GetMessageStatus.OFFSET_OVERFLOW_ONE,
    )
    when = store.store_time_at(S1, 0, 120)
    assert store.offset_by_time(S1, 0, when) == 120
    assert store.offset_by_time(S1, 0, when, Boundary.UPPER) == 120
    assert store.offset_by_time(S1, 0, when + 10**9) == 300
    assert store.offset_by_time(S1, 0, when - 10**9, Boundary.UPPER) == 0
    assert store.in_memory(S1, 0, 120)
    assert store.queue_unit(S1, 0, 120)[0] > 0


def test_any_offset_of_a_long_queue_is_few_steps_away(store: MessageStore) -> None:
    for number in range(1000):
        put(store, name(1 if number % 2 else 2))
    lite, reads = lite_of(store), 0
    plain = lite.units.unit

    def counted(cell: int) -> Any:
        nonlocal reads
        reads += 1
        return plain(cell)

    lite.units.unit = counted  # type: ignore[method-assign]
    for offset in range(0, 500, 7):
        assert lite.cell_at(lite.names.find(b"Parent$s1"), offset) >= 0
        assert reads < 60
        reads = 0


def test_a_parent_has_its_names_in_parts(store: MessageStore) -> None:
    for number in range(30):
        put(store, f"{name(number)},{name(number, 'Other')}")
    lite, found, first = lite_of(store), [], 0
    while True:
        part = lite.names_of(b"Parent", first, rows_max=7)
        found += part.names
        if part.following is None:
            break
        first = part.following
    assert found == [b"Parent$s%d" % number for number in range(30)]
    assert lite.parents() == {b"Parent": 30, b"Other": 30}
    assert lite.names_of(b"Nobody").names == []


def test_what_expires_and_what_stays(store: MessageStore) -> None:
    for number in range(4):
        put(store, f"{name(number)},{name(number, 'Other')}")
    lite, now = lite_of(store), store.now_ms()
    ttl = {b"Parent": 1, b"Other": 0, b"Nobody": 1}
    assert lite.expired(ttl, 0, now).names == []
    assert lite.expired(ttl, 0, now + 62_000).names == [b"Parent$s%d" % number for number in range(4)]
    assert lite.expired(ttl, 100_000, now + 62_000).names == []
    assert lite.expired({b"Parent": 1 << 40}, 0, now + 62_000).names == []
    store.delete_lite([b"Parent$s2"])
    settle(store)
    assert b"Parent$s2" not in lite.expired(ttl, 0, now + 62_000).names


def test_a_deletion_waits_for_its_sync_and_keeps_the_counter(store: MessageStore) -> None:
    for _ in range(3):
        put(store, name(1))
    store.delete_topic(S1)
    store.dispatch()
    assert store.queue_range(S1, 0) == (0, 3)
    put(store, name(1))
    settle(store)
    assert store.queue_range(S1, 0) == (3, 4)
    assert store.get_message(S1, 0, 0, 9, 1 << 20).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert lite_of(store).parents() == {b"Parent": 1}
    store.delete_lite([b"Parent$s1", b"Parent$unknown"])
    settle(store)
    assert store.queue_range(S1, 0) == (4, 4)
    assert lite_of(store).next_offset(S1) == 4
    assert lite_of(store).parents() == {b"Parent": 0}


def test_deletions_survive_without_a_sync_of_anything_else(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for _ in range(3):
        put(store, name(1))
    store.delete_lite([b"Parent$s1"])
    store.shutdown()
    store = opened(tmp_path)
    assert store.queue_range(S1, 0) == (3, 3)
    store.shutdown()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_deletion_counts_although_its_messages_are_dispatched_again(
    tmp_path: Path, interrupted: bool, monkeypatch: Any
) -> None:
    store = opened(tmp_path / "one")
    store._keeper._worker.stop()
    put(store, "%LMQ%bare")
    for _ in range(3):
        put(store, name(1))
    store.delete_lite([b"Parent$s1"])
    store._keeper.sync_queues()  # the watermark does not say so yet
    put(store, name(2))
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "one", copy)
    store.shutdown()
    if interrupted:
        plain = LiteUnits.cut

        def cut(units: LiteUnits, cell: int) -> None:
            plain(units, cell)
            raise DiskError(units.segments.path, "sync", "the power fails")

        with monkeypatch.context() as patch, pytest.raises(DiskError):
            patch.setattr(LiteUnits, "cut", cut)
            opened(copy)
    store = opened(copy)
    assert store.recovered
    assert store.queue_range(S1, 0) == (3, 3)
    assert store.queue_range(lite_topic(b"Parent$s2"), 0) == (0, 1)
    store.shutdown()


def test_a_counter_does_not_go_back_although_the_log_lost_its_end(tmp_path: Path) -> None:
    store = opened(tmp_path / "one")
    store._keeper._worker.stop()
    put(store, "%LMQ%bare")
    kept = store.max_offset
    for _ in range(3):
        put(store, name(1))
    store.delete_lite([b"Parent$s1"])
    settle(store)
    put(store, name(2))
    lite_of(store).write_table()
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    store.shutdown()
    with (tmp_path / f"copy/commitlog/{0:020d}").open("r+b") as log:
        log.seek(kept)
        log.write(bytes(2000))
    store = opened(tmp_path / "copy")
    assert store.max_offset == kept
    assert store.queue_range(S1, 0) == (3, 3)
    assert store.queue_range(lite_topic(b"Parent$s2"), 0) == (0, 0)
    put(store, f"{name(1)},{name(2)}")
    assert store.queue_range(S1, 0) == (3, 4)
    for _ in range(4):
        put(store, "%LMQ%bare", size=400)
    store.shutdown()
    store = opened(tmp_path / "copy")  # what was behind the cut is gone for good
    assert store.queue_range(S1, 0) == (3, 4)
    assert store.queue_range(lite_topic(b"Parent$s2"), 0) == (0, 1)
    assert store.queue_unit(S1, 0, 3)[0] == store.queue_unit(lite_topic(b"Parent$s2"), 0, 0)[0] == kept
    store.shutdown()


def test_offsets_of_groups_go_back_with_a_cut_log(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in (1, 1, 2):
        put(store, name(number))
    table = {f"{name(1)}@G": {"0": 5}, f"{name(2)}@G": {"0": 1}, f"{name(3)}@G": {"0": 4}}
    path = tmp_path / "config/consumerOffset.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"dataVersion": {}, "offsetTable": table}))
    lower_offsets(Files(), str(path.parent), store._queues)
    _, lowered = decode_consumer_offsets(path.read_bytes())
    assert lowered == {f"{name(1)}@G": {0: 2}, f"{name(2)}@G": {0: 1}, f"{name(3)}@G": {0: 0}}
    store.shutdown()


def test_one_message_names_a_topic_twice(store: MessageStore) -> None:
    put(store, f"{name(1)},{name(1)}")
    assert store.queue_range(S1, 0) == (0, 1)
    assert store.stats.multi_dispatch_skipped == 1


def test_offsets_that_no_queue_can_have_are_passed_over(store: MessageStore) -> None:
    lite = lite_of(store)
    assert not lite.put(S1, (1 << 40, 0, 50), 0, 0)
    assert not lite.put(S1, (0, 1 << 56, 50), 0, 0)
    assert len(lite.names) == 0


def test_a_log_that_begins_a_topic_again_shows_the_later_messages(tmp_path: Path) -> None:
    """RocketMQ restarts at 0 after the deletion of a lite topic."""
    store = opened(tmp_path)
    for offset in (0, 1, 2, 0, 1):
        put(store, name(1), offsets=str(offset))
    newest = [store.queue_unit(S1, 0, offset)[0] for offset in (0, 1)]
    assert store.queue_range(S1, 0) == (0, 2)
    assert newest == sorted(newest) and newest[0] > 3 * 100
    put(store, name(1))
    store.shutdown()
    for remove in (False, True):
        if remove:
            shutil.rmtree(tmp_path / "rucola-lite")
        store = opened(tmp_path)
        assert store.queue_range(S1, 0) == (0, 3)
        assert [store.queue_unit(S1, 0, offset)[0] for offset in (0, 1)] == newest
        store.shutdown()


def test_a_topic_may_begin_above_zero_and_have_holes(store: MessageStore) -> None:
    put(store, name(2), size=2000)
    for offset in (5, 6, 9):
        put(store, name(1), offsets=str(offset))
    assert store.queue_range(S1, 0) == (5, 10)
    following = 5
    for _ in range(3):
        result = store.get_message(S1, 0, following, 8, 1 << 20)
        if result.next_offset == 10:
            break
        following = result.next_offset
    assert (result.message_count, result.next_offset) == (1, 10)
    assert store.queue_unit(S1, 0, 7) == (0, 0, 0)


def filled(path: Path) -> MessageStore:
    store = opened(path, mapped_file_size_consume_queue=200)
    for number in range(25):
        put(store, name(number % 3))
    store.shutdown()
    return store


def ranges(store: MessageStore) -> list[tuple[int, int]]:
    return [store.queue_range(lite_topic(b"Parent$s%d" % number), 0) for number in range(3)]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "no directory": shutil.rmtree,
    "no names": lambda lite: (lite / "names").unlink(),
    "no table": lambda lite: (lite / "table").unlink(),
    "no units": lambda lite: shutil.rmtree(lite / "units"),
    "no first units": lambda lite: (lite / f"units/{0:020d}").unlink(),
    "no last units": lambda lite: (lite / f"units/{800:020d}").unlink(),
    "short units": lambda lite: (lite / f"units/{800:020d}").write_bytes(b"\0" * 40),
    "empty names": lambda lite: (lite / "names").write_bytes(b""),
    "flipped name": lambda lite: flip(lite / "names", 30),
    "flipped table": lambda lite: flip(lite / "table", -1),
    "flipped head of table": lambda lite: flip(lite / "table", 20),
    "cut table": lambda lite: (lite / "table").write_bytes((lite / "table").read_bytes()[:70]),
    "empty table": lambda lite: (lite / "table").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_built_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path)
    DAMAGES[damage](tmp_path / "rucola-lite")
    store = opened(tmp_path, mapped_file_size_consume_queue=200)
    assert ranges(store) == [(0, 9), (0, 8), (0, 8)]
    put(store, name(0))
    assert store.queue_range(lite_topic(b"Parent$s0"), 0) == (0, 10)
    store.shutdown()
    kept = damage == "no directory"
    assert (tmp_path / "quarantine/rucola-lite").exists() is not kept
    assert ("lite topics are built again" in caplog.text) is not kept
    assert ("the store had none" in caplog.text) is kept


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name not in ("no directory", "no table")])
def test_the_check_of_a_store_finds_damage(tmp_path: Path, damage: str) -> None:
    filled(tmp_path)
    report = verify(with_topics(tmp_path))
    assert (report.findings, report.units) == ([], 25 + 25)
    DAMAGES[damage](tmp_path / "rucola-lite")
    assert {finding.kind for finding in verify(str(tmp_path)).findings} == {FindingKind.LITE_TOPICS}


def test_the_check_of_a_store_compares_units_with_records(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / f"rucola-lite/units/{400:020d}"
    content = path.read_bytes()
    unit = decode_unit(content[:LITE_UNIT_BYTES])
    assert unit is not None
    path.write_bytes(encode_unit(unit._replace(queue_offset=unit.queue_offset + 1)) + content[LITE_UNIT_BYTES:])
    (finding,) = verify(with_topics(tmp_path)).findings
    assert finding.kind is FindingKind.LITE_TOPICS


def test_damage_of_a_note_of_what_is_synced_does_no_harm(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "rucola-lite/synced").write_bytes(b"\xff" * 128)
    store = opened(tmp_path, mapped_file_size_consume_queue=200)
    assert ranges(store) == [(0, 9), (0, 8), (0, 8)]
    store.shutdown()


def test_a_flipped_unit_hides_only_what_lies_before_it_in_its_queue(tmp_path: Path) -> None:
    filled(tmp_path)
    flip(tmp_path / f"rucola-lite/units/{400:020d}", 2 * LITE_UNIT_BYTES + 9)
    store = opened(tmp_path, mapped_file_size_consume_queue=200)
    assert [low for low, _ in ranges(store)].count(0) >= 2
    assert [high for _, high in ranges(store)] == [9, 8, 8]
    store.shutdown()


def test_counters_of_directories_that_rocketmq_left_count(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(LogReader, "holds", lambda *_: True)
    store = opened(tmp_path)
    put(store, "%LMQ%x", size=3000)
    queue = store._queues.get(S1, 0)
    queue.begin_at(7)
    queue.put(7, 0, 100, 0)
    queue.sync()
    store.shutdown()
    shutil.rmtree(tmp_path / "rucola-lite")
    store = opened(tmp_path)
    assert store.queue_range(S1, 0) == (8, 8)
    put(store, name(1))
    assert store.queue_range(S1, 0) == (8, 9)
    store.shutdown()
    assert (tmp_path / f"consumequeue/{name(1)}/0").is_dir()
    store = opened(tmp_path)
    assert store.queue_range(S1, 0) == (8, 9)
    store.shutdown()


def test_an_interrupted_rebuild_begins_anew(tmp_path: Path) -> None:
    filled(tmp_path)
    lite = tmp_path / "rucola-lite"
    (lite / "table").unlink()
    (lite / "synced").unlink()
    store = opened(tmp_path, mapped_file_size_consume_queue=200)
    assert ranges(store) == [(0, 9), (0, 8), (0, 8)]
    store.shutdown()
    assert not (tmp_path / "quarantine").exists()


def test_without_space_for_names_nothing_is_noted_as_synced(store: MessageStore, monkeypatch: Any) -> None:
    put(store, name(1))
    full = [True]
    plain = Files.write_at

    def write_at(files: Files, path: str, position: int, content: bytes) -> None:
        if path.endswith("rucola-lite/names") and full[0]:
            raise DiskFullError(path, "write", "no space")
        plain(files, path, position, content)

    monkeypatch.setattr(Files, "write_at", write_at)
    before = store._keeper._synced.position
    store._keeper.sync_queues()
    assert store._keeper._synced.position == before < store.max_offset
    assert not store.queue_sync_failed
    full[0] = False
    store._keeper.sync_queues()
    assert store._keeper._synced.position == store.max_offset


def test_without_space_for_units_dispatch_waits(store: MessageStore, monkeypatch: Any) -> None:
    put(store, name(1))
    plain = LiteUnits.reserve
    with monkeypatch.context() as patch:

        def reserve(units: LiteUnits) -> None:
            if units.end == 2:
                raise DiskFullError(units.segments.path, "allocate", "no space")
            plain(units)

        patch.setattr(LiteUnits, "reserve", reserve)
        put(store, f"{name(1)},{name(2)}")
        assert store.lacks_space
        assert store.dispatch_behind_bytes > 0
        assert store.queue_range(lite_topic(b"Parent$s2"), 0) == (0, 0)
        with pytest.raises(DiskFullError):
            store.delete_lite([b"Parent$s1"])
    store.dispatch()
    assert (store.queue_range(S1, 0), store.queue_range(lite_topic(b"Parent$s2"), 0)) == ((0, 2), (0, 1))
    assert not store.lacks_space


def test_a_table_that_cannot_be_written_is_written_later(store: MessageStore, monkeypatch: Any) -> None:
    put(store, name(1))
    lite = lite_of(store)
    lite._table_due = True
    with monkeypatch.context() as patch:

        def replace_file(files: Files, path: str, content: Any, *rest: Any) -> None:
            raise DiskError(path, "replace", "input/output error")

        patch.setattr(Files, "replace_file", replace_file)
        store._keeper._keep_lite()
    assert not store.queue_sync_failed
    assert lite.table_from == 0
    lite._table_due = True
    store._keeper._keep_lite()
    assert lite.table_from == 1


def test_without_both_switches_there_are_no_lite_topics(tmp_path: Path) -> None:
    for options in ({}, {"enable_lmq": True}, {"enable_multi_dispatch": True}):
        store = MessageStore(config(tmp_path / str(len(options)), **options), Files(), ManualClock(step_ms=1))
        store.load()
        assert store.lite is None
        assert store.delete_lite([b"Parent$s1"]) == 0
        store.shutdown()
        assert not (Path(store.root) / "rucola-lite").exists()


def test_any_offset_of_a_long_queue_is_a_few_units_away(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(500):
        put(store, name(0))
        if number % 5 == 0:
            put(store, name(1))
    settle(store)
    lite, reads = lite_of(store), 0
    links_at = LiteUnits.links_at

    def counted(self: LiteUnits, cell: int) -> tuple[int, int, int, int] | None:
        nonlocal reads
        reads += 1
        return links_at(self, cell)

    monkeypatch.setattr(LiteUnits, "links_at", counted)
    name_id, most = 0, 0
    for queue_offset in range(500):
        reads = 0
        cell = lite.cell_at(name_id, queue_offset)
        unit = lite.units.unit(cell)
        assert unit is not None and unit.queue_offset == queue_offset
        most = max(most, reads)
    assert most <= 40
