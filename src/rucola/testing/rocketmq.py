"""A RocketMQ for tests: name server and broker in this process, over a directory that is gone afterwards.

They run on an event loop in a thread of their own, so tests of any kind can use them, and other processes too. The
methods may be called from every other thread and wait for their outcome there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Self, TypeVar

from rucola.client.loop_thread import LoopThread
from rucola.common.key_builder import dlq_topic
from rucola.common.message import MessageExt
from rucola.testing.faults import Faults
from rucola.testing.servers import Servers
from rucola.testing.virtual_clock import VirtualClock

T = TypeVar("T")
TIMEOUT_S = 10.0


class RocketMQ:
    """``with RocketMQ() as rocketmq:``; under pytest the fixtures of ``rucola.testing.plugin`` do that.

    Args:
        options: of the broker, as in ``broker.conf``.

    Attributes:
        clock: the time of the servers and of all clients in this process.
        faults: what becomes of requests, connections and the disk.

    Raises:
        ConfigError: one of them is not allowed.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._servers = Servers(options or {})
        self._thread: LoopThread
        self.clock = VirtualClock(self._catch_up)
        self.faults = Faults(
            self._servers.rules,
            lambda begins: self._thread.call(self._servers.blackhole, begins),
            self._servers.slow_disk,
            lambda begins: self._run(self._servers.full_disk(begins)),
        )

    def __enter__(self) -> Self:
        self._thread = LoopThread("rucola-testing")
        self.clock.open()
        try:
            self._thread.run(self._servers.open())
        except BaseException:
            self.clock.close()
            self._thread.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.faults.clear()
            self._thread.run(self._servers.close())
        finally:
            self.clock.close()
            self._thread.close()

    # where

    @property
    def namesrv(self) -> str:
        """Address of the name server, ``host:port``."""
        return self._servers.namesrv.address

    @property
    def broker(self) -> str:
        """Address of the broker, ``host:port``; the same after each start."""
        return self._servers.address

    @property
    def store(self) -> str:
        """Directory of the store."""
        return str(self._servers.store)

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for a process under test.

        ``NAMESRV_ADDR`` is read by RocketMQ's Java client and by ``mqadmin``, ``ROCKETMQ_NAMESERVER`` by its Spring
        Boot starter (as ``rocketmq.name-server``).
        """
        return {"NAMESRV_ADDR": self.namesrv, "ROCKETMQ_NAMESERVER": self.namesrv, "ROCKETMQ_BROKER": self.broker}

    # topics and groups

    def create_topic(self, name: str, *, queues: int = 4, order: bool = False, type: str | None = None) -> None:
        """Create or change a topic; its route is known when this returns. Sends create topics as well.

        Args:
            order: whether RocketMQ's order configuration names its queues, so that they stay while a broker is away.
            type: ``message.type``: NORMAL, FIFO, DELAY, TRANSACTION or MIXED.

        Raises:
            BrokerError: the broker refuses the name or the type.
        """
        self._run(self._servers.create_topic(name, queues, order, type))

    def create_group(self, name: str, *, retry_max_times: int = 16) -> None:
        """Create or change a consumer group. The first consumer of a group creates it as well.

        Args:
            retry_max_times: deliveries of a failed message before it becomes a dead letter.

        Raises:
            BrokerError: the broker refuses the name.
        """
        self._run(self._servers.create_group(name, retry_max_times))

    # life of the broker

    def start(self) -> None:
        """Start the broker over the same store, on the same port.

        Raises:
            RuntimeError: it runs.
        """
        self._run(self._servers.start())

    def stop(self) -> None:
        """Stop the broker cleanly; the name server stays.

        Raises:
            RuntimeError: it does not run.
        """
        self._run(self._servers.stop())

    def restart(self) -> None:
        """Stop the broker cleanly and start it again."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """End the broker as SIGKILL would: connections break, and the store is left as it lay at that moment.

        Raises:
            RuntimeError: it does not run.
        """
        self._run(self._servers.kill())

    # what is there

    def messages(self, topic: str) -> list[MessageExt]:
        """All stored messages of a topic, in the order they were stored; none for an unknown topic.

        Raises:
            RuntimeError: the broker does not run.
        """
        return self._thread.call(self._servers.messages, topic)

    def wait_for_messages(self, topic: str, count: int, timeout: float = TIMEOUT_S) -> list[MessageExt]:
        """``messages``, as soon as there are ``count`` or more.

        Raises:
            AssertionError: there are fewer after ``timeout`` seconds.
            RuntimeError: called on an event loop, whose clients would wait as well.
        """
        return self._wait("wait_for_messages", self._servers.wait_for_messages(topic, count, timeout))

    def wait_for_topic(self, topic: str, timeout: float = TIMEOUT_S) -> None:
        """Return as soon as the broker has a topic.

        Raises:
            AssertionError: it has not after ``timeout`` seconds.
            RuntimeError: called on an event loop, whose clients would wait as well.
        """
        self._wait("wait_for_topic", self._servers.wait_for_topic(topic, timeout))

    def consumers(self, group: str, count: int = 0, timeout: float = TIMEOUT_S) -> list[str]:
        """Client ids of the connected consumers of a group, as soon as there are ``count`` or more.

        Raises what ``messages`` and, with a ``count``, ``wait_for_messages`` raise.
        """
        return self._look("consumers", f"consumers of group {group}", self._servers.consumers, group, count, timeout)

    def delayed(self, topic: str, count: int = 0, timeout: float = TIMEOUT_S) -> list[MessageExt]:
        """Messages that wait for their time before they come into ``topic``, as soon as there are ``count`` or more.

        Raises what ``messages`` and, with a ``count``, ``wait_for_messages`` raise.
        """
        return self._look(
            "delayed", f"messages that wait to come into topic {topic}", self._servers.delayed, topic, count, timeout
        )

    def retries(self, group: str, count: int = 0, timeout: float = TIMEOUT_S) -> list[MessageExt]:
        """Messages on which a group failed and that come again, as soon as there are ``count`` or more.

        A message counts from its failure until the broker knows that the group consumed it, or it is a dead letter.
        What a ``SimpleConsumer`` did not acknowledge counts from the end of its invisible time.

        Raises what ``messages`` and, with a ``count``, ``wait_for_messages`` raise.
        """
        return self._look("retries", f"retries of group {group}", self._servers.retries, group, count, timeout)

    def wait_for_progress(self, group: str, topic: str, timeout: float = TIMEOUT_S) -> None:
        """Return as soon as a group has consumed all messages of a topic.

        The broker knows from the offsets that consumers commit, as a rule every five seconds. Messages that failed and
        wait for their retry count as consumed.

        Raises:
            AssertionError: it has not after ``timeout`` seconds.
            RuntimeError: called on an event loop, whose clients would wait as well.
        """
        self._wait("wait_for_progress", self._servers.wait_for_progress(group, topic, timeout))

    def dead_letters(self, group: str, count: int = 0, timeout: float = TIMEOUT_S) -> list[MessageExt]:
        """Messages on which a group failed too often, as soon as there are ``count`` or more.

        Raises what ``messages`` and, with a ``count``, ``wait_for_messages`` raise.
        """
        topic = dlq_topic(group)
        return self.wait_for_messages(topic, count, timeout) if count else self.messages(topic)

    def _catch_up(self) -> None:
        self._run(self._servers.catch_up())

    def _look(
        self, name: str, what: str, look: Callable[[str], list[T]], of: str, count: int, timeout: float
    ) -> list[T]:
        if not count:
            return self._thread.call(look, of)
        return self._wait(name, self._servers.wait_for(what, lambda: look(of), count, timeout))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def _wait(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run(work)
        work.close()
        raise RuntimeError(f"{name} would stop this event loop: await asyncio.to_thread(rocketmq.{name}, ...)")
