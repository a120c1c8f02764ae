"""Service ``grpc.health.v1.Health``: whether the server, or one of its services, takes calls."""

from __future__ import annotations

from collections.abc import Mapping

from rucola.grpc.call import GrpcCall
from rucola.grpc.methods import Method, UnaryMethod
from rucola.grpc.schema import Package, Rpc
from rucola.grpc.status import GrpcError, StatusCode

HEALTH_V1 = Package(
    "grpc.health.v1",
    "grpc/health/v1/health.proto",
    "Health",
    (
        Rpc("Check", "HealthCheckRequest", "HealthCheckResponse"),
        Rpc("Watch", "HealthCheckRequest", "HealthCheckResponse", many_responses=True),
    ),
    """
HealthCheckRequest: service 1 s
HealthCheckResponse: status 1 HealthCheckResponse.ServingStatus
""",
    """
HealthCheckResponse.ServingStatus: UNKNOWN 0, SERVING 1, NOT_SERVING 2, SERVICE_UNKNOWN 3
""",
)
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3


class HealthService:
    """Answers checks and watches. Event loop only.

    Args:
        services: names of the services of the server; the empty name stands for the server and is added.
    """

    def __init__(self, *services: str) -> None:
        self._serving = dict.fromkeys(("", *services), True)
        self._watches: dict[str, set[GrpcCall]] = {}

    def methods(self) -> Mapping[bytes, Method]:
        """Returns what a server offers of this service."""
        return {
            HEALTH_V1.path("Check"): UnaryMethod(self._check),
            HEALTH_V1.path("Watch"): UnaryMethod(self._watch),
        }

    def set_serving(self, service: str, serving: bool) -> None:
        """Notes whether a service takes calls, and tells those who watch it."""
        if self._serving.get(service) != serving:
            self._serving[service] = serving
            for call in list(self._watches.get(service, ())):
                call.send(self._answer(service))

    def _check(self, call: GrpcCall, request: bytes) -> bytes:
        service = _service(request)
        if service not in self._serving:
            raise GrpcError(StatusCode.NOT_FOUND, f"there is no service {service!r}")
        return self._answer(service)

    def _watch(self, call: GrpcCall, request: bytes) -> None:
        service = _service(request)
        watches = self._watches.setdefault(service, set())
        watches.add(call)

        def ended() -> None:
            watches.discard(call)
            if not watches:
                self._watches.pop(service, None)

        call.on_over = ended
        call.send(self._answer(service))

    def _answer(self, service: str) -> bytes:
        serving = self._serving.get(service)
        status = _SERVICE_UNKNOWN if serving is None else _SERVING if serving else _NOT_SERVING
        answer: bytes = HEALTH_V1.message_class("HealthCheckResponse")(status=status).SerializeToString()
        return answer


def _service(request: bytes) -> str:
    from google.protobuf.message import DecodeError

    try:
        return str(HEALTH_V1.message_class("HealthCheckRequest").FromString(request).service)
    except DecodeError:
        raise GrpcError(StatusCode.INVALID_ARGUMENT, "the request is no HealthCheckRequest") from None
