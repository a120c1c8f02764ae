"""Which consumer of a group reads which queues (RocketMQ 5.3.3, ``AllocateMessageQueueAveragely`` and others)."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence
from functools import lru_cache

from rucola.common.message_queue import MessageQueue

AVERAGELY = "AVG"
BY_CIRCLE = "AVG_BY_CIRCLE"
CONSISTENT_HASH = "CONSISTENT_HASH"
STRATEGIES = frozenset({AVERAGELY, BY_CIRCLE, CONSISTENT_HASH})
"""Strategies that need only the list of queues and the list of clients. The other strategies exist in clients only."""
_NODES = 10


def allocate(
    strategy: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """The queues of a client; empty if the client is not one of ``client_ids``. ``queues`` and ``client_ids`` must
    be sorted.
    """
    if client_id not in client_ids:
        return []
    index, count = client_ids.index(client_id), len(client_ids)
    if strategy == BY_CIRCLE:
        return list(queues[index::count])
    if strategy == CONSISTENT_HASH:
        points, owners = _ring(tuple(client_ids))
        return [q for q in queues if owners[bisect.bisect_left(points, _hash(_text(q))) % len(owners)] == client_id]
    whole, more = divmod(len(queues), count)
    begin = index * whole + min(index, more)
    return list(queues[begin : begin + whole + (index < more)])


def allocate_for_pop(
    strategy: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], share: int
) -> list[MessageQueue]:
    """The queues that a client pops: its own queues and those of the next ``share`` clients.

    If ``share`` is 0 or less, or covers all other clients, the client pops all queues; one entry with queue id -1
    stands for them. Otherwise, if there are more clients than queues, the client pops a single queue.
    """
    if share <= 0 or share >= len(client_ids) - 1:
        return list(dict.fromkeys(MessageQueue(queue.topic, queue.broker_name, -1) for queue in queues))
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    if len(client_ids) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    sharing = [client_ids[(index + step) % len(client_ids)] for step in range(share + 1)]
    return list(dict.fromkeys(queue for each in sharing for queue in allocate(strategy, each, queues, client_ids)))


@lru_cache(maxsize=4)
def _ring(client_ids: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """The sorted points of all clients on the hash ring, and the client at each point. The result is cached, because
    all clients of a group, perhaps thousands, ask for their queues when one of them comes or goes.
    """
    nodes = sorted((point, each) for each in client_ids for point in _points(each))
    return [point for point, _ in nodes], [each for _, each in nodes]


@lru_cache(maxsize=8192)
def _points(client_id: str) -> tuple[int, ...]:
    return tuple(_hash(f"{client_id}-{number}") for number in range(_NODES))


def _hash(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
