"""The messages that a replay takes from a store directory or from brokers, and the replay's progress.

The ranges of all queues are fixed when a replay is planned. So a replay ends even if it sends into the topic that it
reads. If a run with a checkpoint is interrupted, the next run sends the rest of the same ranges. This module does not
import Spark, and imports PyArrow only inside the functions that read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rucola.arrow.catalog import checked_ranges, ending_offsets, starting_offsets
from rucola.arrow.offsets import QueueOffsets, from_document, to_document
from rucola.arrow.ranges import LogRange, QueueRange, RecordRange, SourceRange
from rucola.arrow.read_options import BodyForm, ReadOptions, SchemaStyle
from rucola.arrow.reading import open_catalog, read_range
from rucola.common.json_library import orjson
from rucola.common.message_const import KEY_SEPARATOR
from rucola.errors import ConfigError
from rucola.runtime.files import Files

if TYPE_CHECKING:
    import pyarrow as pa

    from rucola.arrow.scanner import Scanned
    from rucola.spark.replay_rows import ReplayTally

KEY_COLUMNS = ("keys", "msgId")
"""The columns that are searched for a key."""


@dataclass(frozen=True)
class Plan:
    """The messages that a replay reads.

    Attributes:
        options: where to read from, and which messages to choose.
        ranges: the offsets of each queue.
        keys: selects only messages with one of these keys; empty for all.
    """

    options: ReadOptions
    ranges: list[QueueRange]
    keys: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of messages in the ranges, before conditions are applied."""
        return sum(one.count for one in self.ranges)

    @property
    def end(self) -> QueueOffsets:
        """The end offset of each queue."""
        return {one.queue: one.end for one in self.ranges}


def plan_replay(options: ReadOptions, keys: Sequence[str] = (), done: Done | None = None) -> Plan:
    """Fixes the ranges of all queues.

    Args:
        options: where to read from, and which messages to choose.
        keys: selects only messages with one of these keys; empty for all.
        done: progress of earlier runs; the plan then covers only the remaining messages.

    Raises:
        ConfigError: a topic does not exist, or the options do not fit a replay.
        DataLossError: a requested offset is gone, and ``failOnDataLoss`` is set.
    """
    if options.schema_style is not SchemaStyle.ROCKETMQ:
        raise ConfigError("schemaStyle", options.schema_style, "rocketmq, whose columns a replay needs")
    if options.body is not BodyForm.DECOMPRESSED:
        raise ConfigError("body", options.body, "decompressed; the new messages would not say that they are compressed")
    catalog = open_catalog(options)
    try:
        queues = catalog.queues(all_needed=True)
        if done is not None:
            start, end = done.next, done.end
        else:
            start = starting_offsets(options, catalog, queues, "earliest")
            end = ending_offsets(options, catalog, queues)
        bounds = catalog.bounds({*start, *end})
        return Plan(options, checked_ranges(start, end, bounds, options.fail_on_data_loss), tuple(keys))
    finally:
        catalog.close()


def read_plan(plan: Plan, columns: Sequence[str], scanned: Scanned | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the messages of ``plan`` with these columns; messages of one queue come in queue order. ``scanned`` is
    told how many messages of the ranges have been passed, whether they are chosen or not.
    """
    import pyarrow as pa

    from rucola.arrow.columns import arrow_schema
    from rucola.arrow.schema import named_columns

    schema = arrow_schema(named_columns(plan.options).values())
    names = [*columns, *(name for name in KEY_COLUMNS if plan.keys and name not in columns)]
    schema = pa.schema([schema.field(name) for name in names])
    catalog = open_catalog(plan.options)
    try:
        found = catalog.plan_lookup(plan.ranges, plan.keys, ()) if plan.keys else None
        if found is None and plan.options.lite.names is not None:
            found = catalog.plan_lite(plan.ranges, plan.options.lite.names)
        pieces = catalog.plan(plan.ranges) if found is None else sorted(found, key=_place)
    finally:
        catalog.close()
    for piece in pieces:
        for batch in read_range(plan.options, schema, piece, scanned):
            yield _with_keys(batch, plan.keys) if plan.keys else batch


@dataclass(frozen=True)
class Done:
    """The progress of a replay.

    Attributes:
        next: for each queue, the offset of the first message that is not sent yet.
        end: for each queue, the offset at which the replay ends.
        messages: number of messages of all runs together, sent or refused.
        refused: number of refused messages, which became dead letters.
    """

    next: QueueOffsets
    end: QueueOffsets
    messages: int = 0
    refused: int = 0

    @staticmethod
    def nothing(plan: Plan) -> Done:
        """The progress before the first message is sent."""
        return Done({one.queue: one.start for one in plan.ranges}, plan.end)

    def plus(self, tally: ReplayTally) -> Done:
        """The progress after the messages in ``tally`` were sent, too."""
        return Done(self.next | tally.ends, self.end, self.messages + tally.messages, self.refused + tally.refused)


class Checkpoint:
    """A file that holds the progress of a replay. Each save replaces the whole file.

    Args:
        path: path of the file.
        replay: options that distinguish this replay from others, without secrets.
    """

    def __init__(self, path: str, replay: Mapping[str, str]) -> None:
        self._files = Files()
        self._path = self._files.expand(path)
        self._replay = dict(replay)

    def load(self) -> Done | None:
        """The progress that an earlier run has saved; None if the file does not exist.

        Raises:
            ConfigError: the file belongs to a different replay, or was not written by a replay.
        """
        content = self._files.read_file(self._path)
        if content is None:
            return None
        try:
            found: dict[str, Any] = orjson.loads(content)
            replay = found["replay"]
            at, end = from_document(found["next"]), from_document(found["end"])
            done = Done(at, end, int(found["messages"]), int(found["refused"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError("checkpoint", self._path, f"a file that a replay has written ({error!r})") from error
        if replay != self._replay:
            names = sorted(name for name in {*replay, *self._replay} if replay.get(name) != self._replay.get(name))
            raise ConfigError(
                "checkpoint", self._path, f"a file of this replay; in the file, these values differ: {', '.join(names)}"
            )
        return done

    def save(self, done: Done) -> None:
        """Replaces the file durably: after this call the progress survives a power cut."""
        document = {
            "replay": self._replay,
            "next": to_document(done.next),
            "end": to_document(done.end),
            "messages": done.messages,
            "refused": done.refused,
        }
        self._files.replace_file(self._path, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def _place(piece: SourceRange) -> tuple[str, int]:
    """Sort key for the pieces of a lookup, so that the messages of each queue come in queue order."""
    if isinstance(piece, LogRange):
        return piece.broker_name, piece.start_physical_offset
    return piece.broker_name, piece.physical_offsets[0] if isinstance(piece, RecordRange) else 0


def _with_keys(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """The messages that have one of ``keys``, or whose id is one of them."""
    import pyarrow as pa

    wanted = set(keys)
    texts = zip(batch.column("keys").to_pylist(), batch.column("msgId").to_pylist(), strict=True)
    mask = [msg_id in wanted or not wanted.isdisjoint((text or "").split(KEY_SEPARATOR)) for text, msg_id in texts]
    return batch.filter(pa.array(mask, pa.bool_()))
