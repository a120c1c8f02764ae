"""Record batch messages around filled columns, written by the compiled and the interpreted kernel, read by PyArrow."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel
from tests.unit.formats.test_column_plan import NUMBER, planned, table_of

from rucola.arrow.batch_message import batch_message
from rucola.common.columns import ROW_WIDTH
from rucola.formats.column_plan import PLAN_WIDTH, PlanField, PlanKind, Planned, new_plan

TYPES = {
    PlanKind.INT32: pa.int32(),
    PlanKind.INT64: pa.int64(),
    PlanKind.BYTES: pa.binary(),
    PlanKind.TEXT: pa.string(),
    PlanKind.JSON: pa.string(),
    PlanKind.REPEATED: pa.string(),
}


@pytest.fixture
def batches(form: str) -> ModuleType:
    return kernel("formats._batch_cy", form)


class Message:
    """Rows as a message whose metadata are not written yet; one column for each kind, and for each repeated text."""

    def __init__(
        self,
        form: str,
        kinds: Sequence[PlanKind],
        texts: Sequence[bytes | None],
        numbers: Sequence[int] = (),
        repeated: Sequence[bytes] = (),
        spare_rows: int = 0,
    ) -> None:
        columns = kernel("formats._columns_cy", form)
        lengths = iter(map(len, repeated))
        self.plan = new_plan(
            [
                Planned(kind, 0, next(lengths)) if kind is PlanKind.REPEATED else planned(kind, 1)
                for kind in kinds
            ]
        )  # fmt: skip
        made = [kind for kind in kinds if kind is not PlanKind.SAME]
        self.schema = pa.schema([pa.field(f"c{at}", TYPES[kind]) for at, kind in enumerate(made)])
        self.metadata, self.places = batch_message(self.schema)
        segment, self.table = table_of(texts, numbers)
        self.rows = len(texts)
        size = columns.lay_out(
            self.table, self.rows, self.rows + spare_rows, 1 << 20, 8, self.plan, len(self.metadata)
        )  # fmt: skip
        self.out = bytearray(b"\xee") * size
        assert columns.fill(segment, self.table, 0, self.rows, self.plan, self.out) == -1
        self.texts = b"".join(repeated)

    def complete(self, batches: ModuleType) -> None:
        batches.complete(self.table, self.rows, self.texts, self.plan, self.metadata, self.places, self.out)

    def read(self, batches: ModuleType) -> list[list[object]]:
        """The values of all columns, as PyArrow reads them."""
        self.complete(batches)
        batch = pa.ipc.read_record_batch(pa.py_buffer(self.out), self.schema)
        batch.validate(full=True)
        return [column.to_pylist() for column in batch.columns]


@given(
    st.lists(st.sampled_from(PlanKind), min_size=1, max_size=8).filter(lambda kinds: set(kinds) != {PlanKind.SAME}),
    st.lists(st.one_of(st.none(), st.text(max_size=9)), min_size=1, max_size=20),
    st.lists(st.text(max_size=20), min_size=8, max_size=8),
    st.integers(0, 9),
)
def test_pyarrow_reads_what_was_filled(
    kinds: list[PlanKind], texts: list[str | None], repeated: list[str], spare_rows: int
) -> None:
    rows = range(len(texts))
    for form in FORMS:
        encoded = [None if text is None else text.encode() for text in texts]
        used = repeated[: kinds.count(PlanKind.REPEATED)]
        message = Message(form, kinds, encoded, rows, [one.encode() for one in used], spare_rows)
        found = iter(message.read(kernel("formats._batch_cy", form)))
        of_kind = {
            PlanKind.INT32: list(rows), PlanKind.INT64: list(rows), PlanKind.BYTES: encoded, PlanKind.TEXT: texts,
        }  # fmt: skip
        next_text = iter(used)
        for kind in kinds:
            if kind in of_kind:
                assert next(found) == of_kind[kind]
            elif kind is PlanKind.REPEATED:
                assert next(found) == [next(next_text)] * len(rows)
            elif kind is PlanKind.JSON:
                assert len(next(found)) == len(rows)
        assert next(found, None) is None


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 64, 65, 1000])
def test_nulls_and_repeated_texts_of_any_number_of_rows(batches: ModuleType, form: str, rows: int) -> None:
    texts = [b"x" * (row % 3) if row % 5 else None for row in range(rows)]
    message = Message(form, [PlanKind.BYTES, PlanKind.REPEATED], texts, repeated=[b"10.0.0.1:10911"])
    assert message.read(batches) == [texts, ["10.0.0.1:10911"] * rows]


def test_a_column_without_nulls_has_no_bitmap(batches: ModuleType, form: str) -> None:
    for texts, nulls in (([b"a", b""], 0), ([b"a", None], 1)):
        message = Message(form, [PlanKind.TEXT, PlanKind.INT32], texts)
        message.complete(batches)
        batch = pa.ipc.read_record_batch(pa.py_buffer(message.out), message.schema)
        assert [column.null_count for column in batch.columns] == [nulls, 0]
        assert [column.buffers()[0] is not None for column in batch.columns] == [nulls > 0, False]


def test_the_size_of_all_values_is_returned(batches: ModuleType, form: str) -> None:
    kinds = [PlanKind.INT32, PlanKind.INT64, PlanKind.BYTES, PlanKind.SAME, PlanKind.REPEATED]
    message = Message(form, kinds, [b"four", None, b"12"], repeated=[b"topic"], spare_rows=9)
    arguments = (message.table, 3, message.texts, message.plan, message.metadata, message.places, message.out)
    assert batches.complete(*arguments) == 4 * 3 + 8 * 3 + 6 + 5 * 3


def test_columns_share_the_buffer(batches: ModuleType, form: str) -> None:
    message = Message(form, [PlanKind.BYTES, PlanKind.INT64], [b"body"] * 3)
    buffer = pa.py_buffer(message.out)
    message.complete(batches)
    for column in pa.ipc.read_record_batch(buffer, message.schema).columns:
        for one in column.buffers():
            assert one is None or buffer.address <= one.address < buffer.address + buffer.size


def test_schemas_of_any_width() -> None:
    for width in range(1, 40):
        schema = pa.schema([pa.field(f"column {at}", list(TYPES.values())[at % 6]) for at in range(width)])
        metadata, places = batch_message(schema)
        assert len(metadata) % 64 == 0
        assert len(places) == 4
        batch = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
        body = batch.serialize().to_pybytes()[-batch.get_total_buffer_size() or None :]
        found = [int.from_bytes(metadata[place : place + 8], "little") for place in places]
        assert found[0] == 1
        assert found[1] >= len(body) > 0
        assert found[2] == 1
        nodes = metadata[places[2] : places[2] + 16 * width]
        assert nodes == ((1).to_bytes(8, "little") * 2) * width
        assert int.from_bytes(metadata[places[3] - 4 : places[3]], "little") == sum(
            len(column.buffers()) for column in batch.columns
        )


def set_field(column: int, field: PlanField, value: int) -> Callable[[Message], None]:
    return lambda message: message.plan.__setitem__(column * PLAN_WIDTH + field, value)


def set_place(number: int, value: int) -> Callable[[Message], None]:
    return lambda message: message.places.__setitem__(number, value)


WRONG = {
    **{
        f"column {column}, {field.name} {value}": set_field(column, field, value)
        for column, fields in (
            (0, (PlanField.VALUES,)),
            (1, (PlanField.VALUES,)),
            (2, (PlanField.VALUES, PlanField.OFFSETS, PlanField.VALIDITY, PlanField.DONE)),
            (3, (PlanField.VALUES, PlanField.OFFSETS, PlanField.DETAIL)),
        )
        for field, value in itertools.product(fields, (-1, 1 << 20, 1 << 40))
    },
    **{f"column {column}, ROOM": set_field(column, PlanField.ROOM, 1 << 20) for column in range(4)},
    **{f"column {column}, little ROOM": set_field(column, PlanField.ROOM, 2) for column in range(4)},
    "column of the lengths": set_field(2, PlanField.DETAIL, ROW_WIDTH),
    "offsets that are not aligned": set_field(2, PlanField.OFFSETS, 1022),
    "a bitmap before the body": set_field(2, PlanField.VALIDITY, 8),
    "values before the body": set_field(0, PlanField.VALUES, 8),
    **{f"place {number} {value}": set_place(number, value) for number in range(4) for value in (-1, 1 << 20)},
    "few texts": lambda message: setattr(message, "texts", b"topi"),
    "many rows": lambda message: setattr(message, "rows", 100),
    "a row too many": lambda message: setattr(message, "rows", 4),
    "no rows": lambda message: setattr(message, "rows", 0),
    "a negative number of rows": lambda message: setattr(message, "rows", -1),
    "a plan that is cut": lambda message: message.plan.pop(),
    "no places": lambda message: setattr(message, "places", array("q")),
    "a small buffer": lambda message: setattr(message, "out", message.out[:64]),
    "much metadata": lambda message: setattr(message, "metadata", bytes(1 << 20)),
}


@pytest.mark.few
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_too_long_batches_are_refused(batches: ModuleType, form: str, change: Callable[[Message], None]) -> None:
    kinds = [PlanKind.INT32, PlanKind.INT64, PlanKind.TEXT, PlanKind.REPEATED]
    message = Message(form, kinds, [b"a", None, b"three"], repeated=[b"topic"])
    assert message.read(batches)[2:] == [["a", None, "three"], ["topic"] * 3]
    change(message)
    with pytest.raises(ValueError, match=r"fit|place|texts"):
        message.complete(batches)


def test_texts_for_the_first_column_only(batches: ModuleType, form: str) -> None:
    message = Message(form, [PlanKind.REPEATED, PlanKind.REPEATED], [b"a"] * 3, repeated=[b"topic", b"host"])
    message.texts = b"topichos"
    with pytest.raises(ValueError, match="too few for column 1"):
        message.complete(batches)


@pytest.mark.parametrize(("place", "bytes_before_the_end"), [(0, 7), (1, 7), (2, 63), (3, 159)])
def test_places_at_the_end_of_the_metadata(
    batches: ModuleType, form: str, place: int, bytes_before_the_end: int
) -> None:
    """Four columns have four pairs of numbers, their ten buffers have ten."""
    kinds = [PlanKind.INT32, PlanKind.INT64, PlanKind.TEXT, PlanKind.BYTES]
    for spare in (0, 1):
        message = Message(form, kinds, [b"a"])
        message.places[place] = len(message.metadata) - bytes_before_the_end - spare
        if spare:
            message.complete(batches)
        else:
            with pytest.raises(ValueError, match="outside"):
                message.complete(batches)


def test_rows_that_the_table_does_not_have(batches: ModuleType, form: str) -> None:
    message = Message(form, [PlanKind.TEXT], [None] * 3, spare_rows=5)
    message.rows = 4
    with pytest.raises(ValueError, match="do not fit"):
        message.complete(batches)


def test_numbers_are_little_endian(batches: ModuleType, form: str) -> None:
    message = Message(form, [PlanKind.INT64], [None] * 300, range(300))
    assert message.table[299 * ROW_WIDTH + NUMBER] == 299
    message.complete(batches)
    place = message.places[0]
    assert message.out[place : place + 8] == (300).to_bytes(8, "little")
