"""The managers of topics, groups, members, offsets and locks, without sockets."""

from __future__ import annotations

import pytest
from tests.brokers import Unconnected
from tests.tables import Tables, keep_nothing

from rucola.broker.client import rebalance_lock
from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.client.consumer_manager import ConsumerGroup, ConsumerManager
from rucola.broker.client.producer_manager import ProducerManager
from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.config import BrokerConfig
from rucola.broker.config_files import ConfigFiles
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.shares import Shares
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager, describe
from rucola.broker.topic.topic_validator import validate_topic
from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError, FormatError, StoreDamagedError
from rucola.protocol.bodies.heartbeat import SubscriptionData
from rucola.remoting.fairness.steps import at_once
from rucola.runtime.files import Files
from rucola.testing.clock import ManualClock


def topic_manager(tables: Tables, **options: object) -> TopicConfigManager:
    return TopicConfigManager(BrokerConfig(**options), tables.keep, lambda: 1_700_000_000_000)


def test_the_first_send_makes_a_topic_after_the_pattern():
    written: list[bytes] = []
    changes: list[int] = []
    tables = Tables(written.append)
    topics = topic_manager(tables)
    topics.on_change(lambda: changes.append(1))
    created = topics.create_on_send("T", "TBW102", 4)
    assert created is not None
    assert created[0] == TopicConfig("T", 4, 4, 6)
    assert not created[1].done()
    tables.write()
    assert created[1].result() is None
    assert topics.create_on_send("Wide", "TBW102", 100)[0].write_queue_nums == 8
    assert topics.create_on_send("T2", "SELF_TEST_TOPIC", 4) is None
    assert topics.create_on_send("T2", "unknown", 4) is None
    tables.write()
    assert (len(written), len(changes), topics.data_version.counter) == (2, 2, 2)
    again = topic_manager(tables)
    again.load(written[-1])
    assert again.table == topics.table
    assert again.data_version == topics.data_version


def test_automatic_topics_are_this_start_s_choice():
    written: list[bytes] = []
    tables = Tables(written.append)
    topic_manager(tables).update(TopicConfig("T"))
    tables.write()
    topics = topic_manager(tables, auto_create_topic_enable=False)
    topics.load(written[-1])
    assert topics.create_on_send("T2", "TBW102", 4) is None


def test_the_trace_topic_is_made_when_it_is_wanted():
    tables = Tables(print)
    assert "RMQ_SYS_TRACE_TOPIC" not in topic_manager(tables).table
    assert topic_manager(tables, trace_topic_enable=True).table["RMQ_SYS_TRACE_TOPIC"].read_queue_nums == 1
    own = topic_manager(tables, trace_topic_enable=True, msg_trace_topic_name="Traces")
    assert own.table["Traces"].write_queue_nums == 1


def test_a_topic_in_the_reference_s_words():
    config = TopicConfig("T_err", 2, 2, 6)
    assert describe(config) == (
        "TopicConfig [topicName=T_err, readQueueNums=2, writeQueueNums=2, perm=RW-, topicFilterType=SINGLE_TAG, "
        "topicSysFlag=0, order=false, attributes={}]"
    )


@pytest.mark.parametrize("topic", ["", "  ", "bad topic!", "ümlaut", "a" * 128, "a/b", "T\n"])
def test_names_no_topic_may_have(topic):
    with pytest.raises(BrokerError) as caught:
        validate_topic(topic)
    assert caught.value.code == 29


def test_names_a_topic_may_have():
    for topic in ("T", "%RETRY%g", "a|b", "a" * 127):
        validate_topic(topic)


def test_groups_are_made_when_allowed():
    written: list[bytes] = []
    tables = Tables(written.append)
    groups = SubscriptionGroupManager(True, tables.keep, lambda: 1)
    assert groups.find("g").group_name == "g"
    assert groups.find("bad group!") is None
    assert groups.find("g" * 121) is None
    assert SubscriptionGroupManager(False, tables.keep, lambda: 1).find("g") is None
    tables.write()
    assert len(written) == 1
    again = SubscriptionGroupManager(False, tables.keep, lambda: 1)
    again.load(written[0])
    assert again.find("g") is not None
    groups.set_readable("g", "T", readable=False)
    deleted = groups.delete("g")
    assert groups.find("g") == again.find("g"), "made anew"
    tables.write()
    assert deleted.result() is None
    assert groups.is_readable("g", "T")


class Members:
    def __init__(self) -> None:
        self.changed: list[ConsumerGroup] = []
        self.manager = ConsumerManager()
        self.manager.on_change(self.changed.append)

    def beat(self, channel: object, versions: dict[str, int] | None, model: str = "CLUSTERING") -> bool:
        client = ClientChannel(channel, f"id-{id(channel)}", "JAVA", 479, 10.0)
        data = None if versions is None else [SubscriptionData(t, "*", sub_version=v) for t, v in versions.items()]
        return self.manager.register(client, "g", "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", data)


