"""What the parser hands to the layout: instructions, and the conditions they belong to."""

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


class Kind(Enum):
    """What an operand is, as far as the rules for what may be compared ask."""

    PROPERTY = auto()
    NUMBER = auto()
    STRING = auto()
    BOOLEAN = auto()
    NULL = auto()
    NEGATED = auto()
    CONDITION = auto()


Instruction = tuple[Op, "str | int | float | tuple[str, ...] | None", bool]
"""Operation, operand, and whether the answer is turned round. A jump counts in instructions, from its own place."""


@dataclass(slots=True)
class Condition:
    """A part of an expression.

    Attributes:
        code: instructions that leave its value on the stack; whatever takes the part over appends to it.
        value: of a number.
        height: values on the stack at the same time, at most.
        depth: parentheses, signs and NOTs around each other in it.
    """

    kind: Kind
    code: list[Instruction]
    position: int
    value: float = 0
    height: int = 1
    depth: int = 0
