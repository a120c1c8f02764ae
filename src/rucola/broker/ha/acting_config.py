"""Options of a group whose smallest slave acts while there is no master (RocketMQ 5.3.3, ``BrokerConfig``,
``MessageStoreConfig``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rucola.common.options import option
from rucola.errors import ConfigError

IN_SYNC_BYTES: Final = 256 * 1024 * 1024
"""``haMaxGapNotInSync``, and ``haSlaveFallbehindMax`` of 4.9: a slave that lacks more is not in sync."""


@dataclass(frozen=True)
class ActingConfig:
    """The options. ``BrokerConfig`` has them all."""

    enable_slave_acting_master: bool = option(
        "enableSlaveActingMaster",
        False,
        "Whether the slave with the smallest number serves reads as the master does, while its group has no master. To "
        "be set on all brokers of the group. Name servers need `supportActingMaster`.",
    )
    enable_remote_escape: bool = option(
        "enableRemoteEscape",
        False,
        "Whether an acting master sends messages that become due to other brokers. Only `false` is allowed.",
    )
    broker_heartbeat_interval_ms: int = option(
        "brokerHeartbeatInterval",
        1000,
        "With `enableSlaveActingMaster`: pause between two signs of life to the name servers.",
        unit="ms",
        minimum=100,
        maximum=60_000,
    )
    broker_not_active_timeout_ms: int = option(
        "brokerNotActiveTimeoutMillis",
        10_000,
        "With `enableSlaveActingMaster`: time without a sign of life after which name servers forget the broker.",
        unit="ms",
        minimum=1000,
        maximum=600_000,
    )
    sync_broker_member_group_period_ms: int = option(
        "syncBrokerMemberGroupPeriod",
        1000,
        "With `enableSlaveActingMaster`: pause between two questions which brokers of the group live.",
        unit="ms",
        minimum=100,
        maximum=60_000,
    )
    compatible_with_old_name_srv: bool = option(
        "compatibleWithOldNameSrv",
        True,
        "With `enableSlaveActingMaster`: whether signs of life and questions are requests that name servers of "
        "RocketMQ 4 know, too (322 and 105, otherwise 904 and 901).",
    )
    total_replicas: int = option(
        "totalReplicas",
        1,
        "Number of brokers in the group. With 2 or more and `enableSlaveActingMaster`, a master that starts first "
        "fetches the progress of consumers from its slaves.",
        minimum=1,
        maximum=64,
    )
    skip_pre_online: bool = option(
        "skipPreOnline", False, "Whether a master registers at its start without asking its slaves."
    )
    enable_auto_in_sync_replicas: bool = option(
        "enableAutoInSyncReplicas",
        False,
        "With `SYNC_MASTER` and `enableSlaveActingMaster`: whether a message waits for fewer brokers than "
        "`inSyncReplicas` while fewer are in sync, but not for fewer than `minInSyncReplicas`. Otherwise it is "
        "refused.",
    )
    ha_max_gap_not_in_sync: int = option(
        "haMaxGapNotInSync",
        IN_SYNC_BYTES,
        "A slave that lacks more of the log is not in sync.",
        unit="bytes",
        minimum=1,
        maximum=(1 << 31) - 1,
    )

    def check_acting(self) -> None:
        """Checks the options that exclude one another.

        Raises:
            ConfigError: see there.
        """
        if self.enable_remote_escape:
            raise ConfigError(
                "enableRemoteEscape",
                "true",
                "false: messages that become due while a slave acts wait for the master, because a copy sent elsewhere "
                "may be lost or delivered twice",
            )

    @property
    def comes_online_late(self) -> bool:
        """Whether the broker asks its slaves before it registers, if it is a master."""
        return self.enable_slave_acting_master and self.total_replicas > 1 and not self.skip_pre_online
