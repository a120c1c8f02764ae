"""Both sides of a connection behind a controller, against what official brokers have sent, and against each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.masters import log_bytes
from tests.unit.store import stores
from tests.unit.store.ha.test_master_link import ScriptedLog
from tests.unit.store.stores import SEGMENT, fill, opened

from rucola.formats.auto_switch import (
    AUTO_SWITCH_ANSWER,
    EPOCH_ENTRY,
    EpochEntry,
    EpochTransfer,
    Hello,
    decode_answer,
    decode_transfer,
    encode_answer,
    encode_epoch_report,
    encode_hello,
    encode_transfer,
)
from rucola.runtime.files import Files
from rucola.store.ha.epoch_master import EpochMasterLink
from rucola.store.ha.epoch_slave import EpochSlaveLink
from rucola.store.ha.epoch_store import EpochStore
from rucola.store.ha.epochs import EpochList
from rucola.store.ha.master_link import NO_REPORT
from rucola.store.ha.slave_state import SlaveState
from rucola.store.log.cold_read import ColdRead
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

RECORDED = Path(__file__).parents[3] / "golden/ha/controller"
BATCH = 32_768
S = 65_536
"""Length of a segment in the recordings."""
Event = dict[str, Any]


def epochs(*entries: tuple[int, int]) -> EpochList:
    return EpochList(EpochEntry(*entry) for entry in entries)


# -- recordings --------------------------------------------------------------------------------------------------------


def recorded(name: str, way: str) -> list[tuple[Event, bytes]]:
    """Events of a recording with the bytes of frames; ``way`` says who connects: ``connected`` or ``accepted``."""
    streams = {side: (RECORDED / f"{name}.{side}.bin").read_bytes() for side in ("m2s", "s2m")}
    found, ours = [], False
    for event in json.loads((RECORDED / f"{name}.json").read_text())["events"]:
        if "connected" in event or "accepted" in event:
            ours = way in event
        frame, side = b"", event.get("way")
        if side:
            frame, streams[side] = streams[side][: event["n_bytes"]], streams[side][event["n_bytes"] :]
        if ours:
            found.append((event, frame))
    return found


class RecordedLog(ScriptedLog):
    """A master's log, whose bytes are taken from the recording that is replayed."""

    def __init__(self) -> None:
        super().__init__(0, 0, S)
        self.content = bytearray(1 << 18)

    def copy_of(self, physical_offset: int, most: int, cold: ColdRead | None) -> bytes | None:
        found = super().copy_of(physical_offset, most, cold)
        assert found is not None
        return bytes(self.content[physical_offset : physical_offset + len(found)])


@pytest.mark.parametrize(
    "name", ["empty_master", "fresh", "learner", "last_file", "resume", "failover", "three_epochs"]
)
@pytest.mark.parametrize("pieces", [1, 100])
def test_our_master_sends_what_an_official_one_sent(name: str, pieces: int) -> None:
    """Byte for byte, except for the names of epochs where RocketMQ names the next one."""
    log, confirm, known, renamed = RecordedLog(), [0], [epochs()], 0
    events = recorded(name, "connected")
    for event, frame in events:
        if event.get("state") == 2:
            log.content[event["offset"] : event["offset"] + event["n"]] = frame[36:]
    link, is_wrong = None, False
    for event, frame in events:
        if "connected" in event:
            link = EpochMasterLink(log, lambda: known[0], lambda: confirm[0], BATCH)
        assert link is not None
        if event.get("way") == "s2m":
            for at in range(0, len(frame), pieces):
                link.receive(frame[at : at + pieces])
        elif event.get("state") == 1:
            # The answer tells what the log was; our link is asked again when it is known.
            known[0], log.end = epochs(*map(tuple, event["epochs"])), event["max"]
            _ask_again(link)
            transfer = link.transfer()
            assert transfer is not None and transfer.header == frame
        elif event.get("way") == "m2s":
            confirm[0], log.end = event["confirm"], max(log.end, event["offset"] + event["n"])
            transfer = link.transfer()
            sent = link.heartbeat() if transfer is None else transfer.header + bytes(transfer.content)
            named = decode_transfer(sent)
            if named.body_bytes and event["epoch_start"] >= event["offset"] + event["n"]:
                assert named.epoch < event["epoch"] and named.epoch_start <= event["offset"]
                renamed += 1
                sent = (
                    encode_transfer(named._replace(epoch=event["epoch"], epoch_start=event["epoch_start"])) + sent[36:]
                )
            assert sent == frame
        is_wrong = is_wrong or event.get("raw") == "state 3"
        assert ("state 3" in link.reason) if is_wrong else (link.reason == "")
    assert renamed == (5 if name == "three_epochs" else 0)


