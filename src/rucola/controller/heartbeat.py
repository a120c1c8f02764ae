"""Which brokers live, by their heartbeats (RocketMQ 5.3.3, ``DefaultBrokerHeartbeatManager``). In memory only: brokers
send their heartbeats to all controllers.

A broker is dead when no heartbeat came within the time that it named itself, or when the connection of its last
heartbeat ended. (The reference keeps the connection of the first one, so the late end of an old connection makes a
living broker dead.) A new leader holds nobody for dead before that time has passed since it took over: it may have had
no connection to the brokers before. Event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rucola.controller.elect import BrokerLiveInfo
from rucola.controller.group import BrokerGroup
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.route import BrokerHeartbeatRequestHeader

TIMEOUT_MS = 10_000
"""Time without a heartbeat after which a broker is dead, unless it names another one (``DEFAULT_BROKER_CHANNEL_EXPIRED_
TIME``)."""
TIMEOUT_MS_MAX = 600_000


class BrokerKey(NamedTuple):
    """A broker with its id."""

    cluster_name: str
    broker_name: str
    broker_id: int


@dataclass(slots=True)
class _Life:
    last_s: float
    timeout_ms: int
    channel: Any
    info: BrokerLiveInfo


class BrokerHeartbeatManager:
    """The table of brokers.

    Args:
        monotonic: the time in seconds.
        brokers_max: number of brokers that may be in the table.
    """

    def __init__(self, monotonic: Callable[[], float], brokers_max: int) -> None:
        self._monotonic, self._brokers_max = monotonic, brokers_max
        self._table: dict[BrokerKey, _Life] = {}
        self._of_channel: dict[Any, set[BrokerKey]] = {}
        self._leading_since_s = math.inf

    def begin_to_lead(self) -> None:
        """From now on, brokers have their whole time for a heartbeat."""
        self._leading_since_s = self._monotonic()

    def heartbeat(self, asked: BrokerHeartbeatRequestHeader, channel: Any) -> None:
        """Notes a heartbeat that came over ``channel``.

        Raises:
            BrokerError: it names no id or a useless time, or there are too many brokers.
        """
        if asked.broker_id is None:
            raise BrokerError(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        timeout_ms = TIMEOUT_MS if asked.heartbeat_timeout_mills is None else asked.heartbeat_timeout_mills
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            remark = f"heartbeatTimeoutMills is {timeout_ms}; from 1 to {TIMEOUT_MS_MAX} are allowed"
            raise BrokerError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        identity = BrokerKey(asked.cluster_name, asked.broker_name, asked.broker_id)
        before = self._table.get(identity)
        if before is None and len(self._table) >= self._brokers_max:
            remark = f"{self._brokers_max} brokers send heartbeats already (brokersMax)"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        if before is not None and before.channel is not channel:
            self._leave_channel(identity, before.channel)
        info = BrokerLiveInfo()._replace(
            **{
                key: value
                for key, value in (
                    ("epoch", asked.epoch),
                    ("max_offset", asked.max_offset),
                    ("election_priority", asked.election_priority),
                )
                if value is not None
            }
        )
        self._table[identity] = _Life(self._monotonic(), timeout_ms, channel, info)
        self._of_channel.setdefault(channel, set()).add(identity)

    def channel_closed(self, channel: Any) -> list[BrokerKey]:
        """Removes the brokers whose last heartbeat came over ``channel``; returns them."""
        gone = sorted(self._of_channel.pop(channel, ()))
        for identity in gone:
            del self._table[identity]
        return gone

    def scan(self) -> list[BrokerKey]:
        """Removes the brokers that have been silent for too long; returns them."""
        now = self._monotonic()
        silent = [each for each, life in self._table.items() if now > life.last_s + life.timeout_ms / 1000]
        for identity in silent:
            self._leave_channel(identity, self._table.pop(identity).channel)
        return silent

    def is_alive(self, group: BrokerGroup, broker_id: int) -> bool:
        """See ``Liveness``."""
        life = self._table.get(BrokerKey(group.cluster_name, group.broker_name, broker_id))
        last_s, timeout_ms = (-math.inf, TIMEOUT_MS) if life is None else (life.last_s, life.timeout_ms)
        return self._monotonic() <= max(last_s, self._leading_since_s) + timeout_ms / 1000

    def info(self, group: BrokerGroup, broker_id: int) -> BrokerLiveInfo | None:
        """See ``Liveness``."""
        life = self._table.get(BrokerKey(group.cluster_name, group.broker_name, broker_id))
        is_heard = life is not None and self._monotonic() <= life.last_s + life.timeout_ms / 1000
        return life.info if life is not None and is_heard else None

    def counts(self) -> dict[tuple[str, str], int]:
        """The number of brokers that live, by cluster and broker name."""
        now = self._monotonic()
        found: dict[tuple[str, str], int] = {}
        for identity, life in self._table.items():
            if now <= life.last_s + life.timeout_ms / 1000:
                key = identity.cluster_name, identity.broker_name
                found[key] = found.get(key, 0) + 1
        return found

    def _leave_channel(self, identity: BrokerKey, channel: Any) -> None:
        of_channel = self._of_channel[channel]
        of_channel.discard(identity)
        if not of_channel:
            del self._of_channel[channel]
