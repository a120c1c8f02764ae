"""The role of a broker behind a controller, as its store keeps it: epochs and confirm offset.

A change from slave to master, or back, opens the store again: recovery then cuts a record that is not whole, completes
the queues, takes the next queue offsets from them, lets store time go on from the newest record, and notes who writes
from there on, with checksums or without. So call order is: ``MessageStore.load``, then ``become_master`` or
``become_slave``, then ``MessageStore.start`` or ``slave_log``. A master that is elected again goes on as it is.

What is confirmed is what all members of the set in sync have. Only that becomes readable. It is kept in ``checkpoint``,
so that a slave that starts knows it before its master tells it.

Source: RocketMQ 5.3.3, ``AutoSwitchHAService#changeToMaster``, ``#changeToMasterWhenLastRoleIsMaster``,
``#changeToSlave``.
"""

from __future__ import annotations

import logging

from rucola.errors import StaleEpochError, StoreError
from rucola.formats.auto_switch import EpochEntry
from rucola.runtime.logs import event
from rucola.store.ha.epoch_store import EpochStore
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)


class StoreRole:
    """The role of one store. Used on the thread that owns the store.

    Attributes:
        is_master: whether the store takes messages; False before the first role.
        confirm_offset: physical offset up to which all members of the set in sync have the log.

    Args:
        epochs: the loaded epochs of the log.
    """

    def __init__(self, epochs: EpochStore) -> None:
        self.is_master = False
        self.confirm_offset = 0
        self._epochs = epochs

    def become_master(self, store: MessageStore, epoch: int) -> EpochEntry:
        """Makes the log that of the master of ``epoch``, and returns where this epoch begins. Does nothing if it is
        that already.

        Args:
            store: the store: serving if it is a master's, else loaded and not started.
            epoch: number that the controller gave to this election.

        Raises:
            StaleEpochError: a later master has written the log, or this one serves in a later epoch.
            StoreError: not all of the log is synced and in the queues; load the store again.
            DiskError: the epoch is not on the disk; messages must not be taken.
        """
        self._check(epoch)
        last = self._epochs.epochs.last
        if self.is_master and last is not None and epoch == last.epoch:
            return last
        end = store.max_offset
        if not self.is_master:
            self.confirm_offset = end  # an elected master is the only member of its set
            store.bound_by(lambda: self.confirm_offset)
            if store.flushed_offset < end or store.dispatch_behind_bytes:
                raise StoreError(f"{store.root} is not at its end {end}, so it cannot become the master's")
        self._epochs.write(self._epochs.epochs.elected(epoch, end))
        self.is_master = True
        event(logger, logging.INFO, "store is the master's", epoch=epoch, start_offset=end)
        return EpochEntry(epoch, end)

    def become_slave(self, store: MessageStore, epoch: int) -> None:
        """Makes the log a slave's, behind the master of ``epoch``.

        Args:
            store: the loaded store, not started.

        Raises:
            StaleEpochError: a later master has written the log.
            DiskError: the epochs cannot be written.
        """
        self._check(epoch)
        end = store.max_offset
        self._epochs.write(self._epochs.epochs.cut(end + 1))
        self.confirm_offset = min(max(store.stored_confirm_offset, self.confirm_offset), end)
        self.is_master = False
        store.bound_by(lambda: self.confirm_offset)
        event(logger, logging.INFO, "store is a slave's", epoch=epoch, confirm_offset=self.confirm_offset)

    def confirm(self, confirm_offset: int) -> bool:
        """Notes that all members of the set in sync have the log up to ``confirm_offset``; returns whether this is more
        than before. It never goes back as long as the role lasts.
        """
        if confirm_offset <= self.confirm_offset:
            return False
        self.confirm_offset = confirm_offset
        return True

    def expire(self, min_offset: int) -> None:
        """Forgets the epochs that have expired with the log before ``min_offset``.

        Raises:
            DiskError: the epochs cannot be written.
        """
        self._epochs.write(self._epochs.epochs.expire(min_offset))

    def _check(self, epoch: int) -> None:
        last_epoch = self._epochs.epochs.last_epoch
        if epoch < last_epoch:
            raise StaleEpochError(epoch, last_epoch)
