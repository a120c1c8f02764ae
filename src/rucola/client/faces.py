"""Base classes that tell the asynchronous and the blocking clients apart, because their classes have the same names:
who uses ``with`` for ``async with``, or the reverse, is told what to use.
"""

from __future__ import annotations

from typing import NoReturn

from rucola.errors import ClientError


class Asynchronous:
    """Base class of the asynchronous clients."""

    def __enter__(self) -> NoReturn:
        name = type(self).__name__
        raise ClientError(f"rucola.{name} is asynchronous: use `async with`, or rucola.sync.{name} with `with`")

    def __exit__(self, *exc_info: object) -> None:
        """Python looks for this method before it calls ``__enter__``."""


class Blocking:
    """Base class of the blocking clients."""

    def __aenter__(self) -> NoReturn:
        name = type(self).__name__
        raise ClientError(f"rucola.sync.{name} is blocking: use `with`, or rucola.{name} with `async with`")

    def __aexit__(self, *exc_info: object) -> None:
        """Python looks for this method before it calls ``__aenter__``."""
