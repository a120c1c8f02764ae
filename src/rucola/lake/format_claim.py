"""Which format the table at a place has.

Two first runs of different formats could both find an empty place, and both make a table. Before the first commit, a
run claims the place: it makes a file, or object, that no other run can make.
"""

from __future__ import annotations

from rucola.errors import ConfigError
from rucola.places.place import Place

CLAIM = "_rucola/format"


def claim(place: Place, format: str) -> None:
    """Claims a place for a format.

    Raises:
        ConfigError: a run of another format has claimed it.
        DiskError: the file could not be made.
    """
    content = format.encode()
    while not place.create(CLAIM, content):
        found = place.read(CLAIM)
        if found == content:
            return
        if found is not None:  # else somebody has just removed it
            raise ConfigError(
                "format",
                format,
                f"{found.decode(errors='replace')}: another run has begun such a table at {place.root}; if there is "
                f"none, remove {place.root}/{CLAIM}",
            )
