"""etcd's API 3 through its JSON gateway: the calls that the controller needs, as typed values.

Keys and values are Base64, 64-bit numbers are texts, and fields with the value 0, false or nothing are left out
(etcd 3.4 and later, ``api/etcdserverpb/rpc.proto``; the paths begin with ``/v3`` from 3.4 on).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rucola.errors import EtcdError, FormatError

ETCD_ERRORS = (EtcdError, FormatError)
"""What a call may raise: etcd did not answer, refused, or did not answer as etcd does."""
PAGE = 256
"""Number of keys in one answer to ``range``."""
_IDEMPOTENT = True


class Gateway(Protocol):
    """Carries calls to one etcd cluster."""

    async def call(self, path: str, body: Mapping[str, Any], is_idempotent: bool = False) -> dict[str, Any]:
        """Sends one call.

        Args:
            path: for example ``/v3/kv/txn``.
            body: JSON.
            is_idempotent: whether the call may be carried out twice, so that another member of the cluster may be asked
                after one has not answered.

        Raises:
            EtcdError: no answer, or a refusal. Without an answer the call may have been carried out.
        """


class KeyValue(NamedTuple):
    """A key of etcd. The revisions are those of the cluster when the key was created and changed; ``lease`` is the
    lease whose end removes it, 0 for none.
    """

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


class Compare(NamedTuple):
    """A condition of a transaction: that ``key`` was created (``CREATE``) or last changed (``MOD``) in exactly this
    revision; 0 for a key that does not exist.
    """

    key: str
    target: str
    revision: int


class Put(NamedTuple):
    """A write of a transaction."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """A removal in a transaction."""

    key: str


class TxnResult(NamedTuple):
    """Outcome of a transaction.

    Attributes:
        succeeded: whether all conditions held, so that the writes were made.
        revision: the revision of the cluster after it.
        found: if it did not succeed, the keys that were asked for, in this order; None for one that does not exist.
    """

    succeeded: bool
    revision: int
    found: tuple[KeyValue | None, ...] = ()


class Etcd:
    """The calls.

    Args:
        gateway: carries them.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def grant(self, ttl_s: int) -> int:
        """Makes a lease; returns its id."""
        answer = await self._gateway.call("/v3/lease/grant", {"TTL": ttl_s}, _IDEMPOTENT)
        return _number(answer, "ID")

    async def keep_alive(self, lease: int) -> int:
        """Renews a lease; returns the seconds that it has now, 0 if it has ended."""
        answer = await self._gateway.call("/v3/lease/keepalive", {"ID": str(lease)}, _IDEMPOTENT)
        result = answer.get("result")
        return _number(result if isinstance(result, dict) else {}, "TTL")

    async def revoke(self, lease: int) -> None:
        """Ends a lease, and with it its keys."""
        await self._gateway.call("/v3/lease/revoke", {"ID": str(lease)}, _IDEMPOTENT)

    async def range(self, prefix: str) -> list[KeyValue]:
        """All keys that begin with ``prefix``, in order."""
        found: list[KeyValue] = []
        start, end = prefix.encode(), _end_of(prefix.encode())
        while True:
            asked = {"key": _text(start), "range_end": _text(end), "limit": str(PAGE)}
            answer = await self._gateway.call("/v3/kv/range", asked, _IDEMPOTENT)
            page = _key_values(answer)
            found += page
            if not answer.get("more") or not page:
                return found
            start = page[-1].key.encode("utf-8", "surrogateescape") + b"\0"

    async def get(self, key: str) -> KeyValue | None:
        """One key; None if it does not exist."""
        return _first(await self._gateway.call("/v3/kv/range", {"key": _text(key.encode())}, _IDEMPOTENT))

    async def txn(
        self, conditions: Sequence[Compare], writes: Sequence[Put | Delete], otherwise: Sequence[str]
    ) -> TxnResult:
        """Makes all ``writes`` if all ``conditions`` hold; if not, reads the keys ``otherwise``."""
        body = {
            "compare": [_compare(one) for one in conditions],
            "success": [_write(one) for one in writes],
            "failure": [{"request_range": {"key": _text(key.encode())}} for key in otherwise],
        }
        answer = await self._gateway.call("/v3/kv/txn", body)
        header = answer.get("header")
        revision = _number(header if isinstance(header, dict) else {}, "revision")
        if answer.get("succeeded"):
            return TxnResult(True, revision)
        responses = answer.get("responses")
        if not isinstance(responses, list) or len(responses) != len(otherwise):
            raise FormatError("etcd's answer to a transaction", 0, f"{len(otherwise)} results", repr(responses)[:80])
        return TxnResult(False, revision, tuple(_first(_range_in(one)) for one in responses))


def _compare(one: Compare) -> dict[str, Any]:
    field = "create_revision" if one.target == "CREATE" else "mod_revision"
    return {"key": _text(one.key.encode()), "target": one.target, "result": "EQUAL", field: str(one.revision)}


def _write(one: Put | Delete) -> dict[str, Any]:
    if isinstance(one, Delete):
        return {"request_delete_range": {"key": _text(one.key.encode())}}
    put = {"key": _text(one.key.encode()), "value": _text(one.value)}
    return {"request_put": {**put, "lease": str(one.lease)} if one.lease else put}


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with ``prefix``, whose last byte is ASCII."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _number(answer: Mapping[str, Any], key: str) -> int:
    text = answer.get(key, "0")
    try:
        return int(text)
    except (TypeError, ValueError):
        raise FormatError(f"etcd's answer, {key}", 0, "a number", repr(text)[:80]) from None


def _range_in(response: Any) -> Mapping[str, Any]:
    found = response.get("response_range") if isinstance(response, dict) else None
    if not isinstance(found, dict):
        raise FormatError("etcd's answer to a transaction", 0, "a range", repr(response)[:80])
    return found


def _first(answer: Mapping[str, Any]) -> KeyValue | None:
    return next(iter(_key_values(answer)), None)


def _key_values(answer: Mapping[str, Any]) -> list[KeyValue]:
    try:
        return [_key_value(one) for one in answer.get("kvs") or ()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError("etcd's answer", 0, "keys with values", str(error)[:80]) from None


def _key_value(one: Mapping[str, Any]) -> KeyValue:
    return KeyValue(
        b64decode(one["key"], validate=True).decode("utf-8", "surrogateescape"),
        b64decode(one.get("value", ""), validate=True),
        _number(one, "create_revision"),
        _number(one, "mod_revision"),
        _number(one, "lease"),
    )
