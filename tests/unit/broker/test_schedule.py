"""Delayed messages: which of them wait, when they are delivered, and the effect of a restart."""

from __future__ import annotations

import pytest
from tests.brokers import Cluster, properties_text, run_virtual, same_queue
from tests.golden.loader import load_broker, write_files
from tests.tables import Tables, keep_nothing

from rucola.broker.paced_work import NEW_QUEUES
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.common.data_version import DataVersion
from rucola.common.java import parse_properties
from rucola.common.message import StoreMessage
from rucola.formats.message import decode_messages
from rucola.formats.tables import decode_delay_offsets, encode_delay_offsets
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig, delay_levels_ms
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.testing.clock import ManualClock

LEVELS_MS = [1000, 5000]
SCHEDULE = b"SCHEDULE_TOPIC_XXXX"


class Life:
    """A store that dispatches at once, with the service that delivers its delayed messages."""

    def __init__(self, root, clock: ManualClock, table: bytes | None = None) -> None:
        self.clock = clock
        self.written: list[bytes] = []
        self.tables = Tables(self.written.append)
        config = MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1 << 20,
            max_hash_slot_num=100,
            max_index_num=400,
            flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        )
        self.store = MessageStore(config, Files(), clock)
        self.store.store_host = bytes(8)
        self.store.load()
        self.store.start()
        self.service = ScheduleMessageService(self.store, LEVELS_MS, clock.wall_ms, self.tables.keep, same_queue)
        self.service.load(table)

    def delay(self, body: bytes, level: int, **properties: str) -> None:
        text = properties_text(DELAY=str(level), **{"REAL_TOPIC": "T", "REAL_QID": "1", "TAGS": "TagA", **properties})
        message = StoreMessage(SCHEDULE, level - 1, body, text.encode(), 7, bytes(8), 5, 0, 3, store_host=b"\x01" * 8)
        assert self.store.put_message(message).status is PutMessageStatus.PUT_OK
        self.store.dispatch()

    def deliver(self) -> int | None:
        pause_ms = self.service.deliver()
        self.store.dispatch()
        return pause_ms

    def delivered(self) -> list[bytes]:
        result = self.store.get_message(b"T", 1, 0, 32, 1 << 20)
        return [m.body for view in result.views for m in decode_messages(view)]


@pytest.fixture
def life(tmp_path):
    life = Life(tmp_path, ManualClock())
    yield life
    life.store.shutdown()


def test_never_early_and_in_order(life):
    """Messages of two delay levels are delivered when they are due; those of the same level in order of arrival."""
    assert life.deliver() is None
    life.delay(b"late", 2)
    life.delay(b"a", 1)
    life.clock.advance(400)
    life.delay(b"b", 1)
    assert life.deliver() == 600
    life.clock.advance(599)
    assert life.deliver() == 1
    assert life.delivered() == []
    life.clock.advance(1)
    assert life.deliver() == 400
    assert life.delivered() == [b"a"]
    life.clock.advance(400)
    assert life.deliver() == 1000  # the service looks again long before the due time, because the clock may be set
    assert life.delivered() == [b"a", b"b"]
    life.clock.advance(3600)
    assert life.deliver() is None
    assert life.delivered() == [b"a", b"b", b"late"]
    assert life.service.pending() == 0


def test_messages_of_very_many_new_queues_come_a_few_at_a_time(life):
    """Before the fix, one iteration of the event loop created the files of 500 new queues, which took 1 s."""
    for number in range(3 * NEW_QUEUES):
        life.delay(b"%d" % number, 1 + number % 2, REAL_QID=str(number))
    life.clock.advance(5000)

    def queues() -> int:
        return sum(life.store.max_queue_offset(b"T", number) > 0 for number in range(3 * NEW_QUEUES))

    seen = []
    while life.deliver() == 0:
        seen.append(queues())
    assert (seen, queues()) == ([NEW_QUEUES, 2 * NEW_QUEUES], 3 * NEW_QUEUES)


def test_comes_as_it_was_sent(life):
    """Except for offsets and store time, a delivered message equals the waiting record; its properties still contain
    the delay.
    """
    life.delay(b"x", 1)
    life.clock.advance(1000)
    life.deliver()
    (message,) = decode_messages(life.store.get_message(b"T", 1, 0, 1, 1 << 20).views[0])
    assert (message.topic, message.queue_id, message.tags, message.flag) == ("T", 1, "TagA", 5)
    assert (message.reconsume_times, message.born_timestamp_ms, message.store_host) == (3, 7, b"\x01" * 8)
    text = {name: value for name, value in message.properties.items() if name != "__CRC32#"}
    assert text == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "1", "TAGS": "TagA"}
    tags_code = life.store.queue_unit(b"T", 1, 0)[2]
    assert tags_code == 2598919


