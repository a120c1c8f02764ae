"""Workloads of brokers during power failures: pops, delays, transactions."""

from __future__ import annotations

from tests.crash.broker_life import ORDERED, PLAIN, TRANSACTION_TIMEOUT_MS
from tests.crash.broker_promises import COMMIT, ROLLBACK, Clients


def pop_and_ack(life: Clients) -> None:
    """Pops messages and acknowledges some of them, one by one or together. The other messages are delivered again, and
    are then acknowledged.
    """
    life.open()
    for number in range(6):
        life.send(f"k{number}")
    life.turn()
    first, *rest = life.pop(8000, maximum=3)
    life.ack(first)
    life.flush()
    others = life.pop(5000)
    life.batch_ack(others[:2])
    life.turn(1000)
    life.persist()
    life.ack(rest[0])
    life.turn(3000)
    life.send("late")
    for _ in range(4):
        life.turn(1000)
    life.persist()
    again = life.pop(6000)
    assert {each.key for each in again} == {"k5", "late"}, again
    life.ack(again[0])
    life.turn(1000)
    life.keep()
    life.persist()
    life.turn(3000)


def hide(life: Clients) -> None:
    """Invisible times are made longer and shorter; one message is acknowledged with its newest receipt."""
    life.open()
    for number in range(3):
        life.send(f"h{number}")
    life.turn()
    longer, shorter, last = life.pop(5000)
    longer = life.hide(longer, 9000)
    life.hide(shorter, 2000)
    life.turn(1000)
    life.persist()
    last = life.hide(last, 3000)
    life.ack(last)
    for _ in range(3):
        life.turn(1000)
    life.persist()
    life.ack(longer)
    life.turn(1000)


def killed(life: Clients) -> None:
    """The process is killed between acknowledgements, and after a revival, before the progress is written. Then it is
    stopped cleanly and started.
    """
    life.open()
    for number in range(5):
        life.send(f"x{number}")
    life.turn()
    popped = life.pop(4000)
    life.ack(popped[0])
    life.flush()
    life.open()
    life.turn(1000)
    life.ack(popped[1])
    life.batch_ack(popped[2:4])
    for _ in range(5):
        life.turn(1000)
    life.open()
    life.turn(1000)
    again = life.pop(4000)
    assert [each.key for each in again] == ["x4"], again
    life.turn()
    life.stop()
    life.open()
    life.ack(again[0])
    for _ in range(2):
        life.turn(3000)
    life.persist()


def collected(life: Clients) -> None:
    """Acknowledgements are collected for half a second. The process is killed and stopped while it collects them, while
    it stores them, and before it has started to store what the last one has left.
    """
    life.open()
    for number in range(8):
        life.send(f"c{number}")
    life.turn()
    popped = life.pop(9000)
    life.ack(popped[0])
    life.turn(300)
    life.batch_ack(popped[1:3])
    assert life.collects or life.config.sync_flush
    life.turn(300)
    assert not life.collects
    life.ack(popped[3])
    life.open()
    life.ack(popped[4])
    life.turn(200)
    life.open()
    life.turn(400)
    life.ack(popped[5])
    life.persist()
    life.stop()
    life.open()
    life.ack(popped[6])
    life.turn(100)
    life.open()
    for _ in range(10):
        life.turn(1000)
    again = life.pop(4000)
    assert [each.key for each in again] == ["c7"], again
    life.persist()


def last_moment(life: Clients) -> None:
    """Messages are popped at times that are no whole seconds, and acknowledged a millisecond before the deadline, some
    of them in a retry topic.
    """
    life.open()
    life.clock.advance(337)
    for number in range(4):
        life.send(f"m{number}")
    life.turn()
    first, second, *_ = life.pop(2500)
    life.turn(1100)
    life.ack(first)
    life.turn(900)
    life.persist()
    life.clock.advance(499)
    life.ack(second)
    life.flush()
    life.turn(1)
    for _ in range(3):
        life.turn(600)
    again = life.pop(2300)
    assert {each.key for each in again} == {"m2", "m3"}, again
    life.turn(700)
    life.persist()
    life.open()
    life.turn(300)
    life.batch_ack(again)
    life.turn(1299)
    life.stop()
    life.open()
    life.turn(1500)
    life.persist()


