"""What a server offers: methods by path, and what their handlers get and give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rucola.grpc.status import StatusCode

if TYPE_CHECKING:
    from rucola.grpc.call import GrpcCall

MESSAGE_BYTES_MAX = 4 * 1024 * 1024 + 64 * 1024

Answer = bytes | None | Awaitable[bytes]
"""The response; or None, if the handler gives it later with ``GrpcCall.send`` and ``end``; or what will give it."""


class CallOutcomes(Protocol):
    """Counts how the calls of a method end."""

    def answered(self, message: bytes) -> None:
        """Counts a call by its first response."""

    def ended(self, code: StatusCode) -> None:
        """Counts a call that ended with an error, or without a response because its client was gone."""


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """A method with one request; its handler gives one response, or any number with ``GrpcCall.send``.

    Attributes:
        handle: called with the call and the request. It may raise ``GrpcError``.
        message_bytes_max: limit of the request.
        outcomes: counts the calls; None if nobody wants to know.
    """

    handle: Callable[[GrpcCall, bytes], Answer]
    message_bytes_max: int = MESSAGE_BYTES_MAX
    outcomes: CallOutcomes | None = None


class Conversation(Protocol):
    """One call of a method with a stream of requests. Responses go to ``GrpcCall.send`` and ``GrpcCall.end``."""

    def received(self, message: bytes) -> None:
        """Handles a request. It may raise ``GrpcError``."""

    def finished(self) -> None:
        """The client sends no more; it still reads."""


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A method with a stream of requests.

    Attributes:
        begin: called when a client begins a call. It may raise ``GrpcError``.
        message_bytes_max: limit of each request.
        outcomes: counts the calls; None if nobody wants to know.
    """

    begin: Callable[[GrpcCall], Conversation]
    message_bytes_max: int = MESSAGE_BYTES_MAX
    outcomes: CallOutcomes | None = None


Method = UnaryMethod | StreamMethod
