# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel: decodes header blocks (HPACK, RFC 7541) and checks their fields as a server must (RFC 9113 8.2, 8.3).

A ``HeaderDecoder`` has the dynamic table of one connection. The names and values of its entries are in one ring of
bytes; a row of integers says where. The ring is twice as large as the table may become, so that each entry is in one
piece: what follows the newest entry is never in use. The static table stands before the ring, in the same form.

Traits of a name say what it means for a request and whether somebody wants its value. They are found once, when an
entry comes into the table.

The decoder works on raw pointers without bounds checks. It reads up to the end of the block, and writes at most
``text_bytes`` after the start of the text; a longer string is read to its end, but not kept.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

from array import array

from rucola.http2.hpack_tables import HUFFMAN_LENGTHS, STATIC_TABLE

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcmp, memmove
    from cython.cimports.rucola.common.kernel_text import copy, holds
    from cython.cimports.rucola.http2.columns import *
else:
    from rucola.common.kernel_text import copy, holds
    from rucola.http2.columns import *

# What ``decode`` returns: flags, or that the block cannot be decoded.
BLOCK_MALFORMED = cython.declare(cython.int, 1)
BLOCK_TOO_LARGE = cython.declare(cython.int, 2)
BLOCK_UNREADABLE = cython.declare(cython.int, -1)

# What a name means for a request: the low bits of its traits.
ORDINARY = cython.declare(cython.int, 0)
METHOD = cython.declare(cython.int, 1)
SCHEME = cython.declare(cython.int, 2)
PATH = cython.declare(cython.int, 3)
AUTHORITY = cython.declare(cython.int, 4)
OTHER_PSEUDO = cython.declare(cython.int, 5)
CONNECTION_SPECIFIC = cython.declare(cython.int, 6)
TE = cython.declare(cython.int, 7)
CONTENT_LENGTH = cython.declare(cython.int, 8)
_MEANING = cython.declare(cython.int, 15)
# Then the flags of an entry, and from the eighth bit on the number of the wanted name plus one.
_BAD_NAME = cython.declare(cython.int, 16)
_BAD_VALUE = cython.declare(cython.int, 32)
_WANTED_SHIFT = cython.declare(cython.int, 8)

# The rows of entries and known names.
_START = cython.declare(cython.int, 0)
_NAME_LEN = cython.declare(cython.int, 1)
_VALUE_LEN = cython.declare(cython.int, 2)
_TRAITS = cython.declare(cython.int, 3)
_WIDTH = cython.declare(cython.int, 4)

_STATIC = cython.declare(cython.int, 61)
_ENTRY_BYTES = cython.declare(cython.int, 32)
_UPDATES_MAX = cython.declare(cython.int, 2)
_NUMBER_MAX = cython.declare(cython.longlong, 1 << 30)
_EOS = cython.declare(cython.int, 256)
_BITS_MIN = cython.declare(cython.int, 5)
_BITS_MAX = cython.declare(cython.int, 30)
_WAITING = (1 << 56) - 1

_MEANINGS = {
    b":method": 1,
    b":scheme": 2,
    b":path": 3,
    b":authority": 4,
    b"connection": 6,
    b"keep-alive": 6,
    b"proxy-connection": 6,
    b"transfer-encoding": 6,
    b"upgrade": 6,
    b"te": 7,
    b"content-length": 8,
}

# Huffman codes. By the next 12 bits: one or two bytes, how many, and the length of their codes. By the next 8 bits:
# length and byte of a code of at most 8 bits. For longer codes, by their length: the first code that is longer, and the
# first code, both as 30 bits; and where the bytes of this length begin in the list of all bytes, which is in the order
# of the codes.
_PAIRS = cython.declare(cython.uint[4096])
_SHORT_BITS = cython.declare(cython.int[256])
_SHORT_BYTE = cython.declare(cython.int[256])
_LIMIT = cython.declare(cython.longlong[31])
_FIRST = cython.declare(cython.longlong[31])
_OFFSET = cython.declare(cython.int[31])
_BY_CODE = cython.declare(cython.int[257])
_IS_NAME = cython.declare(cython.uchar[256])


