"""A slave behind scripted masters: what it appends, compares and refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from struct import pack

import pytest
from tests.masters import BATCH, MasterLog, Slave, a_log, header, log_bytes
from tests.unit.store.stores import SEGMENT, crashed, everything, fill, message, opened, with_topics

from rucola.common.columns import FrameColumn, new_table
from rucola.formats.ha import FIRST_BYTE, NEWEST_SEGMENT, encode_report
from rucola.formats.message import BLANK, fill_row
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType
from rucola.store.ha.overlap import OVERLAP_BYTES
from rucola.store.ha.slave_state import SlaveState
from rucola.store.results import PutMessageStatus
from rucola.store.row_run import RowRun
from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind

COUNT = 900


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterLog:
    return a_log(tmp_path_factory.mktemp("master") / "store", COUNT)


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Slave]:
    slave = Slave(tmp_path / "copy")
    yield slave
    slave.store.shutdown()


def records(master: MasterLog) -> list[tuple[int, int]]:
    """Physical offset and size of each record, without blank ones."""
    found, at = [], 0
    while at < master.end:
        size, magic = BLANK.unpack(master.bytes_at(at, 8))
        if magic != -875286124:
            found.append((at, size))
        at += size
    return found


def left_over_bytes(count: int) -> bytes:
    """What a master may have behind the header of a blank record."""
    return bytes(number % 255 + 1 for number in range(count))


def again(slave: Slave, **options: object) -> Slave:
    """Stops the slave, and opens it again."""
    slave.store.shutdown()
    return Slave(slave.path, **options)


# -- a whole copy ------------------------------------------------------------------------------------------------------


@pytest.mark.few
@pytest.mark.parametrize("pieces", [1 << 20, 1000, 7])
@pytest.mark.parametrize("batch", [BATCH, 1500, 1])
def test_a_copy_has_the_bytes_and_the_queues_of_its_master(tmp_path: Path, pieces: int, batch: int) -> None:
    original = opened(tmp_path / "master")
    fill(original, 60 if batch == 1 else 500)
    source, queues = MasterLog(log_bytes(original)), everything(original)
    original.shutdown()
    slave = Slave(tmp_path / "copy")
    slave.follow(source, pieces=pieces, batch=batch)
    assert slave.link.state is SlaveState.COPYING
    assert slave.bytes == source.content
    assert everything(slave.store) == queues
    slave.store.shutdown()
    assert not (slave.path / "abort").exists()


def test_the_end_of_the_log_moves_only_over_whole_records(slave: Slave, master: MasterLog) -> None:
    ends = [at + size for at, size in records(master)][:40]
    slave.connect()
    stream, at = master.stream(1, batch=100), 0
    while slave.log.end_offset < ends[-1]:
        slave.take(stream[at : at + 50])
        at += 50
        assert slave.log.end_offset in (0, *ends)
        assert slave.store.confirm_offset == slave.log.end_offset
        received = slave.log.received_offset
        assert slave.log.end_offset == max([0, *(end for end in ends if end <= received)])


def test_a_segment_is_begun_when_the_blank_record_is_complete(slave: Slave, master: MasterLog) -> None:
    slave.follow(master, end=SEGMENT - 1)
    before = slave.log.end_offset
    assert before < SEGMENT
    assert len(slave.store._log.segments.files) == 1
    slave.take(header(SEGMENT - 1, 1) + master.bytes_at(SEGMENT - 1, 1))
    assert slave.log.end_offset == SEGMENT
    assert len(slave.store._log.segments.files) == 2
    assert (slave.path / "commitlog" / f"{SEGMENT:020d}").exists()


def test_bytes_behind_a_blank_record_are_the_masters(slave: Slave, master: MasterLog) -> None:
    blank = max(end for end in (at + size for at, size in records(master)) if end < SEGMENT)
    left_over = master.changed(blank + 8, left_over_bytes(SEGMENT - blank - 8))
    slave.follow(left_over)
    assert slave.bytes == left_over.content


def test_the_newest_segment_alone(slave: Slave, master: MasterLog) -> None:
    start = master.end - master.end % SEGMENT
    assert slave.connect(NEWEST_SEGMENT).request == 0
    slave.take(master.stream(0))
    assert (slave.log.min_offset, slave.log.end_offset) == (start, master.end)
    assert slave.bytes == master.content[start:]


def test_a_log_that_does_not_begin_at_0(slave: Slave, master: MasterLog) -> None:
    rest = MasterLog(master.content[SEGMENT:], SEGMENT)
    assert slave.connect(SEGMENT).request == SEGMENT
    slave.take(rest.stream(SEGMENT))
    assert (slave.log.min_offset, slave.bytes) == (SEGMENT, rest.content)


def test_a_start_that_is_none_of_a_segment_is_refused_before_the_first_byte(tmp_path: Path, master: MasterLog) -> None:
    slave = Slave(tmp_path / "copy", mapped_file_size_commit_log=3 * SEGMENT)
    slave.connect(NEWEST_SEGMENT)
    slave.take(master.stream(0))
    assert slave.link.state is SlaveState.REFUSED
    assert "--segment-bytes" in str(slave.link.refusal)
    assert not list(slave.path.glob("commitlog/*"))
    slave.store.shutdown()


def test_a_blank_record_at_another_place_ends_the_copy(tmp_path: Path, master: MasterLog) -> None:
    slave = Slave(tmp_path / "copy", mapped_file_size_commit_log=2 * SEGMENT)
    for state in (SlaveState.ENDED, SlaveState.REFUSED):
        slave.follow(master)
        assert slave.link.state is state
    assert f"the segment ends at {SEGMENT} there, and at {2 * SEGMENT} here" in str(slave.link.refusal)
    assert SEGMENT - 1000 < slave.log.end_offset < SEGMENT
    slave.store.shutdown()


# -- reports -----------------------------------------------------------------------------------------------------------


def test_reports_say_what_is_on_the_disk_once_the_log_is_proved(slave: Slave, master: MasterLog) -> None:
    link = slave.connect()
    assert link.report(500) == encode_report(1)
    slave.take(master.stream(1)[:20])
    assert link.state is SlaveState.PROVING
    assert link.report(500) == encode_report(1)
    slave.take(master.stream(1)[20:])
    assert link.report(500) == encode_report(500)
    link = slave.connect()
    assert link.report(1 << 40) == encode_report(link.request)


def test_with_sync_flush_what_was_taken_is_synced_at_once(tmp_path: Path, master: MasterLog) -> None:
    slave = Slave(tmp_path / "copy", flush_disk_type=FlushDiskType.SYNC_FLUSH)
    synced = threading.Event()
    slave.store.listen(on_flushed=synced.set)
    slave.follow(master)
    while slave.store.flushed_offset < master.end:
        assert synced.wait(10)
        synced.clear()
    slave.store.shutdown()


# -- again: the overlap ------------------------------------------------------------------------------------------------


@pytest.mark.few
@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("cut", [700, 30_000, SEGMENT - 300, SEGMENT, SEGMENT + 10, SEGMENT + 5000, 2 * SEGMENT])
def test_a_copy_goes_on_after_a_restart(tmp_path: Path, master: MasterLog, cut: int, stopped: bool) -> None:
    slave = Slave(tmp_path / "copy")
    slave.follow(master, end=cut)
    before = slave.log.end_offset
    if stopped:
        slave = again(slave)
    link = slave.connect()
    assert link.state is SlaveState.COMPARING
    assert slave.log.end_offset == before
    assert 1 <= link.request < before
    slave.take(master.stream(link.request))
    assert link.state is SlaveState.COPYING
    assert slave.bytes == master.content
    slave.store.shutdown()


def test_the_overlap_has_64_kib_or_the_newest_record(tmp_path: Path) -> None:
    store = opened(tmp_path / "master", mapped_file_size_commit_log=16 * SEGMENT)
    fill(store, 1000)
    short = store.max_offset
    store.put_message(message(1, size=300_000))
    source = MasterLog(log_bytes(store), segment_bytes=16 * SEGMENT)
    store.shutdown()
    slave = Slave(tmp_path / "copy", mapped_file_size_commit_log=16 * SEGMENT)
    slave.follow(source, end=short)
    slave = again(slave, mapped_file_size_commit_log=16 * SEGMENT)
    assert slave.connect().request == short - OVERLAP_BYTES
    slave.take(source.stream(slave.link.request))
    slave = again(slave, mapped_file_size_commit_log=16 * SEGMENT)
    assert slave.connect().request == short
    slave.store.shutdown()


def test_a_connection_asks_for_nothing_beyond_what_is_synced(tmp_path: Path, master: MasterLog) -> None:
    """The request is a report, too: senders would be told that the slave has what a power cut takes from it."""
    slave = Slave(tmp_path / "copy", flush_interval_commit_log_ms=600_000)
    slave.follow(master, end=2 * SEGMENT + 500)
    assert slave.store.flushed_offset == 0
    link = slave.follow(master)
    assert link.request == FIRST_BYTE
    assert link.state is SlaveState.COPYING
    assert slave.bytes == master.content
    slave = again(slave)
    assert slave.connect().request > 2 * SEGMENT
    slave.store.shutdown()


@pytest.mark.parametrize("back", [1, 90, 1000, 20_000])
def test_another_log_is_refused_and_nothing_changes(slave: Slave, master: MasterLog, back: int) -> None:
    cut = SEGMENT + 30_000
    slave.follow(master, end=cut)
    end, before = slave.log.end_offset, slave.bytes
    other = master.changed(end - back, bytes([master.bytes_at(end - back, 1)[0] ^ 1]))
    link = slave.follow(other)
    assert link.state is SlaveState.REFUSED
    assert str(link.refusal).count("SHA-256") == 1
    assert len([word for word in str(link.refusal).split() if len(word.strip(",;")) == 64]) == 2
    assert (slave.log.end_offset, slave.bytes) == (end, before)
    slave.take(master.stream(link.request))
    assert slave.log.end_offset == end


def test_another_log_changes_nothing_behind_a_blank_record(slave: Slave, master: MasterLog) -> None:
    slave.follow(master, end=SEGMENT)
    assert slave.log.end_offset == SEGMENT
    before, newest = slave.bytes, max(at for at, size in records(master) if at + size < SEGMENT)
    other = master.changed(newest, left_over_bytes(SEGMENT - newest))
    link = slave.connect()
    slave.take(other.stream(link.request), pieces=7)
    assert link.state is SlaveState.REFUSED
    assert slave.bytes == before


def test_nothing_is_appended_before_all_bytes_were_compared(slave: Slave, master: MasterLog) -> None:
    slave.follow(master, end=40_000)
    end = slave.log.end_offset
    other = master.changed(end - 2, b"??")
    slave.connect()
    slave.take(other.stream(slave.link.request), pieces=100)
    assert slave.link.state is SlaveState.REFUSED
    file = slave.path / "commitlog" / f"{0:020d}"
    assert not any(file.read_bytes()[end + 2000 :])


def test_a_master_that_lost_its_newest_messages(slave: Slave, master: MasterLog) -> None:
    slave.follow(master)
    shorter = MasterLog(master.content[: records(master)[-5][0]])
    link = slave.follow(shorter)
    assert link.state is SlaveState.COMPARING
    slave.take(header(shorter.end, 0))
    assert link.state is SlaveState.COMPARING
    slave.take(header(shorter.end, 0))
    assert link.state is SlaveState.REFUSED
    assert f"the master has no bytes from there on, and the copy has some up to {master.end}" in str(link.refusal)
    assert slave.bytes == master.content


def test_a_heartbeat_before_the_first_bytes_means_nothing(slave: Slave, master: MasterLog) -> None:
    slave.follow(master, end=30_000)
    link = slave.connect()
    slave.take(header(link.request, 0) + master.stream(link.request))
    assert link.state is SlaveState.COPYING


def test_a_blank_record_that_lost_its_rest_is_written_again(slave: Slave, master: MasterLog) -> None:
    blank = max(end for end in (at + size for at, size in records(master)) if end < SEGMENT)
    left_over = master.changed(blank + 8, left_over_bytes(SEGMENT - blank - 8))
    slave.follow(left_over, end=SEGMENT)
    assert slave.log.end_offset == SEGMENT
    file = slave.store._log.segments.files[0]
    file.map.write(blank + 8, bytes(SEGMENT - blank - 8))
    slave.follow(left_over)
    assert slave.link.state is SlaveState.COPYING
    assert slave.bytes == left_over.content


# -- disorder ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream",
    [
        header(0, 10),
        header(2, 10),
        header(1 << 62, 10),
        header(1, -1),
        header(-1, 10),
        header(1, 0x7FFFFFFF),
        b"HTTP/1.1 400 Bad",
    ],
)
def test_transfers_that_are_not_the_next_ones_end_the_connection(slave: Slave, stream: bytes) -> None:
    slave.connect()
    slave.take(stream)
    assert slave.link.state is SlaveState.ENDED
    assert slave.log.is_empty


def test_a_gap_or_a_repetition_ends_the_connection(slave: Slave, master: MasterLog) -> None:
    first, _, third, *_ = master.transfers(1)
    for stream in (first + third, first + first):
        link = slave.connect()
        slave.take(stream if link.state is SlaveState.ASKING else master.stream(link.request, end=33_000) + third)
        assert link.state is SlaveState.ENDED
        assert slave.bytes == master.content[: slave.log.end_offset]
    slave.follow(master)
    assert slave.bytes == master.content


def test_a_heartbeat_with_another_offset_ends_the_connection(slave: Slave, master: MasterLog) -> None:
    slave.follow(master, end=40_000)
    slave.take(header(40_000, 0))
    assert slave.link.state is SlaveState.COPYING
    slave.take(header(40_001, 0))
    assert slave.link.state is SlaveState.ENDED


def test_a_lost_connection(slave: Slave, master: MasterLog) -> None:
    slave.follow(master, end=20_000)
    slave.link.lost("closed")
    assert (slave.link.state, slave.link.reason) == (SlaveState.ENDED, "closed")
    slave.link.lost("again")
    assert slave.link.reason == "closed"


# -- damaged records ---------------------------------------------------------------------------------------------------


def damaged(master: MasterLog, number: int, position: int, content: bytes) -> MasterLog:
    """The log with other bytes in record ``number``; a negative position counts from its end."""
    at, size = records(master)[number]
    return master.changed(at + (position if position >= 0 else size + position), content)


def test_a_record_damaged_on_the_way_is_asked_for_again(slave: Slave, master: MasterLog) -> None:
    at, _ = records(master)[300]
    link = slave.follow(damaged(master, 300, 130, b"\xff"))
    assert (link.state, slave.log.end_offset) == (SlaveState.ENDED, at)
    assert str(at) in link.reason
    slave.follow(master)
    assert slave.bytes == master.content
    assert slave.store.gaps == []


def test_a_record_damaged_on_the_master_is_passed_over(slave: Slave, master: MasterLog) -> None:
    at, size = records(master)[300]
    bad = damaged(master, 300, 130, b"\xff")
    slave.follow(bad)
    link = slave.follow(bad)
    assert (link.state, slave.log.end_offset) == (SlaveState.COPYING, master.end)
    assert slave.store.gaps == [(at, at + size)]
    assert (slave.path / "quarantine" / f"{at:020d}").read_bytes() == bad.bytes_at(at, size)
    assert slave.bytes[:at] + slave.bytes[at + size :] == master.content[:at] + master.content[at + size :]
    assert sum(queue[1] for queue in (slave.store.queue_range(b"T%d" % n, q) for n in (0, 1) for q in (0, 1))) == COUNT
    slave.store.shutdown()
    report = verify(with_topics(slave.path))
    assert report.counts == {FindingKind.QUEUE_HOLE: 1}
    assert [note for note in report.notes if f"{at} to {at + size}" in note]


def test_a_log_that_may_become_the_masters_stops_before_a_damaged_record(tmp_path: Path, master: MasterLog) -> None:
    at, _ = records(master)[300]
    bad = damaged(master, 300, 130, b"\xff")
    slave = Slave(tmp_path, passes_damage=False)
    slave.follow(bad)
    link = slave.follow(bad)
    assert (link.state, slave.log.end_offset, slave.store.gaps) == (SlaveState.REFUSED, at, [])
    assert slave.bytes == master.content[:at] and not (tmp_path / "quarantine").exists()
    slave.follow(master)
    assert slave.bytes == master.content
    slave.store.shutdown()


def test_the_store_of_a_slave_refuses_messages(slave: Slave, master: MasterLog) -> None:
    slave.follow(master)
    assert slave.store.put_message(message(1)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert slave.store.put_copy(message(1)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    illegal = message(1, b"x" * 200)
    assert slave.store.put_message(illegal).status is PutMessageStatus.SERVICE_NOT_AVAILABLE, "it is not looked at"
    table, one = new_table(1), message(1)
    source = bytearray(one.body + one.properties)
    fill_row(table, 0, one, 0)
    status = slave.store.append_rows(RowRun(source, memoryview(source), table, 0, 1), one.topic, one.born_host)
    assert status is PutMessageStatus.SERVICE_NOT_AVAILABLE and table[FrameColumn.PHYSICAL_OFFSET] == -1
    assert slave.bytes == master.content


def test_a_copy_goes_on_behind_a_record_that_was_passed_over(tmp_path: Path, master: MasterLog) -> None:
    at, size = records(master)[30]
    bad = damaged(master, 30, 130, b"\xff")
    slave = Slave(tmp_path / "copy")
    for _ in range(2):
        slave.follow(bad, end=at + size + 5000)
    end = slave.log.end_offset
    assert end > at + size
    slave = again(slave)
    assert slave.log.end_offset == end
    slave.follow(bad)
    assert slave.log.end_offset == master.end
    slave.store.shutdown()


def test_a_damaged_record_waits_for_the_next_one(slave: Slave, master: MasterLog) -> None:
    at, size = records(master)[30]
    bad = damaged(master, 30, 130, b"\xff")
    slave.follow(bad)
    slave.follow(bad, end=at + size + 35)
    assert (slave.link.state, slave.log.end_offset) == (SlaveState.COPYING, at)
    slave.take(header(at + size + 35, 1) + bad.bytes_at(at + size + 35, 1))
    assert slave.log.end_offset == at + size


@pytest.mark.parametrize(
    ("position", "content"),
    [
        (0, pack(">i", 0x7FFFFFF0)),  # a size that fits into no segment
        (0, pack(">i", -5)),
        (4, b"\0\0\0\0"),  # no magic number
        (28, pack(">q", 77)),  # another physical offset
        (84, pack(">i", -1)),  # length of the body
    ],
)
def test_a_record_whose_head_cannot_be_trusted_ends_the_copy(
    slave: Slave, master: MasterLog, position: int, content: bytes
) -> None:
    at, _ = records(master)[40]
    bad = damaged(master, 40, position, content)
    slave.follow(bad, pieces=300)
    assert slave.link.state is SlaveState.ENDED
    slave.follow(bad, pieces=5000)
    assert slave.link.state is SlaveState.REFUSED
    assert (slave.log.end_offset, slave.link.refusal is not None and slave.link.refusal.physical_offset) == (at, at)
    assert slave.store.gaps == []


def test_a_damaged_record_whose_successor_does_not_fit_ends_the_copy(slave: Slave, master: MasterLog) -> None:
    at, _ = records(master)[40]
    bad = damaged(damaged(master, 40, 130, b"\xff"), 41, 28, pack(">q", 77))
    slave.follow(bad)
    slave.follow(bad)
    assert (slave.link.state, slave.log.end_offset) == (SlaveState.REFUSED, at)


def test_the_last_record_of_a_segment_is_passed_over(slave: Slave, master: MasterLog) -> None:
    number = max(n for n, (at, _) in enumerate(records(master)) if at < SEGMENT)
    bad = damaged(master, number, 130, b"\xff")
    slave.follow(bad)
    slave.follow(bad)
    assert (slave.link.state, slave.log.end_offset) == (SlaveState.COPYING, master.end)


def test_the_first_record_must_prove_the_log(slave: Slave, master: MasterLog) -> None:
    bad = damaged(master, 0, 130, b"\xff")
    slave.follow(bad)
    assert (slave.link.state, slave.log.is_empty) == (SlaveState.ENDED, True)
    slave.follow(bad)
    assert (slave.link.state, slave.log.is_empty) == (SlaveState.REFUSED, True)


def test_the_byte_that_cannot_be_asked_for_is_taken_to_be_0(slave: Slave, master: MasterLog) -> None:
    large = master.changed(0, b"\x01")
    slave.follow(large)
    slave.follow(large)
    assert slave.bytes == master.content


def test_other_bytes_each_time_end_the_copy_at_last(slave: Slave, master: MasterLog) -> None:
    at, _ = records(master)[40]
    for number in range(11):
        assert slave.link.state is SlaveState.ENDED if number else True
        slave.follow(damaged(master, 40, 100, b"\xff" + bytes([number])))
    assert (slave.link.state, slave.log.end_offset) == (SlaveState.REFUSED, at)


# -- the directory -----------------------------------------------------------------------------------------------------


def test_a_clean_stop_leaves_zeros_behind_the_last_record(tmp_path: Path, master: MasterLog) -> None:
    slave = Slave(tmp_path / "copy")
    slave.follow(master, end=30_000)
    end = slave.log.end_offset
    assert slave.log.received_offset == 30_000 > end
    slave.store.shutdown()
    content = (slave.path / "commitlog" / f"{0:020d}").read_bytes()
    assert not any(content[end:])
    assert not (slave.path / "abort").exists()
    assert not (slave.path / "quarantine").exists()


def test_bytes_of_an_earlier_connection_are_removed_by_a_clean_stop(tmp_path: Path, master: MasterLog) -> None:
    slave = Slave(tmp_path / "copy")
    slave.follow(master, end=30_000)
    end = slave.log.end_offset
    slave.follow(master, end=end + 10)
    assert (slave.log.end_offset, slave.log.received_offset) == (end, end + 10)
    slave.store.shutdown()
    assert not any((slave.path / "commitlog" / f"{0:020d}").read_bytes()[end:])


def test_a_copy_that_was_killed_before_its_first_record_begins_anew(tmp_path: Path, master: MasterLog) -> None:
    killed = Slave(tmp_path / "killed")
    killed.connect(2 * SEGMENT)
    killed.take(master.stream(2 * SEGMENT)[:50])
    slave = Slave(crashed(killed.store, killed.path, tmp_path / "copy"))
    assert slave.log.is_empty
    slave.follow(master, FIRST_BYTE)
    assert slave.bytes == master.content
    slave = again(slave)
    assert slave.log.end_offset == master.end
    slave.store.shutdown()


def test_a_start_that_was_begun_is_asked_for_again(slave: Slave, master: MasterLog) -> None:
    slave.connect(2 * SEGMENT)
    slave.take(master.stream(2 * SEGMENT)[:50])
    assert slave.connect(FIRST_BYTE).request == 2 * SEGMENT
    slave.take(master.stream(2 * SEGMENT))
    assert slave.bytes == master.content[2 * SEGMENT :]


def test_bytes_are_never_written_over_records_or_behind_the_segment(slave: Slave, master: MasterLog) -> None:
    slave.follow(master, end=SEGMENT + 30_000)
    end = slave.log.end_offset
    for place in (0, end - 1, 2 * SEGMENT, 5 * SEGMENT):
        with pytest.raises(ValueError, match=str(end)):
            slave.store._log.write_copy(place, memoryview(b"?"))


def test_nothing_is_read_ahead_of_what_is_written(
    master: MasterLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the check of the new bytes makes the system load what follows them, which is zeros: half of the CPU
    time of catching up.
    """
    told: list[tuple[str, int | bool]] = []
    expecting, reading = FileMap.expect_fill, FileMap.read_ahead

    def expect(self: FileMap, position: int) -> None:
        told.append((self.path[-20:], position))
        expecting(self, position)

    def read_ahead(self: FileMap, ahead: bool) -> None:
        told.append((self.path[-20:], ahead))
        reading(self, ahead)

    slave = Slave(tmp_path / "copy")
    slave.follow(master, end=master.end // 2)
    half = slave.store.max_offset
    slave.store.shutdown()
    monkeypatch.setattr(FileMap, "expect_fill", expect)
    monkeypatch.setattr(FileMap, "read_ahead", read_ahead)
    slave = Slave(tmp_path / "copy")
    told.clear()
    slave.follow(master)
    slave.store.shutdown()
    names = [f"{start:020d}" for start in range(half - half % SEGMENT, master.end, SEGMENT)]
    assert len(names) > 1
    expected: list[tuple[str, int | bool]] = [(names[0], half % SEGMENT)]
    for before, name in pairwise(names):
        expected += [(before, True), (name, 0)]
    assert told == expected


def test_advice_on_what_will_be_written_may_come_for_any_place(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(10_000))
    segment = Files().map_file(str(path))
    for position in (0, 1, 4096, 8192, 9_999, 10_000):
        segment.expect_fill(position)
    segment.close()
    segment.expect_fill(0)
