"""Schedules the registrations of the broker and its topics with the name servers. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from rucola.broker.config import BrokerConfig
from rucola.broker.outer_api import BrokerOuterApi
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.topic_config import TopicConfig
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import Answer
from rucola.runtime.supervision import Supervisor

REGISTER_AGAIN_S = 10.0
"""Seconds until the second registration, which comes early, as in RocketMQ."""
BEGIN_S = 1.0
"""Seconds for which start-up waits for the name servers. 100,000 topics may take longer, and so may a name server that
does not answer.
"""
TOGETHER_MAX = 1000
"""Largest number of topics in one request without ``enableSplitRegistration``. So many topics take some milliseconds of
event-loop time in the broker and in the name server. A frame of 16 MiB holds about 80,000 topics.
"""


class Registration:
    """Registrations of one broker. Call ``begin``, then ``register`` repeatedly, and ``close`` at the end. Before
    ``begin``, nothing is registered.
    """

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
        self._first: asyncio.Task[None] | None = None
        topics.on_register(self._topics_changed)

    async def begin(self) -> None:
        """Starts the first ``register``. Returns when this registration has ended, or after ``BEGIN_S``; the
        registration then continues.
        """
        self._first = self._run(self._register(self._topics.table))
        await asyncio.wait({self._first}, timeout=BEGIN_S)

    async def register(self) -> None:
        """Registers all topics with every name server. The topics are split into several requests if an option demands
        this, or if there are more than ``TOGETHER_MAX``. More than ``TOGETHER_MAX`` topics are registered only if at
        least one name server does not know their version.
        """
        if self._first is None or not self._first.done():
            return
        topics = self._topics
        if len(topics.table) > TOGETHER_MAX and await self._api.is_known(topics.data_version):
            if self._config.is_slave:  # only the answer to a registration tells the master's addresses
                await self._api.register_all({}, topics.data_version)
            return
        await self._register(topics.table)

    async def _register(self, topics: Mapping[str, TopicConfig]) -> None:
        self._api.begin_round()
        size = self._config.split_registration_size if self._config.enable_split_registration else TOGETHER_MAX
        if len(topics) <= size and not self._config.enable_split_registration:
            await self._api.register_all(topics, self._topics.data_version)
            return
        names, whole = list(topics), self._topics.data_version
        parts = [names[first : first + size] for first in range(0, len(names), size)]
        for number, part in enumerate(parts):
            version = self._topics.version_of_part(whole, len(parts) - 1 - number)
            await self._api.register_all({name: topics[name] for name in part if name in topics}, version)

    async def close(self) -> None:
        """Unregisters from the name servers."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._first is not None:
            await self._api.unregister()
        await self._api.close()

    def _topics_changed(self, changed: Sequence[TopicConfig]) -> asyncio.Future[None]:
        return self._run(self._tell(changed))

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _tell(self, changed: Sequence[TopicConfig]) -> None:
        topics = self._topics
        if self._first is None:
            return
        for first in range(0, len(changed), TOGETHER_MAX):
            version = topics.data_version if first == 0 else topics.raise_version()
            unknown = await self._api.register_topics(changed[first : first + TOGETHER_MAX], version)
            if unknown:
                await self._register(topics.table)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._supervisor.failed("registration of topics", error)


def answer_when_told(
    answer: RemotingCommand, told: Iterable[asyncio.Future[None] | None]
) -> Answer | asyncio.Future[Answer]:
    """Returns ``answer``, or a future of it that completes when all futures in ``told`` are done.

    A client asks the name servers for the route as soon as it has the response; if the name servers do not know the
    topic, the client asks again only 20 s later.

    Args:
        told: futures of changes. The future of a new or changed topic is done when the topic is synced and each name
            server has answered or its time limit is over. If a future fails, the first error replaces ``answer``.
    """
    waiting = [each for each in told if each is not None]
    open_ = {each for each in waiting if not each.done()}
    if not open_:
        for each in waiting:
            each.result()
        return answer
    answered: asyncio.Future[Answer] = asyncio.Future(loop=waiting[0].get_loop())

    def ended(each: asyncio.Future[None]) -> None:
        open_.discard(each)
        if open_ or answered.done():
            return
        errors = [error for each in waiting if (error := each.exception()) is not None]
        if errors:
            answered.set_exception(errors[0])
        else:
            answered.set_result(answer)

    for each in list(open_):
        each.add_done_callback(ended)
    return answered
