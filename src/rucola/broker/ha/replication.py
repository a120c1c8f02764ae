"""How many brokers must have a message before its sender is told that it is stored (SYNC_MASTER).

Without SYNC_MASTER, nobody waits. With it, a response waits until ``inSyncReplicas`` brokers have the record, this one
included. If there are not enough slaves, or they lack too much, it does not wait: the message is stored here, and the
sender is told so at once. With fewer than ``minInSyncReplicas``, sends are refused. Event loop only.

Behind a controller, the brokers of the in-sync set count (``in_sync_set``), while this broker is the master: between
``lead`` and ``retire``. Whoever still waits when it ceases to be is told that the message may be lost, and sends again.

Source: RocketMQ 5.3.3, ``GroupTransferService``, whose senders wait 3 s for slaves that do not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from rucola.broker.flush_waiters import Answers, FlushWaiters
from rucola.broker.ha.in_sync import InSyncReplicas
from rucola.broker.ha.in_sync_set import ALL, InSyncSet
from rucola.broker.ha.master import HaServer
from rucola.broker.processor.send_response import not_confirmed
from rucola.protocol.bodies.ha import HAConnectionRuntimeInfo, HARuntimeInfo
from rucola.protocol.codes import ResponseCode
from rucola.remoting.channel import Channel

_LOOK_S = 0.01
_EVERYTHING = (1 << 63) - 1


class ReplicaRule(NamedTuple):
    """How many brokers must have a message. All numbers include this broker.

    Attributes:
        needed: number of brokers that must have it before its sender is told that it is stored; 1 if nobody waits,
            ``ALL`` if all of the in-sync set must.
        least: number of brokers that must be in sync before it is stored; 1 if none need be.
        gap_bytes: a slave that lacks more is not in sync.
        adapts: whether a message waits for fewer brokers while fewer are in sync, but not for fewer than ``least``.
        is_controlled: whether a controller keeps the in-sync set.
    """

    needed: int
    least: int
    gap_bytes: int
    adapts: bool = False
    is_controlled: bool = False


class Replication:
    """The slaves of one broker, and the responses that wait for them.

    Args:
        rule: how many brokers must have a message.
        monotonic: returns monotonic seconds.
        timeout_ms: ``slaveTimeout``.
        call_later: the loop's method.

    Attributes:
        server: the HA port; set before anything else is called.
        alive: returns the number of brokers of the group that live; set if name servers tell it.
        waiters: the responses that wait.
        in_sync: the brokers that are in sync; None if nobody needs them.
    """

    server: HaServer

    def __init__(
        self,
        rule: ReplicaRule,
        monotonic: Callable[[], float],
        timeout_ms: int,
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._rule = rule
        self.alive: Callable[[], int] = lambda: _EVERYTHING
        self._needed = 1 if rule.needed == ALL else max(rule.needed - 1, 0)
        self._members: InSyncSet | None = None
        self._held = self._reported = -1
        """Physical offset up to which as many slaves as needed have confirmed the log, and up to which they report it;
        -1 if there are not as many.
        """
        self.in_sync: InSyncReplicas | None = None
        confirming = rule.least if rule.adapts or rule.needed == ALL else rule.needed
        if max(confirming, rule.least) > 1:
            self.in_sync = InSyncReplicas(confirming, rule.least, self._available)
        self.refuses = self.in_sync.refuses if self.in_sync is not None and rule.least > 1 else None
        """Whether sends must be refused now; None if they never are."""
        self._monotonic, self._timeout_s = monotonic, timeout_ms / 1000
        self.waiters = FlushWaiters(
            monotonic, timeout_ms, self._refused, call_later, lambda: self._held, what="copy", is_lenient=True
        )

    def lead(self, members: InSyncSet) -> None:
        """This broker is the master, and a controller keeps the in-sync set."""
        self._members = members
        self.changed()

    def retire(self) -> None:
        """This broker is no longer the master: nobody confirms what waits, and its log may be cut."""
        self._members, self._held = None, -1
        self.waiters.fail_all("the broker is no longer the master, and may lose it")
        if self.in_sync is not None:
            self.in_sync.close()

    @property
    def _is_retired(self) -> bool:
        return self._rule.is_controlled and self._members is None

    @property
    def waits(self) -> bool:
        """See ``SlaveWatcher``."""
        return self._needed > 0

    @property
    def needed(self) -> int:
        """Number of slaves that must have a message."""
        return self._needed

    def passed(self, end_physical_offset: int) -> bool:
        """See ``Confirmation``."""
        if self._members is not None and end_physical_offset > self._held:
            self._measure()  # without slaves, nobody else does
        return end_physical_offset <= self._held or not (self._needed or self._is_retired)

    def add(self, end_physical_offset: int, channel: Channel, answers: Answers, lenient: bool = False) -> None:
        """See ``Confirmation``."""
        if not self._lacks_slaves():
            self.waiters.add(end_physical_offset, channel, answers, lenient)
        elif lenient:
            channel.send(answers)
        else:
            channel.send(self._refused(answers, f"the message is stored, {self._lacks()}"))

    def changed(self) -> None:
        """See ``SlaveWatcher``."""
        self.acknowledged()
        if self.in_sync is not None:
            self.in_sync.changed()
        if len(self.waiters) and self._lacks_slaves():
            self.waiters.fail_all(self._lacks())

    def acknowledged(self) -> None:
        """See ``SlaveWatcher``."""
        self._measure()
        if self._rule.adapts:
            self._adapt()
        if self.in_sync is not None:
            self.in_sync.acknowledged()
        if len(self.waiters):
            self.waiters.release(self._held)

    def _measure(self) -> None:
        """Asks how far as many slaves as needed have the log."""
        if self._members is not None:
            self._held = self._members.confirm(self.server.log.sendable_offset)
        elif self._needed and not self._is_retired:
            self._held = self.server.held_offset(self._needed, self.waiters.oldest_end)
            self._reported = self.server.reported_offset(self._needed)

    def _adapt(self) -> None:
        """Waits from now on for as many slaves as are in sync; if these are too few, sends are refused. What was stored
        for more slaves than there are is answered so: it may be on this broker only.
        """
        needed = min(self._rule.needed, self.in_sync_count) - 1
        if needed < self._needed:
            self.waiters.release(self._held)
            self.waiters.fail_all(self._lacks())
        if needed != self._needed:
            self._needed = needed
            self._held = self._reported = _EVERYTHING  # if nobody need have it
            self._measure()

    def look(self) -> None:
        """See ``SlaveWatcher``."""
        if self._rule.adapts:
            self.changed()
        if self.in_sync is not None and not self._is_retired:
            self.in_sync.look()

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log that the slave lacks that lacks most; 0 without slaves."""
        log_end = self.server.log.sendable_offset
        behind = (log_end - max(slave.link.acknowledged, 0) for slave in self.server.slaves)
        return max(max(behind, default=0), 0)  # of an empty log, a slave reports the first byte

    @property
    def behind_seconds(self) -> float:
        """Seconds of store time between the newest record and the first one that a slave lacks, for the slave that
        lacks most; 0 without slaves, NaN if the disk would have to be asked.
        """
        acknowledged = min((slave.link.acknowledged for slave in self.server.slaves), default=None)
        return 0.0 if acknowledged is None else self.server.log.seconds_from(acknowledged)

    @property
    def in_sync_count(self) -> int:
        """Number of brokers that are in sync, this one included."""
        return 1 + self._available()

    @property
    def trouble(self) -> str:
        """Why sends are refused; empty if they are not."""
        return "" if self.in_sync is None or self._is_retired else self.in_sync.trouble

    @property
    def remark(self) -> str:
        """Why sends are not confirmed; empty if they are."""
        return "" if self.in_sync is None or self._is_retired else self.in_sync.remark

    async def settle(self, waiting: Callable[[], int]) -> None:
        """Returns when ``waiting`` returns 0, or after the time that a sender waits for slaves."""
        ends_s = self._monotonic() + self._timeout_s
        while self._needed and waiting() and self._monotonic() < ends_s:
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Answers everyone who waits, and closes the port. Call it while the log can be read."""
        self.waiters.fail_all("the broker stopped")
        if self.in_sync is not None:
            self.in_sync.close()
        await self.server.stop()

    def status(self, max_offset: int) -> HARuntimeInfo:
        """What request 907 tells."""
        slaves = [
            HAConnectionRuntimeInfo(
                slave.address,
                max_offset - slave.link.acknowledged,
                slave.link.acknowledged >= 0 and max_offset - slave.link.acknowledged < self._rule.gap_bytes,
                slave.link.acknowledged,
                slave.link.next_offset,
                slave.rate_bytes,
            )
            for slave in self.server.slaves
        ]
        return HARuntimeInfo(
            max_offset,
            in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
            ha_connection_info=sorted(slaves, key=lambda slave: slave.addr),
        )

    def _lacks_slaves(self) -> bool:
        """Whether too few slaves are in sync for a confirmation in time."""
        if self._members is not None:
            return self._members.size < self._rule.needed
        if self._is_retired:
            return True
        return self._reported < max(self.server.log.sendable_offset - self._rule.gap_bytes, 0)

    def _lacks(self) -> str:
        if self._is_retired:
            return "but the broker is no longer the master, and may lose it"
        return f"but {self._available()} slaves are in sync, and {self._needed} must have it"

    def _available(self) -> int:
        """Number of slaves that can confirm soon; one that has just connected says what it has within 5 s."""
        if self._members is not None:
            return self._members.size - 1
        enough = max(self.server.log.sendable_offset - self._rule.gap_bytes, 0)
        return min(sum(slave.link.acknowledged >= enough for slave in self.server.slaves), self.alive() - 1)

    def _refused(self, answers: Answers, remark: str) -> bytes:
        code = ResponseCode.SLAVE_NOT_AVAILABLE if self._lacks_slaves() else ResponseCode.FLUSH_SLAVE_TIMEOUT
        if self._is_retired:
            code = ResponseCode.SERVICE_NOT_AVAILABLE
        return not_confirmed(answers, code, remark)
