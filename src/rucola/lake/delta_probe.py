"""Proves that an object store refuses a second conditional put. One that ignores the condition is a lock that always
succeeds: of two runs, one would lose its commit.

obstore puts the scratch object. It is made of the same library as deltalake, which looks for newer versions before it
puts one, and so never shows whether the store would have refused.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
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
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError
    from obstore.store import from_url

    name = f"{SCRATCH}{uuid4().hex}"
    config: Any = dict(place.library_options)
    client: Any = {"allow_http": config.pop("AWS_ALLOW_HTTP", "") == "true"}
    try:
        store = from_url(place.root, config=config, client_options=client)
        obstore.put(store, name, b"first", mode="create")
        try:
            obstore.put(store, name, b"second", mode="create")
        except AlreadyExistsError:
            return
        raise ConfigError(
            "table",
            place.root,
            "an object store that refuses a second conditional put (If-None-Match); this one accepted it",
        )
    except (BaseError, OSError, ValueError) as error:
        raise DiskError(f"{place.root}/{name}", "probe", place.told(error)) from error
    finally:
        with suppress(DiskError):
            place.remove(name)
