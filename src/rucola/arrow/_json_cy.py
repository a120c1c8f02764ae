# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel that finds the JSON bodies which certainly fit their types; ``json_scan.py`` judges all others.

The rules are those of ``json_scan``. For names with escapes, long numbers, the 29th of February and other things that
are rare, the kernel is unsure; it is never wrong. ``json_columns`` describes the program, which is trusted here. Each
position is checked against the body's end before it is read.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.rucola.common.kernel_bytes import *
else:
    from rucola.common.kernel_bytes import *

# json_columns.Outcome
UNSURE = cython.declare(cython.uchar, 0)
FITS = cython.declare(cython.uchar, 1)
HAS_TIMES = cython.declare(cython.uchar, 2)

# json_columns.CODES
ANY = cython.declare(cython.longlong, 0)
STRING = cython.declare(cython.longlong, 1)
BOOLEAN = cython.declare(cython.longlong, 2)
WHOLE = cython.declare(cython.longlong, 3)
REAL = cython.declare(cython.longlong, 4)
DECIMAL = cython.declare(cython.longlong, 5)
DATE = cython.declare(cython.longlong, 6)
TIMESTAMP = cython.declare(cython.longlong, 7)
LOCAL_TIMESTAMP = cython.declare(cython.longlong, 8)
BINARY = cython.declare(cython.longlong, 9)
ARRAY = cython.declare(cython.longlong, 10)
MAP = cython.declare(cython.longlong, 11)
OBJECT = cython.declare(cython.longlong, 12)

# What a node of the program has, and a field.
KIND = cython.declare(cython.Py_ssize_t, 0)
LEAST = cython.declare(cython.Py_ssize_t, 1)
MOST = cython.declare(cython.Py_ssize_t, 2)
ITEM = cython.declare(cython.Py_ssize_t, 3)
FIRST_FIELD = cython.declare(cython.Py_ssize_t, 4)
FIELD_COUNT = cython.declare(cython.Py_ssize_t, 5)
FIELD_WIDTH = cython.declare(cython.Py_ssize_t, 3)

# Names seen in a body are kept in slots of three numbers: the number of the object, position and length of the name.
# Numbers of objects only grow, so a slot with a number from an earlier body is free.
SLOTS = cython.declare(cython.Py_ssize_t, 4096)
SLOT_WIDTH = cython.declare(cython.Py_ssize_t, 3)
PROBES_MAX = cython.declare(cython.Py_ssize_t, 32)
NAMES_MAX = cython.declare(cython.Py_ssize_t, 2048)
TIME_WIDTH = cython.declare(cython.Py_ssize_t, 3)

DEPTH_MAX = cython.declare(cython.Py_ssize_t, 200)
NUMBER_BYTES_MAX = cython.declare(cython.Py_ssize_t, 1000)
NAME_BYTES_MAX = cython.declare(cython.Py_ssize_t, 50_000)
EXACT_DIGITS = cython.declare(cython.Py_ssize_t, 18)
SAFE_DIGITS = cython.declare(cython.Py_ssize_t, 30)
FNV_PRIME = cython.declare(cython.ulonglong, 1099511628211)
FNV_START = cython.declare(cython.ulonglong, 14695981039346656037)
LOW_64 = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


