"""Faults while every kind of consumer works; the queue checker judges the deliveries.

One producer sends all the time, and groups of every kind read. Faults come one after another; then servers and groups
get time to recover. ``python -m tests.scenario.consumer_faults [--seeds N] [--kind NAME] [--fault NAME]`` runs the
whole matrix: every kind with every single fault, and with all faults in a random order. The seed determines the
moments, the durations, which listeners fail, and whether a group has one member or two. The exit status is 1 if a check
failed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.scenario.fault_readers import KINDS, TOPIC, Kind, Reader, SteppedClock
from tests.scenario.fault_servers import FaultServers

from rucola import Message, MessageExt, MessageQueue, Producer, ProducerConfig, PullConsumer
from rucola.errors import BrokerError, ClientError, RemotingError, RucolaError
from rucola.testing.queue_checker import Commit, Delivery, Finding, History, Outcome, Send, check

SENDER = ProducerConfig(send_msg_timeout_ms=1_000, retry_times_when_send_failed=0, poll_name_server_interval_ms=500)
SEND_PAUSE_S = 0.01
DRAIN_S = 100.0
"""Time limit in seconds; longer than the 60 s for which the locks of a killed orderly consumer last."""
FAULTS = (
    "consumer_slow",
    "broker_killed",
    "connection_blackholed",
    "namesrv_restarted",
    "consumer_killed",
    "clock_set_back",
    "broker_clock_set_back",
)


class Group:
    """A consumer group of one kind.

    Args:
        kind: the kind of the group's consumers.
        servers: the servers from which they read.
        random_: determines the messages that a listener fails to consume.
        members: number of consumers.
        directory: where broadcasting consumers keep their progress.

    Attributes:
        histories: the observations of the group, or of each broadcasting consumer.
        pause_s: seconds that a consumer takes for each message.
        reset: names of the queues whose progress may have decreased.
    """

    def __init__(self, kind: Kind, servers: FaultServers, random_: random.Random, members: int, directory: str) -> None:
        self.kind, self._servers, self._random, self._directory = kind, servers, random_, directory
        self._clock = SteppedClock()
        self._names = [f"member{number}" for number in range(members)]
        of = self._names if kind.broadcasting else ["group"]
        self.histories = {name: History(ordered=kind.ordered) for name in of}
        self._shared = members > 1
        self._readers: dict[str, Reader] = {}
        self._failed: set[bytes] = set()
        self.pause_s = 0.0
        self.failures = 0.0
        self.reset: set[str] = set()

    async def start(self) -> None:
        await asyncio.gather(*map(self._join, self._names))

    async def stop(self) -> None:
        await asyncio.gather(*(reader.stop() for reader in self._readers.values()))

    async def kill(self, pause_s: float) -> None:
        """Kills the first member, and starts it again after ``pause_s`` seconds."""
        await self._readers[self._names[0]].kill()
        await asyncio.sleep(pause_s)
        if self.kind.consumer == "simple":
            self._clock.step_ms = 0  # brokers refuse a pop whose born time is too old
        await self._join(self._names[0])

    async def set_clock_back(self, by_ms: int) -> None:
        """Sets the clock of all members back, and restarts one member."""
        self._clock.step_ms -= by_ms
        if self.kind.consumer != "simple":  # see ``kill``
            await self._readers[self._names[0]].stop()
            await self._join(self._names[0])

    def missing(self, values: set[str]) -> set[str]:
        """Returns the ``values`` not consumed yet by the group or, for broadcasting, by one of its consumers."""
        return {
            value
            for history in self.histories.values()
            for value in values.difference(delivery.value for delivery in history.deliveries)
        }

    async def note_progress(self, watcher: PullConsumer) -> None:
        """Records the current progress, which is stored on the brokers or, for broadcasting, in the members' files.

        Raises:
            RucolaError: the progress is not available now.
        """
        now = asyncio.get_running_loop().time()
        if self.kind.broadcasting:
            for name, reader in list(self._readers.items()):
                if reader.file is not None:
                    table = await asyncio.to_thread(reader.file.load)
                    commits = [Commit(f"{queue.queue_id}", offset, now) for queue, offset in table.items()]
                    self.histories[name].commits += commits
        elif self.kind.consumer != "simple":
            await self._note_progress_of_group(watcher)

    async def _note_progress_of_group(self, watcher: PullConsumer) -> None:
        routes, api = watcher._instance.routes, watcher._instance.api
        for queue in await watcher.message_queues(TOPIC):
            name = f"{queue.queue_id}"
            offset = await api.query_consumer_offset(routes.master(queue.broker_name), self.kind.name, queue)
            if offset is not None:
                reset = self._shared or name in self.reset  # a member that has to give up a queue may learn of it late
                self.reset.discard(name)
                at = asyncio.get_running_loop().time()
                self.histories["group"].commits.append(Commit(name, offset, at, reset))

    async def _join(self, name: str) -> None:
        async def take(message: MessageExt) -> bool:
            return await self._take(name, message)

        reader = Reader(self.kind, name, self._servers.namesrv, self._directory, self._clock, take)
        async with asyncio.timeout(30):
            await reader.start()
        self._readers[name] = reader

    async def _take(self, name: str, message: MessageExt) -> bool:
        """Consumes a message. Some messages fail at the first delivery, but no message fails twice."""
        if self.pause_s:
            await asyncio.sleep(self.pause_s)
        if self.kind.fails and message.body not in self._failed and self._random.random() < self.failures:
            self._failed.add(message.body)
            return False
        at = asyncio.get_running_loop().time()
        elsewhere = message.reconsume_times > 0 and self.kind.retries_elsewhere
        delivery = Delivery(
            message.body.decode(), f"{message.queue_id}", message.queue_offset, at=at, retried=elsewhere
        )
        self.histories[name if self.kind.broadcasting else "group"].deliveries.append(delivery)
        return True


class Run:
    """One run: a producer, and a group of each kind.

    Args:
        kinds: kinds of the groups.
        servers: name server and broker.
        seed: determines moments and lengths of faults, failing listeners and the number of members.
        spared: kinds of consumers that are never killed.
        directory: where broadcasting consumers keep their progress.
        pause_s: seconds between two sends to a queue.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        servers: FaultServers,
        seed: int,
        spared: Sequence[str],
        directory: str,
        pause_s: float = SEND_PAUSE_S,
    ) -> None:
        self._servers, self._spared, self._pause_s = servers, spared, pause_s
        self._random = random.Random(seed)
        members = 1 + seed % 2
        self.groups = [
            Group(
                kind,
                servers,
                random.Random(f"{seed} {kind.name}"),
                2 if kind.broadcasting else members if kind.shares else 1,
                directory,
            )
            for kind in kinds
        ]
        for group in self.groups:
            group.failures = 0.02
        self.sends: list[Send] = []
        self._sending = True

    async def run(self, faults: Sequence[str]) -> dict[str, list[Finding]]:
        """Runs the faults; returns the wrong deliveries, by kind."""
        async with Producer("python", self._servers.namesrv, SENDER) as producer:
            await self._first(producer)
            sending, watching = asyncio.ensure_future(self._send(producer)), asyncio.ensure_future(self._watch())
            try:
                await asyncio.gather(*(group.start() for group in self.groups))
                await asyncio.sleep(self._random.uniform(0.3, 1.0))
                for fault in faults:
                    await getattr(self, f"_{fault}")()
                    await asyncio.sleep(self._random.uniform(0.3, 1.2))
                self._sending = False
                await sending
                await self._drained()
            finally:
                sending.cancel()
                watching.cancel()
                await asyncio.gather(sending, watching, return_exceptions=True)
                await asyncio.gather(*(group.stop() for group in self.groups))
        if watching.done() and not watching.cancelled():
            watching.result()  # progress that could not be read
        return {group.kind.name: self._check(group) for group in self.groups}

    def _check(self, group: Group) -> list[Finding]:
        findings: list[Finding] = []
        for history in group.histories.values():
            history.sends = self.sends
            findings += check(history)
        return findings

    # faults

    async def _consumer_slow(self) -> None:
        for group in self.groups:
            group.pause_s = self._random.uniform(0.02, 0.1)
        await asyncio.sleep(self._random.uniform(1.0, 2.0))
        for group in self.groups:
            group.pause_s = 0.0

    async def _broker_killed(self) -> None:
        await asyncio.to_thread(self._servers.kill_broker)
        await asyncio.sleep(self._random.uniform(0.0, 1.0))
        for group in self.groups:
            group.reset = {f"{queue}" for queue in range(4)}  # a broker stores progress every 5 s
        await asyncio.to_thread(self._servers.start_broker)

    async def _connection_blackholed(self) -> None:
        self._servers.blackhole_broker(True)
        await asyncio.sleep(self._random.uniform(1.6, 3.0))
        self._servers.blackhole_broker(False)

    async def _namesrv_restarted(self) -> None:
        await asyncio.to_thread(self._servers.restart_namesrv)

    async def _consumer_killed(self) -> None:
        groups = [group for group in self.groups if group.kind.name not in self._spared]
        await asyncio.gather(*(group.kill(self._random.uniform(0.0, 0.5)) for group in groups))

    async def _clock_set_back(self) -> None:
        by_ms = self._random.choice((5_000, 60_000, 3_600_000))
        await asyncio.gather(*(group.set_clock_back(by_ms) for group in self.groups))

    async def _broker_clock_set_back(self) -> None:
        self._servers.set_back_clock_of_broker()

    # work during the faults

    async def _first(self, producer: Producer) -> None:
        result = await producer.send(Message(TOPIC, b"first"))
        self.sends.append(Send("first", f"{result.message_queue.queue_id}", offset=result.queue_offset))

    async def _send(self, producer: Producer) -> None:
        async with asyncio.TaskGroup() as sending:
            for queue in await producer.message_queues(TOPIC):
                sending.create_task(self._send_to(producer, queue))

    async def _send_to(self, producer: Producer, queue: MessageQueue) -> None:
        loop = asyncio.get_running_loop()
        for number in itertools.count():
            if not self._sending:
                return
            value, began = f"{queue.queue_id}-{number}", loop.time()
            outcome, offset = Outcome.UNKNOWN, None
            try:
                result = await producer.send(Message(TOPIC, value.encode()), queue)
                outcome, offset = Outcome.OK, result.queue_offset
            except RucolaError:
                await asyncio.sleep(0.05)
            self.sends.append(Send(value, f"{queue.queue_id}", "p", outcome, offset, began, loop.time()))
            await asyncio.sleep(self._pause_s)

    async def _watch(self) -> None:
        """Records the progress of all groups at intervals."""
        async with PullConsumer("watcher", self._servers.namesrv) as watcher:
            while True:
                await asyncio.sleep(0.3)
                for group in self.groups:
                    try:
                        await group.note_progress(watcher)
                    except (BrokerError, RemotingError, ClientError):
                        continue

    async def _drained(self) -> None:
        """Waits until all acknowledged messages were consumed; after ``DRAIN_S`` the checker reports the
        missing ones.
        """
        deadline = time.monotonic() + DRAIN_S
        values = {send.value for send in self.sends if send.outcome is Outcome.OK}
        while time.monotonic() < deadline and any(group.missing(values) for group in self.groups):
            await asyncio.sleep(0.2)


