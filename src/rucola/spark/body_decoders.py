"""Decodes Avro and Protocol Buffers in Python: converts schemas to Spark's types, and bodies to rows. The decoders are
pickled and sent to the tasks.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rucola.errors import ConfigError, MissingProgramError, install_advice

ERROR = "_error"
ADVICE = f"on the driver and on every executor, {install_advice('decoding')}"
DEPTH_MAX = 16
"""Largest nesting depth of an Avro schema or a Protocol Buffers message type. Deeper types, and types that contain
themselves, have no Spark type.
"""

_AVRO_TYPES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "uuid": StringType(),
}
_SCALARS: dict[int, DataType] = {
    1: IntegerType(),
    2: LongType(),
    3: LongType(),
    4: DecimalType(20, 0),
    5: DoubleType(),
    6: FloatType(),
    7: BooleanType(),
    9: StringType(),
}
"""By ``cpp_type`` of a Protocol Buffers field: int32, int64, uint32, uint64, double, float, bool, string."""


class BodyDecoder(Protocol):
    """Converts bodies to rows."""

    def schema(self) -> StructType:
        """The fields of a row."""

    def row(self, body: bytes | str | None) -> dict[str, Any]:
        """The fields of one body; only ``_error`` if the body cannot be decoded."""


class _Decoder(ABC):
    """The common part of both decoders."""

    def __init__(self, skip_bytes: int) -> None:
        self.skip_bytes = skip_bytes

    def row(self, body: bytes | str | None) -> dict[str, Any]:
        """The fields of one body; only ``_error`` if the body cannot be decoded."""
        if body is None:
            return {ERROR: "no body"}
        content = body.encode() if isinstance(body, str) else body
        if len(content) < self.skip_bytes:
            return {ERROR: f"the body is shorter than the {self.skip_bytes} bytes to skip"}
        try:
            return self.decode(content[self.skip_bytes :])
        except Exception as error:  # noqa: BLE001 - a decoder may raise anything for unknown bytes
            return {ERROR: f"{type(error).__name__}: {error}"}

    @abstractmethod
    def decode(self, content: bytes) -> dict[str, Any]:
        """Decodes the fields of ``content``; may raise any exception."""


class AvroDecoder(_Decoder):
    """Decodes bodies that are one Avro datum of a record schema.

    Args:
        text: the schema as JSON.
        skip_bytes: number of bytes before the datum.

    Raises:
        ConfigError: the text is not the schema of a record.
        MissingProgramError: fastavro is not installed.
    """

    def __init__(self, text: str, skip_bytes: int) -> None:
        super().__init__(skip_bytes)
        try:
            self._document = json.loads(text)
        except ValueError as error:
            raise ConfigError("schema", text, f"an Avro schema as JSON ({error})") from error
        if not isinstance(self._parsed, dict) or self._parsed.get("type") != "record":
            raise ConfigError("schema", text, "an Avro schema of a record")

    def __reduce__(self) -> tuple[Callable[[str, int], AvroDecoder], tuple[str, int]]:
        return AvroDecoder, (json.dumps(self._document), self.skip_bytes)

    def schema(self) -> StructType:
        """The fields of the record."""
        kind = self._type_of(self._parsed, {}, 0)
        assert isinstance(kind, StructType)
        return kind

    def decode(self, content: bytes) -> dict[str, Any]:
        """The fields of the record."""
        from fastavro import schemaless_reader

        source = io.BytesIO(content)
        row: Any = schemaless_reader(source, self._parsed, None)
        if source.tell() < len(content):
            raise ValueError(f"{len(content) - source.tell()} bytes are left after the datum")
        return {name: _plain(value) for name, value in row.items()}

    @cached_property
    def _parsed(self) -> Any:
        try:
            from fastavro import parse_schema
            from fastavro.schema import SchemaParseException, UnknownType
        except ImportError as error:
            raise MissingProgramError("fastavro", "none", ADVICE) from error
        try:
            return parse_schema(self._document)
        except (SchemaParseException, UnknownType) as error:
            raise ConfigError("schema", json.dumps(self._document), f"an Avro schema ({error})") from error

    def _type_of(self, schema: Any, named: dict[str, Any], depth: int) -> DataType:
        if depth > DEPTH_MAX:
            raise ConfigError(
                "schema", str(schema), f"records up to {DEPTH_MAX} levels deep, which do not contain themselves"
            )
        if isinstance(schema, list):
            kinds = [one for one in schema if one != "null"]
            if len(kinds) != 1:
                raise ConfigError("schema", str(schema), "only unions of null and one other type")
            return self._type_of(kinds[0], named, depth)
        if isinstance(schema, str):
            if schema in named:
                return self._type_of(named[schema], named, depth + 1)
            return _AVRO_TYPES[schema]
        kind = schema["type"]
        if "name" in schema:
            named = {**named, schema["name"]: schema}
        logical = schema.get("logicalType")
        if logical == "decimal":
            return DecimalType(schema["precision"], schema.get("scale", 0))
        if kind == "record":
            fields = []
            for one in schema["fields"]:
                fields.append(StructField(one["name"], self._type_of(one["type"], named, depth + 1)))
                named |= _names_in(one["type"])
            return StructType(fields)
        if kind == "array":
            return ArrayType(self._type_of(schema["items"], named, depth + 1))
        if kind == "map":
            return MapType(StringType(), self._type_of(schema["values"], named, depth + 1))
        if logical is not None and logical not in _AVRO_TYPES:
            raise ConfigError("schema", logical, "the logical types date, decimal, timestamp-* and uuid")
        return _AVRO_TYPES[logical or kind]


class ProtobufDecoder(_Decoder):
    """Decodes bodies that are one message of Protocol Buffers.

    Args:
        descriptors: a serialized ``FileDescriptorSet`` that includes all imports.
        message: full name of the message.
        skip_bytes: number of bytes before the message.

    Raises:
        ConfigError: ``descriptors`` is not a descriptor set, or does not contain ``message``.
        MissingProgramError: protobuf is not installed.
    """

    def __init__(self, descriptors: bytes, message: str, skip_bytes: int) -> None:
        super().__init__(skip_bytes)
        self._descriptors = descriptors
        self._message = message
        self._class  # noqa: B018 - fails on the driver if the schema is wrong

    def __reduce__(self) -> tuple[Callable[[bytes, str, int], ProtobufDecoder], tuple[bytes, str, int]]:
        return ProtobufDecoder, (self._descriptors, self._message, self.skip_bytes)

    def schema(self) -> StructType:
        """The fields of the message."""
        return _message_type(self._class.DESCRIPTOR, 0)

    def decode(self, content: bytes) -> dict[str, Any]:
        """The fields of the message."""
        return _message_row(self._class.FromString(content))

    @cached_property
    def _class(self) -> Any:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
            from google.protobuf.message import DecodeError
        except ImportError as error:
            raise MissingProgramError("protobuf", "none", ADVICE) from error
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(self._descriptors)
            pool = descriptor_pool.DescriptorPool()
            for file in files.file:
                pool.Add(file)
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(self._message))
        except (DecodeError, KeyError, TypeError) as error:
            raise ConfigError("message", self._message, f"a message of a descriptor set ({error})") from error


def _names_in(schema: Any) -> dict[str, Any]:
    """The named types that a schema defines, so that later parts of the schema can use them."""
    if isinstance(schema, list):
        return {name: kind for one in schema for name, kind in _names_in(one).items()}
    if not isinstance(schema, dict):
        return {}
    found = {schema["name"]: schema} if "name" in schema else {}
    for part in (schema.get("items"), schema.get("values"), *(one["type"] for one in schema.get("fields", ()))):
        found |= _names_in(part)
    return found


def _plain(value: Any) -> Any:
    """Converts values of Avro to values that Arrow accepts."""
    import uuid

    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _message_type(descriptor: Any, depth: int) -> StructType:
    if depth > DEPTH_MAX:
        raise ConfigError(
            "message", descriptor.full_name, f"messages up to {DEPTH_MAX} levels deep, which do not contain themselves"
        )
    return StructType([StructField(one.name, _field_type(one, depth)) for one in descriptor.fields])


def _field_type(field: Any, depth: int) -> DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return MapType(_single_type(key, depth), _single_type(value, depth))
    kind = _single_type(field, depth)
    return ArrayType(kind) if field.is_repeated else kind


def _single_type(field: Any, depth: int) -> DataType:
    if field.message_type is not None:
        return _message_type(field.message_type, depth + 1)
    if field.enum_type is not None:
        return StringType()
    return BinaryType() if field.type == field.TYPE_BYTES else _SCALARS[field.cpp_type]


def _message_row(message: Any) -> dict[str, Any]:
    """The fields of a message. An unset field is null if its declaration distinguishes unset from the default value."""
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        elif _is_map(field):
            value = field.message_type.fields_by_name["value"]
            pairs: Mapping[Any, Any] = getattr(message, field.name)
            row[field.name] = [(key, _single_value(value, pairs[key])) for key in pairs]
        elif field.is_repeated:
            row[field.name] = [_single_value(field, one) for one in getattr(message, field.name)]
        else:
            row[field.name] = _single_value(field, getattr(message, field.name))
    return row


def _single_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _message_row(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return Decimal(value) if field.cpp_type == field.CPPTYPE_UINT64 else value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
