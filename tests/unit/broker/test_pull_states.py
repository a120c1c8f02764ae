"""The life of a pull: every event in every state, with a processor whose store, disk and clock the test controls."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rucola.broker.config import BrokerConfig
from rucola.broker.pull import request as pull_request
from rucola.broker.pull.admission import Admission, NotCompiledError, RepeatedFields
from rucola.broker.pull.processor import PullMessageProcessor
from rucola.broker.pull.request import AT_ONCE_MAX, PullRequest
from rucola.broker.senders import Senders
from rucola.broker.waiting_requests import TransitionError, WaitState
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError, DiskError
from rucola.filter.tag import parse_tags
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.store.results import GetMessageResult, GetMessageStatus
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
TIMEOUT_MS = 15_000
(WANTED,) = parse_tags("wanted") or ()
(OTHER,) = parse_tags("other") or ()
CODES = {0: "found", 1: "error", 2: "busy", 19: "nothing", 20: "retry", 21: "moved", 17: "no topic"}


class Client:
    """A connection; ``answers`` are the responses that it got."""

    remote_address = "10.0.0.1:2"

    def __init__(self) -> None:
        self.answers: list[RemotingCommand] = []
        self.closed = self.costly = False
        self.owed = 0

    def send(self, data: bytes) -> None:
        self.answers.append(decode_frame(bytes(data)))

    def send_parts(self, parts: tuple[bytes, ...]) -> None:
        self.send(b"".join(parts))


class Store:
    """Queue 0 of topic T: a list of tag codes, of which a read examines a few. With ``cold``, they are on the disk."""

    def __init__(self) -> None:
        self.tags: list[int] = []
        self.cold = self.broken = False
        self.examined_max = 100

    def max_queue_offset(self, _topic: bytes, _queue_id: int) -> int:
        return len(self.tags)

    def first_queue_offset(self, _topic: bytes, _queue_id: int) -> int:
        return 0

    def get_message(
        self, topic: bytes, queue_id: int, at: int, _count: int, _bytes: int, tags: Any, may_block: bool
    ) -> GetMessageResult:
        assert (topic, queue_id) == (b"T", 0)
        if self.broken:
            raise ValueError("a defect")
        end = len(self.tags)
        if not end:
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        if at >= end:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, at, 0, end)
        if self.cold and not may_block:
            return GetMessageResult(GetMessageStatus.FOUND, at, 0, end, cold=lambda: None)
        examined = self.tags[at : at + self.examined_max]
        for place, tag in enumerate(examined, at):
            if tags is None or tag in tags:
                return GetMessageResult(GetMessageStatus.FOUND, place + 1, 0, end, [memoryview(b"x")], 1, 1)
        return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, at + len(examined), 0, end)


class Scene:
    """A processor whose surroundings are controlled by the test; ``fetched`` and ``compiled`` go on after a pause."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.store = Store()
        self.topics = {"T": TopicConfig("T", 1, 1, 6)}
        self.changed: list[Callable[[], None]] = []
        self.resets: dict[tuple[str, str, int], int] = {}
        self.committed: list[tuple[str, str, int, int]] = []
        self.fetched: list[Callable[[], None]] = []
        self.compiled: list[Callable[[], None]] = []
        self.limited = self.disk_is_busy = self.compiler_is_busy = False
        listened = SimpleNamespace(
            on_change=self.changed.append,
            find=lambda _group: SimpleNamespace(consume_enable=True),
            forbidden={},
        )
        self.processor = PullMessageProcessor(
            SimpleNamespace(  # type: ignore[arg-type]
                store=self.store,
                clock=self.clock,
                senders=Senders(),
                config=BrokerConfig(**options),
                cold_reads=SimpleNamespace(start=self._fetch),
                topics=SimpleNamespace(get=self.topics.get, on_change=self.changed.append),
                groups=listened,
                consumers=SimpleNamespace(changes=0, group=lambda _: None),
                filters=None,
                offsets=SimpleNamespace(pulled={}, commit=lambda *place: self.committed.append(place)),
                resets=SimpleNamespace(
                    table=self.resets,
                    find=lambda *place: self.resets.get(place),
                    take=lambda group, topic, queue_id, _client_id: self.resets.pop((group, topic, queue_id), None),
                ),
                cold_flow=SimpleNamespace(is_limited=lambda _: self.limited, count=lambda *_: None),
                expressions=SimpleNamespace(start=self._compile),
            ),
            self.loop.call_later,
        )
        self.hold = self.processor.hold
        self.requests: dict[Client, PullRequest] = {}
        self.begin = self.processor._begin
        self.processor._begin = self._begin  # type: ignore[method-assign]

    def _begin(self, request: PullRequest) -> None:
        client: Any = request.channel
        self.requests[client] = request
        self.begin(request)

    def _fetch(self, _client: Client, fetch: Callable[[], None], go_on: Callable[[], None]) -> bool:
        fetch()
        if not self.disk_is_busy:
            self.fetched.append(go_on)
        return not self.disk_is_busy

    def _compile(self, _client: Client, text: str, go_on: Callable[[], None]) -> None:
        assert text == "long"
        if self.compiler_is_busy:
            raise BrokerError(ResponseCode.SYSTEM_BUSY, "busy")
        self.compiled.append(go_on)

    def must_compile(self) -> None:
        """The next admission finds that its expression must be compiled first."""
        find, admissions = self.processor._admissions.find, self.processor._admissions

        def once(_fields: RepeatedFields, _channel: Any) -> Admission:
            admissions.find = find  # type: ignore[method-assign]
            raise NotCompiledError("long")

        admissions.find = once  # type: ignore[method-assign]

    def change(self) -> None:
        """Topics or groups have changed: admissions are checked again."""
        for listener in self.changed:
            listener()

    def pull(
        self,
        queue_offset: int = 0,
        sys_flag: int = SUSPEND | SUBSCRIPTION,
        tag: str = "wanted",
        timeout_ms: int = TIMEOUT_MS,
        client: Client | None = None,
    ) -> Client:
        header = PullMessageRequestHeader(
            "g", "T", 0, queue_offset, 32, sys_flag, 77, timeout_ms, 0, subscription=tag, expression_type="TAG"
        )
        client = client or Client()
        self.processor.process_command(client, RemotingCommand(11, 1, ext_fields=header.to_ext_fields()))  # type: ignore[arg-type]
        return client

    def arrive(self, *tags: int) -> None:
        """Messages arrive in the queue."""
        self.store.tags += tags
        code = tags[0] if len(set(tags)) == 1 and len(tags) == 1 else None
        self.hold.arrived(b"T", 0, len(self.store.tags), code)

    def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.loop.run()

    def settle(self) -> None:
        """Everything ends that takes no time: reads from the disk, compilation, later turns of the loop."""
        self.store.cold = False
        self.loop.run()
        while self.fetched or self.compiled:
            (self.fetched or self.compiled).pop(0)()
        self.loop.run()


