"""A RocketMQ for tests: name server and broker in this process, with a temporary store directory.

They run on an event loop in a thread of their own, so that any kind of test and other processes can use them. The
methods may be called from any other thread and block until they are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

from rucola.client.loop_thread import LoopThread
from rucola.common.message import MessageExt
from rucola.errors import MissingExtraError
from rucola.testing.content import View
from rucola.testing.faults import Faults
from rucola.testing.servers import Servers
from rucola.testing.virtual_clock import VirtualClock

P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT_S = 10.0


def _told_at_the_test(method: Callable[P, T]) -> Callable[P, T]:
    """Makes a failed test end at its own line: pytest then shows no frame of this package."""

    @wraps(method)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return method(*arguments, **options)
        except AssertionError as error:
            raise error.with_traceback(None) from None

    return call


class RocketMQ:
    """Use it as ``with RocketMQ() as rocketmq:``, or through the pytest fixtures of ``rucola.testing.plugin``.

    Args:
        options: broker options, as in ``broker.conf``.

    Attributes:
        clock: the time of the servers and of all clients in this process.
        faults: starts faults of requests, connections and the disk.

    Raises:
        ConfigError: an option is not allowed.
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

    # addresses

    @property
    def namesrv(self) -> str:
        """Address of the name server, ``host:port``."""
        return self._servers.namesrv.address

    @property
    def broker(self) -> str:
        """Address of the broker, ``host:port``; does not change with restarts."""
        return self._servers.address

    @property
    def grpc(self) -> str:
        """Address for clients of RocketMQ 5 (gRPC), ``host:port``; does not change with restarts. The first use opens
        the port.

        Raises:
            MissingExtraError: the extra ``grpc`` is not installed.
        """
        return self._run(self._servers.grpc())

    @property
    def store(self) -> str:
        """Directory of the store."""
        return str(self._servers.store)

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for a process under test.

        RocketMQ's Java client and ``mqadmin`` read ``NAMESRV_ADDR``; its Spring Boot starter reads
        ``ROCKETMQ_NAMESERVER`` (as ``rocketmq.name-server``). ``ROCKETMQ_ENDPOINTS`` is for clients of RocketMQ 5; it
        is missing if the extra ``grpc`` is not installed.
        """
        found = {"NAMESRV_ADDR": self.namesrv, "ROCKETMQ_NAMESERVER": self.namesrv, "ROCKETMQ_BROKER": self.broker}
        with suppress(MissingExtraError):
            found["ROCKETMQ_ENDPOINTS"] = self.grpc
        return found

    # topics and groups

    def create_topic(self, name: str, *, queues: int = 4, order: bool = False, type: str | None = None) -> None:
        """Creates or changes a topic; returns once its route is known. A send to an unknown topic creates it, too.

        Args:
            order: whether to mark the topic as ordered and to list its queues in the order configuration.
            type: ``message.type``: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or MIXED; see also
                ``create_lite_parent``.

        Raises:
            BrokerError: the broker refuses the name or the type.
        """
        self._run(self._servers.create_topic(name, queues, order, type))

    def create_group(self, name: str, *, retry_max_times: int = 16) -> None:
        """Creates or changes a consumer group. The first consumer of an unknown group creates it, too.

        Args:
            retry_max_times: number of retries of a failed message before it becomes a dead letter.

        Raises:
            BrokerError: the broker refuses the name.
        """
        self._run(self._servers.create_group(name, retry_max_times))

    def create_lite_parent(
        self, name: str, *groups: str, ttl_minutes: int = -1, exclusive: bool = False, wildcard: bool = False
    ) -> None:
        """Creates or changes the parent topic of lite topics, and groups that read them.

        Args:
            name: the parent, for ``LiteConsumer`` and for ``Message(name, ..., lite_topic=...)``.
            groups: groups that are bound to it.
            ttl_minutes: a lite topic without a new message for this long is removed; -1: never.
            exclusive: whether the last consumer of a group that subscribes to a lite topic takes it over.
            wildcard: whether the consumers of a group share all lite topics and subscribe to none.

        Raises:
            BrokerError: the broker refuses a name or a value.
        """
        attributes = {"+lite.sub.model=Exclusive": exclusive, "+lite.sub.wildcard=true": wildcard}
        of_groups = dict.fromkeys(groups, ",".join(name for name, wanted in attributes.items() if wanted))
        self._run(self._servers.create_lite_parent(name, 4, ttl_minutes, of_groups))

    # -- start and stop of the broker

    def start(self) -> None:
        """Starts the broker again with the same store and the same port.

        Raises:
            RuntimeError: the broker is running.
        """
        self._run(self._servers.start())

    def stop(self) -> None:
        """Stops the broker cleanly; the name server keeps running.

        Raises:
            RuntimeError: the broker is not running.
        """
        self._run(self._servers.stop())

    def restart(self) -> None:
        """Stops the broker cleanly and starts it again."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Ends the broker as SIGKILL would: connections break, and the store stays as it is at that moment.

        Raises:
            RuntimeError: the broker is not running.
        """
        self._run(self._servers.kill())

    # content

    @_told_at_the_test
    def messages(self, topic: str) -> list[MessageExt]:
        """All stored messages of a topic, in the order of storage.

        Raises:
            AssertionError: there is no such topic. A topic exists from its first message or ``create_topic`` on.
            RuntimeError: the broker is not running.
        """
        return self._look("messages", self._servers.content.messages_of(topic), 0, 0)

    @_told_at_the_test
    def wait_for_messages(self, topic: str, count: int, timeout: float = TIMEOUT_S) -> list[MessageExt]:
        """Returns ``messages`` as soon as there are ``count`` or more.

        Raises:
            AssertionError: there are fewer after ``timeout`` seconds.
            RuntimeError: called on an event loop; the call would block all clients on this loop.
        """
        return self._wait("wait_for_messages", self._servers.wait_for_messages(topic, count, timeout))

    @_told_at_the_test
    def wait_for_topic(self, topic: str, timeout: float = TIMEOUT_S) -> None:
        """Returns as soon as the broker has the topic.

        Raises:
            AssertionError: the topic is missing after ``timeout`` seconds.
            RuntimeError: called on an event loop; the call would block all clients on this loop.
        """
        self._wait("wait_for_topic", self._servers.wait_for_topic(topic, timeout))

    @_told_at_the_test
    def consumers(self, group: str, count: int = 0, timeout: float = TIMEOUT_S) -> list[str]:
        """Returns the client ids of a group's connected consumers, as soon as there are ``count`` or more.

        With a ``count``, it also waits until they have begun to read all queues of their topics. After that, every
        message reaches them, even with CONSUME_FROM_LAST_OFFSET.

        Raises:
            AssertionError: there is no such group, or there are fewer consumers after ``timeout`` seconds.
            RuntimeError: called on an event loop with a ``count``, or the broker is not running.
        """
        if not count:
            return self._look("consumers", self._servers.content.consumers_of(group), 0, timeout)
        return self._wait("consumers", self._servers.wait_for_consumers(group, count, timeout))

    @_told_at_the_test
    def delayed(self, topic: str, count: int = 0, timeout: float = TIMEOUT_S) -> list[MessageExt]:
        """Returns delayed messages that are not in ``topic`` yet, as soon as there are ``count`` or more.

        Raises the errors of ``messages`` and, with a ``count``, of ``wait_for_messages``.
        """
        return self._look("delayed", self._servers.content.delayed_of(topic), count, timeout)

    @_told_at_the_test
    def retries(self, group: str, count: int = 0, timeout: float = TIMEOUT_S) -> list[MessageExt]:
        """Returns messages that a group failed to consume and that wait for the time of their next delivery, as soon as
        there are ``count`` or more.

        ``clock.advance`` makes them due; from then on they are not included, unless they fail again. Messages that a
        ``SimpleConsumer`` did not acknowledge are never included.

        Raises:
            AssertionError: there is no such group, or there are fewer messages after ``timeout`` seconds.
            RuntimeError: called on an event loop with a ``count``, or the broker is not running.
        """
        return self._look("retries", self._servers.content.retries_of(group), count, timeout)

    @_told_at_the_test
    def exhaust_retries(self, group: str, count: int = 1, timeout: float = TIMEOUT_S) -> list[MessageExt]:
        """Advances the clock from retry to retry until no message of a group waits for one; returns the dead letters.

        First it waits until the group has failed to consume ``count`` messages or more; dead letters count. After each
        advance it waits until the consumers have tried the due messages. A message that they consume is known to be
        consumed when its offset is committed, by default after up to five seconds.

        Raises:
            AssertionError: fewer messages have failed after ``timeout`` seconds, or a message that is due was neither
                consumed nor failed again for this time.
            RuntimeError: called on an event loop; the call would block all clients on this loop.
        """
        failed = self._wait("exhaust_retries", self._servers.wait_for_failed(group, count, timeout))
        while failed.waiting:
            self.clock.advance(milliseconds=failed.delay_ms + 1)
            failed = self._wait("exhaust_retries", self._servers.wait_for_failed(group, 0, timeout))
        return failed.dead

    @_told_at_the_test
    def wait_for_progress(self, group: str, topic: str, timeout: float = TIMEOUT_S) -> None:
        """Returns as soon as a group has consumed all messages of a topic.

        The broker knows this from the offsets that consumers commit, usually every five seconds. A failed message
        counts as consumed while it waits for its retry.

        Raises:
            AssertionError: the group has not consumed all messages after ``timeout`` seconds.
            RuntimeError: called on an event loop; the call would block all clients on this loop.
        """
        self._wait("wait_for_progress", self._servers.wait_for_progress(group, topic, timeout))

    @_told_at_the_test
    def dead_letters(self, group: str, count: int = 0, timeout: float = TIMEOUT_S) -> list[MessageExt]:
        """Returns a group's dead letters (messages whose retries are used up), as soon as there are ``count`` or more.

        Raises the errors of ``retries``.
        """
        return self._look("dead_letters", self._servers.content.dead_letters_of(group), count, timeout)

    def _catch_up(self) -> None:
        self._run(self._servers.catch_up())

    def _look(self, name: str, view: View[T], count: int, timeout: float) -> list[T]:
        work = self._servers.look(view, count, timeout)
        return self._wait(name, work) if count else self._run(work)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def _wait(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run(work)
        work.close()
        raise RuntimeError(f"{name} would block this event loop: await asyncio.to_thread(rocketmq.{name}, ...)")
