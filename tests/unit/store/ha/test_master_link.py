"""A master's side of a connection: what it sends, believes and refuses."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.masters import Slave, log_bytes
from tests.unit.store.stores import SEGMENT, fill, opened, sync_config

from rucola.errors import DiskError
from rucola.formats.ha import (
    FIRST_BYTE,
    NEWEST_SEGMENT,
    TRANSFER_HEADER,
    decode_header,
    encode_header,
    encode_report,
)
from rucola.runtime.files import Files
from rucola.store.ha.master_link import NO_REPORT, MasterLink
from rucola.store.ha.sent_log import SentLog
from rucola.store.ha.slave_state import SlaveState
from rucola.store.log.cold_read import ColdRead
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

RECORDED = Path(__file__).parents[3] / "golden/ha/slave/fresh.json"
BATCH = 32_768


class ScriptedLog(SentLog):
    """A log whose bytes are those of ``content``.

    Attributes:
        cold: whether the bytes must be fetched first.
        failing: whether the disk cannot read them.
    """

    def __init__(self, start: int, end: int, segment_bytes: int = SEGMENT) -> None:
        self.start, self.end = start, end
        self.segment_bytes = segment_bytes
        self.cold = self.failing = False
        self.waited = 0

    @property
    def min_offset(self) -> int:
        return self.start

    @property
    def sendable_offset(self) -> int:
        return self.end

    def copy_of(self, physical_offset: int, most: int, cold: ColdRead | None) -> bytes | None:
        if self.failing:
            raise DiskError("commitlog", "read", "no")
        if self.cold and cold is not None:
            return None
        self.waited += cold is None
        to_end = self.segment_bytes - physical_offset % self.segment_bytes
        return bytes(min(most, to_end, self.end - physical_offset))


def asked(log: SentLog, report: int, transfer_bytes: int = BATCH) -> MasterLink:
    link = MasterLink(log, transfer_bytes)
    link.receive(encode_report(report) if report >= 0 else report.to_bytes(8, "big", signed=True))
    return link


def everything(link: MasterLink) -> bytes:
    """All that is sent, with what must be fetched."""
    sent = b""
    while (transfer := link.transfer()) is not None or link.cold is not None:
        if transfer is not None:
            sent += transfer.header + bytes(transfer.content)
        elif link.cold is not None:
            link.cold.fetch()
            link.fetched()
    return sent


def synced(store: MessageStore) -> None:
    """Waits until the log is on the disk."""
    store.flush_soon()
    while store.flushed_offset < store.max_offset:
        time.sleep(0.001)


def test_an_official_slave_got_the_same_headers_and_its_reports_are_believed() -> None:
    """The recorded slave took this stream: see ``tests/golden/ha/README.md``."""
    log = ScriptedLog(SEGMENT, SEGMENT)
    link = MasterLink(log, 1 << 20)
    transfers = reports = 0
    for event in json.loads(RECORDED.read_text())["events"]:
        if event.get("way") == "s2m":
            link.receive(encode_report(event["report"]))
            reports += 1
            assert (link.reason, link.acknowledged) == ("", event["report"])
        elif event.get("way") == "m2s":
            log.end = event["offset"] + event["n"]
            transfer = link.transfer()
            header = link.heartbeat() if transfer is None else transfer.header
            assert decode_header(header) == (event["offset"], event["n"])
            assert len(header) + (0 if transfer is None else len(transfer.content)) == event["n_bytes"]
            transfers += 1
    assert (transfers, reports) == (6, 6)


def test_a_new_slave_of_a_log_without_records_waits_for_the_first(tmp_path: Path) -> None:
    """It asks for byte 1, because byte 0 cannot be asked for."""
    store = opened(tmp_path)
    link = MasterLink(store.sent_log(), BATCH)
    link.receive(encode_report(FIRST_BYTE))
    assert (link.reason, link.transfer(), decode_header(link.heartbeat()).physical_offset) == ("", None, FIRST_BYTE)
    fill(store, 1)
    transfer = link.transfer()
    assert transfer is not None and bytes(transfer.content) == log_bytes(store)[1:]
    store.shutdown()


@pytest.mark.parametrize("start", [FIRST_BYTE, NEWEST_SEGMENT])
@pytest.mark.parametrize("sync", [False, True])
def test_a_slave_of_ours_gets_the_log_byte_by_byte(tmp_path: Path, start: int, sync: bool) -> None:
    made = sync_config(tmp_path / "master") if sync else None
    store = opened(tmp_path / "master") if made is None else MessageStore(made, Files(), ManualClock(step_ms=1))
    if made is not None:
        store.load()
        store.start()
    fill(store, 700)
    slave, first = Slave(tmp_path / "copy"), store.max_offset
    for _ in range(3):
        synced(store)
        link, theirs = MasterLink(store.sent_log(), 10_000), slave.connect(start)
        link.receive(theirs.report(slave.store.flushed_offset))
        slave.take(everything(link))
        assert theirs.state is SlaveState.COPYING
        whole = log_bytes(store)
        begun = 0 if start == FIRST_BYTE else first - first % SEGMENT
        assert slave.bytes == whole[begun:]
        synced(slave.store)
        assert link.receive(theirs.report(slave.store.flushed_offset)) and link.acknowledged == store.flushed_offset
        fill(store, 100)
    slave.store.shutdown()
    store.shutdown()


def test_with_sync_flush_only_synced_bytes_leave(tmp_path: Path) -> None:
    store = MessageStore(sync_config(tmp_path), Files(), ManualClock(step_ms=1))
    store.load()
    store.start()
    log = store.sent_log()
    fill(store, 5)
    assert log.sendable_offset <= store.flushed_offset
    assert store.max_offset > 0
    synced(store)
    assert log.sendable_offset == store.max_offset
    store.shutdown()


def test_transfers_end_with_segments_and_have_at_most_the_given_size() -> None:
    link = asked(ScriptedLog(0, 2 * SEGMENT + 500), SEGMENT - 100, 40_000)
    sizes, at = [], SEGMENT - 100
    while (transfer := link.transfer()) is not None:
        assert decode_header(transfer.header) == (at, len(transfer.content))
        at += len(transfer.content)
        sizes.append(len(transfer.content))
    assert sizes == [100, 40_000, SEGMENT - 40_000, 500]


@pytest.mark.parametrize(
    ("end", "start"),
    [(0, 0), (1, 0), (SEGMENT, 0), (SEGMENT + 1, SEGMENT), (3 * SEGMENT, 2 * SEGMENT)],
)
def test_a_slave_with_nothing_gets_the_newest_segment_that_has_something(end: int, start: int) -> None:
    """RocketMQ's master begins behind a log that ends with a segment."""
    link = asked(ScriptedLog(0, end), NEWEST_SEGMENT)
    assert (link.next_offset, link.acknowledged, link.reason) == (start, 0, "")


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (-1, "the slave asks for -1"),
        (-(1 << 63), "the slave asks for"),
        (SEGMENT - 1, "but the log begins at"),
    ],
)
def test_what_this_log_cannot_follow_is_refused(report: int, reason: str) -> None:
    link = asked(ScriptedLog(SEGMENT, 3 * SEGMENT), report)
    assert reason in link.reason and link.acknowledged == NO_REPORT
    assert link.transfer() is None and link.heartbeat() == b""


