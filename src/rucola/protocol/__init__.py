"""Encodes and decodes the remoting protocol: frames, commands, headers and bodies. The package performs no I/O.

For example::

    from rucola.protocol.codes import RequestCode
    from rucola.protocol.command import RemotingCommand
    from rucola.protocol.frame import FrameReader

    frame, reader = RemotingCommand(RequestCode.HEART_BEAT, body=b"{}").encode(), FrameReader()
    reader.buffer()[: len(frame)] = frame
    batch = reader.received(len(frame))
    print(batch.command(0))
"""

from rucola.protocol.answers import SendAnswers, encode_pull_header
from rucola.protocol.codes import PROTOCOL_VERSION, LanguageCode, RequestCode, ResponseCode
from rucola.protocol.command import BINARY, JSON, RemotingCommand
from rucola.protocol.frame import FrameBatch, FrameReader

__all__ = [
    "BINARY",
    "JSON",
    "PROTOCOL_VERSION",
    "FrameBatch",
    "FrameReader",
    "LanguageCode",
    "RemotingCommand",
    "RequestCode",
    "ResponseCode",
    "SendAnswers",
    "encode_pull_header",
]
