"""What a recording is made of: records in order of arrival, one JSON line each, and how they are kept."""

from __future__ import annotations

import base64
import json
import lzma
import threading
import time
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from rocketmq.grpc_protocol import service_pb2

SERVICE = "MessagingService"
IS_RESPONSE, IS_ONEWAY = 1, 2


class Recording:
    """Records of one scenario after the other; relays and the life add to it from several threads.

    Attributes:
        client_ids: ids of gRPC clients in the order in which they appeared.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: list[dict[str, Any]] = []
        self._began_s = time.monotonic()
        self._request_codes: dict[tuple[str, int], int] = {}
        self.client_ids: list[str] = []

    def take(self) -> list[dict[str, Any]]:
        """Returns the records since the last call, and begins again."""
        with self._lock:
            records, self._records = self._records, []
            self._began_s = time.monotonic()
            return records

    def add(self, **record: Any) -> None:
        """Adds a record, with its number and time in ms."""
        with self._lock:
            at_ms = int((time.monotonic() - self._began_s) * 1000)
            self._records.append({"n": len(self._records), "t_ms": at_ms, **record})

    def note(self, who: str, said: str, **more: Any) -> None:
        """Adds what was done, or what a client saw."""
        self.add(wire="note", who=who, said=said, **more)

    def frame(self, conn: str, sender: str, receiver: str, frame: bytes) -> None:
        """Adds a remoting frame, with its length."""
        header_bytes = int.from_bytes(frame[5:8], "big")
        header = json.loads(frame[8 : 8 + header_bytes])
        body = frame[8 + header_bytes :]
        code, opaque, flag = header["code"], header["opaque"], header["flag"]
        record: dict[str, Any] = {"wire": "remoting", "conn": conn, "dir": f"{sender}->{receiver}"}
        if flag & IS_RESPONSE:
            asked = self._request_codes.pop((f"{conn}{receiver}", opaque), None)
            record |= {"kind": "response", "code": code, "request_code": asked}
        else:
            record |= {"kind": "oneway" if flag & IS_ONEWAY else "request", "code": code}
            self._request_codes[f"{conn}{sender}", opaque] = code
        record |= {"opaque": opaque, "header": header}
        if body[:1] in (b"{", b"["):
            record["body"] = body.decode()
        self.add(**record, frame=base64.b64encode(frame).decode())

    def message(self, conn: str, call: int, method: str, kind: str, source: bytes) -> None:
        """Adds a gRPC message; ``kind`` is request or response."""
        view = MessageToDict(_class_of(method, kind).FromString(source), preserving_proto_field_name=True)
        message = base64.b64encode(source).decode()
        self.add(wire="grpc", conn=conn, call=call, method=method, kind=kind, view=view, message=message)

    def call(self, conn: str, call: int, method: str, client_id: str, timeout_ms: int | None) -> None:
        """Adds the beginning of a gRPC call."""
        if client_id and client_id not in self.client_ids:
            self.client_ids.append(client_id)
        self.add(wire="grpc", conn=conn, call=call, method=method, kind="call", client=client_id, timeout_ms=timeout_ms)


def _class_of(method: str, kind: str) -> Any:
    rpc = service_pb2.DESCRIPTOR.services_by_name[SERVICE].methods_by_name[method]
    described = rpc.input_type if kind == "request" else rpc.output_type
    return getattr(service_pb2, described.name)


def write(path: Path, records: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    """Writes a scenario; the first line has the facts about it."""
    lines = [facts, *records]
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
