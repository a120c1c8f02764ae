"""Strategies that divide a topic's queues among the consumers: RocketMQ's five, and one that prefers nearby machines.

All consumers of a group, in any language, must use the same strategy, because each computes the division for itself.
Strategies receive queues and client ids in sorted order. Source: RocketMQ 5.3.3, ``AllocateMessageQueue*``,
``ConsistentHashRouter``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError

__all__ = [
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueStrategy",
]


class AllocateMessageQueueStrategy(Protocol):
    """A strategy that divides queues; a custom strategy needs ``name`` and ``allocate``."""

    @property
    def name(self) -> str:
        """The name of the strategy; sent to brokers that divide the queues themselves."""
        ...

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The queues of the consumer ``client_id``.

        Args:
            client_id: one of ``client_ids``.
            queues: all queues of one topic, sorted.
            client_ids: all consumers of the group, sorted.
        """
        ...


class AllocateMessageQueueAveragely:
    """Gives each consumer adjacent queues; if there is a remainder, the first consumers get one more queue."""

    name = "AVG"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """See ``AllocateMessageQueueStrategy``."""
        index = client_ids.index(client_id)
        share, rest = divmod(len(queues), len(client_ids))
        first = index * share + min(index, rest)
        return queues[first : first + share + (index < rest)]


class AllocateMessageQueueAveragelyByCircle:
    """Deals the queues out in turn, one to each consumer."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """See ``AllocateMessageQueueStrategy``."""
        return queues[client_ids.index(client_id) :: len(client_ids)]


class AllocateMessageQueueByConfig:
    """Gives this consumer the queues that are configured for it, filtered by topic.

    Args:
        message_queues: the queues.
    """

    name = "CONFIG"

    def __init__(self, message_queues: Collection[MessageQueue]) -> None:
        self._queues = tuple(message_queues)

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """See ``AllocateMessageQueueStrategy``. Unlike RocketMQ, leaves out queues of other topics."""
        topics = {queue.topic for queue in queues}
        return tuple(queue for queue in self._queues if queue.topic in topics)


class AllocateMessageQueueByMachineRoom:
    """Divides only queues of brokers in the given machine rooms, in equal shares; the brokers' names are ``room@name``.

    Args:
        machine_rooms: the rooms.
    """

    name = "MACHINE_ROOM"

    def __init__(self, machine_rooms: Collection[str]) -> None:
        self._rooms = frozenset(machine_rooms)

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """See ``AllocateMessageQueueStrategy``. The first consumers also get the remainder of the division."""
        index, count = client_ids.index(client_id), len(client_ids)
        near = [queue for queue in queues if self._is_near(queue.broker_name)]
        share, rest = divmod(len(near), count)
        mine = near[index * share : (index + 1) * share]
        return mine + near[share * count + index : share * count + index + 1] if index < rest else mine

    def _is_near(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        while parts and not parts[-1]:  # like Java's split, which drops empty strings at the end
            parts.pop()
        return len(parts) == 2 and parts[0] in self._rooms


class AllocateMessageQueueConsistentHash:
    """Places consumers and queues on a ring of hash values; a queue belongs to the next consumer on the ring.

    When a consumer joins or leaves, few queues change their consumer.

    Args:
        virtual_node_count: number of positions of each consumer on the ring.

    Raises:
        ConfigError: the count is negative.
    """

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_node_count: int = 10) -> None:
        if virtual_node_count < 0:
            raise ConfigError(
                "virtualNodeCnt", str(virtual_node_count), "an integer of at least 0", "virtual_node_count"
            )
        self._virtual_nodes = virtual_node_count

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """See ``AllocateMessageQueueStrategy``."""
        ring = {_hash(f"{one}-{node}"): one for one in client_ids for node in range(self._virtual_nodes)}
        places = sorted(ring)
        return [queue for queue in queues if places and ring[_next(places, _queue_hash(queue))] == client_id]


class AllocateMachineRoomNearby:
    """Divides a machine room's queues among its consumers, and queues in rooms without consumers among all consumers.

    Args:
        strategy: divides the queues of a room among consumers.
        room_of_broker: returns the room of a queue, for example from its broker's name.
        room_of_consumer: returns the room of a consumer from its client id.
    """

    def __init__(
        self,
        strategy: AllocateMessageQueueStrategy,
        room_of_broker: Callable[[MessageQueue], str],
        room_of_consumer: Callable[[str], str],
    ) -> None:
        self._strategy = strategy
        self._room_of_broker = room_of_broker
        self._room_of_consumer = room_of_consumer

    @property
    def name(self) -> str:
        """See ``AllocateMessageQueueStrategy``."""
        return f"MACHINE_ROOM_NEARBY-{self._strategy.name}"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """See ``AllocateMessageQueueStrategy``.

        Raises:
            ConfigError: the machine room of a queue or of a consumer is empty.
        """
        consumers: dict[str, list[str]] = {}
        for one in client_ids:
            consumers.setdefault(_known(self._room_of_consumer(one), one), []).append(one)
        rooms: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            rooms.setdefault(_known(self._room_of_broker(queue), queue.broker_name), []).append(queue)
        own = self._room_of_consumer(client_id)
        mine = list(self._strategy.allocate(client_id, rooms[own], consumers[own])) if own in rooms else []
        for room in sorted(rooms.keys() - consumers.keys()):
            mine += self._strategy.allocate(client_id, rooms[room], client_ids)
        return mine


def _known(room: str, what: str) -> str:
    if not room:
        raise ConfigError("machineRoomResolver", room, f"the name of a machine room for {what}")
    return room


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _queue_hash(queue: MessageQueue) -> int:
    """Returns the hash of the text that Java's ``MessageQueue#toString`` returns for ``queue``."""
    return _hash(f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]")


def _next(places: list[int], wanted: int) -> int:
    return places[bisect_left(places, wanted) % len(places)]
