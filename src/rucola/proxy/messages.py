"""Classes of the messages and values of the enums in ``schema``, made when they are first used.

``messages.SendMessageRequest`` is the class of protobuf; ``messages.OK`` is a value of an enum, as in generated
modules. The names that exist are in ``messages.pyi``, which is generated.
"""

from __future__ import annotations

from typing import Any

from rucola.proxy.schema import V2


def __getattr__(name: str) -> Any:
    if name in _VALUES:
        return _VALUES[name]
    try:
        made = V2.message_class(name)
    except KeyError:
        raise AttributeError(f"{V2.name} has no message or value named {name!r}") from None
    globals()[name] = made
    return made


_VALUES = {value: number for enum, values in V2.enums.items() if "." not in enum for value, number in values.items()}
