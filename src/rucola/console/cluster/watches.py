"""The watches: for each cluster and account one client, one poller, and the figures that it leaves in the history."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Final, TypeVar

from rucola.client.admin import AdminClient
from rucola.client.config import ClientConfig
from rucola.console.access.sessions import BrokerAccount
from rucola.console.cluster.asking import Reason, asked
from rucola.console.cluster.poller import ClusterPoller
from rucola.console.cluster.problems import NewLetters
from rucola.console.cluster.snapshot import ClusterSnapshot, Member
from rucola.console.config import ClusterAt, ConsoleConfig
from rucola.console.history import History
from rucola.console.memberships import MemberHistory, packed
from rucola.errors import DiskError
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork, Supervisor

T = TypeVar("T")
logger = logging.getLogger(__name__)

DAY_MS: Final = 24 * 3600 * 1000
_MINUTE_MS: Final = 60_000
_NOBODY: Final = packed({})


class HistoryThread:
    """The history, whose calls wait for the disk on one thread."""

    def __init__(self, history: History, thread: Executor) -> None:
        self._history, self._thread = history, thread

    async def add(self, owner: str, time_ms: int, values: Mapping[str, float]) -> None:
        """See ``History.add``."""
        await self._on_thread(lambda: self._history.add(owner, time_ms, values))

    async def read(self, owner: str, name: str, begin_ms: int, end_ms: int) -> list[tuple[int, float | None]]:
        """See ``History.read``."""
        return await self._on_thread(lambda: self._history.read(owner, name, begin_ms, end_ms))

    async def add_members(self, owner: str, time_ms: int, states: Mapping[str, bytes]) -> None:
        """See ``Memberships.add``."""
        await self._on_thread(lambda: self._history.members.add(owner, time_ms, states))

    async def latest_members(self, owner: str) -> dict[str, bytes]:
        """See ``Memberships.latest``."""
        return await self._on_thread(lambda: self._history.members.latest(owner))

    async def read_members(self, owner: str, name: str, begin_ms: int) -> MemberHistory:
        """See ``Memberships.read``."""
        return await self._on_thread(lambda: self._history.members.read(owner, name, begin_ms))

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


class Watch:
    """One cluster, as one account sees it.

    Attributes:
        admin: sends requests with the account.
        poller: looks at the cluster.
        letters: new dead letters by group.
    """

    def __init__(
        self, at: ClusterAt, account: BrokerAccount, config: ConsoleConfig, clock: Clock, history: HistoryThread
    ) -> None:
        self.at, self.account = at, account
        client = ClientConfig(
            access_key=account.name,
            secret_key=account.secret,
            signature_version=config.signature_version,
            use_tls=config.use_tls,
            tls_trust_cert_path=config.tls_trust_cert_path,
        )
        self.admin = AdminClient(at.namesrv, 1_000, client, clock)
        self._refresh_s = config.refresh_ms / 1000
        self.poller = ClusterPoller(self.admin, clock, self._refresh_s)
        self.letters: dict[str, NewLetters] = {}
        self._clock, self._history = clock, history
        self._minute = -1
        self._members: dict[str, bytes] | None = None
        """The members of each group as they were stored last."""
        self._packed_of: dict[str, tuple[tuple[Member, ...] | None, Mapping[str, tuple[str, ...] | None] | None]] = {}
        """What was looked at for that."""
        self._work: PeriodicWork | None = None

    @property
    def owner(self) -> str:
        """The owner of its figures in the history."""
        return f"{self.at.name}\n{self.account.name}"

    def start(self, supervisor: Supervisor) -> None:
        """Begins to look."""
        self._work = supervisor.every(
            f"look at {self.at.name}",
            lambda: self._refresh_s,
            self._look_if_due,
            asyncio.get_running_loop(),
            first_s=0.0,
        )

    async def close(self) -> None:
        """Ends it, and closes its connections."""
        if self._work is not None:
            await self._work.stop()
        await self.poller.close()
        await self.admin.close()

    async def fresh(self) -> ClusterSnapshot:
        """What a page shows."""
        return await self.poller.fresh()

    async def series(self, name: str, past_ms: int = DAY_MS) -> list[tuple[int, float | None]]:
        """A series of the history up to now; empty if it cannot be read."""
        now_ms = self._clock.wall_ms()
        try:
            return await self._history.read(self.owner, name, now_ms - past_ms, now_ms)
        except DiskError as error:
            event(logger, logging.WARNING, "figures of the console cannot be read", error=error)
            return []

    async def members(self, name: str, begin_ms: int) -> MemberHistory:
        """A group's members since ``begin_ms``; nothing if the history cannot be read."""
        try:
            return await self._history.read_members(self.owner, name, begin_ms)
        except DiskError as error:
            event(logger, logging.WARNING, "figures of the console cannot be read", error=error)
            return MemberHistory((), ())

    async def _look_if_due(self) -> None:
        if self.poller.is_due:
            await self.look()

    async def look(self) -> None:
        """Looks at the cluster; once a minute, its figures go to the history."""
        await self.poller.look()
        minute = self._clock.wall_ms() // _MINUTE_MS
        await self._note_members(minute)
        if minute == self._minute or not self.poller.snapshot.taken_ms:
            return
        self._minute = minute
        await self._history.add(self.owner, minute * _MINUTE_MS, figures(self.poller.snapshot))
        await self._count_letters()

    async def _note_members(self, minute: int) -> None:
        """Stores the members of groups that have changed, and once a minute that somebody looked."""
        if self._members is None:
            self._members = await self._history.latest_members(self.owner)
        snapshot, changed, looked_at = self.poller.snapshot, {}, {}
        if not any(broker.unknown is None for broker in snapshot.masters):
            return
        for group in snapshot.groups.values():
            seen = group.members, self.poller.assignments.get(group.name)
            before = self._packed_of.get(group.name)
            # What no round has replaced since is not packed again.
            if seen[0] is None or group.is_system or (before and before[0] is seen[0] and before[1] is seen[1]):
                continue
            looked_at[group.name] = seen
            state = packed({one.client_id: (seen[1] or {}).get(one.client_id) for one in seen[0]})
            if self._members.get(group.name, _NOBODY) != state:
                changed[group.name] = state
        if changed or minute != self._minute:
            await self._history.add_members(self.owner, self._clock.wall_ms(), changed)
            self._members |= changed
        self._packed_of |= looked_at
        for name in set(self._packed_of) - set(snapshot.groups):
            del self._packed_of[name]

    async def _count_letters(self) -> None:
        """Compares the dead letters with those of a day ago, or of the console's first look."""
        found: dict[str, NewLetters] = {}
        for group in self.poller.snapshot.groups.values():
            if not group.dead:
                continue
            past = await self.series(f"group/{group.name}/dead")
            first = next(((at, value) for at, value in past if value is not None), None)
            if first is not None and group.dead > first[1]:
                found[group.name] = NewLetters(group.name, group.dead - int(first[1]), first[0])
        self.letters = found


