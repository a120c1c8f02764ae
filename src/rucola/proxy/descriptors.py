"""Protobuf's descriptors and message classes for the table in ``schema``, in a pool of their own."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rucola.proxy import schema

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message

FILE = "rucola/apache/rocketmq/v2.proto"
"""Name of the file as server reflection gives it."""

_SCALARS = MappingProxyType(
    {"s": "STRING", "i": "INT32", "l": "INT64", "b": "BOOL", "f": "FLOAT", "y": "BYTES"},
)
_WELL_KNOWN = MappingProxyType({"D": ".google.protobuf.Duration", "T": ".google.protobuf.Timestamp"})


@cache
def pool() -> DescriptorPool:
    """Returns the pool with the file and those that it imports. It shares nothing with protobuf's default pool."""
    from google.protobuf import duration_pb2, timestamp_pb2
    from google.protobuf.descriptor_pool import DescriptorPool

    made = DescriptorPool()
    for imported in (duration_pb2, timestamp_pb2):
        made.AddSerializedFile(imported.DESCRIPTOR.serialized_pb)
    made.AddSerializedFile(file_descriptor().SerializeToString())
    return made


@cache
def message_class(name: str) -> type[Message]:
    """Returns the class of a message.

    Raises:
        KeyError: the table has no message with this name.
    """
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(pool().FindMessageTypeByName(f"{schema.PACKAGE}.{name}"))


def file_descriptor() -> FileDescriptorProto:
    """Returns the description of the package."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name=FILE, package=schema.PACKAGE, syntax="proto3")
    file.dependency.extend(["google/protobuf/duration.proto", "google/protobuf/timestamp.proto"])
    for name, fields in schema.messages().items():
        _add_fields(file.message_type.add(name=name), fields)
    holders = {message.name: message for message in file.message_type}
    for name, values in schema.enums().items():
        outer, _, inner = name.rpartition(".")
        enum = (holders[outer] if outer else file).enum_type.add(name=inner)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    service = file.service.add(name=schema.SERVICE.rpartition(".")[2])
    for method in schema.METHODS:
        service.method.add(
            name=method.name,
            input_type=f".{schema.PACKAGE}.{method.request}",
            output_type=f".{schema.PACKAGE}.{method.response}",
            client_streaming=method.many_requests,
            server_streaming=method.many_responses,
        )
    return file


def _add_fields(message: DescriptorProto, fields: tuple[schema.Field, ...]) -> None:
    one_ofs = list(dict.fromkeys(field.one_of for field in fields if field.one_of))
    for name in one_ofs:
        message.oneof_decl.add(name=name)
    for field in fields:
        made = message.field.add(name=field.name, number=field.number)
        made.label = made.LABEL_REPEATED if field.repeated or field.type == "map" else made.LABEL_OPTIONAL
        _set_type(message, made, field)
        if field.one_of:
            made.oneof_index = one_ofs.index(field.one_of)
    # Presence of a field is a one-of with one choice; protobuf wants these behind the others.
    for made, field in zip(message.field, fields, strict=True):
        if field.optional:
            made.proto3_optional = True
            made.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _set_type(message: DescriptorProto, made: Any, field: schema.Field) -> None:
    if field.type in _SCALARS:
        made.type = getattr(made, f"TYPE_{_SCALARS[field.type]}")
    elif field.type == "map":
        entry = message.nested_type.add(name="".join(part.title() for part in field.name.split("_")) + "Entry")
        entry.options.map_entry = True
        for number, part in enumerate(("key", "value"), 1):
            entry.field.add(name=part, number=number, label=made.LABEL_OPTIONAL, type=made.TYPE_STRING)
        made.type = made.TYPE_MESSAGE
        made.type_name = f".{schema.PACKAGE}.{message.name}.{entry.name}"
    elif field.type in _WELL_KNOWN:
        made.type, made.type_name = made.TYPE_MESSAGE, _WELL_KNOWN[field.type]
    else:
        made.type = made.TYPE_ENUM if field.type in schema.enums() else made.TYPE_MESSAGE
        made.type_name = f".{schema.PACKAGE}.{field.type}"
