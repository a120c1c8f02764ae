"""``python -m bench.soak [--minutes N] [--publish]``: sends half the maximum rate for a long time, while consumers come
and go.

``rucola up`` is a separate process, and so is each part of the load. First the maximum rate is measured with the same
processes. Then half of it is sent for the requested time. Members of the consumer groups leave, end without notice, and
come back. Whole groups are away for a while, and processes of consumers are killed. At the end, every acknowledged
message must have been received, the broker must not have logged an error, and its own memory must be flat.

Exit status: 0 if the soak passed, 1 if it failed; the reasons are shown. Ctrl-C ends it early, with the figures so far
and exit status 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
import urllib.error
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from tools.peers.packages import ROOT, PeerError
from tools.peers.servers import cpu_seconds
from tools.peers.wire import wait_for_route

from bench.program import scratch_directory
from bench.report import machine
from bench.soak_ledger import STEADY, TAKEN_OVER, Count, Ledger, quantile_ms
from bench.soak_record import group_of
from bench.soak_report import PICTURE, Outcome, Sample, draw, facts, publish
from rucola.common.topic_config import TopicConfig
from rucola.errors import RucolaError
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import RemotingClient

TOPICS = 50
QUEUES = 4
PRODUCERS = 100
MEMBERS = 4
"""Number of consumers in each topic's group."""
WORKERS = 3
"""Number of consumer processes."""
BODY_BYTES = 512
RATE_MAX = 40_000
"""The ledger has space for this many messages per second: more than half the maximum rate of the producer process."""
CONNECTIONS_MIN = 200
SEGMENT_BYTES = 256 << 20
KEEP_S = 120.0
"""Age in seconds at which a segment's modification time is set back, so that the segment exceeds
``fileReservedTime``.
"""
AGED_S = 7_200.0
FLOOD_S, FLOOD_MEASURED_S = 25.0, 15.0
DRAIN_S = 120.0
KILL_S = 60.0
BACK_AFTER_S = 4.0
LOOK_S = 1.0
POINTS = 360
"""Maximum number of samples of the whole soak."""
READY_S, QUIT_S = 60.0, 60.0
SET_UP_MS = 120_000
RESULTS = ROOT / ".bench"
SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "fileReservedTime": 1,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "autoCreateTopicEnable": "false",
}


class Ended(Exception):  # noqa: N818 - a reason, not a defect
    """Raised when the soak cannot continue, or when the user ends it."""


class Broker:
    """``rucola up`` in its own process group, so that Ctrl-C does not reach it.

    Attributes:
        errors: lines of its log at level ERROR.
        warnings: number of warnings.
    """

    def __init__(self, process: Process, ready: dict[str, Any], store: Path, log: Path) -> None:
        self.process = process
        self.namesrv: str = ready["namesrv"]
        self.address: str = ready["brokers"][0]
        self.store = store
        self.errors: list[str] = []
        self.warnings = 0
        self._http: str = ready["http"]
        self._log = log
        self._read = 0

    def memory_mb(self) -> tuple[float, float]:
        """Returns the broker's memory without mapped files, and all its resident memory, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        own, shared, all_kib = (int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem", "VmRSS"))
        return (own + shared) * 1024 / 1e6, all_kib * 1024 / 1e6

    def metrics(self) -> dict[str, float]:
        """Returns the samples of ``/metrics`` by name."""
        with urllib.request.urlopen(f"http://{self._http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}

    def read_log(self) -> None:
        """Reads the new lines of the log."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            lines, newline, _ = log.read().rpartition(b"\n")
        self._read += len(lines) + len(newline)
        for line in lines.decode(errors="replace").splitlines():
            words = line.split(" ", 2)
            level = words[1] if len(words) == 3 else ""
            self.warnings += level == "WARNING"
            if level not in ("DEBUG", "INFO", "WARNING"):
                self.errors.append(line)

    def age_segments(self) -> None:
        """Makes old segments look hours older than they are, because the unit of ``fileReservedTime`` is an hour."""
        now = time.time()
        for path in (self.store / "commitlog").iterdir():
            modified = path.stat().st_mtime
            if now - AGED_S < modified < now - KEEP_S:
                os.utime(path, (now - AGED_S, now - AGED_S))

    def disk_bytes(self) -> int:
        """Returns the size of the store in bytes; files that disappear meanwhile count as empty."""
        total = 0
        for directory, _, names in os.walk(self.store):
            for name in names:
                try:
                    total += (Path(directory) / name).stat().st_blocks * 512
                except FileNotFoundError:
                    continue
        return total


