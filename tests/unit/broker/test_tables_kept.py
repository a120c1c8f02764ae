"""Tables that are not written, and the table of a broker with light queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.brokers import Cluster, run

from rucola.broker.config import BrokerConfig
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.topic_config import TopicConfig
from rucola.errors import DiskError
from rucola.formats.tables import decode_consumer_offsets

LIGHT = "%LMQ%g"


def test_a_topic_that_cannot_be_written_is_not_there() -> None:
    """Its messages would be stored, and nobody would find them after a crash."""

    def refuse(_content: bytes) -> None:
        raise DiskError("topics.json", "replace", "No space left on device")

    topics = TopicConfigManager(BrokerConfig(), refuse, lambda: 1)
    told: list[int] = []
    topics.on_change(lambda: told.append(1))
    with pytest.raises(DiskError):
        topics.create_on_send("New", "TBW102", 4)
    assert topics.get("New") is None
    known = topics.get("SELF_TEST_TOPIC")
    with pytest.raises(DiskError):
        topics.update(TopicConfig("SELF_TEST_TOPIC", 7, 7))
    assert topics.get("SELF_TEST_TOPIC") is known
    assert not told


def test_consumers_of_a_full_disk_get_their_retry_topic() -> None:
    """Whoever reads must be able to go on; the topic is made again with the group's next heartbeat."""

    def refuse(_content: bytes) -> None:
        raise DiskError("topics.json", "replace", "No space left on device")

    topics = TopicConfigManager(BrokerConfig(), refuse, lambda: 1)
    with pytest.raises(DiskError):
        topics.create_for_group("%RETRY%g", 1)
    assert topics.create_for_group("%RETRY%g", 1)[0].write_queue_nums == 1


def test_light_groups_have_a_table_of_their_own() -> None:
    """RocketMQ 5.3.3, LmqConsumerOffsetManager: without a queue, since light queues have the id 0."""
    written: list[bytes] = []
    offsets = ConsumerOffsetManager(written.append, lambda: 1, light=True)
    offsets.commit("g", "T", 1, 7)
    offsets.commit(LIGHT, "%LMQ%t", 0, 9)
    offsets.persist()
    assert written[0].decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":1\n\t},\n'
        '\t"groupTopicMap":{\n\t\t"g":["T"]\n\t},\n'
        '\t"lmqOffsetTable":{\n\t\t"%LMQ%t@%LMQ%g":9\n\t},\n'
        '\t"offsetTable":{\n\t\t"T@g":{1:7\n\t\t}\n\t}\n}'
    )
    assert decode_consumer_offsets(written[0])[1] == {"T@g": {1: 7}, "%LMQ%t@%LMQ%g": {0: 9}}


def test_a_broker_with_light_queues_keeps_its_progress_where_rocketmq_does(tmp_path: Path) -> None:
    """And takes it from the usual file when light queues have just been switched on."""
    config = tmp_path / "config"
    fields = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}

    async def scene(light: bool, expected: str | None, commit: int) -> None:
        cluster = Cluster(tmp_path)
        object.__setattr__(cluster._store_config, "enable_lmq", light)
        async with cluster:
            assert (await cluster.send("T")).code == 0
            assert (await cluster.pull("T")).code == 0  # makes the group
            assert ((await cluster.ask(14, fields)).ext_fields or {}).get("offset") == expected
            assert (await cluster.ask(15, fields | {"commitOffset": str(commit)})).code == 0

    run(scene(False, "0", 1))
    run(scene(True, "1", 2))
    assert decode_consumer_offsets((config / "lmqConsumerOffset.json").read_bytes())[1]["T@cg"] == {0: 2}
    (config / "consumerOffset.json").unlink()
    run(scene(True, "2", 3))
