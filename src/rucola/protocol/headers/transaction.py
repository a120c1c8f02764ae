"""Headers of requests 37, 39 and 323 (``protocol.md`` 2.5, 2.6, 2.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long


@late_dataclass
class EndTransactionRequestHeader(CommandHeader):
    """Request 37 (END_TRANSACTION). ``commit_or_rollback``: a value of ``MessageSysFlag``; 0 if the producer does not
    know yet.
    """

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


@late_dataclass
class CheckTransactionStateRequestHeader(CommandHeader):
    """Request 39 (CHECK_TRANSACTION_STATE) from the broker. The response must repeat the offsets, which identify the
    half message.
    """

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = None


@late_dataclass
class ResumeCheckHalfMessageRequestHeader(CommandHeader):
    """Request 323 (RESUME_CHECK_HALF_MESSAGE). ``msg_id``: offset message id of a half message whose checks have
    ended.
    """

    topic: str | None = None
    msg_id: str | None = None
