"""Patterns of peer addresses (RocketMQ 5.3.2, ``RemoteAddressStrategyFactory``; protocol.md 6.1).

=====================================  ==============================================================
blank                                  matches nothing
``*``, ``*.*.*.*``, eight ``*`` groups   everything
``192.168.0.{1,2}``, ``1050::{a,b}``     the listed last segments
``a,b,c``                              exact addresses
``192.168.0.1-100``, ``192.168.1-2.*``   a range in one segment; earlier segments equal, later ones any
an address                             that address
=====================================  ==============================================================

Addresses are compared as numbers, never as texts. Different spellings of one address are equal, and an IPv4-mapped IPv6
address counts as IPv4. ``10.10.103.1*`` is not a valid pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from rucola.common.hosts import split_address

_EVERYTHING = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")

Segments = tuple[int, ...]
"""The segments of an address: four numbers of 8 bits, or eight of 16 bits."""


@dataclass(frozen=True, slots=True)
class AddressStrategy:
    """The addresses that a pattern matches. ``pattern`` is the text of the pattern. An address needs to match only one
    of the alternatives.
    """

    pattern: str
    alternatives: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    """For each alternative, the number of segments of an address, and the ranges of its leading segments, both ends
    included. If there are no ranges, every address with that number of segments matches.
    """

    def matches(self, address: Segments) -> bool:
        """Whether the pattern matches ``address``, which comes from ``segments_of``."""
        return any(
            len(address) == count
            and all(low <= segment <= high for segment, (low, high) in zip(address, ranges, strict=False))
            for count, ranges in self.alternatives
        )


def segments_of(address: str) -> Segments:
    """Returns the segments of a numeric address without port.

    Raises:
        ValueError: ``address`` is not a numeric address.
    """
    parsed = ip_address(address.strip().removeprefix("[").removesuffix("]").partition("%")[0])
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is None:
            packed = parsed.packed
            return tuple(int.from_bytes(packed[i : i + 2], "big") for i in range(0, 16, 2))
        parsed = parsed.ipv4_mapped
    return tuple(parsed.packed)


def address_of(peer: str) -> Segments:
    """The segments of a peer's ``ip:port``; empty if it is none."""
    try:
        return segments_of(split_address(peer)[0])
    except ValueError:
        return ()


def parse_addresses(pattern: str) -> AddressStrategy:
    """Parses ``pattern``.

    Raises:
        ValueError: ``pattern`` is not an address pattern.
    """
    text = pattern.strip()
    try:
        if not text:
            alternatives: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
        elif text in _EVERYTHING:
            alternatives = ((4, ()), (8, ()))
        elif "{" in text:
            alternatives = _listed(text)
        elif "," in text:
            alternatives = tuple(_exact(part) for part in text.split(","))
        elif "*" in text or "-" in text:
            alternatives = (_ranges(text),)
        else:
            alternatives = (_exact(text),)
    except ValueError as error:
        raise ValueError(f"{pattern!r} is not an address pattern ({error})") from None
    return AddressStrategy(text, alternatives)


def _exact(text: str) -> tuple[int, tuple[tuple[int, int], ...]]:
    segments = segments_of(text)
    return len(segments), tuple((segment, segment) for segment in segments)


def _listed(text: str) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
    head, _, tail = text.partition("{")
    if not tail.endswith("}") or head[-1:] not in (".", ":"):
        raise ValueError("only the whole last segment can be in braces")
    return tuple(_exact(head + part.strip()) for part in tail[:-1].split(","))


def _ranges(text: str) -> tuple[int, tuple[tuple[int, int], ...]]:
    colon = ":" in text
    parts = text.split(":" if colon else ".")
    count, largest = (8, 0xFFFF) if colon else (4, 0xFF)
    if text.count("::") > 1 or ":::" in text:
        raise ValueError("more than one ::")
    if colon and "" in parts:
        gap = parts.index("")
        parts = [part for part in parts if part]
        parts[gap:gap] = ["0"] * (count - len(parts))
    if len(parts) != count:
        raise ValueError(f"{count} segments are needed")
    ranges: list[tuple[int, int]] = []
    for index, part in enumerate(parts):
        if part == "*":
            low, high = 0, largest
        else:
            first, dash, last = part.partition("-")
            low = _number(first, colon)
            high = _number(last, colon) if dash else low
            if dash and not low <= high:
                raise ValueError("a range must ascend")
        ranges.append((low, high))
        if (part == "*" or "-" in part) and any(behind != "*" for behind in parts[index + 1 :]):
            raise ValueError("only * may follow a range")
        if high > largest:
            raise ValueError(f"{part} is too large")
    return count, tuple(ranges)


def _number(text: str, hexadecimal: bool) -> int:
    if not text.isalnum() or not text.isascii() or len(text) > 4:
        raise ValueError(f"{text!r} is not a number")
    return int(text, 16 if hexadecimal else 10)
