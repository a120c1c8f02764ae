"""The power fails while batch queues, extensions and light queues are written: afterwards, the queues match the log."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random

import pytest
from tests.crash.workloads import HOST, config, message
from tests.sizes import size

from rucola.common.message import StoreMessage
from rucola.store.config import MessageStoreConfig
from rucola.store.results import PutMessageStatus
from rucola.store.verify.check import verify
from rucola.testing.crash_states import CrashState, crash_states
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT, StoreLife, empty_disk

SEED = 20261121
ONE_IN = size(28, 4)
BATCH = b"BatchTopic"


def kinds(sync: bool) -> MessageStoreConfig:
    """Returns options for small files: four units in a segment of a batch queue, three in one of a queue extension."""
    return replace(
        config(sync),
        mapper_file_size_batch_consume_queue=4 * 46,
        enable_consume_queue_ext=True,
        mapped_file_size_consume_queue_ext=70,
        enable_lmq=True,
        enable_multi_dispatch=True,
    )


def inner_batch(random: Random, count: int) -> StoreMessage:
    text = b"UNIQ_KEY\x01%x\x02INNER_NUM\x01%d\x02" % (random.getrandbits(30), count)
    return StoreMessage(BATCH, 0, b"member" * 20 * count, text, 1, HOST, sys_flag=0xC0)


def light(random: Random, names: bytes) -> StoreMessage:
    one = message(random, b"Parent", size=40)
    return replace(one, properties=one.properties + b"INNER_MULTI_DISPATCH\x01%b\x02" % names)


def lives(life: StoreLife, random: Random) -> None:
    """Writes messages, stops the store, writes again, kills it, and writes again."""
    for last in range(3):
        life.load()
        life.store.start()
        for number in range(4):
            life.store.put_message(inner_batch(random, number % 3 + 1))
            life.store.put_message(light(random, (b"%LMQ%a", b"%LMQ%a,%LMQ%b", b"plain,%LMQ%b")[number % 3]))
            if number % 2:
                life.store.put_message(message(random, BATCH, size=40))
                life.turn()
            if number == 1:
                life.keep()
        if last == 0:
            life.store.shutdown()
        else:
            life.turn()


def recover(state: CrashState, sync: bool, acked_end: int) -> None:
    disk = SimulatedDisk.of(state.image)
    life = StoreLife(disk, kinds(sync))
    life.load()
    assert life.store.max_offset >= acked_end
    life.store.start()
    result = life.store.put_message(message(Random(SEED), b"Parent", size=40))
    assert result.status is PutMessageStatus.PUT_OK
    life.store.shutdown()
    found = [one for one in verify(ROOT, files_on(disk)).findings if one.file != "config"]  # no broker made the tables
    assert found == [], (state.choice, found)


@pytest.mark.few(1)
@pytest.mark.parametrize("sync", [False, True])
def test_all_kinds_of_queues_agree_with_the_log_after_a_power_cut(sync: bool) -> None:
    life, random, known = StoreLife(empty_disk(), kinds(sync)), Random(SEED), set()

    steps = count()

    def at_step(_kind: str, _path: str) -> None:
        if next(steps) % ONE_IN != sync:
            return  # the steps that are checked differ in the two configurations
        for state in crash_states(life.disk, random, 1):
            key = hash(tuple(state.image.items()))
            if key not in known:
                known.add(key)
                recover(state, sync, life.model.acked_end)

    life.disk.observer = at_step
    lives(life, Random(SEED))
    life.disk.observer = None
    assert len(known) > 20
