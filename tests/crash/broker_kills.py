"""Kills ``rucola broker`` with SIGKILL again and again while it handles delayed, transactional and popped messages.

    python -m tests.crash.broker_kills --rounds 20
    python -m tests.crash.broker_kills --rounds 4 --flush sync --seed 7

Every process continues with the store of the previous process. At the end, no message may be missing or early, no
acknowledged message may have been delivered again, and no half message may be both committed and moved to
TRANS_CHECK_MAX_TIME_TOPIC. The exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.crash.kill_ledger import Ledger, Lie
from tests.crash.kill_traffic import LEVELS_MS, Traffic

SETTLE_S = 40.0
_LEVELS = " ".join(f"{delay_ms // 1000}s" for delay_ms in LEVELS_MS)
_OPTIONS = f"""
listenPort=0
brokerName=broker-a
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=20000
mappedFileSizeTimerLog=104000
maxHashSlotNum=1000
maxIndexNum=4000
messageDelayLevel={_LEVELS}
transactionTimeOut=300
transactionCheckInterval=200
transactionCheckMax=15
reviveInterval=100
flushConsumerOffsetInterval=500
timerFlushIntervalMs=200
"""


class BrokerProcess:
    """A process that runs ``rucola broker`` over a store directory.

    Attributes:
        address: address of the broker.
    """

    def __init__(self, directory: Path, sync: bool) -> None:
        conf = directory / "broker.conf"
        flush = "SYNC_FLUSH" if sync else "ASYNC_FLUSH"
        conf.write_text(f"{_OPTIONS}storePathRootDir={directory / 'store'}\nflushDiskType={flush}\n")
        with (directory / "broker.log").open("ab") as log:
            command = [sys.executable, "-m", "rucola", "broker", "-c", str(conf), "--json"]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Lie(f"the broker does not start: exit code {self._process.wait(10)}")
        self.address: str = json.loads(line)["brokers"][0]

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


async def _live(broker: BrokerProcess, ledger: Ledger, number: int, random: Random) -> None:
    """Sends and receives messages until the broker is killed."""
    async with Traffic(broker.address, ledger, number, random) as traffic:
        running = asyncio.ensure_future(traffic.run())
        await asyncio.wait([running], timeout=0.3 + random.random() * 2)
        broker.kill()
        await running


async def _settle(broker: BrokerProcess, ledger: Ledger, number: int) -> None:
    async with Traffic(broker.address, ledger, number, Random(number)) as traffic:
        await traffic.settle(SETTLE_S)


def kill_rounds(directory: Path, seed: int, flushes: Sequence[bool]) -> Ledger:
    """Runs broker processes that are killed, and at the end a process that runs until all messages have arrived.

    Args:
        flushes: for each process, whether it runs with SYNC_FLUSH.

    Raises:
        Lie: a broker broke a promise that it had given in a response.
    """
    random, ledger = Random(seed), Ledger()
    for number, sync in enumerate(flushes, 1):
        broker = BrokerProcess(directory, sync)
        try:
            if number < len(flushes):
                asyncio.run(_live(broker, ledger, number, random))
            else:
                asyncio.run(_settle(broker, ledger, number))
        finally:
            broker.kill()
    return ledger


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.broker_kills", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="number of kills in each flush mode")
    parser.add_argument("--seed", type=int, default=1, help="seed for the messages sent and the moments of kills")
    parser.add_argument("--flush", choices=("sync", "async"), help="only this flush mode")
    options = parser.parse_args()
    print(f"kill rounds of the broker: seed {options.seed}, {options.rounds} kills")
    for flush in [options.flush] if options.flush else ["sync", "async"]:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="rucola-kills-") as directory:
            try:
                ledger = kill_rounds(Path(directory), options.seed, [flush == "sync"] * (options.rounds + 1))
            except Lie as lie:
                print(f"VIOLATION, {flush}: {lie}")
                return 1
        print(
            f"{flush}: {len(ledger.sent)} to be popped, {sum(ledger.popped.values())} pops, "
            f"{len(ledger.due_ms)} delayed, {len(ledger.halves)} transactions, {time.perf_counter() - begin:.1f} s",
            flush=True,
        )
    print("no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
