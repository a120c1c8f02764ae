"""The states of a waiting pop: every event in every state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.broker.test_pop_hold import Connection, Scene
from tests.unit.broker.test_pull_states import cells

from rucola.broker.pop import hold as pop_hold
from rucola.broker.pop.hold import ALL_QUEUES, Attempt, HeldPop, HeldRequest, WaitingPop
from rucola.broker.waiting_requests import TransitionError, WaitState

AFTER_MS = 3000
ATTEMPT = Attempt("x", "T", "g", 0, "")
TABLE = cells(pop_hold.__doc__ or "")
HAPPENS: dict[str, Callable[[HeldRequest], None]] = {
    "hold": HeldRequest.hold,
    "leave": HeldRequest.leave,
    "wake": HeldRequest.wake,
    "withdraw": HeldRequest.withdraw,
    "finish": HeldRequest.finish,
}


def nothing() -> None:
    pass


@pytest.mark.parametrize("kind", [HeldRequest, HeldPop])
@pytest.mark.parametrize(("happens", "before", "after"), TABLE)
def test_the_table_of_states_is_true(kind: type, happens: str, before: str, after: str) -> None:
    place = (Connection(), "T", "g", 0, 1.0, nothing)
    more = {"opaque": 1, "expression": ("TAG", "*"), "give_up": nothing, "attempt": None} if kind is HeldPop else {}
    request: HeldRequest = kind(*place, **more)
    assert request.state is WaitState.NEW
    request.state = WaitState(before)
    if after == "-":
        with pytest.raises(TransitionError, match=f"{happens}: impossible for a request that is {before}"):
            HAPPENS[happens](request)
    else:
        HAPPENS[happens](request)
    assert request.state is WaitState(before if after == "-" else after)


def test_the_table_has_every_state_and_every_method() -> None:
    states = {"new", "held", "woken", "away", "withdrawn", "done"}
    assert {(happens, before) for happens, before, _ in TABLE} == {(h, s) for h in HAPPENS for s in states}


def close(scene: Scene, request: HeldRequest) -> None:
    request.channel.closed = True
    scene.hold.channel_closed(request.channel)


def withdraw(scene: Scene, request: HeldRequest) -> None:
    found = scene.hold.withdraw(request.channel, getattr(request, "opaque", 0))
    assert found == isinstance(request, WaitingPop)


def withdraw_and_close(scene: Scene, request: HeldRequest) -> None:
    withdraw(scene, request)
    close(scene, request)


def repeat(scene: Scene, request: HeldRequest) -> None:
    scene.hold.end_older(Connection(), ATTEMPT)  # type: ignore[arg-type]


def fail(scene: Scene, request: HeldRequest) -> None:
    def broken() -> None:
        raise ValueError("a defect")

    request.resume = broken
    scene.hold.arrived(b"T", 0, 1)


EVENTS: dict[str, Callable[[Scene, HeldRequest], None]] = {
    "message": lambda scene, _: scene.hold.arrived(b"T", 0, 1),
    "other tag": lambda scene, _: scene.hold.arrived(b"T", 0, 2),
    "mixed tags": lambda scene, _: scene.hold.arrived(b"T", 0, None),
    "other queue": lambda scene, _: scene.hold.arrived(b"T", 5, 1),
    "retry topic": lambda scene, _: scene.hold.arrived(b"%RETRY%g_T", 0, 2),
    "free queue": lambda scene, _: scene.hold.wake("T", "g", 0),
    "deadline": lambda scene, _: scene.clock.advance(AFTER_MS),
    "deleted topic": lambda scene, _: scene.hold.end("T"),
    "other deleted": lambda scene, _: scene.hold.end("U"),
    "expression": lambda scene, it: scene.hold.subscribed(it.channel, "g", {"T": ("SQL92", "*")}),
    "same expression": lambda scene, it: scene.hold.subscribed(it.channel, "g", {"T": ("TAG", "*")}),
    "closed": close,
    "stop": lambda scene, _: scene.hold.release_all(),
    "defect": fail,
    "withdrawn": withdraw,
    "repeated": repeat,
    "withdrawn, closed": withdraw_and_close,
}
OUTCOMES = {
    # event: (a held pop, a held question, a woken pop, a pop that waits for the disk or the parser)
    "message": ("runs", "runs", "runs", "runs"),
    "other tag": ("waits", "runs", "runs", "runs"),
    "mixed tags": ("runs", "runs", "runs", "runs"),
    "other queue": ("waits", "waits", "runs", "runs"),
    "retry topic": ("runs", "runs", "runs", "runs"),
    "free queue": ("runs", "runs", "runs", "runs"),
    "deadline": ("runs", "runs", "runs", "runs"),
    "deleted topic": ("runs", "runs", "runs", "runs"),
    "other deleted": ("waits", "waits", "runs", "runs"),
    "expression": ("gives up", "waits", "runs", "runs"),
    "same expression": ("waits", "waits", "runs", "runs"),
    "closed": ("gone", "gone", "gone", "gone"),
    "stop": ("runs", "runs", "runs", "runs"),
    "defect": ("gone", "gone", "gone", "gone"),
    "withdrawn": ("gone", "waits", "gone", "gone"),
    "withdrawn, closed": ("gone", "gone", "gone", "gone"),
    "repeated": ("gives up", "waits", "gives up", "gives up"),
}
STATES = ["held", "question", "woken", "away"]


@pytest.mark.parametrize("happens", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_every_event_in_every_state(state: str, happens: str) -> None:
    """Afterwards, a pop that was away comes back."""
    scene = Scene()
    is_question = state == "question"
    tags = None if is_question else {1}
    if state == "away":
        request: HeldRequest = scene.away(queue_id=0, attempt=ATTEMPT)
    else:
        request = scene.held(queue_id=0, after_ms=AFTER_MS, tags=tags, question=is_question, attempt=ATTEMPT)
    if state == "woken":
        scene.hold.arrived(b"T", 0, 1)
        assert (len(scene.hold), request.state, scene.resumed) == (0, WaitState.WOKEN, [])
    EVENTS[happens](scene, request)
    scene.loop.run()
    if state == "away":
        assert request.state is (
            WaitState.WITHDRAWN if happens.startswith(("withdrawn", "repeated")) else WaitState.AWAY
        )
        scene.hold.resume(request)
    expected = OUTCOMES[happens][STATES.index(state)]
    assert scene.resumed == [request] * (expected == "runs")
    assert scene.given_up == ["*"] * (expected == "gives up")
    assert request.state is (WaitState.HELD if expected == "waits" else WaitState.DONE)
    assert len(scene.hold) == (expected == "waits")
    scene.passes(2 * AFTER_MS)
    assert scene.resumed == [request] * (expected in ("runs", "waits")), "it runs once"
    assert request.state is WaitState.DONE
    assert scene.is_empty()


@pytest.mark.parametrize("ends", [withdraw, close, withdraw_and_close, repeat])
@pytest.mark.parametrize("state", ["held", "woken", "away"])
def test_a_pop_that_ends_without_a_response_hands_the_message_on(
    state: str, ends: Callable[[Scene, HeldRequest], None]
) -> None:
    scene = Scene()
    if state == "away":
        first: HeldRequest = scene.away(queue_id=0, attempt=ATTEMPT)
    else:
        first = scene.held(queue_id=0, after_ms=1000, attempt=ATTEMPT)
    following, last = scene.held(queue_id=0, after_ms=2000), scene.held(queue_id=0, after_ms=AFTER_MS)
    if state == "woken":
        scene.hold.arrived(b"T", 0, 1)
    ends(scene, first)
    if state == "held":
        scene.hold.arrived(b"T", 0, 1)
    elif state == "away":
        assert scene.passes(500) == []
        scene.hold.resume(first)
    assert scene.passes() == [following]
    assert scene.passes(AFTER_MS) == [last]
    assert scene.is_empty()


def test_after_a_stop_nobody_waits() -> None:
    scene = Scene()
    scene.hold.release_all()
    late = HeldRequest(Connection(), "T", "g", 0, 9.0, nothing)  # type: ignore[arg-type]
    assert not scene.hold.hold(late)
    assert (len(scene.hold), late.state) == (0, WaitState.NEW)


def test_a_request_beyond_the_share_of_its_connection_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.broker.waiting_requests.REQUESTS_MAX", 1)
    scene = Scene()
    first = scene.held()
    late = HeldRequest(first.channel, "T", "h", 0, 9.0, nothing)
    assert not scene.hold.hold(late)
    assert (len(scene.hold), late.state) == (1, WaitState.DONE)
    assert ("T", 0) not in scene.hold._queues


def test_more_requests_than_a_queue_or_the_broker_may_hold_do_not_wait() -> None:
    scene = Scene(waiting_max=2)
    scene.held()
    scene.held()
    late = HeldRequest(Connection(), "T", "g", ALL_QUEUES, 9.0, nothing)  # type: ignore[arg-type]
    assert not scene.hold.hold(late)
    assert late.state is WaitState.NEW


def test_a_message_that_comes_while_a_pop_runs_wakes_the_next_one() -> None:
    scene = Scene()
    first, second = scene.held(after_ms=1000), scene.held(after_ms=2000)
    resume = first.resume

    def run_and_arrive() -> None:
        resume()
        scene.hold.arrived(b"T", 0, 1)

    first.resume = run_and_arrive
    scene.hold.arrived(b"T", 0, 1)
    assert scene.passes() == [first, second]


def test_a_stop_runs_all_even_if_one_closes_the_connection_of_the_next() -> None:
    scene = Scene()
    first, second, third = (scene.held(after_ms=1000 * number) for number in (1, 2, 3))
    first.resume = lambda: close(scene, second)
    scene.hold.release_all()
    assert scene.resumed == [third]
    assert (len(scene.hold), second.state) == (0, WaitState.DONE)
