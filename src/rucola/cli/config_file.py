"""Configuration files of the servers: Java properties."""

from __future__ import annotations

from typing import TypeVar

from rucola.common.java import parse_properties
from rucola.common.options import ConfigProblems, options_of, parse_options, unknown_keys
from rucola.errors import ConfigError, MissingFileError
from rucola.runtime.files import Files

T = TypeVar("T")


def read_config(path: str | None, kind: type[T], server: str, **given: str | int | None) -> T:
    """The options of a server that allows no keys but its own.

    Args:
        path: its configuration file; None if it has none.
        kind: the class of the options.
        server: what it is, for errors.
        given: values of the command line, which replace those in the file, by key; None for those that are not given.

    Raises:
        ConfigError: an entry is not allowed; ``OptionsError`` with all errors if there are several.
    """
    values = read_properties(path) if path is not None else {}
    for key, value in given.items():
        put(values, key, value)
    problems = ConfigProblems()
    for key in unknown_keys(values, kind):
        allowed = ", ".join(entry.key for entry in options_of(kind))
        problems.add(ConfigError(key, values[key], f"a key of the {server}: {allowed}"))
    with problems:
        config = parse_options(kind, values)
    problems.report()
    return config


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
