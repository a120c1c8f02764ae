"""Runs stores with real threads for a few seconds, and kills or stops them in between; the campaign ``threads`` runs
them for longer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.crash.thread_watch import Broken, SyncWatch
from tests.crash.threads import run
from tests.sizes import size
from tests.unit.store.stores import config as config_of
from tests.unit.store.stores import message

from rucola.store.message_store import MessageStore
from rucola.store.recovery.watermark import Watermark
from rucola.store.topic_deletion import TopicDeletion
from rucola.testing.clock import ManualClock


@pytest.mark.few(1)
@pytest.mark.parametrize("config", ["sync", "pool"])
def test_promises_are_kept_between_threads(config: str) -> None:
    life_s = size(8, 15) / 10
    done = run(2 * life_s, 1, config, life_s=life_s)
    assert done["acknowledged"] > 50
    assert done["checked"] > 50


def test_the_watch_misses_no_sync_while_a_topic_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues of a topic leave the work of the maintenance thread before their files are removed."""
    config = config_of(tmp_path, flush_interval_consume_queue_ms=60_000)
    watch = SyncWatch(tmp_path, config)
    store = MessageStore(config, watch.files(), ManualClock(step_ms=1))
    watch.is_deleted = store.is_deleted
    store.load()
    store.start()
    for number in range(4):
        store.put_message(message(number, b"AB"[number % 2 :][:1]))
    store.dispatch()
    store._flush.flush()
    recorded, finish, checked = Watermark(0, store.max_offset), TopicDeletion.finish, []

    def meanwhile(deletion: TopicDeletion, topic: bytes) -> list[str]:
        store._keeper.sync_queues()
        watch.check(recorded)
        checked.append(topic)
        return finish(deletion, topic)

    monkeypatch.setattr(TopicDeletion, "finish", meanwhile)
    with pytest.raises(Broken, match="not synced"):
        watch.check(recorded)
    store.delete_topic(b"B")
    assert checked == [b"B"]
    store.put_message(message(5, b"B"))
    store.dispatch()
    with pytest.raises(Broken, match="not synced"):
        watch.check(replace(recorded, queues_offset=store.max_offset))
    store.shutdown()
