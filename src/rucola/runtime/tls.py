"""Creates TLS contexts: version 1.2 or later, the library's ciphers, servers always verified.

There is no test mode, no generated certificate and no way to switch verification off (security.md S-47).
"""

from __future__ import annotations

import ssl

from rucola.errors import ConfigError
from rucola.runtime.server_handshake import ServerContext


def server_context(
    cert_path: str, key_path: str, trust_path: str, client_auth: str, trust_key: str = "tlsTrustCertPath"
) -> ssl.SSLContext:
    """Returns the context for a listening port.

    Args:
        cert_path: PEM file with the server's certificate and its chain.
        key_path: PEM file with its key.
        trust_path: PEM file with the authorities for clients' certificates; empty with ``client_auth="none"``.
        client_auth: ``none``, ``optional`` or ``require``.
        trust_key: option that names ``trust_path``, for the error.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_chain(context, cert_path, key_path, "tlsCertPath")
    if client_auth != "none":
        _load_trust(context, trust_path, trust_key)
        context.verify_mode = ssl.CERT_REQUIRED if client_auth == "require" else ssl.CERT_OPTIONAL
    return context


def client_context(trust_path: str, cert_path: str = "", key_path: str = "") -> ssl.SSLContext:
    """Returns the context for connections to servers. Their certificates must be signed by an authority in
    ``trust_path`` and contain the server's host name.

    Args:
        trust_path: PEM file with the authorities for servers' certificates; empty for the authorities of the system.
        cert_path: PEM file with the client's own certificate; empty for none.
        key_path: its key.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if trust_path:
        _load_trust(context, trust_path, "tlsClientTrustCertPath")
    else:
        context.load_default_certs()
    if cert_path:
        _load_chain(context, cert_path, key_path, "tlsClientCertPath")
    return context


def pinned_context(cert_path: str) -> ssl.SSLContext:
    """Returns the context for connections to servers that have exactly the certificate in ``cert_path``, under any host
    name.

    Raises:
        ConfigError: the file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # comparing the certificate is stricter than comparing a host name
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load_trust(context, cert_path, "tlsCertPath")
    return context


def peer_context(trust_path: str, cert_path: str, key_path: str) -> ssl.SSLContext:
    """Returns the context for connections from a server to the servers of its cluster: ``client_context`` if there is a
    ``trust_path``, otherwise ``pinned_context``, because all of them have the same certificate.

    Raises:
        ConfigError: a file cannot be used.
    """
    return client_context(trust_path, cert_path, key_path) if trust_path else pinned_context(cert_path)


def _load_chain(context: ssl.SSLContext, cert_path: str, key_path: str, key: str) -> None:
    try:
        context.load_cert_chain(cert_path, key_path or None, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is a subclass of OSError
        raise ConfigError(key, cert_path, f"a PEM certificate with its unencrypted key ({_reason(error)})") from None


def _load_trust(context: ssl.SSLContext, path: str, key: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(key, path, f"a PEM file with certificates ({_reason(error)})") from None


def _no_password() -> str:
    """Refuses an encrypted key, because a server must not wait at a prompt."""
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