@pytest.mark.parametrize("report", [3 * SEGMENT + 1, (1 << 63) - 1])
def test_a_slave_that_has_more_is_told_where_this_log_ends(report: int) -> None:
    """RocketMQ's master sends heartbeats for ever, counts such a slave as in sync, and later sends it the inside of a
    record.
    """
    link = asked(ScriptedLog(SEGMENT, 3 * SEGMENT), report)
    assert link.transfer() == (encode_header(3 * SEGMENT, 0), b"")
    assert link.transfer() is None and link.heartbeat() == b""
    assert (link.reason, link.acknowledged) == ("", NO_REPORT)
    link.receive(encode_report(report))
    assert "it is another log" in link.reason and link.acknowledged == NO_REPORT
    assert link.transfer() is None


def test_a_slave_may_come_before_the_first_message() -> None:
    """It asks for what follows the first byte. A master with minInSyncReplicas=2 gets no message before it has come."""
    log = ScriptedLog(0, 0)
    link = asked(log, FIRST_BYTE)
    assert (link.reason, link.acknowledged, link.transfer()) == ("", 0, None)
    assert decode_header(link.heartbeat()) == (1, 0)
    link.receive(encode_report(FIRST_BYTE))
    assert not link.reason
    log.end = 300
    transfer = link.transfer()
    assert transfer is not None and decode_header(transfer.header) == (1, 299)
    link = asked(ScriptedLog(0, 0), 2)
    assert link.transfer() == (encode_header(0, 0), b"")
    link.receive(encode_report(2))
    assert "another log" in link.reason