def behind(life: Clients) -> None:
    """Progress is written while the newest pop checkpoints and revived messages are not on the disk yet."""
    life.open()
    for number in range(3):
        life.send(f"b{number}")
    life.flush()
    life.work()
    life.pop(3000, maximum=2)
    life.persist()
    life.flush()
    life.pop(2000)
    life.persist()
    life.clock.advance(5000)
    life.deliver()
    life.flush()
    for _ in range(2):
        life.work()
        life.persist()
    life.flush()
    life.persist()


def in_order(life: Clients) -> None:
    """In an ordered queue, later messages are delivered only after earlier ones are acknowledged."""
    life.open()
    for number in range(4):
        life.send(f"o{number}", ORDERED)
    life.turn()
    popped = life.pop(5000, ORDERED, maximum=2)
    for each in popped:
        life.ack(each)
        life.flush()
    life.persist()
    popped = life.pop(3000, ORDERED)
    life.ack(popped[0])
    life.turn(1000)
    life.open()
    life.turn(4000)


def delays(life: Clients) -> None:
    """Some messages have delay levels, others delivery times. Progress is written while deliveries are not on the disk
    yet; the process is killed.
    """
    life.open()
    for level in (1, 2, 3):
        life.send(f"l{level}", PLAIN, DELAY=level)
    life.send("t2", PLAIN, TIMER_DELIVER_MS=life.clock.wall_ms() + 2500)
    life.send("t4", PLAIN, TIMER_DELIVER_MS=life.clock.wall_ms() + 4000)
    life.turn(1000)
    life.work()
    life.persist()
    life.send("l", PLAIN, DELAY=1)
    life.clock.advance(1200)
    life.work()
    life.persist()
    life.flush()
    life.persist()
    life.open()
    life.turn(1500)
    life.persist()
    life.stop()
    life.open()
    life.turn(2000)


def transactions(life: Clients) -> None:
    """Half messages are committed, rolled back, committed after a check, and given up; the process is killed in
    between.
    """
    life.open()
    life.online()
    for name, outcome in (("commit", COMMIT), ("rollback", ROLLBACK)):
        life.decide(life.prepare(name), outcome)
    silent = life.prepare("silent")
    life.prepare("never")
    life.turn(1000)
    life.persist()
    life.turn(TRANSACTION_TIMEOUT_MS)
    life.check_transactions()
    life.decide(silent, COMMIT)
    life.turn()
    life.persist()
    life.open()
    life.online()
    life.decide(life.prepare("second"), COMMIT)
    for _ in range(2):
        life.turn(1000)
        life.check_transactions()
        life.answer_checks()
    life.persist()
    life.turn(1000)
    life.check_transactions()
    life.stop()


def delayed_commits(life: Clients) -> None:
    """Half messages have delays that begin with their commit; the process is killed before they are due."""
    life.open()
    life.online()
    life.decide(life.prepare("level", DELAY=1), COMMIT)
    life.decide(life.prepare("time", TIMER_DELIVER_MS=life.clock.wall_ms() + 2500), COMMIT)
    life.turn(500)
    life.persist()
    life.prepare("given up", DELAY=1)
    life.open()
    life.online()
    life.turn(700)
    life.persist()
    life.turn(2300)
    life.check_transactions()
    life.persist()


def put_back(life: Clients) -> None:
    """A half message that was given up is resumed. After a kill, the broker checks it again, and it is committed."""
    life.open()
    life.online()
    life.prepare("again")
    for _ in range(4):
        life.turn(TRANSACTION_TIMEOUT_MS)
        life.check_transactions()
    life.turn()
    life.put_back("again")
    life.turn()
    life.persist()
    life.open()
    life.online()
    for _ in range(2):
        life.turn(TRANSACTION_TIMEOUT_MS)
        life.check_transactions()
        life.answer_checks()
    life.persist()


WORKLOADS = {
    work.__name__: work
    for work in (
        pop_and_ack,
        hide,
        killed,
        collected,
        last_moment,
        behind,
        in_order,
        delays,
        transactions,
        delayed_commits,
        put_back,
    )
}
