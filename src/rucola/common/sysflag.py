"""Bit fields of messages, pull requests and topics."""

from __future__ import annotations

from enum import IntFlag


class MessageSysFlag(IntFlag):
    """``sysFlag`` of a message (RocketMQ 5.3.3, ``MessageSysFlag``)."""

    COMPRESSED = 0x001
    MULTI_TAGS = 0x002
    TRANSACTION_PREPARED = 0x004
    TRANSACTION_COMMIT = 0x008
    TRANSACTION_ROLLBACK = 0x00C
    BORN_HOST_V6 = 0x010
    STORE_HOST_V6 = 0x020
    NEED_UNWRAP = 0x040
    INNER_BATCH = 0x080
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300


PREPARED_BIT = 0x004
"""TRANSACTION_PREPARED for each row of a table: arithmetic with an ``IntFlag`` takes many times longer."""

TRANSACTION_MASK = 0x00C
"""Mask of the transaction state: 0 for none, else one of the three TRANSACTION values."""

COMPRESSION_MASK = 0x700
"""Mask of the compression type: 0 (zlib, from older clients) or one of the COMPRESSION values."""


class PullSysFlag(IntFlag):
    """``sysFlag`` of a pull request (RocketMQ 5.3.3, ``PullSysFlag``)."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


class PermName(IntFlag):
    """Permission of a topic (RocketMQ 5.3.3, ``PermName``)."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8
