"""The files ``brokerIdentity`` and ``brokerIdentity-temp``: who a broker behind a controller is.

Each is one line of text without an end: ``CLUSTER#NAME#NUMBER``, where the controller gave the number. While a broker
asks for its number, it keeps the second file, which also has ``#CODE``: with this code, the broker may ask for the same
number again.

Source: RocketMQ 5.3.3, ``BrokerMetadata``, ``TempBrokerMetadata``, which do not notice names that contain ``#``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rucola.common.numbers import INT64_MAX
from rucola.errors import FormatError

_WHAT: Final = "identity of a broker"
_DIGITS_MAX: Final = len(str(INT64_MAX))


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The content of one of the files.

    Attributes:
        broker_id: number from the controller; 1 or more.
        check_code: code of a request for the number; empty in ``brokerIdentity``.
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    check_code: str = ""

    def __post_init__(self) -> None:
        for text in (self.cluster_name, self.broker_name, self.check_code or "-"):
            if not text or "#" in text or "\n" in text:
                raise FormatError(_WHAT, 0, "a name without # and line end", repr(text))
        if not 0 < self.broker_id <= INT64_MAX:
            raise FormatError(_WHAT, 0, "a number of 1 or more", str(self.broker_id))

    def encode(self) -> bytes:
        """Returns the content of the file."""
        text = f"{self.cluster_name}#{self.broker_name}#{self.broker_id}"
        return (f"{text}#{self.check_code}" if self.check_code else text).encode()

    @classmethod
    def decode(cls, content: bytes, source: str = "", is_temporary: bool = False) -> BrokerIdentity:
        """Decodes a file.

        Args:
            source: path of the file, for errors.
            is_temporary: whether the file is ``brokerIdentity-temp``.

        Raises:
            FormatError: a part is missing or empty, or the number is none or too large.
        """
        parts = content.decode("utf-8", "replace").strip().split("#")
        number = parts[2] if len(parts) == 3 + is_temporary else ""
        if not number.isascii() or not number.isdigit() or len(number) > _DIGITS_MAX:
            expected = "cluster#name#number#code" if is_temporary else "cluster#name#number"
            raise FormatError(_WHAT, 0, expected, repr("#".join(parts)[:80]), source)
        if is_temporary and not parts[3]:
            raise FormatError(_WHAT, 0, "a code", "none", source)
        try:
            return cls(parts[0], parts[1], int(number), *parts[3:])
        except FormatError as error:
            raise FormatError(_WHAT, 0, error.expected, error.got, source) from None
