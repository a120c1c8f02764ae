"""The ledger of the matrix notices planted defects: messages lost, doubled or out of order, and what is left behind."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest
from tests.scenario.matrix.ledger import Given, Ledger
from tests.scenario.matrix.main_thread import MainThread
from tests.scenario.matrix.residue import left
from tests.scenario.matrix.table import CASES, COLUMNS, ROWS, Promise, Word, promise, variants

from rucola.testing.queue_checker import Commit, Outcome
from rucola.testing.virtual_loop import VirtualEventLoop, Working, virtual_time

ONCE, AGAIN, ORDER = Promise(Word.ONCE), Promise(Word.AGAIN), Promise(Word.ONCE, ordered=True)


class Run:
    """A ledger with five messages of one queue, in time that passes by itself."""

    def __init__(self, **options: bool) -> None:
        self.now = 0.0
        self.ledger = Ledger(lambda: self.now, **options)
        self.ledger.joined("a")
        for number in range(5):
            self.ledger.sent(f"0.{number}", "q", number, Outcome.OK, self.now)

    def give(self, number: int, finish: bool = True, member: str = "a", **options: bool) -> Given:
        self.now += 1.0
        given = self.ledger.given(Given(f"0.{number}", "q", number, member, self.now, **options))
        if finish:
            self.end(given)
        return given

    def end(self, given: Given) -> None:
        self.now += 0.1
        self.ledger.finished(given)
        self.ledger.closed(given)

    def all(self, *numbers: int) -> None:
        for number in numbers:
            self.give(number)


def test_a_run_without_fault_has_no_findings():
    run = Run(exclusive=True)
    run.all(0, 1, 2, 3, 4)
    for word in (ONCE, AGAIN, ORDER):
        assert run.ledger.judge(word) == []
    assert run.ledger.outstanding() == set()


def test_a_message_that_failed_may_come_again_even_once():
    run = Run()
    run.all(0, 1)
    run.give(2, finish=False)
    run.all(2, 3, 4)
    assert run.ledger.judge(ORDER) == []


def lost(run: Run) -> None:
    run.all(0, 1, 3, 4)


def never_finished(run: Run) -> None:
    run.all(0, 1, 3, 4)
    run.give(2, finish=False)


def doubled(run: Run) -> None:
    run.all(0, 1, 2, 3, 4, 2)


def out_of_order(run: Run) -> None:
    run.all(0, 2, 1, 3, 4)


def before_the_earlier_one_is_done(run: Run) -> None:
    first = run.give(0, finish=False)
    run.all(1)
    run.end(first)
    run.all(2, 3, 4)


def two_at_once(run: Run) -> None:
    first, second = run.give(0, finish=False), run.give(0, finish=False, member="b")
    run.end(first)
    run.end(second)
    run.all(1, 2, 3, 4)


def invented(run: Run) -> None:
    run.all(0, 1, 2, 3, 4, 5)


def refused_but_there(run: Run) -> None:
    run.ledger.sent("0.5", "q", 5, Outcome.FAILED, run.now)
    run.all(0, 1, 2, 3, 4, 5)


def too_early(run: Run) -> None:
    run.ledger.not_before("0.3", 1e6)
    run.all(0, 1, 2, 3, 4)


def not_again(run: Run) -> None:
    run.all(0, 1, 2, 3, 4)
    run.ledger.want_again({"0.1"})


def committed_unseen(run: Run) -> None:
    run.all(0, 1, 2, 3)
    run.ledger.excuse({"0.4"}, "planted")
    run.ledger.excused.clear()
    run.ledger.commits.append(Commit("q", 5, run.now))


@pytest.mark.parametrize(
    ("plant", "word", "finding"),
    [
        (lost, AGAIN, "acknowledged but never delivered: 0.2"),
        (never_finished, AGAIN, "given but never finished, and not given again: 0.2"),
        (doubled, ONCE, "given again after it was finished: 0.2"),
        (doubled, ORDER, "given again after it was finished: 0.2"),
        (out_of_order, ORDER, "acknowledged sends of one producer are out of order"),
        (before_the_earlier_one_is_done, ORDER, "0.1 was given before 0.0 of its queue was finished"),
        (two_at_once, AGAIN, "two at once of queue q: 0.0 and 0.0"),
        (invented, AGAIN, "delivered but never sent: 0.5"),
        (refused_but_there, AGAIN, "delivered although its send was refused: 0.5"),
        (too_early, AGAIN, "delivered before its time: 0.3"),
        (not_again, AGAIN, "not given again: 0.1"),
        (committed_unseen, AGAIN, "a committed offset is after a message that was never delivered: 0.4"),
    ],
)
def test_the_ledger_notices(plant: Callable[[Run], None], word: Promise, finding: str):
    run = Run(exclusive=plant is two_at_once)
    plant(run)
    assert any(finding in found for found in run.ledger.judge(word)), run.ledger.judge(word)


@pytest.mark.parametrize("plant", [lost, never_finished, not_again])
def test_outstanding_messages_are_known(plant: Callable[[Run], None]):
    run = Run()
    plant(run)
    assert len(run.ledger.outstanding()) == 1


def test_a_skipped_message_needs_an_excuse():
    run = Run()
    lost(run)
    run.ledger.excuse({"0.2"}, "an administrator said so")
    assert run.ledger.judge(Promise(Word.SKIP)) == []
    assert run.ledger.outstanding() == set()


def test_a_doubled_message_is_allowed_where_the_word_says_so():
    run = Run()
    doubled(run)
    assert run.ledger.judge(AGAIN) == []


def test_members_that_each_get_everything_are_judged_apart():
    run = Run(apart=True)
    run.ledger.joined("b")
    run.all(0, 1, 2, 3, 4)
    assert run.ledger.outstanding() == {f"0.{number}" for number in range(5)}
    assert any(found.startswith("b: acknowledged") for found in run.ledger.judge(ONCE))
    assert not any(found.startswith("a: ") for found in run.ledger.judge(ONCE))


def test_a_task_a_timer_and_a_thread_that_are_left_are_noticed():
    from rucola.client.pull_consumer import PullConsumer

    loop = VirtualEventLoop()
    before = threading.enumerate()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="rucola-consume_0")
    with virtual_time(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:

        async def leave_things() -> list[str]:
            consumer = PullConsumer("G", "127.0.0.1:1")
            await consumer.start()
            loop.call_later(1e3, consumer._check_running)
            await asyncio.sleep(0.1)
            found = left(loop, before)
            await consumer.shutdown()
            return found

        thread.start()
        try:
            found = runner.run(leave_things())
        finally:
            end.set()
            thread.join()
    assert {text.partition(":")[0] for text in found} == {"task left", "timer left", "thread left"}


# -- the table


def test_each_cell_has_a_promise_and_each_exception_meets_a_cell():
    for row in ROWS:
        for column in COLUMNS:
            found = promise(row, column)
            assert found.word is not Word.ORDER
            assert found.because or found.word not in (Word.SKIP, Word.NONE), (row, column)
            assert variants(row, column)
    for case in CASES:
        assert any(case.rows(row) for row in ROWS), case
        assert set(case.columns) <= {column.name for column in COLUMNS}


def test_names_are_unique():
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


def test_time_stands_still_until_ctrl_c_has_come():
    working = Working()
    main = MainThread(working)
    handler = signal.signal(signal.SIGINT, main.on_interrupt)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        main.interrupt()
        assert working.count == 1
        with pytest.raises(KeyboardInterrupt):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert working.count == 0
    finally:
        while signal.sigtimedwait({signal.SIGINT}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
