"""Shows name servers every second that a broker lives, and asks them who else of its name does. Event loop only.

Source: RocketMQ 5.3.3, ``BrokerController#sendHeartbeat``, ``syncBrokerMemberGroup``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from rucola.broker.config import BrokerConfig
from rucola.broker.ha.acting_slave import ActingSlave
from rucola.broker.outer_api import BrokerOuterApi
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.errors import RucolaError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class GroupWatch:
    """The brokers of one name.

    Args:
        config: the broker's options.
        api: calls the name servers.
        topics: the broker's topics.
        acting: the duty of a slave; None on a master.
        changed: called when the number of brokers that live is another.

    Attributes:
        alive: number of brokers that live, this one included.
    """

    def __init__(
        self,
        config: BrokerConfig,
        api: BrokerOuterApi,
        topics: TopicConfigManager,
        acting: ActingSlave | None,
        changed: Callable[[], None],
    ) -> None:
        self.alive = config.total_replicas
        self._config, self._api, self._topics = config, api, topics
        self._acting, self._changed = acting, changed
        self._fails = False
        self._is_asking = False

    def heartbeat(self) -> None:
        """Shows that the broker lives."""
        self._api.heartbeat(self._topics.data_version)

    async def look(self) -> None:
        """Asks who lives, unless it is being asked. If no name server answers, all stays as it was; so it does if they
        know nobody.
        """
        if self._is_asking:
            return
        self._is_asking = True
        try:
            await self._take(await self._api.members())
            self._fails = False
        except RucolaError as error:
            if not self._fails:
                event(logger, logging.WARNING, "brokers of the group not known, asked again", error=error)
            self._fails = True
        finally:
            self._is_asking = False

    async def _take(self, members: Mapping[int, str]) -> None:
        if not members:
            return
        alive = len(members.keys() | {self._config.broker_id})
        if alive != self.alive:
            self.alive = alive
            self._changed()
        if self._acting is not None:
            await self._acting.members(members)
