"""Account and encryption of a query's broker connections. Spark's tasks get the secrets, but logs, errors and ``repr``
do not show them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from rucola.errors import ConfigError

if TYPE_CHECKING:
    from rucola.client.config import ClientConfig

C = TypeVar("C", bound="ClientConfig")

HIDDEN = "***"
_SECRET_NAME = re.compile("secret|password|passwd|token|credential|access[._-]?key", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A secret text. ``repr`` and ``str`` hide the text; pickles contain it, because Spark's tasks need it."""

    _text: str

    def reveal(self) -> str:
        """The text."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN if self._text else "''"

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class Access:
    """Account and encryption of a connection; without an account, the fields of the account are empty."""

    access_key: str = ""
    secret_key: Secret = Secret("")
    security_token: Secret = Secret("")
    use_tls: bool = False
    ca_certificate: str = ""

    def __post_init__(self) -> None:
        if bool(self.access_key) != bool(self.secret_key.reveal()):
            raise ConfigError("accessKey, secretKey", "one", "both or neither")
        if self.security_token.reveal() and not self.access_key:
            raise ConfigError("securityToken", HIDDEN, "only together with accessKey and secretKey")
        if self.ca_certificate and not self.use_tls:
            raise ConfigError("caCertificate", self.ca_certificate, "with useTLS=true only")


def shown(name: str, value: str) -> str:
    """Returns ``value`` for an error text, or ``HIDDEN`` if ``name`` looks like the name of a secret.

    ``name`` may be an option that does not exist.
    """
    return HIDDEN if _SECRET_NAME.search(name) else value


def with_access(config: C, access: Access) -> C:
    """Returns a copy of a client's ``config`` that has the account and encryption of ``access``."""
    return replace(
        config,
        access_key=access.access_key,
        secret_key=access.secret_key.reveal(),
        security_token=access.security_token.reveal(),
        use_tls=access.use_tls,
        tls_trust_cert_path=access.ca_certificate,
    )


@contextmanager
def names_of_options() -> Iterator[None]:
    """Inside the ``with`` block, the client's errors state the name of the user's option, not of the client's setting.

    Raises:
        ConfigError: an error of the client about a setting, with the name of the user's option.
    """
    try:
        yield
    except ConfigError as error:
        if error.key != "tlsClientTrustCertPath":
            raise
        raise ConfigError("caCertificate", error.value, error.allowed) from error
