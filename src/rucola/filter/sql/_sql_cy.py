# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel that evaluates a compiled SQL92 expression over the property texts of messages.

``program.py`` describes the program, an ``array('q')``. Its jumps, positions and depths come from the compiler and are
trusted here; everything from messages is checked against its bounds before it is read. The stack has three integers for
each value: the type, then either the integer or the position and length of a string. A string's position refers to the
message's bytes or, from ``POOL`` on, to the pool of literals. Doubles are in a separate array.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

from rucola.filter.sql.numbers import parse_double, parse_integer

if cython.compiled:
    from cython.cimports.rucola.common.kernel_bytes import *
else:
    from rucola.common.kernel_bytes import *

# program.Op
OP_PROPERTY = cython.declare(cython.int, 0)
OP_INT = cython.declare(cython.int, 1)
OP_LONG = cython.declare(cython.int, 2)
OP_DOUBLE = cython.declare(cython.int, 3)
OP_STRING = cython.declare(cython.int, 4)
OP_BOOLEAN = cython.declare(cython.int, 5)
OP_NULL = cython.declare(cython.int, 6)
OP_NEGATE = cython.declare(cython.int, 7)
OP_NOT = cython.declare(cython.int, 8)
OP_CAST = cython.declare(cython.int, 9)
OP_EQUAL = cython.declare(cython.int, 10)
OP_GREATER = cython.declare(cython.int, 11)
OP_GREATER_EQUAL = cython.declare(cython.int, 12)
OP_LESS = cython.declare(cython.int, 13)
OP_LESS_EQUAL = cython.declare(cython.int, 14)
OP_JUMP_IF_FALSE = cython.declare(cython.int, 15)
OP_JUMP_IF_TRUE = cython.declare(cython.int, 16)
OP_AND = cython.declare(cython.int, 17)
OP_OR = cython.declare(cython.int, 18)
OP_CONTAINS = cython.declare(cython.int, 19)
OP_STARTS_WITH = cython.declare(cython.int, 20)
OP_ENDS_WITH = cython.declare(cython.int, 21)
OP_IN = cython.declare(cython.int, 22)

# program.Type
TYPE_NULL = cython.declare(cython.int, 0)
TYPE_BOOLEAN = cython.declare(cython.int, 1)
TYPE_INT = cython.declare(cython.int, 2)
TYPE_LONG = cython.declare(cython.int, 3)
TYPE_DOUBLE = cython.declare(cython.int, 4)
TYPE_STRING = cython.declare(cython.int, 5)

# program.Outcome
FALSE = cython.declare(cython.int, 0)
TRUE = cython.declare(cython.int, 1)
NULL = cython.declare(cython.int, 2)
ERROR = cython.declare(cython.int, 3)

# offsets in the program's head
NAME_COUNT = cython.declare(cython.int, 0)
NAMES = cython.declare(cython.int, 1)
CODE = cython.declare(cython.int, 2)
CODE_END = cython.declare(cython.int, 3)
STACK = cython.declare(cython.int, 4)
WIDTH = cython.declare(cython.int, 4)

# A literal above 31 bits is a Python object to Cython; these are C integers.
POOL = cython.declare(cython.longlong, 1 << 40)
INT_MAX = cython.declare(cython.longlong, 2147483647)
EXACT_MAX = cython.declare(cython.longlong, 1 << 53)

SHORT_TEXT = cython.declare(cython.int, 16)
SAME = cython.declare(cython.int, 0)
UNEQUAL = cython.declare(cython.int, -1)
BAD = cython.declare(cython.int, 2)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def match_texts(
    program: cython.longlong[::1],
    pool: cython.const[cython.uchar][::1],
    doubles: cython.double[::1],
    work: cython.longlong[::1],
    work_doubles: cython.double[::1],
    source: cython.const[cython.uchar][::1],
    places: cython.longlong[::1],
    count: cython.Py_ssize_t,
    outcomes: cython.uchar[::1],
) -> int:
    """Evaluates the expression for ``count`` property texts; ``places`` holds the position and length of each.

    Returns:
        The number of TRUE outcomes; ``outcomes`` gets the outcome of each text.

    Raises:
        ValueError: a text lies outside ``source``, or an array is too short.
    """
    if not 0 <= count <= len(outcomes) or 2 * count > len(places):
        raise ValueError("the array of places or of outcomes is too short for the texts")
    found: cython.int = 0
    outcome: cython.int
    start: cython.longlong
    size: cython.longlong
    i: cython.Py_ssize_t
    for i in range(count):
        start = places[2 * i]
        size = places[2 * i + 1]
        if start < 0 or size < 0 or size > len(source) or start > len(source) - size:
            raise ValueError(f"text {i} lies outside the buffer")
        _find_properties(program, pool, work, source, start, start + size)
        outcome = _run(program, pool, doubles, work, work_doubles, source)
        outcomes[i] = outcome
        found += outcome == TRUE
    return found


