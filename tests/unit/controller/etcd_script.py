"""Calls to etcd's JSON gateway, whose answers by a real etcd are in ``tests/golden/etcd/calls.json``."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

from rucola.errors import EtcdError

Call = tuple[str, dict[str, Any]]
LEASE = "LEASE"
"""Stands for the id of the granted lease, in calls and in answers."""


def text(data: bytes) -> str:
    return b64encode(data).decode()


def put(key: bytes, value: bytes, **more: str) -> dict[str, Any]:
    return {"request_put": {"key": text(key), "value": text(value), **more}}


def delete(key: bytes) -> dict[str, Any]:
    return {"request_delete_range": {"key": text(key)}}


def read(key: bytes) -> dict[str, Any]:
    return {"request_range": {"key": text(key)}}


def created(key: bytes, revision: int) -> dict[str, str]:
    return {"key": text(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def changed(key: bytes, revision: int) -> dict[str, str]:
    return {"key": text(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def txn(compare: list[Any], success: list[Any], failure: list[Any]) -> Call:
    return "/v3/kv/txn", {"compare": compare, "success": success, "failure": failure}


def calls() -> Iterator[Call]:
    """The calls, to an etcd that nobody has used."""
    yield "/v3/lease/grant", {"TTL": 60}
    yield "/v3/lease/keepalive", {"ID": LEASE}
    yield "/v3/kv/range", {"key": text(b"/a/l")}
    won = [created(b"/a/l", 0)], [put(b"/a/l", b"me", lease=LEASE)], [read(b"/a/l")]
    yield txn(*won)
    yield txn(*won)
    yield txn([created(b"/a/l", 2), changed(b"/a/g", 0)], [put(b"/a/g", b"1")], [read(b"/a/l"), read(b"/a/g")])
    yield txn([created(b"/a/l", 2), changed(b"/a/g", 0)], [put(b"/a/g", b"2")], [read(b"/a/l"), read(b"/a/g")])
    yield txn([created(b"/a/l", 2), changed(b"/a/g", 3)], [put(b"/a/g", b"2")], [])
    yield txn([created(b"/a/l", 9), changed(b"/a/g", 4)], [put(b"/a/g", b"3")], [read(b"/a/n")])
    yield txn([], [put(b"/a/h", b""), put(b"/b", b"x")], [])
    yield "/v3/kv/range", {"key": text(b"/a/"), "range_end": text(b"/a0"), "limit": "2"}
    yield "/v3/kv/range", {"key": text(b"/a/"), "range_end": text(b"/a0"), "limit": "256"}
    yield txn([], [delete(b"/a/h")], [])
    yield txn([], [delete(b"/a/h")], [])
    yield "/v3/kv/range", {"key": text(b"/a/h")}
    yield "/v3/lease/revoke", {"ID": LEASE}
    yield "/v3/lease/revoke", {"ID": LEASE}
    yield "/v3/lease/keepalive", {"ID": LEASE}
    yield "/v3/kv/range", {"key": text(b"/a/l")}
    yield txn([], [put(b"/a/l", b"me", lease=LEASE)], [])
    yield txn([created(b"/a/l", 2)], [put(b"/a/g", b"4")], [read(b"/a/l")])


def answers(call: Callable[[str, dict[str, Any]], dict[str, Any]]) -> list[Any]:
    """What ``call`` answers to all calls, or code and text of its refusal, without what differs between clusters."""
    lease, found = "", []
    for path, body in calls():
        try:
            answer = call(path, replaced(body, LEASE, lease))
        except EtcdError as error:
            found.append({"code": error.code, "error": error.reason})
            continue
        if path == "/v3/lease/grant":
            lease = answer["ID"]
        found.append(replaced(without_cluster(answer), lease, LEASE))
    return found


def replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: replaced(member, old, new) for key, member in value.items()}
    if isinstance(value, list):
        return [replaced(member, old, new) for member in value]
    return new if value == old and old else value


def without_cluster(value: Any) -> Any:
    if isinstance(value, dict):
        names = ("cluster_id", "member_id", "raft_term")
        return {key: without_cluster(member) for key, member in value.items() if key not in names}
    return [without_cluster(member) for member in value] if isinstance(value, list) else value
