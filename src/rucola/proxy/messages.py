"""Classes of the messages and values of the enums in ``schema``, made when they are first used.

``messages.SendMessageRequest`` is the class of protobuf; ``messages.OK`` is a value of an enum, as in generated modules.
The names that exist are in ``messages.pyi``, which is generated.
"""

from __future__ import annotations

from typing import Any

from rucola.proxy import descriptors, schema


def __getattr__(name: str) -> Any:
    if name in _VALUES:
        return _VALUES[name]
    try:
        made = descriptors.message_class(name)
    except KeyError:
        raise AttributeError(f"{schema.PACKAGE} has no message or value named {name!r}") from None
    globals()[name] = made
    return made


_VALUES = {
    value: number for enum, values in schema.enums().items() if "." not in enum for value, number in values.items()
}
