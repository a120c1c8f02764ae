"""The services that need the event loop or the address of a broker. They exist as long as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rucola.broker.client.group_changes import GroupChanges
from rucola.broker.config import BrokerConfig
from rucola.broker.flush_waiters import Confirmation, FlushWaiters
from rucola.broker.ha.acting import MasterAddresses
from rucola.broker.outer_api import BrokerOuterApi
from rucola.broker.processor.send_response import flush_not_confirmed
from rucola.broker.pull.processor import PullMessageProcessor
from rucola.broker.pull.read_rule import ReadRule
from rucola.broker.registration import Registration
from rucola.broker.schedule.delivery import DelayedDelivery
from rucola.broker.services import BrokerServices
from rucola.broker.transaction.check_service import TransactionCheckService
from rucola.broker.transaction.transactional_message_service import TransactionalMessageService, TransactionRules
from rucola.broker.when_safe import WhenSafe
from rucola.common.key_builder import TRANS_CHECK_MAX_TIME_TOPIC
from rucola.errors import BrokerError
from rucola.protocol.bodies.ha import HARuntimeInfo
from rucola.protocol.codes import ResponseCode
from rucola.remoting.tls_listener import ServerTls
from rucola.runtime.tls import server_context

if TYPE_CHECKING:
    from rucola.broker.ha.acting_slave import ActingSlave
    from rucola.broker.ha.group_watch import GroupWatch
    from rucola.broker.ha.pre_online import PreOnline
    from rucola.broker.ha.replication import Replication
    from rucola.broker.ha.slave import Slave
    from rucola.broker.lite.delivery import LiteDelivery
    from rucola.broker.lite.life import LiteLife
    from rucola.broker.lite.offsets import LiteOffsets
    from rucola.store.lite.lite_topics import LiteTopics


class RunningServices:
    """Created when the port is open and the store is loaded. The constructor starts nothing.

    Args:
        services: the services that need neither loop nor address; they are loaded.
        loop: the event loop on which the whole broker runs.
        address: the address that clients are given, ``host:port``.

    Attributes:
        replication: the slaves; None if there cannot be any.
        slave: follows the master; None on a master.
        refusals: code and remark of the answer to each request code that is refused; those of a slave.
        acting: the duty of a slave that may act for its master; None on others.
        group: the brokers of the same name; None without ``enableSlaveActingMaster``.
        pre_online: what a master does before it registers; None if it registers at once.
        waiters: the responses that wait for a sync; None without SYNC_FLUSH.
        confirmation: what responses wait for; None without SYNC_FLUSH and SYNC_MASTER.
        when_safe: sends single responses when they are safe.
        outer_api: calls the name servers.
        pull: serves pulls.
        hold: the pulls that wait for messages.
        delivery: delivers delayed messages.
        lite: delivers lite topics; None until a client asks for it (``lite_delivery``).
        lite_life: removes lite topics; None if the store has none.
    """

    def __init__(self, services: BrokerServices, loop: asyncio.AbstractEventLoop, address: str) -> None:
        config, clock, options = services.config, services.clock, services.store.config
        self.services = services
        self.loop = loop
        self.address = address
        self.replication: Replication | None = None
        if config.feeds_slaves:
            self.replication = _replication(services, loop)
        copies = self.replication if self.replication is not None and self.replication.needed else None
        self.slave: Slave | None = None
        self.refusals: Mapping[int, tuple[int, str]] = {}
        self.acting: ActingSlave | None = None
        if config.is_slave:
            self._follow(services, loop)
        self.waiters: FlushWaiters | None = None
        if options.sync_flush:
            self.waiters = FlushWaiters(
                clock.monotonic,
                options.sync_flush_timeout_ms,
                flush_not_confirmed,
                loop.call_later,
                lambda: services.store.flushed_offset,
                then=copies,
            )
        self.confirmation: Confirmation | None = copies if self.waiters is None else self.waiters
        self.when_safe = WhenSafe(self.confirmation)
        found = None if self.slave is None else self.slave.found
        self.outer_api = BrokerOuterApi(config, address, clock.wall_ms, self._ha_port, found)
        self.registration = Registration(config, loop, self.outer_api, services.topics, services.supervisor)
        self.transaction_checks = TransactionCheckService(
            services.halves,
            loop,
            config.transaction_check_interval_ms,
            config.transaction_op_batch_interval_ms,
            services.supervisor,
        )
        self.transactions = _transactions(services, self.transaction_checks)
        rule: ReadRule | None = None
        if config.slave_read_enable or self.slave is not None:
            rule = ReadRule(config, services.groups, None if self.slave is None else self._is_linked, self.acts)
        self.pull = PullMessageProcessor(services, loop.call_later, rule)
        self.hold = self.pull.hold
        self.group: GroupWatch | None = None
        if config.enable_slave_acting_master:
            self.group = self._watch()
        self.pre_online: PreOnline | None = None
        if config.comes_online_late and self.slave is None and self.replication is not None:
            self.pre_online = self._late(self.replication)
        self.lite: LiteDelivery | None = None
        self.lite_life: LiteLife | None = None
        if services.store.lite is not None and services.lite_offsets is not None:
            self.lite_life = self._life(services, services.store.lite, services.lite_offsets)
        self.delivery = DelayedDelivery(services.schedule, loop, services.cold_reads, services.supervisor)
        changes = GroupChanges(config, services.topics, services.groups, services.filters, loop)
        services.consumers.on_change(changes.tell)

    def sends_waiting(self) -> int:
        """Returns the number of batches of responses that wait for a sync of the log, or for slaves."""
        disk = len(self.waiters) if self.waiters is not None else 0
        return disk if self.replication is None else disk + len(self.replication.waiters)

    def ha_status(self) -> HARuntimeInfo:
        """Returns what request 907 tells: the slaves, and on a slave also its master."""
        max_offset = self.services.store.max_offset
        status = HARuntimeInfo(max_offset) if self.replication is None else self.replication.status(max_offset)
        if self.slave is not None:
            status.master, status.ha_client_runtime_info = False, self.slave.status()
        return status

    def master_addresses(self) -> MasterAddresses:
        """Returns where this master is reached; the port for slaves is empty if there is none."""
        port = self._ha_port()
        return MasterAddresses(self.address, "" if port is None else f"{self.address.rpartition(':')[0]}:{port}")

    def lite_delivery(self) -> LiteDelivery:
        """Returns what delivers lite topics; creates it at the first call.

        Raises:
            BrokerError: the broker has no lite topics.
        """
        if self.lite is None:
            # Imported only here, because most brokers have no lite topics.
            from rucola.broker.lite.delivery import LiteDelivery

            self.lite = LiteDelivery(self, *self.lite_parts())
        return self.lite

    def lite_parts(self) -> tuple[LiteTopics, LiteOffsets]:
        """Returns the lite topics, and the offsets of groups in them.

        Raises:
            BrokerError: the broker has no lite topics.
        """
        topics, offsets = self.services.store.lite, self.services.lite_offsets
        if topics is None or offsets is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, "no lite topics: enableLmq and enableMultiDispatch are not both set"
            )
        return topics, offsets

    def _follow(self, services: BrokerServices, loop: asyncio.AbstractEventLoop) -> None:
        """Creates what a slave has, and a master has not."""
        # Imported only here, because most brokers are masters.
        from rucola.broker.ha.acting_slave import ActingSlave
        from rucola.broker.ha.slave import Slave
        from rucola.broker.ha.slave_refusals import SlaveRefusals

        config = services.config
        self.slave = Slave(services, loop)
        refusals = SlaveRefusals(config.slave_read_enable, config.enable_slave_acting_master)
        self.refusals = refusals.table
        if config.enable_slave_acting_master:
            self.acting = ActingSlave(config.broker_id, self.slave, refusals, services.offsets)

    def _watch(self) -> GroupWatch:
        from rucola.broker.ha.group_watch import GroupWatch

        if self.acting is not None:
            self.acting.api, self.acting.hold = self.outer_api, self.hold
        changed: Callable[[], None] = lambda: None  # noqa: E731 - a slave has nobody to tell
        if self.replication is not None:
            changed = self.replication.changed
        services = self.services
        watch = GroupWatch(services.config, self.outer_api, services.topics, self.acting, changed)
        if self.replication is not None:
            self.replication.alive = lambda: watch.alive
        return watch

    def _late(self, replication: Replication) -> PreOnline:
        from rucola.broker.ha.pre_online import PreOnline

        return PreOnline(self.services, self.outer_api, replication.server, self.master_addresses)

    def _life(self, services: BrokerServices, topics: LiteTopics, offsets: LiteOffsets) -> LiteLife:
        from rucola.broker.lite.life import LiteLife

        def forgotten(lite_id: int) -> None:
            if self.lite is not None:
                self.lite.forget(lite_id)

        return LiteLife(
            services.config,
            services.store,
            topics,
            services.topics,
            offsets,
            forgotten,
            services.clock.monotonic,
        )

    def acts(self) -> bool:
        """Whether this slave acts for its master."""
        return self.acting is not None and self.acting.acts

    def _is_linked(self) -> bool:
        return self.slave is not None and self.slave.is_linked

    def _ha_port(self) -> int | None:
        return None if self.replication is None else self.replication.server.port


def _replication(services: BrokerServices, loop: asyncio.AbstractEventLoop) -> Replication:
    # Imported only here, because most brokers have no slaves.
    from rucola.broker.ha.master import HaServer, HaServerOptions
    from rucola.broker.ha.replication import ReplicaRule, Replication
    from rucola.broker.ha.slave_access import SlaveAccess

    config = services.config
    made = Replication(
        ReplicaRule(
            config.replicas_needed, config.replicas_least, config.ha_max_gap_not_in_sync, config.replicas_adapt
        ),
        services.clock.monotonic,
        config.slave_timeout_ms,
        loop.call_later,
    )
    access = SlaveAccess(config.ha_allowed_slaves, config.insecure)
    options = HaServerOptions(config.bind_address, config.ha_port, access, _ha_tls(config))
    made.server = HaServer(
        services.store.sent_log(),
        options,
        services.cold_reads.fetch,
        made,
        services.supervisor,
    )
    return made


def _ha_tls(config: BrokerConfig) -> ServerTls | None:
    """The TLS settings of the port for slaves, which always asks for certificates."""
    if config.ha_tls_mode == "disabled":
        return None
    trusted = config.ha_tls_trust_cert_path
    context = server_context(config.tls_cert_path, config.tls_key_path, trusted, "require", "haTlsTrustCertPath")
    return ServerTls(context, permissive=config.ha_tls_mode == "permissive")


def _transactions(services: BrokerServices, checks: TransactionCheckService) -> TransactionalMessageService:
    config = services.config
    return TransactionalMessageService(
        services.store,
        services.halves,
        services.producers,
        TransactionRules(config.transaction_timeout_ms, config.transaction_check_max, len(services.delay_levels_ms)),
        config.broker_name,
        services.store.now_ms,
        lambda: services.topics.create_for_group(TRANS_CHECK_MAX_TIME_TOPIC, 1),
        checks.finished,
        services.timers.rewriter,
        services.senders,
        services.topics.read_queue,
    )
