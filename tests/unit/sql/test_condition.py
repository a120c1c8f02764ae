"""Messages chosen by a condition over their columns and the fields of their bodies."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rucola.errors import QueryError
from rucola.sql.condition import chosen_by

SCHEMA = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])


def chosen(condition: str, *bodies: bytes) -> list[int]:
    """Returns the queue offsets of the messages that meet the condition; each message is a separate batch."""
    batches = [pa.record_batch([[number], [body]], schema=SCHEMA) for number, body in enumerate(bodies)]
    found = chosen_by(condition, batches, SCHEMA, ["queueOffset"])
    return [offset for batch in found for offset in batch.column(0).to_pylist()]


def test_fields_come_from_the_first_messages_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.sql.condition.SAMPLE_ROWS", 2)
    bodies = b'{"a":1}', b'{"b":1}', b'{"c":1}', b'{"a":1,"c":2}'
    assert chosen("a = 1", *bodies) == [0, 3]
    assert chosen("b = 1", *bodies) == [1]
    with pytest.raises(QueryError, match='"c" not found'):
        chosen("c = 2", *bodies)
    assert chosen("decode(body) ->> 'c' = '2'", *bodies) == [3]
