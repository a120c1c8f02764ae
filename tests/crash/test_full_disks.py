"""Stores on real file systems without a free byte: they start, refuse messages, and are not killed by a page fault."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.crash.loop_disk import loop_disk

LIFE = """
import sys
from rucola.cli.exit_codes import exit_code
from rucola.common.message import StoreMessage
from rucola.errors import RucolaError
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore

root, count, leaves = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
sizes = dict(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=60_000)
config = MessageStoreConfig(store_path_root_dir=root, max_hash_slot_num=3000, max_index_num=4000, **sizes)
try:
    store = MessageStore(config, Files(), SystemClock())
    store.load()
    store.start()
    accepted = 0
    for number in range(count):
        message = StoreMessage(b"T%d" % (number % 5), 0, bytes(1000), b"KEYS\\x01k%d\\x02" % number, 1, bytes(8))
        accepted += store.put_message(message).status.name == "PUT_OK"
        if number % 100 == 0:
            store.dispatch()
    store.dispatch()
    print(store.state.name, accepted, flush=True)
    if not leaves:
        store.shutdown()
except RucolaError as error:
    print("exit code", int(exit_code(error)), error)
"""


def live(store: Path, count: int, *, killed: bool = False) -> str:
    """A process that opens the store and puts messages; returns its last line, or its exit code."""
    command = [sys.executable, "-c", LIFE, str(store), str(count), *(["killed"] if killed else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"process ended with {done.returncode}: {done.stderr[-500:]}"


SMALL_BLOCKS = ("ext4", "-b", "1024", "-m", "0")


@pytest.mark.few
@pytest.mark.parametrize(
    ("disk_kind", "sparse"),
    [(("xfs",), False), (SMALL_BLOCKS, False), (SMALL_BLOCKS, True)],
    ids=["xfs", "ext4 with small blocks", "files with holes"],
)
def test_a_killed_store_on_a_full_disk_starts_and_is_not_killed_by_page_faults(
    tmp_path: Path, disk_kind: tuple[str, ...], sparse: bool
) -> None:
    try:
        with loop_disk(tmp_path, *disk_kind) as disk:
            store = disk.path / "store"
            assert live(store, 3000, killed=True).startswith("RUNNING 3000")
            if sparse:
                # As RocketMQ leaves its files. The log keeps its blocks: without them a store cannot start.
                for part in ("consumequeue", "index"):
                    copied = ["cp", "-a", "--sparse=always", str(store / part), str(disk.path / part)]
                    subprocess.run(copied, check=True)
                    shutil.rmtree(store / part)
                    (disk.path / part).rename(store / part)
            disk.fill()
            assert live(store, 2000, killed=True).startswith("DISK_FULL ")
            if not sparse:  # otherwise queue entries are missing, and a start needs space for them
                assert live(store, 2000, killed=True).startswith("DISK_FULL ")
            disk.empty()
            assert live(store, 1000).startswith("RUNNING 1000")
    except OSError as error:
        pytest.skip(str(error))
