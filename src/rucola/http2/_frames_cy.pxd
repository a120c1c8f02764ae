# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What other kernels call of ``_frames_cy.py``."""

cdef Py_ssize_t find(
    const unsigned char *data,
    Py_ssize_t start,
    Py_ssize_t end,
    long long *out,
    Py_ssize_t rows_max,
    long long frame_bytes_max,
) noexcept nogil