def _ask_again(link: EpochMasterLink) -> None:
    """Repeats the handshake that was sent last."""
    assert link.hello is not None
    link.transfer()
    link.receive(encode_hello(link.hello))


def test_a_report_without_a_handshake_is_refused() -> None:
    """RocketMQ serves it, and proposes the number -1 for the set in sync."""
    link = EpochMasterLink(RecordedLog(), lambda: epochs((1, 0)), lambda: 0, BATCH)
    for event, frame in recorded("early_report", "connected"):
        if event.get("way") == "s2m":
            assert not link.receive(frame)
    assert "without a handshake" in link.reason
    assert (link.transfer(), link.acknowledged) == (None, NO_REPORT)


def test_our_slave_takes_what_an_official_slave_took(tmp_path: Path) -> None:
    """The recordings have the last segment of the log: an old master, which is cut, and follows."""
    content = bytearray(1 << 18)
    for name in ("last_file", "resume", "early_report", "failover", "three_epochs"):
        for event, frame in recorded(name, "connected"):
            if event.get("state") == 2:
                content[event["offset"] : event["offset"] + event["n"]] = frame[36:]
    slave = Replica(tmp_path, segment=S)
    link = slave.connect(Hello(1, from_last_file=True))
    last_file = recorded("last_file", "connected")
    slave.feed(b"".join(frame for event, frame in last_file if event.get("way") == "m2s"), 999)
    assert (link.state, slave.log.min_offset, slave.log.end_offset) == (SlaveState.COPYING, 2 * S, 172_902)
    assert link.report(172_902) == encode_epoch_report(172_902)
    assert slave.kept.epochs == epochs((1, 0))
    assert link.confirm_offset == 172_902
    # The end that the old master had, in its own epoch.
    more = bytes(content[172_902:173_288])
    slave.feed(encode_transfer(EpochTransfer(len(more), 172_902, 1, 0, 1 << 40)) + more)
    assert slave.log.end_offset == link.confirm_offset == 173_288
    follow = recorded("failover", "accepted")
    frames = [frame for event, frame in follow if event.get("way") == "m2s"]
    link = slave.connect(Hello(1))
    assert link.report(0) == next(frame for event, frame in follow if event.get("way") == "s2m")
    slave.feed(frames[0], 7)
    assert (link.state, link.cut_offset, link.cut_epochs) == (SlaveState.CUTTING, 168_719, epochs((1, 0)))
    slave.cut()
    link = slave.connect(Hello(1))
    slave.feed(frames[0])
    start = int.from_bytes(link.report(0)[4:], "big")
    assert link.state is SlaveState.COMPARING and start <= 168_719
    slave.feed(encode_transfer(EpochTransfer(168_719 - start, start, 1, 0, 0)) + bytes(content[start:168_719]))
    assert link.report(168_719) == encode_epoch_report(168_719)
    slave.feed(frames[1], 11)
    assert link.report(slave.log.end_offset) == encode_epoch_report(173_288)
    slave.feed(frames[2])
    assert (link.state, slave.kept.epochs) == (SlaveState.COPYING, epochs((1, 0), (2, 168_719)))
    file = json.loads((RECORDED / "failover.json").read_text())["files"]["epochFileCheckpoint"]
    assert (tmp_path / "epochFileCheckpoint").read_text() == file
    slave.feed(frames[3])
    assert link.reason  # a handshake instead of a transfer
    link = slave.connect(Hello(1))
    slave.feed(frames[4])
    assert link.state is SlaveState.REFUSED and "no epoch is common" in str(link.refusal)
    # An official master names a short epoch only in its handshake; the slave knows it nevertheless.
    three = [frame for event, frame in recorded("three_epochs", "connected") if event.get("way") == "m2s"][-3:]
    link = slave.connect(Hello(1))
    slave.feed(three[0])
    assert link.state is SlaveState.COMPARING
    start = int.from_bytes(link.report(0)[4:], "big")
    slave.feed(encode_transfer(EpochTransfer(173_288 - start, start, 3, 173_288, 0)) + bytes(content[start:173_288]))
    slave.feed(three[2])
    assert (slave.log.end_offset, slave.kept.epochs) == (176_837, epochs((1, 0), (2, 168_719), (3, 173_288)))
    slave.store.shutdown()


