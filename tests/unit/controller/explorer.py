"""Controllers, brokers and an etcd in one process and in simulated time, with everything going wrong at random.

Calls to etcd are delayed, carried out long after their sender gave up, lost, or carried out without an answer; leases
end meanwhile; processes stand still between an answer and what they make of it. Brokers die, come back, and are cut off
from controllers. After each step ``Judge`` compares what was written and what brokers were told with the promises.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any

from tests.unit.controller.etcd_model import EtcdModel, Write, unanswered
from tests.unit.controller.scene import ENDPOINTS

from rucola.controller import Controller, ControllerConfig
from rucola.controller.group import BrokerGroup
from rucola.controller.heartbeat import TIMEOUT_MS
from rucola.errors import BrokerError
from rucola.protocol.bodies.controller import SyncStateSet
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.route import BrokerHeartbeatRequestHeader

NAME = "a"
GROUP_KEY = f"/rucola/controller/groups/{NAME}"
LEADER_KEY = "/rucola/controller/leader"
CALL_S = 1.5
"""Time limit of a call to etcd."""
BOTH: dict[str, Any] = {"clusterName": "c", "brokerName": NAME}


class BrokenPromiseError(AssertionError):
    """Something was written or told that must not be."""


class _Jumping(selectors.DefaultSelector):
    """Lets the time jump instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing will ever happen"
            self.now += timeout
        return found


class SimulatedTime(asyncio.SelectorEventLoop):
    """asyncio's loop in a time of its own, without sockets."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class LoopClock:
    """The clock of the controllers."""

    def wall_ms(self) -> int:
        return round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class WorldGateway:
    """The way from one controller to etcd."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    async def call(self, path: str, body: Mapping[str, Any], is_idempotent: bool = False) -> dict[str, Any]:
        world = self._world
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        world.run(self._carry(path, body, answered))
        try:
            async with asyncio.timeout(CALL_S):
                answer = await answered
        except TimeoutError:
            raise unanswered(path) from None
        await world.pause("stand still", 8.0)
        return answer

    async def _carry(self, path: str, body: Mapping[str, Any], answered: asyncio.Future[dict[str, Any]]) -> None:
        world = self._world
        await asyncio.sleep(world.random.uniform(0.001, 0.01))
        await world.pause("late call", 12.0)
        # What was sent over a link that stands still arrives when it moves again, in any order.
        while asyncio.get_running_loop().time() < world.stalled.get(self._name, 0.0):
            await asyncio.sleep(world.random.uniform(0.1, 1.0))
        if world.happens("lost call"):
            return
        try:
            answer = world.etcd.handle(path, body, self._name)
        except Exception as error:  # noqa: BLE001 - a refusal goes back to the caller
            outcome: Any = error
        else:
            outcome = answer
            world.judge.look()
        await world.pause("late answer", 4.0)
        if answered.done() or world.happens("lost answer"):
            return
        if isinstance(outcome, Exception):
            answered.set_exception(outcome)
        else:
            answered.set_result(outcome)


