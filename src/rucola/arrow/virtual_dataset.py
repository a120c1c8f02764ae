"""A PyArrow dataset whose batches are made in Python when a scan asks for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.dataset as ds

from rucola.arrow.filters import Node, columns_of, parse_filter
from rucola.errors import ConfigError

_REFUSED = ("filter", "get_fragments", "join", "join_asof", "replace_schema", "sort_by")


class VirtualDataset(ds.Dataset):  # type: ignore[misc]  # PyArrow has no types
    """A dataset that DuckDB, Polars and PyArrow can read. It has a schema, and its scans take columns and a filter.
    PyArrow's class cannot be instantiated without a dataset in C++, so its methods are replaced here; all methods that
    read use ``scanner``.

    Args:
        schema: names and types of the columns.
        cheapest: the column that is built if a scan requests no column; a count needs its number of rows.

    Attributes:
        failure: the original error that ended the last scan; engines pass on only its text.
    """

    def __init__(self, schema: pa.Schema, cheapest: str) -> None:
        self._schema = schema
        self._cheapest = cheapest
        self.failure: Exception | None = None

    @abstractmethod
    def batches(self, schema: pa.Schema, node: Node | None) -> Iterator[pa.RecordBatch]:
        """Returns batches with the columns of ``schema``; they hold all rows that pass the filter, perhaps also others.

        Errors that can occur before the first row are raised by this call, not while the batches are read.
        """

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._schema

    @property
    def partition_expression(self) -> Any:
        """Always the expression ``true``, because no condition is known that all rows meet."""
        return ds.scalar(True)

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
        """The scanner that all other methods read through. Other arguments of ``Dataset.scanner`` only influence the
        speed; they are ignored.

        Raises:
            ConfigError: a column does not exist.
        """
        self.failure = None
        node = None if filter is None else parse_filter(filter)
        needed = self._needed(columns, node)
        reader = pa.RecordBatchReader.from_batches(needed, self._noting(self.batches(needed, node)))
        return ds.Scanner.from_batches(reader, columns=columns, filter=filter)

    def count_rows(self, filter: Any = None, **_: Any) -> int:
        """The number of rows that pass the filter; other columns than the filter's are not built."""
        return int(self.scanner([], filter).count_rows())

    def _noting(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            self.failure = error
            raise

    def _needed(self, columns: Sequence[str] | dict[str, Any] | None, node: Node | None) -> pa.Schema:
        """The columns to build: the columns of the projection and of the filter."""
        looked_at = frozenset() if node is None else columns_of(node)
        if columns is None or isinstance(columns, dict) or looked_at is None:
            return self._schema
        for name in columns:
            if name not in self._schema.names:
                raise ConfigError("columns", name, ", ".join(self._schema.names))
        names = {*columns, *looked_at} or {self._cheapest}
        return pa.schema([field for field in self._schema if field.name in names])


def _refused(name: str) -> Any:
    """A method of PyArrow that this dataset lacks; a call raises an error that says what to call instead."""

    def method(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"this dataset has no {name}(); read it with to_table() and use the table")

    return method


for _name in _REFUSED:  # PyArrow's own method would use the dataset in C++, which this class does not have.
    setattr(VirtualDataset, _name, _refused(_name))
