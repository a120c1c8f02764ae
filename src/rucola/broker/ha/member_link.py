"""The connection of a slave to a master behind a controller: it also tells the in-sync set what the slave has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rucola.broker.ha.in_sync_set import InSyncSet
from rucola.broker.ha.master import TRANSFER_BYTES
from rucola.store.ha.epoch_master import EpochMasterLink
from rucola.store.ha.epochs import EpochList
from rucola.store.ha.master_link import Transfer
from rucola.store.ha.sent_log import SentLog


class MemberLinks(NamedTuple):
    """What the connections of one term share.

    Attributes:
        log: the log, up to what is written.
        epochs: returns the epochs of the log.
        members: the in-sync set of the term.
        now_s: returns the time of the event loop.
        joined: called when a slave that is not in sync may be: the controller is asked at once.
    """

    log: SentLog
    epochs: Callable[[], EpochList]
    members: InSyncSet
    now_s: Callable[[], float]
    joined: Callable[[], None]


class MemberLink(EpochMasterLink):
    """A connection of one term; see ``EpochMasterLink``. It must be closed when the term ends."""

    __slots__ = ("_is_known", "_term")

    def __init__(self, term: MemberLinks) -> None:
        log, members = term.log, term.members
        super().__init__(log, term.epochs, lambda: members.visible(log.sendable_offset), TRANSFER_BYTES)
        self._term, self._is_known = term, False

    def receive(self, data: bytes | memoryview) -> bool:
        """Takes bytes from the slave; returns whether it acknowledges more than before."""
        before = self.acknowledged
        super().receive(data)
        hello, term = self.hello, self._term
        if hello is not None and not self._is_known and not self.reason:
            self._is_known = True
            self.reason = term.members.connected(hello.broker_id, self, hello.is_learner)
        if hello is None or self.reason or self.acknowledged < 0:
            return False
        end, now_s = term.log.sendable_offset, term.now_s()
        self.reason = term.members.reported(hello.broker_id, self, self.acknowledged, end, now_s)
        if not self.reason and not hello.is_learner and hello.broker_id not in term.members.members:
            term.joined()
        return not self.reason and self.acknowledged > before

    def transfer(self) -> Transfer | None:
        """Returns the next frame; see ``EpochMasterLink``."""
        transfer, hello, term = super().transfer(), self.hello, self._term
        if transfer is not None and transfer.content and hello is not None:
            term.members.sent(hello.broker_id, self, term.log.sendable_offset, term.now_s())
        return transfer

    def end(self) -> None:
        """Notes that the connection has ended: the slave is not in sync any more."""
        self.reason = self.reason or "the connection has ended"
        if self.hello is not None:
            self._term.members.disconnected(self.hello.broker_id, self)
