"""Differences between our server and the official one that are meant, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.conformance.grpc.outcomes import Difference


@dataclass(frozen=True)
class Accepted:
    """A difference that is meant.

    Attributes:
        scenario: its name.
        path: see ``Difference``.
        found: what our server gives, instead of what the official one gives.
        why: the reason.
    """

    scenario: str
    path: str
    found: Any
    why: str


HANDLE = "a handle that cannot be decoded is INVALID_RECEIPT_HANDLE, so that clients do not try again"
MISSING = "a topic that does not exist is TOPIC_NOT_FOUND everywhere"
PLACE = "our transaction id also says where the half message is, so that any server can end it"
POLL = "the server never waits longer than 20 s and says so to each group, also to one that is new"
RIGHT = "an account that may not do this is FORBIDDEN; UNAUTHORIZED is who cannot show that he has an account"
ACCEPTED = (
    Accepted("raw_handles", "ack_text", [40013, [40013]], HANDLE),
    Accepted("raw_handles", "ack_empty", [40013, [40013]], HANDLE),
    Accepted("raw_handles", "change_text", 40013, HANDLE),
    Accepted("raw_handles", "forward_text", 40013, HANDLE),
    Accepted("raw_refusals", "unknown_topic", 40402, MISSING),
    Accepted("raw_receive", "unknown_topic", 40402, MISSING),
    Accepted("raw_refusals", "entries_of_two", [20000, 20000], "the protocol has an entry for each message"),
    Accepted("raw_settings", "push_consumer_of_new_group.long_polling_timeout_s", 20.0, POLL),
    Accepted("raw_receive", "without_settings", 40401, "a client may receive before its settings arrive"),
    Accepted("raw_transaction", "id_is_message_id", False, PLACE),
    Accepted("raw_transaction", "asked", False, PLACE),
    Accepted("raw_transaction", "commit_again", 20000, "whoever did not get the answer may ask again"),
    Accepted("raw_handles", "ack_wrong_broker", [50001, [50001]], "another server may know the broker"),
    Accepted("raw_methods", "broken_request", "INVALID_ARGUMENT", "gRPC's own status says more than UNKNOWN"),
    Accepted("raw_accounts", "guest", [40300, 40300, 40015], RIGHT),
    Accepted("raw_accounts", "telemetry_guest", [40300, False], RIGHT),
    *(
        Accepted("accounts", f"guest.{call}.code", code, RIGHT)
        for call in ("send", "receive")
        for code in (40300, "FORBIDDEN")
    ),
    Accepted(
        "restart",
        "lost",
        False,
        "the official server refuses clients (Python, Go, Rust) until they send their settings again",
    ),
)


def reason(scenario: str, difference: Difference) -> str | None:
    """Why a difference is meant; None if it is not."""
    for one in ACCEPTED:
        if (one.scenario, one.path, one.found) == (scenario, difference.path, difference.found):
            return one.why
    return None
