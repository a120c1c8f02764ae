"""A certificate that signs itself, for clients of RocketMQ 5 that use TLS unless told otherwise and verify nothing.

It protects against those who only listen. It is made at the first handshake, and its key is in memory only.
``kept_certificate`` has one that stays the same. Whoever has a certificate gives it with ``tlsCertPath`` and
``tlsKeyPath``.

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
from typing import TYPE_CHECKING, Final

from rucola.errors import ConfigError
from rucola.remoting.tls_listener import ServerTls
from rucola.runtime.extras import GRPC, require
from rucola.runtime.tls import server_context

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, SubjectAlternativeName

_NAMES = ("localhost", "127.0.0.1", "::1")
VALID_DAYS: Final = 365
_EARLIER = datetime.timedelta(hours=1)
"""For clients whose clock is behind."""
_RENEWED: Final = datetime.timedelta(days=30)
"""A given certificate that ends so soon is replaced."""
_UNUSABLE: Final = 3
"""Exit status of the child process if the given certificate cannot be used."""


class UnusableCertificateError(ConfigError):
    """What was given is no key with its certificate."""


def self_signed_tls(hosts: Sequence[str] = ()) -> ServerTls:
    """Returns settings with which plain connections are accepted, and encrypted ones with a certificate of our own.

    Args:
        hosts: names and addresses of this server, beside those of the loopback interface.

    Raises:
        ConfigError: this system cannot give OpenSSL a key from memory.
        MissingExtraError: the package ``cryptography`` is missing.
    """
    check_system()
    names = names_of(hosts)
    return ServerTls(lambda: context_of(pem_of(names)), permissive=True)


def check_system() -> None:
    """Checks whether a certificate can be made and used here.

    Raises:
        ConfigError: this system cannot give OpenSSL a key from memory.
        MissingExtraError: the package ``cryptography`` is missing.
    """
    require(GRPC, "a self-signed certificate")
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            "tlsCertPath", "", "a PEM file, and its key in tlsKeyPath, as this system has no memfd_create"
        )


def names_of(hosts: Sequence[str]) -> Sequence[str]:
    """The names that a certificate needs: those of the loopback interface, and ``hosts``."""
    return tuple(dict.fromkeys([*_NAMES, *hosts]))


def context_of(pem: bytes) -> ssl.SSLContext:
    """The context for a key and its certificate."""
    # OpenSSL's wrapper in Python reads keys from files only; this one is in memory and has no name.
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, pem)
        path = f"/proc/self/fd/{file}"
        return server_context(path, path, "", "none")
    finally:
        os.close(file)


def pem_of(names: Sequence[str], given: bytes = b"", valid_days: int = VALID_DAYS) -> bytes:
    """Returns a key and its certificate, in about 0.2 s: the given ones, if they are there and good for a while and for
    these names; the given key with another certificate; or new ones.

    Args:
        names: names and addresses of the server.
        given: a key and its certificate; empty for new ones.
        valid_days: how long a new certificate is good.

    Raises:
        UnusableCertificateError: ``given`` is something else.
        ConfigError: no certificate can be made.
    """
    command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()", str(valid_days), *names]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        return subprocess.run(command, env=environment, input=given, capture_output=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        if error.returncode == _UNUSABLE:
            raise UnusableCertificateError("tlsCertPath", "", "a key with its certificate") from None
        raise ConfigError("tlsCertPath", "", f"a PEM file, as no certificate could be made ({error})") from error
    except OSError as error:
        raise ConfigError("tlsCertPath", "", f"a PEM file, as no certificate could be made ({error})") from error


def main() -> None:
    """Writes what ``pem_of`` returns to standard output; standard input has what was given."""
    given, valid = sys.stdin.buffer.read(), datetime.timedelta(days=int(sys.argv[1]))
    try:
        pem = _kept_pem(given, sys.argv[2:], valid) if given else _new_pem(sys.argv[2:], valid)
    except (ValueError, TypeError):
        sys.exit(_UNUSABLE)
    sys.stdout.buffer.write(pem)


def _new_pem(names: Sequence[str], valid: datetime.timedelta) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec

    return _signed(ec.generate_private_key(ec.SECP256R1()), names, valid)


def _kept_pem(given: bytes, names: Sequence[str], valid: datetime.timedelta) -> bytes:
    """Raises ``ValueError`` or ``TypeError`` if ``given`` is no key with its certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_pem_private_key(given, None)
    certificate = x509.load_pem_x509_certificate(given)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise ValueError
    has = [] if (found := _alternatives(certificate)) is None else list(found)
    ends_soon = certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC) + _RENEWED
    missing = [name for name in names if _general_name(name) not in has]
    if not ends_soon and not missing:
        return given
    return _signed(key, [*(str(name.value) for name in has), *missing], valid)


def _alternatives(certificate: Certificate) -> SubjectAlternativeName | None:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _signed(key: EllipticCurvePrivateKey, names: Sequence[str], valid: datetime.timedelta) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Rucola")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + valid)
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
