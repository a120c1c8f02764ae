"""When what must happen next: one heap for all keys."""

from __future__ import annotations

from rucola.runtime.due_times import DueTimes


def test_due_times_forget_what_does_not_count() -> None:
    due: DueTimes[str, int] = DueTimes()
    for number in range(1000):
        due.set("a", number)
    assert len(due._heap) < 100
    due.set("b", 5)
    due.drop("c")
    assert (due.next_due(), due.take(4), due.take(5), due.next_due()) == (5, None, "b", 999)
    due.drop("a")
    assert (due.next_due(), len(due), "a" in due) == (None, 0, False)
    due.set("d", 1)
    assert "d" in due
    due.clear()
    assert (due.take(9), "d" in due) == (None, False)
