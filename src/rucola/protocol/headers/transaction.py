"""Headers of 37, 39 and 323 (``protocol.md`` 2.5, 2.6, 2.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rucola.protocol.headers.header import CommandHeader, Int, Long


@dataclass(slots=True)
class EndTransactionRequestHeader(CommandHeader):
    """37. ``commit_or_rollback``: a value of ``MessageSysFlag``, 0 when the producer does not know yet."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class CheckTransactionStateRequestHeader(CommandHeader):
    """39, from the broker. The offsets are those of the half message that the answer has to name."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class ResumeCheckHalfMessageRequestHeader(CommandHeader):
    """323. ``msg_id``: the offset message id of a half message that was given up."""

    topic: str | None = None
    msg_id: str | None = None
