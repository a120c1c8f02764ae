"""The registered brokers and the topics that they serve (RocketMQ 5.3.3, ``RouteInfoManager``).

The tables are in memory only, and the clock is an argument, so this module does no I/O. All calls must be made on the
event loop.

Invariants: a broker name is both in ``_groups`` and in one cluster of ``_clusters``, or in neither. An address belongs
to one member of one group, and this member has an entry in ``_live``, whose end removes it. A topic has queue data only
of broker names in ``_groups`` or ``_left``. A name stays in ``_left`` until all its queue data are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rucola.common.data_version import DataVersion
from rucola.common.key_builder import MEMBER_TOPIC_PREFIX
from rucola.common.sysflag import PermName
from rucola.common.topic_config import TopicConfig
from rucola.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from rucola.remoting.fairness.steps import at_once

MASTER_ID = 0
BROKER_TIMEOUT_MS = 120_000
"""Lifetime in ms of a registration that states no lifetime."""

_TOPICS_A_STEP = 256
"""Largest number of topics that are added or removed in one step."""
_WRITE = int(PermName.WRITE)


class BrokerRegistration(NamedTuple):
    """The registering broker."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    """None for brokers before 5.0, which do not send it."""
    zone_name: str | None = None


class RegistrationResult(NamedTuple):
    """The response to a registration. A slave gets the addresses of its master; a master gets empty addresses."""

    master_address: str = ""
    ha_address: str = ""


@dataclass(slots=True)
class BrokerLive:
    """One registered broker."""

    cluster: str
    broker_name: str
    broker_id: int
    last_update_s: float
    timeout_s: float
    data_version: DataVersion
    channel: object
    ha_address: str


@dataclass(slots=True)
class _Group:
    """The brokers with one name."""

    cluster: str
    """The cluster of the member with the smallest id."""
    addresses: dict[int, str]
    enable_acting_master: bool
    zone_name: str | None
    wiped: bool = False
    """Whether routes show this name without the permission to write, whatever its topics say."""


class MinBrokerIdChange(NamedTuple):
    """The smallest id in a group of brokers is another, and who must be told.

    Attributes:
        broker_name: name of the group.
        min_broker_id: the smallest id now.
        min_broker_address: address of this broker.
        offline_address: the broker that has gone; empty if one has come.
        ha_address: port for slaves of the broker that has come; empty if one has gone.
        told: addresses of the brokers to tell.
    """

    broker_name: str
    min_broker_id: int
    min_broker_address: str
    offline_address: str
    ha_address: str
    told: tuple[str, ...]


class RouteLimits(NamedTuple):
    """Largest numbers of brokers and topics that may be registered."""

    brokers: int
    brokers_per_connection: int
    topics: int


class RouteInfoManager:
    """The tables of the name server.

    Args:
        monotonic: returns monotonic seconds.
        supports_acting_master: whether routes show the smallest slave of a group without master as its master, if the
            group wants that.
    """

    def __init__(self, monotonic: Callable[[], float], supports_acting_master: bool = False) -> None:
        self._monotonic, self._supports_acting = monotonic, supports_acting_master
        self._groups: dict[str, _Group] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[str, BrokerLive] = {}
        """The registered brokers by their addresses."""
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, set[str]] = {}
        """Topics of each broker name, so that removing a broker does not search all topics."""
        self._left: dict[str, None] = {}
        """Names of brokers that have no address any more and are being removed from their topics. Routes no longer show
        these brokers.
        """
        self.on_left: Callable[[], None] = lambda: None
        """Called when a removed broker served more topics than one step removes; ``drop_left`` removes the rest."""
        self.on_min_id: Callable[[MinBrokerIdChange], None] = lambda _: None
        """Called when the smallest id changes in a group that has an acting master if its master goes."""

    # -- brokers -------------------------------------------------------------------------------------------------------

    def register(
        self, broker: BrokerRegistration, topics: Mapping[str, TopicConfig], version: DataVersion, channel: object
    ) -> RegistrationResult | None:
        """Same as ``register_steps``, in one step."""
        return at_once(self.register_steps(broker, topics, version, channel))

    def register_steps(
        self, broker: BrokerRegistration, topics: Mapping[str, TopicConfig], version: DataVersion, channel: object
    ) -> Generator[None, None, RegistrationResult | None]:
        """Registers a broker and its topics, or renews the registration; yields between steps.

        No other registration may begin before this one ends.

        Returns:
            None if an unknown broker registers exactly one topic. Such a request is refused: it may be a change of one
            topic that overtook the first full registration.
        """
        self._drop_renamed(broker)
        while broker.broker_name in self._left:
            self.drop_left()
            yield
        known = self._live.get(broker.address)
        group = self._groups.get(broker.broker_name)
        addresses = {} if group is None else group.addresses
        former_ids = [
            number for number, address in addresses.items() if address == broker.address and number != broker.broker_id
        ]
        if self._is_taken(addresses, broker, version):
            for broker_id in former_ids:
                self.unregister(broker.cluster, broker.address, broker.broker_name, broker_id)
            self._live.pop(broker.address, None)  # this address's next registration counts as new
            return RegistrationResult()
        new_id = broker.broker_id not in addresses
        if new_id and len(topics) == 1:
            return None
        is_smallest = broker.broker_id < min(addresses, default=MASTER_ID)
        group = self._place(broker, former_ids)
        timeout_ms = BROKER_TIMEOUT_MS if broker.timeout_ms is None else broker.timeout_ms
        live = BrokerLive(
            broker.cluster,
            broker.broker_name,
            broker.broker_id,
            self._monotonic(),
            timeout_ms / 1000,
            DataVersion() if known is None else known.data_version,
            channel,
            broker.ha_address,
        )
        self._live[broker.address] = live
        if self._speaks_for_topics(group, broker):
            changed = new_id or known is None or known.data_version != version
            acting = group.enable_acting_master and broker.broker_id != MASTER_ID
            mask = ~_WRITE if acting else -1
            for number, (name, config) in enumerate(topics.items(), 1):
                self._take_topic(broker.broker_name, name, config, changed, mask)
                if number % _TOPICS_A_STEP == 0:
                    yield
                    if self._live.get(broker.address) is not live:
                        return RegistrationResult()  # The broker was removed while this generator was suspended.
        live.data_version = version
        if is_smallest:
            self._min_id_changed(broker.broker_name, group, ha_address=broker.ha_address)
        return self._master_of(group, broker)

    def unregister(self, cluster: str, address: str, broker_name: str, broker_id: int) -> None:
        """Unregisters a broker. The request may come late, when another broker, or the same one with another name or
        id, has registered at the address; it then changes nothing.
        """
        live = self._live.get(address)
        if live is not None:
            if (live.cluster, live.broker_name, live.broker_id) != (cluster, broker_name, broker_id):
                return
            del self._live[address]
        group = self._groups.get(broker_name)
        if group is None or group.addresses.get(broker_id) != address:
            return
        was_smallest = broker_id == min(group.addresses)
        del group.addresses[broker_id]
        if broker_id == MASTER_ID and group.enable_acting_master:
            self._take_write(broker_name)
        if group.addresses:
            if was_smallest:
                self._min_id_changed(broker_name, group, offline_address=address)
            return
        del self._groups[broker_name]
        self._leave_cluster(group.cluster, broker_name)
        self._left[broker_name] = None
        if self.drop_left():
            self.on_left()

    def drop_left(self) -> bool:
        """Takes one step to remove the brokers in ``_left`` from their topics; returns whether more steps remain."""
        for _ in range(_TOPICS_A_STEP):
            if not self._left:
                return False
            name = next(iter(self._left))
            topics = self._topics_of.get(name)
            if not topics:
                self._topics_of.pop(name, None)
                del self._left[name]
                continue
            topic = topics.pop()
            queues = self._topics[topic]
            del queues[name]
            if not queues:
                del self._topics[topic]
        return bool(self._left)

    def channel_closed(self, channel: object) -> list[str]:
        """Removes the brokers that registered over a closed connection; returns their addresses."""
        return self._remove([address for address, live in self._live.items() if live.channel is channel])

    def scan(self) -> list[str]:
        """Removes brokers whose registration has expired; returns their addresses."""
        now = self._monotonic()
        expired = [address for address, live in self._live.items() if live.last_update_s + live.timeout_s < now]
        return self._remove(expired)

    def refresh(self, cluster: str, address: str) -> None:
        """Renews a registration without changing its topics (requests 904, 322)."""
        live = self._live.get(address)
        if live is not None and live.cluster == cluster:
            live.last_update_s = self._monotonic()

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Version of the topics in the broker's last registration; None for an unknown broker."""
        live = self._live.get(address)
        return None if live is None or live.cluster != cluster else live.data_version

    # -- routes and lists ----------------------------------------------------------------------------------------------

    def refusal(
        self, broker: BrokerRegistration, topics: Mapping[str, TopicConfig], channel: object, limits: RouteLimits
    ) -> str:
        """Why a broker with ``topics`` may not register over ``channel``; an empty text if it may."""
        group = self._groups.get(broker.broker_name)
        if group is not None and group.cluster != broker.cluster:
            holder = self._live.get(group.addresses.get(broker.broker_id, ""))
            if holder is not None and holder is not self._live.get(broker.address):
                return f"the broker name {broker.broker_name} belongs to a live broker of the cluster {holder.cluster}"
        if broker.address not in self._live:
            if len(self._live) >= limits.brokers:
                return f"the name server has {limits.brokers} brokers already (brokersMax)"
            if sum(live.channel is channel for live in self._live.values()) >= limits.brokers_per_connection:
                return f"{limits.brokers_per_connection} brokers use this connection (brokersPerConnectionMax)"
        return self.refusal_of_topics(topics, limits)

    def refusal_of_topics(self, topics: Collection[str], limits: RouteLimits) -> str:
        """Why ``topics`` may not be added; an empty text if they may."""
        # If the limit holds even when all ``topics`` are new, their names need not be looked up.
        if len(self._topics) + len(topics) > limits.topics:
            total = len(self._topics) + sum(name not in self._topics for name in topics)
            if total > limits.topics:
                return f"the name server would have {total} topics, but only {limits.topics} are allowed (topicsMax)"
        return ""

    def route(self, topic: str, zone_name: str = "") -> TopicRouteData | None:
        """Queues and brokers of a topic; None if no broker serves it.

        Args:
            zone_name: if not empty, the route omits every broker name that has a master and is in a different zone.
        """
        queues = self._topics.get(topic)
        if not queues:
            return None
        names = [name for name in queues if name in self._groups and self._in_zone(self._groups[name], zone_name)]
        if not names and not zone_name:
            return None
        acting = self._supports_acting and not topic.startswith(MEMBER_TOPIC_PREFIX)
        return TopicRouteData(
            queue_datas=[_without_write(queues[name]) if self._groups[name].wiped else queues[name] for name in names],
            broker_datas=[self._broker_data(name, acting and not queues[name].perm & _WRITE) for name in names],
        )

    def members(self, broker_name: str) -> BrokerData | None:
        """Addresses of the brokers named ``broker_name``; None if there are none."""
        return self._broker_data(broker_name) if broker_name in self._groups else None

    def brokers(self) -> dict[str, BrokerData]:
        """All broker names with their addresses."""
        return {name: self._broker_data(name) for name in self._groups}

    def clusters(self) -> dict[str, list[str]]:
        """Broker names of each cluster."""
        return {cluster: list(names) for cluster, names in self._clusters.items()}

    def topics(self) -> list[str]:
        """All topics."""
        return list(self._topics)

    def unit_topics(self, with_flags: int, without_flags: int = 0) -> list[str]:
        """Topics with one of the system flags ``with_flags`` and none of ``without_flags``. The flags of a topic come
        from the first broker that serves the topic.
        """
        flags = {topic: next(iter(queues.values())).topic_sys_flag for topic, queues in self._topics.items() if queues}
        return [topic for topic, flag in flags.items() if flag & with_flags and not flag & without_flags]

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics served by a broker of the cluster."""
        names = self._clusters.get(cluster, {}).keys()
        return [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues.keys())]

    def system_topics(self) -> tuple[list[str], str]:
        """The names of all clusters and brokers, and the address of an arbitrary broker. The system topics have these
        names. The address is empty if there is no broker.
        """
        names = [name for cluster, brokers in self._clusters.items() for name in (cluster, *brokers)]
        address = next((a for group in self._groups.values() for a in group.addresses.values()), "")
        return list(dict.fromkeys(names)), address

    # -- administration ------------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Removes a topic everywhere, or in one cluster."""
        queues = self._topics.get(topic)
        if queues is None:
            return
        for name in list(self._clusters.get(cluster, {}) if cluster else queues):
            self._drop(topic, name)

    def register_topic(self, topic: str, queue_datas: list[QueueData]) -> None:
        """Sets the queue data of a topic; ignores the data of brokers that are not registered."""
        known = {data.broker_name: data for data in queue_datas if data.broker_name in self._groups}
        for name, data in known.items():
            self._put(topic, name, data)

    def wipe_write_perm(self, broker_name: str) -> int:
        """Forbids sends to the broker, also for topics that it registers later, until ``add_write_perm`` or until the
        last broker of this name leaves; returns the number of topics concerned.
        """
        return self._set_wiped(broker_name, True)

    def add_write_perm(self, broker_name: str) -> int:
        """Reverses ``wipe_write_perm``: each topic has the permissions again that its broker registered."""
        return self._set_wiped(broker_name, False)

    # -- internals -----------------------------------------------------------------------------------------------------

    def _drop_renamed(self, broker: BrokerRegistration) -> None:
        """Removes a broker that was registered at this address with another name or cluster. It is gone, because two
        brokers cannot have one address.
        """
        live = self._live.get(broker.address)
        if live is not None and (live.cluster, live.broker_name) != (broker.cluster, broker.broker_name):
            self._remove([broker.address])

    def _is_taken(self, addresses: Mapping[int, str], broker: BrokerRegistration, version: DataVersion) -> bool:
        """True if a live broker with the same id, but a different address, has registered a newer version."""
        holder = addresses.get(broker.broker_id)
        if holder is None or holder == broker.address:
            return False
        live = self._live.get(holder)
        return live is not None and live.data_version.state_version > version.state_version

    @staticmethod
    def _speaks_for_topics(group: _Group, broker: BrokerRegistration) -> bool:
        """Whether the topics that ``broker`` registers are added to the routes.

        True for the master. If the group has no master, also true for the member with the smallest id; a member
        older than 5.0 never replaces the master.
        """
        if broker.broker_id == MASTER_ID:
            return True
        return broker.enable_acting_master is not None and broker.broker_id == min(group.addresses)

    def _place(self, broker: BrokerRegistration, former_ids: list[int]) -> _Group:
        """Stores the address of a broker; returns the group of all brokers with the same name."""
        group = self._groups.setdefault(broker.broker_name, _Group(broker.cluster, {}, False, broker.zone_name))
        group.enable_acting_master, group.zone_name = bool(broker.enable_acting_master), broker.zone_name
        for broker_id in former_ids:
            del group.addresses[broker_id]
        former = group.addresses.get(broker.broker_id)
        if former is not None and former != broker.address:
            self._live.pop(former, None)
        group.addresses[broker.broker_id] = broker.address
        if group.cluster != broker.cluster and broker.broker_id == min(group.addresses):
            self._leave_cluster(group.cluster, broker.broker_name)
            group.cluster = broker.cluster
        self._clusters.setdefault(group.cluster, {})[broker.broker_name] = None
        return group

    def _leave_cluster(self, cluster: str, broker_name: str) -> None:
        names = self._clusters.get(cluster, {})
        names.pop(broker_name, None)
        if not names:
            self._clusters.pop(cluster, None)

    def _take_topic(self, broker_name: str, name: str, config: TopicConfig, changed: bool, perm_mask: int) -> None:
        queues = self._topics.get(name)
        if not changed and queues is not None and broker_name in queues:
            return
        perm = config.perm & perm_mask
        data = QueueData(broker_name, config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag)
        self._put(name, broker_name, data)

    def _put(self, topic: str, broker_name: str, data: QueueData) -> None:
        self._topics.setdefault(topic, {})[broker_name] = data
        self._topics_of.setdefault(broker_name, set()).add(topic)

    def _drop(self, topic: str, broker_name: str) -> None:
        """Removes a broker from a topic. A topic without brokers is removed."""
        queues = self._topics.get(topic, {})
        if queues.pop(broker_name, None) is None:
            return
        if not queues:
            del self._topics[topic]
        topics = self._topics_of[broker_name]
        topics.discard(topic)
        if not topics:
            del self._topics_of[broker_name]

    def _master_of(self, group: _Group, broker: BrokerRegistration) -> RegistrationResult:
        master = group.addresses.get(MASTER_ID)
        if broker.broker_id == MASTER_ID or master is None:
            return RegistrationResult()
        live = self._live.get(master)
        return RegistrationResult() if live is None else RegistrationResult(master, live.ha_address)

    def _remove(self, addresses: list[str]) -> list[str]:
        for address in addresses:
            live = self._live[address]
            self.unregister(live.cluster, address, live.broker_name, live.broker_id)
        return addresses

    def _set_wiped(self, broker_name: str, wiped: bool) -> int:
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        group.wiped = wiped
        return len(self._topics_of.get(broker_name, ()))

    def _take_write(self, broker_name: str) -> None:
        for topic in self._topics_of.get(broker_name, ()):
            queues = self._topics[topic]
            queues[broker_name] = _without_write(queues[broker_name])

    @staticmethod
    def _in_zone(group: _Group, zone_name: str) -> bool:
        if not zone_name or MASTER_ID not in group.addresses:
            return True
        return (group.zone_name or "").lower() == zone_name.lower()

    def _broker_data(self, name: str, acting: bool = False) -> BrokerData:
        """The addresses of a group.

        Args:
            acting: whether its smallest slave is shown as the master, if there is no master and the group wants that.
        """
        group = self._groups[name]
        addresses = dict(group.addresses)
        if acting and group.enable_acting_master and MASTER_ID not in addresses:
            addresses[MASTER_ID] = addresses.pop(min(addresses))
        return BrokerData(group.cluster, name, addresses, group.enable_acting_master, group.zone_name)

    def _min_id_changed(self, broker_name: str, group: _Group, offline_address: str = "", ha_address: str = "") -> None:
        """Tells of a new smallest id: all brokers if one has gone, otherwise those that were there before."""
        if not group.enable_acting_master:
            return
        smallest = min(group.addresses)
        everybody = bool(offline_address) or len(group.addresses) == 1
        told = tuple(address for number, address in group.addresses.items() if everybody or number != smallest)
        change = MinBrokerIdChange(broker_name, smallest, group.addresses[smallest], offline_address, ha_address, told)
        self.on_min_id(change)


def _without_write(data: QueueData) -> QueueData:
    return QueueData(
        data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm & ~_WRITE, data.topic_sys_flag
    )
