"""Packages of protobuf, described by tables instead of generated modules.

Protobuf and server reflection get their descriptors from a table, at first use, in a pool of the package's own.
Generated modules would register the package in protobuf's default pool. Another module in the same process may have
registered the same package there, and the second import would fail.

A message is ``Name: field number type, ...``. After the name of a field, ``*`` means repeated and ``?`` explicit
presence. ``(name: field number type, ...)`` is a one-of. Scalar types are ``s`` string, ``i`` int32, ``l`` int64, ``b``
bool, ``f`` float, ``y`` bytes; ``D`` is a ``Duration``, ``T`` a ``Timestamp``, ``map`` maps strings to strings. Every
other type is the name of a message or an enum. An enum is ``Name: VALUE number, ...``; one inside a message is
``Message.Name``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

SCALARS = MappingProxyType({"s": "STRING", "i": "INT32", "l": "INT64", "b": "BOOL", "f": "FLOAT", "y": "BYTES"})
"""Protobuf's names of the scalar types."""
_WELL_KNOWN = MappingProxyType({"D": ".google.protobuf.Duration", "T": ".google.protobuf.Timestamp"})
_ENTRY = re.compile(r"^([\w.]+): (.*)$")
_FIELD = re.compile(
    r"(?:\((?P<one_of>\w+): )?(?P<name>\w+)(?P<mark>[*?]?) (?P<number>\d+) (?P<type>[\w.]+)(?P<end>\)?)"
)
_VALUE = re.compile(r"(\w+) (\d+)")


@dataclass(frozen=True, slots=True)
class MessageField:
    """A field of a message.

    Attributes:
        name: its name.
        number: its number.
        type: a scalar's letter, ``D``, ``T``, ``map``, or the name of a message or enum.
        repeated: whether it is a list.
        optional: whether it has explicit presence.
        one_of: name of its one-of; empty without.
    """

    name: str
    number: int
    type: str
    repeated: bool
    optional: bool
    one_of: str


@dataclass(frozen=True, slots=True)
class Rpc:
    """A method of a service.

    Attributes:
        name: name without the service.
        request: name of the message that a client sends.
        response: name of the message that the server answers.
        many_requests: whether the client sends a stream.
        many_responses: whether the server sends a stream.
    """

    name: str
    request: str
    response: str
    many_requests: bool = False
    many_responses: bool = False


