"""What a request says before its first message."""

from __future__ import annotations

import re

FIELDS = (b":method", b":path", b"content-type", b"grpc-timeout", b"grpc-encoding")
"""The fields that each request is asked for, in this order; those of the methods follow."""
METHOD, PATH, CONTENT_TYPE, TIMEOUT, ENCODING = range(len(FIELDS))

_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def timeout_s(text: bytes) -> float:
    """Returns the seconds in which a client wants an answer.

    Raises:
        ValueError: the text is no timeout.
    """
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise ValueError(f"grpc-timeout is {text[:32]!r}; allowed are 1 to 8 digits and one of H, M, S, m, u, n")
    return int(found[1]) * _SECONDS[found[2]]


def is_grpc(content_type: bytes | None) -> bool:
    """Whether a content type is one of gRPC: ``application/grpc``, or that with ``+proto`` or parameters."""
    return content_type is not None and re.match(rb"application/grpc($|[+;])", content_type) is not None
