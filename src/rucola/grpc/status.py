"""How a call ends: the codes of gRPC, and the header blocks that carry them."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

from rucola.errors import RucolaError
from rucola.http2.hpack import encode_block


class StatusCode(IntEnum):
    """Status of a call, as gRPC numbers it."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class GrpcError(RucolaError):
    """Ends a call with a status other than OK.

    Args:
        code: the status.
        text: what the client reads.
    """

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return self.text


HEADERS = encode_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
"""The header block before the messages of an answer."""
OK_TRAILERS = encode_block([(b"grpc-status", b"0")])
"""The header block after them if all went well."""
_TEXT_BYTES_MAX = 1024


def trailers(code: StatusCode, text: str, *, alone: bool) -> bytes:
    """Encodes the header block that ends a call.

    Args:
        code: the status.
        text: what went wrong; of a long text the client gets the first 1,024 bytes.
        alone: whether no header block was sent before.
    """
    return _trailers(code, text.encode("utf-8", "replace")[:_TEXT_BYTES_MAX], alone)


@lru_cache(256)
def _trailers(code: StatusCode, text: bytes, alone: bool) -> bytes:
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc")] if alone else []
    fields.append((b"grpc-status", b"%d" % code))
    if text:
        fields.append((b"grpc-message", _escaped(text)))
    if code == StatusCode.UNIMPLEMENTED:
        fields.append((b"grpc-accept-encoding", b"identity"))
    return encode_block(fields)


def _escaped(text: bytes) -> bytes:
    """Percent-encodes what a header field cannot carry, and the percent sign."""
    return b"".join(b"%c" % byte if 0x20 < byte < 0x7F and byte != 0x25 else b"%%%02X" % byte for byte in text)
