"""Topics as Arrow record batches, from a store directory in place or through brokers: for Polars, pandas, DuckDB.

It needs PyArrow (extra ``arrow``), and neither Java nor PySpark. A directory may be in use by a running broker; nothing
in it is changed. What Spark's processes import from here does not import PyArrow, and this module does not either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rucola.runtime import extras

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.compute import Expression

    from rucola.arrow.topic_dataset import TopicDataset

__all__ = ["dataset", "scan"]


def scan(
    store: str | os.PathLike[str] | None = None,
    topic: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    filter: Expression | None = None,
    *,
    name_server: str = "",
    **options: Any,
) -> pa.RecordBatchReader:
    """Messages as a stream of record batches, which ``polars.from_arrow`` and ``read_pandas()`` take.

    Rows come queue by queue or in log order, whichever reads less.

    Args:
        store: store directory; instead of it ``name_server``.
        topic: one topic, or several; all but the cluster's own when it is not given.
        columns: names, in order; all when not given. What is not named is not decoded.
        filter: of ``pyarrow.compute``; leaves out what it can before reading, and is applied to the rest.
        name_server: name servers, `host:port` separated by `;`, to read through brokers.
        options: further arguments of ``dataset``.

    Raises:
        ConfigError: a topic or column does not exist, or the arguments exclude each other.
        MissingExtraError: PyArrow is not installed.
        StoreDamagedError: the directory holds no store.
    """
    return dataset(store, topic, name_server=name_server, **options).scanner(columns, filter).to_reader()


def dataset(
    store: str | os.PathLike[str] | None = None,
    topic: str | Sequence[str] | None = None,
    *,
    name_server: str = "",
    use_index: bool = True,
    **options: Any,
) -> TopicDataset:
    """The same as a ``pyarrow.dataset.Dataset``, for engines that push columns and filters down.

    Args:
        store: as in ``scan``; so are ``topic`` and ``name_server``.
        use_index: whether a filter on keys may use the store's index; see ``TopicDataset``.
        options: further fields of ``rucola.arrow.read_options.ReadOptions``, as ``body`` or ``properties_as_map``.

    Raises:
        ConfigError: the arguments exclude each other.
        MissingExtraError: PyArrow is not installed.
    """
    extras.require(extras.ARROW, "rucola.arrow")
    from rucola.arrow.topic_dataset import TopicDataset, topic_options

    return TopicDataset(topic_options(store, topic, name_server, **options), use_index)
