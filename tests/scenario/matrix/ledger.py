"""What was sent, what was given to the application and what it finished; judges the promise of a cell.

The core is ``rucola.testing.queue_checker``, which judges existence, positions, order and progress of deliveries. The
ledger adds what only the application knows: which messages it has finished, and which of them it had at the same time.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.scenario.matrix.table import Promise, Word

from rucola.testing.queue_checker import Commit, Delivery, History, Outcome, Send, check


@dataclass(eq=False)
class Given:
    """A message in the application's hands.

    Attributes:
        value: the message's body.
        queue: its queue.
        queue_offset: its place in the queue.
        member: the consumer that gave it.
        at: when it was given.
        retried: whether it came through a retry topic, so that its place is one of that topic.
        finished_at: when the application had done its work; None if it has not.
        closed_at: when the application let go of it, in whatever way.
    """

    value: str
    queue: str
    queue_offset: int
    member: str
    at: float
    retried: bool = False
    finished_at: float | None = None
    closed_at: float | None = None


@dataclass
class Ledger:
    """Any thread may write. ``clock`` is the loop's time in seconds.

    Attributes:
        apart: whether each member gets every message, as with BROADCASTING.
        exclusive: whether a queue's messages are in the application's hands one at a time.
        commits_again: whether the broker may store a committed message of a transaction a second time.
        sends: every send, by value.
        givens: every message given, in order.
        excused: values that need not be given, each with the reason.
        wanted_again: for values that must be given again: after which time.
        commits: consumer offsets at the end.
        faults: what else went wrong.
    """

    clock: Callable[[], float]
    apart: bool = False
    exclusive: bool = False
    commits_again: bool = False
    sends: dict[str, Send] = field(default_factory=dict)
    givens: list[Given] = field(default_factory=list)
    excused: dict[str, str] = field(default_factory=dict)
    wanted_again: dict[str, float] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _members: dict[str, None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- writing

    def sent(self, value: str, queue: str, offset: int | None, outcome: Outcome, began: float) -> None:
        """A send has its outcome."""
        with self._lock:
            self.sends[value] = Send(value, queue, "p", outcome, offset, began, self.clock())

    def joined(self, member: str) -> None:
        """A member must get every message; only counts if members are apart."""
        self._members[member] = None

    def given(self, given: Given) -> Given:
        """The application got a message."""
        with self._lock:
            self.givens.append(given)
        return given

    def finished(self, given: Given) -> None:
        """The application has done its work."""
        given.finished_at = self.clock()

    def closed(self, given: Given) -> None:
        """The application has let go of the message."""
        if given.closed_at is None:
            given.closed_at = self.clock()

    def excuse(self, values: Iterable[str], because: str) -> None:
        """These messages need not be given."""
        self.excused.update(dict.fromkeys(values, because))

    def want_again(self, values: Iterable[str]) -> None:
        """These messages must be given again from now on."""
        self.wanted_again.update(dict.fromkeys(values, self.clock()))

    def not_before(self, value: str, at: float) -> None:
        """A message must not be given before ``at``."""
        self.sends[value] = self.sends[value]._replace(visible_at=at)

    def forget(self, member: str) -> None:
        """A member was refused."""
        self._members.pop(member, None)

    # -- questions

    def acknowledged(self) -> set[str]:
        """Values whose send was acknowledged."""
        with self._lock:
            return {send.value for send in self.sends.values() if send.outcome is Outcome.OK}

    def settled(self) -> list[str]:
        """Values whose send has a known outcome."""
        with self._lock:
            return [send.value for send in self.sends.values() if send.outcome is not Outcome.UNKNOWN]

    def outstanding(self) -> set[str]:
        """Acknowledged messages that some scope has not finished, or that are wanted again."""
        missing: set[str] = set()
        wanted = self.acknowledged() - self.excused.keys()
        for _, givens in self._scopes():
            done = {given.value for given in givens if given.finished_at is not None}
            missing |= wanted - done
            late = {given.value for given in givens for at in [self.wanted_again.get(given.value)] if at is not None
                    and given.at >= at}  # fmt: skip
            missing |= self.wanted_again.keys() - late
        return missing

    def judge(self, promise: Promise) -> list[str]:
        """Everything that breaks the promise; empty if it was kept."""
        findings = list(self.faults)
        for scope, givens in self._scopes():
            for finding in self._judge(promise, givens):
                findings.append(f"{scope}: {finding}" if scope else finding)
        return findings

    def _judge(self, promise: Promise, givens: list[Given]) -> Iterator[str]:
        yield from (
            f"{finding.kind.value}: {finding.detail} (queue {finding.queue})"
            for finding in check(self._history(promise, givens))
        )
        done = defaultdict[str, int](int)
        for given in givens:
            done[given.value] += given.finished_at is not None
        for value in sorted(self.acknowledged() - self.excused.keys()):
            if not done[value] and any(given.value == value for given in givens):
                yield f"given but never finished, and not given again: {value}"
        if not promise.again:
            yield from self._twice(givens)
        if promise.ordered:
            yield from self._early(givens)
        if self.exclusive:
            yield from self._overlaps(givens)
        for value, at in sorted(self.wanted_again.items()):
            if not any(given.value == value and given.at >= at for given in givens):
                yield f"not given again: {value}"

    def _twice(self, givens: list[Given]) -> Iterator[str]:
        """Messages that came again although the application had finished them."""
        done: dict[str, Given] = {}
        for given in givens:
            first = done.get(given.value)
            if first is not None and given.value not in self.wanted_again:
                yield f"given again after it was finished: {given.value} at {given.at:.3f} ({given.member})"
            if given.finished_at is not None:
                done[given.value] = given

    def _early(self, givens: list[Given]) -> Iterator[str]:
        """Messages that were given before an earlier one of their queue was finished for the first time."""
        first_done: dict[str, float] = {}
        for given in givens:
            if given.finished_at is not None and given.value not in first_done:
                first_done[given.value] = given.finished_at
        lines: dict[str, list[Send]] = defaultdict(list)
        for send in self.sends.values():
            if send.outcome is Outcome.OK and send.offset is not None and send.value not in self.excused:
                lines[send.queue].append(send)
        for given in givens:
            if given.retried:
                continue
            for send in lines[given.queue]:
                if (send.offset or 0) < given.queue_offset and first_done.get(send.value, 1e99) > given.at:
                    yield f"{given.value} was given before {send.value} of its queue was finished"
                    break

    def _overlaps(self, givens: list[Given]) -> Iterator[str]:
        lines: dict[str, list[Given]] = defaultdict(list)
        for given in givens:
            lines[given.queue].append(given)
        for queue, line in lines.items():
            for number, given in enumerate(line):
                for other in line[number + 1 :]:
                    if given.closed_at is None or other.at < given.closed_at:
                        yield f"two at once of queue {queue}: {given.value} and {other.value}"
                        break

    def _history(self, promise: Promise, givens: list[Given]) -> History:
        sends = [
            send._replace(outcome=Outcome.UNKNOWN)
            if send.value in self.excused and send.outcome is Outcome.OK
            else send
            for send in self.sends.values()
        ]
        if self.commits_again:
            sends = [send._replace(retries=1) for send in sends]
        deliveries = [
            Delivery(given.value, given.queue, given.queue_offset, given.member, given.at, retried=given.retried)
            for given in givens
        ]
        limit = None if promise.again or promise.word is Word.ONCE else 0
        return History(sends, deliveries, self.commits, ordered=promise.ordered, redeliveries_max=limit)

    def _scopes(self) -> list[tuple[str, list[Given]]]:
        with self._lock:
            givens = list(self.givens)
        if not self.apart:
            return [("", givens)]
        return [(member, [given for given in givens if given.member == member]) for member in self._members]
