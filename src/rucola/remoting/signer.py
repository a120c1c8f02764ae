"""Signs a client's requests (RocketMQ 5.3.3, ``AclClientRPCHook``), as the last step before they are sent.

The remoting client passes every request through ``sign``, including those that other modules have encoded, so no
request is sent unsigned.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable

from rucola.errors import ConfigError
from rucola.protocol.command import decode_frame
from rucola.protocol.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGN_NONCE,
    SIGN_TARGET,
    SIGN_TIME,
    SIGNATURE,
    SIGNATURE_V2,
    legacy_signature,
    v2_signature,
)


class RequestSigner:
    """Credentials of one client.

    Args:
        access_key: name of the account.
        secret_key: its secret, which never leaves this object.
        security_token: sent and signed if it is not empty.
        version: 1 for the signature that every broker knows; 2 for Rucola's own, which cannot be replayed.
        wall_ms: returns the time for version 2.

    Raises:
        ConfigError: one of the two keys is empty.
    """

    def __init__(
        self, access_key: str, secret_key: str, security_token: str, version: int, wall_ms: Callable[[], int]
    ) -> None:
        if not access_key or not secret_key:
            missing = "secretKey" if access_key else "accessKey"
            raise ConfigError(missing, "", "both accessKey and secretKey, or neither")
        self._access_key = access_key
        self._secret_key = secret_key.encode()
        self._security_token = security_token
        self._version = version
        self._wall_ms = wall_ms
        self._session = secrets.token_hex(16)
        self._numbers = itertools.count(1)

    def apart(self) -> RequestSigner:
        """A signer for another connection. A server accepts the numbers of version 2 in the order of one connection, or
        nearly so, and two connections need not keep theirs.
        """
        if self._version == 1:
            return self
        return RequestSigner(
            self._access_key, self._secret_key.decode(), self._security_token, self._version, self._wall_ms
        )

    def sign(self, frame: bytes, address: str) -> bytes:
        """The request ``frame`` to the server ``address``, with the fields that identify its sender."""
        command = decode_frame(frame)
        fields = command.ext_fields
        fields[ACCESS_KEY] = self._access_key
        if self._security_token:
            fields[SECURITY_TOKEN] = self._security_token
        if self._version == 1:
            signature = legacy_signature(self._secret_key, fields, command.body, command.version)
            fields[SIGNATURE] = signature.decode("ascii")
        else:
            fields[SIGN_TARGET] = address
            fields[SIGN_TIME] = str(self._wall_ms())
            fields[SIGN_NONCE] = f"{self._session}.{next(self._numbers)}"
            signature = v2_signature(self._secret_key, command.code, fields, command.body)
            fields[SIGNATURE_V2] = signature.decode("ascii")
        return command.encode()
