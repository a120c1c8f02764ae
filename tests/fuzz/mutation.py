"""Nearly correct inputs: recorded inputs with small changes, which are always the same for a seed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

BYTES = b"\x00\x01\x02\x1f \"\\'{}[]:,0129-eu.$~\x7f\x80\xbf\xc0\xc3\xed\xf0\xff"
NUMBERS = [
    number.to_bytes(width, "big", signed=True)
    for width in (2, 4, 8)
    for number in (-(1 << 8 * width - 1), -(1 << 8 * width - 1) + 1, -1, 0, 1, 127, 255, (1 << 8 * width - 1) - 1)
    if -(1 << 8 * width - 1) <= number < 1 << 8 * width - 1
]
TOKENS = [
    b"-1", b"2147483647", b"2147483648", b"-2147483648", b"9223372036854775807", b"9223372036854775808", b"1e999",
    b"NaN", b"null", b"true", b"{}", b"[]", b'""', b'{"$ref":"$"}', b'{"$ref":"$.a[0]"}', b"\\u0000", b"\\ud800",
    b"\\ud83d\\ude00", b"\xed\xa0\x80", b"\xc0\x80", b"\xef\xbf\xbf", b"../", b"%RETRY%", b"%DLQ%", b"\r\n", b"\x1b[2J",
    b"[" * 40, b"{\"a\":" * 40, b"9" * 400,
]  # fmt: skip


class Mutator:
    """Changes inputs at random.

    Args:
        corpus: correct inputs; never empty.
        tokens: frequent words of inputs, which changes insert.
    """

    def __init__(self, corpus: Sequence[bytes], tokens: Sequence[bytes] = TOKENS) -> None:
        self.corpus = corpus
        self.tokens = tokens

    def draw(self, random: Random) -> bytes:
        """Returns one changed input; one of 32 inputs stays as it is."""
        below = random.random
        data = bytearray(self.corpus[int(below() * len(self.corpus))])
        if below() < 1 / 32:
            return bytes(data)
        for _ in range(1 + int(below() * 3)):
            self._change(data, random)
        return bytes(data)

    def _change(self, data: bytearray, random: Random) -> None:
        below = random.random
        size = len(data)
        at = int(below() * (size + 1))
        kind = below()
        if kind < 0.25 and at < size:
            data[at] = BYTES[int(below() * len(BYTES))]
        elif kind < 0.4 and at < size:
            data[at] ^= 1 << int(below() * 8)
        elif kind < 0.55:
            number = NUMBERS[int(below() * len(NUMBERS))]
            data[at : at + len(number)] = number
        elif kind < 0.7:
            token = self.tokens[int(below() * len(self.tokens))]
            data[at : at + int(below() * 2) * len(token)] = token
        elif kind < 0.8:
            del data[at : at + 1 + int(below() * 8)]
        elif kind < 0.88:
            start = int(below() * (size + 1))
            data[at:at] = data[start : start + 1 + int(below() * 32)]
        elif kind < 0.94:
            del data[at:]
        else:
            other = self.corpus[int(below() * len(self.corpus))]
            start = int(below() * (len(other) + 1))
            data[at:] = other[start : start + 512]
