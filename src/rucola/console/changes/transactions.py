"""Ends a transaction in place of its producer, or has its producer asked again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from rucola.common.key_builder import TRANS_CHECK_MAX_TIME_TOPIC
from rucola.common.message_const import PGROUP, REAL_TOPIC, TRANSACTION_ID
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT64_MAX, number_in
from rucola.common.sysflag import MessageSysFlag
from rucola.console.changes.plan import ChangePlan, ChangeStep, PlanError
from rucola.console.cluster.snapshot import BrokerState
from rucola.console.messages.search import by_offset
from rucola.console.messages.waiting import undecided
from rucola.console.visit import BadQueryError, Visit
from rucola.protocol.headers.transaction import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader

DECISIONS: Final = ("commit", "rollback", "check")
_FLAGS: Final = {"commit": MessageSysFlag.TRANSACTION_COMMIT, "rollback": MessageSysFlag.TRANSACTION_ROLLBACK}


@dataclass(frozen=True, slots=True)
class TransactionQuery:
    """A transaction without a decision.

    Attributes:
        broker: name of its broker.
        offset: queue offset of its half message; for ``check``, in the topic of those that were given up.
        to: ``commit`` (consumers get the message), ``rollback`` (nobody does), or ``check`` (its producer is asked
            again, after it was given up).
    """

    broker: str = ""
    offset: str = ""
    to: str = ""


async def plan_transaction(visit: Visit, query: TransactionQuery) -> ChangePlan:
    """Plans to end a transaction, or to have its producer asked again."""
    if query.to not in DECISIONS:
        raise BadQueryError("to", query.to, ", ".join(DECISIONS))
    offset = number_in(query.offset, 0, INT64_MAX)
    if offset is None:
        raise BadQueryError("offset", query.offset, "a queue offset, 0 or more")
    broker = (await visit.watch.fresh()).master_of(query.broker)
    if broker is None:
        raise PlanError("Broker {name} has no master.", name=query.broker)
    if query.to == "check":
        return await _plan_check(visit, broker, offset)
    return await _plan_end(visit, broker, offset, query.to)


async def _plan_end(visit: Visit, broker: BrokerState, offset: int, decision: str) -> ChangePlan:
    # RocketMQ stores a message again if its transaction is committed twice: only one without an end may be ended.
    halves = await undecided(visit.watch.admin, broker)
    half = next((one for one in halves.messages if one.queue_offset == offset), None)
    if half is None:
        raise PlanError("No transaction without a decision is known at this offset.")
    properties = half.properties
    group, topic = properties.get(PGROUP, ""), properties.get(REAL_TOPIC, "")
    header = EndTransactionRequestHeader(
        group, half.queue_offset, half.physical_offset, int(_FLAGS[decision]), False, topic, half.uniq_key,
        properties.get(TRANSACTION_ID), broker.name,
    )  # fmt: skip
    is_commit = decision == "commit"
    effect = "goes to its topic" if is_commit else "is not delivered"
    step = ChangeStep(
        half.uniq_key or half.offset_msg_id, broker.address, group, topic if is_commit else "-", effect, {},
        partial(visit.watch.admin.api.end_transaction, broker.address, header),
    )  # fmt: skip
    notes: list[tuple[str, dict[str, str]]] = [
        ("The local transaction of producer group {group} is not asked, and cannot undo it.", {"group": group})
    ]
    return ChangePlan(
        topic, "Commit the transaction" if is_commit else "Roll back the transaction", {}, (step,),
        (half.offset_msg_id, decision), tuple(notes), must_type=True,
    )  # fmt: skip


async def _plan_check(visit: Visit, broker: BrokerState, offset: int) -> ChangePlan:
    snapshot = visit.watch.poller.snapshot
    queue = MessageQueue(TRANS_CHECK_MAX_TIME_TOPIC, broker.name, 0)
    found = await by_offset(visit.watch.admin, snapshot, queue, offset)
    if not found.messages:
        raise PlanError("No transaction was given up at this offset.")
    half = found.messages[0]
    topic, group = half.properties.get(REAL_TOPIC, ""), half.properties.get(PGROUP, "")
    header = ResumeCheckHalfMessageRequestHeader(TRANS_CHECK_MAX_TIME_TOPIC, half.offset_msg_id)
    step = ChangeStep(
        half.uniq_key or half.offset_msg_id, broker.address, topic, group, "its producer is asked again", {},
        partial(visit.watch.admin.api.resume_check, broker.address, header),
    )  # fmt: skip
    return ChangePlan(topic, "Ask producer group {group} again", {"group": group}, (step,), (half.offset_msg_id,))
