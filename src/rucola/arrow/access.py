"""How a query is let in by brokers: account and encryption. Secrets travel to the tasks and are shown nowhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rucola.errors import ConfigError

HIDDEN = "***"
_SECRET_NAME = re.compile("secret|password|passwd|token|credential|access[._-]?key", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that ``repr`` and ``str`` do not show. Pickles hold it, as the tasks need it."""

    _text: str

    def reveal(self) -> str:
        """The text."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN if self._text else "''"

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class Access:
    """Account and encryption; the account is empty for none."""

    access_key: str = ""
    secret_key: Secret = Secret("")
    security_token: Secret = Secret("")
    use_tls: bool = False
    ca_certificate: str = ""

    def __post_init__(self) -> None:
        if bool(self.access_key) != bool(self.secret_key.reveal()):
            raise ConfigError("accessKey, secretKey", "one", "both or neither")
        if self.security_token.reveal() and not self.access_key:
            raise ConfigError("securityToken", HIDDEN, "with accessKey and secretKey only")
        if self.ca_certificate and not self.use_tls:
            raise ConfigError("caCertificate", self.ca_certificate, "with useTLS=true only")


def shown(name: str, value: str) -> str:
    """``value`` of option ``name`` for a message: hidden when the name, known or not, is that of a secret."""
    return HIDDEN if _SECRET_NAME.search(name) else value
