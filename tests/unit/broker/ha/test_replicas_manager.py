"""A broker in controller mode gets id and role: against the decisions of the controller, without sockets."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from rucola.broker.ha.replicas_manager import (
    ControllerRequest,
    ReplicaMember,
    ReplicasManager,
    ReplicasState,
    TemporaryIdentity,
)
from rucola.broker.ha.roles import LogPosition, Mastership
from rucola.controller.elect import BrokerLiveInfo
from rucola.controller.group import BrokerGroup
from rucola.controller.replicas_info import (
    Decision,
    apply_broker_id,
    elect_master,
    master_header,
    next_broker_id,
    register_broker,
    replica_info,
)
from rucola.errors import DiskError, FormatError
from rucola.protocol.bodies.controller import SyncStateSet
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.controller import (
    CONTROLLER_ITSELF,
    ApplyBrokerIdRequestHeader,
    BrokerSetHeader,
    ElectMasterRequestHeader,
    RegisterBrokerToControllerRequestHeader,
)

CONTROLLERS = ("c1", "c2")
LOG = LogPosition(-1, 0, 0)


@dataclass
class Files:
    """The files of an identity; the next write fails if ``is_full``."""

    broker_id: int | None = None
    temporary: TemporaryIdentity | None = None
    is_full: bool = False

    def _write(self) -> None:
        if self.is_full:
            self.is_full = False
            raise DiskError("identity", "write", "full")

    def apply(self, temporary: TemporaryIdentity) -> None:
        self._write()
        self.temporary = temporary

    def keep(self, broker_id: int) -> None:
        self._write()
        self.broker_id, self.temporary = broker_id, None

    def withdraw(self) -> None:
        self._write()
        self.temporary = None


@dataclass
class Controller:
    """Two controllers with one state; ``leader`` answers."""

    leader: str = "c1"
    group: BrokerGroup | None = None
    alive: set[int] = field(default_factory=set)
    heard: list[ControllerRequest] = field(default_factory=list)

    def is_alive(self, group: BrokerGroup, broker_id: int) -> bool:
        return broker_id in self.alive

    def info(self, group: BrokerGroup, broker_id: int) -> BrokerLiveInfo | None:
        return BrokerLiveInfo() if broker_id in self.alive else None

    def answer(self, request: ControllerRequest) -> RemotingCommand:
        self.heard.append(request)
        if request.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            fields = {"controllerLeaderAddress": self.leader} if self.leader else {}
            return RemotingCommand(0, ext_fields={"isLeader": "true", **fields})
        if request.address != self.leader:
            return RemotingCommand(2007)
        decision = self._decide(request)
        if decision.group is not None:
            self.group = decision.group
        fields = {} if decision.header is None else decision.header.to_ext_fields()
        body = b"" if decision.body is None else decision.body.encode()
        return RemotingCommand(decision.code, remark=decision.remark or "", ext_fields=fields, body=body)

    def _decide(self, request: ControllerRequest) -> Decision:
        header, group = request.header, self.group
        match request.code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                assert isinstance(header, BrokerSetHeader)
                return next_broker_id(group, header)
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                assert isinstance(header, ApplyBrokerIdRequestHeader)
                return apply_broker_id(group, header)
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                assert isinstance(header, RegisterBrokerToControllerRequestHeader)
                return register_broker(group, header, self)
            case RequestCode.CONTROLLER_ELECT_MASTER:
                assert isinstance(header, ElectMasterRequestHeader)
                return elect_master(group, header, self, False)
            case _:
                return replica_info(group)

    def replace_master(self) -> RemotingCommand:
        """Elects another master; returns the notice."""
        decision = elect_master(self.group, ElectMasterRequestHeader("c", "b", CONTROLLER_ITSELF), self, False)
        assert decision.group is not None
        self.group = decision.group
        return self.notice()

    def forget(self) -> None:
        """Loses all that was stored."""
        self.group, self.alive = None, set()

    def notice(self) -> RemotingCommand:
        assert self.group is not None
        body = SyncStateSet(self.group.sync_state_set, self.group.sync_state_set_epoch).encode()
        return RemotingCommand(1008, ext_fields=master_header(self.group).to_ext_fields(), body=body)


class Broker:
    """A broker and its clock."""

    def __init__(self, controller: Controller, name: str = "b1:1", files: Files | None = None, seed: int = 1) -> None:
        self.controller, self.now_s = controller, 0.0
        self.files = files or Files()
        randomly = random.Random(seed).random
        member = ReplicaMember("c", "b", name)
        self.manager = ReplicasManager(member, self.files, CONTROLLERS, lambda: int(self.now_s * 1000), randomly)

    def ask(self) -> ControllerRequest | None:
        """Asks one question, and has it answered."""
        request = self.manager.due(self.now_s)
        if request is not None:
            self.manager.answered(request, self.controller.answer(request), self.now_s)
        return request

    def beat(self) -> None:
        for beat in self.manager.heartbeats(LOG):
            if beat.address == self.controller.leader and self.manager.broker_id is not None:
                self.controller.alive.add(self.manager.broker_id)

    def second(self) -> list[RequestCode]:
        """A second of life; returns what was asked."""
        asked = []
        self.beat()
        while (request := self.ask()) is not None:
            asked.append(request.code)
        change = self.manager.change
        if change is not None:
            self.manager.applied(change)
        self.now_s += 1
        return asked

    def runs(self, seconds: int = 20) -> ReplicasManager:
        for _ in range(seconds):
            self.second()
        assert self.manager.state is ReplicasState.RUNNING, self.manager.trouble
        return self.manager


def test_first_broker_becomes_the_master() -> None:
    controller = Controller()
    broker = Broker(controller)
    manager = broker.manager
    states = [manager.state]
    while (request := broker.ask()) is not None:
        states.append(manager.state)
        assert manager.is_fenced
        assert request.address == "c1"
    codes = [request.code for request in controller.heard]
    assert codes == [1005, 1012, 1013, 1003]
    assert states == [
        ReplicasState.INITIAL,
        *[ReplicasState.FIRST_TIME_SYNC_CONTROLLER_METADATA_DONE] * 3,
        ReplicasState.REGISTER_TO_CONTROLLER_DONE,
    ]
    assert (broker.files.broker_id, broker.files.temporary) == (1, None)
    broker.beat()  # a broker that is not heard is not elected
    assert broker.second() == [1002]
    assert (manager.state, manager.is_master, manager.is_fenced) == (ReplicasState.RUNNING, True, False)
    assert manager.role == Mastership(1, "b1:1", 1, SyncStateSet(frozenset((1,)), 1))


def test_second_broker_follows_and_a_restart_keeps_the_id() -> None:
    controller = Controller()
    Broker(controller).runs()
    second = Broker(controller, "b2:1")
    assert second.runs().broker_id == 2
    assert not second.manager.is_master
    assert second.manager.role is not None
    assert second.manager.role.master_address == "b1:1"
    again = Broker(controller, "b2:2", second.files)
    assert again.second()[:2] == [1005, 1003]
    assert (again.manager.broker_id, again.manager.is_master) == (2, False)


@pytest.mark.parametrize("questions", range(1, 5))
@pytest.mark.parametrize("is_answered", [False, True])
def test_kill_on_the_way_to_an_id_gives_one_id(questions: int, is_answered: bool) -> None:
    controller = Controller()
    first = Broker(controller)
    for _ in range(questions - 1):
        first.ask()
    request = first.manager.due(first.now_s)
    assert request is not None
    answer = controller.answer(request)
    if is_answered:
        first.manager.answered(request, answer, first.now_s)
    again = Broker(controller, files=first.files)
    again.runs()
    assert controller.group is not None
    assert sorted(controller.group.members) == [again.manager.broker_id] == [1]


def test_two_brokers_that_apply_for_one_id_get_two() -> None:
    controller = Controller()
    one, two = Broker(controller, "b1:1", seed=1), Broker(controller, "b2:1", seed=2)
    for _ in range(3):
        one.ask()
        two.ask()
    assert (one.files.broker_id, two.files.broker_id, two.files.temporary) == (1, None, None)
    assert two.runs().broker_id == 2


def test_full_disk_does_not_give_a_second_id() -> None:
    controller = Controller()
    broker = Broker(controller)
    for _ in range(2):
        broker.ask()
    broker.files.is_full = True
    with pytest.raises(DiskError):
        broker.ask()
    assert broker.runs().broker_id == 1


def test_heartbeats_go_to_all_controllers_and_to_the_leader() -> None:
    controller = Controller(leader="c9")
    broker = Broker(controller)
    assert broker.manager.heartbeats(LOG) == []
    broker.runs()
    beats = broker.manager.heartbeats(LogPosition(3, 40, 30))
    assert [beat.address for beat in beats] == ["c1", "c2", "c9"]
    assert beats[0].command().ext_fields == {
        "clusterName": "c",
        "brokerAddr": "b1:1",
        "brokerName": "b",
        "brokerId": "1",
        "epoch": "3",
        "maxOffset": "40",
        "confirmOffset": "30",
        "heartbeatTimeoutMills": "10000",
        "electionPriority": "2147483647",
    }


def pair() -> tuple[Controller, Broker, Broker]:
    """A master and a slave that is in sync."""
    controller = Controller()
    one, two = Broker(controller), Broker(controller, "b2:1")
    one.runs()
    two.runs()
    assert controller.group is not None
    controller.group = controller.group.with_sync_state_set(frozenset((1, 2)))
    return controller, one, two


def test_notice_fences_the_old_master_at_once() -> None:
    controller, one, two = pair()
    controller.alive.discard(1)
    notice = controller.replace_master()
    two.manager.told(notice)
    one.manager.told(notice)
    assert one.manager.is_fenced
    assert not one.manager.is_master
    change = two.manager.change
    assert change == Mastership(2, "b2:1", 2, SyncStateSet(frozenset((2,)), 3))
    two.manager.applied(change)
    assert two.manager.is_master
    one.second()
    assert (one.manager.is_master, one.manager.is_fenced) == (False, False)
    assert one.manager.role is not None
    assert one.manager.role.master_address == "b2:1"


def test_lost_notice_costs_five_seconds() -> None:
    controller, _, two = pair()
    for _ in range(6):  # both clocks are equal
        two.second()
    controller.alive.discard(1)
    controller.replace_master()
    asked = [code for _ in range(5) for code in two.second()]
    assert RequestCode.CONTROLLER_GET_REPLICA_INFO in asked
    assert two.manager.is_master


def test_old_epoch_changes_nothing_and_an_equal_one_only_the_set() -> None:
    controller, _, two = pair()
    old = controller.notice()
    controller.alive.discard(1)
    two.manager.told(controller.replace_master())
    two.second()
    two.manager.told(old)
    assert two.manager.is_master
    assert two.manager.change is None
    assert "epoch 1" in two.manager.trouble
    assert controller.group is not None
    before = controller.notice()
    controller.group = controller.group.with_sync_state_set(frozenset((1, 2)))
    for notice in (controller.notice(), before):
        two.manager.told(notice)
        assert two.manager.role is not None
        assert two.manager.role.in_sync == SyncStateSet(frozenset((1, 2)), 4)
        assert two.manager.change is None


def test_newer_role_waits_while_one_is_being_taken() -> None:
    controller, one, _ = pair()
    controller.alive.discard(1)
    one.manager.told(controller.replace_master())
    first = one.manager.change
    assert first is not None
    controller.alive = {1}
    assert controller.group is not None
    controller.group = controller.group.with_sync_state_set(frozenset((1, 2)))
    one.manager.told(controller.replace_master())
    one.manager.applied(first)
    assert one.manager.is_fenced
    assert one.manager.change is not None
    assert (one.manager.change.master_id, one.manager.change.epoch) == (1, 3)


def test_group_without_master_is_asked_for_an_election() -> None:
    controller, _, two = pair()
    controller.alive = {2}
    assert controller.group is not None
    controller.group = controller.group.without_master()
    two.runs(12)
    assert two.manager.is_master
    assert two.manager.role is not None
    assert two.manager.role.epoch == 3


def test_controller_that_lost_the_group_gets_the_same_id_again() -> None:
    controller, one, two = pair()
    controller.forget()
    for _ in range(30):
        two.second()
        one.second()
    assert controller.group is not None
    addresses = {broker_id: member.address for broker_id, member in controller.group.members.items()}
    assert addresses == {1: "b1:1", 2: "b2:1"}
    assert one.manager.is_master  # nobody else has its epoch


def test_id_that_another_broker_has_is_not_taken() -> None:
    controller = Controller()
    one = Broker(controller)
    one.runs()
    copy = Broker(controller, "b9:9", Files(broker_id=1))
    notice = controller.notice()
    copy.second()
    copy.manager.told(notice)
    assert "has the id of this broker" in copy.manager.trouble


def test_silent_controller_is_left_for_the_next() -> None:
    controller = Controller(leader="c2")
    broker = Broker(controller)
    manager = broker.manager
    request = manager.due(0.0)
    assert request is not None
    assert request.address == "c1"
    assert manager.due(0.0) is None  # one at a time
    manager.failed(request, "no answer", 3.0)
    manager.answered(request, RemotingCommand(0), 3.1)  # late, of no use
    assert "no answer" in manager.trouble
    assert manager.due(3.2) is None
    request = manager.due(5.0)
    assert request is not None
    assert request.address == "c2"


def test_controller_that_does_not_lead_is_left_for_its_leader() -> None:
    controller, one, _ = pair()
    while one.second() != [RequestCode.CONTROLLER_GET_METADATA_INFO]:
        pass
    controller.leader = "c2"
    asked = [code for _ in range(7) for code in one.second()]
    assert asked.index(RequestCode.CONTROLLER_GET_METADATA_INFO) < asked.index(
        RequestCode.CONTROLLER_GET_REPLICA_INFO, 1
    )
    assert one.manager.leader == "c2"
    assert one.manager.is_master


def test_leader_and_master_are_asked_for_at_intervals() -> None:
    _, one, _ = pair()
    asked = [code for _ in range(60) for code in one.second()]
    assert asked.count(RequestCode.CONTROLLER_GET_METADATA_INFO) == 6
    assert asked.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) == 12


def test_set_counts_as_told_when_it_was_told() -> None:
    controller, one, _ = pair()

    def next_look() -> ControllerRequest:
        while True:
            one.beat()
            request = one.manager.due(one.now_s)
            if request is not None and request.code == RequestCode.CONTROLLER_GET_REPLICA_INFO:
                return request
            if request is None:
                one.now_s += 1
            else:
                one.manager.answered(request, controller.answer(request), one.now_s)

    def answer(change: Callable[[RemotingCommand], None] = lambda _: None) -> float:
        request, asked_s = next_look(), one.now_s
        told = controller.answer(request)
        change(told)
        one.now_s += 1
        one.manager.answered(request, told, one.now_s)
        return asked_s

    def refuse(told: RemotingCommand) -> None:
        told.code, told.remark = 1, "busy"

    def age(told: RemotingCommand) -> None:
        told.ext_fields["masterEpoch"] = "0"

    def older(told: RemotingCommand) -> None:
        told.body = SyncStateSet(frozenset((1, 2)), 0).encode()
        told.ext_fields.pop("syncStateSetEpoch", None)

    def without_master(told: RemotingCommand) -> None:
        for name in ("masterBrokerId", "masterAddress"):
            told.ext_fields.pop(name)

    asked_s = answer()
    assert one.manager.told_s == asked_s
    request = next_look()
    one.manager.failed(request, "timed out", one.now_s)
    for change in (refuse, age, older, without_master):
        answer(change)
        assert one.manager.told_s == asked_s, change
    later_s = answer()
    assert one.manager.told_s == later_s > asked_s
    assert controller.group is not None
    controller.group = replace(controller.group, sync_state_set_epoch=controller.group.sync_state_set_epoch + 1)
    one.manager.told(controller.notice())
    assert one.manager.told_s == -inf


@pytest.mark.parametrize(
    "fields",
    [
        {"masterBrokerId": "0", "masterAddress": "x:1", "masterEpoch": "9", "syncStateSetEpoch": "9"},
        {"masterBrokerId": "2", "masterAddress": "x:1", "masterEpoch": "0", "syncStateSetEpoch": "9"},
        {"masterBrokerId": "2", "masterAddress": "x:1", "masterEpoch": "9", "syncStateSetEpoch": "-9"},
        {"masterBrokerId": "2", "masterAddress": "x:1", "masterEpoch": "many"},
        {"masterBrokerId": "2", "masterAddress": "x:1"},
    ],
)
def test_notice_that_contradicts_itself_changes_nothing(fields: dict[str, str]) -> None:
    _, one, _ = pair()
    with pytest.raises(FormatError):
        one.manager.told(RemotingCommand(1008, ext_fields=fields, body=SyncStateSet(frozenset((2,)), 9).encode()))
    assert one.manager.is_master


def test_answer_that_cannot_be_read_is_asked_for_elsewhere() -> None:
    broker = Broker(Controller())
    request = broker.manager.due(0.0)
    assert request is not None
    broker.manager.answered(request, RemotingCommand(0, ext_fields={"isLeader": "maybe"}), 0.0)
    request = broker.manager.due(2.0)
    assert request is not None
    assert request.address == "c2"


def test_notice_before_the_registration_is_not_followed() -> None:
    controller, _, _ = pair()
    third = Broker(controller, "b3:1")
    third.manager.told(controller.notice())
    assert third.manager.change is None


class Group:
    """Three brokers and their controllers; messages are lost, late and repeated, brokers are killed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.controller = Controller()
        self.files = [Files() for _ in range(3)]
        self.brokers = [self.started(one) for one in range(3)]
        self.late: list[tuple[Broker, ControllerRequest, RemotingCommand]] = []
        self.notices: list[RemotingCommand] = []
        self.masters: dict[int, str] = {}
        self.now_s = 0.0

    def started(self, one: int) -> Broker:
        return Broker(self.controller, f"b{one}:1", self.files[one], self.random.randrange(1000))

    def step(self) -> None:
        one, chance = self.random.randrange(3), self.random.random()
        broker = self.brokers[one]
        self.now_s += self.random.choice((0.1, 1.0))
        broker.now_s = self.now_s
        if chance < 0.02:
            self.kill(one)
        elif chance < 0.06:
            self.controller.leader = self.random.choice((*CONTROLLERS, ""))
        elif chance < 0.09:
            broker.files.is_full = True
        elif chance < 0.2 and self.notices:
            broker.manager.told(self.random.choice(self.notices[-5:]))
        elif chance < 0.35:
            broker.beat()
        elif chance < 0.5 and broker.manager.change is not None:
            broker.manager.applied(broker.manager.change)
        elif chance < 0.55 and self.late:
            self.answer(*self.late.pop(0))
        else:
            self.ask(broker)
        self.check()

    def kill(self, one: int) -> None:
        controller, broker_id = self.controller, self.files[one].broker_id
        self.brokers[one] = self.started(one)
        controller.alive.discard(broker_id or 0)
        group = controller.group
        if group is not None and group.master_broker_id == broker_id and self.random.random() < 0.7:
            controller.group = group.with_sync_state_set(frozenset(group.members))
            decision = elect_master(
                controller.group, ElectMasterRequestHeader("c", "b", CONTROLLER_ITSELF), controller, False
            )
            controller.group = decision.group
            if decision.code == 0:
                self.notices.append(controller.notice())

    def ask(self, broker: Broker) -> None:
        request = broker.manager.due(broker.now_s)
        if request is None:
            return
        chance = self.random.random()
        if chance < 0.1:
            broker.manager.failed(request, "lost", broker.now_s)
            return
        answer = self.controller.answer(request)
        if chance < 0.2:
            broker.manager.failed(request, "answer lost", broker.now_s)
            self.late.append((broker, request, answer))
            return
        self.answer(broker, request, answer)

    def answer(self, broker: Broker, request: ControllerRequest, answer: RemotingCommand) -> None:
        try:
            broker.manager.answered(request, answer, broker.now_s)
        except DiskError:
            return

    def check(self) -> None:
        for broker in self.brokers:
            manager = broker.manager
            if manager.is_master:
                assert manager.role is not None
                address = self.masters.setdefault(manager.role.epoch, manager.role.master_address)
                assert address == manager.role.master_address
        ids = [files.broker_id for files in self.files if files.broker_id is not None]
        assert len(set(ids)) == len(ids)
        assert self.controller.group is None or len(self.controller.group.members) <= 3


@pytest.mark.parametrize("seed", range(25))
def test_one_master_per_epoch_and_all_follow_in_the_end(seed: int) -> None:
    group = Group(seed)
    for _ in range(500):
        group.step()
    group.controller.leader = "c1"
    for broker in group.brokers:
        broker.files.is_full, broker.now_s = False, group.now_s
    for _ in range(40):
        for broker in group.brokers:
            broker.second()
    roles = {broker.manager.role and broker.manager.role[:3] for broker in group.brokers}
    assert len(roles) == 1, [broker.manager.trouble for broker in group.brokers]
    assert sum(broker.manager.is_master for broker in group.brokers) == 1