class Watches:
    """All watches. Event loop only.

    Args:
        accounts: the accounts that are signed in to a cluster; watches of others end.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        clock: Clock,
        history: HistoryThread,
        supervisor: Supervisor,
        accounts: Callable[[str], set[BrokerAccount]],
    ) -> None:
        self._config, self._clock, self._history = config, clock, history
        self._supervisor, self._accounts = supervisor, accounts
        self._watches: dict[tuple[str, BrokerAccount], Watch] = {}
        self._clusters = {cluster.name: cluster for cluster in config.cluster_list}

    def start(self) -> None:
        """Begins to look at all clusters as a visitor without an account, if there are such visitors."""
        if self._config.is_open:
            for name in self._clusters:
                self.of(name, BrokerAccount())

    def of(self, cluster: str, account: BrokerAccount) -> Watch:
        """The watch of a cluster and an account, which begins if there is none.

        Raises:
            KeyError: there is no such cluster.
        """
        watch = self._watches.get((cluster, account))
        if watch is None:
            watch = self.unstarted(cluster, account)
            watch.start(self._supervisor)
            self._watches[cluster, account] = watch
        return watch

    def unstarted(self, cluster: str, account: BrokerAccount) -> Watch:
        """A watch that does not look by itself, for one question; the caller closes it."""
        return Watch(self._clusters[cluster], account, self._config, self._clock, self._history)

    async def drop_idle(self) -> None:
        """Ends the watches of accounts that nobody is signed in with."""
        for key in [key for key in self._watches if key[1].name and key[1] not in self._accounts(key[0])]:
            await self._watches.pop(key).close()

    async def close(self) -> None:
        """Ends all."""
        while self._watches:
            await self._watches.popitem()[1].close()


async def is_guarded(watch: Watch) -> bool | None:
    """Whether the brokers of a cluster know accounts, asked without one; None if no broker answers."""
    info = await asked(watch.at.namesrv, watch.admin.cluster_info())
    for name in getattr(info, "broker_addr_table", {}).values():
        for address in name.broker_addrs.values():
            answer = await asked(address, watch.admin.api.runtime_info(address))
            if isinstance(answer, dict):
                return False
            if answer.reason is Reason.FORBIDDEN:
                return True
    return None


def figures(snapshot: ClusterSnapshot) -> dict[str, float]:
    """What the history keeps of a snapshot, by name of the series. What is not known is left out."""
    found: dict[str, float | None] = {}
    for broker in snapshot.brokers:
        if broker.unknown is None and broker.is_listed:
            for name, value in (("in", broker.in_rate), ("out", broker.out_rate), ("disk", broker.disk_ratio)):
                found[f"broker/{broker.address}/{name}"] = value
    for topic in snapshot.topics.values():
        if topic.kind == "normal":
            found[f"topic/{topic.name}/in"] = topic.in_rate
    for group in snapshot.groups.values():
        if not group.is_system:
            for name, number in (("lag", group.lag), ("out", group.out_rate), ("dead", group.dead)):
                found[f"group/{group.name}/{name}"] = number
    if snapshot.brokers:
        rates = [broker.in_rate for broker in snapshot.masters if broker.unknown is None]
        outs = [broker.out_rate for broker in snapshot.masters if broker.unknown is None]
        lags = [group.lag for group in snapshot.groups.values() if not group.is_system and group.lag is not None]
        found["cluster/in"] = sum(rate for rate in rates if rate is not None) if rates else None
        found["cluster/out"] = sum(rate for rate in outs if rate is not None) if outs else None
        found["cluster/lag"] = float(sum(lags)) if lags else None
        found["cluster/clients"] = float(len(snapshot.clients))
    return {name: float(value) for name, value in found.items() if value is not None}
