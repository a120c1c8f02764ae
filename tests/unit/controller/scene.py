"""Controllers in the test's process, on a model of etcd, and brokers that speak to them over loopback."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from tests.unit.controller.etcd_model import EtcdModel, ModelGateway

from rucola.controller import Controller, ControllerConfig
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.runtime.clock import SystemClock

ENDPOINTS = "http://127.0.0.1:2379"


class Scene:
    """Some controllers on one etcd; use it as ``async with``, in virtual time.

    Attributes:
        etcd: the model.
        controllers: the controllers.
        gateways: their calls to etcd: for the lease, and for groups.
    """

    def __init__(self, controllers: int = 1, **options: Any) -> None:
        self.etcd = EtcdModel(SystemClock().monotonic)
        self.gateways = [(ModelGateway(self.etcd, str(n)), ModelGateway(self.etcd, str(n))) for n in range(controllers)]
        config = ControllerConfig(etcd_endpoints=ENDPOINTS, listen_port=0, **options)
        self.controllers = [Controller(config, gateways=each) for each in self.gateways]
        self.client = RemotingClient()
        self.brokers: list[FakeBroker] = []

    async def __aenter__(self) -> Scene:
        for controller in self.controllers:
            await controller.start()
            if controller is self.controllers[0]:
                await self.until(lambda: self.controllers[0].leadership.term is not None)
        return self

    async def __aexit__(self, *error: object) -> None:
        for broker in self.brokers:
            await broker.stop()
        await self.client.close()
        for controller in self.controllers:
            await controller.shutdown()

    async def stop(self, controller: Controller) -> None:
        """Stops a controller."""
        self.controllers.remove(controller)
        await controller.shutdown()

    @property
    def leader(self) -> Controller:
        """The controller that leads."""
        return next(each for each in self.controllers if each.leadership.term is not None)

    async def ask(self, code: int, body: Any = None, to: Controller | None = None, **fields: object) -> RemotingCommand:
        texts = {key: str(value) for key, value in fields.items()}
        command = RemotingCommand(code, ext_fields=texts, body=b"" if body is None else orjson.dumps(body))
        return await self.client.invoke((to or self.controllers[0]).address, command, 30_000)

    async def broker(self, broker_id: int, name: str = "a", **heartbeat: object) -> FakeBroker:
        """A broker that has taken an id and told its address."""
        broker = FakeBroker(self, broker_id, name, heartbeat)
        self.brokers.append(broker)
        await broker.start()
        return broker

    async def until(self, condition: Any, seconds: float = 60.0) -> None:
        """Waits for a condition, in virtual time."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)

    async def master(self, name: str = "a") -> tuple[str | None, str | None, list[int], int]:
        """Id and epoch of the master, the set and its epoch."""
        answer = await self.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, to=self.leader, brokerName=name)
        found = orjson.loads(answer.body)
        fields = answer.ext_fields
        return (
            fields.get("masterBrokerId"),
            fields.get("masterEpoch"),
            found["syncStateSet"],
            found["syncStateSetEpoch"],
        )


class FakeBroker:
    """A broker as controllers see it: heartbeats every second to all of them, and it takes notices.

    Attributes:
        notices: the notices that it got: fields and body.
        heartbeat: further fields of its heartbeats.
    """

    def __init__(self, scene: Scene, broker_id: int, name: str, heartbeat: dict[str, object]) -> None:
        self._scene, self.id, self.name = scene, broker_id, name
        self.heartbeat = heartbeat
        self.client = RemotingClient()
        self.notices: list[tuple[dict[str, str], Any]] = []
        self._server: asyncio.Server | None = None
        self.address = ""
        self.check_code = f"127.0.0.1:1;{broker_id}"
        self._beating: asyncio.Task[None] | None = None
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def told_epoch(self) -> int:
        """The epoch of its last notice; 0 without one."""
        return int(self.notices[-1][0]["masterEpoch"]) if self.notices else 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        await self.beat()
        self._beating = asyncio.ensure_future(self._beat())
        both = {"clusterName": "c", "brokerName": self.name}
        to, ask = self._scene.leader, self._scene.ask
        applied = await ask(1013, to=to, **both, appliedBrokerId=self.id, registerCheckCode=self.check_code)
        assert applied.code == 0, applied.remark
        assert (await ask(1003, to=to, **both, brokerId=self.id, brokerAddress=self.address)).code == 0

    async def elect(self, designate: bool = False) -> RemotingCommand:
        """Asks for an election."""
        both = {"clusterName": "c", "brokerName": self.name}
        ask, designated = self._scene.ask, str(designate).lower()
        return await ask(1002, to=self._scene.leader, **both, brokerId=self.id, designateElect=designated)

    async def beat(self) -> None:
        """Sends a heartbeat to all controllers."""
        fields = {"clusterName": "c", "brokerName": self.name, "brokerId": self.id, "brokerAddr": self.address}
        texts = {key: str(value) for key, value in {**fields, **self.heartbeat}.items()}
        for controller in self._scene.controllers:
            self.client.invoke_oneway(controller.address, RemotingCommand(904, ext_fields=dict(texts)))
        await asyncio.sleep(0)

    async def fall_silent(self) -> None:
        """Sends no heartbeat any more; its connections stay."""
        assert self._beating is not None
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)

    async def stop(self) -> None:
        """Ends it with its connections."""
        await self.fall_silent()
        await self.client.close()
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1)
            await self.beat()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while head := await reader.read(4):
            frame = await reader.readexactly(int.from_bytes(head))
            size = int.from_bytes(frame[1:4])
            header = orjson.loads(frame[4 : 4 + size])
            assert header["code"] == 1008 and header["flag"] & 2
            self.notices.append((header["extFields"], orjson.loads(frame[4 + size :])))
