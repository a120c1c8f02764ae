"""A topic of type BatchCQ on a broker: how the store learns of it, and that it stays one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run

from rucola.errors import StoreDamagedError
from rucola.protocol.codes import RequestCode, ResponseCode


def topic_fields(attributes: str, topic: str = "B") -> dict[str, Any]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": attributes,
    }


@pytest.mark.parametrize("lost", [False, True])
def test_a_batch_topic_is_one_after_a_restart_too(lost: bool, tmp_path: Path) -> None:
    async def first() -> None:
        async with Cluster(tmp_path) as cluster:
            create = RequestCode.UPDATE_AND_CREATE_TOPIC
            assert (await cluster.ask(create, topic_fields("+queue.type=BatchCQ"))).code == ResponseCode.SUCCESS
            for body in (b"one", b"two"):
                assert (await cluster.send("B", body)).code == ResponseCode.SUCCESS
            assert await cluster.bodies("B") == [b"one", b"two"]
            changed = await cluster.ask(create, topic_fields("-queue.type"))
            assert (changed.code, changed.remark) == (
                ResponseCode.INVALID_PARAMETER,
                "queue.type of a topic cannot be changed",
            )

    async def second() -> None:
        async with Cluster(tmp_path) as cluster:
            assert (await cluster.send("B", b"three")).code == ResponseCode.SUCCESS
            assert await cluster.bodies("B") == [b"one", b"two", b"three"]

    run(first())
    assert not (tmp_path / "consumequeue/B").exists()
    if lost:
        shutil.rmtree(tmp_path / "batchconsumequeue")
    run(second())
    assert not (tmp_path / "consumequeue/B").exists()
    assert [file.name for file in (tmp_path / "batchconsumequeue/B").iterdir()] == ["0"]
    table = tmp_path / "config/topics.json"
    table.write_text(table.read_text().replace("BatchCQ", "SimpleCQ"))
    with pytest.raises(StoreDamagedError, match="type is not BatchCQ"):
        run(second())
