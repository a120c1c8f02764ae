"""A placeholder for POP until the first request needs it. Event loop only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.common.key_builder import REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from rucola.remoting.peer import Peer

if TYPE_CHECKING:
    from rucola.broker.pop_services import PopServices
    from rucola.broker.services import BrokerServices

ORDERS = "consumerOrderInfo.json"
MODES = "messageRequestMode.json"


class LazyPopServices:
    """Creates the POP services with the first POP request, or at the start if the store may hold POP data.

    Call ``load`` with the store, ``start`` with the loop, then ``stop``, and ``persist`` last.

    Attributes:
        started: the POP services; None until they are needed.
    """

    def __init__(self, services: BrokerServices) -> None:
        self.started: PopServices | None = None
        self._services = services
        self._serving = False

    def get(self) -> PopServices:
        """The POP services; they are created now if necessary, and started if the broker serves."""
        if self.started is None:
            services = self._made()
            services.load(after_pops=False)
            if self._serving:
                services.start()
            self.started = services
        return self.started

    @property
    def waiting(self) -> int:
        """Number of pops that wait for messages."""
        return len(self.started.hold) if self.started is not None else 0

    def load(self) -> None:
        """Loads POP data after the store and the consumer offsets.

        Raises:
            StoreDamagedError: a table cannot be read.
        """
        if self._may_have_popped():
            self.started = self._made()
            self.started.load(after_pops=True)

    def start(self) -> None:
        """Starts the POP services if there are any; ``get`` starts those it creates later."""
        self._serving = True
        if self.started is not None:
            self.started.start()

    async def catch_up(self) -> None:
        """Revives the messages that are due after the clock was moved on."""
        if self.started is not None:
            await self.started.catch_up()

    def arrived(self, topic: bytes, queue_id: int, tags_code: int | None) -> None:
        """Notifies waiting pops of messages in a queue."""
        if self.started is not None:
            self.started.hold.arrived(topic, queue_id, tags_code)

    def channel_closed(self, channel: Peer) -> None:
        """Forgets the pops of a closed connection."""
        if self.started is not None:
            self.started.hold.channel_closed(channel)

    def topic_deleted(self, topic: str) -> None:
        """Forgets a deleted topic, so that a new one of that name starts afresh."""
        if self.started is not None:
            self.started.forget(lambda queue: queue.topic == topic)

    def group_deleted(self, group: str) -> None:
        """Forgets a deleted group, so that a new one of that name starts afresh."""
        if self.started is not None:
            self.started.forget(lambda queue: queue.group == group)

    def settle(self) -> None:
        """Records which pops have reached the disk, before the consumer offsets are written."""
        if self.started is not None:
            self.started.settle()

    def persist(self) -> None:
        """Requests a write of the table of messages popped in order if it changed."""
        if self.started is not None:
            self.started.persist()

    async def stop(self) -> None:
        """Stops reviving messages and releases the waiting pops."""
        self._serving = False
        if self.started is not None:
            await self.started.stop()

    def _made(self) -> PopServices:
        from rucola.broker.pop_services import PopServices

        return PopServices(self._services)

    def _may_have_popped(self) -> bool:
        """Whether the store may hold POP data. Checkpoints and acknowledgements wait in the timer topic before they
        reach the revive topic.
        """
        store, tables = self._services.store, self._services.tables
        if (store.recovered and store.max_offset) or tables.exist(ORDERS) or tables.exist(MODES):
            return True
        topics = (TIMER_TOPIC, f"{REVIVE_TOPIC_PREFIX}{self._services.config.broker_cluster_name}")
        return any(store.queue_ids(topic.encode()) for topic in topics)
