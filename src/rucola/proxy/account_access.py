"""Who sends a request, and what its account may do: the same accounts and rules as on the remoting port.

A signature of this protocol covers the date only, so whoever reads one request can send others for ever. It is accepted
where nobody else reads: on loopback, and over TLS.

Source: RocketMQ 5.3.3, ``DefaultAuthenticationContextBuilder``, ``AclSigner``.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from rucola.broker.acl.address_strategy import Segments, address_of
from rucola.broker.acl.permission import ANY, PUB, SUB, Account, AclSnapshot, Resource, Sender
from rucola.broker.acl.permission import group as group_resource
from rucola.broker.acl.permission import topic as topic_resource
from rucola.common.hosts import is_loopback
from rucola.grpc.call import GrpcCall
from rucola.proxy import messages
from rucola.proxy.access import DoorAccess
from rucola.proxy.refusal import RefusedError
from rucola.proxy.sessions import AUTHORIZATION, DATE_TIME, SESSION_TOKEN, WANTED
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
ALGORITHM: Final = "MQv2-HMAC-SHA1"
_GOOD_S: Final = 1.0
"""How long a signature that was right needs no other look."""
_GOOD_MAX: Final = 10_000
_LOG_INTERVAL_S: Final = 10.0


class _Good(NamedTuple):
    """A signature that was right."""

    account: str
    snapshot: AclSnapshot
    until_s: float


class AccountAccess(DoorAccess):
    """The rules with accounts. Event loop only.

    Args:
        snapshot: returns the current accounts.
        monotonic: the clock, in seconds.
        insecure: accept signatures even if others can read the connection's traffic.
        require_v2: refuse signatures that can be sent again, which are all of this protocol.
    """

    wanted = WANTED

    def __init__(
        self,
        snapshot: Callable[[], AclSnapshot],
        monotonic: Callable[[], float],
        *,
        insecure: bool = False,
        require_v2: bool = False,
    ) -> None:
        super().__init__()
        self._snapshot, self._monotonic = snapshot, monotonic
        self._insecure, self._require_v2 = insecure, require_v2
        self._nobody = Account("", secrets.token_bytes(32))
        self._good: dict[tuple[bytes, bytes, str], _Good] = {}
        self._logged_s = -_LOG_INTERVAL_S

    def account_of(self, call: GrpcCall) -> str:
        """See ``DoorAccess``."""
        metadata = call.metadata
        authorization, date_time = metadata[AUTHORIZATION] or b"", metadata[DATE_TIME] or b""
        key = authorization, date_time, call.address
        known = self._good.get(key)
        now_s = self._monotonic()
        if known is not None and known.until_s > now_s and known.snapshot is self._snapshot():
            return known.account
        try:
            account = self._proved(call, authorization, date_time)
        except RefusedError as error:
            self.unknown_senders += 1
            raise self._refusal(error, _parsed(authorization)[0], call.address) from None
        if len(self._good) >= _GOOD_MAX:
            self._good.clear()
        self._good[key] = _Good(account, self._snapshot(), now_s + _GOOD_S)
        return account

    def check_publish(self, account: str, address: str, topic: str) -> None:
        """See ``DoorAccess``."""
        self._check(account, address, topic_resource(topic, PUB))

    def check_subscribe(self, account: str, address: str, topic: str, group: str) -> None:
        """See ``DoorAccess``."""
        if topic:
            self._check(account, address, topic_resource(topic, SUB))
        if group:
            self._check(account, address, group_resource(group))

    def check_route(self, account: str, address: str, topic: str) -> None:
        """See ``DoorAccess``."""
        self._check(account, address, topic_resource(topic, ANY))

    def _proved(self, call: GrpcCall, authorization: bytes, date_time: bytes) -> str:
        """The account whose key has made the signature."""
        if call.metadata[SESSION_TOKEN]:
            raise _unauthorized("session tokens are not supported")
        credential, signature = _parsed(authorization)
        snapshot = self._snapshot()
        account: Sender | None = snapshot.accounts.get(credential)
        is_known = account is not None and not account.disabled
        judged: Sender = account if account is not None and is_known else self._nobody
        expected = hmac.new(judged.secret_key, date_time, "sha1").hexdigest()
        is_right = hmac.compare_digest(expected.encode(), signature.lower().encode())
        if not date_time or not is_known or not is_right or not snapshot.may_come_from(judged, segments(call.address)):
            raise _unauthorized("the request has no valid signature of an account")
        if self._require_v2 or judged.require_v2:
            raise _unauthorized("the account accepts only signatures that cannot be sent again; this protocol has none")
        if not (call.secure or is_loopback(call.address) or self._insecure):
            raise _unauthorized("credentials are accepted over TLS only")
        return judged.access_key

    def sender(self, name: str) -> Sender:
        """The account of a client that has proved to be it.

        Raises:
            RefusedError: ``UNAUTHORIZED``: the account was removed.
        """
        account = self._snapshot().accounts.get(name)
        if account is None or account.disabled:
            raise self._refusal(_unauthorized("the account was removed"), name)
        return account

    def forbidden(self, name: str, address: str, text: str) -> RefusedError:
        """The refusal of a request for which an account has no right; counted, and logged from time to time."""
        return self._refusal(RefusedError(messages.FORBIDDEN, text), name, address)

    def _check(self, name: str, address: str, resource: Resource) -> None:
        account = self.sender(name)
        if not account.admin and not account.allows(resource, segments(address)):
            raise self.forbidden(name, address, f"account {name} has no permission for {resource.kind} {resource.name}")

    def _refusal(self, error: RefusedError, name: str, address: str = "") -> RefusedError:
        self.refused += 1
        now_s = self._monotonic()
        if now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            event(
                logger,
                logging.WARNING,
                "gRPC request refused",
                peer=address,
                account=name[:64],
                reason=error.text[:255],
                refused=self.refused,
            )
        return error


@lru_cache(4096)
def segments(address: str) -> Segments:
    """The parts of a client's address, for rules that name addresses."""
    return address_of(address)


def _parsed(authorization: bytes) -> tuple[str, str]:
    """The access key and the signature in hexadecimal digits; empty where there is none."""
    algorithm, _, rest = authorization.decode("utf-8", "replace").partition(" ")
    if algorithm != ALGORITHM:
        return "", ""
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    return parts.get("Credential", "").partition("/")[0], parts.get("Signature", "")


def _unauthorized(text: str) -> RefusedError:
    return RefusedError(messages.UNAUTHORIZED, text)
