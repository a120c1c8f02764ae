"""A master and a slave of it, both brokers in the test's process, and a name server that knows both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tests.brokers import Cluster
from tests.masters import log_bytes

from rucola.broker import Broker, BrokerConfig
from rucola.broker.ha.slave import Slave
from rucola.formats.message import decode_messages
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.admin import CreateTopicRequestHeader


class Pair(Cluster):
    """Use it as ``async with``. The master is ``broker``; its options are those of ``Cluster``.

    Attributes:
        slave: the slave.
        slave_root: its directory.
    """

    slave: Broker

    def __init__(self, directory: Path, slave: dict[str, Any] | None = None, **master: Any) -> None:
        super().__init__(directory / "master", **({"ha_listen_port": 0} | master))
        self.slave_root = directory / "slave"
        self._slave_options: dict[str, Any] = {
            "listen_port": 0,
            "broker_role": "SLAVE",
            "broker_id": 1,
            "ha_listen_port": 0,
        }
        self._slave_options |= slave or {}
        self._slave_runs = False

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop_slave()
        await super().__aexit__(*exc_info)

    async def start_slave(self, store: dict[str, Any] | None = None, **options: Any) -> Broker:
        """Starts the slave, or what it has become."""
        config = BrokerConfig(**({"namesrv_addr": self.namesrv.address} | self._slave_options | options))
        store_config = replace(self._store_config, store_path_root_dir=str(self.slave_root), **(store or {}))
        self.slave = Broker(config, store_config, None, self._clock)
        await self.slave.start()
        self._slave_runs = True
        return self.slave

    async def make_topic(self, topic: str, attributes: str = "") -> None:
        header = CreateTopicRequestHeader(topic, "TBW102", 4, 4, 6, "SINGLE_TAG", 0, False, attributes)
        answer = await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext_fields())
        assert answer.code == 0, answer.remark

    async def make_group(self, name: str = "cg", at_slave: bool = False, **values: object) -> None:
        body = json.dumps({"groupName": name, **values}).encode()
        ask = self.ask_slave if at_slave else self.ask
        answer = await ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert answer.code == 0, answer.remark

    async def begin(self, *bodies: bytes) -> None:
        """Sends the bodies, or ``x``, to topic ``T`` and starts the slave; returns when it is in step."""
        for body in bodies or (b"x",):
            await self.send("T", body)
        await self.start_slave()
        await self.in_step()

    async def promote(self) -> Broker:
        """Stops both, and starts the slave as the master."""
        await self.stop_slave()
        await self.stop_broker()
        return await self.start_slave(broker_role="ASYNC_MASTER", broker_id=0)

    async def stop_slave(self) -> None:
        if self._slave_runs:
            self._slave_runs = False
            await self.slave.shutdown()

    @property
    def link(self) -> Slave:
        """What the slave has of its master."""
        found = self.slave.running.slave
        assert found is not None
        return found

    async def in_step(self) -> None:
        """Waits until the slave has the master's log and its tables, as they are now."""
        end = self.broker.store.max_offset
        await until(lambda: self.slave.store.max_offset >= end and not self.slave.store.dispatch_behind_bytes)
        tables = self.link._tables
        tables._bodies.clear()
        await until(lambda: len(tables._bodies) >= 5)

    async def ask_slave(
        self, code: int, ext_fields: dict[str, str] | None = None, body: bytes = b"", timeout_ms: int = 10_000
    ) -> RemotingCommand:
        command = RemotingCommand(code, ext_fields=ext_fields or {}, body=body)
        return await self.client.invoke(self.slave.address, command, timeout_ms)

    async def pull_from_slave(self, *args: Any, **options: Any) -> RemotingCommand:
        return await self.client.invoke(self.slave.address, self.pull_command(*args, **options), 60_000)

    async def bodies_at_slave(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        answer = await self.pull_from_slave(topic, queue_id, 0)
        return [bytes(message.body) for message in decode_messages(answer.body)]

    def same_log(self) -> bool:
        """Whether both logs have the same bytes."""
        return log_bytes(self.slave.store) == log_bytes(self.broker.store)


async def until(reached: Callable[[], object]) -> None:
    """Waits until ``reached`` returns something true."""
    for _ in range(20_000):
        if reached():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("not reached")
