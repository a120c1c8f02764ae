"""The broker's consumer groups (RocketMQ 5.3.3, ``SubscriptionGroupManager``). Event loop only.

Every change is reported to the listeners at once. The change is written to ``subscriptionGroup.json`` together with
others, and the response to the request waits for that write. If the first use of a group creates the group, no request
waits for the write, because the next use after a crash creates the group again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from rucola.broker.topic.topic_validator import is_group_name
from rucola.common.data_version import DataVersion
from rucola.common.key_builder import SYSTEM_GROUP_PREFIX
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.sysflag import PermName
from rucola.formats.tables import decode_subscription_groups, subscription_group_pieces
from rucola.runtime.table_writer import Keep, Pieces, Undo

_READ = int(PermName.READ)
BUILT_IN_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


_OTHER_SYSTEM_GROUPS = frozenset({"DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"})


def is_system_group(group: str) -> bool:
    """True if tools or brokers use the name of this group for their own reads (RocketMQ 5.3.3,
    ``MixAll#isSysConsumerGroupPullMessage``).
    """
    return group in BUILT_IN_GROUPS or group in _OTHER_SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


class SubscriptionGroupManager:
    """Maps each group to its configuration.

    Args:
        auto_create: whether an unknown group is created by the first request that names it.
        keep: creates the writer of ``subscriptionGroup.json``.
        wall_ms: returns the current time, which the data version records at each change.
        before_create: called with the name of a group that is created at its first use; raises an error to prevent the
            creation.
    """

    def __init__(
        self,
        auto_create: bool,
        keep: Keep,
        wall_ms: Callable[[], int],
        before_create: Callable[[str], None] | None = None,
    ) -> None:
        self._auto_create = auto_create
        self._kept = keep(self._snapshot, self._written)
        self._undo: Undo[SubscriptionGroupConfig] = Undo()
        self._wall_ms = wall_ms
        self._listeners: list[Callable[[], None]] = []
        self.before_create = before_create
        self.data_version = DataVersion(0, wall_ms(), 0)
        self.table = {group: SubscriptionGroupConfig(group) for group in BUILT_IN_GROUPS}
        self.forbidden: dict[str, dict[str, int]] = {}

    def load(self, text: bytes | None) -> None:
        """Loads ``subscriptionGroup.json``.

        Raises:
            FormatError: the text is not a table of groups.
        """
        if text is not None:
            loaded = decode_subscription_groups(text)
            self.data_version, self.forbidden = loaded.data_version, loaded.forbidden
            self.table.update(loaded.groups)

    def is_same(
        self,
        version: DataVersion,
        table: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
    ) -> bool:
        """Whether a master's table is the one that is here. On a slave, a thread may ask."""
        return version == self.data_version and table == self.table and forbidden == self.forbidden

    def follow(
        self,
        version: DataVersion,
        table: dict[str, SubscriptionGroupConfig],
        forbidden: dict[str, dict[str, int]],
    ) -> None:
        """Replaces the whole table by a master's, which becomes the manager's own. Whoever reads the old one in several
        turns still has the whole of it.
        """
        self.data_version, self.table, self.forbidden = version, table, forbidden
        for listener in self._listeners:
            listener()
        self._kept.changed()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` after every change."""
        self._listeners.append(listener)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Configuration of a group. An unknown group is created if that is allowed and its name is legal; otherwise the
        result for an unknown group is None.

        Raises:
            BrokerError: the account may not create more groups.
        """
        known = self.table.get(group)
        if known is not None or not self._auto_create or not is_group_name(group):
            return known
        if self.before_create is not None:
            self.before_create(group)
        config = self.table[group] = SubscriptionGroupConfig(group)
        self._changed()
        return config

    def update(self, config: SubscriptionGroupConfig) -> asyncio.Future[None]:
        """Creates or changes a group; see ``update_all``."""
        return self.update_all([config])

    def update_all(self, configs: Iterable[SubscriptionGroupConfig]) -> asyncio.Future[None]:
        """Creates or changes groups.

        Returns:
            The future ends when the groups are synced. If the future fails with ``DiskError``, the groups were not
            written and the table is unchanged.
        """
        for config in configs:
            self._undo.note(config.group_name, self.table.get(config.group_name))
            self.table[config.group_name] = config
        return self._changed()

    def is_readable(self, group: str, topic: str) -> bool:
        """Whether the group may read the topic."""
        return not self.forbidden.get(group, {}).get(topic, 0) & _READ

    def set_readable(self, group: str, topic: str, readable: bool) -> asyncio.Future[None]:
        """Forbids the group to read the topic, or allows it again; the future ends when the change is synced."""
        if readable is self.is_readable(group, topic):
            return self._kept.changed()
        topics = self.forbidden.setdefault(group, {})
        topics[topic] = topics.get(topic, 0) ^ _READ
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.forbidden[group]
        return self._changed()

    def delete(self, group: str) -> asyncio.Future[None]:
        """Removes a group and the list of topics that it may not read; the future ends when the file contains
        neither.
        """
        self._undo.forget(group)
        known, forbidden = self.table.pop(group, None), self.forbidden.pop(group, None)
        return self._kept.changed() if known is None and forbidden is None else self._changed()

    def _changed(self) -> asyncio.Future[None]:
        self.data_version = self.data_version.next(self._wall_ms())
        for listener in self._listeners:
            listener()
        return self._kept.changed()

    def _snapshot(self) -> Pieces:
        self._undo.begin()
        forbidden = {group: dict(masks) for group, masks in self.forbidden.items()}
        return subscription_group_pieces(self.data_version, self.table.copy(), forbidden)

    def _written(self, error: Exception | None) -> None:
        if self._undo.end(self.table, error is not None):
            self._changed()
