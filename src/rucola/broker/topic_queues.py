"""The readable queues of a topic on all brokers, as the name servers know them. Event loop only.

Clients ask for their queues every 5 s, and all clients of a group ask at the same time when a member comes or goes. One
request to the name servers serves all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.message_queue import MessageQueue
from rucola.errors import RucolaError

Queues = list[MessageQueue] | None
"""Sorted queues; None if there is no such topic."""
KEPT_S = 1.0
"""Seconds for which an answer of the name servers is kept."""
_KEPT_MAX = 1024
"""Largest number of topics whose answers are kept."""


class Kept(NamedTuple):
    """An answer of the name servers, and the monotonic time in seconds until which it is kept."""

    queues: Queues
    until_s: float


class TopicQueues:
    """Finds and keeps the queues of topics.

    Args:
        ask: asks the name servers; raises ``RucolaError`` if none answers or none knows the topic.
        broker_name: name of this broker. If the name servers supply no queues, only this broker's queues are returned.
        monotonic: returns seconds.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[list[MessageQueue]]],
        topics: TopicConfigManager,
        broker_name: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._topics = topics
        self._broker_name = broker_name
        self._monotonic = monotonic
        self._kept: dict[str, Kept] = {}
        self._asked: dict[str, asyncio.Task[Queues]] = {}
        topics.on_change(self._discard)

    def known(self, topic: str) -> Kept | None:
        """The kept answer for a topic; None if the name servers must be asked."""
        kept = self._kept.get(topic)
        return None if kept is None or kept.until_s < self._monotonic() else kept

    async def find(self, topic: str) -> Queues:
        """The queues of a topic. Callers that come while the name servers are being asked wait for the same answer."""
        asked = self._asked.get(topic)
        if asked is None:
            asked = self._asked[topic] = asyncio.ensure_future(self._find(topic, self._asked, self._kept))
        return await asyncio.shield(asked)

    async def _find(self, topic: str, asked: dict[str, asyncio.Task[Queues]], kept: dict[str, Kept]) -> Queues:
        try:
            queues = await self._queues(topic)
        finally:
            del asked[topic]
        kept.pop(topic, None)
        if len(kept) >= _KEPT_MAX:
            del kept[next(iter(kept))]
        kept[topic] = Kept(queues, self._monotonic() + KEPT_S)
        return queues

    async def _queues(self, topic: str) -> Queues:
        try:
            queues = await self._ask(topic)
        except RucolaError:
            queues = []
        if queues:
            return sorted(queues)
        config = self._topics.get(topic)
        if config is None:
            return None
        return [MessageQueue(topic, self._broker_name, queue_id) for queue_id in range(config.read_queue_nums)]

    def _discard(self) -> None:
        """Drops the kept answers because a topic of this broker changed. Pending answers are not kept either."""
        self._kept, self._asked = {}, {}
