"""Combines several store directories, each from another broker, into one catalog. Runs on the driver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from rucola.arrow.catalog import Bounds, Look, existing_queues
from rucola.arrow.offsets import Mark, queue_text
from rucola.arrow.ranges import QueueRange, SourceRange
from rucola.arrow.read_options import ReadOptions
from rucola.arrow.store_catalog import StoreCatalog
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError


class StoresCatalog:
    """``Catalog`` over several directories; a queue is in the directory of its broker."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._stores: dict[str, StoreCatalog] = {}
        try:
            for one in options.stores:
                self._stores[one.broker_name] = StoreCatalog(one)
        except BaseException:
            self.close()
            raise

    def queues(self, *, all_needed: bool) -> list[MessageQueue]:
        """Queues of the subscription in any directory."""
        subscription = self._options.subscription
        if all_needed:
            self._check_names("assign", subscription.queues)
        existing = {queue for store in self._stores.values() for queue in store.existing()}
        return existing_queues(subscription, existing, all_needed=all_needed)

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """Bounds of each queue that exists."""
        found: dict[MessageQueue, Bounds] = {}
        for name, own in self._shared_out(queues).items():
            found |= self._stores[name].bounds(own)
        return found

    def look(self, queues: Iterable[MessageQueue]) -> Look:
        """The result of ``bounds``; no queue is in ``waiting``, because no broker is asked.

        Raises:
            ConfigError: no directory belongs to the broker of a queue.
        """
        wanted = list(queues)
        self._check_names("brokerName", wanted)
        return Look(self.bounds(wanted))

    def marks(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, Mark | None]:
        """For each queue, the ``Mark`` of the record at the given queue offset."""
        found: dict[MessageQueue, Mark | None] = {}
        for name, own in self._shared_out(places).items():
            found |= self._stores[name].marks({queue: places[queue] for queue in own})
        return found

    def logged(self, queue: MessageQueue, queue_offset: int, mark: Mark) -> bool | None:
        """Whether the log of the queue's directory has the record of the mark."""
        return self._stores[queue.broker_name].logged(queue, queue_offset, mark)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset whose message was stored at or after the time."""
        return self._stores[queue.broker_name].offset_at(queue, timestamp_ms)

    def mean_record_bytes(self, queue: MessageQueue, start: int, end: int) -> int:
        """Mean size in bytes of the first records from offset ``start``."""
        return self._stores[queue.broker_name].mean_record_bytes(queue, start, end)

    def plan(self, ranges: Sequence[QueueRange]) -> list[SourceRange]:
        """The pieces of each directory, one directory after the other."""
        pieces: list[SourceRange] = []
        for name, store in self._stores.items():
            pieces += store.plan([one for one in ranges if one.queue.broker_name == name])
        return pieces

    def holders(
        self, queues: Sequence[MessageQueue], keys: Iterable[str], physical_offsets: Iterable[int]
    ) -> list[MessageQueue]:
        """The queues that may hold a wanted message, from all directories."""
        keys, physical_offsets = list(keys), list(physical_offsets)
        shared = self._shared_out(queues)
        return [one for name, own in shared.items() for one in self._stores[name].holders(own, keys, physical_offsets)]

    def plan_lookup(
        self, ranges: Sequence[QueueRange], keys: Iterable[str], physical_offsets: Iterable[int]
    ) -> list[SourceRange]:
        """The pieces of each directory, planned with its index, or as by ``plan`` if the index cannot be used."""
        keys, physical_offsets = list(keys), list(physical_offsets)
        pieces: list[SourceRange] = []
        for name, store in self._stores.items():
            own = [one for one in ranges if one.queue.broker_name == name]
            found = store.plan_lookup(own, keys, physical_offsets)
            pieces += store.plan(own) if found is None else found
        return pieces

    def plan_lite(self, ranges: Sequence[QueueRange], names: Collection[str]) -> list[SourceRange]:
        """The pieces of each directory, planned with its queues of lite topics, or as by ``plan`` if it has none."""
        pieces: list[SourceRange] = []
        for name, store in self._stores.items():
            own = [one for one in ranges if one.queue.broker_name == name]
            found = store.plan_lite(own, names)
            pieces += store.plan(own) if found is None else found
        return pieces

    def are_dense(self, ranges: Sequence[QueueRange]) -> bool:
        """Whether each directory knows it of its own ranges."""
        return all(
            store.are_dense([one for one in ranges if one.queue.broker_name == name])
            for name, store in self._stores.items()
        )

    def is_batch(self, topic: str) -> bool:
        """Whether the queues of a topic are of type BatchCQ in any directory."""
        return any(store.is_batch(topic) for store in self._stores.values())

    def close(self) -> None:
        """Closes the mapped files of all directories."""
        for store in self._stores.values():
            store.close()

    def _shared_out(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        """The queues by broker; queues of unknown brokers are left out."""
        shared: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            if queue.broker_name in self._stores:
                shared.setdefault(queue.broker_name, []).append(queue)
        return shared

    def _check_names(self, option: str, queues: Iterable[MessageQueue]) -> None:
        other = sorted(queue_text(queue) for queue in queues if queue.broker_name not in self._stores)
        if other:
            raise ConfigError(option, ", ".join(other), f"queues of these brokers: {', '.join(self._stores)}")
