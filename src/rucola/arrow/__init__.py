"""Topics as Arrow record batches, for Polars, pandas and DuckDB.

The topics are read in place in a store directory, or through brokers. A running broker may use the directory at the
same time; a read changes nothing in it.

This package needs PyArrow (extra ``arrow``), and neither Java nor PySpark. Spark's processes import parts of this
package; those parts and this module do not import PyArrow.

For example::

    import pyarrow.compute as pc
    from rucola.arrow import scan

    table = scan("./store", "flights", ["queueOffset", "body"], pc.field("tags") == "UA").read_all()
    print(table.num_rows)
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
    """Returns messages as a stream of record batches, which ``polars.from_arrow`` and ``read_pandas()`` accept.

    Rows come queue by queue or in log order; the scan chooses the order that reads less.

    Args:
        store: store directory; give either this or ``name_server``.
        topic: one topic, or several; without it, all topics except system topics and light queues.
        columns: names of columns, in order; without it, all columns. Columns that are not named are not decoded.
        filter: an expression of ``pyarrow.compute``. The scan leaves out ranges that the filter excludes, and applies
            the filter to the rows that it reads.
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
    """Returns messages as a ``pyarrow.dataset.Dataset``, for engines that push columns and filters down.

    Args:
        store: as in ``scan``; the same holds for ``topic`` and ``name_server``.
        use_index: whether a filter on keys may use the store's index; see ``TopicDataset``.
        options: further fields of ``rucola.arrow.read_options.ReadOptions``, such as ``body`` or ``properties_as_map``.

    Raises:
        ConfigError: the arguments exclude each other.
        MissingExtraError: PyArrow is not installed.
    """
    extras.require(extras.ARROW, "rucola.arrow")
    from rucola.arrow.topic_dataset import TopicDataset, topic_options

    return TopicDataset(topic_options(store, topic, name_server, **options), use_index)
