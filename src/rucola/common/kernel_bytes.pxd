# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The functions of ``kernel_bytes.py`` for compiled kernels, which inline them. Both files state the same names."""

from libc.string cimport memchr, memcmp, memcpy

cdef enum:
    INT32_MAX = 2147483647


cdef inline long long low32(long long value) noexcept nogil:
    return <unsigned int>value


cdef inline long long signed32(long long value) noexcept nogil:
    return <int><unsigned int>value


cdef inline long long int16(const unsigned char[::1] data, Py_ssize_t at) noexcept nogil:
    return <short>((<unsigned int>data[at] << 8) | data[at + 1])


cdef inline long long uint32(const unsigned char[::1] data, Py_ssize_t at) noexcept nogil:
    # An expression of one pointer, which compilers turn into a single read.
    cdef const unsigned char *first = &data[at]
    return (<unsigned int>first[0] << 24) | (<unsigned int>first[1] << 16) | (<unsigned int>first[2] << 8) | first[3]


cdef inline long long int32(const unsigned char[::1] data, Py_ssize_t at) noexcept nogil:
    return <int>uint32(data, at)


cdef inline long long int64(const unsigned char[::1] data, Py_ssize_t at) noexcept nogil:
    return <long long>((<unsigned long long>uint32(data, at) << 32) | <unsigned long long>uint32(data, at + 4))


cdef inline void put32(unsigned char[::1] data, Py_ssize_t at, long long value) noexcept nogil:
    data[at] = (value >> 24) & 255
    data[at + 1] = (value >> 16) & 255
    data[at + 2] = (value >> 8) & 255
    data[at + 3] = value & 255


cdef inline void put64(unsigned char[::1] data, Py_ssize_t at, long long value) noexcept nogil:
    put32(data, at, value >> 32)
    put32(data, at + 4, value)


cdef inline void copy(
    unsigned char[::1] target, Py_ssize_t at, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size
) noexcept nogil:
    if size > 0:
        memcpy(&target[at], &data[start], size)


cdef inline Py_ssize_t find(const unsigned char[::1] data, int byte, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    cdef const unsigned char *base
    cdef const unsigned char *found
    if start >= end:
        return end
    base = &data[0]
    found = <const unsigned char *>memchr(base + start, byte, end - start)
    return end if found == NULL else found - base


cdef inline bint same(
    const unsigned char[::1] one, Py_ssize_t at, const unsigned char[::1] two, Py_ssize_t there, Py_ssize_t size
) noexcept nogil:
    # Most spans are short, for example topics. A call of memcmp would take longer than comparing them as two numbers,
    # which may overlap.
    if size > 16:
        return memcmp(&one[at], &two[there], size) == 0
    if size >= 8:
        return int64(one, at) == int64(two, there) and int64(one, at + size - 8) == int64(two, there + size - 8)
    if size >= 4:
        return uint32(one, at) == uint32(two, there) and uint32(one, at + size - 4) == uint32(two, there + size - 4)
    return size <= 0 or (
        one[at] == two[there]
        and one[at + size // 2] == two[there + size // 2]
        and one[at + size - 1] == two[there + size - 1]
    )


cdef inline bint starts(const unsigned char[::1] data, Py_ssize_t at, bytes name) noexcept:
    cdef Py_ssize_t i
    for i in range(len(name)):
        if data[at + i] != <unsigned char>name[i]:
            return False
    return True


cdef inline bint marks_agree(
    const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t there, Py_ssize_t size, unsigned char mark
) noexcept nogil:
    # Without a branch, so that compilers compare many bytes at once.
    cdef const unsigned char *one = &data[at]
    cdef const unsigned char *two = &data[there]
    cdef unsigned char differ = 0
    cdef Py_ssize_t i
    for i in range(size):
        differ |= (one[i] == mark) ^ (two[i] == mark)
    return differ == 0