class Judge:
    """Compares with the promises all writes, and all that brokers are told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen = 0
        self._group: BrokerGroup | None = None
        self._masters: dict[int, int] = {}
        self._term_began: dict[int, float] = {}
        self._latest = 0
        """The largest epoch that a broker was told of."""
        self.elections = 0

    def look(self) -> None:
        """Judges the writes since the last time."""
        history = self._world.etcd.history
        while self._seen < len(history):
            write = history[self._seen]
            self._seen += 1
            if write.key == LEADER_KEY and write.value is not None:
                if write.leader is not None:
                    raise BrokenPromiseError(f"a leader's key was written over: {write}")
                self._term_began[write.revision] = write.at_s
            if write.key == GROUP_KEY:
                self._wrote(write)

    def told(self, epoch: int, master: int | None) -> None:
        """A broker is told who is the master in an epoch."""
        group = self._world.group()
        if group is None or epoch > group.master_epoch:
            raise BrokenPromiseError(f"a broker is told of epoch {epoch}, but etcd has {group}")
        self._latest = max(self._latest, epoch)
        self._name(epoch, master)

    def _name(self, epoch: int, master: int | None) -> None:
        if master is not None and self._masters.setdefault(epoch, master) != master:
            raise BrokenPromiseError(f"epoch {epoch} has the masters {self._masters[epoch]} and {master}")

    def answered(self, name: str, answer: RemotingCommand) -> None:
        """A controller answers at once what only the leader may answer."""
        epoch = int(answer.ext_fields.get("masterEpoch", 0))
        if epoch < self._latest:
            raise BrokenPromiseError(f"{name} tells of epoch {epoch}, and {self._latest} was told before")
        leader = self._world.etcd.value(LEADER_KEY)
        if leader is None or f'"{name}"'.encode() not in leader:
            raise BrokenPromiseError(f"{name} answers although it does not lead")

    def _wrote(self, write: Write) -> None:
        if write.leader is None or f'"{write.writer}"'.encode() not in write.leader.value:
            raise BrokenPromiseError(f"{write.writer} wrote without leading")
        assert write.value is not None
        before, after = self._group, BrokerGroup.decode(write.value)
        self._group = after
        if before is None:
            return
        if after.master_epoch < before.master_epoch or after.sync_state_set_epoch < before.sync_state_set_epoch:
            raise BrokenPromiseError(f"an epoch went back: {before}, {after}")
        if after.members.keys() < before.members.keys():
            raise BrokenPromiseError("a broker was forgotten")
        if after.master_broker_id != before.master_broker_id:
            self._elected(before, after, write)
            return
        is_changed = after.sync_state_set != before.sync_state_set
        if after.sync_state_set_epoch != before.sync_state_set_epoch + is_changed:
            raise BrokenPromiseError("a set changed without its epoch")

    def _elected(self, before: BrokerGroup, after: BrokerGroup, write: Write) -> None:
        self.elections += 1
        if after.master_epoch <= before.master_epoch:
            raise BrokenPromiseError("a master changed without its epoch")
        master = after.master_broker_id
        if master is not None and before.master_epoch and master not in before.sync_state_set:
            raise BrokenPromiseError(f"{master} became the master, but only {before.sync_state_set} were in sync")
        if master is not None and after.sync_state_set != {master}:
            raise BrokenPromiseError(f"{after.sync_state_set} are in sync with the new master {master}")
        if master is not None and after.sync_state_set_epoch != before.sync_state_set_epoch + 1:
            raise BrokenPromiseError("a set changed without its epoch")
        self._name(after.master_epoch, master)
        assert write.leader is not None
        age_s = write.at_s - self._term_began[write.leader.create_revision]
        if before.master_broker_id is not None and age_s < TIMEOUT_MS / 1000:
            raise BrokenPromiseError(f"a master was declared dead {age_s:.1f} s after the leader had begun")


class SimulatedBroker:
    """A broker as controllers see it."""

    def __init__(self, world: World, broker_id: int) -> None:
        self._world, self.id = world, broker_id
        self.is_alive = False
        self.cut_off: set[str] = set()
        self.channel = object()
        self.epoch = 0
        self.master: int | None = None

    async def live(self) -> None:
        """Registers, then does what brokers do each second."""
        world = self._world
        applied = {**BOTH, "appliedBrokerId": self.id, "registerCheckCode": f"x:{self.id};1"}
        while True:
            await asyncio.sleep(world.random.uniform(0.8, 1.2))
            if not self.is_alive:
                continue
            for node in world.nodes:
                if self.sees(node):
                    beat = BrokerHeartbeatRequestHeader("c", f"x:{self.id}", NAME, self.id, self.epoch, 100, 100)
                    node.brokers.heartbeat(beat, self.channel)
            node = world.random.choice(world.nodes)
            if not self.sees(node):
                continue
            answer = await world.ask(node, 1004, brokerName=NAME)
            fields = {} if answer is None else answer.ext_fields
            if (answer is not None and answer.code == 2008) or self.id not in world.registered:
                answer = await world.ask(node, 1013, **applied)
                world.registered |= {self.id} if answer is not None and answer.code == 0 else set()
            elif answer is not None and answer.code == 0:
                await self._follow(node, fields)

    def sees(self, node: Controller) -> bool:
        """Whether it can reach a controller."""
        return node.address not in self.cut_off

    async def _follow(self, node: Controller, fields: Mapping[str, str]) -> None:
        world = self._world
        self.learn(int(fields["masterEpoch"]), int(fields.get("masterBrokerId", 0)) or None)
        if self.master is None:
            answer = await world.ask(node, 1002, **BOTH, brokerId=self.id)
            if answer is not None and answer.code in (0, 2011):
                self.learn(int(answer.ext_fields["masterEpoch"]), int(answer.ext_fields["masterBrokerId"]))
        elif self.master == self.id and world.random.random() < 0.5:
            group = world.group()
            if group is None:
                return
            others = [each.id for each in world.brokers if each.is_alive and each.id in group.members]
            wanted = frozenset({self.id, *(each for each in others if world.random.random() < 0.8)})
            body = SyncStateSet(wanted, group.sync_state_set_epoch).encode()
            await world.ask(node, 1001, body, brokerName=NAME, masterBrokerId=self.id, masterEpoch=self.epoch)

    def learn(self, epoch: int, master: int | None) -> None:
        """Takes what it is told, if that is newer."""
        self._world.judge.told(epoch, master)
        if epoch >= self.epoch:
            self.epoch, self.master = epoch, master


class _Notices:
    """In place of requests to brokers."""

    def __init__(self, world: World) -> None:
        self._world = world

    def send(self, group: BrokerGroup, _live: object) -> None:
        for broker in self._world.brokers:
            if broker.is_alive and broker.id in group.members:
                broker.learn(group.master_epoch, group.master_broker_id)


class World:
    """Everything of one seed.

    Attributes:
        trouble: how much goes wrong: 0 for nothing.
    """

    def __init__(self, seed: int, controllers: int = 2, brokers: int = 3) -> None:
        self.random = Random(seed)
        self.trouble = 1.0
        clock = LoopClock()
        self.etcd = EtcdModel(clock.monotonic)
        self.judge = Judge(self)
        self.nodes: list[Controller] = []
        self.registered: set[int] = set()
        self.stalled: dict[str, float] = {}
        """Until when the link of a controller to etcd stands still."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failure: BaseException | None = None
        for number in range(controllers):
            config = ControllerConfig(etcd_endpoints=ENDPOINTS, listen_port=1 + number)
            gateways = WorldGateway(self, f"127.0.0.1:{1 + number}"), WorldGateway(self, f"127.0.0.1:{1 + number}")
            node = Controller(config, clock, gateways=gateways)
            node._notices = _Notices(self)  # type: ignore[assignment]
            self.nodes.append(node)
        self.brokers = [SimulatedBroker(self, 1 + number) for number in range(brokers)]

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs work beside the others; a broken promise ends the world."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()

    def happens(self, what: str) -> bool:
        """Whether something goes wrong."""
        chances = {"lost call": 0.01, "lost answer": 0.02, "late call": 0.02, "late answer": 0.02, "stand still": 0.01}
        return self.random.random() < chances[what] * self.trouble

    async def pause(self, what: str, seconds: float) -> None:
        """Waits if something goes wrong."""
        if self.happens(what):
            await asyncio.sleep(self.random.uniform(0, seconds))

    def group(self) -> BrokerGroup | None:
        """The group as etcd has it."""
        value = self.etcd.value(GROUP_KEY)
        return None if value is None else BrokerGroup.decode(value)

    async def ask(self, node: Controller, code: int, body: bytes = b"", **fields: object) -> RemotingCommand | None:
        """An answer of a controller; None if it is not the leader, or cannot write."""
        texts = {key: str(value) for key, value in fields.items()}
        command = RemotingCommand(code, ext_fields=texts, body=body)
        processor: Any = node._processors._processors[code]
        try:
            answer = processor(None, command)
            if code == 1004:
                self.judge.answered(node.address, answer)
            found: RemotingCommand = await answer if asyncio.iscoroutine(answer) else answer
        except BrokerError:
            return None
        return found

    async def play(self, seconds: float) -> None:
        """Lets everything go wrong, then nothing; at the end all is well again."""
        try:
            await self._play(seconds)
        finally:
            tasks = [*self._tasks, *(each for node in self.nodes for each in node._elections.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self, seconds: float) -> None:
        for node in self.nodes:
            self.run(self._turns(node))
            self.run(self._scans(node))
        for broker in self.brokers:
            self.run(broker.live())
        self.run(self._faults())
        await self._pass(seconds)
        self.trouble = 0.0
        for broker in self.brokers:
            broker.is_alive = True
            broker.cut_off.clear()
        await self._pass(45.0)
        self.judge.look()
        self._check_end()

    async def _pass(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.25)
            if self.failure is not None:
                raise self.failure

    def _check_end(self) -> None:
        leaders = [node.address for node in self.nodes if node.leadership.term is not None]
        if len(leaders) != 1:
            raise BrokenPromiseError(f"at the end {leaders} lead")
        group = self.group()
        if group is None or group.master_broker_id is None:
            raise BrokenPromiseError(f"at the end there is no master: {group}")

    async def _turns(self, node: Controller) -> None:
        while True:
            await node.leadership.turn()
            await asyncio.sleep(1.0)

    async def _scans(self, node: Controller) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(1, 5))
            node._scan_brokers()
            node._scan_masters()

    async def _faults(self) -> None:
        """Kills, starts and cuts off brokers."""
        for broker in self.brokers:
            broker.is_alive = True
        while True:
            await asyncio.sleep(self.random.uniform(2, 12))
            if not self.trouble:
                return
            broker, chance = self.random.choice(self.brokers), self.random.random()
            if chance < 0.25:
                node = self.random.choice(self.nodes).address
                self.stalled[node] = asyncio.get_running_loop().time() + self.random.uniform(3, 12)
            elif chance < 0.6:
                self._kill_or_start(broker)
            elif broker.cut_off:
                broker.cut_off.clear()
            else:
                broker.cut_off = {self.random.choice(self.nodes).address}

    def _kill_or_start(self, broker: SimulatedBroker) -> None:
        broker.is_alive = not broker.is_alive
        if broker.is_alive:
            return
        channel, broker.channel, broker.master = broker.channel, object(), None
        if self.random.random() < 0.7:  # else its host is gone, and nobody learns of it
            for node in self.nodes:
                node.channel_closed(channel)  # type: ignore[arg-type]


def explore(seed: int, seconds: float = 120.0, controllers: int = 2) -> World:
    """Plays one seed; raises ``BrokenPromiseError`` if a promise was broken."""
    world: World

    async def work() -> World:
        world = World(seed, controllers)
        await world.play(seconds)
        return world

    with asyncio.Runner(loop_factory=SimulatedTime) as runner:
        world = runner.run(work())
    return world
