"""A slave whose log parts from its master's goes back to the last common record."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.masters import MasterLog, Slave, header, log_bytes
from tests.unit.store.stores import SEGMENT, crashed, fill, message, opened, with_topics

from rucola.formats.message import BLANK, MAGIC_BLANK
from rucola.formats.tables import decode_consumer_offsets, decode_delay_offsets
from rucola.runtime.files import Files
from rucola.store.ha.common_point import CommonPoint
from rucola.store.ha.overlap import OVERLAP_BYTES
from rucola.store.ha.slave_link import FIRST_BYTE, SlaveLink
from rucola.store.ha.slave_state import SlaveState
from rucola.store.log.log_reader import Gap, LogReader
from rucola.store.log.segment_list import SegmentList
from rucola.store.recovery.log_cut import LogCut
from rucola.store.recovery.marks import StoreMarks
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.watermark import Watermark, WatermarkFile, Writer, WriterMark
from rucola.store.verify.check import verify

ALL = 1 << 40


class Parted:
    """A slave and a master that had the same log once.

    Attributes:
        common: physical offset up to which the logs are equal.
        master: the master's log.
        requests: what the slave has asked for.
    """

    def __init__(self, path: Path, common: int, ours: int, theirs: int) -> None:
        self.path = path / "slave"
        store = opened(self.path)
        fill(store, common)
        self.common = store.max_offset
        store.shutdown()
        shutil.copytree(self.path, path / "master")
        for name, count, first in (("slave", ours, 10_000), ("master", theirs, 20_000)):
            store = opened(path / name)
            fill(store, count, first=first)
            if name == "master":
                self.master = MasterLog(log_bytes(store))
            store.shutdown()
        self.requests: list[int] = []
        self.slave = Slave(self.path)

    def search(self, tells_end: bool = False, most: int = 100) -> tuple[SlaveLink, CommonPoint]:
        """Connects until the slave knows what to do.

        Args:
            tells_end: whether the master says where its log ends, as ours does.
            most: number of connections after which the search takes too long.
        """
        common = self.slave.log.common_point()
        for _ in range(most):
            link = SlaveLink(self.slave.log, FIRST_BYTE, str(self.path), common)
            self.requests.append(link.request)
            self.answer(link, tells_end)
            if link.state is not SlaveState.ENDED:
                return link, common
            assert link.is_answered, link.reason
        raise AssertionError(f"{most} connections")

    def answer(self, link: SlaveLink, tells_end: bool) -> None:
        """Sends what a master sends."""
        if tells_end and link.request > self.master.end:
            link.receive(memoryview(header(self.master.end, 0)))
            return
        link.receive(memoryview(self.master.stream(link.request)))
        at = max(link.request, self.master.end) if link.request >= self.master.start else link.request
        link.receive(memoryview(header(at, 0)))
        link.receive(memoryview(header(at, 0)))

    def cut(self, common: CommonPoint, most: int = ALL) -> None:
        """Cuts the log, and opens it again."""
        self.slave.store.plan_cut(common.cut_offset, most)
        self.slave.store.shutdown()
        self.slave = Slave(self.path)

    def follow(self) -> None:
        """Copies the master to its end; the copy has its bytes and no fault."""
        link = self.slave.follow(self.master)
        assert link.state is SlaveState.COPYING
        start = max(self.slave.log.min_offset, self.master.start)
        assert self.slave.bytes[start - self.slave.log.min_offset :] == self.master.content[start - self.master.start :]
        assert self.slave.store.dispatch_behind_bytes == 0
        self.slave.store.shutdown()
        with_topics(self.path)
        report = verify(str(self.path))
        assert report.clean, report.findings
        assert not (self.path / "commitlog" / "rucola-cut").exists()


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[Parted]:
    found = Parted(tmp_path, 900, 60, 400)
    yield found
    found.slave.store.shutdown()


def kept(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((path / "quarantine").iterdir()) if file.suffix != ".json"}


@pytest.mark.few
@pytest.mark.parametrize("tells_end", [False, True])
@pytest.mark.parametrize(
    ("common", "ours", "theirs"),
    [
        (900, 60, 400),  # the master has written on
        (900, 60, 0),  # the master's log ends before ours
        (900, 60, 10),
        (300, 1200, 1500),  # several segments
        (300, 1200, 200),
        (900, 1, 1),
        (1, 900, 900),
    ],
)
def test_a_copy_goes_back_to_the_last_common_record(
    tmp_path: Path, common: int, ours: int, theirs: int, tells_end: bool
) -> None:
    parted = Parted(tmp_path, common, ours, theirs)
    before, end = parted.slave.bytes, parted.slave.log.end_offset
    link, point = parted.search(tells_end)
    assert (link.state, point.cut_offset) == (SlaveState.CUTTING, parted.common)
    assert len(parted.requests) < 40
    assert parted.slave.bytes == before  # the search changes nothing
    parted.cut(point)
    assert parted.slave.log.end_offset == parted.common
    assert parted.slave.bytes == before[: parted.common]
    cut = bytearray(end)
    for name, content in kept(parted.path).items():
        cut[int(name) : int(name) + len(content)] = content
    assert cut[parted.common :] == before[parted.common :]
    parted.follow()


def test_the_search_goes_back_in_growing_steps(tmp_path: Path) -> None:
    parted = Parted(tmp_path, 300, 1500, 1600)
    parted.search()
    steps = [before - after for before, after in pairwise(parted.requests[1:5])]
    for number, step in enumerate(steps[:2], 1):
        assert OVERLAP_BYTES << number <= step < (OVERLAP_BYTES << number) + 1000
    parted.slave.store.shutdown()


def test_the_manifests_say_what_was_cut(parted: Parted) -> None:
    before = parted.slave.bytes
    parted.cut(parted.search()[1])
    (name, content), *_ = kept(parted.path).items()
    manifest = json.loads((parted.path / "quarantine" / f"{name}.json").read_text())
    assert manifest == {
        "physicalOffset": parted.common,
        "length": len(content),
        "sha256": hashlib.sha256(before[parted.common : parted.common + len(content)]).hexdigest(),
        "logEnd": parted.common,
        "reason": "the master has other records from here on",
        "kept": True,
    }


def test_more_than_quarantine_may_have_leaves_digests(parted: Parted, caplog: pytest.LogCaptureFixture) -> None:
    surplus = parted.slave.log.end_offset - parted.common
    before = parted.slave.bytes[parted.common :]
    parted.cut(parted.search()[1], surplus - 1)
    assert kept(parted.path) == {}
    assert "only their digests are kept" in caplog.text
    manifest = json.loads((parted.path / "quarantine" / f"{parted.common:020d}.json").read_text())
    assert (manifest["kept"], manifest["length"]) == (False, surplus)
    assert manifest["sha256"] == hashlib.sha256(before).hexdigest()
    parted.follow()


def test_exactly_as_much_as_quarantine_may_have_is_kept(parted: Parted) -> None:
    parted.cut(parted.search()[1], parted.slave.log.end_offset - parted.common)
    assert len(kept(parted.path)) == 1


def test_another_log_is_refused_and_nothing_changes(tmp_path: Path, parted: Parted) -> None:
    store = opened(tmp_path / "other")
    fill(store, 1500, first=70_000)
    parted.master = MasterLog(log_bytes(store))
    store.shutdown()
    before = parted.slave.bytes
    link, point = parted.search()
    assert (link.state, point.cut_offset, point.is_searching) == (SlaveState.REFUSED, -1, False)
    assert "another log" in str(link.refusal)
    assert parted.slave.bytes == before
    assert not (parted.path / "quarantine").exists()


@pytest.mark.parametrize("tells_end", [False, True])
def test_an_empty_master_is_refused(parted: Parted, tells_end: bool) -> None:
    parted.master = MasterLog(b"")
    assert parted.search(tells_end)[0].state is SlaveState.REFUSED


def test_without_the_option_the_refusal_names_it(parted: Parted) -> None:
    link = parted.slave.follow(parted.master)
    assert link.state is SlaveState.REFUSED and "--rejoin" in str(link.refusal)
    parted.master = MasterLog(parted.master.content[: parted.common - 10])
    link = parted.slave.connect()
    parted.answer(link, False)
    assert link.state is SlaveState.REFUSED and "--rejoin" in str(link.refusal)
    link = parted.slave.connect()
    link.receive(memoryview(header(link.request - 100, 0)))  # a master of ours tells its end
    assert link.state is SlaveState.REFUSED and "--rejoin" in str(link.refusal)


def test_what_has_expired_on_the_master_is_not_taken_for_its_end(tmp_path: Path) -> None:
    parted = Parted(tmp_path, 600, 1200, 1500)
    start = parted.common - parted.common % SEGMENT
    assert start > SEGMENT
    parted.master = MasterLog(parted.master.content[start:], start)
    link, point = parted.search()
    assert (link.state, point.cut_offset) == (SlaveState.CUTTING, parted.common)
    parted.cut(point)
    parted.follow()


def test_all_that_is_common_has_expired_on_the_master(tmp_path: Path) -> None:
    parted = Parted(tmp_path, 300, 1200, 1500)
    start = parted.common - parted.common % SEGMENT + SEGMENT
    parted.master = MasterLog(parted.master.content[start:], start)
    link, _ = parted.search()
    assert link.state is SlaveState.REFUSED
    parted.slave.store.shutdown()


def test_where_the_masters_log_lies_is_used_if_it_is_known(tmp_path: Path) -> None:
    parted = Parted(tmp_path, 900, 1500, 10)
    common = parted.slave.log.common_point()
    link = SlaveLink(parted.slave.log, FIRST_BYTE, str(parted.path), common)
    parted.answer(link, False)
    assert link.state is SlaveState.ENDED
    while link.state is SlaveState.ENDED:
        common.bound(parted.master.start, parted.master.end)
        link = SlaveLink(parted.slave.log, FIRST_BYTE, str(parted.path), common)
        parted.requests.append(link.request)
        parted.answer(link, False)
    assert common.cut_offset == parted.common
    assert max(parted.requests) <= parted.master.end
    parted.slave.store.shutdown()


def test_a_master_that_knows_nothing_common_by_its_bounds(parted: Parted) -> None:
    common = parted.slave.log.common_point()
    link = SlaveLink(parted.slave.log, FIRST_BYTE, str(parted.path), common)
    parted.answer(link, False)
    common.bound(ALL, ALL + 100)
    link = SlaveLink(parted.slave.log, FIRST_BYTE, str(parted.path), common)
    assert link.state is SlaveState.REFUSED
    assert not common.is_searching


def test_records_that_are_equal_by_chance_cut_nothing(tmp_path: Path) -> None:
    """Every second record of the slave's stands in the master's log, too; what is before it differs."""
    parted = Parted(tmp_path, 900, 100, 400)
    ours, at = parted.slave.bytes, parted.common
    starts = []
    while at < len(ours):
        size, _ = BLANK.unpack(ours[at : at + BLANK.size])
        starts.append((at, size))
        at += size
    for at, size in starts[1::2]:
        parted.master = parted.master.changed(at, ours[at : at + size])
    link, point = parted.search()
    assert (link.state, point.cut_offset) == (SlaveState.CUTTING, parted.common)
    parted.slave.store.shutdown()


def test_a_lost_connection_is_asked_again(parted: Parted) -> None:
    common = parted.slave.log.common_point()
    link = SlaveLink(parted.slave.log, FIRST_BYTE, str(parted.path), common)
    parted.answer(link, False)
    for _ in range(3):
        link = SlaveLink(parted.slave.log, FIRST_BYTE, str(parted.path), common)
        parted.requests.append(link.request)
        link.receive(memoryview(parted.master.stream(link.request))[:100])
        link.lost("no more")
        assert link.state is SlaveState.ENDED and not link.is_answered
    assert len(set(parted.requests)) == 1
    link = SlaveLink(parted.slave.log, FIRST_BYTE, str(parted.path), common)
    link.receive(memoryview(header(link.request + 1, 100)))
    assert link.state is SlaveState.ENDED and not link.is_answered
    assert common.is_searching


def test_gaps_are_not_compared_and_those_behind_the_cut_are_forgotten(tmp_path: Path) -> None:
    parted = Parted(tmp_path, 900, 60, 400)
    parted.slave.store.shutdown()
    content = parted.slave.store  # closed
    del content
    ours = b"".join(file.read_bytes() for file in sorted((parted.path / "commitlog").iterdir()))
    starts, at = [], 0
    while BLANK.unpack(ours[at : at + 8])[0] > 0:
        size, magic = BLANK.unpack(ours[at : at + 8])
        if magic != MAGIC_BLANK:
            starts.append((at, at + size))
        at += size
    last_common = max(start for start, _ in starts if start < parted.common)
    places = [place for place in starts if place[0] in (starts[200][0], last_common)]
    places.append(starts[-3])
    quarantine = Quarantine(Files(), str(parted.path))
    for start, end in places:
        quarantine.record_gap(Gap(start, end))
    for start, _ in places[:2]:
        parted.master = parted.master.changed(start + 100, b"\xfe\xfe")
    parted.slave = Slave(parted.path)
    link, point = parted.search()
    assert (link.state, point.cut_offset) == (SlaveState.CUTTING, places[1][0])
    parted.cut(point)
    assert quarantine.gaps() == [Gap(*places[0])]
    assert parted.slave.store.gaps == [Gap(*places[0])]
    parted.slave.store.shutdown()


def test_offsets_and_timers_go_down_with_the_log(parted: Parted) -> None:
    config = parted.path / "config"
    config.mkdir(exist_ok=True)
    table = '{"offsetTable":{"T0@g":{0:100000,1:3},"gone@g":{0:7}}}'
    (config / "consumerOffset.json").write_text(table)
    (config / "consumerOffset.json.bak").write_text(table)
    (config / "lmqConsumerOffset.json").write_text("{")
    (config / "delayOffset.json").write_text('{"offsetTable":{1:5}}')
    (config / "timercheck").write_bytes(bytes(4096))
    (parted.path / "timerwheel").write_bytes(b"wheel")
    (parted.path / "timerlog").mkdir()
    parted.cut(parted.search()[1])
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        _, offsets = decode_consumer_offsets((config / name).read_bytes())
        assert offsets == {"T0@g": {0: 225, 1: 3}, "gone@g": {0: 7}}
    assert (config / "lmqConsumerOffset.json").read_text() == "{"
    assert decode_delay_offsets((config / "delayOffset.json").read_bytes())[1] == {1: 5}
    quarantined = {file.name for file in (parted.path / "quarantine").iterdir()}
    assert quarantined >= {"timerwheel", "timerlog", "timercheck"}
    assert not (parted.path / "timerwheel").exists() and not (config / "timercheck").exists()
    (config / "lmqConsumerOffset.json").unlink()
    parted.follow()


def test_queues_and_index_end_with_the_log(parted: Parted) -> None:
    parted.cut(parted.search()[1])
    assert [parted.slave.store.queue_range(b"T0", queue)[1] for queue in (0, 1)] == [225, 225]
    assert parted.slave.store.query_by_key(b"T0", b"key-898").views
    assert not parted.slave.store.query_by_key(b"T0", b"key-10000").views


def test_the_watermark_goes_down_first(parted: Parted) -> None:
    """It forgets who wrote what is cut off."""
    parted.slave.store.plan_cut(parted.common, ALL)
    parted.slave.store.shutdown()
    root, files = str(parted.path), Files()
    before = WatermarkFile(files, root)
    writers = (WriterMark(0, Writer.RUCOLA), WriterMark(parted.common, Writer.UNKNOWN))
    known = before.read()
    assert known is not None and known.clean and known.flushed_offset > parted.common
    before.write(replace(known, writers=writers))
    segments = SegmentList(files, f"{root}/commitlog", SEGMENT)
    segments.load()
    LogCut(files, root, LogReader(segments), StoreMarks(files, root), Quarantine(files, root)).begin()
    segments.close()
    assert WatermarkFile(files, root).read() == Watermark(parted.common, parted.common, writers=writers[:1])
    parted.slave = Slave(parted.path)
    parted.follow()


def test_a_log_without_a_watermark_is_cut(parted: Parted) -> None:
    _, point = parted.search()
    parted.slave.store.plan_cut(point.cut_offset, ALL)
    parted.slave.store.shutdown()
    (parted.path / "rucola-watermark").unlink()
    parted.slave = Slave(parted.path)
    parted.follow()


def test_a_second_cut_at_the_same_place_keeps_both(parted: Parted) -> None:
    parted.cut(parted.search()[1])
    parted.slave.store.shutdown()
    store = opened(parted.path)
    fill(store, 30, first=50_000)
    store.shutdown()
    parted.slave = Slave(parted.path)
    parted.cut(parted.search()[1])
    assert len(kept(parted.path)) == 2
    parted.follow()


@pytest.mark.parametrize("is_killed", [False, True])
def test_offsets_of_a_topic_that_only_the_copy_had_go_to_zero(tmp_path: Path, is_killed: bool) -> None:
    """Otherwise the group would miss the first messages of a topic of that name."""
    parted = Parted(tmp_path, 300, 1, 1)
    parted.slave.store.shutdown()
    store = opened(parted.path)
    for number in range(5):
        store.put_message(message(number, b"Late"))
    store.dispatch()
    (parted.path / "config").mkdir(exist_ok=True)
    (parted.path / "config/consumerOffset.json").write_text('{"offsetTable":{"Late@g":{0:5}}}')
    if is_killed:
        parted.path = crashed(store, parted.path, tmp_path / "killed")
    else:
        store.shutdown()
    parted.slave = Slave(parted.path)
    parted.cut(parted.search()[1])
    _, offsets = decode_consumer_offsets((parted.path / "config/consumerOffset.json").read_bytes())
    assert offsets == {"Late@g": {0: 0}}
    parted.slave.store.shutdown()
