"""Service ``grpc.reflection.v1.ServerReflection``: what the server offers, for tools such as grpcurl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rucola.grpc.call import GrpcCall
from rucola.grpc.methods import Method, StreamMethod
from rucola.grpc.schema import Package, Rpc
from rucola.grpc.status import GrpcError, StatusCode

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

REFLECTION_V1 = Package(
    "grpc.reflection.v1",
    "grpc/reflection/v1/reflection.proto",
    "ServerReflection",
    (Rpc("ServerReflectionInfo", "ServerReflectionRequest", "ServerReflectionResponse", True, True),),
    """
ServerReflectionRequest: host 1 s, (message_request: file_by_filename 3 s, file_containing_symbol 4 s,
    file_containing_extension 5 ExtensionRequest, all_extension_numbers_of_type 6 s, list_services 7 s)
ExtensionRequest: containing_type 1 s, extension_number 2 i
ServerReflectionResponse: valid_host 1 s, original_request 2 ServerReflectionRequest,
    (message_response: file_descriptor_response 4 FileDescriptorResponse,
    all_extension_numbers_response 5 ExtensionNumberResponse, list_services_response 6 ListServiceResponse,
    error_response 7 ErrorResponse)
FileDescriptorResponse: file_descriptor_proto* 1 y
ExtensionNumberResponse: base_type_name 1 s, extension_number* 2 i
ListServiceResponse: service* 1 ServiceResponse
ServiceResponse: name 1 s
ErrorResponse: error_code 1 i, error_message 2 s
""",
)


class ReflectionService:
    """Describes packages.

    Args:
        packages: what the server offers; this service is added.
    """

    def __init__(self, packages: Sequence[Package]) -> None:
        self._packages = (*packages, REFLECTION_V1)

    def methods(self) -> Mapping[bytes, Method]:
        """Returns what a server offers of this service."""
        return {REFLECTION_V1.path("ServerReflectionInfo"): StreamMethod(lambda call: _Questions(call, self))}

    def answer(self, request: Any) -> Any:
        """Returns the response to a request."""
        response = REFLECTION_V1.message_class("ServerReflectionResponse")(valid_host=request.host)
        response.original_request.CopyFrom(request)
        asked = request.WhichOneof("message_request")
        if asked == "list_services":
            for package in self._packages:
                response.list_services_response.service.add(name=package.service)
        elif asked == "all_extension_numbers_of_type":
            response.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
        elif (found := self._file(asked, request)) is not None:
            files = response.file_descriptor_response.file_descriptor_proto
            files.extend(file.serialized_pb for file in _with_imports(found))
        else:
            response.error_response.error_code = int(StatusCode.NOT_FOUND)
            response.error_response.error_message = "nothing of this name is offered"
        return response

    def _file(self, asked: str | None, request: Any) -> FileDescriptor | None:
        if asked == "file_by_filename":
            return self._found("FindFileByName", request.file_by_filename)
        if asked == "file_containing_symbol":
            symbol = request.file_containing_symbol
            # Protobuf's pool knows no methods, only their service.
            return self._found("FindFileContainingSymbol", symbol) or self._found(
                "FindServiceByName", symbol.rpartition(".")[0]
            )
        return None

    def _found(self, how: str, name: str) -> FileDescriptor | None:
        for package in self._packages:
            with suppress(KeyError):
                found = getattr(package.pool, how)(name)
                return getattr(found, "file", found)
        return None


class _Questions:
    """One call of a tool."""

    def __init__(self, call: GrpcCall, reflection: ReflectionService) -> None:
        self._call, self._reflection = call, reflection

    def received(self, message: bytes) -> None:
        from google.protobuf.message import DecodeError

        try:
            request = REFLECTION_V1.message_class("ServerReflectionRequest").FromString(message)
        except DecodeError:
            raise GrpcError(StatusCode.INVALID_ARGUMENT, "the request is no ServerReflectionRequest") from None
        self._call.send(self._reflection.answer(request).SerializeToString())

    def finished(self) -> None:
        self._call.end()


def _with_imports(file: FileDescriptor) -> Iterator[FileDescriptor]:
    """Yields a file and those that it imports, each once."""
    seen: set[str] = set()
    waiting = [file]
    while waiting:
        one = waiting.pop()
        if one.name not in seen:
            seen.add(one.name)
            yield one
            waiting.extend(one.dependencies)
