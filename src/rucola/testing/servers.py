"""Name server and broker of a ``RocketMQ`` for tests, on its event loop.

The broker may stop and start again; the name server, the port and the directory stay the same. A kill is simulated with
a copy of the store. The connections are closed and the store is copied in one iteration of the event loop, so that
nothing is appended meanwhile. Then the broker is shut down cleanly, and its store is replaced by the copy. The copy
equals the store after SIGKILL, because pages in the page cache survive the process.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rucola.broker.config import broker_options
from rucola.client.admin import ORDER_TOPIC_CONFIG, AdminClient
from rucola.common.hosts import join_address, split_address
from rucola.common.message import MessageExt
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.store.results import StoreState
from rucola.testing.content import Content, Failed, View
from rucola.testing.faults import FaultRules
from rucola.testing.faulty_broker import FaultyBroker, FaultyFiles

if TYPE_CHECKING:
    from rucola.proxy.beside import DoorBeside

T = TypeVar("T")
_SMALL = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
}
"""Options of the store: files are small, because a test's store is removed before it grows."""
_LITE = {"enableLmq": "true", "enableMultiDispatch": "true"}
"""Tests may use lite topics without an option."""
_LOOK_S = 0.01
_ORDERLY = " (a consumer with consume_orderly first repeats a failed message itself)"


