"""Groups in which two consumers of ours and one of Java's share the queues, while members come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conformance.python_scenarios import FIRST, equal
from tools.peers.packages import PEERS, java_program, need

from rucola import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
)
from rucola.testing.queue_checker import Delivery, History, Outcome, Ownership, Send, check

if TYPE_CHECKING:
    from tests.conformance.python_client import Scene

HERE = Path(__file__).resolve().parent
QUEUES = 8
SETTLED_S = 45.0
"""Time limit in seconds: a member that misses a notification rebalances after 20 s."""
JAVA_START_S = 60.0
PAUSE_S = 0.004
STRATEGIES: dict[str, Callable[[], AllocateMessageQueueStrategy]] = {
    "AVG": AllocateMessageQueueAveragely,
    "AVG_BY_CIRCLE": AllocateMessageQueueAveragelyByCircle,
    "CONSISTENT_HASH": AllocateMessageQueueConsistentHash,
    "MACHINE_ROOM": lambda: AllocateMessageQueueByMachineRoom(["room1"]),
}


class JavaMember:
    """The official consumer in a separate process."""

    def __init__(self, process: asyncio.subprocess.Process, note: Callable[[str, int, int], None]) -> None:
        self._process = process
        self._note = note
        self._said: asyncio.Queue[str] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read())

    @staticmethod
    def classpath() -> str:
        """Returns the class path of the program, which is compiled if necessary; that may take minutes.

        Raises:
            PeerError: Maven is missing, or failed.
        """
        return java_program(HERE / "java", "5.3.3")

    @classmethod
    async def start(
        cls, scene: Scene, strategy: str, mode: str, queues: str, note: Callable[[str, int, int], None]
    ) -> JavaMember:
        classpath = await asyncio.to_thread(cls.classpath)
        java = need("java", "install Java 17 to run the official Java client")
        options = ["-Xmx256m", f"-Duser.home={PEERS}", "-Drocketmq.client.logLevel=ERROR"]
        arguments = [scene.namesrv, scene.group, scene.topic, strategy, mode, queues]
        process = await asyncio.create_subprocess_exec(
            *[java, *options, "-cp", classpath, "scenarios.Sharing", *arguments],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        member = cls(process, note)
        try:
            async with asyncio.timeout(JAVA_START_S):
                said = await member._said.get()
        except TimeoutError:
            said = f"nothing within {JAVA_START_S:g} s"
        if not said.startswith("R "):
            await member.kill()
            raise AssertionError(f"the Java member did not start: {said}")
        return member

    async def queues(self) -> set[int]:
        """Asks the member for the queues that it reads now."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"queues\n")
        said = await self._said.get()
        equal(said[:2], "Q ")
        answer = said[2:]
        return {int(queue.rpartition(":")[2]) for queue in answer.split(",") if queue}

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode().rstrip("\r\n")
            if text.startswith("G "):
                _, body, queue_id, offset = text.split(" ")
                self._note(body, int(queue_id), int(offset))
            elif text[:2] in ("R ", "X ", "Q "):
                self._said.put_nowait(text)
        self._said.put_nowait("X its process has ended")


