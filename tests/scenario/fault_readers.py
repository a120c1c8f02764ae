"""The kinds of consumers for the fault tests; all have the same methods: start, stop, kill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rucola import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    MessageExt,
    MessageModel,
    MessageQueue,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReconsumeLater,
    SimpleConsumer,
    SimpleConsumerConfig,
)
from rucola.client.local_offset_store import LocalFileOffsetStore
from rucola.client.offset_store import BroadcastOffsetStore
from rucola.errors import RucolaError
from rucola.runtime.clock import SystemClock

TOPIC = "faults"
INVISIBLE_MS = 2_000
SOON: dict[str, Any] = {"poll_name_server_interval_ms": 500, "mq_client_api_timeout_ms": 1_000}
QUICK: dict[str, Any] = SOON | {
    "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "broker_suspend_max_time_ms": 500,
    "consumer_timeout_when_suspend_ms": 1_500,
    "pull_time_delay_when_exception_ms": 200,
    "auto_commit_interval_ms": 300,
}


@dataclass(frozen=True)
class Kind:
    """A kind of consumer.

    Attributes:
        name: name on the command line.
        consumer: how it gets messages: ``listener`` or ``loop`` (push consumer), ``lite``, ``simple`` or ``pull``.
        orderly: whether a push consumer is orderly.
        broadcasting: whether each member gets all messages.
        shares: whether several members may read at the same time.
    """

    name: str
    consumer: str
    orderly: bool = False
    broadcasting: bool = False
    shares: bool = True

    @property
    def ordered(self) -> bool:
        """Whether first deliveries follow the order of the queue."""
        return self.orderly or self.consumer in ("lite", "pull")

    @property
    def locks(self) -> bool:
        """Whether members lock queues; the broker keeps the locks of a killed member for a minute."""
        return self.orderly and not self.broadcasting

    @property
    def fails(self) -> bool:
        """Whether a message that a listener failed to consume is delivered again."""
        return self.consumer in ("listener", "simple") and (self.orderly or not self.broadcasting)

    @property
    def retries_elsewhere(self) -> bool:
        """Whether a message that is delivered again may come from a retry topic."""
        return not self.ordered and not self.broadcasting


KINDS = (
    Kind("concurrent", "listener"),
    Kind("orderly", "listener", orderly=True),
    Kind("loop", "loop"),
    Kind("orderly_loop", "loop", orderly=True),
    Kind("lite", "lite"),
    Kind("simple", "simple"),
    Kind("pull", "pull", shares=False),
    Kind("concurrent_broadcasting", "listener", broadcasting=True),
    Kind("orderly_broadcasting", "listener", orderly=True, broadcasting=True),
    Kind("loop_broadcasting", "loop", broadcasting=True),
    Kind("lite_broadcasting", "lite", broadcasting=True),
    Kind("pull_broadcasting", "pull", broadcasting=True),
)


class SteppedClock(SystemClock):
    """A wall clock that can be set; the monotonic clock is the system's."""

    def __init__(self) -> None:
        self.step_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.step_ms


