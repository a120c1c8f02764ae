"""Certificates for servers of one run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.peers.packages import PeerError, need

AUTHORITY, CERTIFICATE, KEY = "authority.pem", "server.pem", "server.key"
"""Names of the files that ``make_certificates`` writes."""


def make_certificates(folder: Path) -> None:
    """Makes a certificate authority, and a certificate for 127.0.0.1."""
    _openssl(folder, "-keyout", "authority.key", "-out", AUTHORITY, "-subj", "/CN=authority")
    make_certificate(folder, CERTIFICATE, KEY, "/CN=server")


def make_certificate(folder: Path, certificate: str, key: str, subject: str) -> None:
    """Makes a certificate for 127.0.0.1, signed by the authority in ``folder``; ``subject`` as in ``/CN=server``."""
    signed = ["-CA", AUTHORITY, "-CAkey", "authority.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    signed += ["-addext", "subjectAltName=IP:127.0.0.1"]
    _openssl(folder, "-keyout", key, "-out", certificate, "-subj", subject, *signed)


def _openssl(folder: Path, *arguments: str) -> None:
    openssl = need("openssl", "install OpenSSL to make certificates for the tests")
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise PeerError(f"openssl failed: {done.stderr[-500:]}")
