"""Options that can be changed while the broker runs, and options that can have only one value."""

from __future__ import annotations

from typing import Any

import pytest
from tests.brokers import Cluster, run

from rucola.broker.outer_api import BrokerOuterApi
from rucola.broker.processor.broker_manage import UNCHANGEABLE
from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient


async def change(cluster: Cluster, **options: object) -> RemotingCommand:
    text = "".join(f"{key}={value}\n" for key, value in options.items())
    return await cluster.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


class Told:
    """Records the registrations that are sent to name servers from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes: list[int] = []
        self.parts: list[int] = []
        invoke, register = RemotingClient.invoke, BrokerOuterApi.register_all

        async def noting(client: RemotingClient, address: str, command: RemotingCommand, timeout_ms: int) -> Any:
            if command.code in (RequestCode.REGISTER_BROKER, RequestCode.REGISTER_TOPIC_IN_NAMESRV):
                self.codes.append(command.code)
            return await invoke(client, address, command, timeout_ms)

        async def registering(api: BrokerOuterApi, topics: Any, version: DataVersion) -> None:
            self.parts.append(len(topics))
            await register(api, topics, version)

        monkeypatch.setattr(RemotingClient, "invoke", noting)
        monkeypatch.setattr(BrokerOuterApi, "register_all", registering)


async def route(cluster: Cluster, topic: str) -> bytes:
    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})
    return (await cluster.client.invoke(cluster.namesrv.address, command, 5000)).body


def test_a_changed_topic_can_be_registered_alone(tmp_path, monkeypatch):
    """With ``enableSingleTopicRegister``, the broker sends request 217 instead of 103; the broker's permission limits
    the topic's permission.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            told = Told(monkeypatch)
            await cluster.send("T1")
            assert told.codes == [RequestCode.REGISTER_BROKER]
            assert (await change(cluster, enableSingleTopicRegister="true")).code == 0
            assert (await cluster.send("T2")).code == 0
            assert told.codes == [RequestCode.REGISTER_BROKER, RequestCode.REGISTER_TOPIC_IN_NAMESRV]
            before, after = (await route(cluster, "T1")), (await route(cluster, "T2"))
            assert after == before.replace(b"T1", b"T2") and b'"writeQueueNums":4' in after
            object.__setattr__(cluster.broker.config, "broker_permission", 4)
            await cluster.broker.topics.update(TopicConfig("T3", 3, 2, 7, topic_sys_flag=1))
            data = b'{"brokerName":"broker-a","perm":5,"readQueueNums":3,"topicSysFlag":1,"writeQueueNums":2}'
            assert data in await route(cluster, "T3")

    run(scene())


def test_all_topics_can_be_registered_in_parts(tmp_path, monkeypatch):
    """With ``enableSplitRegistration``, a name server accepts each part, although all parts have the same version."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            topics = cluster.broker.topics
            count = len(topics.table)
            told = Told(monkeypatch)
            await cluster.broker.running.registration.register()
            assert told.parts == [count]
            assert (await change(cluster, enableSplitRegistration="true", splitRegistrationSize=count - 3)).code == 0
            # Name servers learn of this topic only by the registration of all topics.
            topics.table["new"] = TopicConfig("new", 1, 1, 6)
            topics.table = dict(reversed(topics.table.items()))
            version = topics.data_version
            await cluster.broker.running.registration.register()
            assert told.parts == [count, count - 3, 4]
            assert topics.data_version.counter == version.counter + 2
            assert b'"writeQueueNums":1' in await route(cluster, "new")
            assert b"broker-a" in await route(cluster, "SELF_TEST_TOPIC")

    run(scene())


@pytest.mark.parametrize("key", UNCHANGEABLE)
def test_switches_with_one_position(key, tmp_path):
    """A request that changes a switch with one supported value is refused with key and reason; setting this value is
    accepted.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            only, reason = UNCHANGEABLE[key]
            other = "false" if only == "true" else "true"
            refused = await change(cluster, shortPollingTimeMills=77, **{key: other})
            assert refused.code == ResponseCode.NO_PERMISSION
            assert refused.remark == f"{key} is {only} and cannot be changed: {reason}"
            assert cluster.broker.config.short_polling_time_ms == 1000
            assert (await change(cluster, shortPollingTimeMills=77, **{key: only.upper()})).code == 0
            assert cluster.broker.config.short_polling_time_ms == 77

    run(scene())
