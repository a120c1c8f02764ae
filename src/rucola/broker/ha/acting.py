"""Who acts while a group of brokers has no master: decisions, without sockets and clocks.

The broker with the smallest number that lives is in charge. Number 0 is the master; a slave in charge acts for it. Name
servers say who lives. What a slave does with its duty is in ``acting_slave``.

A broker that is not told keeps its duty: a name server that has just started knows nobody.

Source: RocketMQ 5.3.3, ``BrokerController#updateMinBroker``, ``onMinBrokerChange``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

MASTER_ID = 0


class MasterAddresses(NamedTuple):
    """Where a master is reached.

    Attributes:
        broker: its port for clients.
        ha: its port for slaves.
    """

    broker: str
    ha: str


class Duty(Enum):
    """What a slave does; the value is the text for the log."""

    UNKNOWN = "has not been told who lives"
    FOLLOWS = "follows the master"
    STANDS_BY = "another slave acts"
    ACTS = "acts for the master"


class DutyChange(NamedTuple):
    """A slave's duty is another.

    Attributes:
        duty: the duty from now on.
        before: the duty until now.
        master_address: the master's port for clients; empty if there is no master.
    """

    duty: Duty
    before: Duty
    master_address: str


class ActingMaster:
    """The duty of one slave.

    Attributes:
        duty: what the slave does now.

    Args:
        broker_id: its number, 1 or more.
    """

    def __init__(self, broker_id: int) -> None:
        self.duty = Duty.UNKNOWN
        self._broker_id = broker_id

    def members(self, addresses: Mapping[int, str]) -> DutyChange | None:
        """Takes the brokers that live, by number; returns what changes."""
        if not addresses:
            return None
        duty, before = self._duty_of(min(addresses)), self.duty
        if duty is before:
            return None
        self.duty = duty
        return DutyChange(duty, before, addresses.get(MASTER_ID, ""))

    def _duty_of(self, smallest: int) -> Duty:
        if smallest == MASTER_ID:
            return Duty.FOLLOWS
        return Duty.ACTS if smallest == self._broker_id else Duty.STANDS_BY
