"""Delivers lite topics: connects the rules (``event_dispatcher``, ``subscriptions``, ``leases``) with the event loop,
the store and the requests. Created by the first request about lite topics; before, nobody waits for one. Event loop
only.

Nothing runs per message but the dispatcher. One timer serves all leases. Each entry ends in ``settle``, which runs
woken pops, tells clients, sets the timer and begins a scan.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import NamedTuple

from rucola.broker.lite.ack import LiteAckProcessor
from rucola.broker.lite.attributes import lite_group
from rucola.broker.lite.checks import reading_settings
from rucola.broker.lite.control import LiteControlProcessor
from rucola.broker.lite.event_dispatcher import LiteEventDispatcher
from rucola.broker.lite.hold import LiteHold
from rucola.broker.lite.leases import LiteLeases
from rucola.broker.lite.pop import LitePopProcessor, LitePopReader
from rucola.broker.lite.progress import LiteProgress, Offsets
from rucola.broker.lite.reading_group import LiteClient, ReadingGroup, ReadingGroups, clients_on
from rucola.broker.lite.subscriptions import LiteSubscriptions, Notice
from rucola.broker.pop.request_age import RequestAges
from rucola.broker.running_services import RunningServices
from rucola.broker.shares import Shares
from rucola.broker.topic_queues import TopicQueues
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import FLAG_ONEWAY, RemotingCommand
from rucola.protocol.headers.lite import NotifyUnsubscribeLiteRequestHeader
from rucola.remoting.channel import Channel
from rucola.remoting.fairness.steps import Steps, in_turns
from rucola.runtime.supervision import PeriodicWork
from rucola.store.lite.lite_topics import LiteTopics

_CLIENTS_MAX, _CLIENTS_SHARE, _CLIENTS_KEPT = 65_536, 16_384, 256
"""Clients of all accounts, of one account, and those that each account may always have."""
_NAMES_KEPT = 256
_WILDCARD_CLIENT = "*"


class LiteReader(NamedTuple):
    """Who reads a lite topic; the client is ``*`` in a wildcard group."""

    client_id: str
    group: str


class ClientInfo(NamedTuple):
    """What administrators learn of a client; wall-clock times in ms, 0 if it was never.

    Attributes:
        names: its lite topics, at most as many as were asked for; none in a wildcard group.
        names_count: the number of all its lite topics.
    """

    names: list[bytes]
    names_count: int
    accessed_ms: int
    consumed_ms: int


class LiteDelivery:
    """The parts that deliver lite topics, and what other parts of the broker tell and ask them.

    Args:
        topics: the lite topics of the store.
        offsets: the offsets of groups in them.

    Attributes:
        hold: pops that wait.
        pops, acks, control: the processors.
    """

    def __init__(self, running: RunningServices, topics: LiteTopics, offsets: Offsets) -> None:
        services = running.services
        config, monotonic = services.config, services.clock.monotonic
        self._running = running
        self._services = services
        self._topics = topics
        self._periodic: list[PeriodicWork] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._steps: deque[Steps[None]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._groups = ReadingGroups()
        progress = LiteProgress(topics, offsets)
        self._dispatcher = LiteEventDispatcher(
            self._groups, progress, services.random_below, config.max_client_event_count
        )
        leases = self._leases = LiteLeases(self._dispatcher, progress)
        names_max = config.max_lite_subscription_count
        clients, names = Shares(_CLIENTS_MAX, _CLIENTS_MAX, 0), Shares(names_max, names_max, 0)
        if config.guarded:
            clients = Shares(_CLIENTS_MAX, _CLIENTS_SHARE, _CLIENTS_KEPT)
            names = Shares(names_max, max(names_max // 2, 1), min(_NAMES_KEPT, names_max))
        self._subscriptions = LiteSubscriptions(
            self._groups,
            self._dispatcher,
            leases,
            progress,
            clients,
            names,
            services.senders.check_holder,
            services.clock.wall_ms,
        )
        self._ages = RequestAges(monotonic, services.peers_clock.wall_ms)
        self.hold = LiteHold(
            self._dispatcher,
            monotonic,
            running.loop.call_later,
            config.max_pop_polling_size,
            config.pop_polling_size,
            services.senders.account_on,
            self._settle_client,
        )
        self.pops = LitePopProcessor(
            services,
            LitePopReader(services.store, self._dispatcher, leases, self._ages.now_ms),
            self._dispatcher,
            self.hold,
            self._ages,
            self._client_of,
            self._settle_client,
        )
        self.acks = LiteAckProcessor(services, progress, leases, self._group_of, self._ages.now_ms, self.settle)
        queues = TopicQueues(running.outer_api.writable_queues, services.topics, config.broker_name, monotonic)
        self.control = LiteControlProcessor(
            services,
            self._groups,
            self._subscriptions,
            self._dispatcher,
            progress,
            queues,
            self._group_of,
            self._ages.now_ms,
            self.settle,
        )
        services.groups.on_change(self._groups_changed)
        self._start()

    def _start(self) -> None:
        config, every, loop = self._services.config, self._services.supervisor.every, self._running.loop
        self._periodic = [
            every(
                "expiry of subscriptions to lite topics",
                lambda: config.lite_subscription_check_interval_ms / 1000,
                self._expire,
                loop,
            ),
            every(
                "look for silent clients of lite topics",
                lambda: config.lite_event_check_interval_ms / 1000,
                self._move_from_silent,
                loop,
            ),
        ]

    # -- what the broker tells -----------------------------------------------------------------------------------------

    def arrived(self, lite_ids: list[int]) -> None:
        """Lite topics have new messages."""
        now_ms, names = self._ages.now_ms(), self._topics.names
        for lite_id in lite_ids:
            self._dispatcher.arrived(names.name(lite_id), now_ms)
        self.settle()

    def forget(self, lite_id: int) -> None:
        """A lite topic has expired or was deleted. Its id may be that of no name any more, but not that of another."""
        self._subscriptions.forget(self._topics.names.name(lite_id), self._ages.now_ms())
        self.settle()

    def offset_set(self, group: str, lite_id: int) -> None:
        """An administrator has set the offset of a group: it continues there, whatever is in flight."""
        known = self._groups.get(group)
        if known is not None:
            self._leases.moved(known, self._topics.names.name(lite_id), self._ages.now_ms())
            self.settle()

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the pops of a closed connection. Others get the events of its clients; these keep their
        subscriptions, and may come back on another connection before they expire.
        """
        self.hold.channel_closed(channel)
        self._ages.channel_closed(channel)
        for client in list(clients_on(channel)):
            client.bind(None)
            if not client.waiters:
                client.is_aside = True
                self._run(self._dispatcher.move(client, self._ages.now_ms()))
        self.settle()

    def withdraw(self, channel: Channel, opaque: int) -> bool:
        """Takes out a waiting pop; see ``LiteHold.withdraw``."""
        return self.hold.withdraw(channel, opaque)

    async def stop(self) -> None:
        """Ends the periodic work and releases the waiting pops."""
        self.hold.release_all()
        if self._timer is not None:
            self._timer.cancel()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await asyncio.gather(*[work.stop() for work in self._periodic])

    # -- what administrators ask ---------------------------------------------------------------------------------------

    def readers_of(self, name: bytes) -> list[LiteReader]:
        """Returns who reads the lite topic ``<parent>$<lite>``."""
        readers = []
        for group in self._groups.of_parent(name.partition(b"$")[0]):
            if group.settings.wildcard and any(client.is_subscribed for client in group.clients.values()):
                readers.append(LiteReader(_WILDCARD_CLIENT, group.name))
            readers += [LiteReader(client.client_id, group.name) for client in group.holders_of(name)]
        return readers

    def client_info(self, group: str, client_id: str, names_max: int) -> ClientInfo | None:
        """Returns what is known of a client; None if it has not subscribed."""
        known = self._groups.get(group)
        client = None if known is None else known.clients.get(client_id)
        if client is None or not client.is_subscribed:
            return None
        names = list(itertools.islice(client.names, max(names_max, 0)))
        return ClientInfo(names, len(client.names), client.accessed_ms, client.consumed_ms)

    @property
    def subscription_count(self) -> int:
        """Number of subscribed names; a name of two clients counts twice."""
        return self._subscriptions.count

    @property
    def block_count(self) -> int:
        """Number of lite topics, counted for each group, whose last pop is not over."""
        return self._dispatcher.block_count

    @property
    def event_count(self) -> int:
        """Number of lite topics, counted for each group, with messages that no pop has got yet."""
        return self._dispatcher.event_count

    # -- internals -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Does what follows from changes: runs woken pops, tells clients, sets the timer, begins a scan."""
        self.hold.wake()
        notices, self._subscriptions.notices = self._subscriptions.notices, []
        for notice in notices:
            notice.channel.send_oneway(_notification(notice))
        self._set_timer()
        group = self._dispatcher.scan_due()
        if group is not None and self._worker is None:
            self._run(self._dispatcher.scan_some(group, self._ages.now_ms()))

    def _settle_client(self, client: LiteClient) -> None:
        """After a pop has ended: wakes the next one if there are events for it, and forgets a client without any."""
        self._dispatcher.settle(client)
        self._subscriptions.release(client)
        self.settle()

    def _group_of(self, group: str, parent: str) -> ReadingGroup:
        """Returns a reading group.

        Raises:
            BrokerError: it does not read lite topics of ``parent``.
        """
        return self._groups.make(group, reading_settings(self._services, group, parent))

    def _client_of(self, group: str, parent: str, client_id: str, channel: Channel) -> LiteClient:
        account = self._services.senders.account_on(channel)
        return self._subscriptions.client(self._group_of(group, parent), client_id, account, self._ages.now_ms())

    def _groups_changed(self) -> None:
        """Forgets the clients of groups that were deleted, or that read other lite topics now."""
        for group in self._groups:
            config = self._services.groups.table.get(group.name)
            settings = None if config is None else lite_group(config)
            before = group.settings
            if settings is None or settings.bind_topic != before.bind_topic or settings.wildcard != before.wildcard:
                self._subscriptions.drop(group)
            else:
                group.settings = settings
        self.settle()

    async def _expire(self) -> None:
        timeout_ms = self._services.config.lite_subscription_check_timeout_ms
        await in_turns(self._subscriptions.expire(timeout_ms, self._ages.now_ms()))
        self.settle()

    async def _move_from_silent(self) -> None:
        await in_turns(self._dispatcher.move_from_silent(self._ages.now_ms()))
        self.settle()

    def _set_timer(self) -> None:
        due_ms = self._dispatcher.next_ms()
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        pause_s = max(due_ms / 1000 - self._services.clock.monotonic(), 0)
        self._timer = self._running.loop.call_later(pause_s, self._leases_ended)

    def _leases_ended(self) -> None:
        self._timer = None
        self._services.supervisor.call("end of leases", self._dispatcher.end_leases, self._ages.now_ms())
        self.settle()

    def _run(self, steps: Steps[None]) -> None:
        """Runs steps in turns, after those that run already."""
        self._steps.append(steps)
        if self._worker is None and not self.hold.stopped:
            self._worker = self._running.loop.create_task(self._work())

    async def _work(self) -> None:
        while self._steps:
            try:
                await in_turns(self._steps.popleft())
            except Exception as error:  # noqa: BLE001 - a defect must not keep the other steps waiting
                self._services.supervisor.failed("events of lite topics", error)
            self.settle()
        self._worker = None
        self.settle()


def _notification(notice: Notice) -> bytes:
    lite = notice.name.partition(b"$")[2].decode("utf-8", "surrogateescape")
    header = NotifyUnsubscribeLiteRequestHeader(lite, notice.group, notice.client_id)
    code = RequestCode.NOTIFY_UNSUBSCRIBE_LITE
    return RemotingCommand(code, flag=FLAG_ONEWAY, ext_fields=header.to_ext_fields()).encode()
