"""Messages with a delivery time: which of them wait, when they come, which are recalled, and the effect of a
restart.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
from tests.brokers import properties_text, same_queue
from tests.golden.loader import load_broker, write_files

from rucola.broker.paced_work import NEW_QUEUES
from rucola.broker.timer.timer_message_service import TimerMessageService
from rucola.common.message import MessageExt, StoreMessage
from rucola.formats.message import decode_messages
from rucola.formats.timer import TimerCheckpoint
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.store.timer.timer_store import TimerGeometry, TimerStore
from rucola.store.timer.timer_wheel import TimerWheel
from rucola.testing.clock import ManualClock

TIMER = b"rmq_sys_wheel_timer"
GOLDEN = {
    "mapped_file_size_commit_log": 131072,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}


class Life:
    """A store that dispatches at once, and the timers over it; ``stop`` is clean, ``kill`` is not."""

    def __init__(
        self,
        root: Path,
        clock: ManualClock,
        roll_window_ms: int = 172_800_000,
        timers: TimerGeometry = TimerGeometry(65_536),  # noqa: B008 - a tuple of numbers
        **options: int,
    ) -> None:
        self.clock = clock
        self.root = root
        geometry = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100, "max_index_num": 400, **options}
        config = MessageStoreConfig(
            store_path_root_dir=str(root), flush_disk_type=FlushDiskType.ASYNC_FLUSH, **geometry
        )
        self.store = MessageStore(config, Files(), clock)
        self.store.store_host = bytes(8)
        self.store.load()
        self.store.start()
        self.timers = TimerStore(Files(), self.store.root, timers)
        self.service = TimerMessageService(self.store, self.timers, roll_window_ms, clock.wall_ms, same_queue)
        self.service.load()

    def wait(self, body: bytes, out_ms: int, key: str = "", queue_id: int = 1, **properties: str) -> None:
        """Puts a message into the timer topic, as a send does."""
        names = {"TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "T", "REAL_QID": str(queue_id), "TAGS": "TagA"}
        text = properties_text(**{**names, "UNIQ_KEY": key or body.decode(), **properties})
        message = StoreMessage(TIMER, 0, body, text.encode(), 7, bytes(8), 5, 0, 3, store_host=b"\x01" * 8)
        assert self.store.put_message(message).status is PutMessageStatus.PUT_OK
        self.store.dispatch()

    def work(self) -> int | None:
        """Runs the timers until they have nothing to do; returns the milliseconds until they want to run again."""
        while (pause_ms := self.service.work()) == 0:
            pass
        self.store.dispatch()
        return pause_ms

    def write(self, flushed_offset: int | None = None) -> None:
        changes = self.timers.changes(
            self.store.max_offset if flushed_offset is None else flushed_offset, self.clock.wall_ms()
        )
        if changes is not None:
            self.timers.write(changes)

    def messages(self, topic: bytes = b"T", queue_id: int = 1) -> list[MessageExt]:
        result = self.store.get_message(topic, queue_id, 0, 32, 1 << 20)
        return [message for view in result.views for message in decode_messages(view)]

    def bodies(self, topic: bytes = b"T", queue_id: int = 1) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue_id)]

    def stop(self) -> None:
        self.store.shutdown()
        self.write()
        self.timers.close()

    def kill(self) -> None:
        """Ends without writing the timers' progress, as a kill does; stored messages are in the page cache and
        survive.
        """
        self.store.shutdown()
        self.timers.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
def life(tmp_path, clock):
    life = Life(tmp_path, clock)
    yield life
    life.stop()


def test_never_early_and_in_the_order_of_their_times(life, clock):
    """The messages of a time step are delivered when the step is over, in order of arrival."""
    now = clock.wall_ms()
    assert life.work() is None
    life.wait(b"later", now + 2000)
    life.wait(b"b", now + 1000)
    life.wait(b"a", now)
    life.wait(b"c", now + 1000)
    assert life.work() == 500
    clock.advance(999)
    assert life.work() == 1
    assert life.bodies() == []
    clock.advance(1)
    life.work()
    assert life.bodies() == [b"a"]
    clock.advance(999)
    life.work()
    assert life.bodies() == [b"a"]
    clock.advance(1001)
    life.work()
    assert life.bodies() == [b"a", b"b", b"c", b"later"]
    assert life.timers.metrics.topics["T"].count == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_a_message_that_is_not_in_its_queue_yet_is_not_taken_for_delivered(is_first, life, clock):
    if not is_first:
        life.wait(b"before", clock.wall_ms() - 5000)
        life.work()
    stored_ms = clock.wall_ms()
    text = properties_text(TIMER_OUT_MS=str(stored_ms + 1), REAL_TOPIC="T", REAL_QID="1", UNIQ_KEY="late")
    life.store.put_message(StoreMessage(TIMER, 0, b"late", text.encode(), 7, bytes(8)))
    clock.advance(5000)
    while life.service.work() == 0:
        pass
    assert life.service.delivered_until_ms() <= stored_ms
    life.store.dispatch()
    life.work()
    clock.advance(2000)
    life.work()
    assert b"late" in life.bodies()
    assert life.service.delivered_until_ms() > stored_ms + 5000


def test_an_entry_that_leads_elsewhere_delivers_nothing(life, clock):
    """A unit that points to a wrong record is treated as if its message were lost: the record may already have been
    delivered.
    """
    text = properties_text(TIMER_OUT_MS="1", REAL_TOPIC="T", REAL_QID="1")
    life.store.put_message(StoreMessage(b"T", 1, b"delivered before", text.encode(), 7, bytes(8)))
    life.store.dispatch()
    life.store._queues.get(TIMER, 0).put(0, 0, 0x7FFFFFFF, 0)
    life.work()
    assert life.bodies() == [b"delivered before"]
    assert life.timers.queue_offset == 1


def test_comes_as_it_was_sent(life, clock):
    """Except for offsets and store time, a delivered message equals the record in the timer topic. Its properties also
    contain the times when it was added and delivered.
    """
    life.wait(b"x", clock.wall_ms(), TIMER_DELAY_SEC="1")
    life.work()
    clock.advance(1000)
    life.work()
    (message,) = life.messages()
    assert (message.topic, message.queue_id, message.tags, message.flag) == ("T", 1, "TagA", 5)
    assert (message.reconsume_times, message.born_timestamp_ms, message.store_host) == (3, 7, b"\x01" * 8)
    start = clock.wall_ms() - 1000
    text = {name: value for name, value in message.properties.items() if name != "__CRC32#"}
    assert text == {
        "TIMER_OUT_MS": str(start),
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
        "TAGS": "TagA",
        "UNIQ_KEY": "x",
        "TIMER_DELAY_SEC": "1",
        "TIMER_ENQUEUE_MS": str(start),
        "TIMER_DEQUEUE_MS": str(start + 1000),
    }
    assert life.store.queue_unit(b"T", 1, 0)[2] == 2598919


def test_messages_of_very_many_new_queues_come_a_few_at_a_time(life, clock):
    """Before the fix, one iteration of the event loop created the files of hundreds of new queues."""
    for number in range(3 * NEW_QUEUES):
        life.wait(b"%d" % number, clock.wall_ms() + 2000, f"k{number}", REAL_TOPIC=f"T{number}")
    clock.advance(1000)
    life.work()
    clock.advance(5000)

    def queues() -> int:
        return sum(life.store.max_queue_offset(b"T%d" % number, 1) > 0 for number in range(3 * NEW_QUEUES))

    seen = []
    for _ in range(10):
        life.service.work()
        life.store.dispatch()
        seen.append(queues())
    assert sorted(set(seen) - {0}) == [NEW_QUEUES, 2 * NEW_QUEUES, 3 * NEW_QUEUES]


def test_due_when_it_is_taken(life, clock):
    """A message already due is delivered at once and never gets a unit."""
    life.wait(b"x", clock.wall_ms() - 1000)
    assert life.work() is None
    (message,) = life.messages()
    assert message.properties["TIMER_ENQUEUE_MS"] == str((1 << 63) - 1)
    assert life.timers.is_empty
    assert "T" not in life.timers.metrics.topics


def test_withdrawn(life, clock):
    """A recall affects only the message with the same topic, key and due time step. After the delivery, it has no
    effect.
    """
    due = clock.wall_ms() + 1000
    for body in (b"stays", b"goes", b"goes too"):
        life.wait(body, due)
    life.wait(b"other time", due + 1000, key="goes")
    life.wait(b"0", due, key="goes", TIMER_DEL_UNIQKEY="T+goes")
    life.wait(b"0", due, key="stays", TIMER_DEL_UNIQKEY="U+stays")
    life.work()
    assert life.timers.metrics.topics["T"].count == 2
    clock.advance(1900)
    life.work()  # the step's messages are loaded
    life.wait(b"0", due, key="goes too", TIMER_DEL_UNIQKEY="T+goes too")
    clock.advance(100)
    life.work()
    assert life.bodies() == [b"stays"]
    clock.advance(1000)
    life.work()
    assert life.bodies() == [b"stays", b"other time"]
    assert life.timers.metrics.topics["T"].count == 0
    life.wait(b"0", due, key="x", TIMER_DEL_UNIQKEY="T+x")  # a recall, but too late; consumers never get it
    life.work()
    assert len(life.bodies()) == 2


@pytest.mark.parametrize("roll_window_ms", [172_800_000, 3000])
@pytest.mark.parametrize(
    ("messages", "recalls"), [(1, 1), (1, 3), (0, 2), (2, 1), (3, 2)], ids=lambda count: f"{count}"
)
def test_nothing_is_counted_when_nothing_waits(messages, recalls, roll_window_ms, tmp_path, clock):
    """Whatever was recalled, how often, and however often it was stored again because its delay was long."""
    life = Life(tmp_path, clock, roll_window_ms)
    due = clock.wall_ms() + 9000
    for number in range(messages):
        life.wait(b"%d" % number, due, key="goes")
    for _ in range(recalls):
        life.wait(b"0", due, key="goes", TIMER_DEL_UNIQKEY="T+goes")
    life.wait(b"stays", due + 1000)
    for _ in range(14):
        life.work()
        clock.advance(1000)
    life.work()
    assert life.bodies() == [b"stays"]
    assert life.timers.metrics.topics["T"].count == 0
    life.stop()


def test_a_message_without_a_destination_is_skipped_and_not_counted_for_ever(life, clock):
    life.wait(b"x", clock.wall_ms() + 1000, REAL_QID="x")
    life.work()
    clock.advance(3000)
    life.work()
    counted = life.timers.metrics.topics.get("T")
    assert counted is None or counted.count == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("prepared", [True, False])
def test_very_many_withdrawals_of_one_time_are_read_in_pieces(life, clock, prepared):
    """Before the fix, 30,000 recalls of one time made a turn of the event loop last 0.4 s."""
    due = clock.wall_ms() + 4000
    for number in range(1000):
        life.wait(b"0", due, key=f"gone {number}", TIMER_DEL_UNIQKEY=f"T+{number}")
    for number in range(500, 1010):
        life.wait(b"%d" % number, due)
    life.work()
    reads, read = 0, life.service._read

    def counted(*arguments):
        nonlocal reads
        reads += 1
        return read(*arguments)

    life.service._read = counted
    for elapsed_ms in (4600, 1400) if prepared else (6000,):
        clock.advance(elapsed_ms)
        while True:
            before = reads
            pause_ms = life.service.work()
            assert reads - before <= 3 * 256
            if pause_ms != 0:
                break
    life.store.dispatch()
    assert reads == 1510, "each message is read once"
    assert sorted(life.bodies()) == [b"%d" % number for number in range(1000, 1010)]
    assert life.timers.metrics.topics["T"].count == 0


def test_far_times_roll(tmp_path, clock):
    """If the delay is slightly longer than a roll window, a message first waits half a window, then the rest. If it is
    much longer, the message first waits a whole window.
    """
    life = Life(tmp_path, clock, roll_window_ms=30_000)
    start = clock.wall_ms()
    life.wait(b"little over", start + 35_000)
    life.wait(b"far", start + 80_000)
    life.work()
    came: dict[bytes, int] = {}
    rolls: dict[int, int] = {}
    for second in range(90):
        before = life.store.max_queue_offset(TIMER, 0)
        life.work()
        life.work()
        if life.store.max_queue_offset(TIMER, 0) > before:
            rolls[second] = life.store.max_queue_offset(TIMER, 0) - before
        for message in life.messages():
            came.setdefault(message.body, second)
        clock.advance(1000)
    assert came == {b"little over": 36, b"far": 81}
    assert rolls == {16: 1, 31: 1, 62: 1}
    assert [m.properties["TIMER_ROLL_TIMES"] for m in life.messages()] == ["1", "2"]
    assert life.bodies() == [b"little over", b"far"]
    life.stop()


def test_clock_set_back_and_forth(life, clock):
    """The clock is set back. A new message is delivered at its due time and not before, although the clock had already
    passed this time before it was set back.
    """
    start = clock.wall_ms()
    life.wait(b"first", start + 10_000)
    life.work()
    clock.set_wall_ms(start + 60_000)
    life.work()
    assert life.bodies() == [b"first"]
    clock.set_wall_ms(start)
    life.wait(b"second", start + 5000)
    life.work()
    clock.set_wall_ms(start + 6000)
    life.work()
    assert life.bodies() == [b"first"]
    clock.set_wall_ms(start + 62_000)
    life.work()
    assert life.bodies() == [b"first", b"second"]


def test_undeliverable_messages_are_passed_over(life, clock):
    """Messages without a valid queue id, due time or topic are skipped; other messages are delivered."""
    now = clock.wall_ms()
    life.wait(b"bad", now, REAL_QID="x")
    life.wait(b"long", now, REAL_TOPIC="t" * 200)
    life.wait(b"none", 0, TIMER_OUT_MS="soon")
    life.wait(b"bad now", now - 5000, REAL_QID="x")
    life.wait(b"good", now)
    life.work()
    clock.advance(1000)
    life.work()
    assert life.bodies() == [b"good"]


@pytest.mark.parametrize("ended", ["stop", "kill", "kill before the disk has it"])
def test_restart(tmp_path, clock, ended):
    """After a restart, no message is lost and none is added to the wheel twice, whichever progress was written."""
    life = Life(tmp_path, clock)
    start = clock.wall_ms()
    for number in range(5):
        life.wait(b"%d" % number, start + 1000 * number)
    life.work()
    life.write()
    clock.advance(2500)
    life.work()
    assert life.bodies() == [b"0", b"1"]
    for number in range(5, 8):
        life.wait(b"%d" % number, start + 1000 * number)
    life.work()
    if ended == "kill before the disk has it":
        life.write(flushed_offset=0)
    (life.stop if ended == "stop" else life.kill)()
    life = Life(tmp_path, clock)
    life.work()
    again = [] if ended == "stop" else [b"0", b"1"]
    assert life.bodies() == [b"0", b"1", *again]
    for number in range(2, 8):
        clock.set_wall_ms(start + 1000 * number + 999)
        life.work()
        assert life.bodies()[-1] == b"%d" % (number - 1)
        clock.advance(1)
        life.work()
    assert life.bodies() == [b"0", b"1", *again, b"2", b"3", b"4", b"5", b"6", b"7"]
    life.stop()


def test_a_stop_longer_than_the_wheel_spans(tmp_path, clock):
    """A broker is stopped for 40 days. RocketMQ loses messages that became due more than seven days before it starts
    (store.md 10.2).
    """
    two_hours = TimerGeometry(65_536, 1000, 7200)
    life = Life(tmp_path, clock, timers=two_hours)
    life.wait(b"old", clock.wall_ms() + 1_800_000)
    life.work()
    life.stop()
    clock.set_wall_ms(clock.wall_ms() + 40 * 86_400_000)
    life = Life(tmp_path, clock, timers=two_hours)
    life.wait(b"new", clock.wall_ms() + 1000)
    life.work()
    assert life.bodies() == [b"old"]
    clock.advance(2000)
    life.work()
    assert life.bodies() == [b"old", b"new"]
    life.stop()


def test_a_wheel_with_holes_gets_its_blocks_at_the_start(tmp_path: Path) -> None:
    wheel = TimerWheel(Files(), f"{tmp_path}/timerwheel", 20_000, 1000)
    with (tmp_path / "timerwheel").open("wb") as file:  # as RocketMQ leaves it
        file.truncate(20_000 * 32)
    assert wheel.open()
    wheel.map.close()
    assert (tmp_path / "timerwheel").stat().st_blocks * 512 >= 20_000 * 32


def damage_wheel(root: Path) -> None:
    """Makes slots point beyond the end of the timer log, as a power cut may."""
    path = root / "timerwheel"
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), 32):
        if content[at : at + 8] != bytes(8):
            struct.pack_into(">qq", content, at + 8, 1 << 40, 1 << 40)
    path.write_bytes(content)


def damage_log(root: Path) -> None:
    path = root / "timerlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[52 * 3] ^= 0xFF
    path.write_bytes(content)


def remove_log(root: Path) -> None:
    (root / "timerlog" / f"{0:020d}").unlink()


def remove_wheel(root: Path) -> None:
    (root / "timerwheel").unlink()


def shorten_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(b"x" * 1000)


def remove_both(root: Path) -> None:
    remove_log(root)
    remove_wheel(root)


@pytest.mark.parametrize(
    "damage", [damage_wheel, damage_log, remove_log, remove_wheel, shorten_wheel, remove_both], ids=lambda f: f.__name__
)
def test_damaged_files_are_made_anew(tmp_path, clock, damage):
    """The timer files are rebuilt if they are damaged. Messages already delivered are not delivered again."""
    life = Life(tmp_path, clock)
    start = clock.wall_ms()
    for number in range(8):
        life.wait(b"%d" % number, start + 1000 * number)
    life.work()
    clock.advance(4000)
    life.work()
    assert life.bodies() == [b"0", b"1", b"2", b"3"]
    life.stop()
    damage(tmp_path)
    life = Life(tmp_path, clock)
    life.work()
    assert life.bodies() == [b"0", b"1", b"2", b"3"]
    clock.advance(4000)
    life.work()
    assert life.bodies() == [b"%d" % number for number in range(8)]
    life.stop()


def test_progress_lost(tmp_path, clock):
    """If the timers' checkpoint is lost, messages already delivered are delivered again, as by RocketMQ, but waiting
    messages only once.
    """
    life = Life(tmp_path, clock)
    start = clock.wall_ms()
    life.wait(b"past", start)
    life.wait(b"to come", start + 5000)
    life.work()
    clock.advance(1000)
    life.work()
    life.stop()
    (tmp_path / "config" / "timercheck").unlink()
    life = Life(tmp_path, clock)
    life.work()
    assert life.bodies() == [b"past", b"past"]
    clock.advance(6000)
    life.work()
    assert life.bodies() == [b"past", b"past", b"to come"]
    life.stop()


def test_units_of_records_that_are_gone(tmp_path, clock):
    """Known defect 26 of RocketMQ: after a power cut, the timer log has units whose records were lost with the end of
    the commit log.
    """
    life = Life(tmp_path, clock)
    start = clock.wall_ms()
    life.wait(b"kept", start + 5000)
    life.work()
    end = life.store.max_offset
    life.wait(b"lost", start + 5000)
    life.work()
    life.stop()
    log = tmp_path / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes()[:end].ljust(1 << 20, b"\0"))
    for name in ("rucola-watermark", "checkpoint"):
        (tmp_path / name).unlink()
    (tmp_path / "abort").write_bytes(b"")
    life = Life(tmp_path, clock)
    life.wait(b"new", start + 8000)  # this message is where the lost one was
    life.work()
    clock.advance(6000)
    life.work()
    assert life.bodies() == [b"kept"]
    clock.advance(3000)
    life.work()
    assert life.bodies() == [b"kept", b"new"]
    life.stop()


def test_segments_of_the_timer_log(tmp_path, clock):
    """Chains of units extend over several segments; units whose records have expired are removed."""
    short = TimerGeometry(5200)
    life = Life(tmp_path, clock, timers=short)
    start = clock.wall_ms()
    count = 99 * 2 + 20
    for number in range(count):
        life.wait(b"%d" % number, start + 1000 + 1000 * (number % 2))
    life.work()
    names = sorted(path.name for path in (tmp_path / "timerlog").iterdir())
    assert names == [f"{at:020d}" for at in (0, 5200, 10_400)]
    life.stop()
    remove_wheel(tmp_path)
    life = Life(tmp_path, clock, timers=short)
    clock.advance(3000)
    life.work()
    assert life.store.max_queue_offset(b"T", 1) == count
    life.timers.remove_expired(life.store.queue_unit(TIMER, 0, 99 + 10)[0])
    assert sorted(path.name for path in (tmp_path / "timerlog").iterdir()) == names[1:]
    life.stop()
    life = Life(tmp_path, clock, timers=short)
    life.wait(b"last", clock.wall_ms())
    life.work()
    clock.advance(1000)
    life.work()
    assert life.store.max_queue_offset(b"T", 1) == count + 1
    life.stop()


def golden(ended: str, directory: Path) -> dict[str, object]:
    case = load_broker(f"timer_{ended}")
    files = dict(case.files)
    files["timerwheel"] = gzip.decompress(files.pop("timerwheel.gz"))
    write_files(files, directory)
    return case.expected


@pytest.mark.few(1)
@pytest.mark.parametrize("ended", ["clean", "killed"])
def test_store_of_the_reference(tmp_path, ended):
    """Each delayed message in a store of RocketMQ is delivered once, when it is due. The recalled message is never
    delivered, and the message due in the distant future is rolled.
    """
    expected = golden(ended, tmp_path)
    clock = ManualClock(expected["ended_at_ms"])
    life = Life(tmp_path, clock, **GOLDEN)
    messages = {message["body"]: message for message in expected["messages"]}

    def due_ms(message: dict[str, object]) -> int:
        names = message.get("properties_sent", {})
        sent = message["sent_at_ms"]
        delay = int(names.get("TIMER_DELAY_SEC", 0)) * 1000 + int(names.get("TIMER_DELAY_MS", 0))
        return int(names.get("TIMER_DELIVER_MS", sent + delay))

    def came() -> list[str]:
        return [body.decode() for queue in (0, 1) for body in life.bodies(b"T_store", queue)]

    life.work()
    before = came()
    assert sorted(before) == sorted(b for b, m in messages.items() if m["state"] in ("visible", "delivered"))
    pending = {body: due_ms(m) for body, m in messages.items() if m["state"] == "pending"}
    for due in sorted(set(pending.values())):
        bodies = {body for body in pending if pending[body] == due}
        while clock.wall_ms() < due - 1:
            clock.set_wall_ms(min(clock.wall_ms() + 86_400_000, due - 1))
            life.work()
        assert not bodies & set(came())
        clock.set_wall_ms(due + 999)
        life.work()
        assert bodies <= set(came())
    assert sorted(came()) == sorted([*before, *pending])
    life.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("ended", ["clean", "killed"])
def test_opening_the_reference_store_changes_no_unit(tmp_path, ended):
    """A store that RocketMQ wrote can be opened, and its slots and units stay the same, byte for byte."""
    expected = golden(ended, tmp_path)
    log, wheel = tmp_path / "timerlog" / f"{0:020d}", tmp_path / "timerwheel"
    units, slots = log.read_bytes(), wheel.read_bytes()
    checkpoint = TimerCheckpoint.decode((tmp_path / "config" / "timercheck").read_bytes())
    life = Life(tmp_path, ManualClock(checkpoint.read_time_ms), **GOLDEN)
    life.stop()
    assert log.read_bytes() == units
    assert wheel.read_bytes() == slots
    assert expected["ended"] == ended


@pytest.mark.few(1)
@pytest.mark.parametrize("ended", ["clean", "killed"])
def test_same_bytes_as_the_reference(tmp_path, ended):
    """Timer log and wheel rebuilt from RocketMQ's commit log, at the times of its writes, equal RocketMQ's files."""
    golden(ended, tmp_path)
    log, wheel = tmp_path / "timerlog" / f"{0:020d}", tmp_path / "timerwheel"
    units, slots = log.read_bytes(), wheel.read_bytes()
    written = [struct.unpack_from(">q", units, at + 16)[0] for at in range(0, len(units) - 52, 52)]
    written = [time_ms for time_ms in written if time_ms]
    log.unlink()
    wheel.unlink()
    (tmp_path / "config" / "timercheck").unlink()
    life = Life(tmp_path, ManualClock(written[0]), **GOLDEN)
    for number, time_ms in enumerate(written):
        take_until(life, number + 1, time_ms)
    life.write()
    life.kill()
    assert log.read_bytes()[: 52 * len(written)] == units[: 52 * len(written)]
    assert wheel.read_bytes() == slots


def take_until(life: Life, queue_offset: int, time_ms: int) -> None:
    """Lets the timers read the messages of the timer topic below ``queue_offset``."""
    store = life.store
    while life.timers.queue_offset < queue_offset:
        physical_offset, size, _ = store.queue_unit(TIMER, 0, life.timers.queue_offset)
        assert life.service._take_one(physical_offset, size, time_ms)
        life.timers.queue_offset += 1
    life.timers.mark(store.max_offset)
