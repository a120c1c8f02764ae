"""Sessions: they end, they are bounded, and signing in gives a new one."""

from __future__ import annotations

from rucola.console.access.sessions import IDLE_S, LIFE_S, BrokerAccount, VisitSessions
from rucola.console.access.throttle import ENTRIES_MAX, FAILURES_MAX, WINDOW_S, Throttle
from rucola.testing.clock import ManualClock

ALICE = BrokerAccount("alice", "a secret")


def test_an_unused_session_ends() -> None:
    clock = ManualClock()
    sessions = VisitSessions(clock.monotonic)
    name, _ = sessions.begin()
    clock.advance((IDLE_S - 1) * 1000)
    assert sessions.find(name) is not None
    clock.advance((IDLE_S - 1) * 1000)
    assert sessions.find(name) is not None, "it was used meanwhile"
    clock.advance(IDLE_S * 1000)
    assert sessions.find(name) is None and len(sessions) == 0


def test_a_question_whether_a_session_is_there_is_no_use_of_it() -> None:
    clock = ManualClock()
    sessions = VisitSessions(clock.monotonic)
    name, _ = sessions.begin()
    clock.advance((IDLE_S - 1) * 1000)
    assert name in sessions and "other" not in sessions
    clock.advance(1000)
    assert name not in sessions and sessions.find(name) is None


def test_a_used_session_ends_too() -> None:
    clock = ManualClock()
    sessions = VisitSessions(clock.monotonic)
    name, _ = sessions.begin()
    for _ in range(int(LIFE_S // 1000)):
        clock.advance(1_000_000)
        sessions.find(name)
    clock.advance(LIFE_S % 1000 * 1000)
    assert sessions.find(name) is None


def test_signing_in_ends_the_session_before() -> None:
    sessions = VisitSessions(ManualClock().monotonic)
    planted, before = sessions.begin()
    name, session = sessions.sign_in(planted, "prod", ALICE, read_only=True)
    assert name != planted and session.csrf != before.csrf and sessions.find(planted) is None
    assert session.account("prod") == ALICE and session.account("test") == BrokerAccount() and session.is_read_only
    again, session = sessions.sign_in(name, "test", BrokerAccount("bob", "his"), read_only=False)
    assert session.account("prod") == ALICE and sessions.accounts("test") == {BrokerAccount("bob", "his")}
    sessions.end(again)
    assert sessions.accounts("prod") == set()


def test_nobody_pushes_out_who_is_signed_in() -> None:
    clock = ManualClock()
    sessions = VisitSessions(clock.monotonic, count_max=5)
    name, _ = sessions.sign_in("", "prod", ALICE, read_only=False)
    for _ in range(20):
        clock.advance(1000)
        sessions.begin()
    assert len(sessions) == 5 and sessions.find(name) is not None


def test_the_secret_is_not_shown() -> None:
    assert "a secret" not in repr(ALICE)


def test_who_fails_has_to_wait() -> None:
    clock = ManualClock()
    throttle = Throttle(clock.monotonic)
    for _ in range(FAILURES_MAX):
        assert throttle.wait_s("prod/alice", "10.0.0.1") == 0
        throttle.failed("prod/alice", "10.0.0.1")
    assert throttle.wait_s("prod/alice", "10.0.0.2") == WINDOW_S, "another address guesses the same account"
    assert throttle.wait_s("prod/bob", "10.0.0.1") == WINDOW_S, "the same address guesses another account"
    assert throttle.wait_s("prod/bob", "10.0.0.2") == 0
    clock.advance(int(WINDOW_S * 1000))
    assert throttle.wait_s("prod/alice", "10.0.0.1") == 0


def test_the_failures_are_bounded() -> None:
    throttle = Throttle(ManualClock().monotonic)
    for number in range(ENTRIES_MAX + 100):
        throttle.failed(str(number))
    assert len(throttle._failures) == ENTRIES_MAX