def _fill_tables() -> None:
    code: cython.longlong = 0
    bits: cython.int
    byte: cython.int
    place: cython.int = 0
    lengths = list(HUFFMAN_LENGTHS)
    for byte in range(256):
        _SHORT_BITS[byte] = 0
    for bits in range(_BITS_MIN, _BITS_MAX + 1):
        _FIRST[bits] = code << (_BITS_MAX - bits)
        _OFFSET[bits] = place
        for byte in range(257):
            if lengths[byte] == bits:
                _BY_CODE[place] = byte
                place += 1
                if bits <= 8:
                    for rest in range(1 << (8 - bits)):
                        _SHORT_BITS[(code << (8 - bits)) + rest] = bits
                        _SHORT_BYTE[(code << (8 - bits)) + rest] = byte
                code += 1
        _LIMIT[bits] = code << (_BITS_MAX - bits)
        code <<= 1
    for window in range(4096):
        _PAIRS[window] = _pair(window)
    for byte in range(256):
        _IS_NAME[byte] = 0x20 < byte < 0x7F and byte != 0x3A and not 0x41 <= byte <= 0x5A


@cython.cfunc
@cython.exceptval(check=False)
def _pair(window: cython.int) -> cython.uint:
    """Returns what 12 bits begin with: length of the codes, number of bytes << 8, and the bytes << 16 and << 24."""
    bits: cython.int = _SHORT_BITS[window >> 4]
    more: cython.int
    found: cython.uint
    if bits == 0:
        return 0
    found = _SHORT_BYTE[window >> 4] << 16
    more = _SHORT_BITS[((window << bits) >> 4) & 0xFF]
    if more == 0 or bits + more > 12:
        return found | 1 << 8 | bits
    return found | cython.cast(cython.uint, _SHORT_BYTE[((window << bits) >> 4) & 0xFF]) << 24 | 2 << 8 | bits + more


_fill_tables()


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


