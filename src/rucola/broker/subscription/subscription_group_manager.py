"""The broker's consumer groups (RocketMQ 5.3.3, ``SubscriptionGroupManager``). Event loop only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rucola.broker.topic.topic_validator import is_group_name
from rucola.common.data_version import DataVersion
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.sysflag import PermName
from rucola.errors import DiskError
from rucola.formats.tables import decode_subscription_groups, encode_subscription_groups

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
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


def is_system_group(group: str) -> bool:
    """Whether tools and brokers read under this group's name (RocketMQ 5.3.3,
    ``MixAll#isSysConsumerGroupPullMessage``).
    """
    return group in BUILT_IN_GROUPS or group in _OTHER_SYSTEM_GROUPS or group.startswith(_SYSTEM_GROUP_PREFIX)


class SubscriptionGroupManager:
    """Group → configuration.

    Args:
        auto_create: whether an unknown group is created when it is first used.
        persist: writes ``subscriptionGroup.json``; raises ``DiskError``.
        wall_ms: returns the time of a change.

    Attributes:
        before_create: called with the name of a group that is created by use; raises to prevent that.
    """

    def __init__(self, auto_create: bool, persist: Callable[[bytes], None], wall_ms: Callable[[], int]) -> None:
        self._auto_create = auto_create
        self._persist = persist
        self._wall_ms = wall_ms
        self._listeners: list[Callable[[], None]] = []
        self.before_create: Callable[[str], None] | None = None
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

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` after every change."""
        self._listeners.append(listener)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Configuration of a group; creates it if that is allowed and the name is legal, else returns None.

        Raises:
            BrokerError: the account has reached its limit.
        """
        known = self.table.get(group)
        if known is not None or not self._auto_create or not is_group_name(group):
            return known
        if self.before_create is not None:
            self.before_create(group)
        config = SubscriptionGroupConfig(group)
        self.update(config)
        return config

    def update(self, config: SubscriptionGroupConfig) -> None:
        """Creates or changes a group; see ``update_all``."""
        self.update_all([config])

    def update_all(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Creates or changes groups.

        Raises:
            DiskError: they cannot be written; nothing was changed.
        """
        before = self.table
        self.table = before | {config.group_name: config for config in configs}
        try:
            self._changed()
        except DiskError:
            self.table = before
            raise

    def is_readable(self, group: str, topic: str) -> bool:
        """Whether the group may read the topic."""
        return not self.forbidden.get(group, {}).get(topic, 0) & _READ

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Forbids the group to read the topic, or allows it again."""
        if readable is self.is_readable(group, topic):
            return
        topics = self.forbidden.setdefault(group, {})
        topics[topic] = topics.get(topic, 0) ^ _READ
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.forbidden[group]
        self._changed()

    def delete(self, group: str) -> bool:
        """Removes a group and its forbidden topics; returns whether it existed."""
        known, forbidden = self.table.pop(group, None), self.forbidden.pop(group, None)
        if known is not None or forbidden is not None:
            self._changed()
        return known is not None

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._wall_ms())
        self._persist(encode_subscription_groups(self.data_version, self.table, self.forbidden))
        for listener in self._listeners:
            listener()