class Servers:
    """The servers. Call ``open`` once, then ``close`` once.

    Args:
        options: broker options, as in ``broker.conf``.

    Attributes:
        store: the store directory.
        address: address of the broker.
        rules: the request faults.
        content: what is in the broker now.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="rucola-testing-"))
        self.store = self._directory / "store"
        self.address = ""
        self.rules = FaultRules()
        self.content = Content(self._running)
        self._files = FaultyFiles()
        try:
            values = {**_SMALL, **_LITE, "listenPort": "0", **options, "storePathRootDir": str(self.store)}
            self._config, self._store_config = broker_options(values)
        except BaseException:
            shutil.rmtree(self._directory)
            raise
        self.namesrv = NameServer(NamesrvConfig(listen_port=0))
        self._admin: AdminClient
        self._broker: FaultyBroker | None = None
        self._door: DoorBeside | None = None
        self._grpc_port: int | None = None
        self._changed: asyncio.Event

    async def open(self) -> None:
        """Starts name server and broker. Raises the errors of ``Broker.start``; after an error nothing keeps
        running.
        """
        self._changed = asyncio.Event()
        try:
            await self.namesrv.start()
            self._admin = AdminClient(self.namesrv.address)
            await self.start()
        except BaseException:
            await self.namesrv.shutdown()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    async def close(self) -> None:
        """Stops broker and name server, and removes the directory."""
        try:
            await self._admin.close()
            if self._broker is not None:
                await self.stop()
            await self.namesrv.shutdown()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    # start and stop of the broker

    async def start(self) -> None:
        """Starts the broker; a restart uses the same port."""
        if self._broker is not None:
            raise RuntimeError("the broker is running")
        config = replace(self._config, namesrv_addr=self.namesrv.address)
        broker = FaultyBroker(config, self._store_config, self._files, self.rules, self._tell)
        await broker.start()
        self._broker = broker
        self.address = broker.address
        self._config = replace(self._config, listen_port=int(broker.address.rpartition(":")[2]))
        if self._grpc_port is not None:
            self._door = self._bound_door(self._grpc_port)
            self._door.start(broker)
        self._tell()

    async def stop(self) -> None:
        """Stops the broker cleanly."""
        broker = self._running()
        self._broker = None
        await self._close_door()
        await broker.shutdown()

    async def kill(self) -> None:
        """Ends the broker so that the store stays as it is now."""
        broker = self._running()
        self._broker = None
        copy = self._directory / "killed"
        if self._door is not None:
            self._door.drop()
        broker.drop_connections()
        _copy_store(self.store, copy)
        await self._close_door()
        await broker.shutdown()
        shutil.rmtree(self.store)
        copy.rename(self.store)

    async def grpc(self) -> str:
        """Address for gRPC clients; the first call opens the port, or reserves its number if the broker is stopped."""
        if self._grpc_port is None:
            door = self._bound_door(max(self._config.grpc_server_port, 0))
            if self._broker is None:
                await door.stop()
            else:
                self._door = door
                door.start(self._broker)
        return join_address(self._config.bind_address, self._grpc_port or 0)

    def _bound_door(self, port: int) -> DoorBeside:
        from rucola.proxy.beside import DoorBeside

        door = DoorBeside(self._config, port)
        door.bind()
        self._grpc_port = split_address(door.address)[1]
        return door

    async def _close_door(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            await door.stop()

    def _running(self) -> FaultyBroker:
        if self._broker is None:
            raise RuntimeError("the broker is not running")
        return self._broker

    async def catch_up(self) -> None:
        """If the broker is running, does the work that became due when the wall clock was moved."""
        if self._broker is not None:
            await self._broker.catch_up()
            self._tell()

    # faults

    def blackhole(self, begins: bool) -> None:
        """Blocks or unblocks all traffic between the broker and its clients."""
        if self._broker is not None:
            self._broker.blackhole(begins)

    def slow_disk(self, seconds: float) -> None:
        """Makes each sync take ``seconds`` longer."""
        self._files.sync_s = seconds

    async def full_disk(self, begins: bool) -> None:
        """Makes the disk full, or makes space again; returns when the store has noticed."""
        self._files.full = begins
        state = StoreState.DISK_FULL if begins else StoreState.RUNNING
        while self._broker is not None and self._broker.store.state is not state:
            self._broker.store.expire_now()
            await asyncio.sleep(_LOOK_S)

    # topics and groups

    async def create_topic(self, name: str, queues: int, order: bool, message_type: str | None) -> None:
        """Creates or changes a topic."""
        broker = self._running()
        attributes = f"+message.type={message_type}" if message_type else ""
        await self._admin.api.change_topic(self.address, TopicConfig(name, queues, queues, order=order), attributes)
        if order:
            value = f"{broker.config.broker_name}:{queues}"
            await self._admin.api.put_kv_config(self.namesrv.address, ORDER_TOPIC_CONFIG, name, value)

    async def create_lite_parent(self, name: str, queues: int, ttl_minutes: int, groups: Mapping[str, str]) -> None:
        """Creates or changes a parent topic, and groups that are bound to it, each with further attributes."""
        self._running()
        attributes = f"+message.type=LITE,+lite.topic.expiration={ttl_minutes}"
        await self._admin.api.change_topic(self.address, TopicConfig(name, queues, queues), attributes)
        for group, more in groups.items():
            changes = (f"+lite.bind.topic={name}", *filter(None, more.split(",")))
            config = SubscriptionGroupConfig(group, attributes=dict(one.partition("=")[::2] for one in changes))
            await self._admin.api.change_group(self.address, config)

    async def create_group(self, name: str, retry_max_times: int) -> None:
        """Creates or changes a group."""
        self._running()
        await self._admin.api.change_group(self.address, SubscriptionGroupConfig(name, retry_max_times=retry_max_times))

    # content

    async def wait_for_consumers(self, group: str, count: int, timeout_s: float) -> list[str]:
        """Returns ``consumers`` as soon as there are ``count``, all of which have begun to read their queues."""

        def reached() -> list[str] | None:
            found = self.content.consumers(group)
            return found if len(found) >= count and not self.content.starting(group) else None

        def state() -> str:
            found = len(self.content.consumers(group))
            if found >= count:
                return f"consumers of group {group}: {found}, but not every queue is read"
            return f"consumers of group {group}: {found}, not {count}{self.content.without_group(group)}"

        return await self._until(reached, state, timeout_s)

    async def wait_for_failed(self, group: str, count: int, timeout_s: float) -> Failed:
        """Returns ``failed`` once it has ``count`` messages or more, and none of them is on the way."""

        def reached() -> Failed | None:
            found = self.content.failed(group)
            enough = len(found.waiting) + len(found.dead) >= count
            return found if enough and not found.on_the_way else None

        def state() -> str:
            found = self.content.failed(group)
            failed, on_the_way = len(found.waiting) + len(found.dead), len(found.on_the_way)
            return (
                f"group {group} has failed to consume {failed} messages"
                + (f" and has not consumed {on_the_way} again that were delivered" if on_the_way else f", not {count}")
                + (self.content.without_group(group) or ("" if failed or on_the_way else _ORDERLY))
            )

        return await self._until(reached, state, timeout_s)

    async def look(self, view: View[T], count: int, timeout_s: float) -> list[T]:
        """Returns what a view shows: now if ``count`` is 0, otherwise once it shows ``count`` items or more."""
        if not count:
            found, absent = view.look(), view.absent()
            if absent:
                raise AssertionError(absent.removeprefix("; "))
            return found

        def reached() -> list[T] | None:
            found = view.look()
            return found if len(found) >= count else None

        return await self._until(
            reached, lambda: f"{view.what}: {len(view.look())}, not {count}{view.absent()}", timeout_s
        )

    async def wait_for_topic(self, topic: str, timeout_s: float) -> None:
        """Waits until the topic exists."""

        def state() -> str:
            return self.content.without_topic(topic).removeprefix("; ")

        await self._until(lambda: topic in self._running().topics.table or None, state, timeout_s)

    async def wait_for_messages(self, topic: str, count: int, timeout_s: float) -> list[MessageExt]:
        """Returns ``messages`` once there are ``count``."""

        def reached() -> list[MessageExt] | None:
            return self.content.messages(topic) if self.content.stored(topic) >= count else None

        def state() -> str:
            stored = self.content.stored(topic)
            return f"topic {topic} has {stored} messages, not {count}{self.content.without_topic(topic)}"

        return await self._until(reached, state, timeout_s)

    async def wait_for_progress(self, group: str, topic: str, timeout_s: float) -> None:
        """Waits until the group has consumed the topic."""

        def state() -> str:
            lags = ", ".join(f"queue {queue_id}: {lag}" for queue_id, lag in self.content.lags(group, topic).items())
            left = f" (messages left: {lags})" if lags else ""
            return f"group {group} has not consumed all of topic {topic}{left}{absent()}"

        def absent() -> str:
            return self.content.without_topic(topic) + self.content.without_group(group)

        await self._until(lambda: None if self.content.lags(group, topic) or absent() else True, state, timeout_s)

    async def _until(self, reached: Callable[[], T | None], state: Callable[[], str], timeout_s: float) -> T:
        """Calls ``reached`` at once and after each event that the broker reports, until a call returns a result other
        than None; returns this result. Makes no calls while the broker is stopped.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            changed = self._changed
            found = reached() if self._broker is not None else None
            if found is not None:
                return found
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                now = state() if self._broker is not None else "the broker is not running"
                raise AssertionError(f"after {timeout_s:g} s {now}") from None

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _copy_store(store: Path, copy: Path) -> None:
    """Copies a store. The checkpoint is copied first, so that it never promises more than the other files contain."""
    copy.mkdir()
    with suppress(FileNotFoundError):
        shutil.copy2(store / "checkpoint", copy)

    def copy_file(source: str, target: str) -> None:
        with suppress(FileNotFoundError):  # a thread of the store has replaced or removed the file meanwhile
            shutil.copy2(source, target)

    shutil.copytree(
        store, copy, ignore=shutil.ignore_patterns("lock", "checkpoint"), copy_function=copy_file, dirs_exist_ok=True
    )
