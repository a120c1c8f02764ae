"""Proves that an object store refuses a second conditional put. One that ignores the condition is a lock that always
succeeds: of two runs, one would lose its commit.
"""

from __future__ import annotations

import json
from contextlib import suppress
from uuid import uuid4

from rucola.errors import ConfigError, DiskError
from rucola.lake.place import Place

SCRATCH = "_rucola/probe-"
_SCHEMA = {"type": "struct", "fields": [{"name": "probe", "type": "string", "nullable": True, "metadata": {}}]}


def prove_conditional_puts(place: Place) -> None:
    """Makes a scratch table through deltalake, as all commits are made, and writes one of its versions twice.

    Raises:
        ConfigError: the store accepts both.
        DiskError: the store does not answer as it should.
    """
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.exceptions import CommitFailedError, DeltaError

    scratch = f"{SCRATCH}{uuid4().hex}"
    url, options = f"{place.root}/{scratch}", dict(place.library_options)
    schema, properties = Schema.from_json(json.dumps(_SCHEMA)), CommitProperties(max_commit_retries=0)
    try:
        DeltaTable.create(url, schema, storage_options=options)
        one, other = (DeltaTable(url, storage_options=options) for _ in range(2))
        one.create_write_transaction([], "append", schema, commit_properties=properties)
        try:
            other.create_write_transaction([], "append", schema, commit_properties=properties)
        except CommitFailedError:
            return
        raise ConfigError(
            "table",
            place.root,
            "an object store that refuses a second conditional put (If-None-Match); this one accepted it",
        )
    except (DeltaError, OSError) as error:
        raise DiskError(url, "probe", place.told(error)) from error
    finally:
        with suppress(DiskError):
            for one_file in list(place.list_files(scratch)):
                place.remove(one_file.path)
