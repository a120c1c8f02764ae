"""Certificates for servers of one run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.peers.packages import PeerError, need

AUTHORITY, CERTIFICATE, KEY = "authority.pem", "server.pem", "server.key"
"""Names of the files that ``make_certificates`` writes."""


def make_certificates(folder: Path) -> None:
    """Makes a certificate authority, and a certificate for 127.0.0.1."""
    openssl = need("openssl", "install OpenSSL to make certificates for the tests")
    common = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    authority = ["-keyout", "authority.key", "-out", AUTHORITY, "-subj", "/CN=authority"]
    server = ["-keyout", KEY, "-out", CERTIFICATE, "-subj", "/CN=server", "-CA", AUTHORITY]
    server += ["-CAkey", "authority.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    server += ["-addext", "subjectAltName=IP:127.0.0.1"]
    for arguments in (authority, server):
        done = subprocess.run(
            [*common, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            raise PeerError(f"openssl failed: {done.stderr[-500:]}")
