"""Makes the clients of a row, with the defaults of an application except where the cell needs less time."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.scenario.matrix.desk import Desk, Member
from tests.scenario.matrix.hands import INVISIBLE_MS
from tests.scenario.matrix.table import Use
from tests.scenario.matrix.world import account_options

from rucola import (
    ConsumeFromWhere,
    LiteConsumerConfig,
    LitePullConsumerConfig,
    MessageModel,
    ProducerConfig,
    PullConsumerConfig,
    PushConsumerConfig,
    SimpleConsumerConfig,
)


def make_consumer(client: ModuleType, desk: Desk, member: Member) -> Any:
    """A consumer of the row; ``client`` is ``rucola`` or ``rucola.sync``."""
    row, world = desk.row, desk.world
    options: dict[str, Any] = account_options(world.guarded)
    if desk.instance_name:
        options["instance_name"] = desk.instance_name
    elif row.broadcasting:
        options["instance_name"] = member.name
    if row.is_push:
        options |= {"consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET}
        options |= {"local_offset_store_dir": str(world.home), "consume_orderly": row.orderly}
        options["await_termination_ms"] = desk.await_termination_ms
        if row.broadcasting:
            options["message_model"] = MessageModel.BROADCASTING
        return client.PushConsumer(world.group, world.namesrv, PushConsumerConfig(**options))
    if row.is_lite:
        options |= {"consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET}
        return client.LitePullConsumer(world.group, world.namesrv, LitePullConsumerConfig(**options))
    if row.has_lite_topics:
        options |= {"invisible_duration_ms": INVISIBLE_MS, "await_termination_ms": desk.await_termination_ms}
        return client.LiteConsumer(world.group, world.namesrv, world.topic, LiteConsumerConfig(**options))
    if row.use is Use.PULL:
        return client.PullConsumer(world.group, world.namesrv, PullConsumerConfig(**options))
    options |= {"invisible_duration_ms": INVISIBLE_MS, "await_duration_ms": 5_000}
    return client.SimpleConsumer(world.group, world.namesrv, SimpleConsumerConfig(**options))


def make_producer(client: ModuleType, desk: Desk, member: Member, transactions: Any) -> Any:
    """A producer of the row, with the defaults."""
    options: dict[str, Any] = account_options(desk.world.guarded)
    if desk.instance_name:
        options["instance_name"] = desk.instance_name
    config = ProducerConfig(**options)
    if desk.row.client == "TransactionProducer":
        return client.TransactionProducer(desk.world.group, desk.world.namesrv, transactions, config)
    return client.Producer(desk.world.group, desk.world.namesrv, config)