def test_reports_count_only_as_far_as_was_sent() -> None:
    """At RocketMQ's master, one false report releases every send that waits."""
    log = ScriptedLog(0, SEGMENT)
    link = asked(log, 0, 1000)
    link.transfer()
    assert link.receive(encode_report(1000)) and link.acknowledged == 1000
    assert not link.receive(encode_report(1001)) and link.acknowledged == 1000
    assert "was sent the log up to 1000 only" in link.reason and link.transfer() is None
    assert not link.receive(encode_report(1000)), "nothing counts any more"


def test_a_request_confirms_nothing() -> None:
    """It may come from a slave of another log, which sees that only when it compares what it is sent."""
    link = asked(ScriptedLog(0, SEGMENT), 900)
    assert (link.acknowledged, link.confirmed) == (900, NO_REPORT)
    link.transfer()
    link.receive(encode_report(900))
    assert link.confirmed == NO_REPORT
    link.receive(encode_report(901))
    assert link.confirmed == 901


def test_a_report_that_goes_back_is_refused() -> None:
    link = asked(ScriptedLog(0, SEGMENT), 500)
    link.transfer()
    assert link.receive(encode_report(900)) and not link.receive(encode_report(899))
    assert "899 after 900" in link.reason


def test_reports_come_in_any_pieces() -> None:
    link = MasterLink(ScriptedLog(0, SEGMENT), 1000)
    grew = []
    stream = encode_report(100) + encode_report(100)
    for position in range(len(stream)):
        grew.append(link.receive(stream[position : position + 1]))
    assert [position for position, is_more in enumerate(grew) if is_more] == [7]
    link.transfer()
    assert link.receive(encode_report(200) + encode_report(300) + b"\0" * 7) and link.acknowledged == 300


def test_a_log_that_expires_under_a_slave_ends_the_connection() -> None:
    log = ScriptedLog(0, 3 * SEGMENT)
    link = asked(log, 100)
    log.start = SEGMENT
    assert link.transfer() is None and "has expired; the log begins at 65536" in link.reason


def test_what_is_not_in_memory_is_fetched_first_and_then_waited_for() -> None:
    log = ScriptedLog(0, SEGMENT)
    log.cold = True
    link = asked(log, 100)
    assert link.transfer() is None and link.cold is not None
    assert link.transfer() is None, "one fetch at a time"
    link.fetched()
    assert link.transfer() is not None and log.waited == 1
    assert link.transfer() is None and link.cold is not None, "the next bytes are looked at again"


def test_there_are_no_heartbeats_while_something_is_fetched() -> None:
    """Two heartbeats instead of the bytes that it compares tell a slave that this log ends there."""
    log = ScriptedLog(0, SEGMENT)
    log.cold = True
    link = asked(log, 500)
    assert link.heartbeat()
    assert link.transfer() is None and link.cold is not None
    assert link.heartbeat() == b""
    link.fetched()
    assert link.transfer() is not None and link.heartbeat()


def test_a_disk_that_cannot_read_ends_the_connection() -> None:
    log = ScriptedLog(0, SEGMENT)
    link = asked(log, 100)
    log.failing = True
    assert link.transfer() is None and "cannot be read" in link.reason


def test_before_the_first_report_nothing_is_sent() -> None:
    link = MasterLink(ScriptedLog(0, SEGMENT), 1000)
    assert link.transfer() is None and link.heartbeat() == b"" and link.acknowledged == NO_REPORT
    assert decode_header(asked(ScriptedLog(0, 100), 100).heartbeat()[: TRANSFER_HEADER.size]) == (100, 0)


def test_a_slave_that_begins_at_the_newest_segment_lacks_the_others() -> None:
    assert asked(ScriptedLog(0, 3 * SEGMENT + 10), NEWEST_SEGMENT).start == 3 * SEGMENT
    assert asked(ScriptedLog(0, 3 * SEGMENT + 10), FIRST_BYTE).start == 0
