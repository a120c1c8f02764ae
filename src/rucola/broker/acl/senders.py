"""Who sent a request, and whose messages and client ids a client may act for, on a broker with accounts.

A half message carries a mark of the account that sent it. Only clients of this account are asked for the outcome and
may decide it. The mark is a digest of the account's name: another program that opens the store and does not know the
property may pass it on to consumers, and they should not learn the names of accounts.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from rucola.broker.acl.address_strategy import Segments, address_of
from rucola.broker.acl.permission import PUB, SUB, AclSnapshot, Resource, Sender
from rucola.broker.acl.permission import group as acl_group
from rucola.broker.acl.permission import topic as acl_topic
from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.senders import AskedClient, Senders
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.signature import ACCESS_KEY
from rucola.remoting.channel import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
_LOG_INTERVAL_S = 10.0
_MARK_BYTES = 16
ACCOUNT = "acl-account"
"""Key of the attribute of a connection that names the account of its last allowed request."""


class _Proof(NamedTuple):
    """What an allowed request proved, and the accounts by which it was judged."""

    snapshot: AclSnapshot
    name: str
    secret_key: bytes


class AccountSenders(Senders):
    """The rules with accounts; see ``Senders``.

    A half message whose account is not known, because it has no mark or because the account was removed, belongs to
    every account that may publish to its topic. Whoever may not read the topic is asked without the body.

    Args:
        snapshot: returns the current accounts.
        serving: returns the account whose requests are being served.
        serve: sets this account.
        monotonic: monotonic seconds, for the log.
    """

    def __init__(
        self,
        snapshot: Callable[[], AclSnapshot],
        serving: Callable[[], str],
        serve: Callable[[str], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._snapshot = snapshot
        self._serving = serving
        self._serve = serve
        self._monotonic = monotonic
        self._seen: AclSnapshot | None = None
        self._names: Mapping[str, str] = {}
        self._logged_at = -_LOG_INTERVAL_S
        self.refused = 0
        """Number of requests that were refused because they acted for another account."""

    def account_of(self, command: RemotingCommand) -> str:
        """See ``Senders``. The guard has checked the signature."""
        return command.ext_fields.get(ACCESS_KEY, "")

    def account_on(self, channel: Channel) -> str:
        """See ``Senders``."""
        account: str = channel.attributes.get(ACCOUNT, "")
        return account

    def resumption(self) -> Callable[[], None]:
        """See ``Senders``."""
        return partial(self._serve, self._serving())

    def proof(self, channel: Channel) -> object:
        """See ``Senders``."""
        snapshot, name = self._snapshot(), self.account_on(channel)
        account = snapshot.accounts.get(name)
        return None if account is None else _Proof(snapshot, name, account.secret_key)

    def check_still_reads(self, proof: object, channel: Channel, topic: str, group: str) -> None:
        """See ``Senders``."""
        snapshot = self._snapshot()
        known = proof if isinstance(proof, _Proof) else None
        if known is not None and snapshot is known.snapshot:
            return
        account = None if known is None else snapshot.accounts.get(known.name)
        address = address_of(channel.remote_address)
        if (
            known is None
            or account is None
            or account.disabled
            or account.secret_key != known.secret_key
            or not snapshot.may_come_from(account, address)
            or not _may(account, address, acl_topic(topic, SUB), acl_group(group))
        ):
            raise BrokerError(ResponseCode.NO_PERMISSION, "access denied: no permission any more")

    def is_member(self, client: ClientChannel, group: str) -> bool:
        """See ``Senders``."""
        account = self._snapshot().accounts.get(client.account)
        address = address_of(client.channel.remote_address)
        return account is not None and not account.disabled and _may(account, address, acl_group(group))

    def mark(self) -> str:
        """See ``Senders``."""
        return mark_of(self._serving())

    def recall_mark(self) -> str:
        """See ``Senders``. Administrators may recall every message."""
        return "" if self._is_admin(self._serving()) else self.mark()

    def audience(self, clients: Sequence[ClientChannel], mark: str, topic: str) -> list[AskedClient]:
        """See ``Senders``."""
        sender = self._known(mark)
        if sender:
            return [AskedClient(client, reads=True) for client in clients if client.account == sender]
        seen: dict[tuple[str, str], tuple[bool, bool]] = {}
        asked = []
        for client in clients:
            place = client.account, client.channel.remote_address.rpartition(":")[0]
            if place not in seen:
                seen[place] = self._rights(client, topic)
            publishes, reads = seen[place]
            if publishes:
                asked.append(AskedClient(client, reads))
        return asked

    def check_end(self, account: str, mark: str) -> None:
        """See ``Senders``. Administrators may end every transaction."""
        sender = self._known(mark)
        if sender and sender != account and not self._is_admin(account):
            raise self._refusal("another account sent the message of this transaction", account)

    def check_holder(self, client_id: str, holder: str, account: str) -> None:
        """See ``Senders``."""
        if holder != account:
            raise self._refusal("another account uses this client id", account, client_id)

    def _known(self, mark: str) -> str:
        """The account with this mark; empty if there is none, or if it is disabled."""
        if not mark:
            return ""
        snapshot = self._snapshot()
        if snapshot is not self._seen:
            self._names = {mark_of(name): name for name, sender in snapshot.accounts.items() if not sender.disabled}
            self._seen = snapshot
        return self._names.get(mark, "")

    def _rights(self, client: ClientChannel, name: str) -> tuple[bool, bool]:
        """Whether a client may publish to a topic, and whether it may read it."""
        account = self._snapshot().accounts.get(client.account)
        if account is None or account.disabled:
            return False, False
        address = address_of(client.channel.remote_address)
        return _allows(account, name, PUB, address), _allows(account, name, SUB, address)

    def _is_admin(self, name: str) -> bool:
        account = self._snapshot().accounts.get(name)
        return account is not None and account.admin

    def _refusal(self, reason: str, account: str, client_id: str = "") -> BrokerError:
        self.refused += 1
        now_s = self._monotonic()
        if now_s - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = now_s
            event(
                logger,
                logging.WARNING,
                "request for another account refused",
                account=account,
                client_id=client_id[:64],
                reason=reason,
                refused=self.refused,
            )
        return BrokerError(ResponseCode.NO_PERMISSION, f"access denied: {reason}")


@lru_cache(maxsize=65_536)
def mark_of(account: str) -> str:
    """The mark of an account: 32 hexadecimal digits; empty for an empty name."""
    if not account:
        return ""
    return hashlib.sha256(b"rucola-sender\0" + account.encode()).digest()[:_MARK_BYTES].hex()


def _allows(account: Sender, name: str, needed: int, address: Segments) -> bool:
    return _may(account, address, acl_topic(name, needed))


def _may(account: Sender, address: Segments, *resources: Resource) -> bool:
    return account.admin or all(account.allows(resource, address) for resource in resources)
