"""Who sends a request. Here: a door without accounts, where everybody is the same sender."""

from __future__ import annotations

from rucola.grpc.call import GrpcCall


class DoorAccess:
    """The answers if there are no accounts."""

    def account_of(self, call: GrpcCall) -> str:
        """Name of the account that makes a call.

        Raises:
            RefusedError: ``UNAUTHORIZED``: its signature is not that of an account.
        """
        return ""

    def check_publish(self, account: str, address: str, topic: str) -> None:
        """Checks whether an account may send to a topic.

        Raises:
            RefusedError: ``FORBIDDEN``: it may not.
        """

    def check_subscribe(self, account: str, address: str, topic: str, group: str) -> None:
        """Checks whether an account may receive from a topic as a member of a group; an empty name is not checked.

        Raises:
            RefusedError: ``FORBIDDEN``: it may not.
        """

    def check_route(self, account: str, address: str, topic: str) -> None:
        """Checks whether an account may know the route of a topic: it may send to it or receive from it.

        Raises:
            RefusedError: ``FORBIDDEN``: it may not.
        """
