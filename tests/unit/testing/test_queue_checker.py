"""The queue checker: histories that keep every promise, and many that each break one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rucola.testing.queue_checker import (
    Commit,
    Delivery,
    Finding,
    History,
    Kind,
    Outcome,
    Ownership,
    Send,
    Snapshot,
    check,
)


def good(count: int = 6) -> History:
    """Returns a history of two queues with one producer each, consumed in order by two consumers, with progress, owners
    and snapshots.
    """
    history = History(ordered=True, redeliveries_max=0, latency_max=5.0)
    for queue in ("a", "b"):
        for offset in range(count):
            value = f"{queue}{offset}"
            history.sends.append(Send(value, queue, queue, Outcome.OK, offset, offset, offset + 0.5))
            history.deliveries.append(Delivery(value, queue, offset, f"c{queue}", offset + 1, "s"))
            history.commits.append(Commit(queue, offset + 1, offset + 1.5))
        history.ownerships.append(Ownership(queue, f"c{queue}", 0, 100))
        everything = frozenset(f"{queue}{offset}" for offset in range(count))
        history.snapshots.append(Snapshot(queue, everything, 50))
    return history


def change(history: History, what: str, index: int, **fields: object) -> None:
    entries = getattr(history, what)
    entries[index] = entries[index]._replace(**fields)


def undelivered(history: History, value: str) -> None:
    history.deliveries = [delivery for delivery in history.deliveries if delivery.value != value]


def once_more(history: History, index: int, **fields: object) -> None:
    history.deliveries.append(history.deliveries[index]._replace(**fields))


def without_order(history: History) -> None:
    history.ordered = False
    history.deliveries = [delivery._replace(session="") for delivery in history.deliveries]


def test_a_good_history():
    assert check(good()) == []
    assert check(History()) == []


def unknown_and_unseen(h: History) -> None:
    change(h, "sends", 5, outcome=Outcome.UNKNOWN, offset=None)
    undelivered(h, "a5")
    h.commits.pop(5)


def refused_and_unseen(h: History) -> None:
    change(h, "sends", 5, outcome=Outcome.FAILED, offset=None)
    undelivered(h, "a5")
    h.commits.pop(5)
    h.snapshots[0] = h.snapshots[0]._replace(values=h.snapshots[0].values - {"a5"})


def redelivered_after_a_restart(h: History) -> None:
    h.redeliveries_max = 2
    for index in (4, 5):
        once_more(h, index, at=20 + index, session="t")


def retried_elsewhere(h: History) -> None:
    h.redeliveries_max = 1
    once_more(h, 2, queue="%RETRY%", offset=0, at=30, retried=True)


def sent_twice(h: History) -> None:
    change(h, "sends", 5, retries=1)
    once_more(h, 5, offset=6, at=8)
    h.redeliveries_max = 1


def set_back_on_purpose(h: History) -> None:
    h.commits.append(Commit("a", 0, 40, reset=True))


def handed_over(h: History) -> None:
    change(h, "ownerships", 0, until=10)
    h.ownerships.append(Ownership("a", "cb", 10, 100))


def two_owners_before_the_group_settled(h: History) -> None:
    h.settled_at = 5
    h.ownerships.append(Ownership("a", "cb", 0, 5))


def sends_that_overlap(h: History) -> None:
    change(h, "sends", 0, offset=1, ended=3)
    change(h, "sends", 1, offset=0, began=0, ended=3)
    change(h, "deliveries", 0, offset=1, at=1.2)
    change(h, "deliveries", 1, offset=0, at=1.1)
    h.deliveries = sorted(h.deliveries, key=lambda delivery: delivery.at)


def not_yet_delivered(h: History) -> None:
    h.drained = False
    undelivered(h, "a5")
    h.commits.pop(5)


def delayed(h: History) -> None:
    change(h, "sends", 5, visible_at=5.9)


GOOD = [
    unknown_and_unseen,
    refused_and_unseen,
    redelivered_after_a_restart,
    retried_elsewhere,
    sent_twice,
    set_back_on_purpose,
    handed_over,
    two_owners_before_the_group_settled,
    sends_that_overlap,
    not_yet_delivered,
    delayed,
]


@pytest.mark.parametrize("alter", GOOD, ids=lambda alter: alter.__name__)
def test_histories_that_are_allowed(alter):
    history = good()
    alter(history)
    assert check(history) == []


Alter = Callable[[History], object]
BAD: list[tuple[str, Kind, Alter]] = []


def bad(kind: Kind) -> Callable[[Alter], Alter]:
    def note(alter: Alter) -> Alter:
        BAD.append((alter.__name__, kind, alter))
        return alter

    return note


for _value in ("a0", "a3", "a5", "b0", "b5"):
    BAD.append((f"lost {_value}", Kind.LOST, lambda h, value=_value: undelivered(h, value)))
    BAD.append((f"lost {_value}, no order", Kind.LOST, lambda h, v=_value: (without_order(h), undelivered(h, v))))


@bad(Kind.LOST)
def everything_lost(h: History) -> None:
    h.deliveries.clear()


@bad(Kind.LOST)
def lost_in_the_middle_before_the_drain(h: History) -> None:
    h.drained = False
    undelivered(h, "a2")


@bad(Kind.LOST)
def gone_from_the_store(h: History) -> None:
    h.snapshots[0] = h.snapshots[0]._replace(values=h.snapshots[0].values - {"a3"})


@bad(Kind.LOST)
def empty_after_a_restart(h: History) -> None:
    h.snapshots[1] = h.snapshots[1]._replace(values=frozenset())


@bad(Kind.PHANTOM)
def never_sent(h: History) -> None:
    h.deliveries.append(Delivery("z", "a", 6, "ca", 9, "s"))


@bad(Kind.PHANTOM)
def a_damaged_value(h: History) -> None:
    change(h, "deliveries", 3, value="a3\0")


@bad(Kind.PHANTOM)
def a_phantom_through_the_retry_topic(h: History) -> None:
    h.deliveries.append(Delivery("z", "%RETRY%", 0, "ca", 9, retried=True))


@bad(Kind.ABORTED_READ)
def refused_and_delivered(h: History) -> None:
    change(h, "sends", 4, outcome=Outcome.FAILED)


@bad(Kind.ABORTED_READ)
def rolled_back_and_delivered(h: History) -> None:
    h.sends.append(Send("half", "a", "t", Outcome.FAILED, None, 0, 1))
    h.deliveries.append(Delivery("half", "a", 6, "ca", 9, "s"))


@bad(Kind.ABORTED_READ)
def refused_and_delivered_later_by_retry(h: History) -> None:
    h.sends.append(Send("half", "a", "t", Outcome.FAILED, None, 0, 1))
    h.deliveries.append(Delivery("half", "%RETRY%", 0, "ca", 9, retried=True))


@bad(Kind.INCONSISTENT_OFFSET)
def two_acknowledged_at_one_offset(h: History) -> None:
    change(h, "sends", 4, offset=3)


@bad(Kind.INCONSISTENT_OFFSET)
def two_consumers_see_different_values(h: History) -> None:
    h.redeliveries_max = None
    once_more(h, 3, offset=4, consumer="other", session="o")


@bad(Kind.INCONSISTENT_OFFSET)
def delivered_elsewhere_than_acknowledged(h: History) -> None:
    change(h, "deliveries", 2, offset=3)


@bad(Kind.DUPLICATE_POSITION)
def one_value_twice(h: History) -> None:
    h.redeliveries_max = None
    once_more(h, 5, offset=6, at=9)


@bad(Kind.DUPLICATE_POSITION)
def one_value_in_two_queues(h: History) -> None:
    h.redeliveries_max = None
    once_more(h, 5, queue="b", offset=6, at=9, consumer="cb")


@bad(Kind.DUPLICATE_POSITION)
def more_copies_than_retries(h: History) -> None:
    h.redeliveries_max = None
    change(h, "sends", 5, retries=1)
    once_more(h, 5, offset=6, at=8)
    once_more(h, 5, offset=7, at=9)


@bad(Kind.REDELIVERY)
def again_without_a_fault(h: History) -> None:
    once_more(h, 5, at=9)


@bad(Kind.REDELIVERY)
def again_through_the_retry_topic_without_a_failure(h: History) -> None:
    once_more(h, 5, queue="%RETRY%", offset=0, at=9, retried=True)


@bad(Kind.REDELIVERY)
def more_often_than_explained(h: History) -> None:
    h.redeliveries_max = 2
    for index in range(3):
        once_more(h, index, at=20 + index, session="t")


@bad(Kind.NON_MONOTONIC)
def back_within_a_session(h: History) -> None:
    h.redeliveries_max = None
    once_more(h, 2, at=9)


@bad(Kind.NON_MONOTONIC)
def two_swapped(h: History) -> None:
    h.ordered = False
    h.deliveries[2], h.deliveries[3] = h.deliveries[3], h.deliveries[2]


@bad(Kind.NON_MONOTONIC)
def back_to_the_begin(h: History) -> None:
    h.redeliveries_max = None
    for index in range(6):
        once_more(h, index, at=20 + index)


for _index in (1, 2, 4):
    BAD.append((f"skipped {_index}", Kind.SKIPPED, lambda h, index=_index: h.deliveries.pop(index)))


@bad(Kind.SKIPPED)
def skipped_and_given_by_retry(h: History) -> None:
    change(h, "deliveries", 3, queue="%RETRY%", offset=0, retried=True)


@bad(Kind.SKIPPED)
def skipped_and_given_to_another(h: History) -> None:
    change(h, "deliveries", 3, consumer="other")


@bad(Kind.ORDER)
def acknowledged_before_and_stored_behind(h: History) -> None:
    change(h, "sends", 2, offset=3)
    change(h, "sends", 3, offset=2)


@bad(Kind.ORDER)
def the_first_stored_last(h: History) -> None:
    change(h, "sends", 0, offset=9)


@bad(Kind.ORDER)
def the_last_stored_first(h: History) -> None:
    for index in range(6):
        change(h, "sends", index, offset=(index + 1) % 6)


@bad(Kind.ORDER)
def given_in_another_order(h: History) -> None:
    change(h, "deliveries", 2, at=4.5)


@bad(Kind.ORDER)
def overtaken_by_another_consumer(h: History) -> None:
    change(h, "deliveries", 5, consumer="other", session="o", at=4.5)
    change(h, "sends", 5, began=3, ended=4.2)


@bad(Kind.ORDER)
def given_in_another_order_without_sessions(h: History) -> None:
    without_order(h)
    h.ordered = True
    change(h, "deliveries", 2, at=4.5)


@bad(Kind.EARLY)
def before_it_was_sent(h: History) -> None:
    change(h, "deliveries", 0, at=-1)


@bad(Kind.EARLY)
def before_its_delay(h: History) -> None:
    change(h, "sends", 5, visible_at=7)


@bad(Kind.EARLY)
def before_its_commit(h: History) -> None:
    change(h, "sends", 2, visible_at=3.1)


@bad(Kind.EARLY)
def the_first_of_two_deliveries_early(h: History) -> None:
    h.redeliveries_max = None
    change(h, "sends", 5, visible_at=6)
    once_more(h, 5, at=5.5, session="t")


@bad(Kind.LATE)
def too_late(h: History) -> None:
    change(h, "deliveries", 5, at=12)


@bad(Kind.LATE)
def too_late_after_its_delay(h: History) -> None:
    change(h, "sends", 5, visible_at=6)
    change(h, "deliveries", 5, at=11.5)


@bad(Kind.LATE)
def late_by_retry_only(h: History) -> None:
    change(h, "deliveries", 5, at=30, retried=True, queue="%RETRY%", offset=0)


@bad(Kind.RESURRECTED)
def there_gone_and_there(h: History) -> None:
    before = h.snapshots[0]
    h.sends = [send._replace(outcome=Outcome.UNKNOWN) for send in h.sends]
    h.snapshots += [Snapshot("a", before.values - {"a5"}, 60), before._replace(at=70)]


@bad(Kind.RESURRECTED)
def there_twice_gone_and_there(h: History) -> None:
    before = h.snapshots[1]
    h.sends = [send._replace(outcome=Outcome.UNKNOWN) for send in h.sends]
    h.snapshots += [before._replace(at=55), Snapshot("b", frozenset(), 60), before._replace(at=70)]


@bad(Kind.STALE_PROGRESS)
def progress_went_back(h: History) -> None:
    h.commits.append(Commit("a", 3, 40))


@bad(Kind.STALE_PROGRESS)
def progress_went_back_by_one(h: History) -> None:
    change(h, "commits", 3, at=6.6)


@bad(Kind.STALE_PROGRESS)
def progress_past_the_end(h: History) -> None:
    h.commits.append(Commit("a", 7, 40))


@bad(Kind.STALE_PROGRESS)
def progress_of_an_empty_queue(h: History) -> None:
    h.commits.append(Commit("empty", 1, 40))


@bad(Kind.PROGRESS_PAST_UNSEEN)
def stored_before_it_was_given(h: History) -> None:
    h.drained = False
    undelivered(h, "a5")


@bad(Kind.PROGRESS_PAST_UNSEEN)
def stored_past_a_hole(h: History) -> None:
    h.drained = False
    without_order(h)
    undelivered(h, "b2")


@bad(Kind.OWNED_TWICE)
def two_owners(h: History) -> None:
    h.ownerships.append(Ownership("a", "cb", 20, 30))


@bad(Kind.OWNED_TWICE)
def two_owners_after_the_group_settled(h: History) -> None:
    h.settled_at = 25
    h.ownerships.append(Ownership("a", "cb", 20, 30))


@bad(Kind.OWNED_TWICE)
def an_owner_that_did_not_let_go(h: History) -> None:
    change(h, "ownerships", 0, until=10.1)
    h.ownerships.append(Ownership("a", "cb", 10, 100))


@bad(Kind.OWNED_TWICE)
def the_third_meets_the_first(h: History) -> None:
    h.ownerships += [Ownership("a", "ca", 10, 20), Ownership("a", "cc", 50, 60)]


@pytest.mark.few(20)
@pytest.mark.parametrize(("kind", "alter"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_histories_that_break_a_promise(kind, alter):
    history = good()
    alter(history)
    found = check(history)
    assert kind in {finding.kind for finding in found}, found


def test_enough_bad_histories_of_every_kind():
    assert len(BAD) >= 50
    assert {kind for _, kind, _ in BAD} == set(Kind)


def test_a_finding_names_the_queue_and_the_message():
    history = good()
    undelivered(history, "a3")
    assert Finding(Kind.LOST, "a", "a3 at 3") in check(history)
