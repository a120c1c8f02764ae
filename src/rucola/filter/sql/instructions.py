"""The output of the parser, from which a program is built: instructions, and the conditions to which they belong."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, auto


class Op(IntEnum):
    """Instructions of the kernel."""

    PROPERTY = 0
    INT = 1
    LONG = 2
    DOUBLE = 3
    STRING = 4
    BOOLEAN = 5
    NULL = 6
    NEGATE = 7
    NOT = 8
    CAST = 9
    EQUAL = 10
    GREATER = 11
    GREATER_EQUAL = 12
    LESS = 13
    LESS_EQUAL = 14
    JUMP_IF_FALSE = 15
    JUMP_IF_TRUE = 16
    AND = 17
    OR = 18
    CONTAINS = 19
    STARTS_WITH = 20
    ENDS_WITH = 21
    IN = 22


class OperandKind(Enum):
    """The kinds of operands that the rules for comparisons distinguish."""

    PROPERTY = auto()
    NUMBER = auto()
    STRING = auto()
    BOOLEAN = auto()
    NULL = auto()
    NEGATED = auto()
    CONDITION = auto()


Instruction = tuple[Op, "str | int | float | tuple[str, ...] | None", bool]
"""Operation, operand, and whether the result is negated. The operand of a jump is a number of instructions, counted
from the jump.
"""


@dataclass(slots=True)
class Condition:
    """A part of an expression.

    Attributes:
        code: instructions that leave the part's value on the stack; an enclosing part appends instructions of its own.
        value: the number, if ``kind`` is NUMBER.
        height: maximum number of values on the stack.
        depth: nesting of parentheses, signs and NOTs.
    """

    kind: OperandKind
    code: list[Instruction]
    position: int
    value: float = 0
    height: int = 1
    depth: int = 0