@cython.cfunc
@cython.exceptval(check=False)
def _find_properties(
    program: cython.longlong[::1],
    pool: cython.const[cython.uchar][::1],
    work: cython.longlong[::1],
    source: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.void:
    """Stores position and length of each property of the program in ``work``; position -1 for a missing one."""
    count: cython.Py_ssize_t = program[NAME_COUNT]
    names: cython.Py_ssize_t = program[NAMES]
    stop: cython.Py_ssize_t
    equals: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for i in range(count):
        work[2 * i] = -1
    while start < end:
        stop = find(source, 2, start, end)
        equals = find(source, 1, start, stop)
        if start < equals < stop - 1:
            for i in range(count):
                if program[names + 2 * i + 1] == equals - start and same(
                    source, start, pool, program[names + 2 * i], equals - start
                ):
                    work[2 * i] = equals + 1
                    work[2 * i + 1] = stop - equals - 1
                    break
        start = stop + 1


@cython.cfunc
@cython.exceptval(check=False)
def _run(
    program: cython.longlong[::1],
    pool: cython.const[cython.uchar][::1],
    doubles: cython.double[::1],
    work: cython.longlong[::1],
    work_doubles: cython.double[::1],
    source: cython.const[cython.uchar][::1],
) -> cython.int:
    """Runs the program; the values of its properties are in ``work``."""
    at: cython.Py_ssize_t = program[CODE]
    end: cython.Py_ssize_t = program[CODE_END]
    base: cython.Py_ssize_t = program[STACK]
    top: cython.Py_ssize_t = -1  # top of the stack, counted in values
    slot: cython.Py_ssize_t
    op: cython.int
    answer: cython.int
    left: cython.int
    right: cython.int
    a: cython.longlong
    while at < end:
        op = program[at]
        a = program[at + 1]
        if op <= OP_NULL:
            top += 1
            slot = base + 3 * top
            if op == OP_PROPERTY:
                if work[2 * a] < 0:
                    work[slot] = TYPE_NULL
                else:
                    work[slot] = TYPE_STRING
                    work[slot + 1] = work[2 * a]
                    work[slot + 2] = work[2 * a + 1]
            elif op in (OP_INT, OP_LONG):
                work[slot] = TYPE_INT if op == OP_INT else TYPE_LONG
                work[slot + 1] = a
            elif op == OP_DOUBLE:
                work[slot] = TYPE_DOUBLE
                work_doubles[top] = doubles[a]
            elif op == OP_STRING:
                work[slot] = TYPE_STRING
                work[slot + 1] = POOL + a
                work[slot + 2] = program[at + 2]
            elif op == OP_BOOLEAN:
                work[slot] = TYPE_BOOLEAN
                work[slot + 1] = a
            else:
                work[slot] = TYPE_NULL
            at += WIDTH
            continue
        slot = base + 3 * top
        if op <= OP_CAST:
            if op == OP_NEGATE:
                _negate(work, work_doubles, slot, top)
            elif work[slot] == TYPE_BOOLEAN:
                if op == OP_NOT:
                    work[slot + 1] = 1 - work[slot + 1]
            elif op == OP_CAST and work[slot] != TYPE_NULL:
                work[slot] = TYPE_BOOLEAN
                work[slot + 1] = 0
        elif op <= OP_LESS_EQUAL:
            top -= 1
            answer = _compare(pool, work, work_doubles, source, slot - 3, top, op)
            if answer == ERROR:
                return ERROR
            _put(work, slot - 3, answer)
        elif op == OP_JUMP_IF_FALSE:
            if work[slot] == TYPE_BOOLEAN and work[slot + 1] == 0:
                at += a
                continue
        elif op == OP_JUMP_IF_TRUE:
            if work[slot] == TYPE_BOOLEAN and work[slot + 1] == 1:
                at += a
                continue
        elif op <= OP_OR:
            top -= 1
            left = NULL if work[slot - 3] == TYPE_NULL else cython.cast(cython.int, work[slot - 2])
            right = NULL if work[slot] == TYPE_NULL else cython.cast(cython.int, work[slot + 1])
            answer = FALSE if op == OP_AND else TRUE  # a value that decides the result alone
            if answer not in (left, right):
                answer = NULL if NULL in (left, right) else 1 - answer
            _put(work, slot - 3, answer)
        elif op == OP_IN:
            if work[slot] != TYPE_NULL:
                answer = _is_member(program, pool, source, work, slot, a, program[at + 2])
                _put(work, slot, answer ^ cython.cast(cython.int, program[at + 3]))
        else:
            if work[slot] != TYPE_STRING or program[at + 2] == 0:
                answer = FALSE
            else:
                answer = _has_text(pool, source, work, slot, op, a, program[at + 2]) ^ cython.cast(
                    cython.int, program[at + 3]
                )
            _put(work, slot, answer)
        at += WIDTH
    if work[base] == TYPE_NULL:
        return NULL
    return cython.cast(cython.int, work[base + 1])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(work: cython.longlong[::1], slot: cython.Py_ssize_t, answer: cython.int) -> cython.void:
    work[slot] = TYPE_NULL if answer == NULL else TYPE_BOOLEAN
    work[slot + 1] = answer


@cython.cfunc
@cython.exceptval(check=False)
def _negate(
    work: cython.longlong[::1], work_doubles: cython.double[::1], slot: cython.Py_ssize_t, top: cython.Py_ssize_t
) -> cython.void:
    """Negates a number; everything else becomes null. Cannot overflow, because no literal is the smallest integer."""
    if work[slot] == TYPE_INT or work[slot] == TYPE_LONG:
        work[slot + 1] = -work[slot + 1]
    elif work[slot] == TYPE_DOUBLE:
        work_doubles[top] = -work_doubles[top]
    else:
        work[slot] = TYPE_NULL


@cython.cfunc
@cython.exceptval(check=False)
def _compare(
    pool: cython.const[cython.uchar][::1],
    work: cython.longlong[::1],
    work_doubles: cython.double[::1],
    source: cython.const[cython.uchar][::1],
    slot: cython.Py_ssize_t,
    top: cython.Py_ssize_t,
    op: cython.int,
) -> cython.int:
    """The outcome of ``op`` for the values at ``slot`` and ``slot + 3`` (``ComparisonExpression``)."""
    left: cython.int = work[slot]
    right: cython.int = work[slot + 3]
    order: cython.int
    if op == OP_EQUAL:
        if left == TYPE_NULL:
            return TRUE if right == TYPE_NULL else NULL
        if right == TYPE_NULL:
            return FALSE
        if left == TYPE_STRING and right == TYPE_STRING:
            return _same_strings(pool, source, work, slot)
    elif TYPE_NULL in (left, right):
        return NULL
    order = _order(pool, work, work_doubles, source, slot, top)
    if order == BAD:
        return ERROR
    if op == OP_EQUAL:
        return TRUE if order == SAME else FALSE
    if op == OP_GREATER:
        return TRUE if order > 0 else FALSE
    if op == OP_GREATER_EQUAL:
        return TRUE if order >= 0 else FALSE
    if op == OP_LESS:
        return TRUE if order < 0 else FALSE
    return TRUE if order <= 0 else FALSE


@cython.cfunc
@cython.exceptval(check=False)
def _order(
    pool: cython.const[cython.uchar][::1],
    work: cython.longlong[::1],
    work_doubles: cython.double[::1],
    source: cython.const[cython.uchar][::1],
    slot: cython.Py_ssize_t,
    top: cython.Py_ssize_t,
) -> cython.int:
    """-1, 0 or 1 if the left value is smaller, equal or greater; BAD if a string cannot be converted.

    A string is converted to the type of the other side; only a string to the right of a boolean is not. Two strings are
    compared as doubles. Incompatible types count as "smaller".
    """
    left: cython.int = work[slot]
    right: cython.int = work[slot + 3]
    if left == TYPE_STRING and right == TYPE_STRING:
        if not _to_number(pool, work, work_doubles, source, slot, top, TYPE_DOUBLE):
            return BAD
        if not _to_number(pool, work, work_doubles, source, slot + 3, top + 1, TYPE_DOUBLE):
            return BAD
        left = right = TYPE_DOUBLE
    elif left == TYPE_STRING:
        if right == TYPE_BOOLEAN:
            work[slot + 1] = _is_true(pool, source, work, slot)
        elif not _to_number(pool, work, work_doubles, source, slot, top, right):
            return BAD
        left = right
    elif right == TYPE_STRING:
        if left == TYPE_BOOLEAN or not _to_number(pool, work, work_doubles, source, slot + 3, top + 1, left):
            return BAD
        right = left
    if (left == TYPE_BOOLEAN) != (right == TYPE_BOOLEAN):
        return UNEQUAL
    if TYPE_DOUBLE in (left, right):
        x: cython.double = work_doubles[top] if left == TYPE_DOUBLE else cython.cast(cython.double, work[slot + 1])
        y: cython.double = work_doubles[top + 1] if right == TYPE_DOUBLE else cython.cast(cython.double, work[slot + 4])
        return _order_doubles(x, y)
    return (work[slot + 1] > work[slot + 4]) - (work[slot + 1] < work[slot + 4])


@cython.cfunc
@cython.exceptval(check=False)
def _order_doubles(x: cython.double, y: cython.double) -> cython.int:
    """``Double.compare``: NaN equals itself and is greater than all other values; -0.0 is less than 0.0."""
    if x < y:
        return -1
    if x > y:
        return 1
    if x == y:
        if x != 0.0:
            return 0
        return _sign_of_zero(x) - _sign_of_zero(y)
    return _is_nan(x) - _is_nan(y)


@cython.cfunc
@cython.exceptval(check=False)
def _is_nan(x: cython.double) -> cython.int:
    return 0 if x >= 0.0 or x < 0.0 else 1


@cython.cfunc
@cython.exceptval(check=False)
def _sign_of_zero(x: cython.double) -> cython.int:
    """0 for -0.0, 1 for 0.0."""
    if cython.compiled:
        return 1 if 1.0 / x > 0.0 else 0
    return 0 if str(x)[0] == "-" else 1


@cython.cfunc
@cython.exceptval(check=False)
def _to_number(
    pool: cython.const[cython.uchar][::1],
    work: cython.longlong[::1],
    work_doubles: cython.double[::1],
    source: cython.const[cython.uchar][::1],
    slot: cython.Py_ssize_t,
    top: cython.Py_ssize_t,
    kind: cython.int,
) -> cython.bint:
    """Converts the string at ``slot`` to a number of type ``kind``; returns False if it is not such a number."""
    if work[slot + 1] >= POOL:
        return _parse(pool, work[slot + 1] - POOL, work, work_doubles, slot, top, kind)
    return _parse(source, work[slot + 1], work, work_doubles, slot, top, kind)


@cython.cfunc
@cython.exceptval(check=False)
def _parse(
    data: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    work: cython.longlong[::1],
    work_doubles: cython.double[::1],
    slot: cython.Py_ssize_t,
    top: cython.Py_ssize_t,
    kind: cython.int,
) -> cython.bint:
    """Handles plain numbers of up to 15 digits; ``numbers`` handles everything else that Java accepts."""
    end: cython.Py_ssize_t = start + work[slot + 2]
    at: cython.Py_ssize_t = start
    value: cython.longlong = 0
    digits: cython.int = 0
    point: cython.Py_ssize_t = -1
    negative: cython.bint = False
    scale: cython.double = 1.0
    if at < end and (data[at] == 45 or data[at] == 43):
        negative = data[at] == 45
        at += 1
    while at < end and digits <= 15:
        if 48 <= data[at] <= 57:
            value = value * 10 + (data[at] - 48)
            digits += 1
        elif data[at] == 46 and point < 0 and kind == TYPE_DOUBLE:
            point = at
        else:
            break
        at += 1
    if at < end or digits == 0 or digits > 15:
        return _parse_slowly(data, start, end, work, work_doubles, slot, top, kind)
    if kind == TYPE_DOUBLE:
        if point >= 0:
            for _ in range(end - point - 1):
                scale *= 10.0
        work_doubles[top] = cython.cast(cython.double, value) / scale
        if negative:
            work_doubles[top] = -work_doubles[top]
        return True
    if negative:
        value = -value
    if kind == TYPE_INT and (value > INT_MAX or value < -INT_MAX - 1):
        return False
    work[slot + 1] = value
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _parse_slowly(
    data: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    work: cython.longlong[::1],
    work_doubles: cython.double[::1],
    slot: cython.Py_ssize_t,
    top: cython.Py_ssize_t,
    kind: cython.int,
) -> cython.bint:
    text = bytes(data[start:end])
    if kind == TYPE_DOUBLE:
        number = parse_double(text)
        if number is None:
            return False
        work_doubles[top] = number
        return True
    integer = parse_integer(text, 31 if kind == TYPE_INT else 63)
    if integer is None:
        return False
    work[slot + 1] = integer
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _is_true(
    pool: cython.const[cython.uchar][::1],
    source: cython.const[cython.uchar][::1],
    work: cython.longlong[::1],
    slot: cython.Py_ssize_t,
) -> cython.int:
    """``Boolean.valueOf``: whether the string at ``slot`` is "true", ignoring case."""
    if work[slot + 2] != 4:
        return 0
    if work[slot + 1] >= POOL:
        return _spells_true(pool, work[slot + 1] - POOL)
    return _spells_true(source, work[slot + 1])


@cython.cfunc
@cython.exceptval(check=False)
def _spells_true(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.int:
    return (
        (data[at] | 32) == 116
        and (data[at + 1] | 32) == 114
        and (data[at + 2] | 32) == 117
        and (data[at + 3] | 32) == 101
    )


@cython.cfunc
@cython.exceptval(check=False)
def _same_strings(
    pool: cython.const[cython.uchar][::1],
    source: cython.const[cython.uchar][::1],
    work: cython.longlong[::1],
    slot: cython.Py_ssize_t,
) -> cython.int:
    """Whether the strings at ``slot`` and ``slot + 3`` are equal."""
    size: cython.Py_ssize_t = work[slot + 2]
    left: cython.longlong = work[slot + 1]
    right: cython.longlong = work[slot + 4]
    if size != work[slot + 5]:
        return FALSE
    if left >= POOL:
        if right >= POOL:
            return same(pool, left - POOL, pool, right - POOL, size)
        return same(source, right, pool, left - POOL, size)
    if right >= POOL:
        return same(source, left, pool, right - POOL, size)
    return same(source, left, source, right, size)


@cython.cfunc
@cython.exceptval(check=False)
def _is_member(
    program: cython.longlong[::1],
    pool: cython.const[cython.uchar][::1],
    source: cython.const[cython.uchar][::1],
    work: cython.longlong[::1],
    slot: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.int:
    """Whether the property at ``slot`` equals one of the literals, whose positions and lengths begin at ``first``."""
    at: cython.Py_ssize_t = work[slot + 1]
    size: cython.Py_ssize_t = work[slot + 2]
    i: cython.Py_ssize_t
    for i in range(first, first + 2 * count, 2):
        if program[i + 1] == size and same(source, at, pool, program[i], size):
            return 1
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _has_text(
    pool: cython.const[cython.uchar][::1],
    source: cython.const[cython.uchar][::1],
    work: cython.longlong[::1],
    slot: cython.Py_ssize_t,
    op: cython.int,
    text: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Whether the string at ``slot`` contains, starts with or ends with the literal at ``text``; ``op`` says which."""
    if work[slot + 1] >= POOL:
        return _has(pool, work[slot + 1] - POOL, work[slot + 2], pool, op, text, size)
    return _has(source, work[slot + 1], work[slot + 2], pool, op, text, size)


@cython.cfunc
@cython.exceptval(check=False)
def _has(
    data: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    pool: cython.const[cython.uchar][::1],
    op: cython.int,
    text: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    last: cython.Py_ssize_t = at + length - size
    if last < at:
        return 0
    if op == OP_CONTAINS and size > SHORT_TEXT:  # bytes.find() takes linear time for any content
        return int(bytes(data[at : at + length]).find(bytes(pool[text : text + size])) >= 0)
    if op == OP_STARTS_WITH:
        return same(data, at, pool, text, size)
    if op == OP_ENDS_WITH:
        return same(data, last, pool, text, size)
    while at <= last:
        at = find(data, pool[text], at, last + 1)
        if at > last:
            return 0
        if same(data, at, pool, text, size):
            return 1
        at += 1
    return 0
