"""Body of requests 3006 (AUTH_CREATE_ACL) and 3007 (AUTH_UPDATE_ACL) (``protocol.md`` 2.11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def acl_info(
    subject: str, resources: Sequence[str], actions: Sequence[str], source_ips: Sequence[str] | None, decision: str
) -> dict[str, Any]:
    """Returns an ``AclInfo`` for ``subject``, with one rule for each resource."""
    rule: dict[str, Any] = {"actions": list(actions), "decision": decision}
    if source_ips is not None:
        rule["sourceIps"] = list(source_ips)
    return {"subject": subject, "policies": [{"entries": [{"resource": name, **rule} for name in resources]}]}
