"""One of several processes with consumers of a soak. Arguments: ledger, row, workers, name server, topics, members of a
group.

The members of each topic's group are distributed over the processes in turn; this process runs its share. Lines on
standard input: ``churn SECONDS`` lets members come and go; ``SECONDS`` is the time since the soak began. ``calm``
brings all of them back. ``quit`` ends. Errors appear as JSON lines on standard output.

A member does what a push consumer does: it sends heartbeats, takes its share of the queues when the broker reports a
change of the group, keeps a waiting pull at each queue, and reports its progress every five seconds.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import uvloop

from bench.soak_ledger import STEADY, TAKEN_OVER, Count, Ledger, bucket
from bench.soak_record import MAGIC, RECORD, group_of
from rucola.client.config import PullConsumerConfig
from rucola.client.instance import ClientInstance, ConsumerRegistration
from rucola.common.message_queue import MessageQueue
from rucola.common.sysflag import PullSysFlag
from rucola.errors import BrokerError, RemotingError, RucolaError
from rucola.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumerData, SubscriptionData
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.runtime.clock import SystemClock

REBALANCE_S = 20.0
NOT_LISTED_S = 0.5
COMMIT_S = 5.0
SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 30_000
AFTER_ERROR_S = 0.5
CHURN_S = 3.0
"""Mean time in seconds from the end of one member in this process to the end of the next one."""
BACK_S = (1.0, 8.0)
GROUP_TURN_S = 15.0
"""Every so many seconds, the next group is away for a while: all its members leave, in all processes."""
GROUP_AWAY_S = 10.0
GROUP_STEP = 7


class Taken:
    """Enters pulled messages in the ledger."""

    def __init__(self, ledger: Ledger, row: int) -> None:
        self.counts = ledger.row(row)
        self._received = ledger.received

    def take(self, records: bytes, since_ns: int) -> None:
        """Counts the messages of one pull; ``since_ns`` is the time when the consumer took over the queue."""
        now_ns = time.monotonic_ns()
        counts, received = self.counts, self._received
        position, end = 0, len(records)
        messages = first = last_due_ns = place = 0
        while position < end:
            size, magic, number, due_ns = RECORD.unpack_from(records, position)
            position += size
            if magic != MAGIC:
                raise ValueError("a record does not belong to this soak")
            if due_ns != last_due_ns:
                last_due_ns = due_ns
                place = (STEADY if due_ns >= since_ns else TAKEN_OVER) + bucket(max(0, now_ns - due_ns) // 1000)
            times = received[number]
            messages += 1
            if times < 255:
                received[number] = times + 1
            if not times:
                first += 1
                counts[place] += 1
        counts[Count.RECEIVED] += messages
        counts[Count.RECEIVED_FIRST] += first
        counts[Count.PULLS] += 1


class Member:
    """One consumer in a group, from its start to its end."""

    def __init__(self, namesrv: str, topic: str, taken: Taken, on_error: Callable[[str, bool], None]) -> None:
        self._topic = topic
        self._group = group_of(topic)
        self._taken = taken
        self._on_error = on_error
        clock = SystemClock()
        subscription = SubscriptionData(topic, "*", sub_version=clock.wall_ms())
        consumer = ConsumerData(
            self._group,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            subscription_data_set=[subscription],
        )
        self._changed = asyncio.Event()
        self._instance = ClientInstance(namesrv, PullConsumerConfig(), clock)
        registration = ConsumerRegistration(consumer_data=lambda: consumer, group_changed=self._changed.set)
        self._instance.register_consumer(self._group, registration)
        self._readers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._progress: dict[MessageQueue, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Joins the group."""
        self._instance.start()
        self._tasks = [asyncio.create_task(self._rebalance()), asyncio.create_task(self._commit())]

    async def leave(self) -> None:
        """Ends cleanly: reports its progress and leaves the group."""
        await self._end()
        await self._attempt(self._commit_all())
        await self._instance.shutdown()

    async def die(self) -> None:
        """Ends without notice: the connection is closed, and the progress of the last seconds is not reported."""
        await self._end()
        await self._instance.client.close()
        await self._instance.shutdown()

    async def _end(self) -> None:
        tasks = [*self._tasks, *self._readers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _rebalance(self) -> None:
        while True:
            self._changed.clear()
            listed = False
            try:
                listed = await self._share_queues()
            except RucolaError as error:
                self._report("rebalance", error)
            try:
                async with asyncio.timeout(REBALANCE_S if listed else NOT_LISTED_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _share_queues(self) -> bool:
        """Computes this member's share of the queues; returns False if the broker does not know the member yet."""
        queues = list((await self._instance.routes.route(self._topic)).subscribe_queues)
        try:
            ids = sorted(await self._instance.api.consumer_list(self._broker(queues[0]), self._group))
        except BrokerError:  # The broker knows no member of the group.
            return False
        if self._instance.client_id not in ids:
            return False
        mine = set(queues[ids.index(self._instance.client_id) :: len(ids)])
        lost = [queue for queue in self._readers if queue not in mine]
        for queue in lost:
            reader = self._readers.pop(queue)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            progress = self._progress.pop(queue, None)
            if progress is not None:
                await self._attempt(self._tell(queue, progress))
        for queue in mine.difference(self._readers):
            self._readers[queue] = asyncio.create_task(self._read(queue))
        return True

    async def _read(self, queue: MessageQueue) -> None:
        api, broker = self._instance.api, self._broker(queue)
        since_ns = time.monotonic_ns()
        queue_offset = None
        while True:
            try:
                if queue_offset is None:
                    queue_offset = await api.query_consumer_offset(broker, self._group, queue, True) or 0
                header = self._pull_header(queue, queue_offset)
                answer = await api.pull_message(broker, header, PULL_TIMEOUT_MS)
                if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                    self._report("pull", f"{queue} has no offset {queue_offset}")
                elif answer.code == ResponseCode.SUCCESS:
                    self._taken.take(answer.body, since_ns)
                self._progress[queue] = queue_offset = answer.header.next_begin_offset
            except (RucolaError, ValueError) as error:
                self._report("pull", error)
                await asyncio.sleep(AFTER_ERROR_S)

    def _pull_header(self, queue: MessageQueue, queue_offset: int) -> PullMessageRequestHeader:
        flags = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)
        return PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=32,
            sys_flag=flags,
            commit_offset=0,
            suspend_timeout_millis=SUSPEND_MS,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
            broker_name=queue.broker_name,
        )

    async def _commit(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self._attempt(self._commit_all())

    async def _commit_all(self) -> None:
        for queue, progress in list(self._progress.items()):
            await self._tell(queue, progress)

    async def _tell(self, queue: MessageQueue, progress: int) -> None:
        await self._instance.api.update_consumer_offset(self._broker(queue), self._group, queue, progress)

    async def _attempt(self, call: Awaitable[None]) -> None:
        try:
            await call
        except RucolaError as error:
            self._report("commit", error)

    def _broker(self, queue: MessageQueue) -> str:
        return self._instance.routes.master(queue.broker_name)

    def _report(self, what: str, error: object) -> None:
        """Records an error; a request without a response is repeated and counted separately."""
        name = f"{type(error).__name__}: " if isinstance(error, Exception) else ""
        self._on_error(f"{what}: {name}{error}", isinstance(error, RemotingError))


class Places:
    """The members that this process runs, each in a numbered slot (place), which is empty while the member is away.

    Args:
        make: creates a member for a topic.
        topics: the topic of each slot, with the number of the topic.
    """

    def __init__(self, make: Callable[[str], Member], topics: list[tuple[int, str]], counts: memoryview) -> None:
        self._make = make
        self._topics = topics
        self._counts = counts
        self._members: list[Member | None] = [None] * len(topics)
        self._back_at = [0.0] * len(topics)
        self._churn: asyncio.Task[None] | None = None
        self._calm = False
        self._random = random.Random()

    async def fill(self) -> None:
        """Starts all members that are not running."""
        for place, (_, topic) in enumerate(self._topics):
            if self._members[place] is None:
                self._join(place, topic)
                await asyncio.sleep(0.005)

    def churn(self, began: float) -> None:
        """Lets members come and go; ``began`` is the start of the soak on the monotonic clock."""
        self._calm = False
        self._churn = asyncio.create_task(self._come_and_go(began))

    async def calm(self) -> None:
        """Brings all members back, and lets none leave any more."""
        if self._churn is not None:
            self._calm = True  # The starts of members are not cancelled, because a member must not stay half started.
            await self._churn
            self._churn = None
        await self.fill()

    async def leave(self) -> None:
        """Lets all members leave."""
        for place in range(len(self._members)):
            await self._end(place, dies=False)

    async def _come_and_go(self, began: float) -> None:
        next_end = time.monotonic() + CHURN_S * self._random.random()
        while not self._calm:
            await asyncio.sleep(0.2)
            now = time.monotonic()
            away = away_group(now - began, self._topics[-1][0] + 1)
            for place, (number, topic) in enumerate(self._topics):
                if number == away:
                    await self._end(place, dies=False)
                elif self._members[place] is None and now >= self._back_at[place]:
                    self._join(place, topic)
            if now >= next_end:
                next_end = now + CHURN_S
                place = self._random.randrange(len(self._topics))
                self._back_at[place] = now + self._random.uniform(*BACK_S)
                await self._end(place, dies=self._random.random() < 0.5)

    def _join(self, place: int, topic: str) -> None:
        member = self._members[place] = self._make(topic)
        member.start()
        self._counts[Count.JOINED] += 1
        self._counts[Count.MEMBERS] += 1

    async def _end(self, place: int, dies: bool) -> None:
        member, self._members[place] = self._members[place], None
        if member is None:
            return
        self._counts[Count.MEMBERS] -= 1
        self._counts[Count.DIED if dies else Count.LEFT] += 1
        await (member.die() if dies else member.leave())


def away_group(elapsed_s: float, groups: int) -> int | None:
    """The number of the group that is absent when the soak has run for ``elapsed_s`` seconds; None if all are there."""
    turn, rest_s = divmod(elapsed_s, GROUP_TURN_S)
    return int(turn) * GROUP_STEP % groups if rest_s < GROUP_AWAY_S else None


async def main(path: Path, row: int, workers: int, namesrv: str, topics: list[str], members: int) -> None:
    """Handles lines until ``quit`` or the end of the input."""
    taken = Taken(Ledger(path), row)
    taken.counts[Count.MEMBERS] = 0
    errors: Counter[str] = Counter()

    def on_error(text: str, retried: bool) -> None:
        taken.counts[Count.RETRIED if retried else Count.ERRORS] += 1
        errors[text] += 1

    mine = [
        (number, topic)
        for number, topic in enumerate(topics)
        for member in range(members)
        if (number * members + member) % workers == row - 1
    ]
    places = Places(lambda topic: Member(namesrv, topic, taken, on_error), mine, taken.counts)
    await places.fill()
    teller = asyncio.create_task(_tell(errors))
    _say({"ready": 1})
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, *rest = line.split()
        if word == "churn":
            places.churn(time.monotonic() - float(rest[0]))
        elif word == "calm":
            await places.calm()
            _say({"calm": 1})
        else:
            break
    await places.calm()
    await places.leave()
    teller.cancel()
    _say({"reasons": dict(errors)})


async def _tell(errors: Counter[str]) -> None:
    while True:
        await asyncio.sleep(1)
        if errors:
            _say({"reasons": dict(errors)})
            errors.clear()


def _say(facts: dict[str, object]) -> None:
    sys.stdout.write(orjson.dumps(facts).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    ledger_path, row_text, workers_text, namesrv_address, topic_text, members_text = sys.argv[1:]
    work = main(
        Path(ledger_path),
        int(row_text),
        int(workers_text),
        namesrv_address,
        topic_text.split(","),
        int(members_text),
    )
    uvloop.run(work)
