"""Stand-ins for the names of the module ``cython`` that kernels use; needed where Cython is not installed.

Kernels are modules that Cython can compile. A compiled kernel needs neither this module nor Cython, because the
compiler has resolved the names. In an interpreted kernel the stand-ins do little: a type only converts values, an array
is a list, and a decorator returns its function or class unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

compiled = False


class CType:
    """A C type, for example ``cython.int``. A call converts a value; ``cython.int[256]`` is the type of an array with
    256 elements.
    """

    def __init__(self, convert: Callable[[Any], Any], size: int = 0) -> None:
        self.convert = convert
        self.size = size

    def __getitem__(self, size: int) -> CType:
        return CType(self.convert, size)

    def __call__(self, value: Any) -> Any:
        """Returns ``value`` converted to this type."""
        return self.convert(value)


def declare(kind: CType, value: Any = None, visibility: str = "private") -> Any:
    """Returns ``value``, or an array of zeros if ``kind`` is an array type. ``visibility`` matters only to the
    compiler.
    """
    return [kind(0)] * kind.size if kind.size else value


def cast(kind: CType, value: Any) -> Any:
    """Returns ``value`` converted to ``kind``."""
    return kind(value)


def cfunc(function: F) -> F:
    """Returns ``function`` itself."""
    return function


def cclass(kind: C) -> C:
    """Returns ``kind`` itself."""
    return kind


def exceptval(*_values: object, **_options: object) -> Callable[[F], F]:
    """Returns a decorator that changes nothing."""
    return cfunc


inline = nogil = cfunc
Py_ssize_t = uint = longlong = ulonglong = uchar = CType(int)
bint = CType(bool)
double = CType(float)


def __getattr__(name: str) -> CType:
    if name == "int":  # defined as a global, it would hide Python's own ``int``
        return uint
    raise AttributeError(f"module 'rucola.common.cython_fallback' has no attribute {name!r}")
