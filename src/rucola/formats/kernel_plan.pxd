# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The contents of ``kernel_plan.py`` for compiled kernels."""

from rucola.common.kernel_bytes cimport INT32_MAX

cdef enum:
    PLAN_WIDTH = 10
    ALIGNMENT = 64
    PLACES = 4

    PLAN_KIND = 0
    PLAN_COLUMN = 1
    PLAN_DETAIL = 2
    PLAN_VALUES = 3
    PLAN_OFFSETS = 4
    PLAN_VALIDITY = 5
    PLAN_ROOM = 6
    PLAN_DONE = 7
    PLAN_MISSING = 8
    PLAN_BITS = 9

    COLUMN_INT32 = 0
    COLUMN_INT64 = 1
    COLUMN_BYTES = 2
    COLUMN_TEXT = 3
    COLUMN_JSON = 4
    COLUMN_SAME = 5
    COLUMN_REPEATED = 6

    PLACE_ROWS = 0
    PLACE_BODY_SIZE = 1
    PLACE_NODES = 2
    PLACE_BUFFERS = 3


cdef inline long long size_of_values(long long[::1] plan, Py_ssize_t at, Py_ssize_t rows) noexcept nogil:
    cdef long long kind = plan[at + PLAN_KIND]
    if kind == COLUMN_INT32:
        return 4 * rows
    if kind == COLUMN_INT64:
        return 8 * rows
    if kind == COLUMN_REPEATED:
        # The product of two numbers below 2**31 cannot overflow.
        return plan[at + PLAN_DETAIL] * rows if 0 <= plan[at + PLAN_DETAIL] <= INT32_MAX else -1
    if kind == COLUMN_SAME:
        return 0
    return plan[at + PLAN_DONE]


cdef inline int check_places(
    long long[::1] plan, Py_ssize_t at, Py_ssize_t rows, Py_ssize_t start, Py_ssize_t size
) except -1:
    cdef long long kind = plan[at + PLAN_KIND]
    cdef long long values = plan[at + PLAN_VALUES]
    cdef long long offsets = plan[at + PLAN_OFFSETS]
    cdef long long room = plan[at + PLAN_ROOM]
    cdef bint fits = 0 <= size_of_values(plan, at, rows) <= room <= INT32_MAX
    fits = fits and start <= values <= size - room and values % 8 == 0
    if kind != COLUMN_INT32 and kind != COLUMN_INT64 and kind != COLUMN_SAME:
        fits = fits and start <= offsets <= values - 4 * (rows + 1) and offsets % 4 == 0
    if not fits:
        raise ValueError(
            f"column {at // PLAN_WIDTH} with {rows} rows does not fit into the buffer, which has {size} bytes"
        )
    return 0
