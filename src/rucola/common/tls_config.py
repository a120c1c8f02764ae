"""TLS options of a port, for broker and name server. RocketMQ sets them with the system properties ``tls.server.*``."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.options import option
from rucola.errors import ConfigError


@dataclass(frozen=True)
class TlsConfig:
    """Base of configuration classes for a port that can use TLS; ``__post_init__`` must call ``check_tls``."""

    tls_mode: str = option(
        "tlsMode",
        "disabled",
        "Whether the port takes TLS (`enforcing`), plain connections (`disabled`) or both (`permissive`). "
        "RocketMQ: `tls.server.mode`.",
        choices=("disabled", "permissive", "enforcing"),
    )
    tls_cert_path: str = option(
        "tlsCertPath",
        "",
        "PEM file with the server's certificate, followed by the certificates that signed it. RocketMQ: "
        "`tls.server.certPath`.",
    )
    tls_key_path: str = option(
        "tlsKeyPath", "", "PEM file with the private key of the certificate. RocketMQ: `tls.server.keyPath`."
    )
    tls_need_client_auth: str = option(
        "tlsNeedClientAuth",
        "none",
        "Whether clients must show a certificate. RocketMQ: `tls.server.need.client.auth`.",
        choices=("none", "optional", "require"),
    )
    tls_trust_cert_path: str = option(
        "tlsTrustCertPath",
        "",
        "PEM file with the authorities that may sign certificates of clients. RocketMQ: `tls.server.trustCertPath`.",
    )

    def check_tls(self) -> None:
        """Raises ``ConfigError`` if a file that the mode needs is not set."""
        if self.tls_mode != "disabled":
            for key, path in (("tlsCertPath", self.tls_cert_path), ("tlsKeyPath", self.tls_key_path)):
                if not path:
                    raise ConfigError(key, "", f"a PEM file, because tlsMode={self.tls_mode}")
            if self.tls_need_client_auth != "none" and not self.tls_trust_cert_path:
                raise ConfigError(
                    "tlsTrustCertPath", "", f"a PEM file, because tlsNeedClientAuth={self.tls_need_client_auth}"
                )
