"""A scripted broker: name server and broker on the same port, with messages in lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rucola.protocol.bodies.heartbeat import HeartbeatData
from rucola.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.remoting.server import Channel, RemotingServer
from rucola.testing.event_loop import SteppedEventLoop

Answer = RemotingCommand | None
Script = Callable[[RemotingCommand], Answer]
Run = Callable[[Coroutine[Any, Any, None]], None]


class ScriptedBroker:
    """Responds to route requests from ``routes``, stores sends in ``stored``, and offers each request to ``scripts``
    first.

    ``scripts`` holds a list of functions for a request code. Each function handles one request; later requests get the
    usual responses.
    """

    def __init__(self, name: str = "broker-a", topics: dict[str, int] | None = None, port: int = 0) -> None:
        self.name = name
        self.broker_id = 0
        self.topics = topics if topics is not None else {"TBW102": 8}
        self.server = RemotingServer(self, "127.0.0.1", port)
        self.peers: list[ScriptedBroker] = []
        self.stored: list[tuple[SendMessageRequestHeaderV2, bytes]] = []
        self.received: list[RemotingCommand] = []
        self.scripts: dict[int, list[Script]] = {}
        self.channels: list[Channel] = []
        self.arrived = asyncio.Event()

    async def __aenter__(self) -> ScriptedBroker:
        await self.server.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.server.close()

    @property
    def address(self) -> str:
        return self.server.address

    def codes(self) -> list[int]:
        return [command.code for command in self.received]

    def heartbeats(self) -> list[HeartbeatData]:
        return [HeartbeatData.decode(one.body) for one in self.received if one.code == RequestCode.HEART_BEAT]

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self.arrived.clear()
            await self.arrived.wait()

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        if channel not in self.channels:
            self.channels.append(channel)
        for row in range(batch.count):
            command = batch.command(row)
            self.received.append(command)
            scripts = self.scripts.get(command.code)
            answer = scripts.pop(0)(command) if scripts else self._ordinary(command)
            if answer is not None and not command.is_oneway:
                channel.send(answer.encode())
        self.arrived.set()

    def channel_closed(self, channel: Channel) -> None:
        self.arrived.set()

    def _ordinary(self, command: RemotingCommand) -> Answer:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._route(command)
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = {
                one.name: BrokerData("DefaultCluster", one.name, {0: one.address}) for one in [self, *self.peers]
            }
            return command.answer(ResponseCode.SUCCESS, body=ClusterInfo(brokers).encode())
        if command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            return self._store(command)
        return command.answer(ResponseCode.SUCCESS)

    def _route(self, command: RemotingCommand) -> RemotingCommand:
        topic = command.ext_fields["topic"]
        holders = [broker for broker in [self, *self.peers] if topic in broker.topics]
        if not holders:
            return command.answer(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
            )
        queues = {
            one.name: QueueData(one.name, one.topics[topic], one.topics[topic], 7 if topic == "TBW102" else 6)
            for one in holders
        }
        brokers = {one.name: BrokerData("DefaultCluster", one.name, {}) for one in holders}
        for one in holders:
            brokers[one.name].broker_addrs[one.broker_id] = one.address
        route = TopicRouteData(None, list(queues.values()), list(brokers.values()))
        return command.answer(ResponseCode.SUCCESS, body=route.encode())

    def _store(self, command: RemotingCommand) -> RemotingCommand:
        header = SendMessageRequestHeaderV2.from_ext_fields(command.ext_fields)
        self.stored.append((header, bytes(command.body)))
        queue_offset = sum(one.queue_id == header.queue_id for one, _ in self.stored) - 1
        return stored_answer(command, header.queue_id, queue_offset, len(self.stored))


def stored_answer(
    command: RemotingCommand, queue_id: int, queue_offset: int, physical_offset: int = 0, code: int = 0
) -> RemotingCommand:
    fields = {
        "msgId": f"7F00000100002A9F{physical_offset:016X}",
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    return command.answer(code, ext_fields=fields)


@pytest.fixture
def broker() -> type[ScriptedBroker]:
    return ScriptedBroker


@pytest.fixture
def answer_stored() -> Callable[..., RemotingCommand]:
    return stored_answer


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on each of the two event loops."""

    def run_on(work: Coroutine[Any, Any, None]) -> None:
        factory: Callable[[], asyncio.AbstractEventLoop] = SteppedEventLoop
        if request.param == "uvloop":
            factory = pytest.importorskip("uvloop").new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work)

    return run_on
