"""Proves that an object store refuses a second conditional put. One that ignores the condition is a lock that always
succeeds: of two runs, one would lose its commit.

``Place.create`` puts the scratch object. deltalake looks for newer versions before it puts one, and so never shows
whether the store would have refused.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

from rucola.errors import ConfigError, DiskError
from rucola.places.place import Place

SCRATCH = "_rucola/probe-"


def prove_conditional_puts(place: Place) -> None:
    """Puts a scratch object twice, if there is none.

    Raises:
        ConfigError: the store accepts both.
        DiskError: the store cannot be reached, or does not take the first.
    """
    name = f"{SCRATCH}{uuid4().hex}"
    try:
        place.create(name, b"first")
        if place.create(name, b"second"):
            raise ConfigError(
                "table",
                place.root,
                "an object store that refuses a second conditional put (If-None-Match); this one accepted it",
            )
    finally:
        with suppress(DiskError):
            place.remove(name)
