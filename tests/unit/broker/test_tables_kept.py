"""Tables that cannot be written, and the table of a broker with light queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.brokers import Cluster, run
from tests.tables import Tables, keep_nothing

from rucola.broker.config import BrokerConfig
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.errors import DiskError
from rucola.formats.tables import consumer_offset_pieces, decode_consumer_offsets, decode_topics

LIGHT = "%LMQ%g"


def test_a_topic_that_cannot_be_written_is_not_there() -> None:
    """A topic must not get messages if its table could not be written: after a crash, they would not be found."""

    def refuse(_content: bytes) -> None:
        raise DiskError("topics.json", "replace", "No space left on device")

    tables = Tables(refuse)
    topics = TopicConfigManager(BrokerConfig(), tables.keep, lambda: 1)
    told: list[TopicConfig | None] = []
    topics.on_change(lambda: told.append(topics.get("New")))
    known = topics.get("SELF_TEST_TOPIC")
    made = topics.create_on_send("New", "TBW102", 4)
    assert made is not None
    assert topics.registering("New") is made[1]
    changed = topics.update(TopicConfig("SELF_TEST_TOPIC", 7, 7))
    tables.write()
    for future in (made[1], changed):
        with pytest.raises(DiskError):
            future.result()
    assert topics.get("New") is None and topics.registering("New") is None
    assert topics.get("SELF_TEST_TOPIC") is known
    assert told[-1] is None, "listeners learn that the topic does not exist"
    assert tables.supervisor.failures["writing of table.json"] == 1


def test_a_topic_changed_again_during_a_write_that_fails_is_what_the_next_write_says() -> None:
    outcomes: list[DiskError | None] = [DiskError("topics.json", "replace", "Input/output error"), None]
    written: list[bytes] = []

    def take(content: bytes) -> None:
        written.append(content)
        if error := outcomes.pop(0):
            raise error

    tables = Tables(take)
    topics = TopicConfigManager(BrokerConfig(), tables.keep, lambda: 1)
    first = topics.update(TopicConfig("A", 1, 1))
    other = topics.update(TopicConfig("B", 1, 1))
    tables.loop.run()  # the write begins, and both changes come too late for it
    second = topics.update(TopicConfig("A", 2, 2))
    third = topics.update(TopicConfig("C", 1, 1))
    assert first is other and second is third and second is not first
    tables.write()
    assert isinstance(first.exception(), DiskError)
    assert not second.done()
    assert topics.get("B") is None and topics.get("A") == TopicConfig("A", 2, 2)
    tables.write()
    assert second.result() is None
    assert {"A", "C"} <= decode_topics(written[-1])[1].keys() and "B" not in decode_topics(written[-1])[1]
    assert len(written) == 2, "the write is not tried again"


def test_many_changes_share_a_write_and_the_table_rests_after_it() -> None:
    written: list[bytes] = []

    def take(content: bytes) -> None:
        written.append(content)
        tables.clock.advance(100)

    tables = Tables(take)
    told: list[list[str]] = []

    def register(topics: Sequence[TopicConfig]) -> asyncio.Future[None]:
        told.append([topic.topic_name for topic in topics])
        return registration

    registration: asyncio.Future[None] = asyncio.Future(loop=cast(Any, tables.loop))
    topics = TopicConfigManager(BrokerConfig(), tables.keep, lambda: 1)
    topics.on_register(register)
    futures = [topics.update(TopicConfig(f"T{number}")) for number in range(50)]
    gone = topics.update(TopicConfig("gone"))
    topics.delete("gone")
    tables.loop.run()
    futures.append(topics.update(TopicConfig("late")))
    tables.writer._worker.run()  # type: ignore[attr-defined]
    tables.loop.run()
    assert told == [[f"T{number}" for number in range(50)]], "all changes, with one write"
    assert not gone.done() and topics.registering("T0") is gone
    tables.clock.advance(199)
    tables.loop.run()
    assert len(written) == 1 and not tables.writer._worker.wanted  # type: ignore[attr-defined]
    tables.write()
    assert told[1:] == [["late"]]
    registration.set_result(None)
    tables.loop.run()
    assert all(future.done() for future in (*futures, gone)) and topics.registering("late") is None
    assert len(written) == 2


def test_unwritten_tables_are_written_at_the_stop_in_place_of_writes_that_did_not_begin() -> None:
    written: list[bytes] = []
    tables = Tables(written.append)
    topics = TopicConfigManager(BrokerConfig(), tables.keep, lambda: 1)
    first = topics.update(TopicConfig("A"))
    tables.loop.run()
    second = topics.update(TopicConfig("B"))
    tables.writer.stop()
    tables.writer.write()
    tables.loop.run()
    assert first.done() and second.done() and len(written) == 1
    assert {"A", "B"} <= decode_topics(written[0])[1].keys()
    tables.writer.write()
    assert len(written) == 1


def test_consumers_of_a_full_disk_get_their_retry_topic() -> None:
    """Consumers must be able to continue on a full disk, so a retry topic exists even if it could not be written. After
    a crash, the group's next heartbeat creates it again.
    """

    def refuse(_content: bytes) -> None:
        raise DiskError("topics.json", "replace", "No space left on device")

    tables = Tables(refuse)
    topics = TopicConfigManager(BrokerConfig(), tables.keep, lambda: 1)
    _, made = topics.create_for_group("%RETRY%g", 1)
    assert made is not None
    tables.write()
    assert isinstance(made.exception(), DiskError)
    assert topics.create_for_group("%RETRY%g", 1)[0].write_queue_nums == 1


def test_light_groups_have_a_table_of_their_own() -> None:
    """As in RocketMQ 5.3.3 (LmqConsumerOffsetManager), an entry has no queue id, because light queues always
    have id 0.
    """
    written: list[bytes] = []
    tables = Tables(written.append)
    offsets = ConsumerOffsetManager(tables.keep, lambda: 1, light=True)
    offsets.commit("g", "T", 1, 7)
    offsets.commit(LIGHT, "%LMQ%t", 0, 9)
    offsets.persist()
    tables.write()
    assert written[0].decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":1\n\t},\n'
        '\t"groupTopicMap":{\n\t\t"g":["T"]\n\t},\n'
        '\t"lmqOffsetTable":{\n\t\t"%LMQ%t@%LMQ%g":9\n\t},\n'
        '\t"offsetTable":{\n\t\t"T@g":{1:7\n\t\t}\n\t}\n}'
    )
    assert decode_consumer_offsets(written[0])[1] == {"T@g": {1: 7}, "%LMQ%t@%LMQ%g": {0: 9}}


def test_a_broker_with_light_queues_keeps_its_progress_where_rocketmq_does(tmp_path: Path) -> None:
    """Without ``enableLmq`` RocketMQ reads one file, with it the other: both have the progress, whoever wrote last."""
    config = tmp_path / "config"
    fields = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}

    async def scene(light: bool, expected: str | None, commit: int) -> None:
        cluster = Cluster(tmp_path)
        object.__setattr__(cluster._store_config, "enable_lmq", light)
        async with cluster:
            assert (await cluster.send("T")).code == 0
            assert (await cluster.pull("T")).code == 0  # creates the group
            assert ((await cluster.ask(14, fields)).ext_fields or {}).get("offset") == expected
            assert (await cluster.ask(15, fields | {"commitOffset": str(commit)})).code == 0

    run(scene(False, "0", 1))
    run(scene(True, "1", 2))
    assert decode_consumer_offsets((config / "lmqConsumerOffset.json").read_bytes())[1]["T@cg"] == {0: 2}
    (config / "consumerOffset.json").unlink()
    run(scene(True, "2", 3))
    run(scene(False, "3", 4))
    run(scene(True, "4", 5))
    assert decode_consumer_offsets((config / "consumerOffset.json").read_bytes())[1]["T@cg"] == {0: 5}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (DataVersion(0, 49, 9), {0: 5, 1: 6}),
        (DataVersion(0, 50, 2), {0: 5, 1: 6}),
        (DataVersion(0, 50, 3), {0: 7, 1: 6, 2: 1}),  # equal: the larger offset
        (DataVersion(0, 50, 4), {0: 7, 1: 4, 2: 1}),
        (DataVersion(0, 51, 0), {0: 7, 1: 4, 2: 1}),
    ],
)
def test_of_two_files_of_offsets_the_newer_one_counts(version: DataVersion, expected: dict[int, int]) -> None:
    offsets = ConsumerOffsetManager(keep_nothing(), lambda: 60, light=True, keep_plain=keep_nothing())
    offsets.load(b"".join(consumer_offset_pieces(DataVersion(0, 50, 3), {"T@g": {0: 5, 1: 6}}, light=True)))
    offsets.load_plain(None)
    offsets.load_plain(b"".join(consumer_offset_pieces(version, {"T@g": {0: 7, 1: 4, 2: 1}})))
    assert offsets.table == {"T@g": expected}
    assert offsets.data_version == max(version, DataVersion(0, 50, 3), key=lambda one: (one.timestamp_ms, one.counter))


@pytest.mark.parametrize("taken", [0, 1])
def test_offsets_of_lite_topics_in_the_other_file_count_once(taken: int) -> None:
    class Lite:
        def take_table(self, _version: DataVersion, table: dict[str, dict[int, int]]) -> int:
            return len([table.pop(key) for key in list(table) if key.startswith("%LMQ%$")])

    written: list[bytes] = []
    tables = Tables(written.append)
    lite = cast(Any, Lite())
    offsets = ConsumerOffsetManager(keep_nothing(), lambda: 60, light=True, lite=lite, keep_plain=tables.keep)
    theirs = {"T@g": {0: 5}} | ({"%LMQ%$agents$a@g": {0: 3}} if taken else {})
    version = DataVersion(0, 50, 3)
    offsets.load(b"".join(consumer_offset_pieces(version, {"T@g": {0: 5}}, light=True)))
    offsets.load_plain(b"".join(consumer_offset_pieces(version, theirs)))
    offsets.persist()
    tables.write()
    assert [decode_consumer_offsets(one)[1] for one in written] == [{"T@g": {0: 5}}] * taken
