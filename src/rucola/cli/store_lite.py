"""Reads one lite topic of a store for ``rucola store``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from rucola.errors import ConfigError
from rucola.formats.light_queue import is_lite, lite_topic
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.offline.rows import SegmentRows

_NAMED_MAX = 20


@contextmanager
def lite_rows(store: OfflineStore, parent: str, name: str, first: int) -> Iterator[Iterator[SegmentRows]]:
    """The messages of a lite topic, in its order, from the offset ``first`` on. A store of RocketMQ has a consume queue
    for it.

    Raises:
        ConfigError: the lite topic has no messages; the error names some that have.
        StoreDamagedError: the lite topics are damaged, or a record does not match its unit.
    """
    queue_topic = lite_topic(f"{parent}${name}".encode("utf-8", "surrogateescape"))
    if not is_lite(queue_topic):
        raise ConfigError("--lite-topic", name, "a name without $")
    text = queue_topic.decode("utf-8", "surrogateescape")
    view = store.lite_view()
    if view is None:
        found = store.queue_range(text, 0)
        if found.min_offset == found.max_offset:
            raise ConfigError("--lite-topic", name, f"a lite topic of {parent} with messages: the store keeps none")
        yield store.rows(text, 0, first, found.max_offset)
        return
    try:
        queue = view.queue(queue_topic)
        if queue is None or queue.min_offset == queue.max_offset:
            head = lite_topic(f"{parent}$".encode("utf-8", "surrogateescape"))
            names = list(islice(view.names(parent.encode("utf-8", "surrogateescape")), _NAMED_MAX + 1))
            shown = ", ".join(one[len(head) :].decode("utf-8", "replace") for one in names[:_NAMED_MAX])
            more = " and more" * (len(names) > _NAMED_MAX)
            raise ConfigError("--lite-topic", name, f"a lite topic of {parent} with messages: {shown or 'none'}{more}")
        yield store.rows_of(text, 0, view.units(queue, first))
    finally:
        view.close()