# -- hostile frames ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (b"\0\0\0\3", "state 3"),
        (b"\xff\xff\xff\xff", "state -1"),
        (encode_hello(Hello(2)) + encode_epoch_report(100) + encode_epoch_report(101), "was sent the log up to 100"),
        (encode_hello(Hello(2)) + encode_epoch_report(100) + encode_epoch_report(99), "reports 99 after 100"),
        (encode_hello(Hello(2)) + b"\0\0\0\2" + b"\xff" * 8, "asks for -1"),
        (encode_hello(Hello(2)) + encode_epoch_report(9), "begins at 10"),
        (encode_hello(Hello(2)) + 2 * encode_epoch_report(501), "another log"),
        (encode_hello(Hello(2)) + encode_hello(Hello(3)), "broker 3 follows"),
    ],
)
def test_slaves_that_are_none(frames: bytes, reason: str) -> None:
    link = EpochMasterLink(ScriptedLog(10, 500), lambda: epochs((1, 0)), lambda: 0, BATCH)
    assert link.transfer() is None and link.heartbeat() == b""
    for byte in frames:
        link.receive(bytes([byte]))
    assert reason in link.reason
    assert link.transfer() is None


def test_a_slave_that_is_ahead_is_told_where_the_log_ends() -> None:
    link = EpochMasterLink(ScriptedLog(0, 500), lambda: epochs((1, 0)), lambda: 0, BATCH)
    link.receive(encode_hello(Hello(2)) + encode_epoch_report(501))
    told = link.transfer()
    assert told is not None
    assert decode_answer(told.header[:20]).max_offset == 500
    assert decode_transfer(told.header[32:])[:2] == (0, 500)
    assert link.reason == ""


def test_a_second_handshake_changes_nothing_but_who_is_asked() -> None:
    link = EpochMasterLink(ScriptedLog(0, 500), lambda: epochs((1, 0)), lambda: 0, 300)
    link.receive(encode_hello(Hello(2)) + encode_epoch_report(100))
    sent = [link.transfer(), link.transfer()]
    assert sent[1] is not None and decode_transfer(sent[1].header)[:2] == (300, 100)
    link.receive(encode_hello(Hello(2)))
    sent = [link.transfer(), link.transfer()]
    assert sent[1] is not None and decode_transfer(sent[1].header)[:2] == (100, 400)


def test_handshakes_that_come_before_the_answer_get_one() -> None:
    link = EpochMasterLink(ScriptedLog(0, 500), lambda: epochs((1, 0)), lambda: 0, BATCH)
    link.receive(512 * encode_hello(Hello(2)))
    sent = link.transfer()
    assert sent is not None and len(sent.header) == AUTO_SWITCH_ANSWER.size + EPOCH_ENTRY.size
    assert link.transfer() is None and link.reason == ""


