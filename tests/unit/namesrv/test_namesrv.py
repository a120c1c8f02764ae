"""The name server over loopback TCP."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from tests.deflated import deflated

from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.errors import AddressInUseError, DiskError, FormatError
from rucola.namesrv import NameServer, NamesrvConfig, processor
from rucola.protocol.bodies.registration import RegisterBrokerBody, TopicConfigSerializeWrapper, body_crc32
from rucola.protocol.bodies.route import QueueData, TopicRouteData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.route import RegisterBrokerRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.runtime.files import Files
from rucola.testing.event_loop import run_stepped

VERSION = DataVersion(0, 5, 1)


class Asker:
    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.client = RemotingClient()

    async def ask(self, code: int, body: bytes = b"", version: int = 479, **fields: str) -> RemotingCommand:
        command = RemotingCommand(code, ext_fields=fields, body=body, version=version)
        return await self.client.invoke(self.server.address, command)

    async def register(
        self,
        body: bytes | None = None,
        crc: int | None = None,
        names: Iterable[str] = ("T", "U"),
        broker: str = "broker-a",
        address: str = "10.0.0.1:10911",
    ) -> RemotingCommand:
        table = {name: TopicConfig(name, 4, 4, 6) for name in names}
        if body is None:
            body = RegisterBrokerBody(TopicConfigSerializeWrapper(table, VERSION)).encode()
        crc32 = body_crc32(body) if crc is None else crc
        header = RegisterBrokerRequestHeader(broker, address, "C", "10.0.0.1:10912", 0, body_crc32=crc32)
        return await self.ask(RequestCode.REGISTER_BROKER, body, **header.to_ext_fields())


@asynccontextmanager
async def asking(path: Path | None = None, **options: int) -> AsyncIterator[Asker]:
    server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=str(path) if path else "", **options))
    await server.start()
    asker = Asker(server)
    try:
        yield asker
    finally:
        await asker.client.close()
        await server.shutdown()


@pytest.mark.parametrize("version", [479, 317, 0], ids=["java5", "go", "unknown"])
def test_a_route_has_quoted_keys_for_every_client(version):
    async def scene() -> None:
        async with asking() as asker:
            assert (await asker.register()).code == 0
            route = await asker.ask(105, version=version, topic="T")
            assert orjson.loads(route.body) == {
                "brokerDatas": [
                    {
                        "brokerAddrs": {"0": "10.0.0.1:10911"},
                        "brokerName": "broker-a",
                        "cluster": "C",
                        "enableActingMaster": False,
                    }
                ],
                "filterServerTable": {},
                "queueDatas": [
                    {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
                ],
            }
            missing = await asker.ask(105, topic="none")
            assert missing.code == 17
            assert missing.remark.startswith("No topic route info in name server for the topic: none\nSee https://")

    run_stepped(scene())


def test_brokers_and_topics_are_limited_and_known_ones_go_on():
    many = [f"N{number}" for number in range(4000)]  # a thread parses their body

    async def scene() -> None:
        async with asking(brokers_max=3, brokers_per_connection_max=2, topics_max=4005) as asker:
            for number in (1, 2):
                one = await asker.register(broker=f"b{number}", address=f"10.0.0.{number}:1")
                assert one.code == 0
            third = await asker.register(broker="b3", address="10.0.0.3:1")
            assert (third.code, third.remark) == (1, "2 brokers use this connection (brokersPerConnectionMax)")
            other = Asker(asker.server)
            assert (await other.register(broker="b3", address="10.0.0.3:1", names=["V", "T"])).code == 0
            fourth = await other.register(broker="b4", address="10.0.0.4:1")
            assert (fourth.code, fourth.remark) == (1, "the name server has 3 brokers already (brokersMax)")
            assert (await asker.register(broker="b1", address="10.0.0.1:1", names=[*many, "T"])).code == 0
            over = await other.register(broker="b3", address="10.0.0.3:1", names=[*many, "T", "X", "Y", "Z"])
            assert over.code == 1 and over.remark.startswith("the name server would have 4006 topics, but only 4005")
            assert (await other.register(broker="b3", address="10.0.0.3:1", names=[*many, "T", "X", "Y"])).code == 0
            queues = TopicRouteData(queue_datas=[QueueData("b1", 4, 4, 6, 0)]).encode()
            more = await asker.ask(217, queues, topic="more")
            assert more.code == 1 and "topicsMax" in more.remark
            assert (await asker.ask(217, queues, topic="T")).code == 0
            await other.client.close()

    run_stepped(scene())


def test_registrations_are_checked_and_both_body_forms_read():
    async def scene() -> None:
        async with asking() as asker:
            assert (await asker.register(crc=12345)).remark == "crc32 not match"
            assert (await asker.register(b"\x00nonsense", crc=0)).code == 1
            table = {name: TopicConfig(name, 4, 4, 6) for name in ("T", "U")}
            body = RegisterBrokerBody(TopicConfigSerializeWrapper(table, VERSION))
            assert (await asker.register(deflated(body))).code == 0
            assert sorted(orjson.loads((await asker.ask(206)).body)["topicList"]) == ["T", "U"]

    run_stepped(scene())


def test_long_registrations_are_read_in_a_thread_and_keep_their_order(monkeypatch):
    """Before the fix, a registration with a deflated body of 260 KB blocked the name server for a second, and one with
    14 MB of JSON for two seconds.
    """
    readers = []
    decode = RegisterBrokerBody.decode.__func__

    def noted(cls: type, source: bytes) -> RegisterBrokerBody:
        readers.append(threading.current_thread() is threading.main_thread())
        return decode(cls, source)

    monkeypatch.setattr(RegisterBrokerBody, "decode", classmethod(noted))

    async def scene() -> None:
        async with asking() as asker:
            table = {f"T{number}": TopicConfig(f"T{number}", 4, 4, 6) for number in range(1000)}
            long = RegisterBrokerBody(TopicConfigSerializeWrapper(table, VERSION))
            broker = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
            for body in (long.encode(), deflated(long)):
                answers = await asyncio.gather(asker.register(body), asker.ask(104, **broker), asker.register())
                assert [answer.code for answer in answers] == [0, 0, 0]
                assert sorted(orjson.loads((await asker.ask(206)).body)["topicList"]) == ["T", "U"]
            refused = await asyncio.gather(asker.register(long.encode(), crc=7), asker.register(body[:-1], crc=0))
            assert [answer.code for answer in refused] == [1, 1]
            assert readers == [False] * 5
            monkeypatch.setattr(processor, "_WAITING_BYTES_MAX", len(body) - 1)
            assert (await asker.register(body)).code == 2

    run_stepped(scene())


def test_other_requests_are_answered():
    async def scene() -> None:
        async with asking() as asker:
            await asker.register()
            broker = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
            info = orjson.loads((await asker.ask(106)).body)
            assert info["clusterAddrTable"] == {"C": ["broker-a"]}
            assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
            same = await asker.ask(322, orjson.dumps(VERSION.to_dict()), **broker)
            assert (same.ext_fields, orjson.loads(same.body)) == ({"changed": "false"}, VERSION.to_dict())
            assert (await asker.ask(322, b'{"counter":9}', **broker)).ext_fields == {"changed": "true"}
            assert (await asker.ask(904, **broker)).code == 0
            members = orjson.loads((await asker.ask(901, clusterName="C", brokerName="broker-a")).body)
            assert members["brokerMemberGroup"]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
            assert orjson.loads((await asker.ask(304)).body)["topicList"] == ["C", "broker-a"]
            assert sorted(orjson.loads((await asker.ask(224, cluster="C")).body)["topicList"]) == ["T", "U"]
            assert (await asker.ask(205, brokerName="broker-a")).ext_fields == {"wipeTopicCount": "2"}
            assert (await asker.ask(327, brokerName="broker-a")).ext_fields == {"addTopicCount": "2"}
            route = (await asker.ask(105, topic="T")).body
            assert (await asker.ask(217, route, topic="Copy")).code == 0
            assert (await asker.ask(105, topic="Copy")).code == 0
            assert (await asker.ask(216, topic="Copy")).code == 0
            assert (await asker.ask(105, topic="Copy")).code == 17
            assert (await asker.ask(104, **broker)).code == 0
            assert (await asker.ask(105, topic="T")).code == 17
            assert (await asker.ask(103)).code == 1
            assert (await asker.ask(4242)).code == 3

    run_stepped(scene())


@pytest.mark.parametrize("version", [VERSION, DataVersion(0, 1, 9)])
def test_request_322_is_a_sign_of_life_whatever_the_version(version: DataVersion):
    async def scene() -> None:
        async with asking() as asker:
            await asker.register()
            (live,) = asker.server.routes._live.values()
            live.last_update_s = 0.0
            broker = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
            await asker.ask(322, orjson.dumps(version.to_dict()), **broker)
            assert live.last_update_s > 0

    run_stepped(scene())


def test_a_closed_connection_unregisters_its_broker():
    async def scene() -> None:
        async with asking() as asker:
            await asker.register()
            other = Asker(asker.server)
            asker.client._connections.pop(asker.server.address).close()
            while (await other.ask(105, topic="T")).code != 17:
                await asyncio.sleep(0)
            await other.client.close()

    run_stepped(scene())


def test_key_value_configuration_outlives_a_restart(tmp_path):
    async def scene() -> None:
        path = tmp_path / "kvConfig.json"
        async with asking(path) as asker:
            assert (await asker.ask(100, namespace="N", key="k", value="v")).code == 0
            assert (await asker.ask(100, namespace="N", key="k2", value="v2")).code == 0
            assert (await asker.ask(102, namespace="N", key="k2")).code == 0
            assert (await asker.ask(100, namespace="N")).code == 1
        async with asking(path) as asker:
            assert (await asker.ask(101, namespace="N", key="k")).ext_fields == {"value": "v"}
            missing = await asker.ask(101, namespace="N", key="k2")
            assert (missing.code, missing.remark) == (22, "No config item, Namespace: N Key: k2")
            assert orjson.loads((await asker.ask(219, namespace="N")).body) == {"table": {"k": "v"}}
            assert (await asker.ask(219, namespace="none")).code == 22
            await asker.ask(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
            assert orjson.loads((await asker.register()).body) == {"table": {"T": "broker-a:4"}}
        path.write_text("damaged")
        with pytest.raises(FormatError, match=r"kvConfig\.json"):
            async with asking(path):
                pass

    run_stepped(scene())


class SlowDisk(Files):
    """A disk on which each write takes 20 ms, and the first one fails."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def replace_file(self, path: str, content: bytes) -> None:
        self.threads.append(threading.current_thread().name)
        time.sleep(0.02)
        if len(self.threads) == 1:
            raise DiskError(path, "write", "broken")
        super().replace_file(path, content)


