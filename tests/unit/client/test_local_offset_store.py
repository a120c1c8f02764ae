"""Progress of broadcasting consumers: RocketMQ's file, also after crashes and damage, and the consumer that
writes it.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from random import Random

import pytest
from tests.brokers import Cluster, run

from rucola import MessageModel, MessageQueue, PullConsumer, PullConsumerConfig
from rucola.client.local_offset_store import LocalFileOffsetStore, decode_offsets, encode_offsets
from rucola.errors import ConfigError, DiskError, FormatError
from rucola.runtime.files import Files
from rucola.testing.crash_states import crash_states
from rucola.testing.simulated_disk import Directory, SimulatedDisk
from rucola.testing.simulated_os import files_on

SEED = 20260101
WRITTEN_BY_JAVA = (
    b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T_c1_group_broadcast"\n\t\t}:10,{'
    b'\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"T_c1_group_broadcast"\n\t\t}:11\n\t}\n}'
)
"""The file as the official Java client 5.3.3 writes it."""
QUEUES = [MessageQueue("T_c1_group_broadcast", "broker-a", number) for number in range(3)]


def store_in(folder: Path, client_id: str = "10.0.0.1@DEFAULT", group: str = "cg") -> LocalFileOffsetStore:
    return LocalFileOffsetStore(Files(), str(folder), client_id, group)


def test_the_bytes_are_those_of_the_official_client() -> None:
    table = {QUEUES[0]: 10, QUEUES[1]: 11}
    assert decode_offsets(WRITTEN_BY_JAVA, "offsets.json") == table
    assert encode_offsets(table) == encode_offsets(dict(reversed(table.items()))) == WRITTEN_BY_JAVA
    assert decode_offsets(encode_offsets({}), "offsets.json") == {}
    assert decode_offsets(b'{"offsetTable":{}}', "offsets.json") == {}
    odd = {MessageQueue('%RETRY%"g\n', "b\\a", 7): (1 << 63) - 1}
    assert decode_offsets(encode_offsets(odd), "offsets.json") == odd


def test_progress_is_found_where_the_official_client_has_it(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert store.load() == {}
    store.commit({QUEUES[0]: 10})
    store.commit({QUEUES[1]: 11})
    path = tmp_path / "10.0.0.1@DEFAULT" / "cg" / "offsets.json"
    assert path.read_bytes() == WRITTEN_BY_JAVA
    assert decode_offsets(path.with_name("offsets.json.bak").read_bytes(), "") == {QUEUES[0]: 10}
    assert store_in(tmp_path).load() == {QUEUES[0]: 10, QUEUES[1]: 11}
    assert store_in(tmp_path, group="other").load() == store_in(tmp_path, "10.0.0.1@other").load() == {}
    store_in(tmp_path).commit({QUEUES[2]: 1})
    store.commit({QUEUES[0]: 3})
    assert store.load() == {QUEUES[0]: 3, QUEUES[1]: 11, QUEUES[2]: 1}


def test_a_damaged_file_is_no_fresh_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = store_in(tmp_path)
    store.commit({QUEUES[0]: 1})
    store.commit({QUEUES[0]: 2})
    path, spare = Path(store.path), Path(store.path + ".bak")
    for damage in (b"", b'{"offsetTable":{{"topic"', b"[]"):
        path.write_bytes(damage)
        with caplog.at_level(logging.ERROR, "rucola.client.local_offset_store"):
            assert store.load() == {QUEUES[0]: 1}
    assert len(caplog.records) == 2
    kept = spare.read_bytes()
    store.commit({QUEUES[1]: 5})
    assert spare.read_bytes() == kept  # the damaged file did not replace the copy
    assert store.load() == {QUEUES[0]: 1, QUEUES[1]: 5}
    path.unlink()
    assert store.load() == {QUEUES[0]: 1}
    path.write_bytes(b"{")
    spare.write_bytes(b"}")
    for call in (store.load, lambda: store.commit({QUEUES[0]: 9})):
        with pytest.raises(FormatError) as caught:
            call()
        assert "offsets.json" in str(caught.value)
    path.write_bytes(b"")
    spare.unlink()
    assert store.load() == {}  # as after a kill of RocketMQ's client during its first write


@pytest.mark.parametrize("client_id", ["../../etc", "a/b", "a\\b", "..", "a\0b"])
def test_no_client_id_leads_elsewhere(tmp_path: Path, client_id: str) -> None:
    with pytest.raises(ConfigError):
        store_in(tmp_path, client_id)


def test_after_a_crash_there_is_the_old_progress_or_the_new_one() -> None:
    disk = SimulatedDisk({"/": Directory()}, {"/": Directory()})
    random, seen = Random(SEED), set()
    tables: list[dict[MessageQueue, int]] = [{}, *({QUEUES[0]: n, QUEUES[1]: 7 * n} for n in range(1, 5))]
    done = 0

    def after(image: dict[str, bytes | None]) -> dict[MessageQueue, int]:
        return LocalFileOffsetStore(files_on(SimulatedDisk.of(image)), "/home", "id", "cg").load()

    def check(_kind: str, _path: str) -> None:
        for state in crash_states(disk, random, 20):
            table = after(state.image)
            assert table in tables[done : done + 2], state.choice
            seen.add((done, tables.index(table)))

    store = LocalFileOffsetStore(files_on(disk), "/home", "id", "cg")
    for table in tables[1:]:
        disk.observer = check
        store.commit(table)
        disk.observer = None
        done += 1
        for state in crash_states(disk, random, 20):
            assert after(state.image) == table, state.choice
    assert len(seen) == 2 * (len(tables) - 1)


def test_a_full_disk_leaves_the_old_progress() -> None:
    disk = SimulatedDisk({"/": Directory()}, {"/": Directory()})
    store = LocalFileOffsetStore(files_on(disk), "/home", "id", "cg")
    store.commit({QUEUES[0]: 1})

    def full(kind: str, path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    for _ in range(3):
        disk.faults = full
        with pytest.raises(DiskError):
            store.commit({QUEUES[0]: 2})
        disk.faults = None
        assert store.load() == {QUEUES[0]: 1}
    store.commit({QUEUES[0]: 3})
    assert store.load() == {QUEUES[0]: 3}


def test_a_broadcasting_consumer(tmp_path: Path) -> None:
    """Every broadcasting client reads all messages and continues where it was; the broker stores no progress for it."""

    def config(name: str) -> PullConsumerConfig:
        folder = str(tmp_path / "offsets")
        return PullConsumerConfig(
            message_model=MessageModel.BROADCASTING, local_offset_store_dir=folder, instance_name=name
        )

    async def read_on(namesrv: str, name: str) -> list[bytes]:
        async with PullConsumer("cg", namesrv, config(name)) as consumer:
            [queue] = [one for one in await consumer.message_queues("T") if one.queue_id == 0]
            found = await consumer.pull(queue, await consumer.committed(queue) or 0)
            await consumer.commit(queue, found.next_begin_offset)
            assert await consumer.committed(queue) == found.next_begin_offset
        return [bytes(message.body) for message in found.messages]

    async def scene() -> None:
        async with Cluster(tmp_path / "store") as there:
            namesrv = there.namesrv.address
            await there.send(body=b"one")
            assert await read_on(namesrv, "first") == await read_on(namesrv, "second") == [b"one"]
            await there.send(body=b"two")
            assert await read_on(namesrv, "first") == [b"two"]
            assert await read_on(namesrv, "third") == [b"one", b"two"]
            assert "T@cg" not in there.broker.offsets.table
            async with PullConsumer("cg", namesrv, config("DEFAULT")) as consumer:
                assert consumer.client_id == "127.0.0.1@DEFAULT"

    run(scene())
