"""Tests of the leases of given messages, with requests that the test answers one by one."""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any

import pytest
from tests.unit.client.consuming import messages

from rucola.client.leases import Leases
from rucola.client.pop_receipt import PopReceipt
from rucola.errors import BrokerError, ClientError, RemotingClosedError
from rucola.protocol.headers.pop import ChangeInvisibleTimeResponseHeader
from rucola.testing.event_loop import advance, run_stepped, settle

REFUSED = BrokerError(1, "refused")


class Requests:
    """Stands in for ``PopRequests``: each request waits in ``open`` until the test answers it, unless ``answers`` has
    an answer for it: None, or the error to raise.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, int]] = []
        self.open: list[asyncio.Future[None]] = []
        self.answers: list[BaseException | None] = []
        self.timeouts_ms: list[int] = []

    async def ack(self, topic: str, receipt: PopReceipt) -> None:
        await self._send("ack", receipt, 0)

    async def hide(self, topic: str, receipt: PopReceipt, invisible_ms: int, timeout_ms: int = 3_000) -> PopReceipt:
        number = len(self.sent)
        self.timeouts_ms.append(timeout_ms)
        await self._send("hide", receipt, invisible_ms)
        return receipt.changed(ChangeInvisibleTimeResponseHeader(2_000 + number, invisible_ms, 4))

    async def _send(self, kind: str, receipt: PopReceipt, number: int) -> None:
        self.sent.append((kind, receipt.text.split()[1], number))
        if self.answers:
            answer = self.answers.pop(0)
            if answer is not None:
                raise answer
            return
        waiting = asyncio.get_running_loop().create_future()
        self.open.append(waiting)
        await waiting

    def answer(self, error: BaseException | None = None) -> None:
        waiting = self.open.pop(0)
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.sent]


def popped(*offsets: int) -> list[Any]:
    found = messages(*offsets)
    for message in found:
        message.properties["POP_CK"] = f"5 1700 20000 3 0 broker-a 1 {message.queue_offset}"
        message.properties["1ST_POP_TIME"] = "1700"
    return found


def leases(renew_max_ms: int | None = 3_600_000) -> tuple[Requests, Leases]:
    requests = Requests()
    return requests, Leases(requests, renew_max_ms)  # type: ignore[arg-type]


def give(kept: Leases, found: list[Any], invisible_ms: int = 20_000) -> None:
    kept.give(found, invisible_ms, asyncio.get_running_loop().time() + invisible_ms / 1000)


async def pass_by(seconds: float) -> None:
    advance(seconds)
    await settle()


def start(call: Any) -> asyncio.Task[None]:
    return asyncio.ensure_future(call)


def test_an_ack_waits_for_the_renewal_that_runs_and_takes_its_receipt():
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        await pass_by(10.1)
        assert requests.sent == [("hide", "1700", 20_000)]
        acking = start(kept.ack(message))
        await settle()
        assert len(requests.sent) == 1
        requests.answer()
        await settle()
        assert requests.sent[1:] == [("ack", "2000", 0)]
        requests.answer()
        await acking
        assert message.properties["POP_CK"] == "6 2000 20000 4 0 broker-a 1 6"
        await pass_by(3_600)
        assert len(requests.sent) == 2
        assert len(kept) == 0

    run_stepped(scene())


def test_an_ack_after_a_renewal_that_failed_takes_the_old_receipt():
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        await pass_by(10.1)
        acking = start(kept.ack(message))
        await settle()
        requests.answer(REFUSED)
        await settle()
        assert requests.sent[1:] == [("ack", "1700", 0)]
        requests.answer()
        await acking

    run_stepped(scene())


def test_no_renewal_while_an_ack_runs_and_renewals_go_on_when_it_fails():
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        acking = start(kept.ack(message))
        await settle()
        await pass_by(10.1)
        assert requests.kinds() == ["ack"]
        requests.answer(REFUSED)
        with pytest.raises(BrokerError, match="refused"):
            await acking
        await pass_by(1.1)
        assert requests.kinds() == ["ack", "hide"]
        requests.answer()
        await settle()
        requests.answers = [None]
        await kept.ack(message)
        assert requests.sent[2:] == [("ack", "2001", 0)]

    run_stepped(scene())


@pytest.mark.parametrize("renew_max_ms", [None, 3_600_000])
def test_two_acks_at_once_are_one_request(renew_max_ms):
    async def scene() -> None:
        requests, kept = leases(renew_max_ms)
        (message,) = popped(6)
        give(kept, [message])
        first, second, third = (start(kept.ack(message)) for _ in range(3))
        await settle()
        assert requests.kinds() == ["ack"]
        third.cancel()
        requests.answer()
        await asyncio.gather(first, second)
        await asyncio.gather(third, return_exceptions=True)
        assert third.cancelled()
        failing = [start(kept.ack(message)) for _ in range(2)]
        await settle()
        requests.answer(REFUSED)
        assert await asyncio.gather(*failing, return_exceptions=True) == [REFUSED, REFUSED]
        assert requests.kinds() == ["ack", "ack"]
        requests.answers = [None]
        await kept.ack(message)
        assert len(kept) == 0

    run_stepped(scene())


def test_a_renewal_that_fails_is_tried_again_while_time_is_left(caplog):
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        requests.answers = [REFUSED] * 9
        for seconds, expected in ((9.5, 0), (0.6, 1), (0.6, 1), (0.5, 2), (1.5, 2), (0.6, 3), (3.4, 3), (0.7, 4)):
            await pass_by(seconds)
            assert len(requests.sent) == expected, seconds
        assert requests.timeouts_ms[:3] == [3_000] * 3
        assert requests.timeouts_ms[3] < 2_700  # no longer than the lease
        requests.answers = [None]
        await pass_by(2.0)  # just before the end of the invisible time, which the last pause would pass
        assert len(requests.sent) == 4
        assert len(kept) == 1
        await pass_by(0.8)
        assert len(kept) == 0
        await pass_by(600)
        assert len(requests.sent) == 4

    with caplog.at_level(logging.INFO):
        run_stepped(scene())
    assert [record.message.split(" place=")[0] for record in caplog.records] == [
        "invisible time not extended",
        "lease expired",
    ]


def test_a_failure_after_a_success_is_a_new_one(caplog):
    async def scene() -> None:
        requests, kept = leases()
        found = popped(6)
        give(kept, found)
        requests.answers = [REFUSED, None, REFUSED]
        for seconds in (10.1, 1.1, 10.1):
            await pass_by(seconds)
        assert len(requests.sent) == 3

    run_stepped(scene())
    assert [record.message.split(" error")[0].split()[-1] for record in caplog.records] == ["count=1", "count=1"]


def test_failures_of_many_leases_at_one_broker_are_few_lines(caplog):
    async def scene() -> None:
        requests, kept = leases()
        found = popped(*range(50))
        give(kept, found)
        requests.answers = [REFUSED] * 50
        await pass_by(10.1)
        assert len(requests.sent) == 50

    run_stepped(scene())
    assert [record.message.split(" error")[0] for record in caplog.records] == [
        'invisible time not extended place="T broker-a 1 0" count=1',
        'invisible time not extended place="T broker-a 1 9" count=10',
    ]


def test_after_a_renewal_that_failed_once_renewing_goes_on():
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        requests.answers = [REFUSED, None, None, None]
        for seconds, expected in ((10.1, 1), (1.1, 2), (9.5, 2), (0.7, 3), (9.5, 3), (0.7, 4)):
            await pass_by(seconds)
            assert len(requests.sent) == expected
        assert [receipt for _, receipt, _ in requests.sent] == ["1700", "1700", "2001", "2002"]
        assert message.properties["POP_CK"].startswith("6 2003 ")

    run_stepped(scene())


def test_an_error_that_nobody_expects_is_logged_and_the_lease_is_still_renewed(caplog):
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        requests.answers = [ValueError("broken"), None]
        await pass_by(10.1)
        await pass_by(1.1)
        assert len(requests.sent) == 2
        assert message.properties["POP_CK"].startswith("6 2001 ")

    run_stepped(scene())
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("broken",)]


def test_renewals_end_with_their_limit_and_the_lease_with_its_time():
    async def scene() -> None:
        requests, kept = leases(25_000)
        (message,) = popped(6)
        give(kept, [message])
        requests.answers = [None] * 9
        for seconds, sent, held in ((10.1, 1, 1), (10.1, 2, 1), (10.1, 2, 1), (9.4, 2, 1), (0.6, 2, 0)):
            await pass_by(seconds)
            assert (len(requests.sent), len(kept)) == (sent, held)
        await kept.ack(message)  # the broker decides whether it comes too late
        assert requests.sent[2:] == [("ack", "2001", 0)]

    run_stepped(scene())


def test_a_time_that_the_application_sets_ends_renewing():
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        requests.answers = [None]
        await kept.hide(message, 30_000)
        assert message.properties["POP_CK"] == "6 2000 30000 4 0 broker-a 1 6"
        assert len(kept) == 0
        for _ in range(6):
            await pass_by(9)
        assert len(requests.sent) == 1

    run_stepped(scene())


def test_a_time_that_cannot_be_set_leaves_the_lease_as_it_was():
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        requests.answers = [REFUSED, None]
        with pytest.raises(BrokerError, match="refused"):
            await kept.hide(message, 30_000)
        await pass_by(10.1)
        assert requests.sent[1:] == [("hide", "1700", 20_000)]

    run_stepped(scene())


@pytest.mark.parametrize("renew_max_ms", [None, 3_600_000])
def test_requests_about_one_message_go_out_one_after_the_other(renew_max_ms):
    async def scene() -> None:
        requests, kept = leases(renew_max_ms)
        (message,) = popped(6)
        give(kept, [message])
        calls = [
            start(kept.hide(message, 30_000)),
            start(kept.hide(message, 40_000)),
            start(kept.ack(message)),
            start(kept.hide(message, 50_000)),
        ]
        for expected in range(1, 4):
            await settle()
            assert len(requests.sent) == expected
            requests.answer()
        assert requests.sent == [("hide", "1700", 30_000), ("hide", "2000", 40_000), ("ack", "2001", 0)]
        await asyncio.gather(*calls[:3])
        with pytest.raises(ClientError, match="acknowledged meanwhile"):
            await calls[3]
        assert len(requests.sent) == 3
        assert len(kept) == 0

    run_stepped(scene())


def test_a_change_goes_on_after_an_ack_that_failed():
    async def scene() -> None:
        requests, kept = leases(None)
        (message,) = popped(6)
        acking, changing = start(kept.ack(message)), start(kept.hide(message, 10_000))
        await settle()
        requests.answers = [None]
        requests.answer(RemotingClosedError("b"))
        with pytest.raises(RemotingClosedError):
            await acking
        await changing
        assert requests.kinds() == ["ack", "hide"]

    run_stepped(scene())


def test_a_cancelled_change_goes_on_and_the_next_ack_takes_its_receipt():
    async def scene() -> None:
        requests, kept = leases(None)
        (message,) = popped(6)
        changing = start(kept.hide(message, 30_000))
        await settle()
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        assert changing.cancelled()
        acking = start(kept.ack(message))
        await settle()
        assert requests.kinds() == ["hide"]
        requests.answer()
        await settle()
        assert requests.sent[1:] == [("ack", "2000", 0)]
        requests.answer()
        await acking
        assert len(kept) == 0

    run_stepped(scene())


def test_a_cancelled_ack_goes_on_and_no_renewal_follows():
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        acking = start(kept.ack(message))
        await settle()
        acking.cancel()
        await asyncio.gather(acking, return_exceptions=True)
        assert acking.cancelled()
        again = start(kept.ack(message))
        await pass_by(10.1)
        requests.answer()
        await again
        await pass_by(600)
        assert requests.sent == [("ack", "1700", 0)]
        assert len(kept) == 0

    run_stepped(scene())


def test_a_cancelled_ack_goes_on_and_may_fail():
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        acking = start(kept.ack(message))
        await settle()
        acking.cancel()
        await settle()
        await pass_by(10.1)
        assert requests.kinds() == ["ack"]
        requests.answer(REFUSED)
        await settle()
        await pass_by(1.1)
        assert requests.kinds() == ["ack", "hide"]
        assert len(kept) == 1
        requests.answer()
        await kept.stop()

    run_stepped(scene())


@pytest.mark.parametrize("call", ["ack", "hide"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_call_that_waits_for_another_request_and_is_cancelled_goes_on(call, ends):
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        give(kept, [message])
        await pass_by(10.1)
        assert requests.kinds() == ["hide"]  # the renewal
        waiting = start(kept.ack(message) if call == "ack" else kept.hide(message, 30_000))
        await settle()
        waiting.cancel()
        await settle()
        assert waiting.cancelled()
        stopping = start(kept.stop() if ends else asyncio.sleep(0))
        for _ in range(2):
            await settle()
            assert not ends or not stopping.done()
            requests.answer()
        await stopping
        await settle()
        number = 0 if call == "ack" else 30_000
        assert requests.sent[1:] == [(call, "2000", number)]
        assert len(kept) == 0

    run_stepped(scene())


def test_the_error_of_a_request_whose_caller_was_cancelled_disturbs_nobody():
    async def scene() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        requests, kept = leases(None)
        (message,) = popped(6)
        for call in (kept.ack(message), kept.hide(message, 30_000)):
            calling = start(call)
            await settle()
            calling.cancel()
            await settle()
            requests.answer(REFUSED)
            await settle()
        assert told == []

    run_stepped(scene())


def test_a_lease_that_was_replaced_while_it_was_renewed_is_not_renewed_again():
    async def scene() -> None:
        requests, kept = leases()
        first, second = popped(6), popped(6)
        give(kept, first)
        await pass_by(10.1)
        give(kept, second)
        requests.answer()
        await settle()
        requests.answers = [None] * 9
        await pass_by(10.1)
        assert len(requests.sent) == 2
        assert len(kept) == len(kept._due) == 1

    run_stepped(scene())


def test_a_message_that_the_application_no_longer_holds_is_not_renewed():
    async def scene() -> None:
        requests, kept = leases()
        found = popped(6, 7)
        give(kept, found)
        held = found.pop()
        twin = copy.copy(found[0])
        found.clear()
        requests.answers = [None] * 9
        await pass_by(10.1)
        assert len(requests.sent) == 1
        assert len(kept) == 2
        await pass_by(10.1)
        assert len(requests.sent) == 2
        assert len(kept) == 1
        assert held.properties["POP_CK"].startswith("7 2001 ")
        await kept.ack(twin)
        assert requests.sent[2:] == [("ack", "1700", 0)]

    run_stepped(scene())


def test_a_copy_of_a_message_is_acknowledged_with_the_newest_receipt():
    async def scene() -> None:
        requests, kept = leases()
        (message,) = popped(6)
        twin = copy.copy(message)
        twin.properties = dict(message.properties)
        give(kept, [message])
        requests.answers = [None] * 9
        await pass_by(10.1)
        await kept.ack(twin)
        assert requests.sent == [("hide", "1700", 20_000), ("ack", "2000", 0)]
        await pass_by(600)
        assert len(requests.sent) == 2

    run_stepped(scene())


def test_a_second_pop_of_the_same_message_has_a_lease_of_its_own():
    """An admin's reset of the group's offset lets a message come while its first delivery is in work."""

    async def scene() -> None:
        requests, kept = leases()
        (first,), (second,) = popped(6), popped(6)
        second.properties.update({"POP_CK": "6 1900 20000 3 0 broker-a 1 6", "1ST_POP_TIME": "1900"})
        give(kept, [first])
        give(kept, [second])
        requests.answers = [None] * 9
        await kept.ack(first)
        assert requests.sent == [("ack", "1700", 0)]
        await pass_by(10.1)
        assert requests.sent[1:] == [("hide", "1900", 20_000)]
        give(kept, [second])  # the same one again replaces its lease
        await pass_by(10.1)
        assert len(requests.sent) == 3
        assert len(kept) == 1

    run_stepped(scene())


def test_the_tables_shrink():
    async def scene() -> None:
        requests, kept = leases(25_000)
        for start_offset in range(0, 10_000, 50):
            found = popped(*range(start_offset, start_offset + 50))
            give(kept, found)
            requests.answers = [None] * 50
            for message in found[: 50 if start_offset < 5_000 else 0]:
                await kept.ack(message)
        assert len(kept) == 5_000
        assert len(kept._due._heap) < 10_100
        del found, message
        requests.answers = [None] * 50_000
        for _ in range(6):
            await pass_by(10.1)
        assert len(kept) == len(kept._due) == len(kept._tasks) == 0
        assert len(requests.sent) <= 5_000 + 50

    run_stepped(scene())


def test_acknowledged_messages_leave_the_heap_at_once():
    async def scene() -> None:
        requests, kept = leases()
        for number in range(1_000):
            found = popped(number)
            give(kept, found, 43_200_000)
            requests.answers = [None]
            await kept.ack(found[0])
        assert len(kept) == 0
        assert len(kept._due._heap) < 100

    run_stepped(scene())


def test_a_stop_waits_for_what_runs_and_leaves_no_task():
    async def scene() -> None:
        requests, kept = leases()
        found = popped(6, 7)
        give(kept, found)
        await pass_by(10.1)
        acking = [start(kept.ack(message)) for message in found]
        await settle()
        stopping = start(kept.stop())
        await settle()
        assert requests.kinds() == ["hide", "hide"]
        for _ in range(2):
            requests.answer()
        await settle()
        assert not stopping.done()
        assert requests.kinds() == ["hide", "hide", "ack", "ack"]
        for _ in range(2):
            requests.answer()
        await asyncio.gather(stopping, *acking)
        await pass_by(600)
        give(kept, found)
        assert len(kept) == 0
        assert len(requests.sent) == 4
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_stepped(scene())


def test_a_cancelled_stop_leaves_no_task():
    async def scene() -> None:
        requests, kept = leases()
        found = popped(6, 7)
        give(kept, found)
        await pass_by(10.1)
        stopping = start(kept.stop())
        await settle()
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        assert stopping.cancelled()
        assert len(requests.sent) == 2
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_stepped(scene())
