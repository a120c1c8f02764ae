"""Decodes bodies into typed columns. ``decode`` adds a column for each field of JSON, Avro or Protocol Buffers, or a
single column for text. For all formats, it also adds the column ``_error``.

A body that cannot be decoded does not end the query: its fields are null and ``_error`` holds the reason. Such *poison
rows* can be written to a table or a topic (``poison_rows``). They are counted if ``count_as`` is given.

Text is decoded by the JVM, and JSON too, after Python tasks have checked it (``json_bodies``). For Avro and Protocol
Buffers the JVM would need jars that PySpark lacks, so Python tasks decode them; this needs the extra ``decoding``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rucola.arrow.json_scan import check_body
from rucola.arrow.json_shape import TimeUnit, object_of
from rucola.errors import ConfigError
from rucola.spark.analysis import facts_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

ERROR = "_error"
"""The reason why a body could not be decoded; null if it was decoded."""
TEXT = "text"
"""The column of ``format="string"``."""
_CHECKED, _DECODED, _PROBLEM = "_rucola_checked", "_rucola_decoded", "_rucola_problem"
_LETTER = ("tags", "keys", "topic", "brokerName", "queueId", "queueOffset")
"""Columns that a poison row keeps if the input has them."""
SAMPLE_ROWS = 1000


class BodyFormat(StrEnum):
    """The format of bodies."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    STRING = "string"


def decode(
    rows: DataFrame,
    format: str = "json",
    schema: StructType | str | None = None,
    *,
    body: str = "body",
    into: str | None = None,
    message: str | None = None,
    skip_bytes: int = 0,
    integer_times: str = "",
    count_as: str | None = None,
) -> DataFrame:
    """Adds the fields of the bodies to the rows, as columns after the existing ones, and the column ``_error``.

    Args:
        rows: rows of a batch or a stream.
        format: ``json``, ``avro`` (one datum without a container), ``protobuf`` or ``string``.
        schema: for JSON, a ``StructType``, DDL, or a file that holds DDL (``.ddl``, ``.sql``) or a schema as Spark
            writes it (``.json``). For Avro, an Avro schema as JSON, or a file that holds one (``.avsc``, ``.json``).
            For Protocol Buffers, a file that holds a descriptor set
            (``protoc --include_imports --descriptor_set_out``). The format ``string`` needs no schema. Files are read
            on the driver.
        body: the column with the bodies, binary or string.
        into: puts the fields into one struct column of this name instead of columns of their own.
        message: full name of the message (Protocol Buffers only).
        skip_bytes: number of bytes before the content, such as the 5 that Confluent's registry adds to Avro (Avro
            and Protocol Buffers only).
        integer_times: ``seconds``, ``millis`` or ``micros``: the unit of whole numbers in fields of type timestamp,
            counted from 1970 in UTC (JSON only). Without it, such a number is an error.
        count_as: name under which rows and poison rows are counted (``observe``); a stream's ``observedMetrics`` shows
            the counts as ``rows`` and ``poison``.

    Raises:
        ConfigError: the format or the unit is unknown, or the unit is given for another format than JSON; ``schema`` is
            missing or cannot be used; ``message`` is missing for Protocol
            Buffers, or is not in the descriptor set; the rows have no column ``body``; or a new column would have the
            name of an existing column.
        MissingProgramError: fastavro or protobuf is needed and is not installed.
    """
    from pyspark.sql import functions as f

    try:
        kind = BodyFormat(format.lower())
    except ValueError as error:
        raise ConfigError("format", format, " or ".join(BodyFormat)) from error
    unit = _time_unit(integer_times, kind)
    facts = facts_of(rows)
    if facts is not None and body not in facts.columns:
        raise ConfigError("body", body, "one of these columns: " + ", ".join(facts.columns))
    if kind is BodyFormat.STRING:
        names, value, problem = _decode_text(f.col(body))
        decoded = rows.withColumn(_DECODED, value).withColumn(_PROBLEM, problem)
    elif kind is BodyFormat.JSON:
        fields = _json_schema(schema)
        names = fields.fieldNames()
        decoded = _decode_json(rows, body, fields, unit)
    else:
        names, value = _decode_in_python(kind, f.col(body), schema, message, skip_bytes)
        decoded = rows.withColumn(_DECODED, value).withColumn(_PROBLEM, f.col(f"{_DECODED}.{ERROR}"))
    taken = {name.lower() for name in (facts.columns if facts is not None else ())} | {ERROR}
    new = [into] if into else names
    if clash := [name for name in new if name.lower() in taken]:
        raise ConfigError(
            "into", into or "", f"a name for a struct column, because the rows already have a column {clash[0]}"
        )
    fields_of = [f.col(_DECODED).getField(name).alias(name) for name in names]
    added = [f.when(f.col(_PROBLEM).isNull(), f.struct(*fields_of)).alias(into)] if into else fields_of
    found = decoded.select("*", *added, f.col(_PROBLEM).alias(ERROR)).drop(_DECODED, _PROBLEM)
    if count_as:
        return found.observe(count_as, f.count(f.lit(1)).alias("rows"), f.count(f.col(ERROR)).alias("poison"))
    return found


