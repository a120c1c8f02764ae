"""Follows the master behind a controller: a store whose log is a copy, and the connection that fills it.

The same as ``copying`` does, with the frames of ``formats.auto_switch``. The log begins where the master's begins, and
the epochs of both say where they part, so the master's broker port is not asked. Event loop only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from ssl import SSLContext

from rucola.broker.ha.copying import copy_while_disk_works
from rucola.broker.ha.slave_client import SlaveClient
from rucola.formats.auto_switch import Hello
from rucola.formats.ha import NEWEST_SEGMENT
from rucola.runtime.logs import event
from rucola.store.ha.epoch_slave import EpochSlaveLink
from rucola.store.ha.epoch_store import EpochStore
from rucola.store.ha.role import StoreRole
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)


class MemberCopying:
    """The copy of one log, for one term.

    Attributes:
        client: the connection.

    Args:
        store: the loaded store of a slave (``StoreRole.become_slave``). If its log is empty, it is started when the
            first bytes come; otherwise the caller starts it.
        epochs: the loaded epochs of the log.
        role: its role; learns what is confirmed.
        hello: who the slave is.
        address: see ``SlaveClient``.
        appended: called after bytes were taken.
        quarantine_bytes_max: see ``MessageStore.plan_cut``.
        tls: see ``SlaveClient``.
    """

    def __init__(
        self,
        store: MessageStore,
        epochs: EpochStore,
        role: StoreRole,
        hello: Hello,
        address: Callable[[], str],
        appended: Callable[[], None],
        quarantine_bytes_max: int,
        tls: SSLContext | None = None,
    ) -> None:
        self._store, self._epochs, self._role, self._hello = store, epochs, role, hello
        self._appended, self._quarantine_bytes_max = appended, quarantine_bytes_max
        self._log = store.slave_log(passes_damage=False)
        self._link: EpochSlaveLink | None = None
        # What is acknowledged counts as kept, so it is synced.
        self.client = SlaveClient(address, self._connect, _let_master_choose, self._held, self._took, tls)

    @property
    def is_empty(self) -> bool:
        """Whether the copy has no record."""
        return self._log.is_empty

    async def run(self) -> None:
        """Copies until it is cancelled, or until the log must be cut. The cut is planned then: shut the store down, and
        open it again.

        Raises:
            CopyRefusedError: the copy must not go on with this master's log.
            DiskError: the disk failed or is full, or it is unknown whether the cut is planned.
        """
        await copy_while_disk_works(self.client, self._store)
        link = self._link
        assert link is not None, "only a connection ends a copy"
        event(
            logger,
            logging.WARNING,
            "log has more than the master's, cut when it is opened again",
            cut_offset=link.cut_offset,
            end_offset=self._log.end_offset,
        )
        self._store.plan_cut(link.cut_offset, self._quarantine_bytes_max, link.cut_epochs.entries)

    def _connect(self, _start: int) -> EpochSlaveLink:
        self._link = link = EpochSlaveLink(self._log, self._epochs, self._hello, self._store.root)
        return link

    def _held(self) -> int:
        return self._store.flushed_offset

    def _took(self) -> None:
        if self._link is not None and self.client.is_copying:
            self._role.confirm(self._link.confirm_offset)
        self._appended()


async def _let_master_choose() -> int:
    """What an empty slave asks for: behind a controller, the master begins at its oldest byte then."""
    return NEWEST_SEGMENT
