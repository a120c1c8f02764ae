"""A placeholder for the POP services until the first request needs them. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from rucola.common.key_builder import TIMER_TOPIC
from rucola.remoting.channel import Channel

if TYPE_CHECKING:
    from rucola.broker.config_files import ConfigFiles
    from rucola.broker.pop.ack_processor import PopAckProcessor
    from rucola.broker.pop.hold import PopHold
    from rucola.broker.pop.pop_offsets import PoppedQueue
    from rucola.broker.pop.receipt import Receipt
    from rucola.protocol.bodies.heartbeat import SubscriptionData
    from rucola.store.message_store import MessageStore

ORDERS = "consumerOrderInfo.json"
MODES = "messageRequestMode.json"
_TAG, _ALL = "TAG", "*"
"""What an absent type or text of a filter means."""


class Pops(Protocol):
    """The POP services, as the rest of the broker uses them; ``PopServices`` describes the methods."""

    hold: PopHold

    @property
    def acks(self) -> PopAckProcessor:
        """Serves acknowledgements."""

    @property
    def acks_buffered(self) -> int:
        """Number of pops with acknowledgements that are not in the log yet."""

    def load(self, after_pops: bool) -> None:
        """Loads POP data."""

    def start(self) -> None:
        """Starts reviving."""

    async def catch_up(self) -> None:
        """Revives the messages that became due because the clock was moved forward."""

    def forget(self, concerned: Callable[[PoppedQueue], bool]) -> asyncio.Future[None] | None:
        """Forgets what was popped from the queues for which ``concerned`` returns True."""

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the waiting pops of a closed connection."""

    def needed_from(self) -> int | None:
        """Physical offset of the oldest record of the revive topic that is not worked off."""

    def follow_modes(self, text: bytes) -> None:
        """Replaces the modes in which groups read topics by those of a master."""

    def settle(self) -> None:
        """Commits the consumer offsets that waited for a sync: those of pops and those of the revive topic."""

    def persist(self) -> None:
        """Requests a write of the table of messages popped in order."""

    async def stop(self) -> None:
        """Stops reviving messages and releases the waiting pops."""


class LazyPopServices:
    """Creates the POP services with the first POP request, or at start-up if the store may hold POP data.

    First call ``load``, then ``start`` on the event loop, then ``stop``, and ``persist`` last.

    Args:
        store: the broker's store.
        tables: its configuration files.
        revive_topic: returns the name of the revive topic; called after the topics are loaded.
        make: imports and creates the POP services.

    Attributes:
        started: the POP services; None until they are needed.
    """

    def __init__(
        self, store: MessageStore, tables: ConfigFiles, revive_topic: Callable[[], str], make: Callable[[], Pops]
    ) -> None:
        self.started: Pops | None = None
        self._store = store
        self._tables = tables
        self._revive_topic = revive_topic
        self._make = make
        self._serving = False

    def get(self) -> Pops:
        """The POP services; creates them if necessary, and starts them if the broker already serves requests."""
        if self.started is None:
            pops = self._make()
            pops.load(after_pops=False)
            if self._serving:
                pops.start()
            self.started = pops
        return self.started

    @property
    def waiting(self) -> int:
        """Number of pops that wait for messages."""
        return len(self.started.hold) if self.started is not None else 0

    @property
    def acks_buffered(self) -> int:
        """Number of pops with acknowledgements that are not in the log yet."""
        return self.started.acks_buffered if self.started is not None else 0

    def load(self) -> None:
        """Loads POP data; call this after the store and the consumer offsets are loaded.

        Raises:
            StoreDamagedError: a table cannot be read.
        """
        if self._may_have_popped():
            self.started = self._make()
            self.started.load(after_pops=True)

    def start(self) -> None:
        """Starts the POP services if they exist; if ``get`` creates them later, ``get`` also starts them."""
        self._serving = True
        if self.started is not None:
            self.started.start()

    async def catch_up(self) -> None:
        """Revives the messages that became due because the clock was moved forward."""
        if self.started is not None:
            await self.started.catch_up()

    def arrived(self, topic: bytes, queue_id: int, tags_code: int | None) -> None:
        """Tells the waiting pops that messages have arrived in a queue."""
        if self.started is not None:
            self.started.hold.arrived(topic, queue_id, tags_code)

    def subscribed(self, channel: Channel, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Answers the waiting pops of a client that has changed the expressions of their topics."""
        if self.started is not None and len(self.started.hold):
            expressions = {one.topic: (one.expression_type or _TAG, one.sub_string or _ALL) for one in subscriptions}
            self.started.hold.subscribed(channel, group, expressions)

    def withdraw(self, channel: Channel, opaque: int) -> bool:
        """Takes out a waiting pop; see ``PopHold.withdraw``."""
        return self.started is not None and self.started.hold.withdraw(channel, opaque)

    def acknowledge(self, queue: PoppedQueue, receipt: Receipt, queue_offset: int) -> bool:
        """See ``PopAckProcessor.acknowledge``."""
        return self.started is not None and self.started.acks.acknowledge(queue, receipt, queue_offset)

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the waiting pops of a closed connection."""
        if self.started is not None:
            self.started.channel_closed(channel)

    def topic_deleted(self, topic: str) -> asyncio.Future[None] | None:
        """Forgets what was popped from a deleted topic, so that a new topic with the same name starts anew, and ends
        the requests that wait for its messages. Returns a future that is done when this is synced, or None.
        """
        if self.started is None:
            return None
        written = self.started.forget(lambda queue: queue.topic == topic)
        self.started.hold.end(topic)
        return written

    def group_deleted(self, group: str) -> asyncio.Future[None] | None:
        """Forgets what a deleted group has popped, so that a new group with the same name starts anew. Returns a future
        that is done when this is synced, or None.
        """
        return None if self.started is None else self.started.forget(lambda queue: queue.group == group)

    def needed_from(self) -> int | None:
        """Physical offset of the oldest record of the revive topic that is not worked off; see ``LogHolder``."""
        return None if self.started is None else self.started.needed_from()

    def move_on(self, _physical_offset: int) -> None:
        """Does nothing: records in the revive topic are due, so they are needed briefly. See ``LogHolder``."""

    def settle(self) -> None:
        """Commits the consumer offsets that waited for a sync: those of pops and those of the revive topic. Call this
        before the consumer offsets are written.
        """
        if self.started is not None:
            self.started.settle()

    def persist(self) -> None:
        """Requests a write of the table of messages popped in order, if this table has changed."""
        if self.started is not None:
            self.started.persist()

    async def stop(self) -> None:
        """Stops reviving messages and releases the waiting pops."""
        self._serving = False
        if self.started is not None:
            await self.started.stop()

    def _may_have_popped(self) -> bool:
        """Whether the store may hold POP data. Checkpoints and acknowledgements wait in the timer topic before they
        reach the revive topic.
        """
        store, tables = self._store, self._tables
        if (store.recovered and store.max_offset) or tables.exist(ORDERS) or tables.exist(MODES):
            return True
        return any(store.queue_ids(topic.encode()) for topic in (TIMER_TOPIC, self._revive_topic()))