class Package:
    """A package with one service.

    Args:
        name: name of the package.
        file: name of its file, as server reflection gives it.
        service: name of the service, without the package.
        rpcs: methods of the service.
        messages: table of the messages.
        enums: table of the enums.
    """

    def __init__(self, name: str, file: str, service: str, rpcs: Sequence[Rpc], messages: str, enums: str = "") -> None:
        self.name, self.file, self.service, self.rpcs = name, file, f"{name}.{service}", rpcs
        self._messages, self._enums = messages, enums
        self._classes: dict[str, Any] = {}

    @cached_property
    def messages(self) -> Mapping[str, tuple[MessageField, ...]]:
        """The fields of each message, in the order of the table."""
        return {name: tuple(_fields(text)) for name, text in _entries(self._messages)}

    @cached_property
    def enums(self) -> Mapping[str, Mapping[str, int]]:
        """Names and numbers of each enum."""
        entries = _entries(self._enums)
        return {name: {value: int(number) for value, number in _VALUE.findall(text)} for name, text in entries}

    def path(self, rpc: str) -> bytes:
        """Returns the path of a method in requests."""
        return f"/{self.service}/{rpc}".encode()

    def message_class(self, name: str) -> Any:
        """Returns protobuf's class of a message.

        Raises:
            KeyError: the table has no message with this name.
        """
        if name not in self._classes:
            from google.protobuf.message_factory import GetMessageClass

            self._classes[name] = GetMessageClass(self.pool.FindMessageTypeByName(f"{self.name}.{name}"))
        return self._classes[name]

    @cached_property
    def pool(self) -> DescriptorPool:
        """The pool with the file and those that it imports. It shares nothing with protobuf's default pool."""
        from google.protobuf import duration_pb2, timestamp_pb2
        from google.protobuf.descriptor_pool import DescriptorPool

        made = DescriptorPool()
        for imported in (duration_pb2, timestamp_pb2):
            made.AddSerializedFile(imported.DESCRIPTOR.serialized_pb)
        made.AddSerializedFile(self.file_descriptor().SerializeToString())
        return made

    def file_descriptor(self) -> FileDescriptorProto:
        """Returns the description of the package."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        file = FileDescriptorProto(name=self.file, package=self.name, syntax="proto3")
        file.dependency.extend(["google/protobuf/duration.proto", "google/protobuf/timestamp.proto"])
        for name, fields in self.messages.items():
            self._add_fields(file.message_type.add(name=name), fields)
        holders = {message.name: message for message in file.message_type}
        for name, values in self.enums.items():
            outer, _, inner = name.rpartition(".")
            enum = (holders[outer] if outer else file).enum_type.add(name=inner)
            for value, number in values.items():
                enum.value.add(name=value, number=number)
        service = file.service.add(name=self.service.rpartition(".")[2])
        for rpc in self.rpcs:
            method = service.method.add(name=rpc.name)
            method.input_type, method.output_type = f".{self.name}.{rpc.request}", f".{self.name}.{rpc.response}"
            # As protobuf's compiler does, only what is set.
            if rpc.many_requests:
                method.client_streaming = True
            if rpc.many_responses:
                method.server_streaming = True
        return file

    def _add_fields(self, message: DescriptorProto, fields: tuple[MessageField, ...]) -> None:
        one_ofs = list(dict.fromkeys(field.one_of for field in fields if field.one_of))
        for name in one_ofs:
            message.oneof_decl.add(name=name)
        for field in fields:
            made = message.field.add(name=field.name, number=field.number)
            made.label = made.LABEL_REPEATED if field.repeated or field.type == "map" else made.LABEL_OPTIONAL
            self._set_type(message, made, field)
            if field.one_of:
                made.oneof_index = one_ofs.index(field.one_of)
        # Presence of a field is a one-of with one choice; protobuf wants these behind the others.
        for made, field in zip(message.field, fields, strict=True):
            if field.optional:
                made.proto3_optional = True
                made.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _set_type(self, message: DescriptorProto, made: Any, field: MessageField) -> None:
        if field.type in SCALARS:
            made.type = getattr(made, f"TYPE_{SCALARS[field.type]}")
        elif field.type == "map":
            entry = message.nested_type.add(name="".join(part.title() for part in field.name.split("_")) + "Entry")
            entry.options.map_entry = True
            for number, part in enumerate(("key", "value"), 1):
                entry.field.add(name=part, number=number, label=made.LABEL_OPTIONAL, type=made.TYPE_STRING)
            made.type, made.type_name = made.TYPE_MESSAGE, f".{self.name}.{message.name}.{entry.name}"
        elif field.type in _WELL_KNOWN:
            made.type, made.type_name = made.TYPE_MESSAGE, _WELL_KNOWN[field.type]
        else:
            made.type = made.TYPE_ENUM if field.type in self.enums else made.TYPE_MESSAGE
            made.type_name = f".{self.name}.{field.type}"


def _entries(table: str) -> Iterator[tuple[str, str]]:
    for line in table.replace("\n    ", " ").splitlines():
        if found := _ENTRY.match(line):
            yield found[1], found[2]


def _fields(text: str) -> Iterator[MessageField]:
    one_of = ""
    for found in _FIELD.finditer(text):
        one_of = found["one_of"] or one_of
        repeated, optional = found["mark"] == "*", found["mark"] == "?"
        yield MessageField(found["name"], int(found["number"]), found["type"], repeated, optional, one_of)
        if found["end"]:
            one_of = ""
