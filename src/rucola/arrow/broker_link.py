"""A connection to the brokers for one process of a query. It stays usable when a broker crashes and restarts.

The client's event loop runs in a thread of its own; ``ask`` may be called from any other thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from rucola.arrow.access import names_of_options, with_access
from rucola.arrow.read_options import ReadOptions
from rucola.client.config import PullConsumerConfig
from rucola.client.loop_thread import shared_loop
from rucola.client.pull_consumer import PullConsumer
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, ClientError, RemotingError, RucolaError
from rucola.protocol.codes import ResponseCode
from rucola.runtime.clock import SystemClock

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0
_NOT_SERVING = frozenset({int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.SERVICE_NOT_AVAILABLE)})

T = TypeVar("T")

logger = logging.getLogger(__name__)


class BrokerLink:
    """A pull consumer that repeats failed requests for a limited time.

    Life cycle: Use it as ``with BrokerLink(options)``, or call ``close`` at the end.

    Args:
        options: name servers, group, account and time limits.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._clock = SystemClock()
        self._patience_s = options.retry_timeout_ms / 1000
        self._loop = shared_loop()
        config = PullConsumerConfig(
            consumer_pull_timeout_ms=options.pull_timeout_ms, mq_client_api_timeout_ms=options.pull_timeout_ms
        )
        with names_of_options():
            self._consumer = PullConsumer(
                options.consumer_group, options.name_server, with_access(config, options.access), registers=False
            )
        self._loop.run(self._consumer.start())

    def __enter__(self) -> BrokerLink:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def ask(self, question: Callable[[PullConsumer], Awaitable[T]], *, known: bool = True) -> T:
        """Runs ``question`` and returns its result; repeats it after a failure that may be temporary.

        Args:
            question: coroutine function that makes the calls; runs on the client's event loop, possibly several times.
            known: whether the topics are known to exist. If they are, a name server that lacks them has only just
                started, so ``question`` is also repeated after a ``ClientError``.

        Raises:
            RucolaError: the last failure, if it is permanent or the time limit is reached.
        """

        async def asked() -> T:
            return await question(self._consumer)

        deadline_s = self._clock.monotonic() + self._patience_s
        pause_s = PAUSE_FIRST_S
        level = logging.WARNING  # the first time somebody may wait for; the others would only fill the log
        while True:
            try:
                return self._loop.run(asked())
            except RucolaError as error:
                passes = error.retriable or (known and isinstance(error, ClientError))
                if not passes or self._clock.monotonic() >= deadline_s:
                    raise
                logger.log(level, "tries again for up to %.0f s: %s", deadline_s - self._clock.monotonic(), error)
                level = logging.DEBUG
            self.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def once(self, question: Callable[[PullConsumer], Awaitable[T]]) -> T:
        """Runs ``question`` once and returns its result."""

        async def asked() -> T:
            return await question(self._consumer)

        return self._loop.run(asked())

    def begin(self, question: Callable[[PullConsumer], Awaitable[T]]) -> Future[T]:
        """Starts to run ``question`` once; returns a future of its result."""

        async def asked() -> T:
            return await question(self._consumer)

        return self._loop.start(asked())

    def wait_for(self, futures: Sequence[Future[T]], seconds: float) -> None:
        """Waits until all futures are done, but at most ``seconds``."""
        wait(futures, seconds)

    def is_away(self, queue: MessageQueue, error: RucolaError) -> bool:
        """Whether ``error`` only means that the broker of ``queue`` is currently unavailable.

        If no route has the queue, the name servers are asked again, because its broker may have returned.
        """
        if isinstance(error, RemotingError):
            return True
        if not isinstance(error, ClientError):
            return isinstance(error, BrokerError) and error.code in _NOT_SERVING
        try:
            # The list of brokers is requested before the route, so the route covers every listed broker. In the reverse
            # order, a queue of a broker that registers between the two requests would look deleted.
            brokers = self.once(lambda consumer: consumer.cluster_info()).broker_addr_table
            listed = self.once(lambda consumer: consumer.message_queues(queue.topic))
        except RemotingError:
            return True
        except ClientError:
            listed = []  # no broker has the topic
        return queue in listed or queue.broker_name not in brokers

    def wait(self, seconds: float) -> None:
        """Waits for ``seconds``."""
        threading.Event().wait(seconds)

    def seconds(self) -> float:
        """Time in seconds since an arbitrary start."""
        return self._clock.monotonic()

    def close(self) -> None:
        """Closes the connections to the brokers."""
        self._loop.run(self._consumer.shutdown())