def test_what_the_epochs_do_not_know_is_not_sent() -> None:
    link = EpochMasterLink(ScriptedLog(0, 500), lambda: epochs((3, 100)), lambda: 0, BATCH)
    link.receive(encode_hello(Hello(2)) + encode_epoch_report(99))
    link.transfer()
    assert link.transfer() is None and "begin behind 99" in link.reason


@pytest.mark.parametrize(
    "frame",
    [
        encode_transfer(EpochTransfer(8, 0, 1, 0, 0)) + bytes(8),  # instead of a handshake
        encode_answer(0, []) + encode_transfer(EpochTransfer(1 << 30, 0, 1, 0, 0)),
        encode_answer(0, []) + encode_transfer(EpochTransfer(8, 0, 1, 9, 0)),
        encode_answer(0, [EpochEntry(2, 5)]) + encode_transfer(EpochTransfer(8, 0, 1, 0, 0)),
        encode_answer(0, [EpochEntry(2, 5)]) + encode_transfer(EpochTransfer(8, 0, 2, 4, 0)),
        encode_answer(0, [EpochEntry(2, 5)]) + encode_transfer(EpochTransfer(8, 0, 3, 4, 0)),
        encode_answer(0, [EpochEntry(2, 5)]) + encode_answer(0, []) + bytes(36),
        b"\0\0\0\1\x7f\xff\xff\xff" + bytes(12),
        bytes(20),
    ],
)
def test_masters_that_are_none(tmp_path: Path, frame: bytes) -> None:
    slave = Replica(tmp_path)
    link = slave.connect()
    slave.feed(frame, 1)
    assert link.state is SlaveState.ENDED and link.reason
    assert slave.log.is_empty and not slave.kept.epochs.entries
    slave.store.shutdown()


def followed(tmp_path: Path, name: str, first: int, count: int = 20) -> Replica:
    """A store with messages of its own epoch 1."""
    replica = Replica(tmp_path / name)
    replica.lead(1, count, first)
    return replica


def test_epochs_that_part_inside_a_record_are_refused(tmp_path: Path) -> None:
    slave = followed(tmp_path, "slave", 0)
    end = slave.log.end_offset
    link = slave.connect()
    slave.feed(encode_answer(end, [EpochEntry(1, 0), EpochEntry(2, end - 7)]))
    assert link.state is SlaveState.REFUSED and "no record begins there" in str(link.refusal)
    assert (link.cut_offset, slave.kept.epochs) == (-1, epochs((1, 0)))
    slave.store.shutdown()


def test_a_log_without_epochs_is_compared_before_it_gets_some(tmp_path: Path) -> None:
    master, same, other = followed(tmp_path, "m", 0), followed(tmp_path, "s", 0), followed(tmp_path, "o", 500, 5)
    for slave, state in ((same, SlaveState.COPYING), (other, SlaveState.REFUSED)):
        slave.kept.write(epochs())
        assert slave.follow(master).state is state
        assert slave.kept.epochs == epochs()
    master.lead(2, 3, 900)
    assert same.follow(master).state is SlaveState.COPYING
    assert same.log.end_offset == master.log.end_offset
    for replica in (master, same, other):
        replica.store.shutdown()


def test_what_is_written_leaves_before_it_is_confirmed(tmp_path: Path) -> None:
    master = followed(tmp_path, "master", 0)
    master.store.bound_by(lambda: 0)
    assert master.store.sent_log().sendable_offset == 0
    assert master.store.sent_log(unsynced=True).sendable_offset == master.log.end_offset
    master.store.shutdown()


# -- ours against ours -------------------------------------------------------------------------------------------------