class Sharing:
    """One run of a group whose members come and go."""

    def __init__(self, scene: Scene, strategy: str, mode: str) -> None:
        self.scene, self.strategy, self.mode = scene, strategy, mode
        self.history = History(ordered=mode == "orderly")
        self.members: dict[str, PushConsumer | JavaMember] = {}
        self._sending = True

    async def run(self) -> None:
        config = ProducerConfig(default_topic_queue_nums=QUEUES, send_msg_timeout_ms=20_000)
        async with Producer("python", self.scene.namesrv, config) as producer:
            queues = await self._queues(producer)
            sending = asyncio.ensure_future(self._send(producer, queues))
            try:
                await self._come_and_go(queues)
                self._sending = False
                await sending
                await self._drained()
            finally:
                self._sending = False
                await asyncio.gather(sending, return_exceptions=True)
                for member in self.members.values():
                    await (member.kill() if isinstance(member, JavaMember) else member.shutdown())
        equal(check(self.history), [])

    async def _queues(self, producer: Producer) -> list[MessageQueue]:
        first = await producer.send(Message(self.scene.topic, b"made"))
        self.history.sends.append(self._sent("made", first.message_queue.queue_id, first.queue_offset, 0.0))
        queues = await producer.message_queues(self.scene.topic)
        equal(len(queues), QUEUES)
        return queues

    async def _come_and_go(self, queues: Sequence[MessageQueue]) -> None:
        await self._join("one", queues[:3])
        await self._settled()
        await self._join("two", queues[3:6])
        await self._join("java", queues[6:])
        await self._settled()
        await asyncio.sleep(0.5)
        if self.strategy != "CONFIG":  # with CONFIG, no member takes over queues
            await self._leave("one")
            await self._settled()
            await self._leave("java")
            await self._settled()

    async def _join(self, name: str, configured: Sequence[MessageQueue]) -> None:
        self.scene.steps.append(f"{name} joins")
        note = partial(self._given, name)
        if name == "java":
            text = ",".join(f"{queue.broker_name}:{queue.queue_id}" for queue in configured)
            self.members[name] = await JavaMember.start(self.scene, self.strategy, self.mode, text, note)
            return
        strategy = (
            AllocateMessageQueueByConfig(configured) if self.strategy == "CONFIG" else STRATEGIES[self.strategy]()
        )
        consumer = PushConsumer(
            self.scene.group,
            self.scene.namesrv,
            PushConsumerConfig(consume_orderly=self.mode == "orderly", consume_from_where=FIRST),
            allocate_strategy=strategy,
        )

        async def listener(message: MessageExt) -> None:
            note(message.body.decode(), message.queue_id, message.queue_offset)

        consumer.register_message_listener(listener)
        await consumer.subscribe(self.scene.topic)
        await consumer.start()
        self.members[name] = consumer

    async def _leave(self, name: str) -> None:
        self.scene.steps.append(f"{name} leaves")
        member = self.members.pop(name)
        await (member.stop() if isinstance(member, JavaMember) else member.shutdown())

    async def _settled(self) -> None:
        """Waits until every configured queue has exactly one owner among the members, and this no longer changes."""
        loop = asyncio.get_running_loop()
        wanted = QUEUES if self.strategy != "CONFIG" else {1: 3, 3: 8}[len(self.members)]
        still, began = 0, loop.time()
        told: list[str] = []
        while still < 3:
            owned = await self._owned()
            count = sum(map(len, owned.values()))
            one_owner = count == len(set().union(*owned.values())) == wanted
            still = still + 1 if one_owner else 0
            line = f"after {loop.time() - began:.1f} s {owned}"
            if not told or told[-1].partition(" s ")[2] != line.partition(" s ")[2]:
                told.append(line)
            if loop.time() > began + SETTLED_S:
                raise AssertionError(f"not settled, {await self._known_to_broker()}: {'; '.join(told[-6:])}")
            await asyncio.sleep(0.1)
        now = loop.time()
        self.scene.steps.append(f"settled after {now - began:.1f} s: {told}")
        owned = await self._owned()
        for name, queues in owned.items():
            self.history.ownerships += [Ownership(self._queue(one), name, now, now + 0.01) for one in queues]

    async def _owned(self) -> dict[str, set[int]]:
        return {name: await self._owned_by(member) for name, member in self.members.items()}

    async def _known_to_broker(self) -> str:
        """Returns a text with the members of the group that the broker knows, and the ids of our members."""
        ours = {name: member for name, member in self.members.items() if isinstance(member, PushConsumer)}
        if not ours:
            return "no member of ours is left"
        instance = next(iter(ours.values()))._member.instance
        queues = (await instance.routes.refresh(self.scene.topic)).subscribe_queues
        known = await instance.api.consumer_list(instance.routes.broker(queues[0].broker_name), self.scene.group)
        ids = {name: member.client_id for name, member in ours.items()}
        return f"members at the broker {sorted(known)}, ours {ids}"

    async def _owned_by(self, member: PushConsumer | JavaMember) -> set[int]:
        if isinstance(member, JavaMember):
            return await member.queues()
        return {queue.queue_id for queue in member.assignment if queue.topic == self.scene.topic}

    async def _drained(self) -> None:
        values = {send.value for send in self.history.sends}
        deadline = asyncio.get_running_loop().time() + 30
        while {delivery.value for delivery in self.history.deliveries} < values:
            if asyncio.get_running_loop().time() > deadline:
                return  # the checker reports missing messages
            await asyncio.sleep(0.1)

    async def _send(self, producer: Producer, queues: Sequence[MessageQueue]) -> None:
        number = 0
        while self._sending:
            queue = queues[number % len(queues)]
            began = asyncio.get_running_loop().time()
            result = await producer.send(Message(self.scene.topic, b"%d" % number), queue)
            self.history.sends.append(self._sent(str(number), queue.queue_id, result.queue_offset, began))
            number += 1
            await asyncio.sleep(PAUSE_S)

    def _sent(self, value: str, queue_id: int, offset: int, began: float) -> Send:
        return Send(value, self._queue(queue_id), "p", Outcome.OK, offset, began, asyncio.get_running_loop().time())

    def _given(self, name: str, value: str, queue_id: int, offset: int) -> None:
        now = asyncio.get_running_loop().time()
        self.history.deliveries.append(Delivery(value, self._queue(queue_id), offset, name, now))

    def _queue(self, queue_id: int) -> str:
        return f"{self.scene.topic}:{queue_id}"


async def _share(strategy: str, mode: str, scene: Scene) -> None:
    await Sharing(scene, strategy, mode).run()


SCENARIOS: dict[str, Callable[[Any], Awaitable[None]]] = {
    f"share_{strategy.lower()}_{mode}": partial(_share, strategy, mode)
    for strategy in [*STRATEGIES, "CONFIG"]
    for mode in ("concurrent", "orderly")
}
