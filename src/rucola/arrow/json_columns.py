"""Checks columns of JSON bodies: a kernel finds those that certainly fit, ``json_scan`` judges the rest."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum

import pyarrow as pa

from rucola.arrow._json_cy import Scan, slot_numbers
from rucola.arrow.json_scan import Checked, Problem, check_body
from rucola.arrow.json_shape import ANY, Kind, Shape, TimeUnit
from rucola.arrow.json_values import time_range, time_text

NO_BODY = "no body"
"""The error of a row without a body."""
NODE_WIDTH = 6
"""Numbers of a node: kind, two numbers that the kind uses, the node of its items, first field, number of fields."""
CODES = {kind: number for number, kind in enumerate(Kind)}
TIMES_EACH = 8
"""Whole numbers that are times, for each body on average; a batch with more is checked without the kernel."""
_ABSENT = Checked(Problem((), NO_BODY, 0))


class Outcome(IntEnum):
    """What the kernel says of a body."""

    UNSURE = 0
    FITS = 1
    HAS_TIMES = 2


class Checker:
    """Checks bodies against declared types.

    Args:
        shape: an object, with the declared fields.
        unit: of whole numbers in fields of type timestamp; without it they are a problem.
    """

    def __init__(self, shape: Shape, unit: TimeUnit | None = None) -> None:
        self._shape = shape
        self._unit = unit
        self._program = _program(shape, unit)

    def __reduce__(self) -> tuple[type[Checker], tuple[Shape, TimeUnit | None]]:
        return Checker, (self._shape, self._unit)

    def problems(self, bodies: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
        """The first problem of each body as text; null where the body fits."""
        chunks = bodies.chunks if isinstance(bodies, pa.ChunkedArray) else [bodies]
        return pa.chunked_array([self.checked(chunk).field("error") for chunk in chunks], pa.string())

    def checked(self, bodies: pa.Array) -> pa.Array:
        """For each body a struct.

        Its ``error`` is the first problem as text. Its ``text`` is the body with whole numbers of timestamps replaced
        by ISO texts, null if there are none.

        Args:
            bodies: byte strings or texts.
        """
        count = len(bodies)
        outcomes, spans = self._outcomes(bodies)
        if outcomes.count(Outcome.FITS) == count:
            return pa.StructArray.from_arrays([pa.nulls(count, pa.string())] * 2, ["error", "text"])
        errors: list[str | None] = [None] * count
        texts: list[str | None] = [None] * count
        for row, outcome in enumerate(outcomes):
            if outcome != Outcome.FITS:
                body = bodies[row].as_py()
                body = body.encode() if isinstance(body, str) else body
                if outcome == Outcome.HAS_TIMES:
                    texts[row] = self._with_times(body, spans[row])
                else:
                    found = _ABSENT if body is None else check_body(body, self._shape, self._unit)
                    errors[row] = _error(found.problem)
                    texts[row] = None if found.text is None else found.text.decode()
        return pa.StructArray.from_arrays(
            [pa.array(errors, pa.string()), pa.array(texts, pa.string())], ["error", "text"]
        )

    def _outcomes(self, bodies: pa.Array) -> tuple[bytearray, dict[int, list[tuple[int, int]]]]:
        """The outcome of each body; for those with times, start and end of each within the body."""
        if bodies.type not in {pa.binary(), pa.string()}:
            bodies = bodies.cast(pa.binary())
        outcomes = bytearray(len(bodies))
        _, offsets, data = bodies.buffers()
        if not len(bodies) or data is None:
            return outcomes, {}
        starts = memoryview(offsets).cast("B").cast("i")[bodies.offset :]
        times = array("q", bytes(24 * TIMES_EACH * len(bodies) if self._unit else 0))
        # Each call has its own scan, because DuckDB calls from several threads.
        scan = Scan(*self._program, array("q", bytes(8 * slot_numbers())), self._unit is not None)
        found = scan.check(memoryview(data).cast("B"), starts, len(bodies), outcomes, times)
        spans: dict[int, list[tuple[int, int]]] = {}
        for at in range(0, 3 * found, 3):
            start = starts[times[at]]
            spans.setdefault(times[at], []).append((times[at + 1] - start, times[at + 2] - start))
        return outcomes, spans

    def _with_times(self, body: bytes, spans: Iterable[tuple[int, int]]) -> str:
        parts, done = [], 0
        for start, end in spans:
            parts += [body[done:start], time_text(body[start:end].decode(), self._unit, start)]
            done = end
        return b"".join([*parts, body[done:]]).decode()


def _program(shape: Shape, unit: TimeUnit | None) -> tuple[array[int], bytes, int]:
    """The program of the kernel, the names that it refers to, and the position of the node of ``shape``.

    Nodes of ``NODE_WIDTH`` numbers refer to other nodes and to their first field by position. A field has position and
    length of its name, and the position of its node. The node at 0 takes any value.
    """
    program = array("q")
    names = bytearray()

    def add(one: Shape) -> int:
        place = len(program)
        program.extend([CODES[one.kind], *_limits(one, unit), 0, 0, 0])
        if one.item is not None:
            program[place + 3] = add(one.item)
        if one.fields:
            fields = []
            for name, kind in one.fields.items():
                node, encoded = add(kind), name.encode()
                fields += [len(names), len(encoded), node]
                names.extend(encoded)
            program[place + 4], program[place + 5] = len(program), len(one.fields)
            program.extend(fields)
        return place

    add(ANY)
    root = add(shape)
    return program, bytes(names), root


def _limits(shape: Shape, unit: TimeUnit | None) -> tuple[int, int]:
    """The numbers that the kernel compares: values, digits before and after the point, or digits of exponents."""
    if shape.kind is Kind.WHOLE:
        return -(1 << (shape.bits - 1)), (1 << (shape.bits - 1)) - 1
    if shape.kind is Kind.DECIMAL:
        return shape.precision - shape.scale, shape.scale
    if shape.kind is Kind.REAL:
        return 0, 2 if shape.bits == 64 else 0
    return time_range(unit) if shape.kind is Kind.TIMESTAMP and unit else (0, 0)


def _error(problem: Problem | None) -> str | None:
    if problem is None:
        return None
    return NO_BODY if problem is _ABSENT.problem else str(problem)