def test_clock_set_back_and_forth(life):
    """If the clock is set back, store time continues more slowly until the clock is ahead again; a jump forward
    delivers everything due by then.

    If store time stood still, all messages would be delivered at once, and retried messages would become dead letters.
    """
    life.delay(b"back", 1)
    life.clock.set_wall_ms(life.clock.wall_ms() - 3_600_000)
    life.delay(b"behind", 2)
    for advance_ms, expected in ((1111, []), (1, [b"back"]), (4443, [b"back"]), (1, [b"back", b"behind"])):
        life.clock.advance(advance_ms)
        life.deliver()
        assert life.delivered() == expected
    life.delay(b"forth", 2)
    life.clock.set_wall_ms(life.clock.wall_ms() + 2 * 3_600_000)
    life.deliver()
    assert life.delivered() == [b"back", b"behind", b"forth"]
    # The clock goes ahead again, and is set back from there once more.
    life.delay(b"again", 1)
    life.clock.set_wall_ms(life.clock.wall_ms() - 60_000)
    life.clock.advance(1000)
    life.deliver()
    assert len(life.delivered()) == 3
    life.clock.advance(2000)
    life.deliver()
    assert life.delivered()[-1] == b"again"


def test_a_due_time_further_away_than_the_delay_comes_at_once(life):
    """The due time may be too far away because the delay of a level was changed, or because the clock was set back
    while RocketMQ wrote the store.
    """
    life.delay(b"x", 1)
    life.service = ScheduleMessageService(life.store, [900], life.clock.wall_ms, life.tables.keep, same_queue)
    life.service.load(None)
    life.deliver()
    assert life.delivered() == [b"x"]


def test_undeliverable_messages_are_passed_over(life):
    """A message cannot be delivered if its queue does not exist, or if its topic is the half topic, which consumers
    must not read.
    """
    life.delay(b"bad", 1, REAL_QID="x")
    life.delay(b"half", 1, REAL_TOPIC="RMQ_SYS_TRANS_HALF_TOPIC")
    life.delay(b"good", 1)
    life.clock.advance(1000)
    assert life.deliver() is None
    assert life.delivered() == [b"good"]
    assert life.store.max_queue_offset(b"RMQ_SYS_TRANS_HALF_TOPIC", 1) == 0


def test_an_entry_that_leads_elsewhere_delivers_nothing(life):
    """A queue entry that points to a wrong record is treated as if its message were lost: the record may already have
    been delivered.
    """
    text = properties_text(REAL_TOPIC="T", REAL_QID="1").encode()
    life.store.put_message(StoreMessage(b"Other", 0, b"of another topic", text, 7, bytes(8)))
    life.store.dispatch()
    life.store._queues.get(SCHEDULE, 0).put(0, 0, 0x7FFFFFFF, 0)
    life.delay(b"good", 2)
    life.clock.advance(5000)
    life.deliver()
    assert life.delivered() == [b"good"]
    assert life.service.progress(1) == 1


def test_progress_counts_when_it_is_on_the_disk(life, monkeypatch):
    """If progress counted earlier, a power cut would lose a message that counts as delivered."""
    life.delay(b"a", 1)
    life.delay(b"b", 1)
    life.clock.advance(1000)
    life.deliver()
    monkeypatch.setattr(MessageStore, "flushed_offset", 0)
    life.service.persist()
    life.tables.write()
    assert decode_delay_offsets(life.written[-1])[1] == {1: 0, 2: 0}
    monkeypatch.setattr(MessageStore, "flushed_offset", life.store.max_offset)
    for _ in range(2):
        life.service.persist()
        life.tables.write()
    assert decode_delay_offsets(life.written[-1])[1] == {1: 2, 2: 0}
    assert len(life.written) == 2


@pytest.mark.parametrize(("stored", "taken"), [(99, 2), (-5, 0), (1, 1)])
def test_progress_outside_the_queue_is_moved_into_it(tmp_path, stored, taken):
    """Known defect 25 of RocketMQ: after an offset beyond the queue's end, or before its beginning, no message is ever
    delivered again.
    """
    clock = ManualClock()
    first = Life(tmp_path, clock)
    first.delay(b"a", 1)
    first.delay(b"b", 1)
    first.store.shutdown()
    second = Life(tmp_path, clock, encode_delay_offsets(first.service._data_version, {1: stored}))
    try:
        assert second.service.progress(1) == taken
        clock.advance(1000)
        second.deliver()
        assert second.delivered() == [b"a", b"b"][taken:]
    finally:
        second.store.shutdown()


