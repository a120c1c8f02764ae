"""How a call becomes a call of a Python function: its request decoded, its client known, its refusal told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rucola.errors import BrokerError, RemotingTimeoutError, RucolaError
from rucola.grpc.call import GrpcCall
from rucola.grpc.methods import Answer, UnaryMethod
from rucola.grpc.status import GrpcError, StatusCode
from rucola.proxy import messages
from rucola.proxy.refusal import RefusedError
from rucola.proxy.schema import V2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rucola.proxy.sessions import ClientSession, Sessions

Q = TypeVar("Q", bound="Message")


def ok() -> messages.Status:
    """The status of a request that was carried out."""
    return messages.Status(code=messages.OK, message="OK")


def unary(
    sessions: Sessions, name: str, serve: Callable[[ClientSession, Any], Awaitable[Message | bytes] | Message]
) -> UnaryMethod:
    """The method ``name``, which ``serve`` serves: it gets the client and the request, and returns the response, now or
    later; a long one as bytes. What it refuses is answered with the status of the refusal.
    """
    request_class, response_class = (V2.message_class(name + part) for part in ("Request", "Response"))

    def refused(error: Exception) -> bytes:
        return serialized(response_class(status=refusal_of(error).status()))

    async def later(answer: Awaitable[Message | bytes]) -> bytes:
        try:
            response = await answer
            return response if isinstance(response, bytes) else serialized(response)
        except RucolaError as error:
            return refused(error)

    def handle(call: GrpcCall, data: bytes) -> Answer:
        request = decoded(request_class, data)
        try:
            answer = serve(sessions.of(call), request)
        except RucolaError as error:
            return refused(error)
        return later(answer) if isinstance(answer, Awaitable) else serialized(answer)

    return UnaryMethod(handle)


def refusal_of(error: Exception) -> RefusedError:
    """What a client is told about an error."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, BrokerError):
        return RefusedError.of(error)
    if isinstance(error, RemotingTimeoutError):
        return RefusedError(messages.PROXY_TIMEOUT, f"the broker did not answer within {error.timeout_ms} ms")
    return RefusedError(messages.INTERNAL_SERVER_ERROR, str(error))


def decoded(kind: type[Q], data: bytes) -> Q:
    """The message in ``data``.

    Raises:
        GrpcError: it is none.
    """
    from google.protobuf.message import DecodeError

    try:
        message: Q = kind.FromString(data)
    except DecodeError:
        raise GrpcError(StatusCode.INVALID_ARGUMENT, f"the request is no {kind.DESCRIPTOR.name}") from None
    return message


def serialized(message: Message) -> bytes:
    """The bytes of a message."""
    data: bytes = message.SerializeToString()
    return data