@cython.cclass
class Scan:
    """Scans bodies for one program; not for several threads at once.

    Args:
        program: nodes and fields; the object of the whole body is the node at ``root``.
        names: the names of the fields.
        root: position of the first node.
        slots: room for names, ``slot_numbers()`` zeros.
        takes_times: whether whole numbers may stand in fields of type timestamp.
    """

    _program: cython.longlong[::1]
    _names: cython.const[cython.uchar][::1]
    _source: cython.const[cython.uchar][::1]
    _slots: cython.longlong[::1]
    _times: cython.longlong[::1]
    _root: cython.Py_ssize_t
    _end: cython.Py_ssize_t
    _row: cython.Py_ssize_t
    _time_count: cython.Py_ssize_t
    _name_count: cython.Py_ssize_t
    _objects: cython.longlong
    _objects_before: cython.longlong
    _takes_times: cython.bint
    _escaped: cython.bint

    def __init__(
        self,
        program: cython.longlong[::1],
        names: cython.const[cython.uchar][::1],
        root: cython.Py_ssize_t,
        slots: cython.longlong[::1],
        takes_times: cython.bint,
    ) -> None:
        if len(slots) < SLOTS * SLOT_WIDTH:
            raise ValueError("too few slots")
        self._program = program
        self._names = names
        self._root = root
        self._slots = slots
        self._takes_times = takes_times
        self._objects = 0

    def check(
        self,
        source: cython.const[cython.uchar][::1],
        offsets: cython.const[cython.int][::1],
        rows: cython.Py_ssize_t,
        outcomes: cython.uchar[::1],
        times: cython.longlong[::1],
    ) -> int:
        """Checks the bodies between the ``rows + 1`` offsets.

        ``outcomes`` gets the outcome of each body, ``times`` row, start and end of each whole number that is a time.

        Returns:
            The number of times.

        Raises:
            ValueError: a body lies outside ``source``, or an array is too short.
        """
        if rows < 0 or len(offsets) <= rows or len(outcomes) < rows:
            raise ValueError("the array of offsets or of outcomes is too short for the rows")
        self._source = source
        self._times = times
        self._time_count = 0
        before: cython.Py_ssize_t
        start: cython.Py_ssize_t
        i: cython.Py_ssize_t
        for i in range(rows):
            start = offsets[i]
            self._end = offsets[i + 1]
            if not 0 <= start <= self._end <= len(source):
                raise ValueError(f"body {i} lies outside the buffer")
            self._row = i
            self._name_count = 0
            self._objects_before = self._objects
            before = self._time_count
            if not self._body_fits(start):
                self._time_count = before
                outcomes[i] = UNSURE
            else:
                outcomes[i] = FITS if self._time_count == before else HAS_TIMES
        return self._time_count

    @cython.cfunc
    @cython.exceptval(check=False)
    def _body_fits(self, start: cython.Py_ssize_t) -> cython.bint:
        at: cython.Py_ssize_t = self._space(start)
        if at >= self._end or self._source[at] != 123:  # {
            return False
        at = self._object(at, self._root, 1)
        return at >= 0 and self._space(at) == self._end

    @cython.cfunc
    @cython.exceptval(check=False)
    def _value(self, at: cython.Py_ssize_t, node: cython.Py_ssize_t, depth: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The position after a value that fits ``node``, or -1."""
        if at >= self._end:
            return -1
        first: cython.uchar = self._source[at]
        kind: cython.longlong = self._program[node + KIND]
        takes_all: cython.bint = kind in (ANY, STRING)
        end: cython.Py_ssize_t
        if first == 34:  # "
            end = self._text(at)
            if end < 0 or takes_all:
                return end
            return end if not self._escaped and self._text_fits(node, at + 1, end - 1) else -1
        if first == 123:  # {
            fits: cython.bint = takes_all or kind in (OBJECT, MAP)
            return self._object(at, node, depth + 1) if fits and depth < DEPTH_MAX else -1
        if first == 91:  # [
            return self._array(at, node, depth + 1) if (takes_all or kind == ARRAY) and depth < DEPTH_MAX else -1
        if first == 110:  # n
            return self._word(at, b"null")
        if first in {116, 102}:  # t, f
            if not takes_all and kind != BOOLEAN:
                return -1
            return self._word(at, b"true" if first == 116 else b"false")
        return self._number(at, node)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _object(self, at: cython.Py_ssize_t, node: cython.Py_ssize_t, depth: cython.Py_ssize_t) -> cython.Py_ssize_t:
        kind: cython.longlong = self._program[node + KIND]
        first: cython.Py_ssize_t = self._program[node + FIRST_FIELD]
        count: cython.Py_ssize_t = self._program[node + FIELD_COUNT] if kind == OBJECT else 0
        others: cython.Py_ssize_t = self._program[node + ITEM] if kind == MAP else 0
        guess: cython.Py_ssize_t = 0
        found: cython.Py_ssize_t
        end: cython.Py_ssize_t
        self._objects += 1
        number: cython.longlong = self._objects
        at = self._space(at + 1)
        if at < self._end and self._source[at] == 125:  # }
            return at + 1
        while at < self._end and self._source[at] == 34:
            end = self._text(at)
            if (
                end < 0
                or self._escaped
                or end - at > NAME_BYTES_MAX
                or not self._note_name(at + 1, end - at - 2, number)
            ):
                return -1
            found = self._field(first, count, guess, at + 1, end - at - 2) if count else -1
            guess = guess if found < 0 else found + 1
            at = self._space(end)
            if at >= self._end or self._source[at] != 58:  # :
                return -1
            at = self._space(at + 1)
            at = self._value(at, others if found < 0 else self._program[first + found * FIELD_WIDTH + 2], depth)
            if at < 0:
                return -1
            at = self._space(at)
            if at >= self._end:
                return -1
            if self._source[at] == 125:
                return at + 1
            if self._source[at] != 44:  # ,
                return -1
            at = self._space(at + 1)
        return -1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _array(self, at: cython.Py_ssize_t, node: cython.Py_ssize_t, depth: cython.Py_ssize_t) -> cython.Py_ssize_t:
        item: cython.Py_ssize_t = self._program[node + ITEM] if self._program[node + KIND] == ARRAY else 0
        at = self._space(at + 1)
        if at < self._end and self._source[at] == 93:  # ]
            return at + 1
        while True:
            at = self._value(at, item, depth)
            if at < 0:
                return -1
            at = self._space(at)
            if at >= self._end:
                return -1
            if self._source[at] == 93:
                return at + 1
            if self._source[at] != 44:
                return -1
            at = self._space(at + 1)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _number(self, at: cython.Py_ssize_t, node: cython.Py_ssize_t) -> cython.Py_ssize_t:
        kind: cython.longlong = self._program[node + KIND]
        start: cython.Py_ssize_t = at
        minus: cython.bint = self._source[at] == 45
        at += minus
        first: cython.Py_ssize_t = at
        value: cython.longlong = 0
        while at < self._end and 48 <= self._source[at] <= 57:
            if at - first < EXACT_DIGITS:
                value = value * 10 + self._source[at] - 48
            at += 1
        whole: cython.Py_ssize_t = at - first
        if whole == 0 or (whole > 1 and self._source[first] == 48):
            return -1
        fraction: cython.Py_ssize_t = 0
        if at < self._end and self._source[at] == 46:  # .
            first = at + 1
            at = self._digits(first)
            fraction = at - first
            if fraction == 0:
                return -1
        exponent: cython.Py_ssize_t = 0
        if at < self._end and (self._source[at] == 101 or self._source[at] == 69):  # e, E
            at += 1
            if at < self._end and (self._source[at] == 43 or self._source[at] == 45):
                at += 1
            first = at
            at = self._digits(first)
            exponent = at - first
            if exponent == 0:
                return -1
        if at - start > NUMBER_BYTES_MAX:
            return -1
        if kind in (ANY, STRING):
            return at
        if kind == REAL:
            return at if whole + fraction <= SAFE_DIGITS and exponent <= self._program[node + MOST] else -1
        if exponent:
            return -1
        if kind == DECIMAL:
            whole -= value == 0 and whole == 1
            return at if whole <= self._program[node + LEAST] and fraction <= self._program[node + MOST] else -1
        if minus:
            value = -value
        if fraction or whole > EXACT_DIGITS:
            return -1
        if not self._program[node + LEAST] <= value <= self._program[node + MOST]:
            return -1
        if kind == WHOLE:
            return at
        if kind == TIMESTAMP and self._takes_times and (self._time_count + 1) * TIME_WIDTH <= len(self._times):
            self._times[self._time_count * TIME_WIDTH] = self._row
            self._times[self._time_count * TIME_WIDTH + 1] = start
            self._times[self._time_count * TIME_WIDTH + 2] = at
            self._time_count += 1
            return at
        return -1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _text(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The position after a text, or -1; ``_escaped`` says whether it has escapes."""
        self._escaped = False
        byte: cython.uchar
        size: cython.Py_ssize_t
        at += 1
        while at < self._end:
            byte = self._source[at]
            if byte == 34:
                return at + 1
            if byte < 32:
                return -1
            size = 1
            if byte == 92:  # backslash
                self._escaped = True
                size = self._escape(at + 1)
            elif byte >= 128:
                size = self._character(at)
            if size == 0:
                return -1
            at += size
        return -1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _escape(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The length of the escape whose backslash is before ``at``; 0 for half of a pair and for what is none."""
        if at >= self._end:
            return 0
        byte: cython.uchar = self._source[at]
        if byte == 117:  # u
            if not self._are_hex(at + 1):
                return 0
            return 6 if not self._is_half(at) else 12 if self._is_pair(at) else 0
        if byte in {34, 92, 47, 98, 102, 110}:
            return 2
        return 2 if byte in {114, 116} else 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _are_hex(self, at: cython.Py_ssize_t) -> cython.bint:
        if at + 4 > self._end:
            return False
        byte: cython.uchar
        i: cython.Py_ssize_t
        for i in range(at, at + 4):
            byte = self._source[i]
            if not (48 <= byte <= 57 or 65 <= byte <= 70 or 97 <= byte <= 102):
                return False
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_half(self, at: cython.Py_ssize_t) -> cython.bint:
        """Whether the four digits after the u at ``at`` are D800 to DFFF."""
        return (self._source[at + 1] | 32) == 100 and self._source[at + 2] >= 56

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_pair(self, at: cython.Py_ssize_t) -> cython.bint:
        """Whether the half at ``at`` is the first (D8 to DB), and a second one (DC to DF) follows."""
        if (self._source[at + 2] | 32) > 98 or not self._are_hex(at + 7):
            return False
        if self._source[at + 5] != 92 or self._source[at + 6] != 117:
            return False
        return self._is_half(at + 6) and (self._source[at + 8] | 32) > 98

    @cython.cfunc
    @cython.exceptval(check=False)
    def _character(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The length of a character of UTF-8 that is not ASCII; 0 if it is none."""
        first: cython.uchar = self._source[at]
        size: cython.Py_ssize_t = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        if first < 0xC2 or first > 0xF4 or at + size > self._end:
            return 0
        i: cython.Py_ssize_t
        for i in range(at + 1, at + size):
            if self._source[i] & 0xC0 != 0x80:
                return 0
        second: cython.uchar = self._source[at + 1]
        if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
            return 0
        if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
            return 0
        return size

    @cython.cfunc
    @cython.exceptval(check=False)
    def _text_fits(self, node: cython.Py_ssize_t, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Whether a text without escapes certainly fits ``node``."""
        kind: cython.longlong = self._program[node + KIND]
        if kind == BINARY:
            return self._base64_fits(start, end)
        if kind == DECIMAL and start < end:
            return self._number(start, node) == end
        if kind not in (DATE, TIMESTAMP, LOCAL_TIMESTAMP):
            return False
        if not self._date_fits(start, end):
            return False
        if end - start == 10 or kind == DATE:
            return end - start == 10
        # The form THH:MM:SS, then perhaps a fraction, then perhaps Z.
        if end - start < 19 or (self._source[start + 10] != 84 and self._source[start + 10] != 32):
            return False
        if self._source[start + 13] != 58 or self._source[start + 16] != 58:
            return False
        if not (self._below(start + 11, 24) and self._below(start + 14, 60) and self._below(start + 17, 60)):
            return False
        at: cython.Py_ssize_t = start + 19
        if at < end and self._source[at] == 46:
            at = self._digits(at + 1)
            if not 1 <= at - start - 20 <= 9:
                return False
        return at == end or (kind == TIMESTAMP and self._zone_fits(at, end))

    @cython.cfunc
    @cython.exceptval(check=False)
    def _zone_fits(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Whether Z or the form +HH:MM is between ``at`` and ``end``."""
        if end - at == 1:
            return self._source[at] == 90
        if end - at != 6 or (self._source[at] != 43 and self._source[at] != 45) or self._source[at + 3] != 58:
            return False
        return self._below(at + 1, 18) and self._below(at + 4, 60)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _date_fits(self, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Whether a text begins with a date that every year has."""
        if end - start < 10 or self._source[start + 4] != 45 or self._source[start + 7] != 45:
            return False
        if not (self._below(start, 100) and self._below(start + 2, 100) and self._below(start + 8, 32)):
            return False
        if not self._below(start + 5, 13) or (self._pair(start) == 0 and self._pair(start + 2) == 0):
            return False
        month: cython.Py_ssize_t = self._pair(start + 5)
        day: cython.Py_ssize_t = self._pair(start + 8)
        if month == 0 or day == 0:
            return False
        if month == 2:
            return day <= 28
        return day <= 30 or month not in {4, 6, 9, 11}

    @cython.cfunc
    @cython.exceptval(check=False)
    def _base64_fits(self, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        if (end - start) & 3:
            return False
        if end > start and self._source[end - 1] == 61:  # =
            end -= 2 if self._source[end - 2] == 61 else 1
        byte: cython.uchar
        i: cython.Py_ssize_t
        for i in range(start, end):
            byte = self._source[i]
            if not (65 <= byte <= 90 or 97 <= byte <= 122 or 47 <= byte <= 57 or byte == 43):
                return False
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _pair(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return (self._source[at] - 48) * 10 + self._source[at + 1] - 48

    @cython.cfunc
    @cython.exceptval(check=False)
    def _below(self, at: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.bint:
        """Whether two digits are at ``at``, and their number is below ``limit``."""
        if not (48 <= self._source[at] <= 57 and 48 <= self._source[at + 1] <= 57):
            return False
        return self._pair(at) < limit

    @cython.cfunc
    @cython.exceptval(check=False)
    def _digits(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        while at < self._end and 48 <= self._source[at] <= 57:
            at += 1
        return at

    @cython.cfunc
    @cython.exceptval(check=False)
    def _space(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        while at < self._end and (
            self._source[at] == 32 or self._source[at] == 10 or self._source[at] == 13 or self._source[at] == 9
        ):
            at += 1
        return at

    @cython.cfunc
    @cython.exceptval(check=False)
    def _word(self, at: cython.Py_ssize_t, word: bytes) -> cython.Py_ssize_t:
        size: cython.Py_ssize_t = len(word)
        return at + size if at + size <= self._end and starts(self._source, at, word) else -1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _field(
        self,
        first: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        guess: cython.Py_ssize_t,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """The number of the field with a name, or -1. Producers write fields in one order, hence the guess."""
        _i: cython.Py_ssize_t
        number: cython.Py_ssize_t = guess
        place: cython.Py_ssize_t
        for _i in range(count):
            if number >= count:
                number = 0
            place = first + number * FIELD_WIDTH
            if self._program[place + 1] == size and same(self._source, start, self._names, self._program[place], size):
                return number
            number += 1
        return -1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _note_name(self, start: cython.Py_ssize_t, size: cython.Py_ssize_t, number: cython.longlong) -> cython.bint:
        """Notes a name of object ``number``. False if the object has it already, or the kernel cannot say."""
        self._name_count += 1
        if self._name_count > NAMES_MAX:
            return False
        mixed: cython.ulonglong = FNV_START ^ number
        i: cython.Py_ssize_t
        _i: cython.Py_ssize_t
        for i in range(start, start + size):
            mixed = ((mixed ^ self._source[i]) * FNV_PRIME) & LOW_64
        slot: cython.Py_ssize_t = (mixed ^ (mixed >> 32)) & (SLOTS - 1)
        place: cython.Py_ssize_t
        for _i in range(PROBES_MAX):
            place = slot * SLOT_WIDTH
            if self._slots[place] <= self._objects_before:
                self._slots[place] = number
                self._slots[place + 1] = start
                self._slots[place + 2] = size
                return True
            if self._slots[place] == number and self._slots[place + 2] == size:
                if same(self._source, start, self._source, self._slots[place + 1], size):
                    return False
            slot = (slot + 1) & (SLOTS - 1)
        return False


def slot_numbers() -> int:
    """How many numbers the slots have."""
    return SLOTS * SLOT_WIDTH
