"""A broker that runs: what serves its requests, wakes those that wait, and works at intervals.

``Broker`` opens the port and the store and then creates this part, complete.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from rucola.broker.broker_stats import SAMPLE_INTERVAL_S
from rucola.broker.client.client_channel import SCAN_INTERVAL_S
from rucola.broker.dispatch_scheduler import DispatchScheduler
from rucola.broker.lite.sending import LiteSends
from rucola.broker.processor.send import SendMessageProcessor
from rucola.broker.processor.send_rewrite import Rewriter
from rucola.broker.pull.request import RECHECK_INTERVAL_S
from rucola.broker.registration import REGISTER_AGAIN_S
from rucola.broker.request_handler import RequestHandler
from rucola.broker.requests import register_requests
from rucola.broker.running_services import RunningServices
from rucola.broker.services import BrokerServices
from rucola.client.unique_id import UniqueIds
from rucola.remoting.fairness.steps import in_turns
from rucola.remoting.processors import ProcessorTable
from rucola.runtime.machine import process_id
from rucola.runtime.supervision import Pause, PeriodicWork
from rucola.store.retention import LogHolder

if TYPE_CHECKING:
    from rucola.broker.ha.pre_online import PreOnline

IDLE_LOOK_S, IDLE_SHARES = 5.0, 12
"""Seconds between two checks for unused queues, and number of checks that together cover all queues. The files of a
queue are closed after one to two minutes without use. Checking all queues at once would block the event loop.
"""


class RunningBroker:
    """The constructor starts nothing, apart from registering the parts with those that call them.

    Args:
        running: the services; the store knows its host and is loaded, but not started.
        listeners: called after each dispatch.

    Attributes:
        running: the services that need loop or address.
        processors: the processors of all requests except sends and pulls.
        scheduler: what the store calls.
        handler: what the remoting server calls.
    """

    def __init__(self, running: RunningServices, listeners: list[Callable[[], None]]) -> None:
        services = running.services
        config, store = services.config, services.store
        self.running = running
        self.processors = ProcessorTable(config.admin_broker_thread_pool_queue_capacity)
        register_requests(running, self.processors)
        self.scheduler = DispatchScheduler(running, listeners)
        self.handler = RequestHandler(
            store,
            SendMessageProcessor(
                services,
                _rewriter(services),
                running.confirmation,
                None if running.replication is None else running.replication.refuses,
            ),
            running.pull,
            self.processors,
            self.scheduler.dispatch_scheduled,
            None if running.confirmation is None else running.sends_waiting,
            config.send_thread_pool_queue_capacity,
            services.clock.monotonic,
            services.cold_reads,
            services.access.guard if services.access is not None else None,
            running.refusals,
        )
        store.listen(self.scheduler.appended, self.scheduler.flushed_in_thread)
        if running.slave is not None:
            running.slave.appended = self.scheduler.appended
        holders: tuple[LogHolder, ...] = (
            services.timers,
            services.schedule,
            running.transaction_checks,
            services.pops,
        )
        for holder in holders if running.slave is None else (running.slave,):
            store.add_holder(holder)
        self._periodic: list[PeriodicWork] = []
        self._delivers = False
        self._going_online: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the work at intervals, and the deliveries."""
        running = self.running
        self.work_periodically()
        if running.slave is not None:  # what delivers messages stores them, and that is the master's business
            running.slave.start()
        elif running.pre_online is None:
            self._deliver()
        else:
            self._going_online = running.loop.create_task(self._go_online(running.pre_online))

    async def _go_online(self, pre_online: PreOnline) -> None:
        await pre_online.run()
        self._deliver()
        await self.running.registration.begin()

    def _deliver(self) -> None:
        """Starts the deliveries."""
        running, services = self.running, self.running.services
        self._delivers = True
        running.delivery.start()
        services.timers.start(running.loop, services.cold_reads)
        running.transaction_checks.start(running.transactions, services.cold_reads)
        services.pops.start()

    async def catch_up(self) -> None:
        """Does everything that became due because the wall clock was moved forward."""
        running, services = self.running, self.running.services
        self.scheduler.dispatch_scheduled()
        if not self._delivers:
            return
        await running.delivery.catch_up()
        await services.timers.catch_up()
        await running.transaction_checks.catch_up()
        await services.pops.catch_up()

    def work_periodically(self) -> None:
        """Starts the work at intervals, except the deliveries."""
        running, services = self.running, self.running.services
        config, store, access = services.config, services.store, services.access

        def every(
            name: str,
            pause_s: Callable[[], float],
            work: Callable[[], Coroutine[Any, Any, None] | None],
            first_s: Pause = None,
        ) -> None:
            self._periodic.append(services.supervisor.every(name, pause_s, work, running.loop, first_s))

        every(
            "registration with the name servers",
            lambda: config.register_name_server_period_ms / 1000,
            running.registration.register,
            REGISTER_AGAIN_S,
        )
        if running.group is not None:
            beat_s, ask_s = config.broker_heartbeat_interval_ms / 1000, config.sync_broker_member_group_period_ms / 1000
            every("signs of life to the name servers", lambda: beat_s, running.group.heartbeat)
            every("question who of the group lives", lambda: ask_s, running.group.look)
        every("writing of consumer offsets", lambda: config.flush_consumer_offset_interval_ms / 1000, services.persist)
        every("search for silent clients", lambda: SCAN_INTERVAL_S, self._close_silent_clients)
        every("recheck of held pulls", lambda: RECHECK_INTERVAL_S, running.hold.recheck)
        every("sampling of rates", lambda: SAMPLE_INTERVAL_S, lambda: in_turns(services.stats.sample()))
        every("closing of idle queues", lambda: IDLE_LOOK_S, lambda: store.park_idle_queues(IDLE_SHARES))
        if running.lite_life is not None and running.slave is None:  # what a slave removes is its master's business
            pause_s = config.lite_ttl_check_interval_ms / 1000
            every("removal of lite topics", lambda: pause_s, running.lite_life.look)
        if access is not None and access.users is None:
            every("reload of accounts", access.reload_interval_s, access.reload)
        if access is not None:
            members = access.former_members(services.consumers)
            every("removal of former members", access.reload_interval_s, lambda: in_turns(members.remove()))

    async def stop_periodic(self) -> None:
        """Ends the work that ``start`` has begun, except the deliveries."""
        if self._going_online is not None:
            self._going_online.cancel()
            await asyncio.gather(self._going_online, return_exceptions=True)
        await asyncio.gather(*[work.stop() for work in self._periodic])

    def _close_silent_clients(self) -> None:
        services = self.running.services
        limit = services.clock.monotonic() - services.config.channel_expired_timeout_ms / 1000
        for channel in {*services.producers.silent_since(limit), *services.consumers.silent_since(limit)}:
            channel.close()


def _rewriter(services: BrokerServices) -> Rewriter:
    config, store = services.config, services.store
    unique_ids = UniqueIds(store.store_host[:-4], process_id(), random.SystemRandom().randbytes(4), services.clock)
    return Rewriter(
        store.property_suffix,
        unique_ids.next,
        len(services.delay_levels_ms),
        not config.reject_transaction_message,
        config.client_host,
        services.timers.rewriter,
        services.senders.mark,
        LiteSends(config, store.lite, services.take_lite_name),
    )
