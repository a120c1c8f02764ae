# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The contents of ``kernel_text.py`` for compiled kernels, over raw pointers."""

from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #define RUCOLA_NO_NUMBER (-9223372036854775807LL)
    """
    const long long NO_NUMBER "RUCOLA_NO_NUMBER"

cdef enum:
    QUOTE = 0x22
    COMMA = 0x2C
    COLON = 0x3A
    BACKSLASH = 0x5C
    BRACE_OPEN = 0x7B
    BRACE_CLOSE = 0x7D


cdef inline Py_ssize_t put(unsigned char *out, Py_ssize_t position, const char *text, Py_ssize_t length) noexcept nogil:
    memcpy(out + position, text, length)
    return position + length


cdef inline Py_ssize_t copy(
    unsigned char *out, Py_ssize_t position, const unsigned char *data, Py_ssize_t start, Py_ssize_t length
) noexcept nogil:
    memcpy(out + position, data + start, length)
    return position + length


cdef inline Py_ssize_t put_int32(unsigned char *out, Py_ssize_t position, long long value) noexcept nogil:
    out[position] = (value >> 24) & 0xFF
    out[position + 1] = (value >> 16) & 0xFF
    out[position + 2] = (value >> 8) & 0xFF
    out[position + 3] = value & 0xFF
    return position + 4


cdef inline Py_ssize_t decimal_size(long long value) noexcept nogil:
    cdef Py_ssize_t size = 1
    if value < 0:
        size += 1
        value = -value
    while value > 9:
        size += 1
        value //= 10
    return size


cdef inline Py_ssize_t put_decimal(unsigned char *out, Py_ssize_t position, long long value) noexcept nogil:
    cdef Py_ssize_t end = position + decimal_size(value)
    cdef Py_ssize_t i = end
    if value < 0:
        out[position] = 0x2D
        position += 1
        value = -value
    while i > position:
        i -= 1
        out[i] = 0x30 + value % 10
        value //= 10
    return end


cdef inline bint holds(
    const unsigned char *data, Py_ssize_t position, Py_ssize_t length, const char *text
) noexcept nogil:
    return memcmp(data + position, text, length) == 0


cdef inline long long integer(const unsigned char *data, Py_ssize_t position, Py_ssize_t end) noexcept nogil:
    cdef long long value = 0
    cdef int digit
    cdef bint negative = position < end and data[position] == 0x2D
    if negative:
        position += 1
    if position >= end or end - position > 18:
        return NO_NUMBER
    while position < end:
        digit = data[position] - 0x30
        if digit < 0 or digit > 9:
            return NO_NUMBER
        value = value * 10 + digit
        position += 1
    return -value if negative else value


cdef inline Py_ssize_t character_bytes(const unsigned char *data, Py_ssize_t position, Py_ssize_t end) noexcept nogil:
    cdef unsigned char first = data[position]
    cdef Py_ssize_t size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    cdef unsigned char low = 0x80
    cdef unsigned char high = 0xBF
    cdef Py_ssize_t i
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4 or size > end - position:
        return 0
    if first == 0xE0:
        low = 0xA0  # else it needs fewer bytes
    elif first == 0xED:
        high = 0x9F  # else it is a surrogate
    elif first == 0xF0:
        low = 0x90  # else it needs fewer bytes
    elif first == 0xF4:
        high = 0x8F  # else it is above U+10FFFF
    if not low <= data[position + 1] <= high:
        return 0
    for i in range(2, size):
        if data[position + i] & 0xC0 != 0x80:
            return 0
    return size


cdef inline bint is_listed(
    const unsigned char *data, Py_ssize_t position, Py_ssize_t length, const unsigned char *names, const int *starts
) noexcept nogil:
    cdef Py_ssize_t at = starts[length]
    while at < starts[length + 1]:
        if memcmp(data + position, names + at, length) == 0:
            return True
        at += length
    return False
