"""A broker in the test's process, and requests to it as they go over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from rucola.broker import Broker, BrokerConfig
from rucola.broker.transaction.half_messages import Half, HalfMessages
from rucola.broker.transaction.transactional_message_service import TransactionalMessageService
from rucola.formats.message import decode_messages
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.testing.event_loop import run_stepped
from rucola.testing.virtual_loop import VirtualEventLoop, virtual_time

T = TypeVar("T")

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
"""Bits in the sysFlag of a pull."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs servers and clients on one loop, whose timeouts do not pass while the process waits for a processor."""
    return run_stepped(work)


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Like ``run``; and pauses pass at once, on all clocks."""
    loop = VirtualEventLoop()
    with virtual_time(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)


def same_queue(_topic: str, queue_id: int) -> int:
    """Stands in for ``TopicConfigManager.read_queue``, for topics that never get fewer queues."""
    return queue_id


def properties_text(**properties: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def due_halves(halves: HalfMessages, service: TransactionalMessageService) -> list[Half]:
    """Returns the half messages that the broker would check now."""
    halves.scan()
    return [half for half in halves.undecided() if service.is_due(half)]


class Unconnected:
    """A connection that only keeps what belongs to it."""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}


class RawConnection:
    """A connection to a broker that sends and receives frames as they are, without a client that matches responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, command: RemotingCommand, opaque: int, flag: int = 0) -> None:
        command.opaque, command.flag = opaque, flag
        self._writer.write(command.encode())

    async def receive(self) -> RemotingCommand:
        head = await self._reader.readexactly(4)
        return decode_frame(head + await self._reader.readexactly(int.from_bytes(head, "big")))

    def close(self) -> None:
        self._writer.close()


class Cluster:
    """A name server, a broker and a client; use it as ``async with``."""

    def __init__(
        self, store: Path, sync_flush: bool = False, files: Files | None = None, max_body: int = 1 << 20, **broker: Any
    ) -> None:
        self._clock: Clock | None = broker.pop("clock", None)
        self._store_config = MessageStoreConfig(
            store_path_root_dir=str(store),
            mapped_file_size_commit_log=4 * 1024 * 1024,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=5_000,
            max_index_num=20_000,
            max_message_size=max_body,
            flush_disk_type=FlushDiskType.SYNC_FLUSH if sync_flush else FlushDiskType.ASYNC_FLUSH,
            sync_flush_timeout_ms=broker.pop("sync_flush_timeout_ms", 5000),
            enabled_append_prop_crc=broker.pop("enabled_append_prop_crc", MessageStoreConfig.enabled_append_prop_crc),
            message_delay_level=broker.pop("message_delay_level", MessageStoreConfig.message_delay_level),
            **broker.pop("stores", {}),
        )
        self._namesrv_options = {"listen_port": 0, **broker.pop("namesrv_tls", {})}
        self._broker_options = {"listen_port": 0, **broker}
        self._files = files
        self._stopped = False

    async def __aenter__(self) -> Self:
        self.namesrv = NameServer(NamesrvConfig(**self._namesrv_options))
        await self.namesrv.start()
        try:
            config = BrokerConfig(namesrv_addr=self.namesrv.address, **self._broker_options)
            self.broker = Broker(config, self._store_config, self._files, self._clock)
            await self.broker.start()
        except BaseException:
            await self.namesrv.shutdown()
            raise
        self.client = RemotingClient()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.client.close()
        await self.stop_broker()
        await self.namesrv.shutdown()

    async def stop_broker(self) -> None:
        if not self._stopped:
            self._stopped = True
            await self.broker.shutdown()

    async def connect(self) -> RawConnection:
        host, _, port = self.broker.address.rpartition(":")
        return RawConnection(*await asyncio.open_connection(host, int(port)))

    async def ask(
        self, code: int, ext_fields: dict[str, str] | None = None, body: bytes = b"", timeout_ms: int = 10_000
    ) -> RemotingCommand:
        command = RemotingCommand(code, ext_fields=ext_fields or {}, body=body)
        return await self.client.invoke(self.broker.address, command, timeout_ms)

    def send_command(
        self,
        topic: str = "T",
        body: bytes = b"body",
        properties: str | None = None,
        queue_id: int = 0,
        *,
        batch: bool = False,
        default_topic: str = "TBW102",
        queues: int = 4,
        sys_flag: int = 0,
    ) -> RemotingCommand:
        text = properties if properties is not None else properties_text(UNIQ_KEY="U", WAIT="true")
        header = SendMessageRequestHeaderV2(
            "pg", topic, default_topic, queues, queue_id, sys_flag, 1_700_000_000_000, 0, text, batch=batch
        )
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        return RemotingCommand(code, ext_fields=header.to_ext_fields(), body=body)

    async def send(self, *args: Any, **options: Any) -> RemotingCommand:
        return await self.client.invoke(self.broker.address, self.send_command(*args, **options), 10_000)

    def pull_command(
        self,
        topic: str = "T",
        queue_id: int = 0,
        queue_offset: int = 0,
        *,
        expression: str = "*",
        sys_flag: int = SUBSCRIPTION,
        suspend_ms: int = 0,
        commit_offset: int = 0,
        group: str = "cg",
        expression_type: str | None = None,
    ) -> RemotingCommand:
        header = PullMessageRequestHeader(
            group,
            topic,
            queue_id,
            queue_offset,
            32,
            sys_flag,
            commit_offset,
            suspend_ms,
            0,
            expression,
            expression_type,
        )
        return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.to_ext_fields())

    async def pull(self, *args: Any, **options: Any) -> RemotingCommand:
        return await self.client.invoke(self.broker.address, self.pull_command(*args, **options), 60_000)

    async def bodies(self, topic: str = "T", queue_id: int = 0, queue_offset: int = 0) -> list[bytes]:
        """Returns the bodies of all messages in a queue, once they are visible."""
        found: list[bytes] = []
        maximum = await self.ask(30, {"topic": topic, "queueId": str(queue_id)})
        end = int(maximum.ext_fields.get("offset", 0))
        while queue_offset < end:
            answer = await self.pull(topic, queue_id, queue_offset)
            found += [bytes(message.body) for message in decode_messages(answer.body)]
            queue_offset = int(answer.ext_fields["nextBeginOffset"])
        return found
