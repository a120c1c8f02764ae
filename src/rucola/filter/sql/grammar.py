"""Compiles the text of an expression to instructions (RocketMQ 5.3.3, ``SelectorParser`` and its expression classes).

The parser neither backtracks nor recurses, and each rule is compiled when it is recognised. Time and memory therefore
grow only with the length of the text. What follows a complete expression is ignored, as in Java.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NoReturn

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedToken, VisitError

from rucola.common.numbers import INT64_MAX
from rucola.errors import FormatError
from rucola.filter.sql.instructions import Condition, Op, OperandKind

LENGTH_MAX = 16 * 1024
"""Maximum number of characters of an expression."""
DEPTH_MAX = 1024
"""Maximum nesting of parentheses, signs and NOTs."""
INSTRUCTIONS_MAX = 65_536
_STEP_TOKENS = 32
_WHAT = "SQL92 expression"
_INT_MAX = (1 << 31) - 1

_GRAMMAR = r"""
start: disjunction
?disjunction: conjunction
    | disjunction _OR conjunction -> either
?conjunction: equality
    | conjunction _AND equality -> both
?equality: comparison
    | equality "=" comparison -> equal
    | equality "<>" comparison -> not_equal
    | equality _IS NULL -> is_null
    | equality _IS _NOT NULL -> is_not_null
?comparison: unary
    | comparison ">" unary -> greater
    | comparison ">=" unary -> greater_equal
    | comparison "<" unary -> less
    | comparison "<=" unary -> less_equal
    | comparison _BETWEEN unary _AND unary -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN "(" STRING ("," STRING)* ")" -> is_in
    | comparison _NOT _IN "(" STRING ("," STRING)* ")" -> is_not_in
    | comparison _CONTAINS STRING -> contains
    | comparison _NOT _CONTAINS STRING -> not_contains
    | comparison _STARTSWITH STRING -> starts_with
    | comparison _NOT _STARTSWITH STRING -> not_starts_with
    | comparison _ENDSWITH STRING -> ends_with
    | comparison _NOT _ENDSWITH STRING -> not_ends_with
?unary: primary
    | "+" unary -> plus
    | "-" unary -> minus
    | _NOT unary -> negation
?primary: STRING -> string
    | DECIMAL -> decimal
    | FLOAT -> double
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | ID -> property
    | "(" disjunction ")" -> plus

