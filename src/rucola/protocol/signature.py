"""Signatures of requests: RocketMQ's signature, and version 2, an extension of Rucola.

RocketMQ's signature (``AclUtils``, ``AclClientRPCHook``; protocol.md 6.1) is an HMAC-SHA1 in base64. It covers the
values of all ext fields except ``Signature``, sorted by field name and joined without separators, followed by the body.
It covers neither the time nor the request code nor the boundaries between values. An eavesdropper can therefore repeat
a request and move bytes between adjacent values (reliability.md R-13).

Version 2 is an HMAC-SHA256 in base64. It covers the request code, all ext fields except the signatures, and the SHA-256
of the body. The name and the value of each field are preceded by their lengths. The fields include the time, a nonce
and the server's address. A server that remembers nonces accepts each request once, and no other server accepts it.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
"""Ext fields with which RocketMQ's clients sign a request."""

SIGNATURE_V2 = "SignatureV2"
SIGN_TIME = "SignTime"
SIGN_NONCE = "SignNonce"
SIGN_TARGET = "SignTarget"
"""Ext fields of version 2. ``SignatureV2``: the signature in base64. ``SignTime``: decimal milliseconds since 1970.
``SignNonce``: 16 to 48 characters, a dot and a number; each nonce is used only once. ``SignTarget``: the server that
the client asked for, ``host:port``.
"""

TOO_EARLY = f"{SIGN_TIME} is before the server's start"
"""How the remark begins if a request was signed before the server started. It concerns this moment only, so its code is
SYSTEM_BUSY, and a client repeats the request with a new signature.
"""

_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_V4_9_3 = 399
"""Ordinal of the last version whose clients do not sign the field ``_UNIQUE_KEY_QUERY``."""
_UNSIGNED_V2 = frozenset({SIGNATURE, SIGNATURE_V2})

Body = bytes | bytearray | memoryview


def legacy_content(fields: Mapping[str, str], body: Body, version: int) -> bytes:
    """Returns the bytes that RocketMQ's signature covers.

    Args:
        fields: all ext fields.
        body: body of the request.
        version: version ordinal in the request's header; clients up to 4.9.3 do not sign ``_UNIQUE_KEY_QUERY``.
    """
    return b"".join((_legacy_text(fields, version), body))


def _legacy_text(fields: Mapping[str, str], version: int) -> bytes:
    """Returns the signed bytes before the body."""
    names = list(fields)
    if all(map(str.isascii, names)):
        names.sort()
    else:
        # the order in which Java compares strings
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    skipped = _UNIQUE_KEY_QUERY if version <= _V4_9_3 else SIGNATURE
    text = "".join([fields[name] for name in names if name not in (SIGNATURE, skipped)])
    return text.encode("utf-8", "surrogatepass")


def legacy_signature(secret_key: bytes, fields: Mapping[str, str], body: Body, version: int) -> bytes:
    """Returns the value of the field ``Signature``: 28 bytes of ASCII."""
    return b64encode(hmac.digest(secret_key, legacy_content(fields, body, version), "sha1"))


def v2_content(code: int, fields: Mapping[str, str], body: Body) -> bytes:
    """Returns the bytes that version 2 covers; they are different for any two different requests.

    Args:
        code: request code.
        fields: all ext fields, including time and nonce.
        body: body of the request.
    """
    return _v2_content(code, fields, hashlib.sha256(body).digest())


def _v2_content(code: int, fields: Mapping[str, str], body_digest: bytes) -> bytes:
    parts = [b"rucola-signature-2", code.to_bytes(4, "big", signed=True)]
    names = sorted(name for name in fields if name not in _UNSIGNED_V2)
    parts.append(len(names).to_bytes(4, "big"))
    for name in names:
        for text in (name, fields[name]):
            value = text.encode("utf-8", "surrogatepass")
            parts += (len(value).to_bytes(4, "big"), value)
    parts.append(body_digest)
    return b"".join(parts)


def v2_signature(secret_key: bytes, code: int, fields: Mapping[str, str], body: Body) -> bytes:
    """Returns the value of the field ``SignatureV2``: 44 bytes of ASCII."""
    return b64encode(hmac.digest(secret_key, v2_content(code, fields, body), "sha256"))


class LongBodySignature:
    """Compares the signature of a request with the right one, whose body is hashed piece by piece. It is version 2 if
    the request has a signature of version 2, otherwise RocketMQ's signature.
    """

    def __init__(self, secret_key: bytes, code: int, fields: Mapping[str, str], version: int) -> None:
        self._secret_key, self._code, self._fields = secret_key, code, fields
        self._mac = None if SIGNATURE_V2 in fields else hmac.new(secret_key, _legacy_text(fields, version), "sha1")
        self._body = hashlib.sha256()

    def update(self, piece: Body) -> None:
        """Hashes the next piece of the body."""
        (self._mac or self._body).update(piece)

    def is_right(self) -> bool:
        """Whether the request has the right signature, if its whole body was hashed."""
        if self._mac is not None:
            return equal(self._fields.get(SIGNATURE, ""), b64encode(self._mac.digest()))
        content = _v2_content(self._code, self._fields, self._body.digest())
        return equal(self._fields[SIGNATURE_V2], b64encode(hmac.digest(self._secret_key, content, "sha256")))


def equal(given: str, expected: bytes) -> bool:
    """Whether two signatures are equal; compares them as bytes and in constant time (R-12)."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected)
