"""Headers of requests about accounts, users and rules (``protocol.md`` 2.11, 6)."""

from __future__ import annotations

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader


@late_dataclass
class CreateAccessConfigRequestHeader(CommandHeader):
    """Request 50 (UPDATE_AND_CREATE_ACL_CONFIG): changes only the given fields. Items of a list, for example
    ``topic=PUB|SUB``, are joined by commas.
    """

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@late_dataclass
class DeleteAccessConfigRequestHeader(CommandHeader):
    """Request 51 (DELETE_ACL_CONFIG)."""

    access_key: str


@late_dataclass
class UpdateGlobalWhiteAddrsConfigRequestHeader(CommandHeader):
    """Request 53 (UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


@late_dataclass
class GetBrokerAclConfigResponseHeader(CommandHeader):
    """Response to 52 (GET_BROKER_CLUSTER_ACL_INFO). ``all_acl_file_version``: JSON object that maps the path of each
    file to its version.
    """

    version: str = ""
    broker_name: str = ""
    broker_addr: str = ""
    cluster_name: str = ""
    all_acl_file_version: str = "{}"


@late_dataclass
class UserRequestHeader(CommandHeader):
    """Requests 3001 to 3004, which create, change, delete or read one user."""

    username: str


@late_dataclass
class ListUsersRequestHeader(CommandHeader):
    """Request 3005 (AUTH_LIST_USER). ``filter``: text that the names of the listed users contain."""

    filter: str | None = None


@late_dataclass
class AclRequestHeader(CommandHeader):
    """Requests 3006 (AUTH_CREATE_ACL), 3007 (AUTH_UPDATE_ACL) and 3009 (AUTH_GET_ACL). ``subject``: ``User:`` and a
    name.
    """

    subject: str


@late_dataclass
class DeleteAclRequestHeader(CommandHeader):
    """Request 3008 (AUTH_DELETE_ACL): deletes the subject's rules for ``resource``. Without ``resource``, all of the
    subject's rules are deleted.
    """

    subject: str
    policy_type: str | None = None
    resource: str | None = None


@late_dataclass
class ListAclsRequestHeader(CommandHeader):
    """Request 3010 (AUTH_LIST_ACL): lists all rules of each selected subject. A subject is selected if it contains
    ``subject_filter`` and if one of its rules is for a resource that contains ``resource_filter``.
    """

    subject_filter: str | None = None
    resource_filter: str | None = None