@cython.cfunc
@cython.exceptval(check=False)
def _same(
    one: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    two: cython.p_const_uchar,
    there: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.bint:
    if cython.compiled:
        return memcmp(one + at, two + there, size) == 0
    return bytes(one[at : at + size]) == bytes(two[there : there + size])


@cython.cfunc
@cython.exceptval(check=False)
def _move(
    target: cython.p_uchar,
    at: cython.Py_ssize_t,
    source: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.void:
    """Like ``copy``; the two may overlap."""
    if cython.compiled:
        memmove(target + at, source + start, size)
    else:
        target[at : at + size] = source[start : start + size]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_space(byte: cython.int) -> cython.bint:
    return byte in (0x20, 0x09)


def huffman_decode(source: cython.const[cython.uchar][::1], out: cython.uchar[::1]) -> int:
    """Decodes a whole string; keeps what fits into ``out``.

    Returns:
        The length of the decoded string; -1 if ``source`` is not the code of one.
    """
    if len(source) == 0:
        return 0
    if cython.compiled:
        target: cython.p_uchar = cython.address(out[0]) if len(out) > 0 else cython.NULL
        return _huffman(cython.address(source[0]), 0, len(source), target, 0, len(out))
    return _huffman(source, 0, len(source), out, 0, len(out))


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _huffman(
    source: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.p_uchar,
    to: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Decodes ``source[at:end]`` into at most ``room`` bytes from ``to`` on; returns the whole length, or -1."""
    # The ``count`` low bits of ``waiting`` are still to be decoded. Ones stand for the bits after the end, as padding
    # is ones.
    waiting: cython.ulonglong = 0
    count: cython.int = 0
    size: cython.Py_ssize_t = 0
    bits: cython.int
    byte: cython.int
    index: cython.int
    window: cython.longlong
    pair: cython.uint
    while True:
        while count <= 48 and at < end:
            waiting = (waiting << 8) | source[at]
            at += 1
            count += 8
        if not cython.compiled:
            waiting &= _WAITING
        while count >= 12:
            pair = _PAIRS[(waiting >> (count - 12)) & 0xFFF]
            if pair == 0 or size + 2 > room:
                break
            out[to + size] = (pair >> 16) & 0xFF
            out[to + size + 1] = pair >> 24
            size += (pair >> 8) & 3
            count -= pair & 0xFF
        if count < 30 and at < end:
            continue
        if count >= 8:
            index = (waiting >> (count - 8)) & 0xFF
        elif count == 0:
            return size
        else:
            index = ((waiting << (8 - count)) | ((1 << (8 - count)) - 1)) & 0xFF
        bits = _SHORT_BITS[index]
        if bits > 0:
            byte = _SHORT_BYTE[index]
        else:
            if count >= 30:
                window = (waiting >> (count - 30)) & 0x3FFFFFFF
            else:
                window = ((waiting << (30 - count)) | ((1 << (30 - count)) - 1)) & 0x3FFFFFFF
            bits = 9
            while window >= _LIMIT[bits]:
                bits += 1
            byte = _BY_CODE[_OFFSET[bits] + ((window - _FIRST[bits]) >> (_BITS_MAX - bits))]
        if bits > count:
            # Only padding may remain: at most 7 bits, all of them ones.
            return size if count < 8 and index == 0xFF else -1
        if byte == _EOS:
            return -1
        count -= bits
        if size < room:
            out[to + size] = byte
        size += 1


@cython.cclass
class WantedNames:
    """The names of fields that a server wants, in a form that all its connections share.

    Args:
        names: the names, in lower case; no name twice.

    Attributes:
        width: number of columns of a row of fields.
    """

    width = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _text: cython.uchar[::1]
    _rows: cython.longlong[::1]
    _count: cython.Py_ssize_t

    def __init__(self, names) -> None:
        places = {name: number for number, name in enumerate(names, 1)}
        rows = array("q")
        text = bytearray()
        for name in {**_MEANINGS, **places}:
            rows.extend((len(text), len(name), 0, _MEANINGS.get(name, 0) | places.get(name, 0) << 8))
            text += name
        self._text, self._rows, self._count = text, rows, len(rows) // 4
        self.width = 4 + 3 * len(places)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _traits(
        self, data: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, kept: cython.bint
    ) -> cython.longlong:
        """Returns the traits of the name of ``size`` bytes in ``data``; if not ``kept``, only that it is ordinary."""
        i: cython.Py_ssize_t
        if size == 0:
            return _BAD_NAME
        if not kept:
            return OTHER_PSEUDO if data[at] == 0x3A else ORDINARY
        if cython.compiled:
            text: cython.p_const_uchar = cython.address(self._text[0])
        else:
            text = self._text
        for i in range(self._count):
            if self._rows[i * _WIDTH + _NAME_LEN] == size and _same(
                text, self._rows[i * _WIDTH + _START], data, at, size
            ):
                return self._rows[i * _WIDTH + _TRAITS]
        if data[at] == 0x3A:
            return OTHER_PSEUDO
        for i in range(size):
            if not _IS_NAME[data[at + i]]:
                return _BAD_NAME
        return ORDINARY


@cython.cclass
class HeaderDecoder:
    """The decoder of one connection.

    Args:
        wanted: the names whose values ``decode`` notes.
        table_bytes: largest size of the dynamic table that our SETTINGS allow.
        list_bytes_max: largest size of the fields of a block.
        text: where values are copied to; at least ``text_bytes``.
        fields: rows of ``wanted.width`` columns.

    Attributes:
        text_bytes: room that ``decode`` needs in ``text``.
    """

    text_bytes = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _wanted: WantedNames
    _text_object: cython.uchar[::1]
    _rows_object: cython.longlong[::1]
    _out_object: cython.uchar[::1]
    _fields_object: cython.longlong[::1]
    _text: cython.p_uchar
    _rows: cython.p_longlong
    _ring: cython.Py_ssize_t  # where the ring begins and ends in the text, and where the next entry goes
    _ring_end: cython.Py_ssize_t
    _next: cython.Py_ssize_t
    _slots: cython.longlong
    _inserted: cython.longlong  # number of entries that were ever put into the table
    _count: cython.longlong
    _size: cython.longlong
    _capacity: cython.longlong
    _limit: cython.longlong
    _list_max: cython.longlong
    _string_max: cython.Py_ssize_t
    # The block that is being decoded: where it is, what it became so far, and the last number or string that was read.
    _source: cython.p_const_uchar
    _out: cython.p_uchar
    _fields: cython.p_longlong
    _top: cython.Py_ssize_t
    _status: cython.int
    _seen: cython.int
    _connect: cython.bint
    _read: cython.longlong

    def __init__(
        self,
        wanted: WantedNames,
        table_bytes: cython.longlong,
        list_bytes_max: cython.longlong,
        text: cython.uchar[::1],
        fields: cython.longlong[::1],
    ) -> None:
        self._wanted = wanted
        room: cython.longlong = max(table_bytes, 4096)  # a peer uses 4,096 bytes until it has our SETTINGS
        self._slots = room // _ENTRY_BYTES
        self._list_max = list_bytes_max
        self._string_max = max(list_bytes_max, room)
        self.text_bytes = list_bytes_max + 2 * self._string_max
        if len(text) < self.text_bytes or len(fields) < wanted.width:
            raise ValueError(f"a text of {len(text)} bytes or {len(fields)} numbers of fields are too few")
        self._out_object = text
        self._fields_object = fields
        static = b"".join(name + value for name, value in STATIC_TABLE)
        self._text_object = bytearray(static) + bytearray(2 * room)
        self._rows_object = array("q", bytes(8 * _WIDTH * (_STATIC + self._slots)))
        if cython.compiled:
            self._text = cython.address(self._text_object[0])
            self._rows = cython.address(self._rows_object[0])
            self._out = cython.address(text[0])
        else:
            self._text = self._text_object
            self._rows = self._rows_object
            self._out = text
        self._ring = self._next = len(static)
        self._ring_end = len(self._text_object)
        self._inserted = self._count = self._size = 0
        self._capacity = 4096
        self._limit = room
        start: cython.Py_ssize_t = 0
        for number, (name, value) in enumerate(STATIC_TABLE):
            self._rows[number * _WIDTH + _START] = start
            self._rows[number * _WIDTH + _NAME_LEN] = len(name)
            self._rows[number * _WIDTH + _VALUE_LEN] = len(value)
            traits: cython.longlong = wanted._traits(self._text, start, len(name), True)
            traits |= self._value_traits(traits, self._text, start + len(name), len(value))
            self._rows[number * _WIDTH + _TRAITS] = traits
            start += len(name) + len(value)

    def set_limit(self, table_bytes: cython.longlong) -> None:
        """Sets the largest size of the table, once the peer has acknowledged the SETTINGS with it."""
        self._limit = min(table_bytes, self._slots * _ENTRY_BYTES)

    def table(self) -> list[tuple[bytes, bytes]]:
        """Returns the entries of the dynamic table, newest first."""
        found = []
        for index in range(_STATIC + 1, _STATIC + 1 + self._count):
            row = self._row(index)
            start = self._rows[row + _START]
            middle = start + self._rows[row + _NAME_LEN]
            end = middle + self._rows[row + _VALUE_LEN]
            found.append((bytes(self._text_object[start:middle]), bytes(self._text_object[middle:end])))
        return found

    def decode(
        self,
        source: bytearray,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        top: cython.Py_ssize_t,
        base: cython.Py_ssize_t,
        trailers: cython.bint,
    ) -> int:
        """Decodes the block ``source[start:end]`` into the row of fields at ``base``; values go to ``text[top:]``.

        Returns:
            BLOCK_UNREADABLE if the block is no HPACK; the connection cannot go on then. Otherwise flags:
            BLOCK_MALFORMED if its fields are not those of a request, or of trailers; BLOCK_TOO_LARGE if they are larger
            than allowed. 0 if all is well.

        Raises:
            ValueError: if the range lies outside ``source``, or there is too little room after ``top`` or ``base``.
        """
        column: cython.Py_ssize_t
        width: cython.Py_ssize_t = self._wanted.width
        if not 0 <= start <= end <= len(source) or top < 0 or len(self._out_object) - top < self.text_bytes:
            raise ValueError(f"range {start}..{end} lies outside the block, or {top} too near to the end of the text")
        if base < 0 or base + width > len(self._fields_object):
            raise ValueError(f"no row of fields at {base}")
        if cython.compiled:
            self._source = cython.cast(cython.p_const_uchar, PyByteArray_AS_STRING(source))
            self._fields = cython.address(self._fields_object[0]) + base
        else:
            self._source, self._fields = source, memoryview(self._fields_object)[base:]
        for column in range(width):
            self._fields[column] = 0
        self._fields[FIELDS_CONTENT_LENGTH] = -1
        for column in range(FIELDS_WANTED + FIELD_LENGTH, width, FIELD_COLUMNS):
            self._fields[column] = -1
        self._top, self._status, self._seen, self._connect = top, 0, 0, False
        if not self._instructions(start, end):
            return BLOCK_UNREADABLE
        if self._seen & ~1 if trailers else not self._is_request():
            self._status |= BLOCK_MALFORMED
        self._fields[FIELDS_TEXT_END] = self._top
        return self._status

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_request(self) -> cython.bint:
        """Whether the pseudo-header fields are complete (RFC 9113 8.3.1, 8.5)."""
        needed: cython.int = (1 << METHOD) | (1 << SCHEME) | (1 << PATH)
        if self._connect:
            return self._seen & (needed | (1 << AUTHORITY)) == (1 << METHOD) | (1 << AUTHORITY)
        return self._seen & needed == needed

    @cython.cfunc
    @cython.exceptval(check=False)
    def _instructions(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Carries out the instructions of a block; false if one is wrong."""
        first: cython.int
        begun: cython.bint = False
        while at < end:
            first = self._source[at]
            if first & 0xE0 == 0x20:
                at = self._number(at, end, 0x1F)
                self._fields[FIELDS_UPDATES] += 1
                if at < 0 or begun or self._fields[FIELDS_UPDATES] > _UPDATES_MAX or self._read > self._limit:
                    return False
                self._capacity = self._read
                self._evict(0)
                continue
            if not begun and self._capacity > self._limit:
                return False  # the peer has acknowledged a smaller table and must say that it uses one
            begun = True
            if first & 0x80:
                at = self._indexed(at, end)
            else:
                at = self._literal(at, end, first & 0x40 != 0)
            if at < 0:
                return False
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _number(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t, mask: cython.int) -> cython.Py_ssize_t:
        """Reads a number into ``_read`` (RFC 7541 5.1); returns the position after it, or -1."""
        shift: cython.int = 0
        byte: cython.longlong
        self._read = self._source[at] & mask
        at += 1
        if self._read < mask:
            return at
        while at < end:
            byte = self._source[at]
            at += 1
            self._read += (byte & 0x7F) << shift
            if byte < 0x80:
                return at if self._read <= _NUMBER_MAX else -1
            shift += 7
            if shift > 28:
                return -1
        return -1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _string(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t, to: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Reads a string to ``_out[to:]`` and its length to ``_read``; returns the position after it, or -1."""
        coded: cython.bint
        stop: cython.Py_ssize_t
        if at >= end:
            return -1
        coded = self._source[at] >= 0x80
        at = self._number(at, end, 0x7F)
        if at < 0 or self._read > end - at:
            return -1
        stop = at + cython.cast(cython.Py_ssize_t, self._read)
        if coded:
            self._read = _huffman(self._source, at, stop, self._out, to, self._string_max)
            return stop if self._read >= 0 else -1
        copy(self._out, to, self._source, at, min(self._read, self._string_max))
        return stop

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _row(self, index: cython.longlong) -> cython.Py_ssize_t:
        """Returns the row of the entry that an index means now; -1 without one."""
        if index <= _STATIC:
            return (index - 1) * _WIDTH
        index -= _STATIC + 1
        if index >= self._count:
            return -1
        return (_STATIC + (self._inserted - 1 - index) % self._slots) * _WIDTH

    @cython.cfunc
    @cython.exceptval(check=False)
    def _indexed(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        row: cython.Py_ssize_t
        entry: cython.longlong
        at = self._number(at, end, 0x7F)
        if at < 0 or self._read == 0:
            return -1
        row = self._row(self._read)
        if row < 0:
            return -1
        entry = self._read
        if entry > _STATIC:
            entry = _STATIC + self._inserted - (entry - _STATIC - 1)
        self._field(
            self._rows[row + _TRAITS],
            self._text,
            self._rows[row + _START] + self._rows[row + _NAME_LEN],
            self._rows[row + _NAME_LEN],
            self._rows[row + _VALUE_LEN],
            entry,
        )
        return at

    @cython.cfunc
    @cython.exceptval(check=False)
    def _literal(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t, added: cython.bint) -> cython.Py_ssize_t:
        row: cython.Py_ssize_t
        name_len: cython.longlong
        traits: cython.longlong
        entry: cython.longlong = -1
        value_at: cython.Py_ssize_t
        at = self._number(at, end, 0x3F if added else 0x0F)
        if at < 0:
            return -1
        if self._read == 0:
            at = self._string(at, end, self._top)
            if at < 0:
                return -1
            name_len = self._read
            traits = self._wanted._traits(self._out, self._top, name_len, name_len <= self._string_max)
        else:
            row = self._row(self._read)
            if row < 0:
                return -1
            name_len = self._rows[row + _NAME_LEN]
            traits = self._rows[row + _TRAITS] & ~_BAD_VALUE
            # The entry may make room for the new one, so its name is copied first.
            copy(self._out, self._top, self._text, self._rows[row + _START], name_len)
        value_at = self._top + cython.cast(cython.Py_ssize_t, min(name_len, self._string_max))
        at = self._string(at, end, value_at)
        if at < 0:
            return -1
        if self._read <= self._string_max:
            traits |= self._value_traits(traits, self._out, value_at, self._read)
        if added:
            entry = self._insert(name_len, value_at, self._read, traits)
        self._field(traits, self._out, value_at, name_len, self._read, entry)
        return at

    @cython.cfunc
    @cython.exceptval(check=False)
    def _value_traits(
        self,
        traits: cython.longlong,
        data: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        size: cython.longlong,
    ) -> cython.longlong:
        """Returns ``_BAD_VALUE`` if the value is none, or none for its name (RFC 9113 8.2.1, 8.2.2, 8.3.1)."""
        i: cython.Py_ssize_t
        bad: cython.int = 0
        for i in range(size):  # without a branch, so that compilers look at many bytes at once
            bad |= (data[at + i] == 0) | (data[at + i] == 10) | (data[at + i] == 13)
        if bad:
            return _BAD_VALUE
        if size > 0 and (_is_space(data[at]) or _is_space(data[at + size - 1])):
            return _BAD_VALUE
        if traits & _MEANING == PATH:
            return _BAD_VALUE if size == 0 else 0
        if traits & _MEANING == TE:
            return 0 if size == 8 and holds(data, at, 8, b"trailers") else _BAD_VALUE
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _evict(self, room: cython.longlong) -> cython.void:
        """Evicts the oldest entries until ``room`` more bytes fit, or none is left."""
        row: cython.Py_ssize_t
        while self._count > 0 and self._size + room > self._capacity:
            row = (_STATIC + (self._inserted - self._count) % self._slots) * _WIDTH
            self._size -= _ENTRY_BYTES + self._rows[row + _NAME_LEN] + self._rows[row + _VALUE_LEN]
            self._count -= 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _insert(
        self,
        name_len: cython.longlong,
        value_at: cython.Py_ssize_t,
        value_len: cython.longlong,
        traits: cython.longlong,
    ) -> cython.longlong:
        """Puts the field whose name is at the top of the text into the table; returns the number of its entry.

        A field that is larger than the table only empties it (RFC 7541 4.4); -1 then.
        """
        row: cython.Py_ssize_t
        size: cython.longlong = _ENTRY_BYTES + name_len + value_len
        self._evict(size)
        if size > self._capacity:
            return -1
        if self._next + name_len + value_len > self._ring_end:
            self._next = self._ring
        row = (_STATIC + self._inserted % self._slots) * _WIDTH
        self._rows[row + _START] = self._next
        self._rows[row + _NAME_LEN] = name_len
        self._rows[row + _VALUE_LEN] = value_len
        self._rows[row + _TRAITS] = traits
        copy(self._text, self._next, self._out, self._top, name_len)
        copy(self._text, self._next + name_len, self._out, value_at, value_len)
        self._next += cython.cast(cython.Py_ssize_t, name_len + value_len)
        self._inserted += 1
        self._count += 1
        self._size += size
        return _STATIC + self._inserted

    @cython.cfunc
    @cython.exceptval(check=False)
    def _field(
        self,
        traits: cython.longlong,
        data: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        name_len: cython.longlong,
        size: cython.longlong,
        entry: cython.longlong,
    ) -> cython.void:
        """Notes one field, whose value is ``data[at : at + size]``."""
        meaning: cython.int = traits & _MEANING
        column: cython.Py_ssize_t
        self._fields[FIELDS_LIST_BYTES] += _ENTRY_BYTES + name_len + size
        if self._fields[FIELDS_LIST_BYTES] > self._list_max:
            self._status |= BLOCK_TOO_LARGE
            return
        if traits & (_BAD_NAME | _BAD_VALUE) or meaning == CONNECTION_SPECIFIC:
            self._status |= BLOCK_MALFORMED
        if METHOD <= meaning <= OTHER_PSEUDO:
            # No pseudo-header field comes twice, or after an ordinary one.
            if self._seen & ((1 << meaning) | 1):
                self._status |= BLOCK_MALFORMED
            self._seen |= 1 << meaning
            if meaning == OTHER_PSEUDO:
                self._status |= BLOCK_MALFORMED
            elif meaning == METHOD:
                self._connect = size == 7 and holds(data, at, 7, b"CONNECT")
        else:
            self._seen |= 1
            if meaning == CONTENT_LENGTH:
                self._content_length(data, at, size)
        column = traits >> _WANTED_SHIFT
        if column > 0:
            column = FIELDS_WANTED + (column - 1) * FIELD_COLUMNS
            _move(self._out, self._top, data, at, size)
            self._fields[column + FIELD_POSITION] = self._top
            self._fields[column + FIELD_LENGTH] = size
            self._fields[column + FIELD_ENTRY] = entry
            self._top += cython.cast(cython.Py_ssize_t, size)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _content_length(self, data: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.longlong) -> cython.void:
        i: cython.Py_ssize_t
        digit: cython.int
        value: cython.longlong = 0
        for i in range(size):
            digit = data[at + i] - 0x30
            if not 0 <= digit <= 9 or i >= 18:
                value = -1
                break
            value = value * 10 + digit
        if size == 0 or value < 0 or self._fields[FIELDS_CONTENT_LENGTH] not in (-1, value):
            self._status |= BLOCK_MALFORMED
        else:
            self._fields[FIELDS_CONTENT_LENGTH] = value
