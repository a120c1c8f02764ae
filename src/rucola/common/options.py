"""Options: a frozen dataclass whose fields carry RocketMQ's key, range, unit and a description.

One declaration is used to parse (``parse_options``), to check and to generate the documentation (``options_table``)::

    @dataclass(frozen=True)
    class StoreConfig:
        max_message_size: int = option("maxMessageSize", 4194304, "Largest body.", unit="bytes", minimum=10)

An invalid value raises ``ConfigError`` with key, value and the allowed values; a default never replaces it silently.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from rucola.errors import ConfigError, OptionsError

SECRET_SHOWN = "******"
_SECRET = re.compile("password|secret|credential|authenticationUser", re.IGNORECASE)
"""Keys of options whose values are never shown."""
_METADATA_KEY = "rucola_option"
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """The description of one option.

    Attributes:
        key: RocketMQ's name in ``broker.conf``.
        default: the value if the option is not set; its type is the option's type (int, bool, float, str or an Enum).
        text: one sentence for the documentation.
        unit: for example ``"bytes"`` or ``"ms"``; empty without a unit.
        minimum: smallest allowed number, None without a limit.
        maximum: largest allowed number, None without a limit.
        choices: the allowed strings; empty if any string is allowed.
        name: name of the dataclass field, and so of the Python argument.
        secret: whether the value is never shown.
        reason: text for error messages: why no other value is allowed; empty if the range says enough.
    """

    key: str
    default: Any
    text: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    name: str = ""
    secret: bool = False
    reason: str = ""

    def allowed(self) -> str:
        """Returns the allowed values as text, for error messages and the documentation."""
        return self._range() + (f", because {self.reason}" if self.reason else "")

    def _range(self) -> str:
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, Enum):
            return " or ".join(str(member.value) for member in type(self.default))
        if isinstance(self.default, int | float):
            if self.minimum is not None and self.minimum == self.maximum:
                return str(self.minimum)
            kind = "an integer" if isinstance(self.default, int) else "a number"
            low = f" from {self.minimum}" if self.minimum is not None else ""
            high = f" up to {self.maximum}" if self.maximum is not None else ""
            return f"{kind}{low}{high}{f' ({self.unit})' if self.unit else ''}"
        return " or ".join(self.choices) if self.choices else "any text"

    def limits(self) -> str:
        """Returns the allowed values in few words, for tables."""
        if isinstance(self.default, bool):
            return "`true`, `false`"
        if isinstance(self.default, Enum):
            return ", ".join(f"`{member.value}`" for member in type(self.default))
        if not isinstance(self.default, int | float):
            return ", ".join(f"`{choice}`" for choice in self.choices) or "text"
        low, high = (None if limit is None else f"{limit:,}" for limit in (self.minimum, self.maximum))
        if low is None or high is None:
            text = "any number" if low is high else f"at least {low}" if high is None else f"at most {high}"
        else:
            text = low if low == high else f"{low} to {high}"
        unit = "byte" if self.unit == "bytes" and text.endswith(" 1") else self.unit
        return f"{text} {unit}".strip()

    def parse(self, text: str) -> Any:
        """Converts ``text`` to the option's value.

        Raises:
            ConfigError: the text is not of the option's type, or out of range.
        """
        text = text.strip()
        value: Any = text
        if isinstance(self.default, bool):
            value = {"true": True, "false": False}.get(text.lower())
        elif isinstance(self.default, Enum):
            value = next((member for member in type(self.default) if member.value == text), None)
        elif isinstance(self.default, int | float):
            value = _number(text, type(self.default))
        if value is None:
            raise ConfigError(self.key, text, self.allowed())
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raises ``ConfigError`` unless ``value``, read from a text, is of the option's type and in its range."""
        if not self._accepts(value):
            raise ConfigError(self.key, str(value), self.allowed())

    def check_argument(self, value: Any) -> None:
        """Raises ``ConfigError`` unless ``value``, a Python argument, is of the option's type and in its range."""
        if not self._accepts(value):
            named = isinstance(self.default, Enum | bool)
            allowed = self.in_python(" or ") if named and not self.reason else self.allowed()
            raise ConfigError(self.key, str(value), allowed, self.name)

    def in_python(self, between: str = ", ") -> str:
        """Returns the allowed values of a Python argument in few words."""
        if isinstance(self.default, bool):
            return f"True{between}False"
        if isinstance(self.default, Enum):
            return between.join(map(in_code, type(self.default)))
        return self.limits().replace("`", "'")

    def _accepts(self, value: Any) -> bool:
        number = isinstance(self.default, int | float) and not isinstance(self.default, bool)
        good = isinstance(value, type(self.default)) and isinstance(value, bool) is isinstance(self.default, bool)
        if good and number:
            good = (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)
        if good and self.choices:
            good = value in self.choices
        if good and isinstance(value, str):
            good = is_text(value)
        return good

    def show(self, value: Any) -> str:
        """Returns ``value`` as a properties file states it; a secret is masked."""
        if self.secret and value:
            return "******"
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value.value) if isinstance(value, Enum) else str(value)