@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
def test_sent_with_a_level_and_consumed(tmp_path, sync_flush):
    """The response contains the queue id that the producer requested; the message comes once, after the delay."""

    async def scene() -> None:
        cluster = Cluster(tmp_path, sync_flush)
        object.__setattr__(cluster._store_config, "message_delay_level", "1s 2s")
        async with cluster:
            await cluster.send("T", b"plain")
            text = properties_text(UNIQ_KEY="D", DELAY="9", TAGS="TagA", WAIT="true", TIMER_DELAY_MS="5")
            answer = await cluster.send("T", b"delayed", text, 2)
            assert (answer.code, answer.ext_fields["queueId"], answer.ext_fields["transactionId"]) == (0, "2", "D")
            assert await cluster.bodies("T", 2) == []
            waiting = decode_messages((await cluster.ask(33, {"offset": str(cluster.broker.store.min_offset)})).body)
            assert waiting[0].body == b"plain"
            found = await cluster.pull("T", 2, sys_flag=6, suspend_ms=10_000)
            (message,) = decode_messages(found.body)
            assert message.body == b"delayed"
            assert list(message.properties)[:9] == [
                "MSG_REGION", "UNIQ_KEY", "CLUSTER", "DELAY", "TAGS", "WAIT", "TRACE_ON", "REAL_TOPIC", "REAL_QID",
            ]  # fmt: skip
            assert message.properties["DELAY"] == "2"
            assert message.store_timestamp_ms - cluster.broker.services.stats.started_ms >= 2000
        again = Cluster(tmp_path, sync_flush)
        object.__setattr__(again._store_config, "message_delay_level", "1s 2s")
        async with again:
            assert again.broker.services.schedule.pending() == 0
            assert await again.bodies("T", 2) == [b"delayed"]

    run_virtual(scene())


@pytest.mark.parametrize("ended", ["clean", "killed"])
def test_store_of_the_reference(tmp_path, ended):
    """Messages that wait in a store of RocketMQ come at once in the order of their level, because their due times have
    passed.
    """
    case = load_broker(f"delay_{ended}")
    write_files(case.files, tmp_path)
    levels = parse_properties(case.broker_conf)["messageDelayLevel"]
    now_ms = case.expected["ended_at_ms"] + 400_000  # levels 1 to 5 are due, level 6 (10 m) is not
    clock = ManualClock(now_ms)
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=131072,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=500,
        max_index_num=2000,
        message_delay_level=levels,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
    )
    store = MessageStore(config, Files(), clock)
    store.store_host = bytes(8)
    store.load()
    store.start()
    try:
        service = ScheduleMessageService(store, delay_levels_ms(levels), clock.wall_ms, keep_nothing(), same_queue)
        service.load((tmp_path / "config" / "delayOffset.json").read_bytes())

        def bodies() -> list[str]:
            views = [v for queue in (0, 1) for v in store.get_message(b"T_store", queue, 0, 32, 1 << 20).views]
            return [m.body.decode() for view in views for m in decode_messages(view)]

        def come() -> tuple[list[str], int]:
            before = bodies()
            while service.deliver() == 0:
                pass
            store.dispatch()
            return sorted(set(bodies()) - set(before)), len(bodies()) - len(before)

        sent = {message["body"]: message for message in case.expected["messages"]}
        new, count = come()
        due = {"delay level 4", "delay level 5"}
        assert due <= set(new)
        assert set(new) <= due | {"due within a second, pending or delivered"}
        again = {message["body"] for message in sent.values() if message["state"] in ("delivered", "racing")}
        assert count <= len(new) + (len(again) if ended == "killed" else 0)
        clock.advance(4 * 3_600_000)
        new, count = come()
        assert new == ["delay level 25", "delay level 6"]
        assert count == 2
    finally:
        store.shutdown()


def test_the_progress_of_a_slave_is_taken_over_if_it_is_larger(life):
    for number in range(3):
        life.delay(b"%d" % number, 1)
        life.delay(b"%d" % number, 2)
    own = decode_delay_offsets(life.service.encode())[0]
    older = DataVersion(0, own.timestamp_ms - 1, own.counter)
    assert not life.service.take(older, {1: 3})
    assert life.service.progress(1) == 0
    assert life.service.take(own, {1: 2, 2: 99, 7: 1})
    assert (life.service.progress(1), life.service.progress(2)) == (2, 3), "nothing beyond the queues"
    assert life.service.take(own, {1: 1})
    assert life.service.progress(1) == 2, "no smaller one"
    assert 7 not in decode_delay_offsets(life.service.encode())[1]
    life.service.persist()
    life.tables.write()
    assert decode_delay_offsets(life.written[-1])[1] == {1: 2, 2: 3}
