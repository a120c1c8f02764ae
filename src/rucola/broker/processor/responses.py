"""Responses that several request processors use."""

from __future__ import annotations

from rucola.protocol.bodies import Body
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.header import CommandHeader

NO_CODE = "not set any response code"
"""The initial remark of RocketMQ's responses; it stays if RocketMQ sets only the code."""


def success(command: RemotingCommand, header: CommandHeader | None = None, body: Body | None = None) -> RemotingCommand:
    """The response to a request that was served."""
    return command.answer(
        ResponseCode.SUCCESS,
        ext_fields=header.to_ext_fields() if header is not None else None,
        body=body.encode() if body is not None else b"",
    )
