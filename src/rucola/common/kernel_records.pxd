# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The contents of ``kernel_records.py`` for compiled kernels."""

from rucola.common.kernel_columns cimport (
    FRAME_BODY_LEN,
    FRAME_BODY_POS,
    FRAME_PROPERTIES_LEN,
    FRAME_PROPERTIES_POS,
    ROW_WIDTH,
)

cdef enum:
    RECORD_FIXED_BYTES = 74
    BLANK_BYTES = 8
    TOPIC_BYTES_V1_MAX = 127
    PROPERTIES_BYTES_MAX = 32767
    SUFFIX_BYTES_MAX = 1000
    CRC_PROPERTY_BYTES = 20
    BATCH_MEMBER_FIXED_BYTES = 22
    TRANSACTION_MASK = 12
    TRANSACTION_PREPARED = 4
    TRANSACTION_ROLLBACK = 12


cdef inline int check_spans(const unsigned char[::1] source, long long[::1] table, Py_ssize_t row) except -1:
    cdef long long size = len(source)
    cdef long long body_len = table[row + FRAME_BODY_LEN]
    cdef long long properties_len = table[row + FRAME_PROPERTIES_LEN]
    if body_len > 0 and not (body_len <= size and 0 <= table[row + FRAME_BODY_POS] <= size - body_len):
        raise ValueError(f"row {row // ROW_WIDTH}: its body lies outside the buffer")
    if properties_len > 0 and not (
        properties_len <= size and 0 <= table[row + FRAME_PROPERTIES_POS] <= size - properties_len
    ):
        raise ValueError(f"row {row // ROW_WIDTH}: its properties lie outside the buffer")
    return 0
