"""The column ``shutdown``: a small application is shut down, or cancelled, after each step of the loop in turn."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tests.scenario.matrix.responder import Responder
from tests.scenario.matrix.table import Promise, Use

if TYPE_CHECKING:
    from tests.scenario.matrix.cell import Cell

MESSAGES = 3
BODY_S = 0.001
STEPS_MAX = 2_000
WAITING_S = 3.0
_DONE_S = 2.0
"""The sweep ends with a life that had this time after its last message."""
_FINDINGS_MAX = 12


async def sweep(cell: Cell, promise: Promise) -> list[str]:
    """Runs a life for each step; returns what breaks the promise."""
    findings: list[str] = []
    life = _life_of_two if cell.variant == "one_of_two" else _life_of_producer if cell.row.is_producer else _life
    for step in range(STEPS_MAX):
        complete = await life(cell, step)
        findings += [f"step {step}: {finding}" for finding in cell.ledger.judge(promise)]
        cell.steps = step
        if complete or len(findings) > _FINDINGS_MAX:
            break
    else:
        findings.append(f"not complete after {STEPS_MAX} steps")
    cell.renew()
    return findings


async def _life(cell: Cell, step: int) -> bool:
    """One life that ends at ``step``, and another one that gets what is left; returns whether the first was done."""
    await _renew(cell, step)
    await cell.world.send(MESSAGES)
    reached = _at_step(cell, step)
    member = await cell.start("a", in_main=True, at_once=True)
    assert member.done is not None
    await asyncio.wait([reached, member.done], return_when=asyncio.FIRST_COMPLETED)
    cell.loop.forget_step()
    done = max((given.closed_at or 1e99 for given in cell.ledger.givens), default=1e99)
    complete = len(cell.ledger.givens) >= MESSAGES and done + _DONE_S < cell.loop.time()
    if cell.variant == "cancel":
        member.stop()
        await cell.interrupt(member.done)
    await cell.stop(member)
    await _succeed(cell)
    return complete


async def _life_of_producer(cell: Cell, step: int) -> bool:
    """One producer that ends at ``step``; what it knows about its messages must be true."""
    await _renew(cell, step)
    async with Responder(cell.world) if cell.row.base == "request" else nullcontext():
        reached = _at_step(cell, step)
        member = await cell.start("a", in_main=True, at_once=True)
        assert member.done is not None
        await asyncio.wait([reached, member.done], return_when=asyncio.FIRST_COMPLETED)
        cell.loop.forget_step()
        complete = len(cell.ledger.settled()) >= MESSAGES
        if cell.variant == "cancel":
            member.stop()
            await cell.interrupt(member.done)
        await cell.stop(member)
        await cell.await_stored()
    await cell.take_stored()
    if cell.row.base == "oneway":
        cell.ledger.excuse(list(cell.ledger.sends), "one-way")
    return complete


async def _life_of_two(cell: Cell, step: int) -> bool:
    """Two tasks wait for a message; one of them is cancelled at ``step``, counted from the send, and the other one must
    get the message. What ``poll`` gave to a thread is the thread's also after Ctrl-C, which it may catch: a successor
    gets this. Returns whether the message was done before.
    """
    await _renew(cell, step)
    member = await cell.start("a", holds=True)
    victim = cell.spawn_worker(member, in_main=True)
    cell.spawn_worker(member)
    await asyncio.sleep(WAITING_S)
    reached = _at_step(cell, step)
    [[value], _] = await asyncio.gather(cell.world.send(1), reached)
    complete = value not in cell.ledger.outstanding()
    await cell.interrupt(victim)
    kept = cell.row.sync and cell.row.use is Use.POLL and len(cell.ledger.givens) > 0
    if not kept:
        await _await_rest(cell, "the other task")
    await cell.stop(member)
    if kept:
        await _succeed(cell)
    return complete


async def _succeed(cell: Cell) -> None:
    """Another member, which must get what is left."""
    successor = await cell.start("a" if cell.row.broadcasting else "b")
    await _await_rest(cell, "a successor")
    await cell.stop(successor)


async def _await_rest(cell: Cell, who: str) -> None:
    for _ in range(round((cell.row.wait_s + 20.0) / 0.1)):
        if not cell.ledger.outstanding():
            return
        await asyncio.sleep(0.1)
    cell.desk.fault(f"{who} did not get {sorted(cell.ledger.outstanding())}")


async def _renew(cell: Cell, step: int) -> None:
    cell.renew()
    world = cell.world
    world.topic, world.group, cell.desk.body_s = f"T{step}", f"G{step}", BODY_S
    await world.set_queues(1)


def _at_step(cell: Cell, step: int) -> asyncio.Future[None]:
    reached: asyncio.Future[None] = cell.loop.create_future()
    cell.loop.call_at_step(step, lambda: reached.done() or reached.set_result(None))
    return reached