class Replica:
    """A store that is master and slave in turn."""

    store: MessageStore
    link: EpochSlaveLink

    def __init__(self, path: Path, segment: int = SEGMENT) -> None:
        self.path = path
        self._segment = segment
        self.kept = EpochStore(Files(), str(path))
        self.is_master = False
        self.open()

    def open(self) -> None:
        config = stores.config(self.path, mapped_file_size_commit_log=self._segment, enabled_append_prop_crc=False)
        self.store = MessageStore(config, Files(), ManualClock(step_ms=1), is_copy=True)
        self.store.load()
        self.kept.load()
        self.log = self.store.slave_log(passes_damage=False)
        if not self.log.is_empty:
            self.store.start()

    def connect(self, hello: Hello = Hello(2)) -> EpochSlaveLink:  # noqa: B008
        self.link = EpochSlaveLink(self.log, self.kept, hello, str(self.path))
        return self.link

    def feed(self, stream: bytes, pieces: int = 1 << 30) -> None:
        for at in range(0, len(stream), pieces):
            self.link.receive(memoryview(stream)[at : at + pieces])
        self.store.dispatch()

    def cut(self) -> None:
        """Cuts the log as the connection says."""
        self.store.plan_cut(self.link.cut_offset, 1 << 40, self.link.cut_epochs.entries)
        self.store.shutdown()
        self.open()

    def lead(self, epoch: int, count: int, first: int) -> None:
        """Becomes the master, and takes messages."""
        self.store.shutdown()
        store = opened(self.path)
        self.kept.load()
        self.kept.write(self.kept.epochs.elected(epoch, store.max_offset))
        fill(store, count, first=first)
        store.shutdown()
        self.open()

    def follow(self, master: Replica, most: int = 1 << 40) -> EpochSlaveLink:
        """Follows a master until ``most`` bytes have come."""
        for _ in range(3):
            link = self.connect()
            log = master.store.sent_log(unsynced=True)
            other = EpochMasterLink(log, lambda: master.kept.epochs, lambda: 7, 700)
            other.receive(link.report(0))
            for frame in _frames(other):
                self.feed(frame)
                if (
                    link.state is SlaveState.COMPARING and other.next_offset == NO_REPORT
                ) or link.state is SlaveState.ASKING:
                    other.receive(link.report(0))
                most -= len(frame)
                if most < 0 or link.state in (SlaveState.CUTTING, SlaveState.REFUSED, SlaveState.ENDED):
                    break
            assert other.reason == ""
            if link.state is not SlaveState.CUTTING:
                return link
            self.cut()
        raise AssertionError("cut again and again")


def _frames(link: EpochMasterLink) -> Iterator[bytes]:
    while (transfer := link.transfer()) is not None or link.cold is not None:
        if transfer is None:
            assert link.cold is not None
            link.cold.fetch()
            link.fetched()
        else:
            yield transfer.header + bytes(transfer.content)


@pytest.mark.few
@pytest.mark.parametrize("seed", range(6))
def test_random_elections(tmp_path: Path, seed: int) -> None:
    """Whoever was elected, all logs are equal in the end, and so are the lists of epochs."""
    random = Random(seed)
    replicas = [Replica(tmp_path / str(number)) for number in range(2)]
    replicas[0].lead(1, 40, 0)
    replicas[1].follow(replicas[0])
    for epoch in range(2, 7):
        master, slave = random.sample(replicas, 2)
        master.lead(epoch, random.choice((0, 1, 20)), epoch * 1000)
        if random.random() < 0.7:
            link = slave.follow(master, random.choice((3000, 1 << 40)))
            assert link.state in (SlaveState.COPYING, SlaveState.COMPARING), link.refusal or link.reason
    slave.follow(master)
    slave.store.dispatch()
    assert log_bytes(slave.store) == log_bytes(master.store)
    assert slave.kept.epochs == master.kept.epochs.cut(slave.log.end_offset)
    assert [slave.store.queue_range(*name) for name in sorted(slave.store.queue_names())] == [
        master.store.queue_range(*name) for name in sorted(slave.store.queue_names())
    ]
    for replica in replicas:
        replica.store.shutdown()
