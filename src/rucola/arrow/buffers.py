"""Converts between Arrow arrays and NumPy arrays, without a copy where possible.

``pa.array``, ``pa.scalar`` and ``to_numpy`` import pandas to recognise pandas objects. The import takes a quarter of a
second in every process that runs a task. Readers import this module only inside ``read()``, like
``rucola.arrow.rows``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)


def from_numbers(values: npt.NDArray[Number], kind: pa.DataType) -> pa.Array:
    """Returns an array over the memory of ``values``, whose numbers must have the width of ``kind``."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))], 0)


def from_mask(mask: Mask) -> pa.Array:
    """Returns ``mask`` as an Arrow array, with one bit for each row."""
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits(mask)], 0)


def from_bytes(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Returns an array of byte strings, or of texts in UTF-8, depending on ``kind``."""
    offsets = np.fromiter(accumulate(map(len, values), initial=0), np.int32, len(values) + 1)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))], 0)


def numbers_of(values: pa.Array, kind: type[Number]) -> npt.NDArray[Number]:
    """A NumPy view of the numbers in ``values``, which must have type ``kind`` and no nulls."""
    data = values.buffers()[1]
    if data is None:
        return np.empty(0, kind)
    return np.frombuffer(data, kind, len(values), values.offset * np.dtype(kind).itemsize)


def mask_of(values: pa.Array) -> Mask:
    """Returns a boolean array, which must have no nulls, as a NumPy array with one byte for each row."""
    data = values.buffers()[1]
    if data is None:
        return np.empty(0, np.bool_)
    end = values.offset + len(values)
    return np.unpackbits(np.frombuffer(data, np.uint8), count=end, bitorder="little")[values.offset :].view(np.bool_)


def bits(mask: Mask) -> Any:
    """Packs a mask into Arrow's form, with one bit for each row."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))