class Load:
    """A load process.

    Attributes:
        reasons: the reasons for repeated requests that the process reported, with their counts.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.reasons: Counter[str] = Counter()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listener = asyncio.create_task(self._listen())

    async def tell(self, line: str) -> None:
        """Sends the process one line."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            await self.process.stdin.drain()
        except ConnectionError as error:
            raise Ended(f"a load process ended with {await self.process.wait()}") from error

    async def until(self, word: str, timeout_s: float) -> None:
        """Waits until the process prints ``word``.

        Raises:
            Ended: the process did not print the word in time, or ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while word not in await self._said.get():
                    if self._listener.done() and self._said.empty():
                        raise Ended(f"a load process ended with {await self.process.wait()}")
        except TimeoutError as error:
            raise Ended(f"a load process did not say {word!r} within {timeout_s:.0f} s") from error

    async def kill(self) -> None:
        """Kills the process, as in a crash."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._listener

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            self.reasons.update(said.pop("reasons", {}))
            if said:
                self._said.put_nowait(said)
        self._said.put_nowait({"ended": 1})


class Soak:
    """One run of the soak.

    Args:
        outcome: receives the results.
        scratch: a directory that is removed afterwards.
        status: the progress line.
        console: terminal with the progress line; without a terminal, lines go to standard error from time to time.
    """

    def __init__(self, outcome: Outcome, scratch: Path, status: Status, console: Console) -> None:
        self._outcome = outcome
        self._scratch = scratch
        self._status = status
        self._console = console
        self._began = self._churned = time.monotonic()
        self._told = 0.0
        self._stop = asyncio.Event()
        self._topics = [f"soak_{number:02}" for number in range(TOPICS)]
        self._path = scratch / "ledger"
        capacity = int((outcome.planned_s + FLOOD_S + DRAIN_S) * RATE_MAX / PRODUCERS)
        self._ledger = Ledger(self._path, (1 + WORKERS, PRODUCERS, capacity))
        self._consumers: dict[int, Load] = {}
        self._loads: list[Load] = []
        self._reasons: Counter[str] = Counter()

    def stop(self) -> None:
        """Ends the soak early."""
        self._stop.set()

    async def run(self) -> None:
        """Runs the whole soak; failures are in the outcome."""
        failures = self._outcome.failures
        async with AsyncExitStack() as stack:
            try:
                self._show("starting", at_once=True)
                broker = await stack.enter_async_context(_broker(self._scratch, self._outcome.flush))
                stack.push_async_callback(self._kill_loads)
                await self._make_topics(broker)
                producers = await self._start(
                    "soak_produce", self._path, broker.namesrv, ",".join(self._topics), BODY_BYTES
                )
                self._loads.append(producers)
                await producers.until("ready", READY_S)
                await asyncio.gather(*(self._start_consumers(broker, row) for row in range(1, WORKERS + 1)))
                try:
                    await self._flood(producers, broker)
                    await self._soak(producers, broker)
                except Ended as error:
                    failures.append(str(error))
                await self._settle(producers, broker)
                await self._stop_broker(broker)
            except (Ended, PeerError, RucolaError, OSError) as error:
                failures.append(f"{type(error).__name__}: {error}")

    # -- phases -------------------------------------------------------------------------------------------------------

    async def _flood(self, producers: Load, broker: Broker) -> None:
        """Measures the maximum rate: messages both acknowledged and received per second, while producers send without
        pauses.
        """
        self._churned = time.monotonic()
        for load in self._consumers.values():
            await load.tell("churn 0")
        await producers.tell("flood")
        await self._wait(FLOOD_S - FLOOD_MEASURED_S, broker, "warming up")
        before, begin = self._totals(), time.monotonic()
        await self._wait(FLOOD_MEASURED_S, broker, "measuring the maximum rate")
        seconds = time.monotonic() - begin
        rates = [(after - first) / seconds for first, after in zip(before, self._totals(), strict=True)]
        self._outcome.maximum = min(rates)
        await producers.tell("pause")
        await producers.until("paused", DRAIN_S)
        await self._drain(broker, "after the maximum rate")

    async def _soak(self, producers: Load, broker: Broker) -> None:
        outcome = self._outcome
        outcome.rate = outcome.maximum / 2
        steady = self._ledger.latencies(STEADY)
        taken_over = self._ledger.latencies(TAKEN_OVER)
        await producers.tell(f"pace {outcome.rate}")
        begin = time.monotonic()
        done = asyncio.Event()
        killer = asyncio.create_task(self._kill_now_and_then(broker, done))
        try:
            await self._look_on(broker, begin, steady)
        finally:
            outcome.steady = _difference(self._ledger.latencies(STEADY), steady)
            outcome.taken_over = _difference(self._ledger.latencies(TAKEN_OVER), taken_over)
            done.set()
            await killer

    async def _look_on(self, broker: Broker, begin: float, steady: list[int]) -> None:
        """Takes samples until the time is over."""
        outcome = self._outcome
        every_s = max(LOOK_S, outcome.planned_s / POINTS)
        totals, then, cpu = self._totals(), begin, cpu_seconds(broker.process.pid)
        while then - begin < outcome.planned_s:
            await self._wait(begin + (len(outcome.samples) + 1) * every_s - time.monotonic(), broker)
            connections = await self._metric(broker)
            now_totals, now, now_cpu = self._totals(), time.monotonic(), cpu_seconds(broker.process.pid)
            now_steady = self._ledger.latencies(STEADY)
            own_mb, resident_mb = broker.memory_mb()
            sample = Sample(
                now - begin,
                (now_totals[0] - totals[0]) / (now - then),
                (now_totals[1] - totals[1]) / (now - then),
                max(0, now_totals[0] - now_totals[1]),
                _difference(now_steady, steady),
                own_mb,
                resident_mb,
                (now_cpu - cpu) / (now - then),
                connections,
                await asyncio.to_thread(broker.disk_bytes) / 1e9,
            )
            outcome.samples.append(sample)
            totals, then, cpu, steady = now_totals, now, now_cpu, now_steady
            if sample.lag < outcome.rate * KEEP_S / 4:  # A segment that a consumer still has to read must not expire.
                broker.age_segments()
            self._show(_line(outcome, sample, self._ledger))

    async def _settle(self, producers: Load, broker: Broker) -> None:
        """Waits until all messages are acknowledged and received, then evaluates the ledger. A failure while waiting is
        recorded, and the ledger is still evaluated.
        """
        outcome, ledger = self._outcome, self._ledger
        outcome.left, outcome.died = ledger.total(Count.LEFT), ledger.total(Count.DIED)
        try:
            await producers.tell("pause")
            await producers.until("paused", DRAIN_S)
            for load in self._consumers.values():
                await load.tell("calm")
            await self._drain(broker, "at the end", heed_stop=False)
            await producers.tell("quit")
            await self._ended(producers)
            for load in self._consumers.values():
                await load.tell("quit")
            for load in self._consumers.values():
                await self._ended(load)
        except Ended as error:
            if str(error) not in outcome.failures:
                outcome.failures.append(str(error))
        self._show("comparing what was sent with what was received", at_once=True)
        outcome.acknowledged, outcome.received = ledger.different()
        outcome.missing, numbers = ledger.missing(5)
        if outcome.missing:
            outcome.failures.append(f"{outcome.missing:,} acknowledged messages were not received, first {numbers}")
        outcome.duplicates = ledger.total(Count.RECEIVED) - outcome.received
        outcome.repeated, outcome.reasons = ledger.total(Count.REPEATED), dict(producers.reasons)
        outcome.flush_late = ledger.total(Count.FLUSH_LATE)
        for load in self._consumers.values():
            self._reasons.update(load.reasons)
        outcome.retried, outcome.retry_reasons = ledger.total(Count.RETRIED), dict(self._reasons)
        if errors := ledger.total(Count.ERRORS):
            outcome.failures.append(f"{errors} errors of consumers: {dict(self._reasons.most_common(3))}")

    async def _stop_broker(self, broker: Broker) -> None:
        if broker.process.returncode is None:
            metrics = await asyncio.to_thread(broker.metrics)
            self._outcome.expired = int(metrics["rucola_segments_expired_total"])
            broker.process.terminate()
        status = await broker.process.wait()
        if status:
            self._outcome.failures.append(f"the broker ended with {status}")
        broker.read_log()
        self._outcome.warnings = broker.warnings
        if broker.errors:
            first = broker.errors[0][:500]
            self._outcome.failures.append(f"{len(broker.errors)} log lines of the broker are errors, first: {first}")

    # -- processes ----------------------------------------------------------------------------------------------------

    async def _make_topics(self, broker: Broker) -> None:
        """Creates topics and groups one after another, because the broker writes each to the disk before it serves
        other requests.
        """
        client = RemotingClient()
        api = AdminApi(client)
        for topic in self._topics:
            await api.change_topic(broker.address, TopicConfig(topic, QUEUES, QUEUES), timeout_ms=SET_UP_MS)
            group = ConsumerData(group_of(topic), subscription_data_set=[SubscriptionData(topic, "*", sub_version=1)])
            heartbeat = HeartbeatData("soak_set_up", consumer_data_set=[group])
            await api.heartbeat(broker.address, heartbeat, SET_UP_MS)
        await client.close()
        for topic in self._topics:
            await asyncio.to_thread(wait_for_route, broker.namesrv, topic)

    async def _start(self, module: str, *arguments: object) -> Load:
        with (self._scratch / f"{module}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"bench.{module}",
                *map(str, arguments),
                cwd=ROOT,
                env=_environment(),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,
            )
        return Load(process)

    async def _start_consumers(self, broker: Broker, row: int) -> None:
        topics = ",".join(self._topics)
        load = await self._start("soak_consume", self._path, row, WORKERS, broker.namesrv, topics, MEMBERS)
        self._consumers[row] = load
        self._loads.append(load)
        await load.until("ready", READY_S)

    async def _kill_now_and_then(self, broker: Broker, done: asyncio.Event) -> None:
        """Kills a process with consumers, and starts a new one some seconds later."""
        while not await _happens(done, KILL_S * random.uniform(0.7, 1.3)):
            row = random.choice(list(self._consumers))
            old = self._consumers[row]
            self._loads.remove(old)
            await old.kill()
            self._reasons.update(old.reasons)
            self._outcome.killed += 1
            await _happens(done, BACK_AFTER_S)
            await self._start_consumers(broker, row)
            await self._consumers[row].tell(f"churn {time.monotonic() - self._churned}")

    async def _kill_loads(self) -> None:
        for load in self._loads:
            await load.kill()

    async def _ended(self, load: Load) -> None:
        try:
            async with asyncio.timeout(QUIT_S):
                status = await load.process.wait()
        except TimeoutError as error:
            raise Ended(f"a load process does not end within {QUIT_S:.0f} s") from error
        if status:
            raise Ended(f"a load process ended with {status}")

    # -- observation ---------------------------------------------------------------------------------------------------

    def _totals(self) -> tuple[int, int]:
        """Returns the number of messages acknowledged, and the number received for the first time."""
        return self._ledger.total(Count.ACKNOWLEDGED), self._ledger.total(Count.RECEIVED_FIRST)

    async def _metric(self, broker: Broker) -> int:
        try:
            return int((await asyncio.to_thread(broker.metrics))["rucola_connections"])
        except (urllib.error.URLError, TimeoutError, KeyError) as error:
            raise Ended(f"/metrics does not respond: {error}") from error

    async def _wait(self, seconds: float, broker: Broker, text: str = "") -> None:
        """Waits ``seconds`` while the soak goes on, and shows the progress.

        Raises:
            Ended: the broker or a load process ended, or the user ended the soak.
        """
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            if text:
                acknowledged, received = self._totals()
                self._show(f"{text}: {acknowledged:,} acknowledged, {received:,} received")
            self._check_processes(broker)
            broker.read_log()
            if left <= 0:
                return
            if await _happens(self._stop, min(left, LOOK_S)):
                raise Ended("stopped early")

    def _check_processes(self, broker: Broker) -> None:
        if broker.process.returncode is not None:
            raise Ended(f"the broker ended with {broker.process.returncode}")
        for load in self._loads:
            if load.process.returncode is not None:
                raise Ended(f"a load process ended with {load.process.returncode}")

    async def _drain(self, broker: Broker, when: str, heed_stop: bool = True) -> None:
        """Waits until everything acknowledged was received.

        Raises:
            Ended: some messages were not received in time.
        """
        deadline = time.monotonic() + DRAIN_S
        while True:
            acknowledged, received = self._totals()
            if received >= acknowledged and self._ledger.missing(0)[0] == 0:
                return
            if time.monotonic() > deadline:
                raise Ended(f"{when}: not all messages were received within {DRAIN_S:.0f} s")
            self._check_processes(broker)
            if heed_stop and self._stop.is_set():
                raise Ended("stopped early")
            self._show(f"waiting for the consumers: {acknowledged - received:,} to go")
            await asyncio.sleep(0.5)

    def _show(self, text: str, at_once: bool = False) -> None:
        if self._console.is_terminal:
            self._status.update(text)
        elif at_once or time.monotonic() - self._told >= 10:
            self._told = time.monotonic()
            print(f"{self._told - self._began:5.0f} s  {text}", file=sys.stderr, flush=True)