class Reader:
    """One consumer, whatever its kind.

    Args:
        kind: kind of the consumer.
        member: name of the consumer; a broadcasting consumer finds its progress by this name.
        namesrv: the name server.
        directory: where broadcasting consumers keep their progress.
        clock: the consumer's clock.
        take: gets every message; returns whether it was consumed.
    """

    def __init__(
        self,
        kind: Kind,
        member: str,
        namesrv: str,
        directory: str,
        clock: SteppedClock,
        take: Callable[[MessageExt], Awaitable[bool]],
    ) -> None:
        self.kind, self._namesrv, self._clock, self._take = kind, namesrv, clock, take
        model = MessageModel.BROADCASTING if kind.broadcasting else MessageModel.CLUSTERING
        self._own: dict[str, Any] = {"message_model": model, "local_offset_store_dir": directory}
        if kind.broadcasting:
            self._own["instance_name"] = member
        self.consumer: Any = None
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        make = {"listener": self._listening, "lite": self._lite, "simple": self._simple, "pull": self._pull}
        self.consumer = make.get(self.kind.consumer, self._push)()
        if self.kind.consumer != "pull":
            await self.consumer.subscribe(TOPIC)
        await self.consumer.start()
        if self.kind.consumer != "listener":
            self._loop = asyncio.ensure_future(getattr(self, f"_run_{self.kind.consumer}")())

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await self.consumer.shutdown()

    async def kill(self) -> None:
        """Ends as a killed process does: brokers and disk get nothing more."""
        instance = self.consumer._instance if self._is_flat else self.consumer._member.instance
        await instance.client.close()
        instance.api.client.send_oneway = lambda *_: None
        if self.file is not None:
            self.file.commit = lambda _: None  # type: ignore[method-assign]
        await self.stop()

    @property
    def file(self) -> LocalFileOffsetStore | None:
        """File in which a broadcasting consumer keeps its progress."""
        if not self.kind.broadcasting:
            return None
        if self._is_flat:
            local: LocalFileOffsetStore = self.consumer._local
            return local
        offsets = self.consumer._member.offsets
        assert isinstance(offsets, BroadcastOffsetStore)
        return offsets._file

    @property
    def _is_flat(self) -> bool:
        return self.kind.consumer in ("simple", "pull")

    # the classes

    def _push(self) -> PushConsumer:
        config = PushConsumerConfig(
            consume_orderly=self.kind.orderly,
            await_termination_ms=500,
            suspend_current_queue_time_ms=50,
            **QUICK,
            **self._own,
        )
        return PushConsumer(self.kind.name, self._namesrv, config, clock=self._clock)

    def _listening(self) -> PushConsumer:
        consumer = self._push()

        async def listen(message: MessageExt) -> None:
            if not await self._take(message):
                raise ReconsumeLater

        consumer.register_message_listener(listen)
        return consumer

    def _lite(self) -> LitePullConsumer:
        config = LitePullConsumerConfig(**QUICK, **self._own)
        return LitePullConsumer(self.kind.name, self._namesrv, config, clock=self._clock)

    def _simple(self) -> SimpleConsumer:
        config = SimpleConsumerConfig(await_duration_ms=500, **SOON)
        return SimpleConsumer(self.kind.name, self._namesrv, config, clock=self._clock)

    def _pull(self) -> PullConsumer:
        config = PullConsumerConfig(
            consumer_pull_timeout_ms=1_000, consumer_timeout_when_suspend_ms=1_500, **SOON, **self._own
        )
        return PullConsumer(self.kind.name, self._namesrv, config, clock=self._clock)

    # the work of an application with each kind of consumer

    async def _run_loop(self) -> None:
        async for message in self.consumer:
            await self._take(message)

    async def _run_lite(self) -> None:
        while True:
            for message in await self.consumer.poll(500):
                await self._take(message)

    async def _run_simple(self) -> None:
        while True:
            try:
                popped = await self.consumer._service.receive(32, INVISIBLE_MS, 500)
                for message in popped.messages if popped is not None else []:
                    if await self._take(message):
                        await self.consumer.ack(message)
            except RucolaError:
                await asyncio.sleep(0.2)

    async def _run_pull(self) -> None:
        queues = await self._until(lambda: self.consumer.message_queues(TOPIC))
        async with asyncio.TaskGroup() as reading:
            for queue in queues:
                reading.create_task(self._read(queue))

    async def _read(self, queue: MessageQueue) -> None:
        """Continues at the stored progress, and stores it after the messages of each pull."""
        position = await self._until(lambda: self.consumer.committed(queue)) or 0
        while True:
            result = await self._until(lambda at=position: self.consumer.pull(queue, at, suspend_timeout_ms=500))
            for message in result.messages:
                await self._take(message)
            if result.next_begin_offset != position:
                position = result.next_begin_offset
                await self._until(lambda at=position: self.consumer.commit(queue, at))

    async def _until(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats ``call`` until it succeeds; returns its result."""
        while True:
            try:
                return await call()
            except RucolaError:
                await asyncio.sleep(0.2)