def outcome(client: Client) -> str:
    assert len(client.answers) <= 1, "answered once"
    if client.closed:
        assert not client.answers
        return "gone"
    return CODES[client.answers[0].code] if client.answers else "waits"


# -- the table --------------------------------------------------------------------------------------------------------


def cells(text: str) -> list[tuple[str, str, str]]:
    """The table of a docstring: what happens, the state before, the state after; "-" if it cannot happen."""
    lines = [re.split(r"  +", line.strip()) for line in text.splitlines() if line.startswith("    ")]
    head, _rule, *rows = lines
    states = head[1:-1]
    return [
        (row[0], before, after) for row in rows if len(row) > 2 for before, after in zip(states, row[1:-1], strict=True)
    ]


def request_in(state: str) -> PullRequest:
    fields = RepeatedFields(b"T", b"g", 0, 11, None, b"*", b"TAG")
    request = PullRequest(Client(), 1, 0, fields, 5, 32, SUSPEND, 0, TIMEOUT_MS)  # type: ignore[arg-type]
    request.state = WaitState(state)
    return request


HAPPENS: dict[str, list[Callable[[PullRequest], None]]] = {
    "hold": [lambda request: request.hold(1.0, 6)],
    "wake": [PullRequest.wake],
    "end": [PullRequest.end],
    "answer": [
        lambda request: request.answer(19, GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, 5, 0, 5)),
        lambda request: request.refuse(BrokerError(2, "busy")),
        lambda request: request.fail(DiskError("commitlog", "read", "input/output error")),
    ],
    "forget": [PullRequest.forget],
}


@pytest.mark.parametrize(("happens", "before", "after"), cells(pull_request.__doc__ or ""))
def test_the_table_of_states_is_true(happens: str, before: str, after: str) -> None:
    for happen in HAPPENS[happens]:
        request = request_in(before)
        if after == "-":
            with pytest.raises(TransitionError, match=f": impossible for a request that is {before}"):
                happen(request)
        else:
            happen(request)
        assert request.state is WaitState(before if after == "-" else after)
        client: Any = request.channel
        assert len(client.answers) == (happens == "answer" and after != "-")


