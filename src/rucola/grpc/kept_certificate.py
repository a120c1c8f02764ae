"""A certificate that signs itself and stays the same, so that clients may pin it.

Key and certificate are in one file, which is replaced as a whole and which only its owner can read. Another file has
the certificate alone, for clients. A certificate that ends, or lacks a name, is replaced by another one with the same
key. Whoever could put files into the directory could replace the key; such a directory is refused.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Final

from rucola.errors import ConfigError, DiskError, DiskFullError, StoreLockedError
from rucola.grpc.self_signed import UnusableCertificateError, check_system, context_of, names_of, pem_of
from rucola.remoting.tls_listener import ServerTls
from rucola.runtime.files import DirectoryLock, Files
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

OPTION: Final = "grpcTlsDir"
ARGUMENT: Final = "--tls-dir"
KEY_FILE: Final = "grpc.pem"
CERTIFICATE_FILE: Final = "grpc-certificate.pem"
_VALID_DAYS: Final = 3650
_BYTES_MAX: Final = 64 * 1024
_PAUSE_S: Final = 0.05
_PAUSES_MAX: Final = 200
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\s", re.DOTALL)


def kept_tls(
    directory: str, hosts: Sequence[str] = (), files: Files | None = None, pause: Callable[[float], None] = time.sleep
) -> ServerTls:
    """Returns settings with which plain connections are accepted, and encrypted ones with the certificate in a
    directory. The first server makes the directory and the certificate.

    Args:
        directory: path of the directory; its parent must exist.
        hosts: names and addresses of this server, beside those of the loopback interface.
        files: access to the disk.
        pause: waits for so many seconds, while another process makes the certificate.

    Raises:
        ConfigError: the directory or what is in it cannot be used; nothing outside of it was touched.
        DiskFullError: there is no space for the certificate.
        MissingExtraError: the package ``cryptography`` is missing.
    """
    check_system()
    files = files or Files()
    path = files.expand(directory)
    try:
        files.hold_private(path)
        lock = _locked(files, path, pause)
        try:
            pem = _kept(files, path, names_of(hosts))
        finally:
            lock.release()
        return ServerTls(context_of(pem), permissive=True)
    except DiskFullError:
        raise
    except DiskError as error:
        allowed = f"a directory of this user, into which nobody else can write ({error})"
        raise ConfigError(OPTION, directory, allowed, ARGUMENT) from None


def _locked(files: Files, path: str, pause: Callable[[float], None]) -> DirectoryLock:
    for _ in range(_PAUSES_MAX):
        try:
            return files.lock_directory(path)
        except StoreLockedError:
            pause(_PAUSE_S)
    raise ConfigError(OPTION, path, "a directory that no other process has locked for long", ARGUMENT)


def _kept(files: Files, path: str, names: Sequence[str]) -> bytes:
    """Key and certificate in the directory, which is locked."""
    file = f"{path}/{KEY_FILE}"
    given = files.read_file(file, _BYTES_MAX)
    if given is not None and not files.is_private(file):
        raise ConfigError(
            OPTION, path, f"a directory whose {KEY_FILE} only its owner can read; its key may be known", ARGUMENT
        )
    try:
        if given == b"":
            raise UnusableCertificateError(OPTION, path, "")
        pem = pem_of(names, given or b"", _VALID_DAYS)
    except UnusableCertificateError:
        allowed = f"a directory whose {KEY_FILE} is a key with its certificate; without the file, another one is made"
        raise ConfigError(OPTION, path, allowed, ARGUMENT) from None
    if pem != given:
        files.replace_file(file, pem, private=True)
        event(logger, logging.WARNING if given else logging.INFO, "certificate made", path=file, new_key=not given)
    certificate = b"".join(_CERTIFICATE.findall(pem))
    if files.read_file(f"{path}/{CERTIFICATE_FILE}", _BYTES_MAX) != certificate:
        files.replace_file(f"{path}/{CERTIFICATE_FILE}", certificate)
    return pem
