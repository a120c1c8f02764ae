"""Compiled expressions: instruction lists as integers for the kernel ``_sql_cy``.

A program is an ``array('q')`` with four parts. The head has five integers: number of property names, position of the
names, start and end of the code, position of the stack in the work array. The literals of IN lists follow, then the
property names, both as position and length in the pool. The code is last. Each instruction consists of four integers
(an operation and its operands) and works on a stack. ``AND`` and ``OR`` skip their right side if the left one decides,
as in Java, because the right side may fail.

The work array holds position and length of each property's value (position -1 for a missing one), then the stack.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from enum import IntEnum
from typing import NamedTuple, TypeVar

from rucola.filter.sql import _sql_cy
from rucola.filter.sql.instructions import Condition, Op

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps of less than a millisecond, with a pause at each ``yield``."""

_HEAD = 5
_WIDTH = 4
_SLOT = 3
_STEP_INSTRUCTIONS = 512
"""Number of instructions that are laid out in one step."""


class TruthValue(IntEnum):
    """The result of an expression for a message; only TRUE passes."""

    FALSE = 0
    TRUE = 1
    NULL = 2
    ERROR = 3
    """A string could not be converted to the type that a comparison needed."""


class Type(IntEnum):
    """Types of values on the stack."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    DOUBLE = 4
    STRING = 5


class _Layout(NamedTuple):
    """The arrays of a program."""

    program: array[int]
    pool: bytes
    doubles: array[float]
    names: list[str]


class SqlExpression:
    """One compiled expression. Each expression has a stack of its own, so only one thread at a time may use it.

    Args:
        text: the expression.
        layout: the program.
        height: number of values that the program has on the stack at a time.
    """

    def __init__(self, text: str, layout: _Layout, height: int) -> None:
        self.text = text
        self._program, self._pool, self._doubles, self._names = layout
        self._work = array("q", bytes(8 * (2 * len(self._names) + _SLOT * (height + 1))))
        self._work_doubles = array("d", bytes(8 * (height + 1)))

    def match(self, source: bytes | bytearray | memoryview, places: array[int], count: int, outcomes: bytearray) -> int:
        """Evaluates the expression for many messages.

        Args:
            source: the buffer with the property texts.
            places: position and length of each message's property text.
            outcomes: receives one ``TruthValue`` per message.

        Returns:
            The number of messages that pass.

        Raises:
            ValueError: a text lies outside ``source``, or an array is too short.
        """
        return _sql_cy.match_texts(
            self._program, self._pool, self._doubles, self._work, self._work_doubles, source, places, count, outcomes
        )


def compile_sql(text: str) -> SqlExpression:
    """Compiles an expression.

    Raises:
        FormatError: the expression cannot be compiled; the error has the position of the offending character.
    """
    steps = compile_steps(text)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def compile_steps(text: str) -> Steps[SqlExpression]:
    """As ``compile_sql``, in steps: 16 KiB take a tenth of a second."""
    from rucola.filter.sql.grammar import parse_steps  # imported late: few brokers have SQL92 filters

    condition = yield from parse_steps(text)
    layout = yield from _lay_out(condition)
    return SqlExpression(text, layout, condition.height)


def _lay_out(condition: Condition) -> Steps[_Layout]:
    pool = bytearray(b"\0")  # never empty
    places: dict[str, tuple[int, int]] = {}
    names: dict[str, int] = {}
    doubles = array("d", [0.0])
    lists: list[int] = []
    code: list[int] = []

    def place(text: str) -> tuple[int, int]:
        if text not in places:
            encoded = text.encode("utf-8", "surrogatepass")
            places[text] = len(pool), len(encoded)
            pool.extend(encoded)
        return places[text]

    for number, (op, value, negated) in enumerate(condition.code):
        if number % _STEP_INSTRUCTIONS == 0:
            yield
        operands: tuple[int, ...] = (0, 0)
        if op is Op.PROPERTY:
            operands = names.setdefault(str(value), len(names)), 0
        elif op in (Op.STRING, Op.CONTAINS, Op.STARTS_WITH, Op.ENDS_WITH):
            operands = place(str(value))
        elif op is Op.DOUBLE:
            doubles.append(float(str(value)))
            operands = len(doubles) - 1, 0
        elif op is Op.IN:
            assert isinstance(value, tuple)
            operands = _HEAD + len(lists), len(value)
            for member in value:
                lists += place(member)
        elif op in (Op.JUMP_IF_FALSE, Op.JUMP_IF_TRUE):
            assert isinstance(value, int)
            operands = value * _WIDTH, 0
        elif isinstance(value, int):
            operands = value, 0
        code += (op, *operands, negated)
    names_at = _HEAD + len(lists)
    code_at = names_at + 2 * len(names)
    name_places = [number for name in names for number in place(name)]
    head = (len(names), names_at, code_at, code_at + len(code), 2 * len(names))
    return _Layout(array("q", [*head, *lists, *name_places, *code]), bytes(pool), doubles, list(names))
