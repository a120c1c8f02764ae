"""Common parts of the producer's tests: request codes, settings, and responses of a scripted broker."""

from __future__ import annotations

from rucola import ProducerConfig
from rucola.formats.properties import decode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand

SEND = int(RequestCode.SEND_MESSAGE_V2)
ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
PATIENT = ProducerConfig(send_msg_timeout_ms=3_600_000, retry_backoff_ms=1, retry_backoff_max_ms=5)


def silent(command: RemotingCommand) -> None:
    return None


def refuse(code: int, remark: str = "not now"):
    return lambda command: command.answer(code, remark)


def properties_of(header) -> dict[str, str]:
    return decode_properties(header.properties.encode())


def sent_properties(command: RemotingCommand) -> dict[str, str]:
    return decode_properties(command.ext_fields["i"].encode()) if command.code == SEND else {}
