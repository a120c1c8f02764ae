# cython: language_level=3
"""The columns of ``columns.py`` for compiled kernels; ``tests/unit/test_kernels.py`` compares both files."""

cdef enum:
    ROW_KIND = 0
    ROW_STREAM = 1
    ROW_END = 2
    ROW_POSITION = 3
    ROW_LENGTH = 4
    ROW_CODE = 5
    ROW_FIELDS = 6
    ROW_TYPE = 7
    ROW_FLAGS = 8
    ROW_FLOW = 9
    ROW_START = 10
    ROW_SCOPE = 11
    ROW_COLUMNS = 12
    FIELDS_CONTENT_LENGTH = 0
    FIELDS_UPDATES = 1
    FIELDS_TEXT_END = 2
    FIELDS_LIST_BYTES = 3
    FIELDS_WANTED = 4
    FIELD_POSITION = 0
    FIELD_LENGTH = 1
    FIELD_ENTRY = 2
    FIELD_COLUMNS = 3
