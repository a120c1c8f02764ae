"""Dataclasses whose methods are made when they are first needed.

``dataclass`` compiles the methods of a class when its module is imported, which takes most of the time of such an
import. A client uses only a few of the many headers and bodies that it imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

_MADE = (
    "__init__",
    "__repr__",
    "__eq__",
    "__hash__",
    "__replace__",
    "__match_args__",
    "__dataclass_params__",
    "__dataclass_fields__",
)
"""What ``dataclass`` adds to a class."""
_CALLED = ("__init__", "__repr__", "__eq__")


@dataclass_transform(field_specifiers=(field,))
def late_dataclass(plain: type[T]) -> type[T]:
    """Like ``dataclass(slots=True)``. The first call of a method, and the first use of the class with a function of
    ``dataclasses``, makes the methods. If several threads do this at once, each makes the same methods.
    """
    own = vars(plain).get("__slots__", ())
    names = [name for name, hint in plain.__annotations__.items() if not str(hint).startswith("ClassVar")]
    inherited = {slot for base in plain.__mro__[1:] for slot in vars(base).get("__slots__", ())}
    members = {
        name: value
        for name, value in vars(plain).items()
        if name not in (*names, *own, "__dict__", "__weakref__", "__hash__")
    }
    members["__slots__"] = tuple(name for name in names if name not in inherited)
    late = _Late(plain)
    members |= {name: late.first_call(name) for name in _CALLED if name not in members}
    members["__dataclass_fields__"] = late
    made: type[T] = _class_like(plain, members)
    made.__qualname__ = plain.__qualname__
    late.made = made
    return made


def _class_like(plain: type[Any], members: dict[str, Any]) -> type[Any]:
    metaclass: Any = type(plain)
    made: type[Any] = metaclass(plain.__name__, plain.__bases__, members)
    return made


class _Late:
    """The methods of one class that are still to be made; as a class attribute, it stands for the class's fields.

    Attributes:
        made: the class that gets the methods, as soon as there is one.
    """

    def __init__(self, plain: type[Any]) -> None:
        self.made = plain
        self._plain = plain
        self._is_done = False

    def __get__(self, _instance: object, _owner: type) -> object:
        self._make()
        return self.made.__dataclass_fields__

    def first_call(self, name: str) -> Callable[..., Any]:
        """Returns the method ``name`` until the class has its own."""

        def call(instance: Any, *arguments: Any, **named: Any) -> Any:
            self._make()
            return getattr(type(instance), name)(instance, *arguments, **named)

        return call

    def _make(self) -> None:
        if self._is_done:
            return
        # A copy, because ``dataclass`` changes the class, and another thread may be here too.
        members = {name: value for name, value in vars(self._plain).items() if name not in ("__dict__", "__weakref__")}
        whole = dataclass(_class_like(self._plain, members))
        for name in _MADE:
            if name in vars(whole):
                setattr(self.made, name, vars(whole)[name])
        self._is_done = True
