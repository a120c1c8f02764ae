"""Faults that a test can inject into requests, connections and the disk.

A fault begins when the test calls a method of ``Faults``. The fault ends with its ``with`` block, with ``end`` or after
``times`` requests. If several faults apply to a request, the oldest of these faults decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Self

from rucola.protocol.codes import RequestCode, ResponseCode

TIMEOUT_S = 10.0

REQUESTS: dict[str, frozenset[int]] = {
    "send": frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)),
    "pull": frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)),
    "pop": frozenset((RequestCode.POP_MESSAGE,)),
    "ack": frozenset((RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)),
    "change invisible time": frozenset((RequestCode.CHANGE_MESSAGE_INVISIBLETIME,)),
    "commit": frozenset((RequestCode.UPDATE_CONSUMER_OFFSET,)),
    "send back": frozenset((RequestCode.CONSUMER_SEND_MSG_BACK,)),
    "end transaction": frozenset((RequestCode.END_TRANSACTION,)),
    "heartbeat": frozenset((RequestCode.HEART_BEAT,)),
    "lock": frozenset((RequestCode.LOCK_BATCH_MQ,)),
}
"""Names that a test can use for requests, with their codes."""


class Effect(Enum):
    """The effect of a fault on a request."""

    DROP = "drop"
    DROP_ANSWER = "drop answer"
    DELAY = "delay"
    REFUSE = "refuse"


class Fault:
    """One fault. It takes effect as soon as the object exists. Its methods may be called from any thread.

    Attributes:
        effect: what the fault does to a request; None if it does not affect requests.
        codes: codes of the affected requests; None for all requests.
        seconds: the delay, for a fault that delays requests.
        code, remark: the response, for a fault that refuses requests.
    """

    def __init__(
        self,
        end: Callable[[Fault], None],
        effect: Effect | None = None,
        codes: frozenset[int] | None = None,
        *,
        times: int | None = None,
        seconds: float = 0.0,
        code: int = 0,
        remark: str = "",
    ) -> None:
        self.effect = effect
        self.codes = codes
        self.seconds = seconds
        self.code = code
        self.remark = remark
        self._end = end
        self._left = times
        self._hits = 0
        self._hit = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    @property
    def hits(self) -> int:
        """Number of requests that the fault has affected so far."""
        return self._hits

    def wait(self, hits: int = 1, timeout: float = TIMEOUT_S) -> None:
        """Returns as soon as the fault has affected ``hits`` requests.

        Raises:
            AssertionError: the fault has affected fewer requests after ``timeout`` seconds.
        """
        __tracebackhide__ = True
        with self._hit:
            if not self._hit.wait_for(lambda: self._hits >= hits, timeout):
                raise AssertionError(f"after {timeout:g} s the fault has affected {self._hits} requests, not {hits}")

    def end(self) -> None:
        """Ends the fault. Further calls do nothing."""
        end, self._end = self._end, _nothing
        end(self)

    def meets(self, code: int) -> bool:
        """Whether the fault applies to a request; if so, counts the request. Called by the thread of the servers."""
        if self._left == 0 or (self.codes is not None and code not in self.codes):
            return False
        if self._left is not None:
            self._left -= 1
        with self._hit:
            self._hits += 1
            self._hit.notify_all()
        return True


class FaultRules:
    """The active request faults, oldest first. The servers' thread reads the faults; any thread may change them."""

    def __init__(self) -> None:
        self.faults: tuple[Fault, ...] = ()
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Fault:
        """Starts a fault."""
        with self._lock:
            self.faults = (*self.faults, fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Ends a fault; does nothing if it has ended."""
        with self._lock:
            self.faults = tuple(each for each in self.faults if each is not fault)

    def of(self, code: int) -> Fault | None:
        """The fault that applies to a request; None if there is none."""
        return next((fault for fault in self.faults if fault.meets(code)), None)


def request_codes(requests: str | int | None) -> frozenset[int] | None:
    """Returns the request codes for ``requests``, which is a name in ``REQUESTS``, a code, or None for all.

    Raises:
        ValueError: the name is unknown.
    """
    if requests is None:
        return None
    if isinstance(requests, int):
        return frozenset((requests,))
    if requests not in REQUESTS:
        raise ValueError(f"requests must be one of {', '.join(map(repr, REQUESTS))} or a code, not {requests!r}")
    return REQUESTS[requests]


class Faults:
    """The object ``rocketmq.faults``, whose methods start faults.

    Args:
        rules: the request faults.
        blackhole, slow_disk, full_disk: functions that start a connection fault or a disk fault; the argument False or
            0 ends the fault.
    """

    def __init__(
        self,
        rules: FaultRules,
        blackhole: Callable[[bool], None],
        slow_disk: Callable[[float], None],
        full_disk: Callable[[bool], None],
    ) -> None:
        self._rules = rules
        self._blackhole = blackhole
        self._slow_disk = slow_disk
        self._full_disk = full_disk
        self._begun: list[Fault] = []

    def drop(self, requests: str | int | None = None, *, times: int | None = None) -> Fault:
        """Loses requests on their way to the broker; their senders receive no response.

        The next three methods also have the arguments ``requests`` and ``times``, and raise the same error.

        Args:
            requests: a name in ``REQUESTS``, a request code, or None for all.
            times: number of requests; None for all until the fault ends.

        Raises:
            ValueError: the name is unknown.
        """
        return self._requests(Effect.DROP, requests, times)

    def drop_answers(self, requests: str | int | None = None, *, times: int | None = None) -> Fault:
        """Loses the broker's responses, although the broker carries out the requests: a message is stored, and its
        producer tries again.
        """
        return self._requests(Effect.DROP_ANSWER, requests, times)

    def delay(self, seconds: float, requests: str | int | None = None, *, times: int | None = None) -> Fault:
        """Delays requests by ``seconds`` on their way to the broker."""
        return self._requests(Effect.DELAY, requests, times, seconds=seconds)

    def refuse(
        self,
        requests: str | int | None = None,
        *,
        code: int = ResponseCode.SYSTEM_BUSY,
        remark: str = "refused by a test",
        times: int | None = None,
    ) -> Fault:
        """Makes the broker respond to requests with an error and do nothing else."""
        return self._requests(Effect.REFUSE, requests, times, code=code, remark=remark)

    def blackhole(self) -> Fault:
        """Stops all data between the broker and its clients, in both directions; no connection closes.

        The broker accepts new connections, but they receive no data. At the end of the fault the affected connections
        are closed.
        """
        self._blackhole(True)
        return self._other(lambda: self._blackhole(False))

    def slow_disk(self, seconds: float) -> Fault:
        """Makes each sync take ``seconds`` longer. With ``flushDiskType`` ``SYNC_FLUSH``, producers wait for these
        syncs.
        """
        self._slow_disk(seconds)
        return self._other(lambda: self._slow_disk(0.0))

    def full_disk(self) -> Fault:
        """Makes the disk full: the broker refuses new messages and delivers stored ones. Returns once the broker
        refuses messages.

        The call that ends the fault returns once the broker accepts messages again.
        """
        self._full_disk(True)
        return self._other(lambda: self._full_disk(False))

    def clear(self) -> None:
        """Ends all faults."""
        begun, self._begun = self._begun, []
        for fault in begun:
            fault.end()

    def _requests(
        self,
        effect: Effect,
        requests: str | int | None,
        times: int | None,
        *,
        seconds: float = 0.0,
        code: int = 0,
        remark: str = "",
    ) -> Fault:
        codes = request_codes(requests)
        fault = Fault(self._rules.remove, effect, codes, times=times, seconds=seconds, code=code, remark=remark)
        self._begun.append(fault)
        return self._rules.add(fault)

    def _other(self, end: Callable[[], None]) -> Fault:
        fault = Fault(lambda _: end())
        self._begun.append(fault)
        return fault


def _nothing(_fault: Fault) -> None:
    """Does nothing: stands for the end action of a fault that needs none."""
