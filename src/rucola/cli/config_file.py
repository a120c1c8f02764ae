"""Configuration files of the servers: Java properties."""

from __future__ import annotations

from rucola.common.java import parse_properties
from rucola.errors import ConfigError, MissingFileError
from rucola.runtime.files import Files


def read_broker_conf(path: str | None) -> dict[str, str]:
    """The entries of a ``broker.conf``; empty without a path.

    Raises:
        ConfigError: the file does not exist, or is not a properties file.
    """
    return read_properties(path) if path is not None else {}


def read_properties(path: str) -> dict[str, str]:
    """The entries of a properties file.

    Raises:
        ConfigError: the file does not exist, or is not a properties file.
    """
    if Files().is_directory(path):
        raise MissingFileError("--config", path, "is a directory")
    content = Files().read_file(path)
    if content is None:
        raise MissingFileError("--config", path)
    try:
        return parse_properties(content.decode())
    except ValueError as error:  # not UTF-8, or an invalid escape
        raise ConfigError("--config", path, f"a Java properties file in UTF-8 ({error})") from None


def put(values: dict[str, str], key: str, value: str | int | None) -> None:
    """Sets ``key`` unless ``value`` is None."""
    if value is not None:
        values[key] = str(value)
