"""The events of the columns: each brings a cell to the moment of the event, lets it happen, and goes on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tests.scenario.matrix.departure import in_process
from tests.scenario.matrix.desk import Act, Member, PlannedError
from tests.scenario.matrix.table import LISTENERS, Use
from tests.scenario.matrix.world import OTHER_SECRET, SECRET

from rucola import LiteOffset
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError, RucolaError

if TYPE_CHECKING:
    from tests.scenario.matrix.cell import Cell

AT = 5
"""The event meets the application at this message."""
_REAL_S = 2.0


async def nothing(cell: Cell) -> None:
    await cell.begin()


# -- inside of the application's code


async def leave_by_return(cell: Cell) -> None:
    await _leave(cell, "return")


async def leave_by_break(cell: Cell) -> None:
    await _leave(cell, "break")


async def _leave(cell: Cell, how: str) -> None:
    for number in (AT, AT + 1, AT + 4):
        cell.desk.acts[number] = Act(leave=how)
    await cell.begin()
    await cell.desk.reached(AT + 4)


async def exception(cell: Cell) -> None:
    await _raise(cell, lambda: PlannedError("planned"))


async def base_exception(cell: Cell) -> None:
    errors: dict[str, Callable[[], BaseException]] = {
        "SystemExit": lambda: SystemExit("planned"),
        "StopIteration": lambda: StopIteration("planned"),
        "GeneratorExit": lambda: GeneratorExit("planned"),
        "CancelledError": lambda: asyncio.CancelledError("planned"),
        "BaseException": lambda: BaseException("planned"),
    }
    await _raise(cell, errors[cell.variant])


async def _raise(cell: Cell, error: Callable[[], BaseException]) -> None:
    for number in (AT, AT + 3):
        cell.desk.acts[number] = Act(error=error)
    await cell.begin()
    await cell.desk.reached(AT + 4)
    await asyncio.sleep(1.0)
    if cell.row.broadcasting and cell.row.use in LISTENERS:
        cell.ledger.excuse(cell.desk.failed, "failed")


async def cancel(cell: Cell) -> None:
    if cell.variant == "waiting":
        member = await cell.start("a", in_main=True)
        await asyncio.sleep(5.0)
        assert member.done is not None
        await cell.interrupt(member.done)
    else:
        cell.desk.acts[AT] = Act(slow_s=20.0)
        if not cell.row.is_producer:
            await cell.more(8)
        worker = cell.variant == "worker"
        member = await cell.start("a", in_main=not worker, holds=worker)
        victim = cell.spawn_worker(member, in_main=True) if worker else member.done
        assert victim is not None
        await cell.desk.reached(AT)
        if not cell.row.is_producer:
            await asyncio.sleep(1.0)
        await cell.interrupt(victim)
        if worker:
            cell.spawn_worker(member)
    if cell.variant != "worker":
        member.stop()
        await cell.start("a" if cell.row.broadcasting else "b")
    await cell.more(8)


async def slow(cell: Cell) -> None:
    cell.desk.acts[AT] = Act(slow_s=45.0)
    await cell.begin()
    await cell.desk.reached(AT)


async def call(cell: Cell) -> None:
    cell.desk.may_raise = cell.variant == "unsubscribe"  # a SimpleConsumer without subscription cannot receive
    cell.desk.acts[AT] = Act(call=cell.variant)
    member = await cell.begin()
    await cell.desk.reached(AT)
    await asyncio.sleep(2.0)
    if cell.variant.startswith("seek"):
        cell.ledger.excuse(list(cell.ledger.sends), "the application sought")
    elif cell.variant == "unsubscribe_lite":
        await cell.call(member, "subscribe_lite", cell.world.lite_topics)
    elif cell.variant == "unsubscribe" and cell.row.assigned:
        await cell.call(member, "assign", cell.world.message_queues())
    elif cell.variant == "unsubscribe":
        await cell.call(member, "subscribe", cell.world.topic)
    elif cell.variant == "suspend":
        await cell.call(member, "resume")
    elif cell.variant == "pause":
        await cell.call(member, "resume", cell.world.message_queues())
    elif cell.variant == "shutdown":
        await asyncio.sleep(40.0)
        member.stop()
        await cell.start("a" if cell.row.broadcasting else "b")
    await cell.more(4)
    if len(cell.desk.calls) + len(cell.ledger.faults) == 0:
        await asyncio.sleep(120.0)
        if not cell.desk.calls:
            cell.desk.fault(f"{cell.variant} called from inside did not return")


# -- several members


async def rebalance(cell: Cell) -> None:
    await cell.begin(16, 16)
    await cell.desk.reached(AT)
    second = await cell.start("b")
    await asyncio.sleep(1.0)
    await cell.more(8)
    await asyncio.sleep(30.0)
    if not cell.row.broadcasting:
        await cell.more(8)
    await cell.stop(second)
    if not cell.row.broadcasting:
        await cell.more(8)


async def second_task(cell: Cell) -> None:
    member = await cell.begin(16, 16)
    await cell.desk.reached(AT)
    cell.spawn_worker(member)
    await cell.more(8)


async def second_instance(cell: Cell) -> None:
    cell.desk.instance_name = "same" if cell.variant else ""
    if not cell.row.is_producer:
        await cell.more(8)
    for name in ("a", "b"):
        member = await cell.start(name)
        assert member.done is not None
        if member.done.done() and isinstance(member.done.exception(), RucolaError):
            cell.members.remove(member)  # refused
            cell.ledger.forget(name)
    await asyncio.sleep(5.0)
    await cell.more(16)


# -- servers


async def broker_restart(cell: Cell) -> None:
    await cell.begin()
    await cell.desk.reached(AT)
    await cell.world.stop_broker()
    await asyncio.sleep(0.5)
    await cell.world.start_broker()
    await cell.more(8)


async def broker_killed(cell: Cell) -> None:
    await cell.begin()
    await cell.desk.reached(AT)
    await cell.world.kill_broker()
    await asyncio.sleep(30.0)
    await cell.world.start_broker()
    await cell.more(8)


async def namesrv_gone(cell: Cell) -> None:
    await cell.begin()
    await cell.desk.reached(AT)
    await cell.world.stop_namesrv()
    await asyncio.sleep(20.0)
    await cell.more(8)
    await asyncio.sleep(40.0)
    await cell.world.start_namesrv()
    await cell.more(4)
    await asyncio.sleep(35.0)  # the broker registers again
    await cell.more(4)


# -- administrators


async def reset_back(cell: Cell) -> None:
    await cell.begin()
    await _all_done(cell)
    await asyncio.sleep(6.0)
    cell.ledger.want_again(cell.ledger.acknowledged())
    await _reset(cell, 0)
    await cell.more(8)


async def reset_forward(cell: Cell) -> None:
    cell.desk.acts[AT] = Act(slow_s=20.0)
    await cell.begin(16, 16)
    await cell.desk.reached(AT)
    await asyncio.sleep(6.0)
    await _reset(cell, -1)
    cell.ledger.excuse(list(cell.ledger.sends), "reset")
    await asyncio.sleep(1.0)
    await cell.more(8)


async def _reset(cell: Cell, timestamp_ms: int) -> None:
    try:
        await cell.world.admin.reset_offsets(cell.world.group, cell.world.topic, timestamp_ms)
    except BrokerError as error:  # an older orjson cannot encode the response; the reset happens all the same
        cell.desk.caught.append(repr(error))


async def topic_recreated(cell: Cell) -> None:
    await cell.begin(12, 12)
    await cell.desk.reached(AT)
    await asyncio.sleep(2.0)
    cell.desk.may_raise = True
    await cell.world.recreate_topic(1.0)
    cell.ledger.excuse([value for value in cell.ledger.sends if value.startswith("0.")], "the topic was deleted")
    await cell.more(8)


async def queue_count(cell: Cell) -> None:
    member = await cell.begin()
    await cell.desk.reached(AT)
    for count in (4, 2, 4):
        await cell.world.set_queues(count)
        if cell.row.assigned:
            await cell.call(member, "assign", cell.world.message_queues())
        await cell.more(8)
        await asyncio.sleep(1.0 if count == 2 else 35.0)


async def permission(cell: Cell) -> None:
    cell.desk.may_raise = True
    await cell.begin()
    await cell.desk.reached(AT)
    await cell.world.set_queues(cell.world.queues, PermName.READ if cell.row.is_producer else PermName.WRITE)
    await asyncio.sleep(40.0)  # held pulls have ended, and producers have asked for the route
    await _has_effect(cell)
    await cell.world.set_queues(cell.world.queues)
    await cell.more(8)


async def secret(cell: Cell) -> None:
    cell.desk.may_raise = True
    await cell.begin()
    await cell.desk.reached(AT)
    cell.world.set_secret(OTHER_SECRET)
    await asyncio.sleep(60.0)  # the broker has read the file twice, and held pulls have ended
    cell.warnings.clear()
    cell.desk.caught.clear()
    await _has_effect(cell)
    if not (cell.warnings or cell.desk.caught or cell.row.base == "oneway"):
        cell.desk.fault("neither an error nor a warning told of the refused account")
    cell.world.set_secret(SECRET)
    await asyncio.sleep(10.0)
    await cell.more(8)


_UNTOLD = {"permission": ("oneway", "submit", "batch", "recall"), "secret": ("oneway",)}
"""Rows that cannot tell: a one-way send gets no response, and a topic's permission takes its queues out of the route,
which does not matter to whoever names the queue.
"""


async def _has_effect(cell: Cell) -> None:
    """For 30 s nothing is given, or no send succeeds."""
    if cell.row.base in _UNTOLD[cell.column.name]:
        await asyncio.sleep(30.0)
        return
    if cell.row.is_producer:
        before = len(cell.ledger.settled())
        await asyncio.sleep(30.0)
        took = len(cell.ledger.settled()) == before
    else:
        values = await cell.more(8)
        await asyncio.sleep(30.0)
        took = cell.ledger.outstanding() >= set(values)
    if not took:
        cell.desk.fault("what was taken had no effect")


# -- the application's calls from outside of the body


async def pause(cell: Cell) -> None:
    member = await cell.begin()
    await cell.desk.reached(AT)
    push = cell.row.is_push
    queues = () if push else (cell.world.message_queues(),)
    await cell.call(member, "suspend" if push else "pause", *queues)
    await asyncio.sleep(40.0)  # pulls that the broker holds have ended
    values = await cell.more(8)
    await asyncio.sleep(30.0)
    for value in values:
        cell.ledger.not_before(value, cell.loop.time())
    await cell.call(member, "resume", *queues)


async def seek_back(cell: Cell) -> None:
    member = await cell.begin()
    await _all_done(cell)
    cell.ledger.want_again(cell.ledger.acknowledged())
    if cell.row.has_lite_topics:
        await cell.call(member, "subscribe_lite", cell.world.lite_topics, LiteOffset.MIN)
    else:
        for queue in cell.world.message_queues():
            await cell.call(member, "seek_to_begin", queue)
    await cell.more(8)


async def seek_forward(cell: Cell) -> None:
    member = await cell.begin(16, 16)
    await cell.desk.reached(AT)
    if cell.row.has_lite_topics:
        await cell.call(member, "subscribe_lite", cell.world.lite_topics, LiteOffset.MAX)
    else:
        for queue in cell.world.message_queues():
            await cell.call(member, "seek_to_end", queue)
    cell.ledger.excuse(list(cell.ledger.sends), "sought")
    await cell.more(8)


async def resubscribe(cell: Cell) -> None:
    member = await cell.begin()
    await cell.desk.reached(AT)
    cell.desk.may_raise = True  # a SimpleConsumer without subscription cannot receive
    lite = cell.row.has_lite_topics
    await cell.call(
        member, *(("unsubscribe_lite", cell.world.lite_topics) if lite else ("unsubscribe", cell.world.topic))
    )
    await cell.more(8)
    await asyncio.sleep(30.0)
    await cell.call(member, *(("subscribe_lite", cell.world.lite_topics) if lite else ("subscribe", cell.world.topic)))
    await cell.more(8)


# -- processes and loops


async def process_killed(cell: Cell) -> None:
    if cell.variant == "killed":
        await in_process(cell, "killed")
        return
    cell.desk.acts[AT] = Act(slow_s=5.0)
    member = await cell.begin()
    await cell.desk.reached(AT)
    await asyncio.sleep(0.5)
    await cell.kill(member)
    await cell.start("a" if cell.row.broadcasting else "b")
    await cell.more(8)


async def leave_interpreter(cell: Cell) -> None:
    await in_process(cell, cell.variant)


async def fork(cell: Cell) -> None:
    member = await cell.begin()
    await cell.desk.reached(AT)
    child = os.fork()
    if not child:
        os._exit(_in_child(cell, member))
    _, status = await cell.loop.run_in_executor(None, os.waitpid, child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        cell.desk.fault(f"the child of a fork ended with {os.waitstatus_to_exitcode(status)}")
    await cell.more(8)


def _in_child(cell: Cell, member: Member) -> int:
    """In the child, a blocking client of the parent raises ``ClientError``; an asynchronous one must not be used."""
    if not cell.row.sync:
        return 0
    try:
        member.consumer.shutdown()
    except RucolaError:
        return 0
    except BaseException:  # noqa: BLE001 - the exit code tells it
        return 3
    return 2


async def second_loop(cell: Cell) -> None:
    member = await cell.begin()
    await cell.desk.reached(AT)
    outcome: Future[Any] = Future()
    threading.Thread(target=_use_from_second_loop, args=(cell, member, outcome), name="second loop").start()
    await cell.loop.run_in_executor(None, outcome.exception)
    error = outcome.exception()
    if not (error is None or isinstance(error, RucolaError)):
        cell.desk.fault(f"a call from a second event loop raised {error!r}")
    await cell.more(8)


def _use_from_second_loop(cell: Cell, member: Member, outcome: Future[Any]) -> None:
    consumer, queue = member.consumer, cell.world.message_queues()[0]
    calls: dict[Use, Callable[[], Any]] = {
        Use.LOOP: lambda: consumer.subscribe("Other"),
        Use.LISTENER: lambda: consumer.subscribe("Other"),
        Use.PLAIN_LISTENER: lambda: consumer.subscribe("Other"),
        Use.POLL: lambda: consumer.min_offset(queue),
        Use.RECEIVE: lambda: consumer.subscribe("Other"),
        Use.PULL: lambda: consumer.min_offset(queue),
        Use.SEND: lambda: consumer.message_queues("Other"),
    }

    async def use() -> None:
        found = consumer.subscribe_lite("other") if cell.row.has_lite_topics else calls[cell.row.use]()
        if asyncio.iscoroutine(found):
            await asyncio.wait_for(found, _REAL_S)

    try:
        outcome.set_result(asyncio.run(use()))
    except BaseException as error:  # noqa: BLE001 - judged by the cell
        outcome.set_exception(error)


async def _all_done(cell: Cell) -> None:
    for _ in range(400):
        if not cell.ledger.outstanding():
            return
        await asyncio.sleep(0.25)


EVENTS: dict[str, Callable[[Cell], Awaitable[None]]] = {
    "nothing": nothing,
    "return": leave_by_return,
    "break": leave_by_break,
    "exception": exception,
    "base_exception": base_exception,
    "cancel": cancel,
    "slow": slow,
    "call": call,
    "rebalance": rebalance,
    "second_task": second_task,
    "second_instance": second_instance,
    "broker_restart": broker_restart,
    "broker_killed": broker_killed,
    "namesrv_gone": namesrv_gone,
    "reset_back": reset_back,
    "reset_forward": reset_forward,
    "pause": pause,
    "seek_back": seek_back,
    "seek_forward": seek_forward,
    "resubscribe": resubscribe,
    "topic_recreated": topic_recreated,
    "queue_count": queue_count,
    "permission": permission,
    "secret": secret,
    "process_killed": process_killed,
    "exit": leave_interpreter,
    "fork": fork,
    "second_loop": second_loop,
}
