"""POP as long as nobody pops: nothing but this. Event loop only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.common.key_builder import REVIVE_TOPIC_PREFIX, TIMER_TOPIC

if TYPE_CHECKING:
    from rucola.broker.pop_services import PopServices
    from rucola.broker.services import BrokerServices

ORDERS = "consumerOrderInfo.json"
MODES = "messageRequestMode.json"


class LazyPopServices:
    """Makes the parts of POP with the first request about it, at the start when the store may hold something of it.

    Life: ``load`` with the store, ``start`` with the loop, ``stop``, ``persist`` for the last time.

    Attributes:
        started: the parts; None until one is needed.
    """

    def __init__(self, services: BrokerServices) -> None:
        self.started: PopServices | None = None
        self._services = services
        self._serving = False

    def get(self) -> PopServices:
        """The parts, made now when there are none; they work when the broker does."""
        if self.started is None:
            services = self._made()
            services.load(after_pops=False)
            if self._serving:
                services.start()
            self.started = services
        return self.started

    @property
    def waiting(self) -> int:
        """Pops that wait for messages."""
        return len(self.started.hold) if self.started is not None else 0

    def load(self) -> None:
        """The store and the consumer offsets are loaded.

        Raises:
            StoreDamagedError: a table cannot be read.
        """
        if self._may_have_popped():
            self.started = self._made()
            self.started.load(after_pops=True)

    def start(self) -> None:
        """Requests come from now on; begin with whatever became due while nobody looked."""
        self._serving = True
        if self.started is not None:
            self.started.start()

    async def catch_up(self) -> None:
        """Let come again what is due by a clock that was moved on."""
        if self.started is not None:
            await self.started.catch_up()

    def arrived(self, topic: bytes, queue_id: int, tags_code: int | None) -> None:
        """Messages came into a queue."""
        if self.started is not None:
            self.started.hold.arrived(topic, queue_id, tags_code)

    def channel_closed(self, channel: object) -> None:
        """The connection is gone."""
        if self.started is not None:
            self.started.hold.channel_closed(channel)

    def topic_deleted(self, topic: str) -> None:
        """A topic of that name begins anew."""
        if self.started is not None:
            self.started.forget(lambda queue: queue.topic == topic)

    def group_deleted(self, group: str) -> None:
        """A group of that name begins anew."""
        if self.started is not None:
            self.started.forget(lambda queue: queue.group == group)

    def settle(self) -> None:
        """Note what reached the disk; the consumer offsets are about to be written."""
        if self.started is not None:
            self.started.settle()

    def persist(self) -> None:
        """Write the table of messages popped in order when it changed."""
        if self.started is not None:
            self.started.persist()

    async def stop(self) -> None:
        """Revive nothing more, release the pops that wait."""
        self._serving = False
        if self.started is not None:
            await self.started.stop()

    def _made(self) -> PopServices:
        from rucola.broker.pop_services import PopServices

        return PopServices(self._services)

    def _may_have_popped(self) -> bool:
        """Checkpoints and acknowledgements wait in the timer topic before they come into the revive topic."""
        store, tables = self._services.store, self._services.tables
        if (store.recovered and store.max_offset) or tables.exist(ORDERS) or tables.exist(MODES):
            return True
        topics = (TIMER_TOPIC, f"{REVIVE_TOPIC_PREFIX}{self._services.config.broker_cluster_name}")
        return any(store.queue_ids(topic.encode()) for topic in topics)
