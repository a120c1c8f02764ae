"""How the calls of one method ended, by the status in their responses.

Every response of the protocol begins with its status. So it can be read from the bytes, whoever has made them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from rucola.grpc.status import StatusCode
from rucola.proxy.schema import V2
from rucola.proxy.wire import OK

_CODE_FIELD: Final = 0x08
"""What stands before the code in a status: field 1, a number."""
_MESSAGE_BIT: Final = 0x80


class Outcomes:
    """The counts of one method; see ``CallOutcomes``."""

    def __init__(self) -> None:
        self._ok = 0
        self._codes: Counter[int] = Counter()
        self._errors: Counter[str] = Counter()

    def answered(self, message: bytes) -> None:
        """See ``CallOutcomes``."""
        if message.startswith(OK):
            self._ok += 1
        else:
            self._codes[_code_in(message)] += 1

    def ended(self, code: StatusCode) -> None:
        """See ``CallOutcomes``."""
        self._errors[f"grpc {code.name}"] += 1

    def counts(self) -> Mapping[str, int]:
        """The number of calls by the name of their status; errors of gRPC have a mark before their name."""
        found = Counter({_name(code): count for code, count in self._codes.items()})
        found[_name(_OK)] += self._ok
        return found + self._errors


def _code_in(message: bytes) -> int:
    """The code of the status with which a response begins; 0 if it begins with something else."""
    position = 1
    while position < len(message) and message[position] & _MESSAGE_BIT:
        position += 1
    position += 1
    if message[:1] != OK[:1] or message[position : position + 1] != bytes((_CODE_FIELD,)):
        return 0
    code = 0
    for shift, byte in enumerate(message[position + 1 : position + 6]):
        code |= (byte & ~_MESSAGE_BIT) << 7 * shift
        if not byte & _MESSAGE_BIT:
            break
    return code


_NAMES: Final = {number: name for name, number in V2.enums["Code"].items()}
_OK: Final = V2.enums["Code"]["OK"]


def _name(code: int) -> str:
    return _NAMES.get(code, str(code))