def test_the_table_has_every_state_and_every_method() -> None:
    table = cells(pull_request.__doc__ or "")
    assert {before for _, before, _ in table} == {"new", "held", "woken", "final", "done"}
    assert {happens for happens, _, _ in table} == set(HAPPENS)
    assert len(table) == 5 * len(HAPPENS)


# -- states and events ------------------------------------------------------------------------------------------------


def new_on_disk(scene: Scene) -> Client:
    scene.store.tags, scene.store.cold = [OTHER], True
    return scene.pull()


def new_compiled(scene: Scene) -> Client:
    scene.must_compile()
    return scene.pull()


def held(scene: Scene) -> Client:
    return scene.pull()


def held_again(scene: Scene) -> Client:
    client = scene.pull()
    scene.arrive(OTHER, OTHER)
    return client


def woken_later(scene: Scene) -> Client:
    for _ in range(AT_ONCE_MAX):
        scene.pull()
    client = scene.pull()
    scene.arrive(OTHER, OTHER)
    return client


def woken_on_disk(scene: Scene) -> Client:
    client = scene.pull()
    scene.store.cold = True
    scene.arrive(OTHER, OTHER)
    return client


def woken_compiled(scene: Scene) -> Client:
    client = scene.pull()
    scene.change()
    scene.must_compile()
    scene.arrive(OTHER, OTHER)
    return client


def final_later(scene: Scene) -> Client:
    for _ in range(AT_ONCE_MAX):
        scene.pull()
    client = scene.pull()
    scene.store.tags.append(OTHER)
    scene.hold.recheck()
    return client


def final_on_disk(scene: Scene) -> Client:
    client = scene.pull()
    scene.store.tags, scene.store.cold = [OTHER], True
    scene.pass_time(TIMEOUT_MS)
    return client


def delete(scene: Scene, _client: Client) -> None:
    del scene.topics["T"]
    scene.store.tags.clear()
    scene.change()
    scene.hold.end(b"T", 0)


def reset(scene: Scene, _client: Client) -> None:
    scene.resets["g", "T", 0] = 7
    scene.hold.end(b"T", 0, "g")


def reset_another_group(scene: Scene, _client: Client) -> None:
    scene.resets["h", "T", 0] = 7
    scene.hold.end(b"T", 0, "h")


def recheck(scene: Scene, _client: Client) -> None:
    scene.store.tags.append(OTHER)
    scene.hold.recheck()


def close(scene: Scene, client: Client) -> None:
    client.closed = True
    scene.hold.channel_closed(client)  # type: ignore[arg-type]


def fail(scene: Scene, _client: Client) -> None:
    scene.store.broken = True
    scene.arrive(WANTED)


EVENTS: dict[str, Callable[[Scene, Client], None]] = {
    "wanted": lambda scene, _: scene.arrive(WANTED),
    "another": lambda scene, _: scene.arrive(OTHER),
    "others": lambda scene, _: scene.arrive(OTHER, OTHER),
    "deadline": lambda scene, _: scene.pass_time(TIMEOUT_MS),
    "recheck": recheck,
    "delete": delete,
    "reset": reset,
    "reset h": reset_another_group,
    "close": close,
    "stop": lambda scene, _: scene.hold.release_all(),
    "defect": fail,
}
STATES: dict[str, Callable[[Scene], Client]] = {
    make.__name__: make
    for make in (
        new_on_disk,
        new_compiled,
        held,
        held_again,
        woken_later,
        woken_on_disk,
        woken_compiled,
        final_later,
        final_on_disk,
    )
}
OUTCOMES = """
state           wanted  another  others  deadline  recheck  delete    reset  reset h  close  stop     defect
new_on_disk     found   retry    retry   retry     retry    waits     moved  retry    gone   retry    error
new_compiled    found   retry    retry   waits     retry    no topic  moved  waits    gone   nothing  error
held            found   waits    waits   nothing   retry    moved     moved  waits    gone   nothing  error
held_again      found   waits    waits   retry     retry    moved     moved  waits    gone   retry    error
woken_later     found   waits    waits   retry     waits    moved     moved  waits    gone   retry    error
woken_on_disk   found   waits    waits   retry     waits    nothing   moved  waits    gone   retry    error
woken_compiled  found   waits    waits   retry     waits    moved     moved  waits    gone   retry    error
final_later     found   retry    retry   retry     retry    moved     moved  retry    gone   retry    error
final_on_disk   found   retry    retry   retry     retry    nothing   moved  retry    gone   retry    error
"""
"""How the pull is answered when everything else has ended, too; "waits": it is not answered before its deadline."""
_HEAD, *_ROWS = [re.split(r"  +", line.strip()) for line in OUTCOMES.strip("\n").splitlines()]
CASES = [(row[0], happens, expected) for row in _ROWS for happens, expected in zip(_HEAD[1:], row[1:], strict=True)]