def is_text(value: str) -> bool:
    """Whether ``value`` can be encoded. Bytes of the environment or of a file name that are no UTF-8 become lone
    surrogates, which cannot.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def option(
    key: str,
    default: Any,
    text: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    reason: str = "",
) -> Any:
    """Returns a dataclass field that is an option; ``Option`` describes the arguments. A ``secret`` is left out of the
    ``repr``.
    """
    described = Option(key, default, text, unit, minimum, maximum, choices, secret=secret, reason=reason)
    return field(default=default, metadata={_METADATA_KEY: described}, repr=not secret)


class ConfigProblems:
    """Collects all problems of a configuration, so that they are reported together.

    Each ``with`` block may raise one ``ConfigError``, which is kept. Only the first problem of a key is kept.
    """

    def __init__(self) -> None:
        self._errors: dict[str, ConfigError] = {}

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, ConfigError):
            self.add(error)
            return True
        return False

    def add(self, error: ConfigError) -> None:
        """Adds one problem, or the problems of several options."""
        for one in error.errors if isinstance(error, OptionsError) else (error,):
            self._errors.setdefault(one.key, one)

    def report(self) -> None:
        """Raises ``ConfigError`` if there was one problem, ``OptionsError`` if there were several."""
        errors = tuple(self._errors.values())
        if errors:
            raise errors[0] if len(errors) == 1 else OptionsError(errors)


def options_of(config_class: type) -> list[Option]:
    """Returns the options of ``config_class``, in order of declaration."""
    return list(_options_of(config_class))


@cache
def _options_of(config_class: type) -> tuple[Option, ...]:
    return tuple(
        Option(**{**vars(entry.metadata[_METADATA_KEY]), "name": entry.name})
        for entry in fields(config_class)
        if _METADATA_KEY in entry.metadata
    )


def parse_options(config_class: type[T], values: Mapping[str, str]) -> T:
    """Creates an instance of ``config_class`` from ``values``, which maps RocketMQ's keys to texts. Keys that the class
    does not declare are ignored.

    Raises:
        ConfigError: a value is not allowed; if several values are not allowed, an ``OptionsError`` with all errors.
    """
    problems = ConfigProblems()
    parsed = {}
    for entry in options_of(config_class):
        if entry.key in values:
            with problems:
                parsed[entry.name] = entry.parse(values[entry.key])
    with problems:
        made = config_class(**parsed)
    problems.report()
    return made


def check_options(config: Any, *checks: Callable[[], None]) -> None:
    """Checks every option of ``config``, whose values are Python arguments; if all are allowed, calls each of
    ``checks``. For use in ``__post_init__``.

    Raises:
        ConfigError: a value is not allowed; if several values are not allowed, an ``OptionsError`` with all errors.
    """
    problems = ConfigProblems()
    for entry in options_of(type(config)):
        with problems:
            entry.check_argument(getattr(config, entry.name))
    problems.report()
    for check in checks:
        with problems:
            check()
    problems.report()


def checked_config(config: T | None, config_class: type[T]) -> T:
    """Returns ``config``, or the defaults if it is None.

    Raises:
        ConfigError: ``config`` is not an instance of ``config_class``.
    """
    if config is None:
        return config_class()
    if not isinstance(config, config_class):
        raise ConfigError("config", type(config).__name__, f"a {config_class.__name__}")
    return config


def documented(config_class: type[T]) -> type[T]:
    """Lists the options in the docstring of a dataclass, for ``help``; a decorator above ``@dataclass``."""
    config_class.__doc__ = _Help(config_class.__doc__ or "")  # type: ignore[assignment]
    return config_class


class _Help:
    """A docstring that is made when somebody reads it, so that an import does not take the time."""

    def __init__(self, summary: str) -> None:
        self._summary = summary

    def __get__(self, config: object, config_class: type) -> str:
        inherited = {entry.name for base in config_class.__mro__[1:-1] for entry in options_of(base)}
        entries = options_of(config_class)
        names = {entry.key: entry.name for entry in entries}
        lines = [self._summary, "", "Args:"]
        for entry in sorted(entries, key=lambda entry: entry.name in inherited):
            meaning = re.sub("`([^`]+)`", lambda found: names.get(found[1], found[1]), entry.text)
            text = f"{entry.name}: {meaning} [{entry.in_python()}; default {in_code(entry.default)}]"
            lines += textwrap.wrap(text, 110, initial_indent=" " * 4, subsequent_indent=" " * 8)
        return "\n".join(lines) + "\n"


def in_code(value: object) -> str:
    """Returns ``value`` as it is written in a program."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


