"""Cuts the power of a real file system under a store that writes and expires: loop device, xfs or ext4, shutdown call.

    python -m tests.crash.file_system_cuts --rounds 50 --seed 1
    python -m tests.crash.file_system_cuts --rounds 50 --kind ext4 --ballast 170

Needs root, ``mkfs.xfs`` and ``xfs_io``. The shutdown call of the file system keeps what was synced and drops the rest,
as a power cut does; some rounds also write the journal first. Each round starts a writer over the store that the last
round left. Segments are small, and expire as soon as they are synced, so that each second removes and creates files of
log, queues and index, and sometimes a topic. With ``--ballast``, that many MiB of the disk are taken by another file,
and expiry is forced by the space. The exit code is 1 if a start failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.crash.loop_disk import loop_disk, run

from rucola.cli.exit_codes import exit_code
from rucola.common.message import StoreMessage
from rucola.errors import RucolaError
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store import retention
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore

TOPICS, QUEUES = 6, 3
EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))


def write(root: str, seed: int) -> int:
    """Opens the store, says ``ready``, and writes until it is killed; returns the exit code of a failed start."""
    random = Random(seed)
    retention._FIRST_LOOK_S = 0.2
    config = MessageStoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=400,
        file_reserved_time_h=0,
        delete_when=EVERY_HOUR,
        delete_file_batch_max=random.choice([1, 3, 10]),
        clean_resource_interval_ms=random.choice([20, 100, 300]),
        flush_interval_consume_queue_ms=random.choice([10, 50, 200]),
        flush_consume_queue_thorough_interval_ms=random.choice([50, 500, 60_000]),
        flush_disk_type=random.choice([FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH]),
    )
    try:
        store = MessageStore(config, Files(), SystemClock())
        store.load()
        store.start()
    except RucolaError as error:
        print(f"exit code {int(exit_code(error))}: {error}", flush=True)
        return int(exit_code(error))
    print("ready", flush=True)
    for number in range(sys.maxsize):
        topic, body = b"T%d" % random.randrange(TOPICS), bytes(random.randrange(3000))
        store.put_message(StoreMessage(topic, random.randrange(QUEUES), body, b"KEYS\x01k%d\x02" % number, 1, bytes(8)))
        if random.random() < 0.05:
            store.dispatch()
            time.sleep(0.002)
        if random.random() < 0.0005:
            store.delete_topic(b"T%d" % random.randrange(TOPICS))
    return 0


def cuts(directory: Path, kind: str, rounds: int, seed: int, ballast_mib: int) -> list[str]:
    """Runs the rounds on an image in ``directory``; returns what the failed starts said."""
    random, failed = Random(seed), []
    with loop_disk(directory, kind) as disk:
        if ballast_mib:
            run("fallocate", "-l", f"{ballast_mib}M", str(disk.path / "ballast"))
        for number in range(rounds):
            command = [sys.executable, "-m", "tests.crash.file_system_cuts", "--write", str(disk.path / "store")]
            command += ["--seed", str(seed * 10_000 + number)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as writer:
                assert writer.stdout is not None
                if (line := writer.stdout.readline().strip()) != "ready":
                    failed.append(f"round {number}: {line or 'no line'}")
                    break
                time.sleep(random.choice([0.05, 0.3, 1, 2]) * (0.5 + random.random()))
                disk.cut(random.choice(["shutdown", "shutdown", "shutdown -f"]))
                writer.kill()
            disk.remount()
    return failed


def main() -> int:
    """Runs the rounds and prints the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=("xfs", "ext4"), default="xfs")
    parser.add_argument("--ballast", type=int, default=0, metavar="MIB")
    parser.add_argument("--write", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        return write(arguments.write, arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        failed = cuts(Path(directory), arguments.kind, arguments.rounds, arguments.seed, arguments.ballast)
    print("\n".join([*failed, f"{arguments.rounds} rounds on {arguments.kind}, {len(failed)} starts failed"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
