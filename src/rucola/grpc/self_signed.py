"""A certificate that signs itself, for clients of RocketMQ 5 that use TLS unless told otherwise and verify nothing.

It protects against those who only listen. It is made at the first handshake, and its key is in memory only: whoever
wants clients to know the server gives it ``tlsCertPath`` and ``tlsKeyPath``.

A child process makes it, because ``cryptography`` would take 13 MB of the server's memory for good.
"""

from __future__ import annotations

import datetime
import os
import ssl
import subprocess
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

from rucola.errors import ConfigError
from rucola.remoting.tls_listener import ServerTls
from rucola.runtime.extras import GRPC, require
from rucola.runtime.tls import server_context

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

_NAMES = ("localhost", "127.0.0.1", "::1")
_VALID = datetime.timedelta(days=365)
_EARLIER = datetime.timedelta(hours=1)
"""For clients whose clock is behind."""


def self_signed_tls(hosts: Sequence[str] = ()) -> ServerTls:
    """Returns settings with which plain connections are accepted, and encrypted ones with a certificate of our own.

    Args:
        hosts: names and addresses of this server, beside those of the loopback interface.

    Raises:
        ConfigError: this system cannot give OpenSSL a key from memory.
        MissingExtraError: the package ``cryptography`` is missing.
    """
    require(GRPC, "a self-signed certificate")
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            "tlsCertPath", "", "a PEM file, and its key in tlsKeyPath, as this system has no memfd_create"
        )
    names = tuple(dict.fromkeys([*_NAMES, *hosts]))
    return ServerTls(lambda: _context(names), permissive=True)


def _context(names: Sequence[str]) -> ssl.SSLContext:
    """Makes key and certificate, in about 0.2 s."""
    pem = _pem(names)
    # OpenSSL's wrapper in Python reads keys from files only; this one is in memory and has no name.
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, pem)
        path = f"/proc/self/fd/{file}"
        return server_context(path, path, "", "none")
    finally:
        os.close(file)


def _pem(names: Sequence[str]) -> bytes:
    """Returns a new key and its certificate.

    Raises:
        ConfigError: they cannot be made.
    """
    command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()", *names]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError("tlsCertPath", "", f"a PEM file, as no certificate could be made ({error})") from error


def main() -> None:
    """Writes a key and its certificate for the names on the command line to standard output."""
    sys.stdout.buffer.write(_new_pem(sys.argv[1:]))


def _new_pem(names: Sequence[str]) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Rucola")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def _general_name(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name.partition("%")[0]))
    except ValueError:
        return x509.DNSName(name)
