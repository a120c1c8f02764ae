"""ReflectionService: a client that knows nothing learns what the server offers."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from rucola.grpc.health import HEALTH_V1
from rucola.grpc.reflection import REFLECTION_V1, ReflectionService
from rucola.grpc.server import GrpcServer
from rucola.proxy.schema import V2

REQUEST = REFLECTION_V1.message_class("ServerReflectionRequest")
RESPONSE = REFLECTION_V1.message_class("ServerReflectionResponse")


def ask(**question: object) -> object:
    """Asks over a connection; returns the answer."""

    async def run() -> object:
        server = GrpcServer(ReflectionService([V2, HEALTH_V1]).methods(), "127.0.0.1", 0, time.monotonic)
        await server.start()
        async with grpc.aio.insecure_channel(server.address) as channel:
            talk = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")()
            await talk.write(REQUEST(**question).SerializeToString())
            answer = RESPONSE.FromString(await talk.read())
            await talk.done_writing()
            assert await talk.read() is grpc.aio.EOF
        await server.stop(0)
        return answer

    return asyncio.run(run())


def test_services_are_listed() -> None:
    answer = ask(list_services="")
    assert [service.name for service in answer.list_services_response.service] == [
        "apache.rocketmq.v2.MessagingService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ]
    assert answer.original_request == REQUEST(list_services="")


@pytest.mark.parametrize(
    "question",
    [
        {"file_containing_symbol": "apache.rocketmq.v2.MessagingService"},
        {"file_containing_symbol": "apache.rocketmq.v2.MessagingService.SendMessage"},
        {"file_containing_symbol": "apache.rocketmq.v2.SystemProperties.born_timestamp"},
        {"file_by_filename": V2.file},
    ],
)
def test_a_file_comes_with_what_it_imports(question: dict[str, str]) -> None:
    files = ask(**question).file_descriptor_response.file_descriptor_proto
    assert len(set(files)) == len(files) == 3
    pool = DescriptorPool()
    for file in reversed(files):
        pool.AddSerializedFile(file)
    service = pool.FindServiceByName("apache.rocketmq.v2.MessagingService")
    assert [method.name for method in service.methods] == [rpc.name for rpc in V2.rpcs]
    assert FileDescriptorProto.FromString(files[0]) == V2.file_descriptor()


@pytest.mark.parametrize(
    "question",
    [
        {"file_containing_symbol": "apache.rocketmq.v2.Admin"},
        {"file_by_filename": "nothing.proto"},
        {"file_containing_extension": {"containing_type": "a.B", "extension_number": 1}},
        {},
    ],
)
def test_what_is_not_offered(question: dict[str, object]) -> None:
    assert ask(**question).error_response.error_code == 5


def test_there_are_no_extensions() -> None:
    answer = ask(all_extension_numbers_of_type="apache.rocketmq.v2.Message").all_extension_numbers_response
    assert (answer.base_type_name, list(answer.extension_number)) == ("apache.rocketmq.v2.Message", [])