def test_members_come_and_go_and_each_change_is_told():
    members, first, second = Members(), Unconnected(), Unconnected()
    assert members.beat(first, {"T": 1})
    assert not members.beat(first, {"T": 1})
    assert members.beat(second, {"T": 1})
    assert len(members.manager.group("g").client_ids()) == 2
    members.manager.unregister("g", second)
    members.manager.unregister("g", second)
    members.manager.channel_closed(first)
    assert members.manager.group("g") is None
    assert len(members.changed) == 4


def test_subscriptions_follow_the_newest_version():
    members, channel = Members(), Unconnected()
    members.beat(channel, {"T": 5})
    assert not members.beat(channel, {"T": 4})
    assert members.manager.group("g").subscriptions["T"].sub_version == 5
    assert not members.beat(channel, {"T": 6})
    assert members.manager.group("g").subscriptions["T"].sub_version == 6
    assert not members.beat(channel, None)
    assert members.beat(channel, {"U": 1})
    assert list(members.manager.group("g").subscriptions) == ["U"]


def test_silent_clients_are_found():
    members, channel = Members(), Unconnected()
    members.beat(channel, {})
    producers = ProducerManager()
    producers.register("p", ClientChannel(channel, "id", "JAVA", 479, 20.0))
    assert members.manager.silent_since(9.0) == []
    assert members.manager.silent_since(11.0) == [channel]
    assert producers.silent_since(11.0) == []
    producers.channel_closed(channel)
    assert producers.clients("p") == []


class Unwalked(dict):
    """A table in which code may look up entries, but over which it must not iterate."""

    def __iter__(self):
        raise AssertionError("the code iterates over the whole table")

    keys = values = items = __iter__


def test_the_end_of_a_connection_costs_what_its_own_groups_cost():
    """Before the fix, the end of a connection with 20,000 groups blocked the event loop for 105 s."""
    members, producers, channel, other = Members(), ProducerManager(), Unconnected(), Unconnected()
    for number in range(20):
        producers.register(f"p{number}", ClientChannel(other, "other", "JAVA", 479, 1.0))
        client = ClientChannel(other, "other", "JAVA", 479, 1.0)
        members.manager.register(client, f"g{number}", "CONSUME_PASSIVELY", "CLUSTERING", "x", None)
    producers.register("p1", ClientChannel(channel, "mine", "JAVA", 479, 1.0))
    members.beat(channel, {"T": 1})
    for manager in (producers, members.manager):
        manager._groups = Unwalked(manager._groups)
        assert manager.groups_of(channel) == 1
        manager.channel_closed(channel)
        manager.channel_closed(channel)
        assert (manager.groups_of(channel), manager.groups_of(other)) == (0, 20)
    assert [client.client_id for client in producers.clients("p1")] == ["other"]
    assert members.manager.group("g") is None


def test_a_producer_is_found_by_the_id_its_connection_named_last():
    producers, first, second = ProducerManager(), Unconnected(), Unconnected()
    producers.register("p", ClientChannel(first, "a", "JAVA", 479, 1.0))
    producers.register("q", ClientChannel(first, "a", "JAVA", 479, 1.0))
    producers.register("p", ClientChannel(second, "a", "JAVA", 479, 1.0))
    assert producers.find_channel("a") is second
    producers.channel_closed(first)
    assert producers.find_channel("a") is second, "the newest connection counts"
    producers.register("p", ClientChannel(second, "b", "JAVA", 479, 1.0))
    assert (producers.find_channel("a"), producers.find_channel("b")) == (None, second), (
        "an id that is no longer named is removed"
    )
    producers.register("q", ClientChannel(second, "b", "JAVA", 479, 1.0))
    producers.unregister("p", second)
    assert producers.find_channel("b") is second
    producers.unregister("q", second)
    producers.unregister("q", second)
    assert producers.find_channel("b") is None and not producers._channels and not producers._connections


def test_locks_are_bounded_and_expired_ones_freed():
    clock = ManualClock()
    locks = RebalanceLockManager(clock.monotonic, shares=Shares(3, 3, 0))
    assert locks.try_lock("g", [1, 2, 3, 4], "a") == [1, 2, 3]
    assert locks.try_lock("g", [2], "a") == [2], "locks that are held are renewed nevertheless"
    clock.advance(50_000)
    assert locks.try_lock("g", [1], "a") == [1]
    clock.advance(11_000)
    assert locks.try_lock("h", [7, 8, 9], "b") == [7, 8]
    assert len(locks) == 3 and locks.holds_any("g")
    clock.advance(61_000)
    assert not locks.holds_any("g") and not locks.holds_any("h") and len(locks) == 0


