"""What a broker in controller mode is told about its role, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from rucola.errors import FormatError
from rucola.protocol.bodies.controller import SyncStateSet
from rucola.protocol.headers.controller import ElectMasterResponseHeader

_WHAT = "controller's answer"


class LogPosition(NamedTuple):
    """Where the log of a broker stands, as its heartbeats tell it.

    Attributes:
        epoch: the last epoch of the log; -1 if it has none.
        max_offset: physical offset of the end of the log.
        confirm_offset: physical offset up to which all brokers in sync have it.
    """

    epoch: int
    max_offset: int
    confirm_offset: int


class Mastership(NamedTuple):
    """Who is the master.

    Attributes:
        master_id: the id that the controller has given to the master, 1 or more.
        master_address: its port for clients, ``host:port``.
        epoch: number of the election, 1 or more.
        in_sync: the brokers that are in sync with it.
    """

    master_id: int
    master_address: str
    epoch: int
    in_sync: SyncStateSet

    @classmethod
    def read(cls, fields: Mapping[str, str], members: SyncStateSet) -> Self | None:
        """Reads an answer to 1002, 1003 or 1004, or the notice 1008; returns None if it names no master.

        Args:
            fields: the fields of its header; an epoch of the set in them counts more than that of ``members``.
            members: the set that its body tells.

        Raises:
            FormatError: it contradicts itself.
        """
        header = ElectMasterResponseHeader.from_ext_fields(fields)
        broker_id, address, epoch = header.master_broker_id, header.master_address, header.master_epoch
        if broker_id is None or not address:
            return None
        if broker_id < 1 or epoch is None or epoch < 1:
            raise FormatError(_WHAT, 0, "a master with an id and an epoch of 1 or more", f"id {broker_id}, {epoch}")
        set_epoch = members.sync_state_set_epoch if header.sync_state_set_epoch is None else header.sync_state_set_epoch
        if set_epoch < 0 or any(each < 1 for each in members.sync_state_set):
            ids = sorted(members.sync_state_set)
            raise FormatError(_WHAT, 0, "a set of ids of 1 or more, with an epoch", f"{ids}, epoch {set_epoch}")
        return cls(broker_id, address, epoch, SyncStateSet(members.sync_state_set, set_epoch))
