"""Brokers without stores at our controller, over loopback TCP in virtual time: ids, roles, the set, fail-over."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.brokers import run_virtual
from tests.unit.broker.ha.test_replicas_manager import Files
from tests.unit.controller.scene import Scene

from rucola.broker.ha import controller_session
from rucola.broker.ha.controller_session import ControllerSession, SessionOptions
from rucola.broker.ha.in_sync_set import ALL, InSyncSet, MasterTerm, SyncRule
from rucola.broker.ha.replicas_manager import ReplicaMember, ReplicasManager
from rucola.broker.ha.roles import LogPosition, Mastership
from rucola.errors import DiskError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.runtime.supervision import Supervisor


class Client(RemotingClient):
    """Loses answers to changes of the set, or the changes, if it is told to.

    Attributes:
        losses: number of changes that are lost from now on.
        is_sent: whether they reach the controller.
        is_busy: whether controllers do not tell the set.
        defects: number of questions from now on that end with an error of the program.
        closed: number of clients that were closed.
    """

    losses = defects = closed = 0
    is_sent = True
    is_busy = False

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int = 3_000) -> RemotingCommand:
        if Client.defects:
            Client.defects -= 1
            raise ValueError("a defect")
        if command.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET and Client.losses:
            Client.losses -= 1
            if Client.is_sent:
                await super().invoke(address, command, timeout_ms)
            return RemotingCommand(1, remark="timed out")
        if command.code == RequestCode.CONTROLLER_GET_REPLICA_INFO and Client.is_busy:
            return RemotingCommand(1, remark="timed out")
        return await super().invoke(address, command, timeout_ms)

    async def close(self) -> None:
        Client.closed += 1
        await super().close()


class Broker:
    """A broker without a store: it has ``end`` bytes of a log."""

    def __init__(self, scene: Scene, name: str, files: Files | None = None) -> None:
        self.end, self.epoch = 100, -1
        self.in_sync: InSyncSet | None = None
        self.failures = 0
        self.roles: list[Mastership] = []
        self.files = files or Files()
        addresses = [controller.address for controller in scene.controllers]
        member = ReplicaMember("c", "a", name, timeout_ms=3000)
        self.manager = ReplicasManager(member, self.files, addresses, lambda: 0, random.Random(name).random)
        self.supervisor = Supervisor()
        self.session = ControllerSession(self.manager, self, Client, SessionOptions("a"), lambda: 0, self.supervisor)

    def position(self) -> LogPosition:
        return LogPosition(self.epoch, self.end, self.end)

    async def take_role(self, role: Mastership) -> None:
        assert self.manager.is_fenced
        if self.failures:
            self.failures -= 1
            raise DiskError("epochFileCheckpoint", "write", "full")
        self.epoch, self.in_sync = role.epoch, None
        self.roles.append(role)
        if role.master_id == self.manager.broker_id:
            term = MasterTerm(role.master_id, role.epoch, self.end, self.end)
            self.in_sync = InSyncSet(SyncRule(ALL), term, role.in_sync, asyncio.get_running_loop().time())

    def follow(self, master: Broker) -> None:
        """Has all of the master's log."""
        assert master.in_sync is not None
        broker_id, now_s = self.manager.broker_id, asyncio.get_running_loop().time()
        assert broker_id is not None
        assert master.in_sync.connected(broker_id, self, False) == ""
        assert master.in_sync.reported(broker_id, self, master.end, master.end, now_s) == ""
        self.end = master.end


async def pair(scene: Scene) -> tuple[Broker, Broker]:
    """A master and a slave."""
    one = Broker(scene, "h:1")
    one.session.start()
    await scene.until(lambda: one.manager.is_master)
    two = Broker(scene, "h:2")
    two.session.start()
    await scene.until(lambda: bool(two.roles) and not two.manager.is_fenced)
    return one, two


def run(work: Any) -> None:
    """Runs a scene with two controllers and a pair of brokers."""

    async def scene() -> None:
        Client.losses = Client.closed = Client.defects = 0
        Client.is_sent, Client.is_busy = True, False
        options = {"scan_inactive_master_interval_ms": 1000, "scan_not_active_broker_interval_ms": 1000}
        async with Scene(2, **options) as scene:
            one, two = await pair(scene)
            try:
                await work(scene, one, two)
            finally:
                await one.session.stop()
                await two.session.stop()

    run_virtual(scene())


