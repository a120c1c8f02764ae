"""Values of the enums in ``schema``, and classes of its messages, which are made when they are first used.

``messages.SendMessageRequest`` is the class of protobuf; ``messages.OK`` is a value of an enum, as in generated
modules. The names that exist are in ``messages.pyi``, which is generated.
"""

from __future__ import annotations

from typing import Any

from rucola.proxy.schema import V2


def __getattr__(name: str) -> Any:
    try:
        made = V2.message_class(name)
    except KeyError:
        raise AttributeError(f"{V2.name} has no message or value named {name!r}") from None
    globals()[name] = made
    return made


# Names of the module itself, because messages are compared with them all the time.
globals().update(
    (value, number) for enum, values in V2.enums.items() if "." not in enum for value, number in values.items()
)
