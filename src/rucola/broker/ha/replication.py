"""How many brokers must have a message before its sender is told that it is stored (SYNC_MASTER).

Without SYNC_MASTER, nobody waits. With it, a response waits until ``inSyncReplicas`` brokers have the record, this one
included. If there are not enough slaves, or they lack too much, it does not wait: the message is stored here, and the
sender is told so at once. Event loop only.

Source: RocketMQ 5.3.3, ``GroupTransferService``, whose senders wait 3 s for slaves that do not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rucola.broker.flush_waiters import Answers, FlushWaiters
from rucola.broker.ha.master import HaServer
from rucola.broker.processor.send_response import not_confirmed
from rucola.protocol.bodies.ha import HAConnectionRuntimeInfo, HARuntimeInfo
from rucola.protocol.codes import ResponseCode
from rucola.remoting.channel import Channel

_LOOK_S = 0.01
_IN_SYNC_BYTES = 256 * 1024 * 1024
"""``haMaxGapNotInSync``, and ``haSlaveFallbehindMax`` of 4.9: a slave that lacks more is not in sync."""


class Replication:
    """The slaves of one broker, and the responses that wait for them.

    Args:
        in_sync_replicas: number of brokers that must have a message, this one included; 1 or less waits for none.
        monotonic: returns monotonic seconds.
        timeout_ms: ``slaveTimeout``.
        call_later: the loop's method.

    Attributes:
        server: the HA port; set before anything else is called.
        waiters: the responses that wait.
    """

    server: HaServer

    def __init__(
        self,
        in_sync_replicas: int,
        monotonic: Callable[[], float],
        timeout_ms: int,
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._needed = max(in_sync_replicas - 1, 0)
        self._monotonic, self._timeout_s = monotonic, timeout_ms / 1000
        self.waiters = FlushWaiters(
            monotonic, timeout_ms, self._refused, call_later, self._held, what="copy", is_lenient=True
        )

    @property
    def needed(self) -> int:
        """Number of slaves that must have a message."""
        return self._needed

    @property
    def missing(self) -> int:
        """Number of slaves that would have to come, so that senders get their confirmation in time."""
        return max(self._needed - self._available(), 0) if self._needed else 0

    def passed(self, end_physical_offset: int) -> bool:
        """See ``Confirmation``."""
        return not self._needed or end_physical_offset <= self._held()

    def add(self, end_physical_offset: int, channel: Channel, answers: Answers, lenient: bool = False) -> None:
        """See ``Confirmation``."""
        if not self.missing:
            self.waiters.add(end_physical_offset, channel, answers, lenient)
        elif lenient:
            channel.send(answers)
        else:
            channel.send(self._refused(answers, f"the message is stored, {self._lacks()}"))

    def changed(self) -> None:
        """Called when a slave has more of the log, comes or goes."""
        if not len(self.waiters):
            return
        self.waiters.release(self._held())
        if self.missing:
            self.waiters.fail_all(self._lacks())

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log that the slave lacks that lacks most; 0 without slaves."""
        log_end = self.server.log.sendable_offset
        return max((log_end - max(slave.link.acknowledged, 0) for slave in self.server.slaves), default=0)

    async def settle(self, waiting: Callable[[], int]) -> None:
        """Returns when ``waiting`` returns 0, or after the time that a sender waits for slaves."""
        ends_s = self._monotonic() + self._timeout_s
        while self._needed and waiting() and self._monotonic() < ends_s:
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Answers everyone who waits, and closes the port. Call it while the log can be read."""
        self.waiters.fail_all("the broker stopped")
        await self.server.stop()

    def status(self, max_offset: int) -> HARuntimeInfo:
        """What request 907 tells."""
        slaves = [
            HAConnectionRuntimeInfo(
                slave.address,
                max_offset - slave.link.acknowledged,
                slave.link.acknowledged >= 0 and max_offset - slave.link.acknowledged < _IN_SYNC_BYTES,
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

    def _held(self) -> int:
        return self.server.held_offset(self._needed) if self._needed else -1

    def _lacks(self) -> str:
        return f"but {self._available()} slaves are in sync, and {self._needed} must have it"

    def _available(self) -> int:
        """Number of slaves that can confirm soon; one that has just connected says what it has within 5 s."""
        enough = max(self.server.log.sendable_offset - _IN_SYNC_BYTES, 0)
        return sum(slave.link.acknowledged >= enough for slave in self.server.slaves)

    def _refused(self, answers: Answers, remark: str) -> bytes:
        code = ResponseCode.SLAVE_NOT_AVAILABLE if self.missing else ResponseCode.FLUSH_SLAVE_TIMEOUT
        return not_confirmed(answers, code, remark)