@pytest.mark.few
@pytest.mark.parametrize(("state", "happens", "expected"), CASES)
def test_every_event_in_every_state(state: str, happens: str, expected: str) -> None:
    scene = Scene()
    client = STATES[state](scene)
    assert outcome(client) == "waits"
    EVENTS[happens](scene, client)
    scene.settle()
    assert outcome(client) == expected
    assert scene.requests[client].state is (WaitState.HELD if expected == "waits" else WaitState.DONE)
    scene.pass_time(2 * TIMEOUT_MS)
    assert outcome(client) != "waits", "every pull is answered, at the latest when its time is over"
    assert (len(scene.hold), scene.requests[client].state) == (0, WaitState.DONE)
    assert (scene.hold._queues, dict(scene.hold._due), scene.hold._requests._connections) == ({}, {}, {})


def test_the_outcomes_are_complete() -> None:
    assert {(state, happens) for state, happens, _ in CASES} == {(s, e) for s in STATES for e in EVENTS}


# -- details that follow from the states ------------------------------------------------------------------------------


def test_a_pull_that_waits_again_keeps_its_deadline_and_tells_how_far_it_got() -> None:
    scene = Scene()
    client = scene.pull()
    scene.pass_time(TIMEOUT_MS - 1000)
    scene.arrive(OTHER, OTHER)
    scene.pass_time(990)
    assert outcome(client) == "waits"
    scene.pass_time(10)
    assert outcome(client) == "retry"
    assert client.answers[0].ext_fields["nextBeginOffset"] == "2"


def test_skipped_messages_are_not_forgotten_when_a_pull_waits_again() -> None:
    request = request_in("new")
    for queue_offset, skipped in ((5, False), (6, True), (6, True)):
        request.hold(1.0, queue_offset)
        assert (request.queue_offset, request.skipped) == (queue_offset, skipped)
        request.wake()


def test_a_message_before_the_place_where_a_pull_waits_wakes_nobody() -> None:
    scene = Scene()
    client = held_again(scene)
    scene.hold.arrived(b"T", 0, 2, WANTED)
    request = scene.requests[client]
    assert (request.state, request.queue_offset, request.skipped) == (WaitState.HELD, 2, True)


def test_a_woken_pull_that_has_not_examined_the_whole_queue_is_answered() -> None:
    scene = Scene()
    scene.store.examined_max = 2
    client = scene.pull()
    scene.arrive(OTHER, OTHER, OTHER)
    assert outcome(client) == "retry"
    assert client.answers[0].ext_fields["nextBeginOffset"] == "2"


def test_an_account_that_may_no_longer_read_is_refused_when_it_is_woken() -> None:
    """What the account has proved is noted when the pull waits for the first time; the connection may change later."""

    class Accounts(Senders):
        noted: tuple[object, ...] = ()
        checked: tuple[object, ...] = ()

        def proof(self, channel: Any) -> object:
            self.noted += (channel,)
            return len(self.noted)

        def check_still_reads(self, proof: object, channel: Any, topic: str, group: str) -> None:
            self.checked += ((proof, topic, group),)
            if len(self.checked) == 2:
                raise BrokerError(ResponseCode.NO_PERMISSION, "no longer")

    scene = Scene()
    services: Any = scene.processor._services
    accounts = services.senders = Accounts()
    client = scene.pull()
    scene.arrive(OTHER, OTHER)
    assert outcome(client) == "waits"
    scene.arrive(WANTED)
    assert (client.answers[0].code, client.answers[0].remark) == (16, "no longer")
    assert (accounts.noted, accounts.checked) == ((client,), ((1, "T", "g"),) * 2)


