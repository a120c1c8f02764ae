"""Lite topics as consume queues of RocketMQ's own kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import HOST, opened

from rucola.common.message import StoreMessage
from rucola.errors import DiskError, StoreDamagedError, StoreLockedError
from rucola.formats.light_queue import lite_topic
from rucola.runtime.files import Files
from rucola.store.doctor import export_queues as export_module
from rucola.store.doctor.export_queues import ExportedQueues, export_queues
from rucola.store.inspect.summary import store_info
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.results import GetMessageStatus

LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}


def filled(path: Path, messages: int, names: int) -> None:
    store = opened(path, **LIGHT)
    put(store, messages, names)
    store.shutdown()


def put(store: MessageStore, messages: int, names: int) -> None:
    for number in range(messages):
        text = b"INNER_MULTI_DISPATCH\x01%%LMQ%%$Parent$s%d\x02" % (number % names)
        store.put_message(StoreMessage(b"Parent", 0, b"message %d" % number, text, 1, HOST))
    store.dispatch()


def shown(store: MessageStore, *numbers: int) -> list[Any]:
    """What a consumer sees of each lite topic."""
    found: list[Any] = []
    for number in numbers:
        topic = lite_topic(b"Parent$s%d" % number)
        low, high = store.queue_range(topic, 0)
        found.append((low, high))
        for offset in range(low, high):
            result = store.get_message(topic, 0, offset, 1, 1 << 20)
            assert result.status is GetMessageStatus.FOUND
            found.append(bytes(result.views[0]))
    return found


@pytest.mark.parametrize("at_once", [export_module._UNITS_AT_ONCE, 50])
def test_exported_queues_show_the_same_messages(tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "_UNITS_AT_ONCE", at_once)
    filled(tmp_path, 450, 4)
    store = opened(tmp_path, **LIGHT)
    store.delete_lite([b"Parent$s1", b"Parent$s2"])
    store._keeper.look_soon()
    put(store, 2, 2)
    store.shutdown()
    expired = sorted((tmp_path / "commitlog").iterdir())[0]
    aside = expired.rename(tmp_path / "aside")
    result = export_queues(str(tmp_path))
    assert (result.lite_topics, result.empty_topics, result.deleted_back) == (3, 1, 0)
    compare(tmp_path)
    aside.rename(expired)


def compare(path: Path, returned: bool = False) -> None:
    """Compares what RocketMQ will see with what our broker shows; ``returned``: s1 has its deleted messages again."""
    store = opened(path, **LIGHT)
    wanted, living = shown(store, 0, 2, 3), shown(store, 1)
    store.shutdown()
    store = opened(path)
    assert store.lite is None
    seen, revived = shown(store, 0, 2, 3), shown(store, 1)
    store.shutdown()
    wanted[wanted.index((112, 112))] = (0, 0)  # RocketMQ's kind of queue has no end without a message
    assert seen == wanted
    assert living[0] == (113, 114)
    assert revived[0] == ((0, 114) if returned else (113, 114))
    assert revived[-1:] == living[1:]


def test_while_the_log_has_its_first_byte_deleted_messages_come_along(tmp_path: Path) -> None:
    filled(tmp_path, 450, 4)
    store = opened(tmp_path, **LIGHT)
    store.delete_lite([b"Parent$s1", b"Parent$s2"])
    store._keeper.look_soon()
    put(store, 2, 2)
    store.shutdown()
    assert export_queues(str(tmp_path)) == ExportedQueues(3, 114 + 114 + 112, 1, 1)
    compare(tmp_path, returned=True)


def test_many_topics_are_written_by_several_threads_and_an_error_ends_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = 10 * export_module._TOPICS_AT_ONCE + 3
    filled(tmp_path, 2 * names, names)
    seen: list[tuple[int, int]] = []
    assert export_queues(str(tmp_path), progress=lambda *done: seen.append(done)) == ExportedQueues(
        names, 2 * names, 0, 0
    )
    assert seen[-1] == (names, names)
    store = opened(tmp_path)
    assert {store.queue_range(lite_topic(b"Parent$s%d" % number), 0) for number in range(names)} == {(0, 2)}
    store.shutdown()

    def fail(*_arguments: object) -> None:
        raise DiskError("consumequeue", "write", "no space")

    filled(tmp_path / "small", 3, 3)
    monkeypatch.setattr(export_module._Writer, "_begun", fail)
    for path in (tmp_path, tmp_path / "small"):
        with pytest.raises(DiskError):
            export_queues(str(path))


def test_a_later_export_replaces_the_earlier_one(tmp_path: Path) -> None:
    filled(tmp_path, 20, 4)
    assert export_queues(str(tmp_path)).units == 20
    filled(tmp_path, 20, 5)
    assert export_queues(str(tmp_path)) == ExportedQueues(5, 40, 0, 0)
    assert export_queues(str(tmp_path)) == ExportedQueues(5, 40, 0, 0)
    store = OfflineStore(str(tmp_path))
    found = store.queue_range("%LMQ%$Parent$s0", 0)
    assert (found.min_offset, found.max_offset) == (0, 9)
    assert store_info(store, Files()).lite_topics == 5
    store.close()


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    store = opened(tmp_path, **LIGHT)
    with pytest.raises(StoreLockedError):
        export_queues(str(tmp_path))
    store.shutdown()
    (tmp_path / "abort").touch()
    with pytest.raises(StoreDamagedError, match="not stopped cleanly"):
        export_queues(str(tmp_path))
    (tmp_path / "abort").unlink()
    (tmp_path / "rucola-lite/names").unlink()
    put_into = opened(tmp_path, **LIGHT)
    put(put_into, 3, 3)
    put_into.shutdown()
    (tmp_path / "rucola-lite/table").write_bytes(b"x")
    with pytest.raises(StoreDamagedError, match="not a table"):
        export_queues(str(tmp_path))


def test_a_store_without_lite_topics(tmp_path: Path) -> None:
    opened(tmp_path).shutdown()
    assert export_queues(str(tmp_path)) == ExportedQueues(0, 0, 0, 0)
