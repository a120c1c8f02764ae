"""The table of messages is the one that the official Python client has, and both live in one process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from rucola.proxy import messages
from rucola.proxy.schema import V2

NEWER = {"Settings.client_properties", "Code.INVALID_CLIENT_PROPERTIES"}
"""What the protocol has and the client, 5.1.2, has not yet."""

OFFICIAL = """
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from rocketmq.grpc_protocol import definition_pb2, service_pb2
"""
OURS = """
from rucola.proxy import messages
assert messages.Message(body=b"x").SerializeToString()
"""


@pytest.fixture(scope="module")
def official() -> list[FileDescriptorProto]:
    """The files that the official client registers, read in another process."""
    code = OFFICIAL + ("for file in (definition_pb2, service_pb2):\n    print(file.DESCRIPTOR.serialized_pb.hex())\n")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [FileDescriptorProto.FromString(bytes.fromhex(line)) for line in result.stdout.split()]


def fields(message: DescriptorProto) -> set[tuple[object, ...]]:
    found = set()
    for field in message.field:
        one_of = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        kind = (field.label, field.type, field.type_name, field.proto3_optional, one_of)
        found.add((f"{message.name}.{field.name}", field.number, *kind))
    return found


def test_every_message_has_the_fields_of_the_official_client(official):
    ours = {message.name: fields(message) for message in V2.file_descriptor().message_type}
    theirs = {message.name: fields(message) for file in official for message in file.message_type}
    assert theirs.keys() == ours.keys()
    for name, has in ours.items():
        assert {field for field in has if field[0] not in NEWER} == theirs[name]


def test_every_enum_has_the_values_of_the_official_client(official):
    def values(files):
        enums = [enum for file in files for enum in file.enum_type]
        enums += [enum for file in files for message in file.message_type for enum in message.enum_type]
        return {(f"{enum.name}.{value.name}", value.number) for enum in enums for value in enum.value}

    ours = {value for value in values([V2.file_descriptor()]) if value[0] not in NEWER}
    assert ours == values(official)


def test_every_method_is_the_one_of_the_official_client(official):
    def methods(files):
        services = [service for file in files for service in file.service]
        return {
            (
                service.name,
                method.name,
                method.input_type,
                method.output_type,
                method.client_streaming,
                method.server_streaming,
            )
            for service in services
            for method in service.method
        }

    assert methods([V2.file_descriptor()]) == methods(official)


@pytest.mark.parametrize("first", ["ours", "official"])
def test_the_official_client_and_ours_are_imported_into_one_process(first):
    parts = [OURS, OFFICIAL] if first == "ours" else [OFFICIAL, OURS]
    result = subprocess.run([sys.executable, "-c", "".join(parts)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_names_of_messages_and_values():
    assert messages.OK == 20000 and messages.IPv6 == 2
    assert messages.Resource(name="flights").SerializeToString() == b"\x12\x07flights"
    assert messages.Resource is messages.Resource
    with pytest.raises(AttributeError, match=r"apache\.rocketmq\.v2 has no message or value named 'Nothing'"):
        _ = messages.Nothing


def test_unknown_fields_are_kept():
    more = messages.Resource(name="a").SerializeToString() + b"\xfa\x07\x03abc"  # field 127
    assert messages.Resource.FromString(more).SerializeToString() == more


def test_each_field_is_of_a_type_that_exists():
    known = {*V2.messages, *V2.enums, "s", "i", "l", "b", "f", "y", "D", "T", "map"}
    numbers = [[field.number for field in fields] for fields in V2.messages.values()]
    assert {field.type for fields in V2.messages.values() for field in fields} <= known
    assert all(len(set(of)) == len(of) for of in numbers)
