"""The way of one message as a time line."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.key_builder import TRACE_TOPIC
from rucola.console.cluster.asking import Unknown
from rucola.console.messages.way import GroupOnMessage, WayStep, way_of
from rucola.console.visit import BadQueryError, Visit


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """The message whose way is wanted.

    Attributes:
        topic: topic of the message; empty if the page is only a form.
        key: its unique key.
        traces: the topic to which clients write traces.
    """

    topic: str = ""
    key: str = ""
    traces: str = TRACE_TOPIC


@dataclass(frozen=True, slots=True)
class TracePage:
    """The way of a message, from the oldest step.

    Attributes:
        searched: whether a message was asked for.
        groups: where each group of the topic is.
        traced: whether a client has written a record of the message.
        has_traces: whether the trace topic exists; None if that is not known.
    """

    searched: bool
    steps: tuple[WayStep, ...]
    groups: tuple[GroupOnMessage, ...]
    traced: bool
    has_traces: bool | None
    unknown: tuple[Unknown, ...]


async def trace(visit: Visit, query: TraceQuery) -> TracePage:
    """The way of a message: from its producer over stores, retries and delays to each consumer."""
    snapshot = await visit.watch.fresh()
    if not (query.topic and query.key):
        return TracePage(False, (), (), False, None, ())
    if not query.traces:
        raise BadQueryError("traces", "", "the name of a trace topic")
    way = await way_of(visit.watch.admin, snapshot, query.topic, query.key.strip(), query.traces)
    if not snapshot.masters:
        way.unknown += snapshot.refusals
    has_traces = query.traces in snapshot.topics if snapshot.topics else None
    return TracePage(True, tuple(way.steps), tuple(way.groups), way.traced, has_traces, tuple(way.unknown))
