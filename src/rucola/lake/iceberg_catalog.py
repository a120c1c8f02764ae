"""The catalog of an Iceberg table: the user's, as PyIceberg's configuration names it, or a SQLite file of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rucola.errors import ConfigError, DiskError, RucolaError
from rucola.places.place import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

FILE = "catalog.db"
IDENTIFIER = "rucola.messages"
SYNCED_IO = "rucola.lake.synced_io.SyncedFileIO"
_METADATA = re.compile(r"'(?:file://)?(/[^']+)/metadata/[^'/]+'")
"""A file of a table's metadata in the text of an error."""


class IcebergCatalog:
    """One table in a catalog.

    Args:
        place: where the table is.
        catalog: name of a catalog in PyIceberg's configuration; empty for a SQLite file beside the data.
        identifier: namespace and name of the table, such as ``sales.messages``.

    Raises:
        ConfigError: a table in an object store needs a catalog that all writers reach.

    Attributes:
        name: namespace and name of the table.
    """

    def __init__(self, place: Place, catalog: str = "", identifier: str = IDENTIFIER) -> None:
        if not catalog and not place.is_local:
            raise ConfigError(
                "catalog", "none", f"the name of a catalog in PyIceberg's configuration, for a table at {place.root}"
            )
        if "." not in identifier:
            raise ConfigError("identifier", identifier, "namespace and name of the table, such as sales.messages")
        self._place = place
        self._name = catalog
        self.name = identifier
        self._identifier = tuple(identifier.split("."))

    def load(self) -> Table | None:
        """The newest state of the table; None if there is none.

        Raises:
            ConfigError: the catalog has the table at another place.
            DiskError: its metadata cannot be read.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        if not self._name and not self._place.exists(FILE):
            return None
        try:
            table = self._catalog().load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        found = table.location().removeprefix("file://").rstrip("/")
        if found != self._place.root:
            raise ConfigError("table", self._place.root, f"{found}, where the catalog has {self.name}")
        return table

    def _unreadable(self, error: Exception) -> RucolaError:
        """The error of a table whose metadata cannot be read. The catalog beside the data has absolute paths."""
        made = _METADATA.search(str(error)) if isinstance(error, FileNotFoundError) else None
        if not self._name and made is not None and made[1] != self._place.root:
            return ConfigError(
                "table", self._place.root, f"{made[1]}, where the table was made: an Iceberg table cannot be moved"
            )
        return DiskError(self._place.root, "read the metadata", self._place.told(error))

    def create(self, schema: pa.Schema, location: str, properties: Mapping[str, Any]) -> Table:
        """Creates the table; raises PyIceberg's ``TableAlreadyExistsError`` if another process was faster."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError

        if self._place.is_local:
            self._place.make()
        catalog = self._catalog()
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(self._identifier[:-1])
        return catalog.create_table(self._identifier, schema, location=location, properties=dict(properties))

    def _catalog(self) -> Catalog:
        if self._name:
            from pyiceberg.catalog import load_catalog

            try:
                return load_catalog(self._name)
            except ValueError as error:
                raise ConfigError(
                    "catalog", self._name, f"the name of a catalog in PyIceberg's configuration ({error})"
                ) from error
        from pyiceberg.catalog.sql import SqlCatalog

        # What the catalog names must be on the disk before it is named: a power cut must not leave a torn table.
        return SqlCatalog(
            "rucola",
            **{
                "uri": f"sqlite:///{self._place.root}/{FILE}",
                "warehouse": f"file://{self._place.root}",
                "init_catalog_tables": "true",
                "py-io-impl": SYNCED_IO,
            },
        )
