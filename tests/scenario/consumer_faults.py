"""Faults in the middle of every kind of consumer, judged by the queue checker.

One producer sends all the time; a consumer of one kind reads; faults come one after the other; then everything is given
time. ``python -m tests.scenario.consumer_faults [KIND ...]`` runs every fault alone, for every kind.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tools.peers.servers import MixedServers

from rucola import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
    SimpleConsumerConfig,
)
from rucola.errors import RucolaError
from rucola.runtime.clock import SystemClock
from rucola.testing.queue_checker import Commit, Delivery, Finding, History, Outcome, Send, check

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
TOPIC, GROUP = "faults", "group"
QUICK: dict[str, Any] = {
    "consume_from_where": FIRST,
    "broker_suspend_max_time_ms": 500,
    "consumer_timeout_when_suspend_ms": 1_500,
    "pull_time_delay_when_exception_ms": 200,
    "auto_commit_interval_ms": 300,
    "poll_name_server_interval_ms": 500,
    "mq_client_api_timeout_ms": 1_000,
}
SENDER = ProducerConfig(send_msg_timeout_ms=1_000, retry_times_when_send_failed=0, poll_name_server_interval_ms=500)
INVISIBLE_MS = 2_000
DRAIN_S = 60.0


class SteppedClock(SystemClock):
    """A wall clock that can be set; the other one goes on, as that of the system."""

    def __init__(self) -> None:
        self.step_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.step_ms


class FaultServers(MixedServers):
    """A name server and a broker of ours that are killed one by one."""

    def __init__(self) -> None:
        settings = {"flushDiskType": "SYNC_FLUSH", "registerNameServerPeriod": 10_000}
        super().__init__("rucola", ("rucola",), settings)

    def kill_broker(self) -> None:
        self._kill(self._processes.pop())

    def start_broker(self) -> None:
        """Under another port, as the system gives it."""
        self.broker = self._rucola_broker("broker-rucola")

    def restart_namesrv(self) -> None:
        """On the same port, without any memory."""
        self._kill(self._processes.pop(0))
        self._rucola("namesrv", "--port", self.namesrv.rpartition(":")[2])
        self._processes.insert(0, self._processes.pop())

    def signal_broker(self, number: int) -> None:
        os.kill(self._processes[-1].pid, number)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Reader:
    """A consumer of some kind; ``note`` takes every message as it is given."""

    def __init__(
        self, kind: str, namesrv: str, clock: SteppedClock, note: Callable[[MessageExt], Awaitable[None]]
    ) -> None:
        self._kind, self._namesrv, self._clock, self._note = kind, namesrv, clock, note
        self.consumer: Any = None
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        make = {"lite": self._lite, "simple": self._simple}.get(self._kind, self._push)
        self.consumer = make()
        await self.consumer.subscribe(TOPIC)
        await self.consumer.start()
        if self._kind in ("lite", "simple", "loop"):
            self._loop = asyncio.ensure_future(getattr(self, f"_run_{self._kind}")())

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await self.consumer.shutdown()

    async def kill(self) -> None:
        """End as a process that is killed: nothing more is said to anybody."""
        instance = self.consumer._instance if self._kind == "simple" else self.consumer._member.instance
        await instance.client.close()
        instance.api.client.send_oneway = lambda *_: None
        await self.stop()

    def _push(self) -> PushConsumer:
        config = PushConsumerConfig(consume_orderly=self._kind == "orderly", await_termination_ms=500, **QUICK)
        consumer = PushConsumer(GROUP, self._namesrv, config, clock=self._clock)
        if self._kind != "loop":
            consumer.register_message_listener(self._note)
        return consumer

    def _lite(self) -> LitePullConsumer:
        return LitePullConsumer(GROUP, self._namesrv, LitePullConsumerConfig(**QUICK), clock=self._clock)

    def _simple(self) -> SimpleConsumer:
        own = ("poll_name_server_interval_ms", "mq_client_api_timeout_ms")
        config = SimpleConsumerConfig(await_duration_ms=500, **{name: QUICK[name] for name in own})
        return SimpleConsumer(GROUP, self._namesrv, config, clock=self._clock)

    async def _run_loop(self) -> None:
        async for message in self.consumer:
            await self._note(message)

    async def _run_lite(self) -> None:
        while True:
            for message in await self.consumer.poll(500):
                await self._note(message)

    async def _run_simple(self) -> None:
        while True:
            try:
                for message in await self.consumer._service.receive(32, INVISIBLE_MS, 500):
                    await self._note(message)
                    await self.consumer.ack(message)
            except RucolaError:
                await asyncio.sleep(0.2)


class Run:
    """One history."""

    def __init__(self, kind: str, servers: FaultServers) -> None:
        self.kind, self.servers = kind, servers
        self.clock = SteppedClock()
        self.history = History(ordered=kind in ("orderly", "lite"))
        self.reader = Reader(kind, servers.namesrv, self.clock, self._note)
        self._sending = True
        self._pause_s = 0.0
        self._reset: set[str] = set()

    async def run(self, faults: Sequence[str]) -> list[Finding]:
        async with Producer("python", self.servers.namesrv, SENDER) as producer:
            await self._first(producer)
            background = [asyncio.ensure_future(self._send(producer)), asyncio.ensure_future(self._watch())]
            await self.reader.start()
            await asyncio.sleep(0.5)
            for fault in faults:
                await getattr(self, fault)()
                await asyncio.sleep(0.7)
            self._sending = False
            await background[0]
            try:
                await self._drained()
            finally:
                background[1].cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await self.reader.stop()
        return check(self.history)

    # faults

    async def broker_killed(self) -> None:
        await asyncio.to_thread(self.servers.kill_broker)
        await asyncio.sleep(0.5)
        self._reset = {f"{queue}" for queue in range(4)}  # a broker stores the progress it was told every 5 s
        await asyncio.to_thread(self.servers.start_broker)

    async def connection_blackholed(self) -> None:
        self.servers.signal_broker(signal.SIGSTOP)
        await asyncio.sleep(2.5)
        self.servers.signal_broker(signal.SIGCONT)

    async def namesrv_restarted(self) -> None:
        await asyncio.to_thread(self.servers.restart_namesrv)

    async def consumer_killed(self) -> None:
        await self.reader.kill()
        self.reader = Reader(self.kind, self.servers.namesrv, self.clock, self._note)
        async with asyncio.timeout(20):
            await self.reader.start()

    async def consumer_slow(self) -> None:
        self._pause_s = 0.05
        await asyncio.sleep(1.5)
        self._pause_s = 0.0

    async def clock_set_back(self) -> None:
        self.clock.step_ms = -3_600_000
        await asyncio.sleep(0.5)

    # what is noted

    async def _note(self, message: MessageExt) -> None:
        value, at = message.body.decode(), asyncio.get_running_loop().time()
        retried = message.reconsume_times > 0
        self.history.deliveries.append(
            Delivery(value, f"{message.queue_id}", message.queue_offset, at=at, retried=retried)
        )
        if self._pause_s:
            await asyncio.sleep(self._pause_s)

    async def _first(self, producer: Producer) -> None:
        result = await producer.send(Message(TOPIC, b"first"))
        queue = f"{result.message_queue.queue_id}"
        self.history.sends.append(Send("first", queue, offset=result.queue_offset))

    async def _send(self, producer: Producer) -> None:
        loop = asyncio.get_running_loop()
        queues = await producer.message_queues(TOPIC)
        number = 0
        while self._sending:
            queue, began = queues[number % len(queues)], loop.time()
            outcome, offset = Outcome.UNKNOWN, None
            try:
                result = await producer.send(Message(TOPIC, b"%d" % number), queue)
                outcome, offset = Outcome.OK, result.queue_offset
            except RucolaError:
                await asyncio.sleep(0.05)
            entry = Send(str(number), f"{queue.queue_id}", "p", outcome, offset, began, loop.time())
            self.history.sends.append(entry)
            number += 1
            await asyncio.sleep(0.002)

    async def _watch(self) -> None:
        """Note the group's progress now and then."""
        async with PullConsumer("watcher", self.servers.namesrv) as watcher:
            while True:
                await asyncio.sleep(0.2)
                try:
                    for queue in await watcher.message_queues(TOPIC):
                        name = f"{queue.queue_id}"
                        reset = name in self._reset
                        self._reset.discard(name)
                        routes, api = watcher._instance.routes, watcher._instance.api
                        offset = await api.query_consumer_offset(routes.master(queue.broker_name), GROUP, queue)
                        if offset is not None and self.kind != "simple":
                            at = asyncio.get_running_loop().time()
                            self.history.commits.append(Commit(name, offset, at, reset))
                except RucolaError:
                    continue

    async def _drained(self) -> None:
        """Everything acknowledged was given; what is not after a minute is the checker's to tell."""
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            given = {delivery.value for delivery in self.history.deliveries}
            if all(send.value in given for send in self.history.sends if send.outcome is Outcome.OK):
                return
            await asyncio.sleep(0.1)


KINDS = ("concurrent", "orderly", "loop", "lite", "simple")
FAULTS = (
    "consumer_slow",
    "broker_killed",
    "connection_blackholed",
    "namesrv_restarted",
    "consumer_killed",
    "clock_set_back",
)


def run(kind: str, faults: Sequence[str]) -> tuple[History, list[Finding]]:
    """A history with these faults, and what is wrong with it."""
    with FaultServers() as servers:
        one = Run(kind, servers)
        return one.history, asyncio.run(one.run(faults))


def main(arguments: Sequence[str]) -> int:
    """Every fault alone, for every kind."""
    failed = False
    for kind in arguments or KINDS:
        for fault in FAULTS:
            faults = [fault]
            if fault == "clock_set_back" and kind != "simple":  # brokers answer no pop that is born in their past
                faults.append("consumer_killed")
            history, findings = run(kind, faults)
            again = len(history.deliveries) - len({delivery.value for delivery in history.deliveries})
            facts = {"kind": kind, "fault": fault, "sends": len(history.sends), "redelivered": again}
            print(json.dumps(facts | {"findings": [str(finding) for finding in findings[:5]]}), flush=True)
            failed |= bool(findings)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
