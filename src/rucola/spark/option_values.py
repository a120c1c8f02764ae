"""Converts Spark's options, whose names may have any case and whose values are texts, to checked values.

An unknown name is refused, so that a typing error never becomes a silent default. The error names the most similar
option, or all options if none is similar.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from rucola.arrow.access import Access, Secret, shown
from rucola.errors import ConfigError


@dataclass(frozen=True)
class SparkOption:
    """One option, as the documentation shows it."""

    name: str
    default: str
    meaning: str


ACCESS_OPTIONS: tuple[SparkOption, ...] = (
    SparkOption("accessKey", "", "name of the account; every request is signed with `secretKey`"),
    SparkOption("secretKey", "", "secret of this account"),
    SparkOption("securityToken", "", "token that is sent and signed with each request"),
    SparkOption("useTLS", "false", "encrypt connections and verify the servers' certificates"),
    SparkOption(
        "caCertificate",
        "",
        "PEM file with the authorities that may sign the servers' certificates; it must exist on the driver and every "
        "executor; the default is the system's authorities",
    ),
)
SIMILAR = 0.7
"""A name that is at least this similar to a known one counts as mistyped; 1 means equal."""
_OF_TABLES = frozenset({"owner", "location", "provider", "external", "is_managed_location"})
"""Properties that Spark adds to those of a table."""
_TABLE_OPTION = "option."
"""How Spark's properties of a table begin that stand for its options."""
ACCESS_NAMES = ("accessKey", "secretKey", "securityToken", "caCertificate")


def check_passed_on(given: Mapping[str, str], advice: str) -> None:
    """Refuses the options of a table. Spark's catalog passes them on under other names and together with properties
    of the table, or not at all.

    Args:
        given: the options as Spark passes them on.
        advice: what works instead.

    Raises:
        ConfigError: there are no options, or they are those of a table.
    """
    if not given or any(name.lower() in _OF_TABLES or name.lower().startswith(_TABLE_OPTION) for name in given):
        raise ConfigError("options", "none" if not given else "those of CREATE TABLE", advice)


def known_values(
    given: Mapping[str, str], defaults: Mapping[str, str], aliases: Mapping[str, str], elsewhere: Mapping[str, str]
) -> dict[str, str]:
    """Returns the value of every known option, given or default, by the option's name in ``defaults``.

    Args:
        given: the user's options.
        defaults: every known option.
        aliases: for each alias in lower case, the option that it stands for.
        elsewhere: for each option name of other sources and sinks, in lower case, a hint for the error.

    Raises:
        ConfigError: a name is unknown, or is given twice with different values.
    """
    known = {name.lower(): name for name in defaults} | dict(aliases)
    values = dict(defaults)
    seen: dict[str, str] = {}
    for key, value in given.items():
        name = known.get(key.lower())
        if name is None and key.lower() in elsewhere:
            raise ConfigError(key, shown(key, value), f"known options only; instead, use {elsewhere[key.lower()]}")
        if name is None:
            raise ConfigError(key, shown(key, value), f"known options only; {_hint(key, known)}")
        if name in seen and seen[name] != value:
            raise ConfigError(name, shown(name, value), f"one value (it is also given as {shown(name, seen[name])!r})")
        seen[name] = value
        values[name] = value.strip()
    return values


def _hint(key: str, known: Mapping[str, str]) -> str:
    """A hint with the known name nearest to ``key``, or with all known names if none is near."""
    nearest = difflib.get_close_matches(key.lower(), list(known), n=1, cutoff=SIMILAR)
    return f"the nearest is {known[nearest[0]]}" if nearest else "they are " + ", ".join(sorted(set(known.values())))


def access(values: Mapping[str, str]) -> Access:
    """Account and encryption."""
    return Access(
        values["accessKey"],
        Secret(values["secretKey"]),
        Secret(values["securityToken"]),
        flag(values, "useTLS"),
        values["caCertificate"],
    )


def flag(values: Mapping[str, str], name: str) -> bool:
    """True or false."""
    value = values[name].lower()
    if value not in ("true", "false"):
        raise ConfigError(name, values[name], "true or false")
    return value == "true"


def listed(text: str) -> tuple[str, ...]:
    """The names in a list separated by commas; empty ones do not count."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def number(values: Mapping[str, str], name: str, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``."""
    text = values[name]
    if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise ConfigError(name, text, f"a whole number from {least} to {most}")
    return int(text)


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}


def milliseconds(values: Mapping[str, str], name: str) -> int:
    """A time in the form of Spark's options: a whole number and a unit; milliseconds if there is no unit."""
    found = re.fullmatch(r"([0-9]{1,12}) ?(ms|s|m|min|h|d|)", values[name].lower())
    if found is None:
        raise ConfigError(name, values[name], "a whole number and ms, s, m, h or d, such as 15m")
    return int(found[1]) * _UNITS_MS[found[2]]


def optional_number(values: Mapping[str, str], name: str) -> int | None:
    """A number of at least 1, or None if the option is not given."""
    return number(values, name, 1, 1 << 62) if values[name] else None


E = TypeVar("E", bound=StrEnum)


def choice(values: Mapping[str, str], name: str, kind: type[E]) -> E:
    """One of the values of ``kind``."""
    try:
        return kind(values[name].lower())
    except ValueError as error:
        raise ConfigError(name, values[name], " or ".join(kind)) from error
