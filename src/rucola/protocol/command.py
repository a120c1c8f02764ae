"""``RemotingCommand``: one request or response, with its header in either serialization.

JSON headers are written as Java writes them: keys sorted, nulls left out, ext fields in the given order. Received
headers may deviate from this form as much as clients need (``protocol.md`` 1.2). Only ``code`` is required. Ext values
may be numbers, booleans or null; ``extFields``, ``language`` and ``remark`` may be null, too. Unknown keys are ignored,
and white space may follow the object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from rucola.common.json_library import orjson
from rucola.errors import FormatError
from rucola.protocol import header_binary
from rucola.protocol.codes import PROTOCOL_VERSION, LanguageCode

JSON = 0
BINARY = 1
"""Serialize types of a header."""

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Size limit of a whole frame in bytes (RocketMQ: ``com.rocketmq.remoting.frameMaxLength``)."""

_HEADER_BYTES_MAX = (1 << 24) - 1
HEADER_BYTES_READ_MAX = 256 * 1024
"""Size limit of a received header. It has room for 32,767 bytes of properties, even if each byte is escaped as six
bytes, and for the other fields.
"""
RESPONSE_HEADER_BYTES_READ_MAX = 2 * 1024 * 1024
"""Larger than that of requests: the response to a batch of 32,768 messages has all their ids in its header."""
_LANGUAGES = {language.name: language for language in LanguageCode}
_LANGUAGE_CODES = {int(language): language for language in LanguageCode}


@dataclass(slots=True)
class RemotingCommand:
    """One request or response.

    Attributes:
        code: a ``RequestCode``, a ``ResponseCode`` or any other number.
        opaque: correlation id, int32; a response repeats the id of its request.
        flag: bit 0 response, bit 1 oneway.
        remark: error text of a response; empty if none.
        ext_fields: the fields of the header, as strings; fields whose value is null are left out.
        body: the bytes after the header; may be empty.
        language: language of the sender; ``OTHER`` if unknown.
        version: version ordinal of the sender (``protocol.md`` 1.6).
        serialize: ``JSON`` or ``BINARY`` header.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str = ""
    ext_fields: dict[str, str] = field(default_factory=dict)
    body: bytes | bytearray | memoryview = b""
    language: LanguageCode = LanguageCode.PYTHON
    version: int = PROTOCOL_VERSION
    serialize: int = JSON

    @property
    def is_response(self) -> bool:
        """Whether this is a response."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no response."""
        return bool(self.flag & FLAG_ONEWAY)

    def answer(
        self,
        code: int,
        remark: str = "",
        ext_fields: dict[str, str] | None = None,
        body: bytes | bytearray | memoryview = b"",
    ) -> RemotingCommand:
        """Returns a response to this request, in the same serialization."""
        return RemotingCommand(
            code, self.opaque, FLAG_RESPONSE, remark, ext_fields or {}, body, serialize=self.serialize
        )

    def encode(self) -> bytes:
        """Encodes the whole frame.

        Raises:
            FormatError: the frame would be larger than 16 MiB, or a number does not fit the binary header.
        """
        header = self.encode_header()
        return b"".join((frame_prefix(len(header), len(self.body), self.serialize), header, self.body))

    def encode_header(self) -> bytes:
        """Encodes the header alone, without the eight bytes that precede it."""
        if self.serialize == BINARY:
            return header_binary.encode(
                header_binary.BinaryHeader(
                    self.code, self.language, self.version, self.opaque, self.flag, self.remark, self.ext_fields
                )
            )
        header: dict[str, Any] = {"code": int(self.code)}
        if self.ext_fields:
            header["extFields"] = self.ext_fields
        header["flag"] = self.flag
        header["language"] = self.language.name
        header["opaque"] = self.opaque
        if self.remark:
            header["remark"] = self.remark
        header["serializeTypeCurrentRPC"] = "JSON"
        header["version"] = self.version
        return orjson.dumps(header)


def frame_prefix(header_bytes: int, body_bytes: int, serialize: int) -> bytes:
    """Returns the eight bytes before a header.

    Raises:
        FormatError: the frame would be larger than peers accept.
    """
    total = 8 + header_bytes + body_bytes
    if total > FRAME_BYTES_MAX or header_bytes > _HEADER_BYTES_MAX:
        raise FormatError("frame", 0, f"at most {FRAME_BYTES_MAX} bytes", str(total))
    return ((total - 4) << 32 | serialize << 24 | header_bytes).to_bytes(8, "big")