def test_key_values_are_written_together_by_a_thread_and_answers_wait_for_the_disk(tmp_path):
    path, disk = tmp_path / "kvConfig.json", SlowDisk()

    async def scene() -> None:
        server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=str(path)), disk)
        await server.start()
        asker = Asker(server)
        failed = await asker.ask(100, namespace="n", key="first", value="v")
        assert failed.code == 1 and "broken" in failed.remark
        values = [asker.ask(100, namespace="n", key=f"k{number}", value="v") for number in range(100)]
        assert {answer.code for answer in await asyncio.gather(*values)} == {0}
        assert len(orjson.loads(path.read_bytes())["configTable"]["n"]) == 101
        assert set(disk.threads) == {"rucola-tables"} and len(disk.threads) < 20
        await asker.client.close()
        await server.shutdown()

    run_stepped(scene())


def test_a_taken_port_is_told():
    async def scene() -> None:
        async with asking() as asker:
            port = int(asker.server.address.rpartition(":")[2])
            second = NameServer(NamesrvConfig(listen_port=port))
            with pytest.raises(AddressInUseError) as caught:
                await second.start()
            assert caught.value.address == asker.server.address
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.__cause__.errno == errno.EADDRINUSE

    run_stepped(scene())


def test_lost_brokers_are_looked_for_again_after_a_look_that_failed(monkeypatch):
    """Before the fix, a failed search for lost brokers was the last search, and the brokers stayed in the routes."""

    async def scene() -> None:
        server = NameServer(NamesrvConfig(listen_port=0, scan_not_active_broker_interval_ms=10))
        await server.start()
        looks, scan = [], server.routes.scan

        def first_one_fails() -> list[str]:
            looks.append(scan())
            if len(looks) == 1:
                raise ValueError("a defect")
            return looks[-1]

        monkeypatch.setattr(server.routes, "scan", first_one_fails)
        try:
            async with asyncio.timeout(30):
                while len(looks) < 2:
                    await asyncio.sleep(0.001)
            assert server.supervisor.failures["removal of lost brokers"] == 1
        finally:
            await server.shutdown()
        count = len(looks)
        await asyncio.sleep(0.03)
        assert len(looks) == count

    run_stepped(scene())
