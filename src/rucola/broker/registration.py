"""Schedules the registrations of the broker and its topics with the name servers. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from rucola.broker.config import BrokerConfig
from rucola.broker.outer_api import BrokerOuterApi
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.topic_config import TopicConfig
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import Answer
from rucola.runtime.supervision import Supervisor

REGISTER_AGAIN_S = 10.0
"""The second registration comes early, as in the reference."""


class Registration:
    """Life: ``register``, again and again, ``close``."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        api: BrokerOuterApi,
        topics: TopicConfigManager,
        supervisor: Supervisor,
    ) -> None:
        self._config = config
        self._loop = loop
        self._api = api
        self._topics = topics
        self._supervisor = supervisor
        self._under_way: set[asyncio.Task[None]] = set()
        topics.on_register(self._topic_changed)

    async def register(self) -> None:
        """Registers all topics with every name server, in parts if that is configured."""
        topics = self._topics
        if not self._config.enable_split_registration:
            await self._api.register_all(topics.table, topics.data_version)
            return
        names, size = list(topics.table), self._config.split_registration_size
        for first in range(0, len(names), size):
            part = {name: topics.table[name] for name in names[first : first + size] if name in topics.table}
            await self._api.register_all(part, topics.raise_version())

    async def close(self) -> None:
        """Unregisters from the name servers."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._api.unregister()
        await self._api.close()

    def _topic_changed(self, topic: TopicConfig) -> asyncio.Future[None]:
        task = self._loop.create_task(self._api.register_topic(topic, self._topics.table, self._topics.data_version))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._supervisor.failed("registration of a topic", error)


def answer_when_told(
    answer: RemotingCommand, registrations: Iterable[asyncio.Future[None] | None]
) -> Answer | Awaitable[Answer]:
    """``answer``, once the name servers know the topics that a request created or could not be told.

    A client asks them for the route right after its answer. If they do not know it, it asks again only 20 s later.
    """
    waiting = [registration for registration in registrations if registration is not None and not registration.done()]
    return _after(waiting, answer) if waiting else answer


async def _after(registrations: list[asyncio.Future[None]], answer: RemotingCommand) -> RemotingCommand:
    await asyncio.wait(registrations)
    return answer
