"""The workloads of the explored stores. Each is short, because a crash that breaks a promise does so within a few
calls.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from rucola.common.message import StoreMessage
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.testing.store_life import ROOT, StoreLife

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"


def config(sync: bool, segment_bytes: int = 16384) -> MessageStoreConfig:
    """Returns options for tiny files: 10 units in a queue segment, and 12 keys in an index file, whose slots fill a
    page.
    """
    return MessageStoreConfig(
        store_path_root_dir=ROOT,
        mapped_file_size_commit_log=segment_bytes,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=1100,
        max_index_num=13,
        flush_disk_type=FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH,
        flush_commit_log_least_pages=0,
        flush_consume_queue_thorough_interval_ms=1,
    )


def paths(sync: bool) -> MessageStoreConfig:
    return replace(config(sync), store_path_commit_log="/disk1,/disk2,/store/third")


def pool(sync: bool) -> MessageStoreConfig:
    """Returns options for two buffers: a third segment gets no buffer until one of the first two is committed."""
    return replace(
        config(sync), transient_store_pool_enable=True, transient_store_pool_size=2, commit_commit_log_least_pages=0
    )


def by_calls(sync: bool) -> MessageStoreConfig:
    return replace(config(sync), write_without_mmap=True)


def both(sync: bool) -> MessageStoreConfig:
    return replace(
        pool(sync),
        store_path_commit_log="/disk1,/disk2",
        fast_fail_if_no_buffer_in_store_pool=True,
        warm_maped_file_enable=True,
    )


def message(random: Random, topic: bytes = b"Topic", queue_id: int = 0, size: int = 300) -> StoreMessage:
    """Returns a message with a unique body, two or three keys and a tag."""
    number = random.getrandbits(40)
    body = (b"%d " % number) * (size // 10 + 1)
    keys = b"key%d" % (number % 5) + b" other" * (number % 2)
    properties = b"KEYS\x01%b\x02TAGS\x01tag%d\x02UNIQ_KEY\x01%010x\x02" % (keys, number % 3, number)
    return StoreMessage(topic, queue_id, body[: random.randrange(size // 2, size)], properties, number, HOST)


def put(life: StoreLife, random: Random) -> None:
    """Appends single messages, with an occasional flush, dispatch, or run of the maintenance thread."""
    life.open()
    for number in range(12):
        life.put(message(random))
        if number % 3 == 1:
            life.flush()
        if number % 4 == 2:
            life.dispatch()
        if number % 5 == 4:
            life.keep()
    life.turn()
    life.put(message(random))


def batch(life: StoreLife, random: Random) -> None:
    """Appends batches inside one segment, and runs of messages that cross the border of a segment."""
    life.open()
    for number in range(9):
        if number % 2:
            life.put(*(message(random, size=700) for _ in range(4)))
        else:
            life.put_rows(*(message(random, queue_id=i % 2, size=900) for i in range(6)))
        if number % 3 == 2:
            life.turn()
    life.keep()


def border(life: StoreLife, random: Random) -> None:
    """Appends batches that do not fit into the rest of their segment."""
    life.open()
    for number in range(3):
        life.put(message(random, size=11000))
        life.put(*(message(random, queue_id=number % 2, size=3000) for _ in range(4)))
        if number == 1:
            life.turn()


def roll(life: StoreLife, random: Random) -> None:
    """Appends messages of half a segment each, so that there are many segments between two syncs."""
    life.open()
    for number in range(14):
        life.put(message(random, queue_id=number % 2, size=7000))
        if number % 2:
            life.allocate()
        if number in (3, 12):
            life.flush()
        if number in (4, 9):
            life.dispatch()
    life.turn()


def index_roll(life: StoreLife, random: Random) -> None:
    """Fills index files faster than they are synced."""
    life.open()
    for number in range(20):
        life.put(message(random, size=60))
        if number % 6 == 5:
            life.turn()
        if number == 11:
            life.keep()
    life.turn()
    life.keep()


def queues(life: StoreLife, random: Random) -> None:
    """Appends to several topics and queues, until queues have several segments."""
    life.open()
    for number in range(36):
        life.put(message(random, b"T%d" % (number % 2), random.choice((0, 0, 0, 3)), size=60))
        if number % 9 == 8:
            life.turn()
        if number == 17:
            life.keep()
    life.turn()


def clean_stop(life: StoreLife, random: Random) -> None:
    """Stops and starts the store, with few messages or none in between."""
    for count in (3, 0, 1):
        life.open()
        for _ in range(count):
            life.put(message(random, queue_id=count))
        if count == 3:
            life.turn()
            life.keep()
            life.put(message(random))
        life.stop()


def missing_queue(life: StoreLife, random: Random) -> None:
    """Stops the store and removes a queue; the next start rebuilds it."""
    life.open()
    for number in range(14):
        life.put(message(random, queue_id=number % 2, size=900))
    life.turn()
    life.stop()
    for names in (life.disk.names, life.disk.durable):
        for path in [path for path in names if path.startswith(f"{ROOT}/consumequeue/Topic/1")]:
            del names[path]
    life.open()
    life.put(message(random))
    life.turn()


def kill(life: StoreLife, random: Random) -> None:
    """Kills the process. The next process finds bytes in the page cache that never reached the disk."""
    life.open()
    for number in range(26):
        life.put(message(random, queue_id=number // 24, size=1200))
        if number == 4:
            life.turn()
            life.keep()
    life.dispatch()
    life.open()
    life.put(message(random))
    life.turn()
    life.open()
    life.keep()


def while_syncing(life: StoreLife, random: Random) -> None:
    """Appends messages while the disk is busy with earlier ones."""

    def arrive() -> None:
        life.put(message(random))
        life.put(message(random, queue_id=1, size=6000))

    life.open()
    for _ in range(4):
        life.put(message(random))
        life.flush(meanwhile=arrive)
        life.dispatch()
    life.keep()


def expiry(life: StoreLife, random: Random) -> None:
    """Lets segments of log, queues and index expire while messages arrive; stops and starts the store in between."""
    life.open()
    for number in range(20):
        life.put(message(random, queue_id=number % 2, size=6000))
        if number % 4 == 3:
            life.turn()
    life.put(message(random, b"Old", size=500))
    life.turn()
    life.expire()
    for number in range(12):
        life.put(message(random, queue_id=number % 3, size=7000))
    life.turn()
    life.expire()
    life.stop()
    life.open()
    life.put(message(random, b"Old"))
    life.turn()


def deletion(life: StoreLife, random: Random) -> None:
    """Deletes topics, creates them again, and deletes them again; some of their messages were not dispatched."""
    life.open()
    for number in range(12):
        life.put(message(random, b"T%d" % (number % 2), number % 3, size=900))
    life.turn()
    life.keep()
    life.put(message(random, b"T0"))
    life.delete(b"T0")
    life.put(message(random, b"T0", size=900))
    life.keep()
    for number in range(4):
        life.put(message(random, b"T%d" % (number % 2), size=900))
    life.turn()
    life.delete(b"T1")
    life.delete(b"T0")
    life.put(message(random, b"T1"))
    life.turn()
    life.keep()


def expired_and_deleted(life: StoreLife, random: Random) -> None:
    """Deletes a topic and creates it again while expired files of its queues wait for removal."""
    life.open()
    for passes in (2, 3, 4):
        for number in range(24):
            life.put(message(random, b"T0", size=6000 if number < 14 else 60))
            if number % 4 == 3:
                life.turn()
        life.keep()
        life.begin_to_expire(passes)
        life.delete(b"T0")
        for _ in range(12):
            life.put(message(random, b"T0", size=60))
        life.turn()
        life.keep()


def parked(life: StoreLife, random: Random) -> None:
    """Limits the number of mapped queue files so much that most are unmapped; deletes topics and creates them again
    meanwhile.
    """
    life.open()
    life.store._queues.maps_max = 2
    for number in range(36):
        life.put(message(random, b"T%d" % (number % 3), number % 2, size=60))
        if number % 4 == 3:
            life.turn()
        if number % 12 == 11:
            life.delete(b"T%d" % (number % 2))
            life.keep()
    life.turn()
    life.keep()


def commits(life: StoreLife, random: Random) -> None:
    """Commits some messages without a flush, and others not at all; each write buffer is used for several segments;
    then the process is killed.
    """
    life.open()
    for number in range(16):
        life.put(*(message(random, queue_id=number % 2, size=3500) for _ in range(1 + number % 2)))
        if number % 3 == 1:
            life.commit()
            life.dispatch()
        if number % 5 == 4:
            life.flush()
        if number == 9:
            life.keep()
    life.open()
    life.put(message(random, size=6000))
    life.turn()
    life.put(message(random, size=6000))
    life.commit()
    life.put(message(random))
    life.stop()
    life.open()


WORKLOADS = {
    workload.__name__: workload
    for workload in (
        put,
        batch,
        border,
        roll,
        index_roll,
        queues,
        clean_stop,
        missing_queue,
        kill,
        while_syncing,
        expiry,
        deletion,
        expired_and_deleted,
        parked,
        commits,
    )
}

CONFIGS = {
    "sync": config(True),
    "async": config(False),
    "paths": paths(True),
    "pool": pool(False),
    "both": both(True),
    "calls": by_calls(False),
}
"""Configurations of the log, by name."""
