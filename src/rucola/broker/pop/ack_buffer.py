"""Collects acknowledgements of popped messages for half a second, so that those of one pop become one record of the
log instead of up to 32, each of which would pass through the timer.

An acknowledgement in the buffer is answered at once. It is in the ``AckJournal`` meanwhile, so that it outlives the
process. Some are stored at once: those that the log may refuse, those whose messages become visible again within
``MARGIN_MS``, all with SYNC_FLUSH, and all while the log or the journal cannot be written.

The buffer collects in one half of the journal, for half a second or until that half is full. It then stores what it has
collected, and collects in the other half. A half is free when all of it is in the log.

What a killed process has left is stored in steps, while the broker serves. Until all of it is in the log, nothing is
taken, and no popped message may become visible again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from rucola.broker.cold_reads import ColdReads
from rucola.broker.paced_work import PacedWork
from rucola.broker.pop.ack_journal import AckJournal
from rucola.broker.pop.revive_log import ReviveLog
from rucola.errors import BrokerError, DiskError
from rucola.formats.pop import PopAck, PopKey
from rucola.remoting.fairness.steps import Steps
from rucola.runtime.logs import event
from rucola.runtime.supervision import Supervisor

logger = logging.getLogger(__name__)

HELD_S: Final = 0.5
MARGIN_MS: Final = 5_000
STORED_AT_ONCE: Final = 64
"""Records that one call of ``work`` stores; each takes up to 200 µs."""
READ_AT_ONCE: Final = 256
LEFT_STORED_AT_ONCE: Final = 16
"""Of what a killed process has left, entries that one call of ``work`` reads, each in 10 µs, and records that one call
stores: there may be 20,000.
"""
RETRY_MS: Final = 1_000
OPEN_AGAIN_S: Final = 60.0
"""Pause after the journal could not be created."""
_CHARACTERS_MAX = 1024
"""Characters of the names of topic, group and broker together. They fit into a record, whatever they are."""
_WORK = "storing of acknowledgements"


_Place = tuple[PopKey, int, int]
"""What acknowledgements have in common that share a record: the pop, the due time in ms, the revive queue."""


class AckBuffer:
    """Call ``start``, then ``stop``. Event loop only.

    Args:
        log: where acknowledgements go.
        journal: holds those that are not in the log yet.
        now_ms: the store's time.
        hidden_max_ms: longest time until an acknowledgement is due for which the log takes it.
        enabled: whether the buffer takes any; if not, it only stores what an earlier process has left.
    """

    def __init__(
        self,
        log: ReviveLog,
        journal: AckJournal,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        hidden_max_ms: int,
        *,
        enabled: bool,
    ) -> None:
        self._log, self._journal, self._hidden_max_ms = log, journal, hidden_max_ms
        self._now_ms, self._monotonic = now_ms, monotonic
        self._enabled = enabled
        self._works = self._is_open = self._is_stuck = False
        self._open_from_s = 0.0
        self._collecting: dict[_Place, list[int]] = {}
        self._storing: dict[_Place, list[int]] = {}
        self._began_s = 0.0
        self._work: PacedWork | None = None
        self._left: Steps[None] | None = None
        """Stores what an earlier process has left; None if that is done."""
        self._ready: Callable[[], None] = _nothing

    def __len__(self) -> int:
        """Number of records that the acknowledgements will become, one for each pop."""
        return len(self._collecting) + len(self._storing)

    # --- life

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        cold_reads: ColdReads,
        supervisor: Supervisor,
        ready: Callable[[], None],
    ) -> None:
        """Begins to store what an earlier process has left. When that is done, or cannot be done, calls ``ready`` and
        begins to take acknowledgements.
        """
        self._left, self._ready = self._store_left(), ready
        self._work = PacedWork(_WORK, lambda _: self.work(), loop, cold_reads, supervisor)
        self._work.start()

    async def stop(self) -> None:
        """Stores all acknowledgements; further ones are not taken."""
        self._ready = _nothing
        await self._store_all_left()
        self._works = False
        if self._work is not None:
            self._work.stop()
        if not self._is_open:
            return
        try:
            await self.store_all()
            self._journal.remove()
        except (DiskError, BrokerError) as error:
            self._journal.close()
            event(logger, logging.ERROR, "acknowledgements not stored, the next start stores them", error=error)

    def _opens(self) -> bool:
        """Creates the journal at the first need; returns whether there is one."""
        if self._is_open or self._monotonic() < self._open_from_s:
            return self._is_open
        try:
            self._journal.open()
        except DiskError as error:
            self._open_from_s = self._monotonic() + OPEN_AGAIN_S
            event(logger, logging.ERROR, "journal of acknowledgements not created, each is stored alone", error=error)
        else:
            self._is_open = True
        return self._is_open

    async def store_all(self) -> None:
        """Stores now what has been collected so far; what comes meanwhile may stay.

        Raises:
            BrokerError: it cannot be stored, and is kept.
        """
        await self._store_all_left()
        await self._store_half()
        self._turn()
        await self._store_half()

    async def _store_all_left(self) -> None:
        while self._left is not None:
            self._store_some_left(self._left)
            await asyncio.sleep(0)

    def _store_some_left(self, left: Steps[None]) -> None:
        try:
            next(left)
            return
        except StopIteration:
            pass
        except (DiskError, BrokerError) as error:
            self._storing.clear()  # what is in the file stays for the next start
            event(logger, logging.ERROR, "acknowledgements of the last process not stored", error=error)
        self._left = None
        self._ready()

    def _store_left(self) -> Steps[None]:
        for number, entry in enumerate(self._journal.left(), 1):
            place = entry.ack.key, entry.due_ms, entry.revive_queue
            self._storing.setdefault(place, []).extend(entry.ack.queue_offsets)
            if not number % READ_AT_ONCE:
                yield
        while self._storing:
            self._store_some(LEFT_STORED_AT_ONCE)
            yield
        self._journal.remove()
        self._works = self._enabled

    async def _store_half(self) -> None:
        while self._storing:
            self._store_some()
            await asyncio.sleep(0)

    # --- acknowledgements

    def take(self, key: PopKey, queue_offsets: Sequence[int], due_ms: int, revive_queue: int) -> bool:
        """Takes an acknowledgement; returns False if it must be stored at once."""
        if not self._works or self._is_stuck:
            return False
        if not MARGIN_MS <= due_ms - self._now_ms() <= self._hidden_max_ms or not self._opens():
            return False
        place = key, due_ms, revive_queue
        collected = self._collecting.get(place)
        if collected is None and not self._can_be_stored(place):
            return False
        if not self._journal.write(key, queue_offsets, due_ms, revive_queue):
            if not self._turn() or not self._journal.write(key, queue_offsets, due_ms, revive_queue):
                return False
            collected = None
        if collected is None:
            if not self._collecting:
                self._began_s = self._monotonic()
                self._soon()
            collected = self._collecting[place] = []
        collected += queue_offsets
        return True

    def work(self) -> int | None:
        """Stores some of the acknowledgements; returns the milliseconds until the next call, None if there are none."""
        if self._left is not None:
            self._store_some_left(self._left)
            return None if self._left is None else 0
        if not self._storing and self._collecting and self._monotonic() >= self._began_s + HELD_S:
            self._turn()
        try:
            self._store_some()
        except BrokerError:
            self._is_stuck = True
            return RETRY_MS
        self._is_stuck = False
        if self._storing:
            return 0
        if not self._collecting:
            return None
        return max(round(1000 * (self._began_s + HELD_S - self._monotonic())), 0)

    def _soon(self) -> None:
        if self._work is not None:
            self._work.soon()

    def _turn(self) -> bool:
        """Begins to store what was collected; returns False if the half before it is not free yet."""
        if self._storing:
            return False
        self._storing, self._collecting = self._collecting, {}
        self._journal.turn()
        self._soon()
        return True

    def _store_some(self, count_max: int = STORED_AT_ONCE) -> None:
        """Stores up to ``count_max`` records. One that is refused does not keep the others back.

        Raises:
            BrokerError: some were refused; they are tried again after all others.
        """
        refusal: BrokerError | None = None
        for place in list(islice(self._storing, count_max)):
            key, due_ms, revive_queue = place
            collected = self._storing.pop(place)
            queue_offsets = tuple(sorted(set(collected)))
            try:
                self._log.put_ack(PopAck(key, queue_offsets, batch=len(queue_offsets) > 1), due_ms, revive_queue)
            except BrokerError as error:
                if due_ms < self._now_ms():  # its messages come again
                    event(logger, logging.ERROR, "acknowledgements dropped", error=error, messages=len(queue_offsets))
                else:
                    self._storing[place], refusal = collected, error
        if refusal is not None:
            raise refusal

    def _can_be_stored(self, place: _Place) -> bool:
        """Whether the log takes such acknowledgements. If not, storing one at once tells the client why."""
        key, _, revive_queue = place
        texts = key.topic + key.group + key.broker_name
        is_text = texts.isprintable() and len(texts) <= _CHARACTERS_MAX
        return is_text and 0 <= revive_queue < self._log.queues


def _nothing() -> None:
    """Nobody waits for it."""
