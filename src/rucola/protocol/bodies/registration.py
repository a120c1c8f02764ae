"""Body of request 103 (REGISTER_BROKER): a broker reports its topics to the name server (``protocol.md`` 2.1.1).

The body has two forms: JSON, or zlib-compressed data with this content (int32 + n is a length n and n bytes):

==========  ==========================================================================
int32 + n   ``DataVersion`` as JSON
int32       number of topics, then per topic int32 + n: ``name read write perm
            filterType attributesJson``, separated by single spaces; the last is optional
int32 + n   list of filter servers as JSON
int32       number of static topic mappings (5.x only), each int32 + n JSON
==========  ==========================================================================

5.x brokers send ``compressed=false`` in the header even if the body is compressed (``BrokerOuterAPI``, 5.3.3), so the
first byte of the body tells its form.
"""

from __future__ import annotations

import zlib
from dataclasses import field
from struct import Struct
from typing import Any

from rucola.common.data_version import DataVersion
from rucola.common.late_dataclass import late_dataclass
from rucola.common.topic_config import TopicConfig, TopicFilterType
from rucola.errors import FormatError
from rucola.protocol import fastjson
from rucola.protocol.bodies.body import Body

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""Size limit of an inflated body: 4 KiB for each of 16,384 topics."""

_PART_BYTES = 64 * 1024
_COMMA_BYTES_MIN = 8
_NESTED_BYTES_MIN = 24
"""Long JSON may have at most one comma per ``_COMMA_BYTES_MIN`` bytes and one object per ``_NESTED_BYTES_MIN`` bytes. A
topic has only one comma per 17 bytes and one object per 70 bytes.
"""
_INT32 = Struct(">i")


@late_dataclass
class TopicConfigSerializeWrapper(Body):
    """The topics of a broker by name, and the version of its topic table.

    The mappings of static topics (5.x) are kept as JSON objects; 4.9 brokers send none.
    """

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, Any] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, Any] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)


@late_dataclass
class RegisterBrokerBody(Body):
    """Body of request 103 (REGISTER_BROKER)."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_server_list: list[str] = field(default_factory=list)

    @classmethod
    def decode(cls, source: bytes | bytearray | memoryview) -> RegisterBrokerBody:
        """Decodes a body in either form.

        Raises:
            FormatError: the body has neither form, or too many values for its length.
        """
        if is_deflated(source):
            return _decode_deflated(bytes(source))
        _check_density(bytes(source))
        return cls.from_dict(fastjson.load_object(source, cls.__name__))


def is_deflated(source: bytes | bytearray | memoryview) -> bool:
    """Whether a body of request 103 has the compressed form; see the top of the module."""
    return bytes(source[:1]) == b"\x78"


def body_crc32(body: bytes) -> int:
    """Returns the value of ``bodyCrc32`` for the header of request 103."""
    return zlib.crc32(body) & 0x7FFFFFFF


def _check_density(text: bytes) -> None:
    """Refuses long JSON with more values than a registration of the same length can contain.

    A registration may be as long as a frame. Parsing 16 MiB of nothing but the shortest values takes seconds, during
    which no other thread runs.

    Raises:
        FormatError: there are too many values.
    """
    if len(text) <= _PART_BYTES:
        return
    for start in range(0, len(text), _PART_BYTES):
        part = text[start : start + _PART_BYTES]
        nested = part.count(b"{") + part.count(b"[")
        if part.count(b",") > _PART_BYTES // _COMMA_BYTES_MIN or nested > _PART_BYTES // _NESTED_BYTES_MIN:
            expected = (
                f"at most {_PART_BYTES // _COMMA_BYTES_MIN} commas and {_PART_BYTES // _NESTED_BYTES_MIN} objects"
            )
            raise FormatError("RegisterBrokerBody", start, f"{expected} in {_PART_BYTES} bytes", "more")


def _decode_deflated(source: bytes) -> RegisterBrokerBody:
    inflate = zlib.decompressobj()
    try:
        inflated = inflate.decompress(source, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise FormatError("RegisterBrokerBody", 0, "zlib data", str(error)) from error
    if not inflate.eof:
        raise FormatError("RegisterBrokerBody", len(inflated), "the end of the zlib data", "more or truncated data")
    version, position = _read_sized(inflated, 0)
    count, position = _read_count(inflated, position)
    table: dict[str, TopicConfig] = {}
    for _ in range(count):
        text, position = _read_sized(inflated, position)
        topic = _read_topic(text, position)
        table[topic.topic_name] = topic
    servers, _ = _read_sized(inflated, position)
    _check_density(version)
    _check_density(servers)
    body = RegisterBrokerBody.from_dict(
        {
            "topicConfigSerializeWrapper": {
                "dataVersion": fastjson.load_object(version, "RegisterBrokerBody, data version")
            },
            "filterServerList": fastjson.loads(servers),
        }
    )
    body.topic_config_serialize_wrapper.topic_config_table = table
    return body


def _read_sized(source: bytes, position: int) -> tuple[bytes, int]:
    length, position = _read_count(source, position)
    if length > len(source) - position:
        raise FormatError("RegisterBrokerBody", position - 4, f"a length up to {len(source) - position}", str(length))
    return source[position : position + length], position + length


def _read_count(source: bytes, position: int) -> tuple[int, int]:
    if len(source) - position < 4:
        raise FormatError("RegisterBrokerBody", position, "4 bytes", f"{len(source) - position}")
    count: int = _INT32.unpack_from(source, position)[0]
    if count < 0:
        raise FormatError("RegisterBrokerBody", position, "a number not below 0", str(count))
    return count, position + 4


def _read_topic(text: bytes, position: int) -> TopicConfig:
    parts: list[Any] = text.decode(errors="replace").split(" ", 5)
    try:
        name, read, write, perm, kind = parts[:5]
        attributes = fastjson.load_object(parts[5].encode(), "RegisterBrokerBody, attributes") if parts[5:] else {}
        return TopicConfig(name, int(read), int(write), int(perm), TopicFilterType(kind), attributes={**attributes})
    except ValueError as error:
        raise FormatError(
            "RegisterBrokerBody, topic", position, "name, three numbers, filter type", repr(text)
        ) from error