@pytest.mark.parametrize("is_costly", [False, True])
def test_a_filter_that_takes_long_makes_its_connection_wait_for_a_free_turn(
    is_costly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = GetMessageResult(GetMessageStatus.FOUND, 1, 0, 1, [memoryview(b"x")], 1, 1)
    read = SimpleNamespace(get_message=lambda *_: found, is_time_up=lambda: is_costly)
    monkeypatch.setattr("rucola.broker.pull.processor.FilteredRead", lambda *_: read)
    scene = Scene()
    expression: Any = object()
    admission = Admission(("g", "T", 0), (b"T", 0), expression=expression)
    scene.processor._admissions.find = lambda *_: admission  # type: ignore[method-assign]
    client = scene.pull()
    assert (outcome(client), client.costly) == ("found", is_costly)


@pytest.mark.parametrize(("sys_flag", "timeout_ms"), [(SUBSCRIPTION, TIMEOUT_MS), (SUBSCRIPTION | SUSPEND, 0)])
def test_a_pull_that_must_not_wait_is_answered_at_once(sys_flag: int, timeout_ms: int) -> None:
    scene = Scene()
    assert outcome(scene.pull(sys_flag=sys_flag, timeout_ms=timeout_ms)) == "nothing"
    assert len(scene.hold) == 0


def test_short_polling_waits_as_long_as_the_broker_says() -> None:
    scene = Scene(long_polling_enable=False, short_polling_time_ms=700)
    client = scene.pull(timeout_ms=0)
    scene.pass_time(690)
    assert outcome(client) == "waits"
    scene.pass_time(10)
    assert outcome(client) == "nothing"


def test_a_pull_with_a_commit_commits_once_however_often_it_runs() -> None:
    scene = Scene()
    client = scene.pull(sys_flag=COMMIT | SUSPEND | SUBSCRIPTION)
    scene.arrive(OTHER, OTHER)
    scene.arrive(WANTED)
    assert (outcome(client), scene.committed) == ("found", [("g", "T", 0, 77)])


def test_a_pull_commits_nothing_while_its_queue_is_reset() -> None:
    scene = Scene()
    scene.resets["g", "T", 0] = 7
    assert outcome(scene.pull(sys_flag=COMMIT | SUSPEND | SUBSCRIPTION)) == "moved"
    assert scene.committed == []


@pytest.mark.parametrize("busy", ["disk", "compiler", "hold"])
def test_a_pull_that_finds_no_place_to_wait_is_refused(busy: str) -> None:
    scene = Scene(pull_thread_pool_queue_capacity=1)
    scene.disk_is_busy = scene.compiler_is_busy = True
    if busy == "disk":
        client = new_on_disk(scene)
    elif busy == "compiler":
        client = new_compiled(scene)
    else:
        scene.pull()
        client = scene.pull()
    assert outcome(client) == "busy"


def test_a_pull_beyond_the_share_of_its_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.broker.waiting_requests.REQUESTS_MAX", 1)
    scene = Scene()
    client = scene.pull()
    assert outcome(scene.pull(client=client)) == "busy"
    assert len(scene.hold) == 1
    client.answers.clear()
    scene.arrive(WANTED)
    assert outcome(client) == "found"


def test_a_compiler_that_is_busy_refuses_a_woken_pull() -> None:
    scene = Scene()
    scene.compiler_is_busy = True
    assert outcome(woken_compiled(scene)) == "busy"


def test_a_new_subscription_decides_what_a_waiting_pull_gets() -> None:
    """A pull without a subscription of its own takes its group's: a message that matches only the new one is found."""
    scene = Scene()
    subscription = SimpleNamespace(sub_version=0, expression_type="TAG", sub_string="other", code_set={OTHER})
    group = SimpleNamespace(message_model="CLUSTERING", subscriptions={"T": subscription}, clients={})
    consumers: Any = scene.processor._admissions._consumers
    consumers.group = lambda _: group
    client = scene.pull(sys_flag=SUSPEND)
    subscription.sub_string, subscription.code_set = "wanted", {WANTED}
    consumers.changes += 1
    scene.arrive(WANTED)
    assert outcome(client) == "waits", "held under the tags of its old subscription, until the re-check"
    scene.hold.recheck()
    assert outcome(client) == "found"


def test_a_message_that_comes_while_pulls_are_woken_wakes_no_pull_twice() -> None:
    """A response makes another message arrive before the next woken pull runs."""
    scene = Scene()
    first, second, third = scene.pull(), scene.pull(), scene.pull()
    send, first.closed = first.send, False

    def send_and_arrive(data: bytes) -> None:
        send(data)
        scene.arrive(WANTED)

    first.send = send_and_arrive  # type: ignore[method-assign]
    scene.arrive(WANTED)
    assert [outcome(client) for client in (first, second, third)] == ["found"] * 3


@pytest.mark.parametrize("happens", ["deadline", "recheck", "stop", "reset"])
def test_a_connection_that_closes_while_others_end_costs_nobody_else(happens: str) -> None:
    scene = Scene()
    first, second, third = scene.pull(), scene.pull(), scene.pull()
    send = first.send

    def send_and_close(data: bytes) -> None:
        send(data)
        close(scene, second)

    first.send = send_and_close  # type: ignore[method-assign]
    EVENTS[happens](scene, first)
    assert (outcome(second), second.answers) == ("gone", [])
    assert outcome(third) not in ("waits", "gone", "error")
    assert len(scene.hold) == 0