def poison_rows(decoded: DataFrame) -> DataFrame:
    """The rows that could not be decoded, with columns that ``format("rocketmq")`` can write.

    Body, tags, keys and source position are unchanged. If a row is sent twice, both messages therefore have the same
    id. The property ``POISON_TOPIC`` is the topic that the row came from. The property ``POISON_ERROR`` is the reason
    why the body could not be decoded. If the rows are sent to a topic, a later query can read them from that topic and
    decode them again.

    Args:
        decoded: the result of ``decode`` over rows of ``format("rocketmq")``.
    """
    from pyspark.sql import functions as f

    facts = facts_of(decoded)
    kept = [name for name in _LETTER if facts is None or name in facts.columns]
    origin = f.col("topic") if "topic" in kept else f.lit("")
    why = f.map_from_arrays(f.array(f.lit("POISON_TOPIC"), f.lit("POISON_ERROR")), f.array(origin, f.col(ERROR)))
    return decoded.where(f.col(ERROR).isNotNull()).select("body", *kept, why.alias("properties"))


def without_poison(decoded: DataFrame) -> DataFrame:
    """The rows whose bodies could be decoded, without the column ``_error``."""
    from pyspark.sql import functions as f

    return decoded.where(f.col(ERROR).isNull()).drop(ERROR)