@asynccontextmanager
async def _broker(scratch: Path, flush: str) -> AsyncIterator[Broker]:
    store, log = scratch / "store", scratch / "broker.log"
    conf = scratch / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in SETTINGS.items()))
    command = ["-m", "rucola", "up", "--json", "--store", str(store), "--flush", flush, "--config", str(conf)]
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, *ports, env=_environment(), stdout=PIPE, stderr=out, start_new_session=True
        )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        if not line:
            raise Ended(f"rucola up ended with {await process.wait()}: {log.read_text()[-500:]}")
        yield Broker(process, json.loads(line), store, log)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), QUIT_S)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _happens(happening: asyncio.Event, seconds: float) -> bool:
    """Whether ``happening`` is set within ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            return await happening.wait()
    except TimeoutError:
        return False


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def _difference(after: list[int], before: list[int]) -> list[int]:
    return [later - earlier for later, earlier in zip(after, before, strict=True)]


def _line(outcome: Outcome, sample: Sample, ledger: Ledger) -> str:
    at, end = int(sample.at_s), int(outcome.planned_s)
    p50, p99 = quantile_ms(sample.steady, 0.5), quantile_ms(sample.steady, 0.99)
    return (
        f"{at // 60}:{at % 60:02} of {end // 60}:{end % 60:02}  sent {sample.sent:,.0f}/s  "
        f"received {sample.received:,.0f}/s  lag {sample.lag:,}  p50 {p50:.1f} p99 {p99:.0f} ms  "
        f"own {sample.own_mb:.1f} MB of {sample.resident_mb:,.0f}  disk {sample.disk_gb:.1f} GB  "
        f"connections {sample.connections}  repeated {ledger.total(Count.REPEATED)}  killed {outcome.killed}"
    )


async def run(options: argparse.Namespace, outcome: Outcome, console: Console) -> None:
    """Runs the soak with a temporary directory, and handles Ctrl-C."""
    with scratch_directory() as scratch, console.status("starting") as status:
        soak = Soak(outcome, Path(scratch), status, console)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, soak.stop)
        await soak.run()


def main(arguments: list[str]) -> int:
    """Runs the soak, prints its figures, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to send at half the maximum rate")
    parser.add_argument("--flush", choices=("sync", "async"), default="sync", help="flush mode, as in rucola up")
    parser.add_argument("--publish", action="store_true", help="also rewrite the block and picture in docs/")
    options = parser.parse_args(arguments)
    console = Console()
    outcome = Outcome(
        machine(), options.flush, BODY_BYTES, TOPICS, PRODUCERS, TOPICS * MEMBERS, planned_s=options.minutes * 60
    )
    asyncio.run(run(options, outcome, console))
    outcome.judge_memory()
    if outcome.samples and min(sample.connections for sample in outcome.samples) < CONNECTIONS_MIN:
        outcome.failures.append(f"there were fewer than {CONNECTIONS_MIN} connections at a time")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "soak.json").write_text(json.dumps(asdict(outcome), indent=1) + "\n")
    if outcome.samples:
        draw(RESULTS / PICTURE, outcome)
        if options.publish:
            publish(outcome)
    for name, value in facts(outcome):
        print(f"{name:<52} {value}")
    for failure in outcome.failures:
        print(f"soak: {failure}", file=sys.stderr)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
