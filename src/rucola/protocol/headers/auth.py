"""Headers of requests about accounts, users and rules (``protocol.md`` 2.11, 6)."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.protocol.headers.header import CommandHeader


@dataclass(slots=True)
class CreateAccessConfigRequestHeader(CommandHeader):
    """50: only what is given changes. Lists are joined by commas, ``topic=PUB|SUB``."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@dataclass(slots=True)
class DeleteAccessConfigRequestHeader(CommandHeader):
    """51."""

    access_key: str


@dataclass(slots=True)
class UpdateGlobalWhiteAddrsConfigRequestHeader(CommandHeader):
    """53."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


@dataclass(slots=True)
class GetBrokerAclConfigResponseHeader(CommandHeader):
    """Answer to 52. ``all_acl_file_version``: JSON, path of each file to its version."""

    version: str = ""
    broker_name: str = ""
    broker_addr: str = ""
    cluster_name: str = ""
    all_acl_file_version: str = "{}"


@dataclass(slots=True)
class UserRequestHeader(CommandHeader):
    """3001 to 3004."""

    username: str


@dataclass(slots=True)
class ListUsersRequestHeader(CommandHeader):
    """3005. ``filter``: part of the names."""

    filter: str | None = None


@dataclass(slots=True)
class AclRequestHeader(CommandHeader):
    """3006, 3007 and 3009. ``subject``: ``User:`` and a name."""

    subject: str


@dataclass(slots=True)
class DeleteAclRequestHeader(CommandHeader):
    """3008: the rules for one resource, or all."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


@dataclass(slots=True)
class ListAclsRequestHeader(CommandHeader):
    """3010: parts of subjects and resources."""

    subject_filter: str | None = None
    resource_filter: str | None = None
