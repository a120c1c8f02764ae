"""How the door refuses a request: a code of the protocol and a text. Business errors never travel as codes of gRPC.

Source: RocketMQ 5.3.3, ``GrpcProxyException``, ``ResponseBuilder``,
``SendMessageActivity#convertToSendMessageResponse``; quotas of lite topics: RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from rucola.errors import BrokerError, RucolaError
from rucola.protocol.codes import ResponseCode
from rucola.proxy import messages


class RefusedError(RucolaError):
    """A request, or one entry of it, that the door does not carry out.

    Args:
        code: number of a value of the enum ``Code``, other than ``OK``.
        text: what is wrong; becomes ``Status.message``, which users see.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, error: BrokerError) -> RefusedError:
        """The refusal that tells a client what a broker has answered; without a remark, the text is the code."""
        return cls(code_of_response(error.code), error.remark or str(error.code))

    def status(self) -> messages.Status:
        """The message that answers the request."""
        return messages.Status(code=self.code, message=self.text)


_OF_RESPONSES: Final[Mapping[int, int]] = MappingProxyType(
    {
        ResponseCode.SUCCESS: messages.OK,
        ResponseCode.SYSTEM_BUSY: messages.TOO_MANY_REQUESTS,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED: messages.NOT_IMPLEMENTED,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: messages.CONSUMER_GROUP_NOT_FOUND,
        ResponseCode.TOPIC_NOT_EXIST: messages.TOPIC_NOT_FOUND,
        ResponseCode.RPC_TIME_OUT: messages.PROXY_TIMEOUT,
        ResponseCode.NO_PERMISSION: messages.FORBIDDEN,
        ResponseCode.LMQ_QUOTA_EXCEEDED: messages.LITE_TOPIC_QUOTA_EXCEEDED,
        ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: messages.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
        # the message is stored, but not as safely as the broker promises
        ResponseCode.FLUSH_DISK_TIMEOUT: messages.MASTER_PERSISTENCE_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT: messages.SLAVE_PERSISTENCE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE: messages.HA_NOT_AVAILABLE,
    }
)


def code_of_response(response_code: int) -> int:
    """The code for a broker's ``ResponseCode``: ``INTERNAL_SERVER_ERROR`` for all that have no code of their own."""
    return _OF_RESPONSES.get(response_code, messages.INTERNAL_SERVER_ERROR)


def common_code(codes: Iterable[int]) -> int:
    """The code of a whole answer: that of all entries, or ``MULTIPLE_RESULTS`` if they differ. No entry at all is an
    ``INTERNAL_SERVER_ERROR``.
    """
    different = set(codes)
    if not different:
        return messages.INTERNAL_SERVER_ERROR
    return different.pop() if len(different) == 1 else messages.MULTIPLE_RESULTS
