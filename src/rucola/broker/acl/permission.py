"""Permissions, resources and accounts (RocketMQ 5.3.2, ``Permission``, ``PlainAccessResource``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rucola.broker.acl.address_strategy import AddressStrategy, Segments
from rucola.broker.topic.internal_topics import needs_named_rule, only_administrators_read
from rucola.common.key_builder import lite_parts

DENY = 1
ANY = 2
PUB = 4
SUB = 8
"""Bits of permissions. ANY means PUB or SUB, and occurs only in requirements."""

PERMISSIONS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"


def parse_permission(text: str) -> int:
    """The bits of the permission ``text`` in an ACL file. An unknown permission means DENY, as in RocketMQ."""
    return PERMISSIONS.get("".join(text.split()).upper(), DENY)


@dataclass(frozen=True, slots=True)
class Resource:
    """A topic or consumer group, and the permission that a request needs for it."""

    kind: str
    """Either ``topic`` or ``group``."""
    name: str
    needed: int


NOTHING = Resource("nothing", "", DENY)
"""A requirement that no rule satisfies, for requests that do not say which resource they refer to."""


def topic(name: str, needed: int) -> Resource:
    """The resource for a topic; ``NOTHING`` for a topic that is for administrators only. A retry or dead-letter topic
    belongs to its group, whose members read and write it, a lite topic to its parent.
    """
    if (lite := lite_parts(name)) is not None:
        name = lite[0]
    if only_administrators_read(name):
        return NOTHING
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return Resource("group", name.removeprefix(prefix), SUB)
    return Resource("topic", name, needed)


def group(name: str) -> Resource:
    """The resource for a consumer group, whose members need SUB."""
    return Resource("group", name.removeprefix(RETRY_PREFIX), SUB)


@dataclass(frozen=True, slots=True)
class Account:
    """One account of an ACL file.

    Attributes:
        access_key: its name.
        secret_key: never shown, logged or sent.
        admin: the account may do everything.
        default_topic_perm: permission for topics that are not named.
        default_group_perm: permission for groups that are not named.
        topics: permission by topic.
        groups: permission by consumer group.
        addresses: addresses from which its requests may come; None allows all.
        require_v2: its requests must carry the signature that cannot be replayed (``signatureVersion: 2``).
        disabled: the account is refused as if it did not exist (``disabled: true``).
    """

    access_key: str
    secret_key: bytes = field(repr=False)
    admin: bool = False
    default_topic_perm: int = DENY
    default_group_perm: int = DENY
    topics: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    addresses: AddressStrategy | None = None
    require_v2: bool = False
    disabled: bool = False

    def allows(self, resource: Resource, address: Segments = ()) -> bool:
        """Whether a rule for the resource, or else the default, grants the needed permission; the source address is not
        checked.
        """
        if resource is NOTHING:
            return False
        if resource.kind == "topic":
            default = DENY if needs_named_rule(resource.name) else self.default_topic_perm
            owned = self.topics.get(resource.name, default)
        else:
            owned = self.groups.get(resource.name, self.default_group_perm)
        if owned & DENY:
            return False
        needed = PUB | SUB if resource.needed & ANY else resource.needed
        return bool(owned & needed)


class Sender(Protocol):
    """The sender of requests: an ``Account``, or a ``User`` of ``auth_model``. Both classes describe the attributes."""

    @property
    def access_key(self) -> str:
        """Name of the sender."""

    @property
    def secret_key(self) -> bytes:
        """The secret with which the sender signs requests."""

    @property
    def admin(self) -> bool:
        """Whether the sender may send every request."""

    @property
    def disabled(self) -> bool:
        """Whether all requests of the sender are refused."""

    @property
    def require_v2(self) -> bool:
        """Whether the sender must use the signature that cannot be replayed."""

    @property
    def addresses(self) -> AddressStrategy | None:
        """The addresses from which requests of the sender may come; None for any address."""

    def allows(self, resource: Resource, address: Segments) -> bool:
        """Whether a peer at ``address`` gets the needed permission for ``resource``."""


@dataclass(frozen=True, slots=True)
class AclSnapshot:
    """All accounts at one moment. A request is judged by one snapshot, even if another is loaded meanwhile.

    Attributes:
        accounts: by access key.
        global_addresses: addresses from which every account may come.
        digest: digest of the files, for the log.
    """

    accounts: Mapping[str, Sender]
    global_addresses: tuple[AddressStrategy, ...] = ()
    digest: str = ""

    def may_come_from(self, account: Sender, address: Segments) -> bool:
        """Whether the address lists allow requests of ``account`` from ``address``. Requests from a listed address need
        a signature, too.
        """
        if account.addresses is None or account.addresses.matches(address):
            return True
        return any(strategy.matches(address) for strategy in self.global_addresses)