def test_slave_joins_and_takes_over_when_the_master_dies() -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        assert [role[:3] for role in two.roles] == [(1, "h:1", 1)]
        two.follow(one)
        in_sync = one.in_sync
        assert in_sync is not None
        await scene.until(lambda: in_sync.members == {1, 2})
        assert await scene.master() == ("1", "1", [1, 2], 2)
        await one.session.stop()
        begun = asyncio.get_running_loop().time()
        await scene.until(lambda: two.manager.is_master)
        assert asyncio.get_running_loop().time() - begun < 10
        assert await scene.master() == ("2", "2", [2], 3)
        again = Broker(scene, "h:1", one.files)
        again.session.start()
        await scene.until(lambda: bool(again.roles))
        assert [role[:3] for role in again.roles] == [(2, "h:2", 2)]
        await again.session.stop()

    run(work)


def test_change_of_the_set_without_answer_is_looked_up_and_its_connection_ended() -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        in_sync = one.in_sync
        assert in_sync is not None
        Client.losses = 1
        two.follow(one)
        await scene.until(lambda: Client.closed == 1)
        await scene.until(lambda: in_sync.members == {1, 2}, 7)
        assert in_sync.set_epoch == 2

    run(work)


def test_change_of_the_set_that_was_lost_counts_until_no_controller_can_make_it() -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        in_sync = one.in_sync
        assert in_sync is not None
        Client.losses, Client.is_sent = 1, False
        two.follow(one)
        await scene.until(lambda: Client.closed == 1)
        begun = asyncio.get_running_loop().time()
        in_sync.disconnected(2, two)
        assert in_sync.required == {1, 2}
        await scene.until(lambda: in_sync.required == {1}, 21)
        assert asyncio.get_running_loop().time() - begun > 14

    run(work)


def test_question_that_is_not_answered_does_not_forget_a_change_that_was_lost() -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        in_sync = one.in_sync
        assert in_sync is not None
        Client.losses, Client.is_busy = 1, True
        two.follow(one)
        await scene.until(lambda: Client.closed == 1)
        in_sync.disconnected(2, two)
        await asyncio.sleep(40)
        assert in_sync.required == {1, 2}
        Client.is_busy = False
        await scene.until(lambda: in_sync.members == {1, 2}, 6)

    run(work)


def test_defect_does_not_end_the_session() -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        Client.defects = 1
        await scene.until(lambda: Client.defects == 0)
        await scene.stop(scene.controllers[0])
        address = scene.controllers[0].address
        await scene.until(lambda: one.manager.leader == two.manager.leader == address)
        failures = one.supervisor.failures + two.supervisor.failures
        assert failures["questions to controllers"] == 1

    run(work)


def test_stop_ends_all_connections() -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        await one.session.stop()
        assert Client.closed == 3

    run(work)


def test_role_that_cannot_be_taken_is_tried_again_and_the_broker_stays_fenced() -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        two.follow(one)
        in_sync = one.in_sync
        assert in_sync is not None
        await scene.until(lambda: in_sync.members == {1, 2})
        two.failures = 3
        await one.session.stop()
        await scene.until(lambda: two.failures == 0)
        assert two.manager.is_fenced
        await scene.until(lambda: two.manager.is_master, 5)
        assert two.supervisor.failures["change of role"] == 3

    run(work)


def test_full_disk_of_the_identity_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        third = Broker(scene, "h:3")
        third.files.is_full = True
        third.session.start()
        await scene.until(lambda: bool(third.roles))
        assert third.manager.broker_id == 3
        assert third.supervisor.failures["questions to controllers"] == 1
        await third.session.stop()

    run(work)


def test_session_goes_on_at_another_controller() -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        await scene.stop(scene.controllers[0])
        await scene.until(lambda: scene.controllers[0].leadership.term is not None)
        two.follow(one)
        in_sync = one.in_sync
        assert in_sync is not None
        await scene.until(lambda: in_sync.members == {1, 2}, 40)
        assert one.manager.leader == scene.controllers[0].address
        assert len(one.roles) == len(two.roles) == 1

    run(work)


def test_notice_changes_the_role_at_once() -> None:
    async def work(scene: Scene, one: Broker, two: Broker) -> None:
        fields = {"masterBrokerId": "2", "masterAddress": "h:2", "masterEpoch": "5", "syncStateSetEpoch": "9"}
        one.session.told(RemotingCommand(1008, ext_fields=fields, body=b'{"syncStateSet":[2],"syncStateSetEpoch":9}'))
        assert one.manager.is_fenced
        await asyncio.sleep(0.01)
        assert [role.epoch for role in one.roles] == [1, 5]
        assert not one.manager.is_master

    run(work)


def test_every_code_that_leaves_a_change_open_is_no_refusal() -> None:
    assert 2007 not in controller_session._DEFINITE  # a leader that lost its term may have written before
    assert 1 not in controller_session._DEFINITE
