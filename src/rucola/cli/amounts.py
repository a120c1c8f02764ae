"""Amounts in options, such as ``30d`` and ``200GiB``."""

from __future__ import annotations

import re

from rucola.errors import ConfigError
from rucola.store.keep_rule import KeepRule

_AMOUNT = re.compile(r"([1-9][0-9]{0,15})(h|d|KiB|MiB|GiB|TiB)?", re.ASCII)
_AGES_MS = {"h": 3_600_000, "d": 86_400_000}
_BYTES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size_of(option: str, text: str) -> int:
    """Returns the number of bytes in ``text``, the value of ``option``.

    Raises:
        ConfigError: it is no number of bytes.
    """
    found = _AMOUNT.fullmatch(text)
    if found is None or (found[2] or "") not in _BYTES:
        raise ConfigError(option, text, "a number of bytes such as 500MiB, 200GiB or 1073741824")
    return int(found[1]) * _BYTES[found[2] or ""]


def keep_rule(option: str, text: str) -> KeepRule:
    """Returns the rule in ``text``, the value of ``option``: an age or a number of bytes.

    Raises:
        ConfigError: it is neither.
    """
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise ConfigError(option, text, "an age such as 12h or 30d, or a number of bytes such as 200GiB")
    if found[2] in _AGES_MS:
        return KeepRule(age_ms=int(found[1]) * _AGES_MS[found[2]])
    return KeepRule(size_bytes=size_of(option, text))