def unknown_keys(values: Iterable[str], *config_classes: type) -> list[str]:
    """Returns the keys that none of ``config_classes`` declares, sorted."""
    known = {entry.key for config_class in config_classes for entry in options_of(config_class)}
    return sorted(set(values) - known)


def show_options(config: Any) -> dict[str, str]:
    """Maps RocketMQ's key of each option to its value as text, as in responses to requests for a configuration.

    Secrets appear as ``SECRET_SHOWN`` if they are set.
    """
    table = {}
    for entry in options_of(type(config)):
        text = entry.show(getattr(config, entry.name))
        table[entry.key] = SECRET_SHOWN if text and _SECRET.search(entry.key) else text
    return table


def change_options(config: Any, values: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Changes options of ``config``, which is in use. ``values`` maps RocketMQ's keys to the new values as text; either
    all new values are set or none.

    ``config`` is frozen, so this function is the only way to change an option. A change takes effect only for options
    that are read at each use; the caller must know which options these are.

    Returns:
        The old and the new value of each changed option, as text, by the option's key.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    known = {entry.key: entry for entry in options_of(type(config))}
    parsed = {}
    for key, text in values.items():
        if key not in known:
            raise ConfigError(key, text, f"one of {', '.join(sorted(known))}")
        parsed[key] = known[key].parse(text)
    changed = {}
    for key, value in parsed.items():
        entry = known[key]
        before = getattr(config, entry.name)
        if value != before:
            object.__setattr__(config, entry.name, value)
            changed[key] = entry.show(before), entry.show(value)
    return changed


def options_table(config_class: type) -> str:
    """Returns the documentation of a class's options as a Markdown table."""
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for entry in options_of(config_class):
        default = entry.show(entry.default)
        lines.append(f"| `{entry.key}` | {f'`{default}`' if default else 'empty'} | {entry.limits()} | {entry.text} |")
    return "\n".join(lines) + "\n"


def _number(text: str, kind: type) -> int | float | None:
    """Returns ``text`` as a number of type ``kind``; None if it is not such a number. Only plain decimal digits are
    accepted.
    """
    digits = text[1:] if text.startswith("-") else text
    if kind is int:
        return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else None
    whole, _, fraction = digits.partition(".")
    return float(text) if whole.isdigit() and (not fraction or fraction.isdigit()) else None