def test_very_many_expired_locks_go_in_pieces(monkeypatch):
    """Before the fix, removing 200,000 expired locks took 30 s. Expired locks have no effect even before removal."""
    monkeypatch.setattr(rebalance_lock, "_EXPIRED_AT_ONCE", 3)
    clock = ManualClock()
    locks = RebalanceLockManager(clock.monotonic)
    locks.try_lock("g", range(10), "a")
    clock.advance(61_000)
    assert locks.try_lock("g", [9], "b") == [9]
    assert len(locks) == 7
    sizes = []
    while locks.holds_any("h") or len(locks) > 1:
        sizes.append(len(locks))
    assert sizes == [4]
    assert locks.holds_any("g")


def test_offsets_are_written_when_they_changed():
    written: list[bytes] = []
    tables = Tables(written.append)
    offsets = ConsumerOffsetManager(tables.keep, lambda: 1)
    offsets.persist()
    offsets.commit("g", "T", 0, 7)
    offsets.commit("g", "T", 1, 0)
    offsets.commit("h", "U", 0, 9)
    offsets.persist()
    offsets.persist()
    tables.write()
    tables.write()
    assert len(written) == 1
    again = ConsumerOffsetManager(tables.keep, lambda: 1)
    again.load(written[0])
    assert (again.query("g", "T", 0), again.query("g", "T", 1), again.query("g", "T", 2)) == (7, 0, None)
    again.remove_topic("T")
    again.remove_group("h")
    assert again.table == {}


def test_offsets_that_could_not_be_written_are_tried_again():
    def refuse(_content: bytes) -> None:
        raise OSError("disk full")

    tables = Tables(refuse)
    offsets = ConsumerOffsetManager(tables.keep, lambda: 1)
    offsets.commit("g", "T", 0, 7)
    for _ in range(2):
        written = offsets.persist()
        tables.write()
        with pytest.raises(OSError, match="disk full"):
            written.result()


def test_locks_expire_and_are_renewed():
    clock = ManualClock()
    locks = RebalanceLockManager(clock.monotonic)
    assert locks.try_lock("g", ["q1", "q2"], "a") == ["q1", "q2"]
    assert locks.try_lock("g", ["q1", "q3"], "b") == ["q3"]
    clock.advance(40_000)
    assert locks.try_lock("g", ["q1"], "a") == ["q1"]
    clock.advance(30_000)
    assert locks.try_lock("g", ["q1", "q2"], "b") == ["q2"]
    locks.unlock("g", ["q1"], "b")
    assert locks.try_lock("g", ["q1"], "b") == []
    locks.unlock("g", ["q1"], "a")
    assert locks.try_lock("g", ["q1"], "b") == ["q1"]


def test_a_damaged_table_never_counts_as_an_empty_one(tmp_path):
    def take(text: bytes | None) -> None:
        taken.append(text)
        if text == b"damaged":
            raise FormatError("topics.json", 3, "JSON", "damaged")

    taken: list[bytes | None] = []
    tables = ConfigFiles(Files(), str(tmp_path))
    tables.load("topics.json", take)
    assert taken == [None]
    tables.replacer("topics.json")(b"damaged")
    with pytest.raises(StoreDamagedError, match=r"topics\.json"):
        tables.load("topics.json", take)
    (tmp_path / "config/topics.json.bak").write_bytes(b"spare")
    tables.load("topics.json", take)
    assert taken[-1] == b"spare"


def offset_manager(version_step: int = 500) -> ConsumerOffsetManager:
    return ConsumerOffsetManager(keep_nothing(), lambda: 1_700_000_000_000, version_step=version_step)


def test_larger_offsets_of_a_slave_are_taken_over():
    offsets = offset_manager()
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 1, 5)
    version = offsets.data_version
    theirs = {"T@g": {0: 7, 1: 4, 2: 0}, "U@h": {0: 1}, "U@unknown": {0: 1}, "nonsense": {0: 1}}
    older = DataVersion(0, version.timestamp_ms - 1, version.counter)

    def exists(topic: str, group: str) -> bool:
        return (topic, group) == ("U", "h")

    assert not at_once(offsets.take(older, theirs, exists))
    assert offsets.table == {"T@g": {0: 5, 1: 5}}
    for newer in (version, DataVersion(0, 0, version.counter + 1), DataVersion(1, 0, 0)):
        assert at_once(offsets.take(newer, theirs, exists))
        assert offsets.table == {"T@g": {0: 7, 1: 5, 2: 0}, "U@h": {0: 1}}
        assert offsets.data_version == newer


@pytest.mark.parametrize(("version_step", "steps"), [(500, 2), (0, 0)])
def test_versions_of_consumer_offsets(version_step: int, steps: int):
    """Behind a master that fetches from its slaves, the version tells whether a slave knows the last reset."""
    offsets = offset_manager(version_step)
    for number in range(1000):
        offsets.commit("g", "T", 0, number)
    assert offsets.data_version.counter == steps
    offsets.reset("g", "T", 0, 1)
    assert offsets.data_version.counter > steps
    before = offsets.data_version.counter
    offsets.remove_group("g")
    assert offsets.data_version.counter == before + 1
