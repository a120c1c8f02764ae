"""The row that the frame kernel must make of a frame, computed by the general path."""

from __future__ import annotations

from array import array
from types import ModuleType

from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, new_table
from rucola.errors import FormatError
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2

SEND_HEADERS = {10: SendMessageRequestHeader, 310: SendMessageRequestHeaderV2, 320: SendMessageRequestHeaderV2}
PULL_CODES = (11, 361)
IGNORED = {"maxMsgBytes", "l", "maxReconsumeTimes"}  # numbers that the fast path does not read

NAMES = {
    "group": (FrameColumn.GROUP_POS, FrameColumn.GROUP_LEN),
    "topic": (FrameColumn.TOPIC_POS, FrameColumn.TOPIC_LEN),
    "text": (FrameColumn.PROPERTIES_POS, FrameColumn.PROPERTIES_LEN),
    "default_topic": (FrameColumn.DEFAULT_TOPIC_POS, FrameColumn.DEFAULT_TOPIC_LEN),
    "expression_type": (FrameColumn.PULL_EXPRESSION_TYPE_POS, FrameColumn.PULL_EXPRESSION_TYPE_LEN),
}

Row = dict[str, object]


def scan(kernel: ModuleType, source: bytes) -> tuple[bytearray, array[int], tuple[int, int, int, int]]:
    """Scans a copy of ``source``; returns the copy, the table and the result."""
    buffer, table = bytearray(source), new_table(64)
    return buffer, table, kernel.scan_frames(buffer, 0, len(buffer), table, 64)


def frame_of(header: bytes, body: bytes = b"", serialize: int = 0) -> bytes:
    """Returns a frame around any header."""
    return (
        (len(header) + len(body) + 4).to_bytes(4, "big")
        + bytes([serialize])
        + len(header).to_bytes(3, "big")
        + header
        + body
    )


def values(table: array[int], source: bytearray, row: int = 0) -> Row:
    """Returns the values of a row, with texts in place of their positions and lengths."""
    base = row * ROW_WIDTH
    kind = FrameKind(table[base])

    def number(column: FrameColumn) -> int:
        return table[base + column]

    def text(name: str) -> bytes | None:
        position, length = (number(column) for column in NAMES[name])
        return None if length < 0 else bytes(source[position : position + length])

    found: Row = {"kind": kind, "code": number(FrameColumn.CODE), "opaque": number(FrameColumn.OPAQUE)}
    found |= {"flag": number(FrameColumn.FLAG), "version": number(FrameColumn.VERSION)}
    if kind == FrameKind.PLAIN:
        assert not any(table[base + FrameColumn.GROUP_POS : base + ROW_WIDTH])
        return found
    found |= {"group": text("group"), "topic": text("topic"), "text": text("text")}
    found |= {"queue_id": number(FrameColumn.QUEUE_ID), "sys_flag": number(FrameColumn.SYS_FLAG)}
    if kind == FrameKind.PULL:
        found |= {"expression_type": text("expression_type")}
        names = ("QUEUE_OFFSET", "MAX_MESSAGES", "COMMIT_OFFSET", "SUSPEND_TIMEOUT", "SUB_VERSION")
        return found | {name: number(FrameColumn[f"PULL_{name}"]) for name in names}
    found |= {"default_topic": text("default_topic")}
    names = ("DEFAULT_TOPIC_QUEUES", "BORN_TIMESTAMP", "MESSAGE_FLAG", "RECONSUME_TIMES", "UNIQ_KEY_LEN")
    return found | {name: number(FrameColumn[name]) for name in names}


def expected(command: RemotingCommand) -> Row:
    """Returns the values of ``command``'s row if the kernel reads its whole header."""
    found: Row = {"kind": FrameKind.PLAIN, "code": command.code, "opaque": command.opaque}
    found |= {"flag": command.flag, "version": command.version}
    if command.is_response:
        return found
    ext_fields = {key: value for key, value in command.ext_fields.items() if key not in IGNORED}
    try:
        if command.code in PULL_CODES:
            return found | _pull(PullMessageRequestHeader.from_ext_fields(ext_fields))
        if command.code in SEND_HEADERS:
            return found | _send(SEND_HEADERS[command.code].from_ext_fields(ext_fields))
    except FormatError:
        pass
    return found


def _pull(header: PullMessageRequestHeader) -> Row:
    if not header.topic:
        return {}
    return {
        "kind": FrameKind.PULL,
        "group": header.consumer_group.encode(),
        "topic": header.topic.encode(),
        "text": None if header.subscription is None else header.subscription.encode(),
        "queue_id": header.queue_id,
        "sys_flag": header.sys_flag,
        "expression_type": None if header.expression_type is None else header.expression_type.encode(),
        "QUEUE_OFFSET": header.queue_offset,
        "MAX_MESSAGES": header.max_msg_nums,
        "COMMIT_OFFSET": header.commit_offset,
        "SUSPEND_TIMEOUT": header.suspend_timeout_millis,
        "SUB_VERSION": header.sub_version,
    }


def _send(header: SendMessageRequestHeader) -> Row:
    if not header.topic or header.topic.startswith("%"):
        return {}
    return {
        "kind": FrameKind.BATCH if header.batch else FrameKind.SEND,
        "group": header.producer_group.encode(),
        "topic": header.topic.encode(),
        "text": None if header.properties is None else header.properties.encode(),
        "queue_id": header.queue_id,
        "sys_flag": header.sys_flag,
        "default_topic": header.default_topic.encode(),
        "DEFAULT_TOPIC_QUEUES": header.default_topic_queue_nums,
        "BORN_TIMESTAMP": header.born_timestamp,
        "MESSAGE_FLAG": header.flag,
        "RECONSUME_TIMES": header.reconsume_times or 0,
        "UNIQ_KEY_LEN": -1,
    }
