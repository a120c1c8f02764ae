"""The requests that a slave refuses, with RocketMQ's codes and texts (5.3.3) where it refuses them too.

A slave's log has no record that its master did not send. So whatever stores a record is refused, and what would make
its tables differ from the master's: RocketMQ accepts new topics and groups, and loses them at the next copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rucola.protocol.codes import RequestCode, ResponseCode


class Refusal(NamedTuple):
    """The answer to a refused request."""

    code: ResponseCode
    remark: str


_BUSY = Refusal(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
_NO_SENDS = Refusal(
    ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now, a slave stores nothing, its master does"
)
_NO_SEND_BACKS = Refusal(ResponseCode.SYSTEM_ERROR, "no master available, the message cannot be sent back")
_NO_TRANSACTIONS = Refusal(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transaction, its master does")
_NO_RECALL = Refusal(ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker service not available")
_NO_POP = Refusal(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave serves no POP, its master does")
_NO_CHANGE = Refusal(
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
)
_NO_RESET = Refusal(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")

_REFUSALS: Mapping[int, Refusal] = {
    RequestCode.SEND_MESSAGE: _BUSY,
    RequestCode.SEND_MESSAGE_V2: _BUSY,
    RequestCode.SEND_BATCH_MESSAGE: _BUSY,
    RequestCode.CONSUMER_SEND_MSG_BACK: _BUSY,
    RequestCode.SEND_REPLY_MESSAGE: _BUSY,
    RequestCode.SEND_REPLY_MESSAGE_V2: _BUSY,
    RequestCode.END_TRANSACTION: _NO_TRANSACTIONS,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _NO_TRANSACTIONS,
    RequestCode.RECALL_MESSAGE: _NO_RECALL,
    RequestCode.POP_MESSAGE: _NO_POP,
    RequestCode.PEEK_MESSAGE: _NO_POP,
    RequestCode.NOTIFICATION: _NO_POP,
    RequestCode.POLLING_INFO: _NO_POP,
    RequestCode.POP_ROLLBACK: _NO_POP,
    RequestCode.ACK_MESSAGE: _NO_POP,
    RequestCode.BATCH_ACK_MESSAGE: _NO_POP,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _NO_POP,
    RequestCode.POP_LITE_MESSAGE: _NO_POP,
    RequestCode.LITE_SUBSCRIPTION_CTL: _NO_POP,
    RequestCode.TRIGGER_LITE_DISPATCH: _NO_POP,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _NO_CHANGE,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _NO_CHANGE,
    RequestCode.DELETE_TOPIC_IN_BROKER: _NO_CHANGE,
    RequestCode.CLEAN_UNUSED_TOPIC: _NO_CHANGE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _NO_CHANGE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _NO_CHANGE,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _NO_CHANGE,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _NO_CHANGE,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _NO_CHANGE,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _NO_RESET,
    RequestCode.CLONE_GROUP_OFFSET: _NO_RESET,
}
_PULLS: Mapping[int, Refusal] = {RequestCode.PULL_MESSAGE: _BUSY, RequestCode.LITE_PULL_MESSAGE: _BUSY}
_MAY_ACT: Mapping[int, Refusal] = {
    RequestCode.SEND_MESSAGE: _NO_SENDS,
    RequestCode.SEND_MESSAGE_V2: _NO_SENDS,
    RequestCode.SEND_BATCH_MESSAGE: _NO_SENDS,
    RequestCode.SEND_REPLY_MESSAGE: _NO_SENDS,
    RequestCode.SEND_REPLY_MESSAGE_V2: _NO_SENDS,
    RequestCode.CONSUMER_SEND_MSG_BACK: _NO_SEND_BACKS,
}


class SlaveRefusals:
    """What a slave refuses now.

    Attributes:
        table: the refusal of each request; changes when the slave begins or ceases to act.

    Args:
        reads: ``slaveReadEnable``.
        may_act: ``enableSlaveActingMaster``; clients are then told other codes, as in RocketMQ.
    """

    def __init__(self, reads: bool, may_act: bool) -> None:
        self._reads = reads
        self.table: dict[int, Refusal] = {**_REFUSALS, **(_MAY_ACT if may_act else {})}
        self.act(False)

    def act(self, acts: bool) -> None:
        """Serves pulls whatever ``slaveReadEnable`` says, or no longer."""
        if acts or self._reads:
            for code in _PULLS:
                self.table.pop(code, None)
        else:
            self.table.update(_PULLS)