def run(
    faults: Sequence[str],
    seed: int = 0,
    kinds: Sequence[Kind] = KINDS,
    spared: Sequence[str] = (),
    pause_s: float = SEND_PAUSE_S,
) -> tuple[Run, dict[str, list[Finding]]]:
    """Runs ``faults``, one after another; returns the run, and the findings of the queue checker by kind."""
    with tempfile.TemporaryDirectory(prefix="rucola-faults-") as directory, FaultServers() as servers:
        one = Run(kinds, servers, seed, spared, directory, pause_s)
        return one, asyncio.run(one.run(faults))


def main(arguments: Sequence[str]) -> int:
    """Runs the matrix; prints one JSON line for each run."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenario.consumer_faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="number of runs for each fault")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS], help="only these")
    parser.add_argument("--fault", action="append", choices=[*FAULTS, "all"], help="only these")
    parser.add_argument("--jobs", type=int, default=2, help="number of runs at the same time")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if kind.name in (options.kind or [kind.name])]
    cells = [
        (fault, seed, kinds)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for fault in options.fault or [*FAULTS, "all"]
    ]
    failed = False
    with ProcessPoolExecutor(options.jobs) as pool:
        for facts in pool.map(_cell, cells):
            print(json.dumps(facts), flush=True)
            failed |= bool(facts["findings"])
    return int(failed)


def _cell(cell: tuple[str, int, Sequence[Kind]]) -> dict[str, object]:
    """Does one run of the matrix; returns the fields of its line."""
    fault, seed, kinds = cell
    faults = random.Random(seed).sample(FAULTS, len(FAULTS)) if fault == "all" else [fault]
    began = time.monotonic()
    one, findings = run(faults, seed, kinds)
    histories = {group.kind.name: list(group.histories.values()) for group in one.groups}
    again = {
        kind: sum(len(each.deliveries) - len({given.value for given in each.deliveries}) for each in of)
        for kind, of in histories.items()
    }
    return {
        "fault": fault if fault != "all" else faults,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "sends": len(one.sends),
        "consumed again": again,
        "findings": {kind: [str(finding) for finding in of[:5]] for kind, of in findings.items() if of},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
