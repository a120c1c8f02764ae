"""Runs one query for the console, in a process of its own that the console can kill.

The process reads a question from standard input, a JSON object in one line, and answers with a line ``{"result": ...}``
or ``{"error": TEXT}``. The query is one ``select``; it reads topics and nothing else, and the process has limits for
memory and processor time that hold even if the console has gone.
"""

from __future__ import annotations

import base64
import io
import resource
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rucola.common.json_library import orjson
from rucola.errors import ConfigError, RucolaError

if TYPE_CHECKING:
    from rucola.sql.session import Session

ENGINE_BYTES_MAX: Final = 256 * 1024 * 1024
DATA_BYTES_MAX: Final = 1024 * 1024 * 1024
CPU_S_MAX: Final = 60
RESULT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest result, in the engine's own form."""
CELL_CHARACTERS_MAX: Final = 2_000


def main() -> None:
    """Answers one question."""
    question = orjson.loads(sys.stdin.buffer.readline())
    _limit(resource.RLIMIT_DATA, DATA_BYTES_MAX)
    _limit(resource.RLIMIT_CPU, CPU_S_MAX)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        message: dict[str, Any] = {"result": answer(question)}
    except RucolaError as error:
        message = {"error": str(error)}
    except MemoryError:
        message = {"error": "the query needs too much memory"}
    sys.stdout.buffer.write(orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS) + b"\n")
    sys.stdout.buffer.flush()


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the query.

    Args:
        question: ``query``; ``rows``, the largest number of rows; ``store``, a directory, or ``name_server`` with
            ``access_key``, ``secret_key``, ``use_tls`` and ``ca_certificate``.

    Returns:
        ``columns`` with name and type, ``rows`` of plain values, the same as ``csv`` and ``parquet`` (base64; empty if
        Parquet has no type for a column), and ``more``, whether there are further rows.

    Raises:
        RucolaError: the query is wrong or not allowed, or messages cannot be read.
    """
    from rucola.arrow.access import Access, Secret
    from rucola.sql import connect

    place: dict[str, Any] = {"store": question["store"] or None}
    if not question["store"]:
        place |= {
            "name_server": question["name_server"],
            "access": Access(
                question["access_key"],
                Secret(question["secret_key"]),
                use_tls=question["use_tls"],
                ca_certificate=question["ca_certificate"],
            ),
        }
    with connect(**place) as session:
        session.confine(ENGINE_BYTES_MAX)
        return result_of(session, question["query"], question["rows"])


def result_of(session: Session, query: str, rows_max: int) -> dict[str, Any]:
    """Runs one query in a confined session; see ``answer``."""
    if not session.is_select(query):
        raise ConfigError("query", query[:100], "one select")
    return _shown(session.run(query), rows_max)


def _shown(result: Any, rows_max: int) -> dict[str, Any]:
    import pyarrow as pa

    from rucola.cli.sql_output import column_names, write_lines, write_parquet
    from rucola.cli.sql_values import plain, rows_of

    batches, left, size, more = [], rows_max, 0, False
    for batch in result:
        size += batch.nbytes
        if size > RESULT_BYTES_MAX:
            raise ConfigError("query", f"{size} bytes", f"a result of at most {RESULT_BYTES_MAX} bytes")
        more = batch.num_rows > left
        batches.append(batch.slice(0, left))
        left -= min(batch.num_rows, left)
        if more:
            break
    schema = result.schema

    def reader() -> Any:
        return pa.RecordBatchReader.from_batches(schema, iter(batches))

    table, binary = io.StringIO(), io.BytesIO()
    write_lines(reader(), "csv", table)
    try:
        write_parquet(reader(), binary)
    except ConfigError:
        binary = io.BytesIO()
    columns = zip(column_names(reader()), (str(kind) for kind in schema.types), strict=True)
    return {
        "columns": [{"name": name, "type": kind} for name, kind in columns],
        "rows": [[_cell(plain(value)) for value in row] for row in rows_of(reader())],
        "csv": table.getvalue(),
        "parquet": base64.b64encode(binary.getvalue()).decode(),
        "more": more,
    }


def _cell(value: object) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    return text if len(text) <= CELL_CHARACTERS_MAX else text[:CELL_CHARACTERS_MAX] + "…"


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most, hard) if hard == resource.RLIM_INFINITY or hard > most else (hard, hard))


if __name__ == "__main__":
    main()