def decode_header(header: bytes, serialize: int, body: bytes = b"", is_response: bool = False) -> RemotingCommand:
    """Decodes the header of a frame.

    Args:
        header: the header's bytes.
        serialize: ``JSON`` or ``BINARY``.
        body: body of the command.
        is_response: whether the limit of responses applies.

    Raises:
        FormatError: the header is invalid, repeats a field or exceeds the size limit.
    """
    bytes_max = RESPONSE_HEADER_BYTES_READ_MAX if is_response else HEADER_BYTES_READ_MAX
    if len(header) > bytes_max:
        raise FormatError("header", 0, f"at most {bytes_max} bytes", str(len(header)))
    if serialize == BINARY:
        decoded = header_binary.decode(header)
        return RemotingCommand(
            decoded.code,
            decoded.opaque,
            decoded.flag,
            decoded.remark or "",
            decoded.ext_fields,
            body,
            _LANGUAGE_CODES.get(decoded.language, LanguageCode.OTHER),
            decoded.version,
            BINARY,
        )
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise FormatError("JSON header", error.pos, "JSON", error.msg) from error
    if type(fields) is not dict:
        raise FormatError("JSON header", 0, "an object", type(fields).__name__)
    remark = fields.get("remark")
    language = fields.get("language")
    ext_fields = _texts(fields.get("extFields"))
    if header.count(b'"') != _quotes(fields):
        _refuse_duplicates(header)
    return RemotingCommand(
        _int32(fields, "code", None),
        _int32(fields, "opaque", 0),
        _int32(fields, "flag", 0),
        remark if type(remark) is str else "",
        ext_fields,
        body,
        _LANGUAGES.get(language, LanguageCode.OTHER) if type(language) is str else LanguageCode.OTHER,
        _int32(fields, "version", 0),
        JSON,
    )


def decode_frame(frame: bytes | bytearray | memoryview) -> RemotingCommand:
    """Decodes exactly one whole frame. Connections use ``FrameReader``.

    Raises:
        FormatError: the bytes are not exactly one frame, or its header is invalid.
    """
    frame = bytes(frame)
    if len(frame) < 8 or int.from_bytes(frame[:4], "big") != len(frame) - 4:
        raise FormatError("frame", 0, "one whole frame", f"{len(frame)} bytes that start with {frame[:4].hex()}")
    header_end = 8 + int.from_bytes(frame[5:8], "big")
    if frame[4] > 1 or header_end == 8 or header_end > len(frame):
        raise FormatError("frame", 4, "a header within the frame", frame[4:8].hex())
    return decode_header(frame[8:header_end], frame[4], frame[header_end:])


def _quotes(fields: dict[str, Any]) -> int:
    """Returns the number of quotation marks that a JSON header with these fields usually has. A header has more if it
    repeats a field, has quotes in strings, or has objects besides extFields.
    """
    texts = list(fields.values())
    keys = len(fields)
    ext_fields = fields.get("extFields")
    if ext_fields is not None:
        texts += ext_fields.values()
        keys += len(ext_fields)
    return 2 * (keys + sum([type(text) is str for text in texts]))


def _refuse_duplicates(header: bytes) -> None:
    try:
        json.loads(header, object_pairs_hook=_unique, parse_int=str, parse_float=str)
    except RecursionError:
        raise FormatError("JSON header", 0, "fewer nested objects", "too many") from None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise FormatError("JSON header", 0, "each field once", ", ".join(name for name, _ in pairs)[:200])


def _int32(fields: dict[str, Any], name: str, default: int | None) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
        raise FormatError("JSON header", 0, f"a 32-bit number for {name}", repr(value))
    return value


def _texts(fields: object) -> dict[str, str]:
    """Returns the ext fields with all values as strings; clients also send numbers and booleans."""
    if fields is None:
        return {}
    if type(fields) is not dict or len(fields) > header_binary.EXT_FIELDS_MAX:
        raise FormatError(
            "JSON header", 0, f"at most {header_binary.EXT_FIELDS_MAX} extFields in an object", "another value"
        )
    texts: dict[str, str] = {}
    for key, value in fields.items():
        kind = type(value)
        if kind is str:
            texts[key] = value
        elif kind is bool:
            texts[key] = "true" if value else "false"
        elif kind is int or kind is float:
            texts[key] = str(value)
        elif value is not None:
            raise FormatError("JSON header", 0, f"a string for ext field {key}", kind.__name__)
    return texts