def sample_schema(spark: SparkSession, rows: int = SAMPLE_ROWS, **options: str) -> StructType:
    """The schema of the JSON objects among the first messages that ``options`` select.

    Args:
        spark: a session.
        rows: number of messages to examine.
        options: options of ``format("rocketmq")``.

    Raises:
        ConfigError: none of the messages is a JSON object.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StructType

    sample = spark.read.format("rocketmq").options(**options, columns="body").load().limit(rows).collect()
    objects = [text for text in (_object_text(bytes(row.body or b"")) for row in sample) if text is not None]
    if not objects:
        raise ConfigError(
            "format", "json", f"bodies that are JSON objects; none of the {len(sample)} bodies examined is one"
        )
    found = spark.range(1).select(f.schema_of_json(f.lit(f"[{','.join(objects)}]"))).first()
    assert found is not None
    whole = StructType.fromDDL(f"found {found[0]}")
    assert isinstance(whole, StructType)
    kind = whole.fields[0].dataType
    assert isinstance(kind, ArrayType)
    assert isinstance(kind.elementType, StructType)
    return kind.elementType


def _time_unit(text: str, kind: BodyFormat) -> TimeUnit | None:
    if not text:
        return None
    if kind is not BodyFormat.JSON:
        raise ConfigError("integer_times", text, f"no value, because the schema of {kind} has the units")
    try:
        return TimeUnit(text.lower())
    except ValueError as error:
        raise ConfigError("integer_times", text, " or ".join(TimeUnit)) from error


def _decode_text(value: Column) -> tuple[list[str], Column, Column]:
    from pyspark.sql import functions as f

    text = f.try_validate_utf8(value.cast("string"))
    problem = f.when(value.isNull(), "no body").when(text.isNull(), "not UTF-8")
    return [TEXT], f.struct(text.alias(TEXT)), problem


def _decode_json(rows: DataFrame, body: str, schema: StructType, unit: TimeUnit | None) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    from rucola.spark.json_bodies import RECORD, STRICT, check_column

    if any(name.lower() in (RECORD, ERROR) for name in schema.fieldNames()):
        raise ConfigError("schema", schema.simpleString(), f"a schema without the fields {RECORD} and {ERROR}")
    with_record = StructType([*schema.fields, StructField(RECORD, StringType())])
    checked = rows.withColumn(_CHECKED, check_column(f.col(body), schema, unit))
    error = f.col(f"{_CHECKED}.error")
    text = f.when(error.isNull(), f.coalesce(f.col(f"{_CHECKED}.text"), f.col(body).cast("string")))
    # ``explode`` of an array with one element returns the element. Without ``explode``, Spark would apply a filter on
    # the error before it computes the columns, and check and parse each body several times. Spark moves no filter past
    # ``explode``.
    decoded = checked.withColumn(_DECODED, f.explode(f.array(f.from_json(text, with_record, STRICT))))
    refused = f.col(_DECODED).isNull() | f.col(f"{_DECODED}.{RECORD}").isNotNull()
    decoded = decoded.withColumn(
        _PROBLEM, f.coalesce(error, f.when(refused, "Spark reads no JSON that fits the schema"))
    )
    return decoded.withColumn(_DECODED, f.when(f.col(_PROBLEM).isNull(), f.col(_DECODED))).drop(_CHECKED)


def _decode_in_python(
    kind: BodyFormat, value: Column, schema: StructType | str | None, message: str | None, skip_bytes: int
) -> tuple[list[str], Column]:
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import StringType, StructField, StructType

    from rucola.spark.body_decoders import AvroDecoder, BodyDecoder, ProtobufDecoder

    if not isinstance(schema, str):
        raise ConfigError("schema", str(schema), "the name of a file; for avro, also JSON")
    decoder: BodyDecoder
    if kind is BodyFormat.AVRO:
        decoder = AvroDecoder(_file_text(schema, (".avsc", ".json")) or schema, skip_bytes)
    else:
        if not message:
            raise ConfigError("message", "", "the full name of a message in the descriptor set")
        decoder = ProtobufDecoder(_file_bytes(schema), message, skip_bytes)
    fields = decoder.schema()
    # PySpark's documentation allows a struct as the return type, but its type annotations do not, hence ``Any``.
    returned: Any = StructType([*fields.fields, StructField(ERROR, StringType())])
    # Spark inspects the types of a function's arguments, so ``arrow_udf`` gets an annotated function.
    function: Any = arrow_udf(_arrow_function(decoder, returned), returned)
    return fields.fieldNames(), function(value)


def _arrow_function(decoder: Any, returned: StructType) -> Any:
    import pyarrow as pa

    def decode_bodies(bodies: pa.Array) -> pa.Array:
        from pyspark.sql.pandas.types import to_arrow_type

        kind = to_arrow_type(returned, timezone="UTC")
        return pa.array([decoder.row(body) for body in bodies.to_pylist()], kind)

    decode_bodies.__annotations__ = {"bodies": pa.Array, "return": pa.Array}
    return decode_bodies


def _json_schema(schema: StructType | str | None) -> StructType:
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    if not schema:
        raise ConfigError("schema", "", "a StructType, DDL or a file; sample_schema makes a StructType")
    text = _file_text(schema, (".json", ".ddl", ".sql")) or schema
    try:
        if text.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(text))
        found = StructType.fromDDL(text)
        if not isinstance(found, StructType):
            raise ValueError(f"it is {found.simpleString()}")
        return found
    except (ParseException, ValueError, KeyError, TypeError) as error:
        raise ConfigError("schema", schema, f"DDL, or a schema as Spark writes it ({error})") from error


def _file_text(name: str, endings: Sequence[str]) -> str | None:
    """The content of file ``name``; None if ``name`` does not look like a file name."""
    return _file_bytes(name).decode() if name.lower().endswith(tuple(endings)) else None


def _file_bytes(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError("schema", name, f"a file that can be read ({error.strerror})") from error


def _object_text(body: bytes) -> str | None:
    """A body as JSON text for ``schema_of_json``, without fields that have no name; None if it is no JSON object."""
    if check_body(body, object_of({})).problem is not None:
        return None
    return json.dumps(_named(json.loads(body)))


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _named(one) for name, one in value.items() if name}
    return [_named(one) for one in value] if isinstance(value, list) else value
