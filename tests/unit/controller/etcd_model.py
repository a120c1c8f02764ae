"""A model of one etcd, as its JSON gateway shows it: revisions, transactions, leases that expire on a given clock.

``test_etcd_model.py`` has what it answers; ``tests/conformance/ha_controller.py`` asks a real etcd the same.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rucola.errors import EtcdError

ENDPOINT = "http://etcd:2379"
_NOT_FOUND = "etcdserver: requested lease not found"


class Entry(NamedTuple):
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class Write(NamedTuple):
    """One change of a key; ``value`` is None for a removal, ``leader`` the leader's key then."""

    revision: int
    key: str
    value: bytes | None
    leader: Entry | None
    writer: str
    at_s: float


class EtcdModel:
    """The state, and every write that was made to it.

    monotonic: the time in seconds, by which leases end.
    """

    def __init__(self, monotonic: Callable[[], float], leader_key: str = "/rucola/controller/leader") -> None:
        self._monotonic, self._leader_key = monotonic, leader_key.encode()
        self.revision = 1
        self.entries: dict[bytes, Entry] = {}
        self.leases: dict[int, tuple[int, float]] = {}
        self.history: list[Write] = []
        self._next_lease = 7_000_000_000_000_000_000
        self._writer = ""

    def handle(self, path: str, body: Mapping[str, Any], writer: str = "") -> dict[str, Any]:
        """Carries out a call."""
        self._expire()
        self._writer = writer
        calls = {
            "/v3/kv/range": self._range,
            "/v3/kv/txn": self._txn,
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keep_alive,
            "/v3/lease/revoke": self._revoke,
        }
        return calls[path](body)

    def value(self, key: str) -> bytes | None:
        self._expire()
        entry = self.entries.get(key.encode())
        return None if entry is None else entry.value

    def put(self, key: str, value: bytes) -> None:
        """A write by hand."""
        self.revision += 1
        self._put(key.encode(), value, 0)

    def delete(self, key: str) -> None:
        """A removal by hand."""
        self.revision += 1
        self._delete(key.encode())

    def _header(self) -> dict[str, str]:
        return {"cluster_id": "1", "member_id": "2", "revision": str(self.revision), "raft_term": "2"}

    def _range(self, body: Mapping[str, Any]) -> dict[str, Any]:
        start, end = b64decode(body["key"]), b64decode(body.get("range_end", ""))
        keys = sorted(key for key in self.entries if (start <= key < end if end else key == start))
        limit = int(body.get("limit", 0)) or len(keys)
        answer: dict[str, Any] = {"header": self._header()}
        if keys:
            answer |= {"kvs": [self._shown(key) for key in keys[:limit]], "count": str(len(keys))}
        if len(keys) > limit:
            answer["more"] = True
        return answer

    def _shown(self, key: bytes) -> dict[str, str]:
        entry = self.entries[key]
        numbers = {
            "create_revision": entry.create_revision,
            "mod_revision": entry.mod_revision,
            "version": entry.version,
            "lease": entry.lease,
        }
        shown = {name: str(number) for name, number in numbers.items() if number}
        value = {"value": b64encode(entry.value).decode()} if entry.value else {}
        return {"key": b64encode(key).decode(), **shown, **value}

    def _txn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if all(self._holds(one) for one in body["compare"]):
            for one in body["success"]:
                lease = int(one.get("request_put", {}).get("lease", 0))
                if lease and lease not in self.leases:
                    raise EtcdError(ENDPOINT, "/v3/kv/txn", _NOT_FOUND, 5)
            if any("request_put" in one or self._removes(one) for one in body["success"]):
                self.revision += 1
            responses = [self._write(one) for one in body["success"]]
            return {"header": self._header(), "succeeded": True, "responses": responses}
        found = []
        for one in body["failure"]:
            answer = self._range(one["request_range"])
            found.append({"response_range": {**answer, "header": {"revision": str(self.revision)}}})
        return {"header": self._header(), "responses": found}

    def _removes(self, one: Mapping[str, Any]) -> bool:
        return "request_delete_range" in one and b64decode(one["request_delete_range"]["key"]) in self.entries

    def _holds(self, one: Mapping[str, Any]) -> bool:
        entry = self.entries.get(b64decode(one["key"]), Entry(b"", 0, 0, 0, 0))
        assert one["result"] == "EQUAL"
        if one["target"] == "CREATE":
            return entry.create_revision == int(one["create_revision"])
        assert one["target"] == "MOD"
        return entry.mod_revision == int(one["mod_revision"])

    def _write(self, one: Mapping[str, Any]) -> dict[str, Any]:
        header = {"header": {"revision": str(self.revision)}}
        if "request_put" in one:
            put = one["request_put"]
            self._put(b64decode(put["key"]), b64decode(put["value"]), int(put.get("lease", 0)))
            return {"response_put": header}
        removed = self._delete(b64decode(one["request_delete_range"]["key"]))
        return {"response_delete_range": {**header, **({"deleted": "1"} if removed else {})}}

    def _put(self, key: bytes, value: bytes, lease: int) -> None:
        before = self.entries.get(key)
        created, version = (self.revision, 1) if before is None else (before.create_revision, before.version + 1)
        self._note(key, value)
        self.entries[key] = Entry(value, created, self.revision, version, lease)

    def _delete(self, key: bytes) -> bool:
        if key not in self.entries:
            return False
        self._note(key, None)
        del self.entries[key]
        return True

    def _note(self, key: bytes, value: bytes | None) -> None:
        leader = self.entries.get(self._leader_key)
        self.history.append(Write(self.revision, key.decode(), value, leader, self._writer, self._monotonic()))

    def _grant(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._next_lease += 1
        ttl = int(body["TTL"])
        self.leases[self._next_lease] = ttl, self._monotonic() + ttl
        return {"header": self._header(), "ID": str(self._next_lease), "TTL": str(ttl)}

    def _keep_alive(self, body: Mapping[str, Any]) -> dict[str, Any]:
        lease = int(body["ID"])
        answer = {"header": self._header(), "ID": str(lease)}
        if lease in self.leases:
            ttl = self.leases[lease][0]
            self.leases[lease] = ttl, self._monotonic() + ttl
            answer["TTL"] = str(ttl)
        return {"result": answer}

    def _revoke(self, body: Mapping[str, Any]) -> dict[str, Any]:
        lease = int(body["ID"])
        if lease not in self.leases:
            raise EtcdError(ENDPOINT, "/v3/lease/revoke", _NOT_FOUND, 5)
        self._end(lease)
        return {"header": self._header()}

    def _expire(self) -> None:
        self._writer = "lease"
        for lease in [one for one, (_, ends_s) in self.leases.items() if ends_s < self._monotonic()]:
            self._end(lease)

    def _end(self, lease: int) -> None:
        del self.leases[lease]
        keys = [key for key, entry in self.entries.items() if entry.lease == lease]
        self.revision += bool(keys)
        for key in keys:
            self._delete(key)


class ModelGateway:
    """Calls to a model. A test may give it faults.

    Attributes:
        before, after: called with the path, before and after the call is carried out; each may wait or raise.
        calls: the paths that were called.
    """

    def __init__(self, model: EtcdModel, writer: str = "") -> None:
        self.model, self._writer = model, writer
        self.calls: list[str] = []
        self.before: Callable[[str], Any] = lambda _path: None
        self.after: Callable[[str], Any] = lambda _path: None

    async def call(self, path: str, body: Mapping[str, Any], is_idempotent: bool = False) -> dict[str, Any]:
        self.calls.append(path)
        await _done(self.before(path))
        answer = self.model.handle(path, body, self._writer)
        await _done(self.after(path))
        return answer


async def _done(found: Any) -> None:
    await (found if found is not None else asyncio.sleep(0))


def unanswered(path: str) -> EtcdError:
    """The error of a call without an answer."""
    return EtcdError(ENDPOINT, path, "no answer within 1 s")
