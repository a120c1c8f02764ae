"""Messages between pull and consumption, and the progress that follows from them."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.consuming import QUEUE, messages

from rucola.client.delivery import TRANSITIONS, DeliveryEvent, DeliveryState
from rucola.client.process_queue import DeliveryQueue, FlowLimits, OrderlyProcessQueue, ProcessQueue

ROOMY = FlowLimits(1000, 1 << 30, 2000)


def test_held_messages_stay_as_they_are():
    queue = ProcessQueue(QUEUE, 0.0)
    held = messages(5, 6)
    queue.put(held)
    size_bytes = queue.size_bytes
    queue.put(messages(5, 6, body=b"the same, pulled again"))
    assert (len(queue), queue.size_bytes, queue.pulled) == (2, size_bytes, 2)
    queue.remove(held)
    assert (queue.size_bytes, queue.progress, queue.span_ends) == (0, 7, (None, None))


def test_progress_is_the_lowest_offset_not_consumed():
    queue = ProcessQueue(QUEUE, 0.0)
    assert queue.progress is None
    one, two, three = messages(5, 6, 9)
    queue.put([one, two, three])
    assert queue.progress is None  # nothing is consumed, so the broker keeps its offset
    queue.remove([two])
    assert queue.progress == 5
    queue.remove([one])
    assert queue.progress == 9
    queue.remove([three])
    assert queue.progress == 10
    assert (len(queue), queue.size_bytes, queue.span_ends) == (0, 0, (None, None))
    queue.put(messages(12))
    assert queue.progress == 12


def test_progress_against_a_plain_model():
    source = random.Random(15)
    for _ in range(50):
        queue, held, highest, consumed, offset = ProcessQueue(QUEUE, 0.0), {}, -1, False, 0
        for _ in range(60):
            if source.random() < 0.5:
                count = source.randrange(1, 4)
                offsets = [offset := offset + source.randrange(1, 3) for _ in range(count)]
                batch = messages(*offsets)
                queue.put(batch)
                held |= {message.queue_offset: message for message in batch}
                highest = offset
            elif held:
                gone = source.sample(sorted(held), source.randrange(1, len(held) + 1))
                queue.remove([held.pop(one) for one in gone])
                consumed = True
            assert queue.progress == ((min(held) if held else highest + 1) if consumed else None)
            assert queue.span_ends == ((min(held), max(held)) if held else (None, None))
            assert queue.size_bytes == sum(message.store_size for message in held.values())


def test_an_offset_given_again_comes_before_what_is_held():
    queue = ProcessQueue(QUEUE, 0.0)
    old = messages(3, 4, 5)
    queue.put(old)
    queue.remove(old[:1])
    queue.put(messages(3, 4))  # 3 was consumed, 4 is held
    assert (len(queue), queue.progress, queue.span_ends) == (3, 3, (3, 5))


def test_other_messages_are_passed_over():
    queue = ProcessQueue(QUEUE, 0.0)
    queue.remove(messages(1))
    assert queue.progress is None


def test_limits():
    queue = ProcessQueue(QUEUE, 0.0)
    three = messages(1, 2, 3)
    queue.put(three)
    size = queue.size_bytes
    assert not queue.is_full(FlowLimits(3, size, 2))
    assert queue.is_full(FlowLimits(2, size, 2))
    assert queue.is_full(FlowLimits(3, size - 1, 2))
    assert queue.is_full(FlowLimits(3, size, 1))
    assert not queue.is_full(FlowLimits(3, size, 0))
    queue.remove(three[1:])
    assert not queue.is_full(FlowLimits(3, size, 1))


def test_room_is_told_whatever_makes_it():
    queue = ProcessQueue(QUEUE, 0.0)
    told = []
    queue.on_room = lambda: told.append((len(queue), queue.dropped))
    one, two = messages(1, 2)
    queue.put([one, two])
    queue.remove([one])
    queue.drop()
    assert told == [(1, False), (1, True)]


def test_messages_given_back_come_before_later_ones_whatever_their_order():
    queue = DeliveryQueue(QUEUE, 0.0)
    assert not queue.can_give
    queue.put(messages(1, 2, 3, 4))
    first, second, third = queue.give(1), queue.give(1), queue.give(1)
    queue.remove(second)
    for back in (first, second, third):  # the second is consumed
        queue.give_back(back)
    assert [message.queue_offset for message in queue.give(9)] == [1, 3, 4]
    assert (len(queue), queue.progress, queue.give(1)) == (3, 1, [])


def test_a_repeated_pull_changes_nothing_of_what_is_fetched_or_given():
    queue = DeliveryQueue(QUEUE, 0.0)
    queue.put(messages(1, 2))
    queue.give(1)
    queue.put(messages(1, 2, 3))
    assert [message.queue_offset for message in queue.give(9)] == [2, 3]


@given(steps=st.lists(st.tuples(st.sampled_from(DeliveryEvent), st.integers(0, 5)), max_size=40))
def test_every_message_lives_as_the_table_of_states_says(steps):
    queue = DeliveryQueue(QUEUE, 0.0)
    all_of_them = messages(*range(6))
    queue.put(all_of_them)
    states = dict.fromkeys(range(6), DeliveryState.FETCHED)
    for what, number in steps:
        at = number
        if what is DeliveryEvent.GIVE:
            fetched = [offset for offset, state in states.items() if state is DeliveryState.FETCHED]
            assert queue.can_give == bool(fetched)
            at = fetched[0] if fetched else number  # the lowest one comes first
            assert [message.queue_offset for message in queue.give(1)] == fetched[:1]
        elif states[at] is not DeliveryState.GIVEN or what is DeliveryEvent.RETURN:
            continue  # nobody has the message, so nobody can settle it
        elif what is DeliveryEvent.FINISH:
            queue.remove([all_of_them[at]])
        else:
            queue.give_back([all_of_them[at]])
        states[at] = TRANSITIONS.get((states[at], what), states[at])
        open_ones = [one for one, state in states.items() if state in (DeliveryState.FETCHED, DeliveryState.GIVEN)]
        assert len(queue) == len(open_ones)
        assert queue.span_ends[0] == min(open_ones, default=None)
        if DeliveryState.DONE in states.values():
            assert queue.progress == min(open_ones, default=6)


def test_orderly_messages_are_taken_in_order_and_committed_together():
    queue = OrderlyProcessQueue(QUEUE, 0.0)
    queue.put(messages(1, 2, 3))
    assert queue.commit() is None
    first = queue.give(2)
    assert [message.queue_offset for message in first] == [1, 2]
    assert queue.fetched
    assert not queue.can_give  # one batch after another
    assert len(queue) == 3
    assert queue.commit() == 3
    assert (len(queue), queue.consuming) == (1, [])


def test_orderly_messages_that_failed_come_first_again():
    queue = OrderlyProcessQueue(QUEUE, 0.0)
    queue.put(messages(1, 2, 3))
    queue.give(1)
    second = queue.give(1)
    queue.give_back(second)
    assert [message.queue_offset for message in queue.consuming] == [1]
    queue.put(messages(2, 4))  # 2 is held
    assert [message.queue_offset for message in queue.give(9)] == [2, 3, 4]
    queue.roll_back()
    assert [message.queue_offset for message in queue.give(9)] == [1, 2, 3, 4]
    assert queue.commit() == 5
    assert not queue.fetched


def test_a_lock_counts_for_30_s():
    queue = OrderlyProcessQueue(QUEUE, 0.0)
    assert not queue.is_locked(0.0)
    queue.lock(10.0)
    assert queue.is_locked(40.0)
    assert not queue.is_locked(40.1)
    queue.unlock()
    assert not queue.is_locked(40.0)
