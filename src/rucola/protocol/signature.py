"""Signatures of requests: the one that every RocketMQ client makes, and a second one of ours.

Legacy (``AclUtils``, ``AclClientRPCHook``; protocol.md 6.1): base64 of HMAC-SHA1 over the values of all ext fields in
the order of their names, without separators, then the body. It says nothing about time, request code or where one value
ends, so who sees a request can send it again and move bytes between neighbours (reliability.md R-13).

Version 2, ours: base64 of HMAC-SHA256 over the request code, the time, the nonce, each field with its name and both
lengths, and the SHA-256 of the body. A server that remembers nonces takes each request once.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
"""Ext fields of the reference's clients."""

SIGNATURE_V2 = "SignatureV2"
SIGN_TIME = "SignTime"
SIGN_NONCE = "SignNonce"
"""Ext fields of version 2: base64; milliseconds since 1970 in decimal digits; a name of 16 to 48
characters, a dot and a number, never used again."""

_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_V4_9_3 = 399
"""Version ordinal; later clients sign the field above too."""
_UNSIGNED_V2 = frozenset({SIGNATURE, SIGNATURE_V2})

Body = bytes | bytearray | memoryview


def legacy_content(fields: Mapping[str, str], body: Body, version: int) -> bytes:
    """What the legacy signature covers.

    Args:
        fields: all ext fields.
        body: of the request.
        version: version ordinal in its header; up to 4.9.3 one field was left out.
    """
    names = list(fields)
    if all(map(str.isascii, names)):
        names.sort()
    else:
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))  # as Java's String compares
    skipped = _UNIQUE_KEY_QUERY if version <= _V4_9_3 else SIGNATURE
    text = "".join([fields[name] for name in names if name not in (SIGNATURE, skipped)])
    return b"".join((text.encode("utf-8", "surrogatepass"), body))


def legacy_signature(secret_key: bytes, fields: Mapping[str, str], body: Body, version: int) -> bytes:
    """Value of the field ``Signature``: 28 bytes of ASCII."""
    return b64encode(hmac.digest(secret_key, legacy_content(fields, body, version), "sha1"))


def v2_content(code: int, fields: Mapping[str, str], body: Body) -> bytes:
    """What version 2 covers: no two requests have the same content.

    Args:
        code: of the request.
        fields: all ext fields, time and nonce among them.
        body: of the request.
    """
    parts = [b"rucola-signature-2", code.to_bytes(4, "big", signed=True)]
    names = sorted(name for name in fields if name not in _UNSIGNED_V2)
    parts.append(len(names).to_bytes(4, "big"))
    for name in names:
        for text in (name, fields[name]):
            value = text.encode("utf-8", "surrogatepass")
            parts += (len(value).to_bytes(4, "big"), value)
    parts.append(hashlib.sha256(body).digest())
    return b"".join(parts)


def v2_signature(secret_key: bytes, code: int, fields: Mapping[str, str], body: Body) -> bytes:
    """Value of the field ``SignatureV2``: 44 bytes of ASCII."""
    return b64encode(hmac.digest(secret_key, v2_content(code, fields, body), "sha256"))


def equal(given: str, expected: bytes) -> bool:
    """Whether a signature is the expected one; takes as long whichever byte differs (R-12: bytes, not texts)."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected)