_NOT.4: /(?ai:NOT)(?![A-Za-z0-9_$])/
_AND.4: /(?ai:AND)(?![A-Za-z0-9_$])/
_OR.4: /(?ai:OR)(?![A-Za-z0-9_$])/
_BETWEEN.4: /(?ai:BETWEEN)(?![A-Za-z0-9_$])/
_IN.4: /(?ai:IN)(?![A-Za-z0-9_$])/
TRUE.4: /(?ai:TRUE)(?![A-Za-z0-9_$])/
FALSE.4: /(?ai:FALSE)(?![A-Za-z0-9_$])/
NULL.4: /(?ai:NULL)(?![A-Za-z0-9_$])/
_IS.4: /(?ai:IS)(?![A-Za-z0-9_$])/
_CONTAINS.4: /(?ai:CONTAINS)(?![A-Za-z0-9_$])/
_STARTSWITH.4: /(?ai:STARTSWITH)(?![A-Za-z0-9_$])/
_ENDSWITH.4: /(?ai:ENDSWITH)(?![A-Za-z0-9_$])/
FLOAT.3: /[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
DECIMAL.2: /0|[1-9][0-9]*[lL]?/
STRING: /'([^']|'')*'/
ID: /[A-Za-z_$][A-Za-z0-9_$]*/
_LINE_COMMENT.3: /--[^\n\r]*(\r\n|\n|\r)/
_BLOCK_COMMENT.3: /\/\*[\s\S]*?\*\//
_WHITE: /[ \t\n\r\f]+/
%ignore _LINE_COMMENT
%ignore _BLOCK_COMMENT
%ignore _WHITE
"""


_CONSTANTS = frozenset({OperandKind.NUMBER, OperandKind.STRING, OperandKind.BOOLEAN, OperandKind.NULL})
_BOOLEANS = frozenset({OperandKind.BOOLEAN, OperandKind.NULL, OperandKind.CONDITION})


def parse_steps(text: str) -> Generator[None, None, Condition]:
    """Compiles the condition in ``text``, in steps of ``_STEP_TOKENS`` tokens.

    Raises:
        FormatError: the condition is invalid in Java as well, or it exceeds ``LENGTH_MAX``, ``DEPTH_MAX`` or
            ``INSTRUCTIONS_MAX``, which are limits of this parser.
    """
    if len(text) > LENGTH_MAX:
        raise FormatError(_WHAT, LENGTH_MAX, f"at most {LENGTH_MAX} characters", f"{len(text)}")
    parser: Any = _PARSER.parse_interactive(text)
    try:
        for number, token in enumerate(parser.lexer_thread.lex(parser.parser_state)):
            if number % _STEP_TOKENS == 0:
                yield
            try:
                parser.feed_token(token)
            except UnexpectedToken:
                if "$END" not in parser.accepts():
                    raise
                break  # a complete expression; the rest is ignored
        condition: Condition = parser.feed_eof()
    except UnexpectedCharacters as error:
        position = error.pos_in_stream or 0
        _refuse(position, "a token", repr(text[position]))
    except UnexpectedToken as error:
        at = len(text) if error.token.type == "$END" else error.token.start_pos or 0
        expected = ", ".join(sorted(name.strip("_") for name in error.accepts or error.expected))
        _refuse(at, f"one of {expected}", "the end" if at >= len(text) else repr(str(error.token)))
    except VisitError as error:
        raise error.orig_exc from None
    return condition


def _refuse(position: int, expected: str, got: str) -> NoReturn:
    raise FormatError(_WHAT, position, expected, got[:64]) from None


class _Compiler(Transformer[Token, Condition]):
    """Has a method for each rule of the grammar. A method takes the parts of its rule and returns the combined part."""

    # -- operands ------------------------------------------------------------------------------------------------------

    def start(self, parts: list[Any]) -> Condition:
        return _as_condition(parts[0])

    def property(self, parts: list[Any]) -> Condition:
        return Condition(OperandKind.PROPERTY, [(Op.PROPERTY, str(parts[0]), False)], parts[0].start_pos)

    def string(self, parts: list[Any]) -> Condition:
        return Condition(OperandKind.STRING, [(Op.STRING, _unquoted(parts[0]), False)], parts[0].start_pos)

    def decimal(self, parts: list[Any]) -> Condition:
        value = int(parts[0].rstrip("lL")[:40])
        if value > INT64_MAX:
            _refuse(parts[0].start_pos, f"a number up to {INT64_MAX}", repr(str(parts[0])))
        op = Op.INT if value <= _INT_MAX else Op.LONG
        return Condition(OperandKind.NUMBER, [(op, value, False)], parts[0].start_pos, value)

    def double(self, parts: list[Any]) -> Condition:
        value = float(parts[0])
        if value in (0.0, float("inf")):
            _refuse(parts[0].start_pos, "a number between 4.9E-324 and 1.7976931348623157E308", repr(str(parts[0])))
        return Condition(OperandKind.NUMBER, [(Op.DOUBLE, value, False)], parts[0].start_pos, value)

    def true(self, parts: list[Any]) -> Condition:
        return Condition(OperandKind.BOOLEAN, [(Op.BOOLEAN, 1, False)], parts[0].start_pos)

    def false(self, parts: list[Any]) -> Condition:
        return Condition(OperandKind.BOOLEAN, [(Op.BOOLEAN, 0, False)], parts[0].start_pos)

    def null(self, parts: list[Any]) -> Condition:
        return Condition(OperandKind.NULL, [(Op.NULL, None, False)], parts[0].start_pos)

    def plus(self, parts: list[Any]) -> Condition:
        return _deeper(parts[0])

    def minus(self, parts: list[Any]) -> Condition:
        part = _deeper(parts[0])
        part.code.append((Op.NEGATE, None, False))
        part.kind = OperandKind.NEGATED
        return part

    def negation(self, parts: list[Any]) -> Condition:
        return _not(_deeper(_as_condition(parts[0])))

    # -- conditions ----------------------------------------------------------------------------------------------------

    def either(self, parts: list[Any]) -> Condition:
        return _joined(parts[0], parts[1], Op.OR, Op.JUMP_IF_TRUE)

    def both(self, parts: list[Any]) -> Condition:
        return _joined(parts[0], parts[1], Op.AND, Op.JUMP_IF_FALSE)

    def equal(self, parts: list[Any]) -> Condition:
        left, right = parts
        for part in parts:
            if part.kind is OperandKind.NULL:
                _refuse(part.position, "a value that can be compared", "NULL")
        if left.kind is OperandKind.BOOLEAN and right.kind in _CONSTANTS - {OperandKind.BOOLEAN}:
            _refuse(right.position, "TRUE or FALSE", "another constant")
        return _binary(left, right, Op.EQUAL)

    def not_equal(self, parts: list[Any]) -> Condition:
        return _not(self.equal(parts))

    def is_null(self, parts: list[Any]) -> Condition:
        return _binary(parts[0], Condition(OperandKind.NULL, [(Op.NULL, None, False)], 0), Op.EQUAL)

    def is_not_null(self, parts: list[Any]) -> Condition:
        return _not(self.is_null(parts))

    def greater(self, parts: list[Any]) -> Condition:
        return _ordered(parts[0], parts[1], Op.GREATER)

    def greater_equal(self, parts: list[Any]) -> Condition:
        return _ordered(parts[0], parts[1], Op.GREATER_EQUAL)

    def less(self, parts: list[Any]) -> Condition:
        return _ordered(parts[0], parts[1], Op.LESS)

    def less_equal(self, parts: list[Any]) -> Condition:
        return _ordered(parts[0], parts[1], Op.LESS_EQUAL)

    def between(self, parts: list[Any]) -> Condition:
        value, again, low, high = _limits(parts)
        if low.kind is OperandKind.NUMBER and high.kind is OperandKind.NUMBER and high.value < low.value:
            _refuse(high.position, f"an upper limit of at least {low.value}", str(high.value))
        return _joined(
            _ordered(value, low, Op.GREATER_EQUAL), _ordered(again, high, Op.LESS_EQUAL), Op.AND, Op.JUMP_IF_FALSE
        )

    def not_between(self, parts: list[Any]) -> Condition:
        value, again, low, high = _limits(parts)
        return _joined(_ordered(value, low, Op.LESS), _ordered(again, high, Op.GREATER), Op.OR, Op.JUMP_IF_TRUE)

    def is_in(self, parts: list[Any], negated: bool = False) -> Condition:
        if parts[0].kind is not OperandKind.PROPERTY:
            _refuse(parts[0].position, "a property before IN", "something else")
        return _extended(parts[0], Op.IN, tuple(map(_unquoted, parts[1:])), negated)

    def is_not_in(self, parts: list[Any]) -> Condition:
        return self.is_in(parts, True)

    def contains(self, parts: list[Any]) -> Condition:
        return _extended(parts[0], Op.CONTAINS, _unquoted(parts[1]), False)

    def not_contains(self, parts: list[Any]) -> Condition:
        return _extended(parts[0], Op.CONTAINS, _unquoted(parts[1]), True)

    def starts_with(self, parts: list[Any]) -> Condition:
        return _extended(parts[0], Op.STARTS_WITH, _unquoted(parts[1]), False)

    def not_starts_with(self, parts: list[Any]) -> Condition:
        return _extended(parts[0], Op.STARTS_WITH, _unquoted(parts[1]), True)

    def ends_with(self, parts: list[Any]) -> Condition:
        return _extended(parts[0], Op.ENDS_WITH, _unquoted(parts[1]), False)

    def not_ends_with(self, parts: list[Any]) -> Condition:
        return _extended(parts[0], Op.ENDS_WITH, _unquoted(parts[1]), True)


_PARSER = Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Compiler())
"""Built when the module is imported. This takes 60 ms, so a broker imports the module in a thread."""


def _unquoted(token: Token) -> str:
    """The text of a literal; two quotes in it stand for one."""
    return token[1:-1].replace("''", "'")


def _as_condition(part: Condition) -> Condition:
    """Returns ``part`` as a condition. A bare property is accepted, but never true, because properties are strings."""
    if part.kind in _BOOLEANS:
        return part
    if part.kind is not OperandKind.PROPERTY:
        _refuse(part.position, "a condition", "a value")
    return _extended(part, Op.CAST, None, False)


def _extended(part: Condition, op: Op, value: str | tuple[str, ...] | None, negated: bool) -> Condition:
    part.code.append((op, value, negated))
    part.kind = OperandKind.CONDITION
    return part


def _not(part: Condition) -> Condition:
    return _extended(part, Op.NOT, None, False)


def _deeper(part: Condition) -> Condition:
    part.depth += 1
    if part.depth > DEPTH_MAX:
        _refuse(part.position, f"at most {DEPTH_MAX} nested parentheses, signs and NOTs", "more")
    return part


def _binary(left: Condition, right: Condition, *ops: Op) -> Condition:
    """The instructions of both sides, followed by ``ops``."""
    left.height = max(left.height, 1 + right.height)
    left.depth = max(left.depth, right.depth)
    left.code += right.code
    left.code += [(op, None, False) for op in ops]
    left.kind = OperandKind.CONDITION
    if len(left.code) > INSTRUCTIONS_MAX:
        _refuse(left.position, "a simpler expression", f"{len(left.code)} instructions")
    return left


def _joined(left: Condition, right: Condition, op: Op, jump: Op) -> Condition:
    """``AND`` or ``OR``: the right side is skipped if the left one decides."""
    left, right = _as_condition(left), _as_condition(right)
    left.code.append((jump, len(right.code) + 2, False))
    return _binary(left, right, op)


def _ordered(left: Condition, right: Condition, op: Op) -> Condition:
    for part in (left, right):
        if part.kind not in (OperandKind.NUMBER, OperandKind.PROPERTY, OperandKind.NEGATED):
            _refuse(part.position, "a property or number to compare", "something else")
    return _binary(left, right, op)


def _limits(parts: list[Condition]) -> tuple[Condition, Condition, Condition, Condition]:
    """The value of a BETWEEN, a copy of it for the second comparison, and the two limits."""
    value, low, high = parts
    again = Condition(value.kind, list(value.code), value.position, value.value, value.height, value.depth)
    return value, again, low, high
