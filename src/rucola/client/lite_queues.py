"""All lite topics of which a consumer holds messages, and what becomes of a batch that was popped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rucola.client.lite_leases import ClientLiteLeases
from rucola.client.lite_process_queue import LiteProcessQueue, LiteReceipt, LiteRoom
from rucola.common.message import MessageExt
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class LiteQueues:
    """The held messages of a consumer. Used on one event loop.

    Args:
        parent: the parent topic.
        room: the room that the messages take.
        is_left: whether the consumer has left a lite topic, so that its messages go back to the group.
        offer: called with a queue that may have messages to give.
    """

    def __init__(
        self, parent: str, room: LiteRoom, is_left: Callable[[str], bool], offer: Callable[[LiteProcessQueue], None]
    ) -> None:
        self._parent, self._room = parent, room
        self._is_left, self._offer = is_left, offer
        self._queues: dict[tuple[str, str], LiteProcessQueue] = {}
        self._leases: ClientLiteLeases

    def settle_by(self, leases: ClientLiteLeases) -> None:
        """Sets what acknowledges and returns messages; called once, before anything is put."""
        self._leases = leases

    def __len__(self) -> int:
        return len(self._queues)

    def put(self, broker_name: str, receipt: LiteReceipt, messages: Sequence[MessageExt]) -> None:
        """Takes the messages of one pop, of any lite topics."""
        batches: dict[str, list[MessageExt]] = {}
        unknown = 0
        for message in messages:
            lite_topic = message.lite_topic
            if lite_topic is None or message.lite_offset is None:
                unknown += 1
            else:
                batches.setdefault(lite_topic, []).append(message)
        if unknown:
            about = {"topic": self._parent, "broker": broker_name, "count": unknown}
            event(logger, logging.ERROR, "popped messages without a place in a lite topic are ignored", **about)
        for lite_topic, batch in batches.items():
            self._put(broker_name, lite_topic, receipt, batch)

    def _put(self, broker_name: str, lite_topic: str, receipt: LiteReceipt, batch: list[MessageExt]) -> None:
        key = broker_name, lite_topic
        queue = self._queues.get(key)
        if queue is None:
            queue = LiteProcessQueue(self._parent, lite_topic, broker_name, receipt, self._room, self._leases)
            self._queues[key] = queue
        self._leases.begin(queue, receipt)
        again = queue.handled(batch)
        queue.put(batch)
        for offset in again:
            self._leases.acknowledge_again(queue, offset)
        if self._is_left(lite_topic):
            queue.leave()
        else:
            queue.rejoin()
            self._offer(queue)

    def leave(self, lite_topic: str) -> None:
        """Gives no further message of a lite topic; what the application does not have goes back to the group."""
        for queue in [queue for (_, name), queue in self._queues.items() if name == lite_topic]:
            queue.leave()

    def leave_all(self) -> None:
        """Gives nothing more, of any lite topic."""
        for queue in list(self._queues.values()):
            queue.leave()

    def forget(self, queue: LiteProcessQueue) -> None:
        """Forgets a queue and its messages: results for them are ignored."""
        key = queue.broker_name, queue.lite_topic
        if self._queues.get(key) is queue:
            del self._queues[key]
        queue.drop()

    def of(self, message: MessageExt) -> LiteProcessQueue | None:
        """The queue that holds a message."""
        queue = self._queues.get((message.broker_name, message.lite_topic or ""))
        return queue if queue is not None and message in queue else None
