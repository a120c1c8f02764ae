"""What becomes of a store when its broker is elected, or follows another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.ha.test_master_link import synced
from tests.unit.store.stores import config, fill, message, opened

from rucola.errors import StaleEpochError, StoreError
from rucola.formats.auto_switch import EpochEntry
from rucola.formats.checkpoint import StoreCheckpoint
from rucola.runtime.files import Files
from rucola.store.ha.epoch_store import EpochStore
from rucola.store.ha.epochs import EpochList
from rucola.store.ha.role import StoreRole
from rucola.store.message_store import MessageStore
from rucola.store.recovery.watermark import WatermarkFile, Writer
from rucola.testing.clock import ManualClock


def loaded(path: Path, clock: ManualClock | None = None, is_copy: bool = False) -> MessageStore:
    """A store that is not started."""
    options = config(path, enabled_append_prop_crc=not is_copy)
    store = MessageStore(options, Files(), clock or ManualClock(step_ms=1), is_copy=is_copy)
    store.load()
    return store


def epoch_store(path: Path, *entries: tuple[int, int]) -> EpochStore:
    kept = EpochStore(Files(), str(path))
    kept.load()
    if entries:
        kept.write(EpochList(EpochEntry(*entry) for entry in entries))
    return kept


def filled(path: Path, count: int = 20) -> int:
    """A store with messages; returns where its log ends."""
    store = opened(path)
    fill(store, count)
    store.shutdown()
    return store.max_offset


def test_an_elected_master_begins_its_epoch_at_the_end_of_its_log(tmp_path: Path) -> None:
    end = filled(tmp_path)
    kept = epoch_store(tmp_path, (1, 0), (2, end + 7))
    role, store = StoreRole(kept), loaded(tmp_path)
    assert role.become_master(store, 3) == (3, end)
    assert (role.is_master, role.confirm_offset) == (True, end)
    assert epoch_store(tmp_path).epochs == EpochList((EpochEntry(1, 0), EpochEntry(3, end)))
    store.start()
    assert role.become_master(store, 3) == (3, end)  # the controller says it again
    before = store.queue_range(b"T0", 0)
    fill(store, 1, first=50)
    assert role.become_master(store, 4) == (4, store.max_offset)  # elected again: nothing but the epoch changes
    assert role.confirm_offset == end
    assert store.queue_range(b"T0", 0) == before  # the new message is not confirmed
    assert role.confirm(store.max_offset) and store.dispatch() == 1
    with pytest.raises(StaleEpochError, match="epoch 3 is over: the log was written in epoch 4"):
        role.become_master(store, 3)
    store.shutdown()


def test_a_slave_shows_only_what_is_confirmed(tmp_path: Path) -> None:
    end = filled(tmp_path)
    kept = epoch_store(tmp_path, (1, 0), (2, end), (5, end + 1))
    role, store = StoreRole(kept), loaded(tmp_path)
    with pytest.raises(StaleEpochError):
        role.become_slave(store, 4)
    role.become_slave(store, 5)
    assert epoch_store(tmp_path).epochs.last == (2, end)
    assert (role.is_master, role.confirm_offset) == (False, end)
    store.start()
    store.put_message(message(100, b"T0"))
    assert (store.dispatch(), store.confirm_offset, store.dispatch_behind_bytes) == (0, end, 0)
    assert not role.confirm(end - 1) and role.confirm_offset == end
    assert role.confirm(store.max_offset)
    assert not role.confirm(store.max_offset)
    assert store.dispatch() == 1
    store.shutdown()


def test_the_confirm_offset_outlives_a_restart(tmp_path: Path) -> None:
    end = filled(tmp_path)
    role, store = StoreRole(epoch_store(tmp_path)), loaded(tmp_path)
    role.become_slave(store, 1)
    store.start()
    fill(store, 3, first=100)
    store.shutdown()
    assert not (tmp_path / "abort").exists()
    assert StoreCheckpoint.decode((tmp_path / "checkpoint").read_bytes()).confirm_physical_offset == end
    again, store = StoreRole(epoch_store(tmp_path)), loaded(tmp_path)
    again.become_slave(store, 1)
    assert again.confirm_offset == end < store.max_offset
    store.shutdown()


def test_a_log_that_is_not_in_its_queues_is_no_masters(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_message(message(1))
    synced(store)
    role = StoreRole(epoch_store(tmp_path))
    with pytest.raises(StoreError, match="not at its end"):
        role.become_master(store, 1)
    assert not role.is_master and not epoch_store(tmp_path).epochs.entries
    store.shutdown()


def test_a_promoted_slave_goes_on_with_queue_offsets_and_store_time(tmp_path: Path) -> None:
    """Its clock is an hour behind the old master's, and what the old master wrote was not confirmed."""
    clock = ManualClock(step_ms=1)
    store = opened(tmp_path, clock=clock)
    fill(store, 8)
    newest, offsets = store.now_ms(), store.queue_range(b"T0", 0)
    store.shutdown()
    kept = epoch_store(tmp_path, (1, 0))
    slow = ManualClock(wall_ms=newest - 3_600_000, step_ms=1)
    role, slave = StoreRole(kept), loaded(tmp_path, slow, is_copy=True)
    role.become_slave(slave, 1)
    slave.slave_log()
    slave.start()
    slave.shutdown()
    master = loaded(tmp_path, slow)
    role.become_master(master, 2)
    master.start()
    assert master.now_ms() >= newest - 2
    fill(master, 8, first=8)
    role.confirm(master.max_offset)
    master.dispatch()
    assert master.queue_range(b"T0", 0) == (0, 2 * offsets[1])
    master.shutdown()


def test_who_wrote_a_stretch_is_noted_at_each_change_of_the_role(tmp_path: Path) -> None:
    """A master writes a checksum with each record, the master of a slave may not."""
    first = filled(tmp_path)
    role, kept = StoreRole(epoch_store(tmp_path)), epoch_store(tmp_path)
    slave = loaded(tmp_path, is_copy=True)
    role.become_slave(slave, 1)
    slave.start()
    fill(slave, 4, first=100)  # without checksums, as a master of RocketMQ writes
    second = slave.max_offset
    slave.shutdown()
    master = loaded(tmp_path)
    role = StoreRole(kept)
    role.become_master(master, 2)
    master.start()
    fill(master, 4, first=200)
    master.shutdown()
    watermark = WatermarkFile(Files(), str(tmp_path)).read()
    assert watermark is not None
    assert watermark.writers == ((0, Writer.RUCOLA), (first, Writer.UNKNOWN), (second, Writer.RUCOLA))


def test_epochs_expire_with_the_log(tmp_path: Path) -> None:
    kept = epoch_store(tmp_path, (1, 0), (2, 100), (3, 200))
    StoreRole(kept).expire(150)
    assert epoch_store(tmp_path).epochs.entries == ((2, 100), (3, 200))
