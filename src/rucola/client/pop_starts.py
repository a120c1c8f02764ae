"""Where a group of simple consumers begins that has ``consume_from_first`` off.

A broker chooses the start of a queue at the group's first pop: the last message of that moment. Messages that were sent
between ``start`` and the first ``receive`` would be skipped, so the client stores the start earlier.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from rucola.client.consumer_config import START_LIMIT_S
from rucola.client.instance import ClientInstance
from rucola.common.message_queue import MessageQueue
from rucola.errors import RucolaError
from rucola.remoting.api import RemotingApi
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


async def store_starts(instance: ClientInstance, api: RemotingApi, group: str, topics: Collection[str]) -> None:
    """Stores the offset of the last message of each queue of ``topics`` as the group's consumer offset, unless the
    group has one, or the broker lets it begin at 0. A failure is logged, also if it takes more than ``START_LIMIT_S``;
    the broker then chooses at the first pop.
    """
    try:
        async with asyncio.timeout(START_LIMIT_S):
            await asyncio.gather(*(_store_starts(instance, api, group, topic) for topic in topics))
    except TimeoutError:
        event(logger, logging.WARNING, "starts of queues not stored", group=group, topics=sorted(topics))


async def _store_starts(instance: ClientInstance, api: RemotingApi, group: str, topic: str) -> None:
    try:
        route = await instance.routes.route(topic)
    except RucolaError:
        return  # a topic that is created later is popped from its first message on
    await asyncio.gather(*(_store_start(instance, api, group, queue) for queue in route.subscribe_queues))


async def _store_start(instance: ClientInstance, api: RemotingApi, group: str, queue: MessageQueue) -> None:
    try:
        address = instance.routes.master(queue.broker_name)
        if await api.query_consumer_offset(address, group, queue) is None:
            last = max(await api.max_offset(address, queue) - 1, 0)
            await api.update_consumer_offset(address, group, queue, last)
    except RucolaError as error:
        event(logger, logging.INFO, "start of a queue not stored", group=group, queue=queue, error=error)
