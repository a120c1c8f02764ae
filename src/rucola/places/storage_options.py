"""How object stores are reached: options, or the environment's usual chain.

The names of options are those of deltalake. Values may be secrets, so no text ever has them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rucola.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow.fs as pafs

S3_OPTIONS = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL",
)  # fmt: skip
GCS_OPTIONS = ("GOOGLE_APPLICATION_CREDENTIALS",)
AZURE_OPTIONS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN")
OPTIONS = {"s3": S3_OPTIONS, "gs": GCS_OPTIONS, "abfss": AZURE_OPTIONS}
"""The options of each kind of object store. A missing one is taken from the variable of the environment."""
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY",
           "AZURE_STORAGE_SAS_TOKEN")  # fmt: skip
UNSAFE = "AWS_S3_ALLOW_UNSAFE_RENAME"
ATTEMPTS_MAX = 5
"""Attempts at a request of PyArrow; more would take minutes, since it waits longer each time."""
REGION = "us-east-1"
"""Region of servers that have an address of their own and no regions."""
_SIGNED = re.compile(r"(https?://[^\s?\"']+)\?[^\s\"')]+")
_USER = re.compile(r"((?:https?|s3a?|gs)://)[^\s/@]+@", re.IGNORECASE)
_MASK = "***"


def without_user(text: str) -> str:
    """A text whose URLs have no names and passwords."""
    return _USER.sub(rf"\1{_MASK}@", text)


class StorageOptions:
    """The options of an object store. Tasks get them pickled; what is not given, they take from their environment.

    Args:
        scheme: a key of ``OPTIONS``.
        given: what the user gave; names may be written in small letters.

    Raises:
        ConfigError: an option is unknown, or commits would not be safe.
    """

    def __init__(self, scheme: str, given: Mapping[str, str]) -> None:
        self._scheme = scheme
        self._given = {name.upper(): value for name, value in given.items()}
        if unknown := sorted(self._given.keys() - set(OPTIONS[scheme])):
            raise ConfigError("storage_options", ", ".join(unknown), ", ".join(OPTIONS[scheme]))
        if os.environ.get(UNSAFE, "").lower() in ("1", "true", "yes", "on"):
            raise ConfigError(UNSAFE, "set", "no value: with renames, of two runs one would lose its commit")

    def __repr__(self) -> str:
        return f"StorageOptions({self._scheme}, {sorted(self._given)})"

    def value(self, name: str) -> str | None:
        """An option, or the variable of the environment."""
        return self._given.get(name) or os.environ.get(name) or None

    def for_libraries(self) -> dict[str, str]:
        """The options for deltalake."""
        found = {name: value for name in OPTIONS[self._scheme] if (value := self.value(name)) is not None}
        if self._scheme == "s3":
            found["AWS_REGION"] = self.region()
            found["AWS_ALLOW_HTTP"] = str(found.get("AWS_ENDPOINT_URL", "").startswith("http://")).lower()
            found["AWS_CONDITIONAL_PUT"] = "etag"
        return found

    def filesystem(self) -> pafs.FileSystem:
        """The access to data files."""
        import pyarrow.fs as pafs

        if self._scheme == "gs":
            return pafs.GcsFileSystem()
        if self._scheme == "abfss":
            name, key, token = (self.value(option) for option in AZURE_OPTIONS)
            return pafs.AzureFileSystem(name or "", account_key=key, sas_token=token)
        endpoint = urlsplit(self.value("AWS_ENDPOINT_URL") or "")
        return pafs.S3FileSystem(
            access_key=self.value("AWS_ACCESS_KEY_ID"),
            secret_key=self.value("AWS_SECRET_ACCESS_KEY"),
            session_token=self.value("AWS_SESSION_TOKEN"),
            region=self.region(),
            endpoint_override=endpoint.netloc or None,
            scheme=endpoint.scheme or "https",
            allow_delayed_open=True,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS_MAX),
        )

    def region(self) -> str:
        """The region of a bucket, if it is told; else the first one."""
        return self.value("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or REGION

    def hidden(self, text: str) -> str:
        """A text of a library without secrets: keys, users in URLs, and the queries of URLs, which may be signed."""
        for name in SECRETS:
            if secret := self.value(name):
                text = text.replace(secret, _MASK)
        return without_user(_SIGNED.sub(rf"\1?{_MASK}", text))
